//! Commands on values as strings of bytes, and on several keys as one.

use super::words::integer;
use super::{Command, CommandError, WriteReply, option_of, owned};
use bytes::Bytes;
use mainstay_region::batch::Batch;
use mainstay_region::decimal::Decimal;
use mainstay_region::operation::Operation;

/// `SETRANGE key offset value`.
pub(super) fn set_range(key: &Bytes, at: &Bytes, value: &Bytes) -> Result<Command, CommandError> {
    let at = u64::try_from(integer(at)?).map_err(|_| CommandError::Offset)?;
    let operation = Operation::SetRange { key: owned(key)?, at, value: value.as_ref().into() };
    Ok(Command::Write(operation, WriteReply::Number))
}

/// `INCRBYFLOAT key increment`.
pub(super) fn increment_by_fraction(key: &Bytes, by: &Bytes) -> Result<Command, CommandError> {
    Decimal::parse(by).ok_or(CommandError::NoFraction)?;
    let operation = Operation::AddDecimal { key: owned(key)?, by: by.as_ref().into() };
    Ok(Command::Write(operation, WriteReply::Fraction))
}

/// `RENAME from to` and `RENAMENX from to`.
pub(super) fn rename(
    from: &Bytes,
    to: &Bytes,
    replaces: bool,
    reply: WriteReply,
) -> Result<Command, CommandError> {
    let operation = Operation::Move { from: owned(from)?, to: owned(to)?, keeps: false, replaces };
    Ok(Command::Write(operation, reply))
}

/// `COPY from to [DB 0] [REPLACE]`.
pub(super) fn copy(from: &Bytes, to: &Bytes, options: &[Bytes]) -> Result<Command, CommandError> {
    let (mut replaces, mut options) = (false, options.iter());
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"REPLACE" => replaces = true,
            b"DB" if options.next().ok_or(CommandError::Syntax)?.as_ref() == b"0" => {}
            _ => return Err(option_of("COPY", option)),
        }
    }
    if from == to {
        return Err(CommandError::SameKey);
    }
    let operation = Operation::Move { from: owned(from)?, to: owned(to)?, keeps: true, replaces };
    Ok(Command::Write(operation, WriteReply::Changed))
}

/// `DELEX key [IFEQ value]`.
pub(super) fn remove_if(key: &Bytes, rest: &[Bytes]) -> Result<Command, CommandError> {
    let key = owned(key)?;
    let operation = match rest {
        [] => Operation::Remove { key },
        [option, expected] if option.eq_ignore_ascii_case(b"IFEQ") => {
            Operation::CompareAndSet { key, expected: Some(expected.as_ref().into()), value: None }
        }
        [option, _] => return Err(option_of("DELEX", option)),
        _ => return Err(CommandError::Syntax),
    };
    Ok(Command::Write(operation, WriteReply::Changed))
}

/// `MSET`: all as one.
pub(super) fn set_many(words: &[Bytes]) -> Result<Command, CommandError> {
    let batch = Batch { watched: Vec::new(), steps: puts(words)? };
    Ok(Command::Write(Operation::Batch(batch), WriteReply::All))
}

/// `MSETNX`: the same, if none of the keys is there.
pub(super) fn set_many_new(words: &[Bytes]) -> Result<Command, CommandError> {
    let steps = puts(words)?;
    let watched = steps.iter().map(|step| (step.key().to_vec(), None)).collect();
    Ok(Command::Write(Operation::Batch(Batch { watched, steps }), WriteReply::AllNew))
}

fn puts(words: &[Bytes]) -> Result<Vec<Operation>, CommandError> {
    let put = |pair: &[Bytes]| Ok(Operation::Put { key: owned(&pair[0])?, value: pair[1].as_ref().into() });
    words.chunks(2).map(put).collect()
}
