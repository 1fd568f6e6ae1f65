//! Drives the real binary: a folder of its own per test, commands with their output, services that die with the test.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test says that it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that is removed with everything in it, also when the test fails.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// A new one.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

const BINARY: &str = env!("CARGO_BIN_EXE_mainstay");

/// The binary under test, to be run in `folder`.
pub(crate) fn mainstay(folder: &Folder) -> Command {
    prepared(Command::new(BINARY), folder)
}

/// The same, heeding the permissions of files also when the tests run as root. Root stays the owner: a binary below a
/// folder that only root may enter could not be started by anybody else. `None` where root cannot give up that right.
pub(crate) fn mainstay_heeding_permissions(folder: &Folder) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        return Some(mainstay(folder));
    }
    Command::new("setpriv").arg("--version").output().ok()?;
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-dac_override", "--bounding-set=-dac_override", BINARY]);
    Some(prepared(command, folder))
}

fn prepared(mut command: Command, folder: &Folder) -> Command {
    command.current_dir(folder.0.path()).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// What a command that ended said.
pub(crate) struct Said {
    /// Exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

impl Said {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {}\nstandard error: {}", self.out, self.err))
    }
}

/// Runs a command to its end.
pub(crate) fn run(folder: &Folder, arguments: &[&str]) -> Said {
    said(mainstay(folder).args(arguments).output().expect("the binary runs"))
}

/// A service that must not start on directory `name`; what it said.
pub(crate) fn refused(folder: &Folder, name: &str) -> Said {
    let mut command = mainstay(folder);
    command.args(["serve", "--dir", name, "--listen", "127.0.0.1:0", "--body-bytes-max", "16384"]);
    refused_as(&mut command, name)
}

/// The same, started by `command`.
pub(crate) fn refused_as(command: &mut Command, name: &str) -> Said {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let began = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().expect("a child can be killed");
            let said = said(child.wait_with_output().expect("a child can be waited for"));
            panic!("the service on `{name}` was not refused: {}", said.err);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let said = said(child.wait_with_output().expect("a child can be waited for"));
    assert_ne!(said.code, 0, "{name}: {}", said.err);
    said
}

/// What a command said.
pub(crate) fn said(output: Output) -> Said {
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A running `mainstay serve`; killed when dropped.
pub(crate) struct Service {
    child: Child,
    /// Where it listens.
    pub(crate) url: String,
}

impl Service {
    /// Starts the ledger in directory `name` of the folder and waits until it takes requests.
    pub(crate) fn start(folder: &Folder, name: &str, more: &[&str]) -> Self {
        Self::start_with(folder, name, &[&["--listen", "127.0.0.1:0"], more].concat())
    }

    /// The same, listening where `flags` say.
    pub(crate) fn start_with(folder: &Folder, name: &str, flags: &[&str]) -> Self {
        Self::start_as(mainstay(folder), folder, name, flags)
    }

    /// The same by another command, to which the arguments are added.
    pub(crate) fn start_as(command: Command, folder: &Folder, name: &str, flags: &[&str]) -> Self {
        let mut command = prepared(command, folder);
        let port_file = folder.path(&format!("{}.port", name.trim_start_matches('/').replace('/', "-")));
        let _ = std::fs::remove_file(&port_file);
        // Small pages make small segments, which are quickly made; bodies must fit them.
        command.args(["serve", "--dir", name, "--page-bytes", "65536"]);
        if !flags.contains(&"--body-bytes-max") {
            command.args(["--body-bytes-max", "16384"]);
        }
        let mut child = command
            .arg("--port-file")
            .arg(&port_file)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let began = Instant::now();
        loop {
            let port = std::fs::read_to_string(&port_file).unwrap_or_default();
            if let Ok(port) = port.trim().rsplit(':').next().unwrap_or_default().parse::<u16>() {
                return Self { child, url: format!("http://127.0.0.1:{port}") };
            }
            let ended = child.try_wait().expect("a child can be waited for");
            if ended.is_some() || began.elapsed() > PATIENCE {
                let _ = child.kill();
                let mut words = String::new();
                if let Some(mut err) = child.stderr.take() {
                    let _ = err.read_to_string(&mut words);
                }
                panic!("the service did not start ({ended:?}): {words}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and waits for the end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits until it has ended by itself: its exit code, and what it said on standard error.
    pub(crate) fn ends(&mut self) -> (i32, String) {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(began.elapsed() < PATIENCE, "the service does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut said = String::new();
        let err = self.child.stderr.as_mut().expect("it is a pipe");
        err.read_to_string(&mut said).expect("it is text");
        (status.code().unwrap_or(-1), said)
    }

    /// SIGTERM, and waits for the end; returns the exit code.
    pub(crate) fn stop(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child can be signalled");
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status.code().unwrap_or(-1);
            }
            assert!(began.elapsed() < PATIENCE, "the service does not stop");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `POST path` as curl would.
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answered {
        post(&format!("{}{path}", self.url), headers, body.as_ref())
    }

    /// `POST /call` with an idempotency key.
    pub(crate) fn call(&self, key: &str, body: &str) -> Answered {
        self.post("/call", &[("Idempotency-Key", key)], body)
    }

    /// The whole state.
    pub(crate) fn view(&self) -> serde_json::Value {
        self.post("/query", &[], "{}").json()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answered {
    /// Status.
    pub(crate) status: u16,
    /// `Mainstay-Replayed` was `true`.
    pub(crate) replayed: bool,
    /// The body.
    pub(crate) body: String,
}

impl Answered {
    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// One attempt, without any retry.
pub(crate) fn post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> Answered {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent();
    let mut request = agent.post(url).content_type("application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut response = request.send(body).expect("the service answers");
    let replayed = response.headers().get("Mainstay-Replayed").is_some_and(|value| value == "true");
    let body = response.body_mut().read_to_string().expect("answers are UTF-8");
    Answered { status: response.status().as_u16(), replayed, body }
}

/// The names of all processes that name `folder` in their command line: none may be left behind.
pub(crate) fn processes_of(folder: &Path) -> Vec<String> {
    let needle = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("Linux has /proc");
    processes
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| (line.contains("demo-part") || line.contains("demo-node")) && line.contains(&needle))
        .collect()
}

/// The first line of a stream.
pub(crate) fn first_line(stream: impl Read) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("the stream is text");
    line
}
