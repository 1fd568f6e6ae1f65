//! A record as its reader sees it, and the kinds of records that the journal writes for itself.

use mainstay_types::id::{Generation, InstanceId, Lsn};

/// What a record is. Kinds below [`Kind::FIRST_USER`] are the journal's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u16);

impl Kind {
    /// The first record of a life of the journal: names its generation.
    pub const LIFE: Self = Self(1);
    /// Carries the durable watermark known when it was written.
    pub const MARK: Self = Self(2);
    /// The last record of a life that ended with a clean stop.
    pub const SEAL: Self = Self(3);
    /// Fills the rest of a page.
    pub const PAD: Self = Self(4);
    /// The first kind that a user of the journal may give a meaning.
    pub const FIRST_USER: Self = Self(16);

    /// Whether the journal wrote it for itself.
    #[inline]
    #[must_use]
    pub fn is_own(self) -> bool {
        self < Self::FIRST_USER
    }

    /// Whether it only fills a page; its payload is not covered by its checksum and has no meaning.
    #[inline]
    #[must_use]
    pub fn is_pad(self) -> bool {
        self == Self::PAD
    }
}

/// A record whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Address of its first byte.
    pub lsn: Lsn,
    /// The address after its last byte, padding to 8 bytes included: the record is durable when the durable mark
    /// reaches this.
    pub end: Lsn,
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub instance: InstanceId,
    /// The life of the journal that wrote it.
    pub generation: Generation,
    /// What was appended.
    pub payload: &'a [u8],
}
