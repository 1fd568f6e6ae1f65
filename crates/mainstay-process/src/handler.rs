//! The user's side of a process: a deterministic, synchronous handler over its own state.

use crate::port::PortIndex;
use mainstay_types::id::{DeliveryIndex, NodeId, OutputId, StoreId};
use mainstay_types::time::Time;
use std::io;
use std::time::Duration;

/// A service as the process sees it: bytes in, bytes out. The facade puts types around it.
///
/// Everything that could differ between a first run and a replay must come in through [`Context`]: a handler that reads a
/// clock, draws randomness, walks a hash map in its random order or looks at the world diverges, and replay says so.
pub trait Handler {
    /// Handles one request and answers it: changes to `self` are kept even if the answer is a refusal. `None`: it is answered
    /// in a later delivery, by [`Context::answer`] with this delivery's [`Context::request`]; until then repetitions wait too.
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer>;

    /// Takes a message that another node sent by [`Context::tell`]: exactly once, and in the order of sending among those from
    /// the same node.
    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        let _ = (from, body, context);
    }

    /// Answers a read. It is not logged and must not matter to later deliveries.
    fn query(&self, body: &[u8]) -> Answer;

    /// A timer set by [`Context::set_timer`] is due.
    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        let _ = (token, context);
    }

    /// The fate of an output is known: it is acknowledged, or will never be.
    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        let _ = (output, outcome, context);
    }

    /// Writes the whole state. Called in a forked child of a process with threads: it must take no lock.
    ///
    /// # Errors
    /// Those of the writer.
    fn save(&self, into: &mut dyn io::Write) -> io::Result<()>;

    /// The same for a checkpoint that replaces the log, in a child that ends behind it. A handler may look whether the state could be restored: what it
    /// runs for that may take no lock either.
    ///
    /// # Errors
    /// Those of the writer; [`io::ErrorKind::InvalidData`] says that what was written could not be restored.
    fn save_checked(&self, into: &mut dyn io::Write) -> io::Result<()> {
        self.save(into)
    }

    /// Replaces the state by one that [`Self::save`] wrote, possibly with an older version of this handler.
    ///
    /// # Errors
    /// [`RestoreError`] when the bytes are no state of this handler; then `self` is not used any further.
    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError>;

    /// The same for a state that version `version` saved, which is not this one ([`crate::config::Config::version`]). A
    /// recovery may ask for it again until a checkpoint of this version is there: it must give the same each time.
    ///
    /// # Errors
    /// [`RestoreError`] when that version's state cannot be taken over; then `self` is not used any further.
    fn migrate(&mut self, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let _ = version;
        self.restore(bytes)
    }
}

/// A handler of any type: what is built around it is compiled once, and not for every service.
pub type AnyHandler = Box<dyn Handler + Send>;

impl<H: Handler + ?Sized> Handler for Box<H> {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        (**self).handle(body, context)
    }

    fn message(&mut self, from: NodeId, body: &[u8], context: &mut Context<'_>) {
        (**self).message(from, body, context);
    }

    fn query(&self, body: &[u8]) -> Answer {
        (**self).query(body)
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        (**self).timer(token, context);
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        (**self).output_settled(output, outcome, context);
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        (**self).save(into)
    }

    fn save_checked(&self, into: &mut dyn io::Write) -> io::Result<()> {
        (**self).save_checked(into)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        (**self).restore(bytes)
    }

    fn migrate(&mut self, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        (**self).migrate(version, bytes)
    }
}

/// The saved state cannot be read by this handler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the saved state cannot be read by this handler: {reason}")]
pub struct RestoreError {
    /// What the decoder said.
    pub reason: String,
}

/// The answer to a request: an HTTP status and a body.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// HTTP status, 200 to 599.
    pub status: u16,
    /// The body, JSON unless the handler says otherwise.
    pub body: Vec<u8>,
}

/// How an output ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// The receiver acknowledged it; its answer's status, or 0 where the port has none.
    Delivered {
        /// What the receiver answered.
        status: u16,
    },
    /// The receiver refused it for good.
    Refused {
        /// What the receiver answered.
        status: u16,
    },
    /// A person decided that it shall not be sent (again).
    Abandoned,
}

/// What a handler may ask for during one delivery. Everything is recorded or derived from what is recorded, so that
/// replay gives the same.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) store: StoreId,
    pub(crate) random: Random,
    pub(crate) asked: &'a mut Asked,
    pub(crate) ports: &'a [crate::port::Port],
    pub(crate) delivery: DeliveryIndex,
    pub(crate) nodes: &'a [NodeId],
    pub(crate) message_bytes_max: usize,
}

/// A request that is answered later: the delivery that took it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct RequestId(pub DeliveryIndex);

/// What a delivery asked for, collected while the handler runs. Numbers continue those of the tables.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) next_output: OutputId,
    pub(crate) outputs: Vec<(OutputId, PortIndex, Vec<u8>)>,
    pub(crate) timers: Vec<(Time, u64)>,
    pub(crate) messages: Vec<(NodeId, Vec<u8>)>,
    pub(crate) answers: Vec<(RequestId, Answer)>,
}

impl Context<'_> {
    /// The recorded time of this delivery; never earlier than that of the delivery before.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// The identity of the directory this process lives in, for keys that must be unique in the world.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// The next random number of this delivery, from a recorded seed. Not for secrets.
    pub fn random_u64(&mut self) -> u64 {
        self.random.next()
    }

    /// Emits an output to the outside world. It leaves when this delivery is stable.
    ///
    /// # Panics
    /// Where [`Self::try_send`] has an error: a bug in the service, treated as any panic of the handler.
    pub fn send(&mut self, port: &str, body: impl Into<Vec<u8>>) -> OutputId {
        self.try_send(port, body).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same, for ports and bodies that come from outside.
    ///
    /// # Errors
    /// [`SendError`]; then nothing is emitted.
    pub fn try_send(&mut self, port: &str, body: impl Into<Vec<u8>>) -> Result<OutputId, SendError> {
        let Some(index) = self.ports.iter().position(|declared| declared.name == port) else {
            let declared = self.ports.iter().map(|declared| declared.name.clone()).collect();
            return Err(SendError::UnknownPort { port: port.to_owned(), declared });
        };
        let body = body.into();
        if self.ports[index].lines
            && let Some(offset) = body.iter().position(|&byte| byte == b'\n')
        {
            return Err(SendError::LineBreak { port: port.to_owned(), offset });
        }
        let id = self.asked.next_output;
        self.asked.next_output = id.next();
        self.asked.outputs.push((id, PortIndex(index), body));
        Ok(id)
    }

    /// The request being handled, for an answer in a later delivery.
    #[must_use]
    pub fn request(&self) -> RequestId {
        RequestId(self.delivery)
    }

    /// Answers a request for which [`Handler::handle`] gave no answer. One that is answered already, or was never taken, is
    /// left as it is.
    pub fn answer(&mut self, request: RequestId, answer: Answer) {
        self.asked.answers.push((request, answer));
    }

    /// The other nodes of the cluster, in ascending order; none for a process that stands alone.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        self.nodes
    }

    /// Sends a message to another node: its handler's [`Handler::message`] gets it exactly once, whatever crashes within what
    /// the logging policy promises. It leaves when the policy lets it.
    ///
    /// # Panics
    /// When the cluster has no such node, or the message is longer than a request's body and the links may be
    /// ([`crate::config::Limits::body_bytes_max`], `message_bytes_max`): a bug in the service, treated as any panic of the handler.
    pub fn tell(&mut self, to: NodeId, body: impl Into<Vec<u8>>) {
        assert!(
            self.nodes.contains(&to),
            "the service tells {to}, which is not one of the other nodes: {:?}",
            self.nodes
        );
        let body = body.into();
        assert!(
            body.len() <= self.message_bytes_max,
            "the service tells {to} {} bytes; a message has at most {}",
            body.len(),
            self.message_bytes_max
        );
        self.asked.messages.push((to, body));
    }

    /// Asks for [`Handler::timer`] with `token` once `delay` has passed.
    pub fn set_timer(&mut self, delay: Duration, token: u64) {
        self.asked.timers.push((self.now.after(delay), token));
    }
}

/// An output cannot be emitted. Nothing was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No port has that name.
    #[error(
        "the service sends to port `{port}`, but only {declared:?} are declared: `.output(…)` declares one, of the server and of a test's campaign"
    )]
    UnknownPort {
        /// The name given.
        port: String,
        /// The names there are.
        declared: Vec<String>,
    },
    /// The receiver would see two outputs where one was sent.
    #[error(
        "the output has a line break at byte {offset}, but each output of port `{port}` is one line; encode it, for instance as JSON"
    )]
    LineBreak {
        /// The port.
        port: String,
        /// Where in the body.
        offset: usize,
    },
}

/// A small generator with a recorded seed (SplitMix64: Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Guarantee, Port};

    #[test]
    fn a_line_break_is_refused_only_where_each_output_is_a_line() {
        let port =
            |name: &str, lines| Port { name: name.to_owned(), guarantee: Guarantee::Deduplicated, lines };
        let ports = [port("mail", false), port("audit", true)];
        let mut asked = Asked::default();
        let mut context = Context {
            now: Time(0),
            store: StoreId([0; 16]),
            random: Random(0),
            asked: &mut asked,
            ports: &ports,
            delivery: DeliveryIndex(1),
            nodes: &[],
            message_bytes_max: 0,
        };
        assert!(context.try_send("mail", "two\nlines").is_ok());
        assert!(context.try_send("audit", "one line").is_ok());
        let error = context.try_send("audit", "two\nlines").expect_err("it has a line break");
        assert_eq!(error, SendError::LineBreak { port: "audit".to_owned(), offset: 3 });
        let error = context.try_send("log", "x").expect_err("there is no such port");
        assert!(error.to_string().contains(r#"only ["mail", "audit"] are declared"#), "{error}");
        assert_eq!(asked.outputs.len(), 2);
    }
}
