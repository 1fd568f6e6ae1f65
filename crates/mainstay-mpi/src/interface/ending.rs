//! The end of a process: said, abrupt, or left to a fork's parent.

use super::{FINISH_WAIT_SECONDS_MAX, STATE, THREAD, state};
use crate::core::{Core, Side};
use crate::ending::{Cause, Ending};
use crate::format::{encode_left, stop_reason};
use crate::settings;
use std::ffi::c_int;
use std::io::Write;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Where a process that leaves at once says so, in a mapping that stays.
static PLACE_OF_LEFT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// From now on a process that leaves at once writes to this place.
pub(super) fn set_place_of_left(place: Option<*mut u8>) {
    PLACE_OF_LEFT.store(place.unwrap_or_default(), Ordering::Release);
}

/// The process leaves by `_exit`, perhaps from a signal's handler: nothing is waited for, and no memory asked for. The log stays as a killed
/// rank's does.
#[unsafe(no_mangle)]
pub extern "C" fn ms_leaves(status: c_int) {
    let place = PLACE_OF_LEFT.load(Ordering::Acquire);
    if !place.is_null() {
        let cell = encode_left(status);
        // SAFETY: the mapping has room for it there and stays for as long as the process lives.
        unsafe { std::ptr::copy_nonoverlapping(cell.as_ptr(), place, cell.len()) };
    }
}

/// Says something on standard error, if that can be: a panic here would end the recorded program.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The process ends. Says on standard error what the user must know. `cause` is a number of [`Cause`]; `function` is the call it is in, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ms_finish(cause: c_int, status: c_int, function: c_int) {
    let cause = Cause::from_number(u64::try_from(cause).unwrap_or(0));
    let ending = Ending { cause, status, within: u16::try_from(function).ok() };
    // From a signal's handler in the midst of a step, or while another thread writes to a disk that hangs: then the log stays as a
    // killed rank's does, whole to its last call.
    let Some(mut state) = THREAD.with(|thread| STATE.lock_within(&thread.keeps, FINISH_WAIT_SECONDS_MAX))
    else {
        return;
    };
    set_place_of_left(None);
    if let Some(refused) = state.refused.take() {
        say!("mainstay mpi record: nothing of this rank was recorded: {refused}");
    }
    match state.core.take() {
        Some(Core { side: Side::Recording(mut recording), .. }) => {
            let ended = recording.finish(ending);
            if let Some(folder) = std::env::var_os(settings::FIGURES) {
                ended.figures.leave_in(folder.as_ref(), &recording.name());
            }
            if let Some(errno) = ended.stopped {
                say!(
                    "mainstay mpi record: the log of this rank ends after {} calls: {}",
                    ended.calls,
                    stop_reason(errno)
                );
            }
        }
        Some(Core { side: Side::Replaying(mut replaying, _), mut known, .. }) => {
            let (word, text) = match replaying.finish(ending, &mut known) {
                Ok(logged) => ("complete", format!("{} calls{}", replaying.calls(), and_ended(logged))),
                Err(halt) => {
                    say!("mainstay mpi replay: {halt}");
                    (halt.word(), halt.to_string())
                }
            };
            if let Some(verdict) = &mut state.verdict {
                verdict.put(word, &text);
            }
        }
        None => {}
    }
}

fn and_ended(logged: Ending) -> String {
    if logged.cause == Cause::Unknown {
        return String::new();
    }
    format!(", and the same end: {}", logged.text())
}

/// After a fork: the child records nothing, and leaves the log to its parent.
#[unsafe(no_mangle)]
pub extern "C" fn ms_forget_all() {
    set_place_of_left(None);
    // The lock may be held by a thread that the child does not have; then the core is left alone.
    if let Some(mut state) = THREAD.with(|thread| STATE.try_lock(&thread.keeps)) {
        std::mem::forget(state.core.take());
    }
}

/// At replay: number of the call that was served last.
#[unsafe(no_mangle)]
pub extern "C" fn ms_calls() -> u64 {
    match &state().core {
        Some(Core { side: Side::Replaying(replaying, _), .. }) => replaying.calls(),
        _ => 0,
    }
}
