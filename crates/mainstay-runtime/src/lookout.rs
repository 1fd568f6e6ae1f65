//! Looking out for the next request of a client that has just been answered and is known to be quick.
//!
//! A serving thread that goes to sleep between two requests lets its core halt, and waking a halted core takes a third of a
//! sync on a virtual machine. A lone client that sends its next request as soon as it has the answer before pays for that
//! with every request. So the thread stays awake for as long as such a client is expected to take, yielding its core to
//! whoever wants it: the client itself may be the one. As the halt polling of hypervisors, and bounded the same way: it is
//! not done for a client that was not quick before.

use crate::wakeful::Wakeful;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The longest a quick client takes from an answer to its next request, and the longest a thread looks out for it. Twice
/// what it takes on a virtual machine of two cores while both ends have to be woken.
const TURNAROUND_MAX: Duration = Duration::from_micros(150);

/// How long cores are kept from halting for a request of a quick client: three syncs of a virtual machine. Beside a slower
/// disk a wake counts for little.
const SERVED_MAX: Duration = Duration::from_micros(300);

/// How quick the last requests must have been for a thread to look out for the next: each quick one counts 1.
const SCORE_MIN: u32 = 4;

/// Highest score: what a client that has been quick for long can lose by pauses before it counts as slow.
const SCORE_MAX: u32 = 16;

/// What a pause costs. So at least 4 of 5 lookouts see what they look out for.
const PAUSE_COSTS: u32 = 4;

/// The lookout of one serving thread; used on that thread only.
#[derive(Debug)]
pub(crate) struct Lookout {
    started: Instant,
    /// When the last answer left, in nanoseconds since `started`.
    answered_ns: AtomicU64,
    score: AtomicU32,
    requests: AtomicU64,
    wanted: Notify,
    wakeful: Arc<Wakeful>,
}

impl Lookout {
    pub(crate) fn new(wakeful: Arc<Wakeful>) -> Self {
        Self {
            started: Instant::now(),
            answered_ns: AtomicU64::new(0),
            score: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            wanted: Notify::new(),
            wakeful,
        }
    }

    /// A request has come. `alone`: no other is in flight. Several at a time keep the cores awake by themselves, and to fetch
    /// each at once would give each a sync of its own.
    pub(crate) fn request_came(&self, alone: bool) {
        if self.request_came_at(self.started.elapsed(), alone) {
            self.wakeful.keep(SERVED_MAX);
        }
    }

    /// Whether it is one of a quick client.
    fn request_came_at(&self, now: Duration, alone: bool) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answered = Duration::from_nanos(self.answered_ns.load(Ordering::Relaxed));
        let score = self.score.load(Ordering::Relaxed);
        let score = match now.saturating_sub(answered) <= TURNAROUND_MAX {
            _ if !alone => 0,
            true => (score + 1).min(SCORE_MAX),
            false => score.saturating_sub(PAUSE_COSTS),
        };
        self.score.store(score, Ordering::Relaxed);
        score >= SCORE_MIN
    }

    /// Its answer leaves.
    pub(crate) fn answered(&self) {
        if self.answered_at(self.started.elapsed()) {
            self.wakeful.keep(TURNAROUND_MAX);
            self.wanted.notify_one();
        }
    }

    fn answered_at(&self, now: Duration) -> bool {
        self.answered_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.score.load(Ordering::Relaxed) >= SCORE_MIN
    }

    /// Looks out whenever it is wanted, for ever.
    pub(crate) async fn keep(&self) {
        loop {
            self.wanted.notified().await;
            let requests = self.requests.load(Ordering::Relaxed);
            let since = Instant::now();
            while self.requests.load(Ordering::Relaxed) == requests && since.elapsed() < TURNAROUND_MAX {
                std::thread::yield_now();
                // Looks at the sockets, and comes back here when nothing has come.
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(30);
    const SLOW: Duration = Duration::from_millis(5);

    /// Whether it is looked out after each of the requests that come `pauses` after the answer before.
    fn wanted(pauses: &[Duration], alone: bool) -> Vec<bool> {
        let lookout = Lookout::new(Arc::default());
        let mut now = Duration::from_secs(1);
        let mut wanted = Vec::new();
        for pause in pauses {
            now += *pause;
            lookout.request_came_at(now, alone);
            wanted.push(lookout.answered_at(now));
        }
        wanted
    }

    #[test]
    fn only_for_a_client_that_was_quick_several_times() {
        // The first request comes after no answer.
        let quick = [QUICK; SCORE_MIN as usize + 1];
        let mut expected = vec![false; SCORE_MIN as usize];
        expected.extend([true, false, false]);
        assert_eq!(wanted(&[quick.as_slice(), &[SLOW, QUICK]].concat(), true), expected);
    }

    #[test]
    fn a_client_that_pauses_once_in_a_while_stays_quick() {
        let wanted = wanted(&[[QUICK; 12].as_slice(), &[SLOW; 1], &[QUICK; 12]].concat(), true);
        assert!(wanted[SCORE_MIN as usize..].iter().all(|wanted| *wanted), "{wanted:?}");
    }

    #[test]
    fn not_while_several_requests_are_in_flight() {
        assert!(!wanted(&[QUICK; 40], false).contains(&true));
    }
}
