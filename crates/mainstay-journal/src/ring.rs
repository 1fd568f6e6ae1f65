//! The control block of the ring: its header, and cells that kill -9 cannot reach.

use crate::format::{FILE_HEADER_BYTES, FileHeader, FileKind, u64_at};
use crate::geometry::Geometry;
use crate::open::{Attempt, NOTE_BYTES, Note};
use crate::striping::Striping;
use crate::survey::claims;
use mainstay_checksum::crc32c_append;
use mainstay_types::id::{Generation, Lsn, StoreId};
use std::sync::atomic::{Ordering, compiler_fence};

/// Offsets of the two watermark cells: value and complement. They are written in turn, so that one is always whole.
const WATERMARK_CELLS: [usize; 2] = [512, 1024];
/// Offset of the attempt cell: LSN, attempts, check.
const ATTEMPT_CELL: usize = 1536;
/// Offset of the note: end, bytes, check. In the attempt's sector: a power loss must not keep a note without the end of its attempt.
const NOTE_CELL: usize = ATTEMPT_CELL + 32;
const NOTE_CHECK: usize = NOTE_CELL + 8 + NOTE_BYTES;
/// Offset of the LSN of the first record in the staging buffer, and its complement; 0: none is there.
const STAGED_CELL: usize = 2048;

/// What the cells say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    pub(crate) watermark: Lsn,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) note: Option<Note>,
}

/// Where the records of the staging buffer belong, if it has any. A torn cell is of a moment at which they were in their page already, or none had
/// come yet; of a damaged one the half counts that the first record confirms.
pub(crate) fn read_staged(control: &[u8], staging: &[u8]) -> Option<Lsn> {
    let [value, other] = [u64_at(control, STAGED_CELL), !u64_at(control, STAGED_CELL + 8)].map(Lsn);
    let whole = value == other;
    [value, other].into_iter().find(|&lsn| lsn > Lsn::ZERO && (whole || claims(staging, lsn)))
}

/// Says from which LSN on records are in the staging buffer, or that none is. Wherever the process dies, what it has stored before is there, and what it
/// stores later is not there without this.
#[inline]
pub(crate) fn write_staged(control: &mut [u8], first: Option<Lsn>) {
    let value = first.unwrap_or(Lsn::ZERO).0;
    compiler_fence(Ordering::SeqCst);
    put_u64(control, STAGED_CELL, value);
    put_u64(control, STAGED_CELL + 8, !value);
    compiler_fence(Ordering::SeqCst);
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn attempt_check(lsn: u64, attempts: u64) -> u64 {
    !(lsn.rotate_left(17) ^ attempts)
}

/// A note of an earlier life, which a lost page may leave beside this life's header, is none of this life.
fn note_check(control: &[u8], generation: Generation) -> u32 {
    crc32c_append(crc32c_append(0, &generation.0.to_le_bytes()), &control[NOTE_CELL..NOTE_CHECK])
}

/// Reads the cells of the life `generation`; one that is torn says nothing.
pub(crate) fn read_cells(control: &[u8], generation: Generation) -> Cells {
    let watermark = WATERMARK_CELLS
        .iter()
        .map(|&at| (u64_at(control, at), u64_at(control, at + 8)))
        .filter(|&(value, complement)| value == !complement)
        .map(|(value, _)| Lsn(value))
        .max()
        .unwrap_or(Lsn::ZERO);
    let [lsn, attempts, check] = [0, 8, 16].map(|at| u64_at(control, ATTEMPT_CELL + at));
    let whole = check == attempt_check(lsn, attempts) && lsn > 0;
    let attempt =
        u32::try_from(attempts).ok().filter(|_| whole).map(|attempts| Attempt { lsn: Lsn(lsn), attempts });
    let [end, check] = [NOTE_CELL, NOTE_CHECK].map(|at| u64_at(control, at));
    let mut bytes = [0; NOTE_BYTES];
    bytes.copy_from_slice(&control[NOTE_CELL + 8..NOTE_CHECK]);
    let whole = end > 0 && check == u64::from(note_check(control, generation));
    Cells { watermark, attempt, note: whole.then_some(Note { end: Lsn(end), bytes }) }
}

/// Writes the watermark into the cell whose turn it is.
#[inline]
pub(crate) fn write_watermark(control: &mut [u8], turn: usize, watermark: Lsn) {
    let at = WATERMARK_CELLS[turn % 2];
    put_u64(control, at, watermark.0);
    put_u64(control, at + 8, !watermark.0);
}

/// Writes the attempt cell; no attempt is LSN 0, where no record lies.
#[inline]
pub(crate) fn write_attempt(control: &mut [u8], attempt: Option<Attempt>) {
    let (lsn, attempts) = attempt.map_or((0, 0), |attempt| (attempt.lsn.0, u64::from(attempt.attempts)));
    put_u64(control, ATTEMPT_CELL, lsn);
    put_u64(control, ATTEMPT_CELL + 8, attempts);
    put_u64(control, ATTEMPT_CELL + 16, attempt_check(lsn, attempts));
}

/// Writes the note of the life `generation`; none is zeroes.
#[inline]
pub(crate) fn write_note(control: &mut [u8], note: Option<Note>, generation: Generation) {
    let Some(note) = note else {
        control[NOTE_CELL..NOTE_CHECK + 8].fill(0);
        return;
    };
    put_u64(control, NOTE_CELL, note.end.0);
    control[NOTE_CELL + 8..NOTE_CHECK].copy_from_slice(&note.bytes);
    let check = note_check(control, generation);
    put_u64(control, NOTE_CHECK, u64::from(check));
}

/// Writes the header that makes the ring this life's. Last of all, when cells and pages are in place.
pub(crate) fn write_header(control: &mut [u8], store: StoreId, generation: Generation, geometry: Geometry) {
    let header =
        FileHeader { store, serial: 0, generation, geometry, striping: Striping::ALONE, fields: [0; 6] };
    control[..FILE_HEADER_BYTES].copy_from_slice(&header.encode(FileKind::Ring));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::CONTROL_BYTES;

    #[test]
    fn a_torn_cell_says_nothing_and_the_other_watermark_still_counts() {
        let mut control = [0; CONTROL_BYTES];
        let life = Generation(3);
        let nothing = Cells { watermark: Lsn::ZERO, attempt: None, note: None };
        assert_eq!(read_cells(&control, life), nothing);
        write_watermark(&mut control, 0, Lsn(640));
        write_watermark(&mut control, 1, Lsn(1280));
        let attempt = Attempt { lsn: Lsn(64), attempts: 2 };
        write_attempt(&mut control, Some(attempt));
        let note = Note { end: Lsn(128), bytes: [7; NOTE_BYTES] };
        write_note(&mut control, Some(note), life);
        let all = Cells { watermark: Lsn(1280), attempt: Some(attempt), note: Some(note) };
        assert_eq!(read_cells(&control, life), all);
        assert_eq!(read_cells(&control, Generation(4)), Cells { note: None, ..all }, "another life's");
        control[WATERMARK_CELLS[1] + 1] ^= 1;
        control[ATTEMPT_CELL + 8] ^= 1;
        control[NOTE_CELL + 9] ^= 1;
        assert_eq!(read_cells(&control, life), Cells { watermark: Lsn(640), ..nothing });
        write_note(&mut control, None, life);
        assert_eq!(read_cells(&control, life).note, None);
    }

    #[test]
    fn the_cell_of_the_staging_buffer_shares_no_byte_with_another() {
        let mut control = [0; CONTROL_BYTES];
        let nothing = [0; 64];
        assert_eq!(read_staged(&control, &nothing), None, "a ring from before there was a staging buffer");
        write_staged(&mut control, Some(Lsn(0x0101_0101_0101_0101)));
        assert_eq!(control.iter().filter(|&&byte| byte != 0).count(), 16);
        let cells = Cells { watermark: Lsn::ZERO, attempt: None, note: None };
        assert_eq!(read_cells(&control, Generation(0)), cells);
        assert_eq!(read_staged(&control, &nothing), Some(Lsn(0x0101_0101_0101_0101)));
        write_staged(&mut control, None);
        assert_eq!(read_staged(&control, &nothing), None);
    }

    #[test]
    fn a_damaged_cell_of_the_staging_buffer_counts_as_far_as_the_first_record_confirms_it() {
        let mut control = [0; CONTROL_BYTES];
        let mut staging = [0; 64];
        put_u64(&mut staging, 8, 640);
        write_staged(&mut control, Some(Lsn(640)));
        for at in STAGED_CELL..STAGED_CELL + 16 {
            control[at] ^= 4;
            assert_eq!(read_staged(&control, &staging), Some(Lsn(640)), "byte {at}");
            assert_eq!(read_staged(&control, &[0; 64]), None, "byte {at}");
            control[at] ^= 4;
        }
    }
}
