//! Ranks that do not end as they should, and launchers that start nothing.

use super::{Mpi, RANKS, Scene, installed, runs};
use mainstay_mpi::command::record::{self, RecordError};
use mainstay_mpi::command::replay::{self, Outcome};
use mainstay_mpi::command::stat::{RankStat, rank_stat};
use mainstay_mpi::command::unfinished::{Fault, end_text, fault, suspects};
use mainstay_mpi::ending::Cause;
use std::path::Path;

/// Records a kernel that ends badly, and what the ends of its ranks say.
fn recorded(mpi: Mpi, kernel: &str) -> (Scene, Vec<RankStat>) {
    let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &[kernel]);
    let recorded = scene.record();
    assert!(!recorded.status.success());
    let stats = (0..RANKS).map(|rank| rank_stat(&recorded.run, rank).expect("a log")).collect();
    (scene, stats)
}

/// Replays rank 1 again when it ends with another status.
fn replay_with_another_end(scene: &Scene) -> replay::Replayed {
    std::fs::write(scene.path("other"), "").expect("a file");
    scene.replay(1)
}

#[test]
fn a_rank_that_exits_without_finalizing_is_named_and_its_status_compared() {
    for mpi in installed("a rank that exits") {
        let (scene, stats) = recorded(mpi, "exits");
        let ending = stats[1].ending;
        assert_eq!((ending.cause, ending.code()), (Cause::Exit, 3), "{stats:?}");
        assert_eq!(suspects(&stats), Some((Fault::Itself, vec![1])), "{stats:?}");
        assert!(end_text(&stats[1]).starts_with("exit status 3 without MPI_Finalize after MPI_Barrier"));
        let replayed = scene.replay(1);
        assert_eq!(replayed.outcome(), Outcome::Complete, "{}", replayed.line());
        assert!(replayed.line().contains("the same end: exit status 3 without"), "{}", replayed.line());
        assert_eq!(replayed.status.code(), Some(3));
        if runs("gdb", &["--version"]) {
            let said = in_debugger(&scene);
            for part in ["call 1, MPI_Init\n", "call 2, MPI_Comm_rank\n", "in exits ("] {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
        let replayed = replay_with_another_end(&scene);
        assert_eq!(replayed.outcome(), Outcome::Diverged, "{}", replayed.line());
        assert!(replayed.line().contains("exit status 5 without"), "{}", replayed.line());
    }
}

/// Walks over two calls of rank 1, then on to its end.
fn in_debugger(scene: &Scene) -> String {
    let commands = ["break main", "run", "mpi-next", "mpi-next", "mpi-continue", "backtrace", "kill"];
    scene.replay_with(
        1,
        &replay::Options {
            folder: scene.path("run"),
            debugger: true,
            debugger_commands: commands.map(str::to_owned).to_vec(),
            ..replay::Options::default()
        },
    );
    std::fs::read_to_string(scene.path("replayed-1")).expect("output")
}

#[test]
fn a_rank_that_leaves_at_once_has_its_status_in_its_log() {
    for mpi in installed("a rank that leaves") {
        let (scene, stats) = recorded(mpi, "leaves");
        assert_eq!((stats[1].ended, stats[1].left), (false, Some(4)), "{stats:?}");
        assert_eq!(suspects(&stats), Some((Fault::Itself, vec![1])), "{stats:?}");
        let replayed = scene.replay(1);
        assert_eq!(replayed.outcome(), Outcome::Complete, "{}", replayed.line());
        let replayed = replay_with_another_end(&scene);
        assert_eq!(replayed.outcome(), Outcome::Diverged, "{}", replayed.line());
        assert!(replayed.line().contains("_exit with status 5"), "{}", replayed.line());
    }
}

#[test]
fn a_rank_that_mpi_ends_is_said_to_be_ended_in_its_call() {
    for mpi in installed("an error in a call") {
        let (scene, stats) = recorded(mpi, "fatal");
        // Open MPI's launcher may kill it there before it ends.
        assert!(matches!(fault(&stats[1]), Some(Fault::ByMpi | Fault::InCall)), "{stats:?}");
        assert!(end_text(&stats[1]).contains(" in MPI_Recv, call "), "{}", end_text(&stats[1]));
        let replayed = scene.replay(1);
        assert_eq!(replayed.outcome(), Outcome::LogEnds, "{}", replayed.line());
        assert!(replayed.line().contains("MPI_Recv"), "{}", replayed.line());
    }
}

#[test]
fn a_launcher_that_starts_nothing_leaves_nothing_in_the_way_of_the_next_try() {
    for mpi in installed("a launcher that fails") {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["ring:3"]);
        let options = scene.options(&scene.path("run"), super::PAGES_DEFAULT, super::PAGE_BYTES_DEFAULT);
        let failed = |command: Vec<String>| {
            let options = record::Options { command, ..options.clone() };
            let error = record::record(&options).expect_err("nothing is recorded");
            assert!(!scene.path("run").exists(), "{error}");
            error
        };
        let with = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let launcher = mpi.launcher();
        let error = failed(with(&[&launcher, "--no-such-option", &scene.program[0]]));
        assert!(matches!(error, RecordError::Nothing { .. }), "{error}");
        assert!(error.to_string().contains("before any rank called MPI"), "{error}");
        let error = failed(with(&["no-such-mpirun", "-np", "2", &scene.program[0]]));
        assert!(matches!(error, RecordError::NoLauncher { .. }), "{error}");
        let mut command = with(&[&launcher]);
        command.extend(mpi.launcher_options.iter().map(|&option| option.to_owned()));
        // Not one that ends at once: the launcher of MPICH now and then writes to who is gone already, and dies of it.
        command.extend(with(&["-np", "1", "sleep", "0.2"]));
        let error = failed(command);
        assert!(error.to_string().contains("the program ran"), "{error}");
        scene.assert_every_rank_replays();
        // A run that is there stays, unless it is to go.
        scene.program[1] = "ring:2".to_owned();
        assert!(matches!(record::record(&options), Err(RecordError::Folder(_))));
        let again = record::Options { overwrite: true, ..options };
        assert_eq!(record::record(&again).expect("a recording").run.ranks.len(), RANKS as usize);
        assert!(Path::new(&scene.path("run")).join("shim.so").exists());
    }
}
