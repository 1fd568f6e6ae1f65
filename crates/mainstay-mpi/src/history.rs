//! What a rank sent, received and joined, as its log says: the operations of a run without their bytes.

use crate::definition::Comm;
use crate::envelopes::CANCELLED;
use crate::format::Kind;
use crate::operation::{Begins, Class, Completion, Parsed, Wildcards};
use crate::reader::damage::Damage;
use crate::reader::{ReadError, Tail};
use crate::run::Run;
use crate::walk::{Seen, Step, Walk};
use std::collections::{BTreeMap, HashMap};

/// A rank in the world, as numbers of MPI are.
pub type WorldRank = i64;

/// Communicators by a number that is the same for all ranks: who is in them, and the how-manieth with these members it is.
/// MPI makes communicators together, so each member counts them alike.
#[derive(Clone, Debug, Default)]
pub struct Communicators {
    numbers: HashMap<(Vec<WorldRank>, u32), u32>,
    known: Vec<(Vec<WorldRank>, u32)>,
}

/// Numbers of inter-communicators are counted down from here, for each pair of ranks.
const INTER_LAST: u32 = u32::MAX;

impl Communicators {
    fn number(&mut self, members: &[WorldRank], nth: u32) -> u32 {
        let next = u32::try_from(self.known.len()).expect("communicators are fewer than that");
        *self.numbers.entry((members.to_vec(), nth)).or_insert_with(|| {
            self.known.push((members.to_vec(), nth));
            next
        })
    }

    /// Who is in it, in the order of their ranks there; nobody of an inter-communicator.
    #[must_use]
    pub fn members(&self, number: u32) -> &[WorldRank] {
        self.known.get(number as usize).map_or(&[], |known| &known.0)
    }

    /// How to call it.
    #[must_use]
    pub fn name(&self, number: u32, size: u32) -> String {
        let Some((members, nth)) = self.known.get(number as usize) else {
            return "an inter-communicator".to_owned();
        };
        let world = members.len() == size as usize && members.iter().copied().eq(0..i64::from(size));
        match (world, nth, members.len()) {
            (true, 0, _) => "MPI_COMM_WORLD".to_owned(),
            (true, ..) => format!("communicator {nth} like MPI_COMM_WORLD"),
            (false, _, 0..=8) => format!("communicator {nth} of ranks {members:?}"),
            (false, _, count) => format!("communicator {nth} of {count} ranks"),
        }
    }
}

/// A communicator as one rank knows it.
#[derive(Clone, Debug)]
struct Known {
    number: u32,
    peers: Vec<WorldRank>,
    /// Of an inter-communicator: the how-manieth it is with each peer.
    nth_with: Option<HashMap<WorldRank, u32>>,
}

impl Known {
    fn number_with(&self, peer: WorldRank) -> u32 {
        match &self.nth_with {
            Some(nth) => INTER_LAST - nth.get(&peer).copied().unwrap_or(0),
            None => self.number,
        }
    }
}

/// A message that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Number of the call.
    pub call: u64,
    /// To whom.
    pub peer: WorldRank,
    /// The communicator.
    pub comm: u32,
    /// Its tag.
    pub tag: i64,
    /// Its bytes.
    pub bytes: u64,
    /// Their CRC-32C, where the log has it.
    pub crc: Option<u32>,
}

/// A message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Place among the receives that this rank posted: MPI matches in this order.
    pub order: u64,
    /// Number of the call that posted the receive.
    pub call: u64,
    /// Number of the call that ended it.
    pub done: u64,
    /// From whom.
    pub peer: WorldRank,
    /// The communicator.
    pub comm: u32,
    /// Its tag.
    pub tag: i64,
    /// Its bytes.
    pub bytes: u64,
    /// Their CRC-32C, where the log has them.
    pub crc: Option<u32>,
}

/// What a receive or a probe takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// From whom; all of the communicator for `MPI_ANY_SOURCE`.
    pub from: Vec<WorldRank>,
    /// Whether that is `MPI_ANY_SOURCE`.
    pub any_source: bool,
    /// With which tag, `None` for any.
    pub tag: Option<i64>,
    /// The communicator; of an inter-communicator with the first of `from`.
    pub comm: u32,
}

impl Pattern {
    /// Whether it takes a message.
    #[must_use]
    pub fn takes(&self, from: WorldRank, comm: u32, tag: i64) -> bool {
        self.from.contains(&from) && self.comm == comm && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// A receive on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Place among the receives that this rank posted.
    pub order: u64,
    /// Number of the call.
    pub call: u64,
    /// What it takes.
    pub pattern: Pattern,
}

/// A collective that the rank entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Number of the call.
    pub call: u64,
    /// The communicator.
    pub comm: u32,
    /// Number of the function.
    pub function: u16,
    /// Its root as a rank of the world, if it has one.
    pub root: Option<WorldRank>,
    /// The how-manieth collective over this communicator it is, from 0.
    pub nth: u64,
}

/// The call that a rank was in when its log ended, or is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Number of the function.
    pub function: u16,
    /// Number of the call.
    pub call: u64,
    /// What went in.
    pub inputs: Parsed,
    /// What it takes, of a receive or probe.
    pub pattern: Option<Pattern>,
    /// What it sends.
    pub sends: Option<Outgoing>,
    /// What it joins.
    pub joins: Option<Joined>,
}

/// The operations of a rank.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The rank.
    pub rank: u32,
    /// Ranks of the run.
    pub size: u32,
    /// Names of functions by number.
    pub names: Vec<String>,
    /// Calls in the log.
    pub calls: u64,
    /// Whether the process ended by itself.
    pub ended: bool,
    /// Whether it came to the end of MPI.
    pub finalized: bool,
    /// How the log ends.
    pub tail: Tail,
    /// What is wrong with it.
    pub damage: Option<Damage>,
    /// Calls that were forwarded and not recorded, by name.
    pub unhandled: BTreeMap<String, u64>,
    /// Messages that left, in order.
    pub sends: Vec<Outgoing>,
    /// Messages that came, in the order of their receives.
    pub receives: Vec<Incoming>,
    /// Receives on their way, by the call that made the request.
    pub open: BTreeMap<u64, Posted>,
    /// Collectives, in order.
    pub joined: Vec<Joined>,
    /// The call that the rank is in.
    pub entered: Option<Entered>,
    /// Whether the last record is a poll that found nothing.
    pub polled_last: bool,
}

/// Operations while they are read.
struct Reading<'a> {
    history: History,
    communicators: &'a mut Communicators,
    wildcards: Wildcards,
    known: HashMap<u64, Known>,
    /// How many communicators there were with these members, and inter-communicators with this peer.
    made: HashMap<Vec<WorldRank>, u32>,
    made_inter: HashMap<WorldRank, u32>,
    persistent_sends: HashMap<u64, Outgoing>,
    persistent_receives: HashMap<u64, Pattern>,
    joined_of: HashMap<u32, u64>,
    orders: u64,
}

/// Reads the operations of a rank. `with_crc`: what came is read for its checksum.
///
/// # Errors
/// [`ReadError`].
pub fn read(
    run: &Run,
    rank: u32,
    communicators: &mut Communicators,
    with_crc: bool,
) -> Result<History, ReadError> {
    Ok(read_walk(Walk::over(run.whole_reader(rank)?), rank, communicators, with_crc))
}

fn read_walk(mut walk: Walk, rank: u32, communicators: &mut Communicators, with_crc: bool) -> History {
    let mut classes: Vec<Class> = Vec::new();
    let mut reading = Reading {
        history: History { rank, ..History::default() },
        communicators,
        wildcards: Wildcards::of(""),
        known: HashMap::new(),
        made: HashMap::new(),
        made_inter: HashMap::new(),
        persistent_sends: HashMap::new(),
        persistent_receives: HashMap::new(),
        joined_of: HashMap::new(),
        orders: 0,
    };
    while let Some(step) = walk.next_step() {
        match step {
            Step::Comm(comm) => reading.take_comm(&comm),
            Step::Call(seen) => {
                if classes.len() != walk.names.len() {
                    classes = walk.names.iter().map(|name| Class::of(name)).collect();
                }
                // Said behind MPI_Init, which no operation precedes.
                reading.wildcards = Wildcards::of(&walk.library);
                let class = classes.get(usize::from(seen.function)).copied().unwrap_or(Class::Other);
                reading.history.polled_last = seen.kind == Kind::Misses;
                match seen.kind {
                    Kind::Unhandled => {
                        let name = walk.name(seen.function).to_owned();
                        *reading.history.unhandled.entry(name).or_default() += seen.count;
                    }
                    Kind::Call if class != Class::Other => {
                        reading.take_call(&seen, class, Parsed::of(seen.fields(), with_crc));
                    }
                    _ => {}
                }
            }
        }
    }
    if let Some((function, call, inputs)) = walk.entered()
        && !walk.ended
        && (call == walk.calls + 1 || reading.history.polled_last && call == walk.calls)
    {
        let class = Class::of(walk.name(function));
        let parsed = Parsed::of(crate::field::fields(inputs), false);
        let entered = reading.entered(function, call, class, parsed);
        reading.history.entered = Some(entered);
    }
    let mut history = reading.history;
    history.receives.sort_by_key(|receive| receive.order);
    history.calls = walk.calls;
    history.ended = walk.ended;
    history.size = walk.size;
    history.tail = walk.tail();
    history.damage = walk.damage().cloned();
    history.names = walk.names;
    history
}

impl Reading<'_> {
    fn take_comm(&mut self, comm: &Comm) {
        let known = if comm.remote_size > 0 {
            let mut nth_with = HashMap::new();
            for peer in &comm.peers {
                let made = self.made_inter.entry(*peer).or_default();
                nth_with.insert(*peer, *made);
                *made += 1;
            }
            Known { number: INTER_LAST, peers: comm.peers.clone(), nth_with: Some(nth_with) }
        } else {
            let made = self.made.entry(comm.peers.clone()).or_default();
            let number = self.communicators.number(&comm.peers, *made);
            *made += 1;
            Known { number, peers: comm.peers.clone(), nth_with: None }
        };
        self.known.insert(comm.id, known);
    }

    fn take_call(&mut self, seen: &Seen, class: Class, parsed: Parsed) {
        let call = seen.number;
        let ends_requests = matches!(class, Class::WaitAll(_) | Class::WaitAny(_));
        if parsed.result != Some(0) && !ends_requests {
            return;
        }
        let first = parsed.completions.first().copied().unwrap_or_default();
        match class {
            Class::Send(begins) => {
                if let Some(send) = self.outgoing(call, &parsed) {
                    if begins == Begins::Persistent {
                        self.persistent_sends.insert(call, send);
                    } else {
                        self.history.sends.push(send);
                    }
                }
            }
            Class::SendReceive => {
                self.history.sends.extend(self.outgoing(call, &parsed));
                self.came(call, parsed.comm, first);
            }
            Class::Receive(Begins::Blocking) | Class::MatchedProbe(_) => self.came(call, parsed.comm, first),
            Class::Receive(begins) => {
                let Some(pattern) = self.pattern(&parsed, 0).filter(|_| parsed.made_request) else {
                    return;
                };
                if begins == Begins::Persistent {
                    self.persistent_receives.insert(call, pattern);
                } else {
                    self.post(call, call, pattern);
                }
            }
            Class::Start => {
                for (age, data) in &parsed.requests {
                    let made = call - (*age).min(call);
                    if let (Some(send), Some((bytes, crc))) = (self.persistent_sends.get(&made), data) {
                        let send = Outgoing { call, bytes: *bytes, crc: *crc, ..*send };
                        self.history.sends.push(send);
                    } else if let Some(pattern) = self.persistent_receives.get(&made) {
                        let pattern = pattern.clone();
                        self.post(made, call, pattern);
                    }
                }
            }
            Class::WaitAll(_) | Class::WaitAny(_) => {
                for completion in &parsed.completions {
                    self.end_request(call, *completion);
                }
            }
            Class::Free => {
                for (age, _) in &parsed.requests {
                    self.history.open.remove(&(call - (*age).min(call)));
                }
            }
            Class::Collective(_) => {
                if let Some(joined) = self.joins(call, seen.function, &parsed) {
                    *self.joined_of.entry(joined.comm).or_default() += 1;
                    self.history.joined.push(joined);
                }
            }
            Class::Finalize => self.history.finalized = true,
            Class::ReceiveMatched(_) | Class::Probe(_) | Class::Cancel | Class::Other => {}
        }
    }

    fn peer(&self, comm: Option<u64>, peer: i64) -> Option<(WorldRank, u32)> {
        let known = self.known.get(&comm?)?;
        let world = *known.peers.get(usize::try_from(peer).ok()?)?;
        Some((world, known.number_with(world)))
    }

    fn outgoing(&self, call: u64, parsed: &Parsed) -> Option<Outgoing> {
        // A peer below 0 is MPI_PROC_NULL: nobody.
        let (peer, comm) = self.peer(parsed.comm, *parsed.peers.first()?)?;
        let (bytes, crc) = parsed.data.unwrap_or_default();
        Some(Outgoing { call, peer, comm, tag: *parsed.tags.first()?, bytes, crc })
    }

    fn pattern(&self, parsed: &Parsed, place: usize) -> Option<Pattern> {
        let (source, tag) = (*parsed.peers.get(place)?, *parsed.tags.get(place)?);
        let tag = (tag != self.wildcards.any_tag).then_some(tag);
        if source == self.wildcards.any_source {
            let known = self.known.get(&parsed.comm?)?;
            let comm = known.number_with(known.peers.first().copied().unwrap_or(0));
            return Some(Pattern { from: known.peers.clone(), any_source: true, tag, comm });
        }
        let (peer, comm) = self.peer(parsed.comm, source)?;
        Some(Pattern { from: vec![peer], any_source: false, tag, comm })
    }

    /// A message came by a call that posted its receive as well.
    fn came(&mut self, call: u64, comm: Option<u64>, completion: Completion) {
        let order = self.orders;
        self.orders += 1;
        let Some((source, tag, bytes)) = completion.status else {
            return;
        };
        if let Some((peer, comm)) = self.peer(comm, source) {
            let crc = completion.received.and_then(|received| received.1);
            self.history.receives.push(Incoming { order, call, done: call, peer, comm, tag, bytes, crc });
        }
    }

    fn post(&mut self, made: u64, call: u64, pattern: Pattern) {
        self.history.open.insert(made, Posted { order: self.orders, call, pattern });
        self.orders += 1;
    }

    fn end_request(&mut self, call: u64, completion: Completion) {
        let Some((_, age)) = completion.done else {
            return;
        };
        let Some(posted) = self.history.open.remove(&(call - age.min(call))) else {
            return;
        };
        let Some((source, tag, bytes)) = completion.status.filter(|status| status.0 != CANCELLED) else {
            return;
        };
        // The status has a rank of the communicator; the pattern knows all of them in order.
        let place = usize::try_from(source).ok();
        let from = &posted.pattern.from;
        let peer = if posted.pattern.any_source { place.and_then(|at| from.get(at)) } else { from.first() };
        if let Some(peer) = peer {
            self.history.receives.push(Incoming {
                order: posted.order,
                call: posted.call,
                done: call,
                peer: *peer,
                comm: posted.pattern.comm,
                tag,
                bytes,
                crc: completion.received.and_then(|received| received.1),
            });
        }
    }

    fn joins(&self, call: u64, function: u16, parsed: &Parsed) -> Option<Joined> {
        let known = self.known.get(&parsed.comm?).filter(|known| known.nth_with.is_none())?;
        let root = parsed.root.and_then(|root| known.peers.get(usize::try_from(root).ok()?)).copied();
        let nth = self.joined_of.get(&known.number).copied().unwrap_or(0);
        Some(Joined { call, comm: known.number, function, root, nth })
    }

    fn entered(&self, function: u16, call: u64, class: Class, inputs: Parsed) -> Entered {
        let place = usize::from(class == Class::SendReceive);
        let takes = matches!(
            class,
            Class::Receive(_) | Class::SendReceive | Class::Probe(_) | Class::MatchedProbe(_)
        );
        let sends = matches!(class, Class::Send(_) | Class::SendReceive);
        Entered {
            function,
            call,
            pattern: takes.then(|| self.pattern(&inputs, place)).flatten(),
            sends: sends.then(|| self.outgoing(call, &inputs)).flatten(),
            joins: matches!(class, Class::Collective(_))
                .then(|| self.joins(call, function, &inputs))
                .flatten(),
            inputs,
        }
    }
}

/// A message with both of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: WorldRank,
    /// To whom.
    pub to: WorldRank,
    /// As it left.
    pub sent: Outgoing,
    /// As it came.
    pub received: Incoming,
}

impl Message {
    /// Whether both ends tell of the same bytes.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let same_crc = self.sent.crc.zip(self.received.crc).is_none_or(|(sent, received)| sent == received);
        self.sent.bytes == self.received.bytes && same_crc
    }
}

/// Messages of a run.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    /// Those with both ends.
    pub whole: Vec<Message>,
    /// Those that no receive took, with their sender.
    pub not_received: Vec<(WorldRank, Outgoing)>,
    /// Those that nobody sent, with their receiver: only where a log is not complete.
    pub not_sent: Vec<(WorldRank, Incoming)>,
}

/// Pairs sends with receives. MPI lets no message overtake another of the same sender, receiver, communicator and tag: so the
/// k-th send belongs to the k-th receive, counted as they were posted.
#[must_use]
pub fn pair(histories: &[History]) -> Messages {
    type Channel = (WorldRank, WorldRank, u32, i64);
    let mut channels: BTreeMap<Channel, (Vec<Outgoing>, Vec<Incoming>)> = BTreeMap::new();
    for history in histories {
        let here = i64::from(history.rank);
        for send in &history.sends {
            channels.entry((here, send.peer, send.comm, send.tag)).or_default().0.push(*send);
        }
        for receive in &history.receives {
            channels.entry((receive.peer, here, receive.comm, receive.tag)).or_default().1.push(*receive);
        }
    }
    let mut messages = Messages::default();
    for ((from, to, ..), (sends, receives)) in channels {
        let both = sends.len().min(receives.len());
        let whole = sends.iter().zip(&receives);
        messages.whole.extend(whole.map(|(sent, received)| Message {
            from,
            to,
            sent: *sent,
            received: *received,
        }));
        messages.not_received.extend(sends[both..].iter().map(|send| (from, *send)));
        messages.not_sent.extend(receives[both..].iter().map(|receive| (to, *receive)));
    }
    messages
}
