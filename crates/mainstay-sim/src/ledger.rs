//! The service that is simulated: accounts whose operations do not commute (a hash chain each), outputs, timers, and a
//! handler that panics, always or now and then.
//!
//! The state changes in one function, [`Ledger::apply`], which the process calls through [`Handler`] and the failure-free
//! model calls directly.

use crate::clients::Kind;
use crate::random::{Random, SplitMix};
use crate::subject::{FailureFree, Stopped, Subject};
use mainstay_journal::geometry::Geometry;
use mainstay_process::config::Config;
use mainstay_process::dry_run::{Call, Given, Performed};
use mainstay_process::handler::{Answer, Context, Handler, Outcome, RestoreError};
use mainstay_process::port::{Guarantee, Port, PortIndex};
use mainstay_types::id::OutputId;
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The ports, in their order.
const PORTS: [(&str, Guarantee); 4] = [
    ("once", Guarantee::Deduplicated),
    ("asked", Guarantee::Asked),
    ("again", Guarantee::AtLeastOnce),
    ("at-most", Guarantee::AtMostOnce),
];

/// A request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    /// Unique in a run.
    pub(crate) call: u64,
    pub(crate) account: u8,
    pub(crate) operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    Deposit(u16),
    Withdraw(u16),
    /// Moves money and tells a port.
    Transfer {
        to: u8,
        amount: u16,
        port: u8,
    },
    /// Tells every port.
    Announce,
    /// Changes the account again after that many microseconds, and tells a port.
    Later {
        after_us: u32,
        port: u8,
    },
    /// Panics whenever it is tried.
    Poison,
    /// Panics when the weather is bad.
    Fragile(u16),
}

impl Command {
    /// The bytes, `padding` zeroes behind them.
    pub(crate) fn encode(&self, padding: usize) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(self).expect("a vector takes all");
        bytes.resize(bytes.len() + padding, 0);
        bytes
    }

    pub(crate) fn decode(body: &[u8]) -> Self {
        postcard::take_from_bytes(body).expect("only the simulator's clients send").0
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    balance: u32,
    chain: u64,
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    accounts: [Account; 4],
    handled: u64,
}

/// What the world gives to a delivery.
pub(crate) trait Asks {
    fn now(&self) -> Time;
    fn random(&mut self) -> u64;
    fn send(&mut self, port: &str, body: Vec<u8>) -> OutputId;
    fn set_timer(&mut self, delay: Duration, token: u64);
}

impl Asks for Context<'_> {
    fn now(&self) -> Time {
        Context::now(self)
    }

    fn random(&mut self) -> u64 {
        self.random_u64()
    }

    fn send(&mut self, port: &str, body: Vec<u8>) -> OutputId {
        Context::send(self, port, body)
    }

    fn set_timer(&mut self, delay: Duration, token: u64) {
        Context::set_timer(self, delay, token);
    }
}

/// The handler panics on this, however often it is tried.
pub(crate) struct AlwaysPanics;

impl State {
    /// Applies a command; state and wishes are worthless after an error.
    pub(crate) fn apply(&mut self, command: &Command, asks: &mut impl Asks) -> Result<Answer, AlwaysPanics> {
        self.handled += 1;
        let place = usize::from(command.account) % self.accounts.len();
        let refused = match command.operation {
            Operation::Deposit(amount) | Operation::Fragile(amount) => {
                self.accounts[place].balance += u32::from(amount);
                false
            }
            Operation::Withdraw(amount) => !self.take(place, amount),
            Operation::Transfer { to, amount, port } => {
                let taken = self.take(place, amount);
                if taken {
                    let to = usize::from(to) % self.accounts.len();
                    self.accounts[to].balance += u32::from(amount);
                    self.link(to, command.call, u64::from(amount));
                    self.tell(port, place, command.call, asks);
                }
                !taken
            }
            Operation::Announce => {
                for port in 0..4 {
                    self.tell(port, place, command.call, asks);
                }
                false
            }
            Operation::Later { after_us, port } => {
                let token = u64::from(port) << 8 | place as u64;
                asks.set_timer(Duration::from_micros(u64::from(after_us)), token);
                false
            }
            Operation::Poison => return Err(AlwaysPanics),
        };
        let salt = asks.now().0 ^ asks.random();
        self.link(place, command.call, salt);
        Ok(self.answer(place, if refused { 402 } else { 200 }))
    }

    pub(crate) fn timer(&mut self, token: u64, asks: &mut impl Asks) {
        let [port, account, ..] = [(token >> 8) as u8, token as u8];
        let place = usize::from(account);
        let salt = asks.now().0 ^ asks.random();
        self.link(place, token, salt);
        self.tell(port, place, token, asks);
    }

    pub(crate) fn output_settled(&mut self, output: OutputId, outcome: &Outcome) {
        let salt = match outcome {
            Outcome::Delivered { status } => u64::from(*status),
            Outcome::Refused { status } => u64::from(*status) << 16,
            Outcome::Abandoned => u64::MAX,
        };
        self.link((output.0 % 4) as usize, output.0, salt);
    }

    /// The whole state in one answer.
    pub(crate) fn read(&self) -> Answer {
        let digest = self.accounts.iter().fold(self.handled, |digest, account| {
            xxh3_64_with_seed(&account.chain.to_le_bytes(), digest ^ u64::from(account.balance))
        });
        Answer { status: 200, body: digest.to_le_bytes().to_vec() }
    }

    fn take(&mut self, place: usize, amount: u16) -> bool {
        let account = &mut self.accounts[place];
        let left = account.balance.checked_sub(u32::from(amount));
        account.balance = left.unwrap_or(account.balance);
        left.is_some()
    }

    fn link(&mut self, place: usize, what: u64, salt: u64) {
        let account = &mut self.accounts[place];
        let link = [what, salt, u64::from(account.balance)].map(u64::to_le_bytes).concat();
        account.chain = xxh3_64_with_seed(&link, account.chain);
    }

    fn tell(&self, port: u8, place: usize, what: u64, asks: &mut impl Asks) {
        let mut body = self.accounts[place].chain.to_le_bytes().to_vec();
        body.extend_from_slice(&what.to_le_bytes());
        asks.send(PORTS[usize::from(port) % PORTS.len()].0, body);
    }

    fn answer(&self, place: usize, status: u16) -> Answer {
        let account = &self.accounts[place];
        let mut body = account.chain.to_le_bytes().to_vec();
        body.extend_from_slice(&account.balance.to_le_bytes());
        body.extend_from_slice(&self.handled.to_le_bytes());
        Answer { status, body }
    }
}

/// The handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) state: State,
    /// How many of the coming fragile commands panic: not part of the state, as memory shortage is not.
    pub(crate) bad_weather: Rc<Cell<u32>>,
    /// Commands that were handled once, in any life: these are not hit again. That a handler gets through what it got
    /// through before is what recovery relies on.
    pub(crate) handled_once: Rc<RefCell<BTreeSet<u64>>>,
}

/// Panics without the panic hook, which would print.
fn panic_quietly(message: &str) -> ! {
    std::panic::resume_unwind(Box::new(message.to_owned()))
}

impl Handler for Ledger {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let command = Command::decode(body);
        if matches!(command.operation, Operation::Fragile(_))
            && self.bad_weather.get() > 0
            && !self.handled_once.borrow().contains(&command.call)
        {
            self.bad_weather.set(self.bad_weather.get() - 1);
            panic_quietly("bad weather");
        }
        match self.state.apply(&command, context) {
            Ok(answer) => {
                if matches!(command.operation, Operation::Fragile(_)) {
                    self.handled_once.borrow_mut().insert(command.call);
                }
                Some(answer)
            }
            Err(AlwaysPanics) => panic_quietly("poison"),
        }
    }

    fn query(&self, _body: &[u8]) -> Answer {
        self.state.read()
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        self.state.timer(token, context);
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, _context: &mut Context<'_>) {
        self.state.output_settled(output, outcome);
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&postcard::to_allocvec(&self.state).map_err(io::Error::other)?)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.state =
            postcard::from_bytes(bytes).map_err(|error| RestoreError { reason: error.to_string() })?;
        Ok(())
    }
}

/// The ledger as it is simulated.
#[derive(Debug, Default)]
pub(crate) struct LedgerSubject {
    bad_weather: Rc<Cell<u32>>,
    handled_once: Rc<RefCell<BTreeSet<u64>>>,
}

impl Subject for LedgerSubject {
    type Handler = Ledger;
    type FailureFree = State;

    fn settle(&self, config: &mut Config, _: &mut Geometry) {
        "ledger".clone_into(&mut config.name);
        let port =
            |(name, guarantee): (&str, Guarantee)| Port { name: name.to_owned(), guarantee, lines: false };
        config.ports = PORTS.map(port).into();
    }

    fn handler(&self) -> Ledger {
        let (bad_weather, handled_once) = (Rc::clone(&self.bad_weather), Rc::clone(&self.handled_once));
        Ledger { state: State::default(), bad_weather, handled_once }
    }

    fn failure_free(&self) -> State {
        State::default()
    }

    fn clients(&self) -> &'static [Kind] {
        &[Kind::Key, Kind::Numbered, Kind::Bare, Kind::Key, Kind::Numbered, Kind::Reader]
    }

    fn request(&self, call: u64, random: &mut Random) -> Option<Vec<u8>> {
        let (operation, padding) = operation(random);
        Some(Command { call, account: random.below(4) as u8, operation }.encode(padding))
    }

    fn another_body(&self, call: u64, random: &mut Random) -> Option<Vec<u8>> {
        let (operation, padding) = operation(random);
        Some(Command { call, account: 0, operation }.encode(padding))
    }

    fn queries(&self) -> &[Vec<u8>] {
        const WHOLE_STATE: &[Vec<u8>] = &[Vec::new()];
        WHOLE_STATE
    }

    fn bad_weather(&self, deliveries: u32) {
        self.bad_weather.set(deliveries);
    }

    fn waits_for_timers(&self) -> bool {
        true
    }
}

/// The world of one delivery of the run without failures.
struct Wishes<'a> {
    given: Given<'a>,
    random: SplitMix,
    performed: Performed,
}

impl Asks for Wishes<'_> {
    fn now(&self) -> Time {
        self.given.now
    }

    fn random(&mut self) -> u64 {
        self.random.draw()
    }

    fn send(&mut self, port: &str, body: Vec<u8>) -> OutputId {
        let id = OutputId(self.given.next_output.0 + self.performed.outputs.len() as u64);
        let port = PORTS.iter().position(|(known, _)| *known == port).expect("the ledger knows its ports");
        self.performed.outputs.push((id, PortIndex(port), body));
        id
    }

    fn set_timer(&mut self, delay: Duration, token: u64) {
        self.performed.timers.push((self.given.now.after(delay), token));
    }
}

impl FailureFree for State {
    fn deliver(&mut self, call: Call<'_>, given: Given<'_>) -> Result<Performed, Stopped> {
        let mut wishes = Wishes { given, random: SplitMix(given.seed), performed: Performed::default() };
        match call {
            Call::Request(body) => match self.apply(&Command::decode(body), &mut wishes) {
                Ok(answer) => wishes.performed.answer = Some(answer),
                Err(AlwaysPanics) => return Err(Stopped::Panics("poison".to_owned())),
            },
            Call::Message(..) => unreachable!("the ledger stands alone"),
            Call::Timer(token) => self.timer(token, &mut wishes),
            Call::Settled(output, outcome) => self.output_settled(output, outcome),
        }
        Ok(wishes.performed)
    }

    fn query(&self, _: &[u8]) -> Answer {
        self.read()
    }

    fn state(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a vector takes all")
    }
}

fn operation(random: &mut Random) -> (Operation, usize) {
    let amount = random.below(100) as u16;
    let port = random.below(4) as u8;
    let operation = match random.below(100) {
        0..30 => Operation::Deposit(amount),
        30..45 => Operation::Withdraw(amount),
        45..80 => Operation::Transfer { to: random.below(4) as u8, amount: amount / 4, port },
        80..88 => Operation::Announce,
        88..94 => Operation::Later { after_us: random.between(10, 20_000) as u32, port },
        94 => Operation::Poison,
        _ => Operation::Fragile(amount),
    };
    let padding = match random.below(10) {
        0 => random.index(1500),
        1..4 => random.index(300),
        _ => random.index(40),
    };
    (operation, padding)
}
