//! The connections of a client: one to each server, made again when it breaks, all looked after while their owner waits.

use crate::wire::{Wire, WireError};
use mainstay_region::conversation::{LENGTH_BYTES, ToClient, ToServer, first_frame, to_client_bytes_max};
use mainstay_region::limits::Limits;
use mainstay_tls::TlsClient;
use mainstay_types::view::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Bytes that wait for one server; beyond, what is said is dropped, and said again when nothing comes of it.
const OUTGOING_BYTES_MAX: usize = 64 << 20;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The connections.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// What is said first.
    hello: Vec<u8>,
    tls: Option<TlsClient>,
    delay: Duration,
    scratch: Vec<u8>,
    limits: Limits,
    /// Frames said since the start.
    pub(crate) said: u64,
}

#[derive(Debug)]
struct Link {
    to: SocketAddr,
    open: Option<Open>,
    /// No attempt before.
    retry_at: Instant,
    error: String,
    /// What ended the last attempt ends the next one too.
    refused: bool,
    /// Connections made until now.
    made: u64,
}

#[derive(Debug)]
struct Open {
    wire: Wire,
    /// It has taken bytes: the connection is there.
    connected: bool,
    outgoing: Vec<u8>,
    written: usize,
    /// Held back for [`Links::delay`].
    held: VecDeque<(Instant, Vec<u8>)>,
    incoming: Vec<u8>,
    taken: usize,
}

/// Where a member is.
pub(crate) fn socket_of(address: Address) -> SocketAddr {
    SocketAddr::new(IpAddr::from(address.ip).to_canonical(), address.port)
}

impl Links {
    pub(crate) fn new(tls: Option<TlsClient>, delay: Duration) -> Self {
        Self {
            links: Vec::new(),
            hello: Vec::new(),
            tls,
            delay,
            scratch: vec![0; READ_BYTES],
            limits: Limits::default(),
            said: 0,
        }
    }

    /// Says this first on connections made from now on.
    pub(crate) fn hello(&mut self, hello: Vec<u8>) {
        self.hello = hello;
    }

    /// Speaks to these from now on, and to nobody else but `kept`.
    pub(crate) fn know(&mut self, servers: &[SocketAddr], kept: &[SocketAddr]) {
        self.links.retain(|link| servers.contains(&link.to) || kept.contains(&link.to));
        for &to in servers {
            if !self.links.iter().any(|link| link.to == to) {
                let (error, now) = ("not connected yet".to_owned(), Instant::now());
                let mut link = Link { to, open: None, retry_at: now, error, refused: false, made: 0 };
                // At once: what is said to it from now on is on its way, and not dropped.
                link.connect(&self.hello, self.tls.as_ref(), now);
                self.links.push(link);
            }
        }
    }

    /// Everybody.
    pub(crate) fn servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.links.iter().map(|link| link.to)
    }

    /// The number of the connection to a server; `None` if none has come about.
    pub(crate) fn connection(&self, to: SocketAddr) -> Option<u64> {
        let link = self.links.iter().find(|link| link.to == to)?;
        link.open.as_ref().filter(|open| open.connected).map(|_| link.made)
    }

    /// Breaks the connection to a server: with the next [`Self::turn`] another one is made.
    pub(crate) fn drop_connection(&mut self, to: SocketAddr) {
        if let Some(link) = self.links.iter_mut().find(|link| link.to == to) {
            link.open = None;
            link.retry_at = Instant::now();
        }
    }

    /// Why there is no connection to anybody; nothing if there is one.
    pub(crate) fn why_none(&self) -> Option<String> {
        let there = |open: &Open| open.connected && open.wire.is_agreed();
        if self.links.iter().any(|link| !link.refused && link.open.as_ref().is_some_and(there)) {
            return None;
        }
        let each: Vec<String> =
            self.links.iter().map(|link| format!("{}: {}", link.to, link.error)).collect();
        Some(each.join(", "))
    }

    /// Why nobody will speak to this client, however often it asks.
    pub(crate) fn all_refuse(&self) -> Option<String> {
        let all = !self.links.is_empty() && self.links.iter().all(|link| link.refused);
        if all { self.why_none() } else { None }
    }

    /// Says something with the next [`Self::turn`]; nothing, if there is no connection.
    pub(crate) fn say(&mut self, to: SocketAddr, frame: &ToServer) {
        let delay = self.delay;
        let Some(open) = self.links.iter_mut().find(|link| link.to == to).and_then(|link| link.open.as_mut())
        else {
            return;
        };
        if open.outgoing.len() - open.written > OUTGOING_BYTES_MAX {
            return;
        }
        self.said += 1;
        if delay.is_zero() {
            frame.put(&mut open.outgoing);
        } else {
            let mut bytes = Vec::new();
            frame.put(&mut bytes);
            open.held.push_back((Instant::now() + delay, bytes));
        }
    }

    /// Writes what there is to say, waits until somebody speaks or `until`, and reads.
    pub(crate) fn turn(&mut self, until: Instant, heard: &mut Vec<(SocketAddr, ToClient)>) {
        let mut wake = until;
        let now = Instant::now();
        let Self { links, hello, tls, .. } = self;
        for link in links.iter_mut() {
            if link.open.is_none() && link.retry_at <= now {
                link.connect(hello, tls.as_ref(), now);
            }
            if let Some(open) = &mut link.open {
                open.release(now);
                if let Err(error) = open.write() {
                    link.close(&error, now);
                }
            }
            let next = match &link.open {
                Some(open) => open.held.front().map_or(until, |(due, _)| *due),
                None => link.retry_at,
            };
            wake = wake.min(next);
        }
        let speaking = self.wait(wake.saturating_duration_since(now));
        let now = Instant::now();
        for place in speaking {
            let link = &mut self.links[place];
            let Some(open) = &mut link.open else { continue };
            open.connected = true;
            let heard_before = heard.len();
            let read = open.wire.read(&mut self.scratch, &mut open.incoming).and_then(|ended| {
                open.frames(link.to, &self.limits, heard)?;
                if ended { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
            });
            link.refused &= heard.len() == heard_before;
            if let Err(error) = read {
                link.close(&error, now);
            }
        }
    }

    /// The places of those that can be read, or have come about.
    fn wait(&self, pause: Duration) -> Vec<usize> {
        let mut places = Vec::with_capacity(self.links.len());
        let mut descriptors = Vec::with_capacity(self.links.len());
        for (place, link) in self.links.iter().enumerate() {
            if let Some(open) = &link.open {
                let waiting_bytes = open.outgoing.len() - open.written;
                let blocked = !open.connected || open.wire.is_blocked(waiting_bytes);
                let more = if blocked { PollFlags::OUT } else { PollFlags::empty() };
                places.push(place);
                descriptors.push(PollFd::new(&open.wire, PollFlags::IN | more));
            }
        }
        let pause = Timespec::try_from(pause).expect("a pause is short");
        // Interrupted, nothing is read, and the owner comes again.
        if poll(&mut descriptors, Some(&pause)).is_err() {
            return Vec::new();
        }
        let spoke = places.iter().zip(&descriptors);
        spoke.filter(|(_, descriptor)| !descriptor.revents().is_empty()).map(|(&place, _)| place).collect()
    }
}

impl Link {
    fn connect(&mut self, hello: &[u8], tls: Option<&TlsClient>, now: Instant) {
        match Wire::begin(self.to, tls) {
            Ok(wire) => {
                self.made += 1;
                self.open = Some(Open {
                    wire,
                    connected: false,
                    outgoing: hello.to_vec(),
                    written: 0,
                    held: VecDeque::new(),
                    incoming: Vec::new(),
                    taken: 0,
                });
            }
            Err(error) => self.close(&error, now),
        }
    }

    fn close(&mut self, error: &WireError, now: Instant) {
        self.open = None;
        // Not being there now does not unsay why it refused.
        if !self.refused || error.is_refusal() {
            self.error = error.to_string();
        }
        self.refused |= error.is_refusal();
        self.retry_at = now + CONNECT_PAUSE;
    }
}

impl Open {
    fn release(&mut self, now: Instant) {
        while let Some((_, bytes)) = self.held.pop_front_if(|(due, _)| *due <= now) {
            self.outgoing.extend_from_slice(&bytes);
        }
    }

    fn write(&mut self) -> Result<(), WireError> {
        self.written += self.wire.write(&self.outgoing[self.written..])?;
        if self.written == self.outgoing.len() {
            self.outgoing.clear();
            self.written = 0;
        }
        Ok(())
    }

    fn frames(
        &mut self,
        from: SocketAddr,
        limits: &Limits,
        heard: &mut Vec<(SocketAddr, ToClient)>,
    ) -> Result<(), WireError> {
        let bytes_max = to_client_bytes_max(limits);
        while let Some(bytes) =
            first_frame(&self.incoming[self.taken..], bytes_max).map_err(io::Error::other)?
        {
            let at = self.taken + LENGTH_BYTES;
            let frame = &self.incoming[at..at + bytes];
            heard.push((from, ToClient::parse(frame, limits).map_err(io::Error::other)?));
            self.taken = at + bytes;
        }
        self.incoming.drain(..self.taken);
        self.taken = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// It was dropped, since there was no connection, and said again only when nothing had come of it for long: the first write to a node that joins.
    #[test]
    fn what_is_said_to_a_server_that_was_just_heard_of_reaches_it() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = server.local_addr().expect("it listens");
        let mut links = Links::new(None, Duration::ZERO);
        links.hello(b"hello".to_vec());
        links.know(&[at], &[]);
        links.say(at, &ToServer::AskStanding);
        let mut expected = b"hello".to_vec();
        ToServer::AskStanding.put(&mut expected);
        // Whatever was said is written by then.
        for _ in 0..2 {
            links.turn(Instant::now() + Duration::from_millis(20), &mut Vec::new());
        }
        drop(links);
        let (mut stream, _) = server.accept().expect("it connects");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("it ends");
        assert_eq!(said, expected);
    }
}
