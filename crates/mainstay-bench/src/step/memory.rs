//! What an idle service weighs beyond its pages, as the kernel counts it.

use super::{Setting, StepError};
use crate::report::{Bound, Report, Table, Target, number};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Highest resident memory of an idle service beyond its ring, in megabytes.
const MEGABYTES_MAX: f64 = 20.0;

/// How long a service may take to begin to listen.
const START_MAX: Duration = Duration::from_secs(10);

/// Ends with this scope whatever happens in it.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), StepError> {
    let program = setting.given;
    let port_file = setting.directory.join("idle.port");
    let child = Command::new(program)
        .args(["serve", "--listen", "127.0.0.1:0", "--dir"])
        .arg(setting.directory.join("idle"))
        .arg("--port-file")
        .arg(&port_file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut serving = Serving(child);
    let deadline = Instant::now() + START_MAX;
    while !port_file.exists() {
        if serving.0.try_wait()?.is_some() || Instant::now() > deadline {
            return Err(StepError::Serve { program: program.to_owned() });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (resident, ring) = resident_bytes(&Path::new("/proc").join(serving.0.id().to_string()))?;
    let beyond = (resident - ring) as f64 / 1e6;
    report.tables.push(Table {
        name: "memory",
        meaning: "resident memory of an idle `serve` (from /proc/PID/smaps), shared libraries included"
            .to_owned(),
        columns: ["MB in all", "MB of the ring", "MB beyond the ring"].map(str::to_owned).to_vec(),
        rows: vec![vec![number(resident as f64 / 1e6), number(ring as f64 / 1e6), number(beyond)]],
    });
    let name = "idle serve: resident memory beyond its pages";
    report.targets.push(Target::new(name, beyond, Bound::AtMost, MEGABYTES_MAX, "MB", None));
    Ok(())
}

/// Resident bytes of a process, in all and of its mapping of the ring.
fn resident_bytes(process: &Path) -> Result<(u64, u64), StepError> {
    let (mut all, mut ring, mut in_ring) = (0, 0, false);
    for line in fs::read_to_string(process.join("smaps"))?.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") => {
                let bytes = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024;
                all += bytes;
                ring += if in_ring { bytes } else { 0 };
            }
            Some(word) if !word.ends_with(':') => in_ring = line.ends_with("/ring"),
            _ => {}
        }
    }
    Ok((all, ring))
}
