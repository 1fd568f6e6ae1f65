//! `SCAN`, `KEYS` and `DBSIZE`: reads of one shard after the other, each at its stamper, keys in their order.
//!
//! A key that is there from the first answer of a scan to its last is in one of them, and none is in two; one that comes or goes meanwhile may or may
//! not be. A cursor is a number, and a place in a shard is a key: the node that gave the number knows what it stands for.

use super::{Gateway, GatewayEffect};
use crate::command::OWN_KEYS;
use crate::glob::Glob;
use crate::resp::Reply;
use crate::session::{Part, Task};
use bytes::Bytes;
use mainstay_region::message::{Found, Query};
use mainstay_types::time::Time;
use std::collections::BTreeMap;

/// Cursors that a node remembers, the latest; of any connection.
const CURSORS_MAX: usize = 4096;

/// Keys that `KEYS` looks at before it gives up.
const KEYS_MAX: usize = 10_000;

/// The cursors of a node.
#[derive(Debug)]
pub(crate) struct Cursors {
    places: BTreeMap<u64, (u16, Option<Vec<u8>>)>,
    next: u64,
}

impl Cursors {
    /// Of one life of a node: `drawn` is random, so that no cursor of another node or life is taken for one of this.
    pub(crate) fn new(drawn: u64) -> Self {
        Self { places: BTreeMap::new(), next: drawn >> 34 << 32 | 1 }
    }

    /// Where to go on at 0 or a cursor that was given.
    fn place(&self, cursor: u64) -> Option<(u16, Option<Vec<u8>>)> {
        if cursor == 0 { Some((0, None)) } else { self.places.get(&cursor).cloned() }
    }

    fn give(&mut self, shard: u16, after: Option<Vec<u8>>) -> u64 {
        let cursor = self.next;
        self.next += 1;
        self.places.insert(cursor, (shard, after));
        while self.places.len() > CURSORS_MAX {
            self.places.pop_first();
        }
        cursor
    }
}

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// So many keys more are looked at.
    Scan(usize),
    /// All keys that match.
    Keys,
    /// How many there are.
    Size,
}

/// A scan under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scan {
    what: What,
    pattern: Glob,
    shard: u16,
    after: Option<Vec<u8>>,
    looked_at: usize,
    found: Vec<Bytes>,
    size: u64,
}

impl Scan {
    fn new(what: What, pattern: &[u8], (shard, after): (u16, Option<Vec<u8>>)) -> Self {
        let pattern = Glob::new(pattern);
        Self { what, pattern, shard, after, looked_at: 0, found: Vec::new(), size: 0 }
    }

    /// All keys that match.
    pub(crate) fn keys(pattern: &[u8]) -> Self {
        Self::new(What::Keys, pattern, (0, None))
    }

    /// How many keys there are.
    pub(crate) fn size() -> Self {
        Self::new(What::Size, b"*", (0, None))
    }

    /// The read that comes next.
    pub(crate) fn next(&self) -> (u16, Query) {
        let (prefix, entries_max) = match self.what {
            What::Scan(left) => (self.pattern.prefix(), left),
            What::Keys => (self.pattern.prefix(), KEYS_MAX),
            // All are counted in any answer; the nodes' own are not the client's.
            What::Size => (OWN_KEYS.to_vec(), KEYS_MAX),
        };
        let entries_max = u32::try_from(entries_max).expect("it is limited");
        (self.shard, Query::Keys { prefix, after: self.after.clone(), entries_max })
    }

    /// Takes an answer; returns the reply if it was the last one.
    fn take(&mut self, answer: Found, shards: u16, cursors: &mut Cursors) -> Option<Reply> {
        let looked_at = answer.entries.len();
        self.looked_at += looked_at;
        if self.after.is_none() {
            self.size += answer.keys;
        }
        self.after = answer.more.then(|| answer.entries.last().map(|(key, _)| key.to_vec())).flatten();
        let matching = answer.entries.into_iter().map(|(key, _)| key);
        let matching = matching.filter(|key| !key.starts_with(OWN_KEYS) && self.pattern.matches(key));
        self.found.extend(matching.map(Bytes::from_owner));
        if self.after.is_none() {
            self.shard += 1;
        }
        let ends = self.shard == shards;
        match &mut self.what {
            What::Scan(left) => {
                *left = left.saturating_sub(looked_at);
                if *left > 0 && !ends {
                    return None;
                }
                let cursor = if ends { 0 } else { cursors.give(self.shard, self.after.take()) };
                Some(Reply::Array(vec![Reply::text(cursor.to_string()), self.told()]))
            }
            What::Keys if self.looked_at > KEYS_MAX => Some(Reply::Error(format!(
                "ERR more than {KEYS_MAX} keys are too many to look at as one: use SCAN"
            ))),
            What::Keys => ends.then(|| self.told()),
            What::Size => {
                self.size -= looked_at as u64;
                ends.then(|| Reply::Integer(i64::try_from(self.size).expect("keys are in memory")))
            }
        }
    }

    fn told(&mut self) -> Reply {
        Reply::Array(std::mem::take(&mut self.found).into_iter().map(Reply::Bulk).collect())
    }
}

impl Gateway {
    /// The scan that `SCAN` asks for, or what is wrong with its cursor.
    pub(super) fn scan(&self, cursor: u64, pattern: Option<&Bytes>, count: u32) -> Result<Scan, Reply> {
        let place = self.cursors.place(cursor).ok_or_else(|| {
            let error = "ERR invalid cursor: it is of another node, or too old; begin again with 0";
            Reply::Error(error.to_owned())
        })?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(Scan::new(What::Scan(count), pattern.map_or(&b"*"[..], |pattern| pattern), place))
    }

    /// An answer to a scan's read.
    pub(super) fn scanned(&mut self, now: Time, mut part: Part, answer: Found, out: &mut Vec<GatewayEffect>) {
        let Task::Scan(scan) = &mut part.task else { return };
        if let Some(reply) = scan.take(answer, self.config.shards, &mut self.cursors) {
            let reply = self.within_limits(part.session, reply);
            self.finish(now, part, reply, out);
        } else if now.since(part.since) >= self.times.deadline {
            let refusal = self.refusal("no answer to a scan in time");
            self.finish(now, part, refusal, out);
        } else {
            self.begin(now, part, out);
        }
    }
}
