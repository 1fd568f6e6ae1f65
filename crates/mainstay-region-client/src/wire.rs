//! What the bytes of a connection go through: the socket as it is, or TLS over it. Nothing here waits.

use mainstay_tls::{TlsClient, is_alert, remedy};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::ClientConnection;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// A connection has ended, or did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// Nobody is there, or it broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// One does not trust the other.
    #[error("TLS: {source}{}", remedy(source))]
    Tls {
        /// Why.
        #[from]
        source: rustls::Error,
    },
    /// The server was started with certificates, and this client without.
    #[error("it uses TLS, and this client has no certificate: give it one in `Settings::tls`")]
    ServerUsesTls,
}

impl WireError {
    /// Whether a person has to do something about it: the next attempt ends as this one.
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(self, Self::Broken(_))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// Nothing has come yet.
    unheard: bool,
}

impl Wire {
    /// Begins to connect, and does not wait until the other side answers: a machine that is gone must not keep the others waiting.
    pub(crate) fn begin(to: SocketAddr, tls: Option<&TlsClient>) -> Result<Self, WireError> {
        let tls = tls.map(|tls| tls.connection(to.ip())).transpose()?;
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        match connect(&stream, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {
                Ok(Self { stream, tls: tls.map(Box::new), unheard: true })
            }
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Whether both sides have agreed how to speak.
    pub(crate) fn is_agreed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking())
    }

    /// Whether it could do something if the socket took more, when so many bytes wait to be written.
    pub(crate) fn is_blocked(&self, waiting_bytes: usize) -> bool {
        self.tls.as_ref().map_or(waiting_bytes > 0, |tls| tls.wants_write())
    }

    /// Writes what it takes of these; how many bytes it took.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<usize, WireError> {
        let all = bytes.len();
        loop {
            let took = match &mut self.tls {
                None if bytes.is_empty() => 0,
                None => unless_blocked((&self.stream).write(bytes))?,
                Some(tls) => {
                    let took = tls.writer().write(bytes)?;
                    if !flush(tls, &mut self.stream)? {
                        return Ok(all - bytes.len() + took);
                    }
                    took
                }
            };
            bytes = &bytes[took..];
            if took == 0 || bytes.is_empty() {
                return Ok(all - bytes.len());
            }
        }
    }

    /// Reads once, and appends what came; whether the other side has ended.
    pub(crate) fn read(&mut self, scratch: &mut [u8], incoming: &mut Vec<u8>) -> Result<bool, WireError> {
        let Some(tls) = &mut self.tls else {
            return match (&self.stream).read(scratch) {
                Ok(0) if self.unheard && is_alert(incoming) => Err(WireError::ServerUsesTls),
                Ok(0) => Ok(true),
                Ok(bytes) => {
                    incoming.extend_from_slice(&scratch[..bytes]);
                    self.unheard &= is_alert(incoming);
                    Ok(false)
                }
                Err(error) => unless_blocked(Err(error)).map(|_| false),
            };
        };
        match tls.read_tls(&mut self.stream) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) => return unless_blocked(Err(error)).map(|_| false),
        }
        if let Err(error) = tls.process_new_packets() {
            // The other side is told, as far as it listens.
            let _ = flush(tls, &mut self.stream);
            return Err(error.into());
        }
        loop {
            match tls.reader().read(scratch) {
                Ok(0) => return Ok(true),
                Ok(bytes) => incoming.extend_from_slice(&scratch[..bytes]),
                Err(error) => return unless_blocked(Err(error)).map(|_| false),
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Brings to the socket what TLS has to say; whether it took all of it.
fn flush(tls: &mut ClientConnection, stream: &mut TcpStream) -> Result<bool, WireError> {
    while tls.wants_write() {
        if unless_blocked(tls.write_tls(stream))? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Nothing, where it would have to be waited for.
fn unless_blocked(done: io::Result<usize>) -> Result<usize, WireError> {
    match done {
        // A connection that has not come about yet takes nothing.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected
            ) =>
        {
            Ok(0)
        }
        done => Ok(done?),
    }
}
