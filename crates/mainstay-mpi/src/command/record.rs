//! `mainstay mpi record`: starts a launcher so that its ranks load the shim.

use super::run::{Run, SHIM};
use super::toolchain::{self, Family, ToolchainError};
use crate::payload::Payload;
use crate::settings;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The launcher with its arguments, or a program that is started without one.
    pub command: Vec<String>,
    /// The folder of the run: made anew.
    pub folder: PathBuf,
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

/// Nothing was recorded; the program was not started.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder is there already, or cannot be made.
    #[error("the folder {} cannot be made", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
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

/// Records a run.
///
/// # Errors
/// [`RecordError`]; the folder may have been made.
pub fn record(options: &Options) -> Result<Recorded, RecordError> {
    let mut prepared = prepare(options)?;
    let launcher = &options.command[0];
    let folder = make_folder(&options.folder)
        .map_err(|source| RecordError::Folder { folder: options.folder.clone(), source })?;
    let kept = folder.join(SHIM);
    std::fs::copy(&prepared.shim, &kept)
        .map_err(|source| RecordError::Folder { folder: options.folder.clone(), source })?;
    prepared.shim = kept;
    let status = prepared
        .command(options, &folder)
        .status()
        .map_err(|source| RecordError::Start { launcher: launcher.clone(), source })?;
    let run = Run::open(&folder).map_err(|source| RecordError::Folder { folder, source })?;
    Ok(Recorded { status, run, family: prepared.family })
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

fn make_folder(folder: &Path) -> io::Result<PathBuf> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::create_dir(folder)?;
    // Ranks may have another working folder.
    folder.canonicalize()
}

/// A number that no other run has: time, process, and an address of this one.
fn run_number() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let here = 0_u8;
    let seed = [now.as_nanos(), u128::from(std::process::id()), (&raw const here).addr() as u128];
    let bytes: Vec<u8> = seed.iter().flat_map(|number| number.to_le_bytes()).collect();
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes))
}
