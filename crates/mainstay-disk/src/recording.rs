//! Reads a power-loss recording back, entry by entry, for the checker that builds what a power cut could leave.

use crate::record::kind;
use mainstay_journal::storage::FileEntry;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

/// Begins every recording: magic, format version 2, reserved.
pub(crate) const HEADER: [u8; 16] = *b"MSTNYREC\x02\0\0\0\0\0\0\0";

/// Longest entry, in bytes: a page of 64 MiB and its frame, or a whole checkpoint.
const ENTRY_BYTES_MAX: u32 = 1 << 30;

/// One entry. A change is *begun* by its own entry, in the order of submission, and *complete* at its [`Entry::Done`];
/// in between, and without one, it may have happened, in part or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A process opened the directory and found these files. Changes begun before and not complete are decided now:
    /// creations, renames and removals by this list, writes by the [`Entry::Found`] entries that follow.
    Life {
        /// All files but those that are not recorded.
        files: Vec<FileEntry>,
    },
    /// The content of a whole file, synced (not its name: that takes a directory sync): what was there before the
    /// first life, or a file written by another process.
    WholeFile {
        /// Its name.
        file: String,
        /// Its content.
        bytes: Vec<u8>,
    },
    /// What a write in doubt has left in the file as seen by the next life; not synced.
    Found {
        /// The file.
        file: String,
        /// Where.
        offset: u64,
        /// What is there.
        bytes: Vec<u8>,
    },
    /// A new file of zeroes, its content synced when done, its name not.
    Create {
        /// Names the change.
        ticket: u64,
        /// The file.
        file: String,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A write.
    Write {
        /// Names the change.
        ticket: u64,
        /// The file.
        file: String,
        /// Where.
        offset: u64,
        /// Past a sync when done.
        durable: bool,
        /// What.
        bytes: Vec<u8>,
    },
    /// A sync of what was complete in one file when this was begun.
    Sync {
        /// Names the change.
        ticket: u64,
        /// The file.
        file: String,
    },
    /// A rename.
    Rename {
        /// Names the change.
        ticket: u64,
        /// Old name.
        from: String,
        /// New name.
        to: String,
    },
    /// A removal.
    Remove {
        /// Names the change.
        ticket: u64,
        /// The file.
        file: String,
    },
    /// A sync of names: of every creation, rename and removal complete when this was begun.
    SyncDirectory {
        /// Names the change.
        ticket: u64,
    },
    /// A change is complete.
    Done {
        /// The change.
        ticket: u64,
        /// Whether it succeeded; if not, it may have happened in part.
        done: bool,
    },
    /// Something was acknowledged to the outside at level `Disk`: whatever a power cut after this leaves must contain it.
    Acknowledged {
        /// What, in the words of the caller.
        tag: Vec<u8>,
    },
}

impl Entry {
    /// The change that this entry begins.
    #[must_use]
    pub fn ticket(&self) -> Option<u64> {
        match self {
            Self::Create { ticket, .. }
            | Self::Write { ticket, .. }
            | Self::Sync { ticket, .. }
            | Self::Rename { ticket, .. }
            | Self::Remove { ticket, .. }
            | Self::SyncDirectory { ticket } => Some(*ticket),
            Self::Life { .. }
            | Self::WholeFile { .. }
            | Self::Found { .. }
            | Self::Done { .. }
            | Self::Acknowledged { .. } => None,
        }
    }
}

/// A recording could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be read.
    #[error("cannot read the recording {path}: {source}", path = path.display())]
    Io {
        /// The recording.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not begin as a recording of format version 2 does.
    #[error("{path} is no power-loss recording of format version 2", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// An entry is damaged and is not the last one, which alone may be cut short.
    #[error("the recording {path} is damaged at byte {offset}", path = path.display())]
    Damaged {
        /// The recording.
        path: PathBuf,
        /// Where the entry begins, in bytes.
        offset: u64,
    },
}

/// A recording being read.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    reader: BufReader<File>,
    bytes: u64,
    position: u64,
    stamp_ns: u64,
}

impl Recording {
    /// Opens the recording at `path`.
    ///
    /// # Errors
    /// [`RecordingError::Foreign`] when it is something else.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let io_error = |source| RecordingError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; HEADER.len()];
        if bytes < HEADER.len() as u64 {
            return Err(RecordingError::Foreign { path: path.to_owned() });
        }
        reader.read_exact(&mut header).map_err(io_error)?;
        if header != HEADER {
            return Err(RecordingError::Foreign { path: path.to_owned() });
        }
        Ok(Self { path: path.to_owned(), reader, bytes, position: HEADER.len() as u64, stamp_ns: 0 })
    }

    /// Where the next entry begins, in bytes; after the last one, where the valid part ends.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// When the entry that was read last was recorded, in nanoseconds of the machine's monotonic clock: recordings of several
    /// processes on one machine are put in order by it.
    #[must_use]
    pub fn stamp_ns(&self) -> u64 {
        self.stamp_ns
    }

    /// The next entry, or `None` at the end or at a last entry that was cut short.
    ///
    /// # Errors
    /// [`RecordingError::Damaged`] when an entry in the middle does not parse.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, RecordingError> {
        let io_error = |source| RecordingError::Io { path: self.path.clone(), source };
        let left = self.bytes - self.position;
        if left < 8 {
            return Ok(None);
        }
        let mut frame = [0; 8];
        self.reader.read_exact(&mut frame).map_err(io_error)?;
        let mut fields = Fields { bytes: &frame };
        let length = fields.u32().expect("a frame has eight bytes");
        let crc = fields.u32().expect("a frame has eight bytes");
        if u64::from(length) > left - 8 {
            return Ok(None);
        }
        let damaged = || RecordingError::Damaged { path: self.path.clone(), offset: self.position };
        if length > ENTRY_BYTES_MAX {
            return Err(damaged());
        }
        let mut body = vec![0; length as usize];
        self.reader.read_exact(&mut body).map_err(io_error)?;
        if crc32c::crc32c(&body) != crc {
            return Err(damaged());
        }
        let (stamp, fields) = body.split_first_chunk().ok_or_else(damaged)?;
        let entry = decode(fields).ok_or_else(damaged)?;
        self.stamp_ns = u64::from_le_bytes(*stamp);
        self.position += 8 + u64::from(length);
        Ok(Some(entry))
    }
}

/// Decodes the body of one entry; `None` for any bytes that the recorder cannot have written.
fn decode(body: &[u8]) -> Option<Entry> {
    let mut fields = Fields { bytes: body };
    let entry = match fields.u8()? {
        kind::LIFE => {
            let count = fields.u32()?;
            let files = (0..count)
                .map(|_| Some(FileEntry { name: fields.name()?, bytes: fields.u64()? }))
                .collect::<Option<_>>()?;
            Entry::Life { files }
        }
        kind::WHOLE_FILE => Entry::WholeFile { file: fields.name()?, bytes: fields.bytes()? },
        kind::FOUND => Entry::Found { file: fields.name()?, offset: fields.u64()?, bytes: fields.bytes()? },
        kind::CREATE => Entry::Create { ticket: fields.u64()?, file: fields.name()?, bytes: fields.u64()? },
        kind::WRITE => Entry::Write {
            ticket: fields.u64()?,
            file: fields.name()?,
            offset: fields.u64()?,
            durable: fields.bool()?,
            bytes: fields.bytes()?,
        },
        kind::SYNC => Entry::Sync { ticket: fields.u64()?, file: fields.name()? },
        kind::RENAME => Entry::Rename { ticket: fields.u64()?, from: fields.name()?, to: fields.name()? },
        kind::REMOVE => Entry::Remove { ticket: fields.u64()?, file: fields.name()? },
        kind::SYNC_DIRECTORY => Entry::SyncDirectory { ticket: fields.u64()? },
        kind::DONE => Entry::Done { ticket: fields.u64()?, done: fields.bool()? },
        kind::ACKNOWLEDGED => Entry::Acknowledged { tag: fields.bytes()? },
        _ => return None,
    };
    fields.bytes.is_empty().then_some(entry)
}

/// Little-endian fields, taken from the front.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Option<String> {
        let length = usize::from(self.take().map(u16::from_le_bytes)?);
        let (name, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        String::from_utf8(name.to_vec()).ok()
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_storage::FileStorage;
    use crate::record::{RecordOptions, Recorder};
    use mainstay_journal::storage::Storage;

    fn entries(path: &Path) -> Vec<Entry> {
        let mut recording = Recording::open(path).unwrap();
        std::iter::from_fn(|| recording.next_entry().unwrap()).collect()
    }

    #[test]
    fn every_change_is_recorded_in_order_and_decided_after_a_crash() {
        let directory = tempfile::tempdir().unwrap();
        let aside = tempfile::tempdir().unwrap();
        let path = aside.path().join("recording");
        let mut storage = FileStorage::new(directory.path());
        storage.create("before", 4).unwrap();
        let recorder = Recorder::start(&mut storage, &RecordOptions::new(&path)).unwrap();
        let mut recorded = storage.clone().recorded(recorder.clone());
        recorded.create("new", 16).unwrap();
        recorded.write("new", 2, b"xy").unwrap();
        recorded.sync("new").unwrap();
        recorded.rename("new", "renamed").unwrap();
        recorded.sync_directory().unwrap();
        recorder.acknowledged(b"request 1");
        recorded.remove("before").unwrap();
        assert!(recorded.remove("before").is_err());
        // A write that was begun when the process died: half of it is there.
        recorder.begin(&crate::record::Recorded::Write {
            file: "renamed",
            offset: 4,
            bytes: b"1234",
            durable: true,
        });
        storage.write("renamed", 4, b"12").unwrap();
        let file = |name: &str, bytes| FileEntry { name: name.into(), bytes };
        let first_life = vec![
            Entry::Life { files: vec![file("before", 4)] },
            Entry::WholeFile { file: "before".into(), bytes: vec![0; 4] },
            Entry::Create { ticket: 0, file: "new".into(), bytes: 16 },
            Entry::Done { ticket: 0, done: true },
            Entry::Write { ticket: 1, file: "new".into(), offset: 2, durable: false, bytes: b"xy".into() },
            Entry::Done { ticket: 1, done: true },
            Entry::Sync { ticket: 2, file: "new".into() },
            Entry::Done { ticket: 2, done: true },
            Entry::Rename { ticket: 3, from: "new".into(), to: "renamed".into() },
            Entry::Done { ticket: 3, done: true },
            Entry::SyncDirectory { ticket: 4 },
            Entry::Done { ticket: 4, done: true },
            Entry::Acknowledged { tag: b"request 1".into() },
            Entry::Remove { ticket: 5, file: "before".into() },
            Entry::Done { ticket: 5, done: true },
            Entry::Remove { ticket: 6, file: "before".into() },
            Entry::Done { ticket: 6, done: false },
            Entry::Write {
                ticket: 7,
                file: "renamed".into(),
                offset: 4,
                durable: true,
                bytes: b"1234".into(),
            },
        ];
        assert_eq!(entries(&path), first_life);

        // Kill -9 in the middle of an entry leaves half of it, which the next life removes.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &[9, 0, 0, 0, 1]].concat()).unwrap();
        assert_eq!(entries(&path), first_life);
        let recorder = Recorder::start(&mut storage, &RecordOptions::new(&path)).unwrap();
        recorder.acknowledged(b"request 2");
        let second_life = [
            Entry::Life { files: vec![file("renamed", 16)] },
            Entry::Found { file: "renamed".into(), offset: 4, bytes: b"12\0\0".into() },
            Entry::Acknowledged { tag: b"request 2".into() },
        ];
        assert_eq!(entries(&path)[first_life.len()..], second_life);
        let mut recording = Recording::open(&path).unwrap();
        let mut last = 0;
        while recording.next_entry().unwrap().is_some() {
            assert!(
                recording.stamp_ns() >= last.max(1),
                "time goes on along a recording, over lives as well"
            );
            last = recording.stamp_ns();
        }
    }

    #[test]
    fn damage_and_foreign_files_are_told_apart() {
        let aside = tempfile::tempdir().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = aside.path().join("recording");
        let mut storage = FileStorage::new(directory.path());
        let recorder = Recorder::start(&mut storage, &RecordOptions::new(&path)).unwrap();
        recorder.acknowledged(b"one");
        recorder.acknowledged(b"two");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            std::fs::write(&path, &flipped).unwrap();
            match Recording::open(&path) {
                Err(RecordingError::Foreign { .. }) => assert!(at < HEADER.len()),
                Err(error) => panic!("unexpected {error}"),
                Ok(mut recording) => {
                    // A longer length makes an entry look cut short: entries are lost then, never made up.
                    let mut read = Vec::new();
                    while let Ok(Some(entry)) = recording.next_entry() {
                        read.push(entry);
                    }
                    assert!(read.len() < 3, "the flipped entry is not read");
                }
            }
        }
    }
}
