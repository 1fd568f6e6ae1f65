//! Instances: many small services of a type on each node, each addressed by its key, that tell each other.

pub(crate) mod address;
mod context;
pub(crate) mod envelope;
pub(crate) mod handler;
pub(crate) mod hosted;
pub(crate) mod node;
pub(crate) mod placement;

pub use crate::instance::address::{Address, Key, NoKey};
pub use crate::instance::context::{Caller, Context};
pub use crate::instance::node::Node;

use crate::migration::SavedState;
use crate::refusal::Refusal;
use mainstay_process::handler::{Outcome, RestoreError};
use mainstay_types::id::OutputId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A type of instances: each value is the whole state of one, an account, a device, an order.
///
/// An instance comes into being, as its default, when it is first called or told. It handles one thing at a time and in order; what
/// was said of [`crate::Service::handle`] holds here as well: everything must follow from the state, what arrives and the context.
///
/// A delivery that ends in a panic is undone with everything that followed from it on its node, then tried again, and given up in the
/// end: a request is answered 500; a message that was given up is lost to its receiver, and the log says so.
pub trait Instance: Default + Serialize + DeserializeOwned + Send + 'static {
    /// The name of the type in addresses: 1 to 63 of `a-z`, `0-9` and `-`.
    const TYPE: &'static str;

    /// What `POST /call/TYPE/KEY` takes, as JSON; [`Never`] for instances that clients do not call.
    type Command: DeserializeOwned;
    /// What it answers, as JSON.
    type Answer: Serialize;
    /// What other instances tell it; [`Never`] if none does.
    type Message: Serialize + DeserializeOwned;
    /// What `POST /query/TYPE/KEY` takes, as JSON; an empty body is `null`, which `()` takes.
    type Query: DeserializeOwned;
    /// What it answers, as JSON.
    type View: Serialize;

    /// Handles a request, and answers it now or in a later delivery.
    ///
    /// # Errors
    /// A [`Refusal`] is an answer too; changes made before it stay.
    fn handle(
        &mut self,
        command: Self::Command,
        context: &mut Context<'_, Self>,
    ) -> Result<Reply<Self::Answer>, Refusal>;

    /// Takes a message of another instance ([`Context::tell`]): exactly once, and in the order of sending among those from the same
    /// sender.
    fn message(&mut self, message: Self::Message, context: &mut Context<'_, Self>);

    /// Answers a read. It is not recorded. What was never called or told is read as its default, and does not come into being.
    ///
    /// # Errors
    /// A [`Refusal`].
    fn query(&self, query: Self::Query) -> Result<Self::View, Refusal>;

    /// Takes over the state of an instance that another version of the program ([`Node::version`]) saved: read the old type, make this one of
    /// it. It is asked for every instance of the type, and again after a crash until the first checkpoint of this version is taken: it must
    /// give the same each time.
    ///
    /// As it stands it reads the old bytes as this type, which is right where only handlers have changed.
    ///
    /// # Errors
    /// [`RestoreError`], also to refuse a version: the node then does not start, and nothing is changed.
    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        saved.read()
    }

    /// A timer that [`Context::set_timer`] has set is due.
    fn timer(&mut self, token: u64, context: &mut Context<'_, Self>) {
        let _ = (token, context);
    }

    /// The fate of an output is known.
    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_, Self>) {
        let _ = (output, outcome, context);
    }
}

/// What [`Instance::handle`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<A> {
    /// The answer.
    Now(A),
    /// The answer follows in a later delivery, of this instance or of any other on any node: whoever has the [`Caller`] gives it. Until
    /// then repetitions of the request wait, too.
    Later,
}

/// No value: the command of a type that nobody calls, the message of one that nobody tells. `match never {}` handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Never {}
