//! The connections of a client: one to each server, made again when it breaks, all looked after while their owner waits.

use mainstay_region::conversation::{LENGTH_BYTES, ToClient, ToServer, first_frame, to_client_bytes_max};
use mainstay_region::limits::Limits;
use mainstay_types::view::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
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
}

#[derive(Debug)]
struct Open {
    stream: TcpStream,
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
    pub(crate) fn new(hello: Vec<u8>, delay: Duration) -> Self {
        Self {
            links: Vec::new(),
            hello,
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
                let retry_at = Instant::now();
                self.links.push(Link { to, open: None, retry_at, error: "not connected yet".to_owned() });
            }
        }
    }

    /// Everybody.
    pub(crate) fn servers(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.links.iter().map(|link| link.to)
    }

    /// Why there is no connection to anybody; nothing if there is one.
    pub(crate) fn why_none(&self) -> Option<String> {
        if self.links.iter().any(|link| link.open.as_ref().is_some_and(|open| open.connected)) {
            return None;
        }
        let each: Vec<String> =
            self.links.iter().map(|link| format!("{}: {}", link.to, link.error)).collect();
        Some(each.join(", "))
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
        let Self { links, hello, .. } = self;
        for link in links.iter_mut() {
            if link.open.is_none() && link.retry_at <= now {
                link.connect(hello, now);
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
            let read = open.read(&mut self.scratch).and_then(|ended| {
                open.frames(link.to, &self.limits, heard)?;
                if ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
            });
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
                let blocked = open.written < open.outgoing.len() || !open.connected;
                let more = if blocked { PollFlags::OUT } else { PollFlags::empty() };
                places.push(place);
                descriptors.push(PollFd::new(&open.stream, PollFlags::IN | more));
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
    fn connect(&mut self, hello: &[u8], now: Instant) {
        match begin_connecting(self.to) {
            Ok(stream) => {
                self.open = Some(Open {
                    stream,
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

    fn close(&mut self, error: &io::Error, now: Instant) {
        self.open = None;
        self.error = error.to_string();
        self.retry_at = now + CONNECT_PAUSE;
    }
}

impl Open {
    fn release(&mut self, now: Instant) {
        while let Some((_, bytes)) = self.held.pop_front_if(|(due, _)| *due <= now) {
            self.outgoing.extend_from_slice(&bytes);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while self.written < self.outgoing.len() {
            match (&self.stream).write(&self.outgoing[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once; whether the other side has ended.
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        match (&self.stream).read(scratch) {
            Ok(0) => Ok(true),
            Ok(bytes) => {
                self.incoming.extend_from_slice(&scratch[..bytes]);
                Ok(false)
            }
            Err(error) if would_block(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn frames(
        &mut self,
        from: SocketAddr,
        limits: &Limits,
        heard: &mut Vec<(SocketAddr, ToClient)>,
    ) -> io::Result<()> {
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

/// Does not wait until the other side answers: a machine that is gone must not keep the others waiting.
fn begin_connecting(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?);
    stream.set_nodelay(true)?;
    match connect(&stream, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(stream),
        Err(error) => Err(error.into()),
    }
}

fn would_block(error: &io::Error) -> bool {
    // A connection that has not come about yet takes nothing.
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected
    )
}
