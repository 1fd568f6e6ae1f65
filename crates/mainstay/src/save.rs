//! Writing states for a checkpoint, and reading them back before it counts.

use mainstay_process::handler::RestoreError;
use serde::Serialize;
use std::io::{self, Write};

/// Bytes of state that are collected before they are hashed and written.
const BUFFER_BYTES: usize = 64 << 10;

/// What is written in so few bytes is read back before its checkpoint counts: where its types cannot be read from what they write, the log
/// stays. States are small when their types are new; for larger ones the forked child would need the room of another state.
pub(crate) const READ_BACK_BYTES_MAX: usize = 1 << 20;

/// Hands `write` a buffer in front of `into`, because an encoder writes a number at a time, and every write further down is hashed.
///
/// # Errors
/// Those of `write` and `into`.
pub(crate) fn buffered(
    into: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffered = io::BufWriter::with_capacity(BUFFER_BYTES, into);
    write(&mut buffered)?;
    buffered.flush()
}

/// Writes `value` as a checkpoint has it.
///
/// # Errors
/// Those of `into`; [`io::ErrorKind::InvalidData`] for what has no such form.
pub(crate) fn write(value: &impl Serialize, into: &mut dyn Write) -> io::Result<()> {
    postcard::to_io(value, into).map(drop).map_err(|error| match error {
        // Its only word for what the writer refused.
        postcard::Error::SerializeBufferFull => io::Error::other(error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

/// Has `save` write into `into`, then `read_back` read what it wrote, unless that is more than [`READ_BACK_BYTES_MAX`].
///
/// # Errors
/// Those of `save`; [`io::ErrorKind::InvalidData`] for what cannot be read back.
pub(crate) fn checked(
    into: &mut dyn Write,
    save: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    read_back: impl FnOnce(&[u8]) -> Result<(), RestoreError>,
) -> io::Result<()> {
    let mut written = Written { into, bytes: Some(Vec::new()) };
    save(&mut written)?;
    match written.bytes {
        Some(bytes) => {
            read_back(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.reason))
        }
        None => Ok(()),
    }
}

/// Passes on what is written, and remembers it as long as it is short.
struct Written<'a> {
    into: &'a mut dyn Write,
    bytes: Option<Vec<u8>>,
}

impl Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.into.write(bytes)?;
        self.bytes = self.bytes.take().filter(|before| before.len() + written <= READ_BACK_BYTES_MAX);
        if let Some(before) = &mut self.bytes {
            before.extend_from_slice(&bytes[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}
