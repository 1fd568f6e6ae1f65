//! What a region keeps in the journal, and how a copy is found again from it.

use crate::checkpoint::{Restoring, last_whole};
use crate::limits::Config;
use crate::log::Entry;
use crate::message::{Behind, ImagePart};
use crate::region::Region;
use mainstay_types::view::ViewId;
use serde::{Deserialize, Serialize};

/// One record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Record {
    /// Entries were accepted, in this order, each behind all earlier ones of its shard.
    Accepted {
        /// The entries.
        entries: Vec<Accepted>,
    },
    /// How far the shard is.
    Marks {
        /// The shard.
        shard: u16,
        /// Up to here it is stable.
        stable: u64,
        /// Up to here every member has it.
        everywhere: u64,
    },
    /// The cut with which a view begins was taken in.
    Cut {
        /// The view.
        view: ViewId,
        /// The cut.
        #[serde(with = "serde_bytes")]
        cut: Vec<u8>,
    },
    /// A part of an image came.
    Image {
        /// The shard.
        shard: u16,
        /// The part.
        part: ImagePart,
    },
    /// The image is whole, and is what this view begins with.
    Filled {
        /// The view.
        view: ViewId,
    },
    /// An operation without version was done.
    Unversioned {
        /// The shard.
        shard: u16,
        /// What.
        entry: Entry,
    },
    /// A part of a checkpoint of this copy; the first begins it and `Complete` ends it.
    Checkpoint {
        /// The shard.
        shard: u16,
        /// The part.
        part: ImagePart,
    },
    /// Entries that the log had when the checkpoint began.
    CheckpointLog {
        /// The shard.
        shard: u16,
        /// Counter of the first of them.
        first: u64,
        /// The entries, without gaps.
        entries: Vec<Entry>,
    },
}

/// An entry that a copy accepted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Accepted {
    /// The shard.
    pub shard: u16,
    /// Its counter.
    pub counter: u64,
    /// What it stands for.
    pub entry: Entry,
}

/// What the bytes of a [`Record::Checkpoint`] begin with: its place among the cases.
const CHECKPOINT: u8 = 6;

/// A record cannot be read or does not fit behind those before it: the journal is not this region's, or damaged. The store takes part in
/// no view change as it is; it joins as a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// These are no record.
    #[error("record {number} is no record of a region")]
    Malformed {
        /// Which, from 1.
        number: usize,
    },
    /// It names a shard or a version that cannot be.
    #[error("record {number} does not follow from those before it")]
    OutOfPlace {
        /// Which, from 1.
        number: usize,
    },
    /// They begin with a checkpoint that does not come to its end.
    #[error("the records begin with a checkpoint that is not whole")]
    Unfinished,
}

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let hint = match self {
            Self::Accepted { entries } => entries.iter().map(|accepted| accepted.entry.written_bytes()).sum(),
            Self::Unversioned { entry, .. } => entry.written_bytes(),
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(hint);
        postcard::serialize_with_flavor(self, Behind(&mut bytes)).expect("a record can be written to memory");
        bytes
    }

    /// The part, if it is one of a checkpoint: nothing else is decoded, since a journal has many records.
    pub(crate) fn checkpoint_part(bytes: &[u8]) -> Option<ImagePart> {
        match bytes.first().filter(|&&case| case == CHECKPOINT).and_then(|_| Self::decode(bytes)) {
            Some(Self::Checkpoint { part, .. }) => Some(part),
            _ => None,
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match postcard::take_from_bytes(bytes) {
            Ok((record, [])) => Some(record),
            _ => None,
        }
    }
}

impl Region {
    /// The copy that an earlier life of this store was. It serves nothing and accepts nothing before a view begins with it: a life that ended is
    /// over for its view, and what this one may say of that view is a report.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub fn recover<'a>(
        config: Config,
        records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    ) -> Result<Self, RecoverError> {
        let records = records.into_iter();
        let from = last_whole(records.clone()).unwrap_or(0);
        let mut region = Self::new(config);
        let mut restoring = None;
        for (place, bytes) in records.enumerate().skip(from) {
            let number = place + 1;
            let record = Record::decode(bytes).ok_or(RecoverError::Malformed { number })?;
            if place == from {
                restoring = Restoring::begun_by(&record, config.shards);
            }
            let misplaced = RecoverError::OutOfPlace { number };
            match &mut restoring {
                Some(checkpoint) => {
                    let whole = checkpoint.take(&mut region, record).ok_or(misplaced)?;
                    if whole {
                        restoring = None;
                    }
                }
                None => region.redo(record).ok_or(misplaced)?,
            }
        }
        match restoring {
            Some(_) => Err(RecoverError::Unfinished),
            None => Ok(region),
        }
    }

    fn redo(&mut self, record: Record) -> Option<()> {
        match record {
            Record::Accepted { entries } => {
                entries.into_iter().try_for_each(|accepted| self.redo_accepted(accepted))
            }
            Record::Marks { shard, stable, everywhere } => self.redo_marks(shard, stable, everywhere),
            Record::Cut { view, cut } => self.redo_cut(view, &cut),
            Record::Image { shard, part } => self.redo_image(shard, part),
            Record::Filled { view } => self.redo_filled(view),
            Record::Unversioned { shard, entry } => self.redo_unversioned(shard, entry),
            Record::Checkpoint { .. } | Record::CheckpointLog { .. } => Some(()),
        }
    }
}
