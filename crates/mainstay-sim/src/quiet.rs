//! Panics that are looked at instead of printed: a campaign makes handlers and invariants panic by the thousand.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work`; panics of this thread in it are not printed, and where the last one was is remembered.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                return earlier(info);
            }
            let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
            PLACE.set(place.unwrap_or_default());
        }));
    });
    struct Loud(bool);
    impl Drop for Loud {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _loud = Loud(QUIET.replace(true));
    work()
}

/// Where this thread panicked last, in brackets; empty if that is not known.
pub(crate) fn last_panic_place() -> String {
    PLACE.with_borrow(Clone::clone)
}

/// What a panic said.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
