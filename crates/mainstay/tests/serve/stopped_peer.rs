//! A node that does not go on keeps another's messages pinned: its memory stays bounded, and all of them arrive when it does.

use crate::support::{PATIENCE, Response, get, own_loopback, post, until};
use mainstay::Refusal;
use mainstay::instance::{Context, Instance, Never, Node, Reply};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The flags of a child, one in each line.
const FLAGS: &str = "MAINSTAY_TEST_FLAGS";

const PIECES: u64 = 600;
const PIECE_BYTES: usize = 200_000;
/// What the sender may keep of them in memory.
const MEMORY_BYTES: u64 = 4 << 20;

/// Tells the drain a piece for every request.
#[derive(Default, Serialize, Deserialize)]
struct Tap {
    told: u64,
}

/// Counts pieces, and those that are not the next one or not whole.
#[derive(Default, Serialize, Deserialize)]
struct Drain {
    pieces: u64,
    wrong: u64,
}

#[derive(Serialize, Deserialize)]
struct Piece {
    number: u64,
    bytes: String,
}

fn letter(number: u64) -> char {
    char::from(b'a' + (number % 26) as u8)
}

impl Instance for Tap {
    const TYPE: &'static str = "tap";
    type Command = ();
    type Answer = u64;
    type Message = Never;
    type Query = ();
    type View = u64;

    fn handle(&mut self, (): (), context: &mut Context<'_, Self>) -> Result<Reply<u64>, Refusal> {
        self.told += 1;
        let bytes = letter(self.told).to_string().repeat(PIECE_BYTES);
        context.tell::<Drain>("drain", &Piece { number: self.told, bytes });
        Ok(Reply::Now(self.told))
    }

    fn message(&mut self, never: Never, _: &mut Context<'_, Self>) {
        match never {}
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.told)
    }
}

impl Instance for Drain {
    const TYPE: &'static str = "drain";
    type Command = Never;
    type Answer = ();
    type Message = Piece;
    type Query = ();
    type View = (u64, u64);

    fn handle(&mut self, never: Never, _: &mut Context<'_, Self>) -> Result<Reply<()>, Refusal> {
        match never {}
    }

    fn message(&mut self, piece: Piece, _: &mut Context<'_, Self>) {
        self.pieces += 1;
        let whole = piece.bytes.len() == PIECE_BYTES && piece.bytes.chars().all(|c| c == letter(self.pieces));
        self.wrong += u64::from(piece.number != self.pieces || !whole);
    }

    fn query(&self, (): ()) -> Result<(u64, u64), Refusal> {
        Ok((self.pieces, self.wrong))
    }
}

#[test]
#[ignore = "not a test: a node that other tests start"]
fn child() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let node = Node::named("plumbing").host_on::<Tap>(1).host_on::<Drain>(2);
    let ended = node.serve_from(["plumbing"].into_iter().chain(flags.lines()).map(Into::into));
    std::process::exit(i32::from(ended != std::process::ExitCode::SUCCESS));
}

/// A node in a process of its own; killed when dropped.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    fn start(folder: &Path, number: u64, list: &str) -> Self {
        let port_file = folder.join(format!("n{number}.port"));
        let flags = [
            ("--node", number.to_string()),
            ("--nodes", list.to_owned()),
            ("--policy", "hybrid".to_owned()),
            ("--listen", "127.0.0.1:0".to_owned()),
            ("--dir", folder.join(format!("n{number}")).display().to_string()),
            ("--port-file", port_file.display().to_string()),
            ("--page-bytes", "524288".to_owned()),
            ("--body-bytes-max", "400000".to_owned()),
            ("--sender-log-memory-bytes", MEMORY_BYTES.to_string()),
        ];
        let flags: Vec<_> = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program
            .args(["stopped_peer::child", "--exact", "--ignored", "--nocapture"])
            .env(FLAGS, flags.join("\n"));
        let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut served = Self { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
        let begun = Instant::now();
        while served.address.port() == 0 {
            assert!(served.child.try_wait().unwrap().is_none(), "node {number} ended before it listened");
            assert!(begun.elapsed() < PATIENCE, "node {number} does not come up");
            std::thread::sleep(Duration::from_millis(2));
            let port = std::fs::read_to_string(&port_file).unwrap_or_default();
            served.address.set_port(port.trim().parse().unwrap_or(0));
        }
        served
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so that its number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Memory that is no file's, in bytes.
    fn anonymous_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says it");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn post(&self, path: &str, key: Option<&str>) -> Response {
        let headers: Vec<_> = key.iter().map(|key| ("Idempotency-Key", *key)).collect();
        post(self.address, path, &headers, b"null")
    }

    fn metric_of(&self, name: &str, peer: u64) -> u64 {
        let text = get(self.address, "/metrics").body;
        let begins = format!("{name}{{peer=\"{peer}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&begins));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_stopped_peer_pins_a_file_and_not_memory_and_gets_everything_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let listeners = [(); 2].map(|()| TcpListener::bind((own_loopback(), 0)).unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let list = format!("1={},2={}", addresses[0], addresses[1]);
    drop(listeners);
    let (tap, drain) = (Served::start(folder.path(), 1, &list), Served::start(folder.path(), 2, &list));
    for node in [&tap, &drain] {
        until("the node is ready", || get(node.address, "/health").status == 200);
    }
    assert_eq!(tap.post("/call/tap/tap", Some("first")).status, 200);
    let pieces = || drain.post("/query/drain/drain", None).json::<(u64, u64)>();
    until("the first piece is there", || pieces() == (1, 0));

    drain.signal(libc::SIGSTOP);
    let before = tap.anonymous_bytes();
    let mut peak = 0;
    for number in 2..=PIECES {
        let answered = tap.post("/call/tap/tap", Some(&number.to_string()));
        assert_eq!(answered.json::<u64>(), number);
        peak = peak.max(tap.anonymous_bytes());
    }
    until("what is above the limit is outside of memory", || {
        tap.metric_of("mainstay_sender_log_bytes", 2) <= MEMORY_BYTES
    });
    let all = PIECES * PIECE_BYTES as u64;
    assert!(tap.metric_of("mainstay_sender_log_spilled_bytes", 2) > all - 2 * MEMORY_BYTES);
    // Beside the log there are frames on their way, up to the window of 8 MiB, in several buffers.
    assert!(peak - before < all / 2, "{} bytes of memory for {all} of pieces", peak - before);

    drain.signal(libc::SIGCONT);
    until("all pieces are there", || pieces().0 == PIECES);
    assert_eq!(pieces(), (PIECES, 0), "each once, in order and whole");
}
