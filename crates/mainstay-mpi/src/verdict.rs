//! How a replay goes, in a file that outlives the replayed program: a crash may be what is replayed.

use crate::format::{decode_cell, decode_left, encode_cell};
use memmap2::MmapRaw;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Length of the file in bytes.
const BYTES: usize = 4096;
/// Where a program that leaves by `_exit` says so.
const LEFT_OFFSET: usize = 32;
/// Where the text begins.
const TEXT_OFFSET: usize = 64;

/// The file, open in the replayed program.
#[derive(Debug)]
pub struct Verdict(MmapRaw);

/// What a replay left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Calls that were served, the last one perhaps not to its end.
    pub calls: u64,
    /// Sends that differed and were let pass.
    pub differences: u64,
    /// The status that the program left with by `_exit`, if it did.
    pub exited: Option<i32>,
    /// `complete`, `log-ends`, `went-on`, `diverged`, `unsupported`, `until`; empty if the program came to none of these.
    pub word: String,
    /// The same in a sentence.
    pub text: String,
}

impl Verdict {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(BYTES as u64)?;
        Ok(Self(MmapRaw::map_raw(&file)?))
    }

    /// Calls that are served, the last one perhaps not to its end, and sends among them that differed.
    pub fn advance(&mut self, calls: u64, differences: u64) {
        self.write(0, &encode_cell(calls, differences));
    }

    /// Where a process that leaves at once is to put the bytes of [`crate::format::encode_left`], for as long as this is open.
    #[must_use]
    pub fn place_of_left(&self) -> *mut u8 {
        // SAFETY: within the file.
        unsafe { self.0.as_mut_ptr().add(LEFT_OFFSET) }
    }

    /// The replay came to an end.
    pub fn put(&mut self, word: &str, text: &str) {
        let mut line = format!("{word}\n{text}").into_bytes();
        line.truncate(BYTES - TEXT_OFFSET - 1);
        line.push(0);
        self.write(TEXT_OFFSET, &line);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES, "within the file");
        // SAFETY: within the mapping, as asserted; `&mut self` is the only writer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_mut_ptr().add(at), bytes.len()) };
    }
}

/// Reads what a replay left.
///
/// # Errors
/// What the system says.
pub fn read(path: &Path) -> io::Result<Left> {
    let bytes = std::fs::read(path)?;
    let (calls, differences) = decode_cell(&bytes).unwrap_or_default();
    let exited = bytes.get(LEFT_OFFSET..).and_then(decode_left);
    let text = bytes.get(TEXT_OFFSET..).unwrap_or_default();
    let text = String::from_utf8_lossy(text.split(|byte| *byte == 0).next().unwrap_or_default());
    let (word, text) = text.split_once('\n').unwrap_or_default();
    Ok(Left { calls, differences, exited, word: word.to_owned(), text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read_and_a_crash_leaves_the_number_of_calls() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("verdict");
        let mut verdict = Verdict::open(&path).expect("a file");
        verdict.advance(41, 2);
        assert_eq!(read(&path).expect("a file"), Left { calls: 41, differences: 2, ..Left::default() });
        verdict.put("diverged", &"x".repeat(10_000));
        let left = read(&path).expect("a file");
        assert_eq!((left.word.as_str(), left.calls), ("diverged", 41));
    }
}
