//! Clients on the hosts, who count: each has a counter of its own, so that what it was told and what is there can be compared.

use super::wire::Host;
use crate::resp::{Reply, Speaker};
use mainstay_region_client::{Client, Operation, Settings, TlsClient, WriteError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two operations of a client: the machine has other things to do.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a client waits before it asks at another place, or says that it does not know.
const DEADLINE: Duration = Duration::from_secs(6);

/// What all clients heed.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    stop: AtomicBool,
}

/// What a client was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Its increments that were acknowledged.
    acknowledged: AtomicU64,
    /// It was told that nothing was done, and why: the latest words that a cut-off node says.
    refused: AtomicU64,
    /// It was told nothing, or that it is not known.
    in_doubt: AtomicU64,
}

impl Told {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn in_doubt(&self) -> u64 {
        self.in_doubt.load(Ordering::Relaxed)
    }

    fn count(&self, of: &AtomicU64) {
        of.fetch_add(1, Ordering::Relaxed);
    }
}

/// One client, at work.
pub(crate) struct Worker {
    pub(crate) counter: String,
    pub(crate) told: Arc<Told>,
    /// What it knows that it did, at its end: all of it, where operations have identities.
    thread: JoinHandle<u64>,
}

impl Worker {
    /// A client with identities, which begins at the node of its host and speaks to all.
    pub(crate) fn with_identity(host: &Host, at: SocketAddr, tls: TlsClient, orders: &Arc<Orders>) -> Self {
        let counter = format!("with/{}", at.ip());
        let (told, orders, key) = (Arc::new(Told::default()), Arc::clone(orders), counter.clone());
        let note = Arc::clone(&told);
        let thread = host.thread(move || {
            let settings = Settings { tls: Some(tls), deadline: DEADLINE, ..Settings::default() };
            let mut client = connected(at, &settings);
            let mut done = 0;
            while !orders.stop.load(Ordering::Relaxed) {
                let mut ended = client.increment(key.as_bytes(), 1);
                // However long it takes: the same operation, until it is known.
                while let Err(WriteError::Unknown { id, .. }) = ended {
                    note.count(&note.in_doubt);
                    ended = client.repeat(id, increment(key.as_bytes()));
                }
                match ended {
                    Ok(_) => {
                        done += 1;
                        note.count(&note.acknowledged);
                    }
                    Err(WriteError::NotSent { .. }) => note.count(&note.refused),
                    Err(other) => panic!("{key}: {other}"),
                }
                thread::sleep(PAUSE);
            }
            done
        });
        Self { counter, told, thread }
    }

    /// A client without, which knows the node of its host only.
    pub(crate) fn without_identity(
        host: &Host,
        at: SocketAddr,
        tls: TlsClient,
        orders: &Arc<Orders>,
    ) -> Self {
        let counter = format!("without/{}", at.ip());
        let (told, orders, key) = (Arc::new(Told::default()), Arc::clone(orders), counter.clone());
        let note = Arc::clone(&told);
        let thread = host.thread(move || {
            let mut speaker = None;
            while !orders.stop.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                if speaker.is_none() {
                    speaker = Speaker::open(at, Some(&tls)).ok();
                }
                let Some(open) = &mut speaker else { continue };
                match open.ask(&["INCR", &key]) {
                    Ok(Reply::Number(_)) => note.count(&note.acknowledged),
                    // It says so itself: nothing was sent.
                    Ok(Reply::Error(why))
                        if why.starts_with("CLUSTERDOWN") || why.starts_with("TRYAGAIN") =>
                    {
                        note.count(&note.refused);
                    }
                    Ok(Reply::Error(why)) if why.starts_with("UNKNOWN") => note.count(&note.in_doubt),
                    Ok(other) => panic!("{key}: {other:?}"),
                    Err(_) => {
                        note.count(&note.in_doubt);
                        speaker = None;
                    }
                }
            }
            note.acknowledged()
        });
        Self { counter, told, thread }
    }

    /// Waits for its end; how much it knows that it did.
    pub(crate) fn ended(self) -> (String, Arc<Told>, u64) {
        let done = self.thread.join().unwrap_or_else(|_| panic!("the client of {} failed", self.counter));
        (self.counter, self.told, done)
    }
}

impl Orders {
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn increment(key: &[u8]) -> Operation {
    Operation::Increment { key: key.into(), by: 1 }
}

fn connected(at: SocketAddr, settings: &Settings) -> Client {
    Client::connect(&[at], "data", settings.clone()).unwrap_or_else(|error| panic!("{at}: {error}"))
}
