//! Everything that can happen to a process.

use crate::handler::Outcome;
use mainstay_journal::effect::DiskEvent;
use mainstay_types::id::{ClientId, Lsn, NodeId, OutputId, Sequence, ThreadId};
use mainstay_types::snapshot::SnapshotId;

pub use mainstay_channel::spill::{SpillId, Spilled};

/// An event: the only way in.
#[derive(Debug)]
pub enum Event {
    /// A request from the outside, to be logged and delivered.
    Request(Request),
    /// A read from the outside: not logged, answered from the present state, held like any answer.
    Query {
        /// Names the reply.
        token: ReplyToken,
        /// The question.
        body: Vec<u8>,
    },
    /// A client asks for a number.
    Register {
        /// Names the reply.
        token: ReplyToken,
    },
    /// What became of an output that was released.
    Output {
        /// Which.
        output: OutputId,
        /// How it ended.
        outcome: Outcome,
    },
    /// An at-most-once output left, and whether it arrived cannot be told.
    OutputInDoubt {
        /// Which.
        output: OutputId,
    },
    /// A person resolves an output in doubt, or one that does not get through.
    Resolve {
        /// Names the reply.
        token: ReplyToken,
        /// Which.
        output: OutputId,
        /// What is to be done about it.
        resolution: Resolution,
    },
    /// A completion of a [`crate::effect::Effect::Disk`].
    Disk(DiskEvent),
    /// What became of a checkpoint.
    Checkpoint(CheckpointEvent),
    /// What became of this node's part in a snapshot.
    Snapshot(SnapshotEvent),
    /// Take part in this snapshot, if it is above all that this node knows: `Process::next_snapshot` names a new one.
    TakeSnapshot {
        /// Which.
        snapshot: SnapshotId,
    },
    /// The coordinator of a blocking snapshot asks for something.
    Block(BlockEvent),
    /// From another node.
    Peer(PeerEvent),
    /// The region that keeps the log has acknowledged.
    Kept {
        /// Every record that ends at or below this.
        to: Lsn,
        /// Up to which [`crate::effect::Effect::Confirm`] it has been asked, and this life is the one whose log it keeps.
        confirmed: u64,
        /// With which checkpoint a recovery from it would begin; the first LSN for none.
        checkpoint: Lsn,
    },
    /// What became of an [`crate::effect::Effect::Spill`], also one of an earlier life.
    Spill(SpillEvent),
    /// The driver has nothing more at hand: time to sync what is waited for, once for all of it.
    Drained,
    /// Time passed: timers, expiry, checkpoints by time.
    Tick,
    /// Take a checkpoint now, whatever its schedule says.
    CheckpointNow,
    /// Stop cleanly: no request is accepted any more, everything held is let out, a checkpoint is taken and the journal sealed.
    Stop,
}

/// Names one reply for the driver. The process gives it back and knows nothing else of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyToken(pub u64);

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Names the reply.
    pub token: ReplyToken,
    /// By what a repetition is recognised.
    pub identity: Identity,
    /// What the handler gets, within [`crate::config::Limits::body_bytes_max`].
    pub body: Vec<u8>,
}

/// By what a repetition of a request is recognised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Identity {
    /// By nothing: sent twice, it takes effect twice.
    None,
    /// By an opaque key, 1 to 255 bytes (IETF draft-ietf-httpapi-idempotency-key-header).
    Key(Vec<u8>),
    /// By the client's own numbering. A thread has one request outstanding and numbers its requests upwards from 1.
    Client {
        /// As issued by this process.
        client: ClientId,
        /// The thread within the client.
        thread: ThreadId,
        /// The request within the thread.
        sequence: Sequence,
    },
}

/// What is to be done about an output in doubt, or about one that does not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It has taken effect: treat it as acknowledged.
    Delivered,
    /// It has not: send it again. Only of those in doubt: others are sent again anyhow.
    SendAgain,
    /// It shall not: give it up.
    Abandon,
}

/// What the coordinator of a blocking snapshot asks a node for. What does not fit the node's state any more is passed over: `Process::block_report`
/// says what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// Begin nothing new, for [`crate::config::Limits::block_max`] at most.
    Begin {
        /// For which snapshot.
        snapshot: SnapshotId,
    },
    /// Stay blocked for as long again.
    Renew {
        /// The snapshot that it is blocked for.
        snapshot: SnapshotId,
    },
    /// Go on.
    Release {
        /// The snapshot that it is blocked for.
        snapshot: SnapshotId,
    },
    /// Stop cleanly in the state of the cut: the part is final, and nothing has been delivered since.
    StopHere {
        /// The snapshot that it is blocked for.
        snapshot: SnapshotId,
    },
}

/// What happens on the connections to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A connection stands: its two ends are authenticated and of one cluster.
    Connected {
        /// The node at its other end.
        peer: NodeId,
    },
    /// Whole frames arrived, each with its length (u32, little-endian) before it.
    Frames {
        /// From whom.
        peer: NodeId,
        /// The frames.
        bytes: Vec<u8>,
    },
    /// The connection is gone.
    Disconnected {
        /// Whose.
        peer: NodeId,
    },
}

/// What became of bodies that were to be moved out of memory.
#[derive(Clone, Debug)]
pub enum SpillEvent {
    /// They are outside of it, and the same.
    Done {
        /// Names them.
        id: SpillId,
        /// Where they are, one after another.
        kept: Spilled,
    },
    /// They are not: the disk is full, or gives no file. They stay in memory, and it is tried again later.
    Failed {
        /// Names them.
        id: SpillId,
    },
}

/// What became of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointEvent {
    /// Written to its temporary file.
    Saved {
        /// Its position.
        lsn: Lsn,
        /// XXH3-64 of the handler's state.
        state_hash: u64,
        /// Length of the file, in bytes.
        bytes: u64,
    },
    /// Under its final name, with file and directory past a sync.
    Published {
        /// Its position.
        lsn: Lsn,
        /// The oldest checkpoint still kept: nothing below it is needed.
        oldest: Lsn,
    },
    /// Given up; the next one by schedule will try again. Nothing was lost.
    Failed {
        /// Its position.
        lsn: Lsn,
    },
}

/// What became of a part in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotEvent {
    /// Written to its temporary file.
    Saved {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Under its final name, with file and directory past a sync.
    Published {
        /// Which.
        snapshot: SnapshotId,
    },
    /// Given up. Nothing but the snapshot was lost.
    Failed {
        /// Which.
        snapshot: SnapshotId,
    },
}
