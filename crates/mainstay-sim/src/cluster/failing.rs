//! What goes wrong: crashes within what the policies survive, broken connections, partitions.

use crate::cluster::world::{ClusterWorld, Happening};
use crate::plan::Trouble;
use crate::properties::Violation;
use crate::random::Random;
use crate::reach::Reach;
use crate::world::{MICROSECOND, MILLISECOND};
use mainstay_journal::format::RING_FILE;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::temporary_name;
use mainstay_process::event::Event;
use mainstay_process::part;
use mainstay_types::id::NodeId;
use mainstay_types::level::Level;

impl ClusterWorld {
    /// How many nodes are down, `except` not counted.
    fn down(&self, except: NodeId) -> usize {
        self.nodes.values().filter(|node| node.id != except && node.is_down()).count()
    }

    /// Whether `node` may be down now, beside those that are.
    pub(crate) fn may_fail(&self, node: NodeId) -> bool {
        self.down(node) < self.setup.down_max
    }

    /// Nodes that everyone has greeted again, and knows to be recovered, are whole.
    fn note_rejoined(&mut self) {
        for id in self.ids() {
            let running = self.nodes[&id].life.as_ref().is_some_and(|life| !life.process.is_collecting());
            if self.nodes[&id].rejoins && running && self.is_rejoined(id) && self.is_known_to_be_recovered(id)
            {
                self.node(id).rejoins = false;
            }
        }
    }

    /// Whether everyone who is recovered has told `id` that it knows it is, and the other way round.
    fn is_known_to_be_recovered(&self, id: NodeId) -> bool {
        let recovered = |node: &NodeId| {
            let life = self.nodes[node].life.as_ref();
            life.map(|life| &life.process).filter(|process| !process.is_collecting())
        };
        let Some(this) = recovered(&id) else { return false };
        let others = self.nodes.keys().filter(|other| **other != id);
        others.filter_map(|other| Some((other, recovered(other)?))).all(|(other, process)| {
            this.is_known_to_be_recovered(*other) && process.is_known_to_be_recovered(id)
        })
    }

    pub(crate) fn fault(&mut self) -> Result<(), Violation> {
        self.note_rejoined();
        self.after_up_to(self.setup.rates.fault_us * MICROSECOND, Happening::Fault);
        let ids = self.ids();
        let node = ids[self.random.index(ids.len())];
        let other = ids[self.random.index(ids.len())];
        let kind = self.random.below(10);
        let number = self.faults;
        self.faults += 1;
        if !self.plan.has_fault(number) {
            return Ok(());
        }
        match kind {
            0..=4 if self.doom(node) => {
                if self.setup.beyond && self.random.chance(300) {
                    for other in ids {
                        self.doom(other);
                    }
                }
            }
            5..=6 if self.plan.has(Trouble::Network) => self.break_connection(node, other),
            7 if self.plan.has(Trouble::Network) => self.partition(node),
            8..=9 if self.plan.has(Trouble::Orders) && self.nodes[&node].life.is_some() => {
                self.step(node, Event::CheckpointNow)?;
            }
            _ => return Ok(()),
        }
        self.faults_done.push(number);
        Ok(())
    }

    /// `node` crashes within its next operations, or a little later if it has none; `false`: it may not.
    fn doom(&mut self, id: NodeId) -> bool {
        if self.nodes[&id].life.is_none() || self.nodes[&id].doomed || !self.may_fail(id) {
            return false;
        }
        let points = 1 + self.random.below(80);
        let node = self.node(id);
        node.doomed = true;
        node.disk.set_fuse(Some(points));
        let life = node.lives;
        self.trace.line(self.now_ns, format_args!("{id} is to crash"));
        self.after_up_to(6 * MILLISECOND, Happening::Kill { node: id, life });
        true
    }

    /// The machine has stopped at a crash point: by kill -9, or with its power where the level promises to survive that.
    pub(crate) fn crash(&mut self, id: NodeId, during: Reach) {
        self.crashes += 1;
        let down = self.down(id) + 1;
        self.reached.add(Reach::TwoDown, u64::from(down >= 2));
        self.reached.add(Reach::AllDown, u64::from(down == self.nodes.len()));
        let collecting = self.nodes[&id].life.as_ref().is_some_and(|life| life.process.is_collecting());
        self.reached.add(Reach::CrashWhileCollecting, u64::from(collecting));
        self.trace.line(self.now_ns, format_args!("{id} crashes: {}", during.name()));
        self.story.borrow_mut().tell(|| format!("{id} crashes: {}", during.name().replace('_', " ")));
        self.die(id);
        let node = self.node(id);
        node.doomed = false;
        node.disk.set_fuse(None);
        if self.setup.level == Level::Disk && self.random.chance(self.setup.rates.power_cuts_per_mille) {
            self.cut_power(id);
        } else {
            self.reached.hit(Reach::Kill);
        }
        let delay_ns = if self.random.coin() { MILLISECOND / 2 } else { 10 * MILLISECOND };
        self.after_up_to(delay_ns, Happening::Start { node: id });
    }

    /// The process is gone; what it had under way may be done, in part, or not at all. Its connections break.
    pub(crate) fn die(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("happenings name nodes that there are");
        let fuse = node.disk.take_fuse();
        if let Some(mut life) = node.life.take() {
            self.reached.add(Reach::Stall, life.process.journal().stats().stalls);
            for operation in std::mem::take(&mut life.operations).into_values() {
                operation.leave_undone(&life, &mut node.disk, &mut self.random);
            }
            if let Some(work) = life.checkpoint.take()
                && self.random.coin()
            {
                let name = temporary_name(work.lsn);
                let _ = node.disk.create(&name, 0);
                node.disk.write_torn(&name, 0, &work.bytes);
            }
            for (snapshot, work) in std::mem::take(&mut life.parts) {
                if self.random.coin() {
                    let name = part::temporary_name(snapshot);
                    let _ = node.disk.create(&name, 0);
                    node.disk.write_torn(&name, 0, &work.bytes);
                }
            }
            drop(life);
        }
        node.save_ring();
        node.disk.set_fuse(fuse);
        node.sessions.clear();
        node.rejoins = true;
        for other in self.ids() {
            self.break_connection(id, other);
        }
    }

    fn cut_power(&mut self, id: NodeId) {
        self.reached.hit(Reach::PowerCut);
        self.trace.line(self.now_ns, format_args!("{id}: the power goes"));
        self.story.borrow_mut().tell(|| format!("{id}: the power goes"));
        let node = self.nodes.get_mut(&id).expect("happenings name nodes that there are");
        node.roll_back = None;
        let ring = node.disk.content(RING_FILE).map(<[u8]>::to_vec);
        if std::mem::take(&mut node.disk.syncs_of_ring) > 0 {
            node.ring_images = ring.iter().cloned().collect();
        }
        node.disk.cut_power();
        if let Some(ring) = ring.filter(|_| node.disk.content(RING_FILE).is_some()) {
            let image = older_ring(&node.ring_images, ring.len(), &mut self.random);
            node.disk.replace(RING_FILE, image);
        }
        node.ring_images.clear();
    }
}

/// What the page cache had written back of the ring: any page as of any time.
fn older_ring(images: &[Vec<u8>], bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut image = vec![0; bytes];
    if images.is_empty() || images.len() != 1 && random.chance(300) {
        return image;
    }
    let whole = random.coin().then(|| random.index(images.len()));
    for (page, block) in image.chunks_mut(4096).enumerate() {
        let chosen = whole.unwrap_or_else(|| random.index(images.len()));
        if let Some(source) = images[chosen].get(page * 4096..page * 4096 + block.len()) {
            block.copy_from_slice(source);
        }
    }
    image
}
