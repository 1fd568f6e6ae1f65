//! Connections of clients that speak the region's own messages: frames in, frames out, both within limits. What is said: docs/node.md.
//!
//! They come to the port of the nodes and begin with another word. What they say is taken as a client's, whatever it is.

use crate::delay::Way;
use crate::input::Input;
use crate::secure::Stream;
use bytes::{Buf, Bytes, BytesMut};
use mainstay_region::conversation::{Hello, LENGTH_BYTES, MAGIC, ToClient, first_frame, to_server_bytes_max};
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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

/// Bytes that wait for one client; beyond, its connection is closed: it reads too slowly.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// How long a connection may take to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// How much is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

/// The way to a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    chunks: mpsc::UnboundedSender<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
}

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Native {
    pub(crate) hello: Hello,
    /// Its region, once this node knows that there is one.
    pub(crate) region: Option<RegionId>,
    pub(crate) number: Option<ClientId>,
    outgoing: Outgoing,
    /// What it is told in this step.
    step: Vec<u8>,
    /// Nothing more is heard or said after this step.
    closing: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Natives {
    open: HashMap<u64, Native>,
    by_number: HashMap<ClientId, u64>,
    /// Who is told something in this step.
    touched: Vec<u64>,
    way: Way,
    /// Frames said since the start.
    pub(crate) said: u64,
}

impl Natives {
    pub(crate) fn new(way: Way) -> Self {
        Self { open: HashMap::new(), by_number: HashMap::new(), touched: Vec::new(), way, said: 0 }
    }

    pub(crate) fn opened(&mut self, connection: u64, hello: Hello, outgoing: Outgoing) {
        let native = Native { hello, region: None, number: None, outgoing, step: Vec::new(), closing: false };
        self.open.insert(connection, native);
    }

    /// The client's number, if it had one and nobody else has taken it over.
    pub(crate) fn closed(&mut self, connection: u64) -> Option<(ClientId, Option<RegionId>)> {
        let native = self.open.remove(&connection)?;
        let number = native.number.filter(|number| self.by_number.get(number) == Some(&connection))?;
        self.by_number.remove(&number);
        Some((number, native.region))
    }

    /// A client that is heard.
    pub(crate) fn get_mut(&mut self, connection: u64) -> Option<&mut Native> {
        self.open.get_mut(&connection).filter(|native| !native.closing)
    }

    pub(crate) fn connections(&self) -> Vec<u64> {
        self.open.keys().copied().collect()
    }

    /// The connection says which client it is. The last one that says so is told what the client is told.
    pub(crate) fn named(&mut self, connection: u64, number: ClientId) {
        let Some(native) = self.open.get_mut(&connection) else { return };
        if let Some(former) = native.number.replace(number)
            && self.by_number.get(&former) == Some(&connection)
        {
            self.by_number.remove(&former);
        }
        self.by_number.insert(number, connection);
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
            let chunk = Bytes::from(std::mem::take(&mut native.step));
            let queued = native.outgoing.queued_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
            // It is gone when nobody takes it any more.
            self.way.send(&native.outgoing.chunks, chunk);
            if native.closing || queued > QUEUED_BYTES_MAX {
                // The connection's task ends when it has written what is queued, or cannot.
                if let Some(number) = native.number
                    && self.by_number.get(&number) == Some(&connection)
                {
                    self.by_number.remove(&number);
                }
                self.open.remove(&connection);
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

/// Serves a client's connection until it ends. Its first word is read.
pub(crate) async fn serve(stream: Stream, connection: u64, inputs: mpsc::Sender<Input>) {
    let (mut reading, writing) = tokio::io::split(stream);
    let mut buffer = BytesMut::new();
    let hello = match tokio::time::timeout(HELLO_MAX, hear_hello(&mut reading, &mut buffer)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return tracing::debug!(%error, "who has connected is no client of this version"),
        Err(_) => return tracing::debug!("who has connected says nothing"),
    };
    let (chunks, queue) = mpsc::unbounded_channel();
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    let outgoing = Outgoing { chunks, queued_bytes: Arc::clone(&queued_bytes) };
    if inputs.send(Input::NativeOpened { connection, hello, outgoing }).await.is_err() {
        return;
    }
    let ended = tokio::select! {
        heard = hear(&mut reading, buffer, connection, &inputs) => heard,
        written = write(writing, queue, &queued_bytes) => written,
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

async fn hear(
    reading: &mut ReadHalf<Stream>,
    mut buffer: BytesMut,
    connection: u64,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    let bytes_max = to_server_bytes_max(&Limits::default());
    loop {
        let mut frames = Vec::new();
        while let Some(bytes) = first_frame(&buffer, bytes_max).map_err(io::Error::other)? {
            buffer.advance(LENGTH_BYTES);
            frames.push(buffer.split_to(bytes).freeze());
        }
        if !frames.is_empty() && inputs.send(Input::NativeFrames { connection, frames }).await.is_err() {
            return Ok(());
        }
        read_more(reading, &mut buffer).await?;
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
    mut writing: WriteHalf<Stream>,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
    queued_bytes: &AtomicUsize,
) -> io::Result<()> {
    while let Some(chunk) = queue.recv().await {
        queued_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
        writing.write_all(&chunk).await?;
        writing.flush().await?;
    }
    writing.shutdown().await
}
