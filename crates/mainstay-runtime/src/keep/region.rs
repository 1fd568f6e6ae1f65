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
            Ok(written) => wrote(written.outcome, written.version),
            Err(error @ (WriteError::TooLong(_) | WriteError::OtherShard)) => {
                Err(StoreError::Refused(error.to_string()))
            }
            Err(error) => Err(StoreError::Unanswered(error.to_string())),
        }
    }
}

/// What became of a batch of puts, appends and removals.
fn wrote(outcome: Outcome, version: Version) -> Result<Wrote, StoreError> {
    match outcome {
        Outcome::Differs => Ok(Wrote::Differs),
        Outcome::Batch(steps) => match steps.into_iter().find(|step| !is_done(step)) {
            Some(step) => Err(refused(&step)),
            None => Ok(Wrote::Done(version)),
        },
        other => Err(refused(&other)),
    }
}

fn is_done(step: &Outcome) -> bool {
    matches!(step, Outcome::Written | Outcome::Length(_) | Outcome::Removed { .. })
}

fn refused(outcome: &Outcome) -> StoreError {
    StoreError::Refused(match outcome {
        Outcome::TooLong(too_long) => too_long.to_string(),
        other => format!("a write was answered {other:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_region_client::{Measured, TooLong};
    use mainstay_types::view::ViewId;

    const VERSION: Version = Version { view: ViewId(1), counter: 7 };

    #[test]
    fn a_batch_is_done_when_each_of_its_steps_is() {
        let done = vec![Outcome::Written, Outcome::Length(9), Outcome::Removed { was_there: false }];
        assert_eq!(wrote(Outcome::Batch(done.clone()), VERSION), Ok(Wrote::Done(VERSION)));
        assert_eq!(wrote(Outcome::Differs, VERSION), Ok(Wrote::Differs));
        let too_long = Outcome::TooLong(TooLong { what: Measured::Value, bytes: 9, limit: 8 });
        for step in [too_long.clone(), Outcome::NoCounter, Outcome::Differs] {
            let steps = [done.clone(), vec![step]].concat();
            let said = wrote(Outcome::Batch(steps), VERSION);
            assert!(matches!(said, Err(StoreError::Refused(_))), "{said:?}");
        }
        assert!(matches!(wrote(too_long, VERSION), Err(StoreError::Refused(_))));
    }
}
