//! What a process remembers besides its handler's state. Part of every checkpoint.

use crate::clients::{Clients, Place};
use crate::config::Limits;
use crate::effect::Limit;
use crate::event::Identity;
use crate::handler::{Answer, RequestId};
use crate::keys::{Entry, Keys};
use crate::open_requests::OpenRequests;
use crate::outbox::Outbox;
use crate::summary::Summary;
use crate::timers::Timers;
use mainstay_types::id::{ClientId, DeliveryIndex, Generation, Lsn, OutputId, StoreId};
use mainstay_types::rules::{Rule, Rules};
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// A life may number 2^32 outputs and as many clients.
const NUMBERS_PER_LIFE_BITS: u32 = 32;

/// All tables. Changed by deliveries only, with recorded times only.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tables {
    /// The last delivery executed.
    pub(crate) executed: DeliveryIndex,
    /// What it did.
    pub(crate) summary: Summary,
    /// End of its record.
    pub(crate) executed_end: Lsn,
    /// The time it saw.
    pub(crate) now: Time,
    /// The life of the last delivery.
    pub(crate) life: Generation,
    pub(crate) last_output: OutputId,
    pub(crate) keys: Keys,
    pub(crate) clients: Clients,
    pub(crate) outbox: Outbox,
    pub(crate) timers: Timers,
    pub(crate) open: OpenRequests,
    /// Deliveries skipped by verdict, since the directory was made.
    pub(crate) quarantined: u64,
}

/// What the tables say of a request before it is logged.
#[derive(Debug)]
pub(crate) enum Known {
    /// Never seen: log and deliver it.
    Fresh,
    /// Seen and executed: this was the answer, and it depends on the record that ends at `end`.
    Answered { answer: Arc<Answer>, end: Lsn, expires: Option<Time> },
    /// Seen, logged, not executed yet.
    Running { end: Lsn },
    /// Seen and executed; a later delivery answers it.
    Open(RequestId),
    /// Seen with another body.
    Reused { end: Lsn },
    /// Below its floor, which the record that ends at `end` raised, or its client is not known.
    Evicted { end: Option<Lsn> },
    /// A limit forbids it.
    Refused(Limit),
}

impl Tables {
    /// Learns that what follows was delivered in `life`.
    ///
    /// The numbers of outputs and clients begin anew above all that any earlier life can have given: a life that lost its tail (at
    /// level `Process`, or by an agreed cut) has shown numbers to the world that no record tells of.
    pub(crate) fn enter_life(&mut self, life: Generation) {
        if life > self.life {
            self.life = life;
            let base = life.0 << NUMBERS_PER_LIFE_BITS;
            self.last_output = self.last_output.max(OutputId(base));
            self.clients.skip_to(ClientId(base));
        }
    }

    /// Carries what a part of a snapshot holds over to a new directory: positions in the old journal mean nothing there, everything in
    /// the part is safe, and what was logged and not executed at the cut is unknown.
    pub(crate) fn carry_over(&mut self, from: StoreId) {
        self.forget_unexecuted();
        self.keys.carry_over();
        self.clients.carry_over();
        self.outbox.carry_over(from);
        self.executed_end = Lsn::ZERO;
    }

    /// A checkpoint knows requests that were logged and not executed. What of these the replay behind it has left out never will be: it is
    /// new when it comes again.
    pub(crate) fn forget_unexecuted(&mut self) {
        let Self { keys, clients, open, .. } = self;
        keys.forget_unexecuted(|key| open.find(&Identity::Key(key.to_vec())).is_some());
        clients.forget_unexecuted(|client, thread, sequence| {
            open.find(&Identity::Client { client, thread, sequence }).is_some()
        });
    }

    pub(crate) fn lookup(
        &self,
        identity: &Identity,
        body: &[u8],
        now: Time,
        limits: &Limits,
        rules: Rules,
    ) -> Known {
        let entry = match identity {
            Identity::None => None,
            Identity::Key(key) => self.keys.find(key, now),
            Identity::Client { client, thread, sequence } => {
                match self.clients.place(*client, *thread, *sequence, limits.client_threads_max) {
                    Place::Fresh => None,
                    Place::Repeated(entry) => Some(entry),
                    Place::Evicted { .. } if !rules.keep(Rule::EvictedNotReapplied) => None,
                    Place::Evicted { end } => return Known::Evicted { end },
                    Place::ThreadsFull => return Known::Refused(Limit::Clients),
                }
            }
        };
        match entry {
            Some(entry) if entry.fingerprint != xxh3_128(body) => Known::Reused { end: entry.end },
            Some(Entry { answer: Some(answer), end, expires, .. }) => {
                Known::Answered { answer: Arc::clone(answer), end: *end, expires: *expires }
            }
            Some(entry) => match self.open.find(identity) {
                Some(request) => Known::Open(request),
                None => Known::Running { end: entry.end },
            },
            None if matches!(identity, Identity::Key(_)) && self.keys.full(limits.keys_max, now) => {
                Known::Refused(Limit::Keys)
            }
            None if self.outbox.len() >= limits.outputs_pending_max => Known::Refused(Limit::Outputs),
            None if self.open.len() >= limits.open_requests_max => Known::Refused(Limit::OpenRequests),
            None => Known::Fresh,
        }
    }

    /// Remembers that a request is logged, in the record that ends at `end`, at its recorded time.
    pub(crate) fn logged(
        &mut self,
        identity: &Identity,
        body: &[u8],
        end: Lsn,
        now: Time,
        expires: Option<Time>,
    ) {
        let entry = |expires| Entry { fingerprint: xxh3_128(body), answer: None, end, expires };
        match identity {
            Identity::None => {}
            Identity::Key(key) => {
                self.keys.sweep(now);
                self.keys.insert(key.clone(), entry(expires));
            }
            Identity::Client { client, thread, sequence } => {
                self.clients.insert(*client, *thread, *sequence, entry(None));
            }
        }
    }

    /// Remembers the answer to a request. It depends on the delivery that is being finished, which may be a later one than the
    /// request's own.
    pub(crate) fn answered(&mut self, identity: &Identity, answer: &Arc<Answer>, now: Time) {
        let (answer, end) = (Arc::clone(answer), self.executed_end);
        match identity {
            Identity::None => {}
            Identity::Key(key) => self.keys.answer(key, answer, end),
            Identity::Client { client, thread, sequence } => {
                self.clients.answer((*client, *thread, *sequence), answer, end, now);
            }
        }
    }

    /// When a repetition of `identity` stops getting its answer.
    pub(crate) fn expires(&self, identity: &Identity, now: Time) -> Option<Time> {
        match identity {
            Identity::Key(key) => self.keys.find(key, now).and_then(|entry| entry.expires),
            _ => None,
        }
    }
}
