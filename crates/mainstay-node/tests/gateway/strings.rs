//! Commands on strings, counters and the ends of values: what Redis answers, word by word.

use crate::alone::Alone;
use mainstay_region::limits::Config as RegionConfig;
use mainstay_region::operation::shard_of;

fn node() -> Alone {
    let mut node = Alone::new();
    node.serve();
    node.gateway.opened(1);
    node.tell_time(1_000_000);
    node
}

/// Lines of commands, each with its whole answer.
fn expect(node: &mut Alone, asked: &[(&str, &str)]) {
    for (command, answer) in asked {
        assert_eq!(node.ask(1, command), format!("{answer}\r\n"), "{command}");
    }
}

#[test]
fn an_end_is_set_under_the_conditions_of_redis() {
    let mut node = node();
    expect(
        &mut node,
        &[
            ("SET k v", "+OK"),
            ("EXPIRE k 10 XX", ":0"),
            ("EXPIRE k 10 GT", ":0"),
            ("EXPIRE k 10 XX LT", ":0"),
            ("EXPIRE k 10 lt", ":1"),
            ("EXPIRE k 20 NX", ":0"),
            ("EXPIRE k 20 LT", ":0"),
            ("EXPIRE k 5 GT", ":0"),
            ("PEXPIRE k 20000 XX GT", ":1"),
            ("TTL k", ":20"),
            ("PEXPIREAT k 1015000 LT XX", ":1"),
            ("EXPIREAT k 1012 GT", ":0"),
            ("PTTL k", ":15000"),
            ("PERSIST k", ":1"),
            ("EXPIRE k 7 NX", ":1"),
            ("EXPIRE none 7 NX", ":0"),
            // What is past removes the value, if the condition holds.
            ("EXPIRE k -1 GT", ":0"),
            ("EXISTS k", ":1"),
            ("EXPIRE k -1 LT", ":1"),
            ("EXISTS k", ":0"),
            ("EXPIRE k 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
            ("EXPIRE k 1 GT LT", "-ERR GT and LT options at the same time are not compatible"),
            ("EXPIRE k x NX", "-ERR value is not an integer or out of range"),
        ],
    );
    let said = node.ask(1, "MULTI; SET {a}k v; EXPIRE {a}k 10 GT; EXPIRE {a}k 10 NX; TTL {a}k; EXEC");
    assert!(said.ends_with("*4\r\n+OK\r\n:0\r\n:1\r\n:10\r\n"), "{said}");
}

#[test]
fn parts_of_values_are_read_and_written_and_fractions_added() {
    let mut node = node();
    expect(
        &mut node,
        &[
            ("SET k This-is-a-string PX 5000", "+OK"),
            ("GETRANGE k 0 3", "$4\r\nThis"),
            ("GETRANGE k -3 -1", "$3\r\ning"),
            ("SUBSTR k 0 -1", "$16\r\nThis-is-a-string"),
            ("GETRANGE k 10 100", "$6\r\nstring"),
            ("GETRANGE k 100 200", "$0\r\n"),
            ("GETRANGE k 5 2", "$0\r\n"),
            ("GETRANGE k -1 -3", "$0\r\n"),
            ("GETRANGE k 0 -100", "$1\r\nT"),
            ("GETRANGE k -100 1", "$2\r\nTh"),
            ("GETRANGE k -9223372036854775808 9223372036854775807", "$16\r\nThis-is-a-string"),
            ("GETRANGE none 0 -1", "$0\r\n"),
            ("SETRANGE k 5 was", ":16"),
            ("GET k", "$16\r\nThis-wasa-string"),
            ("SETRANGE k 16 s", ":17"),
            ("PTTL k", ":5000"),
            ("SETRANGE pad 2 x", ":3"),
            ("STRLEN pad", ":3"),
            ("GETRANGE pad 0 1", "$2\r\n\0\0"),
            ("SETRANGE k -1 x", "-ERR offset is out of range"),
            (
                "SETRANGE k 1048576 x",
                "-ERR 1048577 bytes are too many for a value: the limit is 1048576 bytes; nothing was done",
            ),
            ("SET f 10.50", "+OK"),
            ("INCRBYFLOAT f 0.1", "$4\r\n10.6"),
            ("INCRBYFLOAT f -5", "$3\r\n5.6"),
            ("INCRBYFLOAT f 2.0e2", "$5\r\n205.6"),
            ("INCRBYFLOAT new 0.1", "$3\r\n0.1"),
            ("INCRBYFLOAT new 0.2", "$3\r\n0.3"),
            ("INCRBYFLOAT new -0.3", "$1\r\n0"),
            ("INCR new", ":1"),
        ],
    );
    assert!(node.ask(1, "INCRBYFLOAT k 1").starts_with("-ERR value is not a valid float"));
    assert!(node.ask(1, "INCRBYFLOAT f x").starts_with("-ERR value is not a valid float"));
    let said = node.ask(1, "MULTI; SETRANGE {a}s 0 ab; GETRANGE {a}s 1 1; INCRBYFLOAT {a}f 1.5; EXEC");
    assert!(said.ends_with("*3\r\n:2\r\n$1\r\nb\r\n$3\r\n1.5\r\n"), "{said}");
}

#[test]
fn keys_are_renamed_copied_and_set_together_within_a_shard() {
    let mut node = node();
    expect(
        &mut node,
        &[
            ("SET {t}a 1 EX 9", "+OK"),
            ("RENAME {t}a {t}b", "+OK"),
            ("TTL {t}b", ":9"),
            ("EXISTS {t}a", ":0"),
            ("RENAME {t}a {t}b", "-ERR no such key"),
            ("RENAME {t}b {t}b", "+OK"),
            ("RENAMENX {t}b {t}b", ":0"),
            ("RENAMENX {t}none {t}x", "-ERR no such key"),
            ("SET {t}c 2", "+OK"),
            ("RENAMENX {t}b {t}c", ":0"),
            ("RENAMENX {t}b {t}a", ":1"),
            ("COPY {t}a {t}c", ":0"),
            ("COPY {t}a {t}c REPLACE", ":1"),
            ("COPY {t}a {t}d DB 0", ":1"),
            ("COPY {t}none {t}e", ":0"),
            ("COPY {t}a {t}a", "-ERR source and destination objects are the same"),
            ("MGET {t}a {t}c {t}d", "*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1"),
            ("TTL {t}d", ":9"),
            ("TOUCH {t}a {t}none {t}c", ":2"),
            ("MSETNX {t}x 1 {t}a 2", ":0"),
            ("EXISTS {t}x", ":0"),
            ("MSETNX {t}x 1 {t}y 2", ":1"),
            ("MGET {t}x {t}y", "*2\r\n$1\r\n1\r\n$1\r\n2"),
            // How a lock is given back.
            ("SET lock me NX PX 1000", "+OK"),
            ("DELEX lock IFEQ you", ":0"),
            ("SET lock still IFEQ me", "+OK"),
            ("SET lock other IFEQ me", "$-1"),
            ("DELEX lock IFEQ still", ":1"),
            ("DELEX lock IFEQ still", ":0"),
            ("DELEX {t}y", ":1"),
            ("CLIENT GETNAME", "$-1"),
            ("CLIENT SETNAME me", "+OK"),
            ("CLIENT GETNAME", "$2\r\nme"),
            ("TIME", "*2\r\n$4\r\n1000\r\n$1\r\n0"),
        ],
    );
    let shard = |key: &str| shard_of(key.as_bytes(), RegionConfig::default().shards);
    let other = (0..).map(|number| number.to_string()).find(|key| shard(key) != shard("k"));
    let other = other.expect("keys are spread");
    for command in [format!("RENAME k {other}"), format!("COPY k {other}"), format!("MSETNX k 1 {other} 2")] {
        assert!(node.ask(1, &command).starts_with("-CROSSSLOT"), "{command}");
    }
    // In a transaction each sees what those before it did.
    let said = node.ask(
        1,
        "MULTI; SET {m}a 1; RENAME {m}a {m}b; COPY {m}b {m}c; INCR {m}c; EXISTS {m}a; RENAME {m}a {m}b; EXEC",
    );
    assert!(said.ends_with("*6\r\n+OK\r\n+OK\r\n:1\r\n:2\r\n:0\r\n-ERR no such key\r\n"), "{said}");
    assert!(node.ask(1, "MULTI; MSETNX {m}z 1; EXEC").contains("-EXECABORT"));
    // What comes behind on the same connection sees it, whichever key it asks for.
    assert_eq!(
        node.ask(1, "SET {p}a 1; RENAME {p}a {p}b; GET {p}b; GET {p}a"),
        "+OK\r\n+OK\r\n$1\r\n1\r\n$-1\r\n"
    );
    assert!(node.ask(1, "HELLO 3 SETNAME you; CLIENT GETNAME").ends_with("$3\r\nyou\r\n"));
}
