//! The Redis serialization protocol, versions 2 and 3, as a server needs it: commands in, replies out.
//!
//! A command is a flat array of strings, or a line of words. What is read stays within limits, and nothing is parsed by recursion: nested
//! arrays, which no command has, are refused where they begin.

use bytes::{Buf, Bytes, BytesMut};

/// What a client may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandLimits {
    /// Words of a command.
    pub words_max: usize,
    /// A word's length, in bytes.
    pub word_bytes_max: usize,
    /// A whole command's length, in bytes.
    pub command_bytes_max: usize,
    /// The length of a command that is a line, in bytes.
    pub line_bytes_max: usize,
}

impl Default for CommandLimits {
    fn default() -> Self {
        Self {
            words_max: 1024,
            word_bytes_max: 1 << 20,
            command_bytes_max: 4 << 20,
            line_bytes_max: 16 << 10,
        }
    }
}

/// Not the protocol, or beyond a limit. Nothing of the command was done; the connection cannot be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A length is no number, or negative.
    #[error("Protocol error: invalid length")]
    Length,
    /// A word does not begin with `$`.
    #[error("Protocol error: expected '$', got a byte {byte}")]
    NoWord {
        /// What stands there.
        byte: u8,
    },
    /// A word is not followed by a line's end.
    #[error("Protocol error: a word goes on behind its length")]
    Unended,
    /// A command has too many words.
    #[error("Protocol error: {words} words, and the limit is {limit}")]
    Words {
        /// How many.
        words: usize,
        /// [`CommandLimits::words_max`].
        limit: usize,
    },
    /// A word is too long.
    #[error("Protocol error: a word of {bytes} bytes, and the limit is {limit} bytes")]
    Word {
        /// Its length.
        bytes: usize,
        /// [`CommandLimits::word_bytes_max`].
        limit: usize,
    },
    /// A browser, which somebody else's page made send a form, speaks HTTP: what follows are not commands of anybody who meant them.
    #[error("Protocol error: this is HTTP, and here is none")]
    Http,
    /// What nodes and native clients begin with.
    #[error(
        "Protocol error: this port is for clients of the Redis protocol; nodes and the Rust client reach this node at the address of its --listen"
    )]
    Node,
    /// A command, or a line of it, is too long.
    #[error("Protocol error: a command or line longer than {limit} bytes")]
    Long {
        /// The limit.
        limit: usize,
    },
}

/// Takes the next command off `input`; `None` while it is not whole. A command without words is skipped.
///
/// # Errors
/// [`ProtocolError`].
pub fn take_command(
    input: &mut BytesMut,
    limits: &CommandLimits,
) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    loop {
        let words = match input.first() {
            None => return Ok(None),
            Some(b'*') => take_array(input, limits)?,
            Some(b'M') if NODE_BEGINNINGS.iter().any(|beginning| input.starts_with(beginning)) => {
                return Err(ProtocolError::Node);
            }
            Some(_) => take_line(input, limits)?,
        };
        match words {
            Some(words) if words.is_empty() => {}
            words => return Ok(words),
        }
    }
}

/// How connections begin that are meant for the other port. No command does.
const NODE_BEGINNINGS: [&[u8]; 2] = [b"MSN", b"MSC"];

/// The line of `input` that begins at `at`, without its end, and where the next one begins.
fn line(input: &[u8], at: usize, limit: usize) -> Result<Option<(&[u8], usize)>, ProtocolError> {
    let rest = &input[at..];
    match rest.iter().take(limit).position(|&byte| byte == b'\n') {
        Some(end) => {
            let text = &rest[..end];
            Ok(Some((text.strip_suffix(b"\r").unwrap_or(text), at + end + 1)))
        }
        None if rest.len() >= limit => Err(ProtocolError::Long { limit }),
        None => Ok(None),
    }
}

/// Longest line that says a length, in bytes.
const LENGTH_LINE_BYTES_MAX: usize = 32;

fn length(text: &[u8]) -> Result<usize, ProtocolError> {
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ProtocolError::Length)
}

fn take_array(input: &mut BytesMut, limits: &CommandLimits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let Some((text, mut at)) = line(input, 0, LENGTH_LINE_BYTES_MAX)? else { return Ok(None) };
    // Redis takes `*-1` and `*0` for a command without words.
    let words = if text == b"*-1" { 0 } else { length(&text[1..])? };
    if words > limits.words_max {
        return Err(ProtocolError::Words { words, limit: limits.words_max });
    }
    let mut places = Vec::with_capacity(words);
    for _ in 0..words {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&byte) => return Err(ProtocolError::NoWord { byte }),
        }
        let Some((text, begins)) = line(input, at, LENGTH_LINE_BYTES_MAX)? else { return Ok(None) };
        let bytes = length(&text[1..])?;
        if bytes > limits.word_bytes_max {
            return Err(ProtocolError::Word { bytes, limit: limits.word_bytes_max });
        }
        let ends = begins + bytes;
        if ends > limits.command_bytes_max {
            return Err(ProtocolError::Long { limit: limits.command_bytes_max });
        }
        match input.get(ends..ends + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::Unended),
        }
        places.push(begins..ends);
        at = ends + 2;
    }
    let command = input.split_to(at).freeze();
    Ok(Some(places.into_iter().map(|place| command.slice(place)).collect()))
}

/// A command as somebody types it: words between blanks, without quotes.
fn take_line(input: &mut BytesMut, limits: &CommandLimits) -> Result<Option<Vec<Bytes>>, ProtocolError> {
    let Some((text, next)) = line(input, 0, limits.line_bytes_max)? else { return Ok(None) };
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let words: Vec<Bytes> = words.map(Bytes::copy_from_slice).collect();
    if words.first().is_some_and(|first| matches!(&first.to_ascii_uppercase()[..], b"POST" | b"HOST:")) {
        return Err(ProtocolError::Http);
    }
    input.advance(next);
    Ok(Some(words))
}

/// The version of the protocol that a client asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Protocol {
    /// RESP2: nothing but strings, errors, integers and arrays.
    #[default]
    Two,
    /// RESP3: also null and maps.
    Three,
}

/// What a client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A word such as `OK`.
    Status(&'static str),
    /// What went wrong; the first word, in capitals, is for programs.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Bytes),
    /// Nothing there.
    Null,
    /// Nothing where there could have been several.
    NullArray,
    /// Several.
    Array(Vec<Self>),
    /// What was not asked for: an array where the version has nothing else.
    Push(Vec<Self>),
    /// Several replies to one command, one after the other.
    Several(Vec<Self>),
    /// Names and values.
    Map(Vec<(&'static str, Self)>),
}

impl Reply {
    /// A string.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Bulk(Bytes::from(text.into()))
    }

    /// What it holds in memory, in bytes, beside what every reply takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Status(_) | Self::Integer(_) | Self::Null | Self::NullArray => 0,
            Self::Error(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Array(items) | Self::Push(items) | Self::Several(items) => {
                items.iter().map(Self::bytes).sum()
            }
            Self::Map(entries) => entries.iter().map(|(_, value)| value.bytes()).sum(),
        }
    }

    /// Appends it as bytes.
    pub fn put(&self, protocol: Protocol, out: &mut Vec<u8>) {
        match self {
            Self::Status(text) => put_line(out, b'+', text),
            Self::Error(text) => {
                // A line's end within would end the reply.
                put_line(out, b'-', &text.replace(['\r', '\n'], " "));
            }
            Self::Integer(number) => put_line(out, b':', &number.to_string()),
            Self::Bulk(bytes) => {
                put_line(out, b'$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Null => out.extend_from_slice(match protocol {
                Protocol::Two => b"$-1\r\n",
                Protocol::Three => b"_\r\n",
            }),
            Self::NullArray => out.extend_from_slice(match protocol {
                Protocol::Two => b"*-1\r\n",
                Protocol::Three => b"_\r\n",
            }),
            Self::Array(items) => {
                put_line(out, b'*', &items.len().to_string());
                items.iter().for_each(|item| item.put(protocol, out));
            }
            Self::Push(items) => {
                put_line(out, if protocol == Protocol::Two { b'*' } else { b'>' }, &items.len().to_string());
                items.iter().for_each(|item| item.put(protocol, out));
            }
            Self::Several(replies) => replies.iter().for_each(|reply| reply.put(protocol, out)),
            Self::Map(entries) => {
                match protocol {
                    Protocol::Two => put_line(out, b'*', &(2 * entries.len()).to_string()),
                    Protocol::Three => put_line(out, b'%', &entries.len().to_string()),
                }
                for (name, value) in entries {
                    Self::Bulk(Bytes::from_static(name.as_bytes())).put(protocol, out);
                    value.put(protocol, out);
                }
            }
        }
    }
}

fn put_line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(input: &[u8], limits: &CommandLimits) -> Result<Vec<Vec<Bytes>>, ProtocolError> {
        let mut buffer = BytesMut::from(input);
        let mut commands = Vec::new();
        while let Some(command) = take_command(&mut buffer, limits)? {
            commands.push(command);
        }
        Ok(commands)
    }

    #[test]
    fn commands_come_whole_whatever_the_pieces_they_arrive_in() {
        let input =
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\nPING  hello\r\n\r\n*0\r\n*1\r\n$4\r\nQUIT\r\n";
        let limits = CommandLimits::default();
        let expected: Vec<Vec<&[u8]>> =
            vec![vec![b"SET", b"k", b"a\r\nb"], vec![b"PING", b"hello"], vec![b"QUIT"]];
        assert_eq!(all(input, &limits).expect("it is the protocol"), expected);
        for cut in 0..input.len() {
            let mut buffer = BytesMut::from(&input[..cut]);
            let mut commands = Vec::new();
            while let Some(command) = take_command(&mut buffer, &limits).expect("a beginning is no error") {
                commands.push(command);
            }
            buffer.extend_from_slice(&input[cut..]);
            while let Some(command) = take_command(&mut buffer, &limits).expect("it is the protocol") {
                commands.push(command);
            }
            assert_eq!(commands, expected, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_command_or_too_much_is_refused() {
        let limits =
            CommandLimits { words_max: 2, word_bytes_max: 4, command_bytes_max: 20, line_bytes_max: 16 };
        let refused = |input: &[u8]| all(input, &limits).expect_err("it is no command");
        assert_eq!(refused(b"*3\r\n"), ProtocolError::Words { words: 3, limit: 2 });
        assert_eq!(refused(b"*1\r\n$5\r\n"), ProtocolError::Word { bytes: 5, limit: 4 });
        assert_eq!(refused(b"*1\r\n*1\r\n"), ProtocolError::NoWord { byte: b'*' });
        assert_eq!(refused(b"*1\r\n$-1\r\n"), ProtocolError::Length);
        assert_eq!(refused(b"*x\r\n"), ProtocolError::Length);
        assert_eq!(refused(b"*1\r\n$1\r\nabc"), ProtocolError::Unended);
        assert_eq!(refused(b"*2\r\n$4\r\nabcd\r\n$4\r\nabcd\r\n"), ProtocolError::Long { limit: 20 });
        assert_eq!(refused(b"host: x\r\n"), ProtocolError::Http);
        assert_eq!(refused(b"MSN2\x01\0"), ProtocolError::Node);
        assert_eq!(refused(&[b'a'; 16]), ProtocolError::Long { limit: 16 });
        assert_eq!(refused(&[b'*'; 40]), ProtocolError::Long { limit: LENGTH_LINE_BYTES_MAX });
    }

    #[test]
    fn replies_are_written_as_each_version_has_them() {
        let reply = Reply::Array(vec![
            Reply::Status("OK"),
            Reply::Error("ERR a\r\nb".to_owned()),
            Reply::Integer(-3),
            Reply::text("x"),
            Reply::Null,
            Reply::NullArray,
            Reply::Several(vec![Reply::Push(vec![Reply::Integer(1)]), Reply::Null]),
            Reply::Map(vec![("proto", Reply::Integer(3))]),
        ]);
        let written = |protocol| {
            let mut out = Vec::new();
            reply.put(protocol, &mut out);
            String::from_utf8(out).expect("it is text")
        };
        let head = "*8\r\n+OK\r\n-ERR a  b\r\n:-3\r\n$1\r\nx\r\n";
        assert_eq!(
            written(Protocol::Two),
            format!("{head}$-1\r\n*-1\r\n*1\r\n:1\r\n$-1\r\n*2\r\n$5\r\nproto\r\n:3\r\n")
        );
        assert_eq!(
            written(Protocol::Three),
            format!("{head}_\r\n_\r\n>1\r\n:1\r\n_\r\n%1\r\n$5\r\nproto\r\n:3\r\n")
        );
    }
}
