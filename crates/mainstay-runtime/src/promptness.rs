//! Asks the kernel to run the calling thread soon after it wakes up, without a larger share of the processor.
//!
//! A thread that drives for many connections waits for its write, then for a core on which those that it serves compute: as long again as
//! for the disk, twice for each write, because the kernel's flush behind the write is on this thread as well. The kernel's scheduler
//! (EEVDF) takes the thread whose slice ends first among those that are owed time: one with short slices is taken earlier and runs no longer
//! in all. A higher priority instead makes it run so often that the writes become small and many.

/// The shortest slice that the kernel gives.
const SLICE_NS: u64 = 100_000;

/// Shortens the slices of the calling thread. Left as they are if the thread is under another policy than the usual one, by
/// somebody's wish, or if the kernel (before 6.12) has no such thing.
pub(crate) fn ask_for_promptness() {
    // SAFETY: calls without pointers; 0 is the calling thread.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    if policy != libc::SCHED_OTHER {
        return;
    }
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes outlive the call and say their size; 0 is the calling thread, without flags.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "no short slices for the driving thread");
    }
}
