//! What a node that collects is told: all that this one has for it, and later that this one, if it recovers as well, is recovered.
//!
//! A node that collects as well answers last: when all that do not collect have told it what they hold.

use crate::collecting::Collecting;
use crate::effect::Effect;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::process::Process;
use crate::sessions::put_ready;
use mainstay_channel::frame::Frame;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::journal::Health;
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::NodeId;
use mainstay_types::rules::Rule;

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Tells a node that collects all that this one has for it.
    pub(crate) fn answer_collector(&mut self, peer: NodeId) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        if links.channel.session(peer).is_none() {
            // It asks again in its next session.
            return;
        }
        if !links.channel.has_released_recovered(peer) {
            // It may have delivered what an earlier life let leave, which is held again until nobody can lose what it depends on: without that
            // it would take its own delivery for lost. Nothing of this waits for `peer`: it waits for journals of nodes that do not collect.
            sessions.unanswered.insert(peer);
            return;
        }
        links.logging.collect(peer, &mut sessions.wishes);
        self.put_made_for(peer);
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        sessions.put(peer, &links.channel.close_collection(peer));
    }

    /// Those whose answer waited for what may leave. Where it never may, because the journal is poisoned, they are told so: the next life answers.
    pub(crate) fn answer_the_unanswered(&mut self, out: &mut Vec<Effect>) {
        let unanswered = self.sessions.as_mut().map(|sessions| std::mem::take(&mut sessions.unanswered));
        for peer in unanswered.into_iter().flatten() {
            self.answer_collector(peer);
        }
        if matches!(self.journal.health(), Health::Poisoned { .. }) {
            for peer in self.kept_waiting() {
                self.hang_up(peer, Refusal::Poisoned { node: peer }.into(), out);
            }
        }
    }

    /// What the history has made for `peer` so far: what is put next stands behind it.
    pub(crate) fn put_made_for(&mut self, peer: NodeId) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        sessions.perform_at_once(&mut links.channel);
        let outgoing = sessions.outgoing.entry(peer).or_default();
        put_ready(links, outgoing, peer, self.config.rules.keep(Rule::DeterminantsTravel));
    }

    pub(crate) fn answer_collectors(&mut self, collecting: &Collecting) {
        for &peer in &collecting.to_answer {
            self.answer_collector(peer);
        }
    }

    /// Behind everything that this node ever sent: a peer that collects waits for no more of it.
    pub(crate) fn say_recovered(&mut self) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        sessions.perform_at_once(&mut links.channel);
        for (&peer, outgoing) in &mut sessions.outgoing {
            if links.channel.session(peer).is_some() {
                put_ready(links, outgoing, peer, self.config.rules.keep(Rule::DeterminantsTravel));
                links.channel.close_recovery(peer).put_with_length(outgoing);
                if self.life == Life::Running && links.channel.is_recovered(peer) {
                    Frame::Heard.put_with_length(outgoing);
                }
            }
        }
    }

    pub(crate) fn answer_collectors_if_due(&mut self) {
        let Some(mine) = self.sessions.as_mut().and_then(|sessions| sessions.collecting.as_mut()) else {
            return;
        };
        if mine.may_answer() {
            for peer in std::mem::take(&mut mine.to_answer) {
                self.answer_collector(peer);
            }
        }
    }
}
