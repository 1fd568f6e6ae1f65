//! Nodes of a service that take their places in a replicated region: found wherever they listen, and each place one process's.

use crate::harness::{Folder, PATIENCE};
use crate::nodes::{ask, wait};
use crate::region::Node as RegionNode;
use mainstay::Refusal;
use mainstay::instance::{Context, Instance, Never, Node, Reply};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

/// The flags of a child, one in each line.
const FLAGS: &str = "MAINSTAY_TEST_FLAGS";

/// Tells the tower for every request.
#[derive(Default, Serialize, Deserialize)]
struct Rope {
    pulled: u64,
}

/// Counts what it is told.
#[derive(Default, Serialize, Deserialize)]
struct Tower {
    strokes: u64,
}

impl Instance for Rope {
    const TYPE: &'static str = "rope";
    type Command = ();
    type Answer = u64;
    type Message = Never;
    type Query = ();
    type View = u64;

    fn handle(&mut self, (): (), context: &mut Context<'_, Self>) -> Result<Reply<u64>, Refusal> {
        self.pulled += 1;
        context.tell::<Tower>("tower", &());
        Ok(Reply::Now(self.pulled))
    }

    fn message(&mut self, never: Never, _: &mut Context<'_, Self>) {
        match never {}
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.pulled)
    }
}

impl Instance for Tower {
    const TYPE: &'static str = "tower";
    type Command = Never;
    type Answer = ();
    type Message = ();
    type Query = ();
    type View = u64;

    fn handle(&mut self, never: Never, _: &mut Context<'_, Self>) -> Result<Reply<()>, Refusal> {
        match never {}
    }

    fn message(&mut self, (): (), _: &mut Context<'_, Self>) {
        self.strokes += 1;
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.strokes)
    }
}

#[test]
#[ignore = "not a test: a node that other tests start"]
fn is_a_node() {
    let Ok(flags) = std::env::var(FLAGS) else { return };
    let node = Node::named("chimes").host_on::<Rope>(1).host_on::<Tower>(2);
    let ended = node.serve_from(["chimes"].into_iter().chain(flags.lines()).map(Into::into));
    std::process::exit(i32::from(ended != ExitCode::SUCCESS));
}

/// A node of the service in a process of its own; killed when dropped.
struct Served {
    child: Child,
    log: std::path::PathBuf,
    port: u16,
}

impl Served {
    /// Spawns it, without waiting for anything.
    fn spawn(folder: &Folder, number: u64, directory: &str, region: &RegionNode, more: &[&str]) -> Self {
        let port_file = folder.path(&format!("{directory}.port"));
        let _ = fs::remove_file(&port_file);
        let log = folder.path(&format!("{directory}.log"));
        let flags = [
            ("--node", number.to_string()),
            ("--nodes", "1,2".to_owned()),
            ("--places", region.nodes_at.to_string()),
            ("--listen", "127.0.0.1:0".to_owned()),
            ("--dir", folder.path(directory).display().to_string()),
            ("--port-file", port_file.display().to_string()),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let mut flags: Vec<String> = flags.chain(more.iter().map(|&flag| flag.to_owned())).collect();
        if !more.contains(&"--keep") {
            flags.extend(["--level", "process"].map(str::to_owned));
        }
        let mut program = Command::new(std::env::current_exe().expect("this program has a file"));
        program.args(["places::is_a_node", "--exact", "--ignored", "--nocapture"]);
        program.env(FLAGS, flags.join("\n")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = program.stderr(fs::File::create(&log).expect("a log")).spawn();
        Self { child: child.expect("this program can be started"), log, port: 0 }
    }

    /// Starts it, and waits until it takes requests.
    fn start(folder: &Folder, number: u64, directory: &str, region: &RegionNode, more: &[&str]) -> Self {
        let mut served = Self::spawn(folder, number, directory, region, more);
        let port_file = folder.path(&format!("{directory}.port"));
        let began = Instant::now();
        while served.port == 0 {
            let ended = served.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "node {number} ended: {}", served.said());
            assert!(began.elapsed() < PATIENCE, "node {number} does not come up: {}", served.said());
            std::thread::sleep(std::time::Duration::from_millis(5));
            served.port =
                fs::read_to_string(&port_file).ok().and_then(|port| port.trim().parse().ok()).unwrap_or(0);
        }
        served
    }

    /// Waits until it has ended by itself; what it said.
    fn ends(&mut self) -> String {
        wait("the end of a node", || self.child.try_wait().expect("a child can be waited for").is_some());
        self.said()
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn pull(&self, key: &str) {
        let answer = ask(self.port, "POST", "/call/rope/rope", key, "null").expect("the node answers");
        assert_eq!(answer.0, 200, "{}", answer.1);
    }

    fn strokes(&self) -> u64 {
        let (_, body) = ask(self.port, "POST", "/query/tower/tower", "", "null").unwrap_or_default();
        body.trim().parse().unwrap_or(0)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("it is a folder") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("there is room");
        }
    }
}

#[test]
fn nodes_without_addresses_find_each_other_and_again_after_one_has_moved() {
    let folder = Folder::new();
    let region = RegionNode::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let rope = Served::start(&folder, 1, "n1", &region, &[]);
    let tower = Served::start(&folder, 2, "n2", &region, &[]);
    rope.pull("1");
    wait("the first stroke", || tower.strokes() == 1);
    // Killed, and back on whatever port there is.
    drop(tower);
    rope.pull("2");
    let tower = Served::start(&folder, 2, "n2", &region, &[]);
    wait("the second stroke", || tower.strokes() == 2);
    // Without the region the nodes go on.
    region.kill();
    rope.pull("3");
    wait("the third stroke", || tower.strokes() == 3);
}

#[test]
fn of_a_directory_and_its_copy_one_is_the_node() {
    let folder = Folder::new();
    let region = RegionNode::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let rope = Served::start(&folder, 1, "n1", &region, &[]);
    let mut first = Served::start(&folder, 2, "n2", &region, &[]);
    rope.pull("1");
    wait("the first stroke", || first.strokes() == 1);
    // Another directory is not that node.
    let mut other = Served::spawn(&folder, 2, "other", &region, &[]);
    let said = other.ends();
    assert!(said.contains("and this is another directory"), "{said}");
    // A copy that is started takes over, and the first one ends.
    copy(&folder.path("n2"), &folder.path("copy"));
    let second = Served::start(&folder, 2, "copy", &region, &[]);
    let said = first.ends();
    assert!(said.contains("another process has taken the place of"), "{said}");
    rope.pull("2");
    wait("the second stroke", || second.strokes() == 2);
    // What the second acknowledged is not in the first one's directory.
    // However often it is tried.
    for _ in 0..3 {
        let mut again = Served::spawn(&folder, 2, "n2", &region, &[]);
        let said = again.ends();
        assert!(said.contains("a copy of this directory has been started since"), "{said}");
    }
    rope.pull("3");
    wait("the third stroke", || second.strokes() == 3);
    // The copy itself may be started again.
    drop(second);
    let second = Served::start(&folder, 2, "copy", &region, &[]);
    assert_eq!(second.strokes(), 3);
}

#[test]
fn a_node_whose_machine_is_lost_comes_back_elsewhere_with_its_messages() {
    let folder = Folder::new();
    let region = RegionNode::start(&folder, "g1", &["--init", "--region", "data:level=process"]);
    let keep = region.nodes_at.to_string();
    let kept = [
        "--keep",
        &keep,
        "--checkpoint-bytes",
        "20000",
        "--page-bytes",
        "65536",
        "--body-bytes-max",
        "16384",
    ];
    let first = [&kept[..], &["--keep-new"]].concat();
    let mut rope = Served::start(&folder, 1, "rope0", &region, &first);
    let mut tower = Served::start(&folder, 2, "tower0", &region, &first);
    let mut pulled = 0;
    for round in 1..=3 {
        for _ in 0..40 {
            pulled += 1;
            rope.pull(&pulled.to_string());
        }
        wait("the strokes", || tower.strokes() == pulled);
        // The tower goes for good, strokes wait for it; then the rope goes, with those it keeps for the tower.
        drop(tower);
        fs::remove_dir_all(folder.path(&format!("tower{}", round - 1))).expect("it is there");
        for _ in 0..10 {
            pulled += 1;
            rope.pull(&pulled.to_string());
        }
        drop(rope);
        fs::remove_dir_all(folder.path(&format!("rope{}", round - 1))).expect("it is there");
        tower = Served::start(&folder, 2, &format!("tower{round}"), &region, &kept);
        rope = Served::start(&folder, 1, &format!("rope{round}"), &region, &kept);
        wait("the strokes", || tower.strokes() == pulled);
        rope.pull("1");
        assert_eq!(tower.strokes(), pulled, "a repetition");
    }
}
