//! A client of the demo: one request at a time, to keys of its own, at whatever node answers.
//!
//! A client *with identity* names each operation and repeats it, at another node, until it is answered for certain. One *without* does as Redis clients do: what was on
//! its way when a connection broke is unknown to it, and never repeated.

use super::NODES;
use super::possible::Possible;
use super::reader::{Watched, Which, counter};
use crate::demo::draw::Draw;
use crate::redis::{Connection, Said};
use anyhow::bail;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counters, and as many texts, of one client.
pub(crate) const KEYS: u64 = 8;

/// How long a node may take with one answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Before another node is asked.
const PAUSE: Duration = Duration::from_millis(10);

/// A request that is not answered by any node for so long ends the demo.
const REQUEST_MAX: Duration = Duration::from_secs(120);

/// Operations at the end of a client's run that are asked for once more: no more than a region remembers of a client.
const REPEATED: usize = 32;

/// What all clients and the top of the demo share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) answered: AtomicU64,
    /// How many may be answered before the next blow: so that every blow falls while requests are made.
    pub(crate) allowed: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) give_up: AtomicBool,
    /// How often all nodes were killed at once.
    pub(crate) power_offs: AtomicU64,
    /// Clients that have made their requests.
    pub(crate) done: AtomicU64,
    /// Nothing is done to the nodes any more.
    pub(crate) over: AtomicBool,
    pub(crate) watched: Watched,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            answered: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            give_up: AtomicBool::new(false),
            power_offs: AtomicU64::new(0),
            done: AtomicU64::new(0),
            over: AtomicBool::new(false),
            watched: Watched::new(),
        }
    }
}

/// A version, by view and counter.
pub(crate) type Version = (i64, i64);

/// What a client knows of one of its counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counter {
    /// What it can hold.
    pub(crate) possible: Possible,
    /// The version of the last acknowledged change.
    pub(crate) version: Version,
}

/// What a client knows of one of its texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Text {
    /// The last that was acknowledged, or seen.
    pub(crate) known: Option<Vec<u8>>,
    /// What was sent and may take effect, once each.
    pub(crate) unknown: Vec<Vec<u8>>,
    /// The version of the one that is known.
    pub(crate) version: Version,
}

/// What a client has to tell at its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) named: bool,
    pub(crate) requests: u64,
    pub(crate) acknowledged_writes: u64,
    /// Writes without identity whose outcome it does not know.
    pub(crate) unknown: u64,
    /// Attempts after the first one of a named operation.
    pub(crate) repetitions: u64,
    /// Answers that an earlier attempt had earned.
    pub(crate) duplicates: u64,
    /// Operations acknowledged before all nodes were killed at once, and asked for again after that.
    pub(crate) asked_again_after_power_off: u64,
    pub(crate) counters: BTreeMap<Vec<u8>, Counter>,
    pub(crate) texts: BTreeMap<Vec<u8>, Text>,
    /// Longest time between two answers.
    pub(crate) pause_max: Duration,
    /// What cannot be, in words.
    pub(crate) wrong: Vec<String>,
}

/// What came of one attempt.
enum Attempt {
    Answered(Said),
    /// It did not take effect, and will not.
    NotDone,
    /// It may have taken effect.
    Unknown,
}

/// A client at work.
pub(crate) struct Client<'a> {
    nodes: [SocketAddr; NODES],
    at: usize,
    connection: Option<Connection>,
    shared: &'a Shared,
    account: Account,
    number: String,
    sequence: u64,
    /// The last named operations, to be asked for again.
    done: Vec<Done>,
    /// How often all nodes had been killed when that was done last.
    power_offs: u64,
    answered: Instant,
}

/// A named operation that was acknowledged.
#[derive(Clone)]
struct Done {
    sequence: u64,
    words: Vec<Vec<u8>>,
    reply: Said,
    version: Version,
    /// How often all nodes had been killed when it was.
    power_offs: u64,
}

/// Makes `requests` requests; `named` says whether with identities.
///
/// # Errors
/// When a request is not answered for too long.
pub(crate) fn ask_all(
    nodes: [SocketAddr; NODES],
    client: usize,
    named: bool,
    (seed, requests): (u64, u64),
    shared: &Shared,
) -> anyhow::Result<Account> {
    let mut asking = Client {
        nodes,
        at: client % NODES,
        connection: None,
        shared,
        account: Account { named, ..Account::default() },
        number: String::new(),
        sequence: 0,
        done: Vec::new(),
        power_offs: 0,
        answered: Instant::now(),
    };
    if named {
        match asking.until_answered(&[b"MAINSTAY.ID", b"NEW"])? {
            Said::Integer(number) => asking.number = number.to_string(),
            other => bail!("no client number: {other}"),
        }
    }
    let mut draw = Draw::new(seed, client as u64);
    for number in 0..requests {
        asking.wait_until_allowed()?;
        asking.request(&mut draw, client, number)?;
        asking.account.requests += 1;
        asking.account.pause_max = asking.account.pause_max.max(asking.answered.elapsed());
        asking.answered = Instant::now();
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
    shared.done.fetch_add(1, Ordering::Relaxed);
    // It stays the client that it is, whatever happens to the nodes still.
    while named && !shared.over.load(Ordering::Relaxed) && !shared.give_up.load(Ordering::Relaxed) {
        asking.repeat_after_power_off()?;
        std::thread::sleep(PAUSE);
    }
    asking.repeat_after_power_off()?;
    asking.repeat()?;
    Ok(asking.account)
}

impl Client<'_> {
    fn wait_until_allowed(&mut self) -> anyhow::Result<()> {
        while self.shared.answered.load(Ordering::Relaxed) >= self.shared.allowed.load(Ordering::Relaxed) {
            if self.shared.give_up.load(Ordering::Relaxed) {
                bail!("the demo has ended");
            }
            std::thread::sleep(Duration::from_millis(1));
            self.answered = Instant::now();
        }
        Ok(())
    }

    fn request(&mut self, draw: &mut Draw, client: usize, number: u64) -> anyhow::Result<()> {
        self.repeat_after_power_off()?;
        let key = draw.below(KEYS);
        let text = format!("text-{client}-{key}");
        match draw.below(10) {
            0..5 => self.count((client, key), 1 + i64::try_from(draw.below(9))?),
            5..8 => self.set(text.into_bytes(), format!("{client}-{number}").into_bytes()),
            8 => self.read_counter(counter((client, key)).into_bytes()),
            _ => self.read_text(text.into_bytes()),
        }
    }

    /// Asks again for what was acknowledged before all nodes were killed at once, if they were.
    fn repeat_after_power_off(&mut self) -> anyhow::Result<()> {
        let power_offs = self.shared.power_offs.load(Ordering::SeqCst);
        if power_offs > self.power_offs {
            self.power_offs = power_offs;
            self.account.asked_again_after_power_off +=
                self.done.iter().filter(|done| done.power_offs < power_offs).count() as u64;
            self.repeat()?;
        }
        Ok(())
    }

    fn count(&mut self, which: Which, by: i64) -> anyhow::Result<()> {
        let key = counter(which).into_bytes();
        let words = vec![b"INCRBY".to_vec(), key.clone(), by.to_string().into_bytes()];
        self.shared.watched.asks(which, by);
        let answered = self.write(&words)?;
        let counter = self.account.counters.entry(key.clone()).or_default();
        let Some((reply, version)) = answered else {
            counter.possible.unknown(by);
            return Ok(());
        };
        counter.possible.acknowledge(by);
        let before = counter.possible.clone();
        let right = matches!(reply, Said::Integer(sum) if counter.possible.see(sum));
        let newer = version > counter.version;
        counter.version = version;
        if let (true, Said::Integer(sum)) = (right, &reply) {
            self.shared.watched.acknowledged(which, *sum);
        }
        let what = format!("INCRBY answered {reply:?} at {version:?}, known was {before:?}");
        self.expect(right && newer, &key, &what);
        Ok(())
    }

    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> anyhow::Result<()> {
        let answered = self.write(&[b"SET".to_vec(), key.clone(), value.clone()])?;
        let text = self.account.texts.entry(key.clone()).or_default();
        let Some((reply, version)) = answered else {
            text.unknown.push(value);
            return Ok(());
        };
        let newer = version > text.version;
        // What is unknown may still take effect, also after this.
        *text = Text { known: Some(value), version, unknown: std::mem::take(&mut text.unknown) };
        let right = reply == Said::Status("OK".to_owned()) && newer;
        self.expect(right, &key, &format!("SET answered {reply:?} at {version:?}"));
        Ok(())
    }

    fn read_counter(&mut self, key: Vec<u8>) -> anyhow::Result<()> {
        let value = value_of(self.until_answered(&[b"GET", &key])?);
        let counter = self.account.counters.entry(key.clone()).or_default();
        let before = counter.clone();
        let right = counter.see(value.as_deref());
        self.expect(right, &key, &format!("GET answered {value:?}, known was {before:?}"));
        Ok(())
    }

    fn read_text(&mut self, key: Vec<u8>) -> anyhow::Result<()> {
        let said = self.until_answered(&[b"GET", &key])?;
        let (version, value) = (version_of(&said), value_of(said));
        let text = self.account.texts.entry(key.clone()).or_default();
        let before = text.clone();
        let right = version.is_some_and(|version| text.see(value.as_deref(), version));
        self.expect(right, &key, &format!("GET answered {value:?} at {version:?}, known was {before:?}"));
        Ok(())
    }

    fn expect(&mut self, right: bool, key: &[u8], what: &str) {
        if !right {
            self.account.wrong.push(format!("{}: {what}", String::from_utf8_lossy(key)));
        }
    }

    /// Makes a write; the reply with its version, or nothing if the outcome is unknown.
    fn write(&mut self, words: &[Vec<u8>]) -> anyhow::Result<Option<(Said, Version)>> {
        self.sequence += 1;
        let said = if self.account.named {
            Some(self.until_named(self.sequence, words, false)?)
        } else {
            self.once(words)?
        };
        let Some(said) = said else {
            self.account.unknown += 1;
            return Ok(None);
        };
        let (reply, version, duplicate) = versioned(said)?;
        self.account.acknowledged_writes += 1;
        self.account.duplicates += u64::from(duplicate);
        if self.account.named {
            let power_offs = self.shared.power_offs.load(Ordering::SeqCst);
            let done = Done {
                sequence: self.sequence,
                words: words.to_vec(),
                reply: reply.clone(),
                version,
                power_offs,
            };
            self.done.push(done);
            if self.done.len() > REPEATED {
                self.done.remove(0);
            }
        }
        Ok(Some((reply, version)))
    }

    /// Asks for the last operations once more: the first answers must come again.
    fn repeat(&mut self) -> anyhow::Result<()> {
        for done in self.done.clone() {
            let (reply, version, duplicate) =
                versioned(self.until_named(done.sequence, &done.words, true)?)?;
            self.account.duplicates += u64::from(duplicate);
            let right = duplicate && version == done.version && reply == done.reply;
            let what = format!(
                "repeated, it is {reply:?} at {version:?}, and it was {:?} at {:?}",
                done.reply, done.version
            );
            self.expect(right, &done.words[1], &what);
        }
        Ok(())
    }

    /// Asks for a named operation until it is answered, at one node after the other.
    fn until_named(&mut self, sequence: u64, words: &[Vec<u8>], mut again: bool) -> anyhow::Result<Said> {
        let (number, sequence) = (self.number.clone(), sequence.to_string());
        let began = Instant::now();
        loop {
            let mut identity: Vec<&[u8]> = vec![b"MAINSTAY.ID", number.as_bytes(), sequence.as_bytes()];
            if again {
                identity.push(b"AGAIN");
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            if let Attempt::Answered(said) = self.attempt(&[&identity, &words]) {
                return Ok(said);
            }
            again = true;
            self.account.repetitions += 1;
            self.move_on(began)?;
        }
    }

    /// Asks for something that may be asked for any number of times.
    fn until_answered(&mut self, words: &[&[u8]]) -> anyhow::Result<Said> {
        let began = Instant::now();
        loop {
            if let Attempt::Answered(said) = self.attempt(&[words]) {
                return Ok(said);
            }
            self.move_on(began)?;
        }
    }

    /// Asks for a write once it reaches a node that takes it; nothing if its outcome is unknown.
    fn once(&mut self, words: &[Vec<u8>]) -> anyhow::Result<Option<Said>> {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let began = Instant::now();
        loop {
            match self.attempt(&[&words]) {
                Attempt::Answered(said) => return Ok(Some(said)),
                Attempt::Unknown => {
                    self.move_on(began)?;
                    return Ok(None);
                }
                Attempt::NotDone => self.move_on(began)?,
            }
        }
    }

    fn move_on(&mut self, began: Instant) -> anyhow::Result<()> {
        self.connection = None;
        self.at = (self.at + 1) % NODES;
        if self.shared.give_up.load(Ordering::Relaxed) {
            bail!("the demo has ended");
        }
        if began.elapsed() > REQUEST_MAX {
            bail!("a request was not answered by any node for {REQUEST_MAX:?}");
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    fn attempt(&mut self, commands: &[&[&[u8]]]) -> Attempt {
        if self.connection.is_none() {
            self.connection = self.connect();
        }
        let Some(connection) = &mut self.connection else { return Attempt::NotDone };
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let sent = connection.send(commands);
        let said = sent.and_then(|()| {
            let mut last = connection.read()?;
            for _ in 1..commands.len() {
                last = connection.read()?;
            }
            Ok(last)
        });
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        match said {
            Ok(Said::Error(error)) if error.starts_with("CLUSTERDOWN") || error.starts_with("TRYAGAIN") => {
                Attempt::NotDone
            }
            Ok(Said::Error(error)) if error.starts_with("UNKNOWN") => Attempt::Unknown,
            Ok(said) => Attempt::Answered(said),
            Err(_) => Attempt::Unknown,
        }
    }

    fn connect(&self) -> Option<Connection> {
        let mut connection = Connection::open(self.nodes[self.at], ANSWER_MAX).ok()?;
        connection.ask(&[b"MAINSTAY.VERSIONS", b"ON"]).ok()?;
        Some(connection)
    }
}

impl Counter {
    /// The counter was seen to hold a value: whether it can.
    pub(crate) fn see(&mut self, value: Option<&[u8]>) -> bool {
        let value = match value {
            None => Some(0),
            Some(value) => str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
        };
        value.is_some_and(|value| self.possible.see(value))
    }
}

impl Text {
    /// The text was seen to be a value of a version: whether it can. One whose outcome was not known is known by that.
    pub(crate) fn see(&mut self, value: Option<&[u8]>, version: Version) -> bool {
        if value == self.known.as_deref() {
            // A text that was never set has no version of its own.
            return value.is_none() || version == self.version;
        }
        let place = value.and_then(|value| self.unknown.iter().position(|one| one == value));
        let Some(place) = place.filter(|_| version > self.version) else { return false };
        *self = Self {
            known: Some(self.unknown.remove(place)),
            version,
            unknown: std::mem::take(&mut self.unknown),
        };
        true
    }
}

/// A reply with versions, taken apart: what it is, its version, whether an earlier attempt had earned it.
fn versioned(said: Said) -> anyhow::Result<(Said, Version, bool)> {
    if let Said::Array(items) = &said
        && let [reply, Said::Integer(view), Said::Integer(counter), Said::Integer(duplicate)] =
            items.as_slice()
    {
        return Ok((reply.clone(), (*view, *counter), *duplicate == 1));
    }
    bail!("a write is answered so: {said}")
}

/// The version in a reply to `GET` that has one.
pub(crate) fn version_of(said: &Said) -> Option<Version> {
    match said {
        Said::Array(items) => match items.as_slice() {
            [_, Said::Integer(view), Said::Integer(counter)] => Some((*view, *counter)),
            _ => None,
        },
        _ => None,
    }
}

/// The value in a reply to `GET`, with a version or without.
pub(crate) fn value_of(said: Said) -> Option<Vec<u8>> {
    match said {
        Said::Array(mut items) if !items.is_empty() => value_of(items.swap_remove(0)),
        Said::Bulk(value) => Some(value),
        Said::Null => None,
        other => Some(format!("{other:?}").into_bytes()),
    }
}
