//! The service that the nodes of a simulated cluster run: a hash chain per node over everything that reaches it, requests that
//! wander through other nodes and are answered later, timers and outputs.
//!
//! The state changes in one function, [`State::apply`], which the process calls through [`Handler`] and the crash-free run calls
//! directly. Every answer, message and output shows the chain, so that another order or another past is seen.

use mainstay_process::handler::{Answer, Context, Handler, Outcome, RequestId, RestoreError};
use mainstay_types::id::{DeliveryIndex, NodeId, OutputId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names of the ports, in their order.
pub(crate) const PORTS: [&str; 3] = ["once", "again", "at-most"];

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    /// Unique in a run.
    pub(crate) call: u64,
    pub(crate) kind: Kind,
    /// Zeroes behind it, in bytes: of the request and of each message it leads to.
    pub(crate) padding: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Answered at once.
    Local,
    /// Folded by every node on the way in turn; answered when it is back.
    Chain { route: Vec<u32> },
    /// Folded by all of these side by side; answered when all have replied.
    Fan { to: Vec<u32> },
    /// To and fro.
    PingPong { with: u32, turns: u8 },
    /// Answered when a timer is due, which also tells another node.
    Timer { delay_us: u32, tells: u32 },
    /// Tells a port; answered when the fate of the output is known.
    Output { port: u8 },
}

/// The last delivery that an answer, an output or a read of this service shows; 0 for what another service says.
pub(crate) fn delivery_of(body: &[u8]) -> u64 {
    body.get(24..32).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// What nodes tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    call: u64,
    home: u32,
    request: u64,
    way: Way,
    value: u64,
    padding: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// Nodes still to be visited; then home.
    Chain(Vec<u32>),
    Out,
    Back,
    Turns(u8),
    /// Nobody answers this.
    Tell,
}

/// One delivery, as the handler saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its place in the node's history.
    pub(crate) delivery: u64,
    pub(crate) now: u64,
    pub(crate) draw: u64,
    pub(crate) what: What,
    /// The numbers of the outputs that it led to: given by the process, not by the handler.
    pub(crate) outputs: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    Request { index: u64, body: Vec<u8> },
    Message { from: u32, body: Vec<u8> },
    Timer { token: u64 },
    Settled { output: u64, outcome: u64 },
}

/// What a delivery asks of the world.
pub(crate) trait Asks {
    fn tell(&mut self, to: u32, body: Vec<u8>);
    fn answer(&mut self, request: u64, answer: Answer);
    fn send(&mut self, port: u8, body: Vec<u8>) -> u64;
    fn timer(&mut self, delay_us: u32, token: u64);
}

/// Takes note of the numbers that outputs get.
struct Numbered<'a> {
    asks: &'a mut dyn Asks,
    outputs: Vec<u64>,
}

impl Asks for Numbered<'_> {
    fn tell(&mut self, to: u32, body: Vec<u8>) {
        self.asks.tell(to, body);
    }

    fn answer(&mut self, request: u64, answer: Answer) {
        self.asks.answer(request, answer);
    }

    fn send(&mut self, port: u8, body: Vec<u8>) -> u64 {
        let output = self.asks.send(port, body);
        self.outputs.push(output);
        output
    }

    fn timer(&mut self, delay_us: u32, token: u64) {
        self.asks.timer(delay_us, token);
    }
}

/// A request that waits for something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    call: u64,
    left: u32,
    value: u64,
    padding: u16,
    tells: u32,
}

/// The state of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) me: u32,
    pub(crate) chain: u64,
    /// Everything that reached this node, in order. The state, and not only a witness: it survives as the chain does.
    pub(crate) history: Vec<Entry>,
    open: BTreeMap<u64, Open>,
    settling: BTreeMap<u64, u64>,
}

impl Command {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_allocvec(self).expect("a vector takes all");
        bytes.resize(bytes.len() + usize::from(self.padding), 0);
        bytes
    }

    pub(crate) fn decode(body: &[u8]) -> Self {
        postcard::take_from_bytes(body).expect("only the simulator's clients send").0
    }
}

impl Note {
    fn tell(self, to: u32, asks: &mut dyn Asks) {
        asks.tell(to, postcard::to_allocvec(&self).expect("a vector takes all"));
    }
}

impl State {
    pub(crate) fn new(me: u32) -> Self {
        Self { me, ..Self::default() }
    }

    /// Applies one delivery.
    pub(crate) fn apply(&mut self, entry: &Entry, asks: &mut dyn Asks) {
        let seen = (entry.now, entry.draw, &entry.what);
        let bytes = postcard::to_allocvec(&seen).expect("a vector takes all");
        self.chain = xxh3_64_with_seed(&bytes, self.chain);
        self.history.push(entry.clone());
        let mut numbered = Numbered { asks, outputs: Vec::new() };
        self.deliver(&entry.what, &mut numbered);
        let outputs = numbered.outputs;
        self.history.last_mut().expect("it was just pushed").outputs = outputs;
    }

    fn deliver(&mut self, what: &What, asks: &mut dyn Asks) {
        match what {
            What::Request { index, body } => self.request(*index, &Command::decode(body), asks),
            What::Message { from, body } => {
                let note = postcard::from_bytes(body).expect("only this service tells");
                self.note(*from, note, asks);
            }
            What::Timer { token } => {
                let open = self.open.remove(token).expect("a timer belongs to an open request");
                if open.tells != self.me {
                    self.note_of(*token, &open, Way::Tell).tell(open.tells, asks);
                }
                self.answer(*token, open.call, open.value, asks);
            }
            What::Settled { output, .. } => {
                if let Some(request) = self.settling.remove(output) {
                    let open = self.open.remove(&request).expect("it waits for its output");
                    self.answer(request, open.call, open.value, asks);
                }
            }
        }
    }

    fn note_of(&self, request: u64, open: &Open, way: Way) -> Note {
        let padding = vec![0; usize::from(open.padding)];
        Note { call: open.call, home: self.me, request, way, value: self.chain, padding }
    }

    fn request(&mut self, index: u64, command: &Command, asks: &mut dyn Asks) {
        let &Command { call, ref kind, padding } = command;
        let mut open = Open { call, left: 1, value: self.chain, padding, tells: self.me };
        match kind {
            Kind::Local => return self.answer(index, call, self.chain, asks),
            Kind::Chain { route } => {
                let note = self.note_of(index, &open, Way::Chain(route[1..].to_vec()));
                note.tell(route[0], asks);
            }
            Kind::Fan { to } => {
                open.left = u32::try_from(to.len()).expect("a cluster is small");
                for &to in to {
                    self.note_of(index, &open, Way::Out).tell(to, asks);
                }
            }
            Kind::PingPong { with, turns } => {
                self.note_of(index, &open, Way::Turns(*turns)).tell(*with, asks);
            }
            Kind::Timer { delay_us, tells } => {
                open.tells = *tells;
                asks.timer(*delay_us, index);
            }
            Kind::Output { port } => {
                let output = asks.send(*port, self.shown(call, self.chain));
                self.settling.insert(output, index);
            }
        }
        self.open.insert(index, open);
    }

    fn note(&mut self, from: u32, note: Note, asks: &mut dyn Asks) {
        let Note { call, home, request, way, value, padding } = note;
        let value = value ^ self.chain;
        let is_home = home == self.me;
        let on = |way, to: u32, asks: &mut dyn Asks| {
            Note { call, home, request, way, value, padding: padding.clone() }.tell(to, asks);
        };
        match way {
            Way::Chain(_) if is_home => self.back(request, value, asks),
            Way::Chain(route) => match route.split_first() {
                Some((&next, rest)) => on(Way::Chain(rest.to_vec()), next, asks),
                None => on(Way::Chain(Vec::new()), home, asks),
            },
            Way::Out => {
                if call.is_multiple_of(5) {
                    asks.send((call % 3) as u8, self.shown(call, value));
                }
                on(Way::Back, home, asks);
            }
            Way::Back => self.back(request, value, asks),
            Way::Turns(0) if is_home => self.back(request, value, asks),
            Way::Turns(turns) => on(Way::Turns(turns.saturating_sub(1)), from, asks),
            Way::Tell => {}
        }
    }

    fn back(&mut self, request: u64, value: u64, asks: &mut dyn Asks) {
        let open = self.open.get_mut(&request).expect("a reply belongs to an open request");
        open.left -= 1;
        open.value = open.value.rotate_left(1) ^ value;
        if open.left == 0 {
            let open = self.open.remove(&request).expect("it was just seen");
            self.answer(request, open.call, open.value, asks);
        }
    }

    fn answer(&self, request: u64, call: u64, value: u64, asks: &mut dyn Asks) {
        asks.answer(request, Answer { status: 200, body: self.shown(call, value) });
    }

    fn shown(&self, call: u64, value: u64) -> Vec<u8> {
        [call, value, self.chain, self.last_delivery()].map(u64::to_le_bytes).concat()
    }

    fn last_delivery(&self) -> u64 {
        self.history.last().map_or(0, |entry| entry.delivery)
    }

    /// Requests that are taken and not answered.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }
}

/// An outcome as a number: chains take it in.
fn number(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Delivered { status } => u64::from(*status),
        Outcome::Refused { status } => 1000 + u64::from(*status),
        Outcome::Abandoned => 0,
    }
}

/// The handler.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: State,
}

/// The world of a real delivery.
struct Real<'a, 'b> {
    context: &'a mut Context<'b>,
    /// The request being handled, and its answer if that comes at once.
    current: Option<(u64, Option<Answer>)>,
}

impl Asks for Real<'_, '_> {
    fn tell(&mut self, to: u32, body: Vec<u8>) {
        self.context.tell(NodeId(to), body);
    }

    fn answer(&mut self, request: u64, answer: Answer) {
        match &mut self.current {
            Some((current, at_once)) if *current == request => *at_once = Some(answer),
            _ => self.context.answer(RequestId(DeliveryIndex(request)), answer),
        }
    }

    fn send(&mut self, port: u8, body: Vec<u8>) -> u64 {
        self.context.send(PORTS[usize::from(port)], body).0
    }

    fn timer(&mut self, delay_us: u32, token: u64) {
        self.context.set_timer(Duration::from_micros(u64::from(delay_us)), token);
    }
}

impl Service {
    fn deliver(&mut self, what: What, context: &mut Context<'_>) -> Option<Answer> {
        let current = match what {
            What::Request { index, .. } => Some((index, None)),
            _ => None,
        };
        let RequestId(DeliveryIndex(delivery)) = context.request();
        let entry =
            Entry { delivery, now: context.now().0, draw: context.random_u64(), what, outputs: Vec::new() };
        let mut real = Real { context, current };
        self.state.apply(&entry, &mut real);
        real.current.and_then(|(_, answer)| answer)
    }
}

impl Handler for Service {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        let RequestId(DeliveryIndex(index)) = context.request();
        self.deliver(What::Request { index, body: body.to_vec() }, context)
    }

    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        self.deliver(What::Message { from: from.0, body: body.to_vec() }, context);
    }

    fn query(&self, _: &[u8]) -> Answer {
        let seen = [self.state.chain, self.state.history.len() as u64, 0, self.state.last_delivery()];
        let body = seen.map(u64::to_le_bytes).concat();
        Answer { status: 200, body }
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        self.deliver(What::Timer { token }, context);
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        self.deliver(What::Settled { output: output.0, outcome: number(outcome) }, context);
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&postcard::to_allocvec(&self.state).expect("a vector takes all"))
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.state =
            postcard::from_bytes(bytes).map_err(|error| RestoreError { reason: error.to_string() })?;
        Ok(())
    }
}
