//! One journal over several directories: which file lies in which, and how each directory says whose it is.
//!
//! Segments go round: number n lies in directory n mod K of K. The journal itself knows names only; whoever keeps the files puts each
//! where [`Striping::stripe_of`] says.

use crate::catalog::remove_if_there;
use crate::format::{FILE_HEADER_BYTES, FileHeader, FileKind, HeaderError, Superblock, segment_file_slot};
use crate::open::OpenError;
use crate::storage::{FileEntry, Storage, StorageError};
use crate::survey::{newer_version, read_up_to};

/// Most directories of one journal.
pub const STRIPES_MAX: u16 = 64;

/// What a file's name begins with when repair has put it aside: it stays in its directory.
const PUT_ASIDE: &str = "quarantine-";
const IDENTITY_PREFIX: &str = "stripe-";
const IDENTITY_SUFFIX: &str = ".id";

/// Which of how many directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Counted from zero, which is the one with the superblock.
    pub stripe: u16,
    /// How many there are, at least one.
    pub stripes: u16,
}

impl Striping {
    /// The one directory of a journal that is not striped.
    pub const ALONE: Self = Self { stripe: 0, stripes: 1 };

    /// Whether there can be such a directory.
    #[must_use]
    pub fn is_valid(self) -> bool {
        (1..=STRIPES_MAX).contains(&self.stripes) && self.stripe < self.stripes
    }

    /// The directory of `stripes` that file `name` lies in.
    #[must_use]
    pub fn stripe_of(name: &str, stripes: u16) -> u16 {
        let name = name.strip_prefix(PUT_ASIDE).unwrap_or(name);
        match (segment_file_slot(name), identity_file_stripe(name)) {
            (Some(slot), _) => stripe_of_slot(slot, stripes),
            (None, Some(stripe)) => stripe,
            (None, None) => 0,
        }
    }
}

/// Slots are given out so that the slot of a segment lies where its number does.
pub(crate) fn stripe_of_slot(slot: u64, stripes: u16) -> u16 {
    u16::try_from(slot % u64::from(stripes)).expect("a remainder is smaller than its divisor")
}

/// The file by which a directory after the first says whose it is, and which.
#[must_use]
pub fn identity_file_name(stripe: u16) -> String {
    format!("{IDENTITY_PREFIX}{stripe:04}{IDENTITY_SUFFIX}")
}

/// The directory that such a file's name is for, if it is one.
#[must_use]
pub fn identity_file_stripe(name: &str) -> Option<u16> {
    let digits = name.strip_prefix(IDENTITY_PREFIX)?.strip_suffix(IDENTITY_SUFFIX)?;
    let plain = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// Makes the identity files of a journal that is made now, in place of what an unfinished making has left.
pub(crate) fn make_identities(
    storage: &mut dyn Storage,
    superblock: &Superblock,
) -> Result<(), StorageError> {
    for stripe in 1..superblock.stripes {
        remove_if_there(storage, &identity_file_name(stripe))?;
        storage.create(&identity_file_name(stripe), FILE_HEADER_BYTES as u64)?;
        write_identity(storage, superblock, stripe)?;
    }
    Ok(())
}

/// Writes the identity file of a directory, in place.
pub(crate) fn write_identity(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    stripe: u16,
) -> Result<(), StorageError> {
    let file = identity_file_name(stripe);
    let header = FileHeader {
        store: superblock.store,
        serial: 0,
        generation: superblock.generation,
        geometry: superblock.geometry,
        striping: Striping { stripe, stripes: superblock.stripes },
        fields: [0; 6],
    };
    storage.write(&file, 0, &header.encode(FileKind::Stripe))?;
    storage.sync(&file)
}

/// Looks whether every directory is there and is the one that it should be. Returns those whose identity file is unreadable: the
/// segments in them say whose they are.
pub(crate) fn check_identities(
    storage: &mut dyn Storage,
    superblock: &Superblock,
    files: &[FileEntry],
) -> Result<Vec<u16>, OpenError> {
    let mut unreadable = Vec::new();
    for stripe in 1..superblock.stripes {
        let name = identity_file_name(stripe);
        let Some(file) = files.iter().find(|file| file.name == name) else {
            return Err(OpenError::StripeMissing { stripe, stripes: superblock.stripes, file: name });
        };
        let mut bytes = [0; FILE_HEADER_BYTES];
        read_up_to(storage, &name, file.bytes, 0, &mut bytes)?;
        let header = match FileHeader::decode(FileKind::Stripe, &bytes) {
            Err(HeaderError::NewerVersion { found, supported }) => {
                return Err(newer_version(&name, found, supported));
            }
            Err(HeaderError::Damaged) => {
                unreadable.push(stripe);
                continue;
            }
            Ok(header) => header,
        };
        if header.store != superblock.store {
            let (expected, found) = (superblock.store, header.store);
            return Err(OpenError::StripeForeign { stripe, file: name, expected, found });
        }
        let expected = Striping { stripe, stripes: superblock.stripes };
        if header.striping != expected {
            return Err(OpenError::StripeExchanged { file: name, expected, found: header.striping });
        }
    }
    Ok(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::segment_file_name;

    #[test]
    fn every_name_has_its_directory() {
        let of = |name: &str| Striping::stripe_of(name, 3);
        assert_eq!([0, 1, 2, 3, 10].map(|slot| of(&segment_file_name(slot))), [0, 1, 2, 0, 1]);
        assert_eq!(of(&format!("quarantine-{}", segment_file_name(5))), 2);
        assert_eq!(of(&identity_file_name(2)), 2);
        for name in ["superblock", "ring", "checkpoint-1", "stripe-0002", "stripe-2.id", "segment-1"] {
            assert_eq!(of(name), 0, "{name}");
        }
        assert_eq!(Striping::stripe_of(&segment_file_name(7), 1), 0);
    }
}
