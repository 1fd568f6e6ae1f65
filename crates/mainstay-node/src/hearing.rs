//! Connections from other nodes: who speaks is known before anything is kept, and what is kept is bounded in bytes.
//!
//! | what | bound |
//! |---|---|
//! | connections | [`CONNECTIONS_MAX`], strangers among them; more are told so |
//! | until the head has come | [`HEAD_BYTES`], [`HEAD_MAX`] |
//! | a message of who knows no group yet | [`SMALL_BYTES_MAX`] |
//! | larger messages, of all connections together | [`LARGE_BYTES_MAX`]; each has [`LARGE_MAX`] to come |

use crate::address::of_socket;
use crate::budget::{Budget, Held};
use crate::head::{HEAD_BYTES, Head, LinkRefusal, VERSIONS_BYTES, Versions};
use crate::input::Input;
use crate::native::Word;
use crate::secure::{Shown, Stream, is_tls, linger};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use mainstay_types::id::ClusterId;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Connections from other nodes at the same time: more than a view has members, so that some may be old.
pub(crate) const CONNECTIONS_MAX: u16 = 256;

/// How long a connection may take to say who speaks.
pub(crate) const HEAD_MAX: Duration = Duration::from_secs(5);

/// Messages up to so many bytes are read as they come, and how much is read at once.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Larger messages that are being read, or wait for the node, all together, in bytes.
const LARGE_BYTES_MAX: usize = 512 << 20;

/// How long one of them may take to come.
const LARGE_MAX: Duration = Duration::from_secs(30);

/// Longest message, in bytes: a whole cut or a scan of large values, and more.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Who is let in.
#[derive(Debug)]
pub(crate) struct Door {
    /// The group of this node, once it is known: it never changes.
    cluster: OnceLock<ClusterId>,
    large: Budget,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { cluster: OnceLock::new(), large: Budget::new(LARGE_BYTES_MAX) }
    }

    /// The group is known.
    pub(crate) fn know(&self, cluster: ClusterId) {
        self.cluster.get_or_init(|| cluster);
    }
}

/// Hears what another node says, until it is gone or says what is no message. Its first word is read already.
pub(crate) async fn hear(
    mut stream: Stream,
    shown: Shown,
    word: Word,
    link: u64,
    door: &Door,
    inputs: mpsc::Sender<Input>,
) {
    let greeting = async {
        let head = greet(&mut stream, word, door).await?;
        let address = of_socket(head.address).ip();
        if !shown.carries(address) {
            say(&mut stream, &LinkRefusal::other_address(head.address)).await?;
            return Err(io::Error::other(LinkRefusal::Address { address }));
        }
        Ok(head)
    };
    let head = match tokio::time::timeout(HEAD_MAX, greeting).await {
        Ok(Ok(head)) => head,
        Ok(Err(error)) => {
            tracing::warn!(%error, "a connection from a node is refused");
            return linger(&mut stream).await;
        }
        Err(_) => return tracing::debug!("a connection did not say who speaks"),
    };
    if inputs.send(Input::LinkOpened { link, head }).await.is_err() {
        return;
    }
    // Who is in no group has little to say.
    let bytes_max = if head.cluster.is_some() { MESSAGE_BYTES_MAX } else { SMALL_BYTES_MAX };
    let heard = |frames, held| Input::Frames { link, frames, held };
    if let Err(error) = hear_on(&mut stream, BytesMut::new(), bytes_max, &door.large, heard, &inputs).await {
        tracing::debug!(%error, "a node's connection ended");
    }
    let _ = inputs.send(Input::LinkClosed { link }).await;
}

/// Reads who speaks; says why, if that one is not heard.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    word: Word,
    door: &Door,
) -> io::Result<Head> {
    let mut bytes = [0; HEAD_BYTES];
    let (versions, rest) = bytes.split_at_mut(VERSIONS_BYTES);
    versions[..word.len()].copy_from_slice(&word);
    stream.read_exact(&mut versions[word.len()..]).await?;
    match Versions::read(versions) {
        None if is_tls(versions) => {
            // By this it sees that there is no TLS here.
            say(stream, &LinkRefusal::other_version()).await?;
            let why = "who has connected uses TLS, and this node was started without: give all nodes --tls and --name";
            return Err(io::Error::other(why));
        }
        None if versions.starts_with(b"*") => {
            say(stream, b"-ERR this port is for other nodes and the Rust client: clients of the Redis protocol use that of --resp\r\n").await?;
            return Err(io::Error::other(
                "who has connected speaks the Redis protocol, whose port is that of --resp",
            ));
        }
        None => return Err(io::Error::other("who has connected is no node")),
        Some(Versions::OURS) => {}
        Some(theirs) => {
            say(stream, &LinkRefusal::other_version()).await?;
            return Err(io::Error::other(LinkRefusal::Version { theirs }));
        }
    }
    stream.read_exact(rest).await?;
    let head = Head::read(rest).map_err(io::Error::other)?;
    match (door.cluster.get(), head.cluster) {
        (Some(&ours), Some(theirs)) if ours != theirs => {
            say(stream, &LinkRefusal::other_cluster(ours)).await?;
            Err(io::Error::other(LinkRefusal::OtherCluster { ours, theirs }))
        }
        _ => Ok(head),
    }
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    // TLS may keep some.
    stream.flush().await
}

/// Hears frames, each behind its length, until the connection ends; what `buffer` has came before. `heard` makes an input of those that came
/// together, and of the room in `large` that is held for them.
pub(crate) async fn hear_on(
    stream: &mut (impl AsyncRead + Unpin),
    mut buffer: BytesMut,
    bytes_max: usize,
    large: &Budget,
    heard: impl Fn(Vec<Bytes>, Option<Held>) -> Input,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    loop {
        let mut frames = Vec::new();
        let more = loop {
            match take_frame(&mut buffer, bytes_max)? {
                Taken::Frame(frame) => frames.push(frame),
                other => break other,
            }
        };
        if !frames.is_empty() {
            tell(inputs, heard(frames, None)).await?;
        }
        if let Taken::Large(bytes) = more {
            let held = large.take(bytes).await;
            let whole = tokio::time::timeout(LARGE_MAX, read_to(stream, &mut buffer, 4 + bytes));
            whole.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            let Taken::Frame(frame) = take_frame(&mut buffer, bytes_max)? else { continue };
            tell(inputs, heard(vec![frame], Some(held))).await?;
        } else {
            let length = buffer.len() + 1;
            read_to(stream, &mut buffer, length).await?;
        }
    }
}

async fn tell(inputs: &mpsc::Sender<Input>, input: Input) -> io::Result<()> {
    inputs.send(input).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Reads until the buffer has `length` bytes, and at most [`SMALL_BYTES_MAX`] more.
async fn read_to(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    length: usize,
) -> io::Result<()> {
    while buffer.len() < length {
        let room = length.max(SMALL_BYTES_MAX) - buffer.len();
        buffer.reserve(room);
        if stream.read_buf(&mut (&mut *buffer).limit(room)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// What the bytes that have come begin with.
#[derive(PartialEq, Eq, Debug)]
enum Taken {
    Frame(Bytes),
    /// A part of a small one.
    Part,
    /// A part of one of so many bytes, which is not read on before there is room for it.
    Large(usize),
}

fn take_frame(buffer: &mut BytesMut, bytes_max: usize) -> io::Result<Taken> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(Taken::Part) };
    let bytes = u32::from_le_bytes(*length) as usize;
    if bytes > bytes_max {
        let error = format!("a message of {bytes} bytes came, and the limit is {bytes_max} bytes");
        return Err(io::Error::other(error));
    }
    if buffer.len() < 4 + bytes {
        return Ok(if 4 + bytes > SMALL_BYTES_MAX { Taken::Large(bytes) } else { Taken::Part });
    }
    buffer.advance(4);
    Ok(Taken::Frame(buffer.split_to(bytes).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::first_word;
    use tokio::net::{TcpListener, TcpStream};

    #[test]
    fn messages_come_whole_and_one_that_is_too_long_is_refused() {
        let mut buffer = BytesMut::from(&b"\x02\0\0\0ab\x01\0\0\0"[..]);
        let mut take = |more: &[u8]| {
            buffer.extend_from_slice(more);
            take_frame(&mut buffer, 1 << 20)
        };
        let frame = |bytes: &'static [u8]| Taken::Frame(Bytes::from_static(bytes));
        assert_eq!(take(b"").expect("it is short"), frame(b"ab"));
        assert_eq!(take(b"").expect("it is short"), Taken::Part);
        assert_eq!(take(b"c\0\0\x02\0").expect("it is short"), frame(b"c"));
        assert_eq!(take(b"x").expect("it is within the limit"), Taken::Large(128 << 10));
        let mut buffer = BytesMut::from(&b"\xff\xff\xff\xff"[..]);
        assert!(take_frame(&mut buffer, MESSAGE_BYTES_MAX).is_err(), "4 GiB are no message");
    }

    /// A message of whatever length that a stranger announced was kept in memory as far as it came.
    #[tokio::test]
    async fn a_large_message_is_not_read_before_there_is_room_for_it() {
        let (inputs, mut queue) = mpsc::channel(4);
        let large = Budget::new(1 << 20);
        let others = large.take(1 << 20).await;
        let (mut speaker, mut hearer) = tokio::io::duplex(1 << 10);
        let bytes: usize = 1 << 20;
        let speaking = tokio::spawn(async move {
            speaker.write_all(&u32::try_from(bytes).expect("it is 1 MiB").to_le_bytes()).await?;
            speaker.write_all(&vec![7; bytes]).await?;
            io::Result::Ok(speaker)
        });
        let budget = large.clone();
        let hearing = tokio::spawn(async move {
            let heard = |frames, held| Input::Frames { link: 1, frames, held };
            hear_on(&mut hearer, BytesMut::new(), MESSAGE_BYTES_MAX, &budget, heard, &inputs).await
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!speaking.is_finished(), "it was taken with no room for it");
        drop(others);
        let Some(Input::Frames { frames, held: Some(held), .. }) = queue.recv().await else {
            panic!("it does not come")
        };
        assert_eq!(frames[0].len(), bytes);
        // The room is taken for as long as the node has the message.
        let again = large.clone();
        let waiting = tokio::spawn(async move { again.take(1).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.expect("it does not panic");
        drop(speaking.await.expect("it does not panic").expect("it was heard"));
        assert!(hearing.await.expect("it does not panic").is_err(), "it ends with the connection");
    }

    #[tokio::test]
    async fn who_belongs_to_another_group_or_speaks_another_version_is_told_so() {
        let (ours, theirs) = (ClusterId([1; 16]), ClusterId([2; 16]));
        let door = Door::new();
        door.know(ours);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let at = listener.local_addr().expect("it is bound");
        let head = Head {
            cluster: Some(theirs),
            store: mainstay_types::id::StoreId([3; 16]),
            address: mainstay_types::view::Address::v4([127, 0, 0, 1], 1),
            life: 1,
            connection: 1,
        };
        let mut newer = head.bytes();
        newer[3] = b'9';
        for (said, word) in [(head.bytes(), "--join"), (newer, "the same version")] {
            let mut speaker = TcpStream::connect(at).await.expect("it listens");
            let (mut hearer, _) = listener.accept().await.expect("it was connected to");
            speaker.write_all(&said).await.expect("it is connected");
            let first = first_word(&mut hearer).await.expect("it is said");
            greet(&mut hearer, first, &door).await.expect_err("it is not heard");
            let mut bytes = [0; crate::head::REFUSAL_BYTES];
            speaker.read_exact(&mut bytes).await.expect("it is told why");
            // A newer node reads the versions of ours.
            let why = LinkRefusal::read(&bytes, Some(theirs));
            match why {
                Some(why) => assert!(why.to_string().contains(word), "{why}"),
                None => {
                    assert_eq!((Versions::read(&bytes), word), (Some(Versions::OURS), "the same version"));
                }
            }
        }
        // Nobody is refused for not knowing a group yet.
        let mut speaker = TcpStream::connect(at).await.expect("it listens");
        let (mut hearer, _) = listener.accept().await.expect("it was connected to");
        speaker.write_all(&Head { cluster: None, ..head }.bytes()).await.expect("it is connected");
        let first = first_word(&mut hearer).await.expect("it is said");
        assert_eq!(greet(&mut hearer, first, &door).await.expect("it is heard").cluster, None);
    }
}
