//! What every message-logging protocol is to the composer: told of deliveries, messages and copies, it says which
//! deliveries survive the failures it plans for, and what its peers must be told.
//!
//! ```text
//!  sender                                       receiver
//!  emitted ── stamp ──> kept in the channel
//!  leaves  ── attach ─> frame ──────────────────> arrived: Deliver / NotYet / Orphan
//!                                                 delivered (given its place)
//!  control <───────────── Tell ────────────────── flush (end of a round)
//!  Wish::Ordered: the channel keeps the place     recoverable() grows: the gate releases
//! ```
//!
//! A protocol keeps its own bookkeeping and knows neither the channel's log nor the journal: what it wants of them is a
//! [`Wish`], which the composer performs at once.

use mainstay_types::codec::{Truncated, VarintError};
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId, Ssn};
use std::fmt::Debug;
use std::sync::Arc;

/// What was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Something from outside the cluster, or the process's own (a request, a timer, an outcome): in its node's journal under
    /// every policy, in the record that ends at `end`.
    Local {
        /// End of its record.
        end: Lsn,
        /// The record's kind and payload, for a protocol that carries inputs to other nodes; empty otherwise.
        record: Arc<[u8]>,
    },
    /// A message of another node.
    Message {
        /// Its sender.
        from: NodeId,
        /// Its number.
        ssn: Ssn,
        /// The sender's delivery that emitted it.
        origin: Point,
        /// End of its record, where the policy journals messages.
        end: Option<Lsn>,
    },
}

/// Whether a message that arrived may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// At once.
    Deliver,
    /// When a peer's announcement that is on its way has arrived: ask again after the next control message, and when
    /// [`Logging::recoverable`] has grown.
    NotYet,
    /// Never: it depends on a state that was lost. It is dropped, and its sender, which rolls back, knows that too.
    Orphan,
}

/// What a protocol wants done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Send these control bytes to a peer, behind everything already sent to it.
    Tell {
        /// Whom.
        to: NodeId,
        /// What, for [`Logging::control`] there.
        body: Vec<u8>,
    },
    /// Keep with the retained message to `to` numbered `ssn` which place its receiver gave it.
    Ordered {
        /// The receiver that gave the place.
        to: NodeId,
        /// The message.
        ssn: Ssn,
        /// Its place.
        place: Place,
    },
    /// Make the journal durable as far as it goes, at the next opportunity.
    Flush,
    /// A delivery of this node's own past, which a peer remembers: to be replayed in its place.
    Remembered {
        /// Its place.
        place: Place,
        /// What it was.
        source: Source,
    },
    /// This node depends on a state that was lost: give up every delivery above `keep` and go on from there.
    RollBack {
        /// The last delivery that may stay.
        keep: DeliveryIndex,
        /// Whose loss it was.
        lost: NodeId,
    },
}

/// A peer sent bytes that no protocol of this version writes. Nothing was changed; the connection is not to be used on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the control message is too short: {0}")]
    Truncated(#[from] Truncated),
    /// A tag that is not known.
    #[error("control messages with tag {tag} are not known to this version")]
    Tag {
        /// The tag.
        tag: u8,
    },
    /// A peer speaks of something that cannot have happened: it lies, or is not the node it says it is.
    #[error("{peer} speaks of {what} {number}, which was never reached")]
    NeverReached {
        /// Who.
        peer: NodeId,
        /// What, in one word.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// A number does not fit into 64 bits.
    #[error("the number at byte {at} of the control message does not fit into 64 bits")]
    Number {
        /// Offset of its first byte.
        at: usize,
    },
    /// Bytes follow after the end.
    #[error("{bytes} bytes follow after the end of the control message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// A peer lost what it had said is safe: its disk, or a copy of its directory that was put back, is older. What was
    /// let out in reliance on it cannot be taken back.
    #[error(
        "{peer} recovered only up to delivery {recovered}, after it had said that {claimed} is safe: its directory is older than \
         what it promised, and what left in between cannot be taken back; put its right directory back"
    )]
    Retracted {
        /// Who.
        peer: NodeId,
        /// Where it goes on.
        recovered: DeliveryIndex,
        /// What it had claimed.
        claimed: DeliveryIndex,
    },
}

impl From<VarintError> for Malformed {
    fn from(error: VarintError) -> Self {
        match error {
            VarintError::Truncated(truncated) => Self::Truncated(truncated),
            VarintError::TooLarge { at } => Self::Number { at },
        }
    }
}

/// One message-logging protocol at one node.
///
/// All calls come from one composer, in its order. A replay calls [`Self::delivered`] like a first run.
pub trait Logging: Debug + Send {
    /// A delivery was given its place and is being executed. Indices come in order, without a gap.
    fn delivered(&mut self, place: Place, source: &Source);

    /// Writes what a message emitted by the last delivery depends on. Kept with the message, so that every sending of it says
    /// the same; part of what replay must reproduce.
    fn stamp(&mut self, out: &mut Vec<u8>);

    /// Writes what rides along with a message that leaves for `to` now.
    fn attach(&mut self, to: NodeId, out: &mut Vec<u8>);

    /// A message arrived that was not seen before. Takes in what rides along, then says whether it may be delivered.
    ///
    /// # Errors
    /// [`Malformed`].
    fn arrived(
        &mut self,
        from: NodeId,
        origin: Point,
        stamp: &[u8],
        attached: &[u8],
        wishes: &mut Vec<Wish>,
    ) -> Result<Admission, Malformed>;

    /// Takes in what rode along with a message that is not delivered: a duplicate, or one that is refused for now. What rides
    /// along is told once in a session, and the frame that carries it need not be a new message's.
    ///
    /// # Errors
    /// [`Malformed`].
    fn carried(&mut self, from: NodeId, attached: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed> {
        let _ = (from, attached, wishes);
        Ok(())
    }

    /// The delivery that must be recoverable before a message to `to` may leave that delivery `index`, the last one, emitted:
    /// the index that [`crate::policy::Policy::message_after`] is given. 0 if [`Self::attach`] makes up for what is missing.
    fn waits_for(&self, to: NodeId, index: DeliveryIndex) -> DeliveryIndex {
        let _ = to;
        index
    }

    /// The end of the record that must be safe before any message may leave that is emitted now, whatever the policy's row says:
    /// what a message depends on cannot all ride along. [`Self::safe`] is told before a message that waited for it is attached to.
    fn message_waits(&self) -> Option<Lsn> {
        None
    }

    /// In a replay, before [`Self::delivered`] for a message: the stamp that stands in its record.
    ///
    /// # Errors
    /// [`Malformed`].
    fn replaying(&mut self, _from: NodeId, _ssn: Ssn, _stamp: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }

    /// A message arrived that was delivered before: its sender asks again for its place.
    fn duplicate(&mut self, from: NodeId, ssn: Ssn, wishes: &mut Vec<Wish>);

    /// Control bytes arrived.
    ///
    /// # Errors
    /// [`Malformed`].
    fn control(&mut self, from: NodeId, body: &[u8], wishes: &mut Vec<Wish>) -> Result<(), Malformed>;

    /// This node's records up to `lsn` are safe at the level.
    fn safe(&mut self, lsn: Lsn);

    /// Something waits in the gate for delivery `index` to be recoverable: what could be delayed must not be.
    fn needed(&mut self, index: DeliveryIndex, wishes: &mut Vec<Wish>);

    /// The end of a round: everything worth telling is told now, batched.
    fn flush(&mut self, wishes: &mut Vec<Wish>);

    /// The highest delivery that, with everything it depends on, survives the failures that the policy plans for.
    fn recoverable(&self) -> DeliveryIndex;

    /// Whether the journal of `peer` must have become safe further than it is said to be before [`Self::recoverable`] reaches this node's own last
    /// delivery.
    fn waits_for_journal_of(&self, _peer: NodeId) -> bool {
        false
    }

    /// A session with `peer` began, in its life `incarnation`: what the last session may have lost is told again.
    fn connected(&mut self, peer: NodeId, incarnation: Incarnation, wishes: &mut Vec<Wish>);

    /// The session with `peer` ended: nothing will be heard from it before the next [`Self::connected`].
    fn disconnected(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// `peer` says, in every greeting, that its life `incarnation` ended and was recovered up to `last`.
    fn ended(&mut self, peer: NodeId, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>) {
        let _ = (peer, incarnation, last, wishes);
    }

    /// `peer` recovers and collects: tells it everything this node remembers for it. The channel resends messages by itself.
    fn collect(&mut self, peer: NodeId, wishes: &mut Vec<Wish>);

    /// This node recovered up to delivery `last` and goes on in `incarnation`; whatever it did above that is lost. Called once in
    /// every life, also in the first, when all that the channel held at the crash is in it again.
    fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex, wishes: &mut Vec<Wish>);

    /// Writes what this node knows of lost states, for the record that begins a life: with it durable before the life's first
    /// delivery, neither a rollback nor a crash makes this node depend again on what it gave up.
    fn known_losses(&self, _out: &mut Vec<u8>) {}

    /// Takes back what [`Self::known_losses`] wrote, in a replay where that record stands.
    ///
    /// # Errors
    /// [`Malformed`].
    fn learn_losses(&mut self, _bytes: &[u8]) -> Result<(), Malformed> {
        Ok(())
    }

    /// The last delivery that a checkpoint may cover when it is published: a rollback never crosses a checkpoint.
    fn checkpoint_may_cover(&self) -> DeliveryIndex {
        self.recoverable()
    }

    /// A durable checkpoint of this node covers every delivery up to `index`.
    fn checkpointed(&mut self, index: DeliveryIndex);

    /// Writes what a checkpoint of this moment must hold.
    fn save(&self, out: &mut Vec<u8>);

    /// Takes back what [`Self::save`] wrote. Called once, before anything else.
    ///
    /// # Errors
    /// [`Malformed`].
    fn restore(&mut self, bytes: &[u8]) -> Result<(), Malformed>;
}
