//! Clients: of both kinds, some without an identity, some that misbehave. All repeat with the same identity until they know.

use crate::random::Random;
use crate::subject::Subject;
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
    /// Which of the subject's reads.
    Query(usize),
    /// A person resolves an output in doubt.
    Resolve(OutputId, mainstay_process::event::Resolution),
}

/// How a client identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
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
    pub(crate) fn new(place: usize, kind: Kind, era: u64) -> Self {
        Self { place, kind, number: None, sequences: [0; 2], current: None, past: Vec::new(), era }
    }

    /// Whether it waits for something.
    pub(crate) fn waits(&self) -> bool {
        self.current.is_some()
    }

    pub(crate) fn turn<S: Subject>(
        &mut self,
        subject: &S,
        random: &mut Random,
        calls: &[Call],
        (misuses, ending): (bool, bool),
    ) -> Turn {
        if let Some(call) = self.current {
            return Turn::Again(call);
        }
        if ending {
            return Turn::Rest;
        }
        if !self.past.is_empty() && random.chance(70) && misuses {
            return self.misbehave(subject, random, calls);
        }
        let number = calls.len() as u64;
        let call = |kind, identity, body| Call { client: self.place, kind, identity, body };
        let call = match (self.kind, self.number) {
            (Kind::Reader, _) => {
                let queries = subject.queries();
                let query = if queries.len() > 1 { random.index(queries.len()) } else { 0 };
                return Turn::Aside(call(CallKind::Query(query), Identity::None, queries[query].clone()));
            }
            (Kind::Numbered, None) => call(CallKind::Register, Identity::None, Vec::new()),
            (kind, client) => {
                let identity = match client {
                    Some(client) if kind == Kind::Numbered => {
                        let thread = random.index(2);
                        // Numbers may be skipped; they only go up.
                        self.sequences[thread] += 1 + u64::from(random.chance(50));
                        let sequence = Sequence(self.sequences[thread]);
                        Identity::Client { client, thread: ThreadId(thread as u32), sequence }
                    }
                    _ if kind == Kind::Bare => Identity::None,
                    _ => Identity::Key(format!("{}/{}/{number}", self.era, self.place).into_bytes()),
                };
                let Some(body) = subject.request(number, random) else { return Turn::Rest };
                let call = Call { client: self.place, kind: CallKind::Request, identity, body };
                if kind == Kind::Bare {
                    return Turn::Aside(call);
                }
                call
            }
        };
        self.current = Some(calls.len());
        Turn::New(call)
    }

    /// Repeats what is long answered, under the same body or another one.
    fn misbehave<S: Subject>(&self, subject: &S, random: &mut Random, calls: &[Call]) -> Turn {
        let recent = self.past.len().min(8);
        let old = self.past[self.past.len() - 1 - random.index(recent)];
        if random.chance(600) {
            return Turn::AsideAgain(old);
        }
        match subject.another_body(calls.len() as u64, random) {
            Some(body) => Turn::Aside(Call { body, ..calls[old].clone() }),
            None => Turn::AsideAgain(old),
        }
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
