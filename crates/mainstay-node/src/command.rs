//! The table of commands: which of Redis's a region does, and those of our own.

use bytes::Bytes;
use mainstay_region::operation::Operation;
use mainstay_types::id::{ClientId, Sequence};
use std::net::SocketAddr;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteReply {
    /// `OK`, or nothing if the value was not as expected.
    Written,
    /// 1 if something was changed, else 0.
    Changed,
    /// The counter's new value.
    Counter,
}

/// What a client asks of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Answer this.
    Ping(Option<Bytes>),
    /// The same.
    Echo(Bytes),
    /// Another version of the protocol, or none named.
    Hello(Option<Bytes>),
    /// What every client library says about itself, and needs no more than an `OK`.
    Noted,
    /// The connection's number.
    ConnectionNumber,
    /// The commands in Redis's table: none are told.
    Commands,
    /// For people.
    Info,
    /// End the connection.
    Quit,
    /// The value of a key.
    Get(Bytes),
    /// The values of keys, each read by itself.
    GetMany(Vec<Bytes>),
    /// How many of the keys are there.
    Exists(Vec<Bytes>),
    /// The length of a value, in bytes.
    Length(Bytes),
    /// One change of one key.
    Write(Operation, WriteReply),
    /// Several removals, each by itself.
    Remove(Vec<Bytes>),
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
    /// Leave the group.
    Leave,
    /// Hear nothing from these nodes and tell them nothing; only where that was allowed at the start.
    Cut(Vec<SocketAddr>),
}

/// What is no command of ours. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Redis may have it; a region has not.
    #[error("ERR unknown or unsupported command '{name}': a region does {SUPPORTED}")]
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
    /// Not an address.
    #[error("ERR '{given}' is no address and port")]
    NoAddress {
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

/// The names of what is supported, for those who ask for more.
const SUPPORTED: &str = "GET SET [NX] SETNX MGET DEL UNLINK EXISTS STRLEN INCR DECR INCRBY DECRBY PING ECHO HELLO INFO SELECT 0 QUIT and MAINSTAY.ID, \
    .CAS, .VERSIONS, .STATUS, .EXPLAIN, .LEAVE";

/// Reads a command.
///
/// # Errors
/// [`CommandError`].
pub fn parse(words: &[Bytes]) -> Result<Command, CommandError> {
    let name = String::from_utf8_lossy(words.first().map_or(&b""[..], |name| name)).to_ascii_uppercase();
    let arguments = words.get(1..).unwrap_or_default();
    let command = match (name.as_str(), arguments) {
        ("PING", []) => Command::Ping(None),
        ("PING", [text]) => Command::Ping(Some(text.clone())),
        ("ECHO", [text]) => Command::Echo(text.clone()),
        ("HELLO", []) => Command::Hello(None),
        ("HELLO", [version]) => Command::Hello(Some(version.clone())),
        ("HELLO", [_, option, ..]) => return Err(option_of(&name, option)),
        ("QUIT", []) => Command::Quit,
        ("SELECT", [number]) if &number[..] == b"0" => Command::Noted,
        ("SELECT", [_]) => return Err(CommandError::Database),
        ("CLIENT", [what, ..]) => match what.to_ascii_uppercase().as_slice() {
            b"SETNAME" | b"SETINFO" => Command::Noted,
            b"ID" => Command::ConnectionNumber,
            _ => return Err(option_of(&name, what)),
        },
        ("COMMAND", _) => Command::Commands,
        ("INFO", _) => Command::Info,
        ("GET", [key]) => Command::Get(client_key(key)?),
        ("MGET", [_, ..]) => Command::GetMany(client_keys(arguments)?),
        ("EXISTS", [_, ..]) => Command::Exists(client_keys(arguments)?),
        ("STRLEN", [key]) => Command::Length(client_key(key)?),
        ("SET", [key, value]) => write(Operation::Put { key: owned(key)?, value: value.to_vec() }),
        ("SET", [key, value, option]) if option.eq_ignore_ascii_case(b"NX") => {
            write(if_absent(owned(key)?, value))
        }
        ("SET", [_, _, option, ..]) => return Err(option_of(&name, option)),
        ("SETNX", [key, value]) => Command::Write(if_absent(owned(key)?, value), WriteReply::Changed),
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
            expected: Some(expected.to_vec()),
            value: Some(value.to_vec()),
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
        ("MAINSTAY.LEAVE", []) => Command::Leave,
        ("MAINSTAY.CUT", addresses) => Command::Cut(addresses.iter().map(address).collect::<Result<_, _>>()?),
        (known, _) if KNOWN.contains(&known) => return Err(CommandError::Arguments { name }),
        _ => return Err(CommandError::Unsupported { name }),
    };
    Ok(command)
}

/// What is refused for its words alone, and not for its name.
const KNOWN: [&str; 22] = [
    "PING",
    "ECHO",
    "QUIT",
    "SELECT",
    "CLIENT",
    "GET",
    "MGET",
    "EXISTS",
    "STRLEN",
    "SET",
    "SETNX",
    "DEL",
    "UNLINK",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "MAINSTAY.CAS",
    "MAINSTAY.ID",
    "MAINSTAY.VERSIONS",
    "MAINSTAY.STATUS",
    "MAINSTAY.LEAVE",
];

fn option_of(name: &str, option: &Bytes) -> CommandError {
    CommandError::Option { name: name.to_owned(), option: String::from_utf8_lossy(option).into_owned() }
}

fn client_key(key: &Bytes) -> Result<Bytes, CommandError> {
    if key.starts_with(OWN_KEYS) { Err(CommandError::OwnKey) } else { Ok(key.clone()) }
}

fn client_keys(keys: &[Bytes]) -> Result<Vec<Bytes>, CommandError> {
    keys.iter().map(client_key).collect()
}

fn owned(key: &Bytes) -> Result<Vec<u8>, CommandError> {
    client_key(key).map(|key| key.to_vec())
}

fn write(operation: Operation) -> Command {
    Command::Write(operation, WriteReply::Written)
}

fn if_absent(key: Vec<u8>, value: &Bytes) -> Operation {
    Operation::CompareAndSet { key, expected: None, value: Some(value.to_vec()) }
}

fn increment(key: &Bytes, by: i64) -> Result<Command, CommandError> {
    Ok(Command::Write(Operation::Increment { key: owned(key)?, by }, WriteReply::Counter))
}

fn number<T: std::str::FromStr>(word: &Bytes) -> Result<T, CommandError> {
    str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or(CommandError::NoInteger)
}

fn integer(word: &Bytes) -> Result<i64, CommandError> {
    number(word)
}

fn identify(client: &Bytes, sequence: &Bytes, again: bool) -> Result<Command, CommandError> {
    let (client, sequence) = (ClientId(number(client)?), Sequence(number(sequence)?));
    if sequence == Sequence(0) {
        return Err(CommandError::NoInteger);
    }
    Ok(Command::Identify(Identity { client, sequence, again }))
}

fn address(word: &Bytes) -> Result<SocketAddr, CommandError> {
    let text = String::from_utf8_lossy(word);
    text.parse().map_err(|_| CommandError::NoAddress { given: text.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, CommandError> {
        let words: Vec<Bytes> = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        parse(&words)
    }

    #[test]
    fn redis_commands_become_operations() {
        let set = Operation::Put { key: b"k".to_vec(), value: b"v".to_vec() };
        assert_eq!(parsed("set k v"), Ok(Command::Write(set, WriteReply::Written)));
        let absent =
            Operation::CompareAndSet { key: b"k".to_vec(), expected: None, value: Some(b"v".to_vec()) };
        assert_eq!(parsed("SET k v nx"), Ok(Command::Write(absent.clone(), WriteReply::Written)));
        assert_eq!(parsed("SETNX k v"), Ok(Command::Write(absent, WriteReply::Changed)));
        let less = Operation::Increment { key: b"n".to_vec(), by: -4 };
        assert_eq!(parsed("DECRBY n 4"), Ok(Command::Write(less, WriteReply::Counter)));
        assert_eq!(parsed("SELECT 0"), Ok(Command::Noted));
        let identity = Identity { client: ClientId(7), sequence: Sequence(2), again: true };
        assert_eq!(parsed("mainstay.id 7 2 again"), Ok(Command::Identify(identity)));
    }

    #[test]
    fn what_a_region_does_not_do_is_said_by_name() {
        for (line, word) in [
            ("EXPIRE k 10", "'EXPIRE'"),
            ("SET k v EX 10", "'EX' of 'SET'"),
            ("HELLO 3 AUTH u p", "'AUTH' of 'HELLO'"),
            ("SELECT 1", "database 0"),
            ("GET", "'GET'"),
            ("GET \0mainstay/clients", "belong to the nodes"),
            ("INCRBY n 1.5", "not an integer"),
            ("DECRBY n -9223372036854775808", "not an integer"),
            ("MAINSTAY.ID 1 0", "not an integer"),
            ("MAINSTAY.CUT nowhere", "no address"),
        ] {
            let error = parsed(line).expect_err("a region does not do it").to_string();
            assert!(error.starts_with("ERR ") && error.contains(word), "{line}: {error}");
        }
    }
}
