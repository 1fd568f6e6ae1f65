//! One slot of the ring: which page it holds and how much of it is written.

use crate::effect::Ticket;
use mainstay_types::id::Lsn;

/// Offsets are bytes in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    page: u64,
    state: State,
    /// Everything below is written, though perhaps not synced.
    written: usize,
    /// The write in flight, and where it ends. One at a time, since two may share a block and finish in any order.
    writing: Option<(Ticket, usize)>,
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
    pub(crate) const FREE: Self = Self { page: 0, state: State::Free, written: 0, writing: None };

    /// Holds `page`, of which everything below `written` is durable already.
    pub(crate) fn opened(page: u64, written: usize) -> Self {
        Self { page, state: State::Open, written, writing: None }
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

    /// Whether a closed page has bytes that no write was asked for.
    pub(crate) fn wants_write(&self) -> bool {
        matches!(self.state, State::Closed { data_end } if self.written < data_end) && self.writing.is_none()
    }

    /// Notes a write up to `data_end` and returns where it has to start.
    pub(crate) fn begin_write(&mut self, ticket: Ticket, data_end: usize) -> usize {
        assert!(self.writing.is_none(), "a page has one write in flight");
        self.writing = Some((ticket, data_end));
        self.written
    }

    /// Notes that the write is complete, if it is this slot's.
    pub(crate) fn end_write(&mut self, ticket: Ticket) {
        if let Some((_, data_end)) = self.writing.take_if(|writing| writing.0 == ticket) {
            self.written = data_end;
            self.settle();
        }
    }

    /// A closed page that is written needs its slot no more.
    fn settle(&mut self) {
        if let State::Closed { data_end } = self.state
            && self.written >= data_end
            && self.writing.is_none()
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
            State::Open => self.written >= below,
            State::Closed { data_end } => self.written >= below.min(data_end),
        }
    }
}
