//! The time of a node: that of the machine since its start, which goes on while the machine is suspended, so that a lease runs out meanwhile.

use mainstay_types::time::Time;
use std::time::SystemTime;

/// The time now, by `CLOCK_BOOTTIME`. Read after a request has come, it is later than the request.
#[must_use]
pub fn now() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is writable and of the kind that the call fills.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(read, 0, "every Linux since 2.6.39 has this clock");
    let seconds = u64::try_from(time.tv_sec).expect("the machine started in the past");
    Time(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("a part of a second is not negative"))
}

/// The wall clock: milliseconds since 1970, UTC. Nothing but the end of values goes by it.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
