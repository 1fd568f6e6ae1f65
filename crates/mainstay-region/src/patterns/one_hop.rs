//! One hop: client → S1 → others → S1 → client.
//!
//! All versions of a shard go over one channel from the stamper, in order. The stamper knows what is stable: its reads need not wait, its log is
//! trimmed for free. The chain of acknowledgements is the price.

use super::{Cost, MessagePattern, Pattern, Stamped, to_stamper};
use crate::copies::Copies;
use crate::message::{Acknowledge, Body};
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;

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

    fn begin(
        &self,
        id: OperationId,
        operation: &Operation,
        _: &Copies,
        stamper: MemberId,
    ) -> Vec<(MemberId, Body)> {
        to_stamper(Pattern::OneHop, id, operation, stamper)
    }

    fn stamped(&self, _: ClientId) -> Stamped {
        let to_others = Some(Acknowledge::Stamper);
        Stamped { own: Acknowledge::Stamper, to_others, version_alone: false, waits: true }
    }
}
