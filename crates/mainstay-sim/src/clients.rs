//! Clients: of both kinds, some without an identity, some that misbehave. All repeat with the same identity until they know.

use crate::ledger::{Command, Operation};
use crate::random::Random;
use mainstay_process::effect::Reply;
use mainstay_process::event::Identity;
use mainstay_types::id::{ClientId, OutputId, Sequence, ThreadId};

/// Something asked of the service.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) kind: CallKind,
    pub(crate) identity: Identity,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Request,
    Register,
    Query,
    /// A person resolves an output in doubt.
    Resolve(OutputId, mainstay_process::event::Resolution),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A key per request.
    Key,
    /// Numbered by the server, two threads.
    Numbered,
    /// No identity: sends once.
    Bare,
    /// Reads.
    Reader,
}

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    place: usize,
    kind: Kind,
    number: Option<ClientId>,
    sequences: [u64; 2],
    current: Option<usize>,
    /// Calls that ended, for misbehaving with.
    past: Vec<usize>,
    /// Distinguishes keys of clients that came after a failure beyond what was promised.
    era: u64,
}

/// What a client does when it is its turn.
pub(crate) enum Turn {
    /// Sends the call it waits for once more.
    Again(usize),
    /// Makes a new call and waits for it.
    New(Call),
    /// Makes a new call and does not care.
    Aside(Call),
    /// Sends an old call once more and does not care.
    AsideAgain(usize),
    /// Nothing more: the run is coming to its end.
    Rest,
}

impl Client {
    pub(crate) fn new(place: usize, era: u64) -> Self {
        let kind = match place % 6 {
            0 | 3 => Kind::Key,
            1 | 4 => Kind::Numbered,
            2 => Kind::Bare,
            _ => Kind::Reader,
        };
        Self { place, kind, number: None, sequences: [0; 2], current: None, past: Vec::new(), era }
    }

    /// Whether it waits for something.
    pub(crate) fn waits(&self) -> bool {
        self.current.is_some()
    }

    pub(crate) fn turn(&mut self, random: &mut Random, calls: &[Call], ending: bool) -> Turn {
        if let Some(call) = self.current {
            return Turn::Again(call);
        }
        if ending {
            return Turn::Rest;
        }
        if !self.past.is_empty() && random.chance(70) {
            return self.misbehave(random, calls);
        }
        let number = calls.len() as u64;
        let request = |client: &Self, identity, random: &mut Random| {
            let (operation, padding) = operation(random);
            let command = Command { call: number, account: random.below(4) as u8, operation };
            Call { client: client.place, kind: CallKind::Request, identity, body: command.encode(padding) }
        };
        let call = match (self.kind, self.number) {
            (Kind::Key, _) => {
                let key = format!("{}/{}/{number}", self.era, self.place).into_bytes();
                request(self, Identity::Key(key), random)
            }
            (Kind::Numbered, None) => Call {
                client: self.place,
                kind: CallKind::Register,
                identity: Identity::None,
                body: Vec::new(),
            },
            (Kind::Numbered, Some(client)) => {
                let thread = random.index(2);
                // Numbers may be skipped; they only go up.
                self.sequences[thread] += 1 + u64::from(random.chance(50));
                let sequence = Sequence(self.sequences[thread]);
                let identity = Identity::Client { client, thread: ThreadId(thread as u32), sequence };
                request(self, identity, random)
            }
            (Kind::Bare, _) => return Turn::Aside(request(self, Identity::None, random)),
            (Kind::Reader, _) => {
                return Turn::Aside(Call {
                    client: self.place,
                    kind: CallKind::Query,
                    identity: Identity::None,
                    body: Vec::new(),
                });
            }
        };
        self.current = Some(calls.len());
        Turn::New(call)
    }

    /// Repeats what is long answered, under the same body or another one.
    fn misbehave(&self, random: &mut Random, calls: &[Call]) -> Turn {
        let recent = self.past.len().min(8);
        let old = self.past[self.past.len() - 1 - random.index(recent)];
        if random.chance(600) {
            return Turn::AsideAgain(old);
        }
        let (operation, padding) = operation(random);
        let command = Command { call: calls.len() as u64, account: 0, operation };
        Turn::Aside(Call { body: command.encode(padding), ..calls[old].clone() })
    }

    /// Takes a reply; says whether the call is over for this client.
    pub(crate) fn replied(&mut self, call: usize, calls: &[Call], reply: &Reply) -> bool {
        if self.current != Some(call) {
            return false;
        }
        match reply {
            Reply::StillRunning | Reply::Busy { .. } | Reply::Unavailable { .. } => return false,
            Reply::Registered { client } => {
                self.number = Some(*client);
                self.sequences = [0; 2];
            }
            // Its place was given away: the outcome of this call stays unknown.
            Reply::Evicted => self.number = None,
            _ => {}
        }
        if calls[call].kind == CallKind::Request {
            self.past.push(call);
        }
        self.current = None;
        true
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
