//! Application-level against transport-level reliability (Zhao 2014, figure 2.12): a node dies after its kernel has acknowledged a
//! message and before its process has read it.

use crate::nodes::{Nodes, Running, ask, wait};
use std::collections::BTreeSet;
use std::path::Path;

const REQUEST: &str = r#"{"client":0,"number":1,"account":"account-0","amount":7}"#;

fn start(trust_transport: bool) -> Nodes {
    let nodes = Nodes::start(&Running { policy: "deferred", trust_transport });
    // Once around, so that every two nodes have greeted.
    let first = r#"{"client":0,"number":0,"account":"account-0","amount":1}"#;
    assert_eq!(ask(nodes.http[0], "POST", "/call", "first", first).map(|(status, _)| status), Some(200));
    nodes
}

impl Nodes {
    /// The second node dies with the message in its kernel, and starts again.
    fn die_after_the_transport_acknowledged(&mut self, asked: impl FnOnce(u16)) {
        let stopped = rustix::process::Pid::from_child(&self.running[1]);
        rustix::process::kill_process(stopped, rustix::process::Signal::STOP).expect("it can be stopped");
        let (first, second) = (self.running[0].id(), self.running[1].id());
        let before = unread(second, first);
        asked(self.http[0]);
        wait("the kernel to acknowledge the message", || unread(second, first) >= before + REQUEST.len());
        self.running[1].kill().expect("it can be killed");
        self.running[1].wait().expect("it can be waited for");
        self.running[1] = self.spawn(1);
        self.wait_until_ready(1);
    }
}

#[test]
fn a_message_that_only_the_transport_has_acknowledged_is_not_lost() {
    let mut nodes = start(false);
    let mut client = None;
    nodes.die_after_the_transport_acknowledged(|port| {
        client = Some(std::thread::spawn(move || ask(port, "POST", "/call", "only", REQUEST)));
    });
    let (status, first) =
        client.and_then(|client| client.join().expect("it does not panic")).expect("an answer");
    assert_eq!(status, 200, "{first}");
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [4, 2, 2]);
    assert_eq!(ask(nodes.http[0], "POST", "/call", "only", REQUEST), Some((200, first)));
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [4, 2, 2]);
}

#[test]
fn a_sender_that_takes_the_word_of_the_transport_loses_it() {
    let mut nodes = start(true);
    nodes.die_after_the_transport_acknowledged(|port| {
        std::thread::spawn(move || ask(port, "POST", "/call", "only", REQUEST));
    });
    // The first node sees what it has done when they greet, and cannot mend it.
    wait("the first node to say so", || {
        std::fs::read_to_string(nodes.log(0))
            .is_ok_and(|log| log.contains("the messages between are gone here"))
    });
    assert_eq!((0..3).map(|node| nodes.folds(node)).collect::<Vec<_>>(), [3, 1, 1]);
}

/// Bytes that the kernel has acknowledged to process `sender` and process `receiver` has not read.
fn unread(receiver: u32, sender: u32) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has this file");
    let (mine, theirs) = (sockets(receiver), sockets(sender));
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    let queued = |row: &[&str], which: usize| {
        let queue = row[4].split(':').nth(which).expect("two queues");
        usize::from_str_radix(queue, 16).expect("a number")
    };
    let mut bytes = 0;
    for row in rows.iter().filter(|row| mine.contains(row[9])) {
        let peer =
            rows.iter().find(|peer| theirs.contains(peer[9]) && peer[1] == row[2] && peer[2] == row[1]);
        if peer.is_some_and(|peer| queued(peer, 0) == 0) {
            bytes += queued(row, 1);
        }
    }
    bytes
}

/// The inodes of a process's sockets.
fn sockets(process: u32) -> BTreeSet<String> {
    let entries = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("fd"));
    let links =
        entries.into_iter().flatten().flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(inode).collect()
}
