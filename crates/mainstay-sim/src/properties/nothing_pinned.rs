//! Once everything is covered by checkpoints, no node keeps a message for another.

use super::{Property, Violation};
use mainstay_channel::channel::Retained;
use mainstay_types::id::NodeId;

pub(crate) const SOURCE: &str =
    "garbage collection of the sender's log: Johnson and Zwaenepoel 1987; Elnozahy et al. 2002, section 4.4";

/// Fails if `node` keeps anything.
pub(crate) fn check(node: NodeId, mut retained: impl Iterator<Item = Retained>) -> Result<(), Violation> {
    match retained.find(|retained| retained.messages > 0) {
        None => Ok(()),
        Some(Retained { peer, messages, bytes, .. }) => {
            let what = format!(
                "{node} keeps {messages} messages, {bytes} bytes, for {peer}, though all checkpoints cover them"
            );
            Err(Violation::new(Property::NothingPinned, what))
        }
    }
}
