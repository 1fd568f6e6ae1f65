//! The names of what a region does, and which of them is meant by one that it does not know.

use strsim::osa_distance;

/// Every command of the Redis protocol that a node takes, as `COMMAND LIST` tells them.
pub const NAMES: &[&str] = &[
    "APPEND",
    "CLIENT",
    "COMMAND",
    "COPY",
    "DBSIZE",
    "DECR",
    "DECRBY",
    "DEL",
    "DELEX",
    "DISCARD",
    "ECHO",
    "EXEC",
    "EXISTS",
    "EXPIRE",
    "EXPIREAT",
    "EXPIRETIME",
    "GET",
    "GETDEL",
    "GETEX",
    "GETRANGE",
    "GETSET",
    "HELLO",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "INFO",
    "KEYS",
    "MAINSTAY.CAS",
    "MAINSTAY.EXPLAIN",
    "MAINSTAY.ID",
    "MAINSTAY.LEAVE",
    "MAINSTAY.PATTERN",
    "MAINSTAY.STATUS",
    "MAINSTAY.SUBSCRIBE",
    "MAINSTAY.VERSIONS",
    "MGET",
    "MSET",
    "MSETNX",
    "MULTI",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PING",
    "PSETEX",
    "PSUBSCRIBE",
    "PTTL",
    "PUNSUBSCRIBE",
    "QUIT",
    "RENAME",
    "RENAMENX",
    "SCAN",
    "SELECT",
    "SET",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "STRLEN",
    "SUBSCRIBE",
    "SUBSTR",
    "TIME",
    "TOUCH",
    "TTL",
    "TYPE",
    "UNLINK",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WATCH",
];

/// Longest name that is compared with ours, in bytes: nobody means one by more.
const NAME_BYTES_MAX: usize = 32;

/// Letters put in, left out, replaced or exchanged with the next by which a name may be off.
const EDITS_MAX: usize = 2;

/// What to say of a name that is none of them.
pub(super) fn hint(name: &str) -> String {
    match nearest(name) {
        Some(nearest) => format!("is it {nearest}? COMMAND LIST says what a region does"),
        None => "COMMAND LIST says what a region does".to_owned(),
    }
}

/// The name that differs least, if one differs by little.
fn nearest(name: &str) -> Option<&'static str> {
    let close = |candidate: &&str| {
        let edits = osa_distance(name, candidate);
        (edits <= EDITS_MAX && edits * 2 < candidate.len() + 1).then_some(edits)
    };
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    NAMES
        .iter()
        .filter_map(|candidate| Some((close(candidate)?, *candidate)))
        .min()
        .map(|(_, nearest)| nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_one_that_is_a_little_off_and_not_by_another() {
        for (given, meant) in [("GTE", "GET"), ("INCRR", "INCR"), ("SUSCRIBE", "SUBSCRIBE"), ("GETS", "GET")]
        {
            assert_eq!(nearest(given), Some(meant), "{given}");
        }
        for other in ["LPUSH", "FLUSHALL", "X", "ZADD", &"GET".repeat(100)] {
            assert_eq!(nearest(other), None, "{other}");
        }
        assert!(NAMES.is_sorted());
    }
}
