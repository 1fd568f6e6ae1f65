//! Kills one child at the moment that the plan names, and says what was really seen of that moment.

use super::board::Board;
use super::children::Children;
use super::lines;
use super::plan::{Kill, Moment, Role};
use super::requests::CLIENTS;
use super::run::{KillRecord, RecoveryRecord, RunFolder, Settings};
use mainstay_journal::format::RING_FILE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the moment asked for is waited for before the kill is made anyway.
const MOMENT_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a request in flight is waited for.
const IN_FLIGHT_WAIT_MAX: Duration = Duration::from_millis(200);

/// A process at work is killed within this time.
pub(crate) const WORKING_DELAY_MAX: Duration = Duration::from_millis(10);

/// A checkpoint of the small ledger takes about this long from the appearance of its file.
pub(crate) const CHECKPOINT_TYPICAL: Duration = Duration::from_micros(800);

/// A first guess at how long recovery takes, until one was seen.
const RECOVERY_TYPICAL: Duration = Duration::from_millis(20);

/// A kill within recovery is aimed no later than at this part of what the last one took: the next may be faster.
const RECOVERY_AIM_MAX: f64 = 0.7;

/// How often files are looked at while a moment is waited for.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Makes one kill of a child and starts it again.
///
/// # Errors
/// Those of files and processes.
pub(crate) fn kill(
    folder: &RunFolder,
    settings: &Settings,
    board: &Board,
    children: &mut Children,
    index: u64,
    kill: &Kill,
) -> anyhow::Result<KillRecord> {
    let mut record = KillRecord {
        index,
        role: kill.role,
        moment: kill.moment,
        recovering: false,
        checkpointing: false,
        in_flight: false,
    };
    match (kill.role, kill.moment) {
        (Role::Service, Moment::Recovering) => {
            let pid = children.pid(Role::Service);
            let began = wait_for_recovery(&folder.service(), pid);
            std::thread::sleep(aim_in_recovery(&folder.recoveries(), kill.delay)?);
            let before = board.in_flight()?;
            kill_service(folder, settings, children)?;
            record.in_flight = still_in_flight(before, board)?;
            let ready = lines::read::<RecoveryRecord>(&folder.recoveries())?;
            record.recovering = began && !ready.iter().any(|ready| Some(ready.pid) == pid);
        }
        (Role::Service, Moment::Checkpointing) => {
            let partial = wait_for_checkpoint(&folder.service(), settings.service_port)?;
            if partial.is_some() {
                std::thread::sleep(CHECKPOINT_TYPICAL.mul_f64(kill.delay));
            }
            let before = board.in_flight()?;
            kill_service(folder, settings, children)?;
            record.in_flight = still_in_flight(before, board)?;
            record.checkpointing = partial.is_some_and(|name| folder.service().join(name).exists());
        }
        (role, _) => {
            std::thread::sleep(WORKING_DELAY_MAX.mul_f64(kill.delay));
            let before = wait_for_request(board, role)?;
            match role {
                Role::Service => kill_service(folder, settings, children)?,
                _ => children.kill(role)?,
            }
            record.in_flight = match role {
                Role::Service => still_in_flight(before, board)?,
                Role::Client(client) => before[client] != 0 && board.in_flight()?[client] == before[client],
                _ => false,
            };
        }
    }
    children.spawn(kill.role, board)?;
    Ok(record)
}

fn kill_service(folder: &RunFolder, settings: &Settings, children: &mut Children) -> anyhow::Result<()> {
    children.kill(Role::Service)?;
    if settings.lose_ring {
        lose_ring(&folder.service())?;
    }
    Ok(())
}

/// Removes what the memory of a killed service held, as if its machine had lost power.
///
/// # Errors
/// Those of the file.
pub(crate) fn lose_ring(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(directory.join(RING_FILE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether a client was waiting for the same answer before the kill and after the death: then the death came in between.
///
/// # Errors
/// Those of the board.
pub(crate) fn still_in_flight(before: [u64; CLIENTS], board: &Board) -> anyhow::Result<bool> {
    let after = board.in_flight()?;
    Ok(before.iter().zip(after).any(|(&before, after)| before != 0 && before == after))
}

/// Waits until a request is being made: of the client to be killed, or of any.
///
/// # Errors
/// Those of the board.
pub(crate) fn wait_for_request(board: &Board, role: Role) -> anyhow::Result<[u64; CLIENTS]> {
    let began = Instant::now();
    loop {
        let in_flight = board.in_flight()?;
        let wanted = match role {
            Role::Client(client) => in_flight[client] != 0,
            _ => in_flight.iter().any(|&request| request != 0),
        };
        if wanted || began.elapsed() > IN_FLIGHT_WAIT_MAX {
            return Ok(in_flight);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until the service has the lock of its directory, which is the beginning of its recovery.
pub(crate) fn wait_for_recovery(directory: &Path, pid: Option<u32>) -> bool {
    let lock = directory.join("lock");
    let began = Instant::now();
    while began.elapsed() < MOMENT_WAIT_MAX {
        let holder = std::fs::read_to_string(&lock).unwrap_or_default();
        let holder: Option<u32> = holder.lines().next().and_then(|line| line.parse().ok());
        if holder.is_some() && holder == pid {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    false
}

/// Where in its recovery a service is to be killed: at a random place of what the last one took, given as a fraction.
///
/// # Errors
/// Those of the file.
pub(crate) fn aim_in_recovery(recoveries: &Path, delay: f64) -> anyhow::Result<Duration> {
    let last = lines::read::<RecoveryRecord>(recoveries)?.into_iter().rev().find(|ready| !ready.created);
    let usual = last.map_or(RECOVERY_TYPICAL, |ready| Duration::from_secs_f64(ready.recovery_ms / 1000.0));
    Ok(usual.mul_f64(RECOVERY_AIM_MAX * delay))
}

/// Asks the service for a checkpoint and waits until its file appears under its temporary name, which is returned.
///
/// # Errors
/// Those of the watch.
pub(crate) fn wait_for_checkpoint(directory: &Path, port: u16) -> anyhow::Result<Option<String>> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, directory, inotify::WatchFlags::CREATE)?;
    let waited_for = Arc::new(AtomicBool::new(true));
    let asking = std::thread::spawn({
        let waited_for = Arc::clone(&waited_for);
        move || {
            let agent: ureq::Agent =
                ureq::Agent::config_builder().timeout_global(Some(MOMENT_WAIT_MAX)).build().new_agent();
            let url = format!("http://127.0.0.1:{port}/checkpoint");
            // It may be recovering still from the kill before.
            while waited_for.load(Ordering::Relaxed) && agent.post(&url).send_empty().is_err() {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    });
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let began = Instant::now();
    let mut found = None;
    while found.is_none() && began.elapsed() < MOMENT_WAIT_MAX {
        // The moment is over within a millisecond: whoever sleeps between two looks misses it.
        poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))?;
        match events.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                found = name.filter(|name| name.starts_with("checkpoint-") && name.ends_with(".partial"));
            }
            Err(Errno::AGAIN) if asking.is_finished() && began.elapsed() > MOMENT_WAIT_MAX / 4 => break,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    waited_for.store(false, Ordering::Relaxed);
    Ok(found)
}
