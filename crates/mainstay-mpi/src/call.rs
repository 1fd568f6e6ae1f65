//! One call on its way into the log: its fields, and the message data that is copied from the program's memory only once.

use crate::field::Field;
use crate::typemap::Typemap;
use crate::varint::put_word;
use mainstay_checksum::crc32c_append;

/// The fields of a call. Small ones are collected here; data in one piece stays where it is until the record is written.
#[derive(Debug, Default)]
pub struct Call {
    /// Number of the function.
    pub function: u16,
    /// Number of the thread.
    pub thread: u16,
    /// Whether the call was a poll that found nothing.
    pub miss: bool,
    fields: Vec<u8>,
    /// Foreign memory: how many bytes of `fields` come before it, address, length.
    foreign: Vec<(usize, u64, usize)>,
    /// Requests that the call waits for, as fields: said while it waits, and not logged.
    pub awaited: Vec<u8>,
    /// At replay: the logged fields, and how many bytes of them are used up.
    pub logged: Vec<u8>,
    /// See `logged`.
    pub logged_used: usize,
}

/// Data in one piece up to this many bytes is copied twice rather than remembered, in bytes.
const FOREIGN_BYTES_MIN: usize = 256;

impl Call {
    /// No call yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            function: 0,
            thread: 0,
            miss: false,
            fields: Vec::new(),
            foreign: Vec::new(),
            awaited: Vec::new(),
            logged: Vec::new(),
            logged_used: 0,
        }
    }

    /// Begins anew, keeping the memory.
    pub fn begin(&mut self, function: u16, thread: u16) {
        self.function = function;
        self.thread = thread;
        self.miss = false;
        self.fields.clear();
        self.foreign.clear();
        self.awaited.clear();
        self.logged.clear();
        self.logged_used = 0;
    }

    /// Adds a field.
    #[inline(always)]
    pub fn put(&mut self, field: &Field<'_>) {
        field.encode(&mut self.fields);
    }

    /// Adds a field that is as short as this, as a word and its length in bytes.
    #[inline]
    pub fn put_word(&mut self, word: u64, length: usize) {
        put_word(&mut self.fields, word, length);
    }

    /// Adds the data that a call left in the program's memory at `address`.
    ///
    /// # Safety
    /// The runs of `map`, `count` times, at most `limit` bytes, must be readable at `address`, and stay so and unchanged until
    /// [`Call::parts`] is used.
    pub unsafe fn put_received(&mut self, address: u64, count: u64, map: &Typemap, limit: u64) {
        if let Some(bytes) = map.dense_bytes(count, limit) {
            Field::begin_received(&mut self.fields, bytes);
            // SAFETY: as the caller promised.
            unsafe { self.put_run(address, bytes) };
            return;
        }
        let whole = map.bytes().saturating_mul(count).min(limit);
        Field::begin_received(&mut self.fields, whole);
        // SAFETY: as the caller promised.
        unsafe { self.put_runs(address, count, map, limit) };
    }

    /// Adds the data that a call sends.
    ///
    /// # Safety
    /// As for [`Call::put_received`] without a limit.
    pub unsafe fn put_sent(&mut self, address: u64, count: u64, map: &Typemap) {
        Field::begin_sent(&mut self.fields, map.bytes().saturating_mul(count));
        // SAFETY: as the caller promised.
        unsafe { self.put_runs(address, count, map, u64::MAX) };
    }

    /// # Safety
    /// As for the callers.
    unsafe fn put_runs(&mut self, address: u64, count: u64, map: &Typemap, limit: u64) {
        for (offset, length) in map.runs(count, limit) {
            // SAFETY: as the caller promised.
            unsafe { self.put_run(address.wrapping_add_signed(offset), length as u64) };
        }
    }

    /// # Safety
    /// As for the callers.
    #[inline]
    unsafe fn put_run(&mut self, address: u64, length: u64) {
        let length = usize::try_from(length).expect("memory is addressable");
        if length >= FOREIGN_BYTES_MIN {
            self.foreign.push((self.fields.len(), address, length));
        } else if length > 0 {
            // SAFETY: as the caller promised.
            self.fields
                .extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, length) });
        }
    }

    /// Whether there is data that is still in the program's memory.
    #[must_use]
    pub fn has_foreign(&self) -> bool {
        !self.foreign.is_empty()
    }

    /// The small fields alone: all there is of a call without long data.
    #[must_use]
    pub fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// The body of the record, in pieces.
    ///
    /// # Safety
    /// What was promised to [`Call::put_received`] must hold for as long as the pieces are used.
    #[must_use]
    pub unsafe fn parts(&self) -> Vec<&[u8]> {
        let mut parts = Vec::with_capacity(2 * self.foreign.len() + 1);
        let mut done = 0;
        for (before, address, length) in &self.foreign {
            parts.push(&self.fields[done..*before]);
            done = *before;
            // SAFETY: as the caller promised.
            parts.push(unsafe { std::slice::from_raw_parts(*address as *const u8, *length) });
        }
        parts.push(&self.fields[done..]);
        parts
    }
}

/// Bytes and CRC-32C of data in the program's memory, at most `limit` bytes.
///
/// # Safety
/// The runs of `map`, `count` times, as far as the limit, must be readable at `address`.
#[must_use]
pub unsafe fn digest(address: u64, count: u64, map: &Typemap, limit: u64) -> (u64, u32) {
    if let Some(bytes) = map.dense_bytes(count, limit) {
        let length = usize::try_from(bytes).expect("memory is addressable");
        if length == 0 {
            return (0, 0);
        }
        // SAFETY: as the caller promised.
        let data = unsafe { std::slice::from_raw_parts(address as *const u8, length) };
        return (bytes, crc32c_append(0, data));
    }
    let mut crc = 0;
    for (offset, length) in map.runs(count, limit) {
        let at = address.wrapping_add_signed(offset) as *const u8;
        // SAFETY: as the caller promised.
        crc = crc32c_append(crc, unsafe { std::slice::from_raw_parts(at, length) });
    }
    (map.bytes().saturating_mul(count).min(limit), crc)
}

/// Data in the program's memory, without holes.
///
/// # Safety
/// As for [`digest`].
#[must_use]
pub unsafe fn gather(address: u64, count: u64, map: &Typemap) -> Vec<u8> {
    let mut data = Vec::new();
    for (offset, length) in map.runs(count, u64::MAX) {
        let at = address.wrapping_add_signed(offset) as *const u8;
        // SAFETY: as the caller promised.
        data.extend_from_slice(unsafe { std::slice::from_raw_parts(at, length) });
    }
    data
}

/// Puts logged data where the program expects it.
///
/// # Safety
/// The runs of `map`, `count` times, at most as many bytes as `data` has, must be writable at `address`.
pub unsafe fn scatter(address: u64, count: u64, map: &Typemap, data: &[u8]) {
    let mut left = data;
    for (offset, length) in map.runs(count, data.len() as u64) {
        let (now, later) = left.split_at(length);
        let at = address.wrapping_add_signed(offset) as *mut u8;
        // SAFETY: as the caller promised; `data` is the log's and overlaps nothing of the program's.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), at, length) };
        left = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_with_holes_is_gathered_and_put_back() {
        let mut map = Typemap { extent: 1000, runs: Vec::new() };
        map.push(0, 300);
        map.push(500, 10);
        let source: Vec<u8> = (0..3000_usize).map(|at| at.to_le_bytes()[0]).collect();
        let mut call = Call::default();
        // SAFETY: three elements of 1000 bytes are within `source`, which outlives the pieces.
        let body = unsafe {
            call.put_received(source.as_ptr() as u64, 3, &map, 650);
            call.parts().concat()
        };
        let mut bytes = crate::varint::Bytes::new(&body);
        let Some(Field::Received(data)) = Field::decode(&mut bytes) else { panic!("data") };
        assert_eq!(data.len(), 650);
        assert!(bytes.rest().is_empty());
        let mut target = vec![0_u8; 3000];
        // SAFETY: three elements are within `target`, and within `source`.
        unsafe {
            scatter(target.as_mut_ptr() as u64, 3, &map, data);
            let of = |memory: &[u8], limit| digest(memory.as_ptr() as u64, 2, &map, limit);
            assert_eq!(of(&source, u64::MAX).0, 620);
            assert_eq!(of(&source, u64::MAX), of(&target, u64::MAX));
            assert_eq!(of(&source, 300), (300, crc32c::crc32c(&source[..300])));
        }
        assert_eq!(target[300..500], [0; 200], "holes stay");
        assert_eq!(target[2000..2030], source[2000..2030]);
        assert_eq!(target[2030..], [0; 970], "the message was shorter");
    }
}
