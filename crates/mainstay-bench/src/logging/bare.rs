//! The yardstick: the same ring, or stream, on blocking sockets, with nothing in between. Whole messages that one read brought
//! are passed on by one write.

use super::handler::{Lap, Load, number_of};
use super::pattern::{Heard, Place};
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// Bytes before each message that say how long it is.
const LENGTH_BYTES: usize = 4;

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Most bytes of one read.
const READ_BYTES_MAX: usize = 1 << 18;

/// What a bare node is told once all of them listen.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Neighbours {
    /// Whom it tells; nobody: whoever connected to it, on the same connection.
    pub(super) next: Option<SocketAddr>,
    /// Whether somebody else than `next` tells it, on a connection of its own.
    pub(super) previous_connects: bool,
    /// Its place: that of the head takes loads. Each node has one neighbour whom it is told by, and one whom it tells.
    pub(super) place: Place,
}

/// Listens, says where, is told its neighbours, and passes on messages until they hang up; the head takes a load a line and
/// answers with a lap a line until there are no more.
///
/// # Errors
/// Those of the sockets, and lines that are no such thing.
pub(super) fn serve(commands: &mut dyn BufRead, answers: &mut dyn Write) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    super::node::say(answers, listener.local_addr()?)?;
    let mut line = String::new();
    commands.read_line(&mut line)?;
    let neighbours: Neighbours = serde_json::from_str(&line)?;
    let next = neighbours.next.map(TcpStream::connect).transpose()?;
    let previous = neighbours.previous_connects.then(|| listener.accept()).transpose()?;
    let previous = previous.map(|(stream, _)| stream);
    let (from, to) = match (previous, next) {
        (Some(previous), Some(next)) => (previous, next),
        (Some(only), None) | (None, Some(only)) => (only.try_clone()?, only),
        (None, None) => return Err(io::Error::other("a node of a ring has a neighbour")),
    };
    to.set_nodelay(true)?;
    let mut ring = Ring { place: neighbours.place, frames: Frames::new(from), to, out: Vec::new() };
    if neighbours.place.node != 0 {
        while ring.pass_on()? {}
        return Ok(());
    }
    loop {
        line.clear();
        if commands.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let lap = ring.run(serde_json::from_str(&line)?)?;
        serde_json::to_writer(&mut *answers, &lap)?;
        writeln!(answers)?;
        answers.flush()?;
    }
}

struct Ring {
    place: Place,
    frames: Frames,
    to: TcpStream,
    out: Vec<u8>,
}

impl Ring {
    /// Passes on what one read brings; false when there is no more.
    fn pass_on(&mut self) -> io::Result<bool> {
        if !self.frames.read()? {
            return Ok(false);
        }
        let mut heard = Heard::default();
        while let Some(body) = self.frames.next()? {
            let number = number_of(body).ok_or_else(|| io::Error::other("a message without a number"))?;
            // In a ring and in a stream everybody tells one other only.
            self.place.told(0, number, &mut heard, |_| put(&mut self.out, body));
        }
        self.write()?;
        Ok(true)
    }

    fn run(&mut self, load: Load) -> io::Result<Lap> {
        let messages = load.messages as usize;
        let mut sent = Vec::with_capacity(messages);
        let mut latency_ns = Vec::with_capacity(messages);
        let begun = Instant::now();
        for number in 0..load.window {
            sent.push(Instant::now());
            put(&mut self.out, &load.message(number));
        }
        self.write()?;
        while latency_ns.len() < messages {
            if !self.frames.read()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            let mut heard = Heard::default();
            while let Some(body) = self.frames.next()? {
                let number = number_of(body).filter(|number| (*number as usize) < sent.len());
                let number =
                    number.ok_or_else(|| io::Error::other("a message came back that was not sent"))?;
                for number in self.place.came_back(number, &mut heard) {
                    latency_ns.push(nanoseconds(now.duration_since(sent[number as usize])));
                    if sent.len() < messages {
                        let number =
                            u32::try_from(sent.len()).expect("a load's messages are counted in 32 bits");
                        sent.push(now);
                        put(&mut self.out, &load.message(number));
                    }
                }
            }
            self.write()?;
        }
        Ok(Lap { elapsed_ns: nanoseconds(begun.elapsed()), latency_ns })
    }

    fn write(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.to.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, body: &[u8]) {
    let length = u32::try_from(body.len()).expect("messages are short");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(body);
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Messages as they come from a socket.
struct Frames {
    from: TcpStream,
    bytes: Vec<u8>,
    /// What is not taken yet: from here ..
    start: usize,
    /// .. to here.
    end: usize,
}

impl Frames {
    fn new(from: TcpStream) -> Self {
        Self { from, bytes: vec![0; READ_BYTES_MAX + MESSAGE_BYTES_MAX], start: 0, end: 0 }
    }

    /// Reads once; false at the end. All whole messages of the read before have been taken.
    fn read(&mut self) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let count = self.from.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count > 0)
    }

    /// The next whole message of what was read.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let rest = &self.bytes[self.start..self.end];
        let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("the message is too long"));
        }
        let whole = LENGTH_BYTES + length;
        if rest.len() < whole {
            return Ok(None);
        }
        let body = self.start + LENGTH_BYTES..self.start + whole;
        self.start += whole;
        Ok(Some(&self.bytes[body]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let mut to = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let mut frames = Frames::new(listener.accept().expect("it connected").0);
        let mut out = Vec::new();
        put(&mut out, b"first");
        put(&mut out, b"");
        put(&mut out, &[7; 3000]);
        let mut got = Vec::new();
        let cut = 11;
        for part in [&out[..cut], &out[cut..]] {
            to.write_all(part).expect("there is room");
            let wanted = if part.len() == cut { 1 } else { 3 };
            while got.len() < wanted {
                assert!(frames.read().expect("it is open"));
                while let Some(body) = frames.next().expect("well formed") {
                    got.push(body.to_vec());
                }
            }
        }
        assert_eq!(got, [b"first".to_vec(), Vec::new(), vec![7; 3000]]);
        to.write_all(&u32::MAX.to_le_bytes()).expect("there is room");
        while frames.end - frames.start < LENGTH_BYTES {
            assert!(frames.read().expect("it is open"));
        }
        assert!(frames.next().is_err(), "nobody sends so much");
    }
}
