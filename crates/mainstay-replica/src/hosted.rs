//! One region beside its gate: what it sends leaves when the records that it names are safe.

use crate::definition::Definition;
use crate::message::Message;
use mainstay_gate::gate::{Gate, Hold};
use mainstay_region::effect::RecordNumber;
use mainstay_region::region::Region;
use mainstay_types::held::{Held, Origin};
use mainstay_types::id::ClientId;
use mainstay_types::mark::{After, Mark};
use mainstay_types::view::{Address, ViewId};

/// Most messages of a region that wait for records; above it they are dropped, as a network may: stamper and clients ask again.
pub(crate) const HELD_MESSAGES_MAX: usize = 1 << 16;

/// What leaves a region.
#[derive(Debug)]
pub(crate) enum Leaving {
    /// To another node.
    Send(Address, Message),
    /// To a client.
    Answer(ClientId, mainstay_region::message::Message),
    /// The region has what a view begins with.
    Ready(ViewId),
}

/// The region.
#[derive(Debug)]
pub(crate) struct Hosted {
    pub(crate) definition: Definition,
    pub(crate) machine: Region,
    /// [`Mark::Durable`] is here the number of a record that is safe at the region's level.
    gate: Gate<Leaving>,
}

impl Hosted {
    pub(crate) fn new(definition: Definition, machine: Region) -> Self {
        Self { definition, machine, gate: Gate::default() }
    }

    /// It is this from the next view on, as the cut says that it begins with.
    pub(crate) fn define(&mut self, definition: Definition) {
        self.machine.allow_payloads(definition.pattern.clients_send_payloads());
        self.definition = definition;
    }

    /// Gives it back if it may leave now.
    pub(crate) fn hold(&mut self, after: RecordNumber, what: Leaving) -> Option<Leaving> {
        if self.gate.len() >= HELD_MESSAGES_MAX && !matches!(what, Leaving::Ready(_)) {
            return None;
        }
        let held = Held { what, after: After::mark(Mark::Durable, after.0), origin: Origin::default() };
        match self.gate.hold(held) {
            Hold::Passed(held) => Some(held.what),
            Hold::Waiting => None,
            Hold::Never(_) => unreachable!("a node whose records fail ends"),
        }
    }

    /// Records up to this one are safe: returns what waited for them.
    pub(crate) fn safe(&mut self, record: RecordNumber) -> Vec<Leaving> {
        let (mut released, mut discarded) = (Vec::new(), Vec::new());
        self.gate.advance(Mark::Durable, record.0, &mut released, &mut discarded);
        released.into_iter().map(|held| held.what).collect()
    }
}
