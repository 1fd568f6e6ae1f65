//! `mainstay bench mpi`: what recording costs an MPI program. The two tables and the figure of Lee 2001 (*Potential of Local
//! File System as Message-Logging Storage*), with where the cost goes.

mod demand;
mod launch;
mod programs;
mod small;
mod tables;

use crate::plot::{Panel, PlotError, svg};
use crate::report::Report;
use crate::setting::{self, Part};
use mainstay_mpi::command::record::RecordError;
use mainstay_mpi::command::toolchain::ToolchainError;
use std::io;
use std::path::PathBuf;

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// The scratch directory, or a file of a floor.
    #[error("cannot use the scratch directory: {0}")]
    Io(#[from] io::Error),
    /// No MPI, or no shim for it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// No compiler wrapper of the MPI.
    #[error(transparent)]
    Toolchain(#[from] ToolchainError),
    /// None of the usual launchers is there.
    #[error("no MPI was found (tried {tried}): install one, or name its launcher with --launcher")]
    NoLauncher {
        /// What was tried.
        tried: String,
    },
    /// A program of ours does not compile.
    #[error("{compiler} cannot compile {source_name}: {stderr}")]
    Compiler {
        /// The compiler.
        compiler: String,
        /// What was compiled.
        source_name: &'static str,
        /// What it said.
        stderr: String,
    },
    /// A program failed, or left no time behind.
    #[error("{program} under `{arm}`: {what}")]
    Program {
        /// The program.
        program: String,
        /// The arm.
        arm: String,
        /// What happened.
        what: String,
    },
}

/// What is told to this benchmark alone.
#[derive(Clone, Debug)]
pub struct Given {
    /// The launcher, if not the first that is found.
    pub launcher: Option<String>,
    /// Ranks of each program; as many as processors, at most 4, if nothing is said.
    pub ranks: Option<u32>,
    /// Folder with binaries of the NAS benchmarks, named like `cg.A.x`.
    pub npb: Option<PathBuf>,
    /// Where compiled shims are kept.
    pub cache: PathBuf,
}

type Setting<'a> = setting::Setting<'a, Given>;

/// Measures everything; `progress` is told what comes next.
///
/// # Errors
/// See [`MpiError`]; the scratch directory is removed all the same.
pub fn mpi(options: &setting::Options, given: &Given, progress: &dyn Fn(&str)) -> Result<Report, MpiError> {
    let parts = [
        Part { name: small::NAME, measure: small::measure },
        Part { name: demand::NAME, measure: demand::measure },
        Part {
            name: "kernels",
            measure: |setting, report| tables::measure(setting, report, programs::kernels),
        },
        Part { name: "hpcc", measure: |setting, report| tables::measure(setting, report, programs::hpcc) },
        Part {
            name: "lammps",
            measure: |setting, report| tables::measure(setting, report, programs::lammps),
        },
        Part { name: "npb", measure: |setting, report| tables::measure(setting, report, programs::npb) },
    ];
    setting::run("mpi", options, given, &parts, progress)
}

/// Run times by program, a row for each way of logging.
///
/// # Errors
/// [`PlotError`].
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let panels: Vec<_> = report.figures.iter().map(Panel::of_ranges).filter(Panel::shows_something).collect();
    svg(&panels, 2)
}
