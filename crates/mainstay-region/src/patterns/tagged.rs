//! Tagged send-to-all: client → all, S1 → others the version, all → client.
//!
//! One transfer of the payload in the path; the second hop is small. What is held for its version is memory that clients fill: it is limited for each.

use super::{Cost, MessagePattern, Pattern, Stamped};
use crate::copies::Copies;
use crate::message::{Acknowledge, Body};
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

pub(super) struct Tagged;

impl MessagePattern for Tagged {
    fn cost(&self, copies: u64) -> Cost {
        let hops = if copies == 1 { 2 } else { 3 };
        Cost { messages: 3 * copies - 1, payloads: copies, hops, payload_hops: 1 }
    }

    fn begin(
        &self,
        _: Pattern,
        id: OperationId,
        operation: &Operation,
        copies: &Copies,
        _: MemberId,
    ) -> Vec<(MemberId, Body)> {
        copies.ids().map(|member| (member, Body::Tagged { id, operation: operation.clone() })).collect()
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        let own = Acknowledge::Client(client);
        Stamped { own, to_others: None, version_alone: true, waits: false }
    }

    fn through_operate(&self) -> bool {
        false
    }
}
