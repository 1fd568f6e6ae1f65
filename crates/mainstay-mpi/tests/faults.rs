//! Programs that are wrong, under the MPIs that are installed: a crash that only a rare order of messages shows, deadlocks,
//! messages that nobody takes. What their logs tell.

use mainstay_mpi::command::check::{Checked, Log, check};
use mainstay_mpi::command::diff::{What, diff_rank};
use mainstay_mpi::command::record::{self, Recorded};
use mainstay_mpi::command::replay;
use mainstay_mpi::payload::Payload;
use mainstay_mpi::run::Run;
use mainstay_mpi::settings::{PAGE_BYTES_DEFAULT, PAGES_DEFAULT};
use mainstay_mpi::waiting::State;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Few: both MPIs spin while they wait, and CI has two cores.
const RANKS: u32 = 3;
/// One of so many orders of messages crashes.
const ORDERS: u32 = 4;
/// Each try crashes with a chance of one in `ORDERS`, so that all fail once in 10^12 runs of the test.
const TRIES_MAX: u32 = 96;
/// How often the crash is replayed in gdb; `MAINSTAY_MPI_REPLAYS` asks for more.
const REPLAYS: u32 = 3;
/// Longest wait for a job to hang.
const HANG_WAIT: Duration = Duration::from_secs(120);

/// An MPI, by the end of the names that Debian gives its commands.
#[derive(Clone, Copy)]
struct Mpi {
    suffix: &'static str,
    launcher_options: &'static [&'static str],
}

const MPIS: [Mpi; 2] = [
    Mpi { suffix: "openmpi", launcher_options: &["--allow-run-as-root", "--oversubscribe"] },
    Mpi { suffix: "mpich", launcher_options: &[] },
];

fn runs(command: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(command);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A compiled program and the folder for its runs.
struct Scene {
    mpi: Mpi,
    folder: TempDir,
}

impl Scene {
    /// One for each MPI that is there; the others are skipped by name.
    fn each(what: &str) -> Vec<Self> {
        let there = |mpi: &Mpi| {
            let there = runs(&format!("mpicc.{}", mpi.suffix), &["-show"]);
            if !there {
                println!("skipped: {what} under {}: it is not installed", mpi.suffix);
            }
            there
        };
        MPIS.into_iter().filter(there).map(Self::compiled).collect()
    }

    fn compiled(mpi: Mpi) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/faults.c");
        let compiled = Command::new(format!("mpicc.{}", mpi.suffix))
            .args(["-O1", "-g", "-w", "-fno-inline", "-o"])
            .arg(folder.path().join("faults"))
            .arg(source)
            .output()
            .expect("a compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Self { mpi, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Records the program into the folder `run`; each rank prints into `RUN-RANK`.
    fn record(&self, run: &str, argument: &str) -> Recorded {
        let mut command = vec![format!("mpirun.{}", self.mpi.suffix)];
        command.extend(self.mpi.launcher_options.iter().map(|&option| option.to_owned()));
        command.extend(["-np".to_owned(), RANKS.to_string()]);
        let shell = format!(
            "ulimit -c 0; exec \"$@\" > {}-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}",
            self.path(run).display()
        );
        command.extend(["sh".to_owned(), "-c".to_owned(), shell, "sh".to_owned()]);
        command.extend([self.path("faults").display().to_string(), argument.to_owned()]);
        record::record(&record::Options {
            command,
            folder: self.path(run),
            overwrite: false,
            compiler: None,
            cache: Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi-shims"),
            pages: PAGES_DEFAULT,
            page_bytes: PAGE_BYTES_DEFAULT,
            timed: true,
            drop_when_behind: false,
            keep_last_bytes: None,
            payload: Payload::default(),
            fill_memory: false,
            compress: false,
        })
        .expect("a recording")
    }

    fn printed(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("output")
    }
}

/// Ends the ranks of a job that hangs, also when the test fails.
struct Ranks<'a>(&'a Path);

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        let Ok(run) = Run::open(self.0) else {
            return;
        };
        for start in run.ranks.iter().filter_map(|rank| run.start(*rank).ok()) {
            if let Ok(pid) = start.process.try_into() {
                // SAFETY: a signal to a process that this test started and that ends by nothing else.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

/// Records a program that hangs, and returns what a look at it finds while it does, once `found` is content.
fn hung(scene: &Scene, argument: &str, found: impl Fn(&Checked) -> bool) -> (Checked, Checked) {
    let folder = scene.path(argument);
    let live = std::thread::scope(|scope| {
        let ranks = Ranks(&folder);
        let recording = scope.spawn(|| scene.record(argument, argument));
        let begun = Instant::now();
        let checked = loop {
            let run = Run::open(&folder).ok().filter(|run| run.ranks.len() == RANKS as usize);
            if let Some(checked) = run.and_then(|run| check(&run).ok()).filter(&found) {
                break checked;
            }
            assert!(begun.elapsed() < HANG_WAIT && !recording.is_finished(), "the job hangs and is seen to");
            std::thread::sleep(Duration::from_millis(50));
        };
        drop(ranks);
        let recorded = recording.join().expect("the recording ends with its ranks");
        assert!(!recorded.status.success());
        checked
    });
    (live, check(&Run::open(&folder).expect("the run")).expect("logs"))
}

#[test]
fn a_crash_in_a_rare_order_is_recorded_once_and_comes_again_in_gdb_each_time() {
    if !runs("gdb", &["--version"]) {
        println!("skipped: a crash under gdb: it is not installed");
        return;
    }
    let replays = std::env::var("MAINSTAY_MPI_REPLAYS").ok().and_then(|count| count.parse().ok());
    for scene in Scene::each("a crash in a rare order") {
        let argument = format!("race:{ORDERS}");
        let mut tries = (1..=TRIES_MAX).map(|place| format!("try-{place}"));
        let crashed = tries.find(|run| !scene.record(run, &argument).status.success());
        let crashed = crashed.expect("one of the runs crashes");
        println!("{}: {crashed} crashed", scene.mpi.suffix);
        for _ in 0..replays.unwrap_or(REPLAYS) {
            let scratch = tempfile::tempdir().expect("a folder");
            let output = scene.path("gdb");
            replay::replay(&replay::Options {
                folder: scene.path(&crashed),
                rank: 0,
                debugger: true,
                debugger_commands: ["run", "backtrace", "kill"].map(str::to_owned).to_vec(),
                output: Some(output.clone()),
                scratch: scratch.path().to_owned(),
                ..replay::Options::default()
            })
            .expect("gdb");
            let said = scene.printed("gdb");
            assert!(said.contains("Program received signal SIGSEGV"), "{said}");
            assert!(said.contains("#0") && said.contains("in store_result ("), "{said}");
            assert!(said.contains("faults.c:"), "the line is said: {said}");
            // The messages came in the order in which they came then.
            assert!(said.contains(scene.printed(&format!("{crashed}-0")).trim()), "{said}");
        }
    }
}

#[test]
fn the_first_difference_of_two_runs_is_the_receive_that_took_another_message() {
    for scene in Scene::each("two runs of a race") {
        scene.record("first", "race:1000000");
        let orders = |run: &str| scene.printed(&format!("{run}-0")).lines().next().map(str::to_owned);
        let mut tries = (0..TRIES_MAX).map(|place| format!("other-{place}"));
        let other = tries.find(|run| {
            scene.record(run, "race:1000000");
            orders(run) != orders("first")
        });
        let other = other.expect("a run with another order");
        let runs = ["first", &other].map(|run| Run::open(&scene.path(run)).expect("a run"));
        let of = |run: &str| -> Vec<i64> {
            let order = orders(run).expect("a line");
            order.split_whitespace().map(|source| source.parse().expect("a rank")).collect()
        };
        let (one, two) = (of("first"), of(&other));
        let place = one.iter().zip(&two).position(|(one, two)| one != two).expect("they differ");

        let diff = diff_rank([&runs[0], &runs[1]], 0).expect("logs");
        let first = diff.first.expect("a difference");
        assert_eq!(first.what, What::Order);
        assert!(first.wildcard);
        assert_eq!(first.calls[0].1, "MPI_Recv");
        assert!(first.values[0].contains(&format!("source {},", one[place])), "{first:?}");
        assert!(first.values[1].contains(&format!("source {},", two[place])), "{first:?}");
        // MPI_Init, rank and size come before the receives, and the master calls nothing else between them.
        assert_eq!(diff.same_calls, 3 + place as u64);
        for rank in 0..RANKS {
            let same = diff_rank([&runs[0], &runs[0]], rank).expect("logs");
            assert_eq!((same.first, same.sent_bytes, same.received_bytes), (None, (0, None), (0, None)));
        }
    }
}

#[test]
fn a_cycle_of_three_kinds_of_waiting_is_named_while_the_job_hangs_and_after_it_was_killed() {
    for scene in Scene::each("a deadlock") {
        let (live, after) = hung(&scene, "cycle", |checked| !checked.standing.cycle.is_empty());
        for checked in [live, after] {
            assert_eq!(checked.standing.cycle, [0, 1, 2]);
            assert!(checked.logs.values().all(|log| matches!(log, Log::Cut(..))), "{:?}", checked.logs);
            let said = checked.lines(10).join("\n");
            for part in [
                "rank 0 waits in MPI_Recv",
                "for a message from rank 1, tag 5, MPI_COMM_WORLD",
                "rank 1 waits in MPI_Wait",
                "for a message from rank 2, any tag",
                "rank 2 waits in MPI_Ssend",
                "for rank 0 to receive 4 bytes, tag 6",
                "each of these ranks waits for the next: 0 -> 1 -> 2 -> 0",
            ] {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
    }
}

#[test]
fn a_collective_that_one_rank_never_enters_is_named_with_what_that_rank_polls_for() {
    for scene in Scene::each("a divided collective") {
        let (live, _) = hung(&scene, "divided", |checked| checked.standing.stuck.len() == 3);
        assert_eq!(live.standing.stuck.iter().copied().collect::<Vec<_>>(), [0, 1, 2]);
        let [divided] = &live.collectives[..] else { panic!("{:?}", live.collectives) };
        assert_eq!(divided.missing, [2]);
        assert_eq!(divided.entered["MPI_Barrier"], [0, 1]);
        assert_eq!(live.comm_name(divided.comm), "communicator 1 like MPI_COMM_WORLD");
        let State::Waiting { name, polls, .. } = &live.standing.states[&2] else { panic!("rank 2 polls") };
        assert_eq!((name.as_str(), *polls), ("MPI_Test", true));
    }
}

#[test]
fn messages_without_a_receive_and_receives_without_a_message_are_listed() {
    for scene in Scene::each("unmatched messages") {
        let recorded = scene.record("unreceived", "unreceived");
        assert!(recorded.status.success(), "MPI does not mind");
        let checked = check(&recorded.run).expect("logs");
        assert!(!checked.clean());
        assert_eq!(checked.messages, 1);
        let [(1, sent)] = &checked.not_received[..] else { panic!("{:?}", checked.not_received) };
        assert_eq!((sent.peer, sent.tag, sent.bytes), (0, 1, 4));
        let [(0, posted)] = &checked.not_matched[..] else { panic!("{:?}", checked.not_matched) };
        assert_eq!((posted.pattern.from.as_slice(), posted.pattern.tag), (&[2][..], Some(7)));
        assert_eq!((checked.not_sent, checked.disagreeing.len()), (0, 0));
        assert!(checked.standing.cycle.is_empty() && checked.standing.stuck.is_empty());
    }
}
