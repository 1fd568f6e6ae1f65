//! The table of commands: which of Redis's a region does, and those of our own.

use bytes::Bytes;
use mainstay_region::blob::Blob;
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_types::id::{ClientId, Sequence};
use mainstay_types::operation::Version;
use std::net::SocketAddr;

mod names;
mod scan;
mod set;
mod strings;
mod words;

pub use self::names::NAMES;
use self::words::{
    CHANNEL_BYTES_MAX, NAME_BYTES_MAX, address, channel, channels, connection_name, integer, number,
    positions,
};

/// Keys that begin so are the nodes' own.
pub const OWN_KEYS: &[u8] = b"\0mainstay/";

/// The name, of the same length or more, that a client gives to an operation, so that a repetition is not done twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Given by `MAINSTAY.ID NEW`.
    pub client: ClientId,
    /// The client's count of its operations.
    pub sequence: Sequence,
    /// The client has sent it before.
    pub again: bool,
}

/// How the outcome of a write is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteReply {
    /// `OK`, or nothing if the value was not as expected; the value before, where that is asked for.
    Written,
    /// 1 if something was changed, else 0.
    Changed,
    /// The new value of a counter, or the new length of a value.
    Number,
    /// The new value of a number with a fraction.
    Fraction,
    /// `OK`, or that there is no such key.
    Renamed,
    /// 1 if the other key was not there and is now, 0 if it was, or that there is no such key.
    RenamedToNew,
    /// 1 if all were done, 0 if none, since a key was there.
    AllNew,
    /// `OK` for several writes as one.
    All,
    /// The first of several as one.
    First,
    /// What each command of a transaction is told.
    Transaction(Vec<CommandReply>),
}

/// How what was read of a key is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadReply {
    /// The value.
    Value,
    /// 1 if the key is there, else 0.
    IsThere,
    /// The length of the value, in bytes.
    Length,
    /// A part of the value: its first and its last byte, below 0 counted from the end.
    Part(i64, i64),
    /// `string` or `none`.
    Type,
    /// How long the value lasts, -1 for ever, -2 if the key is not there.
    Lasts {
        /// In milliseconds, not seconds.
        milliseconds: bool,
        /// Since 1970, not from now.
        absolute: bool,
    },
    /// `OK`; the connection notes the version.
    Watch,
}

/// What the answers to the parts of a command make together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Together {
    /// The last one; an error of any before it.
    One,
    /// The first one; an error of any.
    First,
    /// All.
    Array,
    /// Their sum.
    Sum,
}

/// How one command of a transaction is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandReply {
    /// Of each of its parts.
    pub parts: Vec<PartReply>,
    /// What they make together.
    pub together: Together,
}

/// How a part of such a command is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartReply {
    /// It reads.
    Read(ReadReply),
    /// It writes.
    Write(WriteReply),
}

/// What a client asks of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Answer this.
    Ping(Option<Bytes>),
    /// The same.
    Echo(Bytes),
    /// Another version of the protocol, or none named; and the connection's name.
    Hello(Option<Bytes>, Option<Bytes>),
    /// The connection's name.
    SetName(Bytes),
    /// What it is.
    GetName,
    /// The time of day.
    Time,
    /// What every client library says about itself, and needs no more than an `OK`.
    Noted,
    /// The connection's number.
    ConnectionNumber,
    /// The commands in Redis's table: none are told.
    Commands,
    /// Their names.
    CommandNames,
    /// How many there are.
    CommandCount,
    /// For people.
    Info,
    /// End the connection.
    Quit,
    /// Reads of keys, each by itself.
    Read {
        /// The keys.
        keys: Vec<Bytes>,
        /// What is told of each.
        reply: ReadReply,
        /// And of all.
        together: Together,
    },
    /// One change.
    Write(Operation, WriteReply),
    /// Several removals, each by itself.
    Remove(Vec<Bytes>),
    /// Keys, a few at a time.
    Scan {
        /// Where to go on: 0, or what the answer before said.
        cursor: u64,
        /// Which.
        pattern: Option<Bytes>,
        /// How many are looked at.
        count: u32,
        /// Strings are asked for, which all values are.
        strings: bool,
    },
    /// All keys that match.
    Keys(Bytes),
    /// How many keys there are.
    Size,
    /// Tell of changes on channels, or on those that match patterns.
    Subscribe {
        /// Their names.
        names: Vec<Bytes>,
        /// They are patterns.
        pattern: bool,
    },
    /// Tell of changes of keys, with their versions.
    SubscribeToKeys {
        /// Which keys.
        pattern: Bytes,
        /// Up to where the client has heard of each shard; none: it hears what comes.
        from: Vec<(u16, Version)>,
    },
    /// Do not any more.
    Unsubscribe {
        /// Their names; none: all.
        names: Vec<Bytes>,
        /// They are patterns.
        pattern: bool,
    },
    /// What follows is done as one by `EXEC`.
    Multi,
    /// Do it.
    Exec,
    /// Do not.
    Discard,
    /// Watch nothing any more.
    Unwatch,
    /// Draw a client number for identities.
    NewClient,
    /// The identity of the next command.
    Identify(Identity),
    /// Whether replies to reads and writes of one key carry versions.
    Versions(bool),
    /// Where this node stands, as JSON.
    Status,
    /// The same in a sentence.
    Explain,
    /// Clients shall write to a region by another pattern.
    Redefine {
        /// The region's name.
        region: String,
        /// The pattern.
        pattern: Pattern,
    },
    /// Leave the group.
    Leave,
    /// Hear nothing from these nodes and tell them nothing; only where that was allowed at the start.
    Cut(Vec<SocketAddr>),
}

/// What is no command of ours. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Redis may have it; a region has not.
    #[error("ERR unknown or unsupported command '{name}'; {}", names::hint(name))]
    Unsupported {
        /// Its name.
        name: String,
    },
    /// A part of a command that a region has not.
    #[error("ERR a region does not do '{option}' of '{name}'")]
    Option {
        /// The command.
        name: String,
        /// What it asks for.
        option: String,
    },
    /// Too few words or too many.
    #[error("ERR wrong number of arguments for '{name}' command")]
    Arguments {
        /// The command.
        name: String,
    },
    /// Not a number.
    #[error("ERR value is not an integer or out of range")]
    NoInteger,
    /// Options that do not go together, or one without its value.
    #[error("ERR syntax error")]
    Syntax,
    /// No time at which a value can end.
    #[error("ERR invalid expire time in '{name}' command")]
    EndTime {
        /// The command.
        name: String,
    },
    /// No number.
    #[error("ERR invalid cursor")]
    Cursor,
    /// Not a number with a fraction, or one with more digits than fit.
    #[error("ERR value is not a valid float: it has at most 20 digits before the point and 17 behind it")]
    NoFraction,
    /// A place before the first byte.
    #[error("ERR offset is out of range")]
    Offset,
    /// A key to be copied to itself.
    #[error("ERR source and destination objects are the same")]
    SameKey,
    /// Conditions of an end that cannot both hold.
    #[error("ERR {one} and {other} options at the same time are not compatible")]
    Conditions {
        /// One.
        one: &'static str,
        /// The other, or others.
        other: &'static str,
    },
    /// A name of a connection that is too long, or has more in it than printable letters.
    #[error(
        "ERR Client names cannot contain spaces, newlines or special characters, and have at most {NAME_BYTES_MAX} bytes"
    )]
    Name,
    /// A channel or pattern that is longer than any channel.
    #[error("ERR a channel or pattern has at most {CHANNEL_BYTES_MAX} bytes")]
    Channel,
    /// Not an address.
    #[error("ERR '{given}' is no address and port")]
    NoAddress {
        /// What was given.
        given: String,
    },
    /// Not a version of a shard.
    #[error("ERR '{given}' is no version of a shard, SHARD:VIEW-COUNTER")]
    NoPosition {
        /// What was given.
        given: String,
    },
    /// Not a pattern.
    #[error("ERR '{given}' is no pattern of a region: {}", Pattern::ALL.map(Pattern::name).join(", "))]
    NoPattern {
        /// What was given.
        given: String,
    },
    /// A key that is not the client's.
    #[error("ERR keys that begin with \\0mainstay/ belong to the nodes")]
    OwnKey,
    /// There is one map alone.
    #[error("ERR DB index is out of range: a region has database 0 alone")]
    Database,
}

/// Reads a command that came when the wall clock stood at `unix_ms`, milliseconds since 1970.
///
/// # Errors
/// [`CommandError`].
pub fn parse(words: &[Bytes], unix_ms: u64) -> Result<Command, CommandError> {
    let name = String::from_utf8_lossy(words.first().map_or(&b""[..], |name| name)).to_ascii_uppercase();
    let arguments = words.get(1..).unwrap_or_default();
    let command = match (name.as_str(), arguments) {
        ("PING", []) => Command::Ping(None),
        ("PING", [text]) => Command::Ping(Some(text.clone())),
        ("ECHO", [text]) => Command::Echo(text.clone()),
        ("HELLO", []) => Command::Hello(None, None),
        ("HELLO", [version]) => Command::Hello(Some(version.clone()), None),
        ("HELLO", [version, option, given]) if option.eq_ignore_ascii_case(b"SETNAME") => {
            Command::Hello(Some(version.clone()), Some(connection_name(given)?))
        }
        ("HELLO", [_, option, ..]) => return Err(option_of(&name, option)),
        ("TIME", []) => Command::Time,
        ("QUIT", []) => Command::Quit,
        ("SELECT", [number]) if &number[..] == b"0" => Command::Noted,
        ("SELECT", [_]) => return Err(CommandError::Database),
        ("CLIENT", [what, rest @ ..]) => match (what.to_ascii_uppercase().as_slice(), rest) {
            (b"SETNAME", [given]) => Command::SetName(connection_name(given)?),
            (b"GETNAME", []) => Command::GetName,
            (b"SETINFO", _) => Command::Noted,
            (b"ID", _) => Command::ConnectionNumber,
            _ => return Err(option_of(&name, what)),
        },
        ("COMMAND", [what]) if what.eq_ignore_ascii_case(b"LIST") => Command::CommandNames,
        ("COMMAND", [what]) if what.eq_ignore_ascii_case(b"COUNT") => Command::CommandCount,
        ("COMMAND", _) => Command::Commands,
        ("INFO", _) => Command::Info,
        ("GET", [_]) => read(arguments, ReadReply::Value, Together::One)?,
        ("MGET", [_, ..]) => read(arguments, ReadReply::Value, Together::Array)?,
        ("EXISTS" | "TOUCH", [_, ..]) => read(arguments, ReadReply::IsThere, Together::Sum)?,
        ("STRLEN", [_]) => read(arguments, ReadReply::Length, Together::One)?,
        ("GETRANGE" | "SUBSTR", [key, first, last]) => {
            let part = ReadReply::Part(integer(first)?, integer(last)?);
            read(std::slice::from_ref(key), part, Together::One)?
        }
        ("TYPE", [_]) => read(arguments, ReadReply::Type, Together::One)?,
        ("TTL" | "PTTL" | "EXPIRETIME" | "PEXPIRETIME", [_]) => {
            let (milliseconds, absolute) = (name.starts_with('P'), name.ends_with("TIME"));
            read(arguments, ReadReply::Lasts { milliseconds, absolute }, Together::One)?
        }
        ("WATCH", [_, ..]) => read(arguments, ReadReply::Watch, Together::One)?,
        ("SUBSCRIBE" | "PSUBSCRIBE", [_, ..]) => {
            Command::Subscribe { names: channels(arguments)?, pattern: name.starts_with('P') }
        }
        ("UNSUBSCRIBE" | "PUNSUBSCRIBE", _) => {
            Command::Unsubscribe { names: arguments.to_vec(), pattern: name.starts_with('P') }
        }
        ("MAINSTAY.SUBSCRIBE", [pattern]) => {
            Command::SubscribeToKeys { pattern: channel(pattern)?, from: Vec::new() }
        }
        ("MAINSTAY.SUBSCRIBE", [pattern, from, versions @ ..])
            if from.eq_ignore_ascii_case(b"FROM") && !versions.is_empty() =>
        {
            Command::SubscribeToKeys { pattern: channel(pattern)?, from: positions(versions)? }
        }
        ("MAINSTAY.SUBSCRIBE", [_, _, ..]) => return Err(CommandError::Syntax),
        ("UNWATCH", []) => Command::Unwatch,
        ("MULTI", []) => Command::Multi,
        ("EXEC", []) => Command::Exec,
        ("DISCARD", []) => Command::Discard,
        ("SCAN", [cursor, options @ ..]) => scan::scan(cursor, options)?,
        ("KEYS", [pattern]) => Command::Keys(pattern.clone()),
        ("DBSIZE", []) => Command::Size,
        ("SET", [key, value, options @ ..]) => set::set(key, value, options, unix_ms)?,
        ("SETEX", [key, number, value]) => set::set_for(&name, [key, number, value], b"EX", unix_ms)?,
        ("PSETEX", [key, number, value]) => set::set_for(&name, [key, number, value], b"PX", unix_ms)?,
        ("GETSET", [key, value]) => set::get_set(key, value)?,
        ("GETEX", [_]) => read(arguments, ReadReply::Value, Together::One)?,
        ("GETEX", [key, options @ ..]) => set::get_and_set_end(key, options, unix_ms)?,
        ("GETDEL", [key]) => write(Operation::Take { key: owned(key)? }),
        ("APPEND", [key, value]) => Command::Write(
            Operation::Append { key: owned(key)?, value: value.as_ref().into() },
            WriteReply::Number,
        ),
        ("SETRANGE", [key, at, value]) => strings::set_range(key, at, value)?,
        ("INCRBYFLOAT", [key, by]) => strings::increment_by_fraction(key, by)?,
        ("RENAME", [from, to]) => strings::rename(from, to, true, WriteReply::Renamed)?,
        ("RENAMENX", [from, to]) => strings::rename(from, to, false, WriteReply::RenamedToNew)?,
        ("COPY", [from, to, options @ ..]) => strings::copy(from, to, options)?,
        ("MSET", [_, _, ..]) if arguments.len() % 2 == 0 => strings::set_many(arguments)?,
        ("MSETNX", [_, _, ..]) if arguments.len() % 2 == 0 => strings::set_many_new(arguments)?,
        ("EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT", [key, number, options @ ..]) => {
            set::expire(&name, key, number, options, unix_ms)?
        }
        ("PERSIST", [key]) => {
            Command::Write(Operation::Expire { key: owned(key)?, ends_at_ms: None }, WriteReply::Changed)
        }
        ("SETNX", [key, value]) => Command::Write(if_absent(owned(key)?, value), WriteReply::Changed),
        ("DELEX", [key, rest @ ..]) => strings::remove_if(key, rest)?,
        ("DEL" | "UNLINK", [key]) => {
            Command::Write(Operation::Remove { key: owned(key)? }, WriteReply::Changed)
        }
        ("DEL" | "UNLINK", [_, ..]) => Command::Remove(client_keys(arguments)?),
        ("INCR", [key]) => increment(key, 1)?,
        ("DECR", [key]) => increment(key, -1)?,
        ("INCRBY", [key, by]) => increment(key, integer(by)?)?,
        ("DECRBY", [key, by]) => increment(key, integer(by)?.checked_neg().ok_or(CommandError::NoInteger)?)?,
        ("MAINSTAY.CAS", [key, expected, value]) => write(Operation::CompareAndSet {
            key: owned(key)?,
            expected: Some(expected.as_ref().into()),
            value: Some(value.as_ref().into()),
        }),
        ("MAINSTAY.ID", [new]) if new.eq_ignore_ascii_case(b"NEW") => Command::NewClient,
        ("MAINSTAY.ID", [client, sequence]) => identify(client, sequence, false)?,
        ("MAINSTAY.ID", [client, sequence, again]) if again.eq_ignore_ascii_case(b"AGAIN") => {
            identify(client, sequence, true)?
        }
        ("MAINSTAY.VERSIONS", [on]) if on.eq_ignore_ascii_case(b"ON") => Command::Versions(true),
        ("MAINSTAY.VERSIONS", [off]) if off.eq_ignore_ascii_case(b"OFF") => Command::Versions(false),
        ("MAINSTAY.STATUS", []) => Command::Status,
        ("MAINSTAY.EXPLAIN", []) => Command::Explain,
        ("MAINSTAY.PATTERN", [region, pattern]) => {
            let given = String::from_utf8_lossy(pattern).to_ascii_lowercase();
            let pattern = Pattern::of_name(&given).ok_or(CommandError::NoPattern { given })?;
            Command::Redefine { region: String::from_utf8_lossy(region).into_owned(), pattern }
        }
        ("MAINSTAY.LEAVE", []) => Command::Leave,
        ("MAINSTAY.CUT", addresses) => Command::Cut(addresses.iter().map(address).collect::<Result<_, _>>()?),
        (known, _) if NAMES.contains(&known) => return Err(CommandError::Arguments { name }),
        _ => return Err(CommandError::Unsupported { name }),
    };
    Ok(command)
}

fn option_of(name: &str, option: &Bytes) -> CommandError {
    CommandError::Option { name: name.to_owned(), option: String::from_utf8_lossy(option).into_owned() }
}

fn client_key(key: &Bytes) -> Result<Bytes, CommandError> {
    if key.starts_with(OWN_KEYS) { Err(CommandError::OwnKey) } else { Ok(key.clone()) }
}

fn client_keys(keys: &[Bytes]) -> Result<Vec<Bytes>, CommandError> {
    keys.iter().map(client_key).collect()
}

fn owned(key: &Bytes) -> Result<Blob, CommandError> {
    client_key(key).map(|key| key.as_ref().into())
}

fn read(keys: &[Bytes], reply: ReadReply, together: Together) -> Result<Command, CommandError> {
    Ok(Command::Read { keys: client_keys(keys)?, reply, together })
}

fn write(operation: Operation) -> Command {
    Command::Write(operation, WriteReply::Written)
}

fn if_absent(key: Blob, value: &Bytes) -> Operation {
    Operation::CompareAndSet { key, expected: None, value: Some(value.as_ref().into()) }
}

fn increment(key: &Bytes, by: i64) -> Result<Command, CommandError> {
    Ok(Command::Write(Operation::Increment { key: owned(key)?, by }, WriteReply::Number))
}

fn identify(client: &Bytes, sequence: &Bytes, again: bool) -> Result<Command, CommandError> {
    let (client, sequence) = (ClientId(number(client)?), Sequence(number(sequence)?));
    if sequence == Sequence(0) {
        return Err(CommandError::NoInteger);
    }
    Ok(Command::Identify(Identity { client, sequence, again }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_region::operation::{Condition, End};

    fn parsed(line: &str) -> Result<Command, CommandError> {
        let words: Vec<Bytes> = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        parse(&words, 5_000)
    }

    #[test]
    fn redis_commands_become_operations() {
        let set = Operation::Put { key: b"k".into(), value: b"v".into() };
        assert_eq!(parsed("set k v"), Ok(Command::Write(set, WriteReply::Written)));
        let absent = Operation::CompareAndSet { key: b"k".into(), expected: None, value: Some(b"v".into()) };
        assert_eq!(parsed("SET k v nx"), Ok(Command::Write(absent.clone(), WriteReply::Written)));
        assert_eq!(parsed("SETNX k v"), Ok(Command::Write(absent, WriteReply::Changed)));
        let set = |condition, end, returns_before| {
            let (key, value) = (b"k".into(), b"v".into());
            let operation = Operation::Set { key, value, condition, end, returns_before };
            Ok(Command::Write(operation, WriteReply::Written))
        };
        assert_eq!(parsed("SET k v ex 10 XX"), set(Condition::Present, End::At(15_000), false));
        assert_eq!(parsed("SET k v GET KEEPTTL"), set(Condition::Always, End::Kept, true));
        assert_eq!(parsed("PSETEX k 10 v"), set(Condition::Always, End::At(5_010), false));
        assert_eq!(parsed("GETSET k v"), set(Condition::Always, End::Never, true));
        let ends = |ends_at_ms| {
            let operation = Operation::Expire { key: b"k".into(), ends_at_ms };
            Ok(Command::Write(operation, WriteReply::Changed))
        };
        assert_eq!(parsed("EXPIRE k 2"), ends(Some(7_000)));
        let gone = Operation::Remove { key: b"k".into() };
        for past in ["EXPIRE k -10", "EXPIRE k 0", "PEXPIREAT k 5000"] {
            assert_eq!(parsed(past), Ok(Command::Write(gone.clone(), WriteReply::Changed)), "{past}");
        }
        assert_eq!(parsed("PEXPIREAT k 5001"), ends(Some(5_001)));
        assert_eq!(parsed("PERSIST k"), ends(None));
        let less = Operation::Increment { key: b"n".into(), by: -4 };
        assert_eq!(parsed("DECRBY n 4"), Ok(Command::Write(less, WriteReply::Number)));
        assert_eq!(parsed("SELECT 0"), Ok(Command::Noted));
        let identity = Identity { client: ClientId(7), sequence: Sequence(2), again: true };
        assert_eq!(parsed("mainstay.id 7 2 again"), Ok(Command::Identify(identity)));
    }

    #[test]
    fn what_a_region_does_not_do_is_said_by_name() {
        for (line, word) in [
            ("LPUSH k 10", "'LPUSH'; COMMAND LIST"),
            ("GTE k", "is it GET?"),
            ("MAINSTAY.VERSION ON", "is it MAINSTAY.VERSIONS?"),
            ("EXPIRE k 10 KEEP", "'KEEP' of 'EXPIRE'"),
            ("EXPIRE k 10 NX GT", "NX and XX, GT or LT options at the same time"),
            ("PEXPIREAT k 10 GT LT", "GT and LT options at the same time"),
            ("SETRANGE k -1 x", "offset is out of range"),
            ("INCRBYFLOAT k inf", "not a valid float"),
            ("COPY k k", "are the same"),
            ("COPY k l DB 1", "'DB' of 'COPY'"),
            ("DELEX k IFNE v", "'IFNE' of 'DELEX'"),
            ("RENAME k", "'RENAME'"),
            ("SET k v IFEQ x NX", "syntax error"),
            ("SET k v IDLETIME 10", "'IDLETIME' of 'SET'"),
            ("SET k v NX XX", "syntax error"),
            ("SET k v EX", "syntax error"),
            ("SET k v EX 0", "invalid expire time in 'set'"),
            ("PSETEX k -1 v", "invalid expire time in 'psetex'"),
            ("GETEX k EX 0", "invalid expire time in 'getex'"),
            ("GETEX k NX", "'NX' of 'GETEX'"),
            ("GETEX k EX 1 PERSIST", "syntax error"),
            ("SETEX k 9223372036854775807 v", "invalid expire time in 'setex'"),
            ("MSET k v k", "'MSET'"),
            ("SCAN x", "invalid cursor"),
            ("SCAN 0 COUNT", "syntax error"),
            ("SCAN 0 COUNT 0", "syntax error"),
            ("KEYS", "'KEYS'"),
            ("HELLO 3 AUTH u p", "'AUTH' of 'HELLO'"),
            ("SELECT 1", "database 0"),
            ("GET", "'GET'"),
            ("GET \0mainstay/clients", "belong to the nodes"),
            ("INCRBY n 1.5", "not an integer"),
            ("DECRBY n -9223372036854775808", "not an integer"),
            ("MAINSTAY.ID 1 0", "not an integer"),
            ("MAINSTAY.CUT nowhere", "no address"),
            ("MAINSTAY.PATTERN data fastest", "is no pattern of a region: unversioned, version-request,"),
        ] {
            let error = parsed(line).expect_err("a region does not do it").to_string();
            assert!(error.starts_with("ERR ") && error.contains(word), "{line}: {error}");
        }
    }
}
