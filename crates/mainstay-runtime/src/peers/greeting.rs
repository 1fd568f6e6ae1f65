//! The first words on a connection: TLS if there is any, a preamble from each side, a verdict from each side.

use crate::peers::event::ConnectError;
use crate::peers::preamble::{
    HEAD_BYTES, MAGIC, PREAMBLE_BYTES, Preamble, PreambleError, REFUSAL_TEXT_BYTES_MAX, Refusal,
    VERDICT_HEAD_BYTES, Verdict,
};
use crate::peers::settings::{HEARTBEATS_IN_SILENCE_MIN, PeerAddress, PeersSettings};
use crate::peers::tls::{self, Tls};
use mainstay_types::id::NodeId;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Both sides agreed to talk.
pub(super) struct Greeted {
    pub(super) node: NodeId,
    /// Longest frame that the peer takes, in bytes.
    pub(super) frame_bytes_max: u32,
    pub(super) socket: TcpStream,
    pub(super) tls: Option<rustls::Connection>,
}

/// No agreement, and with whom, as far as the other said.
pub(super) struct Ungreeted {
    pub(super) node: Option<NodeId>,
    pub(super) why: ConnectError,
}

impl<E: Into<ConnectError>> From<E> for Ungreeted {
    fn from(why: E) -> Self {
        Self { node: None, why: why.into() }
    }
}

/// Greets whoever is at the other end; `dialled` is whom this node means to reach, `None` when it was reached itself.
pub(super) fn greet(
    settings: &PeersSettings,
    tls: Option<&Tls>,
    dialled: Option<&PeerAddress>,
    socket: TcpStream,
) -> Result<Greeted, Ungreeted> {
    let tls = match (tls, dialled) {
        (None, _) => None,
        (Some(tls), Some(peer)) => Some(tls.dial(&peer.name).map_err(|source| ConnectError::Tls { source })?),
        (Some(tls), None) => Some(tls.accept().map_err(|source| ConnectError::Tls { source })?),
    };
    socket.set_nodelay(true).map_err(ConnectError::Broken)?;
    let mut wire = Wire {
        socket: Deadlined { socket: &socket, deadline: Instant::now() + settings.connect_timeout },
        tls,
        connect_timeout: settings.connect_timeout,
    };
    let theirs = wire.greet(settings, dialled)?;
    let Wire { tls, .. } = wire;
    socket
        .set_read_timeout(Some(settings.silence_max))
        .and_then(|()| socket.set_write_timeout(None))
        .map_err(ConnectError::Broken)?;
    Ok(Greeted { node: theirs.from, frame_bytes_max: theirs.frame_bytes_max, socket, tls })
}

/// Reads before a node that was refused, and goes on talking, is cut off: a few TLS records, a preamble and a verdict fit.
const LINGER_READS_MAX: usize = 16;

struct Wire<'a> {
    socket: Deadlined<'a>,
    tls: Option<rustls::Connection>,
    connect_timeout: Duration,
}

impl Wire<'_> {
    fn greet(
        &mut self,
        settings: &PeersSettings,
        dialled: Option<&PeerAddress>,
    ) -> Result<Preamble, Ungreeted> {
        if let Some(tls) = &mut self.tls
            && let Err(error) = tls.complete_io(&mut self.socket)
        {
            // It says why by an alert.
            self.linger();
            return Err(failed(error, self.connect_timeout).into());
        }
        // An accepting node waits to hear whom it has before it; a dialling one has to say whom it means.
        if let Some(peer) = dialled {
            self.write(&preamble(settings, peer.node).encode())?;
        }
        let mut bytes = [0; PREAMBLE_BYTES];
        // Not more at once: an alert of TLS, by which a peer that wants TLS answers, is shorter than a head.
        self.read(&mut bytes[..MAGIC.len()])?;
        Preamble::check_magic(&bytes)?;
        self.read(&mut bytes[MAGIC.len()..HEAD_BYTES])?;
        if let Err(PreambleError::Version { theirs }) = Preamble::check_head(&bytes) {
            // Its preamble may be of any length; the words of a refusal stay the same in every version.
            let refusal = Refusal::Version { theirs };
            self.refuse(settings, dialled, settings.me, &refusal);
            return Err(refusal.into());
        }
        self.read(&mut bytes[HEAD_BYTES..])?;
        let theirs = Preamble::decode(&bytes).map_err(ConnectError::from)?;
        if let Some(refusal) = self.refusal(settings, dialled, &theirs) {
            self.refuse(settings, dialled, theirs.from, &refusal);
            return Err(Ungreeted { node: Some(theirs.from), why: refusal.into() });
        }
        if dialled.is_none() {
            self.write(&preamble(settings, theirs.from).encode())?;
        }
        self.write(&Verdict::Welcome.encode())?;
        self.hear_verdict().map_err(|why| Ungreeted { node: Some(theirs.from), why })?;
        Ok(theirs)
    }

    fn hear_verdict(&mut self) -> Result<(), ConnectError> {
        let mut bytes = vec![0; VERDICT_HEAD_BYTES];
        self.read(&mut bytes)?;
        let text_bytes = Verdict::text_bytes(&bytes)?.ok_or(ConnectError::Verdict)?;
        debug_assert!(text_bytes <= REFUSAL_TEXT_BYTES_MAX, "longer ones are none");
        bytes.resize(VERDICT_HEAD_BYTES + text_bytes, 0);
        self.read(&mut bytes[VERDICT_HEAD_BYTES..])?;
        match Verdict::decode(&bytes)? {
            Verdict::Welcome => Ok(()),
            Verdict::Refused { code, text } => Err(ConnectError::RefusedByPeer { code, text }),
        }
    }

    fn refusal(
        &self,
        settings: &PeersSettings,
        dialled: Option<&PeerAddress>,
        theirs: &Preamble,
    ) -> Option<Refusal> {
        let Preamble { cluster, from, to, heartbeat_ms, .. } = *theirs;
        let me = settings.me;
        if cluster != settings.cluster {
            return Some(Refusal::Cluster { theirs: cluster, ours: settings.cluster });
        }
        if from == me {
            return Some(Refusal::Itself { node: me });
        }
        let Some(peer) = settings.nodes.iter().find(|peer| peer.node == from) else {
            return Some(Refusal::UnknownNode { node: from });
        };
        if to != me {
            return Some(Refusal::OtherNode { meant: to, ours: me });
        }
        match dialled {
            Some(dialled) if dialled.node != from => {
                return Some(Refusal::OtherNode { meant: dialled.node, ours: from });
            }
            None if from > me => return Some(Refusal::Direction { node: from }),
            _ => {}
        }
        if self.tls.as_ref().is_some_and(|tls| !tls::carries_name(tls, &peer.name)) {
            return Some(Refusal::Certificate { name: peer.name.clone() });
        }
        let heartbeat = Duration::from_millis(u64::from(heartbeat_ms));
        if heartbeat * HEARTBEATS_IN_SILENCE_MIN > settings.silence_max {
            let silence_ms = u64::try_from(settings.silence_max.as_millis()).unwrap_or(u64::MAX);
            return Some(Refusal::Heartbeat { theirs_ms: heartbeat_ms, silence_ms });
        }
        None
    }

    /// Says why. What fails here changes nothing, since there will be no connection anyway.
    fn refuse(
        &mut self,
        settings: &PeersSettings,
        dialled: Option<&PeerAddress>,
        to: NodeId,
        refusal: &Refusal,
    ) {
        let mut bytes = Vec::new();
        if dialled.is_none() {
            bytes.extend_from_slice(&preamble(settings, to).encode());
        }
        bytes.extend_from_slice(&Verdict::from(refusal).encode());
        if self.write(&bytes).is_ok() {
            self.linger();
        }
    }

    /// Waits until the other has hung up, or the deadline: closing a socket with bytes unread would destroy what was sent last.
    fn linger(&mut self) {
        if self.socket.socket.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut rest = [0; 1024];
        for _ in 0..LINGER_READS_MAX {
            if !matches!(self.socket.read(&mut rest), Ok(1..)) {
                break;
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectError> {
        let connect_timeout = self.connect_timeout;
        self.try_write(bytes).map_err(|error| failed(error, connect_timeout))
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes) };
        tls.writer().write_all(bytes)?;
        while tls.wants_write() {
            tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), ConnectError> {
        let connect_timeout = self.connect_timeout;
        self.try_read(bytes).map_err(|error| failed(error, connect_timeout))
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.read_exact(bytes) };
        let mut filled = 0;
        while filled < bytes.len() {
            match tls.reader().read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(taken) => filled += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Reads once, and sends what TLS has to say to that, alerts included.
                    if tls.complete_io(&mut self.socket)? == (0, 0) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn preamble(settings: &PeersSettings, to: NodeId) -> Preamble {
    Preamble {
        cluster: settings.cluster,
        from: settings.me,
        to,
        frame_bytes_max: settings.frame_bytes_max,
        heartbeat_ms: u32::try_from(settings.heartbeat_every.as_millis()).unwrap_or(u32::MAX),
    }
}

fn failed(error: io::Error, connect_timeout: Duration) -> ConnectError {
    if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
        return ConnectError::Timeout { connect_timeout };
    }
    match error.downcast::<rustls::Error>() {
        Ok(source) => ConnectError::Tls { source },
        Err(error) => ConnectError::Broken(error),
    }
}

/// A socket whose every wait ends at the same moment, however slowly the other speaks.
struct Deadlined<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl Deadlined<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Deadlined<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        (&mut &*self.socket).read(bytes)
    }
}

impl Write for Deadlined<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        (&mut &*self.socket).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
