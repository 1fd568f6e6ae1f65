//! A replicated region, as what keeps a process sees it.

use mainstay_process::kept::{Change, Store, StoreError, Wrote};
use mainstay_region_client::{Batch, Client, Operation, Outcome, WriteError};
use mainstay_types::operation::Version;

pub(super) struct Region(pub(super) Client);

impl Region {
    /// Nodes of its group.
    pub(super) fn nodes(&self) -> usize {
        self.0.view().map_or(0, |view| view.members.len())
    }
}

impl Store for Region {
    fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let found = self.0.get(key).map_err(|error| StoreError::Unanswered(error.to_string()))?;
        Ok(found.map(|value| (value.bytes, value.version)))
    }

    fn write(
        &mut self,
        watched: Vec<(Vec<u8>, Option<Version>)>,
        changes: Vec<Change>,
    ) -> Result<Wrote, StoreError> {
        let steps = changes.into_iter().map(|change| match change {
            Change::Put { key, value } => {
                Operation::Put { key: key.as_slice().into(), value: value.as_slice().into() }
            }
            Change::Append { key, value } => {
                Operation::Append { key: key.as_slice().into(), value: value.as_slice().into() }
            }
            Change::Remove { key } => Operation::Remove { key: key.as_slice().into() },
        });
        match self.0.call(Operation::Batch(Batch { watched, steps: steps.collect() })) {
            Ok(written) => match written.outcome {
                Outcome::Differs => Ok(Wrote::Differs),
                Outcome::TooLong(too_long) => Err(StoreError::Refused(too_long.to_string())),
                _ => Ok(Wrote::Done(written.version)),
            },
            Err(error @ (WriteError::TooLong(_) | WriteError::OtherShard)) => {
                Err(StoreError::Refused(error.to_string()))
            }
            Err(error) => Err(StoreError::Unanswered(error.to_string())),
        }
    }
}
