//! Message returns version: client → S1 → client → others → client.
//!
//! The stamper has the payload from the beginning: if the client dies, the stamper sends it to the others itself.

use super::{Cost, MessagePattern, Stamped};
use crate::copies::Copies;
use crate::message::{Acknowledge, Body};
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

pub(super) struct MessageReturnsVersion;

impl MessagePattern for MessageReturnsVersion {
    fn cost(&self, copies: u64) -> Cost {
        let alone = copies == 1;
        Cost {
            messages: 2 * copies,
            payloads: copies,
            hops: if alone { 2 } else { 4 },
            payload_hops: if alone { 1 } else { 2 },
        }
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        let own = Acknowledge::Client(client);
        Stamped { own, to_others: None, version_alone: false, waits: false }
    }

    fn versioned(
        &self,
        id: OperationId,
        counter: u64,
        operation: &Operation,
        copies: &Copies,
        stamper: MemberId,
    ) -> Vec<(MemberId, Body)> {
        let others = copies.ids().filter(|&member| member != stamper);
        others.map(|member| (member, Body::Payload { id, counter, operation: operation.clone() })).collect()
    }
}
