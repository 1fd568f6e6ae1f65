//! Readers of the demo, one at each node and at no other: whatever a node answers, also one that is cut off or stood still, must not be older than
//! what was acknowledged before it was asked, nor newer than what was asked for until it answered.

use super::CLIENTS;
use super::client::{KEYS, value_of};
use crate::demo::draw::Draw;
use crate::redis::{Connection, Said};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// How long a node may take with one answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Between two reads, so that writing is not slowed down by reading.
const PAUSE: Duration = Duration::from_millis(3);

/// Between two attempts at a node that does not answer.
const DOWN_PAUSE: Duration = Duration::from_millis(20);

/// What is known of one counter while it is changed: it only grows.
#[derive(Debug, Default)]
struct Bounds {
    acknowledged: AtomicI64,
    asked_for: AtomicI64,
}

/// What is known of all counters, and what reading them gave.
#[derive(Debug)]
pub(crate) struct Watched {
    counters: Vec<Bounds>,
    checked: AtomicU64,
    refused: AtomicU64,
    stale: AtomicU64,
    over: AtomicBool,
}

/// One counter, by its client and its place.
pub(crate) type Which = (usize, u64);

/// What reads gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reads {
    /// Answered with a value, which was compared.
    pub(crate) checked: u64,
    /// Refused by a node that does not serve.
    pub(crate) refused: u64,
    /// Values that were older than what was acknowledged before, or that nobody had asked for.
    pub(crate) stale: u64,
}

impl Watched {
    pub(crate) fn new() -> Self {
        let counters = CLIENTS * usize::try_from(KEYS).expect("there are few");
        Self {
            counters: (0..counters).map(|_| Bounds::default()).collect(),
            checked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn of(&self, (client, key): Which) -> &Bounds {
        &self.counters[client * usize::try_from(KEYS).expect("there are few")
            + usize::try_from(key).expect("a key is small")]
    }

    /// A change is about to be asked for.
    pub(crate) fn asks(&self, which: Which, by: i64) {
        self.of(which).asked_for.fetch_add(by, Ordering::SeqCst);
    }

    /// A change was acknowledged with this value.
    pub(crate) fn acknowledged(&self, which: Which, value: i64) {
        self.of(which).acknowledged.fetch_max(value, Ordering::SeqCst);
    }

    /// What a read that is sent now must not be below.
    pub(crate) fn least(&self, which: Which) -> i64 {
        self.of(which).acknowledged.load(Ordering::SeqCst)
    }

    /// Compares what a read gave, which was sent when `least` was acknowledged.
    pub(crate) fn check(&self, which: Which, least: i64, said: Said) {
        if let Said::Error(_) = said {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.checked.fetch_add(1, Ordering::Relaxed);
        let most = self.of(which).asked_for.load(Ordering::SeqCst);
        let value = match value_of(said) {
            None => Some(0),
            Some(value) => str::from_utf8(&value).ok().and_then(|text| text.parse::<i64>().ok()),
        };
        if value.is_none_or(|value| !(least..=most).contains(&value)) {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nobody has to read any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// What it came to.
    pub(crate) fn reads(&self) -> Reads {
        Reads {
            checked: self.checked.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            stale: self.stale.load(Ordering::Relaxed),
        }
    }
}

/// The name of a counter.
pub(crate) fn counter((client, key): Which) -> String {
    format!("counter-{client}-{key}")
}

/// All counters.
pub(crate) fn counters() -> impl Iterator<Item = Which> {
    (0..CLIENTS).flat_map(|client| (0..KEYS).map(move |key| (client, key)))
}

/// Reads at one node until [`Watched::end`].
pub(crate) fn read(node: SocketAddr, seed: u64, watched: &Watched) {
    let mut draw = Draw::new(seed, u64::from(node.port()));
    let mut connection: Option<Connection> = None;
    while !watched.over.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = Connection::open(node, ANSWER_MAX).ok();
        }
        let Some(open) = &mut connection else {
            std::thread::sleep(DOWN_PAUSE);
            continue;
        };
        let client = usize::try_from(draw.below(CLIENTS as u64)).expect("it is small");
        let which = (client, draw.below(KEYS));
        let least = watched.least(which);
        match open.ask(&[b"GET", counter(which).as_bytes()]) {
            Ok(said) => watched.check(which, least, said),
            Err(_) => connection = None,
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_older_than_what_was_acknowledged_before_is_stale() {
        let watched = Watched::new();
        let which = (1, 2);
        let said = |value: &str| Said::Bulk(value.as_bytes().to_vec());
        watched.asks(which, 5);
        watched.check(which, watched.least(which), Said::Null);
        watched.check(which, watched.least(which), said("5"));
        assert_eq!(watched.reads().stale, 0, "it may have taken effect or not");
        let before = watched.least(which);
        watched.acknowledged(which, 5);
        watched.check(which, before, Said::Null);
        assert_eq!(watched.reads().stale, 0, "it was asked before");
        for wrong in [Said::Null, said("4"), said("6"), said("x")] {
            watched.check(which, watched.least(which), wrong);
        }
        watched.check(which, 5, Said::Error("CLUSTERDOWN".to_owned()));
        assert_eq!(watched.reads(), Reads { checked: 7, refused: 1, stale: 4 });
    }
}
