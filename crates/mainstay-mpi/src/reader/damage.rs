//! Why a log ends without the record of its end: its process was killed, or it was damaged since.
//!
//! A kill leaves every page whole, in the log or in the ring, up to the record that was being written; nothing of this run
//! stands behind that one, and no call was entered but the next. Whatever is otherwise is damage.

use super::{FileState, Reader, read_up_to};
use crate::compression::{self, Compression, FRAME_HEADER_BYTES, FRAME_MAGIC};
use crate::format::{
    self, FILE_HEADER_BYTES, FLAG_CONTINUED, FLAG_MORE, Kind, PAGE_HEADER_BYTES, RECORD_HEADER_BYTES,
    RecordHeader,
};
use std::fmt;
use std::fs::File;
use std::path::PathBuf;

/// Compressed pages begin anywhere: they are looked for in pieces of the log of so many bytes.
const SEARCH_BYTES: usize = 1 << 20;

/// A log lacks what it once had, or has other bytes. What was read of it before is right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at byte {offset}: {cause}. {}", path.display(), Good(*calls))]
pub struct Damage {
    /// The file: the log, or its ring.
    pub path: PathBuf,
    /// How far it is good, in bytes from its beginning.
    pub offset: u64,
    /// The last call that is whole.
    pub calls: u64,
    /// What is wrong.
    pub cause: DamageCause,
}

/// What is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamageCause {
    /// A record or page fails its checksum, and what was written behind it is there.
    #[error("what stands there is not whole (a checksum is wrong, or bytes are missing)")]
    Checksum,
    /// A part of a record is whole, and the parts around it are not its own.
    #[error("a part of a record is missing")]
    Sequence,
    /// The ring says that more calls were made.
    #[error("the log ends there, and its ring says that call {call} was begun")]
    CallsMissing {
        /// The call.
        call: u64,
    },
    /// It has neither the record of its end nor a ring.
    #[error("it ends there without the record of its end, and {} is missing, which has the last pages of a rank that was killed: bring it from the folder of the recording", ring.display())]
    RingMissing {
        /// Where the ring should be.
        ring: PathBuf,
    },
    /// It has no record of its end, and the ring is none of this run.
    #[error("it ends there without the record of its end, and {}, which should have the last pages, is damaged or of another run", ring.display())]
    RingForeign {
        /// The ring.
        ring: PathBuf,
    },
    /// It has no page at all.
    #[error("it has no page: recorded with --pages 0, or its ring {} is missing or damaged", ring.display())]
    Empty {
        /// Where the ring should be.
        ring: PathBuf,
    },
}

struct Good(u64);

impl fmt::Display for Good {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => out.write_str("No call is left of it"),
            calls => write!(out, "It is good up to call {calls}"),
        }
    }
}

/// What became of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// It is there.
    Here,
    /// There is none: the process ended by itself, or the file is lost.
    Missing,
    /// It is of something else, or its header is damaged.
    Foreign,
}

impl Reader {
    /// Looks behind the place where reading ended, unless the log has its end.
    pub(super) fn find_damage(&self) -> Option<Damage> {
        let (path, offset) = self.position();
        let cause = self.cause(offset)?;
        Some(Damage { path, offset, calls: self.calls, cause })
    }

    /// Whether the rank has written since the log was opened. Its ring may be as it was: a page is on its way to the log, and another one
    /// given back, while the rank computes.
    pub(super) fn goes_on(&self) -> bool {
        self.ring_state == Ring::Here
            && (self.log.as_ref().and_then(FileState::of) != self.log_at_open
                || std::fs::read(&self.ring_path).ok().as_ref() != Some(&self.ring))
    }

    fn cause(&self, offset: u64) -> Option<DamageCause> {
        let ring = || self.ring_path.clone();
        if self.page_number == 0 && self.page.is_empty() && self.log_bytes() <= FILE_HEADER_BYTES as u64 {
            return Some(DamageCause::Empty { ring: ring() });
        }
        if self.broken {
            return Some(DamageCause::Sequence);
        }
        if self.record_behind() || self.ring_page_behind() || self.log_page_behind() {
            return Some(DamageCause::Checksum);
        }
        let entered = self.tail.entered.map(|(_, call)| call).filter(|call| *call > self.calls + 1);
        let stopped = self.tail.stopped.map(|(_, calls)| calls).filter(|calls| *calls > self.calls);
        if let Some(call) = entered.or(stopped) {
            return Some(DamageCause::CallsMissing { call });
        }
        match self.ring_state {
            Ring::Here => None,
            // Whoever ends leaves nothing behind the record of the end.
            Ring::Missing | Ring::Foreign if self.log_bytes() > offset => Some(DamageCause::Checksum),
            Ring::Missing => Some(DamageCause::RingMissing { ring: ring() }),
            Ring::Foreign => Some(DamageCause::RingForeign { ring: ring() }),
        }
    }

    /// The file, and the place in it in bytes, where reading ended.
    fn position(&self) -> (PathBuf, u64) {
        let header = &self.header;
        let in_log = match header.compression {
            Compression::None => header.log_offset(self.page_number),
            Compression::Zstandard => self.frame_begin,
        };
        let lost_in_ring =
            self.page.is_empty() && in_log >= self.log_bytes() && self.ring_state == Ring::Here;
        let offset = if self.page.is_empty() { 0 } else { self.offset as u64 };
        if self.page_in_ring || lost_in_ring {
            (self.ring_path.clone(), header.ring_offset(self.page_number) as u64 + offset)
        } else if header.compression == Compression::None {
            (self.path.clone(), in_log + offset)
        } else {
            // A compressed page is whole or nothing.
            let end = if self.page.is_empty() { in_log } else { self.frame_at };
            (self.path.clone(), end)
        }
    }

    fn log_bytes(&self) -> u64 {
        let about = self.log.as_ref().and_then(|log| log.metadata().ok());
        about.map_or(0, |about| about.len())
    }

    /// Whether a record of the page stands behind the place where reading ended.
    fn record_behind(&self) -> bool {
        let seed = self.header.seed(self.page_number);
        let mut at = self.offset + 8;
        while let Some(rest) = self.page.get(at..).filter(|rest| rest.len() >= RECORD_HEADER_BYTES) {
            // Most places are none by these bytes: not worth a checksum.
            let may_be = rest[9] & !(FLAG_MORE | FLAG_CONTINUED) == 0 && rest[14..16] == [0, 0];
            if may_be && RecordHeader::read(rest, seed).is_some() {
                return true;
            }
            at += 8;
        }
        false
    }

    /// Whether the ring has a page behind the one where reading ended.
    pub(super) fn ring_page_behind(&self) -> bool {
        (0..u64::from(self.header.pages)).any(|slot| {
            let page = self.ring.get(self.header.ring_offset(slot)..).unwrap_or_default();
            let number = page.get(8..16).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
            number.is_some_and(|number| {
                number > self.page_number
                    && format::decode_page_header(page, self.header.seed(number), number).is_some()
            })
        })
    }

    fn log_page_behind(&self) -> bool {
        let Some(log) = &self.log else {
            return false;
        };
        let (header, end) = (&self.header, self.log_bytes());
        match header.compression {
            Compression::None => {
                (self.page_number + 1..).take_while(|number| header.log_offset(*number) < end).any(|number| {
                    let page = read_up_to(log, PAGE_HEADER_BYTES, header.log_offset(number));
                    format::decode_page_header(&page, header.seed(number), number).is_some()
                })
            }
            Compression::Zstandard => self.frame_behind(log),
        }
    }

    fn frame_behind(&self, log: &File) -> bool {
        let header = &self.header;
        let mut at = self.frame_begin + 8;
        loop {
            let piece = read_up_to(log, SEARCH_BYTES, at);
            let begins = piece.chunks_exact(8).enumerate().filter(|(_, begin)| begin[..4] == FRAME_MAGIC);
            let mut places = begins.map(|(place, _)| at + 8 * place as u64);
            let found = places.any(|at| {
                let begin = read_up_to(log, FRAME_HEADER_BYTES, at);
                let length =
                    compression::frame_bytes(&begin).unwrap_or(0).min(2 * header.page_bytes as usize);
                let number =
                    begin.get(8..16).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
                number.filter(|number| *number > self.page_number).is_some_and(|number| {
                    compression::decompress(&read_up_to(log, length, at), header, number).is_some()
                })
            });
            if found || piece.len() < SEARCH_BYTES {
                return found;
            }
            at += SEARCH_BYTES as u64;
        }
    }
}

/// A run of polls at `at` whose number is one ahead of its checksum gets the number back: the process was killed while it counted, in a
/// poll that had not returned.
pub(super) fn mend_count(page: &mut [u8], at: usize, seed: u32) {
    let Some(rest) = page.get_mut(at..) else {
        return;
    };
    let counts = rest.get(8).is_some_and(|kind| [Kind::Misses as u8, Kind::Unhandled as u8].contains(kind));
    let Some(count) =
        rest.get(RECORD_HEADER_BYTES..).and_then(|body| body.first_chunk::<8>()).filter(|_| counts)
    else {
        return;
    };
    let count = *count;
    let before = u64::from_le_bytes(count).wrapping_sub(1).to_le_bytes();
    rest[RECORD_HEADER_BYTES..][..8].copy_from_slice(&before);
    if RecordHeader::read(rest, seed).is_none() {
        rest[RECORD_HEADER_BYTES..][..8].copy_from_slice(&count);
    }
}
