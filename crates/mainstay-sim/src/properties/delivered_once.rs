//! No request is delivered twice: neither under one unexpired key nor at one place of a thread.

use super::{Property, Violation};
use mainstay_process::event::Identity;
use mainstay_types::id::{ClientId, Lsn, Sequence, ThreadId};
use mainstay_types::time::Time;
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "exactly-once semantics: Ongaro 2014, section 6.3; IETF Idempotency-Key draft, section 2";

/// What was delivered so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveredOnce {
    keys: BTreeMap<Vec<u8>, (Lsn, Time)>,
    places: BTreeMap<(ClientId, ThreadId, Sequence), Lsn>,
}

/// How a delivery relates to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    New,
    /// A key was used before and had expired.
    AfterExpiry,
}

impl DeliveredOnce {
    /// Takes note of a delivery at `lsn`, whose key is remembered until `expires`.
    pub(crate) fn deliver(
        &mut self,
        identity: &Identity,
        lsn: Lsn,
        now: Time,
        expires: Time,
    ) -> Result<Delivered, Violation> {
        let earlier = match identity {
            Identity::None => None,
            Identity::Key(key) => match self.keys.insert(key.clone(), (lsn, expires)) {
                Some((_, expired)) if expired <= now => return Ok(Delivered::AfterExpiry),
                earlier => earlier.map(|(earlier, _)| earlier),
            },
            Identity::Client { client, thread, sequence } => {
                self.places.insert((*client, *thread, *sequence), lsn)
            }
        };
        match earlier {
            None => Ok(Delivered::New),
            Some(earlier) => {
                let what = format!("{identity:?} was delivered at {earlier} and again at {lsn}");
                Err(Violation::new(Property::DeliveredOnce, what))
            }
        }
    }
}
