//! Connections of clients that speak the region's own messages: frames in, frames out, both within limits. What is said: docs/node.md.
//!
//! | what | bound |
//! |---|---|
//! | frames above 64 KiB, of all clients together | [`LARGE_BYTES_MAX`]; each has 30 s to come, and is not read before there is room |
//! | what waits for one client | [`QUEUED_BYTES_MAX`] and one frame; beyond, its connection is closed |
//! | a client that takes nothing | [`STALLED_MAX`]: its connection is closed |
//! | what clients say before their numbers are known | [`UNPROVEN_BYTES_MAX`] for all; beyond, who says it is closed |
//!
//! They come to the port of the nodes and begin with another word. What they say is taken as a client's, whatever it is.

use crate::budget::Budget;
use crate::delay::Way;
use crate::hearing::hear_on;
use crate::input::Input;
use crate::secure::{Stream, linger};
use bytes::{Buf, Bytes, BytesMut};
use mainstay_region::conversation::{Hello, MAGIC, ToClient, to_server_bytes_max};
use mainstay_region::limits::Limits;
use mainstay_region::message::Message;
use mainstay_replica::definition::RegionId;
use mainstay_types::id::ClientId;
use mainstay_types::view::MemberId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// Bytes that wait for one client, one more frame besides; beyond, its connection is closed: it reads too slowly.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// Larger frames of all clients that are being read, or wait for the node, all together, in bytes.
pub(crate) const LARGE_BYTES_MAX: usize = 256 << 20;

/// How long a client may take for [`WRITE_BYTES`].
const STALLED_MAX: Duration = Duration::from_secs(30);

/// Frames of all clients together that wait until it is known whether their numbers were given, in bytes, and [`FRAME_BYTES`] for each.
const UNPROVEN_BYTES_MAX: usize = 16 << 20;

/// What a frame counts besides its length, in bytes.
const FRAME_BYTES: usize = 256;

/// How much is written at once, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// How long a connection may take to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The way to a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// `None`: nothing more is said, and the connection ends when what is queued is written.
    chunks: Option<mpsc::UnboundedSender<Bytes>>,
    queued_bytes: Arc<AtomicUsize>,
    /// Ends the connection at once.
    end: Arc<Notify>,
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Native {
    pub(crate) hello: Hello,
    /// Its region, once this node knows that there is one.
    pub(crate) region: Option<RegionId>,
    pub(crate) number: Option<ClientId>,
    /// Who it says that it is, until it is known whether anybody has that number.
    pub(crate) claimed: Option<ClientId>,
    /// The frames of the messages that it has said since.
    unproven: Vec<Box<[u8]>>,
    outgoing: Outgoing,
    /// What it is told in this step.
    step: Vec<u8>,
    /// Nothing more is heard or said after this step.
    closing: bool,
}

impl Native {
    /// Nothing more is heard of it, and it is told nothing, not even what is queued.
    fn close(&mut self) {
        self.step = Vec::new();
        self.closing = true;
        self.outgoing.end.notify_one();
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Natives {
    open: HashMap<u64, Native>,
    by_number: HashMap<ClientId, u64>,
    /// Who is told something in this step.
    touched: Vec<u64>,
    /// What [`Native::unproven`] of all counts, in bytes.
    unproven_bytes: usize,
    way: Way,
    /// Frames said since the start.
    pub(crate) said: u64,
}

impl Natives {
    pub(crate) fn new(way: Way) -> Self {
        Self {
            open: HashMap::new(),
            by_number: HashMap::new(),
            touched: Vec::new(),
            unproven_bytes: 0,
            way,
            said: 0,
        }
    }

    pub(crate) fn opened(&mut self, connection: u64, hello: Hello, outgoing: Outgoing) {
        let native = Native {
            hello,
            region: None,
            number: None,
            claimed: None,
            unproven: Vec::new(),
            outgoing,
            step: Vec::new(),
            closing: false,
        };
        self.open.insert(connection, native);
    }

    /// The client's number, if it had one and nobody else has taken it over.
    pub(crate) fn closed(&mut self, connection: u64) -> Option<ClientId> {
        self.take_unproven(connection);
        let number = self.open.remove(&connection)?.number?;
        self.leave(connection, number)
    }

    /// A client that is heard.
    pub(crate) fn get_mut(&mut self, connection: u64) -> Option<&mut Native> {
        self.open.get_mut(&connection).filter(|native| !native.closing)
    }

    pub(crate) fn connections(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// The connection says which client it is.
    pub(crate) fn claims(&mut self, connection: u64, number: ClientId) {
        let Some(native) = self.get_mut(connection) else { return };
        if native.claimed.replace(number) != Some(number) {
            // What it said under another number is not its own any more.
            self.take_unproven(connection);
        }
    }

    /// Keeps the frame of a message until it is known whether the number of who says it was given to anybody. Where there is no room the connection is closed:
    /// heard on with a gap, it might believe that it said what was lost.
    pub(crate) fn keep_unproven(&mut self, connection: u64, frame: &[u8]) {
        let bytes = FRAME_BYTES + frame.len();
        let room = self.unproven_bytes + bytes <= UNPROVEN_BYTES_MAX;
        let Some(native) = self.get_mut(connection) else { return };
        if room {
            // Copied: a part of what was read would keep all of that.
            native.unproven.push(frame.into());
            self.unproven_bytes += bytes;
        } else {
            tracing::warn!(connection, "a client says too much before its number is known: it is closed");
            native.close();
            self.take_unproven(connection);
        }
    }

    /// What was kept of a connection.
    pub(crate) fn take_unproven(&mut self, connection: u64) -> Vec<Box<[u8]>> {
        let native = self.open.get_mut(&connection);
        let kept = native.map_or_else(Vec::new, |native| std::mem::take(&mut native.unproven));
        self.unproven_bytes -= kept.iter().map(|frame| FRAME_BYTES + frame.len()).sum::<usize>();
        kept
    }

    /// The connection is that client's: the last one that says so is told what the client is told. Who it was before, if that client has no
    /// connection any more.
    pub(crate) fn named(&mut self, connection: u64, number: ClientId) -> Option<ClientId> {
        let native = self.open.get_mut(&connection)?;
        native.claimed = None;
        let former = native.number.replace(number).filter(|former| *former != number);
        self.by_number.insert(number, connection);
        self.leave(connection, former?)
    }

    /// The connection is not that client's any more; the client, if it was.
    fn leave(&mut self, connection: u64, number: ClientId) -> Option<ClientId> {
        let was = self.by_number.get(&number) == Some(&connection);
        if was {
            self.by_number.remove(&number);
        }
        was.then_some(number)
    }

    /// Tells a client a message of its region; nothing if it is not connected.
    pub(crate) fn tell(&mut self, client: ClientId, from: MemberId, message: &Message) {
        if let Some(&connection) = self.by_number.get(&client) {
            self.put(connection, |out| ToClient::put_message(from, message, out));
        }
    }

    /// Tells a connection something at the end of this step.
    pub(crate) fn say(&mut self, connection: u64, frame: &ToClient) {
        self.put(connection, |out| frame.put(out));
    }

    /// The same, and closes it.
    pub(crate) fn refuse(&mut self, connection: u64, reason: String) {
        tracing::debug!(connection, reason, "a client is refused");
        self.say(connection, &ToClient::Refused { reason });
        if let Some(native) = self.open.get_mut(&connection) {
            native.closing = true;
        }
    }

    fn put(&mut self, connection: u64, put: impl FnOnce(&mut Vec<u8>)) {
        let Some(native) = self.open.get_mut(&connection).filter(|native| !native.closing) else { return };
        let waiting = native.step.len() + native.outgoing.queued_bytes.load(Ordering::Relaxed);
        if waiting > QUEUED_BYTES_MAX {
            tracing::warn!(connection, "a client does not take what it is told: it is closed");
            return native.close();
        }
        if native.step.is_empty() {
            self.touched.push(connection);
        }
        self.said += 1;
        put(&mut native.step);
    }

    /// The step is over: everything goes out, to each client in one write.
    pub(crate) fn flush(&mut self) {
        for connection in self.touched.drain(..) {
            let Some(native) = self.open.get_mut(&connection) else { continue };
            // As much again is likely: it need not grow to it.
            let room = Vec::with_capacity(native.step.len());
            let chunk = Bytes::from(std::mem::replace(&mut native.step, room));
            let Outgoing { chunks, queued_bytes, .. } = &mut native.outgoing;
            if let Some(to) = chunks {
                queued_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
                // It is gone when nobody takes it any more.
                self.way.send(to, chunk);
            }
            if native.closing {
                *chunks = None;
            }
        }
    }
}

/// What a connection begins with.
pub(crate) type Word = [u8; MAGIC.len()];

/// The first word of a connection: [`MAGIC`] of a client, or a node's.
pub(crate) async fn first_word(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
    let mut word = [0; MAGIC.len()];
    stream.read_exact(&mut word).await?;
    Ok(word)
}

/// Whether it is that of a client whose messages are of another version.
pub(crate) fn is_of_other_version(word: Word) -> bool {
    word != MAGIC && word[..MAGIC.len() - 1] == MAGIC[..MAGIC.len() - 1]
}

/// Tells such a client, in the frame that all versions have.
pub(crate) async fn refuse_other_version(stream: &mut Stream, word: Word) {
    let [theirs, ours] = [word, MAGIC].map(|word| String::from_utf8_lossy(&word).into_owned());
    let reason = format!(
        "the client speaks {theirs}, and this node {ours}; nothing was done: build the client with the version of mainstay that the nodes run"
    );
    tracing::warn!("a client is refused: {reason}");
    let mut frame = Vec::new();
    ToClient::Refused { reason }.put(&mut frame);
    if stream.write_all(&frame).await.is_ok() {
        linger(stream).await;
    }
}

/// Serves a client's connection until it ends. Its first word is read.
pub(crate) async fn serve(stream: Stream, connection: u64, large: &Budget, inputs: mpsc::Sender<Input>) {
    let (mut reading, writing) = tokio::io::split(stream);
    let mut buffer = BytesMut::new();
    let hello = match timeout(HELLO_MAX, hear_hello(&mut reading, &mut buffer)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return tracing::debug!(%error, "who has connected is no client of this version"),
        Err(_) => return tracing::debug!("who has connected says nothing"),
    };
    let (chunks, queue) = mpsc::unbounded_channel();
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    let end = Arc::new(Notify::new());
    let outgoing =
        Outgoing { chunks: Some(chunks), queued_bytes: Arc::clone(&queued_bytes), end: Arc::clone(&end) };
    if inputs.send(Input::NativeOpened { connection, hello, outgoing }).await.is_err() {
        return;
    }
    let bytes_max = to_server_bytes_max(&Limits::default());
    let heard = |frames, held| Input::NativeFrames { connection, frames, held };
    let ended = tokio::select! {
        heard = hear_on(&mut reading, buffer, bytes_max, large, heard, &inputs) => heard,
        written = write(writing, queue, &queued_bytes, STALLED_MAX) => written,
        () = end.notified() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended");
    }
    let _ = inputs.send(Input::NativeClosed { connection }).await;
}

async fn hear_hello(reading: &mut ReadHalf<Stream>, buffer: &mut BytesMut) -> io::Result<Hello> {
    loop {
        if let Some((hello, bytes)) = Hello::take(buffer).map_err(io::Error::other)? {
            buffer.advance(bytes);
            return Ok(hello);
        }
        read_more(reading, buffer).await?;
    }
}

async fn read_more(reading: &mut ReadHalf<Stream>, buffer: &mut BytesMut) -> io::Result<()> {
    buffer.reserve(READ_BYTES);
    match reading.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

async fn write(
    mut writing: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
    queued_bytes: &AtomicUsize,
    stalled_max: Duration,
) -> io::Result<()> {
    while let Some(chunk) = queue.recv().await {
        for part in chunk.chunks(WRITE_BYTES) {
            let write = async {
                writing.write_all(part).await?;
                // TLS may keep some.
                writing.flush().await
            };
            timeout(stalled_max, write).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            queued_bytes.fetch_sub(part.len(), Ordering::Relaxed);
        }
    }
    timeout(stalled_max, writing.shutdown()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that nobody reads; what is queued for each.
    fn silent(connections: u64) -> (Natives, Vec<(Outgoing, mpsc::UnboundedReceiver<Bytes>)>) {
        let mut natives = Natives::new(Way::of(Duration::ZERO));
        let open = (0..connections).map(|connection| {
            let (chunks, queue) = mpsc::unbounded_channel();
            let (queued_bytes, end) = (Arc::default(), Arc::new(Notify::new()));
            let outgoing = Outgoing { chunks: Some(chunks), queued_bytes, end };
            let hello = Hello { cluster: None, region: "data".to_owned() };
            natives.opened(connection, hello, outgoing.clone());
            (Outgoing { chunks: None, ..outgoing }, queue)
        });
        let open = open.collect();
        (natives, open)
    }

    fn something() -> ToClient {
        ToClient::Number(ClientId(7))
    }

    /// What one step said was not bounded, and a client that took nothing kept its place.
    #[tokio::test]
    async fn a_client_that_takes_nothing_is_closed_within_the_step_that_says_too_much() {
        let (mut natives, mut open) = silent(1);
        let (outgoing, mut queue) = open.remove(0);
        // Said instead of held: the bytes themselves need not be there.
        outgoing.queued_bytes.store(QUEUED_BYTES_MAX - 1, Ordering::Relaxed);
        natives.say(0, &something());
        let ends = async || timeout(Duration::ZERO, outgoing.end.notified()).await.is_ok();
        assert!(!ends().await, "one frame may go beyond");
        natives.say(0, &something());
        assert!(ends().await && natives.get_mut(0).is_none());
        natives.flush();
        while let Some(chunk) = queue.recv().await {
            assert!(chunk.is_empty(), "what was too much is not kept");
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_given_up() {
        let (writing, _reading) = tokio::io::duplex(16);
        let (chunks, queue) = mpsc::unbounded_channel();
        chunks.send(Bytes::from_static(&[0; 64])).expect("it is open");
        let ended = write(writing, queue, &AtomicUsize::new(64), Duration::from_millis(1)).await;
        assert_eq!(ended.expect_err("it is not read").kind(), io::ErrorKind::TimedOut);
    }

    /// Its subscriptions were kept for good.
    #[test]
    fn a_client_is_gone_with_its_connection_also_when_it_was_refused_or_took_another_number() {
        let (mut natives, _open) = silent(2);
        assert_eq!(natives.named(0, ClientId(1)), None);
        assert_eq!(natives.named(0, ClientId(1)), None, "it says so again");
        assert_eq!(natives.named(0, ClientId(2)), Some(ClientId(1)));
        natives.refuse(0, "a reason".to_owned());
        natives.flush();
        assert_eq!(natives.closed(0), Some(ClientId(2)));
        let (mut natives, mut open) = silent(2);
        natives.named(0, ClientId(1));
        natives.named(1, ClientId(1));
        assert_eq!(natives.closed(0), None, "it has another connection");
        natives.refuse(1, "a reason".to_owned());
        natives.flush();
        let mut queue = open.remove(1).1;
        assert!(queue.try_recv().is_ok(), "it is told why");
        assert_eq!(queue.try_recv(), Err(mpsc::error::TryRecvError::Disconnected), "and then it ends");
    }

    /// What was said behind a number was dropped until that was known: a client that came to a new node waited for its patience to end.
    #[test]
    fn what_is_said_before_its_number_is_known_is_kept_within_a_bound_and_only_under_that_number() {
        let (mut natives, _open) = silent(2);
        let frame = [7; 1000];
        natives.claims(0, ClientId(1));
        natives.keep_unproven(0, &frame);
        natives.claims(0, ClientId(1));
        assert_eq!(natives.take_unproven(0), [Box::from(frame)]);
        natives.keep_unproven(0, &frame);
        natives.claims(0, ClientId(2));
        assert_eq!((natives.take_unproven(0), natives.unproven_bytes), (Vec::new(), 0));
        let most = UNPROVEN_BYTES_MAX / (FRAME_BYTES + frame.len());
        (0..most).for_each(|_| natives.keep_unproven(0, &frame));
        natives.closed(0);
        assert_eq!(natives.unproven_bytes, 0);
    }

    /// It was told nothing of what was dropped: a subscription among it, and what is answered behind one is taken for a sign that it holds.
    #[tokio::test]
    async fn a_client_is_closed_whose_words_find_no_room_before_its_number_is_known() {
        let (mut natives, open) = silent(2);
        let frame = [7; 1000];
        let most = UNPROVEN_BYTES_MAX / (FRAME_BYTES + frame.len());
        let ends = async |place: usize| {
            let (Outgoing { end, .. }, _) = &open[place];
            timeout(Duration::ZERO, end.notified()).await.is_ok()
        };
        natives.keep_unproven(1, &frame);
        (1..most).for_each(|_| natives.keep_unproven(0, &frame));
        assert!(!ends(0).await && !ends(1).await, "there was room");
        natives.keep_unproven(1, &frame);
        assert!(ends(1).await && natives.get_mut(1).is_none());
        assert_eq!(natives.take_unproven(1), [], "what it said before goes with it");
        natives.keep_unproven(1, &frame);
        natives.keep_unproven(0, &frame);
        assert!(!ends(0).await, "there is room again");
        assert_eq!(natives.take_unproven(0).len(), most);
        assert_eq!(natives.unproven_bytes, 0);
    }
}
