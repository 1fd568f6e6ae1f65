//! How a journal is opened.

use crate::geometry::Geometry;
use mainstay_types::id::StoreId;
use mainstay_types::rules::Rules;

/// What [`crate::open::open`] is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The sizes of a journal that is made now; an existing one keeps its own.
    pub geometry: Geometry,
    /// The identity of a journal that is made now, drawn at random by the caller; an existing one keeps its own.
    pub new_store: StoreId,
    /// Over how many directories the segments of a journal that is made now go round; an existing one keeps its own.
    pub stripes: u16,
    /// Whether a directory without a journal gets one; else it is refused.
    pub create: bool,
    /// The safety rules to keep: all of them outside the simulator.
    pub rules: Rules,
    /// For measurement only: appends are buffered and nothing is ever written, so nothing becomes durable.
    pub buffer_only: bool,
    /// The first half of a page goes to the disk before the page is full if at least so many bytes of it, 4 KiB or more, wait to be written: by
    /// default not with pages of 2 MiB or less. Never with one page, which is the synchronous baseline.
    pub half_bytes_min: u32,
    /// How many recycled segment files are kept for reuse at most in each directory; the rest is removed.
    pub free_segments_max: usize,
}

impl Default for OpenOptions {
    /// Create with the default geometry and an all-zero identity, keep every rule, keep two free segments.
    fn default() -> Self {
        Self {
            geometry: Geometry::default(),
            new_store: StoreId([0; 16]),
            stripes: 1,
            create: true,
            rules: Rules::KEPT,
            buffer_only: false,
            half_bytes_min: 1 << 20,
            free_segments_max: 2,
        }
    }
}
