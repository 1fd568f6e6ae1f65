//! Versions of a program of instances: accounts that pay each other, on one node and on two.

use crate::served::{self, Served, Workplace, agent, printed, text, until};
use crate::trial;
use libtest_mimic::Trial;
use mainstay::instance::{Context, Instance, Key, Node, Reply};
use mainstay::{Refusal, RestoreError, SavedState};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("instances_of_another_shape_are_taken_over", instances_of_another_shape_are_taken_over),
        trial("a_changed_instance_shows_its_first_difference", a_changed_instance_shows_its_first_difference),
        trial("a_replay_follows_one_instance", a_replay_follows_one_instance),
        trial(
            "nodes_of_a_hybrid_cluster_are_upgraded_one_after_the_other_under_load",
            nodes_of_a_hybrid_cluster_are_upgraded_one_after_the_other_under_load,
        ),
    ]
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Command {
    Deposit { amount: u64 },
    Pay { to: Key, amount: u64 },
}

/// What can be read.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct View {
    total: u64,
    /// Deposits since version 2.
    deposits: Option<u64>,
}

/// Version 1.
#[derive(Default, Serialize, Deserialize)]
struct First {
    total: u64,
}

/// Version 2.
#[derive(Default, Serialize, Deserialize)]
struct Later {
    deposits: u64,
    total: u64,
}

/// Version 2 with another idea of what a large deposit is worth.
#[derive(Default, Serialize, Deserialize)]
struct Generous(Later);

/// Version 2 that does not look at what there was.
#[derive(Default, Serialize, Deserialize)]
struct Blind(Later);

/// What all versions do.
trait Account: Instance<Message = u64> {
    fn total(&mut self) -> &mut u64;
    fn deposit(&mut self, amount: u64);

    fn command(&mut self, command: Command, context: &mut Context<'_, Self>) -> Result<Reply<u64>, Refusal> {
        match command {
            Command::Deposit { amount } => self.deposit(amount),
            Command::Pay { to, amount } => {
                *self.total() = self.total().checked_sub(amount).ok_or("not that much")?;
                context.tell::<Self>(&to, &amount);
            }
        }
        Ok(Reply::Now(*self.total()))
    }
}

macro_rules! account {
    ($name:ty, |$account:ident| $total:expr, |$seen:ident| $deposits:expr, |$to:ident, $amount:ident| $deposit:expr, |$saved:ident| $migrate:expr) => {
        impl Account for $name {
            fn total(&mut self) -> &mut u64 {
                let $account = self;
                &mut $total
            }

            fn deposit(&mut self, $amount: u64) {
                let $to = self;
                $deposit
            }
        }

        impl Instance for $name {
            const TYPE: &'static str = "account";
            type Command = Command;
            type Answer = u64;
            type Message = u64;
            type Query = ();
            type View = View;

            fn handle(
                &mut self,
                command: Command,
                context: &mut Context<'_, Self>,
            ) -> Result<Reply<u64>, Refusal> {
                self.command(command, context)
            }

            fn message(&mut self, amount: u64, _: &mut Context<'_, Self>) {
                *self.total() += amount;
            }

            fn query(&self, (): ()) -> Result<View, Refusal> {
                let $account = self;
                let total = $total;
                let $seen = self;
                Ok(View { total, deposits: $deposits })
            }

            fn migrate($saved: SavedState<'_>) -> Result<Self, RestoreError> {
                $migrate
            }
        }
    };
}

account!(First, |one| one.total, |_one| None, |one, amount| one.total += amount, |saved| saved.read());
account!(
    Later,
    |one| one.total,
    |one| Some(one.deposits),
    |one, amount| {
        one.total += amount;
        one.deposits += 1;
    },
    |saved| match saved.version() {
        1 => Ok(Self { deposits: 0, total: saved.read::<First>()?.total }),
        _ => saved.read(),
    }
);
account!(
    Generous,
    |one| one.0.total,
    |one| Some(one.0.deposits),
    |one, amount| one.0.deposit(amount + u64::from(amount >= 100)),
    |saved| Later::migrate(saved).map(Self)
);
account!(
    Blind,
    |one| one.0.total,
    |one| Some(one.0.deposits),
    |one, amount| one.0.deposit(amount),
    |_saved| Ok(Self::default())
);

/// Serves, or replays, if this program was started under the name of a version.
pub(crate) fn run_if_named_so(name: &str) -> Option<ExitCode> {
    let code = match name {
        "saver-node-1" => serve::<First>(1),
        "saver-node-2" => serve::<Later>(2),
        "saver-node-generous" => serve::<Generous>(2),
        "saver-node-blind" => serve::<Blind>(2),
        _ => return None,
    };
    Some(code)
}

fn serve<A: Account>(version: u32) -> ExitCode {
    let by_first_letter = |key: &str, nodes: &[mainstay_types::id::NodeId]| {
        nodes[usize::from(key.as_bytes()[0] - b'a') % nodes.len()]
    };
    Node::named("saver").version(version).host_by::<A>(by_first_letter).serve()
}

/// Calls an account once; `None`: to be tried again.
fn try_call(url: &str, account: &str, key: &str, command: &Command) -> Option<u64> {
    served::try_call(&format!("{url}/call/account/{account}"), key, command)
}

fn deposit(served: &Served, account: &str, amount: u64) -> u64 {
    let key = format!("{account}-gets-{amount}");
    try_call(&served.url, account, &key, &Command::Deposit { amount }).expect("it takes requests")
}

fn view(served: &Served, account: &str) -> View {
    let response = agent().post(format!("{}/query/account/{account}", served.url)).send_empty();
    let mut response = response.expect("it answers");
    serde_json::from_str(&response.body_mut().read_to_string().expect("a body")).expect("a view")
}

fn instances_of_another_shape_are_taken_over() {
    let place = Workplace::new();
    let served = place.start("node-1", None);
    for (account, amount) in [("ann", 5), ("ben", 150), ("cem", 7)] {
        assert_eq!(deposit(&served, account, amount), amount);
    }
    served.stop();
    let directory = place.directory();
    let blind = place.run("node-blind", &["--dir", text(&directory), "--listen", "127.0.0.1:0"]);
    assert_eq!(blind.status.code(), Some(1), "{blind:?}");
    let complaint = String::from_utf8_lossy(&blind.stderr).into_owned();
    assert!(
        complaint.contains("account/ann: `Instance::migrate` made a state without reading"),
        "{complaint}"
    );
    let served = place.start("node-2", None);
    assert_eq!(view(&served, "ben"), View { total: 150, deposits: Some(0) });
    assert_eq!(deposit(&served, "ann", 5), 5, "a repetition gets the answer that the old version gave");
    assert_eq!(deposit(&served, "ann", 6), 11);
    // Killed before or after the new version's first checkpoint: either way the same states come back.
    served.kill();
    let served = place.start("node-2", None);
    for (account, total, deposits) in [("ann", 11, 1), ("ben", 150, 0), ("cem", 7, 0), ("dee", 0, 0)] {
        assert_eq!(view(&served, account), View { total, deposits: Some(deposits) }, "{account}");
    }
}

fn a_changed_instance_shows_its_first_difference() {
    let place = Workplace::new();
    let served = place.start("node-1", None);
    deposit(&served, "ann", 5);
    // What the check compares begins with states of the old version.
    served.stop();
    let served = place.start("node-1", None);
    for (account, amount) in [("ann", 6), ("ben", 150), ("cem", 7)] {
        deposit(&served, account, amount);
    }
    served.kill();
    let check = |new: &str, code| {
        let compared = place.mainstay(&["upgrade", "--check", "saver-node-1", new, "DIR", "--json"]);
        serde_json::from_str::<Value>(&printed(&compared, code)).expect("it prints JSON")
    };
    let compared = check("saver-node-generous", 1);
    let difference = &compared["difference"];
    assert_eq!(
        (&difference["old"]["answer"]["body"], &difference["new"]["answer"]["body"]),
        (&"150".into(), &"151".into())
    );
    assert_eq!(compared["same"], 1, "{compared}");
    assert_eq!(check("saver-node-2", 0)["same"], 3);
    let blind = check("saver-node-blind", 1);
    let why = blind["failure"]["why"].as_str().expect("it cannot go on");
    assert!(why.contains("without reading"), "{why}");
}

fn a_replay_follows_one_instance() {
    let place = Workplace::new();
    let served = place.start("node-1", None);
    deposit(&served, "ann", 5);
    deposit(&served, "ben", 150);
    let to = Key::try_from("ben".to_owned()).expect("it is a key");
    try_call(&served.url, "ann", "pays", &Command::Pay { to, amount: 2 }).expect("it takes requests");
    deposit(&served, "cem", 7);
    served.kill();
    let replay =
        |flags: &[&str]| place.mainstay(&[&["replay", "DIR", "--with", "saver-node-1"], flags].concat());
    let words = printed(&replay(&["--process", "account/ben"]), 0);
    for expected in [
        r#"account/ben takes command {"deposit":{"amount":150}}"#,
        r#"account/ben is now {"total":150}"#,
        "account/ben takes message of account/ann: 2",
        r#"account/ben is now {"total":152}"#,
        "4 deliveries replayed: all as recorded; 2 of them reached the instance",
    ] {
        assert!(words.contains(expected), "`{expected}` is missing in:\n{words}");
    }
    assert!(!words.contains("account/cem"), "{words}");
    let ann = printed(&replay(&["--process", "account/ann"]), 0);
    assert!(ann.contains("account/ann tells account/ben: 2"), "{ann}");
    assert_eq!(printed(&replay(&["--process", "saver"]), 0), printed(&replay(&[]), 0), "the whole program");
    for (name, why) in
        [("stock/a", "the types are [\"account\"]"), ("ben", "it is `saver`, or the TYPE/KEY of an instance")]
    {
        let refused = replay(&["--process", name]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(why), "{refused:?}");
    }
    let diff = |new: &str, flags: &[&str], code| {
        let compared = replay(&[&["--diff", new], flags].concat());
        printed(&compared, code)
    };
    let words = diff("saver-node-generous", &[], 1);
    for expected in ["1 deliveries the same, then the FIRST DIFFERENCE", "answer 200: 150", "answer 200: 151"]
    {
        assert!(words.contains(expected), "`{expected}` is missing in:\n{words}");
    }
    assert!(diff("saver-node-2", &[], 0).contains("4 deliveries, no difference"));
    let states = diff("saver-node-2", &["--process", "account/cem"], 1);
    for expected in [r#"account/cem is now {"total":7}"#, r#"account/cem is now {"deposits":1,"total":7}"#] {
        assert!(states.contains(expected), "`{expected}` is missing in:\n{states}");
    }
}

/// Ends the clients however the test ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two accounts on two nodes pay each other while one node after the other is exchanged: no coin is lost or doubled.
fn nodes_of_a_hybrid_cluster_are_upgraded_one_after_the_other_under_load() {
    const ACCOUNTS: [&str; 2] = ["ann", "ben"];
    const BEGIN_WITH: u64 = 1_000_000;
    let place = Workplace::new();
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("there is a port"));
    let addresses = listeners.map(|listener| listener.local_addr().expect("it listens"));
    let list = format!("1={},2={}", addresses[0], addresses[1]);
    let start = |number: usize, version: &str| {
        let flags = ["--node", &(number + 1).to_string(), "--nodes", &list, "--policy", "hybrid"];
        place.start_in(&place.directory().with_file_name(format!("node-{number}")), version, &flags, None)
    };
    let mut nodes = [start(0, "node-1"), start(1, "node-1")].map(Some);
    let url =
        |nodes: &[Option<Served>; 2], number: usize| nodes[number].as_ref().expect("it serves").url.clone();
    let urls = [0, 1].map(|number| Mutex::new(url(&nodes, number)));
    for (account, node) in ACCOUNTS.iter().zip(nodes.iter().flatten()) {
        until("the account is filled", || {
            let command = Command::Deposit { amount: BEGIN_WITH };
            try_call(&node.url, account, "first", &command) == Some(BEGIN_WITH)
        });
    }
    let over = AtomicBool::new(false);
    let paid = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for client in 0..4_usize {
            let (urls, over, paid) = (&urls, &over, &paid);
            scope.spawn(move || {
                let (from, to) = (client % 2, 1 - client % 2);
                for turn in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let to = Key::try_from(ACCOUNTS[to].to_owned()).expect("it is a key");
                    let command = Command::Pay { to, amount: 1 + client as u64 };
                    let key = format!("{client}-pays-{turn}");
                    loop {
                        let url = urls[from].lock().unwrap().clone();
                        if try_call(&url, ACCOUNTS[from], &key, &command).is_some() {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    paid[from].fetch_add(1 + client as u64, Ordering::Relaxed);
                }
            });
        }
        let _ends_clients = SetOnDrop(&over);
        let progress = || {
            let so_far = [0, 1].map(|of: usize| paid[of].load(Ordering::Relaxed));
            until("both make progress", || {
                (0..2).all(|of| paid[of].load(Ordering::Relaxed) > so_far[of] + 40)
            });
        };
        for number in 0..2 {
            progress();
            nodes[number].take().expect("it serves").stop();
            nodes[number] = Some(start(number, "node-2"));
            *urls[number].lock().unwrap() = url(&nodes, number);
        }
        progress();
    });
    let paid = paid.map(AtomicU64::into_inner);
    for (number, node) in nodes.iter().flatten().enumerate() {
        let total = BEGIN_WITH - paid[number] + paid[1 - number];
        until("all that was paid has arrived", || {
            view(node, ACCOUNTS[number]) == View { total, deposits: Some(0) }
        });
    }
}
