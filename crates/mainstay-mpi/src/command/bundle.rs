//! A bundle: one rank with all that its replay needs, in a folder that may be carried to another machine.
//!
//! ```text
//!   rank-00002.log     its log, complete by itself          manifest   hash and name of each file below, as `xxhsum -H2` has it
//!   shim.so            what recorded it                     inputs     hash and path of each file that an argument names
//!   program/NAME       the executable                       libraries/…  what it had loaded when it first called MPI
//! ```

use crate::reader::ReadError;
use crate::run::{Run, SHIM, Start};
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

pub(super) const MANIFEST: &str = "manifest";
pub(super) const INPUTS: &str = "inputs";
pub(super) const PROGRAM: &str = "program";
pub(super) const LIBRARIES: &str = "libraries";

/// What a bundle has besides the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files in `libraries`.
    pub libraries: usize,
    /// Files that arguments name; the bundle has their hashes only.
    pub inputs: Vec<String>,
    /// Libraries that were loaded and are not there any more.
    pub missing: Vec<PathBuf>,
}

/// A bundle that can be replayed.
#[derive(Clone, Debug)]
pub struct Bundle {
    folder: PathBuf,
    /// The dynamic loader of its libraries.
    loader: PathBuf,
}

/// A bundle could not be made or is not what it was. What was made of it stays.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The system refused.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The executable is gone or another one.
    #[error("{} is not the executable that was recorded (or is gone): bring that one back", program.display())]
    Program {
        /// Its path.
        program: PathBuf,
    },
    /// A file of the bundle is gone or another one.
    #[error("{} is not the file that the bundle was made with: nothing was run; extract the bundle again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The manifest names what is no file of the bundle.
    #[error(
        "the manifest of the bundle names {name:?}, which is no plain file in it: nothing was run; extract the bundle again"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A file that the manifest does not name, where the loader would find it.
    #[error("{} is not in the manifest of the bundle: nothing was run; remove it, or extract the bundle again", path.display())]
    Unlisted {
        /// The file.
        path: PathBuf,
    },
    /// Its libraries have no dynamic loader.
    #[error("{} has no dynamic loader among its libraries: nothing was run; extract the bundle again", folder.display())]
    NoLoader {
        /// The bundle.
        folder: PathBuf,
    },
    /// The log of the rank cannot be read.
    #[error(transparent)]
    Log(#[from] ReadError),
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    let path = path.to_owned();
    move |source| BundleError::Io { path, source }
}

/// Puts all but the log into `folder`, which is there.
///
/// # Errors
/// [`BundleError`].
pub fn fill(folder: &Path, run: &Run, rank: u32) -> Result<Contents, BundleError> {
    let start = run.start(rank)?;
    let mut manifest = String::new();
    // The log is there already; with a ring, if it was cut off.
    for name in files_in(folder)? {
        list(folder, &name, &mut manifest)?;
    }
    let mut contents = Contents::default();
    put(folder, SHIM, &run.shim(), &mut manifest)?;
    let name = start.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    make(&folder.join(PROGRAM))?;
    let hash = file_hash(&start.program);
    if hash.ok().as_ref() != Some(&start.hash) {
        return Err(BundleError::Program { program: start.program });
    }
    put(folder, &format!("{PROGRAM}/{name}"), &start.program, &mut manifest)?;
    make(&folder.join(LIBRARIES))?;
    for library in &start.libraries {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        // Of two of one name the loader took the first.
        if name == SHIM || folder.join(LIBRARIES).join(&*name).exists() {
            continue;
        }
        if library.exists() {
            put(folder, &format!("{LIBRARIES}/{name}"), library, &mut manifest)?;
            contents.libraries += 1;
        } else {
            contents.missing.push(library.clone());
        }
    }
    let mut inputs = String::new();
    for (path, hash) in inputs_of(&start) {
        let _ = writeln!(inputs, "{hash}  {path}");
        contents.inputs.push(path);
    }
    write(&folder.join(INPUTS), &inputs)?;
    write(&folder.join(MANIFEST), &manifest)?;
    Ok(contents)
}

/// Files that arguments name, with their hashes as they are now.
fn inputs_of(start: &Start) -> Vec<(String, String)> {
    let named = start.arguments.iter().skip(1).filter(|argument| !argument.contains('\n'));
    named
        .filter_map(|argument| {
            let path = start.folder.join(argument);
            let hash = path.is_file().then(|| file_hash(&path).ok()).flatten()?;
            Some((path.display().to_string(), hash))
        })
        .collect()
}

fn make(folder: &Path) -> Result<(), BundleError> {
    std::fs::create_dir(folder).map_err(io_error(folder))
}

fn write(path: &Path, text: &str) -> Result<(), BundleError> {
    std::fs::write(path, text).map_err(io_error(path))
}

fn put(folder: &Path, name: &str, from: &Path, manifest: &mut String) -> Result<(), BundleError> {
    std::fs::copy(from, folder.join(name)).map_err(io_error(from))?;
    list(folder, name, manifest)
}

/// Puts the hash and name of a file into the manifest.
fn list(folder: &Path, name: &str, manifest: &mut String) -> Result<(), BundleError> {
    let path = folder.join(name);
    let hash = file_hash(&path).map_err(io_error(&path))?;
    let _ = writeln!(manifest, "{hash}  {name}");
    Ok(())
}

/// As [`crate::settings::program_hash`], of a file that may be larger than memory.
fn file_hash(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let (mut hasher, mut piece) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:032x}", hasher.digest128())),
            length => hasher.update(&piece[..length]),
        }
    }
}

fn files_in(folder: &Path) -> Result<Vec<String>, BundleError> {
    let entries = std::fs::read_dir(folder).map_err(io_error(folder))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error(folder))?;
        if !entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

impl Bundle {
    /// The bundle in a folder, every file of it compared with its manifest; `None` if the folder has none.
    ///
    /// # Errors
    /// [`BundleError`] when a file is gone or another one.
    pub fn open(folder: &Path) -> Result<Option<Self>, BundleError> {
        let path = folder.join(MANIFEST);
        let manifest = match std::fs::read_to_string(&path) {
            Ok(manifest) => manifest,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path)(error)),
        };
        let folder = folder.canonicalize().map_err(io_error(folder))?;
        let mut loader = None;
        for (hash, name) in lines(&manifest) {
            let path = folder.join(name);
            let within = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
            if !within || path.symlink_metadata().is_ok_and(|about| !about.is_file()) {
                return Err(BundleError::Name { name: name.to_owned() });
            }
            if file_hash(&path).ok().as_deref() != Some(hash) {
                return Err(BundleError::Changed { path });
            }
            let file = name.strip_prefix(LIBRARIES).map(|name| name.trim_start_matches('/'));
            if file.is_some_and(|file| file.starts_with("ld-") || file.starts_with("ld64.")) {
                loader = Some(path);
            }
        }
        // The loader takes any library that is there, and the replay any log.
        for (part, prefix) in [("", ""), (LIBRARIES, "libraries/")] {
            for file in files_in(&folder.join(part))? {
                let name = format!("{prefix}{file}");
                let listed = lines(&manifest).any(|(_, listed)| listed == name);
                if !listed && name != MANIFEST && name != INPUTS {
                    return Err(BundleError::Unlisted { path: folder.join(name) });
                }
            }
        }
        match loader {
            Some(loader) => Ok(Some(Self { folder, loader })),
            None => Err(BundleError::NoLoader { folder }),
        }
    }

    /// The executable of the rank.
    #[must_use]
    pub fn program(&self, start: &Start) -> PathBuf {
        self.folder.join(PROGRAM).join(start.program.file_name().unwrap_or_default())
    }

    /// What is started, and its arguments before the program's own: its loader, which looks into its libraries first and into no
    /// cache of this machine. What is in neither its libraries nor the folders that the loader has built in is not found.
    #[must_use]
    pub fn command(&self, start: &Start) -> (PathBuf, Vec<String>) {
        let libraries = self.folder.join(LIBRARIES).display().to_string();
        let name = start.arguments.first().cloned().unwrap_or_default();
        let program = self.program(start).display().to_string();
        let arguments =
            ["--inhibit-cache", "--library-path", &libraries, "--argv0", &name, &program].map(str::to_owned);
        (self.loader.clone(), arguments.to_vec())
    }

    /// Files that arguments name and that are not what they were when the bundle was made.
    #[must_use]
    pub fn changed_inputs(&self) -> Vec<String> {
        let inputs = std::fs::read_to_string(self.folder.join(INPUTS)).unwrap_or_default();
        let changed =
            lines(&inputs).filter(|(hash, path)| file_hash(path.as_ref()).ok().as_deref() != Some(hash));
        changed.map(|(_, path)| path.to_owned()).collect()
    }
}

fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once("  "))
}
