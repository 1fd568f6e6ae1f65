//! What a journal counts about itself.

/// Counters since the start of this life; all only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records appended by users.
    pub appends: u64,
    /// Payload bytes of these.
    pub append_bytes: u64,
    /// Pages that were closed because the next record did not fit.
    pub pages_closed: u64,
    /// Pages of which the first half was handed to the disk before they were full.
    pub halves: u64,
    /// Bytes at the end of closed pages that hold no record.
    pub pad_bytes: u64,
    /// Appends that found no free page and were refused as stalled. The caller measures for how long.
    pub stalls: u64,
    /// Flushes that were started.
    pub flushes: u64,
    /// Flushes of these that took a single write of the current page.
    pub flushes_in_one_write: u64,
    /// Flushes that were asked for while another was in flight, and so share the next one.
    pub flushes_joined: u64,
    /// Writes asked of the disk.
    pub writes: u64,
    /// Bytes of these writes.
    pub write_bytes: u64,
    /// Syncs asked of the disk (writes that are durable by themselves not counted).
    pub syncs: u64,
    /// Segments that became ready.
    pub segments_prepared: u64,
    /// Segments that could not be made ready.
    pub segments_failed: u64,
    /// Watermark records written.
    pub marks: u64,
}
