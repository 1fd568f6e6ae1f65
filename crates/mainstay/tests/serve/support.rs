//! A service for tests, in this process or in one of its own that can be killed, and raw HTTP to talk to it.

use mainstay::{Context, Outcome, OutputId, OutputPort, Refusal, Server, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Environment of a child: its directory, and where its outputs go.
const DIRECTORY: &str = "MAINSTAY_TEST_DIRECTORY";
const OUTPUT_FILE: &str = "MAINSTAY_TEST_OUTPUT_FILE";
const OUTPUT_URL: &str = "MAINSTAY_TEST_OUTPUT_URL";
const CHECKPOINT_BYTES: &str = "MAINSTAY_TEST_CHECKPOINT_BYTES";

/// How long anything may take before the test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A loopback address that connections do not come from: none of them takes a port of it between choice and use.
pub(crate) fn own_loopback() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 77, high, low.max(1))
}

/// A state in which the order of requests matters.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bank {
    pub(crate) accounts: BTreeMap<String, i64>,
    /// Changes with every deposit, in a way that tells their order.
    pub(crate) chain: u64,
    pub(crate) settled: Vec<(u64, String)>,
    pub(crate) ballast: Vec<u8>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(crate) enum Command {
    Deposit {
        account: String,
        amount: i64,
    },
    Notify {
        port: String,
        text: String,
    },
    Refuse,
    Panic,
    Abort,
    /// Waits for [`open_the_door`].
    Wait,
    Grow {
        bytes: usize,
    },
    Remind {
        token: u64,
        delay_ms: u64,
    },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) balance: i64,
    pub(crate) chain: u64,
}

impl Service for Bank {
    const NAME: &'static str = "bank";
    type Command = Command;
    type Answer = Receipt;
    type Query = ();
    type View = Self;

    fn handle(&mut self, command: Command, context: &mut Context<'_>) -> Result<Receipt, Refusal> {
        let mut balance = 0;
        match command {
            Command::Deposit { account, amount } => {
                let held = self.accounts.entry(account).or_default();
                *held += amount;
                balance = *held;
                self.chain = next_in_chain(self.chain, amount);
            }
            Command::Notify { port, text } => {
                context.send(&port, serde_json::to_vec(&text).unwrap());
            }
            Command::Refuse => return Err(Refusal::status(409, "the bank is closed")),
            Command::Panic => {
                self.chain = 0;
                panic!("asked to")
            }
            Command::Abort => std::process::abort(),
            Command::Wait => wait_at_the_door(),
            Command::Remind { token, delay_ms } => context.set_timer(Duration::from_millis(delay_ms), token),
            Command::Grow { bytes } => self.ballast.resize(bytes, 7),
        }
        Ok(Receipt { balance, chain: self.chain })
    }

    fn query(&self, (): ()) -> Result<Self, Refusal> {
        Ok(Self {
            accounts: self.accounts.clone(),
            chain: self.chain,
            settled: self.settled.clone(),
            ballast: Vec::new(),
        })
    }

    fn timer(&mut self, token: u64, _: &mut Context<'_>) {
        self.settled.push((token, "timer".to_owned()));
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, _: &mut Context<'_>) {
        self.settled.push((output.0, format!("{outcome:?}")));
    }
}

/// What the chain is after a deposit.
pub(crate) fn next_in_chain(chain: u64, amount: i64) -> u64 {
    (chain.rotate_left(7) ^ amount.cast_unsigned()).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Who stands at the door of [`Command::Wait`], and whether it is open.
static DOOR: (Mutex<(u32, bool)>, Condvar) = (Mutex::new((0, false)), Condvar::new());

fn door() -> MutexGuard<'static, (u32, bool)> {
    DOOR.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_at_the_door() {
    let mut state = door();
    state.0 += 1;
    DOOR.1.notify_all();
    drop(DOOR.1.wait_while(state, |state| !state.1).unwrap());
}

/// Returns when a handler stands at the door.
pub(crate) fn until_somebody_waits() {
    let (_state, timeout) = DOOR.1.wait_timeout_while(door(), PATIENCE, |state| state.0 == 0).unwrap();
    assert!(!timeout.timed_out(), "nobody came to the door");
}

/// Lets everybody through, now and later.
pub(crate) fn open_the_door() {
    door().1 = true;
    DOOR.1.notify_all();
}

/// A small ring, so that a test writes kilobytes where a service writes megabytes.
pub(crate) fn server(directory: &Path) -> Server<Bank> {
    let mut server = Server::new(Bank::default)
        .dir(directory)
        .listen((Ipv4Addr::LOCALHOST, 0))
        .pages(3, 64 << 10)
        .limits(|limits| limits.body_bytes_max = 16 << 10);
    server.settings_mut().disk.journal.geometry.segment_pages = 8;
    server
}

#[test]
#[ignore = "not a test: the service that other tests start and kill"]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = PathBuf::from(directory);
    let mut server = server(&directory).port_file(Some(port_file(&directory)));
    if let Some(path) = std::env::var_os(OUTPUT_FILE) {
        server = server.output(OutputPort::file("lines", PathBuf::from(path)));
    }
    if let Ok(url) = std::env::var(OUTPUT_URL) {
        server = server.output(OutputPort::http("notify", url));
    }
    if let Ok(bytes) = std::env::var(CHECKPOINT_BYTES) {
        server = server.limits(|limits| limits.checkpoint_log_bytes = bytes.parse().unwrap());
    }
    server.run().unwrap();
    // The test harness must not go on to say that a test has passed.
    std::process::exit(0);
}

fn port_file(directory: &Path) -> PathBuf {
    directory.with_extension("port")
}

/// A service in a process of its own; killed when dropped.
pub(crate) struct Served {
    child: Child,
    directory: PathBuf,
}

/// How a child is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) output_file: Option<PathBuf>,
    pub(crate) output_url: Option<String>,
    pub(crate) checkpoint_bytes: Option<u64>,
}

impl Served {
    /// Starts a child in `directory`; its port is known once it takes requests.
    pub(crate) fn start(directory: &Path, surroundings: &Surroundings) -> Self {
        let _ = std::fs::remove_file(port_file(directory));
        let mut program = Program::new(std::env::current_exe().unwrap());
        program.args(["support::child", "--exact", "--ignored", "--nocapture"]).env(DIRECTORY, directory);
        if let Some(path) = &surroundings.output_file {
            program.env(OUTPUT_FILE, path);
        }
        if let Some(url) = &surroundings.output_url {
            program.env(OUTPUT_URL, url);
        }
        if let Some(bytes) = surroundings.checkpoint_bytes {
            program.env(CHECKPOINT_BYTES, bytes.to_string());
        }
        let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, directory: directory.to_owned() }
    }

    /// Where it listens; waits until it does.
    pub(crate) fn address(&mut self) -> SocketAddr {
        let begun = std::time::Instant::now();
        loop {
            if let Ok(port) = std::fs::read_to_string(port_file(&self.directory)) {
                return SocketAddr::from((Ipv4Addr::LOCALHOST, port.trim().parse().unwrap()));
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the service ended with {ended:?} before it listened");
            assert!(begun.elapsed() < PATIENCE, "the service does not come up");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks for a clean stop and returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        // SAFETY: the child has not been waited for, so that its number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        self.child.wait().unwrap().code()
    }

    /// Waits for it to end by itself.
    pub(crate) fn ended(&mut self) -> bool {
        let begun = std::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response, read whole.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends raw bytes and reads one response.
pub(crate) fn raw(address: SocketAddr, request: &[u8]) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    read_response(&mut stream)
}

pub(crate) fn read_response(stream: &mut TcpStream) -> std::io::Result<Response> {
    let broken = || std::io::Error::other("no response");
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(head_end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&text[..head_end]).into_owned();
            let mut lines = head.split("\r\n");
            let status = lines.next().and_then(|line| line.get(9..12)?.parse().ok()).ok_or_else(broken)?;
            let headers: BTreeMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length: usize =
                headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if text.len() >= head_end + 4 + length {
                let body = String::from_utf8_lossy(&text[head_end + 4..head_end + 4 + length]).into_owned();
                return Ok(Response { status, headers, body });
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err(broken()),
            Ok(bytes) => text.extend_from_slice(&chunk[..bytes]),
            // A thread that has made an io_uring is interrupted when that has news, whatever it is doing.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `POST path` with headers.
pub(crate) fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    try_post(address, path, headers, body).unwrap()
}

pub(crate) fn try_post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Response> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    raw(address, &request)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    raw(address, format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).unwrap()
}

/// Calls with a key.
pub(crate) fn call(address: SocketAddr, key: &str, command: &Command) -> Response {
    post(address, "/call", &[("Idempotency-Key", key)], &serde_json::to_vec(command).unwrap())
}

pub(crate) fn deposit(account: &str, amount: i64) -> Command {
    Command::Deposit { account: account.to_owned(), amount }
}

pub(crate) fn view(address: SocketAddr) -> Bank {
    post(address, "/query", &[], b"").json()
}

/// The value of a metric.
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let metrics = get(address, "/metrics").body;
    let line = metrics.lines().find(|line| line.split_whitespace().next() == Some(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.unwrap_or_else(|| panic!("no metric {name} in\n{metrics}")).parse().unwrap()
}

/// Asks again until `done` holds, for what happens behind the service's back.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}: did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}
