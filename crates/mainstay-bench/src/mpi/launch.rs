//! One run of one program in one arm: started like by `mainstay mpi record`, timed within its ranks.

use super::{Given, MpiError};
use mainstay_mpi::command::record::{self, Prepared, prepare};
use mainstay_mpi::command::toolchain::{self, Family};
use mainstay_mpi::figures::Figures;
use mainstay_mpi::settings::{self, PAGE_BYTES_DEFAULT};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const CLOCK: &str = include_str!("clock.c");

/// A run that takes longer is ended.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// Where there are more processors, no more ranks are started unless asked for: a program of a few seconds.
const RANKS_MAX: u32 = 4;

/// A program with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) words: Vec<String>,
    pub(super) ranks: u32,
    /// Where it runs.
    pub(super) folder: PathBuf,
}

/// One way of running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// Nothing is recorded.
    Base,
    /// Recorded with so many pages; 0 for buffering only.
    Pages {
        pages: u32,
        /// Whether each page reaches the disk before its slot is used again.
        synced: bool,
        /// Whether the log is on a file system in memory.
        in_memory: bool,
        /// Whether copying is measured.
        measured: bool,
    },
}

impl Arm {
    pub(super) const fn pages(pages: u32) -> Self {
        Self::Pages { pages, synced: false, in_memory: false, measured: false }
    }

    pub(super) fn name(&self) -> String {
        let Self::Pages { pages, synced, in_memory, measured } = self else {
            return "base".to_owned();
        };
        let mut name = match pages {
            0 => "buffering only".to_owned(),
            1 => "1 page".to_owned(),
            _ => format!("{pages} pages"),
        };
        for (is, said) in [(*synced, ", synced"), (*in_memory, ", in memory"), (*measured, ", measured")] {
            name.push_str(if is { said } else { "" });
        }
        name
    }
}

/// What a run took.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// From `MPI_Init` to `MPI_Finalize`, of the slowest rank, in seconds.
    pub(super) elapsed_s: f64,
    /// Processor time of all ranks together, their writing threads included, in seconds.
    pub(super) cpu_s: f64,
    /// What each rank's recorder says; nothing in the base.
    pub(super) figures: Vec<Figures>,
    /// What the program printed.
    pub(super) printed: String,
}

/// A launcher, with the shim for its MPI.
#[derive(Debug)]
pub(super) struct Launcher {
    words: Vec<String>,
    pub(super) compiler: String,
    prepared: Prepared,
    clock: PathBuf,
    cache: PathBuf,
    scratch: PathBuf,
    pub(super) ranks: u32,
}

impl Launcher {
    pub(super) fn new(given: &Given, scratch: &Path) -> Result<Self, MpiError> {
        // Programs run in other folders.
        let scratch = &scratch.canonicalize()?;
        let usual = ["mpirun.openmpi", "mpirun", "mpirun.mpich", "mpiexec"];
        let launcher = match &given.launcher {
            Some(launcher) => launcher.clone(),
            None => usual
                .into_iter()
                .find(|name| toolchain::family_of_launcher(name).is_some())
                .ok_or_else(|| MpiError::NoLauncher { tried: usual.join(", ") })?
                .to_owned(),
        };
        let family = toolchain::family_of_launcher(&launcher)
            .ok_or_else(|| MpiError::NoLauncher { tried: launcher.clone() })?;
        let compiler = toolchain::find_compiler(family, &launcher)?;
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let ranks = given.ranks.unwrap_or_else(|| u32::try_from(processors).unwrap_or(2).clamp(2, RANKS_MAX));
        let mut words = vec![launcher];
        if family == Family::OpenMpi {
            // SAFETY: a number, and nothing that can fail.
            if unsafe { libc::geteuid() } == 0 {
                words.push("--allow-run-as-root".to_owned());
            }
            if ranks as usize > processors {
                words.push("--oversubscribe".to_owned());
            }
        }
        let options = options(&words, &given.cache, Arm::pages(1), scratch);
        let clock = scratch.join("clock.so");
        compile("cc", &["-O1", "-shared", "-fPIC"], "clock.c", CLOCK, &clock)?;
        let mut prepared = prepare(&options)?;
        prepared.before_shim.push(clock.clone());
        let (cache, scratch) = (given.cache.clone(), scratch.to_owned());
        Ok(Self { words, compiler, prepared, clock, cache, scratch, ranks })
    }

    /// Whether a program is linked with the MPI of this launcher.
    pub(super) fn can_run(&self, program: &Path) -> bool {
        fs::read(program)
            .is_ok_and(|bytes| toolchain::family_of_program(&bytes) == Some(self.prepared.family))
    }

    /// Compiles an MPI program.
    pub(super) fn compile(&self, name: &'static str, source: &str) -> Result<PathBuf, MpiError> {
        let binary = self.scratch.join(name).with_extension("");
        if !binary.exists() {
            compile(&self.compiler, &["-O2", "-w"], name, source, &binary)?;
        }
        Ok(binary)
    }

    /// Runs a program once. Its log is removed.
    pub(super) fn run(&self, program: &Program, arm: &Arm) -> Result<Run, MpiError> {
        let parent = match arm {
            Arm::Pages { in_memory: true, .. } => Path::new("/dev/shm"),
            _ => self.scratch.as_path(),
        };
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(parent)?;
        let failed =
            |what: String| MpiError::Program { program: program.name.clone(), arm: arm.name(), what };
        let mut words = self.words.clone();
        words.extend(["-np".to_owned(), program.ranks.to_string()]);
        words.extend(program.words.iter().cloned());
        let mut command = match arm {
            Arm::Base => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).env("LD_PRELOAD", &self.clock);
                command
            }
            Arm::Pages { synced, measured, .. } => {
                let options = options(&words, &self.cache, arm.clone(), folder.path());
                let mut command = self.prepared.command(&options, folder.path());
                for (is, name) in [(*synced, settings::SYNCED), (*measured, settings::MEASURE_COPIES)] {
                    if is {
                        command.env(name, "1");
                    }
                }
                command.env(settings::FIGURES, folder.path());
                command
            }
        };
        let (printed, said) = (folder.path().join("printed"), folder.path().join("said"));
        command
            .env("MAINSTAY_BENCH_CLOCK", folder.path())
            .current_dir(&program.folder)
            .stdin(Stdio::null())
            .stdout(File::create(&printed)?)
            .stderr(File::create(&said)?);
        let status = wait_at_most(command.spawn()?, RUN_LIMIT)?;
        match status {
            None => return Err(failed(format!("still ran after {} s", RUN_LIMIT.as_secs()))),
            Some(status) if !status.success() => {
                let said = fs::read_to_string(&said).unwrap_or_default();
                return Err(failed(format!(
                    "{status}: {}",
                    said.lines().take(8).collect::<Vec<_>>().join("; ")
                )));
            }
            Some(_) => {}
        }
        let (mut elapsed_s, mut cpu_s, mut ranks) = (0.0_f64, 0.0, 0);
        let mut figures = Vec::new();
        for entry in fs::read_dir(folder.path())? {
            let path = entry?.path();
            let extension = path.extension().unwrap_or_default();
            if extension == "clock" {
                let text = fs::read_to_string(&path)?;
                let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
                let (Some(took_ns), Some(used_ns)) = (numbers.next(), numbers.next()) else {
                    return Err(failed(format!("a rank left `{text}` as its time")));
                };
                elapsed_s = elapsed_s.max(took_ns / 1e9);
                cpu_s += used_ns / 1e9;
                ranks += 1;
            } else if extension == "figures" {
                figures.extend(Figures::read(&path));
            }
        }
        let recorded = if *arm == Arm::Base { 0 } else { program.ranks as usize };
        if ranks != program.ranks || figures.len() != recorded {
            return Err(failed(format!(
                "{ranks} of {} ranks came to MPI_Finalize, {} of {recorded} recorders to their end",
                program.ranks,
                figures.len()
            )));
        }
        Ok(Run { elapsed_s, cpu_s, figures, printed: fs::read_to_string(&printed).unwrap_or_default() })
    }
}

fn options(words: &[String], cache: &Path, arm: Arm, folder: &Path) -> record::Options {
    let pages = match arm {
        Arm::Base => 0,
        Arm::Pages { pages, .. } => pages,
    };
    record::Options {
        command: words.to_vec(),
        folder: folder.to_owned(),
        overwrite: false,
        compiler: None,
        cache: cache.to_owned(),
        pages,
        page_bytes: PAGE_BYTES_DEFAULT,
        timed: true,
        drop_when_behind: false,
        keep_last_bytes: None,
        payload: mainstay_mpi::payload::Payload::default(),
        compress: false,
        fill_memory: false,
    }
}

fn compile(
    compiler: &str,
    options: &[&str],
    source_name: &'static str,
    source: &str,
    binary: &Path,
) -> Result<(), MpiError> {
    let path = binary.with_extension("c");
    fs::write(&path, source)?;
    let output =
        Command::new(compiler).args(options).arg("-o").arg(binary).arg(&path).arg("-ldl").output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(MpiError::Compiler { compiler: compiler.to_owned(), source_name, stderr })
}

/// How it ended; nothing if it had to be ended. A launcher that is asked to end ends its ranks.
fn wait_at_most(mut child: Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!asked).then_some(status));
        }
        if begun.elapsed() > limit && !asked {
            asked = true;
            let process = libc::pid_t::try_from(child.id()).expect("a process number");
            // SAFETY: our child, not yet waited for, so the number is still its own.
            unsafe { libc::kill(process, libc::SIGTERM) };
        }
        if begun.elapsed() > limit + Duration::from_secs(10) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
