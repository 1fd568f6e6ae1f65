//! What the processes of the demo tell each other while they are being killed: numbers in a file.
//!
//! Each number has one writer at a time and is written by one system call, so that a kill -9 of writer or reader never
//! leaves half a number: the page cache outlives both.

use super::requests::CLIENTS;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The numbers.
#[derive(Debug)]
pub(crate) struct Board {
    file: File,
}

/// One number on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Kills made so far. Written by the supervisor, and by the top process for kills of the supervisor.
    Kills,
    /// Requests that a client has an answer to.
    Answered(usize),
    /// The request that a client is making, counted from 1; 0 for none.
    InFlight(usize),
}

impl Board {
    /// Opens or makes the board.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(Slot::InFlight(CLIENTS - 1).offset() + 8)?;
        Ok(Self { file })
    }

    /// Reads a number.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn read(&self, slot: Slot) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, slot.offset())?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a number.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn write(&self, slot: Slot, value: u64) -> io::Result<()> {
        self.file.write_all_at(&value.to_le_bytes(), slot.offset())
    }

    /// Requests answered, of all clients.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn answered(&self) -> io::Result<u64> {
        (0..CLIENTS).map(|client| self.read(Slot::Answered(client))).sum()
    }

    /// The requests being made, by client.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn in_flight(&self) -> io::Result<[u64; CLIENTS]> {
        let mut all = [0; CLIENTS];
        for (client, request) in all.iter_mut().enumerate() {
            *request = self.read(Slot::InFlight(client))?;
        }
        Ok(all)
    }
}

impl Slot {
    fn offset(self) -> u64 {
        8 * match self {
            Self::Kills => 0,
            Self::Answered(client) => 1 + 2 * client as u64,
            Self::InFlight(client) => 2 + 2 * client as u64,
        }
    }
}
