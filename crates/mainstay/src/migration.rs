//! The state of another version, on its way into this one.

use mainstay_process::handler::RestoreError;
use serde::de::DeserializeOwned;

/// A state that another version of a service saved; see [`crate::Service::migrate`].
#[derive(Clone, Copy, Debug)]
pub struct SavedState<'a> {
    version: u32,
    bytes: &'a [u8],
}

impl<'a> SavedState<'a> {
    pub(crate) fn new(version: u32, bytes: &'a [u8]) -> Self {
        Self { version, bytes }
    }

    /// The version that saved it.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Reads it as the type that the state had then. The encoding (postcard) does not name fields: a type of another shape is
    /// noticed only if the bytes do not come out even.
    ///
    /// # Errors
    /// [`RestoreError`] when the bytes are no such state.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RestoreError> {
        let broken = |reason: String| RestoreError { reason };
        let (state, rest) =
            postcard::take_from_bytes(self.bytes).map_err(|error| broken(error.to_string()))?;
        if !rest.is_empty() {
            return Err(broken(format!("{} bytes are left over: the state has another type", rest.len())));
        }
        Ok(state)
    }
}
