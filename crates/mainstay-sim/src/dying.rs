//! The end of a life: what a kill or a power cut leaves of the files, and damage on top of it.

use crate::plan::Trouble;
use crate::reach::Reach;
use crate::service::Life;
use crate::subject::Subject;
use crate::world::{Happening, MILLISECOND, World};
use mainstay_journal::format::{RING_FILE, SUPERBLOCK_FILE, Superblock};
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::{final_name, parse_name};
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;

impl<S: Subject> World<S> {
    /// The machine has stopped at a crash point: by kill -9 or, now and then, with its power.
    pub(crate) fn crashed(&mut self, during: Reach) {
        self.crashes += u64::from(during != Reach::OpenFailed && during != Reach::PanicInRecovery);
        self.oracle.story.tell(|| format!("it crashes: {}", during.name().replace('_', " ")));
        self.die();
        if during != Reach::PanicInRecovery && !self.ending && self.random.chance(self.fault_rates.power_cuts)
        {
            self.cut_power(Reach::PowerCut);
        } else {
            self.reached.hit(Reach::Kill);
            if !self.ending && self.random.chance(50) && self.plan.has(Trouble::Power) {
                self.cut_power(Reach::PowerCutBetweenLives);
            }
        }
        let delay_ns = if self.ending { 3 } else { 10 } * MILLISECOND;
        self.after_up_to(delay_ns, Happening::Start);
    }

    /// The process is gone; what it had under way may be done, in part, or not at all.
    pub(crate) fn die(&mut self) {
        self.disk.set_fuse(None);
        if let Some(mut life) = self.life.take() {
            self.trace.line(self.now_ns, format_args!("life {} ends", self.lives));
            self.note_journal(&life);
            for operation in std::mem::take(&mut life.operations).into_values() {
                self.leave_undone(operation, &life);
            }
            if let Some(work) = life.checkpoint.take()
                && self.random.coin()
            {
                let name = mainstay_process::checkpoint::temporary_name(work.lsn);
                let _ = self.disk.create(&name, 0);
                self.disk.write_torn(&name, 0, &work.bytes);
            }
            drop(life);
        }
        self.save_ring();
        if !self.ending && self.plan.has(Trouble::Damage) {
            self.damage_a_checkpoint();
            self.damage_a_superblock();
        }
    }

    fn note_journal(&mut self, life: &Life<S::Handler>) {
        let stats = life.process.journal().stats();
        self.reached.add(Reach::Stall, stats.stalls);
        self.reached.add(Reach::GroupCommitJoin, stats.flushes_joined);
        self.reached.add(Reach::FlushInOneWrite, stats.flushes_in_one_write);
        self.reached.add(Reach::FlushBySync, stats.syncs);
    }

    /// What the mapping held is still in its file.
    pub(crate) fn save_ring(&mut self) {
        if let Some(image) = self.left.borrow_mut().take() {
            self.ring_images.push(image.clone());
            self.disk.replace(RING_FILE, image);
        }
    }

    /// A bit of the newest checkpoint flips, if another one is there to begin with.
    fn damage_a_checkpoint(&mut self) {
        if !self.random.chance(60) {
            return;
        }
        let files = self.disk.list().expect("a disk without a fuse lists");
        let mut checkpoints: Vec<Lsn> = files.iter().filter_map(|file| parse_name(&file.name)).collect();
        // One from before the journal's first byte, whose removal a power cut has undone, is none to begin with.
        let copies = self.disk.content(SUPERBLOCK_FILE).map_or([None, None], |bytes| {
            [0, 4096].map(|at| Superblock::decode(bytes.get(at..at + 512)?).ok())
        });
        let first = copies.into_iter().flatten().map(|superblock| superblock.first).max();
        checkpoints.retain(|&lsn| first.is_some_and(|first| lsn >= first));
        checkpoints.sort_unstable();
        if let [.., older, newest] = checkpoints[..]
            && self.disk.holds_durably(&final_name(older), 0, b"")
        {
            let mut bytes = self.disk.content(&final_name(newest)).expect("it is listed").to_vec();
            if !bytes.is_empty() && !self.checkpoint_damaged_before(older) {
                let place = self.random.index(bytes.len());
                bytes[place] ^= 1 << self.random.below(8);
                self.disk.replace(&final_name(newest), bytes);
                self.trace.line(self.now_ns, format_args!("a bit of checkpoint {newest} flips"));
            }
        }
    }

    /// A bit of one of the two copies of the superblock flips.
    fn damage_a_superblock(&mut self) {
        if !self.random.chance(20) {
            return;
        }
        let Some(mut bytes) = self.disk.content(SUPERBLOCK_FILE).map(<[u8]>::to_vec) else {
            return;
        };
        // The other copy has to be good, and durably so: two damaged copies are more than is promised.
        let copy = self.random.index(2) * 4096;
        let other = 4096 - copy;
        let whole = bytes.get(other..other + 512).is_some_and(|other_bytes| {
            Superblock::decode(other_bytes).is_ok()
                && self.disk.holds_durably(SUPERBLOCK_FILE, other as u64, other_bytes)
        });
        if whole && bytes[copy..copy + 512] == bytes[other..other + 512] {
            let place = copy + self.random.index(512);
            bytes[place] ^= 1 << self.random.below(8);
            self.disk.replace(SUPERBLOCK_FILE, bytes);
            self.trace.line(self.now_ns, format_args!("a bit of the superblock flips at byte {place}"));
        }
    }

    /// Two damaged checkpoints in a row are more than is promised.
    fn checkpoint_damaged_before(&self, lsn: Lsn) -> bool {
        let Some(bytes) = self.disk.content(&final_name(lsn)) else { return true };
        let Some(body) = bytes.len().checked_sub(16) else { return true };
        let sum = u64::from_le_bytes(bytes[body..body + 8].try_into().expect("8 bytes"));
        xxhash_rust::xxh3::xxh3_64(&bytes[..body]) != sum
    }

    fn cut_power(&mut self, kind: Reach) {
        self.reached.hit(kind);
        self.trace.line(self.now_ns, format_args!("the power goes"));
        self.oracle.story.tell(|| "the power goes".to_owned());
        let ring = self.disk.content(RING_FILE).map(<[u8]>::len);
        if std::mem::take(&mut self.disk.syncs_of_ring) > 0 {
            self.ring_images = self.disk.content(RING_FILE).map(<[u8]>::to_vec).into_iter().collect();
        }
        self.disk.cut_power();
        if let Some(bytes) = ring.filter(|_| self.disk.content(RING_FILE).is_some()) {
            let image = self.older_ring(bytes);
            self.disk.replace(RING_FILE, image);
        }
        self.ring_images.clear();
        self.kept_all = false;
        if self.config.level != Level::Disk {
            self.new_era();
        }
    }

    /// What the page cache had written back of the ring: any page as of any time.
    fn older_ring(&mut self, bytes: usize) -> Vec<u8> {
        let mut image = vec![0; bytes];
        if self.ring_images.len() != 1 && self.random.chance(300) {
            return image;
        }
        let whole = self.random.coin().then(|| self.random.index(self.ring_images.len().max(1)));
        for (page, block) in image.chunks_mut(4096).enumerate() {
            let chosen = whole.unwrap_or_else(|| self.random.index(self.ring_images.len().max(1)));
            if let Some(source) = self
                .ring_images
                .get(chosen)
                .and_then(|image| image.get(page * 4096..page * 4096 + block.len()))
            {
                block.copy_from_slice(source);
            }
        }
        image
    }

    /// More was lost than the level promises to keep: clients and receivers begin anew, the journal must still be whole.
    fn new_era(&mut self) {
        self.era += 1;
        self.oracle.forget_promises();
        self.under_way.clear();
        let era = self.era;
        for place in 0..self.clients.len() {
            self.clients[place] = crate::clients::Client::new(place, self.subject.clients()[place], era);
            self.after_up_to(5 * MILLISECOND, Happening::Client { place, era });
        }
    }
}
