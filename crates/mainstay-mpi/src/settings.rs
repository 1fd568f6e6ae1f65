//! What the shim is asked for, by variables of the environment that `mainstay mpi` sets.

use crate::compression::Compression;
use crate::format::{FileHeader, LOG_MAGIC};
use crate::pages::Writing;
use crate::payload::Payload;
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;

/// Folder of the run that is recorded.
pub const RECORD: &str = "MAINSTAY_MPI_RECORD";
/// Number of the run, 32 hexadecimal digits.
pub const RUN: &str = "MAINSTAY_MPI_RUN";
/// Pages in the ring; 0 for one that is never written.
pub const PAGES: &str = "MAINSTAY_MPI_PAGES";
/// Bytes of a page.
pub const PAGE_BYTES: &str = "MAINSTAY_MPI_PAGE_BYTES";
/// `0`: calls are not timed.
pub const TIMES: &str = "MAINSTAY_MPI_TIMES";
/// Set: recording ends rather than let the program wait when the disk does not keep up.
pub const DROP_WHEN_BEHIND: &str = "MAINSTAY_MPI_DROP_WHEN_BEHIND";
/// Which side logs the bytes of messages.
pub const PAYLOAD: &str = "MAINSTAY_MPI_PAYLOAD";
/// Set: a page is on the disk before its slot is used again.
pub const SYNCED: &str = "MAINSTAY_MPI_SYNCED";
/// Folder where each rank leaves its figures, see [`crate::figures`].
pub const FIGURES: &str = "MAINSTAY_MPI_FIGURES";
/// Bytes of a rank's log that are kept: its first page and its end. Not set: all.
pub const KEEP_LAST_BYTES: &str = "MAINSTAY_MPI_KEEP_LAST_BYTES";
/// Set: copying is measured, see [`crate::pages::Pages::measure_copies`].
pub const MEASURE_COPIES: &str = "MAINSTAY_MPI_MEASURE_COPIES";
/// How glibc's allocator behaves.
pub const ALLOCATOR: &str = "GLIBC_TUNABLES";
/// Fills memory that is handed out, so that what a program sends without having written it is the same at replay. Without its
/// cache of freed pieces, which are handed out with addresses in them.
pub const FILLED_MEMORY: &str = "glibc.malloc.perturb=85:glibc.malloc.tcache_count=0";
/// `1`: pages are compressed.
pub const COMPRESS: &str = "MAINSTAY_MPI_COMPRESS";
/// Clocks that the program read before its first call of MPI, as the shim writes them; in the log among its environment.
pub const EARLY_CLOCKS: &str = "MAINSTAY_MPI_EARLY_CLOCKS";
/// The log that is replayed.
pub const REPLAY: &str = "MAINSTAY_MPI_REPLAY";
/// Where the replay says how it went.
pub const VERDICT: &str = "MAINSTAY_MPI_VERDICT";
/// Number of the call to stop at.
pub const UNTIL: &str = "MAINSTAY_MPI_UNTIL";
/// Set: sends whose data differs are counted and let pass.
pub const TOLERATE_SEND_DIFF: &str = "MAINSTAY_MPI_TOLERATE_SEND_DIFF";
/// Set: a debugger looks on.
pub const DEBUGGER: &str = "MAINSTAY_MPI_DEBUGGER";

/// Pages in the ring unless asked for otherwise.
pub const PAGES_DEFAULT: u32 = 3;
/// Bytes of a page unless asked for otherwise.
pub const PAGE_BYTES_DEFAULT: u32 = 4 << 20;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Nothing.
    Off,
    /// Record.
    Record {
        /// Into this folder.
        directory: PathBuf,
        /// With this header.
        header: FileHeader,
        /// Whether calls are timed.
        timed: bool,
        /// What becomes of full pages.
        writing: Writing,
        /// Whether copying is measured.
        measure_copies: bool,
        /// Whether recording ends rather than let the program wait.
        drop_when_behind: bool,
    },
    /// Replay.
    Replay {
        /// This log.
        log: PathBuf,
        /// With its ring, if there is one.
        ring: PathBuf,
        /// Where to say how it went.
        verdict: PathBuf,
        /// Number of the call to stop at.
        until: Option<u64>,
        /// Whether sends with other data are let pass.
        tolerate_send_diff: bool,
    },
}

/// Reads the environment. What is missing or wrong is taken as not asked for: a program is never kept from running.
#[must_use]
pub fn from_environment() -> Settings {
    let text = |name| std::env::var(name).ok();
    if let Some(log) = std::env::var_os(REPLAY) {
        let log = PathBuf::from(log);
        return Settings::Replay {
            ring: log.with_extension("ring"),
            log,
            verdict: std::env::var_os(VERDICT).unwrap_or_default().into(),
            until: text(UNTIL).and_then(|until| until.parse().ok()),
            tolerate_send_diff: text(TOLERATE_SEND_DIFF).is_some(),
        };
    }
    let run = text(RUN).and_then(|run| u128::from_str_radix(&run, 16).ok());
    let (Some(directory), Some(run)) = (std::env::var_os(RECORD), run) else {
        return Settings::Off;
    };
    let number = |name, otherwise| text(name).and_then(|value| value.parse().ok()).unwrap_or(otherwise);
    let pages = number(PAGES, PAGES_DEFAULT);
    let writing = match pages {
        0 => Writing::Never,
        _ if std::env::var_os(SYNCED).is_some() => Writing::Synced,
        _ => Writing::PageCache,
    };
    let page_bytes = number(PAGE_BYTES, PAGE_BYTES_DEFAULT).max(1);
    let keep_last_bytes = text(KEEP_LAST_BYTES).and_then(|bytes| bytes.parse().ok());
    let header = FileHeader {
        run: run.to_be_bytes(),
        pages: pages.max(1),
        page_bytes,
        kept_pages: keep_last_bytes.map_or(0, |bytes| FileHeader::kept_pages(bytes, page_bytes)),
        compression: match text(COMPRESS).as_deref() {
            Some("1") => Compression::Zstandard,
            _ => Compression::None,
        },
        payload: text(PAYLOAD).and_then(|payload| payload.parse().ok()).unwrap_or_default(),
    };
    let fits = FileHeader::decode(&header.encode(LOG_MAGIC), LOG_MAGIC).is_ok();
    let header = if fits {
        header
    } else {
        FileHeader { pages: PAGES_DEFAULT, page_bytes: PAGE_BYTES_DEFAULT, ..header }
    };
    // An order has no times.
    let timed = header.payload != Payload::None && text(TIMES).as_deref() != Some("0");
    let measure_copies = std::env::var_os(MEASURE_COPIES).is_some();
    let drop_when_behind = std::env::var_os(DROP_WHEN_BEHIND).is_some();
    Settings::Record { directory: directory.into(), header, timed, writing, measure_copies, drop_when_behind }
}

/// Whether a debugger looks on.
#[must_use]
pub fn under_debugger() -> bool {
    std::env::var_os(DEBUGGER).is_some()
}

/// The name of a rank's files, without their ending.
#[must_use]
pub fn rank_name(rank: i64) -> String {
    format!("rank-{rank:05}")
}

/// How this process was started, keys and values by turns. An argument is `argument`, in order; a variable is `env NAME`.
#[must_use]
pub fn start_values() -> Vec<String> {
    let mut values = Vec::new();
    let mut put = |key: &str, value: String| values.extend([key.to_owned(), value]);
    let program = std::env::current_exe().unwrap_or_default();
    put("hash", std::fs::read(&program).map_or_else(|_| String::new(), |bytes| program_hash(&bytes)));
    put("program", program.display().to_string());
    put("folder", std::env::current_dir().unwrap_or_default().display().to_string());
    put("pid", std::process::id().to_string());
    put("architecture", std::env::consts::ARCH.to_owned());
    // Not `std::env::args`: in a library those are only there with some C libraries.
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    for argument in line.split(|byte| *byte == 0) {
        put("argument", String::from_utf8_lossy(argument).into_owned());
    }
    for library in loaded_libraries() {
        put("loaded", library);
    }
    for (name, value) in std::env::vars_os() {
        if let (Some(name), Some(value)) = (name.to_str(), value.to_str())
            && is_kept(name)
        {
            put(&format!("env {name}"), value.to_owned());
        }
    }
    values
}

/// Paths of the shared libraries of this process, under the names by which they are asked for.
fn loaded_libraries() -> Vec<String> {
    unsafe extern "C" fn take(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader hands over an entry with a C string; `to` is the vector below.
        let (name, to) = unsafe { (CStr::from_ptr((*info).dlpi_name), &mut *to.cast::<Vec<String>>()) };
        // The program itself has no name, the kernel's part no path.
        let name = name.to_string_lossy();
        if name.starts_with('/') {
            to.push(name.into_owned());
        }
        0
    }
    let mut libraries: Vec<String> = Vec::new();
    // SAFETY: `take` keeps nothing of what it is given.
    unsafe { libc::dl_iterate_phdr(Some(take), (&raw mut libraries).cast()) };
    libraries
}

/// The hash by which a changed program is told.
#[must_use]
pub fn program_hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Variables that a program's behaviour commonly hangs on, and that hold no secrets.
fn is_kept(name: &str) -> bool {
    const NAMES: [&str; 8] =
        [ALLOCATOR, EARLY_CLOCKS, "HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TZ", "USER"];
    NAMES.contains(&name) || ["LC_", "OMP_", "PYTHON"].iter().any(|begin| name.starts_with(begin))
}
