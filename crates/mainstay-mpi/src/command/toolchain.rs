//! Which MPI is meant, and its shim: compiled by the user's `mpicc` when it is first needed, and kept.

use crate::shim::{self, ShimError};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use xxhash_rust::xxh3::xxh3_128;

/// Binary interfaces. What is compiled for one cannot call a library of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI 4 and 5.
    OpenMpi,
    /// MPICH and what shares its interface.
    Mpich,
    /// The one that MPI 5 defines, chapter 20: `libmpi_abi.so`. Of libraries that have it the launchers are their own.
    Standard,
}

impl fmt::Display for Family {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
            Self::Standard => "the MPI standard's ABI",
        })
    }
}

/// There is no shim. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    /// No compiler of that MPI.
    #[error(
        "no compiler wrapper of {family} was found (tried {tried}): install its development package, or name one with --mpicc"
    )]
    NoCompiler {
        /// The MPI.
        family: String,
        /// What was tried.
        tried: String,
    },
    /// The compiler said no.
    #[error("{compiler} failed:\n{stderr}")]
    Compiler {
        /// The compiler.
        compiler: String,
        /// What it printed, its beginning.
        stderr: String,
    },
    /// The compiler is of another MPI than the program or its launcher.
    #[error("{compiler} is of {found}, but what is started is of {wanted}: name another with --mpicc")]
    OtherMpi {
        /// The compiler.
        compiler: String,
        /// Its MPI.
        found: Family,
        /// What is started.
        wanted: Family,
    },
    /// The core is missing.
    #[error("the core of the shim, libmainstay_mpi.a, is not beside the program {}: `cargo build --release -p mainstay-cli` makes it, \
             MAINSTAY_MPI_CORE names another place", beside.display())]
    NoCore {
        /// Where it was looked for.
        beside: PathBuf,
    },
    /// The header of this MPI is not understood.
    #[error("the shim cannot be made for this mpi.h")]
    Shim(#[from] ShimError),
    /// The system refused.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The MPI of a launcher, by what it says about its version; `None` if it does not say.
#[must_use]
pub fn family_of_launcher(launcher: &str) -> Option<Family> {
    let output = Command::new(launcher).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("OpenRTE") || text.contains("Open MPI") || text.contains("PRTE") {
        Some(Family::OpenMpi)
    } else if text.contains("HYDRA") || text.contains("MPICH") {
        Some(Family::Mpich)
    } else {
        None
    }
}

/// The MPI that a program is linked with, by the names of libraries in its file; `None` if it is none, or linked with none.
#[must_use]
pub fn family_of_program(bytes: &[u8]) -> Option<Family> {
    let names = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    if !bytes.starts_with(b"\x7fELF") {
        None
    } else if names(b"libmpi_abi.so") {
        Some(Family::Standard)
    } else if names(b"libmpich.so") || names(b"libmpichfort.so") || names(b"libmpi.so.12") {
        Some(Family::Mpich)
    } else if names(b"libmpi.so.") || names(b"libmpi_mpifh.so.") {
        Some(Family::OpenMpi)
    } else {
        None
    }
}

/// Whether a launcher of one family starts programs of another as ranks of one job.
#[must_use]
pub fn starts(launcher: Family, program: Family) -> bool {
    // Open MPI 5 and older have no library for the standard's interface.
    launcher == program || (launcher, program) == (Family::Mpich, Family::Standard)
}

/// The MPI that a compiler wrapper compiles for.
///
/// # Errors
/// [`ToolchainError::Compiler`], [`ToolchainError::Io`].
pub fn family_of_compiler(compiler: &str) -> Result<Family, ToolchainError> {
    let io_error = |source| ToolchainError::Io { path: std::env::temp_dir(), source };
    let scratch = tempfile::tempdir().map_err(io_error)?;
    let header = put_header(scratch.path())?;
    Ok(family_of_macros(&macros(compiler, &header)?))
}

/// A file that includes `mpi.h` and no more.
fn put_header(folder: &Path) -> Result<PathBuf, ToolchainError> {
    let path = folder.join("header.c");
    match std::fs::write(&path, "#include <mpi.h>\n") {
        Ok(()) => Ok(path),
        Err(source) => Err(ToolchainError::Io { path, source }),
    }
}

fn macros(compiler: &str, header: &Path) -> Result<String, ToolchainError> {
    let output = run(Command::new(compiler).args(["-E", "-dM"]).arg(header), compiler)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As `shim/shim.c` tells it.
fn family_of_macros(macros: &str) -> Family {
    let defines = |name: &str| {
        let defined = macros.lines().filter_map(|line| line.strip_prefix("#define "));
        defined.filter_map(|rest| rest.split([' ', '(']).next()).any(|known| known == name)
    };
    if defines("OPEN_MPI") {
        Family::OpenMpi
    } else if defines("MPI_ABI_VERSION") && !defines("MPICH_NAME") {
        Family::Standard
    } else {
        Family::Mpich
    }
}

/// A shim for that MPI, from the cache or compiled now.
///
/// # Errors
/// [`ToolchainError`]; a half-made shim is not left in the cache.
pub fn shim(
    family: Family,
    launcher: &str,
    compiler: Option<&str>,
    cache: &Path,
) -> Result<PathBuf, ToolchainError> {
    let compiler = match compiler {
        Some(compiler) => compiler.to_owned(),
        None => find_compiler(family, launcher)?,
    };
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |source| ToolchainError::Io { path, source }
    };
    std::fs::create_dir_all(cache).map_err(io_error(cache))?;
    let made = tempfile::Builder::new().prefix("making-").tempdir_in(cache).map_err(io_error(cache))?;
    let header = put_header(made.path())?;
    compile_into(made.path(), cache, &header, family, &compiler)
}

/// What the shim is compiled with. These and the others are part of its name in the cache.
const COMPILE_FLAGS: [&str; 7] = [
    "-O2",
    "-g1",
    "-fPIC",
    // A preloaded library is there from the start: its thread-local variables need no call to be found.
    "-ftls-model=initial-exec",
    "-shared",
    "-fvisibility=hidden",
    "-Wno-deprecated-declarations",
];
/// What it is linked with, behind the core.
const LINK_FLAGS: [&str; 6] = [
    // The core's symbols stay inside: of the program's and of MPI's none may be taken by accident.
    "-Wl,--exclude-libs,ALL",
    "-Wl,--gc-sections",
    "-lpthread",
    "-ldl",
    "-lm",
    // MPI's functions are looked up, not linked: the library would be left out, and then be missing for a program that loads it
    // late and for itself alone, as Python does.
    "-Wl,--no-as-needed",
];

fn compile_into(
    made: &Path,
    folder: &Path,
    header: &Path,
    family: Family,
    compiler: &str,
) -> Result<PathBuf, ToolchainError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |source| ToolchainError::Io { path, source }
    };
    let macros = macros(compiler, header)?;
    let found = family_of_macros(&macros);
    if found != family {
        return Err(ToolchainError::OtherMpi { compiler: compiler.to_owned(), found, wanted: family });
    }
    let preprocessed = run(Command::new(compiler).arg("-E").arg(header), compiler)?;
    let source = shim::source(&String::from_utf8_lossy(&preprocessed.stdout))?;
    let core = core_library()?;
    let core_bytes = std::fs::read(&core).map_err(io_error(&core))?;

    let flags = [&COMPILE_FLAGS[..], &LINK_FLAGS].concat().join(" ");
    let parts = [source.as_bytes(), macros.as_bytes(), &core_bytes, compiler.as_bytes(), flags.as_bytes()];
    let key = xxh3_128(&parts.join(&0));
    let library = folder.join(format!("mpi-shim-{key:032x}.so"));
    if library.exists() {
        return Ok(library);
    }
    let source_path = made.join("shim.c");
    std::fs::write(&source_path, source).map_err(io_error(&source_path))?;
    let new = made.join("shim.so");
    run(
        Command::new(compiler)
            .args(COMPILE_FLAGS)
            .arg("-o")
            .args([&new, &source_path, &core])
            .args(LINK_FLAGS),
        compiler,
    )?;
    std::fs::rename(&new, &library).map_err(io_error(&library))?;
    Ok(library)
}

fn run(command: &mut Command, compiler: &str) -> Result<Output, ToolchainError> {
    let failed = |stderr: String| ToolchainError::Compiler { compiler: compiler.to_owned(), stderr };
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(output)
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(failed(stderr.lines().take(20).collect::<Vec<_>>().join("\n")))
    }
}

/// The compiler wrapper that belongs to a launcher: of the same name with `mpicc`, else by its usual names.
///
/// # Errors
/// [`ToolchainError::NoCompiler`].
pub fn find_compiler(family: Family, launcher: &str) -> Result<String, ToolchainError> {
    let mut tried = Vec::new();
    for name in ["mpirun", "mpiexec.hydra", "mpiexec", "orterun", "prterun"] {
        if let Some(at) = launcher.rfind(name) {
            let wrapper = if family == Family::Standard { "mpicc_abi" } else { "mpicc" };
            tried.push(format!("{}{wrapper}{}", &launcher[..at], &launcher[at + name.len()..]));
            break;
        }
    }
    let usual = match family {
        Family::OpenMpi => ["mpicc.openmpi", "mpicc"],
        Family::Mpich => ["mpicc.mpich", "mpicc"],
        Family::Standard => ["mpicc_abi", "mpicc"],
    };
    tried.extend(usual.map(str::to_owned));
    let works = |name: &&String| {
        let shown = Command::new(name).arg("-show").stdin(Stdio::null()).output();
        shown.is_ok_and(|output| output.status.success())
    };
    tried
        .iter()
        .find(works)
        .cloned()
        .ok_or_else(|| ToolchainError::NoCompiler { family: family.to_string(), tried: tried.join(", ") })
}

/// Whether a program can be started with this shim loaded: spaces and colons part the names in `LD_PRELOAD`.
#[must_use]
pub fn can_be_loaded(shim: &Path) -> bool {
    !shim.to_string_lossy().contains([' ', ':'])
}

/// The static library with the core: named by the environment, beside this program, or where cargo leaves it.
fn core_library() -> Result<PathBuf, ToolchainError> {
    if let Some(named) = std::env::var_os("MAINSTAY_MPI_CORE") {
        return Ok(named.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    let installed = folder.join("libmainstay_mpi.a");
    if installed.exists() {
        return Ok(installed);
    }
    let mut built: Vec<PathBuf> = [folder.join("deps"), folder.to_owned()]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libmainstay_mpi-") && name.ends_with(".a")
        })
        .collect();
    built.sort_by_key(|path| std::fs::metadata(path).and_then(|about| about.modified()).ok());
    built.pop().ok_or_else(|| ToolchainError::NoCore { beside: program.clone() })
}

/// Where shims are kept for the user.
#[must_use]
pub fn cache_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_CACHE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("mainstay")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mpi_of_a_program_is_told_by_its_libraries() {
        assert_eq!(family_of_program(b"\x7fELF..libmpi.so.40\0"), Some(Family::OpenMpi));
        assert_eq!(family_of_program(b"\x7fELF..libmpich.so.12\0"), Some(Family::Mpich));
        // A program in Fortran may name the library of its language alone.
        assert_eq!(family_of_program(b"\x7fELF..libmpi_mpifh.so.40\0"), Some(Family::OpenMpi));
        assert_eq!(family_of_program(b"\x7fELF..libmpichfort.so.12\0"), Some(Family::Mpich));
        assert_eq!(family_of_program(b"\x7fELF..libmpi_abi.so.1\0"), Some(Family::Standard));
        assert_eq!(family_of_program(b"\x7fELF..libc.so.6\0"), None);
        assert_eq!(family_of_program(b"#!/bin/sh libmpi.so.40"), None);
    }

    #[test]
    fn the_mpi_of_a_compiler_is_told_by_its_header() {
        assert_eq!(family_of_macros("#define OPEN_MPI 1\n#define MPI_VERSION 3\n"), Family::OpenMpi);
        assert_eq!(family_of_macros("#define MPICH_NAME 4\n"), Family::Mpich);
        assert_eq!(family_of_macros("#define MPI_VERSION 5\n#define MPI_ABI_VERSION 1\n"), Family::Standard);
        // A header of an implementation may tell which standard interface it has besides its own.
        assert_eq!(family_of_macros("#define MPI_ABI_VERSION 1\n#define MPICH_NAME 5\n"), Family::Mpich);
    }

    #[test]
    fn a_compiler_that_is_not_there_is_said_and_nothing_is_left() {
        let cache = tempfile::tempdir().expect("a folder");
        let Err(error) = shim(Family::Mpich, "mpirun", Some("no-such-mpicc"), cache.path()) else {
            panic!("a shim")
        };
        assert!(error.to_string().contains("no-such-mpicc"), "{error}");
        assert_eq!(std::fs::read_dir(cache.path()).expect("the folder").count(), 0);
    }
}
