//! One instance followed through a replay: what reaches it, what it tells on its node because of that, and its state behind it.

use super::line::{Text, Touch};
use crate::instance::address::Address;
use crate::instance::envelope::Told;
use crate::instance::hosted::{Shown, What};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// An instance that is followed.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) address: Address,
    touches: Mutex<Vec<Touch>>,
}

impl Followed {
    /// `TYPE/KEY`; `None` for what is no address.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (address, _) = Address::take(format!("{name}\n").as_bytes())?;
        Some(Self { address, touches: Mutex::default() })
    }

    /// Something has reached it; `told` is what it told on its node because of that, `state` its state now, if it has not ended.
    pub(crate) fn touched<'a>(
        &self,
        what: What<'_>,
        told: impl Iterator<Item = &'a Told>,
        state: Option<Shown>,
    ) {
        let took = match what {
            What::Command(command) => format!("command {}", Text::of(command)),
            What::Message(from, message) => format!("message of {from}: {}", Text::of(message)),
            What::Timer(token) => format!("timer {token}"),
            What::Settled(output, outcome) => format!("output {}: {outcome:?}", output.0),
        };
        let told = told.map(|told| format!("{}: {}", told.to, Text::of(&told.message))).collect();
        let state = state.map(|state| match state {
            Shown::Json(value) => value,
            Shown::Bytes(bytes) => Value::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        });
        let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        touches.push(Touch { instance: self.address.to_string(), took, told, state });
    }

    /// What has reached it since this was asked last.
    pub(crate) fn take(&self) -> Vec<Touch> {
        std::mem::take(&mut *self.touches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
