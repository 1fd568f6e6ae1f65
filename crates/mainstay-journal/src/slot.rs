//! One slot of the ring: which page it holds and how much of it is written.

use crate::effect::Ticket;
use crate::geometry::BLOCK_BYTES;
use mainstay_types::id::Lsn;

/// Writes of one page in flight, at most: its first half, and what stands behind or in front of that.
const WRITES_MAX: usize = 2;

/// Offsets are bytes in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    page: u64,
    state: State,
    /// Everything below was handed over, and is written where no write is in flight.
    handed_over: usize,
    /// No two of them share a block, since they finish in any order.
    writing: [Option<Writing>; WRITES_MAX],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Writing {
    ticket: Ticket,
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    /// Takes no more records; bytes from `data_end` on need not be written.
    Closed {
        data_end: usize,
    },
}

impl Slot {
    pub(crate) const FREE: Self =
        Self { page: 0, state: State::Free, handed_over: 0, writing: [None; WRITES_MAX] };

    /// Holds `page`, of which everything below `written` is durable already.
    pub(crate) fn opened(page: u64, written: usize) -> Self {
        Self { page, state: State::Open, handed_over: written, writing: [None; WRITES_MAX] }
    }

    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Where the bytes of a closed page end that need to be written.
    pub(crate) fn data_end(&self) -> usize {
        match self.state {
            State::Closed { data_end } => data_end,
            State::Free | State::Open => unreachable!("only a closed page knows its end"),
        }
    }

    pub(crate) fn close(&mut self, data_end: usize) {
        assert_eq!(self.state, State::Open, "a page is closed once");
        self.state = State::Closed { data_end };
        self.settle();
    }

    /// Everything below was handed over to the disk.
    pub(crate) fn handed_over(&self) -> usize {
        self.handed_over
    }

    /// Everything below is written, though perhaps not synced.
    fn written(&self) -> usize {
        self.writing.iter().flatten().map(|writing| writing.from).min().unwrap_or(self.handed_over)
    }

    /// Whether a closed page has bytes that no write was asked for, and one may be.
    pub(crate) fn wants_write(&self) -> bool {
        matches!(self.state, State::Closed { data_end } if self.handed_over < data_end) && self.may_write()
    }

    /// Whether what was not handed over may be: a write in flight does not end within the same block.
    pub(crate) fn may_write(&self) -> bool {
        let ends_within_block = |writing: &Writing| !writing.to.is_multiple_of(BLOCK_BYTES as usize);
        self.writing.iter().any(Option::is_none) && !self.writing.iter().flatten().any(ends_within_block)
    }

    /// Notes a write up to `to` and returns where it has to start.
    pub(crate) fn begin_write(&mut self, ticket: Ticket, to: usize) -> usize {
        assert!(self.may_write(), "writes of a page share no block");
        let from = self.handed_over;
        assert!(from < to, "a write has bytes");
        let free = self.writing.iter_mut().find(|writing| writing.is_none()).expect("it may write");
        *free = Some(Writing { ticket, from, to });
        self.handed_over = to;
        from
    }

    /// Notes that the write is complete, if it is this slot's.
    pub(crate) fn end_write(&mut self, ticket: Ticket) {
        for writing in &mut self.writing {
            if writing.take_if(|writing| writing.ticket == ticket).is_some() {
                return self.settle();
            }
        }
    }

    /// A closed page that is written needs its slot no more.
    fn settle(&mut self) {
        if let State::Closed { data_end } = self.state
            && self.handed_over >= data_end
            && self.writing.iter().all(Option::is_none)
        {
            self.state = State::Free;
        }
    }

    /// Whether all bytes of this page below `target` are written.
    pub(crate) fn is_written_to(&self, target: Lsn, page_bytes: u64) -> bool {
        let below = target.0.saturating_sub(self.page * page_bytes).min(page_bytes);
        let below = usize::try_from(below).expect("a page is at most 64 MiB");
        match self.state {
            State::Free => true,
            State::Open => self.written() >= below,
            State::Closed { data_end } => self.written() >= below.min(data_end),
        }
    }
}
