//! Connections between nodes: one for each pair and direction, over which messages arrive in order or not at all.
//!
//! ```text
//!   this node ── connects ──> other node      a head that says who speaks, then messages behind their length
//!   this node <── connects ── other node
//! ```
//!
//! What is sent in one step goes out in one write. Nothing is kept for a node that cannot be reached: group and region send again what matters.
//! The head is 4 bytes `MSN1`, the speaker's address (18 bytes), its life (u64), the number of the connection in it (u64); a message is its length
//! (u32) and its bytes; all little-endian.

use crate::address::of_socket;
use crate::delay::Way;
use crate::input::Input;
use bytes::{Buf, Bytes, BytesMut};
use mainstay_types::codec::Reader;
use mainstay_types::view::Address;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// How a connection begins.
const MAGIC: &[u8; 4] = b"MSN1";

/// Length of the head, in bytes.
const HEAD_BYTES: usize = 4 + Address::BYTES + 16;

/// Longest message, in bytes: a whole cut or a scan of large values, and more.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Bytes that wait for one other node; beyond, what is to be sent is dropped.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A node that was sent nothing for so many looks of [`Links::forget_idle`] is let go of.
const IDLE_LOOKS_MAX: u32 = 60;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
struct Link {
    /// What is sent in this step.
    step: Vec<u8>,
    chunks: mpsc::UnboundedSender<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
    idle_looks: u32,
}

/// The connections that this node makes.
#[derive(Debug)]
pub(crate) struct Links {
    me: Address,
    life: u64,
    links: HashMap<Address, Link>,
    /// Who has something to be sent in this step.
    touched: Vec<Address>,
    /// The number of the next connection to anybody. Of one that goes anew after a long silence the number is higher, too: who hears it
    /// passes over what comes from a lower one.
    next_connection: Arc<AtomicU64>,
    way: Way,
    /// Messages sent since the start.
    pub(crate) sent: u64,
    /// Messages dropped since the start, because another node does not take them.
    pub(crate) dropped: u64,
}

impl Links {
    pub(crate) fn new(me: Address, life: u64, way: Way) -> Self {
        Self {
            me,
            life,
            links: HashMap::new(),
            touched: Vec::new(),
            next_connection: Arc::new(AtomicU64::new(1)),
            way,
            sent: 0,
            dropped: 0,
        }
    }

    /// Sends a message at the end of this step; `put` writes it.
    pub(crate) fn send(&mut self, to: Address, put: impl FnOnce(&mut Vec<u8>)) {
        let (me, life, next) = (self.me, self.life, &self.next_connection);
        let link = self.links.entry(to).or_insert_with(|| Link::start(to, me, life, Arc::clone(next)));
        link.idle_looks = 0;
        if link.queued_bytes.load(Ordering::Relaxed) > QUEUED_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        if link.step.is_empty() {
            self.touched.push(to);
        }
        self.sent += 1;
        let at = link.step.len();
        link.step.extend_from_slice(&[0; 4]);
        put(&mut link.step);
        let bytes = u32::try_from(link.step.len() - at - 4).expect("a message is below 4 GiB");
        link.step[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
    }

    /// The step is over: everything goes out.
    pub(crate) fn flush(&mut self) {
        for to in self.touched.drain(..) {
            let Some(link) = self.links.get_mut(&to) else { continue };
            let chunk = Bytes::from(std::mem::take(&mut link.step));
            link.queued_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
            // It goes on as long as this link is kept.
            self.way.send(&link.chunks, chunk);
        }
    }

    /// Lets go of nodes that nothing was sent to for long; to be called once in a while.
    pub(crate) fn forget_idle(&mut self) {
        self.links.retain(|_, link| {
            link.idle_looks += 1;
            link.idle_looks <= IDLE_LOOKS_MAX
        });
    }
}

impl Link {
    fn start(to: Address, me: Address, life: u64, next_connection: Arc<AtomicU64>) -> Self {
        let (chunks, queue) = mpsc::unbounded_channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(speak(to, me, life, next_connection, queue, Arc::clone(&queued_bytes)));
        Self { step: Vec::new(), chunks, queued_bytes, idle_looks: 0 }
    }
}

/// Connects, again and again, and writes what there is to say.
async fn speak(
    to: Address,
    me: Address,
    life: u64,
    next_connection: Arc<AtomicU64>,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
) {
    // Nobody is called before there is something to say.
    while let Some(first) = queue.recv().await {
        let number = next_connection.fetch_add(1, Ordering::Relaxed);
        queued_bytes.fetch_sub(first.len(), Ordering::Relaxed);
        let head = head(me, life, number);
        let spoken = match tokio::time::timeout(CONNECT_MAX, TcpStream::connect(of_socket(to))).await {
            Ok(Ok(stream)) => speak_on(stream, head, first, &mut queue, &queued_bytes).await,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = spoken {
            tracing::debug!(to = %of_socket(to), %error, "no connection to a node");
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
        // It is too old to be of use.
        while let Ok(chunk) = queue.try_recv() {
            queued_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
        }
    }
}

async fn speak_on(
    mut stream: TcpStream,
    head: Vec<u8>,
    first: Bytes,
    queue: &mut mpsc::UnboundedReceiver<Bytes>,
    queued_bytes: &AtomicUsize,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reading, mut writing) = stream.split();
    writing.write_all(&[&head[..], &first[..]].concat()).await?;
    let mut nothing = [0; 1];
    loop {
        tokio::select! {
            chunk = queue.recv() => {
                let Some(chunk) = chunk else { return Ok(()) };
                queued_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
                writing.write_all(&chunk).await?;
            }
            // The other side says nothing here: it can only end.
            read = reading.read(&mut nothing) => {
                read?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
    }
}

fn head(me: Address, life: u64, number: u64) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    me.put(&mut head);
    head.extend_from_slice(&life.to_le_bytes());
    head.extend_from_slice(&number.to_le_bytes());
    head
}

fn read_head(bytes: &[u8]) -> Option<(Address, u64, u64)> {
    let mut reader = Reader::new(bytes.strip_prefix(MAGIC)?);
    Some((Address::take(&mut reader).ok()?, reader.u64().ok()?, reader.u64().ok()?))
}

/// Hears what another node says, until it is gone or says what is no message. Its first word is read already.
pub(crate) async fn hear(mut stream: TcpStream, word: &[u8], link: u64, inputs: mpsc::Sender<Input>) {
    let mut buffer = BytesMut::from(word);
    let ended = hear_on(&mut stream, link, &mut buffer, &inputs).await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a node's connection ended");
    }
    let _ = inputs.send(Input::LinkClosed { link }).await;
}

async fn hear_on(
    stream: &mut TcpStream,
    link: u64,
    buffer: &mut BytesMut,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    while buffer.len() < HEAD_BYTES {
        read_more(stream, buffer).await?;
    }
    let Some((from, life, number)) = read_head(&buffer[..HEAD_BYTES]) else {
        return Err(io::Error::other("who has connected is no node of this version"));
    };
    buffer.advance(HEAD_BYTES);
    inputs.send(Input::LinkOpened { link, from, life, number }).await.map_err(gone)?;
    loop {
        let mut frames = Vec::new();
        while let Some(frame) = take_frame(buffer)? {
            frames.push(frame);
        }
        if !frames.is_empty() {
            inputs.send(Input::Frames { link, frames }).await.map_err(gone)?;
        }
        read_more(stream, buffer).await?;
    }
}

async fn read_more(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<()> {
    buffer.reserve(READ_BYTES);
    match stream.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn take_frame(buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let bytes = u32::from_le_bytes(*length) as usize;
    if bytes > MESSAGE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "a message of {bytes} bytes came, and the limit is {MESSAGE_BYTES_MAX} bytes"
        )));
    }
    if buffer.len() < 4 + bytes {
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(bytes).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_who_speaks_and_messages_come_whole() {
        let me = Address::v4([127, 0, 0, 1], 7171);
        let written = head(me, 3, 9);
        assert_eq!(written.len(), HEAD_BYTES);
        assert_eq!(read_head(&written), Some((me, 3, 9)));
        assert_eq!(read_head(b"GET / HTTP/1.1\r\n"), None);
        let mut buffer = BytesMut::from(&b"\x02\0\0\0ab\x01\0\0\0"[..]);
        assert_eq!(take_frame(&mut buffer).expect("it is short"), Some(Bytes::from_static(b"ab")));
        assert_eq!(take_frame(&mut buffer).expect("it is short"), None);
        buffer.extend_from_slice(b"c\xff\xff\xff\xff");
        assert_eq!(take_frame(&mut buffer).expect("it is short"), Some(Bytes::from_static(b"c")));
        assert!(take_frame(&mut buffer).is_err(), "4 GiB are no message");
    }
}
