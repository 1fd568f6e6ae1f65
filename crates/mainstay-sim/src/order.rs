//! The surviving order: every record of the journal as it was appended, byte for byte, cut back where a crash cut it, and
//! the failure-free run over it.

use crate::disk::Disk;
use crate::model::{Done, Model, Terms};
use crate::properties::{Violation, failure_free};
use crate::story::shown;
use crate::subject::{Stopped, Subject};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::format::{PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, record_bytes};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::journal::{Journal, NotInRing};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::record::Kind;
use mainstay_process::event::Identity;
use mainstay_process::handler::Answer;
use mainstay_process::record::delivery::Delivery;
use mainstay_process::record::prefix::Prefix;
use mainstay_process::record::quarantined::{self, Quarantined};
use mainstay_process::record::{RecordError, intended, started};
use mainstay_types::id::{ClientId, DeliveryIndex, Lsn, OutputId};
use std::collections::BTreeMap;
use std::rc::Rc;

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
        /// What the handler's panic on it said in the run without failures.
        panics: Option<String>,
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
pub(crate) struct Order<S: Subject> {
    geometry: Geometry,
    subject: Rc<S>,
    terms: Terms,
    /// What each read of the state that nothing was delivered to answers.
    first_reads: Vec<Answer>,
    /// The log from its first byte.
    bytes: Vec<u8>,
    stretches: Vec<Stretch>,
    /// Stretches found durable so far.
    durable: usize,
    entries: Vec<Entry>,
    /// Entries that the model has run.
    run: usize,
    pub(crate) model: Model<S::FailureFree>,
    /// The life of the journal that was read or observed last.
    life: u64,
    by_identity: BTreeMap<Identity, Vec<usize>>,
    registrations: BTreeMap<ClientId, usize>,
}

impl<S: Subject> Order<S> {
    pub(crate) fn new(geometry: Geometry, subject: Rc<S>, terms: Terms) -> Self {
        let model = Model::new(subject.failure_free());
        Self {
            geometry,
            terms,
            first_reads: model.reads(subject.queries()),
            bytes: Vec::new(),
            stretches: Vec::new(),
            durable: 0,
            entries: Vec::new(),
            run: 0,
            model,
            subject,
            life: 0,
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
        while let Err(NotInRing { lsn }) = journal.copy(self.end(), end, &mut self.bytes) {
            // The page ends too close behind its last record for another one, so nothing that was appended has left with it.
            let page_bytes = self.geometry.page_bytes as usize;
            let gap = page_bytes - self.geometry.offset_in_page(lsn);
            assert!(gap < RECORD_HEADER_BYTES, "the ring has what was appended since");
            self.bytes.resize(self.bytes.len() + gap, 0);
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
                if let Delivery::Request { identity, .. } = &delivery {
                    self.by_identity.entry(identity.clone()).or_default().push(self.entries.len());
                }
                Content::Delivery { prefix, delivery, done: None, verdict: None, panics: None }
            }
        };
        self.entries.push(Entry { lsn, end, content });
        Ok(false)
    }

    fn restart_model(&mut self) {
        self.model = Model::new(self.subject.failure_free());
        self.run = 0;
        self.registrations.clear();
    }

    fn run_model(&mut self) -> Result<(), Violation> {
        while let Some(entry) = self.entries.get_mut(self.run) {
            let place = (entry.lsn, entry.end);
            if let Content::Started { life } = entry.content {
                self.model.enter_life(life);
            }
            if let Content::Delivery { prefix, delivery, done, verdict, panics } = &mut entry.content {
                let judged = verdict.is_some();
                if panics.is_some() && !judged {
                    return Ok(());
                }
                match self.model.deliver(place, prefix, delivery, judged, &self.terms) {
                    Ok(mut result) => {
                        result.reads = self.model.reads(self.subject.queries());
                        if let Some(client) = result.registered {
                            self.registrations.insert(client, self.run);
                        }
                        *done = Some(result);
                    }
                    Err(Stopped::Panics(message)) => {
                        *done = None;
                        *panics = Some(message);
                        // What it did to the state before it panicked is not to be kept.
                        self.restart_model();
                        continue;
                    }
                    Err(Stopped::Violated(violation)) => return Err(violation),
                }
                self.compare_recorded(self.run)?;
            }
            self.run += 1;
        }
        Ok(())
    }

    /// The record at `place` tells what an earlier delivery did.
    fn compare_recorded(&self, place: usize) -> Result<(), Violation> {
        let Content::Delivery { prefix, .. } = &self.entries[place].content else { return Ok(()) };
        let told = |entry: &&Entry| matches!(&entry.content, Content::Delivery { prefix: of, .. } if of.delivery == prefix.executed);
        let earlier = self.entries[..place].iter().rev().find(told);
        match earlier.and_then(Entry::done).and_then(|done| done.summary) {
            Some(model) => {
                failure_free::same(&format!("delivery {}", prefix.executed), &prefix.summary, &model)
            }
            None => Ok(()),
        }
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
        self.by_identity.clear();
        for (place, entry) in self.entries.iter_mut().enumerate() {
            if let Content::Delivery { delivery, verdict, .. } = &mut entry.content {
                if verdict.is_some_and(|judged| judged > end) {
                    *verdict = None;
                }
                if let Delivery::Request { identity, .. } = delivery {
                    self.by_identity.entry(identity.clone()).or_default().push(place);
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

    /// The deliveries of this request, which network and clients may have repeated.
    pub(crate) fn of_request(
        &self,
        identity: &Identity,
        body: &[u8],
    ) -> impl DoubleEndedIterator<Item = &Entry> {
        let all = self.by_identity.get(identity).into_iter().flatten().map(|&place| &self.entries[place]);
        all.filter(move |entry| matches!(&entry.content, Content::Delivery { delivery: Delivery::Request { body: of, .. }, .. } if of == body))
    }

    /// The latest delivery under this identity.
    pub(crate) fn of_identity(&self, identity: &Identity) -> Option<&Entry> {
        self.by_identity.get(identity)?.last().map(|&place| &self.entries[place])
    }

    /// What a read with query `query` answers after all deliveries that end at or below `as_of`.
    pub(crate) fn read(&self, query: usize, as_of: Lsn) -> &Answer {
        let behind =
            self.entries_run().iter().rev().find(|entry| entry.end <= as_of && entry.done().is_some());
        behind.and_then(Entry::done).map_or(&self.first_reads[query], |done| &done.reads[query])
    }

    /// How many deliveries end behind `end`.
    pub(crate) fn deliveries_behind(&self, end: Lsn) -> usize {
        let behind = self.entries.iter().rev().take_while(|entry| entry.end > end);
        behind.filter(|entry| matches!(entry.content, Content::Delivery { .. })).count()
    }

    /// Runs all deliveries again, by `alone`, and tells of the first that does something else than in the run before.
    pub(crate) fn again(&self, alone: S::FailureFree) -> Result<(), Differs> {
        let mut model = Model::new(alone);
        for entry in self.entries_run() {
            match &entry.content {
                Content::Started { life } => model.enter_life(*life),
                Content::Intended(_) => {}
                Content::Delivery { prefix, delivery, done: Some(before), verdict, .. } => {
                    let place = (entry.lsn, entry.end);
                    let now = model.deliver(place, prefix, delivery, verdict.is_some(), &self.terms);
                    let what = match now {
                        Err(Stopped::Violated(violation)) => violation.what,
                        Err(Stopped::Panics(message)) => format!("it panics: {message}"),
                        Ok(now) => match self.difference(before, &now) {
                            Some(what) => what,
                            None => continue,
                        },
                    };
                    let told = told(delivery);
                    return Err(Differs { delivery: prefix.delivery, told, what });
                }
                Content::Delivery { .. } => {}
            }
        }
        Ok(())
    }

    fn difference(&self, before: &Done, now: &Done) -> Option<String> {
        let answer = |done: &Done| match &done.answer {
            Some(answer) => format!("{} {}", answer.status, shown(&answer.body)),
            None => "no answer".to_owned(),
        };
        let differing = |what: &str, before: String, now: String| {
            Some(format!("{what}\n    recorded: {before}\n    now:      {now}"))
        };
        if before.answer != now.answer {
            return differing("the answer", answer(before), answer(now));
        }
        if before.summary != now.summary {
            let effects = |done: &Done| done.summary.map_or_else(String::new, |summary| summary.to_string());
            return differing("its outputs or timers", effects(before), effects(now));
        }
        if !self.subject.is_same(&before.state, &now.state) {
            return differing("the state", self.subject.show(&before.state), self.subject.show(&now.state));
        }
        None
    }

    /// The entry of delivery `index`, if there is one.
    pub(crate) fn of_delivery(&self, index: DeliveryIndex) -> Option<&Entry> {
        let is = |entry: &&Entry| matches!(&entry.content, Content::Delivery { prefix, .. } if prefix.delivery == index);
        self.entries.iter().rev().find(is)
    }

    pub(crate) fn registration(&self, client: ClientId) -> Option<&Entry> {
        self.registrations.get(&client).map(|&place| &self.entries[place])
    }
}

/// The delivery that did something else when it was run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Differs {
    pub(crate) delivery: DeliveryIndex,
    /// The delivery for people.
    pub(crate) told: String,
    /// What it did before, and what now.
    pub(crate) what: String,
}

fn told(delivery: &Delivery) -> String {
    match delivery {
        Delivery::Request { body, .. } => format!("request {}", shown(body)),
        Delivery::Timer { timer } => format!("timer {timer}"),
        Delivery::Settled { output, outcome } => format!("output {output} settled: {outcome:?}"),
        Delivery::Registered { .. } => "a client registers".to_owned(),
        Delivery::Resolved { output, resolution } => format!("output {output} resolved: {resolution:?}"),
        Delivery::Message { from, body, .. } => format!("message of {from}: {}", shown(body)),
    }
}

impl Entry {
    /// For people: what was delivered, and what was answered.
    pub(crate) fn told(&self) -> String {
        let Content::Delivery { prefix, delivery, done, verdict, .. } = &self.content else {
            return String::new();
        };
        let answer = done.as_ref().and_then(|done| done.answer.as_ref()).map_or_else(String::new, |answer| {
            let given_up = if verdict.is_some() { " (given up)" } else { "" };
            format!(" -> {}{given_up} {}", answer.status, shown(&answer.body))
        });
        format!("delivery {}: {}{answer}", prefix.delivery, told(delivery))
    }

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
