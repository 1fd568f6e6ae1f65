//! Space on the disk: had before it is stored into, and given back from the midst of a log that is bounded.

use crate::format::FileHeader;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Has so many bytes on the disk for the file, which becomes as long.
///
/// # Errors
/// What the system says; the file may be longer.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` lives.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, offset(bytes)?) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Gives back the page that goes when `page` is written into a log with a bound. Its place reads as zeroes.
///
/// # Errors
/// What the system says.
pub(super) fn give_back_before(log: &File, header: &FileHeader, page: u64) -> io::Result<()> {
    match page.checked_sub(u64::from(header.kept_pages)) {
        Some(oldest) if header.kept_pages > 0 && oldest > 0 => {
            punch(log, header.log_offset(oldest), u64::from(header.page_bytes))
        }
        _ => Ok(()),
    }
}

/// Whether a log with a bound can do that at all; one without need not.
///
/// # Errors
/// What the system says where it cannot.
pub(super) fn can_give_back(log: &File, header: &FileHeader) -> io::Result<()> {
    if header.kept_pages == 0 {
        return Ok(());
    }
    // Behind the end there is nothing to lose.
    let punched = punch(log, header.log_offset(0), u64::from(header.page_bytes));
    let text = "--keep-last: its file system cannot give back a part of a file";
    punched.map_err(|error| io::Error::new(error.kind(), format!("{text}: {error}")))
}

fn punch(log: &File, at: u64, bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open for as long as `log` lives.
    match unsafe { libc::fallocate(log.as_raw_fd(), mode, offset(at)?, offset(bytes)?) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn offset(bytes: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}
