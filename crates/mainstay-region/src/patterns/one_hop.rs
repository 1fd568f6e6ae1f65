//! One hop: client → S1 → others → S1 → client.
//!
//! All versions of a shard go over one channel from the stamper, in order. The stamper knows what is stable: its reads need not wait, its log is
//! trimmed for free. The chain of acknowledgements is the price.

use super::{Cost, MessagePattern, Stamped};
use crate::message::Acknowledge;
use mainstay_types::id::ClientId;

pub(super) struct OneHop;

impl MessagePattern for OneHop {
    fn cost(&self, copies: u64) -> Cost {
        let alone = copies == 1;
        Cost {
            messages: 2 * copies,
            payloads: copies,
            hops: if alone { 2 } else { 4 },
            payload_hops: if alone { 1 } else { 2 },
        }
    }

    fn stamped(&self, _: ClientId) -> Stamped {
        let to_others = Some(Acknowledge::Stamper);
        Stamped { own: Acknowledge::Stamper, to_others, version_alone: false, waits: true }
    }
}
