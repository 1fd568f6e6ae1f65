//! The chain: client → S1 → S2 → S3 → client (van Renesse and Schneider 2004). The fewest messages of all, one hop more for each copy.
//!
//! A copy passes an entry on when it has it safe, so that the last one knows that all have. It is therefore always acknowledged by all,
//! also where a region asks for a majority only.

use super::{Cost, MessagePattern, Stamped};
use crate::message::Acknowledge;
use mainstay_types::id::ClientId;

pub(super) struct Chain;

impl MessagePattern for Chain {
    fn cost(&self, copies: u64) -> Cost {
        Cost { messages: copies + 1, payloads: copies, hops: copies + 1, payload_hops: copies }
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        let own = Acknowledge::Chain(client);
        Stamped { own, to_others: None, version_alone: false, waits: false }
    }
}
