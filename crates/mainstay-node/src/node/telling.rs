//! What a node tells its replica: events as they come, and what is said once behind all that came together.

use super::Node;
use crate::resp::Reply;
use mainstay_region::effect::RecordNumber;
use mainstay_replica::definition::RegionId;
use mainstay_replica::event::Event;
use mainstay_types::machine::Machine;
use mainstay_types::time::Time;

impl Node {
    pub(super) fn step(&mut self, now: Time, event: Event) {
        self.tell(now, event);
        self.perform(now);
    }

    /// Tells the replica; what it asks for is performed later.
    pub(super) fn tell(&mut self, now: Time, event: Event) {
        self.undrained = true;
        self.replica.step(now, event, &mut self.effects);
    }

    /// Leaves the group, unless that would take its data along.
    pub(super) fn leave(&mut self, now: Time) -> Reply {
        let refused = match self.replica.view().map(|view| view.members.len()) {
            // Nobody could agree, and the last view goes on counting its store.
            None => "ERR it is in no view now: stop it instead, or wait until it is let in again",
            Some(1) => "ERR it is the only member: stop it instead, nobody else has its data",
            Some(_) => {
                self.tell(now, Event::Leave);
                return Reply::Status("OK");
            }
        };
        Reply::Error(refused.to_owned())
    }

    /// All that came together was told: what is said once for all of it goes out, and what is safe is said once for all records.
    pub(super) fn drain(&mut self, now: Time) {
        while self.undrained {
            while let Some((region, record)) = self.appended.pop() {
                self.step(now, Event::Appended { region, record });
            }
            self.undrained = false;
            self.replica.step(now, Event::Drained, &mut self.effects);
            self.perform(now);
        }
    }

    /// Everything up to this record is safe.
    pub(super) fn is_safe(&mut self, region: RegionId, record: RecordNumber) {
        self.undrained = true;
        match self.appended.iter_mut().find(|(of, _)| *of == region) {
            Some((_, last)) => *last = record.max(*last),
            None => self.appended.push((region, record)),
        }
    }
}
