//! Shows whether code makes a system call, from inside the process: the kernel's syscall user dispatch turns the first
//! one into a signal. No tracer, no privilege, nothing that slows the code down before that.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The kernel looks here before every system call of the watched thread.
static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);

/// Signals received so far.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// One watch at a time: the words above are the process's.
static WATCHING: Mutex<()> = Mutex::new(());

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
const PR_SYS_DISPATCH_OFF: libc::c_ulong = 0;
const PR_SYS_DISPATCH_ON: libc::c_ulong = 1;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Runs `code` on this thread and says whether it made any system call; nothing where the kernel (before 5.11) or the
/// processor does not support the watch. The call itself is let through, and those after it.
#[must_use]
pub fn makes_a_system_call(code: impl FnOnce()) -> Option<bool> {
    let _one = WATCHING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !install_handler() || !dispatch(PR_SYS_DISPATCH_ON) {
        return None;
    }
    let before = CAUGHT.load(Ordering::SeqCst);
    SELECTOR.store(BLOCK, Ordering::SeqCst);
    code();
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    let caught = CAUGHT.load(Ordering::SeqCst) - before;
    let is_off = dispatch(PR_SYS_DISPATCH_OFF);
    assert!(is_off, "what was switched on can be switched off");
    Some(caught > 0)
}

fn dispatch(mode: libc::c_ulong) -> bool {
    let selector = if mode == PR_SYS_DISPATCH_ON { SELECTOR.as_ptr() } else { std::ptr::null_mut() };
    // SAFETY: the selector is a static; no range of addresses is exempt.
    unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, 0_usize, 0_usize, selector) == 0 }
}

#[cfg(target_arch = "x86_64")]
fn install_handler() -> bool {
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = caught as extern "C" fn(_, _, _) as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler only touches atomics and the saved registers.
    unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) == 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn install_handler() -> bool {
    false
}

/// Lets system calls through from now on and repeats the one that was caught.
#[cfg(target_arch = "x86_64")]
extern "C" fn caught(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// Length of the `syscall` instruction, after which the saved address points.
    const SYSCALL_INSTRUCTION_BYTES: i64 = 2;
    CAUGHT.fetch_add(1, Ordering::SeqCst);
    SELECTOR.store(ALLOW, Ordering::SeqCst);
    // SAFETY: the kernel passes the interrupted context, valid for the time of the handler.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] -= SYSCALL_INSTRUCTION_BYTES;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_is_seen_and_still_works() {
        let mut parent = 0;
        // SAFETY: getppid has no arguments and no failure.
        let seen = makes_a_system_call(|| parent = unsafe { libc::getppid() });
        let Some(seen) = seen else {
            eprintln!("skipped: no syscall user dispatch here");
            return;
        };
        assert!(seen);
        // SAFETY: as above.
        assert_eq!(parent, unsafe { libc::getppid() });
        let mut sum = 0_u64;
        assert_eq!(makes_a_system_call(|| sum = (0..100_000_u64).map(|n| n ^ 5).sum()), Some(false));
        assert!(sum > 0);
    }
}
