//! The header that each file begins with: whose it is, which format, which sizes.

use super::{FILE_HEADER_BYTES, put, u16_at, u32_at, u64_at};
use crate::geometry::Geometry;
use crate::striping::Striping;
use mainstay_types::id::{Generation, StoreId};

/// The newest format version of the ring, and the one written: a program that knows no staging buffer must not take what is left for all there is.
const FORMAT_VERSION_RING: u32 = 3;

/// The newest of the other files, and the one written into those of a journal over several directories.
const FORMAT_VERSION_STRIPED: u32 = 2;

/// The one written into them where there is one directory: a program that knows no other reads that too.
const FORMAT_VERSION_UNSTRIPED: u32 = 1;

/// Which file a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The superblock.
    Superblock,
    /// A segment.
    Segment,
    /// The ring.
    Ring,
    /// The identity file of a directory after the first.
    Stripe,
}

impl FileKind {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Superblock => *b"MSTSUPER",
            Self::Segment => *b"MSTSEGMT",
            Self::Ring => *b"MSTRRING",
            Self::Stripe => *b"MSTRIPED",
        }
    }

    fn version_max(self) -> u32 {
        match self {
            Self::Ring => FORMAT_VERSION_RING,
            Self::Superblock | Self::Segment | Self::Stripe => FORMAT_VERSION_STRIPED,
        }
    }
}

/// The first 512 bytes of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The directory it belongs to.
    pub store: StoreId,
    /// Superblock: raised with every change. Segment: raised with every preparation. Ring: 0. The higher one of two
    /// that claim the same is the later one.
    pub serial: u64,
    /// The life that wrote it.
    pub generation: Generation,
    /// The sizes of the journal.
    pub geometry: Geometry,
    /// The directory it lies in; the ring does not say.
    pub striping: Striping,
    /// What the kind of file adds: see [`super::Superblock`]; for a segment the first is its number.
    pub fields: [u64; 6],
}

/// Why a file header was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not what was written, or never written.
    #[error("the header does not match its checksum")]
    Damaged,
    /// Of a newer format, and intact.
    #[error("the header has format version {found}")]
    NewerVersion {
        /// Its version.
        found: u32,
        /// The newest that is read of this kind of file.
        supported: u32,
    },
}

impl FileHeader {
    /// The bytes of this header.
    #[must_use]
    pub fn encode(&self, kind: FileKind) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        put(&mut bytes, 0, &kind.magic());
        let Striping { stripe, stripes } = self.striping;
        let version = match (kind, stripes) {
            (FileKind::Ring, _) => FORMAT_VERSION_RING,
            (_, 1) => FORMAT_VERSION_UNSTRIPED,
            _ => FORMAT_VERSION_STRIPED,
        };
        put(&mut bytes, 8, &version.to_le_bytes());
        put(&mut bytes, 16, &self.store.0);
        put(&mut bytes, 32, &self.serial.to_le_bytes());
        put(&mut bytes, 40, &self.generation.0.to_le_bytes());
        put(&mut bytes, 48, &self.geometry.page_bytes.to_le_bytes());
        put(&mut bytes, 52, &self.geometry.segment_pages.to_le_bytes());
        put(&mut bytes, 56, &self.geometry.pages.to_le_bytes());
        put(&mut bytes, 58, &stripe.to_le_bytes());
        put(&mut bytes, 60, &(stripes - 1).to_le_bytes());
        for (place, field) in self.fields.iter().enumerate() {
            put(&mut bytes, 64 + 8 * place, &field.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        put(&mut bytes, 12, &crc.to_le_bytes());
        bytes
    }

    /// Reads a header from the first [`FILE_HEADER_BYTES`] of `bytes`.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(kind: FileKind, bytes: &[u8]) -> Result<Self, HeaderError> {
        let bytes = bytes.get(..FILE_HEADER_BYTES).ok_or(HeaderError::Damaged)?;
        let crc = crc32c::crc32c(&bytes[..12]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &bytes[16..]);
        if bytes[..8] != kind.magic() || crc != u32_at(bytes, 12) {
            return Err(HeaderError::Damaged);
        }
        let version = u32_at(bytes, 8);
        let supported = kind.version_max();
        if version > supported {
            return Err(HeaderError::NewerVersion { found: version, supported });
        }
        let geometry = Geometry {
            page_bytes: u32_at(bytes, 48),
            segment_pages: u32_at(bytes, 52),
            pages: u16_at(bytes, 56),
        };
        let striping = Striping { stripe: u16_at(bytes, 58), stripes: u16_at(bytes, 60).saturating_add(1) };
        if !geometry.is_valid() || !striping.is_valid() {
            return Err(HeaderError::Damaged);
        }
        Ok(Self {
            store: StoreId(bytes[16..32].try_into().expect("16 bytes")),
            serial: u64_at(bytes, 32),
            generation: Generation(u64_at(bytes, 40)),
            geometry,
            striping,
            fields: std::array::from_fn(|place| u64_at(bytes, 64 + 8 * place)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_a_newer_version_is_told_from_a_damaged_one() {
        let header = FileHeader {
            store: StoreId([7; 16]),
            serial: 3,
            generation: Generation(4),
            geometry: Geometry::default(),
            striping: Striping { stripe: 2, stripes: 5 },
            fields: [9, 8, 7, 6, 5, 4],
        };
        let bytes = header.encode(FileKind::Segment);
        assert_eq!(FileHeader::decode(FileKind::Segment, &bytes), Ok(header));
        assert_eq!(FileHeader::decode(FileKind::Ring, &bytes), Err(HeaderError::Damaged));
        assert_eq!(FileHeader::decode(FileKind::Segment, &bytes[..511]), Err(HeaderError::Damaged));

        let mut newer = bytes;
        let supported = FORMAT_VERSION_STRIPED;
        newer[8..12].copy_from_slice(&(supported + 1).to_le_bytes());
        assert_eq!(FileHeader::decode(FileKind::Segment, &newer), Err(HeaderError::Damaged));
        newer[12..16].fill(0);
        let crc = crc32c::crc32c(&newer);
        newer[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            FileHeader::decode(FileKind::Segment, &newer),
            Err(HeaderError::NewerVersion { found: supported + 1, supported })
        );
    }
}
