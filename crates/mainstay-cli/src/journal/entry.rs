//! One record in words: what the journal's own kinds and those of a process mean.

use mainstay_journal::record::{Kind, Record};
use mainstay_process::event::{Identity, Resolution};
use mainstay_process::handler::Outcome;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::orphaned::{self, Orphaned};
use mainstay_process::record::prefix::Prefix;
use mainstay_process::record::quarantined::Quarantined;
use mainstay_process::record::rolled_back::{self, RolledBack};
use mainstay_process::record::started::Started;
use mainstay_process::record::stated;
use mainstay_process::record::{
    RecordError, intended, marked, message, quarantined, recalled, registered, request, resolved, settled,
    started, timer,
};
use serde::Serialize;

/// How many bytes of a request's body are shown in a line.
const BODY_SHOWN_BYTES_MAX: usize = 120;

/// A record, ready to be printed.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Its address.
    pub(crate) lsn: u64,
    /// The address after it.
    pub(crate) end: u64,
    /// The life of the journal that wrote it.
    pub(crate) generation: u64,
    /// Whose it is.
    pub(crate) instance: u64,
    /// Its kind by name.
    pub(crate) kind: String,
    /// Bytes of its payload.
    pub(crate) bytes: usize,
    /// The place of the delivery, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delivery: Option<u64>,
    /// The time that the handler saw, in nanoseconds since the UNIX epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_ns: Option<u64>,
    /// What it says.
    pub(crate) says: String,
}

impl Entry {
    /// Describes a record whose checksum holds.
    #[must_use]
    pub(crate) fn of(record: &Record<'_>) -> Self {
        let (prefix, says) = match describe(record) {
            Ok(described) => described,
            Err(error) => (None, format!("cannot be decoded: {error}")),
        };
        Self {
            lsn: record.lsn.0,
            end: record.end.0,
            generation: record.generation.0,
            instance: record.instance.0,
            kind: kind_name(record.kind),
            bytes: record.payload.len(),
            delivery: prefix.map(|prefix| prefix.delivery.0),
            time_ns: prefix.map(|prefix| prefix.now.0),
            says,
        }
    }

    /// One line.
    #[must_use]
    pub(crate) fn line(&self) -> String {
        let delivery = self.delivery.map(|delivery| format!("d{delivery} ")).unwrap_or_default();
        let Self { lsn, generation, kind, bytes, says, .. } = self;
        format!("{lsn:>12}  g{generation:<4} {kind:<12} {bytes:>6} B  {delivery}{says}").trim_end().to_owned()
    }
}

/// The name of a kind of record.
#[must_use]
pub(crate) fn kind_name(kind: Kind) -> String {
    let known = [
        (Kind::LIFE, "life"),
        (Kind::MARK, "mark"),
        (Kind::SEAL, "seal"),
        (Kind::PAD, "pad"),
        (started::KIND, "started"),
        (request::KIND, "request"),
        (timer::KIND, "timer"),
        (settled::KIND, "settled"),
        (registered::KIND, "registered"),
        (resolved::KIND, "resolved"),
        (intended::KIND, "intended"),
        (quarantined::KIND, "quarantined"),
        (message::KIND, "message"),
        (rolled_back::KIND, "rolled-back"),
        (recalled::KIND, "recalled"),
        (marked::KIND, "marked"),
    ];
    known
        .iter()
        .find(|(known, _)| *known == kind)
        .map_or_else(|| format!("kind-{}", kind.0), |(_, name)| (*name).to_owned())
}

fn describe(record: &Record<'_>) -> Result<(Option<Prefix>, String), RecordError> {
    if record.kind.is_own() {
        return Ok((None, String::new()));
    }
    let (kind, payload) = match record.kind {
        recalled::KIND => recalled::decode(record.payload).map(|(_, kind, payload)| (kind, payload))?,
        kind => (kind, record.payload),
    };
    if let Some((prefix, delivery)) = Delivery::decode(kind, payload)? {
        return Ok((Some(prefix), describe_delivery(&delivery)));
    }
    let says = match record.kind {
        started::KIND => {
            let Started { version, name, .. } = Started::decode(record.payload)?;
            format!("handler `{name}` version {version}")
        }
        intended::KIND => format!("output {} is about to be sent", intended::decode(record.payload)?),
        quarantined::KIND => {
            let Quarantined { lsn, attempts } = Quarantined::decode(record.payload)?;
            format!("the delivery at LSN {lsn} is given up after {attempts} attempts")
        }
        rolled_back::KIND => {
            let RolledBack { keep, lost, .. } = RolledBack::decode(record.payload)?;
            format!("deliveries above {keep} before this are void: they depended on a state that {lost} lost")
        }
        marked::KIND => format!("took part in snapshot {}", marked::decode(record.payload)?),
        orphaned::KIND => {
            let Orphaned { lost, executed, .. } = Orphaned::decode(record.payload)?;
            format!("at {executed} this node was found to depend on what {lost} lost, and goes back")
        }
        stated::KIND => format!("states a loss: {}", stated::decode(record.payload)?),
        Kind(kind) => return Err(RecordError::UnknownKind { kind }),
    };
    Ok((None, says))
}

fn describe_delivery(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Request { identity, body, .. } => {
            format!("{} {}", describe_identity(identity), shown(body))
        }
        Delivery::Timer { timer } => format!("timer {timer}"),
        Delivery::Settled { output, outcome } => match outcome {
            Outcome::Delivered { status } => format!("output {output} delivered ({status})"),
            Outcome::Refused { status } => format!("output {output} refused ({status})"),
            Outcome::Abandoned => format!("output {output} abandoned"),
        },
        Delivery::Message { from, ssn, body, .. } => format!("message {ssn} of {from} {}", shown(body)),
        Delivery::Registered { replaces: None } => "a client is given a number".to_owned(),
        Delivery::Registered { replaces: Some(idle) } => {
            format!("a client is given a number; {idle} was idle and is forgotten")
        }
        Delivery::Resolved { output, resolution } => match resolution {
            Resolution::Delivered => format!("output {output}: taken as delivered"),
            Resolution::SendAgain => format!("output {output}: to be sent again"),
            Resolution::Abandon => format!("output {output}: given up"),
        },
    }
}

fn describe_identity(identity: &Identity) -> String {
    match identity {
        Identity::None => "(no identity)".to_owned(),
        Identity::Key(key) => format!("key {}", shown(key)),
        Identity::Client { client, thread, sequence } => format!("{client} {thread} {sequence}"),
    }
}

/// Bytes as text if they are text, with control characters escaped, cut to what a line can take.
fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(BODY_SHOWN_BYTES_MAX)];
    let text: String = String::from_utf8_lossy(cut).chars().flat_map(shown_character).collect();
    let rest = bytes.len() - cut.len();
    if rest == 0 { text } else { format!("{text}… ({rest} bytes more)") }
}

fn shown_character(character: char) -> Vec<char> {
    if character.is_control() { character.escape_default().collect() } else { vec![character] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{Generation, InstanceId, Lsn};

    fn line(kind: Kind, payload: &[u8]) -> String {
        let (lsn, end) = (Lsn(64), Lsn(128));
        Entry::of(&Record { lsn, end, kind, instance: InstanceId(0), generation: Generation(3), payload })
            .line()
    }

    #[test]
    fn bytes_that_are_no_record_are_shown_as_such_and_never_raw() {
        for kind in 16..=24 {
            assert!(line(Kind(kind), &[0xFF; 3]).contains("cannot be decoded") || kind == 24, "kind {kind}");
        }
        assert!(line(Kind(99), b"x").contains("kind 99"));
        assert_eq!(shown(b"a\x1b[31m\xFF"), "a\\u{1b}[31m\u{FFFD}");
    }

    #[test]
    fn a_long_body_is_cut() {
        let text = shown(&[b'x'; BODY_SHOWN_BYTES_MAX + 5]);
        assert!(text.ends_with("… (5 bytes more)"), "{text}");
    }
}
