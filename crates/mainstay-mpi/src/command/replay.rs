//! `mainstay mpi replay`: starts the program of one rank again, alone, with its calls served from its log.

use super::bundle::{Bundle, BundleError};
use super::toolchain;
use crate::ending::{Cause, Ending};
use crate::format::Kind;
use crate::payload::Payload;
use crate::reader::ReadError;
use crate::reader::damage::Damage;
use crate::run::{Run, RunError, Start};
use crate::settings;
use crate::verdict::{self, Left};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What to replay.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder of the run.
    pub folder: PathBuf,
    /// The rank.
    pub rank: u32,
    /// In gdb.
    pub debugger: bool,
    /// Words of a command that runs the program: `valgrind`, for instance. None: it runs by itself.
    pub under: Vec<String>,
    /// Commands for gdb: it carries them out and ends. None: it asks for them.
    pub debugger_commands: Vec<String>,
    /// Number of the call to stop at.
    pub until: Option<u64>,
    /// Sends with other data are counted and let pass.
    pub tolerate_send_diff: bool,
    /// The executable may be another one than was recorded.
    pub changed_program: bool,
    /// Working folder, if not the one it was recorded in.
    pub working_folder: Option<PathBuf>,
    /// File for the rank's standard output, if it is not ours.
    pub output: Option<PathBuf>,
    /// Where the file for the verdict may be made.
    pub scratch: PathBuf,
}

/// How a replay ended.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// How the program, or the debugger, ended.
    pub status: ExitStatus,
    /// What the shim said.
    pub left: Left,
    /// Calls in the log.
    pub calls: u64,
    /// Whether the log says that the process ended by itself.
    pub ended: bool,
    /// The status that the recorded process left with by `_exit`, if it did.
    pub recorded_left: Option<i32>,
    /// What is wrong with the log.
    pub damage: Option<Damage>,
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program ended as it was recorded.
    Complete,
    /// It was killed by a signal where the recorded one stopped, too.
    CrashedAgain,
    /// The log ends where it came to: the recorded process was cut off in this call, or recording had stopped.
    LogEnds,
    /// The call that it was to stop at.
    Until,
    /// The recorded process ended between two calls, killed or by a crash, and this one went on.
    WentOn,
    /// Something else was called, handed in or the end.
    Diverged,
    /// A call that cannot be replayed.
    Unsupported,
    /// The log is damaged, and was replayed as far as it is good.
    Damaged,
}

impl Replayed {
    /// What it came to.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        // Behind the last call of a log that was cut off.
        let at_end = self.left.calls == self.calls && !self.ended;
        let code = |status: i32| status & 0xff;
        match (self.left.word.as_str(), self.recorded_left, self.left.exited) {
            ("log-ends" | "went-on" | "", ..) if self.damage.is_some() && at_end => Outcome::Damaged,
            ("complete", ..) => Outcome::Complete,
            ("log-ends", ..) => Outcome::LogEnds,
            ("until", ..) => Outcome::Until,
            ("went-on", ..) => Outcome::WentOn,
            ("unsupported", ..) => Outcome::Unsupported,
            ("", None, None) if at_end && self.status.signal().is_some() => Outcome::CrashedAgain,
            ("", None, Some(_)) if at_end => Outcome::WentOn,
            ("", Some(recorded), Some(now)) if at_end && code(recorded) == code(now) => Outcome::Complete,
            _ => Outcome::Diverged,
        }
    }

    /// Whether the replay did what the recorded rank did, as far as the log goes.
    #[must_use]
    pub fn same(&self) -> bool {
        match self.outcome() {
            Outcome::Complete | Outcome::CrashedAgain | Outcome::LogEnds | Outcome::Until => true,
            Outcome::WentOn | Outcome::Diverged | Outcome::Unsupported | Outcome::Damaged => false,
        }
    }

    /// One line that says it.
    #[must_use]
    pub fn line(&self) -> String {
        let (text, outcome) = (&self.left.text, self.outcome());
        let end = if self.left.word.is_empty() { self.end_text() } else { text.clone() };
        let line = match outcome {
            Outcome::Complete => format!("complete: {end}"),
            Outcome::CrashedAgain => format!("crashed again: {end}, where the recorded one stopped too"),
            Outcome::LogEnds => format!("as far as the log goes: {end}"),
            Outcome::Until => end,
            Outcome::WentOn => format!("went on: {end}"),
            Outcome::Diverged => format!("diverged: {end}"),
            Outcome::Unsupported => format!("unsupported: {end}"),
            Outcome::Damaged => "as far as the log is good".to_owned(),
        };
        match self.left.differences {
            0 => line,
            1 => format!("{line}; 1 send differed and was let pass"),
            differences => format!("{line}; {differences} sends differed and were let pass"),
        }
    }

    /// How a program ended that had no time to say so.
    fn end_text(&self) -> String {
        let how = match (self.status.signal(), self.left.exited) {
            (Some(signal), _) => format!("killed by signal {signal}"),
            (None, Some(status)) => format!("_exit with status {}", status & 0xff),
            (None, None) => format!("{} without a word", self.status),
        };
        let recorded = match self.recorded_left {
            Some(status) if self.outcome() == Outcome::Complete => {
                format!(", as status {} was recorded", status & 0xff)
            }
            Some(status) => format!("; recorded was _exit with status {}", status & 0xff),
            None if self.ended => "; the recorded rank ended by itself".to_owned(),
            None => String::new(),
        };
        format!("{how} after call {} of {}{recorded}", self.left.calls, self.calls)
    }
}

/// Nothing was replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The run cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// What recorded the run, and would replay it, is gone.
    #[error("{} is missing, which recorded the run and replays it: nothing was run; bring it from the folder of the recording", shim.display())]
    NoShim {
        /// Where it should be.
        shim: PathBuf,
    },
    /// It has no log of that rank.
    #[error("the run has no log of rank {rank}; it has {ranks}")]
    NoRank {
        /// The rank.
        rank: u32,
        /// Those it has.
        ranks: String,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// The log does not even say what was started.
    #[error(
        "the log of rank {rank} is cut off before it says which program ran: nothing of it can be replayed"
    )]
    Cut {
        /// The rank.
        rank: u32,
    },
    /// The bytes of messages are in other logs.
    #[error(
        "the log of rank {rank} says which messages came, and the logs of their senders have the bytes (--payload sender): \
             `mainstay mpi extract {} --rank {rank}` makes a bundle of both, which can be replayed", folder.display()
    )]
    NeedsExtract {
        /// The rank.
        rank: u32,
        /// The folder of the run.
        folder: PathBuf,
    },
    /// The bytes of messages are nowhere.
    #[error(
        "the run was recorded with --payload none, the order of messages and none of their bytes: it cannot be replayed; record it again with \
         --payload receiver or sender"
    )]
    OrderOnly,
    /// A bundle is not what it was.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The executable is another one.
    #[error("{} is not the executable that was recorded (or is gone): bring that one back, or say --changed-program", program.display())]
    Changed {
        /// The executable.
        program: PathBuf,
    },
    /// The log is from another kind of machine.
    #[error(
        "the run was recorded on {recorded}, this is {here}: nothing was run; replay it on a machine of that kind"
    )]
    Architecture {
        /// There.
        recorded: String,
        /// Here.
        here: &'static str,
    },
    /// The loader would take the path of the shim for several.
    #[error("{} has a space or a colon in its path, at which the loader of programs would cut it: move the run", shim.display())]
    Unloadable {
        /// The shim, from the root.
        shim: PathBuf,
    },
    /// The log has no call of that number.
    #[error("--until {until}: the log of rank {rank} has calls 1 to {calls}")]
    Until {
        /// The number.
        until: u64,
        /// The rank.
        rank: u32,
        /// Calls in its log.
        calls: u64,
    },
    /// Something cannot be started.
    #[error("{what} cannot be started")]
    Start {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// Replays a rank.
///
/// # Errors
/// [`ReplayError`] when nothing could be started.
pub fn replay(options: &Options) -> Result<Replayed, ReplayError> {
    let run = Run::open(&options.folder)?;
    if !run.ranks.contains(&options.rank) {
        return Err(ReplayError::NoRank { rank: options.rank, ranks: listed(&run.ranks) });
    }
    match run.whole_reader(options.rank)?.header().payload {
        Payload::Receiver => {}
        Payload::Sender => {
            return Err(ReplayError::NeedsExtract { rank: options.rank, folder: options.folder.clone() });
        }
        Payload::None => return Err(ReplayError::OrderOnly),
    }
    let bundle = Bundle::open(&options.folder)?;
    let mut start = run.start(options.rank)?;
    if start.program.as_os_str().is_empty() {
        return Err(ReplayError::Cut { rank: options.rank });
    }
    if start.architecture != std::env::consts::ARCH {
        return Err(ReplayError::Architecture { recorded: start.architecture, here: std::env::consts::ARCH });
    }
    if let Some(bundle) = &bundle {
        start.program = bundle.program(&start);
        // Its own libraries are given to its loader.
        start.environment.retain(|(name, _)| name != "LD_LIBRARY_PATH");
        // The folder of the recording is another machine's.
        if !start.folder.is_dir() {
            start.folder = ".".into();
        }
    }
    if !run.shim().is_file() {
        return Err(ReplayError::NoShim { shim: run.shim() });
    }
    let hash = std::fs::read(&start.program).map(|bytes| settings::program_hash(&bytes));
    if hash.ok().as_ref() != Some(&start.hash) && !options.changed_program {
        return Err(ReplayError::Changed { program: start.program });
    }

    let end = End::of(&run, options.rank)?;
    if let Some(until) = options.until.filter(|until| !(1..=end.calls).contains(until)) {
        return Err(ReplayError::Until { until, rank: options.rank, calls: end.calls });
    }

    let absolute = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let shim = absolute(run.shim());
    if !toolchain::can_be_loaded(&shim) {
        return Err(ReplayError::Unloadable { shim });
    }
    let verdict = options.scratch.join("verdict");
    let mut variables: Vec<(String, String)> = start.environment.clone();
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
    set("LD_PRELOAD", shim.display().to_string());
    set(settings::REPLAY, absolute(run.log(options.rank)).display().to_string());
    set(settings::VERDICT, verdict.display().to_string());
    if let Some(until) = options.until {
        set(settings::UNTIL, until.to_string());
    }
    if options.tolerate_send_diff {
        set(settings::TOLERATE_SEND_DIFF, "1".to_owned());
    }
    let mut command = if options.debugger {
        set(settings::DEBUGGER, "1".to_owned());
        debugger(options, &start, bundle.as_ref(), &variables, &end)
            .map_err(|source| ReplayError::Start { what: "gdb".to_owned(), source })?
    } else {
        let (program, words) = match &bundle {
            Some(bundle) => bundle.command(&start),
            None if options.under.is_empty() => (start.program.clone(), Vec::new()),
            None => (by_its_name(&start), Vec::new()),
        };
        let mut command = match &options.under[..] {
            [] => Command::new(program),
            [tool, others @ ..] => {
                let mut command = Command::new(tool);
                command.args(others).arg(program);
                command
            }
        };
        if bundle.is_none() && options.under.is_empty() {
            command.arg0(start.arguments.first().map_or("", String::as_str));
        }
        command.args(words).args(start.arguments.iter().skip(1)).envs(variables);
        command
    };
    let folder = options.working_folder.clone().unwrap_or_else(|| start.folder.clone());
    command.current_dir(&folder);
    if let Some(output) = &options.output {
        let what = output.display().to_string();
        command.stdout(File::create(output).map_err(|source| ReplayError::Start { what, source })?);
    }
    let status = command.status().map_err(|source| ReplayError::Start {
        what: format!("{} in {}", command.get_program().display(), folder.display()),
        source,
    })?;
    let left = verdict::read(&verdict).unwrap_or_default();
    let (calls, ended) = (end.calls, end.ending.is_some());
    Ok(Replayed { status, left, calls, ended, recorded_left: end.left, damage: end.damage })
}

/// The executable by the path that it was started by, where that still leads to it: a Python in a virtual environment finds its modules
/// by its name, and a tool that starts it cannot give it another than the path.
fn by_its_name(start: &Start) -> PathBuf {
    let name = start.arguments.first().map_or("", String::as_str);
    let folders: Vec<PathBuf> = if name.contains('/') {
        vec![start.folder.clone()]
    } else {
        let path = start.environment.iter().find(|(variable, _)| variable == "PATH");
        path.map_or_else(Vec::new, |(_, folders)| std::env::split_paths(folders).collect())
    };
    let program = start.program.canonicalize().unwrap_or_else(|_| start.program.clone());
    let leads_there = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == program);
    let named = folders.into_iter().map(|folder| folder.join(name)).find(leads_there);
    named.unwrap_or_else(|| start.program.clone())
}

/// Under a loader that was started by name gdb takes the loader for the program. So it is told where the program is as soon as that
/// is mapped, which is when the libraries are.
const GDB_SYMBOLS: &str = r#"python
import os, struct
def mainstay_add_program(event):
    program = os.path.realpath(PROGRAM)
    process = gdb.selected_inferior().pid
    if not process:
        return
    with open("/proc/%d/maps" % process) as maps:
        mapped = [line.split() for line in maps]
    bases = [int(words[0].split("-")[0], 16) for words in mapped if " ".join(words[5:]) == program]
    if bases:
        gdb.events.new_objfile.disconnect(mainstay_add_program)
        with open(program, "rb") as file:
            # The type in an ELF header; 2 is an executable at a fixed place.
            fixed = struct.unpack("<H", file.read(18)[16:])[0] == 2
        place = "" if fixed else " -o 0x%x" % min(bases)
        gdb.execute("add-symbol-file '%s'%s" % (program, place), to_string=True)
gdb.events.new_objfile.connect(mainstay_add_program)
end
"#;

/// A breakpoint at a function of a library that is not loaded yet, about which gdb would complain.
fn break_quietly(function: &str) -> String {
    format!("python gdb.execute(\"break {function}\", to_string=True)\n")
}

/// A session of gdb with what is needed to walk through messages.
fn debugger(
    options: &Options,
    start: &Start,
    bundle: Option<&Bundle>,
    variables: &[(String, String)],
    end: &End,
) -> io::Result<Command> {
    let mut script = String::from(
        "set pagination off\nset confirm off\nset startup-with-shell off\nset breakpoint pending on\n\
         handle SIGPIPE nostop noprint pass\n",
    );
    for (name, value) in variables {
        let _ = writeln!(script, "set environment {name} {value}");
    }
    script.push_str(&break_quietly("mainstay_mpi_stop"));
    script.push_str(
        "commands\n  silent\n  printf \"%s\\n\", *(char **)&mainstay_mpi_why\nend\n\
         define mpi-next\n  set var *(int *)&mainstay_mpi_step = 1\n  continue\nend\n\
         document mpi-next\nGo on to the end of the next call of MPI, and say its number and name.\nend\n\
         define mpi-continue\n  set var *(int *)&mainstay_mpi_step = 0\n  continue\nend\n\
         document mpi-continue\nGo on to a crash, a divergence, the call of --until, or the end of the log.\nend\n\
         echo mainstay: run begins the replay; then mpi-next, mpi-continue, and all that gdb can do\\n\n",
    );
    if let Some(function) = end.function() {
        let _ = writeln!(script, "echo mainstay: the recorded rank ended by {function}: stops there\\n");
        script.push_str(&break_quietly(function));
    }
    if let Some(bundle) = bundle {
        let program = bundle.program(start).display().to_string();
        script.push_str(&GDB_SYMBOLS.replace("PROGRAM", &format!("{program:?}")));
    }
    let path = options.scratch.join("gdb-script");
    std::fs::write(&path, script)?;
    let mut command = Command::new("gdb");
    if !options.debugger_commands.is_empty() {
        command.arg("-batch");
    }
    command.arg("-q").arg("-x").arg(path);
    for each in &options.debugger_commands {
        command.arg("-ex").arg(each);
    }
    command.arg("--args");
    match bundle.map(|bundle| bundle.command(start)) {
        Some((loader, arguments)) => command.arg(loader).args(arguments),
        None => command.arg(by_its_name(start)),
    };
    command.args(start.arguments.iter().skip(1));
    Ok(command)
}

/// How the log of a rank ends.
#[derive(Clone, Debug, Default)]
struct End {
    calls: u64,
    /// How the process ended, if it ended by itself.
    ending: Option<Ending>,
    /// The status it left with by `_exit`.
    left: Option<i32>,
    damage: Option<Damage>,
}

impl End {
    fn of(run: &Run, rank: u32) -> Result<Self, ReadError> {
        let mut reader = run.reader(rank)?;
        let mut end = Self { left: reader.tail().left, ..Self::default() };
        while let Some(record) = reader.next_record() {
            if record.kind == Kind::End {
                end.ending = Some(Ending::of_record(&record.body));
                end.left = None;
            }
        }
        (end.calls, end.damage) = (reader.calls(), reader.damage().cloned());
        Ok(end)
    }

    /// The function to stop at in a debugger, if the process left by one.
    fn function(&self) -> Option<&'static str> {
        match (self.ending, self.left) {
            (Some(Ending { within: Some(_), .. }), _) => None,
            (Some(Ending { cause: Cause::Abort, .. }), _) => Some("MPI_Abort"),
            (Some(Ending { cause: Cause::Exit, .. }), _) => Some("exit"),
            (None, Some(_)) => Some("_exit"),
            _ => None,
        }
    }
}

fn listed(ranks: &[u32]) -> String {
    match ranks {
        [] => "none".to_owned(),
        [first, .., last] if *last as usize - *first as usize + 1 == ranks.len() => {
            format!("{first} to {last}")
        }
        _ => ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Where a run is recorded unless said otherwise.
#[must_use]
pub fn default_folder() -> &'static Path {
    Path::new("mainstay-mpi-run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_started_by_the_link_that_it_was_started_by() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, link) = (folder.path().join("python3.11"), folder.path().join("bin/python"));
        std::fs::write(&program, "").expect("a file");
        std::fs::create_dir(folder.path().join("bin")).expect("a folder");
        std::os::unix::fs::symlink(&program, &link).expect("a link");
        let start = |name: &str| Start {
            program: program.clone(),
            folder: folder.path().to_owned(),
            arguments: vec![name.to_owned()],
            environment: vec![("PATH".to_owned(), format!("/nowhere:{}/bin", folder.path().display()))],
            ..Start::default()
        };
        assert_eq!(by_its_name(&start("bin/python")), link);
        assert_eq!(by_its_name(&start("python")), link, "found on the path");
        assert_eq!(by_its_name(&start("another")), program);
        assert_eq!(by_its_name(&start("../another")), program);
    }
}
