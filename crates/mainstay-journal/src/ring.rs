//! The control block of the ring: its header, and cells that kill -9 cannot reach.

use crate::format::{FILE_HEADER_BYTES, FileHeader, FileKind, u64_at};
use crate::geometry::Geometry;
use crate::open::Attempt;
use crate::striping::Striping;
use mainstay_types::id::{Generation, Lsn, StoreId};

/// Offsets of the two watermark cells: value and complement. They are written in turn, so that one is always whole.
const WATERMARK_CELLS: [usize; 2] = [512, 1024];
/// Offset of the attempt cell: LSN, attempts, check.
const ATTEMPT_CELL: usize = 1536;

/// What the cells say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    pub(crate) watermark: Lsn,
    pub(crate) attempt: Option<Attempt>,
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn attempt_check(lsn: u64, attempts: u64) -> u64 {
    !(lsn.rotate_left(17) ^ attempts)
}

/// Reads the cells; one that is torn says nothing.
pub(crate) fn read_cells(control: &[u8]) -> Cells {
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
    Cells { watermark, attempt }
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
        assert_eq!(read_cells(&control), Cells { watermark: Lsn::ZERO, attempt: None });
        write_watermark(&mut control, 0, Lsn(640));
        write_watermark(&mut control, 1, Lsn(1280));
        let attempt = Attempt { lsn: Lsn(64), attempts: 2 };
        write_attempt(&mut control, Some(attempt));
        assert_eq!(read_cells(&control), Cells { watermark: Lsn(1280), attempt: Some(attempt) });
        control[WATERMARK_CELLS[1] + 1] ^= 1;
        control[ATTEMPT_CELL + 8] ^= 1;
        assert_eq!(read_cells(&control), Cells { watermark: Lsn(640), attempt: None });
    }
}
