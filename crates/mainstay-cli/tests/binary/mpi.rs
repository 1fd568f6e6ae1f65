//! `mainstay mpi record` and `replay`: what they say, and with which exit code, when a launcher fails and when a rank dies.

use crate::harness::{Folder, Said, mainstay, said};
use std::path::Path;
use std::process::{Command, Stdio};

/// Ends of Debian's names for commands of an MPI, and what its launcher wants.
const MPIS: [(&str, &[&str]); 2] = [("mpich", &[]), ("openmpi", &["--allow-run-as-root", "--oversubscribe"])];

fn mpi(folder: &Folder, words: &[&str]) -> Said {
    let mut command = mainstay(folder);
    command.env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    said(command.arg("mpi").args(words).output().expect("the binary runs"))
}

#[test]
fn a_launcher_that_is_not_there_is_named_and_no_folder_is_left() {
    let folder = Folder::new();
    let said = mpi(&folder, &["record", "--dir", "run", "--", "no-such-mpirun", "-np", "2", "true"]);
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(said.err.contains("there is no program no-such-mpirun"), "{}", said.err);
    assert!(!folder.path("run").exists());
}

/// It was taken for the launcher.
#[test]
fn an_option_that_is_none_is_refused_and_those_of_the_launcher_are_not() {
    let folder = Folder::new();
    let said = mpi(&folder, &["record", "--out", "run", "--", "no-such-mpirun"]);
    assert!(said.code == 2 && said.err.contains("unexpected argument '--out'"), "{}", said.err);
    let said = mpi(&folder, &["record", "no-such-mpirun", "--out", "run"]);
    assert!(said.code == 3 && said.err.contains("no-such-mpirun"), "{}", said.err);
}

#[test]
fn the_rank_that_died_is_named_with_the_command_that_replays_it() {
    let there = |mpi: &&(&str, _)| {
        let mut show = Command::new(format!("mpicc.{}", mpi.0));
        show.arg("-show").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        show.status().is_ok_and(|status| status.success())
    };
    let Some((suffix, options)) = MPIS.iter().find(there) else {
        println!("skipped: a rank that dies: no MPI is installed");
        return;
    };
    let folder = Folder::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mainstay-mpi/tests/kernels/kernels.c");
    let mut compile = Command::new(format!("mpicc.{suffix}"));
    compile.args(["-O1", "-w", "-o"]).arg(folder.path("kernels")).arg(source);
    assert!(compile.status().expect("a compiler").success());

    let launcher = format!("mpirun.{suffix}");
    let mut words = vec!["record", "--dir", "run-7", "--", &launcher];
    words.extend(*options);
    let failing = [&words[..], &["--no-such-option", "./kernels", "crash"]].concat();
    words.extend(["-np", "3", "./kernels", "crash"]);
    let said = mpi(&folder, &failing);
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(said.err.contains("before any rank called MPI"), "{}", said.err);

    let said = mpi(&folder, &["record", "--dir", "run 8", "--", &launcher, "./kernels", "crash"]);
    assert!(said.code == 3 && said.err.contains("has a space or a colon"), "{}", said.err);
    assert!(!folder.path("run 8").exists());

    // The folder is not in the way.
    let said = mpi(&folder, &words);
    assert_ne!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("mainstay: rank 0: cut off after MPI_Recv, call "), "{}", said.err);
    assert!(said.err.contains("mainstay mpi replay --rank 0 --gdb run-7"), "{}", said.err);
    let said = mpi(&folder, &words);
    assert_eq!(said.code, 3, "{}", said.err);
    assert!(said.err.contains("is there already"), "{}", said.err);

    let replay = ["replay", "--rank", "0", "run-7"];
    let said = mpi(&folder, &replay);
    assert!(said.code == 0 && said.err.contains("crashed again"), "{} {}", said.code, said.err);
    std::fs::write(folder.path("other"), "").expect("a file");
    let said = mpi(&folder, &replay);
    assert!(said.code == 4 && said.err.contains("went on"), "{} {}", said.code, said.err);
    let said = mpi(&folder, &[&replay[..], &["--until", "100000"]].concat());
    assert!(said.code != 0 && said.err.contains("has calls 1 to"), "{} {}", said.code, said.err);
}
