//! `mainstay mpi record`: starts a launcher so that its ranks load the shim.

use super::folder::{self, FolderError};
use super::toolchain::{self, Family, ToolchainError};
use crate::payload::Payload;
use crate::run::{Run, SHIM};
use crate::settings;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The launcher with its arguments, or a program that is started without one.
    pub command: Vec<String>,
    /// The folder of the run: made anew, or empty.
    pub folder: PathBuf,
    /// Whether a run or bundle that is there already is removed first.
    pub overwrite: bool,
    /// Compiler wrapper, if not the one that belongs to the launcher.
    pub compiler: Option<String>,
    /// Where compiled shims are kept.
    pub cache: PathBuf,
    /// Pages in the ring of each rank; 0 for one that is never written.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Whether calls are timed.
    pub timed: bool,
    /// Whether recording ends rather than let the program wait when the disk does not keep up.
    pub drop_when_behind: bool,
    /// Bytes of each rank's log that are kept, its first page and its end; all, if not said.
    pub keep_last_bytes: Option<u64>,
    /// Which side logs the bytes of messages.
    pub payload: Payload,
    /// Whether memory from glibc's allocator is filled, see [`settings::FILLED_MEMORY`].
    pub fill_memory: bool,
    /// Whether pages are compressed.
    pub compress: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Recorded {
    /// How the launcher ended.
    pub status: ExitStatus,
    /// What is in the folder.
    pub run: Run,
    /// The MPI.
    pub family: Family,
}

/// Nothing was recorded. But for [`RecordError::Nothing`] and [`RecordError::NoRank`] nothing was started, either.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder of the run cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file of the run cannot be written or read.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The loader would take the path of the shim in the folder for several.
    #[error(
        "{} has a space or a colon in its path, at which the loader of programs would cut it: name another folder with --dir", folder.display()
    )]
    Unloadable {
        /// The folder, from the root.
        folder: PathBuf,
    },
    /// What is to be started is not there.
    #[error("there is no program {launcher} here or on the path")]
    NoLauncher {
        /// What was to be started.
        launcher: String,
    },
    /// No rank made a call of MPI. The folder is as it was before.
    #[error("{}", nothing_text(launcher, *status, *family))]
    Nothing {
        /// What was started.
        launcher: String,
        /// How it ended.
        status: ExitStatus,
        /// The MPI.
        family: Family,
    },
    /// Processes called MPI, and none came out of `MPI_Init`. Their logs are in the folder.
    #[error(
        "{launcher} ended ({status}), and none of {starting} processes came out of MPI_Init: what is printed above may say why; \
             their logs are in {}, which --overwrite replaces", folder.display()
    )]
    NoRank {
        /// What was started.
        launcher: String,
        /// How it ended.
        status: ExitStatus,
        /// Processes that called MPI.
        starting: usize,
        /// The folder.
        folder: PathBuf,
    },
    /// Neither the launcher nor a program among its arguments says which MPI it is of.
    #[error(
        "`{command}` does not say of which MPI it is, and no program among its arguments is linked with a \
             shared library of MPI (static programs cannot be recorded)"
    )]
    UnknownMpi {
        /// What was to be started.
        command: String,
    },
    /// The launcher is of another MPI than the program.
    #[error(
        "the launcher {launcher} is of {of_launcher}, the program {program} of {of_program}: each rank would be alone"
    )]
    Mixed {
        /// The launcher.
        launcher: String,
        /// Its MPI.
        of_launcher: Family,
        /// The program.
        program: String,
        /// Its MPI.
        of_program: Family,
    },
    /// There is no shim.
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    /// The launcher cannot be started.
    #[error("{launcher} cannot be started")]
    Start {
        /// The launcher.
        launcher: String,
        /// Why.
        source: io::Error,
    },
}

/// What makes the ranks of a launcher record.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The MPI.
    pub family: Family,
    of_launcher: Option<Family>,
    /// The shim that is loaded.
    pub shim: PathBuf,
    /// Libraries that are loaded before the shim.
    pub before_shim: Vec<PathBuf>,
}

/// Finds out which MPI a command is of, and makes the shim for it.
///
/// # Errors
/// [`RecordError`]; nothing was started and no folder made.
pub fn prepare(options: &Options) -> Result<Prepared, RecordError> {
    let (family, of_launcher) = family(&options.command, options.compiler.as_deref())?;
    let shim = toolchain::shim(family, &options.command[0], options.compiler.as_deref(), &options.cache)?;
    Ok(Prepared { family, of_launcher, shim, before_shim: Vec::new() })
}

fn nothing_text(launcher: &str, status: ExitStatus, family: Family) -> String {
    let not_of_it = format!("is linked statically, or with another MPI than {family}, or uses none");
    if status.success() {
        return format!("the program ran, and no rank made a call that was recorded: it {not_of_it}");
    }
    format!(
        "{launcher} ended ({status}) before any rank called MPI, and nothing was recorded: what it printed above should say why. \
         If the program did run, it {not_of_it}"
    )
}

/// Records a run.
///
/// # Errors
/// [`RecordError`]; a folder that was made is removed again, unless there is something in it.
pub fn record(options: &Options) -> Result<Recorded, RecordError> {
    let mut prepared = prepare(options)?;
    let launcher = options.command[0].clone();
    // Before anything that is there is removed.
    let absolute = std::path::absolute(&options.folder).unwrap_or_else(|_| options.folder.clone());
    if !toolchain::can_be_loaded(&absolute.join(SHIM)) {
        return Err(RecordError::Unloadable { folder: absolute });
    }
    let room = folder::make(&options.folder, options.overwrite)?;
    // Ranks may have another working folder.
    let path = room.path.canonicalize().unwrap_or(room.path);
    let folder = RunFolder { path, made: room.made };
    let kept = folder.path.join(SHIM);
    if !toolchain::can_be_loaded(&kept) {
        return Err(RecordError::Unloadable { folder: folder.path.clone() });
    }
    std::fs::copy(&prepared.shim, &kept).map_err(|source| RecordError::Io { path: kept.clone(), source })?;
    prepared.shim = kept;
    let status = match prepared.command(options, &folder.path).status() {
        Ok(status) => status,
        Err(source) => return Err(RecordError::Start { launcher, source }),
    };
    let run = Run::look_into(&folder.path)
        .map_err(|source| RecordError::Io { path: folder.path.clone(), source })?;
    match (run.ranks.len(), run.without_rank) {
        (0, 0) => Err(RecordError::Nothing { launcher, status, family: prepared.family }),
        (0, starting) => {
            Err(RecordError::NoRank { launcher, status, starting, folder: options.folder.clone() })
        }
        _ => Ok(Recorded { status, run, family: prepared.family }),
    }
}

/// The folder of a run. If nothing came into it, the shim goes again, and the folder if it was made for the run.
struct RunFolder {
    path: PathBuf,
    made: bool,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let others =
            |entry: io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() != SHIM);
        if std::fs::read_dir(&self.path).is_ok_and(|entries| !entries.into_iter().any(others)) {
            let _ = std::fs::remove_file(self.path.join(SHIM));
            if self.made {
                let _ = std::fs::remove_dir(&self.path);
            }
        }
    }
}

impl Prepared {
    /// The launcher's command, so that its ranks leave their logs in `folder`.
    #[must_use]
    pub fn command(&self, options: &Options, folder: &Path) -> Command {
        let others = std::env::var("LD_PRELOAD").ok().filter(|others| !others.is_empty());
        let ours = self.before_shim.iter().chain([&self.shim]).map(|path| path.display().to_string());
        let mut variables = vec![
            ("LD_PRELOAD", ours.chain(others).collect::<Vec<_>>().join(":")),
            (settings::RECORD, folder.display().to_string()),
            (settings::RUN, run_number()),
            (settings::PAGES, options.pages.to_string()),
            (settings::PAGE_BYTES, options.page_bytes.to_string()),
            (settings::TIMES, u8::from(options.timed).to_string()),
            (settings::PAYLOAD, options.payload.to_string()),
            (settings::COMPRESS, u8::from(options.compress).to_string()),
        ];
        if options.drop_when_behind {
            variables.push((settings::DROP_WHEN_BEHIND, "1".to_owned()));
        }
        if let Some(bytes) = options.keep_last_bytes {
            variables.push((settings::KEEP_LAST_BYTES, bytes.to_string()));
        }
        if options.fill_memory {
            let others = std::env::var(settings::ALLOCATOR).ok().filter(|others| !others.is_empty());
            let all: Vec<String> = others.into_iter().chain([settings::FILLED_MEMORY.to_owned()]).collect();
            variables.push((settings::ALLOCATOR, all.join(":")));
        }
        let mut command = Command::new(&options.command[0]);
        for (name, value) in &variables {
            // A launcher hands them to its ranks, on every node; without one the program is the rank.
            match self.of_launcher {
                Some(Family::OpenMpi) => command.arg("-x").arg(format!("{name}={value}")),
                Some(Family::Mpich | Family::Standard) => command.args(["-genv", name, value]),
                None => command.env(name, value),
            };
        }
        command.args(&options.command[1..]);
        command
    }
}

/// The MPI of a command, and that of its launcher if it begins with one. A program that loads its MPI late, as Python does, is taken
/// to be of what the named compiler is of, else of what the launcher is of.
fn family(command: &[String], compiler: Option<&str>) -> Result<(Family, Option<Family>), RecordError> {
    if found(&command[0]).is_none() {
        return Err(RecordError::NoLauncher { launcher: command[0].clone() });
    }
    let name = Path::new(&command[0]).file_name().unwrap_or_default().to_string_lossy();
    let looks = ["mpirun", "mpiexec", "orterun", "prterun"].iter().any(|known| name.starts_with(known));
    let of_launcher = looks.then(|| toolchain::family_of_launcher(&command[0])).flatten();
    let skipped = usize::from(of_launcher.is_some());
    let of_program = command.iter().skip(skipped).find_map(|argument| {
        let bytes = std::fs::read(found(argument)?).ok()?;
        Some((argument.clone(), toolchain::family_of_program(&bytes)?))
    });
    match (of_launcher, of_program) {
        (Some(of_launcher), Some((program, of_program))) if !toolchain::starts(of_launcher, of_program) => {
            Err(RecordError::Mixed { launcher: command[0].clone(), of_launcher, program, of_program })
        }
        (_, Some((_, family))) => Ok((family, of_launcher)),
        (Some(of_launcher), None) => {
            let named = compiler.map(toolchain::family_of_compiler).transpose()?;
            let fits = named.filter(|named| toolchain::starts(of_launcher, *named));
            Ok((fits.unwrap_or(of_launcher), Some(of_launcher)))
        }
        (None, None) => Err(RecordError::UnknownMpi { command: command.join(" ") }),
    }
}

/// The file that a word of a command line means, in the folder or on the path.
fn found(argument: &str) -> Option<PathBuf> {
    let path = Path::new(argument);
    if argument.contains('/') {
        return path.is_file().then(|| path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(path)).find(|path| path.is_file())
}

/// A number that no other run has: time, process, and an address of this one.
fn run_number() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let here = 0_u8;
    let seed = [now.as_nanos(), u128::from(std::process::id()), (&raw const here).addr() as u128];
    let bytes: Vec<u8> = seed.iter().flat_map(|number| number.to_le_bytes()).collect();
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes))
}
