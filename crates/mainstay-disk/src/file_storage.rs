//! [`Storage`] over a real directory, shareable between threads.

use crate::failure::failure_of;
use crate::lock::LOCK_FILE;
use crate::record::{Recorded, Recorder};
use crate::stripes;
use mainstay_journal::storage::{Failure, FileEntry, Operation, Storage, StorageError};
use mainstay_journal::striping::Striping;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes written at once when a file is filled with zeroes. As much as a huge page: file systems with large folios can keep such a piece in
/// one, and a ring just made is mapped and handed to the disk by few entries for as long as the page cache keeps it.
const FILL_BYTES: usize = 2 << 20;

/// The files of one directory, and of those that its journal is striped over: each name is in one of them. Clones share what must be
/// shared: the open handles of files written and not yet synced.
///
/// The lock file and folders are no files of the journal: [`Storage::list`] leaves them out.
#[derive(Clone, Debug)]
pub struct FileStorage {
    directory: Arc<PathBuf>,
    /// The further directories of a striped journal, in order.
    stripes: Arc<[PathBuf]>,
    /// A failed write-back is reported to handles that were open when it happened; a handle opened later may miss it.
    /// So a file written stays open until its sync, which goes through the same handle.
    unsynced: Arc<Mutex<BTreeMap<String, Arc<File>>>>,
    recorder: Option<Recorder>,
}

impl FileStorage {
    /// The files of `directory`, which exists, and of the directories that it has links to.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        let stripes = stripes::links(directory).into();
        Self { directory: Arc::new(directory.to_owned()), stripes, unsynced: Arc::default(), recorder: None }
    }

    /// The same files, with every change recorded.
    #[must_use]
    pub fn recorded(self, recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..self }
    }

    /// The first directory, then those that it has links to.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.directory()).chain(self.stripes.iter().map(PathBuf::as_path))
    }

    fn stripe_of(&self, file: &str) -> usize {
        let stripes = u16::try_from(self.stripes.len() + 1).expect("there are few");
        Striping::stripe_of(file, stripes).into()
    }

    /// The first directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The recorder around these files, if there is one.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Where `file` lies.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        match self.stripe_of(file).checked_sub(1).and_then(|stripe| self.stripes.get(stripe)) {
            Some(stripe) => stripe.join(file),
            None => self.directory.join(file),
        }
    }

    /// Tells the recorder, if there is one, that `file` was written and synced behind this object's back: by a forked
    /// checkpoint writer. Call it after the file is complete and before it is renamed into place.
    ///
    /// # Errors
    /// When the file cannot be read back.
    pub fn wrote_file(&mut self, file: &str) -> Result<(), StorageError> {
        let Some(recorder) = &self.recorder else {
            return Ok(());
        };
        let bytes = fs::read(self.path(file)).map_err(|error| fault(Operation::Read, file, &error))?;
        recorder.record_whole_file(file, &bytes);
        Ok(())
    }

    /// Performs one change between the two lines that record it.
    fn perform(
        &self,
        operation: Operation,
        file: &str,
        entry: &Recorded<'_>,
        change: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), StorageError> {
        let ticket = self.recorder.as_ref().map(|recorder| recorder.begin(entry));
        let result = change();
        if let (Some(recorder), Some(ticket)) = (&self.recorder, ticket) {
            recorder.end(ticket, result.is_ok());
        }
        result.map_err(|error| fault(operation, file, &error))
    }

    fn writable(&self, file: &str) -> io::Result<Arc<File>> {
        let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = unsynced.get(file) {
            return Ok(Arc::clone(handle));
        }
        let handle = Arc::new(OpenOptions::new().write(true).open(self.path(file))?);
        unsynced.insert(file.to_owned(), Arc::clone(&handle));
        Ok(handle)
    }

    fn take_unsynced(&self, file: &str) -> Option<Arc<File>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).remove(file)
    }
}

impl Storage for FileStorage {
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError> {
        let list = || -> io::Result<Vec<FileEntry>> {
            let mut files = Vec::new();
            for (stripe, directory) in self.directories().enumerate() {
                let entries = match stripe {
                    0 => Some(fs::read_dir(directory)?),
                    _ => stripes::read_dir_if_there(directory)?,
                };
                for entry in entries.into_iter().flatten() {
                    let entry = entry?;
                    // A file may go while the directory is read, when another thread recycles segments.
                    let metadata = match entry.metadata() {
                        Ok(metadata) => metadata,
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(error),
                    };
                    let name = entry.file_name().to_string_lossy().into_owned();
                    let is_ours = name != LOCK_FILE && self.stripe_of(&name) == stripe;
                    if metadata.is_file() && is_ours {
                        files.push(FileEntry { name, bytes: metadata.len() });
                    }
                }
            }
            Ok(files)
        };
        list().map_err(|error| fault(Operation::List, "", &error))
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let mut read = || File::open(self.path(file))?.read_exact_at(into, offset);
        read().map_err(|error| fault(Operation::Read, file, &error))
    }

    fn create(&mut self, file: &str, bytes: u64) -> Result<(), StorageError> {
        let path = self.path(file);
        self.perform(Operation::Create, file, &Recorded::Create { file, bytes }, || {
            let handle = OpenOptions::new().write(true).create_new(true).open(&path)?;
            let filled = fill_with_zeroes(&handle, bytes).and_then(|()| handle.sync_all());
            if filled.is_err() {
                // Half a file is of no use and would take the space that others still need.
                drop(handle);
                let _ = fs::remove_file(&path);
            }
            filled
        })
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let entry = Recorded::Write { file, offset, bytes, durable: false };
        self.perform(Operation::Write, file, &entry, || self.writable(file)?.write_all_at(bytes, offset))
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        self.perform(Operation::Sync, file, &Recorded::Sync { file }, || {
            let handle = match self.take_unsynced(file) {
                Some(handle) => handle,
                None => Arc::new(OpenOptions::new().write(true).open(self.path(file))?),
            };
            handle.sync_data()
        })
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.perform(Operation::Rename, from, &Recorded::Rename { from, to }, || {
            fs::rename(self.path(from), self.path(to))?;
            let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
            unsynced.remove(to);
            if let Some(handle) = unsynced.remove(from) {
                unsynced.insert(to.to_owned(), handle);
            }
            Ok(())
        })
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        self.perform(Operation::Remove, file, &Recorded::Remove { file }, || {
            fs::remove_file(self.path(file))?;
            self.take_unsynced(file);
            Ok(())
        })
    }

    fn sync_directory(&mut self) -> Result<(), StorageError> {
        self.perform(Operation::SyncDirectory, "", &Recorded::SyncDirectory, || {
            self.directories().try_for_each(|directory| File::open(directory)?.sync_all())
        })
    }
}

/// Zeroes are written, not only reserved: a block that was never written costs a file-system transaction at its first
/// sync.
pub(crate) fn fill_with_zeroes(file: &File, bytes: u64) -> io::Result<()> {
    let zeroes = vec![0; FILL_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).map_or(FILL_BYTES, |left| left.min(FILL_BYTES));
        file.write_all_at(&zeroes[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

fn fault(operation: Operation, file: &str, error: &io::Error) -> StorageError {
    let failure = if operation == Operation::Read && error.kind() == io::ErrorKind::UnexpectedEof {
        Failure::Short
    } else {
        failure_of(error)
    };
    StorageError { operation, file: file.to_owned(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> (tempfile::TempDir, FileStorage) {
        let directory = tempfile::tempdir().unwrap();
        let storage = FileStorage::new(directory.path());
        (directory, storage)
    }

    #[test]
    fn files_are_created_in_full_and_read_back() {
        let (_directory, mut storage) = storage();
        storage.create("segment", 3 << 20).unwrap();
        storage.write("segment", 4096, b"abc").unwrap();
        storage.write("segment", 3 << 20, b"end").unwrap();
        storage.sync("segment").unwrap();
        storage.sync_directory().unwrap();
        let mut bytes = [1; 5];
        storage.read("segment", 4095, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0abc\0");
        let files = storage.list().unwrap();
        assert_eq!(files, [FileEntry { name: "segment".into(), bytes: (3 << 20) + 3 }]);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(storage.path("segment")).unwrap());
        assert!(blocks * 512 >= 3 << 20, "zeroes are written, not left as holes");
    }

    #[test]
    fn errors_have_their_own_failures() {
        let (_directory, mut storage) = storage();
        let failure = |result: Result<(), StorageError>| result.unwrap_err().failure;
        assert_eq!(failure(storage.read("none", 0, &mut [0])), Failure::NotFound);
        assert_eq!(failure(storage.sync("none")), Failure::NotFound);
        assert_eq!(failure(storage.remove("none")), Failure::NotFound);
        storage.create("file", 10).unwrap();
        assert_eq!(failure(storage.create("file", 10)), Failure::Exists);
        assert_eq!(failure(storage.read("file", 8, &mut [0; 3])), Failure::Short);
    }

    #[test]
    fn rename_replaces_and_keeps_the_handle_that_must_be_synced() {
        let (_directory, mut storage) = storage();
        storage.create("old", 8).unwrap();
        storage.create("new", 8).unwrap();
        storage.write("new", 0, b"stale").unwrap();
        storage.write("old", 0, b"fresh").unwrap();
        storage.rename("old", "new").unwrap();
        storage.sync("new").unwrap();
        let mut bytes = [0; 5];
        storage.read("new", 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"fresh");
        assert_eq!(storage.list().unwrap().len(), 1);
    }
}
