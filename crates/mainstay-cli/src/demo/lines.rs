//! An append-only file of JSON lines that survives the death of its writer and has one writer at a time.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// The writer of such a file.
#[derive(Debug)]
pub(crate) struct Lines {
    file: File,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens or makes the file and waits until a previous writer is gone. A last line without its end, left by a writer
    /// that was killed within a write, is cut: nothing was done on its account yet.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        file.lock()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
        }
        Ok(Self { file, buffer: Vec::new() })
    }

    /// Adds one line; it survives the death of this process when this returns, that of the machine after [`Self::sync`].
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn append<T: Serialize>(&mut self, line: &T) -> io::Result<()> {
        self.stage(line)?;
        self.write_staged()
    }

    /// Adds one line to those that [`Self::write_staged`] will write at once.
    ///
    /// # Errors
    /// When the line cannot be written as JSON.
    pub(crate) fn stage<T: Serialize>(&mut self, line: &T) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, line)?;
        self.buffer.push(b'\n');
        Ok(())
    }

    /// Writes what was staged.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn write_staged(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        written
    }

    /// Past a sync.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// All whole lines of the file; none if it does not exist.
///
/// # Errors
/// Those of the file, and a line that is not what it should be.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    text[..whole]
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| serde_json::from_slice(line).map_err(io::Error::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_cut_and_the_rest_kept() {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = directory.path().join("lines");
        Lines::open(&path).and_then(|mut lines| lines.append(&1)).expect("it was just made");
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(b"2345"))
            .expect("it was just made");
        assert_eq!(read::<u32>(&path).expect("it is there"), [1]);
        Lines::open(&path).and_then(|mut lines| lines.append(&7)).expect("it is there");
        assert_eq!(read::<u32>(&path).expect("it is there"), [1, 7]);
    }

    #[test]
    fn a_missing_file_has_no_lines() {
        let directory = tempfile::tempdir().expect("a temporary folder");
        assert!(read::<u32>(&directory.path().join("none")).expect("missing is fine").is_empty());
    }
}
