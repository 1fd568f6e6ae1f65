//! The client against real nodes: this program is a node itself when it is told to be one, so that nodes can be killed.

use mainstay_group::limits::Timing;
use mainstay_node::gateway::GatewayTimes;
use mainstay_node::node::run;
use mainstay_node::settings::{Entry, Settings as NodeSettings, region};
use mainstay_region::conversation::{Hello, LENGTH_BYTES, ToClient, ToServer, first_frame};
use mainstay_region::limits::Limits;
use mainstay_region::message::{Body, Freshness, Message, Query};
use mainstay_region::operation::{Operation, Outcome};
use mainstay_region::patterns::Pattern;
use mainstay_region_client::{
    Change, Client, ConnectError, Inspected, Positions, Settings, SubscribeError, TlsClient, TlsFiles,
    Version,
};
use mainstay_tls::testing::Authority;
use mainstay_types::id::{ClientId, ClusterId, Sequence, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::view::ViewId;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a node is told: its directory, `init REGION` or `join ADDRESS`, and the folder of its certificate, if it has one.
const DIRECTORY: &str = "MAINSTAY_TEST_NODE_DIRECTORY";
const ENTRY: &str = "MAINSTAY_TEST_NODE_ENTRY";
const CERTIFICATES: &str = "MAINSTAY_TEST_NODE_CERTIFICATES";

/// Whose certificate that is.
const CERTIFIED: &str = "n1";

/// Said before the address at which a node listens.
const LISTENS: &str = "listens at ";

#[test]
#[ignore = "it is no test but a node, started by the others"]
fn is_a_node() {
    let (Ok(directory), Ok(entry)) = (std::env::var(DIRECTORY), std::env::var(ENTRY)) else { return };
    // It ends with the test that started it, however that ends.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).expect("Linux can");
    let local: SocketAddr = "127.0.0.1:0".parse().expect("it is an address");
    let entry = match entry.split_once(' ') {
        Some(("init", made)) => Entry::Begin(vec![region(made).expect("it is a region")]),
        Some((_, at)) => Entry::Join(vec![at.parse().expect("it is an address")]),
        None => panic!("`{entry}`"),
    };
    let certified = std::env::var_os(CERTIFICATES)
        .map(|folder| (TlsFiles::in_directory(Path::new(&folder), CERTIFIED), CERTIFIED.to_owned()));
    let settings = NodeSettings {
        directory: directory.into(),
        listen: local,
        resp: local,
        entry,
        timing: Timing::default(),
        gateway: GatewayTimes::default(),
        clients_max: 64,
        link_delay: Duration::ZERO,
        certified,
        roles: Vec::new(),
        arbiter: None,
        accept_loss: false,
        allow_cuts: false,
    };
    run(&settings, |at| println!("{LISTENS}{}", at.nodes)).expect("it runs");
}

/// A running node; killed when dropped.
struct Node {
    child: Child,
    nodes_at: SocketAddr,
}

impl Node {
    fn start(directory: &Path, entry: &str) -> Self {
        Self::start_with(directory, entry, None)
    }

    fn start_with(directory: &Path, entry: &str, certificates: Option<&Path>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
        command.envs(certificates.map(|folder| (CERTIFICATES, folder)));
        command.args(["--exact", "is_a_node", "--ignored", "--nocapture"]);
        command.env(DIRECTORY, directory).env(ENTRY, entry).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("this program can be started");
        let lines = BufReader::new(child.stdout.as_mut().expect("it is a pipe")).lines();
        // libtest may say something before it on the same line.
        let said = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once(LISTENS).map(|(_, at)| at.to_owned()));
        let nodes_at = said.expect("a node says where it listens").parse().expect("it is an address");
        Self { child, nodes_at }
    }

    fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Patient enough for a slow machine.
fn patient() -> Settings {
    Settings { deadline: PATIENCE, ..Settings::default() }
}

/// Three nodes, and a client that knows the address of one.
fn three(folder: &Path) -> ([Node; 3], Client) {
    let first = Node::start(&folder.join("n1"), "init data:level=process");
    let join = format!("join {}", first.nodes_at);
    let nodes = [first, Node::start(&folder.join("n2"), &join), Node::start(&folder.join("n3"), &join)];
    let mut client = Client::connect(&[nodes[0].nodes_at], "data", patient()).expect("it serves");
    let began = Instant::now();
    while client.view().map_or(0, |view| view.members.len()) < nodes.len() {
        assert!(began.elapsed() < PATIENCE, "a view of three does not come about");
        client.get_near(b"any").expect("a copy answers");
    }
    (nodes, client)
}

fn incremented(key: &[u8]) -> Operation {
    Operation::Increment { key: key.into(), by: 1 }
}

#[test]
fn a_client_reads_writes_and_counts_by_every_pattern_while_a_node_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let ([first, second, third], mut client) = three(folder.path());
    let put = client.put(b"k", b"one").expect("it is written");
    assert_eq!((put.outcome, put.duplicate), (Outcome::Written, false));
    let read = client.get(b"k").expect("it is read").expect("it is there");
    assert_eq!((read.bytes.as_slice(), read.version), (&b"one"[..], put.version));
    let differs = client.compare_and_set(b"k", Some(b"two"), Some(b"three")).expect("it is tried");
    assert_eq!(differs.outcome, Outcome::Differs);
    let changed = client.compare_and_set(b"k", Some(b"one"), Some(b"two")).expect("it is tried");
    assert!(changed.outcome == Outcome::Written && changed.version > put.version);
    let near = client.get_near(b"none").expect("a copy answers");
    assert_eq!(near.value, None);
    for key in [&b"s/b"[..], b"s/a", b"s/c"] {
        client.put(key, key).expect("it is written");
    }
    let keys: Vec<Vec<u8>> =
        client.scan(b"s/", 2).expect("all shards answer").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [b"s/a".to_vec(), b"s/b".to_vec()]);
    assert_eq!(client.remove(b"s/a").expect("it is done").outcome, Outcome::Removed { was_there: true });

    for pattern in Pattern::VERSIONED {
        let settings = Settings { pattern: Some(pattern), ..patient() };
        let mut one = Client::connect(&[second.nodes_at], "data", settings).expect("it serves");
        let counted = one.increment(b"patterns", 1).expect("it is counted");
        assert!(matches!(counted.outcome, Outcome::Counted(_)), "{pattern:?}: {counted:?}");
    }
    let counted = client.get(b"patterns").expect("it is read").expect("it is there");
    assert_eq!(counted.bytes, Pattern::VERSIONED.len().to_string().into_bytes());

    // Killed under a full window: every one is done, once.
    let mut under_way = BTreeSet::new();
    for _ in 0..20 {
        under_way.insert(client.begin(incremented(b"n")).expect("there is room"));
    }
    first.kill();
    for _ in 0..20 {
        under_way.insert(client.begin(incremented(b"n")).expect("there is room"));
    }
    let mut last = None;
    while let Some((id, ended)) = client.next_ended() {
        let written = ended.expect("two of three go on");
        assert!(under_way.remove(&id) && matches!(written.outcome, Outcome::Counted(_)), "{written:?}");
        last = Some(written);
    }
    assert!(under_way.is_empty());
    assert_eq!(client.get(b"n").expect("it is read").expect("it is there").bytes, b"40");

    // Asked for again, also by a program that was started again, it is not done again.
    let last = last.expect("they ended");
    assert!(matches!(client.inspect(last.id, b"n"), Ok(Inspected::Done(_))));
    let newest = client.increment(b"m", 1).expect("it is counted");
    drop(client);
    let servers = [second.nodes_at, third.nodes_at];
    let mut resumed = Client::resume(&servers, "data", patient(), last.id).expect("it serves");
    let again = resumed.repeat(last.id, incremented(b"n")).expect("it is remembered");
    assert_eq!((again.version, again.outcome, again.duplicate), (last.version, last.outcome, true));
    // What it was said to have used last was not the last: what it repeats is not taken for anything else.
    let again = resumed.repeat(newest.id, incremented(b"m")).expect("it is remembered");
    assert_eq!((again.version, again.duplicate), (newest.version, true));
    let next = resumed.increment(b"m", 1).expect("it is counted");
    assert_eq!((next.id.sequence, next.outcome), (newest.id.sequence.next(), Outcome::Counted(2)));
    let never = OperationId { sequence: next.id.sequence.next(), ..next.id };
    assert_eq!(resumed.inspect(never, b"m"), Ok(Inspected::NotSeen));
}

/// The next changes of a subscription, so many.
fn next_changes(client: &mut Client, count: usize) -> Vec<Change> {
    let next = |client: &mut Client| client.next_change(PATIENCE).expect("nothing is missed");
    (0..count).map(|_| next(client).expect("it is told")).collect()
}

fn keys_of(changes: &[Change]) -> Vec<&[u8]> {
    changes.iter().flat_map(|change| &change.keys).map(|(key, _)| key.as_slice()).collect()
}

#[test]
fn changes_are_told_once_each_also_when_the_node_that_tells_dies_and_in_another_life_of_the_client() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (nodes, mut client) = three(folder.path());
    client.put(b"a/before", b"it is not told").expect("it is written");
    let mut listener =
        Client::connect(&nodes.each_ref().map(|node| node.nodes_at), "data", patient()).expect("it serves");
    assert_eq!(listener.next_change(Duration::ZERO), Err(SubscribeError::NotSubscribed));
    let wrong = listener.subscribe(b"", Some(Positions(vec![Version::NONE])));
    assert_eq!(wrong, Err(SubscribeError::Shards { given: 1, shards: 16 }));
    listener.subscribe(b"a/", None).expect("it serves");
    let begun = listener.positions().expect("it has subscribed");
    let put = client.put(b"a/1", b"one").expect("it is written");
    client.put(b"b/1", b"not of the prefix").expect("it is written");
    let told = next_changes(&mut listener, 1).remove(0);
    assert_eq!((told.version, told.possible_duplicate, told.ended), (put.version, false, false));
    assert_eq!(told.keys, [(b"a/1".to_vec(), Some(b"one".to_vec()))]);
    client.remove(b"a/1").expect("it is removed");
    assert_eq!(next_changes(&mut listener, 1)[0].keys, [(b"a/1".to_vec(), None)]);

    // Under a full window, killed in between: each is told, once, in the order of its shard.
    let telling = listener.told_by().expect("somebody tells");
    let mut left: Vec<Node> = nodes.into();
    let names: Vec<String> = (0..60).map(|number| format!("a/{number:02}")).collect();
    let mut dying =
        Some(left.remove(left.iter().position(|node| node.nodes_at == telling).expect("a node tells")));
    for (number, name) in names.iter().enumerate() {
        client
            .begin(Operation::Put { key: name.as_str().into(), value: b"v".into() })
            .expect("there is room");
        if number == 30 {
            dying.take().expect("it runs").kill();
        }
    }
    while let Some((_, ended)) = client.next_ended() {
        ended.expect("two of three go on");
    }
    let told = next_changes(&mut listener, names.len());
    let mut last = std::collections::BTreeMap::new();
    for change in &told {
        assert!(last.insert(change.shard, change.version).is_none_or(|before| before < change.version));
    }
    let mut keys = keys_of(&told);
    keys.sort_unstable();
    assert_eq!(keys, names.iter().map(String::as_bytes).collect::<Vec<_>>());
    assert_ne!(listener.told_by(), Some(telling));

    // What was not taken is told to the next life, and what was taken is not.
    let half = listener.positions().expect("it listens");
    client.put(b"a/late", b"v").expect("it is written");
    drop(listener);
    let servers: Vec<SocketAddr> = left.iter().map(|node| node.nodes_at).collect();
    let mut next = Client::connect(&servers, "data", patient()).expect("it serves");
    next.subscribe(b"a/", Some(half)).expect("it serves");
    assert_eq!(keys_of(&next_changes(&mut next, 1)), [b"a/late"]);
    assert_eq!(next.next_change(Duration::from_millis(50)), Ok(None));
    next.subscribe(b"a/", Some(begun.clone())).expect("it serves");
    assert_eq!(next_changes(&mut next, names.len() + 3).len(), names.len() + 3, "all from the beginning");

    // What no node keeps is missed, and that is said.
    for number in 0..Limits::default().history_entries_max + 10 {
        client
            .begin(Operation::Put { key: b"a/1".into(), value: number.to_string().as_str().into() })
            .expect("there is room");
    }
    while let Some((_, ended)) = client.next_ended() {
        ended.expect("two of three go on");
    }
    next.subscribe(b"a/1", Some(begun)).expect("it serves");
    // Of other shards something may be told before.
    let ended = loop {
        match next.next_change(PATIENCE) {
            Ok(told) => assert!(told.is_some(), "it is told, or that it is missed"),
            Err(ended) => break ended,
        }
    };
    assert!(matches!(ended, SubscribeError::Missed { .. }), "{ended:?}");
    assert_eq!(next.next_change(PATIENCE), Err(SubscribeError::NotSubscribed));
    next.subscribe(b"a/1", None).expect("it begins anew");
    client.put(b"a/1", b"last").expect("it is written");
    assert_eq!(keys_of(&next_changes(&mut next, 1)), [b"a/1"]);
}

/// What a node says to these bytes, until it ends the connection.
fn said(node: SocketAddr, bytes: &[u8]) -> Vec<ToClient> {
    said_until(node, bytes, |_| false)
}

/// What a node says to these bytes, until it ends the connection or has said what is waited for.
fn said_until(node: SocketAddr, bytes: &[u8], enough: impl Fn(&[ToClient]) -> bool) -> Vec<ToClient> {
    let mut stream = TcpStream::connect(node).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
    stream.write_all(bytes).expect("it reads");
    let (mut buffer, mut said, mut part) = (Vec::new(), Vec::new(), [0; 4096]);
    while !enough(&said) {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => buffer.extend_from_slice(&part[..count]),
        }
        while let Ok(Some(length)) = first_frame(&buffer, 1 << 20) {
            let frame = &buffer[LENGTH_BYTES..LENGTH_BYTES + length];
            said.push(ToClient::parse(frame, &Limits::default()).expect("it is a frame"));
            buffer.drain(..LENGTH_BYTES + length);
        }
    }
    said
}

/// Why a client does not come in, however long it tries.
fn refused(servers: &[SocketAddr], region: &str, settings: Settings) -> String {
    match Client::connect(servers, region, settings) {
        Err(ConnectError::Refused { reason }) => reason,
        other => panic!("{region}: {other:?}"),
    }
}

#[test]
fn a_client_with_a_certificate_of_the_cluster_comes_in_and_others_are_told_why_not() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let (authority, another) = (Authority::new(), Authority::new());
    let here = Some(Ipv4Addr::LOCALHOST.into());
    let _ = authority.files(&ours, CERTIFIED, here);
    let app = TlsClient::load(&authority.files(&ours, "app", None)).expect("it is good");
    let foreign = TlsClient::load(&another.files(&theirs, "app", None)).expect("it is good");
    let by = |tls: &TlsClient| Settings { tls: Some(tls.clone()), ..patient() };
    let expired = TlsClient::load(&authority.expired_files(&ours, "old", None)).expect_err("it is no use");
    assert!(expired.to_string().contains("mainstay cert client"), "{expired}");

    let init = "init data:level=process";
    let node = Node::start_with(&folder.path().join("n1"), init, Some(&ours));
    let mut client = Client::connect(&[node.nodes_at], "data", by(&app)).expect("it serves");
    // More than TLS takes at once, both ways.
    let large = vec![7; 1 << 20];
    client.put(b"large", &large).expect("it is written");
    let mut under_way = 0;
    for _ in 0..40 {
        client.begin(incremented(b"n")).expect("there is room");
        client
            .begin(Operation::Put { key: b"large".into(), value: large.clone().into() })
            .expect("there is room");
        under_way += 2;
    }
    while let Some((_, ended)) = client.next_ended() {
        ended.expect("it is done");
        under_way -= 1;
    }
    assert_eq!(under_way, 0);
    assert_eq!(client.get(b"n").expect("it is read").expect("it is there").bytes, b"40");
    assert_eq!(client.get(b"large").expect("it is read").expect("it is there").bytes, large);

    let plain = Node::start(&folder.path().join("n2"), init);
    for (what, at, settings, word) in [
        ("another cluster's certificate", &node, by(&foreign), "not of this cluster's authority"),
        ("plain text to a node with a certificate", &node, patient(), "Settings::tls"),
        ("TLS to a node without", &plain, by(&app), "plain text"),
    ] {
        let reason = refused(&[at.nodes_at], "data", settings);
        assert!(reason.contains(word), "{what}: {reason}");
    }
}

/// It was dropped, and a client that came to another node waited until its patience ended. Two nodes are asked: one of them at least has to ask
/// another for the count of numbers.
#[test]
fn what_a_client_says_behind_its_number_is_answered_by_a_node_that_does_not_know_the_number_yet() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let first = Node::start(&folder.path().join("n1"), "init data:level=process");
    let client = Client::connect(&[first.nodes_at], "data", patient()).expect("it serves");
    // It would tell the others its number.
    let number = client.number();
    drop(client);
    let join = format!("join {}", first.nodes_at);
    let others = ["n2", "n3"].map(|name| Node::start(&folder.path().join(name), &join));
    let mut hello = Vec::new();
    Hello { cluster: None, region: "data".to_owned() }.put(&mut hello);
    let stands = |frames: &[ToClient]| frames.iter().any(|frame| matches!(frame, ToClient::Standing(_)));
    for node in &others {
        let began = Instant::now();
        let view = loop {
            assert!(began.elapsed() < PATIENCE, "a view of three does not come about");
            let view = said_until(node.nodes_at, &hello, |frames| !frames.is_empty()).pop();
            match view {
                Some(ToClient::Standing(standing)) if standing.view.members.len() == 3 => {
                    break standing.view.id;
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut bytes = hello.clone();
        ToServer::Named(number).put(&mut bytes);
        let query = Query::Get { key: b"k".into() };
        let body = Body::Read { request: 7, query, freshness: Freshness::Any };
        ToServer::Message(Message { view, shard: 0, body }).put(&mut bytes);
        let is_answer = |frame: &ToClient| matches!(frame, ToClient::Message { message, .. } if matches!(message.body, Body::Answer { request: 7, found: Ok(_) }));
        let said = said_until(node.nodes_at, &bytes, |frames| frames.iter().any(is_answer));
        assert!(stands(&said) && said.iter().any(is_answer), "{said:?}");
    }
}

#[test]
fn who_is_no_client_of_the_region_is_told_so_and_one_without_versions_is_told_apart() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let node = Node::start(folder.path(), "init floor:level=process,pattern=unversioned");
    let servers = [node.nodes_at];
    let refused = |region: &str, settings: Settings| refused(&servers, region, settings);
    assert!(refused("data", patient()).contains("there is floor"));
    let another = Settings { cluster: Some(ClusterId::named("another")), ..patient() };
    assert!(refused("floor", another).contains("another one is meant"));
    let versioned = Settings { pattern: Some(Pattern::OneHop), ..patient() };
    assert!(refused("floor", versioned).contains("versions"));
    let mut client = Client::connect(&servers, "floor", patient()).expect("it serves");
    let written = client.put(b"k", b"one").expect("it is done");
    assert_eq!((written.outcome, written.version.counter), (Outcome::Written, 0));

    let mut hello = Vec::new();
    Hello { cluster: None, region: "floor".to_owned() }.put(&mut hello);
    let id = OperationId { client: client.number(), thread: ThreadId(1), sequence: Sequence(9) };
    let operation = Operation::Remove { key: b"k".into() };
    let message = Message { view: ViewId(1), shard: 0, body: Body::Unversioned { id, operation } };
    let other = Client::connect(&servers, "floor", patient()).expect("it serves");
    let claims = [
        (None, "number first"),
        (Some(other.number()), "not client"),
        (Some(ClientId(other.number().0 + 1)), "given to nobody"),
        (Some(ClientId(50_000)), "given to nobody"),
    ];
    for (named, word) in claims {
        let mut bytes = hello.clone();
        if let Some(number) = named {
            ToServer::Named(number).put(&mut bytes);
        }
        ToServer::Message(message.clone()).put(&mut bytes);
        let said = said(node.nodes_at, &bytes);
        assert!(matches!(said.first(), Some(ToClient::Standing(_))), "{said:?}");
        assert!(
            matches!(said.last(), Some(ToClient::Refused { reason }) if reason.contains(word)),
            "{said:?}"
        );
    }
    let before = said(node.nodes_at, &[b"MSC1", &hello[4..]].concat());
    assert!(
        matches!(&before[..], [ToClient::Refused { reason }] if reason.contains("speaks MSC1") && reason.contains("MSC2")),
        "{before:?}"
    );
    let too_long = [&hello[..], &[0xff; 8]].concat();
    assert!(matches!(said(node.nodes_at, &too_long)[..], [] | [ToClient::Standing(_)]));
    assert_eq!(client.get(b"k").expect("it is read").expect("it is there").bytes, b"one");
}
