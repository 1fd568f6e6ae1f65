//! A journal with a disk in memory that does what it is asked when it is told to.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::format::RING_FILE;
use mainstay_journal::geometry::{BLOCK_BYTES, Geometry};
use mainstay_journal::journal::{AppendError, Appended, Journal};
use mainstay_journal::memory::{HeapPages, PageMemory, ring_bytes};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::{OpenError, OpenReport, Opened, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::{ReadError, Reader};
use mainstay_journal::record::Kind;
use mainstay_types::id::{InstanceId, Lsn, StoreId};

pub const STORE: StoreId = StoreId([0x5a; 16]);

/// Pages of 4 KiB.
pub fn small(pages: u16, segment_pages: u32) -> OpenOptions {
    OpenOptions {
        geometry: Geometry { page_bytes: 4096, pages, segment_pages },
        new_store: STORE,
        ..OpenOptions::default()
    }
}

/// Pages of 32 KiB, of which the first half goes to the disk on its own if 4 KiB of it wait.
pub fn in_halves(pages: u16) -> OpenOptions {
    OpenOptions {
        geometry: Geometry { page_bytes: 32768, pages, segment_pages: 4 },
        half_bytes_min: BLOCK_BYTES,
        ..small(pages, 4)
    }
}

pub struct Rig<M = HeapPages> {
    pub storage: MemoryStorage,
    pub catalog: Catalog,
    pub journal: Journal<M>,
    pub report: OpenReport,
    /// Asked for and not done yet.
    pub asked: Vec<DiskEffect>,
}

impl<M: PageMemory> Rig<M> {
    /// Opens what is in `storage`, with the ring that is there if it has the right length; `memory` may wrap it.
    pub fn open_in(
        mut storage: MemoryStorage,
        options: &OpenOptions,
        memory: impl FnOnce(HeapPages) -> M,
    ) -> Result<Self, OpenError> {
        let Opened { catalog, resume, report } = open(&mut storage, options)?;
        let geometry = resume.geometry();
        let pages = match storage.bytes(RING_FILE) {
            Some(ring) if ring.len() == ring_bytes(geometry.page_bytes, geometry.pages) => {
                HeapPages::of_file(ring, geometry.page_bytes, geometry.pages)
            }
            _ => HeapPages::new(geometry.page_bytes, geometry.pages),
        };
        let journal = Journal::start(resume, memory(pages));
        Ok(Self { storage, catalog, journal, report, asked: Vec::new() })
    }

    pub fn append(&mut self, payload: &[u8]) -> Result<Appended, AppendError> {
        let appended = self.journal.append(Kind::FIRST_USER, InstanceId(7), &[payload], &mut self.asked);
        self.assert_no_block_is_shared();
        appended
    }

    /// Writes in flight finish in any order, so none may cover a block of another.
    fn assert_no_block_is_shared(&self) {
        let write = |effect: &DiskEffect| match *effect {
            DiskEffect::Write { slot, from, to, .. } => Some((slot, from, to)),
            _ => None,
        };
        let mut writes: Vec<_> = self.asked.iter().filter_map(write).collect();
        writes.sort_unstable();
        for pair in writes.windows(2) {
            let &[(slot, _, to), (next_slot, next_from, _)] = pair else { unreachable!("two of them") };
            assert!(slot != next_slot || to <= next_from, "two writes in flight cover one block: {writes:?}");
        }
    }

    /// Appends, doing what is asked for whenever the journal stalls.
    pub fn append_waiting(&mut self, payload: &[u8]) -> Appended {
        for _ in 0..100 {
            match self.append(payload) {
                Ok(appended) => return appended,
                Err(AppendError::Stalled) => self.settle(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("stalled for ever");
    }

    pub fn flush(&mut self) -> Lsn {
        let target = self.journal.flush(&mut self.asked);
        self.assert_no_block_is_shared();
        target
    }

    /// Performs the effect at `place` of those asked for and reports it.
    pub fn perform(&mut self, place: usize) {
        let effect = self.asked.remove(place);
        let event = self.event_of(effect);
        self.journal.step(event, &mut self.asked);
        self.assert_no_block_is_shared();
    }

    fn event_of(&mut self, effect: DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let bytes = self.journal.memory().page(slot)[from as usize..to as usize].to_vec();
                let file = self.catalog.file_of(place.segment).expect("written only when prepared");
                let result = if durable {
                    self.storage.write_durable(&file, place.offset, &bytes)
                } else {
                    mainstay_journal::storage::Storage::write(&mut self.storage, &file, place.offset, &bytes)
                };
                match result {
                    Ok(()) => DiskEvent::Done { ticket },
                    Err(error) => DiskEvent::Failed { ticket, failure: error.failure },
                }
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                for segment in first_segment..=last_segment {
                    let file = self.catalog.file_of(segment).expect("synced only when prepared");
                    if let Err(error) = mainstay_journal::storage::Storage::sync(&mut self.storage, &file) {
                        return DiskEvent::Failed { ticket, failure: error.failure };
                    }
                }
                DiskEvent::Done { ticket }
            }
            DiskEffect::Prepare { segment } => match self.catalog.prepare(&mut self.storage, segment) {
                Ok(()) => DiskEvent::Prepared { segment },
                Err(error) => DiskEvent::PrepareFailed { segment, failure: error.failure },
            },
            DiskEffect::Trim { first } => match self.catalog.trim(&mut self.storage, first) {
                Ok(()) => DiskEvent::Trimmed { first },
                Err(error) => DiskEvent::TrimFailed { failure: error.failure },
            },
        }
    }

    /// Performs everything, and what follows from it.
    pub fn settle(&mut self) {
        while !self.asked.is_empty() {
            self.perform(0);
        }
    }

    pub fn flush_and_settle(&mut self) {
        self.flush();
        self.settle();
        assert_eq!(self.journal.durable(), self.journal.end());
    }

    /// The payloads from the first byte to what was durable at opening.
    pub fn read_back(&mut self) -> Result<Vec<Vec<u8>>, ReadError> {
        let (from, to) = (self.report.first, self.report.end);
        let mut reader = Reader::new(&mut self.storage, &self.catalog, from, to);
        let mut payloads = Vec::new();
        while let Some(record) = reader.next()? {
            assert_eq!((record.kind, record.instance), (Kind::FIRST_USER, InstanceId(7)));
            payloads.push(record.payload.to_vec());
        }
        Ok(payloads)
    }
}

impl Rig {
    pub fn open(storage: MemoryStorage, options: &OpenOptions) -> Result<Self, OpenError> {
        Self::open_in(storage, options, |pages| pages)
    }

    /// A clean stop.
    pub fn stop(mut self) -> MemoryStorage {
        self.flush_and_settle();
        loop {
            match self.journal.seal(&mut self.asked) {
                Ok(_) => break,
                Err(AppendError::Stalled) => self.settle(),
                Err(error) => panic!("{error}"),
            }
        }
        self.settle();
        self.kill()
    }

    /// The bytes of the ring as a shared mapping has them.
    pub fn ring(&self) -> Vec<u8> {
        self.journal.memory().to_file()
    }

    /// kill -9: the page cache and the mapping stay.
    pub fn kill(mut self) -> MemoryStorage {
        let ring = self.ring();
        self.storage.store_mapping("ring", &ring);
        self.storage
    }

    /// Power loss: what was not synced may be gone.
    pub fn cut(self, choose: &mut dyn FnMut(u64) -> u64) -> MemoryStorage {
        self.kill().crash_image(choose)
    }
}

/// A payload that says which one it is, of a length that varies.
pub fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(bytes.max(8), number as u8);
    payload
}
