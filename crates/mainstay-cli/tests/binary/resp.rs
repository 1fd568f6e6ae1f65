//! A connection of the Redis protocol, as small as tests need it.

use mainstay_tls::TlsClient;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than a node holds a command.
const PATIENCE: Duration = Duration::from_secs(12);

/// What a node says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// A word or a text.
    Text(String),
    Number(i64),
    Nothing,
    Error(String),
}

impl Reply {
    /// What a node says that has done it.
    pub(crate) fn ok() -> Self {
        Self::Text("OK".to_owned())
    }

    /// Whether it is an error with all of these words.
    pub(crate) fn refuses(&self, words: &[&str]) -> bool {
        matches!(self, Self::Error(why) if words.iter().all(|word| why.contains(word)))
    }
}

/// A connection.
pub(crate) struct Speaker(BufReader<Box<dyn Duplex>>);

trait Duplex: Read + Write + Send {}

impl<S: Read + Write + Send> Duplex for S {}

impl Speaker {
    /// By TLS, if there is a certificate to show.
    pub(crate) fn open(at: SocketAddr, tls: Option<&TlsClient>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(match tls {
            Some(tls) => Box::new(tls.over(stream, at.ip())?),
            None => Box::new(stream),
        })))
    }

    pub(crate) fn say(&mut self, words: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(bytes.as_bytes())?;
        self.0.get_mut().flush()
    }

    pub(crate) fn hear(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(rest.parse().map_err(io::Error::other)?),
            "$" if rest == "-1" => Reply::Nothing,
            "$" => Reply::Text(self.line()?),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.say(words)?;
        self.hear()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}
