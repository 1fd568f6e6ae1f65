//! Replay: every record behind a checkpoint goes through the same handler again, in the recorded order.

use crate::collecting::{Collecting, Journaled};
use crate::config::Config;
use crate::disk_at_once::DiskAtOnce;
use crate::effect::Abandoned;
use crate::handler::Handler;
use crate::history::History;
use crate::line::Cut;
use crate::links::LinksError;
use crate::loss::Loss;
use crate::newest::Newest;
use crate::process::INSTANCE;
use crate::record::delivery::Delivery;
use crate::record::marked;
use crate::record::orphaned::{self, Orphaned};
use crate::record::prefix::Prefix;
use crate::record::quarantined::{self, Quarantined};
use crate::record::recalled;
use crate::record::rolled_back::{self, RolledBack};
use crate::record::started::{self, Started};
use crate::record::stated;
use crate::record::{RecordError, intended};
use crate::recover::{Progress, RecoverError, Recovery};
use crate::retrace::{Recorded, Shown, Watch};
use crate::summary::Summary;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::DiskEffect;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::reader::Reader;
use mainstay_journal::storage::Storage;
use mainstay_types::id::{DeliveryIndex, Lsn, NodeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// What later records say about earlier deliveries: which are never tried again, and which were executed.
pub(crate) struct Verdicts {
    pub(crate) skipped: BTreeMap<Lsn, Quarantined>,
    /// Where a life was taken back, and to which delivery.
    pub(crate) rolled_back: Vec<(Lsn, DeliveryIndex, NodeId)>,
    /// What this node was found to depend on that is lost.
    pub(crate) orphaned: Vec<Orphaned>,
    /// The last of them, if it is not recorded how far this node went back for it.
    pub(crate) unfinished: Option<Orphaned>,
    /// Losses that lives before this one stated.
    pub(crate) stated: Vec<Loss>,
    /// Something was recorded, or noted, after this delivery had been executed.
    proven: DeliveryIndex,
    /// What deliveries did when they were first made, as far as it is recorded: read for a watched replay only.
    pub(crate) summaries: BTreeMap<DeliveryIndex, Summary>,
}

impl Verdicts {
    /// Reads ahead, because a verdict stands behind the delivery that must not be tried again.
    pub(crate) fn read(
        storage: &mut dyn Storage,
        catalog: &Catalog,
        range: Range<Lsn>,
        keep_summaries: bool,
    ) -> Result<Self, RecoverError> {
        let mut verdicts = Self {
            skipped: BTreeMap::new(),
            rolled_back: Vec::new(),
            orphaned: Vec::new(),
            unfinished: None,
            stated: Vec::new(),
            proven: DeliveryIndex::default(),
            summaries: BTreeMap::new(),
        };
        let mut reader = Reader::new(storage, catalog, range.start, range.end);
        while let Some(record) = reader.next()? {
            let lsn = record.lsn;
            if record.kind == quarantined::KIND {
                let verdict = Quarantined::decode(record.payload)
                    .map_err(|error| RecoverError::Record { lsn, error })?;
                verdicts.skipped.insert(verdict.lsn, verdict);
            } else if record.kind == rolled_back::KIND {
                let RolledBack { keep, lost, .. } = RolledBack::decode(record.payload)
                    .map_err(|error| RecoverError::Record { lsn, error })?;
                verdicts.rolled_back.push((lsn, keep, lost));
                verdicts.unfinished = verdicts.unfinished.filter(|orphaned| orphaned.lost != lost);
                verdicts.proven = verdicts.proven.min(keep);
                verdicts.summaries.retain(|&index, _| index <= keep);
            } else if record.kind == orphaned::KIND {
                let orphaned =
                    Orphaned::decode(record.payload).map_err(|error| RecoverError::Record { lsn, error })?;
                verdicts.orphaned.push(orphaned.clone());
                verdicts.unfinished = Some(orphaned);
            } else if record.kind == stated::KIND {
                let loss =
                    stated::decode(record.payload).map_err(|error| RecoverError::Record { lsn, error })?;
                verdicts.stated.push(loss);
            } else if let Some(prefix) = prefix_of(record.kind, record.payload, lsn)? {
                verdicts.proven = verdicts.proven.max(prefix.executed);
                if keep_summaries {
                    verdicts.summaries.insert(prefix.executed, prefix.summary);
                }
            }
        }
        Ok(verdicts)
    }

    /// Whether a later record says that the delivery at `lsn` was taken back.
    fn is_void(&self, lsn: Lsn, index: DeliveryIndex) -> bool {
        self.rolled_back.iter().any(|&(at, keep, _)| lsn < at && index > keep)
    }

    /// Whether it was because of what another node than `me` lost: not only because there was a hole before it.
    fn is_undone(&self, lsn: Lsn, index: DeliveryIndex, me: NodeId) -> bool {
        self.rolled_back.iter().any(|&(at, keep, lost)| lsn < at && index > keep && lost != me)
    }
}

fn prefix_of(
    kind: mainstay_journal::record::Kind,
    payload: &[u8],
    lsn: Lsn,
) -> Result<Option<Prefix>, RecoverError> {
    let unreadable = |error| RecoverError::Record { lsn, error };
    let (kind, payload) = match kind {
        recalled::KIND => {
            recalled::decode(payload).map(|(_, kind, payload)| (kind, payload)).map_err(unreadable)?
        }
        kind => (kind, payload),
    };
    if !Delivery::is_kind(kind) {
        return Ok(None);
    }
    let mut reader = mainstay_types::codec::Reader::new(payload);
    Prefix::take(&mut reader).map(Some).map_err(unreadable)
}

/// The replay of a journal behind a checkpoint.
pub(crate) struct Replay<'a, H, M> {
    pub(crate) history: History<H>,
    pub(crate) config: &'a Config,
    pub(crate) journal: Journal<M>,
    pub(crate) disk: Vec<DiskEffect>,
    pub(crate) collecting: Option<Collecting>,
    pub(crate) version: Option<u32>,
    pub(crate) last_logged: DeliveryIndex,
    pub(crate) attempt: Option<(Lsn, u32)>,
    /// What the last life's newest deliveries did, if that is known.
    pub(crate) left: Option<Newest>,
    pub(crate) verdicts: Verdicts,
    pub(crate) cut: Cut,
    /// Who watches it; nobody watches the recovery of a process.
    pub(crate) watch: Option<Watch<'a>>,
}

impl<H: Handler, M: PageMemory> Replay<'_, H, M> {
    pub(crate) fn run(
        mut self,
        storage: &mut dyn Storage,
        catalog: &Catalog,
        range: Range<Lsn>,
        recovery: &mut Recovery,
        mut progress: Option<&mut dyn FnMut(Progress)>,
    ) -> Result<Self, RecoverError> {
        // A checkpoint may be older than the one from which they are counted, and has those that it is newer than.
        self.left = self.left.filter(|left| left.first > self.history.tables.executed);
        if let (Some(left), Some(newest)) = (&self.left, &mut self.history.newest) {
            newest.first = left.first;
            self.verdicts.proven = self.verdicts.proven.max(left.last);
        }
        let mut at = range.start;
        while let Some((verdict, next)) =
            self.stretch(Reader::new(storage, catalog, at, range.end), range.end, recovery, &mut progress)?
        {
            // Durable before anything is tried that comes after: an effect of that depends on the verdict, and an
            // attempt at it overwrites the count that led to the verdict.
            let mut at_once = DiskAtOnce { storage, catalog, disk: &mut self.disk };
            let appended =
                at_once.append(&mut self.journal, quarantined::KIND, INSTANCE, &verdict.encode())?;
            at_once.make_durable(&mut self.journal, appended.end)?;
            recovery.quarantined = Some(verdict.lsn);
            at = next;
        }
        Ok(self)
    }

    /// Replays up to the end, or up to and including a delivery that is given up now: then its verdict and where to go on.
    fn stretch(
        &mut self,
        mut reader: Reader<'_>,
        end: Lsn,
        recovery: &mut Recovery,
        progress: &mut Option<&mut dyn FnMut(Progress)>,
    ) -> Result<Option<(Quarantined, Lsn)>, RecoverError> {
        const PROGRESS_EVERY_DELIVERIES: u64 = 4096;
        while let Some(record) = reader.next()? {
            let (lsn, record_end, generation) = (record.lsn, record.end, record.generation);
            let unreadable = |error| RecoverError::Record { lsn, error };
            match record.kind {
                started::KIND => self.started(Started::decode(record.payload).map_err(unreadable)?)?,
                intended::KIND => {
                    let output = intended::decode(record.payload).map_err(unreadable)?;
                    if let Some(pending) = self.history.tables.outbox.find_mut(output) {
                        pending.intended = true;
                    } else if let Some(collecting) = &mut self.collecting {
                        collecting.intended.push(output);
                    }
                }
                quarantined::KIND | orphaned::KIND | stated::KIND => {}
                marked::KIND => {
                    let snapshot = marked::decode(record.payload).map_err(unreadable)?;
                    if let Some(links) = &mut self.history.links {
                        links.channel.take_part(snapshot);
                    }
                }
                rolled_back::KIND => {
                    let RolledBack { losses, .. } = RolledBack::decode(record.payload).map_err(unreadable)?;
                    self.learn_losses(&losses)?;
                }
                kind => {
                    let (generation, kind, payload) = match kind {
                        recalled::KIND => recalled::decode(record.payload).map_err(unreadable)?,
                        kind => (generation, kind, record.payload),
                    };
                    let decoded = Delivery::decode(kind, payload).map_err(unreadable)?;
                    let Some((prefix, delivery)) = decoded else {
                        return Err(unreadable(RecordError::UnknownKind { kind: kind.0 }));
                    };
                    if self.verdicts.is_void(lsn, prefix.delivery) || self.cut.leaves_out(&prefix, &delivery)
                    {
                        self.keep_in_hand(lsn, &prefix, delivery);
                        continue;
                    }
                    if let Some(collecting) = &mut self.collecting
                        && prefix.delivery != self.last_logged.next()
                    {
                        // It waits for what other nodes remember of the deliveries before it.
                        if prefix.delivery > self.last_logged {
                            let (end, life) = (record_end, generation);
                            let behind = Journaled { lsn, end, life, prefix, delivery };
                            collecting.journaled.insert(behind.prefix.delivery, behind);
                        }
                        continue;
                    }
                    self.history.enter_life(generation);
                    self.check(lsn, &prefix)?;
                    if self.is_stopped_before(lsn, record_end, &prefix, &delivery) {
                        return Ok(None);
                    }
                    let verdict = self.deliver(lsn, record_end, &prefix, &delivery)?;
                    self.check_newest(lsn)?;
                    recovery.replayed += 1;
                    if self.watch.as_ref().is_some_and(|watch| watch.stopped) {
                        return Ok(None);
                    }
                    if let Some(verdict) = verdict {
                        return Ok(Some((verdict, record_end)));
                    }
                    if recovery.replayed.is_multiple_of(PROGRESS_EVERY_DELIVERIES)
                        && let Some(progress) = progress
                    {
                        progress(Progress { deliveries: recovery.replayed, lsn, end });
                    }
                }
            }
        }
        Ok(None)
    }

    /// What was undone because another node lost something is delivered anew, where it does not depend on that. Under optimistic logging
    /// senders keep it, and their messages say what they depend on.
    fn keep_in_hand(&mut self, lsn: Lsn, prefix: &Prefix, delivery: Delivery) {
        let Some(cluster) = &self.config.cluster else { return };
        let undone = self.cut.at.is_some_and(|at| prefix.delivery >= at)
            || self.verdicts.is_undone(lsn, prefix.delivery, cluster.me);
        if undone && !self.config.policy.rolls_back() {
            self.cut.keep_in_hand(delivery);
        }
    }

    fn started(&mut self, started: Started) -> Result<(), RecoverError> {
        if started.name != self.config.name {
            return Err(RecoverError::NameChanged { recorded: started.name, now: self.config.name.clone() });
        }
        self.version = Some(started.version);
        self.learn_losses(&started.losses)
    }

    fn learn_losses(&mut self, losses: &[u8]) -> Result<(), RecoverError> {
        if let Some(links) = &mut self.history.links
            && !losses.is_empty()
        {
            links.logging.learn_losses(losses).map_err(LinksError::from)?;
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        lsn: Lsn,
        end: Lsn,
        prefix: &Prefix,
        delivery: &Delivery,
    ) -> Result<Option<Quarantined>, RecoverError> {
        self.last_logged = prefix.delivery;
        self.history.logged(delivery, prefix, end);
        if self.verdicts.skipped.contains_key(&lsn) {
            let done = self.history.skip(delivery, prefix, end, self.config);
            self.show(lsn, end, prefix, delivery, &Shown::GivenUp(&done));
            return Ok(None);
        }
        // It ended well before, or a later one was tried already: deaths in its replay are not counted against it, and its
        // attempt must not overwrite a later one's count.
        let passed = self.attempt.is_some_and(|(at, attempts)| lsn < at || lsn == at && attempts == 0);
        let proven = passed || prefix.delivery <= self.verdicts.proven;
        let failed = self.attempt.filter(|(at, _)| *at == lsn).map_or(0, |(_, attempts)| attempts);
        if !proven && failed >= self.config.limits.handler_attempts_max {
            let done = self.history.skip(delivery, prefix, end, self.config);
            self.show(lsn, end, prefix, delivery, &Shown::GivenUp(&done));
            return Ok(Some(Quarantined { lsn, attempts: failed }));
        }
        let attempts = if proven { 0 } else { self.journal.begin_attempt(lsn) };
        let executed = self.history.execute(delivery, prefix, end, self.config);
        match &executed {
            Ok(done) => self.show(lsn, end, prefix, delivery, &Shown::Done(done)),
            Err(panicked) => self.show(lsn, end, prefix, delivery, &Shown::Panicked(&panicked.message)),
        }
        match executed {
            Ok(_) if proven => Ok(None),
            Ok(_) => {
                self.journal.end_attempt();
                Ok(None)
            }
            // Its watcher has seen it; there is no state to go on from.
            Err(_) if self.goes_on() => Ok(None),
            Err(panicked) if proven => {
                let (delivery, message) = (prefix.delivery, panicked.message);
                Err(RecoverError::PanicsInReplay { lsn, delivery, message })
            }
            Err(panicked) => {
                Err(RecoverError::HandlerPanicked(Abandoned { lsn, attempts, message: panicked.message }))
            }
        }
    }

    fn check(&self, lsn: Lsn, prefix: &Prefix) -> Result<(), RecoverError> {
        let expected = self.last_logged.next();
        if prefix.delivery != expected {
            return Err(RecoverError::Gap { lsn, expected, found: prefix.delivery });
        }
        if self.goes_on() {
            return Ok(());
        }
        if let Some(recorded) = self.version
            && recorded != self.config.version
        {
            let (delivery, now) = (prefix.delivery, self.config.version);
            return Err(RecoverError::VersionChanged { lsn, delivery, recorded, now });
        }
        if let Some(now) = self.history.summary_of(prefix.executed)
            && now != prefix.summary
        {
            return Err(RecoverError::Diverged {
                lsn,
                delivery: prefix.executed,
                recorded: prefix.summary,
                now,
            });
        }
        Ok(())
    }

    /// Compares what the newest deliveries did then and do now, once it has come to the last of them.
    fn check_newest(&self, lsn: Lsn) -> Result<(), RecoverError> {
        let (Some(then), Some(now)) = (self.left, self.history.newest) else {
            return Ok(());
        };
        if then.last != now.last || then == now || self.goes_on() {
            return Ok(());
        }
        let delivery = then.last;
        if then.summary == now.summary {
            return Err(RecoverError::DivergedBefore { lsn, first: then.first, delivery });
        }
        Err(RecoverError::Diverged { lsn, delivery, recorded: then.summary, now: now.summary })
    }

    /// Whether what differs from the record is shown and no reason to stop.
    fn goes_on(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.go_on)
    }

    fn is_stopped_before(&mut self, lsn: Lsn, end: Lsn, prefix: &Prefix, delivery: &Delivery) -> bool {
        let (version, summary) = (self.version, self.verdicts.summaries.get(&prefix.delivery).copied());
        let Some(watch) = &mut self.watch else { return false };
        let recorded = Recorded { lsn, end, version, prefix, delivery, summary };
        watch.before(&recorded)
    }

    fn show(&mut self, lsn: Lsn, end: Lsn, prefix: &Prefix, delivery: &Delivery, shown: &Shown<'_>) {
        let (version, summary) = (self.version, self.verdicts.summaries.get(&prefix.delivery).copied());
        if let Some(watch) = &mut self.watch {
            let recorded = Recorded { lsn, end, version, prefix, delivery, summary };
            watch.show(&self.history, &recorded, shown);
        }
    }
}
