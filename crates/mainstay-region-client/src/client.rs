//! The client: begins operations, drives the region's client machine and the connections while it waits, and says how each ended.

use crate::changes::Following;
use crate::error::{ConnectError, WriteError, named};
use crate::links::{Links, socket_of};
use crate::reads::{Inspected, Read};
use crate::settings::Settings;
use mainstay_region::client::{Client as Machine, ClientConfig, ClientEffect, Ended};
use mainstay_region::conversation::{Hello, Standing, ToClient, ToServer};
use mainstay_region::duplicates::Seen;
use mainstay_region::limits::{Acknowledgement, Limits};
use mainstay_region::message::{Body, Message, Refusal};
use mainstay_region::operation::{Operation, Outcome};
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The thread of all operations of a client. Neither that of operations named by hand (0), nor one of a node's own (2).
const THREAD: ThreadId = ThreadId(1);

/// Between two looks of the machine at its clock.
const TICK: Duration = Duration::from_millis(10);

/// Between two questions how the servers stand, or for a number.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// What a region remembers of a client, in operations.
const REMEMBERED_OPERATIONS: usize = 64;

/// An operation that took effect, and will not be lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Its identity: what [`Client::repeat`] and [`Client::inspect`] name it by.
    pub id: OperationId,
    /// The version that all copies agree on; in a region without versions, counter 0.
    pub version: Version,
    /// What came of it.
    pub outcome: Outcome,
    /// An earlier attempt of the same operation did it.
    pub duplicate: bool,
}

/// A client of one region, for one thread.
#[derive(Debug)]
pub struct Client {
    pub(crate) settings: Settings,
    region: String,
    seeds: Vec<SocketAddr>,
    began: Instant,
    links: Links,
    heard: Vec<(SocketAddr, ToClient)>,
    pub(crate) machine: Machine,
    pub(crate) machine_out: Vec<ClientEffect>,
    /// How the region stands, as far as is known.
    pub(crate) standing: Option<Standing>,
    /// What the region must not do in the view that is known, and why; whether nothing is read either.
    restriction: Option<(bool, String)>,
    number: Option<ClientId>,
    /// The region has forgotten the number.
    forgotten: bool,
    /// Who said so last: what it gives out next is not forgotten too.
    forgotten_by: Option<SocketAddr>,
    used_at: Instant,
    sequence: Sequence,
    under_way: BTreeSet<OperationId>,
    ended: VecDeque<(OperationId, Result<Written, WriteError>)>,
    pub(crate) reads: BTreeMap<u64, Read>,
    pub(crate) next_read: u64,
    /// What [`Self::inspect`] waits for, and what came of it.
    pub(crate) inspecting: Option<OperationId>,
    pub(crate) inspected: Option<Inspected>,
    /// What [`Self::subscribe`] began.
    pub(crate) following: Option<Following>,
    pub(crate) explanation: String,
    refused: Option<String>,
    ticked_at: Instant,
    asked_at: Option<Instant>,
}

impl Client {
    /// Finds the region by the servers at these addresses, and takes a number that no client ever had.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(servers: &[SocketAddr], region: &str, settings: Settings) -> Result<Self, ConnectError> {
        let mut client = Self::new(servers, region, settings);
        client.know_region()?;
        client.take_number()?;
        Ok(client)
    }

    /// Goes on as the client that it was before a restart. `last` is the last identity that it may have used.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn resume(
        servers: &[SocketAddr],
        region: &str,
        settings: Settings,
        last: OperationId,
    ) -> Result<Self, ConnectError> {
        let mut client = Self::new(servers, region, settings);
        client.know_region()?;
        client.go_by(last.client, last.sequence);
        Ok(client)
    }

    pub(crate) fn new(servers: &[SocketAddr], region: &str, settings: Settings) -> Self {
        let now = Instant::now();
        let mut client = Self {
            region: region.to_owned(),
            seeds: servers.to_vec(),
            began: now,
            links: Links::new(settings.tls.clone(), settings.link_delay),
            heard: Vec::new(),
            machine: Machine::new(machine_config(&settings, None)),
            settings,
            machine_out: Vec::new(),
            standing: None,
            restriction: None,
            number: None,
            forgotten: false,
            forgotten_by: None,
            used_at: now,
            sequence: Sequence::default(),
            under_way: BTreeSet::new(),
            ended: VecDeque::new(),
            reads: BTreeMap::new(),
            // An answer to an earlier life of this client must not be taken for one to this.
            next_read: fastrand::u64(..) >> 1,
            inspecting: None,
            inspected: None,
            following: None,
            explanation: "nobody has answered yet".to_owned(),
            refused: None,
            ticked_at: now,
            asked_at: None,
        };
        client.say_hello_so();
        client.links.know(servers, &[]);
        client
    }

    /// The client's number: part of the identity of all its operations.
    ///
    /// # Panics
    /// Never: a client that is handed out has one.
    #[must_use]
    pub fn number(&self) -> ClientId {
        self.number.expect("a client that is handed out has a number")
    }

    /// The view that the region is in, as far as this client knows.
    #[must_use]
    pub fn view(&self) -> Option<&mainstay_types::view::View> {
        self.standing.as_ref().map(|standing| &standing.view)
    }

    /// Messages that this client has sent, for whoever counts them.
    #[must_use]
    pub fn messages_sent(&self) -> u64 {
        self.links.said
    }

    /// Operations begun and not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Sets a key.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Written, WriteError> {
        self.call(Operation::Put { key: key.into(), value: value.into() })
    }

    /// Removes a key; the outcome says whether it was there.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn remove(&mut self, key: &[u8]) -> Result<Written, WriteError> {
        self.call(Operation::Remove { key: key.into() })
    }

    /// Sets a key to `value` (`None` removes it) if it is `expected` (`None`: not there); else the outcome is [`Outcome::Differs`].
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<Written, WriteError> {
        let (expected, value) = (expected.map(Into::into), value.map(Into::into));
        self.call(Operation::CompareAndSet { key: key.into(), expected, value })
    }

    /// Adds to a counter, a number in decimal; the outcome is its new value.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn increment(&mut self, key: &[u8], by: i64) -> Result<Written, WriteError> {
        self.call(Operation::Increment { key: key.into(), by })
    }

    /// Does an operation.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn call(&mut self, operation: Operation) -> Result<Written, WriteError> {
        let id = self.begin(operation)?;
        self.wait_for(id)
    }

    /// Asks for an operation again that this client began before, perhaps in an earlier life of its program ([`Self::resume`]). If it took effect,
    /// the first answer comes again, with `duplicate` set; if not, it is done now.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn repeat(&mut self, id: OperationId, operation: Operation) -> Result<Written, WriteError> {
        if self.number != Some(id.client) {
            let explanation = format!("operation {} is of another client than {}", named(&id), self.number());
            return Err(WriteError::NotSent { explanation });
        }
        operation.check(&Limits::default()).map_err(WriteError::TooLong)?;
        if id.thread == THREAD {
            // Whatever `resume` was told: it is used.
            self.sequence = self.sequence.max(id.sequence);
        }
        self.under_way.insert(id);
        self.machine.call_again(self.now(), id, operation, &mut self.machine_out);
        self.perform();
        self.wait_for(id)
    }

    /// Begins an operation; it leaves, with all that were begun since the last wait, when this client waits for anything. While the window is
    /// full it waits for room. How it ended comes by [`Self::next_ended`].
    ///
    /// # Errors
    /// [`WriteError::TooLong`]; [`WriteError::RoleMissing`]; [`WriteError::NotSent`], when no client number could be had.
    pub fn begin(&mut self, operation: Operation) -> Result<OperationId, WriteError> {
        operation.check(&Limits::default()).map_err(WriteError::TooLong)?;
        self.hear_of_roles();
        if let Some((_, explanation)) = &self.restriction {
            return Err(WriteError::RoleMissing { explanation: explanation.clone() });
        }
        let idle = self.under_way.is_empty() && self.used_at.elapsed() > self.settings.number_idle_max;
        if idle || self.forgotten {
            while !self.under_way.is_empty() {
                self.turn();
            }
            self.take_number().map_err(|error| WriteError::NotSent { explanation: error.to_string() })?;
        }
        // The window is one of numbers: all that are under way must be among those that the region remembers.
        let window = self.settings.window_operations_max.clamp(1, REMEMBERED_OPERATIONS) as u64;
        let next = self.sequence.next();
        while self.under_way.first().is_some_and(|oldest| next.0 - oldest.sequence.0 >= window) {
            self.turn();
        }
        self.sequence = next;
        let id = OperationId { client: self.number(), thread: THREAD, sequence: next };
        self.under_way.insert(id);
        self.machine.call_as(self.now(), id, operation, &mut self.machine_out);
        self.perform();
        Ok(id)
    }

    /// Waits for the next operation to end, in whatever order; `None` when none is under way.
    pub fn next_ended(&mut self) -> Option<(OperationId, Result<Written, WriteError>)> {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            if self.under_way.is_empty() {
                return None;
            }
            self.turn();
        }
    }

    fn wait_for(&mut self, id: OperationId) -> Result<Written, WriteError> {
        loop {
            if let Some(place) = self.ended.iter().position(|(ended, _)| *ended == id) {
                return self.ended.remove(place).expect("it is there").1;
            }
            self.turn();
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).expect("centuries have not passed"))
    }

    /// Waits for a while, at most until the next tick, and does what comes.
    pub(crate) fn turn(&mut self) {
        let until = self.ticked_at + TICK;
        let mut heard = std::mem::take(&mut self.heard);
        self.links.turn(until, &mut heard);
        for (from, heard) in heard.drain(..) {
            self.told(from, heard);
        }
        self.heard = heard;
        let now = Instant::now();
        if now >= self.ticked_at + TICK {
            self.ticked_at = now;
            self.machine.tick(self.now(), &mut self.machine_out);
            self.ask_reads_again(now);
            self.drive_following();
            if let Some(explanation) = self.links.why_none() {
                self.explanation = explanation;
            }
        }
        self.perform();
    }

    fn told(&mut self, from: SocketAddr, frame: ToClient) {
        match frame {
            ToClient::Standing(standing) => self.stands(standing),
            ToClient::Restricted { view, reads, explanation } => self.restricted(view, reads, explanation),
            ToClient::NotServing { explanation } => self.explanation = format!("{from}: {explanation}"),
            ToClient::Number(number) => {
                if self.number.is_none() {
                    self.go_by(number, Sequence::default());
                }
            }
            ToClient::Message { from: member, message } if self.is_of_changes(&message) => {
                self.hear_of_changes(member, message);
            }
            ToClient::Message { message: Message { body: Body::Answer { request, found }, .. }, .. } => {
                self.answered(request, found);
            }
            ToClient::Message { from: member, message } => {
                if matches!(message.body, Body::Refused { refusal: Refusal::Evicted, .. }) {
                    self.forgotten_by = Some(from);
                }
                self.machine.received(self.now(), member, message, &mut self.machine_out);
            }
            ToClient::Refused { reason } => {
                self.explanation = format!("{from}: {reason}");
                self.refused = Some(reason);
            }
        }
    }

    /// A server says which view it serves.
    fn stands(&mut self, standing: Standing) {
        let members: Vec<SocketAddr> =
            standing.view.members.iter().map(|member| socket_of(member.joiner.address)).collect();
        match &self.standing {
            Some(known) if known.cluster != standing.cluster || known.view.id >= standing.view.id => return,
            Some(_) => {}
            None => self.machine = Machine::new(machine_config(&self.settings, Some(&standing))),
        }
        self.machine.use_pattern(self.settings.pattern.unwrap_or(standing.pattern));
        self.machine.view_known(self.now(), &standing.view, &mut self.machine_out);
        self.standing = Some(standing);
        self.restriction = None;
        self.say_hello_so();
        self.links.know(&members, &self.seeds);
        self.perform();
        self.ask_all_reads();
        self.follow_anew();
    }

    /// The region is served, and lacks a role that it requires.
    fn restricted(&mut self, view: ViewId, reads: bool, explanation: String) {
        if self.view().is_some_and(|known| known.id == view) {
            self.explanation.clone_from(&explanation);
            self.restriction = Some((reads, explanation));
        }
    }

    /// A role that was missing may be there by now: asks, and hears what came, before anything is refused because of it.
    pub(crate) fn hear_of_roles(&mut self) {
        if self.restriction.is_some() {
            self.ask_standing();
            self.turn();
        }
    }

    /// Why nothing is read, if nothing is.
    pub(crate) fn unreadable(&self) -> Option<&str> {
        self.restriction.as_ref().filter(|(reads, _)| *reads).map(|(_, explanation)| explanation.as_str())
    }

    /// From now on this client is known by that number.
    fn go_by(&mut self, number: ClientId, sequence: Sequence) {
        self.number = Some(number);
        self.sequence = sequence;
        self.forgotten = false;
        self.used_at = Instant::now();
        self.say_hello_so();
        self.say_to_all(&ToServer::Named(number));
        // With the former number its subscriptions are gone.
        self.follow_anew();
    }

    /// What is followed is to be asked for again.
    fn follow_anew(&mut self) {
        if let Some(following) = &mut self.following {
            following.stop();
            self.drive_following();
        }
    }

    /// The number of the connection to a server, if there is one.
    pub(crate) fn connection_to(&self, server: SocketAddr) -> Option<u64> {
        self.links.connection(server)
    }

    /// Breaks the connection to a server; another one is made.
    pub(crate) fn drop_connection(&mut self, server: SocketAddr) {
        self.links.drop_connection(server);
    }

    fn say_hello_so(&mut self) {
        let cluster = self.standing.as_ref().map(|standing| standing.cluster).or(self.settings.cluster);
        let mut bytes = Vec::new();
        Hello { cluster, region: self.region.clone() }.put(&mut bytes);
        if let Some(number) = self.number {
            ToServer::Named(number).put(&mut bytes);
        }
        self.links.hello(bytes);
    }

    fn say_to_all(&mut self, frame: &ToServer) {
        for server in self.links.servers().collect::<Vec<_>>() {
            self.links.say(server, frame);
        }
    }

    fn know_region(&mut self) -> Result<(), ConnectError> {
        let deadline = Instant::now() + self.settings.deadline;
        while self.standing.is_none() {
            if let Some(reason) = self.refused.take().or_else(|| self.links.all_refuse()) {
                return Err(ConnectError::Refused { reason });
            }
            self.check(deadline)?;
            self.ask_standing();
            self.turn();
        }
        let versions = |pattern| pattern != Pattern::Unversioned;
        let keeps = self.standing.as_ref().map(|standing| versions(standing.pattern));
        if self.settings.pattern.map(versions).is_some_and(|wanted| Some(wanted) != keeps) {
            let reason =
                "the region keeps versions and the pattern has none, or the other way round".to_owned();
            return Err(ConnectError::Refused { reason });
        }
        Ok(())
    }

    fn take_number(&mut self) -> Result<(), ConnectError> {
        let deadline = Instant::now() + self.settings.deadline;
        let former = self.number.take();
        let mut asked: Option<(Instant, usize)> = None;
        while self.number.is_none() {
            if let Err(error) = self.check(deadline) {
                // It stays what it was: nothing was begun under another number.
                self.number = former;
                return Err(error);
            }
            if asked.is_none_or(|(at, _)| at.elapsed() >= ASK_PAUSE) {
                // One after another: a number that comes twice is lost.
                let best = self.links.servers().position(|server| Some(server) == self.forgotten_by);
                let place = asked.map_or(best.unwrap_or(0), |(_, place)| place + 1);
                asked = Some((Instant::now(), place));
                let count = self.links.servers().count().max(1);
                let server = self.links.servers().nth(place % count);
                server.into_iter().for_each(|server| self.links.say(server, &ToServer::AskNumber));
            }
            self.turn();
        }
        Ok(())
    }

    fn check(&self, deadline: Instant) -> Result<(), ConnectError> {
        if Instant::now() < deadline {
            return Ok(());
        }
        Err(ConnectError::NoAnswer { explanation: self.explanation.clone() })
    }

    pub(crate) fn ask_standing(&mut self) {
        if self.asked_at.is_none_or(|at| at.elapsed() >= ASK_PAUSE) {
            self.asked_at = Some(Instant::now());
            self.say_to_all(&ToServer::AskStanding);
        }
    }

    /// Says a message to a member.
    pub(crate) fn say(&mut self, to: SocketAddr, message: Message) {
        self.links.say(to, &ToServer::Message(message));
    }

    pub(crate) fn perform(&mut self) {
        let mut effects = std::mem::take(&mut self.machine_out);
        for effect in effects.drain(..) {
            match effect {
                ClientEffect::Send { to, message } => self.say(socket_of(to.address), message),
                ClientEffect::AskView => self.ask_standing(),
                ClientEffect::Ended { id, ended } => self.has_ended(id, ended),
                ClientEffect::NotSeen { id } if self.inspecting == Some(id) => {
                    self.inspected = Some(Inspected::NotSeen);
                }
                ClientEffect::NotSeen { .. } => {}
            }
        }
        self.machine_out = effects;
    }

    fn has_ended(&mut self, id: OperationId, ended: Ended) {
        let result = match ended {
            Ended::Done { seen: Seen { version, outcome }, duplicate } => {
                Ok(Written { id, version, outcome, duplicate })
            }
            Ended::Unknown => Err(WriteError::Unknown { id, explanation: self.explanation.clone() }),
            Ended::Obsolete => Err(WriteError::Obsolete { id }),
            Ended::Evicted => {
                self.forgotten |= self.number == Some(id.client);
                Err(WriteError::Evicted { id })
            }
            Ended::TooLong(too_long) => Err(WriteError::TooLong(too_long)),
            Ended::OtherShard => Err(WriteError::OtherShard),
        };
        self.used_at = Instant::now();
        if self.under_way.remove(&id) {
            self.ended.push_back((id, result));
        } else if self.inspecting == Some(id) {
            self.inspected = match result {
                Ok(written) => Some(Inspected::Done(written)),
                Err(WriteError::Obsolete { .. } | WriteError::Evicted { .. }) => {
                    Some(Inspected::NotRemembered)
                }
                // Nobody can tell just now.
                Err(_) => None,
            };
        }
    }
}

fn machine_config(settings: &Settings, standing: Option<&Standing>) -> ClientConfig {
    ClientConfig {
        // Operations are begun under identities of their own.
        id: ClientId(0),
        shards: standing.map_or(1, |standing| standing.shards),
        acknowledgement: standing.map_or(Acknowledgement::All, |standing| standing.acknowledgement),
        pattern: settings.pattern.or(standing.map(|standing| standing.pattern)).unwrap_or(Pattern::OneHop),
        retry_after: settings.retry_after,
        deadline: settings.deadline,
        window_operations_max: REMEMBERED_OPERATIONS,
    }
}
