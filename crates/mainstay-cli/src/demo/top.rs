//! The process that the user starts: keeps the supervisor running, kills it when the plan says so, audits at the end.

use super::Demo;
use super::audit::{Evidence, audit};
use super::board::{Board, Slot};
use super::children::part;
use super::draw::Draw;
use super::killer::{still_in_flight, wait_for_request};
use super::lines::{self, Lines};
use super::plan::{Kill, Moment, Role, plan};
use super::progress::Progress;
use super::report::Report;
use super::requests::CLIENTS;
use super::run::{KillRecord, RunFolder, Settings};
use super::topology::Topology;
use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use mainstay_types::level::Level;
use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Requests unless the user says otherwise.
const REQUESTS_DEFAULT: u64 = 40_000;

/// Kills unless the user says otherwise.
const KILLS_DEFAULT: u64 = 120;

/// How often progress is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A demo in which nothing happens for so long is given up.
pub(crate) const STANDSTILL_MAX: Duration = Duration::from_secs(120);

/// The supervisor is killed within this time of the moment being due.
const SUPERVISOR_DELAY_MAX: Duration = Duration::from_millis(20);

/// Supervisors that may end without having been killed before the demo gives up.
const UNEXPLAINED_DEATHS_MAX: u32 = 3;

/// Runs the demo.
///
/// # Errors
/// When it cannot be run to its end; what the audit finds is no error.
pub(crate) fn demo(options: &Demo) -> anyhow::Result<Verdict> {
    if options.level == Level::Memory {
        let explanation =
            "--level memory promises nothing that a kill -9 could test; use disk or process".to_owned();
        return Err(UsageError { explanation }.into());
    }
    if options.level == Level::Peers {
        let explanation =
            "--level peers needs a region, which this demo does not start; use disk or process".to_owned();
        return Err(UsageError { explanation }.into());
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    if options.topology == Some(Topology::Region) {
        return super::region::top::demo(options, &interrupted);
    }
    if let Some(topology) = options.topology {
        return super::topology::top::demo(options, topology, &interrupted);
    }
    let place = Place::new(options)?;
    let settings = settings(options)?;
    let folder = RunFolder::new(place.path());
    folder.prepare(&settings)?;
    if !options.json {
        println!(
            "{} requests by {CLIENTS} clients to a ledger, {} kills -9, seed {}, level {}; folder {}",
            settings.requests,
            settings.kills,
            settings.seed,
            settings.level,
            place.path().display()
        );
    }
    let began = Instant::now();
    let mut supervisor = Supervised::start(&folder)?;
    let outcome = watch(&folder, &settings, &mut supervisor, &interrupted);
    supervisor.end(&folder)?;
    if let Err(error) = outcome {
        let kept = place.keep();
        return Err(error.context(format!("the demo did not come to its end; its files are kept in {kept}")));
    }
    let report = report(&folder, &settings, began.elapsed())?;
    let keep = options.keep || options.dir.is_some() || !report.kept();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("\n{}", report.table());
        println!("{}", closing_words(&report, &folder, keep));
    }
    if keep {
        let kept = place.keep();
        if options.json && !report.kept() {
            eprintln!("mainstay: the files of this run are kept in {kept}");
        }
    }
    Ok(if report.kept() { Verdict::Clean } else { Verdict::Wrong })
}

fn settings(options: &Demo) -> anyhow::Result<Settings> {
    let [service_port, receiver_once_port, receiver_again_port] = free_ports()?;
    let record = options.record.as_deref().map(std::path::absolute).transpose()?;
    Ok(Settings {
        seed: options.seed,
        requests: options.requests.unwrap_or(REQUESTS_DEFAULT),
        kills: options.kills.unwrap_or(KILLS_DEFAULT),
        level: options.level,
        service_port,
        receiver_once_port,
        receiver_again_port,
        record,
        skip_syncs: options.skip_syncs.clone().map(|syncs| syncs.0),
        lose_ring: options.lose_ring,
    })
}

/// Waits for the end, killing and restarting the supervisor meanwhile.
fn watch(
    folder: &RunFolder,
    settings: &Settings,
    supervisor: &mut Supervised,
    interrupted: &AtomicBool,
) -> anyhow::Result<()> {
    let plan = plan(settings.seed, settings.kills, settings.requests);
    let board = Board::open(&folder.board())?;
    let mut progress = Progress::new(settings.requests, settings.kills);
    let mut moved = (Instant::now(), (0, 0));
    let mut unexplained_deaths = 0;
    loop {
        let (answered, killed) = (board.answered()?, board.read(Slot::Kills)?);
        progress.show(answered, killed);
        if (answered, killed) != moved.1 {
            moved = (Instant::now(), (answered, killed));
        }
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if moved.0.elapsed() > STANDSTILL_MAX {
            bail!(
                "nothing has happened for {STANDSTILL_MAX:?}: {answered} requests answered, {killed} kills made"
            );
        }
        let due = plan.get(usize::try_from(killed)?);
        if let Some(status) = supervisor.ended()? {
            if status.success() {
                progress.finish();
                return Ok(());
            }
            unexplained_deaths += 1;
            if unexplained_deaths > UNEXPLAINED_DEATHS_MAX {
                bail!("the supervisor ended with {status}; see {}", folder.log(Role::Supervisor).display());
            }
            supervisor.restart(folder)?;
        } else if let Some(due) = due
            && due.role == Role::Supervisor
            && answered >= due.after_answered
        {
            kill_supervisor(folder, &board, supervisor, killed, due)?;
        } else {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn kill_supervisor(
    folder: &RunFolder,
    board: &Board,
    supervisor: &mut Supervised,
    index: u64,
    due: &Kill,
) -> anyhow::Result<()> {
    std::thread::sleep(SUPERVISOR_DELAY_MAX.mul_f64(due.delay));
    let before = wait_for_request(board, Role::Supervisor)?;
    supervisor.kill()?;
    let record = KillRecord {
        index,
        role: Role::Supervisor,
        moment: Moment::Working,
        recovering: false,
        checkpointing: false,
        in_flight: still_in_flight(before, board)?,
    };
    Lines::open(&folder.kills())?.append(&record)?;
    board.write(Slot::Kills, index + 1)?;
    supervisor.restart(folder)
}

fn report(folder: &RunFolder, settings: &Settings, took: Duration) -> anyhow::Result<Report> {
    let ending = folder.ending()?;
    let clients =
        (0..CLIENTS).map(|client| lines::read(&folder.client(client))).collect::<Result<Vec<_>, _>>()?;
    let findings = audit(&Evidence {
        settings,
        clients: &clients,
        once: &lines::read::<super::receiver::Received>(&folder.receiver(Role::ReceiverOnce))?,
        again: &lines::read::<super::receiver::Received>(&folder.receiver(Role::ReceiverAgain))?,
        view: &ending.view,
        in_doubt: &ending.in_doubt,
    });
    let kills: Vec<KillRecord> = lines::read(&folder.kills())?;
    let recoveries: Vec<super::run::RecoveryRecord> = lines::read(&folder.recoveries())?;
    Ok(Report::new(settings, &kills, &recoveries, ending.stopped_cleanly, findings, took))
}

fn closing_words(report: &Report, folder: &RunFolder, keep: bool) -> String {
    let service = folder.service();
    let mut words = if report.kept() {
        "Nothing lost, nothing doubled: every request was answered as by a ledger that never failed.\n"
            .to_owned()
    } else {
        "THE PROMISE WAS BROKEN; the lines marked with ! say where.\n".to_owned()
    };
    words.push_str("\nWhere to look next:\n");
    if keep {
        words.push_str(&format!(
            "  mainstay journal stat {0}    what the journal holds\n  \
               mainstay journal dump {0}    every record of it\n  \
               {1}    what clients, receivers and processes wrote\n",
            service.display(),
            folder.path().display()
        ));
    } else {
        words.push_str("  mainstay demo --keep                 keep the files and look at them with `mainstay journal`\n");
    }
    words.push_str(
        "  mainstay serve                       the ledger for yourself: curl it, kill -9 it, curl it again\n  \
           crates/mainstay-cli/src/ledger.rs    the service, which knows nothing of crashes",
    );
    words
}

/// The folder: the user's own, or a temporary one that is removed unless there is something to look at.
pub(crate) enum Place {
    /// The user's own.
    Given(std::path::PathBuf),
    /// A temporary one.
    Temporary(tempfile::TempDir),
}

impl Place {
    /// Where the user wants it.
    ///
    /// # Errors
    /// When it cannot be made, or is in use.
    pub(crate) fn new(options: &Demo) -> anyhow::Result<Self> {
        let Some(given) = &options.dir else {
            let made = tempfile::Builder::new().prefix("mainstay-demo-").tempdir();
            return Ok(Self::Temporary(made.context("cannot make a temporary folder")?));
        };
        let given = empty_folder(given, "--dir")?;
        Ok(Self::Given(given))
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }

    /// Leaves it there; says where.
    #[must_use]
    pub(crate) fn keep(self) -> String {
        match self {
            Self::Given(path) => path.display().to_string(),
            Self::Temporary(folder) => folder.keep().display().to_string(),
        }
    }
}

/// The folder that the user named with `flag`, made if it is not there.
///
/// # Errors
/// When it cannot be made, or is in use.
pub(crate) fn empty_folder(given: &Path, flag: &str) -> anyhow::Result<std::path::PathBuf> {
    let given = std::path::absolute(given)?;
    std::fs::create_dir_all(&given).with_context(|| format!("cannot make {}", given.display()))?;
    let mut entries =
        std::fs::read_dir(&given).with_context(|| format!("cannot read {}", given.display()))?;
    if entries.next().is_some() {
        let explanation = format!("{flag} {} is not empty; name an empty or new folder", given.display());
        return Err(UsageError { explanation }.into());
    }
    Ok(given)
}

/// The supervisor process. Killed when this is dropped, and all its children with it.
#[derive(Debug)]
struct Supervised(Child);

impl Supervised {
    fn start(folder: &RunFolder) -> anyhow::Result<Self> {
        part(folder, Role::Supervisor).map(Self)
    }

    fn restart(&mut self, folder: &RunFolder) -> anyhow::Result<()> {
        self.0 = part(folder, Role::Supervisor)?;
        Ok(())
    }

    fn ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Kills it if it still runs, and returns when no child of it holds a file any more.
    fn end(mut self, folder: &RunFolder) -> anyhow::Result<()> {
        self.kill()?;
        Lines::open(&folder.kills())?;
        for role in [Role::ReceiverOnce, Role::ReceiverAgain] {
            Lines::open(&folder.receiver(role))?;
        }
        for client in 0..CLIENTS {
            Lines::open(&folder.client(client))?;
        }
        super::service::wait_until_gone(folder)
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and a child that is gone is what is wanted.
        let _ = self.kill();
    }
}

/// Ports that nobody listens on. They lie below the range from which the kernel takes ports for outgoing connections:
/// else a client could be given the port of a service that is down just then, and keep it.
///
/// # Errors
/// When there are none.
pub(crate) fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    const LOWEST: u16 = 10_000;
    const TRIES_MAX: u32 = 1000;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ephemeral: u16 = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    if ephemeral <= LOWEST {
        bail!(
            "ports {ephemeral} and up are for outgoing connections (net.ipv4.ip_local_port_range): none is left for the demo"
        );
    }
    let moment = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut draw = Draw::new(moment.as_nanos() as u64, u64::from(std::process::id()));
    let mut held = Vec::new();
    for _ in 0..TRIES_MAX {
        let port = LOWEST + u16::try_from(draw.below(u64::from(ephemeral - LOWEST))).expect("below a port");
        held.extend(TcpListener::bind(("127.0.0.1", port)).ok().map(|listener| (port, listener)));
        if held.len() == N {
            return Ok(std::array::from_fn(|place| held[place].0));
        }
    }
    bail!("no free port was found between {LOWEST} and {ephemeral}")
}
