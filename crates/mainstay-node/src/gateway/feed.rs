//! `SUBSCRIBE` and `PSUBSCRIBE`: changes of keys, as Redis notifies of them, from this node's own copy of the region.
//!
//! | channel | message |
//! |---|---|
//! | `__keyspace@0__:KEY` | `set`, `del` or `expired` |
//! | `__keyevent@0__:EVENT` | the key |
//! | `__mainstay@0__:KEY` | the event, view and counter of its version, 1 if it may be a repetition, the shard |
//!
//! A shard's changes come in the order of their versions, each once. The node follows its copy from the version at which it was when somebody
//! subscribed; when a view begins it says up to where it has heard. If the copy cannot go on from there, because it was filled anew, whoever
//! subscribed here is told so and closed: nobody is left in the belief of having heard everything. Who begins behind versions that it names:
//! [`super::resume`].

use super::resume::{Position, Resuming, names_of, pattern_message};
use super::{Gateway, GatewayEffect, Place};
use crate::command::Together;
use crate::glob::Glob;
use crate::resp::{Protocol, Reply};
use crate::session::Session;
use bytes::Bytes;
use mainstay_region::message::{Body, Freshness, Message, Query, Refusal};
use mainstay_region::state::Applied;
use mainstay_types::id::ClientId;
use mainstay_types::operation::Version;
use mainstay_types::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Channels and patterns of one connection.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1024;

/// What a connection is told of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Subscriptions {
    channels: BTreeSet<Bytes>,
    patterns: BTreeMap<Bytes, Followed>,
}

/// A pattern that is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Followed {
    glob: Glob,
    /// Of each shard, up to where the connection knows that it was told; without any, it is told what comes, and not up to where.
    behind: Vec<Version>,
    /// Shards with keys that can match.
    shards: BTreeSet<u16>,
}

impl Subscriptions {
    pub(crate) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    fn add(&mut self, name: Bytes, pattern: bool) {
        if pattern {
            let (behind, shards) = (Vec::new(), BTreeSet::new());
            let followed = Followed { glob: Glob::new(&name), behind, shards };
            self.patterns.entry(name).or_insert(followed);
        } else {
            self.channels.insert(name);
        }
    }

    /// Follows a pattern whose changes were told up to these versions.
    pub(super) fn follow(&mut self, name: Bytes, shards: BTreeSet<u16>, behind: Vec<Version>) {
        let glob = Glob::new(&name);
        self.patterns.insert(name, Followed { glob, behind, shards });
    }

    /// Everything was told up to these versions: those that a pattern's client does not know yet, of the shards that concern it.
    pub(super) fn told_up_to(&mut self, heard: &[Version]) -> Vec<(Bytes, Vec<Position>)> {
        let mut news = Vec::new();
        for (name, followed) in &mut self.patterns {
            let mut positions = Vec::new();
            for ((shard, known), heard) in (0..).zip(&mut followed.behind).zip(heard) {
                if *heard > *known && followed.shards.contains(&shard) {
                    *known = *heard;
                    positions.push((shard, *heard));
                }
            }
            if !positions.is_empty() {
                news.push((name.clone(), positions));
            }
        }
        news
    }

    fn remove(&mut self, name: &Bytes, pattern: bool) {
        if pattern {
            self.patterns.remove(name);
        } else {
            self.channels.remove(name);
        }
    }

    fn names(&self, pattern: bool) -> Vec<Bytes> {
        if pattern {
            self.patterns.keys().cloned().collect()
        } else {
            self.channels.iter().cloned().collect()
        }
    }

    /// Appends what a message on a channel is to this connection: one of a change of that shard and version.
    fn put(
        &self,
        protocol: Protocol,
        (shard, version): (u16, Version),
        message: &[Bytes; 2],
        out: &mut Vec<u8>,
    ) {
        let [channel, text] = message;
        if self.channels.contains(channel) {
            let items = [channel, text].map(|item| Reply::Bulk(item.clone()));
            Reply::Push([Reply::text("message")].into_iter().chain(items).collect()).put(protocol, out);
        }
        for (name, followed) in &self.patterns {
            let told = followed.behind.get(usize::from(shard)).is_some_and(|told| version <= *told);
            if !told && followed.glob.matches(channel) {
                pattern_message(name, message.clone()).put(protocol, out);
            }
        }
    }
}

/// Who waits for changes to be followed.
#[derive(Debug)]
pub(super) struct Subscribing {
    pub(super) place: Place,
    pub(super) to: To,
    pub(super) since: Time,
}

/// What they subscribe to.
#[derive(Debug)]
pub(super) enum To {
    /// Channels, or patterns of them, from now on.
    Names { names: Vec<Bytes>, pattern: bool },
    /// Changes of keys behind these versions; none: from now on.
    Keys { pattern: Bytes, from: Vec<Position> },
}

/// What a node follows.
#[derive(Debug)]
pub(crate) struct Feed {
    /// In whose name.
    pub(super) client: ClientId,
    /// Up to where each shard was heard, once that is known; empty: nothing is followed.
    pub(super) heard: Vec<Option<Version>>,
    pub(super) sessions: BTreeSet<u64>,
    pub(super) waiting: Vec<Subscribing>,
    /// Who is told what was before, one after the other: the first is under way.
    pub(super) resuming: VecDeque<Resuming>,
    /// Attempts to do so, in the names of so many clients.
    pub(super) attempts: u32,
    /// When up to where was told last.
    pub(super) positions_told: Time,
}

impl Feed {
    pub(crate) fn new(client: ClientId) -> Self {
        let (heard, sessions, waiting) = (Vec::new(), BTreeSet::new(), Vec::new());
        let (resuming, positions_told) = (VecDeque::new(), Time::EPOCH);
        Self { client, heard, sessions, waiting, resuming, attempts: 0, positions_told }
    }
}

impl Gateway {
    /// In whose name this node follows its own copy: what that says to it is never to be lost on the way.
    #[must_use]
    pub fn follower(&self) -> ClientId {
        self.feed.client
    }

    /// Whether this is such a name.
    #[must_use]
    pub fn follows(&self, client: ClientId) -> bool {
        client == self.feed.client || self.resumes(client)
    }

    pub(super) fn subscribe(
        &mut self,
        now: Time,
        session: u64,
        names: Vec<Bytes>,
        pattern: bool,
        out: &mut Vec<GatewayEffect>,
    ) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        if open.subscriptions.count() + names.len() > SUBSCRIPTIONS_MAX {
            let error = format!("ERR more than {SUBSCRIPTIONS_MAX} channels and patterns are too many");
            return open.take_answered(Reply::Error(error));
        }
        let place = Place { session, command: open.take(1, Together::One) };
        self.wait_for_feed(now, Subscribing { place, to: To::Names { names, pattern }, since: now }, out);
    }

    /// Somebody subscribes once all shards are followed.
    pub(super) fn wait_for_feed(
        &mut self,
        now: Time,
        subscribing: Subscribing,
        out: &mut Vec<GatewayEffect>,
    ) {
        self.feed.waiting.push(subscribing);
        if self.feed.heard.is_empty() {
            self.feed.heard = vec![None; usize::from(self.config.shards)];
            self.follow(out);
        }
        self.subscribed(now, out);
    }

    /// Asks again where this node's copy did not serve, and refuses whoever has waited too long for that.
    pub(super) fn tick_feed(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        for (shard, heard) in (0..).zip(self.feed.heard.clone()) {
            if heard.is_none() {
                self.follow_shard(shard, None, out);
            }
        }
        let held_max = self.times.held_max;
        let late = |waiting: &mut Subscribing| now.since(waiting.since) >= held_max;
        for Subscribing { place, .. } in self.feed.waiting.extract_if(.., late).collect::<Vec<_>>() {
            let refusal = self.refusal("not subscribed");
            self.not_subscribed(now, place, refusal, out);
        }
        self.tick_resuming(now, out);
        self.tell_positions(now, out);
        self.unfollow(out);
    }

    pub(super) fn not_subscribed(
        &mut self,
        now: Time,
        place: Place,
        refusal: Reply,
        out: &mut Vec<GatewayEffect>,
    ) {
        self.answer(place, refusal, out);
        self.proceed(now, place.session, out);
    }

    /// Asks for the changes of every shard, behind what was heard.
    pub(super) fn follow(&self, out: &mut Vec<GatewayEffect>) {
        for (shard, heard) in (0..).zip(self.feed.heard.clone()) {
            self.follow_shard(shard, heard, out);
        }
    }

    fn follow_shard(&self, shard: u16, heard: Option<Version>, out: &mut Vec<GatewayEffect>) {
        let body = match heard {
            Some(from) => Body::Subscribe { from },
            None => {
                let query = Query::Keys { prefix: Vec::new(), after: None, entries_max: 0 };
                Body::Read { request: 0, query, freshness: Freshness::Any }
            }
        };
        let message = Message { view: self.copies.view, shard, body };
        out.push(GatewayEffect::SendHere { client: self.feed.client, message });
    }

    /// This node's copy says something to whoever follows it.
    pub(super) fn followed(&mut self, now: Time, message: Message, out: &mut Vec<GatewayEffect>) {
        let Message { shard, body, .. } = message;
        let Some(heard) = self.feed.heard.get_mut(usize::from(shard)) else { return };
        match body {
            Body::Answer { found: Ok(found), .. } if heard.is_none() => {
                *heard = Some(found.at);
                self.follow_shard(shard, Some(found.at), out);
                self.subscribed(now, out);
            }
            Body::Changed(applied) => {
                let Some(last) = *heard else { return };
                if applied.version <= last {
                    return;
                }
                let next = Version { view: applied.version.view, counter: 0 }.max(last).next();
                *heard = Some(applied.version);
                if applied.version == next { self.tell(shard, &applied, out) } else { self.missed(out) }
            }
            Body::NotSubscribed(Refusal::TooOld(_)) => self.missed(out),
            Body::NotSubscribed(refusal @ Refusal::Busy(_)) => {
                for Subscribing { place, .. } in std::mem::take(&mut self.feed.waiting) {
                    self.answer(place, Reply::Error(format!("ERR {refusal}; not subscribed")), out);
                }
                self.missed(out);
            }
            // Between two views: it is asked again when one begins.
            _ => {}
        }
    }

    /// Whoever waits is told, once all shards are followed.
    fn subscribed(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        if self.feed.heard.iter().any(Option::is_none) {
            return;
        }
        for Subscribing { place, to, since } in std::mem::take(&mut self.feed.waiting) {
            let (names, pattern) = match to {
                To::Names { names, pattern } => (names, pattern),
                To::Keys { pattern, from } => {
                    self.begin_at(now, Subscribing { place, to: To::Keys { pattern, from }, since }, out);
                    continue;
                }
            };
            let Some(open) = self.sessions.get_mut(&place.session) else { continue };
            self.feed.sessions.insert(place.session);
            let kind = if pattern { "psubscribe" } else { "subscribe" };
            let told = names.into_iter().map(|name| {
                open.subscriptions.add(name.clone(), pattern);
                told(kind, Reply::Bulk(name), open)
            });
            let reply = Reply::Several(told.collect());
            self.answer(place, reply, out);
            self.proceed(now, place.session, out);
        }
        self.unfollow(out);
    }

    /// The reply to `UNSUBSCRIBE` and `PUNSUBSCRIBE`; without names it is of all.
    pub(super) fn unsubscribe(
        &mut self,
        session: u64,
        names: Vec<Bytes>,
        pattern: bool,
        out: &mut Vec<GatewayEffect>,
    ) -> Reply {
        let open = self.sessions.get_mut(&session).expect("it is open");
        let kind = if pattern { "punsubscribe" } else { "unsubscribe" };
        let names = if names.is_empty() { open.subscriptions.names(pattern) } else { names };
        if names.is_empty() {
            return Reply::Several(vec![told(kind, Reply::Null, open)]);
        }
        let told = names.into_iter().map(|name| {
            open.subscriptions.remove(&name, pattern);
            told(kind, Reply::Bulk(name), open)
        });
        let reply = Reply::Several(told.collect());
        if open.subscriptions.count() == 0 {
            self.leaves_feed(session, out);
        }
        reply
    }

    /// A connection is told of nothing any more.
    pub(super) fn leaves_feed(&mut self, session: u64, out: &mut Vec<GatewayEffect>) {
        self.feed.sessions.remove(&session);
        self.feed.waiting.retain(|waiting| waiting.place.session != session);
        self.leaves_resuming(session, out);
        self.unfollow(out);
    }

    /// Nobody listens any more.
    fn unfollow(&mut self, out: &mut Vec<GatewayEffect>) {
        let feed = &mut self.feed;
        let wanted = !feed.sessions.is_empty() || !feed.waiting.is_empty() || !feed.resuming.is_empty();
        if !wanted && !feed.heard.is_empty() {
            feed.heard.clear();
            out.push(GatewayEffect::Unfollow { client: feed.client });
        }
    }

    fn tell(&self, shard: u16, applied: &Applied, out: &mut Vec<GatewayEffect>) {
        let of_keys: Vec<[[Bytes; 2]; 3]> = names_of(shard, applied).collect();
        for &session in &self.feed.sessions {
            let Some(open) = self.sessions.get(&session) else { continue };
            let mut bytes = Vec::new();
            for message in of_keys.iter().flatten() {
                open.subscriptions.put(open.protocol, (shard, applied.version), message, &mut bytes);
            }
            if !bytes.is_empty() {
                out.push(GatewayEffect::Write { session, bytes, answered: 0, close: false });
            }
        }
    }

    /// Changes were missed: who subscribed is closed, and may begin anew.
    fn missed(&mut self, out: &mut Vec<GatewayEffect>) {
        let error = "MISSED changes were missed here: this node's copy was filled anew; subscribe again";
        for session in std::mem::take(&mut self.feed.sessions) {
            let Some(open) = self.sessions.get_mut(&session) else { continue };
            open.subscriptions = Subscriptions::default();
            let mut bytes = Vec::new();
            Reply::Error(error.to_owned()).put(open.protocol, &mut bytes);
            out.push(GatewayEffect::Write { session, bytes, answered: 0, close: true });
        }
        self.feed.heard.clear();
        self.resume_later(out);
        if self.feed.waiting.is_empty() {
            return out.push(GatewayEffect::Unfollow { client: self.feed.client });
        }
        self.feed.heard = vec![None; usize::from(self.config.shards)];
        self.follow(out);
    }
}

pub(super) fn told(kind: &'static str, name: Reply, open: &Session) -> Reply {
    let count = i64::try_from(open.subscriptions.count()).expect("they are few");
    Reply::Push(vec![Reply::text(kind), name, Reply::Integer(count)])
}
