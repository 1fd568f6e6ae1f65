//! What recording cost a rank, by its own clocks: left in a file for who measures.

use crate::pages::{self, WriterFigures};
use std::path::Path;

/// Figures of one rank. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Calls in the log.
    pub calls: u64,
    /// Bytes of log.
    pub log_bytes: u64,
    /// Pages that were filled.
    pub pages_filled: u64,
    /// Times that no page was free.
    pub pages_awaited: u64,
    /// Waited for a free page.
    pub stall_ns: u64,
    /// Copied and checksummed; 0 where that was not measured.
    pub copy_ns: u64,
    /// Spent by the other thread in writing.
    pub write_ns: u64,
    /// Processor time of that thread.
    pub writer_cpu_ns: u64,
    /// Spent at the end of the process in writing what was left.
    pub drain_ns: u64,
}

impl Figures {
    /// Takes over what the pages say.
    pub fn take_pages(&mut self, figures: pages::Figures, log_bytes: u64) {
        self.log_bytes = log_bytes;
        self.pages_filled = figures.pages_filled;
        self.pages_awaited = figures.pages_awaited;
        self.stall_ns = figures.stall_ns;
        self.copy_ns = figures.copy_ns;
    }

    /// Takes over what the writing thread says.
    pub fn take_writer(&mut self, used: WriterFigures) {
        self.write_ns = used.write_ns;
        self.writer_cpu_ns = used.cpu_ns;
    }

    /// Leaves them in the folder under the name of the rank. A file that cannot be written is left out: the program goes on.
    pub fn leave_in(&self, folder: &Path, rank_name: &str) {
        let text: String = self.named().map(|(name, value)| format!("{name} {value}\n")).concat();
        let _ = std::fs::write(folder.join(rank_name).with_extension("figures"), text);
    }

    /// Reads what a rank left; `None` if it is not there or not whole.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let value = |wanted: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '))?;
            line.parse().ok()
        };
        Some(Self {
            calls: value("calls")?,
            log_bytes: value("log_bytes")?,
            pages_filled: value("pages_filled")?,
            pages_awaited: value("pages_awaited")?,
            stall_ns: value("stall_ns")?,
            copy_ns: value("copy_ns")?,
            write_ns: value("write_ns")?,
            writer_cpu_ns: value("writer_cpu_ns")?,
            drain_ns: value("drain_ns")?,
        })
    }

    fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("calls", self.calls),
            ("log_bytes", self.log_bytes),
            ("pages_filled", self.pages_filled),
            ("pages_awaited", self.pages_awaited),
            ("stall_ns", self.stall_ns),
            ("copy_ns", self.copy_ns),
            ("write_ns", self.write_ns),
            ("writer_cpu_ns", self.writer_cpu_ns),
            ("drain_ns", self.drain_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_leaves_is_read_back_and_half_of_it_is_nothing() {
        let figures = Figures {
            calls: 1,
            log_bytes: 2,
            pages_filled: 3,
            pages_awaited: 4,
            stall_ns: 5,
            copy_ns: 6,
            write_ns: 7,
            writer_cpu_ns: 8,
            drain_ns: u64::MAX,
        };
        let folder = tempfile::tempdir().expect("a folder");
        figures.leave_in(folder.path(), "rank-00000");
        let path = folder.path().join("rank-00000.figures");
        assert_eq!(Figures::read(&path), Some(figures));
        std::fs::write(&path, "calls 1\n").expect("a file");
        assert_eq!(Figures::read(&path), None);
    }
}
