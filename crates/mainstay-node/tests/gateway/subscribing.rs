//! Who is told of changes: in which form, from which version on, and what happens where that cannot be.

use crate::alone::Alone;
use mainstay_node::gateway::{GatewayEffect, GatewayTimes};
use mainstay_region::limits::{Config as RegionConfig, Limits};
use mainstay_region::message::{Body, Message, Refusal};
use mainstay_region::operation::shard_of;
use mainstay_types::operation::Version;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[test]
fn subscribers_hear_of_every_change_in_the_form_of_their_protocol() {
    let mut node = Alone::new();
    node.serve();
    (1..=3).for_each(|session| node.gateway.opened(session));
    node.tell_time(1_000_000);
    let said = node.ask(1, "SUBSCRIBE __keyspace@0__:k other; PSUBSCRIBE __keyevent@0__:*; GET k; PING");
    let first = "*3\r\n$9\r\nsubscribe\r\n$16\r\n__keyspace@0__:k\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:2\r\n";
    assert!(said.starts_with(first), "{said}");
    assert!(said.contains(":3\r\n-ERR a connection of RESP2 that is subscribed does"), "{said}");
    assert!(said.ends_with("*2\r\n$4\r\npong\r\n$0\r\n\r\n"), "{said}");
    assert!(node.ask(2, "HELLO 3; SUBSCRIBE __mainstay@0__:k; GET k").ends_with("\r\n:1\r\n_\r\n"));
    assert_eq!(node.ask(3, "SET k v PX 50; SET l v; DEL l"), "+OK\r\n+OK\r\n:1\r\n");
    let message = "*3\r\n$7\r\nmessage\r\n$16\r\n__keyspace@0__:k\r\n$3\r\nset\r\n";
    let of_event = |event: &str, key: &str| {
        let channel = format!("__keyevent@0__:{event}");
        format!(
            "*4\r\n$8\r\npmessage\r\n$16\r\n__keyevent@0__:*\r\n${}\r\n{channel}\r\n$1\r\n{key}\r\n",
            channel.len()
        )
    };
    let set = format!("{message}{}{}{}", of_event("set", "k"), of_event("set", "l"), of_event("del", "l"));
    assert_eq!(node.said.remove(&1), Some(set));
    let versioned = node.said.remove(&2).expect("it is told");
    assert!(versioned.starts_with(">3\r\n$7\r\nmessage\r\n$16\r\n__mainstay@0__:k\r\n"), "{versioned}");
    assert!(
        versioned.contains("\r\nset 1 ") && versioned.ends_with(&format!(" 0 {}\r\n", shard("k"))),
        "{versioned}"
    );
    assert_eq!(
        node.ask(1, "UNSUBSCRIBE __keyspace@0__:k"),
        "*3\r\n$11\r\nunsubscribe\r\n$16\r\n__keyspace@0__:k\r\n:2\r\n"
    );
    node.pass(Duration::from_millis(50));
    assert_eq!(node.ask(3, "GET k"), "$-1\r\n");
    assert_eq!(node.said.remove(&1), Some(of_event("expired", "k")));
    assert!(node.said.remove(&2).expect("it is told").contains("\r\nexpired 1 "));
    // Who is gone, or listens no more, is told nothing.
    node.ask(1, "PUNSUBSCRIBE; UNSUBSCRIBE");
    assert_eq!(node.ask(1, "GET k"), "$-1\r\n");
    node.gateway.closed(2, &mut node.asked);
    node.perform();
    assert_eq!(node.ask(3, "SET k w"), "+OK\r\n");
    assert!(node.said.is_empty(), "{:?}", node.said);
    assert!(node.ask(1, "SUBSCRIBE __keyspace@0__:k").ends_with(":1\r\n"), "and it can begin again");
}

#[test]
fn a_subscriber_of_a_copy_that_was_filled_anew_is_told_so_and_closed() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.gateway.opened(2);
    node.ask(1, "SUBSCRIBE __keyspace@0__:k");
    let view = node.replica.view().expect("it serves").id;
    let body = Body::NotSubscribed(Refusal::TooOld(Version { view, counter: 9 }));
    let (from, follower) = (node.replica.name(), node.gateway.follower());
    let message = Message { view, shard: 0, body };
    node.gateway.received(node.now, from, follower, message, &mut node.asked);
    let closes = |asked: &GatewayEffect| matches!(asked, GatewayEffect::Write { close: true, .. });
    assert!(node.asked.iter().any(closes));
    node.perform();
    assert!(node.said.remove(&1).expect("it is told").starts_with("-MISSED "));
    assert!(node.ask(2, "SUBSCRIBE __keyspace@0__:k").ends_with(":1\r\n"));
    assert!(node.ask(2, "UNSUBSCRIBE; SET k v").ends_with(":0\r\n+OK\r\n"));
    // Nobody is left without an answer where the copy does not speak.
    node.stuck = true;
    assert_eq!(node.ask(2, "SUBSCRIBE c; PING"), "");
    let said = node.pass(GatewayTimes::default().held_max);
    assert!(said.starts_with("-TRYAGAIN ") && said.ends_with("not subscribed\r\n+PONG\r\n"), "{said}");
}

fn shard(key: &str) -> u16 {
    shard_of(key.as_bytes(), RegionConfig::default().shards)
}

/// Channel and message of each that is about a change; and what the others say, up to where all was told.
fn heard(said: &str) -> (Vec<(String, String)>, Vec<String>) {
    let lines: Vec<&str> = said.split("\r\n").collect();
    let places = lines.iter().enumerate().filter(|(_, line)| **line == "pmessage").map(|(place, _)| place);
    let all = places.map(|place| (lines[place + 4].to_owned(), lines[place + 6].to_owned()));
    let (changes, others): (Vec<_>, Vec<_>) = all.partition(|(_, message)| !message.starts_with("from "));
    let positions = others.iter().flat_map(|(_, message)| message.split(' ').skip(1).map(str::to_owned));
    (changes, positions.collect())
}

/// What a client does with what it hears: it notes up to where, shard by shard.
#[derive(Clone, Default)]
struct Stands(BTreeMap<String, String>);

impl Stands {
    fn hear(&mut self, said: &str) -> Vec<String> {
        let (messages, from) = heard(said);
        for position in from {
            self.0.insert(position.split(':').next().expect("a shard").to_owned(), position);
        }
        let note = |(channel, message): (String, String)| {
            let words: Vec<&str> = message.split(' ').collect();
            let [event, view, counter, _, shard] = words[..] else { panic!("{message}") };
            self.0.insert(shard.to_owned(), format!("{shard}:{view}-{counter}"));
            format!("{event} {}", channel.strip_prefix("__mainstay@0__:").expect("it is told with versions"))
        };
        messages.into_iter().map(note).collect()
    }

    fn from(&self) -> String {
        self.0.values().map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_subscriber_goes_on_behind_what_it_has_heard_and_hears_each_change_once() {
    let mut node = Alone::new();
    node.serve();
    (1..=5).for_each(|session| node.gateway.opened(session));
    let mut stands = Stands::default();
    let said = node.ask(1, "MAINSTAY.SUBSCRIBE user:*");
    let name = "__mainstay@0__:user:*";
    assert!(said.starts_with(&format!("*3\r\n$10\r\npsubscribe\r\n$21\r\n{name}\r\n:1\r\n*4\r\n")), "{said}");
    assert!(stands.hear(&said).is_empty() && stands.0.len() == 16);
    let begun = stands.clone();
    assert_eq!(node.ask(3, "SET user:1 a; SET other b; SET user:2 c"), "+OK\r\n".repeat(3));
    assert_eq!(stands.hear(&node.said.remove(&1).expect("it is told")), ["set user:1", "set user:2"]);
    // Other keys' changes move on from where it would be told again, too.
    let (_, positions) = heard(&node.pass(Duration::from_secs(2)));
    let moved: BTreeSet<&str> = positions.iter().filter_map(|position| position.split(':').next()).collect();
    for key in ["user:1", "user:2", "other"] {
        assert!(moved.contains(shard(key).to_string().as_str()), "{key}: {moved:?}");
    }
    assert_eq!(node.pass(Duration::from_secs(2)), "", "it is said once");
    node.gateway.closed(1, &mut node.asked);
    assert_eq!(node.ask(3, "SET user:3 a; DEL user:1; SET user:3 b"), "+OK\r\n:1\r\n+OK\r\n");
    // Another connection, another protocol.
    let said = node.ask(2, &format!("HELLO 3; MAINSTAY.SUBSCRIBE user:* from {}", stands.from()));
    assert!(said.contains(">3\r\n$10\r\npsubscribe\r\n"), "{said}");
    let mut missed = stands.hear(&said);
    missed.sort();
    assert_eq!(missed, ["del user:1", "set user:3", "set user:3"]);
    assert_eq!(node.ask(3, "SET user:4 d"), "+OK\r\n");
    assert_eq!(stands.hear(&node.said.remove(&2).expect("it is told")), ["set user:4"]);
    // From the beginning, all of it, a shard's in their order; by a shard's version alone what is of one key, or of one tag.
    let mut all = begun
        .clone()
        .hear(&node.ask(4, &format!("MAINSTAY.SUBSCRIBE * FROM {}", begun.from().replace(' ', ","))));
    let of = |key: &str| all.iter().filter(|told| told.ends_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!(of("user:1"), ["set user:1", "del user:1"]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6, "{all:?}");
    let mut one = Stands::default();
    let from = |key: &str| format!("FROM {}:1-0", shard(key));
    let said = node.ask(5, &format!("MAINSTAY.SUBSCRIBE user:3 {}", from("user:3")));
    assert_eq!(one.hear(&said), ["set user:3", "set user:3"]);
    let said = node.ask(5, &format!("MAINSTAY.SUBSCRIBE {{a}}* {}", from("a")));
    assert_eq!(heard(&said), (Vec::new(), vec![format!("{}:1-0", shard("a"))]), "{said}");
    // What it has heard elsewhere and this copy does not know to be stable yet, it is not told again.
    node.ask(5, "PUNSUBSCRIBE");
    let (_, now) = heard(&node.ask(5, "MAINSTAY.SUBSCRIBE user:3"));
    let (at, counter) = now[0].rsplit_once('-').expect("a version");
    let next = counter.parse::<u64>().expect("a number") + 1;
    node.ask(5, "PUNSUBSCRIBE");
    assert!(node.ask(5, &format!("MAINSTAY.SUBSCRIBE user:3 FROM {at}-{next}")).contains("psubscribe"));
    assert_eq!(node.ask(3, "SET user:3 heard; DEL user:3"), "+OK\r\n:1\r\n");
    assert_eq!(one.hear(&node.said.remove(&5).expect("it is told")), ["del user:3"]);
    node.said.clear();
    assert!(node.ask(5, "PUNSUBSCRIBE __mainstay@0__:user:3").ends_with(":0\r\n"));
    assert_eq!(node.ask(3, "SET user:3 x"), "+OK\r\n");
    assert!(!node.said.contains_key(&5));
}

#[test]
fn who_cannot_be_told_everything_from_there_on_is_told_so_and_is_not_subscribed() {
    let mut node = Alone::new();
    node.serve();
    (1..=3).for_each(|session| node.gateway.opened(session));
    let (key, of_key) = ("k", shard("k"));
    for (from, word) in [
        ("FROM", "-ERR syntax"),
        ("SINCE 1:1-0", "-ERR syntax"),
        ("FROM 1-0", "'1-0' is no version of a shard"),
        ("FROM 16:1-0", "there is no shard 16"),
        (&format!("FROM {}:1-0", (of_key + 1) % 16), "says nothing of shard"),
        (&format!("FROM {of_key}:7-0"), "-TRYAGAIN shard"),
    ] {
        let said = node.ask(1, &format!("MAINSTAY.SUBSCRIBE {key} {from}; GET none"));
        assert!(said.contains(word) && said.ends_with("$-1\r\n"), "{from}: {said}");
    }
    let changes = Limits::default().history_entries_max + 10;
    for _ in 0..changes {
        assert_eq!(node.ask(2, "SET k v"), "+OK\r\n");
    }
    let from = |counter: usize| format!("MAINSTAY.SUBSCRIBE k FROM {of_key}:1-{counter}");
    assert!(node.ask(1, &from(9)).starts_with("-MISSED of shard "));
    let (told, _) = heard(&node.ask(1, &from(10)));
    assert_eq!((told.len(), told[0].1.as_str()), (changes - 10, format!("set 1 11 0 {of_key}").as_str()));
    // Nobody is left without an answer where the copy does not speak, and who waited for it is served when it does.
    assert!(node.ask(1, "PUNSUBSCRIBE").ends_with(":0\r\n"));
    let waits = from(changes - 1);
    node.stuck = true;
    assert_eq!(node.ask(3, &waits), "");
    let said = node.pass(GatewayTimes::default().held_max);
    assert!(said.starts_with("-TRYAGAIN ") && said.ends_with("not subscribed\r\n"), "{said}");
    assert_eq!(node.ask(3, &waits), "");
    node.stuck = false;
    let (told, _) = heard(&node.pass(GatewayTimes::default().held_max / 2));
    assert_eq!(told.len(), 1);
}
