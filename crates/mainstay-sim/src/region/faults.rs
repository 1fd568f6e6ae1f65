//! What goes wrong with servers, and when.

use super::world::{MILLISECOND, Next, RegionWorld};
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use mainstay_region::message::Party;
use mainstay_types::view::{MemberId, ViewId};

impl RegionWorld {
    pub(crate) fn crash(&mut self, at: usize) {
        let number = self.hosts[at].number;
        self.trace.line(self.now, format_args!("n{number} crashes"));
        self.crashes += 1;
        self.hit(Reach::Kill);
        let down = self.hosts.iter().filter(|host| !host.up()).count() + 1;
        if down == 2 {
            self.hit(Reach::TwoDown);
        }
        if down == self.hosts.len() {
            self.hit(Reach::AllDown);
        }
        let id = self.hosts[at].id;
        if self.random.coin() {
            self.filled(at);
        }
        self.hosts[at].crash(&mut self.random);
        for ((from, to), link) in &mut self.links {
            if *from == Party::Member(id) || *to == Party::Member(id) {
                link.1 += 1;
            }
        }
        let after = self.random.between(10, 600) * MILLISECOND;
        self.push(after, Next::Restart(at));
    }

    pub(crate) fn restart(&mut self, at: usize) -> Result<(), Violation> {
        if self.hosts[at].up() {
            return Ok(());
        }
        // A store may be lost only while enough others have what it had.
        let store = self.hosts[at].store;
        let others =
            self.source.prepared.iter().filter(|other| **other != store && self.source.has_store(**other));
        let left: Vec<u8> = others.copied().collect();
        let may = !self.healed() && self.source.majority(left.iter());
        let lost = may && self.random.chance(150);
        if lost {
            self.source.prepared.remove(&store);
            self.hit(Reach::StoreLost);
        } else if self.hosts[at].has_records() {
            self.hit(Reach::StoreFoundAgain);
            if self.hosts[at].trimmed {
                self.hit(Reach::FoundFromCheckpoint);
            }
        }
        let next_store = self.next_store;
        if lost {
            self.next_store += 1;
        }
        let number = self.hosts[at].number;
        self.trace.line(
            self.now,
            format_args!("n{number} starts, its store {}", if lost { "lost" } else { "found again" }),
        );
        let config = self.config;
        let started = self.hosts[at].start(config, lost, next_store);
        started.map_err(|error| Violation::new(Property::Recovers, format!("n{number}: {error}")))?;
        let born = ViewId(self.source.id().0 + 1);
        self.hosts[at].id = MemberId { born, ..self.hosts[at].id };
        Ok(())
    }

    pub(crate) fn fault(&mut self) {
        if self.healed() {
            return;
        }
        let after = self.random.between(50, 450) * MILLISECOND;
        self.push(after, Next::Fault);
        let at = self.random.index(self.hosts.len());
        match self.random.below(10) {
            0..=5 if self.hosts[at].up() => self.crash_soon = Some(at),
            6 => {
                let up: Vec<usize> = (0..self.hosts.len()).filter(|&at| self.hosts[at].up()).collect();
                if self.random.chance(300) {
                    up.into_iter().for_each(|at| self.crash(at));
                }
            }
            7..=8 => {
                let pause = self.random.between(20, 900) * MILLISECOND;
                self.hosts[at].paused_until = self.now + pause;
                self.hit(Reach::MemberPaused);
            }
            9 => {
                let deaf = self.random.between(100, 900) * MILLISECOND;
                self.hosts[at].deaf_until = self.now + deaf;
                self.hit(Reach::MemberDeaf);
            }
            _ => {}
        }
    }
}
