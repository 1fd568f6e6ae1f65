//! How a page reaches the disk: straight from the ring, or through the page cache. Found out by trying.

use crate::failure::failure_of;
use crate::mapped_pages::Mapping;
use mainstay_journal::geometry::BLOCK_BYTES;
use mainstay_journal::storage::Failure;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How a page is written and made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMethod {
    /// `O_DIRECT` from the ring without a copy; durable writes are one `pwritev2` with `RWF_DSYNC`.
    Direct,
    /// `pwrite` into the page cache; durable writes are followed by `fdatasync`.
    Buffered,
}

impl std::fmt::Display for WriteMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct writes with RWF_DSYNC",
            Self::Buffered => "buffered writes with fdatasync",
        })
    }
}

/// File systems that checksum a direct write while its bytes may still change: the tail page of the ring is filled
/// while its earlier blocks are written, and these would later fail to read. By the magic number of statfs(2).
const CHECKSUMMING_FILE_SYSTEMS: [(i64, &str); 3] =
    [(0x9123_683E, "btrfs"), (0x2FC1_2FC1, "zfs"), (0xCA45_1A4E, "bcachefs")];

/// Chooses for a journal in these directories and says why: what one of them cannot do is done nowhere.
pub(crate) fn choose_for_all<'a>(
    directories: impl Iterator<Item = &'a Path>,
    mapping: &Mapping,
) -> (WriteMethod, String) {
    let mut chosen = None;
    for directory in directories {
        let (method, reason) = choose(directory, mapping);
        if method == WriteMethod::Buffered {
            return (method, reason);
        }
        chosen.get_or_insert((method, reason));
    }
    chosen.expect("a journal has a directory")
}

/// Chooses for `directory` and says why.
fn choose(directory: &Path, mapping: &Mapping) -> (WriteMethod, String) {
    if let Some(name) = checksumming_file_system(directory) {
        return (WriteMethod::Buffered, format!("{name} checksums pages that may still change"));
    }
    match try_direct(directory, mapping) {
        Ok(()) => (WriteMethod::Direct, "a direct durable write of one block succeeded".to_owned()),
        Err(error) => (WriteMethod::Buffered, format!("a direct durable write of one block failed: {error}")),
    }
}

fn checksumming_file_system(directory: &Path) -> Option<&'static str> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut status = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends with a zero byte and the buffer is of the right type.
    if unsafe { libc::statfs(path.as_ptr(), status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statfs succeeded and filled it.
    let magic = unsafe { status.assume_init() }.f_type;
    CHECKSUMMING_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Writes one block of the ring into a file without a name, so that nothing is left behind.
fn try_direct(directory: &Path, mapping: &Mapping) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_DIRECT | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero byte; O_TMPFILE takes a mode.
    let descriptor = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just opened and owned by nobody else.
    let file = unsafe { File::from_raw_fd(descriptor) };
    // SAFETY: the range is inside the ring, as `address` asserts, and the ring outlives the call.
    unsafe { write_all(&file, mapping.address(0, 0, BLOCK_BYTES), BLOCK_BYTES as usize, 0, libc::RWF_DSYNC) }
        .map_err(|failure| match failure {
            Failure::Os(number) => io::Error::from_raw_os_error(number),
            other => io::Error::other(other.to_string()),
        })
}

/// Writes `length` bytes from `address` at `offset`, however many calls it takes. `flags` are those of pwritev2(2).
///
/// # Safety
/// `length` bytes from `address` must stay mapped during the call. They may change meanwhile: only the kernel reads them.
pub(crate) unsafe fn write_all(
    file: &File,
    address: *const u8,
    length: usize,
    offset: u64,
    flags: libc::c_int,
) -> Result<(), Failure> {
    let mut written = 0;
    while written < length {
        // SAFETY: `written` is below `length`, so the address stays in the range that the caller vouches for.
        let base = unsafe { address.add(written) };
        let vector = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length - written };
        let at = libc::off_t::try_from(offset + written as u64).expect("files are below 2^63 bytes");
        // SAFETY: one vector over mapped bytes, see above.
        let count = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, at, flags) };
        match usize::try_from(count) {
            Ok(0) => return Err(Failure::NoSpace),
            Ok(count) => written += count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(failure_of(&error)),
            },
        }
    }
    Ok(())
}
