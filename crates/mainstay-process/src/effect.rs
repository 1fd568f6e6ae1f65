//! Everything a process can ask for. The driver performs effects at once and in order.

use crate::event::ReplyToken;
use crate::handler::Answer;
use crate::loss::{Loss, RollBack};
use crate::port::PortIndex;
use mainstay_channel::frame::FrameError;
use mainstay_channel::hello::Declared;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::effect::DiskEffect;
use mainstay_recovery::logging::Malformed;
use mainstay_recovery::policy::Policy;
use mainstay_types::id::{ClientId, Lsn, NodeId, OutputId};
use mainstay_types::snapshot::SnapshotId;
use mainstay_types::time::Time;
use std::sync::Arc;

pub use mainstay_channel::spill::Spill;

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
    /// At level peers: have the region keep these bytes of the log. Take them before the next step
    /// ([`mainstay_journal::journal::Journal::copy`]): it may write over their pages. Report [`crate::event::Event::Kept`] when they, and all before
    /// them, are acknowledged.
    Keep {
        /// Where they begin: where the last ones ended.
        from: Lsn,
        /// Where they end.
        to: Lsn,
    },
    /// At level peers: something waits that reveals a state and needs no record. Find out, by asking the region from now on, whether this life
    /// is still the one whose log it keeps, and report [`crate::event::Event::Kept`].
    Confirm {
        /// Numbers the questions: the answer to one stands for all before it.
        number: u64,
    },
    /// Save the state as it is now, before the next step, to the temporary file of checkpoint `lsn` (`Process::save`, in
    /// a forked child or at once), then report [`crate::event::CheckpointEvent::Saved`].
    SaveCheckpoint {
        /// Its position: replay begins there.
        lsn: Lsn,
    },
    /// Whole frames for another node, each with its length (u32, little-endian) before it. Dropped if no connection stands: what
    /// matters is sent again on the next.
    Frames {
        /// To whom.
        to: NodeId,
        /// The frames.
        bytes: Vec<u8>,
    },
    /// Close the connection to this node, after sending what was given before: it broke the protocol, or is refused.
    HangUp {
        /// Which.
        peer: NodeId,
        /// Why.
        why: HangUp,
    },
    /// Write these bodies to a file that nobody syncs or finds again, beside this step, then report
    /// [`crate::event::SpillEvent`] with the same bytes where that file is mapped.
    Spill(Spill),
    /// A person has decided about an output that has left: begin no other attempt to deliver it. One that is under way may arrive.
    Withdraw {
        /// Where it was sent.
        port: PortIndex,
        /// Which.
        output: OutputId,
    },
    /// Tell people: this is lost for good. The process goes on; [`crate::process::Process::losses`] says it again.
    Lost(Loss),
    /// Sync, rename and sync the directory ([`crate::checkpoint::publish`]), then report `Published`.
    PublishCheckpoint {
        /// Its position.
        lsn: Lsn,
    },
    /// Save the state as it is now, before the next step, to the temporary file of this snapshot's part (`Process::save`, in a forked
    /// child or at once), then report [`crate::event::SnapshotEvent::Saved`].
    SaveSnapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Sync, rename and sync the directory ([`crate::part::publish`]), then report `Published`.
    PublishSnapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Remove the temporary file of this snapshot's part ([`crate::part::temporary_name`]): another one has begun.
    DiscardSnapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Send an [`crate::event::Event::Tick`] at this time, or earlier. A later request replaces an earlier one.
    Wake(Time),
    /// The handler panicked during this delivery: its partial state is worthless. Drop this process and recover a new one
    /// from the directory; deliveries, attempts and outputs are all accounted for there.
    Abandon(Abandoned),
    /// Deliveries of this process depend on a state that another node lost. Drop this process and recover a new one from the
    /// directory with [`crate::recover::Start::roll_back`] set to this.
    RollBack(RollBack),
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

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HangUp {
    /// The peer was refused, or broke the rules of the link.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A frame is not one of this version's.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A control message is not one of this version's, or claims what cannot be.
    #[error(transparent)]
    Control(#[from] Malformed),
    /// The peer refuses this node.
    #[error("{peer} refuses this node: {text}")]
    RefusedByPeer {
        /// Who.
        peer: NodeId,
        /// Why, as a number: [`Refusal::code`].
        code: u8,
        /// Why, in the peer's words.
        text: String,
    },
    /// The peer's policy is not the one that the list of nodes says, or the two guarantee nothing together.
    #[error(
        "{peer} logs by policy {}, the list of nodes says {}, and this node logs by {ours}: nothing was exchanged. Give all nodes the same \
         list, with policies that go together", named(.theirs.as_ref()), named(.listed.as_ref())
    )]
    Policies {
        /// Whose.
        peer: NodeId,
        /// The policy that the list of nodes says.
        listed: Option<Policy>,
        /// The policy that the peer says; `None` if this version does not know it.
        theirs: Option<Policy>,
        /// This node's.
        ours: Policy,
    },
}

impl HangUp {
    /// What the peer is told; nothing if it was the one who refused.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let declared = |policy: Option<Policy>| {
            let [policy, failures_max] = policy.map_or([0; 2], Policy::code);
            Declared { policy, failures_max, ..Declared::default() }
        };
        match *self {
            Self::Refused(refusal) => Some(refusal),
            Self::Frame(error) => Some(error.into()),
            Self::Control(_) => Some(Refusal::Unreadable),
            Self::RefusedByPeer { .. } => None,
            Self::Policies { peer, theirs, ours, .. } => {
                Some(Refusal::Policies { node: peer, ours: declared(Some(ours)), theirs: declared(theirs) })
            }
        }
    }
}

fn named(policy: Option<&Policy>) -> String {
    policy.map_or_else(|| "an unknown one".to_owned(), |policy| format!("`{policy}`"))
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
    /// A person's decision about an output is taken.
    Resolved,
    /// There is no such output in doubt, nor one to withdraw; nothing was done (HTTP 404).
    NoSuchOutput,
}

/// A limit that a request ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests waiting to be logged or delivered.
    Backlog,
    /// Requests waiting until a blocking snapshot is taken.
    Blocked,
    /// Unexpired idempotency keys.
    Keys,
    /// Registered clients, or threads of one client.
    Clients,
    /// Outputs not acknowledged yet.
    Outputs,
    /// Requests taken and to be answered by a later delivery.
    OpenRequests,
    /// Bytes of messages that another node pins, because it does not release them.
    SenderLog,
    /// Bytes of the log that the region which keeps it has not acknowledged.
    Unkept,
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
