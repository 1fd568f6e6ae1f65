//! Staying awake for what is about to happen, and offering the core to others all the time.
//!
//! To be woken up takes long on a core that halts. But beside one who computes, a thread that offers its core is back only after that one's
//! slice of some milliseconds, where a sleeper that is woken goes first. Whoever was late should sleep the next times.

use std::thread;
use std::time::{Duration, Instant};

/// Longest time to stay awake, some writes of a quick disk: behind a slow one, waking up late makes no difference.
pub(crate) const LONGEST: Duration = Duration::from_micros(500);

/// Whoever is back from offering its core only after this long shares it with others who want it. Shorter bursts of theirs go unnoticed.
const OFFER_MAX: Duration = Duration::from_millis(1);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// It has happened.
    Happened,
    /// It has not, and the longest time is over.
    TooLong,
    /// Others want this core. It may have happened long ago.
    Late,
}

/// Stays awake until `has_happened`, for `longest` at most.
pub(crate) fn watch(longest: Duration, has_happened: impl FnMut() -> bool) -> Watched {
    watch_by(Instant::now, thread::yield_now, longest, has_happened)
}

fn watch_by(
    clock: impl Fn() -> Instant,
    offer_core: impl Fn(),
    longest: Duration,
    mut has_happened: impl FnMut() -> bool,
) -> Watched {
    let since = clock();
    let mut now = since;
    while now - since < longest {
        if has_happened() {
            return Watched::Happened;
        }
        let offered = now;
        offer_core();
        now = clock();
        if now - offered > OFFER_MAX {
            return Watched::Late;
        }
    }
    if has_happened() { Watched::Happened } else { Watched::TooLong }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Watches for `longest` with offers that take `offer`, for what happens at the `happens`th look.
    fn watched(longest: Duration, offer: Duration, happens: u32) -> Watched {
        let now = Cell::new(Instant::now());
        let mut looks = 0;
        let look = || {
            looks += 1;
            looks == happens
        };
        watch_by(|| now.get(), || now.set(now.get() + offer), longest, look)
    }

    #[test]
    fn it_ends_when_it_has_happened_or_after_the_longest_time() {
        let longest = 10 * OFFER_MAX;
        assert_eq!(watched(longest, OFFER_MAX, 1), Watched::Happened);
        assert_eq!(watched(longest, OFFER_MAX, 11), Watched::Happened, "during the last offer");
        assert_eq!(watched(longest, OFFER_MAX, 12), Watched::TooLong);
    }

    #[test]
    fn it_ends_when_the_core_is_wanted_however_short_the_longest_time() {
        let late = OFFER_MAX + Duration::from_nanos(1);
        assert_eq!(watched(10 * OFFER_MAX, late, 2), Watched::Late);
        assert_eq!(watched(OFFER_MAX / 2, late, 2), Watched::Late);
    }
}
