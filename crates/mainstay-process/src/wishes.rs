//! What the logging protocol wishes for is performed: told, kept, remembered, flushed for, rolled back to.

use crate::effect::Effect;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::loss::RollBack;
use crate::process::Process;
use crate::record::rolled_back::RolledBack;
use crate::sessions::Sessions;
use mainstay_channel::channel::Channel;
use mainstay_channel::frame::Frame;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::logging::Wish;
use mainstay_types::id::{DeliveryIndex, NodeId};
use mainstay_types::level::Level;
use mainstay_types::mark::Mark;
use mainstay_types::rules::Rule;

impl Sessions {
    /// Tells, and keeps places, at once; what changes the process itself is left in `wishes`.
    pub(crate) fn perform_at_once(&mut self, channel: &mut Channel) {
        let Self { wishes, outgoing, .. } = self;
        wishes.retain(|wish| match wish {
            Wish::Tell { to, body } => {
                // Without a session it is not said: the protocol says it again when there is one.
                if channel.session(*to).is_some() {
                    Frame::Control(body).put_with_length(outgoing.entry(*to).or_default());
                }
                false
            }
            Wish::Ordered { to, ssn, place } => {
                channel.ordered(*to, *ssn, *place);
                false
            }
            Wish::Flush | Wish::Remembered { .. } | Wish::RollBack { .. } => true,
        });
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// The end of a round: the protocol tells what it has gathered. Returns up to where the journal is wanted durable.
    pub(crate) fn flush_logging(&mut self) -> Option<u64> {
        let (links, sessions) = self.history.links.as_mut().zip(self.sessions.as_mut())?;
        // What leaves, also what waits for the disk first: other nodes can do their part meanwhile. And a checkpoint, which must not know
        // what may be taken back. Not the word to a sender that its message is needed no more: it comes with these, and with the next
        // checkpoint at the latest.
        let effect = self.gate.outstanding(Mark::Recoverable).map(DeliveryIndex);
        let may_cover = links.logging.checkpoint_may_cover();
        let checkpoint = sessions.covering.checkpoint_waits(may_cover).max(self.snapshots.waits(may_cover));
        if let Some(index) = effect.max(checkpoint) {
            links.logging.needed(index, &mut sessions.wishes);
        }
        links.logging.flush(&mut sessions.wishes);
        sessions.perform_at_once(&mut links.channel);
        let before = sessions.wishes.len();
        sessions.wishes.retain(|wish| *wish != Wish::Flush);
        let flush = sessions.wishes.len() < before;
        (flush && self.config.level == Level::Disk).then(|| self.journal.end().0)
    }

    pub(crate) fn perform_wishes(&mut self, out: &mut Vec<Effect>) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        sessions.perform_at_once(&mut links.channel);
        let mut roll_back: Option<(DeliveryIndex, NodeId)> = None;
        let collecting = &mut sessions.collecting;
        sessions.wishes.retain(|wish| match wish {
            Wish::Remembered { place, source } => {
                if let Some(collecting) = collecting {
                    collecting.remembered(*place, source);
                }
                false
            }
            Wish::RollBack { keep, lost } => {
                if roll_back.is_none_or(|(lowest, _)| *keep < lowest) {
                    roll_back = Some((*keep, *lost));
                }
                false
            }
            // For the end of the round.
            Wish::Flush => true,
            Wish::Tell { .. } | Wish::Ordered { .. } => unreachable!("performed a line above"),
        });
        // Others go back when they greet the node that lost something, and only behind what they were sent of it.
        if let Some((keep, lost)) = roll_back
            && self.config.policy.rolls_back()
            && self.config.rules.keep(Rule::OrphansRollBack)
            && self.life != Life::Abandoned
        {
            let mut losses = Vec::new();
            links.logging.known_losses(&mut losses);
            self.life = Life::Abandoned;
            out.push(Effect::RollBack(RollBack::To(RolledBack { keep, lost, losses })));
        }
    }
}
