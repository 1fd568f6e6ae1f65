//! The state of another version, on its way into this one.

use mainstay_process::handler::RestoreError;
use serde::de::DeserializeOwned;
use std::cell::Cell;

/// A state that another version of a service, or of a type of instances, saved; see [`crate::Service::migrate`] and
/// [`crate::instance::Instance::migrate`].
#[derive(Clone, Copy, Debug)]
pub struct SavedState<'a> {
    version: u32,
    bytes: &'a [u8],
    /// Where other states follow: tells how many bytes are left behind the one that was read.
    left: Option<&'a Cell<Option<usize>>>,
}

impl<'a> SavedState<'a> {
    pub(crate) fn new(version: u32, bytes: &'a [u8]) -> Self {
        Self { version, bytes, left: None }
    }

    /// The first of several states, one behind the other. What is behind it when it was read is told in `left`.
    pub(crate) fn first_of(version: u32, bytes: &'a [u8], left: &'a Cell<Option<usize>>) -> Self {
        Self { version, bytes, left: Some(left) }
    }

    /// The version that saved it.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Reads it as the type that the state had then. The encoding (postcard) does not name fields: a type of another shape is
    /// noticed only if the bytes do not come out even; of instances, those of all instances of the type together.
    ///
    /// # Errors
    /// [`RestoreError`] when the bytes are no such state.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RestoreError> {
        let broken = |reason: String| RestoreError { reason };
        let (state, rest) =
            postcard::take_from_bytes(self.bytes).map_err(|error| broken(error.to_string()))?;
        if let Some(left) = self.left {
            left.set(Some(rest.len()));
        } else if !rest.is_empty() {
            return Err(broken(format!("{} bytes are left over: the state has another type", rest.len())));
        }
        Ok(state)
    }
}
