//! What a region does when the view changes: stop and report, settle what was reported, take in the cut, begin.
//!
//! ```text
//!   Wedge ──> Report(what each shard accepted)          at every member that the group can reach; "nothing" of one that is being filled
//!   Settle(reports of a majority) ──> Cut               at one of them
//!        the group agrees on the next view and the cut
//!   Fetch(view, cut) ──> Ready                          at every member of the next view
//!   Installed(view)                                     versions begin at 1 again
//! ```
//!
//! The logs of a view are prefixes of one another, and whoever acknowledges has the entry in its log: the longest log of a majority
//! therefore holds all that was acknowledged, and it is the cut. What is in no reported log is void; no client was told that it is done, and those
//! that ask again get a version of the next view. From the cut on everything is stable, since the group has agreed on it.

use crate::copies::Copies;
use crate::effect::Effect;
use crate::log::Entry;
use crate::message::Acknowledge;
use crate::record::{self, Record};
use crate::region::{Phase, Region};
use crate::shard::Shard;
use crate::stamping::Stamping;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, View, ViewId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one copy has accepted. Also the form of a cut.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The view that it belongs to.
    pub(crate) standing: ViewId,
    /// Of each shard; none at all: the copy is not a full one and vouches for nothing. A cut without any founds a region.
    pub(crate) shards: Vec<Tail>,
}

/// The end of a shard's log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tail {
    /// Where the entries begin.
    pub(crate) behind: u64,
    /// Every member of the view has what is up to here.
    pub(crate) everywhere: u64,
    /// This copy has what is up to here, safely.
    pub(crate) safe: u64,
    /// The entries, without gaps.
    pub(crate) entries: Vec<Entry>,
}

impl Tail {
    fn end(&self) -> u64 {
        self.behind + self.entries.len() as u64
    }
}

/// A view that begins as soon as this copy has its cut.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) me: MemberId,
    pub(crate) copies: Copies,
    /// It has begun for the others.
    installed: bool,
}

impl Region {
    /// Whoever asks is waiting, so that every request is answered, also by a copy that is not full and also of a view that is not its own: the report says
    /// which view it is of.
    pub(crate) fn wedge(&mut self, view: ViewId, request: u64, out: &mut Vec<Effect>) {
        if self.phase == Phase::Serving && view >= self.standing {
            self.phase = Phase::Wedged;
        }
        self.wedged = self.wedged.max(view);
        let bytes = postcard::to_allocvec(&self.report()).expect("a report can be written to memory");
        out.push(Effect::Report { request, bytes });
    }

    fn report(&self) -> Report {
        if self.phase == Phase::Learning || self.standing == ViewId::NONE {
            return Report::default();
        }
        let tail = |shard: &Shard| {
            let entries = shard.log.iter().map(|(_, accepted)| accepted.entry.clone()).collect();
            let Shard { everywhere, durable, .. } = *shard;
            Tail { behind: shard.log.trimmed(), everywhere, safe: durable, entries }
        };
        Report { standing: self.standing, shards: self.shards.iter().map(tail).collect() }
    }

    pub(crate) fn settle(&self, reports: &[(MemberId, Vec<u8>)], out: &mut Vec<Effect>) {
        let mut read: Vec<Report> = Vec::new();
        for (member, bytes) in reports {
            match postcard::from_bytes::<Report>(bytes) {
                Ok(report) if report.shards.is_empty() => {}
                Ok(report) if read.first().is_none_or(|first| first.shards.len() == report.shards.len()) => {
                    read.push(report);
                }
                _ => return out.push(Effect::Unsettled { member: *member }),
            }
        }
        if let (true, Some(&(member, _))) = (read.is_empty(), reports.first()) {
            // Out of nothing but copies that are no full ones no cut can be made: it would begin an empty region.
            return out.push(Effect::Unsettled { member });
        }
        // A report of an earlier view is one of a copy that has not taken in the last cut: all that it has is in that cut.
        let standing = read.iter().map(|report| report.standing).max().unwrap_or_default();
        read.retain(|report| report.standing == standing);
        let shards = read.first().map_or(0, |report| report.shards.len());
        let all = self.copies.view == standing && read.len() == self.copies.count();
        let cut = Report { standing, shards: (0..shards).map(|shard| union(&read, shard, all)).collect() };
        out.push(Effect::Cut(postcard::to_allocvec(&cut).expect("a cut can be written to memory")));
    }

    pub(crate) fn fetch(
        &mut self,
        now: Time,
        me: MemberId,
        view: &View,
        cut: Vec<u8>,
        sources: Vec<MemberId>,
        out: &mut Vec<Effect>,
    ) {
        let copies = Copies::of(view);
        if view.id < self.standing {
            return;
        }
        if self.phase == Phase::Serving && view.id == self.standing {
            return out.push(Effect::Ready { view: self.standing, after: self.record });
        }
        let installed =
            self.awaited.as_ref().is_some_and(|known| known.copies.view == view.id && known.installed);
        self.awaited = Some(Awaited { me, copies, installed });
        if view.id > self.standing {
            if self.phase != Phase::Learning && self.take_cut(view.id, &cut, out).is_some() {
                self.append(&Record::Cut { view: view.id, cut }, out);
                self.filled_standing(view.id, out);
            } else {
                let sources = sources.into_iter().filter(|&source| source != me).collect();
                return self.await_image(now, me, sources, out);
            }
        }
        self.ready(out);
    }

    /// The view that is to begin with this copy.
    pub(crate) fn awaited_view(&self) -> Option<ViewId> {
        self.awaited.as_ref().map(|awaited| awaited.copies.view)
    }

    /// This copy stands at the awaited view's cut.
    pub(crate) fn ready(&mut self, out: &mut Vec<Effect>) {
        let Some(awaited) = &self.awaited else { return };
        if self.phase == Phase::Learning || awaited.copies.view != self.standing {
            return;
        }
        out.push(Effect::Ready { view: self.standing, after: self.record });
        if awaited.installed {
            self.begin();
        }
    }

    pub(crate) fn installed(&mut self, now: Time, view: ViewId, out: &mut Vec<Effect>) {
        let Some(awaited) = &mut self.awaited else { return };
        if awaited.copies.view != view {
            return;
        }
        awaited.installed = true;
        if self.phase != Phase::Learning && self.standing == view {
            self.begin();
        } else {
            self.tick_image(now, out);
        }
    }

    fn begin(&mut self) {
        let reported = self.awaited_view().is_some_and(|view| view <= self.wedged);
        if reported && self.config.rules.keep(Rule::WedgedTakesNothing) {
            // It became a full copy of the view after it had reported that it was none: what it took in now, the cut would lack.
            return;
        }
        let Some(awaited) = self.awaited.take() else { return };
        assert!(self.undrained.is_handed_on(), "what was accepted in the view before is recorded in it");
        self.me = Some(awaited.me);
        let before = std::mem::replace(&mut self.copies, awaited.copies);
        self.phase = Phase::Serving;
        self.lease_until = Time::EPOCH;
        self.learning = None;
        // A member that is still being filled goes on being filled; one that the view leaves out does not.
        let copies = &self.copies;
        self.fillings.retain(|&learner, _| copies.has(learner) || !before.has(learner));
        self.stampings = vec![Stamping::default(); self.shards.len()];
        self.shards.iter_mut().for_each(|shard| shard.fresh_at = None);
    }

    /// Takes in the cut that a view begins with. `None` if this copy is too far behind, and nothing is changed then.
    fn take_cut(&mut self, view: ViewId, cut: &[u8], out: &mut Vec<Effect>) -> Option<()> {
        let cut: Report = postcard::from_bytes(cut).ok()?;
        if cut.standing < self.standing && self.standing < view {
            return self.begin_again(view);
        }
        let founding = cut.shards.is_empty() && self.standing == ViewId::NONE;
        let fits = cut.standing == self.standing && cut.shards.len() == self.shards.len();
        let reaches = || {
            let logs = self.shards.iter().map(|shard| &shard.log);
            logs.zip(&cut.shards).all(|(log, tail)| tail.behind <= log.end())
        };
        if !(founding || (fits && reaches())) {
            return None;
        }
        let limits = self.config.limits;
        self.phase = Phase::Wedged;
        self.checkpointing = None;
        self.forget_undurable();
        if founding {
            // Copies that founded an earlier view stand at this one's beginning, too: what is alike has one version.
            self.shards.iter_mut().for_each(|shard| shard.begin(view));
        }
        for (shard, tail) in (0..).zip(cut.shards) {
            let standing = self.standing;
            let copy = self.shard_mut(shard);
            // What was held back is void, unless the cut has it.
            copy.drop_held_back();
            copy.early.clear();
            copy.truncate(tail.end());
            for (counter, entry) in (tail.behind + 1..).zip(tail.entries) {
                let mut accepted = Vec::new();
                copy.offer(counter, entry, Acknowledge::Nobody, &limits, &mut accepted);
            }
            let mut applied = Vec::new();
            copy.apply_to(standing, u64::MAX, &limits, Some(&mut applied));
            self.publish(shard, &applied, out);
            self.shard_mut(shard).begin(view);
        }
        self.standing = view;
        Some(())
    }

    /// The cut of the view that this copy stands at is handed on to a later one, since nobody could begin in between: it has all of it, and what it
    /// accepted alone is void. (Had anything become stable in between, a majority would have been full, and reported.)
    fn begin_again(&mut self, view: ViewId) -> Option<()> {
        if self.shards.iter().any(|shard| shard.stable > 0) {
            return None;
        }
        self.phase = Phase::Wedged;
        self.checkpointing = None;
        self.forget_undurable();
        self.shards.iter_mut().for_each(|shard| shard.begin(view));
        self.standing = view;
        Some(())
    }

    pub(crate) fn redo_cut(&mut self, view: ViewId, cut: &[u8]) -> Option<()> {
        self.phase = Phase::Wedged;
        self.take_cut(view, cut, &mut Vec::new())
    }

    pub(crate) fn redo_accepted(&mut self, accepted: record::Accepted) -> Option<()> {
        let record::Accepted { shard, counter, entry } = accepted;
        if shard >= self.config.shards || self.phase == Phase::Learning || self.standing == ViewId::NONE {
            return None;
        }
        let limits = self.config.limits;
        let mut accepted = Vec::new();
        self.shard_mut(shard).offer(counter, entry, Acknowledge::Nobody, &limits, &mut accepted);
        matches!(accepted.as_slice(), [(at, _)] if *at == counter).then_some(())
    }

    pub(crate) fn redo_marks(&mut self, shard: u16, stable: u64, everywhere: u64) -> Option<()> {
        if shard >= self.config.shards || self.standing == ViewId::NONE {
            return None;
        }
        let (standing, limits) = (self.standing, self.config.limits);
        let copy = self.shard_mut(shard);
        copy.apply_to(standing, stable, &limits, None);
        copy.trim(everywhere);
        Some(())
    }
}

/// What any of them has of a shard, from where some member of the view may lack it. They are prefixes of one another behind where they begin. `all`: every
/// copy of the view has reported, so that what all of them have safely nobody lacks.
fn union(reports: &[Report], shard: usize, all: bool) -> Tail {
    let tails = || reports.iter().map(|report| &report.shards[shard]);
    let first = tails().map(|tail| tail.behind).min().unwrap_or(0);
    let everywhere = tails().map(|tail| tail.everywhere).max().unwrap_or(0);
    let safe = if all { tails().map(|tail| tail.safe).min().unwrap_or(0) } else { 0 };
    let behind = first.max(everywhere).max(safe);
    let mut entries: BTreeMap<u64, &Entry> = BTreeMap::new();
    for tail in tails() {
        let lacked = (tail.behind + 1..).zip(&tail.entries).filter(|(counter, _)| *counter > behind);
        for (counter, entry) in lacked {
            entries.entry(counter).or_insert(entry);
        }
    }
    let without_gaps = (behind + 1..).zip(entries).take_while(|(next, (counter, _))| next == counter);
    let entries = without_gaps.map(|(_, (_, entry))| entry.clone()).collect();
    Tail { behind, everywhere, safe, entries }
}
