//! Writing: which bytes go to the disk when, group commit, and what a completion makes durable.
//!
//! A flush whose bytes lie in the open page alone takes one write that is durable by itself. If pages were closed since
//! the last one, or the first half of the open one was handed over, it waits for their writes and syncs. One flush is in
//! flight; what is asked for meanwhile shares the next.

use super::Journal;
use crate::effect::{DiskEffect, Ticket};
use crate::format::record_bytes;
use crate::geometry::BLOCK_BYTES;
use crate::memory::PageMemory;
use crate::record::Kind;
use crate::ring;
use mainstay_types::id::{InstanceId, Lsn};

/// What a flush waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// One write that is durable by itself.
    Direct { ticket: Ticket, target: Lsn },
    /// All writes below the target; then it syncs.
    Gathering { target: Lsn },
    /// The sync.
    Syncing { ticket: Ticket, target: Lsn },
}

impl Flush {
    pub(super) fn target(self) -> Lsn {
        match self {
            Self::Direct { target, .. } | Self::Gathering { target } | Self::Syncing { target, .. } => target,
        }
    }
}

impl<M: PageMemory> Journal<M> {
    pub(super) fn start_flush(&mut self, out: &mut Vec<DiskEffect>) {
        self.put_mark();
        self.stats.flushes += 1;
        let target = self.end;
        let in_open_page = self.open && self.durable >= self.unsynced_end;
        if in_open_page {
            let ticket = self.write(self.slot, true, out);
            self.flush = Some(Flush::Direct { ticket, target });
            self.stats.flushes_in_one_write += 1;
            return;
        }
        if self.open {
            self.write(self.slot, false, out);
        }
        self.flush = Some(Flush::Gathering { target });
        self.pump(out);
    }

    /// Says in the batch that is about to be written what is durable already, so that repair knows. Never opens a page
    /// for it: its header will say the same.
    fn put_mark(&mut self) {
        let fits = self.open && self.fill + record_bytes(8) <= self.page_bytes;
        if fits && self.durable > self.marked && !self.sealed {
            self.marked = self.durable;
            self.stats.marks += 1;
            self.put_record(Kind::MARK, InstanceId(0), &[&self.durable.0.to_le_bytes()], 8);
        }
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        ticket
    }

    /// Asks for a write of what a slot has beyond what was handed over.
    fn write(&mut self, index: usize, durable: bool, out: &mut Vec<DiskEffect>) -> Ticket {
        let data_end = if self.open && index == self.slot { self.fill } else { self.slots[index].data_end() };
        self.write_to(index, data_end, durable, out)
    }

    fn write_to(&mut self, index: usize, to: usize, durable: bool, out: &mut Vec<DiskEffect>) -> Ticket {
        if index == self.slot {
            self.destage();
        }
        let ticket = self.ticket();
        let slot = &mut self.slots[index];
        let from = slot.begin_write(ticket, to);
        let block_bytes = BLOCK_BYTES as usize;
        let [from, to] = [from / block_bytes * block_bytes, to.next_multiple_of(block_bytes)]
            .map(|at| u32::try_from(at).expect("a page is at most 64 MiB"));
        let place = self.geometry.place_of(self.geometry.page_start(slot.page()).plus(u64::from(from)));
        self.stats.writes += 1;
        self.stats.write_bytes += u64::from(to - from);
        out.push(DiskEffect::Write { ticket, slot: index, from, to, place, durable });
        ticket
    }

    /// Hands over what the open page holds when half of it is filled, so that the disk finds the next piece of a stream of
    /// records while the rest fills. Where commits have written most of it already there is nothing to gain. Asked once a page: if a write that
    /// ends within a block is in flight then, the page goes as a whole.
    pub(super) fn hand_over_half(&mut self, out: &mut Vec<DiskEffect>) {
        let to = self.fill / BLOCK_BYTES as usize * BLOCK_BYTES as usize;
        let slot = &self.slots[self.slot];
        if !slot.may_write() || to < slot.handed_over() + self.half_bytes_min {
            return;
        }
        self.write_to(self.slot, to, false, out);
        self.unsynced_end = self.page_start.plus(to as u64);
        self.stats.halves += 1;
    }

    /// Asks for everything that can be asked for now.
    pub(super) fn pump(&mut self, out: &mut Vec<DiskEffect>) {
        if self.poison.is_some() || self.buffer_only {
            return;
        }
        for index in 0..self.slots.len() {
            if self.slots[index].wants_write() {
                self.write(index, false, out);
            }
        }
        if let Some(Flush::Gathering { target }) = self.flush {
            let page_bytes = self.page_bytes as u64;
            if self.slots.iter().all(|slot| slot.is_written_to(target, page_bytes)) {
                let ticket = self.ticket();
                let first_segment = self.geometry.segment_of(self.durable);
                let last_segment = self.geometry.segment_of(Lsn(target.0 - 1));
                self.stats.syncs += 1;
                self.flush = Some(Flush::Syncing { ticket, target });
                out.push(DiskEffect::Sync { ticket, first_segment, last_segment });
            }
        }
        if self.flush.is_none() && self.flush_asked {
            self.flush_asked = false;
            if self.end > self.durable {
                self.start_flush(out);
            }
        }
    }

    pub(super) fn done(&mut self, ticket: Ticket) {
        if self.poison.is_some() {
            return;
        }
        for slot in &mut self.slots {
            slot.end_write(ticket);
        }
        match self.flush {
            Some(Flush::Direct { ticket: awaited, target } | Flush::Syncing { ticket: awaited, target })
                if awaited == ticket =>
            {
                self.flush = None;
                self.durable = self.durable.max(target);
                self.publish_watermark();
            }
            _ => {}
        }
    }

    pub(super) fn publish_watermark(&mut self) {
        ring::write_watermark(self.memory.control_mut(), self.watermark_turn, self.durable);
        self.watermark_turn += 1;
    }
}
