//! A server that logs every message before it answers, one connection and one message at a time, in the way that each message
//! asks for; and says how long the logging took.
//!
//! Request: length (u32, little-endian) of the rest, way (u8), body. Answer: nanoseconds of logging (u64), length (u32), the body
//! with every byte turned around. A way of 255 asks it to let go of what was logged; the answer is empty.

use super::{LoggingCostError, Setting};
use crate::floor::{DurableWrite, FloorFile};
use crate::logging::node::say;
use crate::logging::{Arguments as NodeArguments, NodeProcess};
use mainstay_disk::disk::Backend;
use mainstay_disk::log::Log;
use mainstay_disk::open::{Options, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::record::Kind;
use mainstay_types::id::InstanceId;
use mainstay_types::level::Level;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Longest body, in bytes.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of each plain file that is logged to, after which it is written from its start again.
const FILE_BYTES: u64 = 64 << 20;

/// Instead of a way: lets go of what was logged.
const LET_GO: u8 = 255;

/// How a message is logged before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not at all.
    None,
    /// Written to a plain file, and left in the page cache.
    PageCache,
    /// Appended to a journal.
    JournalProcess,
    /// Written to a plain file, then `fdatasync`.
    Fdatasync,
    /// Written to a plain file that is open with `O_DIRECT | O_DSYNC`.
    Direct,
    /// Appended to a journal, and made durable.
    JournalDisk,
}

impl Way {
    pub(super) const ALL: [Self; 6] =
        [Self::None, Self::PageCache, Self::JournalProcess, Self::Fdatasync, Self::Direct, Self::JournalDisk];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "no logging",
            Self::PageCache => "plain write to the page cache",
            Self::JournalProcess => "journal, process",
            Self::Fdatasync => "plain write + fdatasync",
            Self::Direct => "plain write, O_DIRECT | O_DSYNC",
            Self::JournalDisk => "journal, disk",
        }
    }

    pub(super) fn level(self) -> Option<Level> {
        match self {
            Self::None => None,
            Self::PageCache | Self::JournalProcess => Some(Level::Process),
            Self::Fdatasync | Self::Direct | Self::JournalDisk => Some(Level::Disk),
        }
    }

    fn code(self) -> u8 {
        let place = Self::ALL.iter().position(|way| *way == self);
        u8::try_from(place.expect("all are in the list")).expect("there are few")
    }
}

/// Where the server logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Arguments {
    /// A folder, which it makes.
    pub(crate) directory: PathBuf,
}

/// Is the server until the benchmark hangs up.
///
/// # Errors
/// Those of the socket, the files and the journal.
pub(crate) fn serve(arguments: &Arguments, answers: &mut dyn Write) -> Result<(), LoggingCostError> {
    std::fs::create_dir_all(&arguments.directory)?;
    let mut logs = Logs::open(&arguments.directory)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(answers, listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut head, mut answer) = ([0; 5], Vec::new());
    loop {
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let [l0, l1, l2, l3, way] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length == 0 || length > BODY_BYTES_MAX {
            return Err(io::Error::other("a request of another protocol").into());
        }
        answer.clear();
        answer.resize(12 + length - 1, 0);
        let body = &mut answer[12..];
        stream.read_exact(body)?;
        let since = Instant::now();
        match Way::ALL.get(usize::from(way)) {
            Some(way) => logs.log(*way, body)?,
            None => logs.let_go()?,
        }
        let logging_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        body.iter_mut().for_each(|byte| *byte = !*byte);
        answer[..8].copy_from_slice(&logging_ns.to_le_bytes());
        answer[8..12].copy_from_slice(&u32::try_from(length - 1).expect("bounded").to_le_bytes());
        stream.write_all(&answer)?;
    }
}

/// Everything that can be logged to.
struct Logs {
    cached: CachedFile,
    fdatasync: FloorFile,
    direct: FloorFile,
    journal: Log,
}

impl Logs {
    fn open(directory: &Path) -> Result<Self, LoggingCostError> {
        let floor =
            |name: &str, method| FloorFile::create(&directory.join(name), method, FILE_BYTES, BODY_BYTES_MAX);
        Ok(Self {
            cached: CachedFile::create(&directory.join("cached"))?,
            fdatasync: floor("fdatasync", DurableWrite::Fdatasync)?,
            direct: floor("direct", DurableWrite::DirectDsync)?,
            journal: open_journal(&directory.join("journal"))?,
        })
    }

    fn log(&mut self, way: Way, body: &[u8]) -> Result<(), LoggingCostError> {
        match way {
            Way::None => {}
            Way::PageCache => self.cached.write(body)?,
            Way::Fdatasync => self.fdatasync.write(body.len())?,
            Way::Direct => self.direct.write(body.len())?,
            Way::JournalProcess => append_and_commit(&self.journal, body, Level::Process)?,
            Way::JournalDisk => append_and_commit(&self.journal, body, Level::Disk)?,
        }
        Ok(())
    }

    fn let_go(&self) -> Result<(), LoggingCostError> {
        recycle(&self.journal)
    }
}

/// A journal as a service has it.
pub(super) fn open_journal(directory: &Path) -> Result<Log, LoggingCostError> {
    open_striped(directory, OpenOptions::default(), Vec::new())
}

/// A journal over further directories.
pub(super) fn open_striped(
    directory: &Path,
    journal: OpenOptions,
    stripes: Vec<PathBuf>,
) -> Result<Log, LoggingCostError> {
    let options = Options {
        journal,
        backend: Backend::Auto,
        create_directory: true,
        hint: "mainstay bench logging-cost".to_owned(),
        stripes,
        kept: false,
        record: None,
    };
    Ok(Log::new(open(directory, &options)?))
}

pub(super) fn append(log: &Log, body: &[u8]) -> Result<mainstay_types::id::Lsn, LoggingCostError> {
    Ok(log.append(Kind::FIRST_USER, InstanceId(0), &[body])?.end)
}

fn append_and_commit(log: &Log, body: &[u8], level: Level) -> Result<(), LoggingCostError> {
    let end = append(log, body)?;
    Ok(log.commit(end, level)?)
}

/// Gives up what was logged: a journal in its steady state writes segments that were written before.
pub(super) fn recycle(log: &Log) -> Result<(), LoggingCostError> {
    let end = log.end();
    log.commit(end, Level::Disk)?;
    log.trim(end);
    Ok(log.wait_trimmed(end)?)
}

/// A file, written in full once, that is written over and over and never synced.
struct CachedFile {
    file: File,
    position: u64,
}

impl CachedFile {
    fn create(path: &Path) -> io::Result<Self> {
        let file = FileOptions::new().write(true).create_new(true).open(path)?;
        let piece = vec![0; 1 << 20];
        for position in (0..FILE_BYTES).step_by(piece.len()) {
            file.write_all_at(&piece, position)?;
        }
        file.sync_all()?;
        Ok(Self { file, position: 0 })
    }

    fn write(&mut self, body: &[u8]) -> io::Result<()> {
        if self.position + body.len() as u64 > FILE_BYTES {
            self.position = 0;
        }
        self.file.write_all_at(body, self.position)?;
        self.position += body.len() as u64;
        Ok(())
    }
}

/// The client, and the server that ends with it.
pub(super) struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Dropped last: with it the server.
    _server: NodeProcess,
}

impl Client {
    pub(super) fn start(setting: &Setting<'_>) -> Result<Self, LoggingCostError> {
        let arguments = Arguments { directory: setting.directory.join("logging-cost") };
        let (server, address) = NodeProcess::listening(setting.given, NodeArguments::Logging(arguments))?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, request: Vec::new(), answer: Vec::new(), _server: server })
    }

    /// Sends a body and waits for the answer: how long the server logged, and how long this end waited, in microseconds.
    pub(super) fn call(&mut self, way: Way, body: &[u8]) -> Result<(f64, f64), LoggingCostError> {
        self.ask(way.code(), body)
    }

    /// Has the server let go of what it logged.
    pub(super) fn let_go(&mut self) -> Result<(), LoggingCostError> {
        self.ask(LET_GO, &[]).map(|_| ())
    }

    fn ask(&mut self, way: u8, body: &[u8]) -> Result<(f64, f64), LoggingCostError> {
        self.request.clear();
        let length = u32::try_from(body.len() + 1).expect("bodies are short");
        self.request.extend_from_slice(&length.to_le_bytes());
        self.request.push(way);
        self.request.extend_from_slice(body);
        self.answer.resize(12 + body.len(), 0);
        let since = Instant::now();
        self.stream.write_all(&self.request)?;
        self.stream.read_exact(&mut self.answer)?;
        let waited_us = since.elapsed().as_secs_f64() * 1e6;
        let (head, echoed) = self.answer.split_at(12);
        let found = u32::from_le_bytes(head[8..].try_into().expect("four bytes")) as usize;
        if found != body.len() || echoed.iter().zip(body).any(|(echoed, sent)| *echoed != !*sent) {
            return Err(LoggingCostError::Length { sent: body.len(), found });
        }
        let logging_ns = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        Ok((logging_ns as f64 / 1e3, waited_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn every_way_keeps_the_body_or_says_why_not() {
        let scratch = Scratch::create(&std::env::temp_dir()).expect("a folder");
        let mut logs = Logs::open(scratch.path()).expect("they open");
        let before = logs.journal.end();
        for way in Way::ALL {
            logs.log(way, b"a message").expect("it is logged");
        }
        let mut kept = [0; 9];
        File::open(scratch.path().join("cached"))
            .and_then(|file| file.read_exact_at(&mut kept, 0))
            .expect("it is there");
        assert_eq!(&kept, b"a message");
        assert!(logs.journal.durable() > before, "level disk is past a sync");
        logs.let_go().expect("it is let go of");
        assert_eq!(logs.journal.first(), logs.journal.end());
    }
}
