//! Which programs are measured: our kernels, and what is installed or handed in.

use super::launch::{Launcher, Program};
use super::{MpiError, Setting};
use std::fs;
use std::path::{Path, PathBuf};

const KERNELS: &str = include_str!("../../../mainstay-mpi/tests/kernels/kernels.c");

/// Each kernel with the rounds that take some tenths of a second here, and with those for the short form.
const ROUNDS: [(&str, u32, u32); 8] = [
    ("ring", 400_000, 100_000),
    ("halo", 20_000, 5_000),
    ("workers", 200_000, 50_000),
    ("pool", 40_000, 10_000),
    ("server", 60_000, 15_000),
    ("persistent", 60_000, 15_000),
    ("derived", 6_000, 1_500),
    ("split", 4_000, 1_000),
];

/// Programs to measure, or why there are none.
pub(super) type Found = Result<Vec<Program>, String>;

/// Our kernels: communication and hardly anything else.
pub(super) fn kernels(setting: &Setting<'_>, launcher: &Launcher) -> Result<Found, MpiError> {
    let binary = launcher.compile("kernels.c", KERNELS)?.display().to_string();
    let program = |(name, whole, quick): (&str, u32, u32)| Program {
        name: name.to_owned(),
        words: vec![binary.clone(), format!("{name}:{}", setting.choose(quick, whole))],
        ranks: launcher.ranks,
        folder: setting.directory.to_owned(),
    };
    Ok(Ok(ROUNDS.into_iter().map(program).collect()))
}

/// HPCC, in a folder of its own with its input.
pub(super) fn hpcc(setting: &Setting<'_>, launcher: &Launcher) -> Result<Found, MpiError> {
    let Some(binary) = installed("hpcc", launcher) else {
        return Ok(Err("hpcc is not installed for this MPI".to_owned()));
    };
    let folder = setting.directory.join("hpcc");
    fs::create_dir_all(&folder)?;
    let order = setting.choose(300, 1000);
    fs::write(folder.join("hpccinf.txt"), hpcc_input(order, launcher.ranks))?;
    let words = vec![binary.display().to_string()];
    Ok(Ok(vec![Program { name: format!("hpcc N={order}"), words, ranks: launcher.ranks, folder }]))
}

/// LAMMPS: atoms of a Lennard-Jones liquid.
pub(super) fn lammps(setting: &Setting<'_>, launcher: &Launcher) -> Result<Found, MpiError> {
    let Some(binary) = installed("lmp", launcher) else {
        return Ok(Err("lammps is not installed for this MPI".to_owned()));
    };
    let folder = setting.directory.join("lammps");
    fs::create_dir_all(&folder)?;
    let steps = setting.choose(100, 400);
    fs::write(folder.join("in.melt"), lammps_input(steps))?;
    let words = vec![binary.display().to_string(), "-in".to_owned(), "in.melt".to_owned()];
    Ok(Ok(vec![Program { name: "lammps melt".to_owned(), words, ranks: launcher.ranks, folder }]))
}

/// The NAS benchmarks that the user hands in.
pub(super) fn npb(setting: &Setting<'_>, launcher: &Launcher) -> Result<Found, MpiError> {
    let Some(given) = &setting.given.npb else {
        return Ok(Err("no --npb-bin: the NAS benchmarks are not ours to ship".to_owned()));
    };
    let mut binaries = Vec::new();
    for entry in fs::read_dir(given)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "x") && launcher.can_run(&path) {
            binaries.push(path.canonicalize()?);
        }
    }
    binaries.sort();
    if binaries.is_empty() {
        return Ok(Err(format!("{} has no binaries NAME.CLASS.x for this MPI", given.display())));
    }
    let program = |binary: PathBuf| {
        let name = binary.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // These two want a square of ranks.
        let square = name.starts_with("bt.") || name.starts_with("sp.");
        let ranks = if square { 4 } else { launcher.ranks };
        let name = if square { format!("{name} (4 ranks)") } else { name };
        Program {
            name,
            words: vec![binary.display().to_string()],
            ranks,
            folder: setting.directory.to_owned(),
        }
    };
    Ok(Ok(binaries.into_iter().map(program).collect()))
}

fn installed(name: &str, launcher: &Launcher) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file() && links(path, launcher))
}

/// A program of a package may have all of MPI in a library of its own: then the package is taken at its word.
fn links(program: &Path, launcher: &Launcher) -> bool {
    launcher.can_run(program)
}

/// An input for matrices of this order, for ranks in one row.
fn hpcc_input(order: u32, ranks: u32) -> String {
    let values = [
        ("HPL.out", "output file"),
        ("8", "device out"),
        ("1", "problem sizes"),
        (&order.to_string(), "Ns"),
        ("1", "NBs"),
        ("80", "NBs"),
        ("0", "process mapping"),
        ("1", "process grids"),
        ("1", "Ps"),
        (&ranks.to_string(), "Qs"),
        ("16.0", "threshold"),
        ("1", "panel factorizations"),
        ("2", "PFACTs"),
        ("1", "stopping criteria"),
        ("4", "NBMINs"),
        ("1", "panels in recursion"),
        ("2", "NDIVs"),
        ("1", "recursive factorizations"),
        ("1", "RFACTs"),
        ("1", "broadcasts"),
        ("1", "BCASTs"),
        ("1", "lookahead depths"),
        ("1", "DEPTHs"),
        ("2", "SWAP"),
        ("64", "swapping threshold"),
        ("0", "L1"),
        ("0", "U"),
        ("1", "equilibration"),
        ("8", "alignment"),
        ("#####", "separator"),
        ("0", "more sizes for PTRANS"),
        ("1200", "values of N"),
        ("0", "more block sizes for PTRANS"),
        ("40", "values of NB"),
    ];
    let lines = values.map(|(value, what)| format!("{value} {what}\n"));
    format!("HPLinpack benchmark input file\nmade by mainstay bench\n{}", lines.concat())
}

fn lammps_input(steps: u32) -> String {
    format!(
        "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 16 0 16 0 16\ncreate_box 1 box\n\
         create_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287 loop geom\npair_style lj/cut 2.5\n\
         pair_coeff 1 1 1.0 1.0 2.5\nneighbor 0.3 bin\nneigh_modify every 20 delay 0 check no\nfix 1 all nve\n\
         thermo 50\nrun {steps}\n"
    )
}
