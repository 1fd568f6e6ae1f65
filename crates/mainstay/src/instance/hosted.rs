//! All instances of one type on a node, with the type taken off.

use crate::instance::address::Address;
use crate::instance::context::{Arrived, Context, Delivering};
use crate::instance::{Instance, Reply};
use crate::migration::SavedState;
use crate::refusal::Refusal;
use crate::save;
use crate::typed;
use mainstay_process::handler::{Answer, Outcome, RestoreError};
use mainstay_types::id::OutputId;
use serde_json::Value;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::marker::PhantomData;

/// The instances of a type.
pub(crate) trait Hosted: Any + Send {
    /// Hands something to an instance, which comes into being if need be; gives its answer if that is there already.
    fn deliver<'a>(&mut self, to: &'a Address, what: What<'a>, delivering: Delivering<'a>) -> Option<Answer>;

    /// Answers a read.
    fn query(&self, key: &str, question: &[u8]) -> Answer;

    /// All keys, in order.
    #[cfg(feature = "testing")]
    fn keys(&self) -> Vec<&str>;

    /// The state of an instance, if there is one.
    fn state(&self, key: &str) -> Option<Shown>;

    /// Writes the states of all.
    fn save(&self, into: &mut dyn Write) -> io::Result<()>;

    /// Whether what [`Self::save`] wrote can be read; gives what is behind it.
    fn read_back<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError>;

    /// Replaces all by those that [`Self::save`] wrote; gives what is behind them.
    fn restore<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError>;

    /// The same for states that another version of the program saved.
    fn migrate<'a>(&mut self, version: u32, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError>;
}

/// The state of an instance, to be shown or compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    Json(Value),
    /// As it is saved: it has keys that JSON cannot have.
    Bytes(Vec<u8>),
}

/// What an instance is handed.
#[derive(Clone, Copy)]
pub(crate) enum What<'a> {
    /// A command, JSON.
    Command(&'a [u8]),
    /// A message, JSON, and its sender.
    Message(&'a Address, &'a [u8]),
    /// A timer with this token.
    Timer(u64),
    /// The fate of an output.
    Settled(OutputId, &'a Outcome),
}

/// The states of a type's instances, by key.
pub(crate) struct Instances<I> {
    pub(crate) states: BTreeMap<String, I>,
}

impl<I> Default for Instances<I> {
    fn default() -> Self {
        Self { states: BTreeMap::new() }
    }
}

impl<I: Instance> Hosted for Instances<I> {
    fn deliver<'a>(&mut self, to: &'a Address, what: What<'a>, delivering: Delivering<'a>) -> Option<Answer> {
        let arrived = match what {
            What::Command(_) => Arrived::Request,
            What::Message(from, _) => Arrived::Message(from),
            What::Timer(_) | What::Settled(..) => Arrived::Other,
        };
        let mut context =
            Context { delivering, address: to, arrived, caller_taken: false, ended: false, of: PhantomData };
        let state = match what {
            What::Command(_) | What::Message(..) => self.states.entry(to.key.clone()).or_default(),
            // Asked for by an instance that has ended since.
            What::Timer(_) | What::Settled(..) => self.states.get_mut(&to.key)?,
        };
        let answer = match what {
            What::Command(command) => handle(state, command, &mut context),
            What::Message(from, message) => {
                match serde_json::from_slice(message) {
                    Ok(message) => state.message(message, &mut context),
                    Err(error) => panic!("{to} is told by {from} what it does not take: {error}"),
                }
                None
            }
            What::Timer(token) => {
                state.timer(token, &mut context);
                None
            }
            What::Settled(output, outcome) => {
                state.output_settled(output, outcome, &mut context);
                None
            }
        };
        let Context { delivering, ended, .. } = context;
        if ended {
            self.states.remove(&to.key);
            delivering.book.ended(to);
        }
        answer
    }

    fn query(&self, key: &str, question: &[u8]) -> Answer {
        let question = match serde_json::from_slice(question) {
            Ok(question) => question,
            Err(error) => return typed::of_refusal(&Refusal::new(error.to_string())),
        };
        match self.states.get(key) {
            Some(state) => typed::answer(&state.query(question)),
            None => typed::answer(&I::default().query(question)),
        }
    }

    #[cfg(feature = "testing")]
    fn keys(&self) -> Vec<&str> {
        self.states.keys().map(String::as_str).collect()
    }

    fn state(&self, key: &str) -> Option<Shown> {
        let state = self.states.get(key)?;
        Some(serde_json::to_value(state).map_or_else(
            |_| Shown::Bytes(postcard::to_allocvec(state).expect("a vector takes all")),
            Shown::Json,
        ))
    }

    fn save(&self, into: &mut dyn Write) -> io::Result<()> {
        save::write(&self.states, into)
    }

    fn read_back<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError> {
        let (states, rest) = postcard::take_from_bytes::<BTreeMap<String, I>>(bytes).map_err(broken::<I>)?;
        // Not dropped: a state may do something then, and these never were in use.
        std::mem::forget(states);
        Ok(rest)
    }

    fn restore<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError> {
        let (states, rest) = postcard::take_from_bytes(bytes).map_err(broken::<I>)?;
        self.states = states;
        Ok(rest)
    }

    fn migrate<'a>(&mut self, version: u32, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError> {
        // A map as postcard has it: how many, then key and state of each.
        let (count, mut rest): (u64, _) = postcard::take_from_bytes(bytes).map_err(broken::<I>)?;
        self.states.clear();
        for _ in 0..count {
            let (key, state): (String, _) = postcard::take_from_bytes(rest).map_err(broken::<I>)?;
            let left = Cell::new(None);
            let of = |reason: &str| RestoreError { reason: format!("{}/{key}: {reason}", I::TYPE) };
            let migrated = I::migrate(SavedState::first_of(version, state, &left));
            let migrated = migrated.map_err(|error| of(&error.reason))?;
            let Some(left) = left.get() else {
                return Err(of("`Instance::migrate` made a state without reading the saved one"));
            };
            rest = &state[state.len() - left..];
            self.states.insert(key, migrated);
        }
        Ok(rest)
    }
}

fn broken<I: Instance>(error: postcard::Error) -> RestoreError {
    RestoreError { reason: format!("the instances of {}: {error}", I::TYPE) }
}

fn handle<I: Instance>(state: &mut I, command: &[u8], context: &mut Context<'_, I>) -> Option<Answer> {
    let command = match serde_json::from_slice(command) {
        Ok(command) => command,
        Err(error) => return Some(typed::of_another_version(&error)),
    };
    match state.handle(command, context) {
        Ok(Reply::Now(answer)) => Some(typed::answer(&Ok(answer))),
        Ok(Reply::Later) => {
            assert!(
                context.caller_taken,
                "{} answers later without having asked who waits (Context::caller): nobody could",
                context.address
            );
            None
        }
        Err(refusal) => Some(typed::of_refusal(&refusal)),
    }
}
