//! No versioning: client → all → client. The speed limit that the others are measured against; copies that two clients write to may differ.

use super::{Cost, MessagePattern, Pattern, Stamped};
use crate::copies::Copies;
use crate::message::Body;
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

pub(super) struct Unversioned;

impl MessagePattern for Unversioned {
    fn cost(&self, copies: u64) -> Cost {
        Cost { messages: 2 * copies, payloads: copies, hops: 2, payload_hops: 1 }
    }

    fn begin(
        &self,
        _: Pattern,
        id: OperationId,
        operation: &Operation,
        copies: &Copies,
        _: MemberId,
    ) -> Vec<(MemberId, Body)> {
        copies.ids().map(|member| (member, Body::Unversioned { id, operation: operation.clone() })).collect()
    }

    fn stamped(&self, client: ClientId) -> Stamped {
        unreachable!("nothing of client {client} is stamped in a region without versions")
    }

    fn through_operate(&self) -> bool {
        false
    }
}
