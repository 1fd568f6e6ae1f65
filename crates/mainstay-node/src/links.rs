//! Connections to other nodes: one for each pair and direction, over which messages arrive in order or not at all.
//!
//! ```text
//!   this node ── connects ──> other node      a head that says who speaks, then messages behind their length (u32, little-endian)
//!   this node <── connects ── other node      nothing but, perhaps, why it does not hear
//! ```
//!
//! What is sent in one step goes out in one write. Nothing is kept for a node that cannot be reached: group and region send again what matters.

use crate::address::of_socket;
use crate::delay::Way;
use crate::head::{Head, LinkRefusal, REFUSAL_BYTES};
use crate::input::Input;
use crate::secure::{ConnectError, Security, explained, is_tls};
use bytes::Bytes;
use mainstay_types::id::ClusterId;
use mainstay_types::view::Address;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Bytes that wait for one other node; beyond, what is to be sent is dropped.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// Between two attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The same, to a node that does not hear this one.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A node to which there is no connection for so long is named in the log.
const SILENCE_SAID_AFTER: Duration = Duration::from_secs(5);

/// A node that was sent nothing for so many looks of [`Links::forget_idle`] is let go of.
const IDLE_LOOKS_MAX: u32 = 60;

#[derive(Debug)]
struct Link {
    /// What is sent in this step.
    step: Vec<u8>,
    chunks: mpsc::UnboundedSender<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
    idle_looks: u32,
}

/// What all connections of this node have in common.
#[derive(Clone, Debug)]
struct Speaker {
    /// The head, but for the number of the connection.
    head: Head,
    /// The number of the next connection to anybody. Of one that goes anew after a long silence the number is higher, too: who hears it
    /// passes over what comes from a lower one.
    next_connection: Arc<AtomicU64>,
    inputs: mpsc::Sender<Input>,
    security: Security,
}

/// The connections that this node makes.
#[derive(Debug)]
pub(crate) struct Links {
    speaker: Speaker,
    links: HashMap<Address, Link>,
    /// Who has something to be sent in this step.
    touched: Vec<Address>,
    way: Way,
    /// Messages sent since the start.
    pub(crate) sent: u64,
    /// Messages dropped since the start, because another node does not take them.
    pub(crate) dropped: u64,
}

impl Links {
    /// Of a node that speaks with this head. What others refuse comes to `inputs`.
    pub(crate) fn new(head: Head, inputs: mpsc::Sender<Input>, way: Way, security: Security) -> Self {
        let speaker = Speaker { head, next_connection: Arc::new(AtomicU64::new(1)), inputs, security };
        Self { speaker, links: HashMap::new(), touched: Vec::new(), way, sent: 0, dropped: 0 }
    }

    /// The group is known: it is said at the beginning of new connections, by which others tell this node from strangers.
    pub(crate) fn know(&mut self, cluster: ClusterId) {
        if self.speaker.head.cluster.is_none() {
            self.speaker.head.cluster = Some(cluster);
            self.flush();
            self.links.clear();
        }
    }

    /// Sends a message at the end of this step; `put` writes it.
    pub(crate) fn send(&mut self, to: Address, put: impl FnOnce(&mut Vec<u8>)) {
        let speaker = &self.speaker;
        let link = self.links.entry(to).or_insert_with(|| Link::start(to, speaker.clone()));
        link.idle_looks = 0;
        if link.queued_bytes.load(Ordering::Relaxed) > QUEUED_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.sent += 1;
        if link.step.is_empty() {
            self.touched.push(to);
        }
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
            // As much again is likely: it need not grow to it.
            let room = Vec::with_capacity(link.step.len());
            let chunk = Bytes::from(std::mem::replace(&mut link.step, room));
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
    fn start(to: Address, speaker: Speaker) -> Self {
        let (chunks, queue) = mpsc::unbounded_channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        tokio::spawn(speaker.speak(to, queue, Arc::clone(&queued_bytes)));
        Self { step: Vec::new(), chunks, queued_bytes, idle_looks: 0 }
    }
}

/// Since when nobody is connected to, and whether the log says so.
#[derive(Debug, Default)]
struct Failed {
    since: Option<Instant>,
    said: bool,
}

impl Failed {
    /// One more attempt has failed: said once, when they have gone on for so long that it is no restart.
    fn log(&mut self, to: Address, error: &Ended) {
        let to = of_socket(to);
        tracing::debug!(%to, %error, "no connection to a node");
        let lasts = self.since.get_or_insert_with(Instant::now).elapsed();
        if lasts >= SILENCE_SAID_AFTER && !self.said {
            self.said = true;
            tracing::warn!("no connection to the node at {to} for {} s: {error}", lasts.as_secs());
        }
    }
}

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Broken(#[from] ConnectError),
    #[error("{0}")]
    Refused(LinkRefusal),
    #[error(
        "what answers there speaks the Redis protocol: give the address of that node's --listen, not of its --resp"
    )]
    RedisPort,
    #[error("what answers there is no node")]
    NoNode,
}

impl Ended {
    /// Whether a person has to do something about it: it is not just that the other is not there.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Broken(error) => error.is_refusal(),
            Self::Refused(_) | Self::RedisPort | Self::NoNode => true,
        }
    }
}

impl Speaker {
    /// Connects, again and again, and writes what there is to say.
    async fn speak(
        self,
        to: Address,
        mut queue: mpsc::UnboundedReceiver<Bytes>,
        queued_bytes: Arc<AtomicUsize>,
    ) {
        // Nobody is called before there is something to say.
        let mut failed = Failed::default();
        while let Some(first) = queue.recv().await {
            queued_bytes.fetch_sub(first.len(), Ordering::Relaxed);
            let mut pause = CONNECT_PAUSE;
            match self.speak_once(to, first, &mut queue, &queued_bytes, &mut failed).await {
                Ok(()) => return,
                Err(ended) if ended.is_refusal() => {
                    pause = REFUSED_PAUSE;
                    let by = of_socket(to);
                    let _ = self.inputs.send(Input::LinkRefused { by, why: ended.to_string() }).await;
                }
                Err(error) => failed.log(to, &error),
            }
            tokio::time::sleep(pause).await;
            // It is too old to be of use.
            while let Ok(chunk) = queue.try_recv() {
                queued_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
            }
        }
    }

    /// Speaks on one connection, until nothing is said any more.
    async fn speak_once(
        &self,
        to: Address,
        first: Bytes,
        queue: &mut mpsc::UnboundedReceiver<Bytes>,
        queued_bytes: &AtomicUsize,
        failed: &mut Failed,
    ) -> Result<(), Ended> {
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let head = Head { connection, ..self.head };
        let stream = self.security.dial(of_socket(to), CONNECT_MAX).await?;
        *failed = Failed::default();
        let (mut reading, mut writing) = tokio::io::split(stream);
        let write = async {
            writing.write_all(&[&head.bytes()[..], &first[..]].concat()).await?;
            writing.flush().await?;
            while let Some(chunk) = queue.recv().await {
                queued_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
                writing.write_all(&chunk).await?;
                // TLS may keep some.
                writing.flush().await?;
            }
            io::Result::Ok(())
        };
        let mut said = [0; REFUSAL_BYTES];
        let heard_back = {
            let mut read = std::pin::pin!(reading.read_exact(&mut said));
            tokio::select! {
                biased;
                read = &mut read => read,
                written = write => match written {
                    Ok(()) => return Ok(()),
                    // It may have said why before it broke off.
                    Err(error) => read.await.map_err(|_| error),
                },
            }
        };
        if is_tls(&said) {
            return Err(ConnectError::OtherUsesTls.into());
        }
        heard_back.map_err(explained)?;
        match LinkRefusal::read(&said, head.cluster) {
            Some(refusal) => Err(Ended::Refused(refusal)),
            None if said.starts_with(b"-ERR") => Err(Ended::RedisPort),
            None => Err(Ended::NoNode),
        }
    }
}
