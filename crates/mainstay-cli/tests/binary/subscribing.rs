//! `MAINSTAY.SUBSCRIBE` against real nodes: who is told of changes at one that dies goes on at another, behind what it has heard.

use crate::harness::{Folder, PATIENCE};
use crate::region::{Node, three, wait_for_members};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A connection of the Redis protocol.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn new(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).expect("it listens");
        stream.set_read_timeout(Some(3 * PATIENCE)).expect("it is a socket");
        stream.set_nodelay(true).expect("it is a socket");
        Self(BufReader::new(stream))
    }

    fn say(&mut self, command: &str) {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("it reads");
    }

    /// The next reply or message; its parts, and what kind it is of. `None` where the connection has ended.
    fn hear(&mut self) -> Option<(char, Vec<String>)> {
        let line = self.line()?;
        let count = |line: &str| line[1..].parse::<usize>().expect("a count");
        match line.chars().next()? {
            kind @ ('*' | '>') => {
                let parts = (0..count(&line)).map(|_| self.hear().map(|(_, mut part)| part.remove(0)));
                Some((kind, parts.collect::<Option<_>>()?))
            }
            '$' => {
                let mut bytes = vec![0; count(&line) + 2];
                self.0.read_exact(&mut bytes).ok()?;
                Some(('$', vec![String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()]))
            }
            // A map is told to HELLO.
            '%' => {
                (0..2 * count(&line)).for_each(|_| drop(self.hear()));
                Some(('%', Vec::new()))
            }
            kind => Some((kind, vec![line[1..].to_owned()])),
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let bytes = self.0.read_line(&mut line).ok()?;
        (bytes > 0).then(|| line.trim_end().to_owned())
    }
}

/// Who listens to all keys that begin with `k`, and notes up to where.
#[derive(Default)]
struct Listener {
    stands: BTreeMap<u16, String>,
    /// Key, event and version.
    heard: Vec<(String, String, String)>,
    /// How messages begin.
    kinds: Vec<char>,
}

impl Listener {
    /// Subscribes at a node; whether it takes that.
    fn subscribe(&self, connection: &mut Connection) -> Result<(), String> {
        let stands: Vec<&str> = self.stands.values().map(String::as_str).collect();
        let from = if stands.is_empty() { String::new() } else { format!(" FROM {}", stands.join(" ")) };
        connection.say(&format!("MAINSTAY.SUBSCRIBE k*{from}"));
        match connection.hear() {
            Some(('-', error)) => Err(error.concat()),
            Some((_, parts)) if parts[0] == "psubscribe" => Ok(()),
            other => panic!("{other:?}"),
        }
    }

    /// Hears until it has heard so many changes, or the connection ends.
    fn hear(&mut self, connection: &mut Connection, changes: usize) {
        while self.heard.len() < changes && self.hear_one(connection).is_some() {}
    }

    /// Hears one message; `None` where the connection has ended, and else whether it says up to where all was told.
    fn hear_one(&mut self, connection: &mut Connection) -> Option<bool> {
        let (kind, parts) = connection.hear()?;
        let [word, _, channel, message] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(word, "pmessage");
        let shard_of = |position: &str| {
            let (shard, _) = position.split_once(':').expect("a shard");
            shard.parse().expect("a number")
        };
        if let Some(from) = message.strip_prefix("from ") {
            let positions = from.split(' ').map(|position| (shard_of(position), position.to_owned()));
            self.stands.extend(positions);
            return Some(true);
        }
        let words: Vec<&str> = message.split(' ').collect();
        let [event, view, counter, _, shard] = words[..] else { panic!("{message}") };
        let position = format!("{shard}:{view}-{counter}");
        self.stands.insert(shard_of(&position), position.clone());
        let key = channel.strip_prefix("__mainstay@0__:").expect("it is told with versions");
        self.heard.push((key.to_owned(), event.to_owned(), position));
        self.kinds.push(kind);
        Some(false)
    }
}

#[test]
fn a_subscription_goes_on_at_another_node_when_its_node_is_killed_and_nothing_is_told_twice() {
    let folder = Folder::new();
    let [first, second, third] = three(&folder);
    let mut writer = Connection::new(third.clients_at);
    let mut set = |number: usize| loop {
        writer.say(&format!("SET k{number} {number}"));
        match writer.hear() {
            Some(('+', _)) => return,
            // While the view changes; what is not known is not counted here.
            Some(('-', error)) if !error[0].starts_with("UNKNOWN") => {}
            other => panic!("{other:?}"),
        }
    };
    let mut listener = Listener::default();
    let mut at_first = Connection::new(first.clients_at);
    assert_eq!(listener.subscribe(&mut at_first), Ok(()));
    (0..40).for_each(&mut set);
    listener.hear(&mut at_first, 25);
    // What it had not read yet is lost with the connection, and with the node.
    drop(at_first);
    first.kill();
    (40..80).for_each(&mut set);
    let mut at_second = Connection::new(second.clients_at);
    at_second.say("HELLO 3");
    assert_eq!(at_second.hear().map(|(kind, _)| kind), Some('%'));
    while let Err(error) = listener.subscribe(&mut at_second) {
        assert!(error.starts_with("TRYAGAIN") || error.starts_with("CLUSTERDOWN"), "{error}");
    }
    (80..100).for_each(&mut set);
    listener.hear(&mut at_second, 100);
    let keys: std::collections::BTreeSet<&str> =
        listener.heard.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!((keys.len(), listener.heard.len()), (100, 100), "each once");
    assert!(listener.heard.iter().all(|(_, event, _)| event == "set"));
    assert_eq!((listener.kinds[0], listener.kinds[99]), ('*', '>'), "as the version of the protocol has it");
    // A node that was filled anew does not have what was before, and says so; the connection goes on.
    let others = format!("{},{}", second.nodes_at, third.nodes_at);
    let fourth = Node::start(&folder, "n4", &["--join", &others]);
    wait_for_members(&folder, &fourth, 3);
    // Versions of keys that it did not ask for have moved it on.
    set(100);
    listener.hear(&mut at_second, 101);
    while listener.hear_one(&mut at_second) == Some(false) {}
    let mut at_fourth = Connection::new(fourth.clients_at);
    let old: Vec<String> = (0..16).map(|shard| format!("{shard}:1-0")).collect();
    let behind = Listener { stands: (0..).zip(old).collect(), ..Listener::default() };
    let refused = behind.subscribe(&mut at_fourth).expect_err("it has not seen them");
    assert!(refused.starts_with("MISSED of shard "), "{refused}");
    // From now on it hears at that one too.
    let mut anew = Listener::default();
    assert_eq!(anew.subscribe(&mut at_fourth), Ok(()));
    set(101);
    anew.hear(&mut at_fourth, 1);
    assert_eq!(anew.heard[0].0, "k101");
}
