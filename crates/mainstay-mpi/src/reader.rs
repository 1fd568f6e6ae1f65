//! Reading a rank's log, whole or cut off anywhere: from the file, and from the ring where the file has no more.

pub mod damage;

use self::damage::{Damage, Ring, mend_count};
use crate::compression::{self, Compression};
use crate::format::{
    self, ENTERED_OFFSET, FILE_HEADER_BYTES, FLAG_CONTINUED, FLAG_MORE, FileHeader, HeaderError, Kind,
    LEFT_OFFSET, LOG_MAGIC, PAGE_HEADER_BYTES, RECORD_BYTES_MAX, RING_MAGIC, RecordHeader, STOPPED_OFFSET,
};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A log could not be opened or read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refused.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no log, or one of another version.
    #[error("{} is not a log that can be read", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// Why.
        source: HeaderError,
    },
    /// It keeps only its end, which is not enough for what was asked.
    #[error("{} keeps its first page and its end from call {next_call} on (--keep-last): what is between is needed for this", path.display())]
    Bounded {
        /// The file.
        path: PathBuf,
        /// The first call of its end.
        next_call: u64,
    },
}

/// What a log that keeps only its end lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Number of the first call that is there again.
    pub next_call: u64,
    /// The first page that is there again.
    page: u64,
}

/// One record, put together from its fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: Kind,
    /// Number of the function, where the kind has one.
    pub function: u16,
    /// Which thread called.
    pub thread: u16,
    /// Its body.
    pub body: Vec<u8>,
}

impl Record {
    /// How many calls it stands for.
    #[must_use]
    pub fn calls(&self) -> u64 {
        match self.kind {
            Kind::Call => 1,
            Kind::Misses | Kind::Unhandled => {
                self.body.first_chunk().map_or(0, |count| u64::from_le_bytes(*count))
            }
            _ => 0,
        }
    }
}

/// How a log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Function and number of the call that was entered last, if the process was cut off: from the ring.
    pub entered: Option<(u16, u64)>,
    /// The process left by `_exit` with this status: from the ring.
    pub left: Option<i32>,
    /// Recording stopped early: the system's number of the error, and how many calls are whole.
    pub stopped: Option<(i32, u64)>,
    /// The last record was cut off between two of its fragments: the write that was going on.
    pub torn: bool,
}

/// Records in order. Ends at the first that is not whole: nothing behind it is believed. Why it ends there is known then.
#[derive(Debug)]
pub struct Reader {
    header: FileHeader,
    path: PathBuf,
    log: Option<File>,
    /// What the file system said of the log before anything of it was read.
    log_at_open: Option<FileState>,
    ring_path: PathBuf,
    ring_state: Ring,
    /// Contents of the ring, control block first; empty if there is none.
    ring: Vec<u8>,
    page_number: u64,
    /// Where the current and the next compressed page begin in the log, in bytes.
    frame_begin: u64,
    frame_at: u64,
    page: Vec<u8>,
    page_in_ring: bool,
    offset: usize,
    tail: Tail,
    gap: Option<Gap>,
    /// The gap was just passed, as far as the caller was told; and as long as no record began behind it.
    passed: bool,
    resuming: bool,
    /// Calls so far, and of them those in the gap.
    calls: u64,
    calls_not_kept: u64,
    /// The record of the end was read.
    ended: bool,
    /// There is no further record; the parts of the last one did not belong together.
    at_end: bool,
    broken: bool,
    damage: Option<Damage>,
    overtaken: bool,
}

impl Reader {
    /// Opens the log at `path`, with the ring at `ring_path` if there is one.
    ///
    /// # Errors
    /// [`ReadError`] when it cannot be read or is none.
    pub fn open(path: &Path, ring_path: &Path) -> Result<Self, ReadError> {
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |source| ReadError::Io { path, source }
        };
        let log = File::open(path).map_err(io_error(path))?;
        let mut bytes = [0; FILE_HEADER_BYTES];
        let length = read_at_most(&log, &mut bytes, 0).map_err(io_error(path))?;
        let header = FileHeader::decode(&bytes[..length], LOG_MAGIC)
            .map_err(|source| ReadError::Header { path: path.to_owned(), source })?;
        // Before the ring is read: what happens to the log in between counts as happening while it is read.
        let log = (FileState::of(&log), log);
        let (ring_state, ring) = match std::fs::read(ring_path) {
            Ok(ring) if FileHeader::decode(&ring, RING_MAGIC) == Ok(header) => (Ring::Here, ring),
            // A ring of something else is no part of this log.
            Ok(_) => (Ring::Foreign, Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Ring::Missing, Vec::new()),
            Err(error) => return Err(io_error(ring_path)(error)),
        };
        Ok(Self::over(header, (path, Some(log)), (ring_path, ring_state, ring)))
    }

    /// Reads a log that is in memory: for tests and the fuzzer.
    ///
    /// # Errors
    /// [`HeaderError`] when the bytes do not begin like a ring.
    pub fn over_ring(ring: Vec<u8>) -> Result<Self, HeaderError> {
        let header = FileHeader::decode(&ring, RING_MAGIC)?;
        Ok(Self::over(header, (Path::new(""), None), (Path::new(""), Ring::Here, ring)))
    }

    fn over(
        header: FileHeader,
        (path, log): (&Path, Option<(Option<FileState>, File)>),
        (ring_path, ring_state, ring): (&Path, Ring, Vec<u8>),
    ) -> Self {
        let cell = |at: usize| ring.get(at..).and_then(format::decode_cell);
        let tail = Tail {
            entered: cell(ENTERED_OFFSET)
                .map(|(function, call)| (function.to_le_bytes(), call))
                .map(|(function, call)| (u16::from_le_bytes([function[0], function[1]]), call)),
            stopped: cell(STOPPED_OFFSET)
                .map(|(errno, call)| (i32::try_from(errno).unwrap_or(i32::MAX), call)),
            left: ring.get(LEFT_OFFSET..).and_then(format::decode_left),
            torn: false,
        };
        let (log_at_open, log) = log.unzip();
        let mut reader = Self {
            header,
            path: path.to_owned(),
            log,
            log_at_open: log_at_open.flatten(),
            ring_path: ring_path.to_owned(),
            ring_state,
            ring,
            page_number: 0,
            frame_begin: FILE_HEADER_BYTES as u64,
            frame_at: FILE_HEADER_BYTES as u64,
            page: Vec::new(),
            page_in_ring: false,
            offset: 0,
            tail,
            gap: None,
            passed: false,
            resuming: false,
            calls: 0,
            calls_not_kept: 0,
            ended: false,
            at_end: false,
            broken: false,
            damage: None,
            overtaken: false,
        };
        reader.gap = reader.find_gap();
        reader.load_page();
        reader
    }

    /// What lacks between the beginning and the end, if the log keeps only these.
    #[must_use]
    pub fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Whether the record that was read last is the first behind the gap. Says so once.
    pub fn passed_gap(&mut self) -> bool {
        std::mem::take(&mut self.passed)
    }

    /// Calls so far, those included that a gap lacks.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Of the calls so far, those that a gap lacks.
    #[must_use]
    pub fn calls_not_kept(&self) -> u64 {
        self.calls_not_kept
    }

    /// Whether the record of the end was read: nothing is missing.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// What is wrong with the log, if it ends otherwise than a process leaves it. Known after the last record.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Whether the rank runs, and has given back a page of its log (`--keep-last`) that was to be read next. Known after the last
    /// record; who wants the rest opens the log once more.
    #[must_use]
    pub fn overtaken(&self) -> bool {
        self.overtaken
    }

    /// Pages of a log with a bound are given back from the second on, as many as the latest ones need. More zeroes than that are damage,
    /// and so is whatever else stands there: it ends the log.
    fn find_gap(&self) -> Option<Gap> {
        let (header, log) = (self.header, self.log.as_ref()?);
        if header.kept_pages == 0 {
            return None;
        }
        let end = log.metadata().ok()?.len();
        let latest = header.page_at(end.checked_sub(1)?);
        // A kill may come between giving a page back and writing the next.
        let first_kept_max = (latest + 2).saturating_sub(u64::from(header.kept_pages));
        let page_bytes = header.page_bytes as usize;
        let mut number = 1;
        loop {
            if number > first_kept_max {
                return None;
            }
            let page = read_up_to(log, page_bytes, header.log_offset(number));
            if page.len() == page_bytes && page.iter().all(|byte| *byte == 0) {
                number = (number + 1).max(header.page_at(next_data(log, header.log_offset(number + 1))));
                continue;
            }
            let seed = header.seed(number);
            let in_ring = self.ring.get(header.ring_offset(number)..).unwrap_or_default();
            let found = [&page[..], in_ring]
                .into_iter()
                .find_map(|page| Some((page, format::decode_page_header(page, seed, number)?)));
            // The end of a log that has none, or damage.
            let (page, first_call) = found.filter(|_| number > 1)?;
            // A call that began in a page that is gone is gone, too.
            let begun =
                RecordHeader::read(page.get(PAGE_HEADER_BYTES..)?, seed).is_some_and(|(record, _)| {
                    record.flags & FLAG_CONTINUED != 0
                        && matches!(record.kind, Kind::Call | Kind::Misses | Kind::Unhandled)
                });
            return Some(Gap { next_call: first_call + u64::from(begun), page: number });
        }
    }

    /// The header of the log.
    #[must_use]
    pub fn header(&self) -> FileHeader {
        self.header
    }

    /// How the log ends; whether it is torn is known after the last record.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// Number of the call that the rank said last that it waits in, and what went into it.
    #[must_use]
    pub fn entered_inputs(&self) -> Option<(u64, &[u8])> {
        format::decode_inputs(&self.ring)
    }

    /// The next record, or `None` at the end.
    #[must_use]
    pub fn next_record(&mut self) -> Option<Record> {
        let was_at_end = self.at_end;
        let record = self.next_whole();
        match &record {
            Some(record) => {
                self.calls = self.calls.saturating_add(record.calls());
                self.ended |= record.kind == Kind::End;
            }
            None => {
                self.at_end = true;
                if !was_at_end && !self.ended {
                    let found = self.find_damage();
                    // Of a rank that runs, what was read at different moments need not fit.
                    let goes_on = found.is_some() && self.goes_on();
                    self.overtaken = goes_on && self.ring_page_behind();
                    self.damage = found.filter(|_| !goes_on);
                }
            }
        }
        record
    }

    fn next_whole(&mut self) -> Option<Record> {
        let mut record: Option<Record> = None;
        loop {
            let Some((header, body)) = self.next_fragment() else {
                self.tail.torn |= record.is_some();
                return None;
            };
            let body = &self.page[body];
            // Of records at the gap one half is gone: the end of the one, the beginning of the other.
            if self.resuming {
                record = None;
                if header.flags & FLAG_CONTINUED != 0 {
                    continue;
                }
                self.resuming = false;
            }
            match &mut record {
                None if header.flags & FLAG_CONTINUED == 0 => {
                    record = Some(Record {
                        kind: header.kind,
                        function: header.function,
                        thread: header.thread,
                        body: body.to_vec(),
                    });
                }
                Some(record)
                    if header.flags & FLAG_CONTINUED != 0
                        && header.kind == record.kind
                        && record.body.len() + body.len() <= RECORD_BYTES_MAX =>
                {
                    record.body.extend_from_slice(body);
                }
                _ => {
                    self.tail.torn = true;
                    self.broken = true;
                    return None;
                }
            }
            if header.flags & FLAG_MORE == 0 {
                return record;
            }
        }
    }

    fn next_fragment(&mut self) -> Option<(RecordHeader, std::ops::Range<usize>)> {
        loop {
            if self.at_end || self.page.is_empty() {
                return None;
            }
            let seed = self.header.seed(self.page_number);
            let rest = self.page.get(self.offset..).unwrap_or_default();
            let full = self.header.page_bytes as usize - self.offset < format::RECORD_HEADER_BYTES;
            match RecordHeader::read(rest, seed) {
                Some((header, body)) if header.kind != Kind::Pad => {
                    let at = self.offset + format::RECORD_HEADER_BYTES;
                    let body = at..at + body.len();
                    self.offset += header.span();
                    return Some((header, body));
                }
                Some(_) => {}
                None if full => {}
                None => return None,
            }
            self.page_number += 1;
            if let Some(gap) = self.gap.filter(|gap| self.page_number == 1 && gap.page > 1) {
                self.page_number = gap.page;
                (self.passed, self.resuming) = (true, true);
                self.calls_not_kept = gap.next_call.saturating_sub(1 + self.calls);
                self.calls += self.calls_not_kept;
            }
            self.load_page();
        }
    }

    /// Loads the page from the file, or from the ring if that has more of it.
    fn load_page(&mut self) {
        let (header, number) = (self.header, self.page_number);
        let seed = header.seed(number);
        self.frame_begin = self.frame_at;
        let mut from_file = Vec::new();
        if let Some(log) = &self.log {
            match header.compression {
                Compression::None => {
                    from_file = read_up_to(log, header.page_bytes as usize, header.log_offset(number));
                }
                Compression::Zstandard => {
                    let begin = read_up_to(log, compression::FRAME_HEADER_BYTES, self.frame_at);
                    let length = compression::frame_bytes(&begin).unwrap_or(0);
                    // A frame is hardly longer than its page; more is damage.
                    let length = length.min(2 * header.page_bytes as usize);
                    let frame = read_up_to(log, length, self.frame_at);
                    from_file = compression::decompress(&frame, &header, number).unwrap_or_default();
                    self.frame_at += frame.len() as u64;
                }
            }
        }
        let ring_at = header.ring_offset(number);
        let from_ring = self.ring.get(ring_at..).unwrap_or_default();
        let mut from_ring = from_ring[..from_ring.len().min(header.page_bytes as usize)].to_vec();
        match whole_bytes(&from_ring, seed, number) {
            0 => {}
            end => mend_count(&mut from_ring, end, seed),
        }
        self.offset = PAGE_HEADER_BYTES;
        self.page_in_ring = whole_bytes(&from_ring, seed, number) > whole_bytes(&from_file, seed, number);
        if self.page_in_ring {
            self.page = from_ring;
        } else if format::decode_page_header(&from_file, seed, number).is_some() {
            self.page = from_file;
        } else {
            self.page = Vec::new();
        }
    }
}

/// By what a log tells that it was written on, or given back in part. Not the space that it takes: a system says that later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl FileState {
    fn of(file: &File) -> Option<Self> {
        let about = file.metadata().ok()?;
        let modified = (about.mtime(), about.mtime_nsec());
        Some(Self { length: about.len(), modified })
    }
}

/// How far a page parses, in bytes; 0 if it is not that page.
fn whole_bytes(page: &[u8], seed: u32, number: u64) -> usize {
    if format::decode_page_header(page, seed, number).is_none() {
        return 0;
    }
    let mut at = PAGE_HEADER_BYTES;
    while let Some((header, _)) = page.get(at..).and_then(|rest| RecordHeader::read(rest, seed)) {
        at += header.span();
        if header.kind == Kind::Pad {
            return page.len();
        }
    }
    at
}

/// Where the file has data again, from `from` on; `from` where the file system does not know. A hole may be terabytes long.
fn next_data(file: &File, from: u64) -> u64 {
    let Ok(offset) = libc::off_t::try_from(from) else { return from };
    // SAFETY: the descriptor is open for as long as `file` lives; all reads give their own offsets.
    let data = unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_DATA) };
    u64::try_from(data).unwrap_or(from)
}

fn read_up_to(file: &File, length: usize, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let length = read_at_most(file, &mut bytes, at).unwrap_or(0);
    bytes.truncate(length);
    bytes
}

fn read_at_most(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<usize> {
    let whole = bytes.len();
    while !bytes.is_empty() {
        match file.read_at(bytes, at)? {
            0 => break,
            length => {
                bytes = &mut bytes[length..];
                at += length as u64;
            }
        }
    }
    Ok(whole - bytes.len())
}
