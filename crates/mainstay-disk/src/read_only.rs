//! A directory opened for reading alone: no lock is taken, and what opening a journal changes is kept in memory.
//!
//! The same opening and the same repair as [`crate::open::open`]. A directory that another process writes just now can be read
//! too: bytes that move while they are read fail their checksums, and then it is read again.

use crate::file_storage::FileStorage;
use crate::lock;
use crate::open::OpenDiskError;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::HeapPages;
use mainstay_journal::open::{OpenError, OpenReport};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::{Failure, FileEntry, Operation, Storage, StorageError};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Bytes that are kept together when some of them are changed.
const BLOCK_BYTES: usize = 4096;

/// How often a directory that moves is read at most.
const ATTEMPTS_MAX: u32 = 20;

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// A directory opened for reading.
#[derive(Debug)]
pub struct OpenedReadOnly {
    /// The journal; what is appended stays in memory.
    pub journal: Journal<HeapPages>,
    /// The files, with what opening changed in memory.
    pub storage: ReadOnlyStorage,
    /// The segment files.
    pub catalog: Catalog,
    /// What was found.
    pub report: OpenReport,
    /// The process that writes the directory just now.
    pub writer: Option<u32>,
}

/// Opens the journal in `directory` as a recovery would, and changes nothing there.
///
/// # Errors
/// [`OpenDiskError`]; damage only if the directory is at rest, or still looks damaged after many attempts.
pub fn open_read_only(directory: &Path) -> Result<OpenedReadOnly, OpenDiskError> {
    if !directory.is_dir() {
        return Err(OpenDiskError::NoDirectory { directory: directory.to_owned() });
    }
    let refused = |source| OpenDiskError::Journal { directory: directory.to_owned(), source };
    for attempt in 1.. {
        let writer = lock::writer(directory);
        let mut storage = ReadOnlyStorage::new(directory);
        let options = OpenOptions { create: false, ..OpenOptions::default() };
        match mainstay_journal::open::open(&mut storage, &options) {
            Ok(opened) => {
                let geometry = opened.report.geometry;
                let pages = HeapPages::new(geometry.page_bytes, geometry.pages);
                let journal = Journal::start(opened.resume, pages);
                let (catalog, report) = (opened.catalog, opened.report);
                return Ok(OpenedReadOnly { journal, storage, catalog, report, writer });
            }
            Err(OpenError::Damaged(_) | OpenError::SuperblockDamaged | OpenError::Storage(_))
                if writer.is_some() && attempt < ATTEMPTS_MAX =>
            {
                std::thread::sleep(PAUSE);
            }
            Err(source) => return Err(refused(source)),
        }
    }
    unreachable!("the last attempt returns")
}

/// The files of a directory, for reading: changes are kept in memory and shadow what is there.
#[derive(Debug)]
pub struct ReadOnlyStorage {
    files: FileStorage,
    /// By name; `None` for a file that was removed.
    changed: BTreeMap<String, Option<Shadow>>,
}

/// A changed file.
#[derive(Debug, Default)]
struct Shadow {
    /// The file whose bytes show through where none were written, with how many of them do.
    below: Option<(String, u64)>,
    bytes: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl ReadOnlyStorage {
    /// The files of `directory`, which exists.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { files: FileStorage::new(directory), changed: BTreeMap::new() }
    }

    fn bytes_below(&mut self, file: &str) -> Result<u64, StorageError> {
        let found = self.files.list()?.into_iter().find(|entry| entry.name == file);
        found.map(|entry| entry.bytes).ok_or_else(|| error(Operation::Read, file, Failure::NotFound))
    }

    /// The shadow of a file, made if it has none.
    fn shadow(&mut self, operation: Operation, file: &str) -> Result<&mut Shadow, StorageError> {
        if !self.changed.contains_key(file) {
            let bytes = self.bytes_below(file)?;
            let shadow = Shadow { below: Some((file.to_owned(), bytes)), bytes, blocks: BTreeMap::new() };
            self.changed.insert(file.to_owned(), Some(shadow));
        }
        let shadow = self.changed.get_mut(file).and_then(Option::as_mut);
        shadow.ok_or_else(|| error(operation, file, Failure::NotFound))
    }

    fn exists(&mut self, file: &str) -> Result<bool, StorageError> {
        match self.changed.get(file) {
            Some(shadow) => Ok(shadow.is_some()),
            None => Ok(self.files.list()?.iter().any(|entry| entry.name == file)),
        }
    }
}

impl Shadow {
    fn read(&self, files: &mut FileStorage, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        into.fill(0);
        if let Some((file, bytes)) = &self.below {
            let shown = usize::try_from(bytes.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
            if shown > 0 {
                files.read(file, offset, &mut into[..shown])?;
            }
        }
        let end = offset + into.len() as u64;
        for (&start, block) in self.blocks.range(offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64..end) {
            let (from, to) = (start.max(offset), (start + BLOCK_BYTES as u64).min(end));
            into[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write(&mut self, files: &mut FileStorage, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let end = offset + bytes.len() as u64;
        let mut start = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        while start < end {
            let next = start + BLOCK_BYTES as u64;
            if !self.blocks.contains_key(&start) {
                let mut block = vec![0; BLOCK_BYTES].into_boxed_slice();
                self.read(files, start, &mut block)?;
                self.blocks.insert(start, block);
            }
            let block = self.blocks.get_mut(&start).expect("it was just put there");
            let (from, to) = (start.max(offset), next.min(end));
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            start = next;
        }
        self.bytes = self.bytes.max(end);
        Ok(())
    }
}

impl Storage for ReadOnlyStorage {
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError> {
        let mut files = self.files.list()?;
        files.retain(|entry| !self.changed.contains_key(&entry.name));
        let shadows = self.changed.iter().filter_map(|(name, shadow)| Some((name, shadow.as_ref()?)));
        files.extend(shadows.map(|(name, shadow)| FileEntry { name: name.clone(), bytes: shadow.bytes }));
        Ok(files)
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        match self.changed.get(file) {
            None => self.files.read(file, offset, into),
            Some(None) => Err(error(Operation::Read, file, Failure::NotFound)),
            Some(Some(shadow)) if offset + into.len() as u64 > shadow.bytes => {
                Err(error(Operation::Read, file, Failure::Short))
            }
            Some(Some(shadow)) => shadow.read(&mut self.files, offset, into),
        }
    }

    fn create(&mut self, file: &str, bytes: u64) -> Result<(), StorageError> {
        if self.exists(file)? {
            return Err(error(Operation::Create, file, Failure::Exists));
        }
        self.changed.insert(file.to_owned(), Some(Shadow { bytes, ..Shadow::default() }));
        Ok(())
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let mut files = self.files.clone();
        self.shadow(Operation::Write, file)?.write(&mut files, offset, bytes)
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        if self.exists(file)? { Ok(()) } else { Err(error(Operation::Sync, file, Failure::NotFound)) }
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.shadow(Operation::Rename, from)?;
        let shadow = self.changed.insert(from.to_owned(), None).flatten();
        self.changed.insert(to.to_owned(), shadow);
        Ok(())
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        if !self.exists(file)? {
            return Err(error(Operation::Remove, file, Failure::NotFound));
        }
        self.changed.insert(file.to_owned(), None);
        Ok(())
    }

    fn sync_directory(&mut self) -> Result<(), StorageError> {
        Ok(())
    }
}

fn error(operation: Operation, file: &str, failure: Failure) -> StorageError {
    StorageError { operation, file: file.to_owned(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::open::{Options, open};
    use mainstay_journal::reader::Reader;
    use mainstay_journal::record::Kind;
    use mainstay_types::id::InstanceId;
    use std::fs;

    /// Names, times of change and bytes of everything in a directory. Not the time of a ring in use, whose pages its owner faults in.
    fn picture(directory: &Path) -> BTreeMap<String, (Option<std::time::SystemTime>, Vec<u8>)> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let changed = (name != "ring").then(|| fs::metadata(&path).unwrap().modified().unwrap());
            (name, (changed, fs::read(&path).unwrap()))
        };
        entries.map(of).collect()
    }

    #[test]
    fn changes_shadow_the_files_and_leave_them_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), [1; 10_000]).unwrap();
        fs::write(directory.path().join("b"), b"bb").unwrap();
        let before = picture(directory.path());
        let mut storage = ReadOnlyStorage::new(directory.path());
        storage.write("a", 4090, &[2; 10]).unwrap();
        storage.write("a", 9_999, &[3; 3]).unwrap();
        let mut bytes = vec![0; 10_002];
        storage.read("a", 0, &mut bytes).unwrap();
        let mut expected = vec![1; 10_000];
        expected[4090..4100].fill(2);
        expected.resize(10_002, 0);
        expected[9_999..].fill(3);
        assert_eq!(bytes, expected);
        assert_eq!(storage.read("a", 1, &mut bytes).unwrap_err().failure, Failure::Short);
        storage.create("c", 3).unwrap();
        assert_eq!(storage.create("b", 3).unwrap_err().failure, Failure::Exists);
        storage.rename("a", "b").unwrap();
        storage.read("b", 0, &mut bytes).unwrap();
        assert_eq!(bytes, expected);
        assert_eq!(storage.read("a", 0, &mut [0]).unwrap_err().failure, Failure::NotFound);
        storage.remove("c").unwrap();
        assert_eq!(storage.remove("c").unwrap_err().failure, Failure::NotFound);
        assert_eq!(storage.list().unwrap(), [FileEntry { name: "b".into(), bytes: 10_002 }]);
        assert_eq!(picture(directory.path()), before);
    }

    #[test]
    fn a_journal_in_use_is_read_as_a_crash_would_leave_it_and_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(open(directory.path(), &Options::default()).unwrap());
        let record = |number: u64| number.to_le_bytes();
        for number in 0..1000 {
            log.append(Kind(16), InstanceId(0), &[&record(number)]).unwrap();
        }
        let before = picture(directory.path());
        let mut opened = open_read_only(directory.path()).unwrap();
        assert_eq!(opened.writer, Some(std::process::id()));
        let (from, to) = (opened.report.first, opened.report.end);
        let mut reader = Reader::new(&mut opened.storage, &opened.catalog, from, to);
        for number in 0..1000 {
            let found = reader.next().unwrap().map(|record| record.payload.to_vec());
            assert_eq!(found.as_deref(), Some(&record(number)[..]), "nothing was synced, all is in the ring");
        }
        assert_eq!(reader.next().unwrap().map(|record| record.lsn), None);
        assert!(picture(directory.path()) == before, "nothing has changed");
    }
}
