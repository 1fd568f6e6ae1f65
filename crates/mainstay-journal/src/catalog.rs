//! Which file holds which segment, and which files are free for reuse.

use crate::format::{
    FileHeader, FileKind, SUPERBLOCK_COPY_OFFSET, SUPERBLOCK_FILE, Superblock, segment_file_name,
};
use crate::geometry::Geometry;
use crate::storage::{Failure, Storage, StorageError};
use crate::striping::{Striping, stripe_of_slot};
use mainstay_types::id::{Generation, Lsn, StoreId};
use mainstay_types::rules::Rules;
use std::collections::BTreeMap;

/// The segment files of a journal, and its superblock. Owned by whoever performs
/// [`crate::effect::DiskEffect::Prepare`] and [`crate::effect::DiskEffect::Trim`]; a driver publishes the names that
/// [`Catalog::file_of`] gives to its writers after each.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub(crate) superblock: Superblock,
    pub(crate) rules: Rules,
    /// Slot by segment number.
    pub(crate) segments: BTreeMap<u64, u64>,
    /// Slots of files of full length that hold nothing needed.
    pub(crate) free: Vec<u64>,
    pub(crate) free_segments_max: usize,
    pub(crate) next_slot: u64,
    /// The highest serial of a segment header.
    pub(crate) segment_serial: u64,
    /// Which life is in force from where on, from the first byte kept. One entry per opening since the last trim.
    pub(crate) lives: Vec<(Lsn, Generation)>,
}

impl Catalog {
    /// The sizes of this journal.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// The identity of the directory.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.superblock.store
    }

    /// The life that prepares and trims now.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.superblock.generation
    }

    /// The first byte still kept.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.superblock.first
    }

    /// The name of the file that holds segment number `segment`, if it is prepared.
    #[must_use]
    pub fn file_of(&self, segment: u64) -> Option<String> {
        self.segments.get(&segment).map(|&slot| segment_file_name(slot))
    }

    /// The numbers of all segments that have a file, in order.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        self.segments.keys().copied()
    }

    /// How many files wait to be used again.
    #[must_use]
    pub fn free_segments(&self) -> usize {
        self.free.len()
    }

    /// The life in force at `lsn`.
    pub(crate) fn generation_at(&self, lsn: Lsn) -> Generation {
        let after = self.lives.partition_point(|&(from, _)| from <= lsn);
        self.lives[..after].last().map_or(self.superblock.first_generation, |&(_, generation)| generation)
    }

    /// Makes segment number `segment` ready to be written: takes a free file, or creates one written in full, and puts
    /// its header there, synced. Nothing happens if it is ready already.
    ///
    /// # Errors
    /// The failed operation; the segment is not ready and no record is affected. The call may be repeated: it uses
    /// another file then, since what a failed sync has left in this one is unknown.
    pub fn prepare(&mut self, storage: &mut dyn Storage, segment: u64) -> Result<(), StorageError> {
        if self.segments.contains_key(&segment) {
            return Ok(());
        }
        let striping = self.striping_of(segment);
        let is_there = |slot: &u64| stripe_of_slot(*slot, striping.stripes) == striping.stripe;
        let (slot, made) = match self.free.iter().rposition(is_there) {
            Some(place) => (self.free.remove(place), false),
            None => {
                let slot = (self.next_slot..).find(is_there).expect("slots are endless");
                self.next_slot = slot + 1;
                storage.create(&segment_file_name(slot), self.geometry().segment_file_bytes())?;
                (slot, true)
            }
        };
        let file = segment_file_name(slot);
        self.segment_serial += 1;
        let header = FileHeader {
            store: self.superblock.store,
            serial: self.segment_serial,
            generation: self.superblock.generation,
            geometry: self.geometry(),
            striping,
            fields: [segment, 0, 0, 0, 0, 0],
        };
        let put = put_header(storage, &file, &header, made);
        if put.is_err() {
            // Whether the header is there is unknown. If the removal fails too, the next opening sees two files that
            // claim the segment and takes the one with the higher serial.
            let _ = storage.remove(&file);
            return put;
        }
        self.segments.insert(segment, slot);
        Ok(())
    }

    /// Writes the headers of all segments from number `from` on again, and makes them and all names durable.
    ///
    /// # Errors
    /// The failed operation; every header says what it said before. The call may be repeated.
    pub(crate) fn confirm(&mut self, storage: &mut dyn Storage, from: u64) -> Result<(), StorageError> {
        let stripes = self.superblock.stripes;
        for (&segment, &slot) in self.segments.range(from..) {
            self.segment_serial += 1;
            let header = FileHeader {
                store: self.superblock.store,
                serial: self.segment_serial,
                generation: self.superblock.generation,
                geometry: self.superblock.geometry,
                striping: Striping { stripe: stripe_of_slot(slot, stripes), stripes },
                fields: [segment, 0, 0, 0, 0, 0],
            };
            put_header(storage, &segment_file_name(slot), &header, false)?;
        }
        storage.sync_directory()
    }

    /// Remembers durably (both copies of the superblock) that nothing below `first` is needed, then recycles the
    /// segment files that lie wholly below it, and removes those beyond the limit of free files.
    ///
    /// # Errors
    /// The failed operation; nothing at or above `first` is affected, and the call may be repeated.
    pub fn trim(&mut self, storage: &mut dyn Storage, first: Lsn) -> Result<(), StorageError> {
        if first > self.superblock.first {
            let changed = Superblock {
                first,
                first_generation: self.generation_at(first),
                watermark: self.superblock.watermark.max(first),
                ..self.superblock
            };
            self.write_superblock(storage, changed)?;
            let after = self.lives.partition_point(|&(from, _)| from <= first);
            self.lives.drain(..after.saturating_sub(1));
        }
        let first_segment = self.geometry().segment_of(self.superblock.first);
        let kept = self.segments.split_off(&first_segment);
        self.free.extend(std::mem::replace(&mut self.segments, kept).into_values());
        self.remove_surplus(storage)
    }

    /// Removes free files beyond the limit of each directory.
    pub(crate) fn remove_surplus(&mut self, storage: &mut dyn Storage) -> Result<(), StorageError> {
        let mut surplus = Vec::new();
        for stripe in 0..self.superblock.stripes {
            let is_there = |slot: &u64| stripe_of_slot(*slot, self.superblock.stripes) == stripe;
            surplus.extend(self.free.iter().copied().filter(is_there).skip(self.free_segments_max));
        }
        if surplus.is_empty() {
            return Ok(());
        }
        self.free.retain(|slot| !surplus.contains(slot));
        for slot in surplus {
            remove_if_there(storage, &segment_file_name(slot))?;
        }
        storage.sync_directory()
    }

    fn striping_of(&self, segment: u64) -> Striping {
        let stripes = self.superblock.stripes;
        Striping { stripe: stripe_of_slot(segment, stripes), stripes }
    }

    /// Writes both copies, one after the other, each synced before the next is touched.
    pub(crate) fn write_superblock(
        &mut self,
        storage: &mut dyn Storage,
        changed: Superblock,
    ) -> Result<(), StorageError> {
        // A number is used once, also if the write fails half way.
        self.superblock.serial += 1;
        let superblock = Superblock { serial: self.superblock.serial, ..changed };
        write_superblock_copies(storage, SUPERBLOCK_FILE, &superblock)?;
        self.superblock = superblock;
        Ok(())
    }
}

fn put_header(
    storage: &mut dyn Storage,
    file: &str,
    header: &FileHeader,
    made: bool,
) -> Result<(), StorageError> {
    storage.write(file, 0, &header.encode(FileKind::Segment))?;
    storage.sync(file)?;
    if made { storage.sync_directory() } else { Ok(()) }
}

pub(crate) fn remove_if_there(storage: &mut dyn Storage, file: &str) -> Result<(), StorageError> {
    match storage.remove(file) {
        Err(error) if error.failure == Failure::NotFound => Ok(()),
        result => result,
    }
}

pub(crate) fn write_superblock_copies(
    storage: &mut dyn Storage,
    file: &str,
    superblock: &Superblock,
) -> Result<(), StorageError> {
    for offset in [0, SUPERBLOCK_COPY_OFFSET] {
        storage.write(file, offset, &superblock.encode())?;
        storage.sync(file)?;
    }
    Ok(())
}
