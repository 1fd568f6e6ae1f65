//! Children of the demo die with their parent, however it dies.

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io;

/// Asks the kernel to kill this process when `parent` dies. Called first thing in a child.
///
/// # Errors
/// When the kernel refuses, or `parent` is gone already.
pub(crate) fn die_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the request was made.
    let present = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if present == Some(parent) { Ok(()) } else { Err(io::Error::other("the parent process is gone")) }
}
