//! `mainstay node`, `mainstay group` and `mainstay demo --topology region`: real nodes, redis-cli where it is installed.

use crate::harness::{Folder, PATIENCE, Said, mainstay, processes_of, run};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A running node; killed when dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) nodes_at: SocketAddr,
    pub(crate) clients_at: SocketAddr,
}

impl Node {
    pub(crate) fn start(folder: &Folder, name: &str, more: &[&str]) -> Self {
        Self::start_at(folder, name, "127.0.0.1:0", more)
    }

    fn start_at(folder: &Folder, name: &str, listen: &str, more: &[&str]) -> Self {
        Self::start_on(folder, name, [listen, "127.0.0.1:0"], more)
    }

    /// Starts a node that listens there for nodes and for clients, and logs into `NAME.log` of the folder.
    pub(crate) fn start_on(folder: &Folder, name: &str, [listen, resp]: [&str; 2], more: &[&str]) -> Self {
        let mut command = mainstay(folder);
        command.args(["node", "--dir", name, "--listen", listen, "--resp", resp]).args(more);
        let log = folder.path(&format!("{name}.log"));
        let log = std::fs::File::options().append(true).create(true).open(log).expect("a log can be made");
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the binary runs");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("it is a pipe");
        BufReader::new(out).read_line(&mut line).expect("a node says where it listens");
        let mut addresses = line.split([' ', ',']).filter_map(|word| word.parse().ok());
        let nodes_at = addresses.next().unwrap_or_else(|| panic!("no address in `{line}`"));
        let clients_at = addresses.next().expect("and another one");
        Self { child, nodes_at, clients_at }
    }

    fn status(&self, folder: &Folder) -> serde_json::Value {
        run(folder, &["group", "status", &self.clients_at.to_string(), "--json"]).json()
    }

    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// kill -9, and waits for the end.
    pub(crate) fn end(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// What redis-cli says to these lines, one connection for all.
    fn redis(&self, lines: &str) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.clients_at.port().to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("redis-cli runs");
        child.stdin.take().expect("it is a pipe").write_all(lines.as_bytes()).expect("it reads");
        let said = child.wait_with_output().expect("a child can be waited for");
        String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
    }
}

/// redis-cli that has subscribed; killed when dropped.
struct Listener {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Listener {
    fn new(node: &Node, channel: &str) -> Self {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &node.clients_at.port().to_string(), "SUBSCRIBE", channel]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("redis-cli runs");
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (said, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| said.send(line).ok());
        });
        Self { child, lines }
    }

    /// The next three lines.
    fn hears(&self) -> [String; 3] {
        [(); 3].map(|()| self.lines.recv_timeout(3 * PATIENCE).expect("it is told"))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < 3 * PATIENCE, "{what} does not come about");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Three nodes of a region at level process, each of which knows the others.
pub(crate) fn three(folder: &Folder) -> [Node; 3] {
    let first = Node::start(folder, "n1", &["--init", "--region", "data:level=process"]);
    let join = first.nodes_at.to_string();
    let [second, third] = ["n2", "n3"].map(|name| Node::start(folder, name, &["--join", &join]));
    let nodes = [first, second, third];
    nodes.iter().for_each(|node| wait_for_members(folder, node, 3));
    nodes
}

pub(crate) fn wait_for_members(folder: &Folder, node: &Node, count: usize) {
    wait_for(&format!("a view of {count}"), || {
        let status = node.status(folder);
        let members = status["members"].as_array().map_or(0, Vec::len);
        (status["serves"] == true && members == count).then_some(())
    });
}

#[test]
fn redis_cli_uses_a_region_while_a_node_dies_comes_back_and_another_leaves() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        println!("skipped: redis-cli against a region: redis-cli is not installed (setup.sh installs it)");
        return;
    }
    let folder = Folder::new();
    let [first, second, third] = three(&folder);
    let said = second
        .redis("SET k hello\nSTRLEN k\nINCR n\nINCRBY n 4\nSETNX k other\nMGET k none\nLPUSH k 9\nINCR k\n");
    assert!(said.starts_with("OK\n5\n1\n5\n0\nhello\n"), "{said}");
    assert!(said.contains("unsupported command 'LPUSH'"), "{said}");
    assert!(said.contains("not an integer"), "{said}");
    assert_eq!(third.redis("GET k\nGET n\n"), "hello\n5");
    // Changes are told at every node, and go on when another one dies.
    let channel = "__keyspace@0__:told";
    let listener = Listener::new(&second, channel);
    assert_eq!(listener.hears(), ["subscribe", channel, "1"]);
    assert_eq!(third.redis("SET told 1\nDEL told\n"), "OK\n1");
    assert_eq!(listener.hears(), ["message", channel, "set"]);
    assert_eq!(listener.hears(), ["message", channel, "del"]);
    // What is past is removed, and said as Redis says it.
    assert_eq!(third.redis("SET told 1\nEXPIRE told -1\n"), "OK\n1");
    assert_eq!(listener.hears(), ["message", channel, "set"]);
    assert_eq!(listener.hears(), ["message", channel, "del"]);
    // As one, at another node than before; and what has an end is gone by it, for every node.
    let said = third.redis("WATCH {t}a\nMULTI\nSET {t}a 1\nINCR {t}a\nGET {t}b\nEXEC\nSET soon v PX 1\nSET late v EX 900\nTTL late\n");
    let queued = "QUEUED\n".repeat(3);
    assert!(said.starts_with(&format!("OK\nOK\n{queued}OK\n2\n\nOK\nOK\n")), "{said}");
    assert!(said.ends_with("\n900") || said.ends_with("\n899"), "{said}");
    wait_for("the end of a value", || (first.redis("GET soon\n").is_empty()).then_some(()));
    assert_eq!(second.redis("MGET soon {t}a\nDBSIZE\n"), "\n2\n4");
    let said = second.redis("SCAN 0 COUNT 100 MATCH *t*\n");
    assert_eq!(said.lines().next(), Some("0"), "{said}");
    assert_eq!(said.lines().skip(1).collect::<std::collections::BTreeSet<_>>(), ["late", "{t}a"].into());
    assert_eq!(third.redis("DEL late\nGETDEL {t}a\n"), "1\n2");
    let everywhere = [&first, &second, &third].map(|node| node.clients_at.to_string());
    let verified = run(
        &folder,
        &[&["region", "verify", "--json"][..], &everywhere.each_ref().map(String::as_str)].concat(),
    );
    assert_eq!(
        (verified.code, &verified.json()["same"]),
        (0, &true.into()),
        "{}{}",
        verified.out,
        verified.err
    );
    let nobody = "127.0.0.1:1";
    let watched = run(&folder, &["group", "watch", "--looks", "1", &everywhere[1], nobody]);
    assert!(
        watched.out.contains(&format!("{}  ", everywhere[1])) && watched.out.contains("serves: "),
        "{}",
        watched.out
    );
    assert!(watched.out.contains("does not answer"), "{}", watched.out);
    // A named operation is done once, wherever it is repeated.
    let number = first.redis("MAINSTAY.ID NEW\n");
    assert_eq!(first.redis(&format!("MAINSTAY.ID {number} 1\nINCR named\n")), "OK\n1");
    assert_eq!(third.redis(&format!("MAINSTAY.ID {number} 1 AGAIN\nINCR named\nGET named\n")), "OK\n1\n1");

    first.kill();
    wait_for_members(&folder, &second, 2);
    assert_eq!(second.redis(&format!("MAINSTAY.ID {number} 1 AGAIN\nINCR named\n")), "OK\n1");
    assert_eq!(third.redis("INCR n\nGET k\nSET told 2\n"), "6\nhello\nOK");
    assert_eq!(listener.hears(), ["message", channel, "set"]);

    let others = format!("{},{}", second.nodes_at, third.nodes_at);
    let first = Node::start(&folder, "n1", &["--join", &others]);
    wait_for_members(&folder, &first, 3);
    assert_eq!(first.redis("GET n\nGET named\nDEL k n\n"), "6\n1\n2");

    let leaving = run(&folder, &["group", "leave", &third.clients_at.to_string()]);
    assert_eq!(leaving.code, 0, "{}", leaving.err);
    let mut third = third;
    let ended = wait_for("its end", || third.child.try_wait().expect("a child can be waited for"));
    assert!(ended.success(), "{ended}");
    wait_for_members(&folder, &first, 2);
    assert_eq!(second.redis("GET named\n"), "1");
    let again = run(
        &folder,
        &["node", "--dir", "n3", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--join", &others],
    );
    assert!(again.code == 3 && again.err.contains("has left its group for good"), "{}", again.err);
    // One line for each change, for people: no colours where there is no terminal.
    let log = std::fs::read_to_string(folder.path("n2.log")).expect("it logs");
    let gone = |why: &str| log.lines().any(|line| line.contains("is out, because") && line.contains(why));
    assert!(log.contains("serves view v") && log.contains(" came"), "{log}");
    assert!(gone("heard nothing of it") && gone("asked to leave") && !log.contains('\u{1b}'), "{log}");
}

#[test]
fn who_asks_at_the_wrong_place_or_of_a_node_without_majority_is_told_so() {
    let folder = Folder::new();
    let first = Node::start(&folder, "n1", &["--init", "--region", "data:level=process"]);
    wait_for_members(&folder, &first, 1);
    let (nodes_at, clients_at) = (first.nodes_at.to_string(), first.clients_at.to_string());
    // Each port at the other's.
    let lost = Node::start(&folder, "lost", &["--join", &clients_at]);
    let asked = |command: &str, at: &str| run(&folder, &["group", command, at]);
    let said = wait_for("a reason", || {
        let said = asked("status", &lost.clients_at.to_string());
        said.out.contains("not of its --resp").then_some(said)
    });
    assert!(
        said.code == 1 && said.out.contains("in no group yet") && !said.out.contains("null"),
        "{}",
        said.out
    );
    drop(lost);
    for command in ["status", "explain"] {
        let said = asked(command, &nodes_at);
        assert!(said.code == 3 && said.err.contains("use that of --resp"), "{}", said.err);
        assert_eq!(asked(command, "127.0.0.1:1").code, 3);
        assert_eq!(asked(command, &clients_at).code, 0);
    }
    assert_eq!(asked("status", &clients_at.replace("127.0.0.1", "localhost")).code, 0);
    let said = run(&folder, &["region", "verify", &clients_at, &clients_at]);
    assert!(said.code == 2 && said.err.contains("named twice"), "{}", said.err);
    let taken =
        run(&folder, &["node", "--dir", "n2", "--init", "--listen", &nodes_at, "--resp", "127.0.0.1:0"]);
    assert_eq!((taken.code, taken.err.matches("in use").count()), (3, 1), "{}", taken.err);
    // The last one has the data.
    let said = first.redis("MAINSTAY.LEAVE\n");
    assert!(said.contains("it is the only member"), "{said}");
    let left = run(&folder, &["group", "leave", &clients_at]);
    assert!(left.code == 2 && left.err.contains("only member"), "{}", left.err);

    let second = Node::start(&folder, "n2", &["--join", &nodes_at]);
    wait_for_members(&folder, &second, 2);
    first.kill();
    let second_at = second.clients_at.to_string();
    // On a slow machine a lease may end before the last echo of the dead one is read, which gives it some more time: each is waited for.
    let said = wait_for("a minority", || {
        let said = asked("explain", &second_at);
        said.out.starts_with("minority: ").then_some(said)
    });
    assert_eq!(said.code, 1, "{}", said.out);
    wait_for("that it serves no more", || (asked("status", &second_at).code == 1).then_some(()));
    wait_for("a refusal", || second.redis("GET k\n").starts_with("CLUSTERDOWN minority: ").then_some(()));
}

#[test]
fn a_value_beyond_the_limit_is_refused_with_limit_and_unit_though_more_of_it_is_on_its_way() {
    let folder = Folder::new();
    let node = Node::start(&folder, "n1", &["--init", "--region", "data:level=process"]);
    wait_for_members(&folder, &node, 1);
    for bytes in [1 << 20, (1 << 20) + 1, 3 << 20] {
        let mut connection = TcpStream::connect(node.clients_at).expect("it listens");
        connection.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
        let mut command = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").into_bytes();
        command.resize(command.len() + bytes, b'x');
        command.extend_from_slice(b"\r\n");
        connection.write_all(&command).expect("it is taken, or read away");
        let mut said = String::new();
        BufReader::new(&connection).read_line(&mut said).expect("it is told");
        let expected = match bytes == 1 << 20 {
            true => "+OK\r\n".to_owned(),
            false => format!("{bytes} bytes, and the limit is 1048576 bytes"),
        };
        assert!(said.contains(&expected), "{said}");
    }
}

/// What a counter is after one more; `None` if that is not known.
fn increment(node: &Node) -> Option<i64> {
    let mut stream = TcpStream::connect(node.clients_at).expect("it listens");
    stream.set_read_timeout(Some(3 * PATIENCE)).expect("it can be set");
    stream.write_all(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n").expect("it reads");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("it answers");
    line.trim_end().strip_prefix(':')?.parse().ok()
}

/// A writer that never stops: each of its increments is done once, before, while and after the pattern changes.
#[test]
fn a_pattern_is_changed_while_the_region_is_written_and_stays_changed() {
    let folder = Folder::new();
    let [first, second, third] = three(&folder);
    let set = |node: &Node, pattern: &str| {
        let at = node.clients_at.to_string();
        run(&folder, &["region", "set", &at, "data", "--pattern", pattern, "--json"])
    };
    let done = AtomicBool::new(false);
    let (asked, answered) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut asked, mut answered) = (0, 0);
            while asked == 0 || (!done.load(Ordering::Relaxed) && asked < 20_000) {
                asked += 1;
                answered += i64::from(increment(&second).is_some());
            }
            (asked, answered)
        });
        for pattern in ["tagged", "chain", "version-request", "one-hop-client"] {
            // Under load a view may be late, and is asked for again.
            let said = wait_for(pattern, || Some(set(&third, pattern)).filter(|said| said.code == 0));
            assert_eq!(said.json()["pattern"], pattern, "{}", said.out);
        }
        done.store(true, Ordering::Relaxed);
        writer.join().expect("it writes to its end")
    });
    let patterns = |node: &Node| node.status(&folder)["regions"][0]["pattern"].clone();
    wait_for("the pattern at all", || {
        [&first, &second, &third].iter().all(|node| patterns(node) == "one-hop-client").then_some(())
    });
    let said = set(&first, "fastest");
    assert!(said.code == 2 && said.err.contains("one-hop-client"), "{}", said.err);
    let at = first.clients_at.to_string();
    let said = run(&folder, &["region", "set", &at, "other", "--pattern", "chain"]);
    assert!(said.code != 0 && said.err.contains("there is no region `other`; there is data"), "{}", said.err);

    // Found again by all, with what was written.
    let at = [&first, &second, &third].map(|node| node.nodes_at.to_string());
    first.kill();
    second.kill();
    third.kill();
    let nodes = [("n1", &at[0]), ("n2", &at[1]), ("n3", &at[2])];
    let nodes = nodes.map(|(name, at)| Node::start_at(&folder, name, at, &[]));
    wait_for("the view of all", || {
        nodes.iter().all(|node| node.status(&folder)["serves"] == true).then_some(())
    });
    for node in &nodes {
        assert_eq!(patterns(node), "one-hop-client");
    }
    let written = wait_for("an answer", || increment(&nodes[0])) - 1;
    assert!((answered..=asked).contains(&written), "{written} done, {asked} asked for, {answered} answered");
}

#[test]
fn a_replaced_store_comes_in_one_of_another_group_does_not_and_one_that_lost_power_does_not_vote() {
    let folder = Folder::new();
    let [first, second, third] = three(&folder);
    let join = first.nodes_at.to_string();

    // Its lives begin anew, and the others have heard later ones at its address.
    let at = third.nodes_at.to_string();
    third.kill();
    std::fs::remove_dir_all(folder.path("n3")).expect("nobody uses it any more");
    let third = Node::start_at(&folder, "n3", &at, &["--join", &join]);
    wait_for_members(&folder, &third, 3);

    // One of another group of two, which needs both to go on, asks at this one.
    let other = Node::start(&folder, "x1", &["--init"]);
    let others_at = other.nodes_at.to_string();
    let another = Node::start(&folder, "x2", &["--join", &others_at]);
    wait_for_members(&folder, &another, 2);
    another.kill();
    other.kill();
    let other = Node::start_at(&folder, "x1", &others_at, &["--join", &join]);
    let explanation = wait_for("a refusal", || {
        let status = other.status(&folder);
        status["refused"].as_str().map(|_| status["explanation"].to_string())
    });
    assert!(explanation.contains("belongs to group") && explanation.contains("--join"), "{explanation}");
    drop(other);

    second.kill();
    std::fs::write(folder.path("n2").join("boot"), "another run of the machine").expect("it is there");
    let again = ["node", "--dir", "n2", "--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--join", &join];
    for _ in 0..2 {
        let refused = run(&folder, &again);
        assert!(refused.code != 0 && refused.err.contains("--accept-loss"), "{}", refused.err);
    }
    let second = Node::start(&folder, "n2", &["--join", &join, "--accept-loss"]);
    wait_for_members(&folder, &second, 3);
}

#[test]
fn redis_cli_comes_in_by_tls_with_a_certificate_and_not_without() {
    let folder = Folder::new();
    for arguments in [
        &["init", "certificates", "--cluster", "shop"][..],
        &["node", "certificates", "n1", "--address", "127.0.0.1"],
        &["node", "certificates", "n2", "--address", "10.0.0.2"],
        &["client", "certificates", "app"],
        &["init", "others", "--cluster", "other"],
        &["client", "others", "app"],
    ] {
        let made = run(&folder, &[&["cert"][..], arguments].concat());
        assert_eq!(made.code, 0, "{}", made.err);
    }
    let node = Node::start(&folder, "n1", &["--init", "--tls", "certificates", "--name", "n1"]);
    let at = node.clients_at.to_string();
    let app = ["group", "status", &at, "--json", "--tls", "certificates", "--name", "app"];
    wait_for("serving", || (run(&folder, &app).json()["serves"] == true).then_some(()));
    let plain = run(&folder, &app[..4]);
    assert!(plain.code == 3 && plain.err.contains("it uses TLS"), "{}{}", plain.out, plain.err);

    let join = node.nodes_at.to_string();
    let second = Node::start(&folder, "n3", &["--join", &join, "--tls", "certificates", "--name", "n1"]);
    let at_second = second.clients_at.to_string();
    let with = |words: &[&str], certificates: &str| {
        run(&folder, &[words, &["--tls", certificates, "--name", "app"]].concat())
    };
    wait_for("a view of two", || {
        let watched = with(&["group", "watch", "--looks", "1", "--json", &at, &at_second], "certificates");
        let seen = watched.json();
        (seen[1]["serves"] == true && seen[0]["members"].as_array()?.len() == 2).then_some(())
    });
    let verified = with(&["region", "verify", &at, &at_second], "certificates");
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
    let watched = run(&folder, &["group", "watch", "--looks", "1", &at]);
    assert!(watched.out.contains("it uses TLS"), "{}", watched.out);
    for words in [&["group", "status", &at][..], &["region", "verify", &at, &at_second]] {
        let foreign = with(words, "others");
        assert!(
            foreign.code == 3 && foreign.err.contains("not of this cluster's authority"),
            "{}",
            foreign.err
        );
        let nobody = with(words, "nowhere");
        assert!(nobody.code == 3 && nobody.err.contains("nowhere/"), "{}", nobody.err);
    }
    let left = with(&["group", "leave", &at_second], "certificates");
    assert_eq!(left.code, 0, "{}", left.err);
    wait_for("a view of one", || {
        let watched = with(&["group", "watch", "--looks", "1", "--json", &at], "certificates");
        (watched.json()[0]["members"].as_array()?.len() == 1).then_some(())
    });

    let said = run(
        &folder,
        &["node", "--dir", "n2", "--tls", "certificates", "--name", "n2", "--join", "127.0.0.1:1"],
    );
    assert!(said.code == 3 && said.err.contains("--address 127.0.0.1"), "{}", said.err);

    let redis = |more: &[&str]| {
        let port = node.clients_at.port().to_string();
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", "certificates/ca.pem"]).args(more);
        let said = command.current_dir(folder.path(".")).output().expect("redis-cli runs");
        String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
    };
    let speaks_tls = Command::new("redis-cli").arg("--help").output();
    if speaks_tls.map_or(true, |said| {
        !String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).contains("--cacert")
    }) {
        println!(
            "skipped: redis-cli by TLS: it is not installed (setup.sh installs it), or made without TLS"
        );
        return;
    }
    let app = ["--cert", "certificates/app.pem", "--key", "certificates/app.key"];
    assert_eq!(redis(&[&app[..], &["SET", "k", "hello"]].concat()), "OK");
    assert_eq!(redis(&[&app[..], &["GET", "k"]].concat()), "hello");
    assert_eq!(redis(&["SET", "k", "other"]), "", "nobody comes in without a certificate");
    assert_eq!(redis(&[&app[..], &["GET", "k"]].concat()), "hello");
}

#[test]
fn what_a_node_cannot_do_is_said() {
    let folder = Folder::new();
    let refused = |arguments: &[&str]| -> Said { run(&folder, arguments) };
    for (more, word) in [
        (&[][..], "--init"),
        (&["--init", "--region", "a:pattern=far"][..], "one-hop"),
        (&["--init", "--region", "a:shards=0"][..], "0 shards"),
        (&["--join", "127.0.0.1:1", "--region", "a"][..], "--region"),
        (&["--init", "--clients-max", "0"][..], "--clients-max"),
        (&["--join", "elsewhere:7171"][..], "localhost:7171"),
    ] {
        let said = refused(
            &[&["node", "--dir", "n", "--resp", "127.0.0.1:0", "--listen", "127.0.0.1:0"][..], more].concat(),
        );
        assert!(said.code != 0 && said.err.contains(word), "{more:?}: {}", said.err);
    }
    let said =
        refused(&["node", "--dir", "n", "--listen", "0.0.0.0:7171", "--resp", "127.0.0.1:0", "--init"]);
    assert!(said.code == 3 && said.err.contains("loopback"), "{}", said.err);
}

#[test]
fn a_small_demo_loses_and_doubles_nothing() {
    let folder = Folder::new();
    let said = run(
        &folder,
        &[
            "demo",
            "--topology",
            "region",
            "--requests",
            "600",
            "--kills",
            "8",
            "--seed",
            "3",
            "--json",
            "--dir",
            "run",
        ],
    );
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report = said.json();
    assert_eq!(
        (&report["topology"], &report["kills"], &report["down_max"]),
        (&"region".into(), &8.into(), &3.into())
    );
    let none = ["lost", "doubled", "answers_wrong", "reads_stale", "ids_repeated"];
    for figure in none.iter().chain(&["outputs_lost", "outputs_doubled", "outputs_in_doubt"]) {
        assert_eq!(report[figure], 0, "{report}");
    }
    assert_eq!(report["cuts_refused"], report["cuts"], "{report}");
    let some =
        ["cuts", "stops", "power_offs", "recoveries", "duplicates_suppressed", "asked_again_after_power_off"];
    for figure in some.iter().chain(&["reads_checked", "reads_refused", "ids_given"]) {
        assert!(report[figure].as_u64() > Some(0), "`{figure}` is zero in {report}");
    }
    assert_eq!(processes_of(&folder.path("run")), Vec::<String>::new());
}
