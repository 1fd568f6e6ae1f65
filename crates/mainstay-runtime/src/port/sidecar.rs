//! What a file port remembers beside its file: which file it is bound to and how far that has been acknowledged.
//!
//! `<file>.mainstay` holds two slots of 512 bytes, written in turn, each one line: CRC-32C in hexadecimal, a space, JSON. The
//! valid slot with the higher counter counts. `<file>.mainstay-rotations` has one JSON line per rotation.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of one slot: within one sector, so that a torn write leaves the other slot alone.
const SLOT_BYTES: usize = 512;

/// Hexadecimal digits of the checksum and the space after them.
const CHECKSUM_BYTES: usize = 9;

/// The format that this code writes and reads.
const FORMAT: u32 = 1;

/// A file port's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Format version of the sidecar.
    pub(crate) format: u32,
    /// Counts the writings of this record.
    pub(crate) counter: u64,
    /// The directory whose service owns the file, in hexadecimal.
    pub(crate) store: String,
    /// Device of the bound file.
    pub(crate) device: u64,
    /// Inode of the bound file.
    pub(crate) inode: u64,
    /// Bytes of the file that belong to acknowledged outputs, or were there before.
    pub(crate) acknowledged_bytes: u64,
    /// The last acknowledged output; 0 for none.
    pub(crate) output: u64,
}

impl Position {
    /// The first position in a file.
    pub(crate) fn first(store: String, device: u64, inode: u64, acknowledged_bytes: u64) -> Self {
        Self { format: FORMAT, counter: 0, store, device, inode, acknowledged_bytes, output: 0 }
    }
}

/// The sidecar of one file.
#[derive(Debug)]
pub(crate) struct Sidecar {
    file: File,
    rotations: PathBuf,
}

/// The sidecar cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// Neither slot is whole.
    #[error(
        "`{path}` is damaged: how far the output file was acknowledged is unknown. Compare the end of the output file with \
         `mainstay outputs`, then remove `{path}` to go on at the file's end"
    )]
    Damaged {
        /// The sidecar.
        path: PathBuf,
    },
    /// Written by a newer version.
    #[error("`{path}` has format {found}; this version reads up to {FORMAT}: start the newer version again")]
    Newer {
        /// The sidecar.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Reading or writing failed.
    #[error("`{path}` cannot be used")]
    File {
        /// The sidecar.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Sidecar {
    /// Opens the sidecar of the file at `beside`, making it if there is none; `None` for a position not known yet.
    pub(crate) fn open(beside: &Path) -> Result<(Self, Option<Position>), SidecarError> {
        let path = with_suffix(beside, ".mainstay");
        let failed = |source| SidecarError::File { path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let sidecar = Self { file, rotations: with_suffix(beside, ".mainstay-rotations") };
        if bytes.is_empty() {
            sync_folder_of(beside).map_err(failed)?;
            return Ok((sidecar, None));
        }
        let found = bytes.chunks(SLOT_BYTES).filter_map(decode).max_by_key(|position| position.counter);
        match found {
            None => Err(SidecarError::Damaged { path }),
            Some(position) if position.format > FORMAT => {
                Err(SidecarError::Newer { path, found: position.format })
            }
            Some(position) => Ok((sidecar, Some(position))),
        }
    }

    /// Replaces the position, durably.
    pub(crate) fn store(&self, position: &mut Position) -> io::Result<()> {
        position.counter += 1;
        let slot = position.counter % 2 * SLOT_BYTES as u64;
        self.file.write_all_at(&encode(position), slot)?;
        self.file.sync_data()
    }

    /// Records durably that the file was rotated away.
    pub(crate) fn record_rotation(&self, position: &Position, new_inode: u64) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.rotations)?;
        let line = serde_json::json!({
            "old_device": position.device,
            "old_inode": position.inode,
            "old_bytes": position.acknowledged_bytes,
            "last_output": position.output,
            "new_inode": new_inode,
        });
        writeln!(file, "{line}")?;
        file.sync_all()?;
        sync_folder_of(&self.rotations)
    }
}

/// Syncs the folder that holds `path`, so that the file's existence is past a sync.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// The folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn encode(position: &Position) -> [u8; SLOT_BYTES] {
    let mut slot = [b' '; SLOT_BYTES];
    let json = serde_json::to_vec(position).expect("a struct of numbers and a string is JSON");
    assert!(CHECKSUM_BYTES + json.len() < SLOT_BYTES, "a position fits its slot");
    let checksum = format!("{:08x} ", crc32c::crc32c(&json));
    slot[..CHECKSUM_BYTES].copy_from_slice(checksum.as_bytes());
    slot[CHECKSUM_BYTES..CHECKSUM_BYTES + json.len()].copy_from_slice(&json);
    slot[SLOT_BYTES - 1] = b'\n';
    slot
}

fn decode(slot: &[u8]) -> Option<Position> {
    let (checksum, json) = slot.split_at_checked(CHECKSUM_BYTES)?;
    let checksum = u32::from_str_radix(std::str::from_utf8(checksum).ok()?.trim_end(), 16).ok()?;
    let json = json.trim_ascii_end();
    if crc32c::crc32c(json) != checksum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_slot_leaves_the_position_before() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join("lines");
        let (sidecar, none) = Sidecar::open(&beside).unwrap();
        assert_eq!(none, None);
        let mut position = Position::first("ab".into(), 1, 2, 0);
        for bytes in [10, 20] {
            position.acknowledged_bytes = bytes;
            sidecar.store(&mut position).unwrap();
        }
        assert_eq!(Sidecar::open(&beside).unwrap().1, Some(position.clone()));
        // The latest is counter 2, in slot 0.
        sidecar.file.write_all_at(b"torn", 20).unwrap();
        assert_eq!(Sidecar::open(&beside).unwrap().1.unwrap().acknowledged_bytes, 10);
        sidecar.file.write_all_at(b"torn", 20 + SLOT_BYTES as u64).unwrap();
        assert!(matches!(Sidecar::open(&beside), Err(SidecarError::Damaged { .. })));
    }

    #[test]
    fn a_newer_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let beside = folder.path().join("lines");
        let (sidecar, _) = Sidecar::open(&beside).unwrap();
        let mut position = Position { format: FORMAT + 1, ..Position::first("ab".into(), 1, 2, 0) };
        sidecar.store(&mut position).unwrap();
        assert!(matches!(Sidecar::open(&beside), Err(SidecarError::Newer { found: 2, .. })));
    }
}
