//! The running journal: appends into pages, pages to the disk by halves, group commit.

mod beginning;
mod copying;
mod flush;
mod noting;
mod putting;

use self::beginning::FirstRecord;
pub use self::copying::NotInRing;
use self::flush::Flush;
use crate::effect::{DiskEffect, DiskEvent};
use crate::format::{
    Life, LifeReason, PAGE_HEADER_BYTES, PageHeader, RECORD_HEADER_BYTES, RecordHeader, Seed, close_record,
    record_bytes,
};
use crate::geometry::Geometry;
use crate::memory::PageMemory;
use crate::open::{Attempt, Note};
use crate::record::Kind;
use crate::ring;
use crate::slot::Slot;
use crate::stats::Stats;
use crate::storage::Failure;
use mainstay_types::id::{Generation, InstanceId, Lsn, StoreId};
use mainstay_types::rules::{Rule, Rules};

/// Where an opened journal goes on: made by [`crate::open::open`].
#[derive(Clone, Debug)]
pub struct Resume {
    pub(crate) geometry: Geometry,
    pub(crate) store: StoreId,
    pub(crate) generation: Generation,
    pub(crate) first: Lsn,
    pub(crate) end: Lsn,
    pub(crate) reason: LifeReason,
    /// The bytes of the page of `end` below it; empty if `end` is where a page starts.
    pub(crate) tail: Vec<u8>,
    /// The first segment that is not prepared.
    pub(crate) prepared_to: u64,
    pub(crate) rules: Rules,
    pub(crate) buffer_only: bool,
    pub(crate) half_bytes_min: usize,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) note: Option<Note>,
    /// The ring may have records at addresses that this life gives out again.
    pub(crate) clear_ring: bool,
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
    #[error("the journal cannot grow: segment {segment} could not be prepared ({failure})")]
    Full {
        /// The segment that is needed.
        segment: u64,
        /// Why it could not be made ready.
        failure: Failure,
    },
    /// A write or a sync failed in this life; what the disk holds above the durable mark is unknown.
    #[error(
        "the journal is poisoned since a write or sync failed ({failure}): restart to go on from what is durable"
    )]
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
#[derive(Clone, Debug)]
pub struct Journal<M> {
    memory: M,
    geometry: Geometry,
    page_bytes: usize,
    store: StoreId,
    generation: Generation,
    seed: Seed,
    rules: Rules,
    buffer_only: bool,

    slots: Vec<Slot>,
    /// Whether `slot` takes records; else the next append opens page `next_page`.
    open: bool,
    slot: usize,
    page_start: Lsn,
    /// Offset in the open page of the next record.
    fill: usize,
    /// Of what the open page holds, so many bytes at its end are in the staging buffer.
    staged_bytes: usize,
    /// Offset in the open page up to which records are put without a further look: its half, then its end.
    room_end: usize,
    half_bytes_min: usize,
    next_page: u64,

    end: Lsn,
    durable: Lsn,
    first: Lsn,
    /// The end of the last closed page, or of the half of the open one that was handed over: below it, only a sync makes durable.
    unsynced_end: Lsn,
    /// The watermark that was last put into a page header or a record.
    marked: Lsn,
    flush: Option<Flush>,
    flush_asked: bool,
    next_ticket: u64,

    /// The first segment that is not prepared, whether it was asked for, and why it failed.
    prepared_to: u64,
    preparing: bool,
    prepare_failure: Option<Failure>,
    trimming: bool,
    trim_to: Lsn,

    poison: Option<Failure>,
    sealed: bool,
    /// The record that begins this life, while no page could be opened for it.
    life_due: Option<Life>,
    /// What its owner wants to stand right behind that.
    first_due: Option<FirstRecord>,
    attempt: Option<Attempt>,
    watermark_turn: usize,
    stats: Stats,
}

impl<M: PageMemory> Journal<M> {
    /// Begins the life that `resume` names, in a ring of the sizes it names: formats the ring and appends the record
    /// that names this life, or leaves that to the first append if the disk was too full for another segment. It becomes
    /// durable with the first flush.
    ///
    /// # Panics
    /// When the ring has other sizes.
    #[must_use]
    pub fn start(resume: Resume, memory: M) -> Self {
        let geometry = resume.geometry;
        let page_bytes = geometry.page_bytes as usize;
        let page = geometry.page_of(resume.end);
        let page_start = geometry.page_start(page);
        let open = !resume.tail.is_empty();
        let mut journal = Self {
            memory,
            geometry,
            page_bytes,
            store: resume.store,
            generation: resume.generation,
            seed: Seed::new(resume.store, resume.generation),
            rules: resume.rules,
            buffer_only: resume.buffer_only,
            slots: vec![Slot::FREE; usize::from(geometry.pages)],
            open,
            slot: geometry.slot_of(page),
            page_start,
            fill: resume.tail.len(),
            staged_bytes: 0,
            room_end: page_bytes,
            half_bytes_min: resume.half_bytes_min,
            next_page: if open { page + 1 } else { page },
            end: resume.end,
            durable: resume.end,
            first: resume.first,
            unsynced_end: page_start,
            marked: resume.end,
            flush: None,
            flush_asked: false,
            next_ticket: 0,
            prepared_to: resume.prepared_to,
            preparing: false,
            prepare_failure: None,
            trimming: false,
            trim_to: resume.first,
            poison: None,
            sealed: false,
            life_due: Some(Life {
                generation: resume.generation,
                previous_end: resume.end,
                reason: resume.reason,
            }),
            first_due: None,
            attempt: resume.attempt,
            watermark_turn: 0,
            stats: Stats::default(),
        };
        journal.format_ring(&resume);
        if open {
            journal.slots[journal.slot] = Slot::opened(page, resume.tail.len());
            journal.put_life();
        } else if journal.segment_of_page(page) < journal.prepared_to || journal.buffer_only {
            journal.open_page();
        }
        journal
    }

    /// Cells and pages first, the header last: until then the ring counts as the previous life's, of which everything
    /// is settled. What a cut has left is cleared, lest it be taken for a record that was being copied when this life dies.
    fn format_ring(&mut self, resume: &Resume) {
        let tail = &resume.tail[..];
        for slot in 0..self.slots.len() {
            let page = self.memory.page_mut(slot);
            assert_eq!(page.len(), self.page_bytes, "the ring has the sizes that were asked for");
            let cleared = if resume.clear_ring { self.page_bytes } else { PAGE_HEADER_BYTES };
            page[..cleared].fill(0);
        }
        let page = self.memory.page_mut(self.slot);
        page[..tail.len()].copy_from_slice(tail);
        page[tail.len()..].fill(0);
        self.memory.staging_mut().fill(0);
        for _ in 0..2 {
            self.publish_watermark();
        }
        let control = self.memory.control_mut();
        ring::write_staged(control, None);
        ring::write_attempt(control, self.attempt);
        ring::write_note(control, resume.note, self.generation);
        ring::write_header(control, self.store, self.generation, self.geometry);
    }

    /// Copies a record into the ring; `parts` are its payload, one after another. Level `Process` when this
    /// returns, if the ring is a shared mapping.
    ///
    /// # Errors
    /// [`AppendError`]; the record was not appended.
    ///
    /// # Panics
    /// With a kind that is the journal's own.
    #[inline]
    pub fn append(
        &mut self,
        kind: Kind,
        instance: InstanceId,
        parts: &[&[u8]],
        out: &mut Vec<DiskEffect>,
    ) -> Result<Appended, AppendError> {
        assert!(!kind.is_own(), "kind {} is the journal's own", kind.0);
        let payload = parts.iter().map(|part| part.len()).sum();
        self.make_room(payload, out)?;
        self.stats.appends += 1;
        self.stats.append_bytes += payload as u64;
        Ok(self.put_record(kind, instance, parts, payload))
    }

    #[inline]
    fn make_room(&mut self, payload: usize, out: &mut Vec<DiskEffect>) -> Result<(), AppendError> {
        let accepting = self.open && !self.sealed && self.poison.is_none();
        if accepting && self.fill.saturating_add(record_bytes_checked(payload)) <= self.room_end {
            return Ok(());
        }
        self.look_further(payload, out)
    }

    /// Makes room beyond the half of the open page or in the next one.
    #[cold]
    fn look_further(&mut self, payload: usize, out: &mut Vec<DiskEffect>) -> Result<(), AppendError> {
        if let Some(failure) = self.poison {
            return Err(AppendError::Poisoned { failure });
        }
        if self.sealed {
            return Err(AppendError::Sealed);
        }
        if payload > self.record_bytes_max() {
            let payload_bytes_max = self.record_bytes_max();
            return Err(AppendError::TooLarge { payload_bytes: payload, payload_bytes_max });
        }
        if self.open && self.fill + record_bytes(payload) <= self.page_bytes {
            self.room_end = self.page_bytes;
            self.hand_over_half(out);
            return Ok(());
        }
        if self.open {
            self.close_page();
            self.pump(out);
        }
        if !self.buffer_only {
            let segment = self.segment_of_page(self.next_page);
            if segment >= self.prepared_to {
                if let Some(failure) = self.prepare_failure {
                    return Err(AppendError::Full { segment: self.prepared_to, failure });
                }
                self.prepare_ahead(out);
                self.stats.stalls += 1;
                return Err(AppendError::Stalled);
            }
            if !self.slots[self.geometry.slot_of(self.next_page)].is_free() {
                self.stats.stalls += 1;
                return Err(AppendError::Stalled);
            }
        }
        self.open_page();
        self.prepare_ahead(out);
        // The records that begin a life may have taken the room that the largest record needs.
        self.make_room(payload, out)
    }

    fn close_page(&mut self) {
        self.destage();
        let left = self.page_bytes - self.fill;
        let mut data_end = self.fill;
        if left >= RECORD_HEADER_BYTES {
            let payload_bytes =
                u32::try_from(left - RECORD_HEADER_BYTES).expect("a pad is shorter than a page");
            let header =
                RecordHeader { payload_bytes, lsn: self.end, instance: InstanceId(0), kind: Kind::PAD };
            let pad = &mut self.memory.page_mut(self.slot)[self.fill..];
            header.put(pad);
            close_record(pad, 0, self.seed);
            data_end += RECORD_HEADER_BYTES;
        } else if self.durable == self.end {
            // Too little is left for any record: nothing there waits to be durable.
            self.durable = self.durable.plus(left as u64);
        }
        self.end = self.page_start.plus(self.page_bytes as u64);
        self.unsynced_end = self.end;
        self.open = false;
        self.slots[self.slot].close(data_end);
        if self.buffer_only {
            self.slots[self.slot] = Slot::FREE;
        }
        self.stats.pages_closed += 1;
        self.stats.pad_bytes += left as u64;
    }

    fn open_page(&mut self) {
        let page = self.next_page;
        self.next_page += 1;
        self.slot = self.geometry.slot_of(page);
        self.slots[self.slot] = Slot::opened(page, 0);
        self.page_start = self.geometry.page_start(page);
        let header = PageHeader { page, generation: self.generation, watermark: self.durable };
        self.memory.page_mut(self.slot)[..PAGE_HEADER_BYTES].copy_from_slice(&header.encode(self.store));
        self.fill = PAGE_HEADER_BYTES;
        // One page alone is the synchronous baseline: it is written when it is full.
        let whole = self.slots.len() == 1 || self.buffer_only;
        self.room_end = if whole { self.page_bytes } else { self.page_bytes / 2 };
        self.end = self.page_start.plus(PAGE_HEADER_BYTES as u64);
        self.marked = self.durable;
        self.open = true;
        self.put_life();
    }

    /// Makes everything appended so far durable, together with what is appended until the disk is ready for it if a
    /// flush is in flight. Returns the LSN that [`Journal::durable`] will reach, unless the journal is poisoned or only
    /// buffers.
    pub fn flush(&mut self, out: &mut Vec<DiskEffect>) -> Lsn {
        if self.end <= self.durable || self.poison.is_some() || self.buffer_only {
            return self.end;
        }
        match self.flush {
            None => self.start_flush(out),
            Some(flush) if flush.target() < self.end => {
                self.stats.flushes_joined += u64::from(!self.flush_asked);
                self.flush_asked = true;
            }
            Some(_) => {}
        }
        self.prepare_ahead(out);
        self.end
    }

    /// Takes note of what the disk did.
    pub fn step(&mut self, event: DiskEvent, out: &mut Vec<DiskEffect>) {
        match event {
            DiskEvent::Done { ticket } => self.done(ticket),
            DiskEvent::Failed { ticket, failure } => {
                if self.rules.keep(Rule::FailedSyncPoisons) {
                    self.poison.get_or_insert(failure);
                    self.flush = None;
                    self.flush_asked = false;
                } else {
                    self.done(ticket);
                }
            }
            DiskEvent::Prepared { segment } => {
                self.preparing = false;
                self.prepare_failure = None;
                self.prepared_to = self.prepared_to.max(segment + 1);
                self.stats.segments_prepared += 1;
            }
            DiskEvent::PrepareFailed { failure, .. } => {
                self.preparing = false;
                self.prepare_failure = Some(failure);
                self.stats.segments_failed += 1;
            }
            DiskEvent::Trimmed { first } => {
                self.trimming = false;
                self.first = self.first.max(first);
                // What was trimmed may be the space that was missing.
                self.prepare_failure = None;
                self.trim(self.trim_to, out);
            }
            DiskEvent::TrimFailed { .. } => {
                self.trimming = false;
                self.trim_to = self.first;
            }
        }
        self.pump(out);
        self.prepare_ahead(out);
    }

    fn segment_of_page(&self, page: u64) -> u64 {
        page / u64::from(self.geometry.segment_pages)
    }

    /// Asks for the next segment when the one before it is entered, or earlier if the ring reaches that far.
    fn prepare_ahead(&mut self, out: &mut Vec<DiskEffect>) {
        let current = self.next_page.saturating_sub(1);
        let reach = current + u64::from(self.geometry.pages);
        let wanted = self.segment_of_page(reach).max(self.segment_of_page(current) + 1);
        let idle = !self.preparing && self.prepare_failure.is_none() && self.poison.is_none();
        if idle && self.prepared_to <= wanted && !self.buffer_only && !self.sealed {
            self.preparing = true;
            out.push(DiskEffect::Prepare { segment: self.prepared_to });
        }
    }

    /// Asks again for a segment that could not be made ready.
    pub fn retry(&mut self, out: &mut Vec<DiskEffect>) {
        self.prepare_failure = None;
        self.prepare_ahead(out);
    }

    /// Says that nothing below `first` is needed any more, because a durable checkpoint covers it. Only what is durable
    /// is ever given up; one request is in flight at a time.
    pub fn trim(&mut self, first: Lsn, out: &mut Vec<DiskEffect>) {
        self.trim_to = self.trim_to.max(first.min(self.durable));
        if self.trim_to > self.first && !self.trimming && self.poison.is_none() && !self.buffer_only {
            self.trimming = true;
            out.push(DiskEffect::Trim { first: self.trim_to });
        }
    }

    /// Whether a request to trim is in flight. One that failed is not asked for again until the next [`Journal::trim`].
    #[must_use]
    pub fn is_trimming(&self) -> bool {
        self.trimming
    }

    /// Appends the record of a clean stop and flushes it; nothing can be appended afterwards. Flush first and wait, so
    /// that the seal says that everything before it is durable; else it does not count as a clean stop.
    ///
    /// # Errors
    /// As [`Journal::append`]; then the journal is not sealed.
    pub fn seal(&mut self, out: &mut Vec<DiskEffect>) -> Result<Appended, AppendError> {
        let watermark = self.durable;
        self.make_room(8, out)?;
        let sealed = self.put_record(Kind::SEAL, InstanceId(0), &[&watermark.0.to_le_bytes()], 8);
        self.sealed = true;
        self.flush(out);
        Ok(sealed)
    }

    /// The sizes of this journal.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The address after the last record.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Every record that ends at or below this is past a sync.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Whether nothing is ever written: [`crate::options::OpenOptions::buffer_only`].
    #[must_use]
    pub fn is_buffer_only(&self) -> bool {
        self.buffer_only
    }

    /// The first byte still kept.
    #[must_use]
    pub fn first(&self) -> Lsn {
        self.first
    }

    /// Whether a flush is in flight.
    #[must_use]
    pub fn flushing(&self) -> bool {
        self.flush.is_some()
    }

    /// Whether records are accepted.
    #[must_use]
    pub fn health(&self) -> Health {
        match (self.poison, self.prepare_failure) {
            (Some(failure), _) => Health::Poisoned { failure },
            (None, _) if self.sealed => Health::Sealed,
            (None, Some(failure)) => Health::Full { segment: self.prepared_to, failure },
            (None, None) => Health::Good,
        }
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
        self.page_bytes - PAGE_HEADER_BYTES - RECORD_HEADER_BYTES
    }
}

/// [`record_bytes`] for a length that was not looked at yet.
#[inline]
fn record_bytes_checked(payload: usize) -> usize {
    record_bytes(payload.min(1 << 30))
}
