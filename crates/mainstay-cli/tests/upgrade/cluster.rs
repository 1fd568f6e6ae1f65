//! All nodes of a cluster exchanged at one line, under load and kill -9, between versions that cannot read each other's messages.

use crate::served::{Served, Workplace, agent, until};
use crate::trial;
use libtest_mimic::Trial;
use mainstay::instance::{Context, Instance, Key, Node, Reply};
use mainstay::{Refusal, RestoreError, SavedState};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial(
        "a_cluster_is_upgraded_at_one_line_under_load_and_kills",
        a_cluster_is_upgraded_at_one_line_under_load_and_kills,
    )]
}

/// What accounts tell each other: each version its own, as JSON that the other does not take.
trait Coins: Serialize + DeserializeOwned + Send + 'static {
    fn of(coins: u64) -> Self;
    fn coins(&self) -> u64;
}

/// Version 1: a number.
#[derive(Serialize, Deserialize)]
struct Bare(u64);

impl Coins for Bare {
    fn of(coins: u64) -> Self {
        Self(coins)
    }

    fn coins(&self) -> u64 {
        self.0
    }
}

/// Version 2: an object.
#[derive(Serialize, Deserialize)]
struct Minted {
    coins: u64,
}

impl Coins for Minted {
    fn of(coins: u64) -> Self {
        Self { coins }
    }

    fn coins(&self) -> u64 {
        self.coins
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Command {
    Deposit { coins: u64 },
    Pay { to: Key, coins: u64 },
}

/// An account, at a version.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Purse<C> {
    total: u64,
    coins: PhantomData<fn() -> C>,
}

impl<C> Default for Purse<C> {
    fn default() -> Self {
        Self { total: 0, coins: PhantomData }
    }
}

impl<C: Coins> Instance for Purse<C> {
    const TYPE: &'static str = "purse";
    type Command = Command;
    type Answer = u64;
    type Message = C;
    type Query = ();
    type View = u64;

    fn handle(&mut self, command: Command, context: &mut Context<'_, Self>) -> Result<Reply<u64>, Refusal> {
        match command {
            Command::Deposit { coins } => self.total += coins,
            Command::Pay { to, coins } => {
                self.total = self.total.checked_sub(coins).ok_or("not that much")?;
                context.tell::<Self>(&to, &C::of(coins));
            }
        }
        Ok(Reply::Now(self.total))
    }

    fn message(&mut self, coins: C, _: &mut Context<'_, Self>) {
        self.total += coins.coins();
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.total)
    }

    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        saved.read()
    }
}

/// Serves if this program was started under the name of a version.
pub(crate) fn run_if_named_so(name: &str) -> Option<ExitCode> {
    match name {
        "saver-purse-1" => Some(serve::<Bare>(1)),
        "saver-purse-2" => Some(serve::<Minted>(2)),
        _ => None,
    }
}

fn serve<C: Coins>(version: u32) -> ExitCode {
    let by_first_letter = |key: &str, nodes: &[mainstay_types::id::NodeId]| {
        nodes[usize::from(key.as_bytes()[0] - b'a') % nodes.len()]
    };
    Node::named("purses").version(version).host_by::<Purse<C>>(by_first_letter).serve()
}

const PURSES: [&str; 3] = ["ann", "ben", "cem"];
const BEGIN_WITH: u64 = 1_000_000;
/// Attempts during which a node is killed over and over.
const ATTEMPTS_WITH_KILLS: usize = 2;
const ATTEMPTS_MAX: usize = 20;

/// Three nodes, each at an address of its own that it keeps over its lives.
struct Cluster {
    place: Workplace,
    list: String,
    listen: Vec<String>,
    /// `None`: it has ended by itself.
    nodes: [Mutex<Option<Served>>; 3],
}

impl Cluster {
    fn start() -> Self {
        let listeners: Vec<TcpListener> =
            (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("there is a port")).collect();
        let at = |place: usize| listeners[place].local_addr().expect("it listens").to_string();
        let list = format!("1={},2={},3={}", at(0), at(1), at(2));
        let listen = (3..6).map(at).collect();
        drop(listeners);
        let cluster = Self { place: Workplace::new(), list, listen, nodes: Default::default() };
        for number in 0..3 {
            cluster.run(number, "purse-1");
        }
        cluster
    }

    fn run(&self, number: usize, version: &str) {
        let name = (number + 1).to_string();
        let flags = ["--node", &name, "--nodes", &self.list, "--policy", "hybrid"];
        let directory = self.place.directory().with_file_name(format!("purses-{number}"));
        let served = self.place.start_at(&directory, version, &flags, None, &self.listen[number]);
        *self.nodes[number].lock().unwrap() = Some(served);
    }

    fn url(&self, number: usize) -> String {
        format!("http://{}", self.listen[number])
    }

    /// Kills a node that has not ended by itself, and starts it again.
    fn kill_and_start(&self, number: usize) {
        let mut node = self.nodes[number].lock().unwrap();
        if node.as_mut().is_some_and(|served| !served.has_ended()) {
            node.take().expect("it was just seen").kill();
            drop(node);
            self.run(number, "purse-1");
        }
    }

    fn has_ended(&self, number: usize) -> bool {
        self.nodes[number].lock().unwrap().as_mut().is_none_or(Served::has_ended)
    }

    /// Has all nodes stop at one line; `false`: not all have said so.
    fn stop_at_a_line(&self, snapshot: &str) -> bool {
        let urls: Vec<String> = (0..3).map(|number| self.url(number)).collect();
        let into = self.place.directory().with_file_name(snapshot);
        let into = into.to_str().expect("the folder's name is text");
        let mut arguments = vec!["snapshot", into, "--blocking", "--stop", "--within", "20", "--node"];
        arguments.extend(urls.iter().map(String::as_str));
        let ended = self.place.mainstay(&arguments);
        assert!(matches!(ended.status.code(), Some(0 | 3)), "{ended:?}");
        ended.status.success()
    }

    /// Waits for the ends of nodes that have stopped; `false`: one was killed after it had stopped, and started again by this test.
    fn all_end(&self) -> bool {
        (0..3).all(|number| {
            let mut ended = false;
            until("it ends, or answers", || {
                ended = self.has_ended(number);
                ended || self.answers(number)
            });
            ended
        })
    }

    /// Whether a life is there that has not stopped.
    fn answers(&self, number: usize) -> bool {
        let answered = agent().get(format!("{}/health", self.url(number))).call();
        answered.is_ok_and(|mut health| {
            let said = health.body_mut().read_to_string().unwrap_or_default();
            !said.is_empty() && !said.contains("stopp")
        })
    }

    /// Calls a purse once; `None`: to be tried again.
    fn call(&self, number: usize, key: &str, command: &Command) -> Option<u64> {
        let url = format!("{}/call/purse/{}", self.url(number), PURSES[number]);
        let body = serde_json::to_vec(command).expect("plain data");
        let mut response = agent().post(url).header("Idempotency-Key", key).send(&body).ok()?;
        let text = response.body_mut().read_to_string().ok()?;
        match response.status().as_u16() {
            200 => Some(text.parse().expect("a total")),
            409 | 503 => None,
            status => panic!("{status}: {text}"),
        }
    }

    fn total(&self, number: usize) -> Option<u64> {
        let url = format!("{}/query/purse/{}", self.url(number), PURSES[number]);
        let mut response = agent().post(url).send_empty().ok()?;
        response.body_mut().read_to_string().ok()?.parse().ok()
    }
}

/// Ends the clients however the test ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A message of the old version in the hands of the new one, or the other way round, would be a coin lost.
fn a_cluster_is_upgraded_at_one_line_under_load_and_kills() {
    let cluster = Cluster::start();
    for number in 0..3 {
        until("the purse is filled", || {
            cluster.call(number, "first", &Command::Deposit { coins: BEGIN_WITH }) == Some(BEGIN_WITH)
        });
    }
    let over = AtomicBool::new(false);
    let paid = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for client in 0..6_usize {
            let (cluster, over, paid) = (&cluster, &over, &paid);
            scope.spawn(move || {
                let from = client % 3;
                for turn in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let to = Key::try_from(PURSES[(from + 1) % 3].to_owned()).expect("it is a key");
                    let command = Command::Pay { to, coins: 1 + client as u64 };
                    let key = format!("{client}-pays-{turn}");
                    while cluster.call(from, &key, &command).is_none() {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    paid[from].fetch_add(1 + client as u64, Ordering::Relaxed);
                }
            });
        }
        let _ends_clients = SetOnDrop(&over);
        let progress = |meanwhile: &dyn Fn()| {
            let so_far = [0, 1, 2].map(|of: usize| paid[of].load(Ordering::Relaxed));
            until("all make progress", || {
                meanwhile();
                (0..3).all(|of| paid[of].load(Ordering::Relaxed) > so_far[of] + 40)
            });
        };
        progress(&|| ());
        let stopped = (0..ATTEMPTS_MAX).any(|attempt| {
            let stopped = std::thread::scope(|scope| {
                let cluster = &cluster;
                let stops = scope.spawn(move || cluster.stop_at_a_line(&format!("before-2-{attempt}")));
                for pause_ms in [10, 40, 90].iter().filter(|_| attempt < ATTEMPTS_WITH_KILLS) {
                    std::thread::sleep(Duration::from_millis(*pause_ms));
                    cluster.kill_and_start(attempt % 3);
                }
                stops.join().expect("it does not panic")
            });
            let stopped = stopped && cluster.all_end();
            if !stopped {
                // As the command says: the old one again wherever a node is down. One that does not listen any more may end later.
                progress(&|| {
                    for number in (0..3).filter(|&number| cluster.has_ended(number)) {
                        cluster.run(number, "purse-1");
                    }
                });
            }
            stopped
        });
        assert!(stopped, "no attempt succeeded");
        for number in 0..3 {
            cluster.run(number, "purse-2");
        }
        progress(&|| ());
    });
    let paid = paid.map(AtomicU64::into_inner);
    for number in 0..3 {
        let total = BEGIN_WITH - paid[number] + paid[(number + 2) % 3];
        until("all that was paid has arrived", || cluster.total(number) == Some(total));
    }
}
