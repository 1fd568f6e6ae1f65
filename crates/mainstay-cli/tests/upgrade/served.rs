//! The versions as programs in a folder, and one of them at work.

use crate::saver::{Deposit, NOTICES, View};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// How long anything may take before a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with the programs and one directory, removed with it.
pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

/// A version at work; killed when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let this = std::env::current_exe().expect("a program knows where it lies");
        let of_services = ["1", "2", "3", "4", "generous", "forgetful"];
        let of_instances = ["node-1", "node-2", "node-generous", "node-blind", "purse-1", "purse-2"];
        for version in of_services.into_iter().chain(of_instances) {
            let program = folder.path().join(format!("saver-{version}"));
            std::os::unix::fs::symlink(&this, program).expect("a folder takes a link");
        }
        Self { folder }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    pub(crate) fn program(&self, version: &str) -> PathBuf {
        self.folder.path().join(format!("saver-{version}"))
    }

    /// Starts a version; returns when it takes requests.
    pub(crate) fn start(&self, version: &str, notices: Option<&str>) -> Served {
        self.start_in(&self.directory(), version, &[], notices)
    }

    /// The same with another directory, and more flags.
    pub(crate) fn start_in(
        &self,
        directory: &Path,
        version: &str,
        flags: &[&str],
        notices: Option<&str>,
    ) -> Served {
        self.start_at(directory, version, flags, notices, "127.0.0.1:0")
    }

    /// The same at a given address.
    pub(crate) fn start_at(
        &self,
        directory: &Path,
        version: &str,
        flags: &[&str],
        notices: Option<&str>,
        listen: &str,
    ) -> Served {
        let port_file = directory.with_extension("port");
        let _ = fs::remove_file(&port_file);
        let mut command = Command::new(self.program(version));
        command.arg("--dir").arg(directory).args(flags).args(["--listen", listen, "--port-file"]);
        command.arg(&port_file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(url) = notices {
            command.env(NOTICES, url);
        }
        let child = command.spawn().expect("the program can be started");
        let mut served = Served { child, url: String::new() };
        until("it takes requests", || {
            assert!(served.child.try_wait().expect("it is a child").is_none(), "it ended at once");
            port_file.exists()
        });
        let port = fs::read_to_string(&port_file).expect("it was just seen");
        served.url = format!("http://127.0.0.1:{}", port.trim());
        served
    }

    /// Runs a version's program to its end.
    pub(crate) fn run(&self, version: &str, arguments: &[&str]) -> Output {
        Command::new(self.program(version)).args(arguments).output().expect("the program can be run")
    }

    /// Runs `mainstay` to its end; `DIR` stands for the directory, and `saver-…` for a version's program.
    pub(crate) fn mainstay(&self, arguments: &[&str]) -> Output {
        let full = arguments.iter().map(|&argument| match argument {
            "DIR" => self.directory(),
            _ if argument.starts_with("saver-") => self.folder.path().join(argument),
            _ => PathBuf::from(argument),
        });
        Command::new(env!("CARGO_BIN_EXE_mainstay")).args(full).output().expect("the binary can be run")
    }

    /// Names, times and bytes of everything in the directory.
    pub(crate) fn picture(&self) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
        let entries = fs::read_dir(self.directory()).expect("the directory is there");
        entries
            .map(|entry| {
                let path = entry.expect("it is not changing").path();
                let changed = fs::metadata(&path).and_then(|file| file.modified()).expect("a file");
                let bytes = fs::read(&path).expect("a file");
                (path, (changed, bytes))
            })
            .collect()
    }
}

impl Served {
    /// Sends a deposit until it is answered, and returns the total that it led to.
    pub(crate) fn deposit(&self, key: &str, amount: u64) -> u64 {
        self.send(key, &Deposit { amount, notice: false })
    }

    pub(crate) fn send(&self, key: &str, deposit: &Deposit) -> u64 {
        try_deposit(&self.url, key, deposit).expect("it takes requests")
    }

    pub(crate) fn view(&self) -> View {
        let response = agent().post(format!("{}/query", self.url)).send_empty();
        let mut response = response.expect("it answers");
        serde_json::from_str(&response.body_mut().read_to_string().expect("a body")).expect("a view")
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut response = agent().get(format!("{}{path}", self.url)).call().expect("it answers");
        response.body_mut().read_to_string().expect("a body")
    }

    /// Stops it cleanly.
    pub(crate) fn stop(mut self) {
        let number = i32::try_from(self.child.id()).expect("numbers of processes are small");
        let pid = rustix::process::Pid::from_raw(number).expect("a child has a number");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("a child can be told to stop");
        let ended = self.child.wait().expect("a child can be waited for");
        assert!(ended.success(), "no clean stop: {ended}");
    }

    /// Whether it has ended by itself, or was killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        let ended = self.child.try_wait().expect("it is a child");
        ended.is_some_and(|status| {
            assert!(status.success(), "it stopped, and not cleanly: {status}");
            true
        })
    }

    /// Kills it with -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a deposit once; `None`: to be tried again.
pub(crate) fn try_deposit(url: &str, key: &str, deposit: &Deposit) -> Option<u64> {
    try_call(&format!("{url}/call"), key, deposit)
}

/// Sends what leads to a total once; `None`: to be tried again.
pub(crate) fn try_call(url: &str, key: &str, command: &impl Serialize) -> Option<u64> {
    let body = serde_json::to_vec(command).expect("plain data");
    let sent = agent().post(url).header("Idempotency-Key", key).send(&body);
    let mut response = sent.ok()?;
    let text = response.body_mut().read_to_string().ok()?;
    match response.status().as_u16() {
        200 => Some(text.parse().expect("a total")),
        409 | 503 => None,
        status => panic!("{status}: {text}"),
    }
}

pub(crate) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent()
}

/// What a program printed, after it ended with `code`.
pub(crate) fn printed(output: &Output, code: i32) -> String {
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "printed: {said}\ncomplained: {complained}");
    said.into_owned()
}

/// Asks again until it holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the folder's name is text")
}
