//! What protects connections: mutually authenticated TLS or, on loopback only, nothing.
//!
//! A node proves that it is at the address by which the group knows it: its certificate carries that IP address. Several nodes of one machine
//! are not told apart by it. A client proves only that it belongs to the cluster.

use mainstay_tls::{Tls, TlsError, TlsFiles, carries_address};
use rustls::pki_types::{CertificateDer, ServerName};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long the handshake may take, once there is a connection.
const HANDSHAKE_MAX: Duration = Duration::from_secs(3);

/// How long whoever is refused may take to hear why.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// How long the other machine may leave unacknowledged what was sent to it. After a cut, a connection would send again only after about as long
/// as the cut took; a new one comes about as soon as the link is there.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);

/// How TLS begins from the side that answers with an alert, and from the side that dials.
const TLS_BEGINNINGS: [&[u8]; 2] = [&[0x15, 3], &[0x16, 3]];

/// Bytes both ways, encrypted or not.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection.
pub(crate) type Stream = Box<dyn Duplex>;

/// A connection did not come about, or was not gone on with. Nothing was taken from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// Nobody is there, or it broke.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// It took too long.
    #[error("no agreement within {HANDSHAKE_MAX:?}")]
    Timeout,
    /// An address off this machine, in plain text.
    #[error(
        "plain text does not leave the machine, and {address} is not on loopback: give all nodes --tls and --name (`mainstay cert --help`)"
    )]
    PlainBeyondLoopback {
        /// Whom to reach.
        address: SocketAddr,
    },
    /// One does not trust the other.
    #[error("TLS: {source}{}", mainstay_tls::remedy(source))]
    Tls {
        /// Why.
        source: rustls::Error,
    },
    /// The other was started with certificates, and this node without.
    #[error("it uses TLS, and this node was started without: give all nodes --tls and --name")]
    OtherUsesTls,
}

impl ConnectError {
    /// Whether a person has to do something about it: it is not just that the other is not there.
    pub(crate) fn is_refusal(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Timeout)
    }
}

/// Whether bytes are how TLS begins, from either side.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    TLS_BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// TLS says what is wrong inside an error of the connection.
pub(crate) fn explained(error: io::Error) -> ConnectError {
    match error.downcast::<rustls::Error>() {
        Ok(source) => ConnectError::Tls { source },
        Err(error) => ConnectError::Broken(error),
    }
}

/// The certificate that the other side has shown; none in plain text.
#[derive(Debug)]
pub(crate) struct Shown(Option<CertificateDer<'static>>);

impl Shown {
    /// Whether whoever speaks may be at that address.
    pub(crate) fn carries(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_none_or(|certificate| carries_address(certificate, address))
    }
}

/// What all connections of a node are protected by.
#[derive(Clone, Debug)]
pub(crate) enum Security {
    /// Nothing.
    Plain,
    /// TLS with these certificates.
    Tls(Tls),
}

impl Security {
    /// Reads the certificates of the node of this name.
    pub(crate) fn load(certified: Option<&(TlsFiles, String)>) -> Result<Self, TlsError> {
        match certified {
            None => Ok(Self::Plain),
            Some((files, name)) => Tls::load(files, name).map(Self::Tls),
        }
    }

    /// Checks that others will take this node for the one at that address.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), TlsError> {
        match self {
            Self::Plain => Ok(()),
            Self::Tls(tls) => tls.check_address(address),
        }
    }

    /// Connects to the node at that address, and to nobody else; `connect_max` is how long it may take until there is a connection.
    pub(crate) async fn dial(&self, to: SocketAddr, connect_max: Duration) -> Result<Stream, ConnectError> {
        if matches!(self, Self::Plain) && !to.ip().is_loopback() {
            return Err(ConnectError::PlainBeyondLoopback { address: to });
        }
        let stream = match timeout(connect_max, TcpStream::connect(to)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        };
        stream.set_nodelay(true)?;
        let patience_ms = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).expect("it is short");
        rustix::net::sockopt::set_tcp_user_timeout(&stream, patience_ms).map_err(io::Error::from)?;
        let Self::Tls(tls) = self else { return Ok(Box::new(stream)) };
        let handshake = TlsConnector::from(tls.client()).connect(ServerName::from(to.ip()), stream);
        match timeout(HANDSHAKE_MAX, handshake.into_fallible()).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err((error, mut stream))) => {
                linger(&mut stream).await;
                Err(explained(error))
            }
            Err(_) => Err(ConnectError::Timeout),
        }
    }

    /// Answers whoever has connected.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<(Stream, Shown), ConnectError> {
        stream.set_nodelay(true)?;
        let Self::Tls(tls) = self else { return Ok((Box::new(stream), Shown(None))) };
        let handshake = TlsAcceptor::from(tls.server()).accept(stream);
        match timeout(HANDSHAKE_MAX, handshake.into_fallible()).await {
            Ok(Ok(stream)) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let shown = Shown(shown.map(|certificate| certificate.clone().into_owned()));
                assert!(shown.0.is_some(), "no handshake ends without a certificate");
                Ok((Box::new(stream), shown))
            }
            Ok(Err((error, mut stream))) => {
                linger(&mut stream).await;
                Err(explained(error))
            }
            Err(_) => Err(ConnectError::Timeout),
        }
    }
}

/// Waits until the other has hung up: closing a socket with bytes unread would destroy what was sent last, an alert of TLS among it.
pub(crate) async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let mut rest = [0; 4096];
    let _ = timeout(REFUSAL_MAX, async {
        if stream.shutdown().await.is_ok() {
            while matches!(stream.read(&mut rest).await, Ok(1..)) {}
        }
    })
    .await;
}

/// What was refused last: who is refused tries again and again, and one line in the log is enough.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complaints(Arc<Mutex<Option<(IpAddr, String)>>>);

impl Complaints {
    /// Logs why a connection with somebody did not come about.
    pub(crate) fn log(&self, other: SocketAddr, what: &str, error: &ConnectError) {
        let text = error.to_string();
        if !error.is_refusal() {
            tracing::debug!(%other, error = text, "{what}");
            return;
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(ip, said)| *ip != other.ip() || *said != text) {
            tracing::warn!(%other, error = text, "{what}");
            *last = Some((other.ip(), text));
        }
    }
}

#[cfg(test)]
mod tests;
