//! Connections between nodes: in order each way, late by chance; they break at any time with what is under way, and the two ends
//! notice at different times.

use crate::cluster::world::{ClusterWorld, Happening};
use crate::properties::Violation;
use crate::reach::Reach;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_process::event::{Event, PeerEvent};
use mainstay_types::id::NodeId;

/// The connection of two nodes.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Counts connections.
    epoch: u64,
    pub(crate) stands: bool,
    /// Until when none can be made.
    blocked_until_ns: u64,
    /// When the last thing sent towards the lower, and the higher, node arrives.
    last_arrival_ns: [u64; 2],
    /// Which ends have taken in what the other said first.
    greeted: [bool; 2],
    /// Frames on their way.
    under_way: u32,
    /// Whether both have greeted, and what they said to that has arrived.
    pub(crate) settled: bool,
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

impl ClusterWorld {
    fn link(&mut self, one: NodeId, other: NodeId) -> &mut Link {
        self.links.get_mut(&pair(one, other)).expect("each two nodes have a link")
    }

    fn link_delay_ns(&mut self) -> u64 {
        let slow = self.random.chance(20);
        self.random.between(1, self.setup.rates.link_us * MICROSECOND * if slow { 20 } else { 1 })
    }

    pub(crate) fn dial(&mut self, one: NodeId, other: NodeId) {
        if one == other || self.nodes[&one].life.is_none() || self.nodes[&other].life.is_none() {
            // Whoever starts calls everyone.
            return;
        }
        let now_ns = self.now_ns;
        let delays_ns = [self.link_delay_ns(), self.link_delay_ns()];
        let link = self.link(one, other);
        if link.stands {
            return;
        }
        if link.blocked_until_ns > now_ns {
            let at = link.blocked_until_ns;
            self.at(at + 1, Happening::Dial { one, other });
            return;
        }
        link.stands = true;
        link.epoch += 1;
        let epoch = link.epoch;
        (link.greeted, link.under_way, link.settled) = ([false; 2], 0, false);
        link.last_arrival_ns = delays_ns.map(|delay_ns| now_ns + delay_ns);
        let (low, high) = pair(one, other);
        for ((node, peer), delay_ns) in [(low, high), (high, low)].into_iter().zip(delays_ns) {
            self.under_way += 1;
            self.after(delay_ns, Happening::Connected { node, peer, epoch });
        }
    }

    pub(crate) fn connected(&mut self, node: NodeId, peer: NodeId, epoch: u64) -> Result<(), Violation> {
        self.under_way -= 1;
        let link = self.link(node, peer);
        if !link.stands || link.epoch != epoch {
            return Ok(());
        }
        if self.node(node).sessions.remove(&peer).is_some() {
            self.reached.hit(Reach::ReconnectedUnnoticed);
            self.step(node, Event::Peer(PeerEvent::Disconnected { peer }))?;
        }
        // The step before may have been its last.
        if self.nodes[&node].life.is_none() || !self.links[&pair(node, peer)].stands {
            return Ok(());
        }
        self.node(node).sessions.insert(peer, epoch);
        self.step(node, Event::Peer(PeerEvent::Connected { peer }))
    }

    pub(crate) fn send_frames(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        let session = self.nodes[&from].sessions.get(&to).copied();
        let earliest_ns = self.now_ns + self.link_delay_ns();
        let link = self.link(from, to);
        if !link.stands || session != Some(link.epoch) {
            self.reached.hit(Reach::FramesLost);
            return;
        }
        let epoch = link.epoch;
        let last = &mut link.last_arrival_ns[usize::from(to > from)];
        *last = earliest_ns.max(*last + 1);
        let at = *last;
        link.under_way += 1;
        self.under_way += 1;
        self.at(at, Happening::Frames { from, to, epoch, bytes });
    }

    pub(crate) fn frames_arrive(
        &mut self,
        from: NodeId,
        to: NodeId,
        epoch: u64,
        bytes: Vec<u8>,
    ) -> Result<(), Violation> {
        self.under_way -= 1;
        if self.nodes[&to].sessions.get(&from) != Some(&epoch) {
            self.reached.hit(Reach::FramesLost);
            return Ok(());
        }
        let link = self.link(from, to);
        let present = link.epoch == epoch && link.stands;
        if present {
            link.under_way -= 1;
        }
        self.step(to, Event::Peer(PeerEvent::Frames { peer: from, bytes }))?;
        let link = self.link(from, to);
        if present && link.epoch == epoch && link.stands {
            link.greeted[usize::from(to > from)] = true;
            link.settled |= link.greeted == [true; 2] && link.under_way == 0;
        }
        Ok(())
    }

    /// Whether everyone who is up has greeted `node` since its crash, and told it what it has to keep for them.
    pub(crate) fn is_rejoined(&self, node: NodeId) -> bool {
        let others = self.nodes.values().filter(|other| other.id != node && other.life.is_some());
        others.into_iter().all(|other| {
            let link = &self.links[&pair(node, other.id)];
            link.stands && link.settled
        })
    }

    /// What is under way arrives until the receiving end notices, and is lost from then on.
    pub(crate) fn break_connection(&mut self, one: NodeId, other: NodeId) {
        if one == other {
            return;
        }
        let link = self.link(one, other);
        if !std::mem::replace(&mut link.stands, false) {
            return;
        }
        let epoch = link.epoch;
        self.reached.hit(Reach::ConnectionBroken);
        self.story.borrow_mut().tell(|| format!("{one} and {other} lose their connection"));
        let late = self.random.chance(200);
        for (node, peer) in [(one, other), (other, one)] {
            self.under_way += 1;
            let delay_ns = if late { 20 * MILLISECOND } else { MILLISECOND };
            self.after_up_to(delay_ns, Happening::Disconnected { node, peer, epoch });
        }
        self.after_up_to(5 * MILLISECOND, Happening::Dial { one, other });
    }

    pub(crate) fn disconnected(&mut self, node: NodeId, peer: NodeId, epoch: u64) -> Result<(), Violation> {
        self.under_way -= 1;
        if self.nodes[&node].sessions.get(&peer) != Some(&epoch) {
            return Ok(());
        }
        self.node(node).sessions.remove(&peer);
        self.step(node, Event::Peer(PeerEvent::Disconnected { peer }))
    }

    /// `node` is cut off from some of the others for a while.
    pub(crate) fn partition(&mut self, node: NodeId) {
        self.reached.hit(Reach::Partition);
        let until_ns = self.now_ns + self.random.between(1, 30 * MILLISECOND);
        for other in self.ids() {
            if other != node && self.random.coin() {
                self.break_connection(node, other);
                self.link(node, other).blocked_until_ns = until_ns;
            }
        }
    }

    /// Partitions end.
    pub(crate) fn heal(&mut self) {
        for link in self.links.values_mut() {
            link.blocked_until_ns = 0;
        }
        for (one, other) in self.links.keys().copied().collect::<Vec<_>>() {
            self.after_up_to(MILLISECOND, Happening::Dial { one, other });
        }
    }
}
