//! What is told of outcomes, of what was read, and of several parts together.

use crate::command::{CommandReply, PartReply, ReadReply, Together, WriteReply};
use crate::resp::Reply;
use bytes::Bytes;
use mainstay_region::duplicates::Seen;
use mainstay_region::message::Found;
use mainstay_region::operation::{Outcome, Value};
use mainstay_types::operation::Version;

/// The reply to a command of several parts.
pub(crate) fn join(mut replies: Vec<Reply>, together: Together) -> Reply {
    if let Some(at) = replies.iter().position(|reply| matches!(reply, Reply::Error(_))) {
        return replies.swap_remove(at);
    }
    match together {
        Together::One => replies.pop().unwrap_or(Reply::Null),
        Together::First => replies.into_iter().next().unwrap_or(Reply::Null),
        Together::Array => Reply::Array(replies),
        Together::Sum => Reply::Integer(
            replies
                .iter()
                .map(|reply| match reply {
                    Reply::Integer(number) => *number,
                    _ => 0,
                })
                .sum(),
        ),
    }
}

/// The reply to a write, by a wall clock at `unix_ms`.
pub(crate) fn written(
    seen: Seen,
    duplicate: bool,
    as_what: &WriteReply,
    versions: bool,
    unix_ms: u64,
) -> Reply {
    let reply = told(seen.outcome, as_what, unix_ms);
    if !versions {
        return reply;
    }
    let mut items = vec![reply];
    items.extend(version(seen.version));
    items.push(Reply::Integer(i64::from(duplicate)));
    Reply::Array(items)
}

fn told(outcome: Outcome, as_what: &WriteReply, unix_ms: u64) -> Reply {
    match (outcome, as_what) {
        (Outcome::Batch(outcomes), WriteReply::Transaction(commands)) => {
            let mut outcomes = outcomes.into_iter();
            Reply::Array(commands.iter().map(|command| of_command(&mut outcomes, command, unix_ms)).collect())
        }
        // A watched key has changed.
        (Outcome::Differs, WriteReply::Transaction(_)) => Reply::NullArray,
        (Outcome::Batch(outcomes), WriteReply::First) => {
            outcomes.into_iter().next().map_or(Reply::Null, |first| told(first, as_what, unix_ms))
        }
        (Outcome::Batch(_), WriteReply::AllNew) => Reply::Integer(1),
        (Outcome::Batch(_), _) => Reply::Status("OK"),
        (Outcome::Differs, WriteReply::Renamed | WriteReply::RenamedToNew) => {
            Reply::Error("ERR no such key".to_owned())
        }
        (Outcome::Changed(_), WriteReply::Renamed) => Reply::Status("OK"),
        (Outcome::NoCounter, WriteReply::Fraction) => Reply::Error(
            "ERR value is not a valid float: it, and the sum, have at most 20 digits before the point and 17 behind it"
                .to_owned(),
        ),
        (Outcome::Written, WriteReply::Changed) => Reply::Integer(1),
        (Outcome::Written, _) => Reply::Status("OK"),
        (Outcome::Differs, WriteReply::Changed | WriteReply::AllNew) => Reply::Integer(0),
        (Outcome::Differs, _) => Reply::Null,
        (Outcome::Removed { was_there: is } | Outcome::Changed(is), _) => Reply::Integer(i64::from(is)),
        (Outcome::Counted(sum), _) => Reply::Integer(sum),
        (Outcome::NoCounter, _) => Reply::Error("ERR value is not an integer or out of range".to_owned()),
        (Outcome::Value(value), _) => {
            value.map_or(Reply::Null, |value| Reply::Bulk(Bytes::from_owner(value.bytes)))
        }
        (Outcome::Length(bytes), _) => Reply::Integer(i64::try_from(bytes).expect("a value is in memory")),
        (Outcome::TooLong(too_long), _) => Reply::Error(format!("ERR {too_long}; nothing was done")),
    }
}

fn of_command(outcomes: &mut impl Iterator<Item = Outcome>, command: &CommandReply, unix_ms: u64) -> Reply {
    // What the region answers has as many outcomes as it was given operations.
    let outcomes = command.parts.iter().zip(outcomes);
    let parts = outcomes.map(|(part, outcome)| match (part, outcome) {
        (PartReply::Write(as_what), outcome) => told(outcome, as_what, unix_ms),
        (PartReply::Read(as_what), Outcome::Value(value)) => read(value, *as_what, unix_ms),
        (PartReply::Read(_), _) => Reply::Error("ERR the region answered something else".to_owned()),
    });
    join(parts.collect(), command.together)
}

/// The reply to a read.
pub(crate) fn found(mut found: Found, as_what: ReadReply, versions: bool, unix_ms: u64) -> Reply {
    let stored = found.entries.pop().map(|(_, stored)| stored);
    let at = stored.as_ref().map_or(found.at, |stored| stored.version);
    let value = stored.map(|stored| Value { bytes: stored.value, ends_at_ms: stored.ends_at_ms });
    let reply = read(value, as_what, unix_ms);
    if !versions {
        return reply;
    }
    let mut items = vec![reply];
    items.extend(version(at));
    Reply::Array(items)
}

fn read(value: Option<Value>, as_what: ReadReply, unix_ms: u64) -> Reply {
    match (as_what, value) {
        (ReadReply::Watch, _) => Reply::Status("OK"),
        (ReadReply::Value, Some(value)) => Reply::Bulk(Bytes::from_owner(value.bytes)),
        (ReadReply::Value, None) => Reply::Null,
        (ReadReply::Part(first, last), value) => {
            let bytes = value.map_or_else(Bytes::new, |value| Bytes::from_owner(value.bytes));
            Reply::Bulk(bytes.slice(part(bytes.len(), first, last)))
        }
        (ReadReply::IsThere, value) => Reply::Integer(i64::from(value.is_some())),
        (ReadReply::Length, value) => {
            let bytes = value.map_or(0, |value| value.bytes.len());
            Reply::Integer(i64::try_from(bytes).expect("a value is in memory"))
        }
        (ReadReply::Type, value) => Reply::Status(if value.is_some() { "string" } else { "none" }),
        (ReadReply::Lasts { .. }, None) => Reply::Integer(-2),
        (ReadReply::Lasts { .. }, Some(Value { ends_at_ms: None, .. })) => Reply::Integer(-1),
        (ReadReply::Lasts { milliseconds, absolute }, Some(Value { ends_at_ms: Some(end), .. })) => {
            let from = if absolute { 0 } else { unix_ms };
            let left = end.saturating_sub(from);
            // Half a second and more is a second, as in Redis.
            let left = if milliseconds { left } else { left.saturating_add(500) / 1000 };
            Reply::Integer(i64::try_from(left).unwrap_or(i64::MAX))
        }
    }
}

/// The bytes from the first to the last of so many, as Redis counts them: below 0 from the end; as far as they are there.
fn part(bytes: usize, first: i64, last: i64) -> std::ops::Range<usize> {
    let all = i64::try_from(bytes).expect("a value is in memory");
    let place = |at: i64| if at < 0 { (all + at.max(-all)).max(0) } else { at };
    if first < 0 && last < 0 && first > last {
        return 0..0;
    }
    let (first, end) = (place(first), place(last).min(all - 1) + 1);
    if first >= end {
        return 0..0;
    }
    let place = |at: i64| usize::try_from(at).expect("it is between 0 and the length");
    place(first)..place(end)
}

fn version(version: Version) -> [Reply; 2] {
    let number = |number: u64| Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    [number(version.view.0), number(version.counter)]
}
