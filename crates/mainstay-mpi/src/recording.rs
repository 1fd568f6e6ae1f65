//! Recording: calls become records; when a page cannot be written, recording ends and the program goes on.

use crate::call::Call;
use crate::clock::{Counter, UNIT_SHIFT};
use crate::definition::{self, Comm};
use crate::ending::Ending;
use crate::field::{Field, ObjectKind};
use crate::figures::Figures;
use crate::format::{FileHeader, Kind};
use crate::pages::{CreateError, Head, Pages, Writing};
use crate::payload::Payload;
use crate::typemap::Typemap;
use crate::varint::put_unsigned;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The log that is being written.
#[derive(Debug)]
pub struct Recording {
    pages: Option<Pages>,
    payload: Payload,
    log_path: PathBuf,
    ring_path: PathBuf,
    /// Calls that are in the log.
    calls: u64,
    /// Function and fields of the run of polls that the last record is.
    run: Option<(Kind, u16, Vec<u8>)>,
    /// Why recording ended early: the system's number of an error.
    stopped: Option<i32>,
    unhandled: u64,
    times: Option<Times>,
    /// Of a log that keeps its end only: the page that has the last moment. Each has one, as those before may be gone.
    page_of_moment: Option<u64>,
}

/// How calls are timed.
#[derive(Clone, Copy, Debug)]
struct Times {
    counter: Counter,
    /// When the call began that is going on, and when the one before ended, in units of the log.
    begun: u64,
    ended: u64,
    /// When a moment was written last, in units of the log.
    moment: u64,
}

impl Times {
    /// The call ends now: the field that says when it began and how long it took.
    fn end_call(&mut self) -> Field<'static> {
        let now = self.counter.ticks() >> UNIT_SHIFT;
        let idle = self.begun.saturating_sub(self.ended);
        self.ended = now;
        Field::Time(idle, now.saturating_sub(self.begun))
    }
}

/// A moment is written again after so many units of the log: about a second.
const MOMENT_UNITS: u64 = 3 << 20;

/// How a recording went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Calls in the log.
    pub calls: u64,
    /// Calls among them that replay cannot serve.
    pub unhandled: u64,
    /// Why it ended early, if it did: the system's number of an error.
    pub stopped: Option<i32>,
    /// What it cost.
    pub figures: Figures,
}

impl Recording {
    /// Begins a log. Its files have a passing name until the rank is known.
    ///
    /// # Errors
    /// [`CreateError`] when a file cannot be made; nothing is left.
    pub fn create(
        directory: &Path,
        name: &str,
        header: FileHeader,
        timed: bool,
    ) -> Result<Self, CreateError> {
        let log_path = directory.join(format!("{name}.log"));
        let ring_path = directory.join(format!("{name}.ring"));
        let pages = Some(Pages::create(&log_path, &ring_path, header)?);
        let mut recording = Self {
            pages,
            payload: header.payload,
            log_path,
            ring_path,
            calls: 0,
            run: None,
            stopped: None,
            unhandled: 0,
            times: None,
            page_of_moment: (header.kept_pages > 0).then_some(0),
        };
        if timed {
            let counter = Counter::best();
            let now = counter.ticks() >> UNIT_SHIFT;
            recording.times = Some(Times { counter, begun: now, ended: now, moment: now });
            recording.write_moment();
        }
        Ok(recording)
    }

    /// Which side logs the bytes of messages.
    #[must_use]
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Calls that are in the log.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Writes this moment by all clocks, from which readers know how fast the counter is.
    pub fn write_moment(&mut self) {
        if let Some(times) = &mut self.times {
            let moment = times.counter.moment();
            times.moment = moment.ticks >> UNIT_SHIFT;
            let mut body = Vec::new();
            moment.encode(&mut body);
            self.append(Kind::Clock, 0, 0, &[&body]);
        }
    }

    /// Gives the files the name of the rank. Where that fails, the old names stay.
    pub fn rename(&mut self, name: &str) {
        let log_path = self.log_path.with_file_name(format!("{name}.log"));
        let ring_path = self.ring_path.with_file_name(format!("{name}.ring"));
        // The ring first: who finds the log while the program runs finds its ring as well.
        if std::fs::rename(&self.ring_path, &ring_path).is_ok() {
            if let Some(pages) = &mut self.pages {
                pages.renamed(&ring_path);
            }
            self.ring_path = ring_path;
        }
        if std::fs::rename(&self.log_path, &log_path).is_ok() {
            self.log_path = log_path;
        }
    }

    /// Says what becomes of full pages, and whether copying is measured.
    pub fn set_writing(&mut self, writing: Writing, measure_copies: bool, drop_when_behind: bool) {
        if let Some(pages) = &mut self.pages {
            pages.set_writing(writing);
            if drop_when_behind {
                pages.drop_when_behind();
            }
            if measure_copies {
                pages.measure_copies();
            }
        }
    }

    fn lacks_moment(&mut self) -> bool {
        let (Some(with), Some(pages)) = (self.page_of_moment, &self.pages) else {
            return false;
        };
        self.page_of_moment = Some(pages.page());
        self.times.is_some() && with != pages.page()
    }

    /// Says that a call is entered.
    pub fn enter(&mut self, function: u16) {
        let call = self.calls + 1;
        if let Some(pages) = &mut self.pages {
            pages.enter(function, call);
        }
        if let Some(times) = &mut self.times {
            times.begun = times.counter.ticks() >> UNIT_SHIFT;
        }
    }

    /// Says what went into the call, which is about to wait for other ranks.
    pub fn wait(&mut self, call: &Call) {
        let number = self.calls + 1;
        if let Some(pages) = &mut self.pages {
            pages.enter_with(number, [call.fields(), &call.awaited]);
        }
    }

    /// Writes a call.
    ///
    /// # Safety
    /// As for [`Call::parts`], until this returns.
    pub unsafe fn write(&mut self, call: &mut Call) {
        if call.miss {
            self.count(Kind::Misses, call.function, call.thread, call.fields());
            // Polls that differ are records of their own, and may fill all pages that are kept.
            if self.lacks_moment() {
                self.write_moment();
            }
            return;
        }
        if let Some(times) = &mut self.times {
            call.put(&times.end_call());
        }
        if call.has_foreign() {
            // SAFETY: the caller's promise.
            let parts = unsafe { call.parts() };
            self.append(Kind::Call, call.function, call.thread, &parts);
        } else {
            self.append(Kind::Call, call.function, call.thread, &[call.fields()]);
        }
        self.calls += u64::from(self.stopped.is_none());
        if self.times.is_some_and(|times| times.ended >= times.moment + MOMENT_UNITS) || self.lacks_moment() {
            self.write_moment();
        }
    }

    /// Writes that a call was forwarded and not recorded.
    pub fn write_unhandled(&mut self, function: u16, thread: u16) {
        self.unhandled += 1;
        self.count(Kind::Unhandled, function, thread, &[]);
    }

    /// Writes a flattened type.
    pub fn write_type(&mut self, id: u64, map: &Typemap) {
        let mut body = Vec::new();
        put_unsigned(&mut body, id);
        map.encode(&mut body);
        self.append(Kind::Type, 0, 0, &[&body]);
    }

    /// Writes who is in a communicator.
    pub fn write_comm(&mut self, comm: &Comm) {
        let mut body = Vec::new();
        comm.encode(&mut body);
        self.append(Kind::Comm, 0, 0, &[&body]);
    }

    /// Writes Fortran's numbers of predefined objects.
    pub fn write_fortran(&mut self, entries: &[(ObjectKind, u64, i32)]) {
        let mut body = Vec::new();
        definition::encode_fortran(entries, &mut body);
        self.append(Kind::Fortran, 0, 0, &[&body]);
    }

    /// Writes texts: the names of functions, or keys and values of the start.
    pub fn write_texts<'a>(&mut self, kind: Kind, texts: impl ExactSizeIterator<Item = &'a str>) {
        let mut body = Vec::new();
        definition::encode_texts(texts, &mut body);
        self.append(kind, 0, 0, &[&body]);
    }

    /// Whether recording ended early.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The name of the rank's files, without their ending.
    #[must_use]
    pub fn name(&self) -> String {
        self.log_path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Where a process that leaves at once says so: see [`Pages::place_of_left`].
    #[must_use]
    pub fn place_of_left(&self) -> Option<*mut u8> {
        self.pages.as_ref().map(Pages::place_of_left)
    }

    /// Writes the end and all that is in the ring.
    pub fn finish(&mut self, ending: Ending) -> Ended {
        self.write_moment();
        let begun = Instant::now();
        let mut of_rank = Figures { calls: self.calls, ..Figures::default() };
        if let Some(pages) = &self.pages {
            let figures = pages.figures();
            of_rank.take_pages(figures, pages.log_bytes());
            let mut body = Vec::new();
            for figure in [figures.pages_filled, figures.pages_awaited, figures.stall_ns] {
                put_unsigned(&mut body, figure);
            }
            ending.encode(&mut body);
            self.append(Kind::End, 0, 0, &[&body]);
        }
        if let Some(mut pages) = self.pages.take() {
            if let Some(errno) = self.stopped {
                pages.mark_stopped(errno, self.calls);
            }
            match pages.finish() {
                Ok(used) => of_rank.take_writer(used),
                Err(errno) => {
                    self.stopped.get_or_insert(errno);
                }
            }
        }
        of_rank.drain_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ended { calls: self.calls, unhandled: self.unhandled, stopped: self.stopped, figures: of_rank }
    }

    fn count(&mut self, kind: Kind, function: u16, thread: u16, fields: &[u8]) {
        let same = self.run.as_ref().is_some_and(|run| run.0 == kind && run.1 == function && run.2 == fields);
        let counted = same && self.pages.as_mut().is_some_and(Pages::count_up);
        if !counted {
            let mut time = Vec::new();
            if let Some(times) = &mut self.times {
                times.end_call().encode(&mut time);
            }
            self.append(kind, function, thread, &[&1_u64.to_le_bytes(), fields, &time]);
            self.run = Some((kind, function, fields.to_vec()));
        }
        self.calls += u64::from(self.stopped.is_none());
    }

    fn append(&mut self, kind: Kind, function: u16, thread: u16, parts: &[&[u8]]) {
        self.run = None;
        if self.stopped.is_some() {
            return;
        }
        let Some(pages) = &mut self.pages else {
            return;
        };
        if let Err(errno) = pages.append(Head { kind, function, thread, call: self.calls + 1 }, parts) {
            pages.mark_stopped(errno, self.calls);
            self.stopped = Some(errno);
        }
    }
}
