//! `MAINSTAY.SUBSCRIBE`: changes of keys behind versions that a subscriber names, so that one whose connection broke, or whose node died, goes on
//! where it was, at any node.
//!
//! ```text
//!   all shards are followed ──> Subscribe behind the versions, in a name of its own; behind it a read, whose answer says that all has come
//!                           ──> the reply: what was before; from then on what the node follows, but for what was told
//! ```
//!
//! What this node's copy does not keep any more is answered `MISSED`, and nothing is subscribed to. All of what was before is told, or nothing.
//! Once a second a subscriber is told up to where it has heard: versions of keys that do not concern it move that on, too.

use super::feed::{SUBSCRIPTIONS_MAX, Subscribing, To, told};
use super::{Gateway, GatewayEffect, Place};
use crate::command::{OWN_KEYS, Together};
use crate::glob::Glob;
use crate::resp::Reply;
use bytes::Bytes;
use mainstay_region::message::{Body, Freshness, Message, Query, Refusal};
use mainstay_region::operation::shard_of;
use mainstay_region::state::Applied;
use mainstay_types::id::ClientId;
use mainstay_types::operation::Version;
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the channels begin with on which versions are told.
const CHANNEL: &[u8] = b"__mainstay@0__:";

/// Between two messages that say up to where a subscriber has heard.
const POSITIONS_EVERY: Duration = Duration::from_secs(1);

/// Up to where a subscriber has heard of a shard.
pub(crate) type Position = (u16, Version);

/// Somebody who is told what was before it subscribed.
#[derive(Debug)]
pub(super) struct Resuming {
    place: Place,
    pattern: Bytes,
    from: Vec<Position>,
    since: Time,
    /// When its attempt began, and in whose name; `None`: it has not begun.
    tried: Option<(Time, ClientId)>,
    /// Shards of which it is not known that all has come.
    waits_for: BTreeSet<u16>,
    /// Of each shard, up to where all has come.
    stands: Vec<Version>,
    /// What came.
    changes: Vec<(u16, Applied)>,
}

/// What a change is on the three kinds of channels: channel and message, for each key.
pub(super) fn names_of(shard: u16, applied: &Applied) -> impl Iterator<Item = [[Bytes; 2]; 3]> + '_ {
    applied.changes.iter().filter(|(key, _)| !key.starts_with(OWN_KEYS)).map(move |(key, value)| {
        let event = match (value, &applied.operation) {
            (Some(_), _) => "set",
            (None, Some(_)) => "del",
            (None, None) => "expired",
        };
        let of_key = |space: &[u8]| Bytes::from([space, key].concat());
        let Version { view, counter } = applied.version;
        let again = u8::from(applied.possible_duplicate);
        [
            [of_key(b"__keyspace@0__:"), Bytes::from_static(event.as_bytes())],
            [Bytes::from(format!("__keyevent@0__:{event}")), Bytes::from_owner(key.clone())],
            [of_key(CHANNEL), Bytes::from(format!("{event} {} {counter} {again} {shard}", view.0))],
        ]
    })
}

/// A position, as clients write it.
fn written((shard, Version { view, counter }): Position) -> String {
    format!("{shard}:{}-{counter}", view.0)
}

/// Reads a position.
pub(crate) fn position(word: &str) -> Option<Position> {
    let (shard, version) = word.split_once(':')?;
    let (view, counter) = version.split_once('-')?;
    let version = Version { view: ViewId(view.parse().ok()?), counter: counter.parse().ok()? };
    Some((shard.parse().ok()?, version))
}

/// The shards of all keys that a pattern can match.
fn shards_of(pattern: &[u8], shards: u16) -> BTreeSet<u16> {
    let glob = Glob::new(pattern);
    let prefix = glob.prefix();
    // Behind a whole hash tag nothing that follows matters.
    let tag = prefix.iter().position(|&byte| byte == b'{').map(|open| &prefix[open + 1..]);
    let tagged =
        tag.is_some_and(|behind| behind.iter().position(|&byte| byte == b'}').is_some_and(|end| end > 0));
    if tagged || glob.is_literal() { [shard_of(&prefix, shards)].into() } else { (0..shards).collect() }
}

/// A message on a channel that a pattern matches.
pub(super) fn pattern_message(name: &Bytes, message: [Bytes; 2]) -> Reply {
    let [channel, message] = message.map(Reply::Bulk);
    Reply::Push(vec![Reply::text("pmessage"), Reply::Bulk(name.clone()), channel, message])
}

/// Up to where everything was told.
fn stands_at(name: &Bytes, positions: &[Position]) -> Reply {
    let positions: Vec<String> = positions.iter().copied().map(written).collect();
    let message = Bytes::from(format!("from {}", positions.join(" ")));
    pattern_message(name, [name.clone(), message])
}

impl Gateway {
    /// Whether this is the name of an attempt under way.
    pub(super) fn resumes(&self, client: ClientId) -> bool {
        let first = self.feed.resuming.front().and_then(|resuming| resuming.tried);
        first.is_some_and(|(_, name)| name == client)
    }

    pub(super) fn subscribe_to_keys(
        &mut self,
        now: Time,
        session: u64,
        (pattern, mut from): (Bytes, Vec<Position>),
        out: &mut Vec<GatewayEffect>,
    ) {
        let shards = self.config.shards;
        let open = self.sessions.get_mut(&session).expect("it is open");
        let wrong = |error: String| Reply::Error(format!("ERR {error}; not subscribed"));
        if open.subscriptions.count() >= SUBSCRIPTIONS_MAX {
            let error = format!("more than {SUBSCRIPTIONS_MAX} channels and patterns are too many");
            return open.take_answered(wrong(error));
        }
        if let Some((shard, _)) = from.iter().find(|(shard, _)| *shard >= shards) {
            let error = format!("there is no shard {shard}: the region has {shards}");
            return open.take_answered(wrong(error));
        }
        if !from.is_empty() {
            // The last one counts, so that what was heard can be put behind what was known.
            let named: BTreeMap<u16, Version> = from.into_iter().collect();
            let concerned = shards_of(&pattern, shards);
            if let Some(shard) = concerned.iter().find(|shard| !named.contains_key(shard)) {
                let error = format!("FROM says nothing of shard {shard}, which has keys that match");
                return open.take_answered(wrong(error));
            }
            from = concerned.into_iter().map(|shard| (shard, named[&shard])).collect();
        }
        let place = Place { session, command: open.take(1, Together::One) };
        self.wait_for_feed(now, Subscribing { place, to: To::Keys { pattern, from }, since: now }, out);
    }

    /// All shards are followed: who wants what comes from now on has it, who wants what was before waits for that.
    pub(super) fn begin_at(&mut self, now: Time, subscribing: Subscribing, out: &mut Vec<GatewayEffect>) {
        let Subscribing { place, to: To::Keys { pattern, from }, since } = subscribing else { return };
        let stands: Vec<Version> = self.feed.heard.iter().flatten().copied().collect();
        let resuming = Resuming {
            place,
            since,
            tried: None,
            waits_for: BTreeSet::new(),
            changes: Vec::new(),
            from: if from.is_empty() { Self::now_at(&pattern, &stands) } else { from.clone() },
            pattern,
            stands,
        };
        if from.is_empty() {
            return self.resumed(now, resuming, out);
        }
        self.feed.resuming.push_back(resuming);
        if self.feed.resuming.len() == 1 {
            self.resume_first(now, out);
        }
    }

    fn now_at(pattern: &[u8], stands: &[Version]) -> Vec<Position> {
        let shards = u16::try_from(stands.len()).expect("shards are counted in 16 bits");
        shards_of(pattern, shards).into_iter().map(|shard| (shard, stands[usize::from(shard)])).collect()
    }

    /// Asks for what the first one lacks, in a name that no answer to an earlier attempt bears: also when a view begins, since who is between two
    /// does not answer.
    pub(super) fn resume_first(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let (view, shards) = (self.copies.view, usize::from(self.config.shards));
        let Some(resuming) = self.feed.resuming.front_mut() else { return };
        if let Some((_, client)) = resuming.tried {
            out.push(GatewayEffect::Unfollow { client });
        }
        self.feed.attempts = self.feed.attempts.wrapping_add(1).max(1);
        let client = ClientId(self.feed.client.0 ^ u64::from(self.feed.attempts));
        resuming.tried = Some((now, client));
        resuming.changes.clear();
        resuming.stands = vec![Version::NONE; shards];
        resuming.waits_for.clear();
        for &(shard, from) in &resuming.from {
            resuming.stands[usize::from(shard)] = from;
            resuming.waits_for.insert(shard);
            let query = Query::Keys { prefix: Vec::new(), after: None, entries_max: 0 };
            let read = Body::Read { request: 0, query, freshness: Freshness::Any };
            for body in [Body::Subscribe { from }, read] {
                out.push(GatewayEffect::SendHere { client, message: Message { view, shard, body } });
            }
        }
    }

    /// This node's copy says something to whoever is told what was before.
    pub(super) fn heard_before(&mut self, now: Time, message: Message, out: &mut Vec<GatewayEffect>) {
        let Message { view, shard, body } = message;
        let Some(resuming) = self.feed.resuming.front_mut() else { return };
        let Some(stands) = resuming.stands.get_mut(usize::from(shard)) else { return };
        let refusal = match body {
            Body::Changed(applied) => {
                if applied.version > *stands {
                    *stands = applied.version;
                    resuming.changes.push((shard, applied));
                }
                return;
            }
            // One that this copy does not know to be stable yet may have been told by another one.
            Body::Answer { found: Ok(_), .. } if view < stands.view => Reply::Error(format!(
                "TRYAGAIN shard {shard} is in view {} here, and what comes behind {} was asked for; not subscribed",
                view.0,
                written((shard, *stands)),
            )),
            Body::Answer { found: Ok(found), .. } => {
                *stands = found.at.max(*stands);
                resuming.waits_for.remove(&shard);
                if resuming.waits_for.is_empty() {
                    self.end_resuming(now, None, out);
                }
                return;
            }
            Body::NotSubscribed(Refusal::TooOld(oldest)) => Reply::Error(format!(
                "MISSED of shard {shard} this node keeps what comes behind {} alone; ask another node, or read anew and subscribe from then on",
                written((shard, oldest)),
            )),
            Body::NotSubscribed(refusal @ Refusal::Busy(_)) => {
                Reply::Error(format!("ERR {refusal}; not subscribed"))
            }
            // Between two views: all is asked again, since an answer that was sent with this says nothing of what was left out.
            Body::NotSubscribed(_) => {
                if let Some((_, client)) = resuming.tried.take() {
                    out.push(GatewayEffect::Unfollow { client });
                }
                return;
            }
            _ => return,
        };
        self.end_resuming(now, Some(refusal), out);
    }

    /// The first one is told how it ended, and the next begins.
    fn end_resuming(&mut self, now: Time, refusal: Option<Reply>, out: &mut Vec<GatewayEffect>) {
        let Some(resuming) = self.feed.resuming.pop_front() else { return };
        if let Some((_, client)) = resuming.tried {
            out.push(GatewayEffect::Unfollow { client });
        }
        match refusal {
            Some(refusal) => self.not_subscribed(now, resuming.place, refusal, out),
            None => self.resumed(now, resuming, out),
        }
        self.resume_first(now, out);
    }

    fn resumed(&mut self, now: Time, resuming: Resuming, out: &mut Vec<GatewayEffect>) {
        let Resuming { place, pattern, from, stands, changes, .. } = resuming;
        let Some(open) = self.sessions.get_mut(&place.session) else { return };
        self.feed.sessions.insert(place.session);
        let name = Bytes::from([CHANNEL, &pattern].concat());
        let concerned = from.iter().map(|(shard, _)| *shard).collect();
        open.subscriptions.follow(name.clone(), concerned, stands);
        let mut told = vec![told("psubscribe", Reply::Bulk(name.clone()), open), stands_at(&name, &from)];
        let glob = Glob::new(&name);
        for (shard, applied) in &changes {
            let of_keys = names_of(*shard, applied).map(|[_, _, versioned]| versioned);
            let of_keys = of_keys.filter(|[channel, _]| glob.matches(channel));
            told.extend(of_keys.map(|message| pattern_message(&name, message)));
        }
        self.answer(place, Reply::Several(told), out);
        self.proceed(now, place.session, out);
    }

    /// Tells subscribers up to where they have heard.
    pub(super) fn tell_positions(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        if now.since(self.feed.positions_told) < POSITIONS_EVERY {
            return;
        }
        self.feed.positions_told = now;
        let heard: Vec<Version> = self.feed.heard.iter().map_while(|heard| *heard).collect();
        for &session in &self.feed.sessions {
            let Some(open) = self.sessions.get_mut(&session) else { continue };
            let mut bytes = Vec::new();
            for (name, positions) in open.subscriptions.told_up_to(&heard) {
                stands_at(&name, &positions).put(open.protocol, &mut bytes);
            }
            if !bytes.is_empty() {
                out.push(GatewayEffect::Write { session, bytes, answered: 0, close: false });
            }
        }
    }

    /// Asks again where nothing comes, and refuses whoever has waited too long for that.
    pub(super) fn tick_resuming(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        while let Some(Resuming { since, tried, .. }) = self.feed.resuming.front() {
            if now.since(*since) >= self.times.held_max {
                let refusal = self.refusal("not subscribed");
                self.end_resuming(now, Some(refusal), out);
                continue;
            }
            if tried.is_none_or(|(at, _)| now.since(at) >= self.times.retry_after) {
                self.resume_first(now, out);
            }
            return;
        }
    }

    /// A connection is gone.
    pub(super) fn leaves_resuming(&mut self, session: u64, out: &mut Vec<GatewayEffect>) {
        self.feed.resuming.retain(|resuming| {
            let gone = resuming.place.session == session;
            if let Some((_, client)) = resuming.tried.filter(|_| gone) {
                out.push(GatewayEffect::Unfollow { client });
            }
            !gone
        });
    }

    /// Nothing is followed any more: whoever is told what was before begins again when it is.
    pub(super) fn resume_later(&mut self, out: &mut Vec<GatewayEffect>) {
        for Resuming { place, pattern, from, since, tried, .. } in std::mem::take(&mut self.feed.resuming) {
            if let Some((_, client)) = tried {
                out.push(GatewayEffect::Unfollow { client });
            }
            self.feed.waiting.push(Subscribing { place, to: To::Keys { pattern, from }, since });
        }
    }
}
