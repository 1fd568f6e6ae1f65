//! What clients saw of each key has an order that each operation's beginning and end allow.

use super::{Property, Violation};
use crate::region::{Seen, linearizable};
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str =
    "linearizability: Herlihy and Wing 1990; the search: Wing and Gong 1993, Lowe 2017";

/// Fails if a key's history has none.
pub(crate) fn check(histories: &BTreeMap<Vec<u8>, Vec<Seen>>) -> Result<(), Violation> {
    for (key, history) in histories {
        if linearizable(history) == Some(false) {
            let what = format!("key {}: no order explains {history:?}", String::from_utf8_lossy(key));
            return Err(Violation::new(Property::RegionLinearizable, what));
        }
    }
    Ok(())
}
