//! What happened in one run, line by line: kept for people, or only hashed to compare two runs.

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::rc::Rc;
use xxhash_rust::xxh3::Xxh3;

/// The trace of one run.
pub(crate) struct Trace {
    into: Into,
    line: String,
}

/// Lines that outlive the world which writes them, and so a panic in it.
pub(crate) type Lines = Rc<RefCell<Vec<String>>>;

enum Into {
    Nothing,
    Hash(Box<Xxh3>),
    Lines(Lines),
}

impl Trace {
    pub(crate) fn off() -> Self {
        Self { into: Into::Nothing, line: String::new() }
    }

    pub(crate) fn hashed() -> Self {
        Self { into: Into::Hash(Box::new(Xxh3::new())), line: String::new() }
    }

    pub(crate) fn kept_in(lines: &Lines) -> Self {
        Self { into: Into::Lines(Rc::clone(lines)), line: String::new() }
    }

    /// Adds a line. Nothing is formatted when nobody wants it.
    pub(crate) fn line(&mut self, time_ns: u64, line: fmt::Arguments<'_>) {
        if matches!(self.into, Into::Nothing) {
            return;
        }
        self.line.clear();
        write!(self.line, "{:>6}.{:06} ", time_ns / 1_000_000, time_ns % 1_000_000)
            .and_then(|()| self.line.write_fmt(line))
            .expect("a string takes all");
        match &mut self.into {
            Into::Nothing => {}
            Into::Hash(hash) => {
                hash.update(self.line.as_bytes());
                hash.update(b"\n");
            }
            Into::Lines(lines) => lines.borrow_mut().push(self.line.clone()),
        }
    }

    /// The hash of all lines, if they were hashed.
    pub(crate) fn digest(&self) -> u64 {
        match &self.into {
            Into::Hash(hash) => hash.digest(),
            _ => 0,
        }
    }
}
