//! The beginning of a life: what of the last one is there is said, and what it left is taken up.
//!
//! ```text
//!   replayed from the journal ─────────────────────────┐
//!   replayed, with what others gave back ──────────────┴──> announced ──> runs: outputs are taken up
//!                                                              │           ^
//!                                            more was lost than is survived│
//!                                                              └──> agreeing: on a line, with all others
//! ```

use crate::effect::Effect;
use crate::handler::Handler;
use crate::history::History;
use crate::lifecycle::Life;
use crate::links::Emitted;
use crate::outlet::Leaving;
use crate::port::{Guarantee, OutputState};
use crate::process::Process;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::{Generation, Incarnation, OutputId};
use mainstay_types::mark::After;

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// What can be recovered is: others are told how far, and the life runs, or waits for all to agree on a line. Returns how many outputs are sent
    /// again, and how many are in doubt; none before it runs.
    ///
    /// Part of a step, which its caller ends: a checkpoint asked for in the middle of one would be saved with what the rest of it changes.
    pub(crate) fn begin_life(&mut self, out: &mut Vec<Effect>) -> (u64, u64) {
        self.life = if self.line.must_agree { Life::Agreeing } else { Life::Running };
        self.announce_life(out);
        if self.life == Life::Running { self.take_up_outputs(out) } else { (0, 0) }
    }

    /// All agree on the line that this life waited for.
    pub(crate) fn go_on_from_the_line(&mut self, out: &mut Vec<Effect>) {
        self.life = Life::Running;
        self.take_up_outputs(out);
        self.stop_if_asked();
    }

    /// A clean stop that was asked for while the life could not stop yet begins.
    fn stop_if_asked(&mut self) {
        if self.stop_asked && self.life == Life::Running {
            self.life = Life::Stopping { checkpoint_asked: false, seal: None };
        }
    }

    /// Everything that can be replayed is: a new life begins, and says where the last one ended.
    pub(crate) fn begin_after_collecting(&mut self, out: &mut Vec<Effect>) {
        let collecting = self.sessions.as_mut().and_then(|sessions| sessions.collecting.take());
        let mut collecting = collecting.unwrap_or_default();
        for output in std::mem::take(&mut collecting.intended) {
            if let Some(pending) = self.history.tables.outbox.find_mut(output) {
                pending.intended = true;
            }
        }
        self.history.enter_life(Generation(self.incarnation.0));
        self.state_what_is_lost(&collecting, out);
        if collecting.went_back || self.line.must_agree {
            self.history.tables.forget_unexecuted();
        }
        self.record_verdicts();
        self.begin_life(out);
        // As new, and only if their protocol still lets them in.
        if let Some(sessions) = &mut self.sessions {
            sessions.postponed.extend(collecting.without_places());
        }
        self.retry_postponed(out);
        self.answer_collectors(&collecting);
        self.say_recovered();
        self.stop_if_asked();
    }

    /// Tells the cluster that a life of this node ended, and how far it is recovered.
    fn announce_life(&mut self, out: &mut Vec<Effect>) {
        let (executed, incarnation) = (self.history.tables.executed, Incarnation(self.incarnation.0));
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        if !self.config.policy.rolls_back() {
            links.release_recovered();
        }
        links.logging.recovered(incarnation, executed, &mut sessions.wishes);
        for refusal in links.channel.recovered() {
            if let Refusal::Ahead { node, .. } | Refusal::PeerOrphaned { node, .. } = refusal {
                self.stats.peers_orphaned += 1;
                self.hang_up(node, refusal.into(), out);
            }
        }
        if self.config.policy.rolls_back() {
            self.publish(out);
            self.hold_emitted(out);
        }
    }

    /// Holds the messages of earlier lives as their emission did: what was recovered may depend on what another node can still lose, and
    /// who cannot roll back with this node must not see it before.
    fn hold_emitted(&mut self, out: &mut Vec<Effect>) {
        let Some(links) = &self.history.links else { return };
        let (policy, level, end) = (self.config.policy, self.config.level, self.history.tables.executed_end);
        let mut emitted: Vec<(Emitted, After)> = Vec::new();
        for (&to, &theirs) in &links.policies {
            emitted.extend(links.channel.emitted(to).map(|(ssn, origin)| {
                (Emitted { to, ssn }, policy.message_after(theirs, level, end, origin.delivery))
            }));
        }
        for (message, after) in emitted {
            self.hold(Leaving::Message(message), after, out);
        }
    }

    /// Takes up what the last life left: returns how many outputs are sent again, and how many are in doubt. Part of a step, which
    /// its caller ends: a checkpoint asked for in the middle of one would be saved with what the rest of it changes.
    fn take_up_outputs(&mut self, out: &mut Vec<Effect>) -> (u64, u64) {
        let (mut again, mut in_doubt) = (0, 0);
        let pending: Vec<OutputId> = self.history.tables.outbox.iter().map(|(id, _)| id).collect();
        for id in pending {
            let output = self.history.tables.outbox.find_mut(id).expect("it was just listed");
            let output_end = output.end;
            match History::<H>::guarantee(output, &self.config) {
                None => output.state = OutputState::InDoubt,
                Some(Guarantee::AtMostOnce) if output.intended => output.state = OutputState::InDoubt,
                Some(Guarantee::AtMostOnce) => {
                    output.state = OutputState::Prepared;
                    let end = output.end;
                    self.hold_output(id, end, out);
                    continue;
                }
                Some(_) => {
                    again += 1;
                    let after = self.effect_after(output_end);
                    self.hold(Leaving::OutputAgain(id), after, out);
                    continue;
                }
            }
            in_doubt += 1;
        }
        (again, in_doubt)
    }
}
