//! The running journal: appends into pages, full pages to the disk, group commit.

use crate::effect::{DiskEffect, DiskEvent};
use crate::geometry::Geometry;
use crate::memory::PageMemory;
use crate::record::Kind;
use crate::stats::Stats;
use crate::storage::Failure;
use mainstay_types::id::{Generation, InstanceId, Lsn, StoreId};

/// Where an opened journal goes on: made by [`crate::open::open`].
#[derive(Clone, Debug)]
pub struct Resume {
    pub(crate) geometry: Geometry,
    pub(crate) store: StoreId,
    pub(crate) generation: Generation,
}

impl Resume {
    /// The sizes that the ring must have.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The life that begins.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The identity of the directory.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }
}

/// Where a record was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Address of its first byte.
    pub lsn: Lsn,
    /// It is durable when [`Journal::durable`] reaches this.
    pub end: Lsn,
}

/// The record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No page is free. It will be when a write completes: pass events to [`Journal::step`] and try again.
    #[error("all pages of the journal wait to be written")]
    Stalled,
    /// No page of any journal of this geometry holds it.
    #[error("the record has {payload_bytes} bytes, at most {payload_bytes_max} fit a page")]
    TooLarge {
        /// Its payload.
        payload_bytes: usize,
        /// The largest that fits.
        payload_bytes_max: usize,
    },
    /// The next segment could not be made ready. What was appended stays; call [`Journal::retry`] when there is space.
    #[error("the journal cannot grow: segment {segment} could not be prepared ({failure:?})")]
    Full {
        /// The segment that is needed.
        segment: u64,
        /// Why it could not be made ready.
        failure: Failure,
    },
    /// A write or a sync failed in this life; what the disk holds above the durable mark is unknown.
    #[error("the journal is poisoned since a write or sync failed ({failure:?}): restart to go on from what is durable")]
    Poisoned {
        /// What failed.
        failure: Failure,
    },
    /// The journal was sealed by a clean stop.
    #[error("the journal is sealed")]
    Sealed,
}

/// Whether a journal accepts records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Good,
    /// The next segment could not be made ready; appends go on until it is needed.
    Full {
        /// The segment.
        segment: u64,
        /// Why.
        failure: Failure,
    },
    /// A write or a sync failed: this life accepts nothing more, and the durable mark stays.
    Poisoned {
        /// Why.
        failure: Failure,
    },
    /// Stopped cleanly.
    Sealed,
}

/// The journal of one directory, while it runs.
#[derive(Debug)]
pub struct Journal<M> {
    memory: M,
    stats: Stats,
}

impl<M: PageMemory> Journal<M> {
    /// Begins the life that `resume` names, in a ring of the sizes it names: formats the ring and appends the record
    /// that names this life.
    #[must_use]
    pub fn start(resume: Resume, memory: M) -> Self {
        let _ = (resume, &memory);
        todo!()
    }

    /// Copies a record into the current page; `parts` are its payload, one after another. Level `Process` when this
    /// returns, if the ring is a shared mapping.
    ///
    /// # Errors
    /// [`AppendError`]; the record was not appended.
    pub fn append(
        &mut self,
        kind: Kind,
        instance: InstanceId,
        parts: &[&[u8]],
        out: &mut Vec<DiskEffect>,
    ) -> Result<Appended, AppendError> {
        let _ = (kind, instance, parts, out);
        todo!()
    }

    /// Makes everything appended so far durable, together with what is appended until the disk is ready for it if a
    /// flush is in flight. Returns the LSN that [`Journal::durable`] will reach.
    pub fn flush(&mut self, out: &mut Vec<DiskEffect>) -> Lsn {
        let _ = out;
        todo!()
    }

    /// Takes note of what the disk did.
    pub fn step(&mut self, event: DiskEvent, out: &mut Vec<DiskEffect>) {
        let _ = (event, out);
        todo!()
    }

    /// Asks again for a segment that could not be made ready.
    pub fn retry(&mut self, out: &mut Vec<DiskEffect>) {
        let _ = out;
        todo!()
    }

    /// Says that nothing below `first` is needed any more, because a durable checkpoint covers it.
    pub fn trim(&mut self, first: Lsn, out: &mut Vec<DiskEffect>) {
        let _ = (first, out);
        todo!()
    }

    /// Appends the record of a clean stop and flushes it; nothing can be appended afterwards. Flush first and wait, so
    /// that the seal says that everything before it is durable.
    ///
    /// # Errors
    /// As [`Journal::append`]; then the journal is not sealed.
    pub fn seal(&mut self, out: &mut Vec<DiskEffect>) -> Result<Appended, AppendError> {
        let _ = out;
        todo!()
    }

    /// The address after the last record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        todo!()
    }

    /// Every record that ends at or below this is past a sync.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        todo!()
    }

    /// The first byte still kept.
    #[must_use]
    pub fn first(&self) -> Lsn {
        todo!()
    }

    /// Whether a flush is in flight.
    #[must_use]
    pub fn flushing(&self) -> bool {
        todo!()
    }

    /// Whether records are accepted.
    #[must_use]
    pub fn health(&self) -> Health {
        todo!()
    }

    /// Counters of this life.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The ring.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The largest payload that a record can have, in bytes.
    #[must_use]
    pub fn record_bytes_max(&self) -> usize {
        todo!()
    }

    /// Notes, where kill -9 cannot reach it, that the record at `lsn` is being delivered. Returns how many attempts
    /// that makes, earlier lives included.
    pub fn begin_attempt(&mut self, lsn: Lsn) -> u32 {
        let _ = lsn;
        todo!()
    }

    /// Notes that the delivery ended.
    pub fn end_attempt(&mut self) {
        todo!()
    }
}
