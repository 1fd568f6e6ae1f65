//! What a store must find again after a crash: the view it knows, what it promised and accepted there, and what data it has.
//!
//! A store that cannot read its record has lost its promises. It must not vote with a made-up one: it joins as a new store.

use crate::ballot::{Ballot, Proposal};
use crate::message::{MessageError, put_accepted, put_cluster, take_accepted, take_cluster, take_flag};
use mainstay_types::codec::Reader;
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::{View, ViewId};

/// The version of the encoding.
pub const RECORD_VERSION: u8 = 1;

/// A store's part in the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The group, once it is known.
    pub cluster: Option<ClusterId>,
    /// Whose it is.
    pub store: StoreId,
    /// The last view that it knows to be installed and that names it.
    pub installed: Option<Proposal>,
    /// The highest ballot, about the successor of that view, that it promised to.
    pub promised: Ballot,
    /// What it accepted last about it.
    pub accepted: Option<(Ballot, Proposal)>,
    /// The last view that it had all the data of; 0 for none.
    pub ready: ViewId,
}

impl Record {
    pub(crate) fn of_new(store: StoreId) -> Self {
        Self {
            cluster: None,
            store,
            installed: None,
            promised: Ballot::NONE,
            accepted: None,
            ready: ViewId::NONE,
        }
    }

    /// The view.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.installed.as_ref().map(|proposal| &proposal.view)
    }

    /// Its number; 0 for none.
    #[must_use]
    pub fn view_id(&self) -> ViewId {
        self.view().map_or(ViewId::NONE, |view| view.id)
    }

    /// Whether it has all the data of the view that it knows.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.installed.is_some() && self.ready == self.view_id()
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(RECORD_VERSION);
        put_cluster(self.cluster, out);
        out.extend_from_slice(&self.store.0);
        out.push(u8::from(self.installed.is_some()));
        if let Some(installed) = &self.installed {
            installed.put(out);
        }
        self.promised.put(out);
        put_accepted(self.accepted.as_ref(), out);
        out.extend_from_slice(&self.ready.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`RecordError`]: the store joins as a new one, or is given back what it lost.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(bytes);
        let version = from.u8().map_err(MessageError::from)?;
        if version != RECORD_VERSION {
            return Err(RecordError::Version { found: version });
        }
        let record = Self::take(&mut from)?;
        match from.rest().len() {
            0 => Ok(record),
            bytes => Err(MessageError::Trailing { bytes }.into()),
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            cluster: take_cluster(from)?,
            store: StoreId(from.take(16)?.try_into().expect("16 bytes were taken")),
            installed: take_flag(from)?.then(|| Proposal::take(from)).transpose()?,
            promised: Ballot::take(from)?,
            accepted: take_accepted(from)?,
            ready: ViewId(from.u64()?),
        })
    }
}

/// A record that cannot be read. The store must not vote: start it as a new one, and it fetches what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Of another version.
    #[error(
        "the record is of version {found}, and this is version {RECORD_VERSION}: start the version of mainstay that wrote it"
    )]
    Version {
        /// Its version.
        found: u8,
    },
    /// Damaged.
    #[error(
        "the record of the group is damaged, so that this store does not know what it promised; start it with a new store id, and it joins as new: {0}"
    )]
    Damaged(#[from] MessageError),
}
