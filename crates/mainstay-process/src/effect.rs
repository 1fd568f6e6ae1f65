//! Everything a process can ask for. The driver performs effects at once and in order.

use crate::event::ReplyToken;
use crate::handler::Answer;
use crate::port::PortIndex;
use mainstay_journal::effect::DiskEffect;
use mainstay_types::id::{ClientId, Lsn, OutputId};
use mainstay_types::time::Time;
use std::sync::Arc;

/// An effect: the only way out. Replies and outputs have passed the gate; nothing more is to be waited for.
#[derive(Debug)]
pub enum Effect {
    /// For the disk.
    Disk(DiskEffect),
    /// A reply, released.
    Reply {
        /// Names the reply.
        token: ReplyToken,
        /// What is said.
        reply: Reply,
    },
    /// An output, released.
    Output(Output),
    /// Save the state as it is now, before the next step, to the temporary file of checkpoint `lsn` (`Process::save`, in
    /// a forked child or at once), then report [`crate::event::CheckpointEvent::Saved`].
    SaveCheckpoint {
        /// Its position: replay begins there.
        lsn: Lsn,
    },
    /// Sync, rename and sync the directory ([`crate::checkpoint::publish`]), then report `Published`.
    PublishCheckpoint {
        /// Its position.
        lsn: Lsn,
    },
    /// Send an [`crate::event::Event::Tick`] at this time, or earlier. A later request replaces an earlier one.
    Wake(Time),
    /// The handler panicked during this delivery: its partial state is worthless. Drop this process and recover a new one
    /// from the directory; deliveries, attempts and outputs are all accounted for there.
    Abandon(Abandoned),
    /// The clean stop is complete: checkpoint published, journal sealed.
    Stopped,
}

/// Why a process gave itself up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// The record whose delivery failed.
    pub lsn: Lsn,
    /// How often it has been tried, this time included.
    pub attempts: u32,
    /// What the panic said.
    pub message: String,
}

/// What is said to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The handler's answer.
    Answer {
        /// The first answer to this identity.
        answer: Arc<Answer>,
        /// Whether this is the answer to a repetition.
        replayed: bool,
        /// Until when a repetition of this key gets this answer; `None` without a key.
        expires: Option<Time>,
    },
    /// The answer to a read.
    Read {
        /// The handler's answer.
        answer: Answer,
        /// The state that was read: all deliveries below this LSN.
        as_of: Lsn,
    },
    /// A client number.
    Registered {
        /// Issued to nobody else, ever.
        client: ClientId,
    },
    /// The same key is being worked on (HTTP 409).
    StillRunning,
    /// The key was used with another body (HTTP 422).
    KeyReused,
    /// The sequence number is below the thread's floor, or the client number is no longer (or was never) known (HTTP 410): the first
    /// answer is gone, and the request was not applied again.
    Evicted,
    /// A limit is reached; nothing was done (HTTP 503 with Retry-After).
    Busy {
        /// Which limit.
        limit: Limit,
    },
    /// The journal cannot take more; nothing was done (HTTP 503).
    Unavailable {
        /// Why.
        reason: Unavailable,
    },
    /// An output in doubt was resolved.
    Resolved,
    /// There is no such output in doubt; nothing was done (HTTP 404).
    NoSuchOutput,
}

/// A limit that a request ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests waiting to be logged or delivered.
    Backlog,
    /// Unexpired idempotency keys.
    Keys,
    /// Registered clients, or threads of one client.
    Clients,
    /// Outputs not acknowledged yet.
    Outputs,
}

/// Why the journal cannot take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The disk is full: it recovers by itself when space returns.
    DiskFull,
    /// A sync failed: what the disk holds is unknown until the process is restarted.
    Poisoned,
    /// The process is stopping.
    Stopping,
}

/// An output on its way to its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its number.
    pub id: OutputId,
    /// Where it goes.
    pub port: PortIndex,
    /// What the receiver deduplicates by: the same for every sending of this output, and unique in the world.
    pub key: String,
    /// The bytes.
    pub body: Arc<[u8]>,
    /// Whether it may have been sent before, by this life or an earlier one: an [`crate::port::Guarantee::Asked`] port asks first.
    pub again: bool,
}
