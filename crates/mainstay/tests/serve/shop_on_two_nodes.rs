//! The example `shop` on two nodes, each a process of its own, that are killed with -9 while orders are under way.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/shop.rs"]
mod shop;

use crate::support::{PATIENCE, Response, get, own_loopback, try_post, until};
use mainstay::Level;
use mainstay_client::{Client, Options};
use mainstay_tls::testing::Authority;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The flags of a child, one in each line.
const FLAGS: &str = "MAINSTAY_TEST_FLAGS";

const ARTICLES: [&str; 4] = ["apple", "pear", "plum", "fig"];
const DELIVERED: u64 = 100_000;

#[test]
#[ignore = "not a test: the node that other tests start and kill"]
fn child() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let ended = shop::shop().serve_from(["shop"].into_iter().chain(flags.lines()).map(Into::into));
    // The test harness must not go on to say that a test has passed.
    std::process::exit(i32::from(ended != std::process::ExitCode::SUCCESS));
}

/// Where the nodes of a test are.
struct Shop {
    folder: tempfile::TempDir,
    policy: &'static str,
    list: String,
    /// Whether the nodes talk by TLS; their certificates are in the folder then.
    tls: bool,
    http: Mutex<BTreeMap<u64, SocketAddr>>,
}

/// A node in a process of its own; killed when dropped.
struct Served {
    number: u64,
    child: Child,
    port_file: PathBuf,
}

impl Shop {
    fn new(policy: &'static str) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind((own_loopback(), 0)).unwrap());
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let list = format!("1={},2={}", addresses[0], addresses[1]);
        Self { folder: tempfile::tempdir().unwrap(), policy, list, tls: false, http: Mutex::default() }
    }

    /// The same, with certificates of an authority of its own.
    fn with_tls(policy: &'static str) -> Self {
        let shop = Self { tls: true, ..Self::new(policy) };
        let authority = Authority::new();
        for name in ["n1", "n2"] {
            let _ = authority.files(shop.folder.path(), name, None);
        }
        shop
    }

    fn spawn(&self, number: u64, list: &str, port_file: &Path) -> Child {
        let directory = self.folder.path().join(format!("n{number}"));
        let flags = [
            ("--node", number.to_string()),
            ("--nodes", list.to_owned()),
            ("--policy", self.policy.to_owned()),
            ("--listen", "127.0.0.1:0".to_owned()),
            ("--dir", directory.display().to_string()),
            ("--port-file", port_file.display().to_string()),
            ("--page-bytes", "65536".to_owned()),
            ("--body-bytes-max", "16384".to_owned()),
            ("--checkpoint-bytes", "100000".to_owned()),
        ];
        let tls = self.tls.then(|| ("--tls", self.folder.path().display().to_string()));
        let flags: Vec<_> =
            flags.into_iter().chain(tls).flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program
            .args(["shop_on_two_nodes::child", "--exact", "--ignored", "--nocapture"])
            .env(FLAGS, flags.join("\n"));
        program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts a node, and waits until it takes requests again.
    fn serve(&self, number: u64) -> Served {
        let port_file = self.folder.path().join(format!("n{number}.port"));
        let _ = std::fs::remove_file(&port_file);
        let child = self.spawn(number, &self.list, &port_file);
        let mut served = Served { number, child, port_file };
        let address = served.address();
        self.http.lock().unwrap().insert(number, address);
        served
    }

    fn wait_until_ready(&self, number: u64) {
        let address = self.http.lock().unwrap()[&number];
        until("the node is ready", || get(address, "/health").status == 200);
    }

    /// Sends a request to the node that has the instance, over and over, until there is an answer of its handler.
    fn post(&self, path: &str, key: Option<&str>, body: &str) -> Response {
        let begun = Instant::now();
        let headers: Vec<_> = key.iter().map(|key| ("Idempotency-Key", *key)).collect();
        let mut node = 1;
        loop {
            assert!(begun.elapsed() < PATIENCE, "{path}: no answer");
            let address = self.http.lock().unwrap()[&node];
            match try_post(address, path, &headers, body.as_bytes()) {
                Ok(response) if response.status == 421 => {
                    node = response.header("mainstay-node").expect("it is named").parse().unwrap();
                }
                Ok(response) if response.status == 200 => return response,
                Ok(response) => assert!(matches!(response.status, 409 | 503), "{path}: {response:?}"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn order(&self, number: u64) -> Response {
        let wanted: BTreeMap<_, _> = ARTICLES.iter().map(|article| (*article, 1)).collect();
        let body = serde_json::to_string(&wanted).unwrap();
        self.post(&format!("/call/order/{number}"), Some(&format!("order-{number}")), &body)
    }
}

impl Served {
    fn address(&mut self) -> SocketAddr {
        let begun = Instant::now();
        loop {
            if let Ok(port) = std::fs::read_to_string(&self.port_file) {
                return SocketAddr::from((Ipv4Addr::LOCALHOST, port.trim().parse().unwrap()));
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "node {} ended with {ended:?} before it listened", self.number);
            assert!(begun.elapsed() < PATIENCE, "node {} does not come up", self.number);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.number
    }

    /// Asks for a clean stop and returns the exit code.
    fn terminate(mut self) -> Option<i32> {
        // SAFETY: the child has not been waited for, so that its number is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every order asks all stocks, so that each goes over both nodes and back. Nodes are killed in turn, one at a time.
fn orders_survive_kills(shop: &Shop) {
    const KILLS: usize = 4;
    let policy = shop.policy;
    let mut nodes = [Some(shop.serve(1)), Some(shop.serve(2))];
    for article in ARTICLES {
        shop.post(&format!("/call/stock/{article}"), Some(article), &DELIVERED.to_string());
    }
    let (next, answered, over) = (AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > over.load(Ordering::Relaxed) {
                        return;
                    }
                    let given: BTreeMap<String, u64> = shop.order(number).json();
                    assert_eq!(given.len(), ARTICLES.len(), "order {number}");
                    assert!(given.values().all(|count| *count == 1), "order {number} was given {given:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..KILLS {
            let so_far = answered.load(Ordering::Relaxed);
            until("some progress", || answered.load(Ordering::Relaxed) > so_far + 30);
            let number = nodes[round % 2].take().expect("it runs").kill();
            nodes[round % 2] = Some(shop.serve(number));
            shop.wait_until_ready(number);
        }
        over.store(next.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    let placed = over.load(Ordering::Relaxed);
    assert_eq!(answered.load(Ordering::Relaxed), placed, "{policy}: every order was answered");
    let again = shop.order(1);
    assert_eq!(again.header("mainstay-replayed"), Some("true"), "{policy}: {again:?}");
    let left = |article: &str| -> u64 { shop.post(&format!("/query/stock/{article}"), None, "").json() };
    for article in ARTICLES {
        assert_eq!(
            left(article),
            DELIVERED - placed,
            "{policy}: {article} was given too often or too seldom"
        );
    }
    // A clean stop and a start, and all is as it was; with another list of nodes it would be looked for elsewhere, and is refused.
    for served in nodes.into_iter().flatten() {
        assert_eq!(served.terminate(), Some(0), "{policy}: a clean stop");
    }
    let longer = format!("{},3=127.0.0.1:1", shop.list);
    let mut refused = shop.spawn(1, &longer, &shop.folder.path().join("never.port"));
    assert_eq!(refused.wait().unwrap().code(), Some(1), "{policy}: another list of nodes");
    let _nodes = [shop.serve(1), shop.serve(2)];
    for article in ARTICLES {
        assert_eq!(left(article), DELIVERED - placed, "{policy}: {article}, after a clean stop");
    }
}

#[test]
fn orders_over_two_nodes_survive_kills_under_hybrid_logging() {
    orders_survive_kills(&Shop::new("hybrid"));
}

#[test]
fn orders_over_two_nodes_survive_kills_under_deferred_logging_and_tls() {
    orders_survive_kills(&Shop::with_tls("deferred"));
}

/// Where a node stands alone, all instances are on it: what one tells another belongs to the same delivery.
#[test]
fn thousands_of_instances_share_a_journal_and_come_back_from_it() {
    const COUNT: u32 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let server = shop::shop().server().dir(folder.path().join("d")).listen((Ipv4Addr::LOCALHOST, 0));
        server.level(Level::Process).start().unwrap()
    };
    let running = start();
    let client = Client::connect(&format!("http://{}", running.address()), Options::default()).unwrap();
    let mut count: u32 = client.instance("stock", "a ü/1").thread().unwrap().call(&COUNT).unwrap();
    for number in 0..COUNT {
        if number == COUNT / 2 {
            running.checkpoint();
        }
        let stock = client.instance("stock", &number.to_string());
        let _: u32 = stock.call_with_key(&format!("stock-{number}"), &number).unwrap();
        let order = client.instance("order", &number.to_string());
        let articles = BTreeMap::from([("a ü/1".to_owned(), 1), (number.to_string(), 1)]);
        let given: BTreeMap<String, u32> =
            order.call_with_key(&format!("order-{number}"), &articles).unwrap();
        count -= 1;
        assert_eq!(given["a ü/1"], 1);
    }
    // As if killed.
    drop(running);
    let running = start();
    let client = Client::connect(&format!("http://{}", running.address()), Options::default()).unwrap();
    let left = |key: &str| -> u32 { client.instance("stock", key).query(&()).unwrap() };
    assert_eq!(left("a ü/1"), count);
    assert!((0..COUNT).all(|number| left(&number.to_string()) == number.saturating_sub(1)));
    assert_eq!(left("never delivered"), 0, "a read makes no instance, and fails on none");
    let again: u32 = client.instance("stock", "7").call_with_key("stock-7", &7).unwrap();
    assert_eq!((again, left("7")), (7, 6), "the first answer again, and no second delivery");
}

/// A key from outside that is none must not reach the handler, where it would be a bug.
#[test]
fn a_key_within_a_command_is_checked_at_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let server = shop::shop().server().dir(folder.path().join("d")).listen((Ipv4Addr::LOCALHOST, 0));
    let running = server.start().unwrap();
    let refused = try_post(running.address(), "/call/order/1", &[], br#"{"": 1}"#).unwrap();
    assert_eq!((refused.status, refused.header("mainstay-error")), (400, Some("unfit-body")), "{refused:?}");
}

#[test]
fn what_is_no_instance_is_refused_by_name() {
    let shop = Shop::new("deferred");
    let _node = shop.serve(1);
    let address = shop.http.lock().unwrap()[&1];
    // Of so many instances some are here.
    let here = (0..64)
        .map(|number| format!("/call/stock/{number}"))
        .find(|path| try_post(address, path, &[], b"1").unwrap().status == 200);
    for (path, status, code) in [
        ("/call", 404, "no-such-path"),
        ("/call/order", 404, "no-such-path"),
        ("/call/till/1", 404, "no-such-type"),
        ("/call/order/%0a", 400, "malformed-address"),
        (&here.expect("an instance of this node"), 400, "unfit-body"),
    ] {
        let response = try_post(address, path, &[], b"\"many\"").unwrap();
        assert_eq!((response.status, response.header("mainstay-error")), (status, Some(code)), "{path}");
    }
}
