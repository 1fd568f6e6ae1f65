//! The regions of the simulated processes, their clients' writes, and the arbiter.

use crate::group::process::{Fact, Process, put_facts, take_facts};
use crate::group::setup::BEAT_NS;
use crate::group::world::{Done, Happening, World};
use crate::reach::Reach;
use mainstay_group::ballot::Proposal;
use mainstay_group::event::Event;
use mainstay_types::id::StoreId;
use mainstay_types::view::ViewId;
use std::collections::BTreeSet;

impl World {
    pub(crate) fn ask_regions(&mut self, machine: usize, life: u64, done: Done) {
        let slow = self.random.chance(self.setup.slow_regions_per_mille);
        let takes = self.random.below(if slow { 10 * BEAT_NS } else { BEAT_NS / 4 });
        self.schedule(takes, Happening::Regions { machine, life, done });
    }

    pub(crate) fn regions(&mut self, machine: usize, life: u64, done: Done) {
        if !self.is_alive(machine, life) {
            return;
        }
        let event = match done {
            Done::Report { view, request } => {
                Event::Report { view, request, bytes: put_facts(&self.processes[machine].facts) }
            }
            Done::Cut { view, ballot, bytes } => Event::Cut { view, ballot, bytes },
            Done::Fetched { view, base, cut } => {
                if !self.can_fetch(machine, base) {
                    let done = Done::Fetched { view, base, cut };
                    return self.schedule(BEAT_NS, Happening::Regions { machine, life, done });
                }
                self.processes[machine].facts.extend(take_facts(&cut));
                Event::Fetched { view: view.id }
            }
            Done::Learned => Event::Learned,
        };
        self.step(machine, event);
    }

    /// What the cut builds on is fetched from a process that has it, if it is not here already.
    fn can_fetch(&self, machine: usize, base: ViewId) -> bool {
        let of = |process: &Process| process.record.as_ref().and_then(|record| record.cluster);
        let has = |process: &Process| process.record.as_ref().is_some_and(|record| record.ready >= base);
        let me = &self.processes[machine];
        has(me)
            || self.processes.iter().enumerate().any(|(place, process)| {
                place != machine
                    && process.running.is_some()
                    && of(process) == of(me)
                    && has(process)
                    && !self.is_cut(place, machine)
            })
    }

    pub(crate) fn arbitrate(&mut self, machine: usize, life: u64, from: ViewId, proposal: Proposal) {
        let offered = proposal.view.clone();
        let chosen = self.arbiter.entry(from).or_insert(proposal).clone();
        self.reached.hit(Reach::Arbitrated);
        self.reached.add(Reach::ArbiterHeldAnother, u64::from(chosen.view != offered));
        if self.is_alive(machine, life) && !(self.faulty && self.random.chance(200)) {
            self.step(machine, Event::Arbitrated { chosen });
        }
    }

    pub(crate) fn write(&mut self, machine: usize, again: bool) {
        let pause = self.random.between(2, 10) * BEAT_NS;
        if self.faulty && again {
            self.schedule(pause, Happening::Write { machine, again });
        }
        let process = &mut self.processes[machine];
        let now = process.clock.shows(self.now_ns);
        let Some(running) = &mut process.running else { return };
        let Some(view) = running.group.view().cloned() else { return };
        if !running.group.serves(now) {
            self.reached.add(Reach::LeaseRanOut, u64::from(running.group.admits()));
            return;
        }
        if process.paused_until_ns > self.now_ns {
            return;
        }
        self.facts += 1;
        let fact = self.facts;
        process.facts.insert(fact);
        running.open.insert(fact, (view.id, BTreeSet::new()));
        let (life, store) = (process.life, process.store);
        for member in &view.members {
            let place = crate::group::setup::machine(member.joiner.address);
            if place != machine
                && !self.is_cut(machine, place)
                && !self.random.chance(self.setup.lost_per_mille)
            {
                let delay = self.random.below(BEAT_NS / 3);
                self.schedule(
                    delay,
                    Happening::Store { machine: place, writer: (machine, life), view: view.id, fact },
                );
            }
        }
        self.stored(machine, life, (view.id, fact, store));
    }

    pub(crate) fn store(&mut self, machine: usize, writer: (usize, u64), view: ViewId, fact: Fact) {
        let process = &mut self.processes[machine];
        let Some(running) = &process.running else { return };
        if !running.group.admits() || running.group.record().view_id() != view {
            return;
        }
        process.facts.insert(fact);
        let by = process.store;
        if !self.is_cut(machine, writer.0) {
            let delay = self.random.below(BEAT_NS / 3);
            self.schedule(delay, Happening::Stored { machine: writer.0, life: writer.1, view, fact, by });
        }
    }

    pub(crate) fn stored(&mut self, machine: usize, life: u64, (view, fact, by): (ViewId, Fact, StoreId)) {
        if !self.is_alive(machine, life) {
            return;
        }
        let by_all = self.setup.acknowledged_by_all;
        let Some(running) = &mut self.processes[machine].running else { return };
        let Some(current) = running.group.record().view().filter(|current| current.id == view) else {
            return;
        };
        let Some((_, stores)) = running.open.get_mut(&fact).filter(|_| running.group.admits()) else {
            return;
        };
        stores.insert(by);
        let votes: u64 = stores.iter().map(|&store| current.weight_of(store)).sum();
        let servers = current
            .members
            .iter()
            .all(|member| member.offer.weight == 0 || stores.contains(&member.joiner.store));
        if if by_all { servers } else { current.is_majority(votes) } {
            let cluster = running.group.record().cluster.expect("a member has a group");
            running.open.remove(&fact);
            self.reached.hit(Reach::FactAcknowledged);
            if let Err(violation) = self.oracle.acknowledged(cluster, view, fact) {
                self.violation = Some(violation);
            }
        }
    }
}
