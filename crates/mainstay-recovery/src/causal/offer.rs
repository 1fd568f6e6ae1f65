//! What a node tells: batches that ride along or go by themselves, and everything to a peer that recovers.

use super::Causal;
use super::link::Link;
use super::log;
use super::wire::{CONTROL_BYTES_TARGET, Header, RunWriter, put_varint, tag};
use crate::logging::Wish;
use mainstay_types::id::{DeliveryIndex, NodeId};

impl Causal {
    /// Up to which position the log may be told: nothing behind an input that is not carried, which may be lost with it.
    pub(super) fn tellable(&self) -> u64 {
        self.barriers.front().map_or(self.log.end(), |&(_, position)| position - 1)
    }

    /// Appends to `out` a batch of what `link` is not known to hold, at most about `limit` bytes of it. Returns whether there
    /// was anything to say.
    pub(super) fn put_batch(&mut self, link: usize, limit: usize, out: &mut Vec<u8>) -> bool {
        let upto = self.tellable();
        let mut runs = std::mem::take(&mut self.runs);
        runs.clear();
        let mut writer = RunWriter::default();
        let view = &self.links[link];
        let mut scanned = view.scanned.max(upto);
        for entry in self.log.behind(view.scanned) {
            if entry.position > upto {
                break;
            }
            if runs.len() >= limit {
                scanned = entry.position - 1;
                break;
            }
            if entry.gone() || entry.stable() || entry.held_by(view.peer) {
                continue;
            }
            writer.put(entry.owner, &entry.place, &entry.what, &mut runs);
        }
        let view = &mut self.links[link];
        view.scanned = scanned;
        let anything = !runs.is_empty() || view.taken > view.told;
        if anything {
            let to = if runs.is_empty() { view.announced } else { scanned };
            put_header(view, to, self.log.own_stable(), out);
            out.extend_from_slice(&runs);
        }
        self.runs = runs;
        anything
    }

    /// Tells `link` everything up to `target` that it is not known to hold.
    pub(super) fn carry(&mut self, link: usize, target: u64, wishes: &mut Vec<Wish>) {
        while self.links[link].scanned < target.min(self.tellable()) {
            let mut body = vec![tag::CARRY];
            if self.put_batch(link, CONTROL_BYTES_TARGET, &mut body) {
                wishes.push(Wish::Tell { to: self.links[link].peer, body });
            }
        }
    }

    /// Makes sure that `f` connected peers have been offered everything that `needed` depends on.
    pub(super) fn offer_needed(&mut self, wishes: &mut Vec<Wish>) {
        let target = self.log.position(self.me, self.needed).unwrap_or(self.log.end());
        if let Some(&(end, position)) = self.barriers.front()
            && position <= target
            && end > self.flush_asked
        {
            self.flush_asked = end;
            wishes.push(Wish::Flush);
        }
        let offered = |link: &Link| link.connected && link.scanned >= target;
        let mut missing = self.f.saturating_sub(self.links.iter().filter(|&link| offered(link)).count());
        // From the next node on, so that neighbours do not all choose the same.
        let first = self.links.partition_point(|link| link.peer < self.me);
        for step in 0..self.links.len() {
            let link = (first + step) % self.links.len();
            if missing == 0 {
                break;
            }
            if self.links[link].connected && !offered(&self.links[link]) {
                self.carry(link, target, wishes);
                missing -= 1;
            }
        }
    }

    /// The peer has taken the log up to `taken`, and let fall what came behind.
    pub(super) fn tell_again(&mut self, link: usize, taken: u64, wishes: &mut Vec<Wish>) {
        let target = self.links[link].announced;
        (self.links[link].announced, self.links[link].scanned) = (taken, taken);
        self.carry(link, target, wishes);
        // Even if nothing is left to tell: what follows must not look like a gap.
        let mut body = vec![tag::CARRY];
        let to = self.links[link].scanned.max(taken);
        put_header(&mut self.links[link], to, self.log.own_stable(), &mut body);
        wishes.push(Wish::Tell { to: self.links[link].peer, body });
    }

    /// The peer of `link` recovers: it is told all that is known here, of any node.
    pub(super) fn tell_everything(&mut self, link: usize, wishes: &mut Vec<Wish>) {
        let upto = self.tellable();
        // Its memory is empty: from the front, and in the order of the log, so that wherever the session breaks the peer knows of
        // nothing without knowing what that depends on.
        self.links[link].announced = 0;
        let mut chunks = Chunks::default();
        for entry in self.log.behind(0).filter(|entry| !entry.gone() && entry.what.carried()) {
            if entry.owner != self.me || entry.position <= upto {
                chunks.put(entry);
                let to = entry.position.min(upto);
                chunks.end_if_long(&mut self.links[link], to, self.log.own_stable(), wishes);
            }
        }
        chunks.end(&mut self.links[link], upto, self.log.own_stable(), wishes);
        self.links[link].scanned = upto;
    }
}

pub(super) fn put_header(view: &mut Link, to: u64, stable: DeliveryIndex, out: &mut Vec<u8>) {
    Header { from: view.announced, to, taken: view.taken, stable }.put(out);
    view.announced = to;
    view.announced_max = view.announced_max.max(to);
    view.told = view.taken;
}

pub(super) fn tell(to: NodeId, tag: u8, numbers: &[u64]) -> Wish {
    let mut body = vec![tag];
    numbers.iter().for_each(|&number| put_varint(&mut body, number));
    Wish::Tell { to, body }
}

/// Determinants that a recovering peer is told, in control messages of limited length.
#[derive(Default)]
struct Chunks {
    writer: RunWriter,
    runs: Vec<u8>,
}

impl Chunks {
    fn put(&mut self, entry: &log::Entry) {
        self.writer.put(entry.owner, &entry.place, &entry.what, &mut self.runs);
    }

    fn end_if_long(&mut self, view: &mut Link, to: u64, stable: DeliveryIndex, wishes: &mut Vec<Wish>) {
        if self.runs.len() >= CONTROL_BYTES_TARGET {
            self.end(view, to, stable, wishes);
        }
    }

    fn end(&mut self, view: &mut Link, to: u64, stable: DeliveryIndex, wishes: &mut Vec<Wish>) {
        if self.runs.is_empty() {
            return;
        }
        let mut body = vec![tag::RETOLD];
        put_header(view, to, stable, &mut body);
        body.append(&mut self.runs);
        self.writer = RunWriter::default();
        wishes.push(Wish::Tell { to: view.peer, body });
    }
}
