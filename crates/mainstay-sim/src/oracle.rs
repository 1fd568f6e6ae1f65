//! The oracle: watches everything that enters and leaves, and says which property did not hold.

use crate::clients::{Call, CallKind};
use crate::disk::Disk;
use crate::model::Terms;
use crate::order::{Content, Entry, Order};
use crate::properties::acknowledged_survives::AcknowledgedSurvives;
use crate::properties::released_once::ReleasedOnce;
use crate::properties::same_answer::{Repetition, SameAnswer};
use crate::properties::{
    Property, Violation, failure_free, outputs_guaranteed, stable_before_release, unknown_not_absent,
};
use crate::reach::{Reach, Reached};
use crate::story::Story;
use crate::subject::{Subject, saved};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::memory::PageMemory;
use mainstay_process::effect::{Limit, Output, Reply, Unavailable};
use mainstay_process::event::{Identity, ReplyToken};
use mainstay_process::handler::Answer;
use mainstay_process::port::{Guarantee, Port};
use mainstay_process::process::Process;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::recover::Recovery;
use mainstay_types::id::{ClientId, Lsn, OutputId, Sequence};
use mainstay_types::level::Level;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The oracle of one run.
pub(crate) struct Oracle<S: Subject> {
    level: Level,
    pub(crate) order: Order<S>,
    subject: Rc<S>,
    pub(crate) story: Story,
    ports: Vec<Port>,
    acknowledged: AcknowledgedSurvives,
    answers: SameAnswer,
    released: ReleasedOnce,
    /// Client numbers that were told, and in answer to which message.
    issued: BTreeMap<ClientId, ReplyToken>,
    /// How often each receiver has taken each key.
    taken: BTreeMap<String, u64>,
    /// How often a person asked for an output to be sent again.
    sent_again: BTreeMap<OutputId, u64>,
    store: String,
    /// Records below this were delivered by an earlier life.
    life_began: Lsn,
    settled_seen: usize,
}

/// What the oracle looks at when something leaves.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) disk: &'a Disk,
    pub(crate) catalog: &'a Catalog,
}

impl<S: Subject> Oracle<S> {
    pub(crate) fn new(level: Level, geometry: Geometry, subject: Rc<S>, terms: Terms) -> Self {
        Self {
            level,
            ports: terms.ports.clone(),
            store: terms.store.to_string(),
            order: Order::new(geometry, Rc::clone(&subject), terms),
            subject,
            story: Story::default(),
            acknowledged: AcknowledgedSurvives::default(),
            answers: SameAnswer::default(),
            released: ReleasedOnce::default(),
            issued: BTreeMap::new(),
            taken: BTreeMap::new(),
            sent_again: BTreeMap::new(),
            life_began: Lsn::ZERO,
            settled_seen: 0,
        }
    }

    /// After every step: what was appended. The state of a process that gave itself up is worthless.
    pub(crate) fn stepped<M: PageMemory>(
        &mut self,
        process: &Process<S::Handler, M>,
        gave_up: bool,
        reached: &mut Reached,
    ) -> Result<(), Violation> {
        self.order.observe(process.journal())?;
        self.look_at_deliveries(reached)?;
        if gave_up { Ok(()) } else { self.compare_state(process) }
    }

    fn look_at_deliveries(&mut self, reached: &mut Reached) -> Result<(), Violation> {
        let run = self.order.entries_run();
        self.settled_seen = self.settled_seen.min(run.len());
        for entry in &run[self.settled_seen..] {
            let Some(done) = entry.done() else { continue };
            self.story.tell(|| entry.told());
            reached.add(Reach::KeyExpired, u64::from(done.after_expiry));
            reached.add(Reach::Timer, u64::from(done.timer));
            if let Some(output) = done.send_again {
                *self.sent_again.entry(output).or_default() += 1;
                self.released.allow_again(output);
            }
            if let Some((output, outcome)) = &done.settled {
                let emitted = &self.order.model.outputs[output];
                let key = key_of(&self.store, *output);
                let times = self.taken.get(&key).copied().unwrap_or(0);
                outputs_guaranteed::settled(self.ports[emitted.port].guarantee, &key, outcome, times)?;
            }
        }
        self.settled_seen = run.len();
        Ok(())
    }

    /// A reply leaves.
    pub(crate) fn replied(
        &mut self,
        scene: Scene<'_>,
        (token, call, number): (ReplyToken, &Call, u64),
        reply: &Reply,
        reached: &mut Reached,
    ) -> Result<(), Violation> {
        self.released.reply(token)?;
        let named = || format!("the reply {reply:?} to call {number} ({:?})", call.identity);
        let end = match reply {
            Reply::Answer { answer, replayed, .. } => {
                let (lsn, end) = self.answered(call, number, answer)?;
                if *replayed && *answer.body != *b"" {
                    let earlier = lsn < self.life_began;
                    reached.hit(if earlier { Reach::DuplicateAfterCrash } else { Reach::DuplicateLive });
                }
                Some(end)
            }
            Reply::Read { answer, as_of } => {
                reached.hit(Reach::Read);
                let CallKind::Query(query) = call.kind else {
                    unreachable!("only a query is answered by a read")
                };
                failure_free::same("a read", answer, self.order.read(query, *as_of))?;
                Some(self.order.depends_on(*as_of))
            }
            Reply::Registered { client } => {
                if let Some(earlier) = self.issued.insert(*client, token).filter(|earlier| *earlier != token)
                {
                    let what =
                        format!("client number {client} was given to messages {} and {}", earlier.0, token.0);
                    return Err(failure_free::violated(what));
                }
                let Some(entry) = self.order.registration(*client) else {
                    return Err(failure_free::violated(format!("client number {client} was never issued")));
                };
                Some(entry.end)
            }
            Reply::StillRunning => {
                reached.hit(Reach::StillRunning);
                self.order.of_identity(&call.identity).map(|entry| entry.end)
            }
            Reply::KeyReused => {
                reached.hit(Reach::KeyReused);
                let other = |entry: &&Entry| !matches!(&entry.content, Content::Delivery { delivery: Delivery::Request { body, .. }, .. } if *body == call.body);
                let Some(entry) = self.order.of_identity(&call.identity).filter(other) else {
                    let what =
                        format!("call {number} was told that {:?} was used with another body", call.identity);
                    return Err(failure_free::violated(what));
                };
                Some(entry.end)
            }
            Reply::Evicted => {
                reached.hit(Reach::Evicted);
                self.first_above(&call.identity)
            }
            Reply::Resolved => {
                reached.hit(Reach::Resolved);
                let CallKind::Resolve(output, resolution) = call.kind else {
                    return Err(failure_free::violated(format!("call {number} decided nothing")));
                };
                let wanted = Delivery::Resolved { output, resolution };
                let is_it = |entry: &&Entry| matches!(&entry.content, Content::Delivery { delivery, .. } if *delivery == wanted);
                let entry = self.order.entries_run().iter().rev().find(is_it);
                let done = entry.and_then(Entry::done);
                let held = done.is_some_and(|done| done.settled.is_some() || done.send_again.is_some());
                let Some(entry) = entry.filter(|_| held) else {
                    let what =
                        format!("it was said to be done, and was not: output {output}, {resolution:?}");
                    return Err(failure_free::violated(what));
                };
                Some(entry.end)
            }
            Reply::Busy { limit } => {
                reached.hit(match limit {
                    Limit::Backlog => Reach::BusyBacklog,
                    Limit::Keys => Reach::BusyKeys,
                    Limit::Clients => Reach::BusyClients,
                    Limit::Outputs => Reach::BusyOutputs,
                    Limit::OpenRequests | Limit::SenderLog | Limit::Blocked | Limit::Unkept => {
                        unreachable!("this machine answers at once, has no peers and no region")
                    }
                });
                None
            }
            Reply::Unavailable { reason } => {
                if *reason == Unavailable::DiskFull {
                    reached.hit(Reach::RefusedDiskFull);
                }
                None
            }
            Reply::NoSuchOutput => None,
        };
        if let Some(end) = end {
            self.release(scene, end, named)?;
        }
        Ok(())
    }

    /// The delivery that made this answer, and what the answer depends on.
    fn answered(&mut self, call: &Call, number: u64, answer: &Arc<Answer>) -> Result<(Lsn, Lsn), Violation> {
        let makes = |entry: &&Entry| match entry.done().and_then(|done| done.answer.as_ref()) {
            Some(_) if entry.is_quarantined() => answer.status == 500,
            made => made == Some(answer),
        };
        let mut deliveries = self.order.of_request(&call.identity, &call.body).rev();
        // Without an identity each repetition is a request of its own; else only the latest delivery can be answered from.
        let made = if call.identity == Identity::None {
            deliveries.find(makes)
        } else {
            deliveries.next().filter(makes)
        };
        let Some(made) = made else {
            let expected: Vec<_> = self
                .order
                .of_request(&call.identity, &call.body)
                .map(|entry| (entry.lsn, entry.done().and_then(|done| done.answer.clone())))
                .collect();
            let what = format!(
                "call {number} ({:?}) is answered {answer:?}; a run without failures answers {expected:?}",
                call.identity
            );
            return Err(failure_free::violated(what));
        };
        let (lsn, end) = (made.lsn, self.order.depends_on(made.end));
        if call.identity != Identity::None
            && self.answers.answered(number, lsn, answer)? == Repetition::Anew
            && !made.done().is_some_and(|done| done.after_expiry)
        {
            let what = format!("call {number} was answered from a second delivery at {lsn}");
            return Err(Violation::new(Property::SameAnswer, what));
        }
        Ok((lsn, end))
    }

    /// The end of the first delivery that makes this identity too old, if one was made.
    fn first_above(&self, identity: &Identity) -> Option<Lsn> {
        let Identity::Client { client, thread, sequence } = identity else {
            return None;
        };
        let above = |entry: &&Entry| {
            matches!(&entry.content, Content::Delivery { delivery: Delivery::Request { identity: Identity::Client {
                client: of, thread: on, sequence: Sequence(at) }, .. }, .. }
                if of == client && on == thread && *at > sequence.0)
        };
        self.order.entries().iter().find(above).map(|entry| entry.end)
    }

    /// An output leaves. `withdrawn`: a later effect of the same step takes it back, so that the model, which is as of the step's end, has it settled.
    pub(crate) fn sent(
        &mut self,
        scene: Scene<'_>,
        output: &Output,
        withdrawn: bool,
        reached: &mut Reached,
    ) -> Result<(), Violation> {
        self.released.output(output.id)?;
        let Some(emitted) = self.order.model.outputs.get(&output.id) else {
            return Err(failure_free::violated(format!("output {} was never emitted", output.id)));
        };
        if emitted.settled && !withdrawn {
            let what = format!("output {} leaves after its end", output.id);
            return Err(Violation::new(Property::OutputsGuaranteed, what));
        }
        failure_free::same("an output's port", &output.port.0, &emitted.port)?;
        failure_free::same("an output's body", &&*output.body, &emitted.body.as_slice())?;
        failure_free::same("an output's key", &output.key, &key_of(&self.store, output.id))?;
        let mut end = self.order.depends_on(emitted.end);
        if self.ports[emitted.port].guarantee == Guarantee::AtMostOnce {
            let announces = |entry: &&Entry| match &entry.content {
                Content::Intended(id) => *id == output.id,
                _ => entry.done().is_some_and(|done| done.send_again == Some(output.id)),
            };
            let Some(announced) = self.order.entries().iter().rev().find(announces) else {
                let what = format!("at-most-once output {} leaves unannounced", output.id);
                return Err(Violation::new(Property::UnknownNotAbsent, what));
            };
            end = end.max(announced.end);
            reached.hit(Reach::Intended);
        }
        self.release(scene, end, || format!("output {}", output.id))
    }

    fn release(
        &mut self,
        scene: Scene<'_>,
        end: Lsn,
        released: impl Fn() -> String,
    ) -> Result<(), Violation> {
        if self.level == Level::Disk {
            stable_before_release::check(&mut self.order, scene.disk, scene.catalog, end, &released)?;
        }
        if end > self.order.end() {
            let what = format!("{} depends on {end}, which is not appended", released());
            return Err(Violation::new(Property::StableBeforeRelease, what));
        }
        self.acknowledged.promise(end, released);
        Ok(())
    }

    /// A receiver lets an output take effect.
    pub(crate) fn taken(&mut self, port: usize, id: OutputId, key: &str) -> Result<(), Violation> {
        let times = self.taken.entry(key.to_owned()).or_default();
        *times += 1;
        let allowed = 1 + self.sent_again.get(&id).copied().unwrap_or(0);
        outputs_guaranteed::taken(self.ports[port].guarantee, key, *times, allowed)
    }

    /// Whether a receiver has taken this key.
    pub(crate) fn has_taken(&self, key: &str) -> bool {
        self.taken.contains_key(key)
    }

    /// The journal was opened and ends at `end`; `kept_all` if nothing but processes died since it was last seen.
    pub(crate) fn opened(&mut self, scene: Scene<'_>, end: Lsn, kept_all: bool) -> Result<(), Violation> {
        let kept = self.order.kept(scene.disk, scene.catalog, end);
        let lost = self.order.deliveries_behind(kept);
        if lost > 0 {
            self.story
                .tell(|| format!("the last {lost} deliveries are gone with it; nothing of them had left"));
        }
        self.acknowledged.recovered(kept)?;
        if kept_all && kept < self.order.end() {
            let what =
                format!("kill -9 lost records: appended up to {}, found up to {kept}", self.order.end());
            return Err(Violation::new(Property::AcknowledgedSurvives, what));
        }
        self.order.recovered(scene.disk, scene.catalog, end)?;
        if let Some(lsn) = self.order.first_not_durable(scene.disk, scene.catalog, end) {
            let what = format!("opening left the record at {lsn} where a power cut can take it");
            return Err(Violation::new(Property::StableBeforeRelease, what));
        }
        Ok(())
    }

    /// A process was recovered.
    pub(crate) fn recovered<M: PageMemory>(
        &mut self,
        process: &Process<S::Handler, M>,
        recovery: &Recovery,
        reached: &mut Reached,
    ) -> Result<(), Violation> {
        self.released.new_life();
        self.life_began = self.order.end();
        self.order.observe(process.journal())?;
        self.look_at_deliveries(reached)?;
        reached.add(Reach::Quarantined, u64::from(recovery.quarantined.is_some()));
        self.compare(process)
    }

    /// The state against that of the failure-free run after as many deliveries.
    fn compare_state<M: PageMemory>(&self, process: &Process<S::Handler, M>) -> Result<(), Violation> {
        let executed = process.executed();
        let entry = self.order.of_delivery(executed);
        if let Some(Content::Delivery { panics: Some(message), done: None, verdict: None, .. }) =
            entry.map(|entry| &entry.content)
        {
            let what = format!(
                "delivery {executed} was executed, and in a run without failures the handler panics on it: {message}"
            );
            return Err(failure_free::violated(what));
        }
        let Some(done) = entry.and_then(Entry::done) else { return Ok(()) };
        let state = saved(process.handler());
        if self.subject.is_same(&state, &done.state) {
            return Ok(());
        }
        let (machine, model) = (self.subject.show(&state), self.subject.show(&done.state));
        let what = format!(
            "the state after delivery {executed}: the machine has {machine}, a run without failures {model}"
        );
        Err(failure_free::violated(what))
    }

    /// Everything that the machine shows against the failure-free run, at a moment when nothing waits.
    pub(crate) fn compare<M: PageMemory>(&self, process: &Process<S::Handler, M>) -> Result<(), Violation> {
        let model = &self.order.model;
        failure_free::same("deliveries", &process.executed().0, &model.executed)?;
        self.compare_state(process)?;
        let listed: Vec<OutputId> = process.outputs().map(|output| output.id).collect();
        unknown_not_absent::listed(&listed, &model.pending().collect::<Vec<_>>())
    }

    /// The machine failed in a way that its level does not promise to survive: what was told counts no more.
    pub(crate) fn forget_promises(&mut self) {
        self.acknowledged.forget();
        self.answers.forget();
        self.issued.clear();
        self.taken.clear();
        self.sent_again.clear();
    }
}

pub(crate) fn key_of(store: &str, output: OutputId) -> String {
    format!("{store}-{}", output.0)
}
