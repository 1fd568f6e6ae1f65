//! `mainstay mpi stat`: what a run did, rank by rank, call by call, pair by pair.

use crate::definition::{Comm, decode_texts};
use crate::ending::Ending;
use crate::field::{Field, ObjectKind, Role, fields};
use crate::format::Kind;
use crate::payload::Payload;
use crate::reader::damage::Damage;
use crate::reader::{ReadError, Reader, Record};
use crate::run::Run;
use crate::varint::Bytes;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// What one rank did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankStat {
    /// The rank.
    pub rank: u32,
    /// Which side logs the bytes of messages.
    pub payload: Payload,
    /// Calls, polls that found nothing included.
    pub calls: u64,
    /// Of them, those that a log which keeps only its end lacks: they are in no other figure.
    pub not_kept: u64,
    /// Polls that found nothing.
    pub misses: u64,
    /// Messages sent, and their bytes.
    pub sent: (u64, u64),
    /// Bytes that came out of receives and collectives.
    pub received_bytes: u64,
    /// Calls by name.
    pub by_call: BTreeMap<String, u64>,
    /// Messages and bytes to each rank of the world. Persistent sends are counted in `sent` only.
    pub to: BTreeMap<i64, (u64, u64)>,
    /// Calls that replay cannot serve, by name.
    pub unhandled: BTreeMap<String, u64>,
    /// Whether the process ended by itself, and its log is whole.
    pub ended: bool,
    /// How it did then.
    pub ending: Ending,
    /// The status it left with by `_exit`, which leaves a log that is cut off.
    pub left: Option<i32>,
    /// Function and number of the call it was in, if it was cut off, or if MPI itself ended it.
    pub cut_in: Option<(String, u64)>,
    /// Function and number of its last whole call of MPI.
    pub last_call: Option<(String, u64)>,
    /// Why recording stopped early: the system's number of the error.
    pub stopped: Option<i32>,
    /// Times that no page was free, and nanoseconds waited; only of a process that ended by itself.
    pub stalls: (u64, u64),
    /// Bytes of the log.
    pub log_bytes: u64,
    /// What is wrong with the log.
    pub damage: Option<Damage>,
}

/// How often a log is read that a rank which runs gives back under the reader's hands. A reader is faster than whoever records: one
/// reading more is nearly always enough.
const READINGS_MAX: usize = 8;

/// Reads the log of a rank, which may run meanwhile.
///
/// # Errors
/// [`ReadError`].
pub fn rank_stat(run: &Run, rank: u32) -> Result<RankStat, ReadError> {
    for _ in 1..READINGS_MAX {
        let mut reader = run.reader(rank)?;
        let stat = stat_of(run, rank, &mut reader);
        if !reader.overtaken() {
            return Ok(stat);
        }
    }
    Ok(stat_of(run, rank, &mut run.reader(rank)?))
}

fn stat_of(run: &Run, rank: u32, reader: &mut Reader) -> RankStat {
    let mut stat = RankStat { rank, payload: reader.header().payload, ..RankStat::default() };
    let mut names: Vec<String> = Vec::new();
    let mut comms: BTreeMap<u64, Comm> = BTreeMap::new();
    // A clock of the C library is a call, too, and no place that somebody looks for.
    let mut last = None;
    while let Some(record) = reader.next_record() {
        stat.calls = reader.calls();
        let name = names.get(usize::from(record.function)).cloned().unwrap_or_default();
        let is_clock = !name.starts_with("MPI_");
        let count = record.calls();
        match record.kind {
            Kind::Call => {
                *stat.by_call.entry(name.clone()).or_default() += 1;
                stat.take_call(&name, &record, &comms);
                if !is_clock {
                    last = Some((record.function, stat.calls));
                }
            }
            Kind::Misses => {
                stat.misses += count;
                *stat.by_call.entry(name).or_default() += count;
                last = Some((record.function, stat.calls));
            }
            Kind::Unhandled => {
                *stat.by_call.entry(name.clone()).or_default() += count;
                *stat.unhandled.entry(name).or_default() += count;
            }
            Kind::Comm => {
                if let Some(comm) = Comm::decode(&record.body) {
                    comms.insert(comm.id, comm);
                }
            }
            Kind::Names => names = decode_texts(&record.body).unwrap_or_default(),
            Kind::End => {
                stat.ended = true;
                stat.ending = Ending::of_record(&record.body);
                let mut bytes = Bytes::new(&record.body);
                if let (Some(_), Some(awaited), Some(stall)) =
                    (bytes.unsigned(), bytes.unsigned(), bytes.unsigned())
                {
                    stat.stalls = (awaited, stall);
                }
            }
            Kind::Type | Kind::Fortran | Kind::Start | Kind::Pad | Kind::Clock => {}
        }
    }
    // Known also where nothing whole stands behind a gap.
    (stat.calls, stat.not_kept) = (reader.calls(), reader.calls_not_kept());
    stat.damage = reader.damage().cloned();
    let tail = reader.tail();
    stat.stopped = tail.stopped.map(|stopped| stopped.0);
    stat.left = tail.left.filter(|_| !stat.ended);
    let named =
        |(function, call): (u16, u64)| (names.get(usize::from(function)).cloned().unwrap_or_default(), call);
    let entered = tail.entered.filter(|entered| !stat.ended && entered.1 == stat.calls + 1);
    stat.cut_in = entered.or(stat.ending.within.map(|function| (function, stat.calls + 1))).map(named);
    stat.last_call = last.map(named);
    // Of a log that has a gap what it takes on the disk.
    let bytes = |about: std::fs::Metadata| match reader.gap() {
        Some(_) => about.blocks() * 512,
        None => about.len(),
    };
    stat.log_bytes = std::fs::metadata(run.log(rank)).map_or(0, bytes);
    stat
}

impl RankStat {
    fn take_call(&mut self, name: &str, record: &Record, comms: &BTreeMap<u64, Comm>) {
        let sends = name.contains("send") || name.starts_with("MPI_Send");
        let (mut data, mut peer, mut comm) = (None, None, None);
        for field in fields(&record.body) {
            match field {
                Field::Data(bytes, _) | Field::Length(bytes) if name.starts_with("MPI_Start") => {
                    self.sent = (self.sent.0 + 1, self.sent.1 + bytes);
                }
                Field::Data(bytes, _) | Field::Length(bytes) => data = Some(bytes),
                // Of a send and receive in one the destination comes first.
                Field::Input(Role::Peer, rank) => peer = peer.or(Some(rank)),
                Field::Handle(ObjectKind::Comm, id) => comm = Some(id),
                Field::Received(bytes) => self.received_bytes += bytes.len() as u64,
                Field::Promised(_, _, bytes, _) | Field::Omitted(bytes) => self.received_bytes += bytes,
                _ => {}
            }
        }
        let (true, Some(bytes), Some(peer)) = (sends, data, peer) else {
            return;
        };
        // A negative peer is MPI_PROC_NULL: nobody.
        let Ok(place) = usize::try_from(peer) else {
            return;
        };
        self.sent = (self.sent.0 + 1, self.sent.1 + bytes);
        let world = comm.and_then(|id| comms.get(&id)).and_then(|comm| comm.peers.get(place));
        let to = self.to.entry(world.copied().unwrap_or(-1)).or_default();
        *to = (to.0 + 1, to.1 + bytes);
    }
}
