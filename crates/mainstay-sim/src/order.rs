//! The surviving order: every record of the journal as it was appended, byte for byte, cut back where a crash cut it, and
//! the failure-free run over it.

use crate::disk::Disk;
use crate::ledger::Command;
use crate::model::{Done, Model, Stopped};
use crate::properties::{Violation, failure_free};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::format::{PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, record_bytes};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::record::Kind;
use mainstay_process::event::Identity;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::prefix::Prefix;
use mainstay_process::record::quarantined::{self, Quarantined};
use mainstay_process::record::{RecordError, intended, started};
use mainstay_types::id::{ClientId, Lsn, OutputId};
use std::collections::BTreeMap;
use std::time::Duration;

/// One record of the process.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) lsn: Lsn,
    pub(crate) end: Lsn,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every entry is a delivery")]
pub(crate) enum Content {
    Delivery {
        prefix: Prefix,
        delivery: Delivery,
        /// What the model did; nothing before it came that far.
        done: Option<Done>,
        /// End of the verdict that it is not tried again.
        verdict: Option<Lsn>,
    },
    Intended(OutputId),
    /// A life of the process began in this life of the journal.
    Started {
        life: u64,
    },
}

/// A stretch of the log that must reach the disk as it is: a record or a page's header.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    lsn: Lsn,
    end: Lsn,
    /// Bytes from `lsn` that count; the rest is padding.
    bytes: usize,
}

/// The order.
#[derive(Debug)]
pub(crate) struct Order {
    geometry: Geometry,
    key_retention: Duration,
    /// The log from its first byte.
    bytes: Vec<u8>,
    stretches: Vec<Stretch>,
    /// Stretches found durable so far.
    durable: usize,
    entries: Vec<Entry>,
    /// Entries that the model has run.
    run: usize,
    pub(crate) model: Model,
    /// The life of the journal that was read or observed last.
    life: u64,
    by_call: BTreeMap<u64, Vec<usize>>,
    by_identity: BTreeMap<Identity, usize>,
    registrations: BTreeMap<ClientId, usize>,
}

impl Order {
    pub(crate) fn new(geometry: Geometry, key_retention: Duration) -> Self {
        Self {
            geometry,
            key_retention,
            bytes: Vec::new(),
            stretches: Vec::new(),
            durable: 0,
            entries: Vec::new(),
            run: 0,
            model: Model::default(),
            life: 0,
            by_call: BTreeMap::new(),
            by_identity: BTreeMap::new(),
            registrations: BTreeMap::new(),
        }
    }

    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.bytes.len() as u64)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Entries that the model has run.
    pub(crate) fn entries_run(&self) -> &[Entry] {
        &self.entries[..self.run]
    }

    /// Takes over what was appended since the last call, while the ring still has it.
    pub(crate) fn observe<M: PageMemory>(&mut self, journal: &Journal<M>) -> Result<(), Violation> {
        let end = journal.end();
        let from = self.end();
        let page_bytes = u64::from(self.geometry.page_bytes);
        let mut at = from.0;
        while at < end.0 {
            let page = at / page_bytes;
            let until = end.0.min((page + 1) * page_bytes);
            let slot = journal.memory().page(self.geometry.slot_of(page));
            let [within, within_end] = [at, until].map(|at| (at - page * page_bytes) as usize);
            self.bytes.extend_from_slice(&slot[within..within_end]);
            at = until;
        }
        self.parse(from)?;
        self.run_model()
    }

    /// The journal was opened and ends at `end`: what the crash took is gone; what a life appended that never came to a
    /// step is read from the segments, where opening has put it.
    pub(crate) fn recovered(&mut self, disk: &Disk, catalog: &Catalog, end: Lsn) -> Result<(), Violation> {
        let kept = self.kept(disk, catalog, end);
        self.cut(kept)?;
        let from = self.end();
        let segment_bytes = self.geometry.segment_bytes();
        let mut at = from.0;
        while at < end.0 {
            let until = end.0.min((at / segment_bytes + 1) * segment_bytes);
            let place = self.geometry.place_of(Lsn(at));
            let offset = usize::try_from(place.offset).expect("a file fits in memory");
            let bytes = usize::try_from(until - at).expect("a file fits in memory");
            let file = catalog.file_of(place.segment);
            let found = file.and_then(|file| disk.content(&file)?.get(offset..offset + bytes));
            let Some(found) = found else {
                return Err(failure_free::violated(format!("no segment holds {at}, below the end {end}")));
            };
            self.bytes.extend_from_slice(found);
            at = until;
        }
        self.parse(from)?;
        self.run_model()
    }

    /// Up to where the log is what it was, if its end is `end` now. Where records have gone, a page
    /// may have been filled up with padding since. What was seen durable is not looked at again.
    pub(crate) fn kept(&self, disk: &Disk, catalog: &Catalog, end: Lsn) -> Lsn {
        for stretch in self.stretches[self.durable..].iter().take_while(|stretch| stretch.end <= end) {
            if stretch.lsn < catalog.first() {
                continue;
            }
            let place = self.geometry.place_of(stretch.lsn);
            let offset = usize::try_from(place.offset).expect("a file fits in memory");
            let file = catalog.file_of(place.segment);
            let found = file.and_then(|file| disk.content(&file)?.get(offset..offset + stretch.bytes));
            let from = usize::try_from(stretch.lsn.0).expect("a log fits in memory");
            if found != Some(&self.bytes[from..from + stretch.bytes]) {
                return stretch.lsn;
            }
        }
        end.min(self.end())
    }

    fn parse(&mut self, from: Lsn) -> Result<(), Violation> {
        let page_bytes = self.geometry.page_bytes as usize;
        let mut at = usize::try_from(from.0).expect("a log fits in memory");
        let address = |at: usize| Lsn(at as u64);
        let mut rerun = false;
        while at < self.bytes.len() {
            let offset = at % page_bytes;
            if offset == 0 {
                let end = address(at + PAGE_HEADER_BYTES);
                self.stretches.push(Stretch { lsn: address(at), end, bytes: PAGE_HEADER_BYTES });
                at += PAGE_HEADER_BYTES;
                continue;
            }
            if offset + RECORD_HEADER_BYTES > page_bytes {
                at += page_bytes - offset;
                continue;
            }
            let record = &self.bytes[at..];
            let number = |at: usize, bytes: usize| {
                record[at..at + bytes].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
            };
            let (payload_bytes, lsn, kind) =
                (number(4, 4) as usize, number(8, 8), Kind(number(24, 2) as u16));
            if lsn != at as u64 {
                let what = format!("the ring holds record {lsn} where {at} belongs");
                return Err(failure_free::violated(what));
            }
            let end = address(at + record_bytes(payload_bytes));
            if end.0 > self.bytes.len() as u64 || kind == Kind(0) {
                return Err(failure_free::violated(format!("no record is at {at}, below the journal's end")));
            }
            let counts = RECORD_HEADER_BYTES + if kind == Kind::PAD { 0 } else { payload_bytes };
            self.stretches.push(Stretch { lsn: Lsn(lsn), end, bytes: counts });
            if kind == Kind::LIFE {
                self.life = number(RECORD_HEADER_BYTES, 8);
            }
            if kind >= Kind::FIRST_USER {
                let payload = record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload_bytes].to_vec();
                let taken = self.take_in(Lsn(lsn), end, kind, &payload);
                rerun |= taken.map_err(|error| failure_free::violated(format!("record {lsn}: {error}")))?;
            }
            at = usize::try_from(end.0).expect("a log fits in memory");
        }
        if rerun {
            self.restart_model();
        }
        Ok(())
    }

    /// Returns whether what the model has run is not right any more.
    fn take_in(&mut self, lsn: Lsn, end: Lsn, kind: Kind, payload: &[u8]) -> Result<bool, RecordError> {
        let content = match kind {
            started::KIND => Content::Started { life: self.life },
            intended::KIND => Content::Intended(intended::decode(payload)?),
            quarantined::KIND => {
                let judged = Quarantined::decode(payload)?;
                let place = self.entries.iter().position(|entry| entry.lsn == judged.lsn);
                let Some(place) = place else {
                    return Ok(false);
                };
                if let Content::Delivery { verdict, .. } = &mut self.entries[place].content {
                    verdict.get_or_insert(end);
                }
                return Ok(place < self.run);
            }
            _ => {
                let Some((prefix, delivery)) = Delivery::decode(kind, payload)? else {
                    return Err(RecordError::UnknownKind { kind: kind.0 });
                };
                if let Delivery::Request { identity, body, .. } = &delivery {
                    let place = self.entries.len();
                    self.by_call.entry(Command::decode(body).call).or_default().push(place);
                    self.by_identity.insert(identity.clone(), place);
                }
                Content::Delivery { prefix, delivery, done: None, verdict: None }
            }
        };
        self.entries.push(Entry { lsn, end, content });
        Ok(false)
    }

    fn restart_model(&mut self) {
        self.model = Model::default();
        self.run = 0;
        self.registrations.clear();
    }

    fn run_model(&mut self) -> Result<(), Violation> {
        while let Some(entry) = self.entries.get_mut(self.run) {
            let place = (entry.lsn, entry.end);
            if let Content::Started { life } = entry.content {
                self.model.enter_life(life);
            }
            if let Content::Delivery { prefix, delivery, done, verdict } = &mut entry.content {
                match self.model.deliver(place, prefix, delivery, verdict.is_some(), self.key_retention) {
                    Ok(result) => {
                        if let Some(client) = result.registered {
                            self.registrations.insert(client, self.run);
                        }
                        *done = Some(result);
                    }
                    Err(Stopped::Panics) => {
                        *done = None;
                        return Ok(());
                    }
                    Err(Stopped::Violated(violation)) => return Err(violation),
                }
            }
            self.run += 1;
        }
        Ok(())
    }

    /// A crash left only what ends at or below `end`.
    fn cut(&mut self, end: Lsn) -> Result<(), Violation> {
        if end >= self.end() {
            return Ok(());
        }
        self.bytes.truncate(usize::try_from(end.0).expect("a log fits in memory"));
        self.stretches.retain(|stretch| stretch.end <= end);
        self.durable = self.durable.min(self.stretches.len());
        self.entries.retain(|entry| entry.end <= end);
        self.by_call.clear();
        self.by_identity.clear();
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if let Content::Delivery { delivery, verdict, .. } = &mut entry.content {
                if verdict.is_some_and(|judged| judged > end) {
                    *verdict = None;
                }
                if let Delivery::Request { identity, body, .. } = delivery {
                    self.by_call.entry(Command::decode(body).call).or_default().push(place);
                    self.by_identity.insert(identity.clone(), place);
                }
            }
        }
        self.restart_model();
        self.run_model()
    }

    /// The first record that ends at or below `end` and would not survive a power cut now.
    pub(crate) fn first_not_durable(&mut self, disk: &Disk, catalog: &Catalog, end: Lsn) -> Option<Lsn> {
        while let Some(stretch) = self.stretches.get(self.durable)
            && stretch.end <= end
        {
            // What was trimmed is not needed; whether that is true is found out by recovery.
            if stretch.lsn < catalog.first() {
                self.durable += 1;
                continue;
            }
            let place = self.geometry.place_of(stretch.lsn);
            let from = usize::try_from(stretch.lsn.0).expect("a log fits in memory");
            let bytes = &self.bytes[from..from + stretch.bytes];
            let held = catalog.file_of(place.segment).is_some_and(|file| {
                let header = disk.content(&file).and_then(|content| content.get(..512));
                header.is_some_and(|header| disk.holds_durably(&file, 0, header))
                    && disk.holds_durably(&file, place.offset, bytes)
            });
            if !held {
                return Some(stretch.lsn);
            }
            self.durable += 1;
        }
        None
    }

    /// What a state depends on that has run all deliveries up to `end`: also the verdicts that let some be passed over.
    pub(crate) fn depends_on(&self, end: Lsn) -> Lsn {
        let verdicts =
            self.entries.iter().take_while(|entry| entry.end <= end).filter_map(|entry| {
                match entry.content {
                    Content::Delivery { verdict, .. } => verdict,
                    _ => None,
                }
            });
        verdicts.fold(end, Lsn::max)
    }

    /// The deliveries of `call`, which network and clients may have repeated.
    pub(crate) fn of_call(&self, call: u64) -> impl DoubleEndedIterator<Item = &Entry> {
        self.by_call.get(&call).into_iter().flatten().map(|&place| &self.entries[place])
    }

    /// The latest delivery under this identity.
    pub(crate) fn of_identity(&self, identity: &Identity) -> Option<&Entry> {
        self.by_identity.get(identity).map(|&place| &self.entries[place])
    }

    pub(crate) fn registration(&self, client: ClientId) -> Option<&Entry> {
        self.registrations.get(&client).map(|&place| &self.entries[place])
    }
}

impl Entry {
    pub(crate) fn done(&self) -> Option<&Done> {
        match &self.content {
            Content::Delivery { done, .. } => done.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        matches!(self.content, Content::Delivery { verdict: Some(_), .. })
    }
}
