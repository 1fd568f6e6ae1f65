//! The end of a run: faults end, and all who are up have to come together in one view that serves. In some runs one process stays deaf for
//! a while longer, and the others have to do without it first.

use crate::group::faults::Cut;
use crate::group::setup::BEAT_NS;
use crate::group::world::{Happening, World};
use crate::properties::{Property, Violation, rejoins};
use crate::reach::Reach;
use mainstay_group::ballot::Proposal;
use mainstay_types::view::ViewId;

/// How long after the last fault all must be in one view that serves, in beats.
const COMES_TOGETHER_BEATS: u64 = 300;

impl World {
    /// All faults end, or all but one.
    pub(crate) fn heal(&mut self) {
        self.faulty = false;
        self.cuts.clear();
        self.whole_since_ns = self.now_ns;
        for machine in 0..self.processes.len() {
            self.processes[machine].paused_until_ns = 0;
            self.processes[machine].rests_until_ns = 0;
            self.schedule(0, Happening::Start { machine });
        }
        let one = self.random.index(self.setup.processes);
        if self.setup.one_stays_deaf && self.goes_on_without(one) {
            self.deaf = Some(one);
            self.cuts.push(Cut { from: !0, to: 1 << one, until_ns: u64::MAX });
            self.trace_line(format_args!("process {one} stays deaf"));
        }
        self.schedule(BEAT_NS, Happening::Judge);
    }

    /// Whether the others have the votes and the data that they need, whatever of the proposals under way comes about.
    fn goes_on_without(&self, one: usize) -> bool {
        let others = || self.processes.iter().enumerate().filter(move |&(place, _)| place != one);
        let enough = |proposal: &Proposal| {
            let voters = || others().filter(|(_, process)| proposal.view.weight_of(process.store) > 0);
            let votes = voters().map(|(_, process)| proposal.view.weight_of(process.store)).sum();
            let ready = |record: &mainstay_group::record::Record| record.ready >= proposal.base;
            proposal.view.is_majority(votes)
                && voters().any(|(_, process)| process.record.as_ref().is_some_and(ready))
        };
        let records = self.processes.iter().filter(|process| self.belongs(process));
        let mut accepted =
            records.filter_map(|process| process.record.as_ref()?.accepted.as_ref()).map(|(_, it)| it);
        // New processes ask at these, so that one of them has to know the group.
        let mut known = self.known_machines().into_iter().filter(|&place| place != one);
        let met =
            known.any(|place| self.processes[place].record.as_ref().is_some_and(|r| r.view().is_some()));
        // What was decided, and is known to that one alone, the others have to decide again.
        let theirs = others().filter(|(_, process)| self.belongs(process));
        let installed = theirs.filter_map(|(_, process)| process.record.as_ref()?.installed.as_ref());
        let latest = installed.max_by_key(|proposal| proposal.view.id);
        met && latest.is_some_and(enough)
            && self.oracle.newest(self.cluster).is_some_and(enough)
            && accepted.all(enough)
    }

    /// All are up and reach each other, but for one: they have to come together in one view.
    pub(crate) fn judge(&mut self) {
        if self.oracle.waits_for_lost(self.cluster) {
            self.trace_line(format_args!("the newest view waits for stores that were lost before"));
            self.over = true;
            return;
        }
        let newest = self.newest_view();
        let id = newest.as_ref().map_or(ViewId::NONE, |view| view.id);
        if self.newest_since.0 != id {
            self.newest_since = (id, self.now_ns);
        }
        let judged = self.processes.iter().enumerate();
        let judged = judged.filter(|&(place, process)| self.deaf != Some(place) && self.belongs(process));
        let (mut outside, mut all) = (Vec::new(), 0);
        for (_, process) in judged {
            all += 1;
            let now = process.clock.shows(self.now_ns);
            let together = process.running.as_ref().is_some_and(|running| {
                running.group.serves(now)
                    && newest.as_ref().is_none_or(|view| view.id == running.group.record().view_id())
            });
            if !together {
                let explained =
                    process.running.as_ref().map(|running| running.group.explain(now).to_string());
                let explained = explained.unwrap_or_else(|| "down".to_owned());
                outside.push(format!("{}: {explained}", process.address));
            }
        }
        let late = self.now_ns.saturating_sub(self.whole_since_ns) > COMES_TOGETHER_BEATS * BEAT_NS;
        match self.deaf {
            Some(_) if outside.is_empty() => {
                self.reached.hit(Reach::WentOnWithoutDeaf);
                self.hear_again();
            }
            // A view that was under way may have made it needed.
            Some(one) if late && !self.stuck_without(one) => self.hear_again(),
            None if outside.is_empty() => self.over = true,
            _ if late => return self.violated(outside.len() == all, &outside),
            _ => {}
        }
        if !self.over {
            self.schedule(BEAT_NS, Happening::Judge);
        }
    }

    fn hear_again(&mut self) {
        self.deaf = None;
        self.cuts.clear();
        self.whole_since_ns = self.now_ns;
    }

    /// Whether the others could have gone on for a long time.
    fn stuck_without(&self, one: usize) -> bool {
        let unchanged = self.now_ns - self.newest_since.1;
        self.goes_on_without(one) && unchanged > COMES_TOGETHER_BEATS / 2 * BEAT_NS
    }

    fn violated(&mut self, nobody: bool, outside: &[String]) {
        let seconds = (self.now_ns - self.whole_since_ns) / 1_000_000_000;
        self.violation = Some(match nobody {
            true => Violation::new(
                Property::Progress,
                format!("{seconds} s after all faults ended nobody serves: {}", outside.join("; ")),
            ),
            false => rejoins::violated(seconds, outside),
        });
    }
}
