//! What goes wrong, and when.

use crate::group::process::Process;
use crate::group::setup::BEAT_NS;
use crate::group::world::{Happening, World};
use crate::reach::Reach;
use mainstay_group::ballot::Ballot;
use mainstay_group::event::Event;
use mainstay_group::record::Record;
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::View;

/// Links that carry nothing, by direction, until a time.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// Bit of each machine whose messages are lost,
    pub(crate) from: u32,
    /// on their way to these.
    pub(crate) to: u32,
    pub(crate) until_ns: u64,
}

impl World {
    /// Something goes wrong, and the next thing is scheduled.
    pub(crate) fn fault(&mut self) {
        let pause = self.random.between(2, 16) * BEAT_NS;
        self.schedule(pause, Happening::Fault);
        let machines = self.processes.len();
        let one = self.random.index(machines);
        match self.random.below(100) {
            0..34 => self.bounce(one),
            34..40 => self.power_off(),
            40..48 => self.lose_store(one),
            48..60 => {
                let side = self.random.below(1 << machines) as u32;
                self.cut(side, !side);
                self.cut(!side, side);
                self.reached.hit(Reach::Partition);
            }
            60..70 => {
                self.cut(1 << one, !(1 << one));
                self.reached.hit(Reach::OneWayCut);
            }
            70..76 => {
                self.cut(!(1 << one), 1 << one);
                self.reached.hit(Reach::OneWayCut);
            }
            76..86 => self.pause(one),
            86..91 => self.leave(one),
            91..96 => self.betray(),
            _ => {
                // Several in a row.
                for _ in 0..3 {
                    let one = self.random.index(machines);
                    self.bounce(one);
                }
            }
        }
    }

    fn cut(&mut self, from: u32, to: u32) {
        let until_ns = self.now_ns + self.random.between(1, 40) * BEAT_NS;
        self.cuts.push(Cut { from, to, until_ns });
    }

    fn bounce(&mut self, one: usize) {
        self.kill(one);
        let down =
            if self.random.coin() { self.random.below(BEAT_NS) } else { self.random.below(40 * BEAT_NS) };
        self.schedule(down, Happening::Start { machine: one });
    }

    fn power_off(&mut self) {
        for machine in 0..self.processes.len() {
            self.bounce(machine);
        }
    }

    fn pause(&mut self, one: usize) {
        let pause = self.random.between(1, 30) * BEAT_NS;
        let now_ns = self.now_ns;
        let process = &mut self.processes[one];
        let serves = process.running.as_ref().is_some_and(|r| r.group.serves(process.clock.shows(now_ns)));
        let past_lease = u128::from(pause) > self.setup.timing.lease.as_nanos();
        self.reached.add(Reach::PausedPastLease, u64::from(serves && past_lease));
        process.paused_until_ns = now_ns + pause;
    }

    fn leave(&mut self, one: usize) {
        let others = self.processes.iter().filter(|p| p.running.as_ref().is_some_and(|r| !r.leaving)).count();
        if others > 2
            && !self.setup.arbitrated
            && let Some(running) = &mut self.processes[one].running
            && running.group.view().is_some_and(|view| view.members.len() > 1)
        {
            running.leaving = true;
            self.step(one, Event::Leave);
        }
    }

    /// The worst for leases: a member that only one other still answers, which then comes back without knowing that it did.
    fn betray(&mut self) {
        let Some(view) = self.newest_view().filter(|view| view.members.len() > 2) else { return };
        let place =
            |member: &mainstay_types::view::Member| crate::group::setup::machine(member.joiner.address);
        let machines: Vec<usize> = view.members.iter().map(place).collect();
        let served = *self.random.pick(&machines);
        let traitor = *self.random.pick(&machines);
        if served == traitor {
            return;
        }
        let beats = self.random.between(6, 12);
        let until_ns = self.now_ns + 60 * BEAT_NS;
        let others = !(1_u32 << served | 1 << traitor);
        self.cuts.push(Cut { from: 1 << served, to: others, until_ns });
        self.cuts.push(Cut { from: others, to: 1 << served, until_ns });
        self.schedule(beats * BEAT_NS, Happening::Betrayal { served, traitor });
    }

    pub(crate) fn betrayal(&mut self, served: usize, traitor: usize) {
        let until_ns = self.now_ns + 40 * BEAT_NS;
        self.cuts.push(Cut { from: 1 << served, to: !0, until_ns });
        self.cuts.push(Cut { from: !0, to: 1 << served, until_ns });
        self.kill(traitor);
        self.schedule(1, Happening::Start { machine: traitor });
    }

    /// A process ends where it stands. What it was writing is there, or not.
    pub(crate) fn kill(&mut self, one: usize) {
        let process = &mut self.processes[one];
        let Some(running) = process.running.take() else { return };
        let promised = running.group.record().promised.round > 0;
        if let Some((last, _)) = process.writing.back().filter(|_| self.random.coin()) {
            let (first, last) = (process.writing.front().expect("there is a last one").0, *last);
            let reached = self.random.between(first, last);
            process.persist(reached);
        }
        let process = &mut self.processes[one];
        process.writing.clear();
        process.paused_until_ns = 0;
        self.crashes += 1;
        self.reached.hit(Reach::Kill);
        self.reached.add(Reach::CrashWithPromise, u64::from(promised));
        if self.processes.iter().all(|process| process.running.is_none()) {
            self.reached.hit(Reach::AllDown);
            self.all_were_down = true;
        }
        self.trace_line(format_args!("process {one} ends"));
    }

    /// A disk is replaced by an empty one, where the group survives that: a majority of its votes, with the data, must be left.
    fn lose_store(&mut self, one: usize) {
        if self.setup.arbitrated || self.processes[one].record.is_none() || !self.survives_without(one) {
            return;
        }
        self.kill(one);
        if !self.survives_without(one) {
            return;
        }
        self.oracle.loses(self.cluster, self.processes[one].store);
        let drawn = self.random.draw();
        // Whoever puts a new disk in says where the group is: the machines that all ask at may all be new.
        let view = self.newest_view().map_or_else(Vec::new, |view| view.members);
        let told = view.iter().map(|member| crate::group::setup::machine(member.joiner.address)).collect();
        let process = &mut self.processes[one];
        process.told = told;
        process.store =
            StoreId([drawn.to_le_bytes(), drawn.to_le_bytes()].concat().try_into().expect("16 bytes"));
        process.record = None;
        process.facts.clear();
        process.begins = None;
        self.reached.hit(Reach::StoreLost);
        self.reached.hit(Reach::AddressReused);
        self.trace_line(format_args!("process {one} lost its store"));
        let down = self.random.below(20 * BEAT_NS);
        self.schedule(down, Happening::Start { machine: one });
    }

    fn survives_without(&self, one: usize) -> bool {
        let Some(cluster) = self.processes[one].record.as_ref().and_then(|record| record.cluster) else {
            return false;
        };
        let Some(newest) = self.oracle.newest(cluster) else { return false };
        // No successor of the view can be decided already, which might count on the lost store more than this view does.
        let has_all = |process: &Process, view: &View| {
            let at = |record: &Record| record.view_id() == view.id && record.promised == Ballot::NONE;
            process.is_ready() && process.record.as_ref().is_some_and(at)
        };
        let left =
            self.processes.iter().enumerate().filter(|&(place, p)| place != one && has_all(p, &newest.view));
        let votes: Vec<u64> = left.map(|(_, process)| newest.view.weight_of(process.store)).collect();
        // One more may leave, and be down when it is needed.
        newest.view.is_majority(votes.iter().sum::<u64>() - votes.iter().max().copied().unwrap_or(0))
    }

    /// The newest view of the group that is being watched.
    pub(crate) fn newest_view(&self) -> Option<View> {
        self.oracle.newest(self.cluster).map(|proposal| proposal.view.clone())
    }

    /// Whether a process has to be in the view in the end.
    pub(crate) fn belongs(&self, process: &Process) -> bool {
        let of = process.record.as_ref().and_then(|record: &Record| record.cluster);
        let other: Option<ClusterId> = process.begins.map(|byte| ClusterId([byte; 16]));
        of.or(other).is_none_or(|cluster| cluster == self.cluster)
    }
}
