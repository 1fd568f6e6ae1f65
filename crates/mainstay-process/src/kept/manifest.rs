//! What a region is told of what it keeps of one process: how far the log is there, which starts wrote what of it, with which checkpoint a recovery
//! begins, and what is to be removed.

use super::Start;
use mainstay_types::id::Lsn;
use serde::{Deserialize, Serialize};

/// How what is kept is cut up. The same in all lives of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of the log in one piece, at most. Small, since each addition copies a piece at every copy of the region; not too small, since a recovery
    /// reads piece by piece.
    pub piece_bytes: u64,
    /// Bytes of the log in one write, at most; a piece at least. A record that is longer takes several.
    pub write_bytes_max: u64,
    /// Bytes of a checkpoint's file under one key.
    pub chunk_bytes: u64,
    /// Starts between two checkpoints that add to what was there; the next one gives everything anew.
    pub stretches_max: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            piece_bytes: 64 << 10,
            write_bytes_max: 512 << 10,
            chunk_bytes: 256 << 10,
            stretches_max: 1000,
        }
    }
}

/// How far the log is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// Whose pieces the last ones are.
    pub(super) start: Start,
    /// All records below this, and no part of another.
    pub(super) end: Lsn,
    /// Pieces reach to here: part of a record that takes several writes.
    pub(super) to: Lsn,
}

/// A checkpoint in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct KeptCheckpoint {
    /// Who wrote it.
    pub(super) start: Start,
    pub(super) lsn: Lsn,
    /// Length of its file, in bytes.
    pub(super) bytes: u64,
}

impl KeptCheckpoint {
    pub(super) fn chunks(self, sizes: Sizes) -> u64 {
        self.bytes.div_ceil(sizes.chunk_bytes)
    }
}

/// What one start wrote of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Stretch {
    pub(super) start: Start,
    /// Where it begins, and the one before ends.
    pub(super) from: Lsn,
    /// The first piece that has not been removed.
    pub(super) piece_from: u64,
    /// Pieces reach to here, at least to where the next stretch begins; of the last one, [`End::to`] says it.
    pub(super) to: Lsn,
}

/// All that a recovery needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Whole {
    /// With which it begins.
    pub(super) checkpoint: Option<KeptCheckpoint>,
    /// From where on it needs the log: where a page begins.
    pub(super) log_from: Lsn,
    /// Who wrote that, in order.
    pub(super) stretches: Vec<Stretch>,
}

/// Keys of one start, named so that somebody removes them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Stock {
    pub(super) start: Start,
    /// Of the log, from and to.
    pub(super) pieces: (u64, u64),
    pub(super) checkpoint: Option<KeptCheckpoint>,
}

/// What there is besides the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// `None`: the first owner has not come to the end of giving what it has.
    pub(super) whole: Option<Whole>,
    /// Being written: a checkpoint, or a directory's past.
    pub(super) begun: Option<Stock>,
    /// To be removed, because nothing needs it any more.
    pub(super) surplus: Vec<Stock>,
}

/// What a stretch that reaches `to` consists of; nothing if it is empty.
pub(super) fn stock_of(stretch: &Stretch, to: Lsn, sizes: Sizes) -> Option<Stock> {
    let pieces = (stretch.piece_from, to.0.div_ceil(sizes.piece_bytes));
    (pieces.0 < pieces.1).then_some(Stock { start: stretch.start, pieces, checkpoint: None })
}

pub(super) fn stock_of_checkpoint(of: KeptCheckpoint) -> Stock {
    Stock { start: of.start, pieces: (0, 0), checkpoint: Some(of) }
}
