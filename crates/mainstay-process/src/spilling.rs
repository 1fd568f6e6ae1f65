//! Memory that other nodes pin: what they have not covered is moved out of it, and no new work is taken where that is not enough.

use crate::effect::Effect;
use crate::event::SpillEvent;
use crate::handler::Handler;
use crate::process::Process;
use mainstay_journal::memory::PageMemory;

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Whether a node keeps so much of this node's memory occupied that no new work may be accepted.
    pub(crate) fn is_pinned(&self) -> bool {
        self.history.links.as_ref().is_some_and(|links| !links.channel.may_accept())
    }

    /// Has the oldest of what other nodes pin moved out of memory, if that is too much.
    pub(crate) fn spill(&mut self, out: &mut Vec<Effect>) {
        let spill = self.history.links.as_mut().and_then(|links| links.channel.spill());
        out.extend(spill.map(Effect::Spill));
    }

    pub(crate) fn spill_event(&mut self, event: SpillEvent) {
        let Some(links) = &mut self.history.links else { return };
        match event {
            SpillEvent::Done { id, kept } => links.channel.spilled(id, &kept),
            SpillEvent::Failed { id } => links.channel.spill_failed(id),
        }
    }

    pub(crate) fn spill_is_paused(&self) -> bool {
        self.history.links.as_ref().is_some_and(|links| links.channel.spill_is_paused())
    }
}
