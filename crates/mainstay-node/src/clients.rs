//! Connections of clients: commands in, replies out, both within limits of count and of bytes.
//!
//! | what | bound |
//! |---|---|
//! | commands of one connection that are not answered, or whose answers are not sent | [`PIPELINE_COMMANDS_MAX`] |
//! | those of more than [`SMALL_BYTES_MAX`], and commands that come in parts, of all connections | [`COMMANDS_BYTES_MAX`]: they are not read before |
//! | answers that a connection does not take | [`UNSENT_BYTES_MAX`], of all [`ALL_UNSENT_BYTES_MAX`]: the one that has most is closed |
//! | a connection that takes nothing, or does not end its command | [`STALLED_MAX`]: it is closed |

use crate::budget::{Budget, Held};
use crate::input::Input;
use crate::resp::{CommandLimits, take_command};
use crate::secure::Stream;
use bytes::{Bytes, BytesMut};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

/// Commands of one connection that are taken and not answered yet, the answers that wait to be written among them.
pub(crate) const PIPELINE_COMMANDS_MAX: usize = 128;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Commands that come together in so many bytes are bounded by their count alone.
const SMALL_BYTES_MAX: usize = 4 << 10;

/// Larger commands of all connections that are being read or are not answered yet, in bytes.
const COMMANDS_BYTES_MAX: usize = 256 << 20;

/// Answers that wait for one connection to take them, in bytes: as many values of the largest kind as it may ask for at once.
const UNSENT_BYTES_MAX: usize = 128 << 20;

/// The same, of all connections together.
const ALL_UNSENT_BYTES_MAX: usize = 512 << 20;

/// How long a connection may take for [`WRITE_BYTES`] of its answers, or for a command that does not come at once.
const STALLED_MAX: Duration = Duration::from_secs(30);

/// How long a client may take to hear why its connection ends, and to close it.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// What one step may gather for a connection, in bytes: with more it goes out at once, and counts as unsent.
const STEP_BYTES_MAX: usize = 1 << 20;

/// How much is written at once, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// What all connections of clients have in common.
#[derive(Debug)]
pub(crate) struct Room {
    commands: Budget,
    unsent_bytes: Arc<AtomicUsize>,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { commands: Budget::new(COMMANDS_BYTES_MAX), unsent_bytes: Arc::default() }
    }
}

/// Bytes for a client, the commands that they answer, and whether they are the last.
#[derive(Debug)]
struct Written {
    bytes: Bytes,
    answered: usize,
    close: bool,
    unsent: Arc<Unsent>,
}

/// Bytes that wait for a connection to take them.
#[derive(Debug)]
struct Unsent {
    bytes: AtomicUsize,
    of_all: Arc<AtomicUsize>,
}

impl Written {
    fn new(bytes: Bytes, answered: usize, close: bool, unsent: &Arc<Unsent>) -> Self {
        unsent.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        unsent.of_all.fetch_add(bytes.len(), Ordering::Relaxed);
        Self { bytes, answered, close, unsent: Arc::clone(unsent) }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.unsent.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.unsent.of_all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// The way to a client's connection.
#[derive(Clone, Debug)]
pub(crate) struct ToSession {
    queue: mpsc::UnboundedSender<Written>,
    unsent: Arc<Unsent>,
    end: Arc<Notify>,
}

/// A connection, and what is written to it in this step.
#[derive(Debug)]
struct Open {
    to: ToSession,
    step: Vec<u8>,
    answered: usize,
    close: bool,
}

/// What the node writes to: its open connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    open: HashMap<u64, Open>,
    /// Those with something to be written in this step.
    touched: Vec<u64>,
}

impl Clients {
    pub(crate) fn opened(&mut self, session: u64, to: ToSession) {
        self.open.insert(session, Open { to, step: Vec::new(), answered: 0, close: false });
    }

    pub(crate) fn closed(&mut self, session: u64) {
        self.open.remove(&session);
    }

    /// Writes bytes that answer so many commands to a connection, at the end of this step.
    pub(crate) fn write(&mut self, session: u64, bytes: Vec<u8>, answered: usize, close: bool) {
        // Nothing comes behind the last.
        let Some(open) = self.open.get_mut(&session).filter(|open| !open.close) else { return };
        if open.step.is_empty() && open.answered == 0 {
            self.touched.push(session);
        }
        match open.step.is_empty() {
            true => open.step = bytes,
            false => open.step.extend_from_slice(&bytes),
        }
        open.answered += answered;
        open.close = close;
        if open.step.len() >= STEP_BYTES_MAX {
            self.flush_one(session);
        }
    }

    /// The step is over: everything goes out, to each connection in one write; one that takes too little is closed instead.
    pub(crate) fn flush(&mut self) {
        for session in std::mem::take(&mut self.touched) {
            self.flush_one(session);
        }
    }

    fn flush_one(&mut self, session: u64) {
        let Some(open) = self.open.get_mut(&session) else { return };
        let bytes = std::mem::take(&mut open.step);
        let (answered, close) = (std::mem::take(&mut open.answered), open.close);
        if !bytes.is_empty() || answered > 0 || close {
            self.send(session, bytes, answered, close);
        }
    }

    fn send(&self, session: u64, bytes: Vec<u8>, answered: usize, close: bool) {
        let Some(Open { to, .. }) = self.open.get(&session) else { return };
        let written = Written::new(Bytes::from(bytes), answered, close, &to.unsent);
        if to.unsent.bytes.load(Ordering::Relaxed) > UNSENT_BYTES_MAX {
            tracing::warn!(session, "a client does not take its answers: it is closed");
            return to.end.notify_one();
        }
        if to.unsent.of_all.load(Ordering::Relaxed) > ALL_UNSENT_BYTES_MAX {
            let most = self
                .open
                .values()
                .map(|open| &open.to)
                .max_by_key(|to| to.unsent.bytes.load(Ordering::Relaxed));
            tracing::warn!("clients do not take their answers: the one with most of them is closed");
            most.expect("there is this one at least").end.notify_one();
        }
        // It is gone already, if this fails.
        let _ = to.queue.send(written);
    }
}

/// What a connection has taken and not answered.
#[derive(Debug)]
struct UnderWay {
    room: Semaphore,
    /// Commands that came together, how many of them are not answered, and what they hold.
    batches: Mutex<VecDeque<(usize, Option<Held>)>>,
}

impl UnderWay {
    fn new() -> Self {
        Self { room: Semaphore::new(PIPELINE_COMMANDS_MAX), batches: Mutex::default() }
    }

    fn took(&self, commands: usize, held: Option<Held>) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        batches.push_back((commands, held));
    }

    /// So many commands are answered, in their order.
    fn answered(&self, mut answered: usize) {
        self.room.add_permits(answered);
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((left, _)) = batches.front_mut()
            && answered > 0
        {
            let of_batch = answered.min(*left);
            *left -= of_batch;
            answered -= of_batch;
            if *left == 0 {
                batches.pop_front();
            }
        }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: Stream, session: u64, inputs: mpsc::Sender<Input>, room: &Room) {
    let (reading, writing) = tokio::io::split(stream);
    let (writes, queue) = mpsc::unbounded_channel();
    let of_all = Arc::clone(&room.unsent_bytes);
    let unsent = Arc::new(Unsent { bytes: AtomicUsize::new(0), of_all });
    let end = Arc::new(Notify::new());
    let to = ToSession { queue: writes, unsent, end: Arc::clone(&end) };
    let under_way = UnderWay::new();
    if inputs.send(Input::Opened { session, to }).await.is_err() {
        return;
    }
    tokio::select! {
        () = read(reading, session, &under_way, &inputs, &room.commands) => {}
        () = write(writing, queue, &under_way) => {}
        () = end.notified() => {}
    }
    let _ = inputs.send(Input::Closed { session }).await;
}

async fn read(
    mut reading: ReadHalf<Stream>,
    session: u64,
    under_way: &UnderWay,
    inputs: &mpsc::Sender<Input>,
    budget: &Budget,
) {
    let limits = CommandLimits::default();
    let mut buffer = BytesMut::new();
    // Room for a command that is larger than what is read at once, and until when it has to be whole.
    let mut large: Option<(Held, Instant)> = None;
    loop {
        let came = buffer.len();
        let mut commands = Vec::new();
        let mut unreadable = None;
        while commands.len() < PIPELINE_COMMANDS_MAX {
            match take_command(&mut buffer, &limits) {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(error) => {
                    unreadable = Some(error.to_string());
                    break;
                }
            }
        }
        let full = commands.len() == PIPELINE_COMMANDS_MAX;
        if !commands.is_empty() {
            let bytes = came - buffer.len();
            let held = match large.take() {
                Some((held, _)) => Some(held),
                None if bytes > SMALL_BYTES_MAX => Some(budget.take(bytes).await),
                None => None,
            };
            let count = u32::try_from(commands.len()).expect("they are few");
            let Ok(permits) = under_way.room.acquire_many(count).await else { return };
            // Given back when the answers are written.
            permits.forget();
            under_way.took(commands.len(), held);
            if inputs.send(Input::Commands { session, commands }).await.is_err() {
                return;
            }
        }
        if let Some(error) = unreadable {
            let _ = inputs.send(Input::Unreadable { session, error }).await;
            // The answer is on its way; closing is the writer's. What is not read before would make the operating system take the answer back.
            return discard(&mut reading).await;
        }
        if full {
            continue;
        }
        if buffer.len() > READ_BYTES && large.is_none() {
            large = Some((budget.take(limits.command_bytes_max).await, Instant::now() + STALLED_MAX));
        }
        buffer.reserve(READ_BYTES);
        let read = reading.read_buf(&mut buffer);
        let read = match &large {
            Some((_, until)) => timeout_at(*until, read).await.unwrap_or(Ok(0)),
            None => read.await,
        };
        match read {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Reads to the end, and keeps nothing; returns when the connection is broken: who says no more may still hear the answer.
async fn discard(reading: &mut ReadHalf<Stream>) {
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match reading.read(&mut bytes).await {
            Ok(1..) => {}
            Ok(0) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

async fn write(
    mut writing: WriteHalf<Stream>,
    mut queue: mpsc::UnboundedReceiver<Written>,
    under_way: &UnderWay,
) {
    while let Some(written) = queue.recv().await {
        for chunk in written.bytes.chunks(WRITE_BYTES) {
            let write = async {
                writing.write_all(chunk).await?;
                // TLS may keep some.
                writing.flush().await
            };
            if !matches!(timeout(STALLED_MAX, write).await, Ok(Ok(()))) {
                return;
            }
        }
        under_way.answered(written.answered);
        if written.close {
            let _ = writing.shutdown().await;
            // The reader ends as soon as the client has closed.
            return tokio::time::sleep(LAST_WORDS_MAX).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that takes nothing; what tells it to end.
    fn silent(of_all: &Arc<AtomicUsize>) -> (ToSession, mpsc::UnboundedReceiver<Written>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let unsent = Arc::new(Unsent { bytes: AtomicUsize::new(0), of_all: Arc::clone(of_all) });
        (ToSession { queue, unsent, end: Arc::new(Notify::new()) }, waiting)
    }

    async fn is_told_to_end(to: &ToSession) -> bool {
        timeout(Duration::ZERO, to.end.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn a_client_that_takes_no_answers_is_closed_and_what_waited_for_it_is_let_go() {
        let of_all = Arc::default();
        let (slow, waiting) = silent(&of_all);
        let mut clients = Clients::default();
        clients.opened(1, slow.clone());
        // All within one step.
        for _ in 0..2 {
            clients.write(1, vec![0; UNSENT_BYTES_MAX / 2], 1, false);
        }
        assert!(!is_told_to_end(&slow).await, "it may have so much");
        clients.write(1, vec![0; STEP_BYTES_MAX], 1, false);
        assert!(is_told_to_end(&slow).await);
        assert_eq!(of_all.load(Ordering::Relaxed), UNSENT_BYTES_MAX, "what was too much is not kept");
        clients.closed(1);
        drop((slow, waiting));
        assert_eq!(of_all.load(Ordering::Relaxed), 0);
    }

    /// What followed changes was told of them behind the answer to its QUIT, without bound.
    #[test]
    fn nothing_is_kept_behind_the_last_answer() {
        let (to, mut waiting) = silent(&Arc::default());
        let mut clients = Clients::default();
        clients.opened(1, to);
        clients.write(1, b"+OK".to_vec(), 1, true);
        clients.write(1, vec![0; STEP_BYTES_MAX], 0, false);
        clients.flush();
        clients.write(1, vec![0; STEP_BYTES_MAX], 0, false);
        clients.flush();
        let last = waiting.try_recv().expect("it is written");
        assert!(last.close && last.bytes == "+OK");
        assert!(waiting.try_recv().is_err() && clients.open[&1].step.is_empty());
    }

    #[tokio::test]
    async fn of_all_clients_the_one_with_most_answers_is_closed_when_there_is_no_room() {
        let of_all = Arc::default();
        let mut clients = Clients::default();
        let connections: Vec<_> = (0..8).map(|_| silent(&of_all)).collect();
        for (session, (to, _)) in (0..).zip(&connections) {
            clients.opened(session, to.clone());
        }
        // Said instead of held: the bytes themselves need not be there.
        for (to, _) in &connections {
            of_all.fetch_add(ALL_UNSENT_BYTES_MAX / 8, Ordering::Relaxed);
            to.unsent.bytes.fetch_add(ALL_UNSENT_BYTES_MAX / 8, Ordering::Relaxed);
        }
        connections[3].0.unsent.bytes.fetch_add(100, Ordering::Relaxed);
        clients.send(5, vec![0; 10], 1, false);
        assert!(is_told_to_end(&connections[3].0).await && !is_told_to_end(&connections[5].0).await);
    }

    #[tokio::test]
    async fn what_commands_hold_is_given_back_when_they_are_answered() {
        let budget = Budget::new(10 << 10);
        let under_way = UnderWay::new();
        let permits = under_way.room.acquire_many(3).await.expect("it is open");
        permits.forget();
        under_way.took(2, Some(budget.take(10 << 10).await));
        under_way.took(1, None);
        under_way.answered(1);
        let more = async || timeout(Duration::ZERO, budget.take(1)).await.is_ok();
        assert!(!more().await, "one of the two is not answered");
        under_way.answered(2);
        assert!(more().await);
        assert_eq!(under_way.room.available_permits(), PIPELINE_COMMANDS_MAX);
    }
}
