//! A receiver's own log, put together from what it left out and the senders' logs have.

mod survey;

use self::survey::Survey;
use crate::field::Field;
use crate::format::Kind;
use crate::matching::{self, Received, Rule, Unpaired};
use crate::reader::damage::Damage;
use crate::reader::{ReadError, Reader, Record};
use crate::varint::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Where logs are read from.
pub trait Logs {
    /// Opens the log of a rank from its beginning; `None` if it has none.
    ///
    /// # Errors
    /// [`ReadError`] when it is there and cannot be read.
    fn open(&self, rank: i64) -> Result<Option<Reader>, ReadError>;
}

/// Nothing more was put together. What was handed over before is right.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError<E> {
    /// A log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log of the rank is damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A receive and the sends do not fit.
    #[error("{unpaired}{hint}")]
    Unpaired {
        /// Which.
        unpaired: Unpaired,
        /// What may be the cause.
        hint: String,
    },
    /// What takes the records failed.
    #[error(transparent)]
    Sink(E),
}

/// What was put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    /// Calls in the log.
    pub calls: u64,
    /// Messages whose bytes came from other logs.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why the log ends early, if the bytes of a message are nowhere.
    pub cut: Option<String>,
    /// What is wrong with the log of the sender whose message is nowhere.
    pub cut_by: Option<Damage>,
}

/// Hands the log of `rank` over, record by record, as the policy *receiver* would have written it.
///
/// Three passes: over the rank's own log for what it received, over the senders' for what they sent, and over all of them side
/// by side. A sender's messages are kept in memory from where its log has them to where the receiver's log does.
///
/// # Errors
/// [`AssemblyError`]; `sink` has the records before the failure.
pub fn assemble<E>(
    logs: &dyn Logs,
    rank: i64,
    rule: Rule,
    sink: &mut dyn FnMut(Record) -> Result<(), E>,
) -> Result<Assembled, AssemblyError<E>> {
    let own = match logs.open(rank)? {
        Some(reader) => Survey::received(reader),
        None => return Ok(Assembled::default()),
    };
    if let Some(damage) = own.damage {
        return Err(damage.into());
    }
    let mut sources: Vec<i64> = own.received.iter().map(|receive| receive.class.source).collect();
    sources.sort_unstable();
    sources.dedup();
    let mut sends = matching::Sends::new();
    let mut hints: HashMap<i64, String> = HashMap::new();
    let mut damages: HashMap<i64, Damage> = HashMap::new();
    for &source in &sources {
        let Some(reader) = logs.open(source)? else {
            hints.insert(source, format!("there is no log of rank {source}"));
            continue;
        };
        let survey = Survey::sent(reader, source, rank, rule);
        hints.insert(source, survey.hint(source));
        damages.extend(survey.damage.map(|damage| (source, damage)));
        for (class, sent) in survey.sent {
            sends.entry(class).or_default().extend(sent);
        }
    }
    let pairs = matching::pair(&own.received, &own.open, &sends, rule).map_err(|unpaired| {
        let of_both = hints.get(&unpaired.source_rank).cloned().into_iter().chain(own.unrecorded(rank));
        let hint = of_both.map(|hint| format!(" ({hint})")).collect();
        AssemblyError::Unpaired { unpaired, hint }
    })?;

    let by_post: HashMap<u64, &Received> =
        own.received.iter().map(|receive| (receive.post, receive)).collect();
    let mut wanted: BTreeMap<i64, HashSet<u64>> = BTreeMap::new();
    for (post, number) in &pairs {
        wanted.entry(by_post[post].class.source).or_default().insert(*number);
    }
    let mut stores = HashMap::new();
    for (source, wanted) in wanted {
        if let Some(reader) = logs.open(source)? {
            stores.insert(source, Store { reader, wanted, kept: HashMap::new(), sends: 0 });
        }
    }
    let Some(mut reader) = logs.open(rank)? else {
        return Ok(Assembled::default());
    };
    let mut assembled = Assembled::default();
    while let Some(mut record) = reader.next_record() {
        if record.kind == Kind::Call {
            let mut missing = None;
            let body = rewrite(&record.body, |post| {
                let source = by_post.get(&post).map(|receive| (receive.class.source, receive.class.tag));
                let number = pairs.get(&post);
                let data = source
                    .zip(number)
                    .and_then(|((source, _), number)| stores.get_mut(&source)?.take(*number));
                missing = missing.or(source.filter(|_| data.is_none()));
                data.inspect(|data| {
                    assembled.messages += 1;
                    assembled.bytes += data.len() as u64;
                })
            });
            let Some(body) = body else {
                let call = assembled.calls + 1;
                assembled.cut_by = missing.and_then(|(source, _)| damages.remove(&source));
                assembled.cut = Some(match missing {
                    Some((source, tag)) => format!(
                        "call {call} received a message of rank {source} with tag {tag} that no log has: {}",
                        hints.get(&source).map_or("", String::as_str)
                    ),
                    None => {
                        let why = own.unrecorded(rank).map(|why| format!(": {why}")).unwrap_or_default();
                        format!(
                            "call {call} received a message on a communicator that the log does not describe{why}"
                        )
                    }
                });
                return Ok(assembled);
            };
            record.body = body;
        }
        assembled.calls += record.calls();
        sink(record).map_err(AssemblyError::Sink)?;
    }
    Ok(assembled)
}

/// The fields of a call as the policy *receiver* has them. `None` where `data` has nothing for a post.
fn rewrite(body: &[u8], mut data: impl FnMut(u64) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len());
    for field in crate::field::fields(body) {
        match field {
            Field::Promised(post, _, length, crc) => {
                let data = data(post)?;
                // The pairing compared what the sender's log says of them; these are the bytes.
                if (data.len() as u64, crc32c::crc32c(&data)) != (length, crc) {
                    return None;
                }
                Field::Received(&data).encode(&mut out);
            }
            Field::To(_) | Field::Sent(_) | Field::Posted(..) | Field::Retracted(_) | Field::Withdrawn(_) => {
            }
            other => other.encode(&mut out),
        }
    }
    Some(out)
}

/// Messages of one sender, read as far as they were asked for.
struct Store {
    reader: Reader,
    wanted: HashSet<u64>,
    kept: HashMap<u64, Vec<u8>>,
    sends: u64,
}

impl Store {
    fn take(&mut self, number: u64) -> Option<Vec<u8>> {
        while self.sends <= number {
            let record = self.reader.next_record()?;
            if record.kind != Kind::Call {
                continue;
            }
            let mut bytes = Bytes::new(&record.body);
            while let Some(field) = Field::decode(&mut bytes) {
                if let Field::Sent(data) = field {
                    if self.wanted.contains(&self.sends) {
                        self.kept.insert(self.sends, data.to_vec());
                    }
                    self.sends += 1;
                }
            }
        }
        self.kept.remove(&number)
    }
}
