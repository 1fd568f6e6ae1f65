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

/// A folder is no recorded run that can be read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It is not there.
    #[error("{} is not there: name the folder that `mainstay mpi record --dir` or `mainstay mpi extract` made", folder.display())]
    Absent {
        /// The folder.
        folder: PathBuf,
    },
    /// It is a file.
    #[error("{} is a file: name the folder of the recording that it is in", path.display())]
    File {
        /// The file.
        path: PathBuf,
    },
    /// Nothing is in it.
    #[error("{} is empty: nothing was recorded there; name the folder that `mainstay mpi record --dir` made, or record the program again", folder.display())]
    Empty {
        /// The folder.
        folder: PathBuf,
    },
    /// It has other things than logs.
    #[error("{} is no recording, it has no log of any rank (rank-00000.log): name the folder that `mainstay mpi record --dir` made", folder.display())]
    NoLog {
        /// The folder.
        folder: PathBuf,
    },
    /// No process came so far that its rank was known.
    #[error("{} has no log of any rank: {processes} processes called MPI_Init and none came out of it; record the program again", folder.display())]
    NoRank {
        /// The folder.
        folder: PathBuf,
        /// How many there were.
        processes: usize,
    },
    /// The system refused.
    #[error("{} cannot be read", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

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
    /// Opens a run that has a log of one rank at least.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn open(folder: &Path) -> Result<Self, RunError> {
        let owned = || folder.to_owned();
        let run = match Self::look_into(folder) {
            Ok(run) => run,
            Err(_) if folder.is_file() => return Err(RunError::File { path: owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RunError::Absent { folder: owned() });
            }
            Err(source) => return Err(RunError::Io { folder: owned(), source }),
        };
        match run.without_rank {
            _ if !run.ranks.is_empty() => Ok(run),
            0 if std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_none()) => {
                Err(RunError::Empty { folder: owned() })
            }
            0 => Err(RunError::NoLog { folder: owned() }),
            processes => Err(RunError::NoRank { folder: owned(), processes }),
        }
    }

    /// Looks into the folder of a run that may have no log yet.
    ///
    /// # Errors
    /// What the system says when it cannot be read.
    pub fn look_into(folder: &Path) -> io::Result<Self> {
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

    /// Files that a run of so many ranks has and that are not there, each with what that means. Of a ring the log says it, see
    /// [`crate::reader::damage::DamageCause::RingMissing`].
    #[must_use]
    pub fn missing(&self, size: u32) -> Vec<String> {
        let mut missing = Vec::new();
        let shim = self.shim();
        if !shim.is_file() {
            let text = "nothing can be replayed without it; bring it from the folder of the recording";
            missing.push(format!("{} is missing: {text}", shim.display()));
        }
        // A bundle has one rank of many.
        let all = if self.folder.join("manifest").is_file() { 0 } else { size };
        for rank in (0..all).filter(|rank| self.ranks.binary_search(rank).is_err()) {
            missing.push(format!(
                "{} is missing: rank {rank} cannot be replayed, and its messages are not known; the other ranks are as they were",
                self.log(rank).display()
            ));
        }
        missing
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
