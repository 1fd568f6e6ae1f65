//! Memory of its own for every thread, as it has where each server is a process of its own.

/// More threads than any benchmark starts.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: libc::c_int = 1024;

/// Lets every thread that starts from now on have an arena of the allocator, unless the environment says how many there are. By default glibc makes
/// eight for each core and shares them out from then on: on two cores the threads of the third server of a process would get those of the first,
/// that of the load among them, and wait for each other at every request (`docs/benchmarks/step.md`, "64 clients"). To be called
/// before threads are started: the allocator looks once, when it has made some.
pub(crate) fn one_for_each_thread() {
    #[cfg(target_env = "gnu")]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: it changes a limit of the allocator, under its own lock.
        let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) };
        assert_eq!(taken, 1, "glibc takes any number of arenas");
    }
}
