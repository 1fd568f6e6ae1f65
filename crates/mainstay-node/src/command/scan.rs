//! Commands that look for keys.

use super::words::number;
use super::{Command, CommandError, option_of};
use bytes::Bytes;

/// What `SCAN` looks through at once at most, in keys.
const COUNT_MAX: u32 = 1024;

/// What it looks through if nothing is said, in keys.
const COUNT: u32 = 10;

/// `SCAN cursor` with options.
pub(super) fn scan(cursor: &Bytes, options: &[Bytes]) -> Result<Command, CommandError> {
    let cursor = number(cursor).map_err(|_| CommandError::Cursor)?;
    let (mut pattern, mut count, mut strings) = (None, COUNT, true);
    for option in options.chunks(2) {
        let [name, given] = option else { return Err(CommandError::Syntax) };
        match name.to_ascii_uppercase().as_slice() {
            b"MATCH" => pattern = Some(given.clone()),
            b"COUNT" => {
                count = number(given)?;
                if count == 0 {
                    return Err(CommandError::Syntax);
                }
            }
            b"TYPE" => strings = given.eq_ignore_ascii_case(b"string"),
            _ => return Err(option_of("SCAN", name)),
        }
    }
    Ok(Command::Scan { cursor, pattern, count: count.min(COUNT_MAX), strings })
}
