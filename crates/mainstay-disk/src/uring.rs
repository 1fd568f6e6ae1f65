//! The io_uring backend: one thread that owns the ring, many writes and syncs under way.
//!
//! One thread and no more, because the kernel ties a request to the thread that submitted it and cancels it when that
//! thread ends: an appending thread that exits must not turn a sync into a failure.

use crate::awake::{self, Watched};
use crate::completions::Completions;
use crate::failure::failure_of_number;
use crate::performer::{Performer, SegmentFile, Source, completion};
use crate::worker_threads::join_unless_self;
use crate::write_method::WriteMethod;
use io_uring::{IoUring, opcode, squeue, types};
use mainstay_journal::effect::{DiskEffect, DiskEvent, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Entries of the submission ring; requests beyond it wait in the queue.
const RING_ENTRIES: u32 = 128;

/// The longest wait that is passed awake while a write is held back: two pages of the default size on a fast disk.
const AWAKE_WHILE_HELD_MAX: Duration = Duration::from_millis(2);

/// Waits with a write held back that are slept through, after one that was passed awake and took too long or was late.
const ASLEEP_WAITS: u32 = 64;

/// Names the read of the wake-up counter among completions; tickets of requests are counted from zero.
const WAKE: u64 = u64::MAX;

/// The thread and the way to reach it.
#[derive(Debug)]
pub(crate) struct Uring {
    inbox: Arc<Inbox>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inbox {
    waiting: Mutex<Waiting>,
    /// An eventfd: written to when `waiting` has changed, always being read by the ring.
    wake: File,
}

#[derive(Debug, Default)]
struct Waiting {
    effects: VecDeque<DiskEffect>,
    stop: bool,
}

impl Uring {
    /// Starts the thread, for at most `under_way_max` bytes of writes under way.
    ///
    /// # Errors
    /// The reason why this kernel has no io_uring for us: another backend must do.
    pub(crate) fn start(
        performer: &Arc<Performer>,
        completions: &Arc<Completions>,
        under_way_max: usize,
    ) -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(RING_ENTRIES)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for (code, name) in
            [(opcode::Write::CODE, "write"), (opcode::Fsync::CODE, "fsync"), (opcode::Read::CODE, "read")]
        {
            if !probe.is_supported(code) {
                return Err(io::Error::other(format!("io_uring without {name}")));
            }
        }
        if let Some(lock) = performer.lock() {
            // After kill -9 the kernel lets go of the ring, and with it of this file, only when the last write has
            // landed; else the next process could get the directory before that.
            ring.submitter().register_files(&[lock.descriptor()])?;
        }
        // SAFETY: plain call; the result is checked.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made and owned by nobody else.
        let wake = unsafe { File::from_raw_fd(descriptor) };
        let inbox = Arc::new(Inbox { waiting: Mutex::default(), wake });
        let mut driver = Driver {
            ring,
            inbox: Arc::clone(&inbox),
            performer: Arc::clone(performer),
            completions: Arc::clone(completions),
            flying: BTreeMap::new(),
            held: VecDeque::new(),
            under_way_max,
            asleep_for: 0,
            next: 0,
            wake_count: Box::new(0),
        };
        let worker = thread::Builder::new().name("mainstay-uring".to_owned()).spawn(move || driver.run())?;
        Ok(Self { inbox, worker: Some(worker) })
    }

    pub(crate) fn submit(&self, effect: DiskEffect) {
        self.inbox.waiting.lock().unwrap_or_else(PoisonError::into_inner).effects.push_back(effect);
        self.inbox.ring_bell();
    }
}

impl Drop for Uring {
    /// Finishes what was submitted, as the thread backend does.
    fn drop(&mut self) {
        self.inbox.waiting.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.inbox.ring_bell();
        join_unless_self(self.worker.take().expect("dropped once"));
    }
}

impl Inbox {
    fn ring_bell(&self) {
        (&self.wake).write_all(&1_u64.to_ne_bytes()).expect("an eventfd counts to 2^64");
    }
}

/// A request in the kernel's hands.
struct Flying {
    effect: DiskEffect,
    ticket: Ticket,
    segment: Arc<SegmentFile>,
    /// The segments after this one that the same sync is still to cover.
    remaining: Option<(u64, u64)>,
    /// Bytes expected to be written; 0 for a sync.
    length: usize,
    /// A durable buffered write goes on with a sync.
    then_sync: bool,
    recorded: Option<u64>,
    _source: Option<Source>,
}

struct Driver {
    ring: IoUring,
    inbox: Arc<Inbox>,
    performer: Arc<Performer>,
    completions: Arc<Completions>,
    flying: BTreeMap<u64, Flying>,
    /// Writes beyond `under_way_max`, no more than two a page of the ring: while one waits, others are flying.
    held: VecDeque<DiskEffect>,
    /// In bytes, no less than a page.
    under_way_max: usize,
    /// Waits with a write held back that are to be slept through.
    asleep_for: u32,
    next: u64,
    wake_count: Box<u64>,
}

impl Driver {
    fn run(&mut self) {
        self.listen();
        let mut stop = false;
        while !(stop && self.flying.is_empty()) {
            self.wait();
            let arrived: Vec<_> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (name, result) in arrived {
                if name != WAKE {
                    self.landed(name, result);
                    continue;
                }
                let effects = {
                    let mut waiting = self.inbox.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    stop = waiting.stop;
                    std::mem::take(&mut waiting.effects)
                };
                self.listen();
                for effect in effects {
                    match effect {
                        DiskEffect::Write { .. } => self.held.push_back(effect),
                        effect => self.take_off(effect),
                    }
                }
                self.begin_writes();
            }
        }
        debug_assert!(self.held.is_empty(), "what waits begins when something has landed");
        // Nothing is in flight any more. The kernel takes a closed ring apart in its own time; the directory's lock must
        // not wait for that, or opening it again at once would find it held by nobody.
        if self.performer.lock().is_some() {
            let _ = self.ring.submitter().unregister_files();
        }
    }

    /// Hands over what is in the ring and returns when something has landed or the inbox has changed.
    fn wait(&mut self) {
        if self.held.is_empty() || !self.watch() {
            handed_over(self.ring.submit_and_wait(1));
        }
    }

    /// As [`Self::wait`], but awake and for some time only: whether something has landed or the inbox has changed. The disk stands still from the
    /// end of one write until the next is handed over; where a write waits for that, no core should have to be woken up first.
    fn watch(&mut self) -> bool {
        if self.asleep_for > 0 {
            self.asleep_for -= 1;
            return false;
        }
        handed_over(self.ring.submit());
        if awake::watch(AWAKE_WHILE_HELD_MAX, || !self.ring.completion().is_empty()) == Watched::Happened {
            return true;
        }
        self.asleep_for = ASLEEP_WAITS;
        false
    }

    /// Asks to be told when the inbox changes.
    fn listen(&mut self) {
        let into = std::ptr::from_mut(self.wake_count.as_mut()).cast();
        let entry = opcode::Read::new(types::Fd(self.inbox.wake.as_raw_fd()), into, 8).build();
        // SAFETY: the counter is boxed and lives as long as the ring, both in this driver.
        unsafe { self.push(&entry.user_data(WAKE)) };
    }

    fn begin_writes(&mut self) {
        while let Some(&DiskEffect::Write { from, to, .. }) = self.held.front() {
            if self.under_way() + (to - from) as usize > self.under_way_max {
                return;
            }
            let effect = self.held.pop_front().expect("it was looked at");
            self.take_off(effect);
        }
    }

    /// Bytes of the writes in the kernel's hands.
    fn under_way(&self) -> usize {
        let bytes = |flying: &Flying| match flying.effect {
            DiskEffect::Write { from, to, .. } => (to - from) as usize,
            _ => 0,
        };
        self.flying.values().map(bytes).sum()
    }

    fn take_off(&mut self, effect: DiskEffect) {
        match effect {
            DiskEffect::Write { ticket, slot, from, to, place, durable } => {
                let Some(segment) = self.performer.segment(place.segment) else {
                    return self.completions.push(self.performer.perform(&effect));
                };
                let durable = durable && !self.performer.skips_sync();
                let source = self.performer.source(slot, from, to);
                let recorded = self.performer.begin_write(&segment, &source, place, durable);
                let direct = self.performer.method() == WriteMethod::Direct;
                let length = u32::try_from(source.length).expect("a write lies within one page");
                let entry = opcode::Write::new(types::Fd(segment.file.as_raw_fd()), source.address, length)
                    .offset(place.offset)
                    .rw_flags(if direct && durable { libc::RWF_DSYNC } else { 0 })
                    .build();
                self.fly(
                    &entry,
                    Flying {
                        effect,
                        ticket,
                        segment,
                        remaining: None,
                        length: source.length,
                        then_sync: durable && !direct,
                        recorded,
                        _source: Some(source),
                    },
                );
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                if self.performer.skips_sync() {
                    return self.completions.push(DiskEvent::Done { ticket });
                }
                self.sync(effect, ticket, first_segment, last_segment);
            }
            DiskEffect::Prepare { .. } | DiskEffect::Trim { .. } => unreachable!("the catalog's duty"),
        }
    }

    /// Syncs one segment after the other.
    fn sync(&mut self, effect: DiskEffect, ticket: Ticket, first: u64, last: u64) {
        let Some(segment) = self.performer.segment(first) else {
            return self.completions.push(self.performer.perform(&effect));
        };
        let recorded = self.performer.begin_sync(&segment);
        let entry = fsync(&segment);
        let remaining = (first < last).then_some((first + 1, last));
        self.fly(
            &entry,
            Flying {
                effect,
                ticket,
                segment,
                remaining,
                length: 0,
                then_sync: false,
                recorded,
                _source: None,
            },
        );
    }

    fn fly(&mut self, entry: &squeue::Entry, flying: Flying) {
        let name = self.next;
        self.next += 1;
        self.flying.insert(name, flying);
        // SAFETY: the file and the bytes are kept by `flying` until the request has landed.
        unsafe { self.push(&entry.clone().user_data(name)) };
    }

    /// # Safety
    /// What the entry points to must stay valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: as the caller vouches.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // A full ring only has to be handed over; requests do not wait for each other.
            handed_over(self.ring.submit());
        }
    }

    fn landed(&mut self, name: u64, result: i32) {
        let mut flying = self.flying.remove(&name).expect("each request completes once");
        let written = usize::try_from(result);
        let complete = written == Ok(flying.length);
        if complete && flying.then_sync {
            flying.then_sync = false;
            flying.length = 0;
            let entry = fsync(&flying.segment);
            return self.fly(&entry, flying);
        }
        if !self.held.is_empty() {
            // Before anybody is told: the disk may have nothing else to do.
            self.begin_writes();
            handed_over(self.ring.submit());
        }
        if complete {
            self.performer.end(flying.recorded, true);
            if let Some((first, last)) = flying.remaining {
                return self.sync(flying.effect, flying.ticket, first, last);
            }
            return self.completions.push(DiskEvent::Done { ticket: flying.ticket });
        }
        self.performer.end(flying.recorded, false);
        let is_sync = flying.length == 0;
        let event = match written {
            // What this kernel will not do here, or did in part, the plain calls do. Never for a sync that was tried:
            // its failure is final.
            Ok(_) => self.performer.perform(&flying.effect),
            Err(_)
                if !is_sync
                    && matches!(-result, libc::EAGAIN | libc::EINTR | libc::EOPNOTSUPP | libc::EINVAL) =>
            {
                self.performer.perform(&flying.effect)
            }
            Err(_) => completion(flying.ticket, Err(failure_of_number(-result))),
        };
        self.completions.push(event);
    }
}

/// What was not taken is handed over again with the next wait.
fn handed_over(result: io::Result<usize>) {
    match result {
        Ok(_) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
        Err(error) => panic!("io_uring_enter on a ring of our own: {error}"),
    }
}

fn fsync(segment: &SegmentFile) -> squeue::Entry {
    opcode::Fsync::new(types::Fd(segment.file.as_raw_fd())).flags(types::FsyncFlags::DATASYNC).build()
}
