//! Level peers: what a region keeps of a process, how it is changed, and how a directory is compared with it or filled from it. Sequential code over
//! [`Store`] and [`mainstay_journal::storage::Storage`].
//!
//! ```text
//!   keys, all of one shard ({NAME} is their tag), each written only while the owner is the one that writes:
//!     keep/{NAME}/owner                          whose log it is: directory, life, start      the fence: watched by every write
//!     keep/{NAME}/end                            up to where it has whole records             changed with every addition, under its own version
//!     keep/{NAME}/manifest                       which checkpoint, which starts wrote what    changed under its own version
//!     keep/{NAME}/left                           the start that left, if one did: nobody's since
//!     keep/{NAME}/START/log/PIECE                64 KiB of the log, of that start alone; its last piece grows
//!     keep/{NAME}/START/checkpoint/LSN/NUMBER    256 KiB of the checkpoint's file
//!
//!   file DIRECTORY/keep                          that it is kept, where, as what; its starts that may be the owner
//!
//!   at a start, before anything is answered:
//!     nobody's, the name is new ───────────────> kept from now on, if that was asked for
//!     nobody's, a directory that was kept ─────> refused: the region has lost it, or is another one
//!     a start's of the file ───────────────────> compared; the region is given what it lacks; refused if the directory lacks what the region has
//!     another's, an empty directory ───────────> the owner from now on; the directory is filled
//!     another's, a directory with a journal ───> refused: the process lives elsewhere
//! ```
//!
//! Every write names the version of the owner's entry that it relies on, and the region does it only if that is still there: a life that was cut off
//! gets nothing acknowledged behind its successor's start, however late its messages arrive. Each addition also names the version of the end that it
//! moves, so that asking again does nothing twice, and a region that went back is noticed. Of a record that is longer than one write the end is moved
//! by the last write alone: a directory is filled up to the end, which is always one of a record.

pub mod attach;
pub mod keeper;
pub mod leave;
pub mod manifest;
pub mod note;
pub mod shelf;

use crate::kept::note::Note;
use mainstay_journal::fill::FillError;
use mainstay_journal::reader::ReadError;
use mainstay_journal::storage::StorageError;
use mainstay_types::id::{Lsn, StoreId};
use mainstay_types::operation::Version;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A replicated region, as one process sees it: one thing at a time.
pub trait Store {
    /// The value of a key, and the version that set it: all that was acknowledged before this was asked is in it.
    ///
    /// # Errors
    /// [`StoreError::Unanswered`].
    fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, StoreError>;

    /// Does all `changes`, as one, if each watched key has its version (`None`: is not there).
    ///
    /// # Errors
    /// [`StoreError`].
    fn write(
        &mut self,
        watched: Vec<(Vec<u8>, Option<Version>)>,
        changes: Vec<Change>,
    ) -> Result<Wrote, StoreError>;
}

/// Part of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Sets a key.
    Put {
        /// Which.
        key: Vec<u8>,
        /// To what.
        value: Vec<u8>,
    },
    /// Adds to the value of a key, or sets it.
    Append {
        /// Which.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Removes a key, if it is there.
    Remove {
        /// Which.
        key: Vec<u8>,
    },
}

/// What became of a write that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// It is done; what it set has this version.
    Done(Version),
    /// A watched key has another version. Nothing was done.
    Differs,
}

/// Something was not answered, or refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer in time. A write may have been done, or may still be.
    #[error("the region does not answer: {0}")]
    Unanswered(String),
    /// It is longer than the region takes. It was not done.
    #[error("the region refuses for good: {0}")]
    Refused(String),
}

/// One start of a process at level peers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// Above that of every start before it.
    pub number: u64,
    /// Keeps it apart from one with the same number that a region has forgotten.
    pub drawn: u64,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.number, self.drawn)
    }
}

/// Whose log a region keeps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The identity of its directory.
    pub store: StoreId,
    /// Its life. No other has this number, wherever the next one begins.
    pub life: u64,
    /// Its start.
    pub start: Start,
    /// Bytes of a page of its journal.
    pub page_bytes: u32,
    /// Pages of its ring.
    pub pages: u16,
    /// Pages of a segment.
    pub segment_pages: u32,
}

impl Owner {
    /// Where the page of its journal begins that has this byte: a recovery with the checkpoint there needs the log from it on.
    pub(super) fn page_start(&self, lsn: Lsn) -> Lsn {
        Lsn(lsn.0 - lsn.0 % u64::from(self.page_bytes))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, life, start, .. } = self;
        write!(f, "directory {store} in life {life} (start {start})")
    }
}

/// The region cannot keep the log, now or at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not answer, or not in time. What was asked for may have been done.
    #[error("the region does not answer: {0}")]
    Unreached(String),
    /// It keeps another process's.
    #[error("{0} has taken over")]
    Taken(Owner),
    /// It has lost some of what it had acknowledged, or somebody removed it.
    #[error("the region has lost some of what it kept")]
    Lost,
    /// What is under the key is nothing that was kept.
    #[error("`{key}` in the region holds something else: remove it if nothing else needs it")]
    Foreign {
        /// The key.
        key: String,
    },
    /// An entry is longer than the region takes.
    #[error("the region refuses for good: {0}")]
    Refused(String),
    /// A checkpoint's file cannot be read, to be given to the region.
    #[error("a checkpoint cannot be given to the region: {0}")]
    Checkpoint(StorageError),
    /// The service was stopped meanwhile.
    #[error("it was stopped before the region had all of it")]
    Stopped,
}

impl Trouble {
    /// Whether it may go away by itself.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Checkpoint(_))
    }

    /// What helps, as the end of a sentence; nothing where the trouble says it itself.
    fn remedy(&self) -> &'static str {
        match self {
            Self::Unreached(_) | Self::Checkpoint(_) => ". Start it again when the region serves",
            Self::Lost => {
                ". The directory that it was in last has everything, unless its machine lost power: start that one with --keep-anew"
            }
            Self::Taken(_) | Self::Foreign { .. } | Self::Refused(_) | Self::Stopped => "",
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unanswered(why) => Self::Unreached(why),
            StoreError::Refused(why) => Self::Refused(why),
        }
    }
}

/// The process did not start at level peers. It answered nothing in this life; what it acknowledged earlier is in the region, in the directory, or in
/// both, as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeptError {
    /// The region did not do what was asked.
    #[error(
        "the log of `{name}` cannot be kept, and nothing was answered: {trouble}{}",
        trouble.remedy()
    )]
    Trouble {
        /// Whose.
        name: String,
        /// Why.
        trouble: Trouble,
    },
    /// The region has no such name, and nobody said that it is a new one.
    #[error(
        "region `{region}` does not know `{name}`: it would begin from nothing. Nothing was changed. Correct --keep, --keep-region or --keep-as; \
         or, if it is to be kept there for the first time, say --keep-new"
    )]
    Unknown {
        /// The name.
        name: String,
        /// The region.
        region: String,
    },
    /// It was said to be new, and is not.
    #[error(
        "`{name}` was to be new, and is known: {by} has it. Nothing was changed. Choose another name (--keep-as), or leave out --keep-new to bring \
         that process back here"
    )]
    Known {
        /// The name.
        name: String,
        /// Who has it.
        by: Owner,
    },
    /// The directory is kept under another name, or in another region.
    #[error(
        "this directory is kept as `{}` in region `{}`, and was started to be kept as `{name}` in region `{region}`. Nothing was changed. Start it \
         with --keep-as {} --keep-region {}; or, if it is to be kept anew and no other directory has been `{}` since, add --keep-anew",
        noted.name, noted.region, noted.name, noted.region, noted.name
    )]
    Noted {
        /// What the directory says.
        noted: Box<Note>,
        /// What was asked for.
        name: String,
        /// Where.
        region: String,
    },
    /// Another directory is that process.
    #[error(
        "`{name}` lives in {by}, which has taken over since this directory was used last, or was never in this one; what it acknowledged is in the \
         region and not here. Nothing was changed. To bring it back here once that one is gone, start it with an empty directory: this one is not \
         needed for that"
    )]
    Elsewhere {
        /// Whose log.
        name: String,
        /// Who has it.
        by: Owner,
    },
    /// It was being given to the region for the first time.
    #[error(
        "a directory began to be kept as `{name}` and never was in whole: the region has nothing to fill this one from. Nothing was answered. Start \
         that directory; or, if it is gone with all it had, begin with this one --keep-anew"
    )]
    Unbegun {
        /// Whose log.
        name: String,
    },
    /// Leaving with a directory that has nothing to leave with.
    #[error(
        "this directory has no journal of `{name}`, which a region keeps: at another level it would begin from nothing. Nothing in the region was \
         changed. Leave with the directory that was `{name}` last; or, if that is gone, start this one without --keep-leave first: it is filled"
    )]
    LeavesEmpty {
        /// Whose log.
        name: String,
    },
    /// Files of a journal without its superblock, in a directory that was never kept.
    #[error(
        "this directory holds `{file}` and no journal that could be opened, and was not kept as `{name}`: nothing was changed. Name an empty \
         directory, which is filled from the region; look into this one before it is removed"
    )]
    Leftover {
        /// Whose log.
        name: String,
        /// One of its files.
        file: String,
    },
    /// An empty directory that is to have further ones.
    #[error(
        "`{name}` is filled from the region into one directory, without stripes: nothing was changed. Leave out --stripe, now and when it is started \
         again"
    )]
    Striped {
        /// Whose log.
        name: String,
    },
    /// The region does not know a directory, or its last start, that it had kept.
    #[error(
        "the region has nothing of `{name}` from this directory's last start, which it kept: it has lost that, or is another one. Nothing was \
         changed. Correct --keep, --keep-region or --keep-as; or, if no other directory has been `{name}` since, keep this one --keep-anew"
    )]
    RegionLost {
        /// Whose log.
        name: String,
    },
    /// The directory has lost what the region has, as after a power loss.
    #[error(
        "this directory ends at LSN {here}, and the region has the log of `{name}` up to LSN {kept}: it lost power, or was repaired. Nothing \
         that was acknowledged is lost, and nothing was answered. Move this directory away and start again with an empty one: it is filled from the region"
    )]
    Behind {
        /// Whose log.
        name: String,
        /// The end here.
        here: Lsn,
        /// The end there.
        kept: Lsn,
    },
    /// The region has lost its end, and the directory does not reach back to what is left.
    #[error(
        "the region has the log of `{name}` up to LSN {kept} only: it has lost what it had behind that, and this directory begins at LSN {first}. \
         Nothing was changed. This directory has all that was acknowledged: if no other has been `{name}` since, keep it --keep-anew"
    )]
    Gap {
        /// Whose log.
        name: String,
        /// The end there.
        kept: Lsn,
        /// The beginning here.
        first: Lsn,
    },
    /// The two have different records in the same place.
    #[error(
        "this directory and what the region keeps of `{name}` differ below LSN {kept}: one of the two lost its end and was written on. Nothing was \
         changed. To go on with what the region has, move this directory away and start with an empty one; to go on with this one, if no other \
         has been `{name}` since, keep it --keep-anew"
    )]
    Differs {
        /// Whose log.
        name: String,
        /// The end there.
        kept: Lsn,
    },
    /// What the region keeps makes no journal.
    #[error(
        "what the region keeps of `{name}` makes no journal: {source}. Nothing in the region was changed but its owner"
    )]
    Fill {
        /// Whose log.
        name: String,
        /// Why.
        source: FillError,
    },
    /// The region lacks something that it says it has.
    #[error(
        "what the region keeps of `{name}` is not whole: {what} should have {expected} bytes, and has {bytes}. Nothing in the region was changed \
         but its owner"
    )]
    NotWhole {
        /// Whose.
        name: String,
        /// The key, or what it belongs to.
        what: String,
        /// How much is there.
        bytes: u64,
        /// How much should be.
        expected: u64,
    },
    /// The journal cannot be read, to be compared with what the region has, or to give the region what it lacks.
    #[error("the journal cannot be read to be kept: {0}")]
    Read(#[from] ReadError),
    /// A file of the directory cannot be read or written.
    #[error("the directory cannot be used, and nothing was answered: {0}")]
    Storage(#[from] StorageError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_told_apart_and_owners_are_told_in_words() {
        let start = Start { number: 3, drawn: 0xab };
        assert_eq!(start.to_string(), "3-00000000000000ab");
        let owner =
            Owner { store: StoreId([1; 16]), life: 7, start, page_bytes: 4096, pages: 3, segment_pages: 4 };
        assert!(Trouble::Taken(owner).to_string().contains("in life 7 (start 3-"));
        let told = |trouble| KeptError::Trouble { name: "shop".to_owned(), trouble }.to_string();
        assert!(
            told(Trouble::Unreached("away".to_owned()))
                .ends_with("away. Start it again when the region serves")
        );
        assert!(told(Trouble::Lost).ends_with("start that one with --keep-anew"));
    }
}
