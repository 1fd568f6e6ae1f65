//! One binary that replays a directory, as a child.

use anyhow::{Context, bail};
use mainstay::replay::line::{Begin, FORMAT, Line};
use mainstay_types::id::Lsn;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

/// What a child says on standard error is kept up to so many bytes.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// What is replayed.
#[derive(Clone, Debug)]
pub(super) struct Range {
    /// The checkpoint it begins with.
    pub(super) from: Lsn,
    /// The last delivery.
    pub(super) until: Lsn,
    /// The instance that is followed.
    pub(super) process: Option<String>,
}

/// A replay under way. The child dies with it.
pub(super) struct Replaying {
    pub(super) binary: PathBuf,
    child: Child,
    lines: BufReader<ChildStdout>,
    complaint: Option<JoinHandle<String>>,
}

/// What comes next of a replay.
pub(super) enum Next {
    Line(Line),
    /// It ended without a word of its end: what it said on standard error.
    Failed(String),
}

impl Replaying {
    pub(super) fn start(binary: &Path, directory: &Path, range: &Range) -> anyhow::Result<Self> {
        let mut child = Command::new(binary)
            .arg("replay")
            .arg(directory)
            .args(["--json", "--go-on", "--from"])
            .arg(range.from.0.to_string())
            .arg("--until")
            .arg(range.until.0.to_string())
            .args(range.process.iter().flat_map(|process| ["--process", process]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be run", binary.display()))?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        let complains = child.stderr.take().expect("it is piped");
        let listen = move || {
            let mut said = Vec::new();
            // What could be read is told; why there is no more does not matter.
            let mut complains = complains;
            let _ = complains.by_ref().take(COMPLAINT_BYTES_MAX).read_to_end(&mut said);
            let _ = std::io::copy(&mut complains, &mut std::io::sink());
            String::from_utf8_lossy(&said).trim().to_owned()
        };
        let complaint = Some(std::thread::spawn(listen));
        Ok(Self { binary: binary.to_owned(), child, lines, complaint })
    }

    /// The next line.
    ///
    /// # Errors
    /// When the child says what is no line of a replay.
    pub(super) fn next(&mut self) -> anyhow::Result<Next> {
        let mut text = String::new();
        let binary = self.binary.display();
        self.lines.read_line(&mut text).with_context(|| format!("{binary} cannot be read"))?;
        if text.is_empty() {
            let complaint = self.complaint.take().map(JoinHandle::join);
            let said = complaint.and_then(Result::ok).filter(|said| !said.is_empty());
            return Ok(Next::Failed(said.unwrap_or_else(|| "it ended without a word".to_owned())));
        }
        let line = serde_json::from_str(&text)
            .with_context(|| format!("{binary} replays in a way unknown to this version: {text}"))?;
        Ok(Next::Line(line))
    }

    /// The first line.
    ///
    /// # Errors
    /// When the child cannot replay at all: its directory, its flags, another format.
    pub(super) fn begin(&mut self) -> anyhow::Result<Result<Begin, String>> {
        match self.next()? {
            Next::Line(Line::Begin(begin)) if begin.format == FORMAT => Ok(Ok(begin)),
            Next::Line(_) => bail!("{} replays in a format unknown to this version", self.binary.display()),
            Next::Failed(why) => Ok(Err(why)),
        }
    }
}

impl Drop for Replaying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
