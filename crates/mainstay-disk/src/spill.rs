//! Bytes that are moved out of memory into files without a name: the kernel writes them out when it likes and drops them from
//! memory when it needs that, and nobody else ever sees them.
//!
//! Nothing is synced. The space comes back when the last reference is dropped, or the process ends, however it ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

/// How the names begin that such a file has for the moment between its making and the removal of its name.
const NAME_BEGINS: &str = "spill-";

/// Bytes in a mapped file that has no name.
///
/// A disk that cannot give them back any more ends the process with a signal, as a crash would; what they were is emitted again
/// by the replay.
#[derive(Debug)]
pub struct MappedBytes {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is read only, private to this object, and of a file that nobody can open any more.
unsafe impl Send for MappedBytes {}
// SAFETY: as above.
unsafe impl Sync for MappedBytes {}

impl AsRef<[u8]> for MappedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: base and bytes are what mmap returned, and nobody writes to the file or changes its length.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        // SAFETY: base and bytes are what mmap returned, and no reference outlives this object.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Writes `bytes` into a file of `directory` that loses its name at once, and maps it. `unique` tells it from
/// others of this process's directory.
///
/// # Errors
/// Those of the file system, a full disk among them; nothing is left behind.
pub fn write(directory: &Path, unique: (u64, u64), bytes: &[u8]) -> io::Result<MappedBytes> {
    let path = directory.join(format!("{NAME_BEGINS}{}-{}", unique.0, unique.1));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    match fs::remove_file(&path) {
        // A life that begins in this process removes what it finds.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    // By a plain write, which fails on a full disk where a store into a mapping would end the process.
    file.write_all(bytes)?;
    map(&file, bytes.len())
}

/// Removes what a process has left behind that ended between making such a file and removing its name.
pub(crate) fn remove_left_behind(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(NAME_BEGINS) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

fn map(file: &File, bytes: usize) -> io::Result<MappedBytes> {
    // SAFETY: a fresh shared mapping of a file of that length, read only; the kernel picks the address.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = NonNull::new(base.cast::<u8>()).expect("mmap never gives address zero unasked");
    Ok(MappedBytes { base, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_directory_stays_empty() {
        let directory = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..50_000_u32).map(|at| (at % 251) as u8).collect();
        let kept = write(directory.path(), (1, 1), &bytes).unwrap();
        let again = write(directory.path(), (1, 2), &bytes[7..8]).unwrap();
        assert_eq!((kept.as_ref(), again.as_ref()), (&bytes[..], &bytes[7..8]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill-3-7", "segment-0", "superblock"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        remove_left_behind(directory.path()).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["segment-0", "superblock"]);
    }
}
