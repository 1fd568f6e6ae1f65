//! What the oracle knows: which content each version has, which sequence was applied, what clients were told.

use super::linearizable::{Done, Saw, Seen};
use crate::properties::{
    Violation, region_acknowledged_stays, region_age_stated, region_copies_agree, region_fenced,
    region_first_result, region_linearizable, region_one_payload, region_roles_decide,
};
use crate::reach::{Reach, Reached};
use crate::trace::Trace;
use mainstay_group::roles::Requirement;
use mainstay_region::duplicates::Seen as Given;
use mainstay_region::effect::Effect;
use mainstay_region::limits::Config;
use mainstay_region::log::Entry;
use mainstay_region::message::Body;
use mainstay_region::operation::Outcome;
use mainstay_region::record::{Accepted, Record};
use mainstay_region::region::{Phase, Region};
use mainstay_types::operation::{OperationId, Version};
use mainstay_types::view::{View, ViewId};
use std::collections::BTreeMap;

/// What the agreed sequence has at a version.
pub(crate) type Agreed = Option<(OperationId, Outcome)>;

/// What was looked at of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// Of each shard: the last version that it applied.
    applied: Vec<Version>,
    /// So many of what it had accepted were in no record yet.
    unrecorded: usize,
}

impl Watched {
    /// Nothing, of a copy that begins its life.
    pub(crate) fn new(shards: u16) -> Self {
        Self { applied: vec![Version::NONE; usize::from(shards)], unrecorded: 0 }
    }
}

/// One copy behind a step.
pub(crate) struct Inspected<'a> {
    /// Its server.
    pub(crate) number: u8,
    pub(crate) region: &'a Region,
    pub(crate) watched: &'a mut Watched,
    /// The view that it reported for last.
    pub(crate) reported: Option<ViewId>,
    /// Records that it appended in the step.
    pub(crate) appended: Vec<&'a [u8]>,
    /// The view that it stands at, if that lacks a role which the region requires so.
    pub(crate) lacks_role: Option<(&'a View, &'a Requirement)>,
}

/// The oracle.
pub(crate) struct Oracle {
    config: Config,
    /// What copies accepted.
    contents: BTreeMap<(u16, Version), Entry>,
    /// What copies applied.
    agreed: BTreeMap<(u16, Version), Agreed>,
    versions: BTreeMap<OperationId, Version>,
    digests: BTreeMap<(u16, Version), u64>,
    /// What clients were told: shard, version, outcome.
    told: BTreeMap<OperationId, (u16, Given)>,
    /// By shard: when a copy that serves first applied more than all others had, and what.
    applied: BTreeMap<u16, Vec<(u64, Version)>>,
    /// The latest view that some copy serves.
    begun: ViewId,
    /// By key.
    histories: BTreeMap<Vec<u8>, Vec<Seen>>,
    pub(crate) reached: Reached,
}

impl Oracle {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            contents: BTreeMap::new(),
            agreed: BTreeMap::new(),
            versions: BTreeMap::new(),
            digests: BTreeMap::new(),
            told: BTreeMap::new(),
            applied: BTreeMap::new(),
            begun: ViewId::NONE,
            histories: BTreeMap::new(),
            reached: Reached::default(),
        }
    }

    /// Looks at a copy behind one of its steps: what it accepted, and what it applied.
    pub(crate) fn stepped(
        &mut self,
        inspected: Inspected<'_>,
        said_in: Option<(ViewId, bool)>,
    ) -> Result<(), Violation> {
        let Inspected { number, region, watched, reported, appended, lacks_role } = inspected;
        let standing = region.standing();
        let recorded = appended.iter().filter_map(|bytes| {
            match postcard::from_bytes(bytes).expect("the region wrote it") {
                Record::Accepted { entries } => Some(entries),
                _ => None,
            }
        });
        let accepted: Vec<Accepted> = recorded.flatten().chain(region.unrecorded().cloned()).collect();
        // Those at the beginning were accepted in earlier steps.
        let new = accepted.into_iter().skip(watched.unrecorded);
        watched.unrecorded = region.unrecorded().count();
        for Accepted { shard, counter, entry } in new {
            let version = Version { view: standing, counter };
            region_fenced::check(number, version, said_in, reported)?;
            if let Some((view, requirement)) = lacks_role {
                region_roles_decide::check_accepted(number, view, requirement, &entry)?;
            }
            region_one_payload::check(&mut self.contents, number, shard, version, entry)?;
        }
        if region.phase() == Phase::Learning {
            return Ok(());
        }
        for shard in 0..self.config.shards {
            let state = region.state(shard);
            let watched = &mut watched.applied[usize::from(shard)];
            if state.at == *watched {
                continue;
            }
            let new = state.history().rev().take_while(|applied| applied.version > *watched);
            let mut applied = 0;
            for change in new {
                applied += 1;
                region_copies_agree::check_applied(
                    &mut self.agreed,
                    &mut self.versions,
                    number,
                    shard,
                    change,
                )?;
                if change.operation.is_none() {
                    let ended = !change.changes.is_empty();
                    self.reached.hit(if ended { Reach::ValuesEnded } else { Reach::VersionVoid });
                }
            }
            if applied > 0 && state.at.counter == 0 {
                self.reached.hit(Reach::CutWithUnstable);
            }
            *watched = state.at;
            region_copies_agree::check_digest(&mut self.digests, number, shard, state)?;
            if region.sizes(shard)[1].1 > 0 {
                self.reached.hit(Reach::HeldBack);
            }
            if region.sizes(shard)[3].1 > 0 {
                self.reached.hit(Reach::VersionEarly);
            }
        }
        if region.sizes(0)[9].1 > 0 {
            self.reached.hit(Reach::ViewEarly);
        }
        if region.phase() == Phase::Serving && standing > self.begun {
            self.begun = standing;
            region_acknowledged_stays::check(&self.told, &self.agreed, standing)?;
        }
        Ok(())
    }

    /// Looks at how far a copy is behind one of its steps, and at the reads that it answers.
    pub(crate) fn answered(&mut self, region: &Region, now: u64, out: &[Effect]) -> Result<(), Violation> {
        for effect in out {
            if let Effect::Send { message, .. } = effect
                && let Body::Answer { found: Ok(found), .. } = &message.body
            {
                let applied = self.applied.get(&message.shard).map_or(&[][..], Vec::as_slice);
                region_age_stated::check(applied, message.shard, found, now)?;
            }
        }
        for shard in 0..self.config.shards {
            let (at, applied) = (region.state(shard).at, self.applied.entry(shard).or_default());
            if region.phase() == Phase::Serving && applied.last().is_none_or(|&(_, last)| last < at) {
                applied.push((now, at));
            }
        }
        Ok(())
    }

    /// A client is told that nothing is known of what it was told as done.
    pub(crate) fn not_seen(&self, id: OperationId) -> Result<(), Violation> {
        region_first_result::check_not_seen(&self.told, id)
    }

    /// A client is told that an operation is done.
    pub(crate) fn told(
        &mut self,
        id: OperationId,
        shard: u16,
        given: Given,
        duplicate: bool,
        attempts: u64,
    ) -> Result<(), Violation> {
        region_first_result::check(&self.told, id, &given, duplicate, attempts)?;
        self.told.entry(id).or_insert((shard, given));
        Ok(())
    }

    /// A read of any copy shows a state that there was.
    pub(crate) fn read_of_any_copy(&mut self, shard: u16, at: Version, digest: u64) -> Result<(), Violation> {
        self.reached.hit(Reach::ReadOfAnyCopy);
        match self.digests.get(&(shard, at)) {
            Some(&known) if known != digest => Err(region_copies_agree::differs(shard, at)),
            _ => Ok(()),
        }
    }

    /// An operation begins; returns its place.
    pub(crate) fn began(&mut self, key: &[u8], now: u64, done: Done) -> usize {
        let history = self.histories.entry(key.to_vec()).or_default();
        history.push(Seen { began: now, ended: u64::MAX, done, saw: Saw::Nothing });
        history.len() - 1
    }

    /// It ends.
    pub(crate) fn ended(&mut self, key: &[u8], place: usize, now: u64, saw: Saw) {
        let seen = &mut self.histories.get_mut(key).expect("it began")[place];
        (seen.ended, seen.saw) = (now, saw);
    }

    /// Everything is at rest.
    pub(crate) fn end(&mut self, copies: &[&Region], trace: &mut Trace, now: u64) -> Result<(), Violation> {
        region_acknowledged_stays::check(&self.told, &self.agreed, ViewId(u64::MAX))?;
        for (shard, version) in self.contents.keys() {
            if !self.agreed.contains_key(&(*shard, *version)) {
                self.reached.hit(Reach::DroppedByCut);
                break;
            }
        }
        for shard in 0..self.config.shards {
            let digests: Vec<u64> = copies.iter().map(|region| region.state(shard).digest).collect();
            trace.line(now, format_args!("shard {shard}: {digests:x?}"));
            region_copies_agree::check_end(shard, &digests)?;
        }
        region_linearizable::check(&self.histories)
    }
}
