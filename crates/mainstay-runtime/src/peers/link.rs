//! One connection: a queue that whoever sends writes from, and a thread that reads.
//!
//! ```text
//!   send ──> seal (TLS) ──> queue ──> socket      on the thread of the caller, as long as the socket takes it;
//!                             └────> writer       what it does not take is left to the writer thread, which may block
//!   socket ──> unseal (TLS) ──> frames ──> event  on the reader thread
//! ```
//!
//! A thread woken up costs about as much as the whole way through loopback, so that none is woken while all goes well. Invariant: `role`
//! says who may touch the socket's sending side; whoever has the role writes all there is, also what others queue meanwhile.

use crate::peers::event::DisconnectReason;
use crate::peers::frames::{HEARTBEAT, READ_BYTES, Splitter};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// Chunks that a caller writes before it leaves the rest to the writer thread: it has other things to do.
const CHUNKS_INLINE_MAX: usize = 4;

/// What is queued is gathered into chunks of about this size, in bytes: one system call each.
const CHUNK_BYTES: usize = 256 << 10;

/// A connection on which both have agreed to talk.
pub(super) struct Link {
    pub(super) session: u64,
    /// Longest frame that the peer takes, in bytes.
    pub(super) frame_bytes_max: u32,
    /// The thread that reads, and on which its events are reported.
    pub(super) reader: ThreadId,
    socket: TcpStream,
    outgoing_bytes_max: usize,
    outgoing: Mutex<Outgoing>,
    /// The writer thread waits here.
    work: Condvar,
    /// Whether anything was sent since the writer thread last looked.
    sent: AtomicBool,
}

struct Outgoing {
    tls: Option<rustls::Connection>,
    queue: VecDeque<Vec<u8>>,
    /// An empty buffer for the next chunk: while all goes well, sending allocates nothing.
    spare: Vec<u8>,
    /// Bytes of the first chunk that have been written already.
    written: usize,
    /// Bytes in the queue and in the hands of whoever writes.
    bytes: usize,
    role: Role,
    ended: Option<DisconnectReason>,
    over: bool,
}

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Nobody,
    Caller,
    WriterThread,
}

/// Why bytes were not taken. Nothing of them was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Over,
    Full { bytes: usize },
}

impl Link {
    pub(super) fn new(
        session: u64,
        frame_bytes_max: u32,
        outgoing_bytes_max: usize,
        socket: TcpStream,
        mut tls: Option<rustls::Connection>,
    ) -> Self {
        if let Some(tls) = &mut tls {
            // What is written into it is taken out at once, and counted in our queue.
            tls.set_buffer_limit(None);
        }
        let outgoing = Outgoing {
            tls,
            queue: VecDeque::new(),
            spare: Vec::new(),
            written: 0,
            bytes: 0,
            role: Role::Nobody,
            ended: None,
            over: false,
        };
        Self {
            session,
            frame_bytes_max,
            reader: std::thread::current().id(),
            socket,
            outgoing_bytes_max,
            outgoing: Mutex::new(outgoing),
            work: Condvar::new(),
            sent: AtomicBool::new(false),
        }
    }

    /// Sends bytes, or queues them, and leaves the buffer empty; if they are not taken, as it was. Never blocks on the socket.
    pub(super) fn send(&self, bytes: &mut Vec<u8>) -> Result<(), NotTaken> {
        let mut outgoing = self.lock();
        if outgoing.over {
            return Err(NotTaken::Over);
        }
        if outgoing.bytes + bytes.len() > self.outgoing_bytes_max {
            return Err(NotTaken::Full { bytes: outgoing.bytes });
        }
        outgoing.put(bytes);
        self.write_as_caller(outgoing);
        Ok(())
    }

    fn write_as_caller<'a>(&'a self, mut outgoing: MutexGuard<'a, Outgoing>) {
        self.sent.store(true, Ordering::Relaxed);
        if outgoing.role == Role::Nobody {
            outgoing.role = Role::Caller;
            self.write(outgoing, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, CHUNKS_INLINE_MAX);
        }
    }

    /// Writes what is queued; the caller of this has the role, and no longer when this returns.
    fn write<'a>(&'a self, mut outgoing: MutexGuard<'a, Outgoing>, flags: SendFlags, chunks_max: usize) {
        for _ in 0..chunks_max {
            if outgoing.over || outgoing.queue.is_empty() {
                outgoing.role = Role::Nobody;
                return;
            }
            let chunk = outgoing.queue.pop_front().expect("it is not empty");
            let mut written = std::mem::take(&mut outgoing.written);
            drop(outgoing);
            let sent = rustix::net::send(&self.socket, &chunk[written..], flags);
            outgoing = self.lock();
            if outgoing.over {
                continue;
            }
            if let Ok(bytes) = sent {
                written += bytes;
                outgoing.bytes -= bytes;
            }
            if written < chunk.len() {
                outgoing.queue.push_front(chunk);
                outgoing.written = written;
            } else {
                outgoing.keep_spare(chunk);
            }
            match sent {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => self.end_locked(&mut outgoing, DisconnectReason::Broken(error.into())),
            }
        }
        if outgoing.over || outgoing.queue.is_empty() {
            outgoing.role = Role::Nobody;
            return;
        }
        outgoing.role = Role::WriterThread;
        self.work.notify_one();
    }

    /// The body of the writer thread: writes what a caller left, and heartbeats when nobody sends.
    pub(super) fn keep_writing(&self, heartbeat_every: Duration) {
        let mut outgoing = self.lock();
        while !outgoing.over {
            if outgoing.role == Role::WriterThread {
                self.write(outgoing, SendFlags::NOSIGNAL, usize::MAX);
                outgoing = self.lock();
                continue;
            }
            let (woken, waited) =
                self.work.wait_timeout(outgoing, heartbeat_every).unwrap_or_else(PoisonError::into_inner);
            outgoing = woken;
            let idle = outgoing.role == Role::Nobody && !outgoing.over;
            if waited.timed_out() && !self.sent.swap(false, Ordering::Relaxed) && idle {
                outgoing.put(&mut HEARTBEAT.to_vec());
                outgoing.role = Role::WriterThread;
            }
        }
    }

    /// Reads until the connection ends; says why it did.
    pub(super) fn read(
        &self,
        frame_bytes_max: u32,
        silence_max: Duration,
        mut on_frames: impl FnMut(Vec<u8>),
    ) -> DisconnectReason {
        let ended = self.read_to_the_end(frame_bytes_max, silence_max, &mut on_frames);
        let mut outgoing = self.lock();
        self.end_locked(&mut outgoing, ended);
        outgoing.ended.take().expect("it has ended just now, or before")
    }

    fn read_to_the_end(
        &self,
        frame_bytes_max: u32,
        silence_max: Duration,
        on_frames: &mut impl FnMut(Vec<u8>),
    ) -> DisconnectReason {
        let mut splitter = Splitter::new(frame_bytes_max);
        let mut sealed = self.lock().tls.is_some().then(|| Vec::with_capacity(READ_BYTES));
        // The first frames may have come together with the greeting.
        let mut unsealed = match &mut sealed {
            Some(sealed) => self.unseal(sealed, splitter.room()),
            None => Ok(()),
        };
        loop {
            // What came before the end is handed on before it.
            loop {
                match splitter.whole() {
                    Ok(Some(bytes)) => on_frames(bytes),
                    Ok(None) => break,
                    Err(error) => return error.into(),
                }
            }
            if let Err(why) = unsealed {
                return why;
            }
            let into = sealed.as_mut().unwrap_or_else(|| splitter.room());
            match rustix::net::recv(&self.socket, spare_capacity(into), RecvFlags::empty()) {
                Ok((_, 0)) => return DisconnectReason::Closed,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return DisconnectReason::Silent { silence_max },
                Err(error) => return DisconnectReason::Broken(error.into()),
            }
            if let Some(sealed) = &mut sealed {
                unsealed = self.unseal(sealed, splitter.room());
                sealed.clear();
            }
        }
    }

    fn unseal(&self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), DisconnectReason> {
        let mut outgoing = self.lock();
        let tls = outgoing.tls.as_mut().expect("sealed bytes come over TLS");
        let mut rest = sealed;
        let mut closed = false;
        loop {
            if !rest.is_empty() {
                tls.read_tls(&mut rest)?;
                tls.process_new_packets()?;
            }
            let mut reader = tls.reader();
            // An error here means that there is nothing more for now.
            while let Ok(bytes) = reader.fill_buf() {
                if bytes.is_empty() {
                    closed = true;
                    break;
                }
                plain.extend_from_slice(bytes);
                let taken = bytes.len();
                reader.consume(taken);
            }
            if rest.is_empty() || closed {
                break;
            }
        }
        // Such as the answer to a change of keys.
        if outgoing.seal() {
            self.write_as_caller(outgoing);
        }
        if closed { Err(DisconnectReason::Closed) } else { Ok(()) }
    }

    /// Ends the connection; its reader reports why. The first reason counts.
    pub(super) fn end(&self, why: DisconnectReason) {
        self.end_locked(&mut self.lock(), why);
    }

    fn end_locked(&self, outgoing: &mut Outgoing, why: DisconnectReason) {
        if outgoing.over {
            return;
        }
        outgoing.over = true;
        outgoing.ended = Some(why);
        outgoing.queue.clear();
        // It may be gone already.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing {
    fn put(&mut self, bytes: &mut Vec<u8>) {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(bytes).expect("its buffer has no limit");
            bytes.clear();
            self.seal();
        } else if self.gather(bytes) {
            bytes.clear();
        } else {
            let chunk = std::mem::replace(bytes, std::mem::take(&mut self.spare));
            self.queue_chunk(chunk);
        }
    }

    /// Takes what TLS wants to be sent; says whether that was anything.
    fn seal(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        let mut sealed = std::mem::take(&mut self.spare);
        while tls.wants_write() {
            tls.write_tls(&mut sealed).expect("memory takes everything");
        }
        let any = !sealed.is_empty();
        if any && !self.gather(&sealed) {
            self.queue_chunk(sealed);
        } else {
            self.keep_spare(sealed);
        }
        any
    }

    /// Copies bytes behind those of the last chunk, if there is one and it stays small enough; says whether it did.
    fn gather(&mut self, bytes: &[u8]) -> bool {
        match self.queue.back_mut() {
            Some(last) if last.len() + bytes.len() <= CHUNK_BYTES => {
                last.extend_from_slice(bytes);
                self.bytes += bytes.len();
                true
            }
            _ => false,
        }
    }

    fn queue_chunk(&mut self, chunk: Vec<u8>) {
        self.bytes += chunk.len();
        self.queue.push_back(chunk);
    }

    fn keep_spare(&mut self, mut chunk: Vec<u8>) {
        if chunk.capacity() <= CHUNK_BYTES {
            chunk.clear();
            self.spare = chunk;
        }
    }
}
