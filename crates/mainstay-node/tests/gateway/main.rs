//! What a gateway answers to commands, over a replica of one node.

mod alone;
mod strings;
mod subscribing;

use crate::alone::Alone;
use mainstay_node::gateway::{ByteLimits, Gateway, GatewayTimes, Standing};
use mainstay_region::limits::Config as RegionConfig;
use mainstay_region::message::{Body, Message, Refusal};
use mainstay_region::operation::shard_of;
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence, ThreadId};
use mainstay_types::operation::OperationId;
use mainstay_types::view::ViewId;
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn commands_are_answered_in_their_order_whatever_they_wait_for() {
    let mut node = Alone::new();
    node.gateway.opened(1);
    assert_eq!(node.ask(1, "SET k a; GET k; SET k b; GET k; PING"), "", "nobody serves yet");
    node.serve();
    assert_eq!(node.said.remove(&1).as_deref(), Some("+OK\r\n$1\r\na\r\n+OK\r\n$1\r\nb\r\n+PONG\r\n"));
    let said = node.ask(
        1,
        "INCR n; INCRBY n 41; MGET k n none; DEL k none; EXISTS k n; FLUSHALL; SET k v NX; SETNX k w",
    );
    let told = ":1\r\n:42\r\n*3\r\n$1\r\nb\r\n$2\r\n42\r\n$-1\r\n:1\r\n:1\r\n-ERR unknown";
    assert!(said.starts_with(told), "{said}");
    assert!(said.ends_with("+OK\r\n:0\r\n"), "{said}");
}

#[test]
fn a_named_write_is_done_once_at_whatever_connection_and_numbers_are_never_given_twice() {
    let mut node = Alone::new();
    node.serve();
    for session in 1..=3 {
        node.gateway.opened(session);
    }
    let first = node.ask(1, "MAINSTAY.ID NEW");
    assert_ne!(first, node.ask(2, "MAINSTAY.ID NEW"));
    let number = first.trim_start_matches(':').trim_end();
    let named = format!("MAINSTAY.ID {number} 1; INCR n");
    assert_eq!(node.ask(1, &named), "+OK\r\n:1\r\n");
    assert_eq!(node.ask(2, "INCR n"), ":2\r\n");
    let again = format!("MAINSTAY.VERSIONS ON; MAINSTAY.ID {number} 1 AGAIN; INCR n; GET n");
    let said = node.ask(3, &again);
    assert!(said.starts_with("+OK\r\n+OK\r\n*4\r\n:1\r\n:1\r\n:"), "first value and view: {said}");
    assert!(said.contains(":1\r\n*3\r\n$1\r\n2\r\n"), "a duplicate, and nothing was added: {said}");
    // Only a write uses the name up.
    let said = node.ask(2, &format!("MAINSTAY.ID {number} 2; GET n; PING; LPUSH n 1; INCR n; INCR n"));
    assert!(said.starts_with("+OK\r\n$1\r\n2\r\n+PONG\r\n-ERR ") && said.ends_with(":3\r\n:4\r\n"), "{said}");
    assert_eq!(node.ask(1, &format!("MAINSTAY.ID {number} 2 AGAIN; INCR n")), "+OK\r\n:3\r\n");
    let said = node.ask(1, &format!("MAINSTAY.ID {number} 3; DEL n m; INCR n"));
    assert!(said.contains("names a write of one key, or EXEC") && said.ends_with(":5\r\n"), "{said}");
}

/// What was sent behind it, without waiting, was done without a name, and again when it was repeated.
#[test]
fn a_write_behind_a_name_that_is_refused_is_refused_too() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    let number = node.ask(1, "MAINSTAY.ID NEW");
    let number = number.trim_start_matches(':').trim_end().to_owned();
    for refused in ["MAINSTAY.ID", "MAINSTAY.ID x 1", "MAINSTAY.ID 1 0", "MAINSTAY.ID 1 1 TWICE"] {
        let said = node
            .ask(1, &format!("{refused}; GET n; INCR n; EXISTS n; MULTI; INCR n; {refused}; EXEC; EXISTS n"));
        assert_eq!(said.matches("-ERR the MAINSTAY.ID before it was refused").count(), 1, "{said}");
        assert_eq!(said.matches("-EXECABORT").count(), 1, "{said}");
        assert_eq!(said.matches(":0\r\n").count(), 2, "{said}");
        assert_eq!(
            node.ask(1, &format!("{refused}; MAINSTAY.ID {number} 9; DEL n x")).matches("+OK").count(),
            1
        );
    }
    assert_eq!(node.ask(1, "INCR n"), ":1\r\n", "one refusal is enough");
}

/// It was done where its key was in another shard, and was given the first one's answer where it was not.
#[test]
fn a_name_that_stands_for_another_command_is_refused_wherever_the_key_is() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    let number = node.ask(1, "MAINSTAY.ID NEW");
    let number = number.trim_start_matches(':').trim_end().to_owned();
    let named = |sequence: u64, command: &str| format!("MAINSTAY.ID {number} {sequence}; {command}");
    assert_eq!(node.ask(1, &named(1, "SET a 1 EX 100")), "+OK\r\n+OK\r\n");
    node.now = node.now.after(Duration::from_secs(1));
    assert_eq!(node.ask(1, &named(1, "set a 1 EX 100")), "+OK\r\n+OK\r\n", "the end of the value is another");
    for key in 0..40 {
        let said = node.ask(1, &named(1, &format!("SET k{key} 1")));
        assert!(
            said.ends_with("nothing was done: what is no repetition has a sequence of its own\r\n"),
            "{said}"
        );
    }
    assert_eq!(node.ask(1, "DBSIZE"), ":1\r\n");
    // Where nothing was done, the name is free.
    let said = node.ask(1, &named(2, "MSET a 1 b 2 c 3 d 4"));
    assert!(said.contains("-CROSSSLOT"), "{said}");
    assert_eq!(node.ask(1, &named(2, "SET b 2")), "+OK\r\n+OK\r\n");
    let multi = |sequence: u64, value: u64| {
        format!("MULTI; SET a {value}; INCR a; MAINSTAY.ID {number} {sequence}; EXEC")
    };
    assert!(node.ask(1, &multi(3, 7)).ends_with("*2\r\n+OK\r\n:8\r\n"));
    assert!(node.ask(1, &multi(3, 7)).ends_with("*2\r\n+OK\r\n:8\r\n"));
    assert!(node.ask(1, &multi(3, 8)).ends_with("has a sequence of its own\r\n"));
    // Said before MULTI, it names the transaction as well.
    let early = format!("MAINSTAY.ID {number} 3 AGAIN; MULTI; SET a 7; INCR a; EXEC; GET a");
    assert!(node.ask(1, &early).ends_with("*2\r\n+OK\r\n:8\r\n$1\r\n8\r\n"));
}

#[test]
fn who_does_not_serve_refuses_what_it_held_and_who_gets_no_answer_does_not_know() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    assert_eq!(node.ask(1, "INCR n"), ":1\r\n");
    let standing =
        Standing { serves: false, explanation: "minority: hears 1 of 3".to_owned(), restriction: None };
    node.gateway.stand(node.now, standing, &mut node.asked);
    assert_eq!(node.ask(1, "INCR n; GET n"), "");
    let said = node.pass(GatewayTimes::default().held_max);
    let refused = "-CLUSTERDOWN minority: hears 1 of 3; nothing was sent\r\n";
    assert_eq!(said, refused.repeat(2));
    // A read that was under way when the node ceased to serve is not waited for longer.
    node.serve();
    node.stuck = true;
    assert_eq!(node.ask(1, "GET n"), "");
    let standing =
        Standing { serves: false, explanation: "minority: hears 1 of 3".to_owned(), restriction: None };
    node.gateway.stand(node.now, standing, &mut node.asked);
    let said = node.pass(GatewayTimes::default().held_max);
    assert_eq!(said, "-CLUSTERDOWN minority: hears 1 of 3; no answer to a read\r\n");
    node.stuck = false;
    node.serve();
    node.stuck = true;
    assert_eq!(node.ask(1, "INCR n; GET n"), "");
    let said = node.pass(2 * GatewayTimes::default().deadline);
    assert!(said.starts_with("-UNKNOWN ") && said.contains("\r\n-TRYAGAIN "), "{said}");
    node.stuck = false;
    assert_eq!(node.ask(1, "GET n"), "$1\r\n1\r\n");
}

/// A scan from its beginning to its end: how many answers it took, and all keys.
fn scan(node: &mut Alone, more: &str) -> (usize, Vec<String>) {
    let (mut cursor, mut answers, mut keys) = ("0".to_owned(), 0, Vec::new());
    loop {
        let said = node.ask(1, &format!("SCAN {cursor}{more}"));
        let mut lines = said.split("\r\n");
        assert_eq!(lines.next(), Some("*2"), "{said}");
        cursor = lines.nth(1).expect("a cursor").to_owned();
        answers += 1;
        keys.extend(
            lines.skip(1).filter(|line| !line.is_empty() && !line.starts_with('$')).map(str::to_owned),
        );
        if cursor == "0" {
            return (answers, keys);
        }
    }
}

#[test]
fn a_scan_gives_every_key_once_over_all_shards() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    let names: BTreeSet<String> = (0..40).map(|number| format!("user:{number}")).collect();
    let sets: String = names.iter().map(|name| format!("SET {name} v; ")).collect();
    assert_eq!(node.ask(1, &format!("{sets}SET other v; DBSIZE")), "+OK\r\n".repeat(41) + ":41\r\n");
    let (answers, keys) = scan(&mut node, " MATCH user:* COUNT 7");
    assert_eq!((answers, keys.len()), (6, 40), "five of seven keys, and the rest");
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), names);
    assert_eq!(scan(&mut node, " MATCH *the? TYPE string COUNT 100"), (1, vec!["other".to_owned()]));
    assert_eq!(scan(&mut node, "").1.len(), 41);
    assert_eq!(scan(&mut node, " TYPE list"), (1, Vec::new()));
    assert_eq!(node.ask(1, "KEYS o*r; TYPE other; TYPE none"), "*1\r\n$5\r\nother\r\n+string\r\n+none\r\n");
    assert!(node.ask(1, "SCAN 123456789").starts_with("-ERR invalid cursor: it is of another node"));
}

#[test]
fn commands_behind_multi_are_done_as_one_or_not_at_all() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.gateway.opened(2);
    let said = node.ask(
        1,
        "SET {a}x 4; MULTI; INCR {a}x; GET {a}x; MGET {a}x {a}none; DEL {a}x {a}none; EXEC; EXISTS {a}x",
    );
    let queued = "+QUEUED\r\n".repeat(4);
    let told = "*4\r\n:5\r\n$1\r\n5\r\n*2\r\n$1\r\n5\r\n$-1\r\n:1\r\n:0\r\n";
    assert_eq!(said, format!("+OK\r\n+OK\r\n{queued}{told}"));
    // What is wrong with one command is told in its place, and the others are done.
    let said = node
        .ask(1, "SET {a}t text; MULTI; INCR {a}t; APPEND {a}t s; MSET {a}p 1 {a}q 2; EXEC; MGET {a}t {a}q");
    let told =
        "*3\r\n-ERR value is not an integer or out of range\r\n:5\r\n+OK\r\n*2\r\n$5\r\ntexts\r\n$1\r\n2\r\n";
    assert!(said.ends_with(told), "{said}");
    // A transaction that is none does nothing.
    let said = node.ask(1, "MULTI; SET {a}x 1; LPUSH {a}l 1; EXEC; MULTI; SET {a}x 1; DBSIZE; EXEC; MULTI; SET {a}x 1; DISCARD; EXISTS {a}x; EXEC");
    assert_eq!(said.matches("-EXECABORT ").count(), 2, "{said}");
    assert!(said.ends_with("+OK\r\n:0\r\n-ERR EXEC without MULTI\r\n"), "{said}");
    let shard = |key: &str| shard_of(key.as_bytes(), RegionConfig::default().shards);
    let other = (0..).map(|number| number.to_string()).find(|key| shard(key) != shard("a"));
    let other = other.expect("keys are spread");
    let said =
        node.ask(1, &format!("MULTI; SET a 1; SET {other} 1; EXEC; MSET a 1 {other} 1; EXISTS a {other}"));
    assert_eq!(said.matches("-CROSSSLOT the keys belong to several shards; nothing was done").count(), 2);
    assert!(said.ends_with(":0\r\n"), "{said}");
}

#[test]
fn a_watched_key_that_changed_stops_the_transaction_and_a_named_one_is_done_once() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.gateway.opened(2);
    assert_eq!(node.ask(1, "WATCH {a}w {a}v; MULTI; INCR {a}n"), "+OK\r\n+OK\r\n+QUEUED\r\n");
    assert_eq!(node.ask(2, "SET {a}w 1"), "+OK\r\n");
    assert_eq!(node.ask(1, "EXEC"), "*-1\r\n");
    // The next one watches nothing any more.
    assert_eq!(node.ask(1, "MULTI; INCR {a}n; EXEC"), "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    assert_eq!(node.ask(1, "WATCH {a}w; MULTI; INCR {a}n; EXEC"), "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:2\r\n");
    let number = node.ask(1, "MAINSTAY.ID NEW");
    let number = number.trim_start_matches(':').trim_end();
    let named =
        |again: &str| format!("MULTI; INCR {{a}}n; GETDEL {{a}}w; MAINSTAY.ID {number} 1{again}; EXEC");
    let told = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+OK\r\n*2\r\n:3\r\n$1\r\n1\r\n";
    assert_eq!(node.ask(1, &named("")), told);
    assert_eq!(node.ask(2, "SET {a}w 2; INCR {a}n"), "+OK\r\n:4\r\n");
    assert_eq!(node.ask(2, &named(" AGAIN")), told, "the first answers, and nothing is done");
    assert_eq!(node.ask(2, "MGET {a}n {a}w"), "*2\r\n$1\r\n4\r\n$1\r\n2\r\n");
}

/// It watched nothing, and the transaction was done.
#[test]
fn a_watch_that_was_refused_stops_the_transaction() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.stuck = true;
    assert_eq!(node.ask(1, "WATCH {a}w; MULTI; INCR {a}n; EXEC; UNWATCH"), "");
    let said = node.pass(2 * GatewayTimes::default().deadline);
    assert!(
        said.starts_with("-TRYAGAIN ") && said.contains("-EXECABORT a WATCH before it was refused"),
        "{said}"
    );
    node.stuck = false;
    let keys: String = (0..1000).map(|key| format!(" {key}")).collect();
    let many = format!("WATCH{keys}; WATCH{keys}");
    for refused in ["WATCH", "WATCH \0mainstay/clients", &many] {
        let said = node.ask(1, &format!("{refused}; MULTI; INCR {{a}}n; EXEC"));
        assert!(said.contains("-EXECABORT a WATCH"), "{said}");
        assert!(node.ask(1, "MULTI; INCR {a}n; DISCARD; MULTI; INCR {a}m; EXEC").ends_with("\r\n"));
    }
    let said = node.ask(1, "WATCH; UNWATCH; MULTI; EXISTS {a}n; EXEC");
    assert!(said.ends_with("*1\r\n:0\r\n"), "nothing was done: {said}");
}

#[test]
fn what_waits_behind_multi_is_bounded_over_all_connections_and_given_back() {
    let mut node = Alone::new();
    node.serve();
    let limits = ByteLimits { transactions_bytes_max: 6000, ..ByteLimits::default() };
    node.gateway.limit_bytes(limits);
    (1..=3).for_each(|session| node.gateway.opened(session));
    let set = format!("MULTI; SET a {}", "x".repeat(1300));
    let queued = "+OK\r\n+QUEUED\r\n";
    assert_eq!([node.ask(1, &set), node.ask(2, &set)], [queued; 2]);
    let said = node.ask(3, &format!("{set}; GET a; EXEC"));
    assert!(said.contains("-OOM what waits behind MULTI") && said.contains("-EXECABORT"), "{said}");
    node.gateway.closed(1, &mut node.asked);
    for ending in ["EXEC", "DISCARD", "EXEC"] {
        assert!(node.ask(3, &format!("{set}; {ending}")).starts_with(queued), "the room is there again");
    }
    // One that is broken holds nothing.
    assert!(node.ask(3, &format!("{set}; DBSIZE")).contains("-ERR"));
    node.gateway.opened(1);
    assert_eq!(node.ask(1, &set), queued);
}

#[test]
fn values_end_when_their_time_has_come() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.tell_time(1_000_000);
    let said = node.ask(1, "SET k v PX 100; PTTL k; SETEX s 7 v; TTL s; EXPIRETIME s; TTL none; SET p v; TTL p; EXPIRE p 3; PERSIST p; TTL p");
    assert_eq!(said, "+OK\r\n:100\r\n+OK\r\n:7\r\n:1007\r\n:-2\r\n+OK\r\n:-1\r\n:1\r\n:1\r\n:-1\r\n");
    node.pass(Duration::from_millis(99));
    assert_eq!(node.ask(1, "GET k; PTTL k"), "$1\r\nv\r\n:1\r\n");
    node.pass(Duration::from_millis(1));
    assert_eq!(node.ask(1, "GET k; DBSIZE; SET k w XX"), "$-1\r\n:2\r\n$-1\r\n");
    assert_eq!(node.ask(1, "SET s 1 XX KEEPTTL GET; INCR s; PTTL s"), "$1\r\nv\r\n:2\r\n:6900\r\n");
    assert_eq!(
        node.ask(1, "EXPIRE s -1; GET s; GETSET s new; GETDEL s; GET s"),
        ":1\r\n$-1\r\n$-1\r\n$3\r\nnew\r\n$-1\r\n"
    );
    let said = node.ask(1, "SET g v; GETEX g PX 50; PTTL g; GETEX g; GETEX g PERSIST; PTTL g; GETEX g PXAT 1; GETEX g EX 9; DBSIZE");
    assert_eq!(said, "+OK\r\n$1\r\nv\r\n:50\r\n$1\r\nv\r\n$1\r\nv\r\n:-1\r\n$1\r\nv\r\n$-1\r\n:1\r\n");
    let said = node.ask(1, "MULTI; SET {p}g v; GETEX {p}g EX 50; TTL {p}g; EXEC; DEL {p}g");
    assert!(said.ends_with("*3\r\n+OK\r\n$1\r\nv\r\n:50\r\n:1\r\n"), "{said}");
    assert_eq!(node.ask(1, "SET k v EX 0"), "-ERR invalid expire time in 'set' command\r\n");
}

/// Once the region had forgotten a client with a number far ahead, every new client was `EVICTED`.
#[test]
fn a_client_number_that_was_given_to_nobody_is_refused_and_one_that_another_node_gave_is_not() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    for number in ["9223372036854775807", "1", "0", "1024", "18446744073709551615"] {
        let said = node.ask(1, &format!("MAINSTAY.ID {number} 1; INCR n"));
        let expected = format!("+OK\r\n-ERR client number {number} was given to nobody");
        assert!(said.starts_with(&expected), "{said}");
    }
    let first = node.ask(1, "MAINSTAY.ID NEW");
    let number: u64 = first.trim_start_matches(':').trim_end().parse().expect("it is a number");
    let next = number + 1;
    let said = node.ask(1, &format!("MAINSTAY.ID {next} 1; INCR n; MAINSTAY.ID {number} 1; INCR n"));
    assert!(
        said.contains(&format!("-ERR client number {next} ")) && said.ends_with("+OK\r\n:1\r\n"),
        "{said}"
    );
    // Another node, or this one in its next life, knows of no number until it has asked.
    let another = Gateway::new(RegionConfig::default(), Pattern::OneHop, GatewayTimes::default(), 8);
    node.gateway = another;
    node.gateway.opened(2);
    let view = node.replica.view().expect("it is a member").clone();
    node.gateway.view(node.now, &view, &mut node.asked);
    node.serve();
    let both = format!("MAINSTAY.ID {number} 1 AGAIN; INCR n; MAINSTAY.ID 5000 1; INCR n; GET n");
    let said = node.ask(2, &both);
    assert!(said.starts_with("+OK\r\n:1\r\n+OK\r\n-ERR client number 5000 "), "{said}");
    assert!(said.ends_with("$1\r\n1\r\n"), "{said}");
}

/// A node that held numbers from before gave one after another that was `EVICTED` too.
#[test]
fn a_node_that_hears_of_a_forgotten_client_gives_no_number_of_an_old_block() {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    assert_eq!(node.ask(1, "MAINSTAY.ID NEW") + &node.ask(1, "MAINSTAY.ID NEW"), ":1\r\n:2\r\n");
    let id = OperationId { client: ClientId(1), thread: ThreadId(1), sequence: Sequence(1) };
    let body = Body::Refused { id, refusal: Refusal::Evicted };
    node.gateway.overhear(&Message { view: ViewId(1), shard: 0, body });
    assert_eq!(node.ask(1, "MAINSTAY.ID NEW"), ":1025\r\n");
}

#[test]
fn answers_that_take_too_much_memory_are_refused_and_what_was_written_takes_none() {
    let mut node = Alone::new();
    node.serve();
    let limits =
        ByteLimits { connection_answers_bytes_max: 3000, answers_bytes_max: 3500, ..ByteLimits::default() };
    node.gateway.limit_bytes(limits);
    for session in 1..=2 {
        node.gateway.opened(session);
    }
    let value = "x".repeat(1000);
    assert_eq!(node.ask(1, &format!("SET a {value}; SET b {value}; SET c {value}")), "+OK\r\n".repeat(3));
    for _ in 0..10 {
        let said = node.ask(1, "MGET a b; GET c");
        assert!(!said.contains("OOM") && said.len() > 3000, "what was written before counts still: {said}");
    }
    assert!(node.ask(1, "MGET a b c d").starts_with("*4"));
    assert!(node.ask(1, "MGET a b c a").starts_with("-OOM the answers to this connection"));
    assert!(node.ask(1, "GET a").starts_with("$1000\r\n"));
    // An answer waits for one before it, which does not come.
    node.stuck = true;
    assert_eq!(node.ask(1, "GET a") + &node.ask(2, "GET a"), "");
    node.stuck = false;
    for session in 1..=2 {
        assert_eq!(node.ask(session, "GET b; GET c"), "");
    }
    node.gateway.closed(1, &mut node.asked);
    let said = node.pass(GatewayTimes::default().retry_after * 20);
    assert!(said.contains("-OOM answers to all") && said.matches("$1000\r\n").count() == 2, "{said}");
}
