//! A disk with the manners of a real one: what is not synced may be lost, reordered or torn at 512 bytes, a failed sync
//! forgets what it should have written, and every operation is a place where the machine may stop.
//!
//! A file has two contents: *live*, what a reader sees (page cache), and *durable*, what a power cut cannot take. A sector
//! that differs remembers what was written in between, since write-back may have caught any of these. Names likewise.

use crate::random::Random;
use mainstay_journal::format::RING_FILE;
use mainstay_journal::storage::{Failure, FileEntry, Operation, Storage, StorageError};
use std::collections::BTreeMap;
use std::rc::Rc;

const SECTOR_BYTES: u64 = 512;

type Inode = usize;

/// One directory on one disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    inodes: Vec<File>,
    names: BTreeMap<String, Inode>,
    durable_names: BTreeMap<String, Inode>,
    /// Changes of names since the last directory sync, in order.
    renamings: Vec<Renaming>,
    random: Random,
    /// Operations until the machine stops.
    fuse: Option<u64>,
    crashed: bool,
    /// No file may grow.
    pub full: bool,
    /// How often a sync fails.
    pub sync_failures_per_mille: u64,
    /// What happened.
    pub counts: Counts,
    /// How often the ring's file was synced: older contents of it are gone for good then.
    pub syncs_of_ring: u64,
}

/// What the disk did, for reach counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Syncs that failed.
    pub failed_syncs: u64,
    /// Operations refused for want of space.
    pub refused_full: u64,
    /// Writes that a crash cut within.
    pub torn_writes: u64,
    /// Sectors that a power cut took back.
    pub sectors_lost: u64,
    /// Names that a power cut took back.
    pub names_lost: u64,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// Shared between copies of a disk until one of them writes: images of large files are made by the hundred.
    live: Rc<Vec<u8>>,
    durable: Rc<Vec<u8>>,
    /// Sectors that were written since their last sync, and what they held in between (the live version excepted).
    dirty: BTreeMap<u64, Vec<Vec<u8>>>,
}

/// What becomes of what was not synced when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// All of it is gone.
    Lost,
    /// All of it is there.
    Kept,
    /// Each sector, and each change of a name, for itself.
    Mixed,
}

#[derive(Clone, Debug)]
enum Renaming {
    Set { name: String, inode: Inode },
    Unset { name: String },
    Rename { from: String, to: String, inode: Inode },
}

/// What a sync that was begun will make durable.
#[derive(Clone, Debug)]
pub(crate) struct SyncBegun {
    inode: Inode,
    bytes: usize,
    sectors: Vec<(u64, Vec<u8>)>,
}

impl File {
    fn sector(bytes: &[u8], sector: u64) -> Vec<u8> {
        let from = usize::try_from(sector * SECTOR_BYTES).expect("files fit in memory").min(bytes.len());
        bytes[from..bytes.len().min(from + SECTOR_BYTES as usize)].to_vec()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let offset_live = usize::try_from(offset).expect("files fit in memory");
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
            let before = Self::sector(&self.live, sector);
            match self.dirty.entry(sector) {
                std::collections::btree_map::Entry::Vacant(vacant) => {
                    vacant.insert(Vec::new());
                }
                std::collections::btree_map::Entry::Occupied(mut versions) => versions.get_mut().push(before),
            }
        }
        let live = Rc::make_mut(&mut self.live);
        if live.len() < offset_live + bytes.len() {
            live.resize(offset_live + bytes.len(), 0);
        }
        live[offset_live..offset_live + bytes.len()].copy_from_slice(bytes);
    }

    /// Past a sync by themselves: also takes along what else these sectors held.
    fn write_through(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.write(offset, bytes);
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
            self.dirty.remove(&sector);
            let content = Self::sector(&self.live, sector);
            put_sector(Rc::make_mut(&mut self.durable), sector, &content);
        }
    }
}

fn put_sector(bytes: &mut Vec<u8>, sector: u64, content: &[u8]) {
    let from = usize::try_from(sector * SECTOR_BYTES).expect("files fit in memory");
    if bytes.len() < from + content.len() {
        bytes.resize(from + content.len(), 0);
    }
    bytes[from..from + content.len()].copy_from_slice(content);
}

impl Disk {
    /// An empty directory, durably.
    #[must_use]
    pub(crate) fn new(random: Random) -> Self {
        Self {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renamings: Vec::new(),
            random,
            fuse: None,
            crashed: false,
            full: false,
            sync_failures_per_mille: 0,
            counts: Counts::default(),
            syncs_of_ring: 0,
        }
    }

    /// Stops the machine after `points` more operations; never with `None`.
    pub(crate) fn set_fuse(&mut self, points: Option<u64>) {
        self.fuse = points;
        self.crashed = false;
    }

    /// Puts the fuse away for as long as the dead are laid out; what is left of it comes back with [`Self::set_fuse`].
    pub(crate) fn take_fuse(&mut self) -> Option<u64> {
        self.crashed = false;
        self.fuse.take().filter(|left| *left > 0)
    }

    /// Draws from here on from another stream: for copies that are to meet different fates.
    pub(crate) fn reseed(&mut self, random: Random) {
        self.random = random;
    }

    /// One place where the machine may stop. Returns whether it has.
    pub(crate) fn passes_point(&mut self) -> bool {
        if let Some(fuse) = &mut self.fuse {
            *fuse = fuse.saturating_sub(1);
            self.crashed |= *fuse == 0;
        }
        self.crashed
    }

    /// Whether the machine has stopped.
    #[must_use]
    pub(crate) fn crashed(&self) -> bool {
        self.crashed
    }

    /// Writes without waiting for anything, as a page cache does.
    pub(crate) fn write_live(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        if let Some(&inode) = self.names.get(file) {
            self.inodes[inode].write(offset, bytes);
        }
    }

    /// Writes past a sync.
    pub(crate) fn write_durable(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        if let Some(&inode) = self.names.get(file) {
            self.inodes[inode].write_through(offset, bytes);
        }
    }

    /// What a durable write leaves whose sync fails: the cache has it, the disk has some of it, and the cache believes
    /// that the disk has all.
    pub(crate) fn write_and_fail(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        if let Some(&inode) = self.names.get(file) {
            self.inodes[inode].write(offset, bytes);
            self.forget_dirty(inode);
        }
    }

    /// What a write leaves when the machine stops while it is made.
    pub(crate) fn write_torn(&mut self, file: &str, offset: u64, bytes: &[u8]) {
        let sectors = bytes.len() as u64 / SECTOR_BYTES;
        let kept = self.random.below(sectors + 2).min(sectors);
        let kept = usize::try_from(kept * SECTOR_BYTES).expect("a write fits in memory");
        self.counts.torn_writes += u64::from(kept > 0 && kept < bytes.len());
        self.write_live(file, offset, &bytes[..kept]);
    }

    /// Begins a sync: it will cover what is written now.
    #[must_use]
    pub(crate) fn begin_sync(&self, file: &str) -> Option<SyncBegun> {
        let &inode = self.names.get(file)?;
        let file = &self.inodes[inode];
        let sectors = file.dirty.keys().map(|&sector| (sector, File::sector(&file.live, sector))).collect();
        Some(SyncBegun { inode, bytes: file.live.len(), sectors })
    }

    /// Ends a sync: what it covers is durable.
    pub(crate) fn end_sync(&mut self, sync: &SyncBegun) {
        let file = &mut self.inodes[sync.inode];
        for (sector, content) in &sync.sectors {
            put_sector(Rc::make_mut(&mut file.durable), *sector, content);
            if File::sector(&file.live, *sector) == *content {
                file.dirty.remove(sector);
            }
        }
        if file.durable.len() < sync.bytes {
            Rc::make_mut(&mut file.durable).resize(sync.bytes, 0);
        }
    }

    /// Ends a sync that failed (Rebello et al. 2020): the pages are clean now, and only some of them were written.
    pub(crate) fn fail_sync(&mut self, sync: &SyncBegun) {
        self.forget_dirty(sync.inode);
    }

    fn forget_dirty(&mut self, inode: Inode) {
        self.counts.failed_syncs += 1;
        let file = &mut self.inodes[inode];
        for (sector, _) in std::mem::take(&mut file.dirty) {
            if self.random.chance(300) {
                let content = File::sector(&file.live, sector);
                put_sector(Rc::make_mut(&mut file.durable), sector, &content);
            }
        }
    }

    /// Whether these bytes, and the name of their file, would survive a power cut now.
    #[must_use]
    pub(crate) fn holds_durably(&self, file: &str, offset: u64, bytes: &[u8]) -> bool {
        let offset = usize::try_from(offset).expect("files fit in memory");
        let Some(&inode) = self.durable_names.get(file) else {
            return false;
        };
        self.names.get(file) == Some(&inode)
            && self.inodes[inode].durable.get(offset..offset + bytes.len()) == Some(bytes)
    }

    /// The live bytes of a file.
    #[must_use]
    pub(crate) fn content(&self, file: &str) -> Option<&[u8]> {
        self.names.get(file).map(|&inode| self.inodes[inode].live.as_slice())
    }

    /// Gives a file this content in both worlds: a ring found again after a crash, a flipped bit of the medium.
    pub(crate) fn replace(&mut self, file: &str, bytes: Vec<u8>) {
        if let Some(&inode) = self.names.get(file) {
            let file = &mut self.inodes[inode];
            file.live = Rc::new(bytes);
            file.durable = Rc::clone(&file.live);
            file.dirty.clear();
        }
    }

    /// The power goes: each unsynced sector keeps any version it had, each unsynced name likewise.
    pub(crate) fn cut_power(&mut self) {
        let mood = match self.random.below(4) {
            0 => Unsynced::Lost,
            1 => Unsynced::Kept,
            _ => Unsynced::Mixed,
        };
        self.cut_power_as(mood);
    }

    /// The same, with this fate of what is not synced.
    pub(crate) fn cut_power_as(&mut self, unsynced: Unsynced) {
        // Journaling file systems keep a prefix of the changes of names; POSIX promises less.
        let orderly = self.random.chance(667);
        let kept_prefix = match unsynced {
            Unsynced::Lost if orderly => 0,
            Unsynced::Kept if orderly => self.renamings.len(),
            _ => self.random.index(self.renamings.len() + 1),
        };
        for (place, renaming) in std::mem::take(&mut self.renamings).into_iter().enumerate() {
            let kept = if orderly { place < kept_prefix } else { self.random.coin() };
            if kept {
                self.apply_durably(renaming);
            } else {
                self.counts.names_lost += 1;
            }
        }
        self.names.clone_from(&self.durable_names);
        for inode in 0..self.inodes.len() {
            let file = &mut self.inodes[inode];
            for (sector, versions) in std::mem::take(&mut file.dirty) {
                let keep = match unsynced {
                    Unsynced::Lost => false,
                    Unsynced::Kept => true,
                    Unsynced::Mixed => self.random.coin(),
                };
                if !keep {
                    self.counts.sectors_lost += 1;
                    continue;
                }
                let content = match self.random.index(versions.len() + 2).checked_sub(2) {
                    Some(version) if unsynced == Unsynced::Mixed => versions[version].clone(),
                    _ => File::sector(&file.live, sector),
                };
                put_sector(Rc::make_mut(&mut file.durable), sector, &content);
            }
            file.live = Rc::clone(&file.durable);
        }
    }

    /// Begins a sync of names: it will cover this many changes.
    #[must_use]
    pub(crate) fn begin_sync_directory(&self) -> usize {
        self.renamings.len()
    }

    /// Ends a sync of names that covers the first `changes` not covered yet.
    pub(crate) fn end_sync_directory(&mut self, changes: usize) {
        let changes = changes.min(self.renamings.len());
        for renaming in self.renamings.drain(..changes).collect::<Vec<_>>() {
            self.apply_durably(renaming);
        }
    }

    fn apply_durably(&mut self, renaming: Renaming) {
        match renaming {
            Renaming::Set { name, inode } => {
                self.durable_names.insert(name, inode);
            }
            Renaming::Unset { name } => {
                self.durable_names.remove(&name);
            }
            Renaming::Rename { from, to, inode } => {
                if self.durable_names.get(&from) == Some(&inode) {
                    self.durable_names.remove(&from);
                }
                self.durable_names.insert(to, inode);
            }
        }
    }

    fn find(&self, operation: Operation, name: &str) -> Result<Inode, StorageError> {
        self.names.get(name).copied().ok_or_else(|| failed(operation, name, Failure::NotFound))
    }

    fn point(&mut self, operation: Operation, file: &str) -> Result<(), StorageError> {
        if self.passes_point() { Err(failed(operation, file, Failure::Crashed)) } else { Ok(()) }
    }
}

fn failed(operation: Operation, file: &str, failure: Failure) -> StorageError {
    StorageError { operation, file: file.to_owned(), failure }
}

/// The error number of a failed sync.
pub(crate) const EIO: i32 = 5;

impl Storage for Disk {
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError> {
        self.point(Operation::List, "")?;
        let entry = |(name, &inode): (&String, &Inode)| FileEntry {
            name: name.clone(),
            bytes: self.inodes[inode].live.len() as u64,
        };
        Ok(self.names.iter().map(entry).collect())
    }

    fn read(&mut self, file: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let inode = self.find(Operation::Read, file)?;
        if self.crashed {
            return Err(failed(Operation::Read, file, Failure::Crashed));
        }
        let offset = usize::try_from(offset).expect("files fit in memory");
        match self.inodes[inode].live.get(offset..offset + into.len()) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(failed(Operation::Read, file, Failure::Short)),
        }
    }

    fn create(&mut self, file: &str, bytes: u64) -> Result<(), StorageError> {
        if self.names.contains_key(file) {
            return Err(failed(Operation::Create, file, Failure::Exists));
        }
        if self.full {
            self.counts.refused_full += 1;
            return Err(failed(Operation::Create, file, Failure::NoSpace));
        }
        let stopped = self.passes_point();
        // A crash may leave the name with any part of the zeroes, or nothing.
        let bytes = match stopped {
            true if self.random.coin() => return Err(failed(Operation::Create, file, Failure::Crashed)),
            true => self.random.below(bytes + 1),
            false => bytes,
        };
        let zeroes = vec![0; usize::try_from(bytes).expect("files fit in memory")];
        let inode = self.inodes.len();
        let zeroes = Rc::new(zeroes);
        self.inodes.push(File { live: Rc::clone(&zeroes), durable: zeroes, dirty: BTreeMap::new() });
        self.names.insert(file.to_owned(), inode);
        self.renamings.push(Renaming::Set { name: file.to_owned(), inode });
        if stopped { Err(failed(Operation::Create, file, Failure::Crashed)) } else { Ok(()) }
    }

    fn write(&mut self, file: &str, offset: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let inode = self.find(Operation::Write, file)?;
        let end = offset + bytes.len() as u64;
        if self.full && end > self.inodes[inode].live.len() as u64 {
            self.counts.refused_full += 1;
            return Err(failed(Operation::Write, file, Failure::NoSpace));
        }
        if self.crashed {
            return Err(failed(Operation::Write, file, Failure::Crashed));
        }
        if self.passes_point() {
            self.write_torn(file, offset, bytes);
            return Err(failed(Operation::Write, file, Failure::Crashed));
        }
        self.inodes[inode].write(offset, bytes);
        Ok(())
    }

    fn sync(&mut self, file: &str) -> Result<(), StorageError> {
        self.find(Operation::Sync, file)?;
        self.point(Operation::Sync, file)?;
        let sync = self.begin_sync(file).expect("the file was just found");
        if self.random.chance(self.sync_failures_per_mille) {
            self.fail_sync(&sync);
            return Err(failed(Operation::Sync, file, Failure::Os(EIO)));
        }
        self.end_sync(&sync);
        self.syncs_of_ring += u64::from(file == RING_FILE);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), StorageError> {
        let inode = self.find(Operation::Rename, from)?;
        self.point(Operation::Rename, from)?;
        self.names.remove(from);
        self.names.insert(to.to_owned(), inode);
        self.renamings.push(Renaming::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    fn remove(&mut self, file: &str) -> Result<(), StorageError> {
        self.find(Operation::Remove, file)?;
        self.point(Operation::Remove, file)?;
        self.names.remove(file);
        self.renamings.push(Renaming::Unset { name: file.to_owned() });
        Ok(())
    }

    fn sync_directory(&mut self) -> Result<(), StorageError> {
        self.point(Operation::SyncDirectory, "")?;
        if self.random.chance(self.sync_failures_per_mille) {
            self.counts.failed_syncs += 1;
            return Err(failed(Operation::SyncDirectory, "", Failure::Os(EIO)));
        }
        for renaming in std::mem::take(&mut self.renamings) {
            self.apply_durably(renaming);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> Disk {
        let mut disk = Disk::new(Random::new(seed));
        disk.create("a", 4096).unwrap();
        disk.sync_directory().unwrap();
        disk
    }

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_some_of_the_rest() {
        let mut survivors = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let mut disk = disk(seed);
            disk.write("a", 0, &[1; 1024]).unwrap();
            disk.sync("a").unwrap();
            disk.write("a", 512, &[2; 1024]).unwrap();
            assert!(disk.holds_durably("a", 0, &[1; 1024]));
            assert!(!disk.holds_durably("a", 512, &[2; 512]));
            disk.cut_power();
            let content = disk.content("a").unwrap();
            assert_eq!(content[..512], [1; 512]);
            survivors.insert((content[512], content[1024]));
        }
        assert_eq!(survivors.into_iter().collect::<Vec<_>>(), [(1, 0), (1, 2), (2, 0), (2, 2)]);
    }

    #[test]
    fn a_name_without_a_directory_sync_may_go_and_one_with_it_stays() {
        let kept: Vec<bool> = (0..64)
            .map(|seed| {
                let mut disk = disk(seed);
                disk.create("b", 512).unwrap();
                disk.cut_power();
                assert!(disk.content("a").is_some());
                disk.content("b").is_some()
            })
            .collect();
        assert!(kept.contains(&true) && kept.contains(&false));
    }

    #[test]
    fn a_failed_sync_forgets_and_a_later_sync_does_not_help() {
        let lost = (0..64).any(|seed| {
            let mut disk = disk(seed);
            disk.write("a", 0, &[3; 512]).unwrap();
            disk.sync_failures_per_mille = 1000;
            assert!(disk.sync("a").is_err());
            disk.sync_failures_per_mille = 0;
            disk.sync("a").unwrap();
            assert_eq!(disk.content("a").unwrap()[0], 3, "the cache still shows it");
            disk.cut_power();
            disk.content("a").unwrap()[0] == 0
        });
        assert!(lost);
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_was_begun() {
        let mut disk = disk(1);
        disk.write_live("a", 0, &[1; 512]);
        let sync = disk.begin_sync("a").unwrap();
        disk.write_live("a", 0, &[2; 512]);
        disk.end_sync(&sync);
        assert!(disk.holds_durably("a", 0, &[1; 512]));
    }

    #[test]
    fn the_fuse_stops_the_machine_within_an_operation() {
        let mut disk = disk(1);
        disk.set_fuse(Some(2));
        disk.write("a", 0, &[1; 512]).unwrap();
        let error = disk.write("a", 512, &[1; 2048]).unwrap_err();
        assert_eq!(error.failure, Failure::Crashed);
        assert!(disk.crashed() && disk.list().is_err());
    }
}
