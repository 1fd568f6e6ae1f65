//! A directory in memory with the manners of a disk: what is not synced may be lost, reordered or torn at 512 bytes.

use crate::geometry::BLOCK_BYTES;
use crate::storage::{Failure, FileEntry, Operation, Storage, StorageError};
use std::collections::BTreeMap;

/// What a power cut writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
struct File {
    /// What reading gives.
    live: Vec<u8>,
    /// What the disk has for certain.
    durable: Vec<u8>,
    /// Written since, in order; may reach the disk or not, in any order, torn between sectors.
    pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Make(String, usize),
    Rename(String, String),
    Remove(String),
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Make(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
    }
}

fn overlay(bytes: &mut Vec<u8>, at: usize, with: &[u8]) {
    if bytes.len() < at + with.len() {
        bytes.resize(at + with.len(), 0);
    }
    bytes[at..at + with.len()].copy_from_slice(with);
}

/// Files in memory that remember what a power cut would leave.
///
/// A kill -9 leaves it as it is. [`MemoryStorage::crash_image`] is what a power cut leaves. Name changes reach the disk
/// in order, since file systems log them; writes in any order.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<NameChange>,
    operations: u64,
    fuse: Option<u64>,
    failing_syncs: u64,
    bytes_max: Option<u64>,
}

impl MemoryStorage {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes made so far: creations, writes, syncs, renames, removals.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Lets `operations` more changes through, then fails each with [`Failure::Crashed`].
    pub fn crash_after(&mut self, operations: u64) {
        self.fuse = Some(operations);
    }

    /// Lets the next `syncs` syncs of files fail: the disk keeps its old bytes for good while reading gives the new ones,
    /// and a later sync succeeds without writing them (Rebello et al. 2020).
    pub fn fail_syncs(&mut self, syncs: u64) {
        self.failing_syncs = syncs;
    }

    /// Lets creations fail with [`Failure::NoSpace`] that would take the sum of all files past `bytes`; `None` is no
    /// limit.
    pub fn limit_space(&mut self, bytes: Option<u64>) {
        self.bytes_max = bytes;
    }

    /// The bytes of a file as reading gives them.
    #[must_use]
    pub fn bytes(&self, file: &str) -> Option<&[u8]> {
        self.names.get(file).map(|&file| &self.files[file].live[..])
    }

    /// The bytes of a file to be damaged: on the disk too, and behind the back of every rule.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&mut self, file: &str, change: impl Fn(&mut Vec<u8>)) {
        let file = &mut self.files[self.names[file]];
        change(&mut file.live);
        change(&mut file.durable);
    }

    /// Writes past a cache: durable when this returns, and nothing else is.
    ///
    /// # Errors
    /// As [`Storage::write`]; a failing sync fails it like a sync.
    pub fn write_durable(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.write(file, offset, bytes)?;
        self.sync_of(file, Some((index(offset), bytes)))
    }

    /// Sets a file that is a shared mapping: every 4 KiB block that differs is one unsynced write. Not an operation, since
    /// no system call is made.
    pub fn store_mapping(&mut self, name: &str, bytes: &[u8]) {
        let block_bytes = BLOCK_BYTES as usize;
        let file = match self.names.get(name) {
            Some(&file) => file,
            None => {
                self.files.push(File { durable: vec![0; bytes.len()], ..File::default() });
                self.names.insert(name.to_owned(), self.files.len() - 1);
                self.durable_names.insert(name.to_owned(), self.files.len() - 1);
                self.files.len() - 1
            }
        };
        let file = &mut self.files[file];
        file.live.resize(bytes.len(), 0);
        for (place, block) in bytes.chunks(block_bytes).enumerate() {
            let at = place * block_bytes;
            if file.live[at..at + block.len()] != *block {
                overlay(&mut file.live, at, block);
                file.pending.push((at, block.to_vec()));
            }
        }
    }

    /// What a power cut leaves. `choose(n)` picks one of `0..n`: how many name changes arrived, and for every unsynced
    /// write whether nothing, everything or some sectors of it did.
    #[must_use]
    pub fn crash_image(&self, choose: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut names = self.durable_names.clone();
        let arrived = choose(self.pending_names.len() as u64 + 1);
        for change in self.pending_names.iter().take(index(arrived)) {
            apply(&mut names, change);
        }
        let files = self.files.iter().map(|file| {
            let mut bytes = file.durable.clone();
            for (at, written) in &file.pending {
                let mode = choose(3);
                for (place, sector) in written.chunks(SECTOR_BYTES).enumerate() {
                    if mode == 1 || mode == 2 && choose(2) == 1 {
                        overlay(&mut bytes, at + place * SECTOR_BYTES, sector);
                    }
                }
            }
            File { live: bytes.clone(), durable: bytes, pending: Vec::new() }
        });
        Self { files: files.collect(), names: names.clone(), durable_names: names, ..Self::default() }
    }

    fn operate(&mut self, operation: Operation, file: &str) -> Result<(), StorageError> {
        if let Some(left) = &mut self.fuse {
            if *left == 0 {
                return Err(error(operation, file, Failure::Crashed));
            }
            *left -= 1;
        }
        self.operations += 1;
        Ok(())
    }

    fn find(&self, operation: Operation, file: &str) -> Result<usize, StorageError> {
        self.names.get(file).copied().ok_or_else(|| error(operation, file, Failure::NotFound))
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.pending_names.push(change);
    }

    /// Makes all of a file durable, or only one write.
    fn sync_of(&mut self, name: &str, only: Option<(usize, &[u8])>) -> Result<(), StorageError> {
        let file = self.find(Operation::Sync, name)?;
        self.operate(Operation::Sync, name)?;
        let file = &mut self.files[file];
        if self.failing_syncs > 0 {
            self.failing_syncs -= 1;
            file.pending.clear();
            return Err(error(Operation::Sync, name, Failure::Os(5)));
        }
        match only {
            None => {
                for (at, bytes) in file.pending.drain(..) {
                    overlay(&mut file.durable, at, &bytes);
                }
            }
            Some((at, bytes)) => {
                overlay(&mut file.durable, at, bytes);
                // A cache holds the newest bytes only: what is still pending there shows them too.
                for (pending_at, pending) in &mut file.pending {
                    let from = at.max(*pending_at);
                    let to = (at + bytes.len()).min(*pending_at + pending.len());
                    if from < to {
                        pending[from - *pending_at..to - *pending_at]
                            .copy_from_slice(&bytes[from - at..to - at]);
                    }
                }
            }
        }
        Ok(())
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("memory is addressed by usize")
}

fn error(operation: Operation, file: &str, failure: Failure) -> StorageError {
    StorageError { operation, file: file.to_owned(), failure }
}

impl Storage for MemoryStorage {
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError> {
        let entry = |(name, &file): (&String, &usize)| FileEntry {
            name: name.clone(),
            bytes: self.files[file].live.len() as u64,
        };
        Ok(self.names.iter().map(entry).collect())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let found = self.find(Operation::Read, file)?;
        let at = index(offset);
        let bytes = self.files[found].live.get(at..at.saturating_add(into.len()));
        into.copy_from_slice(bytes.ok_or_else(|| error(Operation::Read, file, Failure::Short))?);
        Ok(())
    }

    fn create(&mut self, file: &str, bytes: u64) -> Result<(), StorageError> {
        if self.names.contains_key(file) {
            return Err(error(Operation::Create, file, Failure::Exists));
        }
        let used: u64 = self.names.values().map(|&file| self.files[file].live.len() as u64).sum();
        if self.bytes_max.is_some_and(|max| used + bytes > max) {
            return Err(error(Operation::Create, file, Failure::NoSpace));
        }
        self.operate(Operation::Create, file)?;
        let zeroes = vec![0; index(bytes)];
        self.files.push(File { live: zeroes.clone(), durable: zeroes, pending: Vec::new() });
        self.change_name(NameChange::Make(file.to_owned(), self.files.len() - 1));
        Ok(())
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let found = self.find(Operation::Write, file)?;
        self.operate(Operation::Write, file)?;
        let found = &mut self.files[found];
        overlay(&mut found.live, index(offset), bytes);
        found.pending.push((index(offset), bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        self.sync_of(file, None)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        self.find(Operation::Rename, from)?;
        self.operate(Operation::Rename, from)?;
        self.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        self.find(Operation::Remove, file)?;
        self.operate(Operation::Remove, file)?;
        self.change_name(NameChange::Remove(file.to_owned()));
        Ok(())
    }

    fn sync_directory(&mut self) -> Result<(), StorageError> {
        self.operate(Operation::SyncDirectory, "")?;
        for change in self.pending_names.drain(..) {
            apply(&mut self.durable_names, &change);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_synced_survives_the_worst_cut() {
        let mut storage = MemoryStorage::new();
        storage.create("a", 1024).unwrap();
        storage.sync_directory().unwrap();
        storage.write("a", 0, &[1; 512]).unwrap();
        storage.sync("a").unwrap();
        storage.write("a", 512, &[2; 512]).unwrap();
        storage.create("b", 1).unwrap();
        let worst = storage.crash_image(&mut |_| 0);
        assert_eq!(worst.bytes("a").unwrap(), [[1; 512], [0; 512]].concat());
        assert_eq!(worst.bytes("b"), None);
        let best = storage.crash_image(&mut |_| 1);
        assert_eq!(best.bytes("a").unwrap(), [[1; 512], [2; 512]].concat());
        assert_eq!(best.bytes("b").unwrap(), [0]);
    }

    #[test]
    fn a_failed_sync_is_never_made_good_by_the_next_one() {
        let mut storage = MemoryStorage::new();
        storage.create("a", 1).unwrap();
        storage.sync_directory().unwrap();
        storage.write("a", 0, &[9]).unwrap();
        storage.fail_syncs(1);
        assert!(storage.sync("a").is_err());
        storage.sync("a").unwrap();
        assert_eq!(storage.bytes("a").unwrap(), [9]);
        assert_eq!(storage.crash_image(&mut |_| 1).bytes("a").unwrap(), [0]);
    }

    #[test]
    fn a_durable_write_leaves_older_unsynced_ones_behind() {
        let mut storage = MemoryStorage::new();
        storage.create("a", 1024).unwrap();
        storage.sync_directory().unwrap();
        storage.write("a", 0, &[1; 1024]).unwrap();
        storage.write_durable("a", 512, &[2; 512]).unwrap();
        let mut choices = [0, 0, 1, 1].into_iter();
        let none = storage.crash_image(&mut |_| choices.next().unwrap());
        assert_eq!(none.bytes("a").unwrap(), [[0; 512], [2; 512]].concat());
        let all = storage.crash_image(&mut |n| n.min(2) - 1);
        assert_eq!(all.bytes("a").unwrap(), [[1; 512], [2; 512]].concat());
    }
}
