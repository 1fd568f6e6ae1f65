//! Commands whose words say how a value is set, and when it ends.

use super::words::integer;
use super::{Command, CommandError, WriteReply, if_absent, option_of, owned};
use bytes::Bytes;
use mainstay_region::batch::Batch;
use mainstay_region::operation::{Condition, End, EndIf, Operation};

/// `SET key value` with options.
pub(super) fn set(
    key: &Bytes,
    value: &Bytes,
    options: &[Bytes],
    unix_ms: u64,
) -> Result<Command, CommandError> {
    if let [option, expected] = options
        && option.eq_ignore_ascii_case(b"IFEQ")
    {
        let (key, expected, value) =
            (owned(key)?, Some(expected.as_ref().into()), Some(value.as_ref().into()));
        let operation = Operation::CompareAndSet { key, expected, value };
        return Ok(Command::Write(operation, WriteReply::Written));
    }
    let (mut condition, mut end, mut returns_before) = (None, None, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" if condition.is_none() => condition = Some(Condition::Absent),
            b"XX" if condition.is_none() => condition = Some(Condition::Present),
            b"GET" if !returns_before => returns_before = true,
            b"KEEPTTL" if end.is_none() => end = Some(End::Kept),
            unit @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") if end.is_none() => {
                let number = options.next().ok_or(CommandError::Syntax)?;
                end = Some(End::At(lasting("SET", unit, number, unix_ms)?));
            }
            b"NX" | b"XX" | b"GET" | b"KEEPTTL" | b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"IFEQ" => {
                return Err(CommandError::Syntax);
            }
            _ => return Err(option_of("SET", option)),
        }
    }
    let key = owned(key)?;
    let operation = match (condition, end, returns_before) {
        (None, None, false) => Operation::Put { key, value: value.as_ref().into() },
        (Some(Condition::Absent), None, false) => if_absent(key, value),
        _ => Operation::Set {
            key,
            value: value.as_ref().into(),
            condition: condition.unwrap_or(Condition::Always),
            end: end.unwrap_or(End::Never),
            returns_before,
        },
    };
    Ok(Command::Write(operation, WriteReply::Written))
}

/// `SETEX key seconds value` and `PSETEX key milliseconds value`.
pub(super) fn set_for(
    name: &str,
    words: [&Bytes; 3],
    unit: &[u8],
    unix_ms: u64,
) -> Result<Command, CommandError> {
    let [key, number, value] = words;
    let end = End::At(lasting(name, unit, number, unix_ms)?);
    let (key, value) = (owned(key)?, value.as_ref().into());
    let operation = Operation::Set { key, value, condition: Condition::Always, end, returns_before: false };
    Ok(Command::Write(operation, WriteReply::Written))
}

/// `GETSET key value`.
pub(super) fn get_set(key: &Bytes, value: &Bytes) -> Result<Command, CommandError> {
    let (key, value) = (owned(key)?, value.as_ref().into());
    let (condition, end) = (Condition::Always, End::Never);
    Ok(Command::Write(
        Operation::Set { key, value, condition, end, returns_before: true },
        WriteReply::Written,
    ))
}

/// `GETEX key` with options: the value, and when it ends from then on, as one.
pub(super) fn get_and_set_end(key: &Bytes, options: &[Bytes], unix_ms: u64) -> Result<Command, CommandError> {
    let key = owned(key)?;
    let end = match options {
        [option] if option.eq_ignore_ascii_case(b"PERSIST") => None,
        [unit, rest @ ..] => match unit.to_ascii_uppercase().as_slice() {
            unit @ (b"EX" | b"PX" | b"EXAT" | b"PXAT") => {
                let [number] = rest else { return Err(CommandError::Syntax) };
                Some(lasting("GETEX", unit, number, unix_ms)?)
            }
            b"PERSIST" => return Err(CommandError::Syntax),
            _ => return Err(option_of("GETEX", unit)),
        },
        [] => return Err(CommandError::Syntax),
    };
    let ends = match end {
        Some(ends_at_ms) if ends_at_ms <= unix_ms => Operation::Remove { key: key.clone() },
        ends_at_ms => Operation::Expire { key: key.clone(), ends_at_ms },
    };
    let steps = vec![Operation::Get { key }, ends];
    Ok(Command::Write(Operation::Batch(Batch { watched: Vec::new(), steps }), WriteReply::First))
}

/// `EXPIRE key seconds` and the like. A value that has ended already is removed, as in Redis: subscribers are told `del`.
pub(super) fn expire(
    name: &str,
    key: &Bytes,
    number: &Bytes,
    options: &[Bytes],
    unix_ms: u64,
) -> Result<Command, CommandError> {
    let unit: &[u8] = match name {
        "EXPIRE" => b"EX",
        "PEXPIRE" => b"PX",
        "EXPIREAT" => b"EXAT",
        _ => b"PXAT",
    };
    let condition = end_if(name, options)?;
    let ends_at_ms = u64::try_from(instant(unit, integer(number)?, unix_ms)?).unwrap_or(0);
    let (key, past) = (owned(key)?, ends_at_ms <= unix_ms);
    let operation = match (condition, past) {
        (Some(condition), past) => Operation::ExpireIf { key, ends_at_ms, past, condition },
        (None, true) => Operation::Remove { key },
        (None, false) => Operation::Expire { key, ends_at_ms: Some(ends_at_ms) },
    };
    Ok(Command::Write(operation, WriteReply::Changed))
}

/// `NX`, `XX`, `GT`, `LT`, and `XX` with one of the last.
fn end_if(name: &str, options: &[Bytes]) -> Result<Option<EndIf>, CommandError> {
    let (mut endless, mut ends, mut later, mut earlier) = (false, false, false, false);
    for option in options {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => endless = true,
            b"XX" => ends = true,
            b"GT" => later = true,
            b"LT" => earlier = true,
            _ => return Err(option_of(name, option)),
        }
    }
    match (endless, ends, later, earlier) {
        (true, ends, later, earlier) if ends || later || earlier => {
            Err(CommandError::Conditions { one: "NX", other: "XX, GT or LT" })
        }
        (_, _, true, true) => Err(CommandError::Conditions { one: "GT", other: "LT" }),
        (true, ..) => Ok(Some(EndIf::Endless)),
        // A value without an end is never given a later one.
        (_, _, true, _) => Ok(Some(EndIf::Later)),
        (_, true, _, true) => Ok(Some(EndIf::EndsAndEarlier)),
        (_, _, _, true) => Ok(Some(EndIf::Earlier)),
        (_, true, ..) => Ok(Some(EndIf::Ends)),
        _ => Ok(None),
    }
}

/// When a value ends that is set now: the number must not be what nobody can mean.
fn lasting(name: &str, unit: &[u8], number: &Bytes, unix_ms: u64) -> Result<u64, CommandError> {
    let invalid = || CommandError::EndTime { name: name.to_ascii_lowercase() };
    let number = integer(number)?;
    if number <= 0 {
        return Err(invalid());
    }
    let at = instant(unit, number, unix_ms).map_err(|_| invalid())?;
    u64::try_from(at).map_err(|_| invalid())
}

/// Milliseconds since 1970.
fn instant(unit: &[u8], number: i64, unix_ms: u64) -> Result<i64, CommandError> {
    let milliseconds = match unit {
        b"EX" | b"EXAT" => number.checked_mul(1000),
        _ => Some(number),
    };
    let from = if unit.ends_with(b"AT") { 0 } else { i64::try_from(unix_ms).unwrap_or(i64::MAX) };
    milliseconds.and_then(|milliseconds| milliseconds.checked_add(from)).ok_or(CommandError::NoInteger)
}
