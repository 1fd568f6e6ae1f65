//! The folder of a recorded run.

use crate::assembly::Logs;
use crate::definition::decode_texts;
use crate::format::Kind;
use crate::reader::{ReadError, Reader};
use crate::settings::rank_name;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the shim in the folder: a run is replayed by what recorded it.
pub const SHIM: &str = "shim.so";

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    folder: PathBuf,
    /// Ranks that have a log, in order.
    pub ranks: Vec<u32>,
    /// Logs of processes that never came out of `MPI_Init`.
    pub without_rank: usize,
}

/// How a rank was started, as its log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The executable.
    pub program: PathBuf,
    /// Its hash.
    pub hash: String,
    /// The folder it was started in.
    pub folder: PathBuf,
    /// Its arguments, its own name first.
    pub arguments: Vec<String>,
    /// Chosen variables of its environment.
    pub environment: Vec<(String, String)>,
    /// Shared libraries, as the loader named them, when the rank first called MPI.
    pub libraries: Vec<PathBuf>,
    /// The process's number, on the machine where it ran.
    pub process: u32,
    /// Of which machine.
    pub architecture: String,
    /// Ranks of the run.
    pub size: u32,
    /// What the MPI calls itself.
    pub library: String,
}

impl Run {
    /// Looks into the folder.
    ///
    /// # Errors
    /// What the system says when it cannot be read.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let mut run = Self { folder: folder.to_owned(), ranks: Vec::new(), without_rank: 0 };
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(rank) = name.strip_prefix("rank-").and_then(|name| name.strip_suffix(".log")) {
                run.ranks.extend(rank.parse::<u32>());
            } else if name.starts_with("starting-") && name.ends_with(".log") {
                run.without_rank += 1;
            }
        }
        run.ranks.sort_unstable();
        Ok(run)
    }

    /// The log of a rank.
    #[must_use]
    pub fn log(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("{}.log", rank_name(i64::from(rank))))
    }

    /// Opens the log of a rank.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn reader(&self, rank: u32) -> Result<Reader, ReadError> {
        let log = self.log(rank);
        Reader::open(&log, &log.with_extension("ring"))
    }

    /// Opens the log of a rank for what needs all of it.
    ///
    /// # Errors
    /// [`ReadError`], [`ReadError::Bounded`] if the log keeps only its end.
    pub fn whole_reader(&self, rank: u32) -> Result<Reader, ReadError> {
        let reader = self.reader(rank)?;
        match reader.gap() {
            None => Ok(reader),
            Some(gap) => Err(ReadError::Bounded { path: self.log(rank), next_call: gap.next_call }),
        }
    }

    /// How a rank was started.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn start(&self, rank: u32) -> Result<Start, ReadError> {
        let mut reader = self.reader(rank)?;
        let mut start = Start::default();
        // The second of them stands behind MPI_Init.
        let mut left = 2;
        while let Some(record) = reader.next_record() {
            if record.kind == Kind::Start {
                start.take(&decode_texts(&record.body).unwrap_or_default());
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        Ok(start)
    }

    /// The shim that recorded it.
    #[must_use]
    pub fn shim(&self) -> PathBuf {
        self.folder.join(SHIM)
    }
}

impl Logs for Run {
    fn open(&self, rank: i64) -> Result<Option<Reader>, ReadError> {
        match u32::try_from(rank) {
            Ok(rank) if self.ranks.contains(&rank) => self.whole_reader(rank).map(Some),
            _ => Ok(None),
        }
    }
}

impl Start {
    fn take(&mut self, values: &[String]) {
        for pair in values.chunks_exact(2) {
            let value = pair[1].clone();
            match pair[0].as_str() {
                "program" => self.program = value.into(),
                "hash" => self.hash = value,
                "folder" => self.folder = value.into(),
                "argument" => self.arguments.push(value),
                "loaded" => self.libraries.push(value.into()),
                "pid" => self.process = value.parse().unwrap_or(0),
                "architecture" => self.architecture = value,
                "size" => self.size = value.parse().unwrap_or(0),
                "library" => self.library = value,
                key => {
                    if let Some(name) = key.strip_prefix("env ") {
                        self.environment.push((name.to_owned(), value));
                    }
                }
            }
        }
    }
}
