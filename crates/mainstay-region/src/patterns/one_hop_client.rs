//! One hop, acknowledged to the client: client → S1 → others → client, and S1 → client. The blog's winner.
//!
//! The stamper does not see the acknowledgements: what is stable it learns from the positions that members tell it from time to time.

use super::{Cost, MessagePattern, Stamped};
use crate::message::Acknowledge;
use mainstay_types::id::ClientId;

pub(super) struct OneHopClient;

impl MessagePattern for OneHopClient {
    fn cost(&self, copies: u64) -> Cost {
        let alone = copies == 1;
        Cost {
            messages: 2 * copies,
            payloads: copies,
            hops: if alone { 2 } else { 3 },
            payload_hops: if alone { 1 } else { 2 },
        }
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        let own = Acknowledge::Client(client);
        Stamped { own, to_others: Some(own), version_alone: false, waits: false }
    }
}
