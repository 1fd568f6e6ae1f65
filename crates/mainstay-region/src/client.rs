//! The client's side, a silent machine too: sends as the pattern says, counts acknowledgements of one view, asks again at another server.
//!
//! | what happens | what the client does |
//! |---|---|
//! | acknowledgements enough, of one view, with one version | done |
//! | nothing for `retry_after` | asks again, same identity, `retry` set, at the next server, by one hop |
//! | the server is in another view | asks for the view, forgets its acknowledgements, asks again |
//! | a limit is reached there | asks again later |
//! | older than what is remembered, or the client forgotten | ends so: it may have taken effect, and will not again |
//! | the deadline | `Unknown`: it may have taken effect, or still do; `inspect` asks |

use crate::copies::Copies;
use crate::duplicates::Seen;
use crate::limits::Acknowledgement;
use crate::message::{Acknowledged, Body, Message, Refusal};
use crate::operation::{Operation, TooLong, shard_of};
use crate::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View, ViewId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a client is set up with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Who it is: given by a server, in order, never twice.
    pub id: ClientId,
    /// Shards of the region.
    pub shards: u16,
    /// Who must have a write: as the region has it.
    pub acknowledgement: Acknowledgement,
    /// The way of first attempts.
    pub pattern: Pattern,
    /// How long it waits before it asks again.
    pub retry_after: Duration,
    /// How long it asks.
    pub deadline: Duration,
    /// Operations of one thread under way at the same time: at most what the region remembers of a thread.
    pub window_operations_max: usize,
}

/// What came of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It took effect, and will not be lost.
    Done {
        /// Version and outcome: the same on every repetition.
        seen: Seen,
        /// An earlier attempt of the same operation did it.
        duplicate: bool,
    },
    /// It may have taken effect, and it may still.
    Unknown,
    /// It may have taken effect, and will not any more: older than what is remembered.
    Obsolete,
    /// The same, since the client was forgotten. The client goes on under a new number.
    Evicted,
    /// It did not and will not take effect.
    TooLong(TooLong),
    /// Its keys belong to several shards. It did not and will not take effect.
    OtherShard,
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientEffect {
    /// Send this.
    Send {
        /// To whom.
        to: MemberId,
        /// What.
        message: Message,
    },
    /// Find out the present view, and say it with [`Client::view_known`].
    AskView,
    /// A call came to its end.
    Ended {
        /// Which.
        id: OperationId,
        /// How.
        ended: Ended,
    },
    /// `inspect` found nothing: no attempt has taken effect until now.
    NotSeen {
        /// Which.
        id: OperationId,
    },
}

/// Too many calls of the thread are under way. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} operations of the thread are under way")]
pub struct WindowFull {
    /// [`ClientConfig::window_operations_max`].
    pub limit: usize,
}

/// One operation under way.
#[derive(Clone, Debug)]
struct Call {
    operation: Operation,
    shard: u16,
    deadline: Time,
    tried: Time,
    /// How often it was sent.
    attempts: usize,
    /// The view of the last attempt.
    view: ViewId,
    acknowledged: BTreeMap<MemberId, Version>,
    /// The second step of a pattern that has one is done.
    sent_versioned: bool,
}

/// The client.
#[derive(Clone, Debug)]
pub struct Client {
    config: ClientConfig,
    copies: Copies,
    calls: BTreeMap<OperationId, Call>,
    sequences: BTreeMap<ThreadId, Sequence>,
}

impl Client {
    /// A client that knows no view.
    #[must_use]
    pub fn new(config: ClientConfig) -> Self {
        Self { config, copies: Copies::default(), calls: BTreeMap::new(), sequences: BTreeMap::new() }
    }

    /// Chooses the way of first attempts from now on.
    pub fn use_pattern(&mut self, pattern: Pattern) {
        self.config.pattern = pattern;
    }

    /// The view that it knows.
    #[must_use]
    pub fn view(&self) -> ViewId {
        self.copies.view
    }

    /// The copies that it knows.
    #[must_use]
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Calls under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// [`WindowFull`].
    pub fn call(
        &mut self,
        now: Time,
        thread: ThreadId,
        operation: Operation,
        out: &mut Vec<ClientEffect>,
    ) -> Result<OperationId, WindowFull> {
        let limit = self.config.window_operations_max;
        // The window is one of numbers: an old call that is still asked for must not fall out of what the region remembers.
        let next = self.sequences.get(&thread).copied().unwrap_or_default().next();
        let oldest = self.calls.keys().find(|id| id.thread == thread).map_or(next, |id| id.sequence);
        if next.0 - oldest.0 >= limit as u64 {
            return Err(WindowFull { limit });
        }
        self.sequences.insert(thread, next);
        let id = OperationId { client: self.config.id, thread, sequence: next };
        self.begin(now, id, operation, false, out);
        Ok(id)
    }

    /// Begins an operation whose identity was chosen elsewhere: by somebody who repeats it there, and never gives it to another operation.
    pub fn call_as(&mut self, now: Time, id: OperationId, operation: Operation, out: &mut Vec<ClientEffect>) {
        self.begin(now, id, operation, false, out);
    }

    /// Asks for an operation again that this client, or an earlier life of it, began.
    pub fn call_again(
        &mut self,
        now: Time,
        id: OperationId,
        operation: Operation,
        out: &mut Vec<ClientEffect>,
    ) {
        self.begin(now, id, operation, true, out);
    }

    fn begin(
        &mut self,
        now: Time,
        id: OperationId,
        operation: Operation,
        again: bool,
        out: &mut Vec<ClientEffect>,
    ) {
        let shard = shard_of(operation.key(), self.config.shards);
        if !operation.is_of(shard, self.config.shards) {
            return out.push(ClientEffect::Ended { id, ended: Ended::OtherShard });
        }
        let call = Call {
            shard,
            operation,
            deadline: now.after(self.config.deadline),
            tried: now,
            attempts: usize::from(again),
            view: ViewId::NONE,
            acknowledged: BTreeMap::new(),
            sent_versioned: false,
        };
        self.calls.insert(id, call);
        self.attempt(now, id, out);
    }

    /// Asks the stamper whether an operation that is not under way any more has taken effect. The answer is [`ClientEffect::Ended`] (`Done` with
    /// `duplicate` set, or why nothing is known) or [`ClientEffect::NotSeen`]; none comes if the stamper is not reached.
    pub fn inspect(&self, id: OperationId, key: &[u8], out: &mut Vec<ClientEffect>) {
        let shard = shard_of(key, self.config.shards);
        if let Some(to) = self.copies.stamper(shard) {
            let message = Message { view: self.copies.view, shard, body: Body::Inspect { id } };
            out.push(ClientEffect::Send { to, message });
        }
    }

    /// The present view, as far as the driver could find out.
    pub fn view_known(&mut self, now: Time, view: &View, out: &mut Vec<ClientEffect>) {
        if view.id <= self.copies.view {
            return;
        }
        self.copies = Copies::of(view);
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.attempt(now, id, out);
        }
    }

    /// A message came.
    pub fn received(&mut self, now: Time, from: MemberId, message: Message, out: &mut Vec<ClientEffect>) {
        let Message { view, body, .. } = message;
        match body {
            Body::Acknowledged(done) => {
                for done in done {
                    self.acknowledged(from, view, done, out);
                }
            }
            Body::Granted { id, counter } => self.send_versioned(from, view, id, counter, out),
            Body::Refused { id, refusal } => self.refused(now, id, refusal, out),
            Body::NotSeen { id } => out.push(ClientEffect::NotSeen { id }),
            _ => {}
        }
    }

    /// Some time has gone by.
    pub fn tick(&mut self, now: Time, out: &mut Vec<ClientEffect>) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let call = &self.calls[&id];
            if call.deadline <= now {
                self.calls.remove(&id);
                out.push(ClientEffect::Ended { id, ended: Ended::Unknown });
            } else if now.since(call.tried) >= self.config.retry_after {
                out.push(ClientEffect::AskView);
                self.attempt(now, id, out);
            }
        }
    }

    fn attempt(&mut self, now: Time, id: OperationId, out: &mut Vec<ClientEffect>) {
        let Self { config, copies, calls, .. } = self;
        let Some(call) = calls.get_mut(&id) else { return };
        let Some(stamper) = copies.stamper(call.shard) else {
            out.push(ClientEffect::AskView);
            return;
        };
        call.tried = now;
        if call.view != copies.view {
            // What members of another view said does not count together with what members of this one say.
            call.acknowledged.clear();
        }
        call.view = copies.view;
        let unversioned = config.pattern == Pattern::Unversioned;
        let sends = if call.attempts == 0 || unversioned {
            config.pattern.row().begin(config.pattern, id, &call.operation, copies, stamper)
        } else {
            let place = copies.ids().position(|member| member == stamper).unwrap_or(0);
            let server = copies.ids().nth((place + call.attempts) % copies.count()).expect("below the count");
            let operation = call.operation.clone();
            vec![(server, Body::Operate { id, retry: true, pattern: Pattern::OneHop, operation })]
        };
        call.attempts += 1;
        let (view, shard) = (copies.view, call.shard);
        let send = |(to, body)| ClientEffect::Send { to, message: Message { view, shard, body } };
        out.extend(sends.into_iter().map(send));
    }

    fn acknowledged(
        &mut self,
        from: MemberId,
        view: ViewId,
        done: Acknowledged,
        out: &mut Vec<ClientEffect>,
    ) {
        let Acknowledged { id, seen, duplicate, stable } = done;
        let Some(call) = self.calls.get_mut(&id) else {
            if stable && duplicate {
                // The answer to `inspect`.
                out.push(ClientEffect::Ended { id, ended: Ended::Done { seen, duplicate } });
            }
            return;
        };
        if stable {
            self.calls.remove(&id);
            out.push(ClientEffect::Ended { id, ended: Ended::Done { seen, duplicate } });
            return;
        }
        if view != call.view {
            return;
        }
        let version = seen.version;
        call.acknowledged.insert(from, version);
        let same = |member| call.acknowledged.get(&member) == Some(&version);
        let unversioned = version.counter == 0;
        if self.copies.enough(self.config.acknowledgement, same)
            || (unversioned && self.copies.ids().all(same))
        {
            self.calls.remove(&id);
            out.push(ClientEffect::Ended { id, ended: Ended::Done { seen, duplicate } });
            return;
        }
        if self.config.pattern == Pattern::MessageReturnsVersion {
            self.send_versioned(from, view, id, version.counter, out);
        }
    }

    /// The version is known: the second step of the two patterns that have one.
    fn send_versioned(
        &mut self,
        from: MemberId,
        view: ViewId,
        id: OperationId,
        counter: u64,
        out: &mut Vec<ClientEffect>,
    ) {
        let Self { config, copies, calls, .. } = self;
        let Some(call) = calls.get_mut(&id) else { return };
        let of_stamper = copies.stamper(call.shard) == Some(from);
        if view != copies.view || !of_stamper || call.sent_versioned {
            return;
        }
        call.sent_versioned = true;
        let sends = config.pattern.row().versioned(id, counter, &call.operation, copies, from);
        let shard = call.shard;
        let send = |(to, body)| ClientEffect::Send { to, message: Message { view, shard, body } };
        out.extend(sends.into_iter().map(send));
    }

    fn refused(&mut self, now: Time, id: OperationId, refusal: Refusal, out: &mut Vec<ClientEffect>) {
        let Some(call) = self.calls.get_mut(&id) else {
            // The answer to `inspect`.
            let ended = match refusal {
                Refusal::Obsolete => Ended::Obsolete,
                Refusal::Evicted => Ended::Evicted,
                Refusal::NoLease | Refusal::NotSettled => Ended::Unknown,
                _ => return,
            };
            return out.push(ClientEffect::Ended { id, ended });
        };
        let ended = match refusal {
            Refusal::Obsolete => Ended::Obsolete,
            Refusal::Evicted => Ended::Evicted,
            Refusal::TooLong(too_long) => Ended::TooLong(too_long),
            Refusal::OtherShard => Ended::OtherShard,
            Refusal::OtherView(view) => {
                if view > self.copies.view {
                    out.push(ClientEffect::AskView);
                }
                return;
            }
            // By one hop it is done: what copies refuse is a payload from a client.
            Refusal::OtherPattern if call.attempts == 1 && self.config.pattern != Pattern::Unversioned => {
                return self.attempt(now, id, out);
            }
            _ => {
                // Not at once: what is full now is full in a moment.
                call.tried = now;
                return;
            }
        };
        self.calls.remove(&id);
        out.push(ClientEffect::Ended { id, ended });
    }
}
