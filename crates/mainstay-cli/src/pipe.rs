//! Ends quietly when the reader of a pipe has seen enough (`mainstay sim --list | head -1`).

/// Lets the kernel end this process when it writes into a pipe that nobody reads, as other tools do. Otherwise it would be told of an error,
/// and panic.
///
/// Only for commands that may end at any line: not for one that has started others, or is amid a change.
pub(crate) fn end_when_nobody_reads() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
