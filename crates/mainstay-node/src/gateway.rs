//! What a node does for the clients connected to it: it is a client of the region for them, and knows no socket and no clock.
//!
//! ```text
//!   commands of a connection ─> parts, one for each key ─> reads, at the stamper ──────────┐
//!                                  │ wait for an earlier part    writes, region's client.rs ──┤ messages to members
//!   replies, in their order <──────┴─────── outcome, version <────────────────────────────┘
//! ```
//!
//! While this node does not serve, parts are held, and refused after a while with the reason: nothing of them was sent.

use self::feed::Feed;
use self::naming::Names;
use self::numbering::{Unproven, Wanting};
use self::reads::Read;
use self::scan::Cursors;
use crate::command::Identity;
use crate::numbers::Numbers;
use crate::replies::written;
use crate::resp::Reply;
use crate::session::{Part, Session, Task};
use mainstay_group::roles::Restriction;
use mainstay_region::client::{Client, ClientConfig, ClientEffect, Ended};
use mainstay_region::copies::Copies;
use mainstay_region::limits::Config;
use mainstay_region::message::{Body, Message, Refusal};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

mod answers;
mod commands;
pub(crate) mod feed;
pub(crate) mod naming;
mod numbering;
mod reads;
pub(crate) mod resume;
pub(crate) mod scan;
pub(crate) mod transaction;

pub use self::answers::ByteLimits;

/// How long things are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayTimes {
    /// An operation or read without an answer is sent again.
    pub retry_after: Duration,
    /// An operation without an answer is unknown; a read is refused, at a node that serves.
    pub deadline: Duration,
    /// How long commands are held, and reads waited for, while this node does not serve: longer than a change of the view takes.
    pub held_max: Duration,
    /// A connection that wrote nothing for so long takes a new client number: the region may have forgotten the old one.
    pub number_idle_max: Duration,
}

impl Default for GatewayTimes {
    fn default() -> Self {
        Self {
            retry_after: Duration::from_millis(100),
            deadline: Duration::from_secs(5),
            held_max: Duration::from_secs(3),
            number_idle_max: Duration::from_secs(60),
        }
    }
}

/// What the node is asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GatewayEffect {
    /// Send this in the name of this client.
    Send {
        /// To whom.
        to: MemberId,
        /// Who gets the answer.
        client: ClientId,
        /// What.
        message: Message,
    },
    /// Say this to this node's own copy in the name of this client.
    SendHere {
        /// Who gets the answers, and goes on getting them.
        client: ClientId,
        /// What.
        message: Message,
    },
    /// This client of this node's own copy listens no more.
    Unfollow {
        /// Who.
        client: ClientId,
    },
    /// Write these bytes to a connection.
    Write {
        /// Which.
        session: u64,
        /// What.
        bytes: Vec<u8>,
        /// The commands that are answered by it.
        answered: usize,
        /// Close the connection behind it.
        close: bool,
    },
    /// Answer with the node's state ([`Gateway::answer`]).
    Status {
        /// Whom.
        place: Place,
    },
    /// Give this number to the client of this connection ([`Gateway::number_for`]).
    Number {
        /// Whose.
        connection: u64,
        /// A number that no client ever had.
        number: ClientId,
    },
    /// Whether a client has this number ([`Gateway::know_number`]).
    Known {
        /// Whose connection it is said on.
        connection: u64,
        /// The number.
        number: ClientId,
        /// Some node has given it to a client.
        given: bool,
    },
    /// Leave the group. Answer with [`Gateway::answer`].
    Leave {
        /// Whom to answer.
        place: Place,
    },
    /// Give a region another pattern, and answer when it has it ([`Gateway::answer`]).
    Redefine {
        /// Whom to answer.
        place: Place,
        /// The region's name.
        region: String,
        /// The pattern.
        pattern: Pattern,
    },
    /// Hear and tell these nodes nothing; none: hear all again. Answer with [`Gateway::answer`].
    Cut {
        /// Whom to answer.
        place: Place,
        /// Who is cut off.
        addresses: Vec<SocketAddr>,
    },
}

/// A command of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    session: u64,
    command: u64,
}

/// Whether this node serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// It does.
    pub serves: bool,
    /// How it stands, in a sentence, its first word for programs.
    pub explanation: String,
    /// What the region must not do all the same.
    pub restriction: Option<Restriction>,
}

/// Who waits for an operation or a read.
#[derive(Clone, Debug)]
enum Waiter {
    Part(Part),
    Numbers,
}

/// The thread of operations that a client names itself. Connections number theirs under another one: who makes up the number of a
/// client must not be taken for a connection that was given it.
const NAMED: ThreadId = ThreadId(0);

/// The gateway of one node to one region.
#[derive(Debug)]
pub struct Gateway {
    times: GatewayTimes,
    config: Config,
    standing: Standing,
    copies: Copies,
    client: Client,
    sessions: BTreeMap<u64, Session>,
    writes: BTreeMap<OperationId, Vec<Waiter>>,
    reads: BTreeMap<u64, Read>,
    /// In whose name this node reads: no operation ever has this number.
    reader: ClientId,
    next_read: u64,
    cursors: Cursors,
    feed: Feed,
    /// What the wall clock was, and when: milliseconds since 1970.
    wall_clock: (Time, u64),
    held: VecDeque<Part>,
    numbers: Numbers,
    wanting: VecDeque<Wanting>,
    /// What is said in the name of clients whose number may not have been given out: until the count of numbers is read,
    unproven: Vec<Unproven>,
    /// and while it is.
    proving: Vec<Unproven>,
    /// Which commands names of writes stand for.
    names: Names,
    /// What waits behind `MULTI`, of all connections, in bytes.
    transactions_bytes: usize,
    limits: ByteLimits,
    client_out: Vec<ClientEffect>,
}

impl Gateway {
    /// A gateway to a region that is set up so. `drawn` is random, another one in each life of a node.
    #[must_use]
    pub fn new(config: Config, pattern: Pattern, times: GatewayTimes, drawn: u64) -> Self {
        let client = Client::new(client_config(&config, pattern, &times));
        let thread = ThreadId(u32::try_from(drawn >> 32).expect("half of it fits") | 1);
        Self {
            times,
            config,
            standing: Standing { serves: false, explanation: "STARTING".to_owned(), restriction: None },
            copies: Copies::default(),
            client,
            sessions: BTreeMap::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            // Numbers that are given out never come so far.
            reader: ClientId(drawn | 1 << 63),
            next_read: 0,
            cursors: Cursors::new(drawn),
            // No other node's reader, and no client.
            feed: Feed::new(ClientId(!drawn | 1 << 63)),
            wall_clock: (Time::EPOCH, 0),
            held: VecDeque::new(),
            numbers: Numbers::new(thread),
            wanting: VecDeque::new(),
            unproven: Vec::new(),
            proving: Vec::new(),
            names: Names::default(),
            transactions_bytes: 0,
            limits: ByteLimits::default(),
            client_out: Vec::new(),
        }
    }

    /// The region is known: before this node serves for the first time.
    pub fn configure(&mut self, config: Config, pattern: Pattern) {
        self.client = Client::new(client_config(&config, pattern, &self.times));
        self.config = config;
    }

    /// First attempts of writes go by this pattern from now on: the region's, from the view that it serves.
    pub fn use_pattern(&mut self, pattern: Pattern) {
        self.client.use_pattern(pattern);
    }

    /// It is so late by the wall clock: milliseconds since 1970. When values end is told by it.
    pub fn tell_time(&mut self, now: Time, unix_ms: u64) {
        self.wall_clock = (now, unix_ms);
    }

    fn unix_ms(&self, now: Time) -> u64 {
        let (at, unix_ms) = self.wall_clock;
        unix_ms.saturating_add(u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX))
    }

    /// Operations and reads under way, and connections, for people.
    #[must_use]
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        [
            ("connections", self.sessions.len()),
            ("writes_under_way", self.writes.len()),
            ("reads_under_way", self.reads.len()),
            ("commands_held", self.held.len()),
        ]
    }

    /// A client has connected.
    pub fn opened(&mut self, session: u64) {
        self.sessions.insert(session, Session::default());
    }

    /// A client is gone. What it began goes on to its end.
    pub fn closed(&mut self, session: u64, out: &mut Vec<GatewayEffect>) {
        self.end_transaction(session);
        self.sessions.remove(&session);
        self.leaves_feed(session, out);
        self.held.retain(|part| part.session != session);
    }

    /// Whether this node serves, as the group has it.
    pub fn stand(&mut self, now: Time, standing: Standing, out: &mut Vec<GatewayEffect>) {
        self.standing = standing;
        if self.standing.serves {
            for part in std::mem::take(&mut self.held) {
                self.begin(now, part, out);
            }
            self.want_numbers(now, out);
        }
    }

    /// A view that this node is in.
    pub fn view(&mut self, now: Time, view: &View, out: &mut Vec<GatewayEffect>) {
        self.copies = Copies::of(view);
        let mut client_out = std::mem::take(&mut self.client_out);
        self.client.view_known(now, view, &mut client_out);
        self.client_out = client_out;
        self.client_effects(now, out);
        self.follow(out);
        self.resume_first(now, out);
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            self.send_read(now, request, out);
        }
    }

    /// Some time has gone by.
    pub fn tick(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let mut client_out = std::mem::take(&mut self.client_out);
        self.client.tick(now, &mut client_out);
        self.client_out = client_out;
        self.client_effects(now, out);
        for request in self.reads.keys().copied().collect::<Vec<_>>() {
            let read = &self.reads[&request];
            // Nothing is in doubt about a read: where nobody serves it ends as soon as one that had not begun.
            let waits_max = if self.standing.serves { self.times.deadline } else { self.times.held_max };
            if now.since(read.since) >= waits_max {
                let read = self.reads.remove(&request).expect("it was there");
                let refusal = self.refusal("no answer to a read");
                match read.waiter {
                    Waiter::Part(part) => self.finish(now, part, refusal, out),
                    Waiter::Numbers => {
                        self.numbers.failed();
                        self.unproven.append(&mut self.proving);
                    }
                }
            } else if now.since(read.tried) >= self.times.retry_after {
                self.send_read(now, request, out);
            }
        }
        let held_max = self.times.held_max;
        while self.held.front().is_some_and(|part| now.since(part.since) >= held_max) {
            let part = self.held.pop_front().expect("there is one");
            let refusal = self.refusal("nothing was sent");
            self.finish(now, part, refusal, out);
        }
        self.refuse_parked(now, out);
        self.tick_feed(now, out);
        self.proceed_all(now, out);
        if self.standing.serves {
            self.want_numbers(now, out);
        }
    }

    fn refusal(&self, what: &str) -> Reply {
        let word = if self.standing.serves { "TRYAGAIN" } else { "CLUSTERDOWN" };
        Reply::Error(format!("{word} {}; {what}", self.standing.explanation))
    }

    /// What is answered instead while a role is missing.
    fn restricted(&self, task: &Task) -> Option<Reply> {
        let without = self.standing.restriction.as_ref()?;
        let word = match (without.refuses_reads(), task) {
            (true, _) => "CLUSTERDOWN",
            (false, Task::Write(..)) => "READONLY",
            (false, _) => return None,
        };
        Some(Reply::Error(format!("{word} role: {without}; nothing was sent")))
    }

    fn begin(&mut self, now: Time, part: Part, out: &mut Vec<GatewayEffect>) {
        if !self.standing.serves {
            self.held.push_back(part);
            return;
        }
        if let Some(refusal) = self.restricted(&part.task) {
            return self.finish(now, part, refusal, out);
        }
        let Some(open) = self.sessions.get_mut(&part.session) else { return };
        match &part.task {
            Task::Read(_) => {
                let key = part.key.clone();
                self.read_key(now, Waiter::Part(part), key, out);
            }
            Task::Scan(scan) => {
                let (shard, query) = scan.next();
                self.read(now, Waiter::Part(part), shard, query, out);
            }
            Task::Write(operation, _, Some(named)) => {
                let Identity { client, sequence, again } = named.identity;
                match self.numbers.given(client) {
                    Some(true) => {}
                    Some(false) => return self.refuse_number(now, client, part, out),
                    None => {
                        self.unproven.push(Unproven::Write(part));
                        return self.want_numbers(now, out);
                    }
                }
                if !self.names.stands_for(named) {
                    return self.refuse_name(now, part, out);
                }
                let id = OperationId { client, thread: NAMED, sequence };
                let operation = operation.clone();
                self.write(now, id, operation, again, Waiter::Part(part), out);
            }
            Task::Write(operation, _, None) => {
                let window = self.config.limits.duplicate_results_max as u64;
                let idle_max = u64::try_from(self.times.number_idle_max.as_nanos()).unwrap_or(u64::MAX);
                match open.next_operation(now, window, idle_max) {
                    Some(id) => {
                        let operation = operation.clone();
                        self.write(now, id, operation, false, Waiter::Part(part), out);
                    }
                    None => {
                        let wants = open.number.is_none() && !open.wants_number;
                        open.wants_number |= wants;
                        let session = part.session;
                        open.parked.push_back(part);
                        if wants {
                            self.wanting.push_back(Wanting::Session(session));
                            self.want_numbers(now, out);
                        }
                    }
                }
            }
        }
    }

    fn write(
        &mut self,
        now: Time,
        id: OperationId,
        operation: Operation,
        again: bool,
        waiter: Waiter,
        out: &mut Vec<GatewayEffect>,
    ) {
        let waiters = self.writes.entry(id).or_default();
        waiters.push(waiter);
        if waiters.len() > 1 {
            // Two connections ask for the same operation: one answer serves both.
            return;
        }
        let mut client_out = std::mem::take(&mut self.client_out);
        match again {
            true => self.client.call_again(now, id, operation, &mut client_out),
            false => self.client.call_as(now, id, operation, &mut client_out),
        }
        self.client_out = client_out;
        self.client_effects(now, out);
    }

    /// A member said this to one of this node's clients.
    pub fn received(
        &mut self,
        now: Time,
        from: MemberId,
        client: ClientId,
        message: Message,
        out: &mut Vec<GatewayEffect>,
    ) {
        self.overhear(&message);
        match message.body {
            _ if client == self.follower() => self.followed(now, message, out),
            _ if self.resumes(client) => self.heard_before(now, message, out),
            // Requests are counted from one in each life: an answer to a former one may bear a number that is asked for now.
            Body::Answer { .. } if client != self.reader => {}
            Body::Answer { request, found: Ok(found) } => self.answered(now, request, found, out),
            // Why ever it was: it is asked again in a moment, or at the next view.
            Body::Answer { .. } => {}
            _ => {
                let mut client_out = std::mem::take(&mut self.client_out);
                self.client.received(now, from, message, &mut client_out);
                self.client_out = client_out;
                self.client_effects(now, out);
            }
        }
    }

    /// This was said to a client, of this gateway or not. Numbers that this node holds may be behind one that the region has forgotten.
    pub fn overhear(&mut self, message: &Message) {
        if matches!(message.body, Body::Refused { refusal: Refusal::Evicted, .. }) {
            self.numbers.forget();
        }
    }

    fn client_effects(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        for effect in std::mem::take(&mut self.client_out) {
            match effect {
                ClientEffect::Send { to, message } => {
                    if let Some(client) = client_of(&message.body) {
                        out.push(GatewayEffect::Send { to, client, message });
                    }
                }
                ClientEffect::Ended { id, ended } => self.ended(now, id, ended, out),
                // The view is told as soon as this node knows it.
                ClientEffect::AskView | ClientEffect::NotSeen { .. } => {}
            }
        }
    }

    fn ended(&mut self, now: Time, id: OperationId, ended: Ended, out: &mut Vec<GatewayEffect>) {
        for waiter in self.writes.remove(&id).unwrap_or_default() {
            match waiter {
                Waiter::Numbers => {
                    let outcome = match ended {
                        Ended::Done { ref seen, .. } => Some(seen.outcome.clone()),
                        _ => None,
                    };
                    if self.numbers.takes(id) {
                        self.numbers.taken(outcome);
                    }
                    self.want_numbers(now, out);
                }
                Waiter::Part(part) => self.write_ended(now, id, ended.clone(), part, out),
            }
        }
    }

    fn write_ended(
        &mut self,
        now: Time,
        id: OperationId,
        ended: Ended,
        part: Part,
        out: &mut Vec<GatewayEffect>,
    ) {
        let Task::Write(_, as_what, named) = &part.task else { return };
        let unix_ms = self.unix_ms(now);
        let evicted = ended == Ended::Evicted;
        if named.is_some() && matches!(ended, Ended::TooLong(_) | Ended::OtherShard) {
            self.names.forget(id.client, id.sequence);
        }
        let versions = self.sessions.get(&part.session).is_some_and(|open| open.versions);
        let reply = match ended {
            Ended::Done { seen, duplicate } => written(seen, duplicate, as_what, versions, unix_ms),
            Ended::TooLong(too_long) => Reply::Error(format!("ERR {too_long}; nothing was done")),
            Ended::OtherShard => Reply::Error(
                "CROSSSLOT the keys belong to several shards; nothing was done: keys with the same {tag} belong together"
                    .to_owned(),
            ),
            Ended::Unknown => Reply::Error(format!(
                "UNKNOWN no answer within {} s: it may have taken effect, or still do ({})",
                self.times.deadline.as_secs(),
                self.standing.explanation
            )),
            Ended::Obsolete => Reply::Error(
                "OBSOLETE it is older than what is remembered: it may have taken effect, and will not any more".to_owned(),
            ),
            Ended::Evicted => {
                Reply::Error("EVICTED the client is not remembered: it may have taken effect, and will not any more; \
                     go on under a new number (MAINSTAY.ID NEW)".to_owned())
            }
        };
        if named.is_none()
            && let Some(open) = self.sessions.get_mut(&part.session)
        {
            open.ended(now, id);
            if evicted {
                open.number = None;
            }
        }
        self.finish(now, part, reply, out);
    }
}

fn client_config(config: &Config, pattern: Pattern, times: &GatewayTimes) -> ClientConfig {
    ClientConfig {
        // Operations are begun under identities of their own.
        id: ClientId(0),
        shards: config.shards,
        acknowledgement: config.acknowledgement,
        pattern,
        retry_after: times.retry_after,
        deadline: times.deadline,
        window_operations_max: config.limits.duplicate_results_max,
    }
}

/// The client in whose name a message goes.
fn client_of(body: &Body) -> Option<ClientId> {
    match body {
        Body::Operate { id, .. }
        | Body::VersionRequest { id }
        | Body::Payload { id, .. }
        | Body::Tagged { id, .. }
        | Body::Unversioned { id, .. }
        | Body::Inspect { id } => Some(id.client),
        _ => None,
    }
}
