//! Unmodified programs under the MPIs that are installed: recorded, then each rank replayed alone with the same output.
//!
//! What is not installed is skipped by name: `bash setup.sh` installs it on Debian and Ubuntu.

mod bundles;
mod endings;
mod killed;
mod wheels;

use mainstay_mpi::command::check::check;
use mainstay_mpi::command::record::{self, Recorded};
use mainstay_mpi::command::replay::{self, Outcome, ReplayError, Replayed};
use mainstay_mpi::command::stat::rank_stat;
use mainstay_mpi::command::timeline::{Limits, timeline};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::run::Run;
use mainstay_mpi::settings::{PAGE_BYTES_DEFAULT, PAGES_DEFAULT};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Few: both MPIs spin while they wait, and CI has two cores.
const RANKS: u32 = 3;

/// An MPI, by the names of its commands.
#[derive(Clone, Copy)]
struct Mpi {
    name: &'static str,
    /// What stands before the name of a command: a folder, or nothing.
    folder: &'static str,
    /// What stands behind the name of a compiler.
    compiler_ending: &'static str,
    /// What stands behind the name of the launcher.
    launcher_ending: &'static str,
    launcher_options: &'static [&'static str],
}

const OPEN_MPI_OPTIONS: &[&str] = &["--allow-run-as-root", "--oversubscribe"];

/// Debian's, by the names that its packages give their commands.
const OPEN_MPI: Mpi = Mpi {
    name: "Open MPI",
    folder: "",
    compiler_ending: ".openmpi",
    launcher_ending: ".openmpi",
    launcher_options: OPEN_MPI_OPTIONS,
};
const MPICH: Mpi = Mpi {
    name: "MPICH",
    folder: "",
    compiler_ending: ".mpich",
    launcher_ending: ".mpich",
    launcher_options: &[],
};

impl Mpi {
    fn compiler(&self, name: &str) -> String {
        format!("{}{name}{}", self.folder, self.compiler_ending)
    }

    fn launcher(&self) -> String {
        format!("{}mpirun{}", self.folder, self.launcher_ending)
    }

    /// Whether it is there; if not, what cannot run without it is said to be skipped.
    fn is_installed(&self, what: &str) -> bool {
        let there = runs(&self.compiler("mpicc"), &["-show"]) && runs(&self.launcher(), &["--version"]);
        if !there {
            println!("skipped: {what} under {}: it is not installed", self.name);
        }
        there
    }
}

/// All kernels in C that end.
const KERNELS: [&str; 14] = [
    "ring",
    "halo",
    "workers",
    "pool",
    "server",
    "persistent",
    "derived",
    "split",
    "collectives",
    "probe",
    "corner",
    "large",
    "loaded",
    "forked",
];

fn runs(command: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(command);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Those of Debian's MPIs that are there; the others are skipped by name.
fn installed(what: &str) -> Vec<Mpi> {
    [OPEN_MPI, MPICH].into_iter().filter(|mpi| mpi.is_installed(what)).collect()
}

/// A program, the folder of its run, and what its ranks print.
struct Scene {
    mpi: Mpi,
    folder: TempDir,
    program: Vec<String>,
    payload: Payload,
    fill_memory: bool,
    compress: bool,
    keep_last_bytes: Option<u64>,
    ranks: u32,
    /// Named with `--mpicc`; else the launcher's.
    compiler: Option<String>,
}

impl Scene {
    fn new(mpi: Mpi, program: &[&str]) -> Self {
        let program = program.iter().map(|&word| word.to_owned()).collect();
        let payload = Payload::default();
        Self {
            mpi,
            folder: tempfile::tempdir().expect("a folder"),
            program,
            payload,
            fill_memory: false,
            compress: false,
            keep_last_bytes: None,
            ranks: RANKS,
            compiler: None,
        }
    }

    /// Compiles the kernels with a compiler of this MPI.
    fn compiled(mpi: Mpi, compiler: &str, source: &str, arguments: &[&str]) -> Self {
        let mut scene = Self::new(mpi, &[]);
        let binary = scene.path("kernels");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(source);
        let compiled = Command::new(mpi.compiler(compiler))
            .args(["-O1", "-g", "-w", "-o"])
            .arg(&binary)
            .arg(source)
            .output()
            .expect("a compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        scene.program.push(binary.display().to_string());
        scene.program.extend(arguments.iter().map(|&argument| argument.to_owned()));
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn record(&self) -> Recorded {
        self.record_into(&self.path("run"), PAGES_DEFAULT, PAGE_BYTES_DEFAULT)
    }

    fn record_into(&self, run: &Path, pages: u32, page_bytes: u32) -> Recorded {
        record::record(&self.options(run, pages, page_bytes)).expect("a recording")
    }

    fn options(&self, run: &Path, pages: u32, page_bytes: u32) -> record::Options {
        let mut command = vec![self.mpi.launcher()];
        command.extend(self.mpi.launcher_options.iter().map(|&option| option.to_owned()));
        command.extend(["-np".to_owned(), self.ranks.to_string()]);
        // A file for what each rank prints, and the folder that the program works in.
        let shell = format!(
            "cd {}; exec \"$@\" > output-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}",
            self.folder.path().display()
        );
        command.extend(["sh".to_owned(), "-c".to_owned(), shell, "sh".to_owned()]);
        command.extend(self.program.iter().cloned());
        record::Options {
            command,
            folder: run.to_owned(),
            overwrite: false,
            compiler: self.compiler.clone(),
            cache: Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi-shims"),
            pages,
            page_bytes,
            timed: true,
            drop_when_behind: false,
            keep_last_bytes: self.keep_last_bytes,
            payload: self.payload,
            fill_memory: self.fill_memory,
            compress: self.compress,
        }
    }

    fn replay(&self, rank: u32) -> Replayed {
        self.replay_with(rank, &replay::Options { folder: self.path("run"), ..replay::Options::default() })
    }

    fn replay_with(&self, rank: u32, options: &replay::Options) -> Replayed {
        let scratch = tempfile::tempdir().expect("a folder");
        replay::replay(&replay::Options {
            rank,
            output: Some(self.path(&format!("replayed-{rank}"))),
            scratch: scratch.path().to_owned(),
            ..options.clone()
        })
        .expect("a replay")
    }

    fn assert_same_output(&self, rank: u32) {
        let read =
            |name: &str| std::fs::read_to_string(self.path(&format!("{name}-{rank}"))).expect("output");
        assert_eq!(read("replayed"), read("output"), "rank {rank} under {}", self.mpi.name);
        assert!(!read("output").is_empty(), "rank {rank} printed something");
    }

    fn assert_every_rank_replays(&self) {
        let recorded = self.record();
        assert!(recorded.status.success(), "{}: {}", self.mpi.name, recorded.status);
        assert_eq!(recorded.run.ranks, (0..RANKS).collect::<Vec<_>>());
        let checked = check(&recorded.run).expect("logs");
        assert!(checked.clean() && checked.messages > 0, "{:?}", checked.lines(5));
        for rank in 0..RANKS {
            let stat = rank_stat(&recorded.run, rank).expect("a log");
            assert!(stat.ended && stat.unhandled.is_empty(), "{stat:?}");
            let replayed = self.replay(rank);
            assert_eq!(replayed.left.word, "complete", "rank {rank}: {}", replayed.line());
            assert_eq!(replayed.left.calls, stat.calls);
            assert!(replayed.status.success());
            self.assert_same_output(rank);
        }
    }
}

#[test]
fn every_rank_of_our_c_kernels_replays_alone() {
    for mpi in installed("programs in C") {
        Scene::compiled(mpi, "mpicc", "kernels.c", &KERNELS).assert_every_rank_replays();
    }
}

#[test]
fn every_rank_of_our_fortran_kernel_replays_alone() {
    for mpi in installed("programs in Fortran") {
        if runs(&mpi.compiler("mpif90"), &["--version"]) {
            Scene::compiled(mpi, "mpif90", "kernels.f90", &[]).assert_every_rank_replays();
        } else {
            println!("skipped: programs in Fortran under {}: no compiler", mpi.name);
        }
    }
}

#[test]
fn every_rank_of_our_mpi_f08_kernel_replays_alone() {
    for mpi in installed("programs with mpi_f08") {
        if runs(&mpi.compiler("mpif90"), &["--version"]) {
            Scene::compiled(mpi, "mpif90", "kernels_f08.f90", &[]).assert_every_rank_replays();
        } else {
            println!("skipped: programs with mpi_f08 under {}: no compiler", mpi.name);
        }
    }
}

/// Runs every rank again without a network, and compares what it prints and the files that the program writes.
fn assert_real_program_replays(scene: &Scene, written: &[&str]) {
    let recorded = scene.record();
    assert!(recorded.status.success(), "{}: {}", scene.mpi.name, recorded.status);
    for file in written {
        std::fs::rename(scene.path(file), scene.path(&format!("recorded-{file}"))).expect("a result");
    }
    for rank in 0..scene.ranks {
        let stat = rank_stat(&recorded.run, rank).expect("a log");
        assert!(stat.ended && stat.unhandled.is_empty(), "{stat:?}");
        let options = replay::Options {
            folder: scene.path("run"),
            under: ["unshare", "--map-root-user", "--net"].map(str::to_owned).to_vec(),
            ..replay::Options::default()
        };
        let replayed = scene.replay_with(rank, &options);
        assert_eq!(replayed.left.word, "complete", "rank {rank}: {}", replayed.line());
        let read = |name: &str| std::fs::read(scene.path(&format!("{name}-{rank}"))).expect("output");
        assert!(read("replayed") == read("output"), "rank {rank} prints the same");
    }
    for file in written {
        let read = |name: &str| std::fs::read_to_string(scene.path(name)).expect("a result");
        assert_eq!(read(file), read(&format!("recorded-{file}")), "{file} is the same");
    }
}

fn without_network() -> bool {
    runs("unshare", &["--map-root-user", "--net", "true"])
}

#[test]
fn every_rank_of_netpipe_replays_alone_without_a_network() {
    for mpi in [MPICH].into_iter().filter(|mpi| mpi.is_installed("NetPIPE")) {
        let program = "/usr/bin/NPmpich2";
        if !Path::new(program).exists() || !without_network() {
            println!("skipped: NetPIPE: it is not installed, or no namespace can be made");
            continue;
        }
        let mut scene = Scene::new(mpi, &[program, "-u", "1024", "-n", "20", "-o", "np.out"]);
        // It plays with a partner.
        scene.ranks = 2;
        assert_real_program_replays(&scene, &["np.out"]);
        for rank in 0..scene.ranks {
            if !scene.assert_bundle_replays(rank) {
                println!("skipped: a bundle of NetPIPE without MPICH beside it: needs root for a namespace");
            }
        }
    }
}

/// Input of LAMMPS: a Lennard-Jones melt.
const MELT: &str = "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 8 0 8 0 8\ncreate_box 1 box\n\
     create_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287 loop geom\npair_style lj/cut 2.5\n\
     pair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\nfix 1 all nve\nthermo 10\nrun 50\n";

#[test]
#[ignore = "the full run has time for it"]
fn every_rank_of_lammps_replays_alone_without_a_network() {
    for mpi in [OPEN_MPI].into_iter().filter(|mpi| mpi.is_installed("LAMMPS")) {
        if !runs("lmp", &["-help"]) || !without_network() {
            println!("skipped: LAMMPS: it is not installed, or no namespace can be made");
            continue;
        }
        let scene = Scene::new(mpi, &["/usr/bin/lmp", "-in", "in.melt"]);
        std::fs::write(scene.path("in.melt"), MELT).expect("a file");
        assert_real_program_replays(&scene, &["log.lammps"]);
    }
}

#[test]
#[ignore = "the full run has time and gigabytes for it"]
fn every_rank_of_hpcc_replays_alone_without_a_network_when_memory_is_filled() {
    for mpi in [OPEN_MPI].into_iter().filter(|mpi| mpi.is_installed("HPCC")) {
        let example = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
        let (Ok(input), true) = (std::fs::read_to_string(example), without_network()) else {
            println!("skipped: HPCC: it is not installed, or no namespace can be made");
            continue;
        };
        let mut scene = Scene::new(mpi, &["/usr/bin/hpcc"]);
        // It sends the ends of buckets that it never wrote.
        scene.fill_memory = true;
        let input: Vec<String> = input
            .lines()
            .map(|line| match line.split_whitespace().next_back() {
                Some("Ns") => "100 Ns".to_owned(),
                Some("Ps") => "1 Ps".to_owned(),
                Some("Qs") => format!("{RANKS} Qs"),
                _ => line.to_owned(),
            })
            .collect();
        std::fs::write(scene.path("hpccinf.txt"), input.join("\n") + "\n").expect("a file");
        assert_real_program_replays(&scene, &["hpccoutf.txt"]);
    }
}

#[test]
fn every_rank_of_an_mpi4py_program_replays_alone() {
    // Debian's mpi4py is of Open MPI, and of Debian's Python.
    let python = "/usr/bin/python3";
    if !runs(python, &["-c", "import mpi4py"]) {
        println!("skipped: a program in Python: mpi4py is not installed");
        return;
    }
    for mpi in [OPEN_MPI].into_iter().filter(|mpi| mpi.is_installed("a program in Python")) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/kernels.py");
        Scene::new(mpi, &[python, &script.display().to_string()]).assert_every_rank_replays();
    }
}

#[test]
fn a_rank_that_aborts_all_ends_at_once_and_replays_to_its_end() {
    for mpi in installed("an abort") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["aborted"]);
        let recorded = scene.record();
        assert!(!recorded.status.success());
        assert!(rank_stat(&recorded.run, 1).expect("a log").ended);
        let replayed = scene.replay(1);
        assert_eq!(replayed.left.word, "complete", "{}", replayed.line());
        assert!(replayed.line().contains("the same end: MPI_Abort with code 3"), "{}", replayed.line());
        assert_eq!(replayed.status.code(), Some(3));
        scene.assert_same_output(1);
    }
}

#[test]
fn a_crash_on_a_message_from_anywhere_comes_again() {
    for mpi in installed("a crash") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["crash"]);
        assert!(!scene.record().status.success());
        for _ in 0..3 {
            let replayed = scene.replay(0);
            assert!(replayed.same(), "{}", replayed.line());
            assert!(replayed.line().contains("crashed again: killed by signal 11"), "{}", replayed.line());
            scene.assert_same_output(0);
        }
        // Mended, it goes on.
        std::fs::write(scene.path("other"), "").expect("a file");
        let replayed = scene.replay(0);
        assert_eq!(replayed.outcome(), Outcome::WentOn, "{}", replayed.line());
        assert!(replayed.line().contains("went on to MPI_"), "{}", replayed.line());
    }
}

#[test]
fn a_replay_under_valgrind_goes_as_far_and_ends_as_the_recorded_rank() {
    if !runs("valgrind", &["--version"]) {
        println!("skipped: a replay under valgrind: it is not installed");
        return;
    }
    for mpi in installed("a replay under valgrind") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["ring:3", "pool:5", "derived:2", "split:2"]);
        assert!(scene.record().status.success());
        let options = replay::Options {
            folder: scene.path("run"),
            under: ["valgrind", "--quiet", "--log-file=/dev/null"].map(str::to_owned).to_vec(),
            ..replay::Options::default()
        };
        let replayed = scene.replay_with(1, &options);
        assert_eq!(replayed.left.word, "complete", "{}", replayed.line());
        assert!(replayed.status.success());
        scene.assert_same_output(1);
    }
}

#[test]
fn a_send_that_differs_is_reported_with_its_call_or_counted() {
    for mpi in installed("a send that differs") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["differs"]);
        assert!(scene.record().status.success());
        assert_eq!(scene.replay(2).left.word, "complete");
        std::fs::write(scene.path("other"), "").expect("a file");
        let replayed = scene.replay(2);
        assert_eq!(replayed.left.word, "diverged");
        assert!(!replayed.same());
        let text = &replayed.left.text;
        assert!(text.contains("MPI_Sendrecv") && text.contains("4 bytes, CRC"), "{text}");
        let tolerant = replay::Options {
            folder: scene.path("run"),
            tolerate_send_diff: true,
            ..replay::Options::default()
        };
        let replayed = scene.replay_with(2, &tolerant);
        assert_eq!(replayed.left.word, "complete");
        assert!(replayed.line().ends_with("3 sends differed and were let pass"), "{}", replayed.line());
        let until =
            replay::Options { folder: scene.path("run"), until: Some(4), ..replay::Options::default() };
        std::fs::remove_file(scene.path("other")).expect("the file");
        let replayed = scene.replay_with(2, &until);
        assert_eq!((replayed.left.word.as_str(), replayed.left.calls), ("until", 4));
        let calls = replayed.calls;
        let beyond = replay::Options { rank: 2, until: Some(calls + 1), ..until };
        let refused = replay::replay(&beyond).expect_err("the log has no such call");
        assert!(refused.to_string().contains(&format!("has calls 1 to {calls}")), "{refused}");
    }
}

#[test]
fn a_log_beyond_its_bound_is_good_for_stat_and_timeline_and_nothing_else() {
    const PAGE_BYTES: u32 = 64 << 10;
    const KEPT_BYTES: u64 = 4 * PAGE_BYTES as u64;
    // The log knows no MPI: one is enough.
    if let Some(mpi) = installed("a log with a bound").pop() {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["workers:6000"]);
        scene.keep_last_bytes = Some(KEPT_BYTES);
        let recorded = scene.record_into(&scene.path("run"), PAGES_DEFAULT, PAGE_BYTES);
        assert!(recorded.status.success());
        let stat = rank_stat(&recorded.run, 0).expect("a log");
        assert!(stat.ended && stat.not_kept > 2000 && stat.calls > stat.not_kept + 1000, "{stat:?}");
        assert!(stat.log_bytes <= KEPT_BYTES + 3 * 4096, "{}", stat.log_bytes);
        let page = timeline(&recorded.run, Limits::default()).expect("a page").page;
        assert!(page.contains("messages are not drawn"));
        let options = replay::Options { folder: scene.path("run"), rank: 0, ..replay::Options::default() };
        let refused = replay::replay(&options).expect_err("most of it is gone").to_string();
        assert!(refused.contains("--keep-last"), "{refused}");
        assert!(check(&recorded.run).is_err());
    }
}

#[test]
fn memory_that_was_never_written_is_the_same_at_replay_when_it_is_filled() {
    for mpi in installed("memory that was never written") {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["unwritten"]);
        assert!(scene.record().status.success());
        let replayed = scene.replay(1);
        assert_eq!(replayed.left.word, "diverged", "{}", replayed.line());
        scene.fill_memory = true;
        let recorded = scene.record_into(&scene.path("filled"), PAGES_DEFAULT, PAGE_BYTES_DEFAULT);
        assert!(recorded.status.success());
        for rank in 0..RANKS {
            let options = replay::Options { folder: scene.path("filled"), ..replay::Options::default() };
            let replayed = scene.replay_with(rank, &options);
            assert_eq!(replayed.left.word, "complete", "rank {rank}: {}", replayed.line());
        }
    }
}

#[test]
fn with_no_pages_nothing_is_written_and_a_replay_says_that_nothing_is_there() {
    for mpi in installed("buffering only") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["halo:400"]);
        let run = scene.path("unwritten");
        let recorded = scene.record_into(&run, 0, 64 << 10);
        assert!(recorded.status.success());
        for rank in 0..RANKS {
            assert_eq!(std::fs::metadata(recorded.run.log(rank)).expect("a log").len(), 4096, "its header");
        }
        let scratch = tempfile::tempdir().expect("a folder");
        let options = replay::Options {
            folder: run.clone(),
            scratch: scratch.path().to_owned(),
            ..replay::Options::default()
        };
        assert!(matches!(replay::replay(&options), Err(ReplayError::Cut { rank: 0 })));
    }
}

#[test]
fn a_call_that_is_not_recorded_is_forwarded_and_named() {
    for mpi in installed("one-sided communication") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["ring:3", "window"]);
        // Pages so small that some are full: then the core looks at clocks, which are the shim's too.
        let recorded = scene.record_into(&scene.path("run"), 2, 4096);
        assert!(recorded.status.success(), "the program does not notice");
        let stat = rank_stat(&recorded.run, 0).expect("a log");
        assert_eq!(stat.unhandled["MPI_Win_fence"], 4);
        assert_eq!(stat.unhandled["MPI_Win_set_name"], 400);
        let replayed = scene.replay(0);
        assert_eq!(replayed.left.word, "unsupported");
        assert!(replayed.left.text.contains("MPI_Win_create"), "{}", replayed.left.text);
    }
}

/// A file system of its own, gone with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir(folder).expect("a folder");
        let size = format!("size={bytes}");
        let folder = folder.display().to_string();
        runs("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &folder]).then(|| Self(folder.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        assert!(runs("umount", &[&self.0.display().to_string()]), "the disk of the test is unmounted");
    }
}

#[test]
fn a_full_disk_ends_the_log_and_not_the_program() {
    for mpi in installed("a full disk") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["halo:400"]);
        let shim_bytes = {
            let recorded = scene.record();
            assert!(recorded.status.success());
            std::fs::metadata(recorded.run.shim()).expect("the shim").len()
        };
        let disk = scene.path("disk");
        let Some(_disk) = SmallDisk::mount(&disk, shim_bytes + (3 << 20)) else {
            println!("skipped: a full disk under an MPI program: needs root to mount");
            return;
        };
        let run = disk.join("run");
        let recorded = scene.record_into(&run, 2, 64 << 10);
        assert!(recorded.status.success(), "the program does not notice");
        let stats: Vec<_> = (0..RANKS).map(|rank| rank_stat(&recorded.run, rank).expect("a log")).collect();
        assert!(stats.iter().any(|stat| stat.stopped == Some(libc::ENOSPC)), "{stats:?}");
        for stat in stats.iter().filter(|stat| stat.stopped.is_some()) {
            let options = replay::Options { folder: run.clone(), ..replay::Options::default() };
            let replayed = scene.replay_with(stat.rank, &options);
            assert_eq!(replayed.left.word, "log-ends", "{}", replayed.line());
            assert_eq!(replayed.left.calls, stat.calls, "to the last call in the log");
        }
        assert_eq!(Run::open(&run).expect("the run").ranks.len(), stats.len());
    }
}
