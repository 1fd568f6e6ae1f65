//! Datatypes, flattened to runs of bytes: replay has no MPI that could pack or unpack.

use crate::varint::{Bytes, put_signed, put_unsigned};

/// Most runs of one type that a log may hold.
pub const RUNS_MAX: usize = 1 << 24;

/// One element of a datatype: which bytes, relative to the buffer's address, in the order of the type map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Typemap {
    /// Distance between two elements, in bytes.
    pub extent: i64,
    /// `(offset, length)` in bytes; neighbours are joined.
    pub runs: Vec<(i64, u64)>,
}

impl Typemap {
    /// A type without holes.
    #[must_use]
    pub fn contiguous(bytes: u64) -> Self {
        let extent = i64::try_from(bytes).expect("a basic type is small");
        Self { extent, runs: if bytes == 0 { Vec::new() } else { vec![(0, bytes)] } }
    }

    /// Adds a run behind those that are there, joined with the last if they touch.
    pub fn push(&mut self, offset: i64, length: u64) {
        if length == 0 {
            return;
        }
        if let Some((last, bytes)) = self.runs.last_mut()
            && i64::try_from(*bytes).ok().and_then(|bytes| last.checked_add(bytes)) == Some(offset)
        {
            *bytes += length;
            return;
        }
        self.runs.push((offset, length));
    }

    /// Bytes of data in one element.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.runs.iter().fold(0, |sum, run| sum.saturating_add(run.1))
    }

    /// Bytes of `count` elements, at most `limit`, if they are one run from the address on.
    #[must_use]
    pub fn dense_bytes(&self, count: u64, limit: u64) -> Option<u64> {
        match self.runs[..] {
            [(0, bytes)] if i64::try_from(bytes) == Ok(self.extent) => {
                Some(bytes.saturating_mul(count).min(limit))
            }
            _ => None,
        }
    }

    /// The runs of `count` elements, at most `limit` bytes of data, neighbours joined where elements touch.
    pub fn runs(&self, count: u64, limit: u64) -> impl Iterator<Item = (i64, usize)> + '_ {
        let dense = matches!(self.runs[..], [(0, bytes)] if i64::try_from(bytes) == Ok(self.extent));
        let mut left = limit.min(self.bytes().saturating_mul(count));
        let (rounds, whole) = if dense { (u64::from(left > 0), Some((0, left))) } else { (count, None) };
        let runs = &self.runs;
        (0..rounds)
            .flat_map(move |element| {
                let base = self.extent.wrapping_mul(i64::try_from(element).unwrap_or(i64::MAX));
                let shown = if whole.is_some() { &runs[..1] } else { &runs[..] };
                shown.iter().map(move |run| whole.unwrap_or((base.wrapping_add(run.0), run.1)))
            })
            .map_while(move |(offset, length)| {
                let length = length.min(left);
                left -= length;
                (length > 0).then(|| (offset, usize::try_from(length).expect("memory is addressable")))
            })
    }

    /// Writes the type as the log has it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_signed(out, self.extent);
        put_unsigned(out, self.runs.len() as u64);
        for (offset, length) in &self.runs {
            put_signed(out, *offset);
            put_unsigned(out, *length);
        }
    }

    /// Reads a type; `None` if the bytes are not one.
    #[must_use]
    pub fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let extent = bytes.signed()?;
        let count = usize::try_from(bytes.unsigned()?).ok()?;
        // Each run takes two bytes at least, so that a damaged count cannot ask for memory.
        if count > RUNS_MAX || count > bytes.rest().len() {
            return None;
        }
        let runs = (0..count).map(|_| Some((bytes.signed()?, bytes.unsigned()?))).collect::<Option<_>>()?;
        Some(Self { extent, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_dense_type_is_one_run_however_many_elements() {
        let double = Typemap::contiguous(8);
        assert_eq!(double.runs(1000, u64::MAX).collect::<Vec<_>>(), [(0, 8000)]);
        assert_eq!(double.runs(1000, 24).collect::<Vec<_>>(), [(0, 24)], "a shorter message");
        assert_eq!(double.runs(0, u64::MAX).count(), 0);
        assert_eq!(Typemap::contiguous(0).runs(5, u64::MAX).count(), 0);
    }

    #[test]
    fn a_column_is_as_many_runs_as_rows_and_is_cut_within_a_run() {
        let mut column = Typemap { extent: 4, runs: Vec::new() };
        for row in 0..3 {
            column.push(row * 12, 4);
        }
        assert_eq!(column.runs(2, 14).collect::<Vec<_>>(), [(0, 4), (12, 4), (24, 4), (4, 2)]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(extent: i64, runs: Vec<(i64, u64)>) {
            let map = Typemap { extent, runs };
            let mut bytes = Vec::new();
            map.encode(&mut bytes);
            prop_assert_eq!(Typemap::decode(&mut Bytes::new(&bytes)), Some(map));
        }

        #[test]
        fn any_bytes_are_a_type_or_refused(bytes: Vec<u8>) {
            let _ = Typemap::decode(&mut Bytes::new(&bytes));
        }
    }
}
