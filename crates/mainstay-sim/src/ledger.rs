//! The service that is simulated: accounts whose operations do not commute (a hash chain each), outputs, timers, and a
//! handler that panics, always or now and then.
//!
//! The state changes in one function, [`Ledger::apply`], which the process calls through [`Handler`] and the failure-free
//! model calls directly.

use mainstay_process::handler::{Answer, Context, Handler, Outcome, RestoreError};
use mainstay_types::id::OutputId;
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names of the ports, in their order.
pub(crate) const PORTS: [&str; 4] = ["once", "asked", "again", "at-most"];

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
        asks.send(PORTS[usize::from(port) % PORTS.len()], body);
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
