//! Checkpoints: a file each, named by the LSN at which replay begins. Sequential code over [`Storage`].
//!
//! ```text
//!   save (forked child, or at once) ──> checkpoint-….partial ── sync, rename, sync directory ──> checkpoint-…
//! ```
//! The newest two are kept, and the journal from the older one on: a damaged newest checkpoint costs a longer replay,
//! nothing else. Layout, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 7 + 1 | magic `MSTCKPT`, format version, a digit: `3` |
//! | 8 | LSN |
//! | 16 | store id |
//! | 4 | handler version |
//! | 4 + n | handler name |
//! | 8 + n | tables, and the sender log with the logging protocol's bookkeeping as one byte string (postcard) |
//! | 8 + n | handler state; its length is 2^64 - 1 when it was not known in advance: then it ends 24 bytes before the end |
//! | 8 | XXH3-64 of the handler state |
//! | 8 | XXH3-64 of everything before this field |
//! | 8 | magic `CKPTEND1` |

use crate::tables::Tables;
use mainstay_journal::storage::{Failure, Storage, StorageError};
use mainstay_types::codec::{Reader, put_bytes};
use mainstay_types::id::{Lsn, StoreId};
use std::io::{self, Write};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: &[u8; 7] = b"MSTCKPT";
const VERSION: u8 = b'3';
const END_MAGIC: &[u8; 8] = b"CKPTEND1";
const LENGTH_UNKNOWN: u64 = u64::MAX;
const TRAILER_BYTES: usize = 24;
pub(crate) const PREFIX: &str = "checkpoint-";
/// The end of a name whose file is not complete yet, here and of a part.
pub(crate) const PARTIAL: &str = ".partial";
const DAMAGED: &str = ".damaged";
const UNDONE: &str = ".undone";

/// How many checkpoints are kept.
pub const KEPT: usize = 2;

/// What was written by [`crate::process::Process::save`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// XXH3-64 of the handler's state.
    pub state_hash: u64,
    /// Length of the file, in bytes.
    pub bytes: u64,
}

/// A checkpoint read back.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) lsn: Lsn,
    pub(crate) store: StoreId,
    pub(crate) version: u32,
    pub(crate) name: String,
    pub(crate) tables: Tables,
    /// The sender log and the protocol's bookkeeping; empty for a process that stands alone.
    pub(crate) links: Vec<u8>,
    pub(crate) state: Vec<u8>,
}

/// Why a checkpoint file cannot be used. Nothing was changed; an older checkpoint may serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It is not a checkpoint.
    #[error("it does not begin as a checkpoint does")]
    Foreign,
    /// Another version of this program wrote it.
    #[error("it has format version {}, this program reads {}", found.escape_ascii(), expected.escape_ascii())]
    OtherVersion {
        /// Its version, an ASCII digit.
        found: u8,
        /// The one version that is read here, an ASCII digit.
        expected: u8,
    },
    /// It belongs to another directory.
    #[error("it belongs to store {found}, not to {expected}")]
    OtherStore {
        /// The store it names.
        found: StoreId,
        /// The store it lies in.
        expected: StoreId,
    },
    /// Its bytes changed since it was written, or it is incomplete.
    #[error("its checksum does not match its bytes")]
    Damaged,
    /// It cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// The name under which checkpoint `lsn` is written.
#[must_use]
pub fn temporary_name(lsn: Lsn) -> String {
    format!("{PREFIX}{:016x}{PARTIAL}", lsn.0)
}

/// The name of checkpoint `lsn` once it is complete.
#[must_use]
pub fn final_name(lsn: Lsn) -> String {
    format!("{PREFIX}{:016x}", lsn.0)
}

/// The position in the name of a complete checkpoint; `None` for any other file.
#[must_use]
pub fn parse_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(Lsn)
}

/// Makes a completely written temporary file the checkpoint `lsn`, durably, and removes all but the newest [`KEPT`].
/// Returns the oldest one kept: nothing in the journal below it is needed.
///
/// # Errors
/// [`StorageError`]; the checkpoint may then be there or not, and nothing may be trimmed.
pub fn publish(storage: &mut dyn Storage, lsn: Lsn) -> Result<Lsn, StorageError> {
    storage.sync(&temporary_name(lsn))?;
    storage.rename(&temporary_name(lsn), &final_name(lsn))?;
    storage.sync_directory()?;
    let mut present = positions(storage)?;
    present.retain(|&position| position <= lsn);
    let surplus = present.len().saturating_sub(KEPT);
    for position in present.drain(..surplus) {
        storage.remove(&final_name(position))?;
    }
    Ok(present.first().copied().unwrap_or(lsn))
}

/// Puts a checkpoint that cannot be used aside, under a name for people: [`publish`] must not count it among those kept,
/// nor the journal be trimmed to it.
pub(crate) fn put_aside(storage: &mut dyn Storage, lsn: Lsn) -> Result<(), StorageError> {
    storage.rename(&final_name(lsn), &format!("{}{DAMAGED}", final_name(lsn)))
}

/// Takes a whole checkpoint out of use, durably: what it knows is to be undone.
pub(crate) fn withdraw(storage: &mut dyn Storage, lsn: Lsn) -> Result<(), StorageError> {
    storage.rename(&final_name(lsn), &format!("{}{UNDONE}", final_name(lsn)))?;
    storage.sync_directory()
}

/// The positions of all complete checkpoints, ascending.
pub(crate) fn positions(storage: &mut dyn Storage) -> Result<Vec<Lsn>, StorageError> {
    let mut present: Vec<Lsn> = storage.list()?.iter().filter_map(|file| parse_name(&file.name)).collect();
    present.sort_unstable();
    Ok(present)
}

/// Removes the temporary files that an earlier life left of those whose names begin with `prefix`.
pub(crate) fn remove_partial(storage: &mut dyn Storage, prefix: &str) -> Result<(), StorageError> {
    for file in storage.list()? {
        if file.name.starts_with(prefix) && file.name.ends_with(PARTIAL) {
            match storage.remove(&file.name) {
                Ok(()) | Err(StorageError { failure: Failure::NotFound, .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Writes a checkpoint. `state` writes the handler's state.
pub(crate) fn save(
    into: &mut dyn Write,
    identity: (Lsn, StoreId, u32, &str),
    tables: &Tables,
    links: &[u8],
    state: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<Saved> {
    let (lsn, store, version, name) = identity;
    let mut hashed = Hashed { into, whole: Xxh3::new(), state: None, bytes: 0 };
    hashed.write_all(MAGIC)?;
    hashed.write_all(&[VERSION])?;
    hashed.write_all(&lsn.0.to_le_bytes())?;
    hashed.write_all(&store.0)?;
    hashed.write_all(&version.to_le_bytes())?;
    let mut text = Vec::new();
    put_bytes(&mut text, name.as_bytes());
    hashed.write_all(&text)?;
    let tables = postcard::to_allocvec(&(tables, links)).map_err(io::Error::other)?;
    hashed.write_all(&(tables.len() as u64).to_le_bytes())?;
    hashed.write_all(&tables)?;
    hashed.write_all(&LENGTH_UNKNOWN.to_le_bytes())?;
    hashed.state = Some(Xxh3::new());
    state(&mut hashed)?;
    let state_hash = hashed.state.take().expect("set a line above").digest();
    hashed.write_all(&state_hash.to_le_bytes())?;
    let whole = hashed.whole.digest();
    hashed.write_all(&whole.to_le_bytes())?;
    hashed.write_all(END_MAGIC)?;
    hashed.flush()?;
    Ok(Saved { state_hash, bytes: hashed.bytes })
}

/// Reads checkpoint `lsn` of `store`.
pub(crate) fn load(storage: &mut dyn Storage, lsn: Lsn, store: StoreId) -> Result<Loaded, CheckpointError> {
    let name = final_name(lsn);
    let bytes = storage.list()?.into_iter().find(|file| file.name == name).map_or(0, |file| file.bytes);
    let mut file = vec![0; usize::try_from(bytes).map_err(|_| CheckpointError::Damaged)?];
    storage.read(&name, 0, &mut file)?;
    parse(&file, Some(store))
}

/// Reads a checkpoint's bytes, of the store that is `expected` or of any: a decoder of untrusted bytes, and a fuzz target.
pub(crate) fn parse(file: &[u8], expected: Option<StoreId>) -> Result<Loaded, CheckpointError> {
    if !file.starts_with(MAGIC) {
        return Err(CheckpointError::Foreign);
    }
    let damaged = |_| CheckpointError::Damaged;
    let body = file.len().checked_sub(TRAILER_BYTES).ok_or(CheckpointError::Damaged)?;
    let mut trailer = Reader::new(&file[body..]);
    let state_hash = trailer.u64().map_err(damaged)?;
    let whole = trailer.u64().map_err(damaged)?;
    if trailer.rest() != END_MAGIC || xxh3_64(&file[..body + 8]) != whole {
        return Err(CheckpointError::Damaged);
    }
    let mut reader = Reader::new(&file[..body]);
    reader.take(MAGIC.len()).map_err(damaged)?;
    // Asked only now: checkpoints of all versions end alike, and a version is not believed without its checksum.
    let [found] = *reader.take(1).map_err(damaged)? else { unreachable!("one byte was taken") };
    if found != VERSION {
        return Err(CheckpointError::OtherVersion { found, expected: VERSION });
    }
    let lsn = Lsn(reader.u64().map_err(damaged)?);
    let store = StoreId(reader.take(16).map_err(damaged)?.try_into().expect("16 bytes were taken"));
    if let Some(expected) = expected.filter(|expected| *expected != store) {
        return Err(CheckpointError::OtherStore { found: store, expected });
    }
    let version = reader.u32().map_err(damaged)?;
    let name =
        String::from_utf8(reader.bytes().map_err(damaged)?.to_vec()).map_err(|_| CheckpointError::Damaged)?;
    let length = usize::try_from(reader.u64().map_err(damaged)?).map_err(|_| CheckpointError::Damaged)?;
    let (tables, links) =
        postcard::from_bytes(reader.take(length).map_err(damaged)?).map_err(|_| CheckpointError::Damaged)?;
    if reader.u64().map_err(damaged)? != LENGTH_UNKNOWN {
        return Err(CheckpointError::Damaged);
    }
    let state = reader.rest().to_vec();
    if xxh3_64(&state) != state_hash {
        return Err(CheckpointError::Damaged);
    }
    Ok(Loaded { lsn, store, version, name, tables, links, state })
}

struct Hashed<'a> {
    into: &'a mut dyn Write,
    whole: Xxh3,
    state: Option<Xxh3>,
    bytes: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.into.write(bytes)?;
        self.whole.update(&bytes[..written]);
        if let Some(state) = &mut self.state {
            state.update(&bytes[..written]);
        }
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId([7; 16]);

    fn saved() -> Vec<u8> {
        let mut file = Vec::new();
        let tables = Tables::default();
        let saved = save(&mut file, (Lsn(64), STORE, 3, "ledger"), &tables, b"links", |into| {
            into.write_all(b"the state")
        })
        .expect("a vector takes all");
        assert_eq!(saved.bytes, file.len() as u64);
        file
    }

    #[test]
    fn a_checkpoint_reads_back() {
        let loaded = parse(&saved(), Some(STORE)).expect("it was just written");
        assert_eq!((loaded.lsn, loaded.version, loaded.name.as_str()), (Lsn(64), 3, "ledger"));
        assert_eq!(loaded.state, b"the state");
        assert_eq!(parse_name(&final_name(Lsn(64))), Some(Lsn(64)));
        assert_eq!(parse_name(&temporary_name(Lsn(64))), None);
    }

    #[test]
    fn no_flipped_byte_and_no_truncation_is_accepted() {
        let good = saved();
        for place in 0..good.len() {
            let mut bad = good.clone();
            bad[place] ^= 0x10;
            assert!(parse(&bad, Some(STORE)).is_err(), "a flip at byte {place} was accepted");
            assert!(
                parse(&good[..place], Some(STORE)).is_err(),
                "a truncation to {place} bytes was accepted"
            );
        }
    }

    #[test]
    fn another_version_is_told_from_a_flipped_bit() {
        let mut other = saved();
        other[MAGIC.len()] = b'1';
        assert_eq!(parse(&other, Some(STORE)).err(), Some(CheckpointError::Damaged));
        let body = other.len() - TRAILER_BYTES;
        let whole = xxh3_64(&other[..body + 8]);
        other[body + 8..body + 16].copy_from_slice(&whole.to_le_bytes());
        let error = parse(&other, Some(STORE)).expect_err("it is of another version");
        assert_eq!(error, CheckpointError::OtherVersion { found: b'1', expected: VERSION });
        assert_eq!(error.to_string(), "it has format version 1, this program reads 3");
    }

    #[test]
    fn another_stores_checkpoint_is_refused_by_name() {
        let error = parse(&saved(), Some(StoreId([8; 16]))).expect_err("it is foreign");
        assert!(matches!(error, CheckpointError::OtherStore { .. }));
    }
}
