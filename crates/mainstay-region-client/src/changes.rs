//! Changes of a region as they become stable, each once, from a version on that the client names: it goes on at another server when the one that
//! tells it dies.
//!
//! ```text
//!   Stopped ── Subscribe behind what was heard, then a read ──> Asked ── the read is answered: all before has come ──> Follows
//!      ^─────────── another view, connection or server; a version that is not the next; too much that nobody takes ───────┘
//! ```
//!
//! What comes while a shard is asked for may be of an earlier subscription and leave something out; it counts together with what comes by the new
//! one, once that is known to have come whole. A server that was filled anew does not keep what was before: another one may.

use crate::client::Client;
use crate::error::SubscribeError;
use crate::links::socket_of;
use mainstay_region::message::{Body, Freshness, Message, Query, Refusal};
use mainstay_region::patterns::Pattern;
use mainstay_region::state::Applied;
use mainstay_types::operation::Version;
use mainstay_types::view::MemberId;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Changes that were heard and that nobody has taken, in bytes of keys and values; beyond, no more are taken in, and they are asked for again when there
/// is room.
const UNTAKEN_BYTES_MAX: usize = 64 << 20;

/// What a change counts besides its keys and values, in bytes.
const CHANGE_BYTES: usize = 64;

/// How often a server that tells nothing is asked whether it is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often a server is asked before another one is.
const ATTEMPTS_MAX: u32 = 5;

/// Up to where changes were taken, shard by shard. What is written down is where another life of a program goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Positions(pub Vec<Version>);

/// What one version changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The shard: versions are ordered within it.
    pub shard: u16,
    /// The version.
    pub version: Version,
    /// It may be the repetition of a change under an earlier version: its client had asked before, and no copy knew of it.
    pub possible_duplicate: bool,
    /// Nobody asked for it: the time of these values was over.
    pub ended: bool,
    /// Keys with their new values, `None`: it is not there any more. Those of one version changed as one.
    pub keys: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

#[derive(Debug)]
enum Stage {
    /// It is to be asked for.
    Stopped,
    /// The answer to this read comes behind all that was before. What has come until then:
    Asked { request: u64, came: Vec<Applied>, came_bytes: usize },
    /// The next version is the next that comes.
    Follows,
}

#[derive(Debug)]
struct Shard {
    /// Up to here it was heard.
    heard: Version,
    stage: Stage,
}

/// A subscription.
#[derive(Debug)]
pub(crate) struct Following {
    prefix: Vec<u8>,
    shards: Vec<Shard>,
    /// Up to where the caller has taken them.
    taken: Vec<Version>,
    untaken: VecDeque<(u16, Version, Option<Change>)>,
    untaken_bytes: usize,
    /// Who tells, and over which of the connections to it.
    server: Option<(MemberId, u64)>,
    /// Whose turn it is.
    turn: usize,
    asked_at: Option<Instant>,
    attempts: u32,
    /// Who does not keep what is asked for.
    too_old: BTreeSet<MemberId>,
    ended: Option<SubscribeError>,
}

impl Following {
    /// Everything is to be asked for again.
    pub(crate) fn stop(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.stage = Stage::Stopped);
        self.asked_at = None;
    }

    /// Asks somebody else; gives back who it was.
    fn leave_server(&mut self) -> Option<MemberId> {
        self.stop();
        self.turn += 1;
        self.attempts = 0;
        self.server.take().map(|(server, _)| server)
    }

    /// Takes a change that is the next of its shard.
    fn take(&mut self, place: u16, applied: Applied) {
        let Applied { version, operation, possible_duplicate, changes } = applied;
        self.shards[usize::from(place)].heard = version;
        let of_prefix = changes.into_iter().filter(|(key, _)| key.starts_with(&self.prefix));
        let keys: Vec<_> =
            of_prefix.map(|(key, value)| (key.into(), value.map(|value| Vec::from(value.bytes)))).collect();
        let change = (!keys.is_empty()).then(|| Change {
            shard: place,
            version,
            possible_duplicate,
            ended: operation.is_none(),
            keys,
        });
        self.push(place, version, change);
    }

    fn push(&mut self, shard: u16, version: Version, change: Option<Change>) {
        // What is of no concern moves the position on, and needs no place of its own.
        if let (None, Some((last_shard, last, None))) = (&change, self.untaken.back_mut())
            && *last_shard == shard
        {
            *last = version;
            return;
        }
        self.untaken_bytes += bytes_of(change.as_ref());
        self.untaken.push_back((shard, version, change));
    }

    fn is_full(&self) -> bool {
        let came = self.shards.iter().map(|shard| match &shard.stage {
            Stage::Asked { came_bytes, .. } => *came_bytes,
            _ => 0,
        });
        self.untaken_bytes + came.sum::<usize>() > UNTAKEN_BYTES_MAX
    }

    /// A change came from the server that tells.
    fn hear(&mut self, place: u16, applied: Applied) {
        let full = self.is_full();
        let Some(shard) = self.shards.get_mut(usize::from(place)) else { return };
        match &mut shard.stage {
            _ if applied.version <= shard.heard => {}
            Stage::Stopped => {}
            stage if full => *stage = Stage::Stopped,
            Stage::Asked { came, came_bytes, .. } => {
                *came_bytes += CHANGE_BYTES + applied.bytes();
                came.push(applied);
            }
            Stage::Follows if applied.version == shard.heard.next() => self.take(place, applied),
            stage @ Stage::Follows => *stage = Stage::Stopped,
        }
    }

    /// All that was before `at` has come.
    fn confirm(&mut self, place: u16, at: Version) {
        let shard = &mut self.shards[usize::from(place)];
        let Stage::Asked { came, .. } = std::mem::replace(&mut shard.stage, Stage::Stopped) else { return };
        let mut came = came;
        came.sort_by_key(|applied| applied.version);
        for applied in came {
            let heard = self.shards[usize::from(place)].heard;
            let begins = Version { view: applied.version.view, counter: 0 };
            if applied.version <= heard {
                continue;
            }
            if applied.version != heard.max(begins).next() {
                return;
            }
            self.take(place, applied);
        }
        let shard = &mut self.shards[usize::from(place)];
        if at > shard.heard {
            if at.counter > 0 {
                return;
            }
            // Nothing was changed yet in the view that it is in.
            shard.heard = at;
            self.push(place, at, None);
        }
        self.shards[usize::from(place)].stage = Stage::Follows;
    }
}

fn bytes_of(change: Option<&Change>) -> usize {
    let of_keys = change.into_iter().flat_map(|change| &change.keys);
    CHANGE_BYTES + of_keys.map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum::<usize>()
}

impl Client {
    /// Hears of changes of all keys that begin with `prefix`, behind these versions; `None`: behind all that was acknowledged before this call. They come
    /// by [`Self::next_change`]. A former subscription ends.
    ///
    /// # Errors
    /// [`SubscribeError`]. That what was asked for is not kept any more may be known only later.
    pub fn subscribe(&mut self, prefix: &[u8], from: Option<Positions>) -> Result<(), SubscribeError> {
        if self.standing.as_ref().is_some_and(|standing| standing.pattern == Pattern::Unversioned) {
            return Err(SubscribeError::NoVersions);
        }
        self.unsubscribe();
        let shards = self.shards();
        let taken = match from {
            Some(Positions(versions)) if versions.len() != usize::from(shards) => {
                return Err(SubscribeError::Shards { given: versions.len(), shards });
            }
            Some(Positions(versions)) => versions,
            None => (0..shards).map(|shard| self.stands_at(shard)).collect::<Result<_, _>>()?,
        };
        let stopped = |&heard: &Version| Shard { heard, stage: Stage::Stopped };
        self.following = Some(Following {
            prefix: prefix.to_vec(),
            shards: taken.iter().map(stopped).collect(),
            taken,
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            server: None,
            // Not all clients at the same server.
            turn: usize::try_from(self.number().0).unwrap_or(0),
            asked_at: None,
            attempts: 0,
            too_old: BTreeSet::new(),
            ended: None,
        });
        self.drive_following();
        Ok(())
    }

    /// Hears of changes no more.
    pub fn unsubscribe(&mut self) {
        let server = self.following.take().and_then(|following| following.server);
        if let Some((server, _)) = server {
            // A subscription lasts as long as its connection.
            self.drop_connection(socket_of(server.address));
        }
    }

    /// The next change, of those of a shard in the order of their versions; `None` if none comes for so long.
    ///
    /// # Errors
    /// [`SubscribeError::Missed`]: no server keeps what comes next. The subscription has ended; whoever goes on reads anew, after a new one.
    pub fn next_change(&mut self, patience: Duration) -> Result<Option<Change>, SubscribeError> {
        let until = Instant::now() + patience;
        loop {
            let Some(following) = &mut self.following else { return Err(SubscribeError::NotSubscribed) };
            while let Some((shard, version, change)) = following.untaken.pop_front() {
                following.untaken_bytes -= bytes_of(change.as_ref());
                following.taken[usize::from(shard)] = version;
                if change.is_some() {
                    return Ok(change);
                }
            }
            if let Some(ended) = following.ended.take() {
                self.unsubscribe();
                return Err(ended);
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            self.turn();
        }
    }

    /// Up to where [`Self::next_change`] has given the changes: what a later subscription goes on behind.
    #[must_use]
    pub fn positions(&self) -> Option<Positions> {
        self.following.as_ref().map(|following| Positions(following.taken.clone()))
    }

    fn stands_at(&mut self, shard: u16) -> Result<Version, SubscribeError> {
        let query = Query::Keys { prefix: Vec::new(), after: None, entries_max: 0 };
        match self.read(shard, query, Freshness::Linearizable) {
            Ok(found) => Ok(found.at),
            Err(error) => Err(SubscribeError::NoAnswer { explanation: error.explanation }),
        }
    }

    /// Whether a message is about changes, and not the machine's.
    pub(crate) fn is_of_changes(&self, message: &Message) -> bool {
        let asked = |request| {
            let shards = self.following.iter().flat_map(|following| &following.shards);
            shards
                .into_iter()
                .any(|shard| matches!(shard.stage, Stage::Asked { request: asked, .. } if asked == request))
        };
        match message.body {
            Body::Changed(_) | Body::NotSubscribed(_) => true,
            Body::Answer { request, .. } => asked(request),
            _ => false,
        }
    }

    /// A server tells of changes.
    pub(crate) fn hear_of_changes(&mut self, from: MemberId, message: Message) {
        let Message { view, shard, body } = message;
        let Some(following) = &mut self.following else { return };
        if following.server.is_none_or(|(server, _)| server != from) {
            return;
        }
        match body {
            Body::Changed(applied) => following.hear(shard, applied),
            Body::Answer { found: Ok(found), .. } if usize::from(shard) < following.shards.len() => {
                // A shard that was never written stands before all views.
                following.confirm(shard, found.at.max(Version { view, counter: 0 }));
                if following.shards.iter().all(|shard| matches!(shard.stage, Stage::Follows)) {
                    following.attempts = 0;
                    following.too_old.clear();
                }
            }
            Body::NotSubscribed(Refusal::TooOld(oldest)) => {
                following.too_old.insert(from);
                let copies = self.machine.copies();
                if copies.ids().all(|member| following.too_old.contains(&member)) {
                    following.ended = Some(SubscribeError::Missed { shard, oldest });
                }
                self.ask_another();
            }
            Body::NotSubscribed(Refusal::Busy(_)) => {
                following.attempts = ATTEMPTS_MAX;
            }
            // Between two views: the shard is not followed, whatever an answer says that was sent with this, and is asked for again.
            Body::NotSubscribed(_) => {
                if let Some(shard) = following.shards.get_mut(usize::from(shard)) {
                    shard.stage = Stage::Stopped;
                }
            }
            _ => {}
        }
    }

    fn ask_another(&mut self) {
        let left = self.following.as_mut().and_then(Following::leave_server);
        if let Some(server) = left {
            self.drop_connection(socket_of(server.address));
        }
    }

    /// Looks whether the server still tells, and asks for what does not come.
    pub(crate) fn drive_following(&mut self) {
        let Some(following) = &self.following else { return };
        if following.ended.is_some() {
            return;
        }
        let there = |client: &Self, (server, connection): (MemberId, u64)| {
            client.machine.copies().has(server) && client.connection(server) == Some(connection)
        };
        if following.server.is_some_and(|server| !there(self, server)) {
            self.ask_another();
        }
        let late = self.settings.retry_after;
        let Some(following) = &self.following else { return };
        let whole = following.shards.iter().all(|shard| matches!(shard.stage, Stage::Follows));
        // One that tells nothing may have nothing to tell, or be gone.
        let pause = if whole { LOOK_EVERY.max(late) } else { late };
        if following.is_full() || following.asked_at.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        if following.attempts >= ATTEMPTS_MAX {
            self.ask_another();
        }
        self.choose_server();
        self.ask_for_changes();
    }

    /// One that can be asked, by turns, if there is none.
    fn choose_server(&mut self) {
        let Some(following) = &self.following else { return };
        if following.server.is_some() {
            return;
        }
        let members: Vec<MemberId> = self.machine.copies().ids().collect();
        let by_turns = (0..members.len()).map(|place| members[(following.turn + place) % members.len()]);
        let mut connected = by_turns.filter_map(|member| {
            let kept = !following.too_old.contains(&member);
            self.connection(member).filter(|_| kept).map(|connection| (member, connection))
        });
        let chosen = connected.next();
        if let Some(following) = &mut self.following {
            following.server = chosen;
        }
    }

    fn ask_for_changes(&mut self) {
        let view = self.machine.copies().view;
        let Some(following) = &mut self.following else { return };
        let Some((server, _)) = following.server else { return };
        following.asked_at = Some(Instant::now());
        following.attempts += 1;
        let whole = following.shards.iter().all(|shard| matches!(shard.stage, Stage::Follows));
        let mut messages = Vec::new();
        for (place, shard) in (0..).zip(&mut following.shards) {
            let (came, came_bytes) = match std::mem::replace(&mut shard.stage, Stage::Stopped) {
                Stage::Follows if !whole || place > 0 => {
                    shard.stage = Stage::Follows;
                    continue;
                }
                Stage::Asked { came, came_bytes, .. } => (came, came_bytes),
                Stage::Follows | Stage::Stopped => (Vec::new(), 0),
            };
            self.next_read += 1;
            let request = self.next_read;
            shard.stage = Stage::Asked { request, came, came_bytes };
            let query = Query::Keys { prefix: Vec::new(), after: None, entries_max: 0 };
            let read = Body::Read { request, query, freshness: Freshness::Any };
            for body in [Body::Subscribe { from: shard.heard }, read] {
                messages.push(Message { view, shard: place, body });
            }
        }
        for message in messages {
            self.say(socket_of(server.address), message);
        }
    }

    fn connection(&self, member: MemberId) -> Option<u64> {
        self.connection_to(socket_of(member.address))
    }

    /// For tests and the curious: who tells of changes.
    #[must_use]
    pub fn told_by(&self) -> Option<SocketAddr> {
        let server = self.following.as_ref().and_then(|following| following.server);
        server.map(|(server, _)| socket_of(server.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_region::operation::Value;
    use mainstay_types::view::ViewId;

    fn version(view: u64, counter: u64) -> Version {
        Version { view: ViewId(view), counter }
    }

    fn applied(view: u64, counter: u64, key: &str) -> Applied {
        let value = Value { bytes: "v".into(), ends_at_ms: None };
        let changes = vec![(key.into(), Some(value))];
        Applied { version: version(view, counter), operation: None, possible_duplicate: false, changes }
    }

    fn following(heard: Version, stage: Stage) -> Following {
        Following {
            prefix: b"a".to_vec(),
            shards: vec![Shard { heard, stage }],
            taken: vec![heard],
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            server: None,
            turn: 0,
            asked_at: None,
            attempts: 0,
            too_old: BTreeSet::new(),
            ended: None,
        }
    }

    fn versions(following: &Following) -> Vec<Version> {
        following.untaken.iter().map(|(_, version, _)| *version).collect()
    }

    /// The server was filled anew between two versions, and tells on by the subscription from before.
    #[test]
    fn a_version_that_is_not_the_next_is_not_taken_before_what_was_between_is_known() {
        let mut one = following(version(3, 17), Stage::Follows);
        one.hear(0, applied(3, 18, "a"));
        one.hear(0, applied(3, 18, "a"));
        one.hear(0, applied(4, 1, "a"));
        assert_eq!(versions(&one), [version(3, 18)]);
        assert!(matches!(one.shards[0].stage, Stage::Stopped));
        one.shards[0].stage = Stage::Asked { request: 7, came: Vec::new(), came_bytes: 0 };
        for (view, counter) in [(4, 2), (3, 18), (3, 19), (4, 1), (4, 2), (4, 3)] {
            one.hear(0, applied(view, counter, "a"));
        }
        assert_eq!(versions(&one).len(), 1, "it is not known yet whether that is all");
        one.confirm(0, version(4, 3));
        assert_eq!(versions(&one), [(3, 18), (3, 19), (4, 1), (4, 2), (4, 3)].map(|(v, c)| version(v, c)));
        assert!(matches!(one.shards[0].stage, Stage::Follows));
    }

    #[test]
    fn what_leaves_something_out_is_asked_for_again() {
        for (came, at) in [((4, 2), (4, 2)), ((3, 19), (3, 19)), ((3, 18), (3, 20))] {
            let stage = Stage::Asked { request: 7, came: vec![applied(came.0, came.1, "a")], came_bytes: 0 };
            let mut one = following(version(3, 17), stage);
            one.confirm(0, version(at.0, at.1));
            assert!(matches!(one.shards[0].stage, Stage::Stopped), "{came:?}");
        }
        let mut quiet =
            following(version(3, 17), Stage::Asked { request: 7, came: Vec::new(), came_bytes: 0 });
        quiet.confirm(0, version(4, 0));
        quiet.hear(0, applied(4, 1, "b"));
        assert_eq!(versions(&quiet), [version(4, 1)], "another key's moves the position on");
        assert!(quiet.untaken[0].2.is_none());
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let mut one = following(version(1, 0), Stage::Follows);
        one.untaken_bytes = UNTAKEN_BYTES_MAX + 1;
        one.hear(0, applied(1, 1, "a"));
        assert!(one.untaken.is_empty() && matches!(one.shards[0].stage, Stage::Stopped));
    }
}
