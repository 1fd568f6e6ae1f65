//! What a service's owner writes.

use crate::migration::SavedState;
use crate::refusal::Refusal;
use mainstay_process::handler::{Context, Outcome, RestoreError};
use mainstay_types::id::OutputId;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A service: the type is its whole state, which survives crashes.
///
/// [`Self::handle`] runs for one request at a time, and runs again when a crash has to be made up for: everything it does must
/// follow from the state, the command and the context. A panic discards what it did; the request is tried again, then given up
/// and answered 500.
pub trait Service: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the service: a directory belongs to one.
    const NAME: &'static str;
    /// To be raised whenever the handler would answer, or emit, anything else for the same history.
    const VERSION: u32 = 1;

    /// What `POST /call` takes, as JSON.
    type Command: DeserializeOwned;
    /// What it answers, as JSON.
    type Answer: Serialize;
    /// What `POST /query` takes, as JSON; an empty body is `null`, which `()` takes.
    type Query: DeserializeOwned;
    /// What it answers, as JSON.
    type View: Serialize;

    /// Handles one request.
    ///
    /// # Errors
    /// A [`Refusal`] is an answer too; changes made before it stay.
    fn handle(&mut self, command: Self::Command, context: &mut Context<'_>) -> Result<Self::Answer, Refusal>;

    /// Answers a read. It is not recorded.
    ///
    /// # Errors
    /// A [`Refusal`].
    fn query(&self, query: Self::Query) -> Result<Self::View, Refusal>;

    /// Takes over the state that another version saved: read the old type, make this one of it. Until the first checkpoint of
    /// this version is taken, soon after its start, a crash makes it run again: it must give the same each time.
    ///
    /// As it stands it reads the old bytes as this type, which is right where only the handler has changed.
    ///
    /// # Errors
    /// [`RestoreError`], also to refuse a version: the service then does not start, and nothing is changed.
    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        saved.read()
    }

    /// A timer that [`Context::set_timer`] has set is due.
    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        let _ = (token, context);
    }

    /// The fate of an output is known.
    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        let _ = (output, outcome, context);
    }
}
