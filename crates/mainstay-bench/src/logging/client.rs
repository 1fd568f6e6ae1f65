//! One kept-alive HTTP/1.1 connection, one request at a time, on a blocking socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take: a node that died is no reason to wait for ever.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream: BufReader::new(stream), request: Vec::new() })
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Answer> {
        self.ask("GET", path, "", &[])
    }

    /// Posts with further header lines, each with its line end.
    pub(crate) fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<Answer> {
        self.ask("POST", path, headers, body)
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<Answer> {
        self.request.clear();
        let length = body.len();
        write!(
            self.request,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        )?;
        self.request.extend_from_slice(body);
        self.stream.get_mut().write_all(&self.request)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let malformed = |what: &str| io::Error::other(format!("malformed answer: {what}"));
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| malformed(&line))?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(|_| malformed(line))?;
            }
        }
        if length > ANSWER_BYTES_MAX {
            return Err(malformed("too long"));
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, body })
    }
}
