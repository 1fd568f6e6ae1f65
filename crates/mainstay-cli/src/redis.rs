//! A blocking client of the Redis protocol, as small as commands and demo need it: one connection, commands out, replies in.

use mainstay_tls::{TlsClient, explained};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest string that is taken in a reply, in bytes.
const STRING_BYTES_MAX: usize = 64 << 20;

/// Most items that are taken in a reply.
const ITEMS_MAX: usize = 1 << 16;

/// What a server said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// A word such as `OK`.
    Status(String),
    /// What went wrong.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Nothing there.
    Null,
    /// Several.
    Array(Vec<Self>),
}

impl Said {
    /// The text of a string.
    ///
    /// # Errors
    /// When it is something else: an error in its own words.
    pub(crate) fn text(self) -> anyhow::Result<String> {
        match self {
            Self::Bulk(bytes) => Ok(String::from_utf8(bytes)?),
            Self::Status(text) => Ok(text),
            other => anyhow::bail!("{other}"),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) | Self::Error(text) => f.write_str(text),
            other => write!(f, "an unexpected reply: {other:?}"),
        }
    }
}

/// Bytes both ways, encrypted or not.
trait Duplex: Read + Write + Send + fmt::Debug {}

impl<S: Read + Write + Send + fmt::Debug> Duplex for S {}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<Box<dyn Duplex>>);

impl Connection {
    /// Connects; nothing afterwards waits longer than `timeout`.
    ///
    /// # Errors
    /// When nobody listens.
    pub(crate) fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Ok(Self(BufReader::new(Box::new(connect(address, timeout)?))))
    }

    /// The same by TLS, to a node whose certificate carries that address.
    ///
    /// # Errors
    /// When nobody listens, or one does not trust the other.
    pub(crate) fn open_tls(address: SocketAddr, timeout: Duration, tls: &TlsClient) -> io::Result<Self> {
        let stream = tls.over(connect(address, timeout)?, address.ip())?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Sends commands in one write.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn send(&mut self, commands: &[&[&[u8]]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for words in commands {
            write!(bytes, "*{}\r\n", words.len())?;
            for word in *words {
                write!(bytes, "${}\r\n", word.len())?;
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        let stream = self.0.get_mut();
        stream.write_all(&bytes)?;
        stream.flush()
    }

    /// The next reply.
    ///
    /// # Errors
    /// Those of the connection; what is no reply.
    pub(crate) fn read(&mut self) -> io::Result<Said> {
        let mut line = String::new();
        if (&mut self.0).take(STRING_BYTES_MAX as u64).read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_alert_line(&line) {
            return Err(io::Error::other("it uses TLS: give --tls and --name"));
        }
        let line = line.trim_end();
        let no_reply = || io::Error::other(format!("`{line}` is no reply"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(no_reply)?;
        let length = |max: usize| {
            let length: usize = rest.parse().map_err(|_| no_reply())?;
            if length <= max { Ok(length) } else { Err(no_reply()) }
        };
        match kind {
            "+" => Ok(Said::Status(rest.to_owned())),
            "-" => Ok(Said::Error(rest.to_owned())),
            ":" => rest.parse().map(Said::Integer).map_err(|_| no_reply()),
            "$" | "*" if rest == "-1" => Ok(Said::Null),
            "$" => {
                let mut bytes = vec![0; length(STRING_BYTES_MAX)? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(Said::Bulk(bytes))
            }
            "*" => (0..length(ITEMS_MAX)?).map(|_| self.read()).collect::<io::Result<_>>().map(Said::Array),
            _ => Err(no_reply()),
        }
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Said> {
        self.send(&[words]).map_err(explained)?;
        self.read().map_err(explained)
    }
}

/// Whether this is how an alert of TLS begins, which is all that a server says that expects TLS; it may have a line break in it.
fn is_alert_line(line: &str) -> bool {
    line.starts_with("\u{15}\u{3}")
}

fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}
