//! A small file that is replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Puts a file in the place of the one before, past a sync of it and of the directory: after a crash at any moment, one of the two is there, whole.
///
/// # Errors
/// Those of the operating system; the file before is there still, or the new one.
pub fn replace(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let partial = directory.join(format!("{name}.partial"));
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, directory.join(name))?;
    File::open(directory)?.sync_all()
}
