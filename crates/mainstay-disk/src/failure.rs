//! Errors of the operating system, as the journal's [`Failure`]s.

use mainstay_journal::storage::Failure;
use std::io;

/// The failure that an operating-system error stands for. A short read or write without an error number is
/// [`Failure::Short`].
pub(crate) fn failure_of(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(number) => failure_of_number(number),
        None => Failure::Short,
    }
}

/// The failure that an error number stands for. `EFBIG` (a limit on file sizes) counts as no space: the file cannot
/// grow, nothing is damaged, and raising the limit mends it.
pub(crate) fn failure_of_number(number: i32) -> Failure {
    match number {
        libc::ENOENT => Failure::NotFound,
        libc::EEXIST => Failure::Exists,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Failure::NoSpace,
        libc::EROFS | libc::EACCES | libc::EPERM => Failure::ReadOnly,
        other => Failure::Os(other),
    }
}
