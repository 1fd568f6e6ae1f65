//! What `replay --json` prints: one of these a line, to be read back by whoever compares two replays.

use mainstay_process::event::{Identity, Resolution};
use mainstay_process::handler::Outcome;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::retrace::{Beginning, Executed, Recorded};
use mainstay_process::summary::Summary;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The format of the lines; raised when one of them changes its meaning.
pub const FORMAT: u32 = 1;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// The first.
    Begin(Begin),
    /// A delivery.
    Delivery(Box<Replayed>),
    /// The last.
    End(End),
}

/// Where a replay begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// [`FORMAT`].
    pub format: u32,
    /// The name of the service.
    pub service: String,
    /// The version that replays.
    pub version: u32,
    /// The identity of the directory.
    pub store: String,
    /// The LSN of the checkpoint it begins with; none: it begins with the first delivery.
    pub checkpoint: Option<u64>,
    /// The version that saved the checkpoint.
    pub checkpoint_version: Option<u32>,
    /// Where the records end, as an LSN.
    pub end: u64,
}

/// A delivery: what is recorded of it, and what it does now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Its record.
    pub lsn: u64,
    /// Its place in history; the first is 1.
    pub delivery: u64,
    /// What the handler saw as now, in nanoseconds since the UNIX epoch.
    pub time_ns: u64,
    /// The version that made it, if that is known.
    pub version: Option<u32>,
    /// What was delivered.
    pub delivered: Delivered,
    /// What it does now.
    pub did: Did,
    /// What it did then, if that is recorded: the journal keeps a digest and counts, not the bytes.
    pub recorded: Option<Sum>,
    /// Whether the two are the same.
    pub as_recorded: Option<bool>,
    /// What reached the instance that is followed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub touches: Vec<Touch>,
}

/// Something that reached the instance that is followed: with the delivery, or because of it from another instance of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touch {
    /// Type and key.
    pub instance: String,
    /// What it took.
    pub took: String,
    /// What it told instances of its node because of that.
    pub told: Vec<String>,
    /// Its state behind it; none: it has ended.
    pub state: Option<serde_json::Value>,
}

/// What was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Delivered {
    /// A request.
    Request {
        /// By what a repetition is recognised.
        identity: Option<String>,
        /// Its body.
        body: Text,
    },
    /// A timer.
    Timer {
        /// Its number.
        timer: u64,
    },
    /// The fate of an output.
    Settled {
        /// Which.
        output: u64,
        /// How it ended.
        outcome: String,
    },
    /// A client was given a number.
    Registered,
    /// A person decided about an output.
    Resolved {
        /// Which.
        output: u64,
        /// How.
        resolution: String,
    },
    /// A message of another node.
    Message {
        /// Which node.
        from: u32,
        /// Its number on that link.
        number: u64,
        /// Its body.
        body: Text,
    },
}

/// What a delivery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Did {
    /// The answer to a request.
    pub answer: Option<Answer>,
    /// Outputs, in order.
    pub outputs: Vec<Output>,
    /// Timers, in order.
    pub timers: Vec<Timer>,
    /// Messages to other nodes, in order.
    pub messages: Vec<Message>,
    /// Answers to requests of earlier deliveries.
    pub late_answers: Vec<LateAnswer>,
    /// It was not executed: it had failed too often, and a recorded verdict stands in its place.
    pub given_up: bool,
    /// The handler panicked, and said this.
    pub panic: Option<String>,
    /// Sums it up.
    pub sum: Sum,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Its body.
    pub body: Text,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Its number.
    pub id: u64,
    /// Where it goes.
    pub port: String,
    /// Its body.
    pub body: Text,
}

/// A timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// When it is due, in nanoseconds since the UNIX epoch.
    pub due_ns: u64,
    /// What it is for.
    pub token: u64,
}

/// A message to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Which node.
    pub to: u32,
    /// Its body.
    pub body: Text,
}

/// An answer to a request of an earlier delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateAnswer {
    /// The delivery that took the request.
    pub request: u64,
    /// The answer.
    pub answer: Answer,
}

/// The effects of a delivery summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// HTTP status of the answer; 0 without one.
    pub status: u16,
    /// Bytes of the answer's body.
    pub answer_bytes: u32,
    /// Outputs.
    pub outputs: u16,
    /// Timers.
    pub timers: u16,
    /// A digest of all of it, in hexadecimal digits.
    pub digest: String,
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Deliveries replayed.
    pub deliveries: u64,
    /// Of these, what did something else than is recorded.
    pub differ: u64,
    /// The LSN behind the last of them.
    pub lsn: u64,
    /// Whether it was stopped before the end of the records.
    pub stopped: bool,
    /// Deliveries not replayed, because only other nodes remember what comes before them.
    pub waiting_for_nodes: u64,
    /// The process that writes the directory just now.
    pub writer: Option<u32>,
    /// Deliveries that reached the instance that is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<u64>,
}

/// Bytes: text as it is, anything else in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// UTF-8.
    Plain(String),
    /// Anything else.
    Bytes {
        /// Two digits a byte.
        hex: String,
    },
}

impl Begin {
    pub(super) fn of(beginning: &Beginning, service: &str, version: u32) -> Self {
        Self {
            format: FORMAT,
            service: service.to_owned(),
            version,
            store: beginning.store.to_string(),
            checkpoint: beginning.checkpoint.map(|(lsn, _)| lsn.0),
            checkpoint_version: beginning.checkpoint.map(|(_, version)| version),
            end: beginning.end.0,
        }
    }
}

impl Replayed {
    /// What is known of a delivery before it is executed.
    pub(super) fn before(recorded: &Recorded<'_>) -> Self {
        Self {
            lsn: recorded.lsn.0,
            delivery: recorded.prefix.delivery.0,
            time_ns: recorded.prefix.now.0,
            version: recorded.version,
            delivered: Delivered::of(recorded.delivery),
            did: Did::default(),
            recorded: recorded.summary.as_ref().map(Sum::of),
            as_recorded: None,
            touches: Vec::new(),
        }
    }

    pub(super) fn after(recorded: &Recorded<'_>, executed: &Executed<'_>, touches: Vec<Touch>) -> Self {
        Self {
            touches,
            did: Did::of(executed),
            as_recorded: executed.is_as_recorded(recorded),
            ..Self::before(recorded)
        }
    }
}

impl Delivered {
    fn of(delivery: &Delivery) -> Self {
        match delivery {
            Delivery::Request { identity, body, .. } => {
                Self::Request { identity: name(identity), body: Text::of(body) }
            }
            Delivery::Timer { timer } => Self::Timer { timer: *timer },
            Delivery::Settled { output, outcome } => {
                let outcome = match outcome {
                    Outcome::Delivered { status } => format!("delivered ({status})"),
                    Outcome::Refused { status } => format!("refused ({status})"),
                    Outcome::Abandoned => "abandoned".to_owned(),
                };
                Self::Settled { output: output.0, outcome }
            }
            Delivery::Registered { .. } => Self::Registered,
            Delivery::Resolved { output, resolution } => {
                let resolution = match resolution {
                    Resolution::Delivered => "taken as delivered",
                    Resolution::SendAgain => "to be sent again",
                    Resolution::Abandon => "given up",
                };
                Self::Resolved { output: output.0, resolution: resolution.to_owned() }
            }
            Delivery::Message { from, ssn, body, .. } => {
                Self::Message { from: from.0, number: ssn.0, body: Text::of(body) }
            }
        }
    }
}

fn name(identity: &Identity) -> Option<String> {
    match identity {
        Identity::None => None,
        Identity::Key(key) => Some(format!("key {}", Text::of(key))),
        Identity::Client { client, thread, sequence } => Some(format!("{client} {thread} {sequence}")),
    }
}

impl Did {
    fn of(executed: &Executed<'_>) -> Self {
        let output = |&(id, port, body): &(mainstay_types::id::OutputId, &str, &[u8])| Output {
            id: id.0,
            port: port.to_owned(),
            body: Text::of(body),
        };
        Self {
            answer: executed.answer.map(Answer::of),
            outputs: executed.outputs.iter().map(output).collect(),
            timers: executed.timers.iter().map(|&(due, token)| Timer { due_ns: due.0, token }).collect(),
            messages: executed
                .messages
                .iter()
                .map(|&(to, body)| Message { to: to.0, body: Text::of(body) })
                .collect(),
            late_answers: executed
                .late_answers
                .iter()
                .map(|&(request, answer)| LateAnswer { request: request.0.0, answer: Answer::of(answer) })
                .collect(),
            given_up: executed.given_up,
            panic: executed.panic.map(str::to_owned),
            sum: Sum::of(&executed.summary),
        }
    }
}

impl Answer {
    fn of(answer: &mainstay_process::handler::Answer) -> Self {
        Self { status: answer.status, body: Text::of(&answer.body) }
    }
}

impl Sum {
    fn of(summary: &Summary) -> Self {
        let Summary { digest, status, outputs, timers, answer_bytes } = *summary;
        Self { status, answer_bytes, outputs, timers, digest: format!("{digest:016x}") }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, answer_bytes, outputs, timers, digest } = self;
        write!(
            f,
            "status {status}, answer of {answer_bytes} bytes, {outputs} outputs, {timers} timers, digest {digest}"
        )
    }
}

impl Text {
    pub(super) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Plain(text.to_owned()),
            Err(_) => Self::Bytes { hex: bytes.iter().map(|byte| format!("{byte:02x}")).collect() },
        }
    }
}

/// In one line: control characters are escaped.
impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(text) => text.chars().try_for_each(|character| {
                if character.is_control() {
                    write!(f, "{}", character.escape_default())
                } else {
                    write!(f, "{character}")
                }
            }),
            Self::Bytes { hex } => write!(f, "0x{hex}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_read_back_and_never_reach_a_terminal_raw() {
        for bytes in [&b"{\"a\": 1}"[..], b"\x1b[31m", b"\xff\x00"] {
            let text = Text::of(bytes);
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
            assert!(!text.to_string().contains(char::is_control), "{text}");
        }
        assert_eq!(Text::of(b"\xff\x00").to_string(), "0xff00");
    }
}
