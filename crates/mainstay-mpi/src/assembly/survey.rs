//! One pass over a log under the policy *sender*: what it received, or what it sent to one rank, without the bytes.

use crate::definition::{Comm, decode_texts};
use crate::envelopes::Envelope;
use crate::field::{Field, ObjectKind, Role, fields};
use crate::format::Kind;
use crate::matching::{Class, CommKey, OpenPost, Received, Rule, Sends, Sent};
use crate::reader::damage::Damage;
use crate::reader::{Reader, Record};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Messages that came, in the order in which they were done.
    pub(super) received: Vec<Received>,
    /// Posts whose end the log does not show.
    pub(super) open: Vec<OpenPost>,
    /// Messages to the one rank.
    pub(super) sent: Sends,
    names: Vec<String>,
    comms: Comms,
    unhandled: BTreeMap<String, u64>,
    ended: bool,
    calls: u64,
    /// What is wrong with the log.
    pub(super) damage: Option<Damage>,
}

/// Communicators of one log, by the place of their records.
#[derive(Debug, Default)]
struct Comms {
    known: Vec<(Arc<CommKey>, Vec<i64>)>,
    latest: HashMap<u64, usize>,
    made: HashMap<Vec<Vec<i64>>, u64>,
}

impl Comms {
    /// `again`: it was there before, and is only described once more.
    fn take(&mut self, comm: Comm, again: bool) {
        let mut groups = vec![comm.peers.clone()];
        if comm.remote_size > 0 {
            groups.push(comm.locals);
            groups.sort();
        }
        let before = self.latest.get(&comm.id).map(|place| self.known[*place].0.clone());
        let key = match before {
            Some(key) if again && key.groups == groups => key,
            _ => {
                let made = self.made.entry(groups.clone()).or_default();
                *made += 1;
                Arc::new(CommKey { groups, index: *made - 1 })
            }
        };
        self.latest.insert(comm.id, self.known.len());
        self.known.push((key, comm.peers));
    }

    fn at(&self, place: u64) -> Option<&(Arc<CommKey>, Vec<i64>)> {
        self.known.get(usize::try_from(place).ok()?)
    }

    /// The communicator, and which rank of the world a peer in it is.
    fn peer(&self, place: u64, peer: i64) -> Option<(&Arc<CommKey>, i64)> {
        let (key, peers) = self.at(place)?;
        Some((key, *peers.get(usize::try_from(peer).ok()?)?))
    }
}

impl Survey {
    /// What a log received.
    pub(super) fn received(reader: Reader) -> Self {
        let mut posts: BTreeMap<u64, Envelope> = BTreeMap::new();
        let mut survey = Self::default();
        survey.walk(reader, |survey, record| {
            let (mut from, mut probed) = ((-1, -1), None);
            for field in fields(&record.body) {
                match field {
                    Field::Status(source, tag, ..) => {
                        from = (source, tag);
                        // A matched probe: the post is of what it found.
                        if let Some(post) = probed.take().and_then(|post| posts.get_mut(&post)) {
                            (post.peer, post.tag) = from;
                        }
                    }
                    Field::Posted(post, envelope) => {
                        posts.insert(post, envelope);
                        probed = (envelope.peer < 0 && envelope.tag < 0).then_some(post);
                    }
                    Field::Withdrawn(post) => {
                        posts.remove(&post);
                    }
                    Field::Promised(post, comm, length, crc) => {
                        posts.remove(&post);
                        if let Some((key, source)) = survey.comms.peer(comm, from.0) {
                            let class = Class { comm: key.clone(), source, tag: from.1 };
                            survey.received.push(Received { class, post, length, crc });
                        }
                    }
                    _ => {}
                }
            }
        });
        for (post, Envelope { comm, peer, tag }) in posts {
            if let Some((key, _)) = survey.comms.at(comm) {
                let source = survey.comms.peer(comm, peer).map(|(_, source)| source);
                let tag = (tag >= 0).then_some(tag);
                survey.open.push(OpenPost { post, comm: key.clone(), source, tag });
            }
        }
        survey
    }

    /// What the log of rank `source` sent to rank `to`.
    pub(super) fn sent(reader: Reader, source: i64, to: i64, rule: Rule) -> Self {
        let mut retracted = HashSet::new();
        let mut sends = 0;
        let mut survey = Self::default();
        survey.walk(reader, |survey, record| {
            let (mut explicit, mut digests) = (VecDeque::new(), VecDeque::new());
            for field in fields(&record.body) {
                match field {
                    Field::To(to) => explicit.push_back(to),
                    Field::Data(length, crc) => digests.push_back((length, crc)),
                    Field::Sent(_) => {
                        let number = sends;
                        sends += 1;
                        let envelope = explicit.pop_front().unwrap_or_else(|| survey.envelope(record));
                        let Some((length, crc)) = digests.pop_front() else {
                            continue;
                        };
                        let Some((key, peer)) = survey.comms.peer(envelope.comm, envelope.peer) else {
                            continue;
                        };
                        if peer == to {
                            let class = Class { comm: key.clone(), source, tag: envelope.tag };
                            let sent = Sent { number, length, crc };
                            survey.sent.entry(class).or_default().push(sent);
                        }
                    }
                    Field::Retracted(send) => {
                        retracted.insert(send);
                    }
                    _ => {}
                }
            }
        });
        if rule.without_cancelled {
            survey.sent.values_mut().for_each(|sent| sent.retain(|sent| !retracted.contains(&sent.number)));
        }
        survey
    }

    /// Whom the send of a call goes to: the first peer and tag.
    fn envelope(&self, record: &Record) -> Envelope {
        let (mut comm, mut peer, mut tag) = (u64::MAX, None, None);
        for field in fields(&record.body) {
            match field {
                Field::Input(Role::Peer, value) => peer = peer.or(Some(value)),
                Field::Input(Role::Tag, value) => tag = tag.or(Some(value)),
                Field::Handle(ObjectKind::Comm, id) => {
                    comm = self.comms.latest.get(&id).map_or(u64::MAX, |place| *place as u64);
                }
                _ => {}
            }
        }
        Envelope { comm, peer: peer.unwrap_or(-1), tag: tag.unwrap_or(-1) }
    }

    fn walk(&mut self, mut reader: Reader, mut call: impl FnMut(&mut Self, &Record)) {
        let mut before = String::new();
        while let Some(record) = reader.next_record() {
            match record.kind {
                Kind::Call => {
                    call(self, &record);
                    self.name(&record).clone_into(&mut before);
                }
                Kind::Unhandled => {
                    let name = self.name(&record).to_owned();
                    *self.unhandled.entry(name).or_default() += record.calls();
                }
                Kind::Comm => {
                    if let Some(comm) = Comm::decode(&record.body) {
                        self.comms.take(comm, before == "MPI_Comm_get_parent");
                    }
                }
                Kind::Names => self.names = decode_texts(&record.body).unwrap_or_default(),
                _ => {}
            }
        }
        (self.calls, self.ended) = (reader.calls(), reader.ended());
        self.damage = reader.damage().cloned();
    }

    fn name(&self, record: &Record) -> &str {
        self.names.get(usize::from(record.function)).map_or("", String::as_str)
    }

    /// Calls of this rank that were not recorded, if there are any: they may have sent, received, or made a communicator.
    pub(super) fn unrecorded(&self, rank: i64) -> Option<String> {
        let names: Vec<String> =
            self.unhandled.iter().map(|(name, count)| format!("{count} {name}")).collect();
        (!names.is_empty())
            .then(|| format!("rank {rank} made calls that were not recorded: {}", names.join(", ")))
    }

    /// Why a message of this rank may be missing or another one.
    pub(super) fn hint(&self, rank: i64) -> String {
        if let Some(unrecorded) = self.unrecorded(rank) {
            return unrecorded;
        }
        if let Some(damage) = &self.damage {
            return damage.to_string();
        }
        let end = if self.ended { "ended" } else { "was cut off" };
        format!("the log of rank {rank} {end} after {} calls", self.calls)
    }
}
