//! Moving the oldest bodies of sender logs out of memory, and what they are afterwards: bytes that somebody else keeps.
//!
//! ```text
//!   Channel::spill ──> Spill {id, bytes}  ── the driver writes them to a file and maps it ──> Channel::spilled
//!                                          └─ or cannot ──> Channel::spill_failed: they stay in memory
//! ```
//!
//! One is under way at a time. The file is no copy that anything relies on: a crash loses it like memory, and a replay emits the
//! messages again.

use crate::channel::Channel;
use crate::link::Link;
use crate::sender_log::Chunk;
use mainstay_types::id::{Incarnation, NodeId, Ssn};
use std::fmt;
use std::sync::Arc;

/// Fewest bytes that are worth a file of their own, unless the limit of memory is small. They are copied within a step.
const CHUNK_BYTES: u64 = 1 << 20;

/// Names one spill, so that the outcome of one that an earlier life began is told from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillId {
    /// The life that asked.
    pub life: Incarnation,
    /// Counted from 1 in each life.
    pub number: u64,
}

/// Bodies to be moved out of memory.
#[derive(Clone, Debug)]
pub struct Spill {
    /// Names it.
    pub id: SpillId,
    /// The bodies, one after another, oldest first.
    pub bytes: Vec<u8>,
}

/// Bodies where the driver keeps them, one after another: a mapped file, whose pages the kernel drops from memory and reads again.
#[derive(Clone)]
pub struct Spilled(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Spilled {
    /// What `kept` refers to, until the last body of it is needed no more.
    pub fn new(kept: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Arc::new(kept))
    }

    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for Spilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spilled({} bytes)", self.bytes().len())
    }
}

/// The body of a retained message.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Memory(Box<[u8]>),
    Spilled { kept: Spilled, from: u32, to: u32 },
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Spilled { kept, from, to } => &kept.bytes()[*from as usize..*to as usize],
        }
    }
}

/// The spill under way.
#[derive(Debug)]
struct UnderWay {
    id: SpillId,
    peer: NodeId,
    first: Ssn,
    lengths: Vec<u32>,
}

/// Where spilling stands.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    under_way: Option<UnderWay>,
    number: u64,
    /// The last one failed, and nobody has said that it is time to try again.
    paused: bool,
}

impl Channel {
    /// What is to be moved out of memory now, to be told of with [`Self::spilled`] or [`Self::spill_failed`]. Each body is asked for
    /// once, unless that fails.
    pub fn spill(&mut self) -> Option<Spill> {
        if self.spilling.under_way.is_some() || self.spilling.paused {
            return None;
        }
        let limits = self.limits;
        let chunk_bytes = CHUNK_BYTES.min(limits.log_memory_bytes_max / 4);
        let taken = |link: &mut Link| Some((link.peer, link.log.take_to_spill(&limits, chunk_bytes)?));
        let (peer, Chunk { first, lengths, bytes }) = self.links.iter_mut().find_map(taken)?;
        self.spilling.number += 1;
        let id = SpillId { life: self.identity.incarnation, number: self.spilling.number };
        self.spilling.under_way = Some(UnderWay { id, peer, first, lengths });
        Some(Spill { id, bytes })
    }

    /// The bodies of spill `id` are `kept`: they are read from there when they are sent again or saved. A spill of an earlier life is
    /// passed over.
    ///
    /// # Panics
    /// If `kept` is not as long as they are together.
    pub fn spilled(&mut self, id: SpillId, kept: &Spilled) {
        let Some(UnderWay { peer, first, lengths, .. }) = self.take_under_way(id) else { return };
        let bytes: usize = lengths.iter().map(|length| *length as usize).sum();
        assert_eq!(kept.bytes().len(), bytes, "a spill holds its bodies and nothing else");
        let log = &mut self.link_mut(peer).log;
        let mut from = 0;
        for (ssn, length) in (first.0..).map(Ssn).zip(lengths) {
            let to = from + length;
            log.spilled(ssn, Body::Spilled { kept: kept.clone(), from, to });
            from = to;
        }
    }

    /// There was no room, or no file, for spill `id`: its bodies stay in memory. Nothing more is asked for before
    /// [`Self::retry_spill`].
    pub fn spill_failed(&mut self, id: SpillId) {
        if let Some(UnderWay { peer, first, .. }) = self.take_under_way(id) {
            self.link_mut(peer).log.not_spilled(first);
            self.spilling.paused = true;
        }
    }

    /// Whether a spill failed and [`Self::retry_spill`] is waited for.
    #[must_use]
    pub fn spill_is_paused(&self) -> bool {
        self.spilling.paused
    }

    /// It is time to try again.
    pub fn retry_spill(&mut self) {
        self.spilling.paused = false;
    }

    fn take_under_way(&mut self, id: SpillId) -> Option<UnderWay> {
        self.spilling.under_way.take_if(|under_way| under_way.id == id)
    }
}
