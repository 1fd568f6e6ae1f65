//! Version request: client → S1 → client → all → client.
//!
//! Versions that were given and never used block the shard: the only pattern where a slow client stops all others. The stamper asks for such a version's
//! payload after a while, and makes it void if nobody has it.

use super::{Cost, MessagePattern, Pattern, Stamped};
use crate::copies::Copies;
use crate::message::{Acknowledge, Body};
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

pub(super) struct VersionRequest;

impl MessagePattern for VersionRequest {
    fn cost(&self, copies: u64) -> Cost {
        Cost { messages: 2 * copies + 2, payloads: copies, hops: 4, payload_hops: 1 }
    }

    fn begin(
        &self,
        _: Pattern,
        id: OperationId,
        _: &Operation,
        _: &Copies,
        stamper: MemberId,
    ) -> Vec<(MemberId, Body)> {
        vec![(stamper, Body::VersionRequest { id })]
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        let own = Acknowledge::Client(client);
        Stamped { own, to_others: None, version_alone: false, waits: false }
    }

    fn through_operate(&self) -> bool {
        false
    }

    fn versioned(
        &self,
        id: OperationId,
        counter: u64,
        operation: &Operation,
        copies: &Copies,
        _: MemberId,
    ) -> Vec<(MemberId, Body)> {
        let payload = |member| (member, Body::Payload { id, counter, operation: operation.clone() });
        copies.ids().map(payload).collect()
    }
}
