//! A client of the demo: one request at a time, to keys of its own, at whatever node answers.
//!
//! A client *with identity* names each operation and repeats it, at another node, until it is answered for certain. One *without* does as Redis clients do: what was on
//! its way when a connection broke is unknown to it, and never repeated.

use super::NODES;
use crate::demo::draw::Draw;
use crate::redis::{Connection, Said};
use anyhow::bail;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counters, and as many texts, of one client.
const KEYS: u64 = 8;

/// How long a node may take with one answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Before another node is asked.
const PAUSE: Duration = Duration::from_millis(10);

/// A request that is not answered by any node for so long ends the demo.
const REQUEST_MAX: Duration = Duration::from_secs(120);

/// Operations at the end of a client's run that are asked for once more: no more than a region remembers of a client.
const REPEATED: usize = 32;

/// What all clients and the top of the demo share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) answered: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) give_up: AtomicBool,
}

/// A version, by view and counter.
pub(crate) type Version = (i64, i64);

/// What a client knows of one of its counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counter {
    /// The sum of what was acknowledged.
    pub(crate) acknowledged: i64,
    /// The sum of what may have taken effect.
    pub(crate) unknown: i64,
    /// The version of the last acknowledged change.
    pub(crate) version: Version,
}

/// What a client knows of one of its texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Text {
    /// The last that was acknowledged.
    pub(crate) acknowledged: Option<Vec<u8>>,
    /// What was sent after it, and may have taken effect.
    pub(crate) unknown: Vec<Vec<u8>>,
    /// The version of the last acknowledged change.
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
    /// The last named operations with their versions, to be asked for again.
    done: Vec<(u64, Vec<Vec<u8>>, Version)>,
    answered: Instant,
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
        asking.request(&mut draw, client, number)?;
        asking.account.requests += 1;
        asking.account.pause_max = asking.account.pause_max.max(asking.answered.elapsed());
        asking.answered = Instant::now();
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
    asking.repeat()?;
    Ok(asking.account)
}

impl Client<'_> {
    fn request(&mut self, draw: &mut Draw, client: usize, number: u64) -> anyhow::Result<()> {
        let key = draw.below(KEYS);
        let (counter, text) = (format!("counter-{client}-{key}"), format!("text-{client}-{key}"));
        match draw.below(10) {
            0..5 => self.count(counter.into_bytes(), 1 + i64::try_from(draw.below(9))?),
            5..8 => self.set(text.into_bytes(), format!("{client}-{number}").into_bytes()),
            8 => self.read_counter(counter.into_bytes()),
            _ => self.read_text(text.into_bytes()),
        }
    }

    fn count(&mut self, key: Vec<u8>, by: i64) -> anyhow::Result<()> {
        let words = vec![b"INCRBY".to_vec(), key.clone(), by.to_string().into_bytes()];
        let answered = self.write(&words)?;
        let counter = self.account.counters.entry(key.clone()).or_default();
        let Some((reply, version)) = answered else {
            counter.unknown += by;
            return Ok(());
        };
        counter.acknowledged += by;
        let possible = counter.acknowledged..=counter.acknowledged + counter.unknown;
        let right = matches!(reply, Said::Integer(sum) if possible.contains(&sum));
        let newer = version > counter.version;
        counter.version = version;
        self.expect(
            right && newer,
            &key,
            &format!("INCRBY answered {reply:?} at {version:?}, possible are {possible:?}"),
        );
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
        *text = Text { acknowledged: Some(value), version, unknown: std::mem::take(&mut text.unknown) };
        let right = reply == Said::Status("OK".to_owned()) && newer;
        self.expect(right, &key, &format!("SET answered {reply:?} at {version:?}"));
        Ok(())
    }

    fn read_counter(&mut self, key: Vec<u8>) -> anyhow::Result<()> {
        let value = value_of(self.until_answered(&[b"GET", &key])?);
        let counter = self.account.counters.get(&key).cloned().unwrap_or_default();
        let right = counter.holds(value.as_deref());
        self.expect(right, &key, &format!("GET answered {value:?}, known is {counter:?}"));
        Ok(())
    }

    fn read_text(&mut self, key: Vec<u8>) -> anyhow::Result<()> {
        let value = value_of(self.until_answered(&[b"GET", &key])?);
        let text = self.account.texts.get(&key).cloned().unwrap_or_default();
        let right = text.holds(value.as_deref());
        self.expect(right, &key, &format!("GET answered {value:?}, known is {text:?}"));
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
            self.done.push((self.sequence, words.to_vec(), version));
            if self.done.len() > REPEATED {
                self.done.remove(0);
            }
        }
        Ok(Some((reply, version)))
    }

    /// Asks for the last operations once more: the first answers must come again.
    fn repeat(&mut self) -> anyhow::Result<()> {
        for (sequence, words, first) in std::mem::take(&mut self.done) {
            let (_, version, duplicate) = versioned(self.until_named(sequence, &words, true)?)?;
            self.account.duplicates += u64::from(duplicate);
            let right = duplicate && version == first;
            self.expect(
                right,
                &words[1],
                &format!("repeated, it stands at {version:?} and not at {first:?}"),
            );
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
    /// Whether a value can be what is there.
    #[must_use]
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        let value = match value {
            None => Some(0),
            Some(value) => str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
        };
        value.is_some_and(|value| (self.acknowledged..=self.acknowledged + self.unknown).contains(&value))
    }
}

impl Text {
    /// Whether a value can be what is there.
    #[must_use]
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        value == self.acknowledged.as_deref()
            || value.is_some_and(|value| self.unknown.iter().any(|one| one == value))
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

/// The value in a reply to `GET` with its version.
pub(crate) fn value_of(said: Said) -> Option<Vec<u8>> {
    match said {
        Said::Array(mut items) if !items.is_empty() => value_of(items.swap_remove(0)),
        Said::Bulk(value) => Some(value),
        Said::Null => None,
        other => Some(format!("{other:?}").into_bytes()),
    }
}
