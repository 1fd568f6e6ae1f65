//! The staging buffer: a process that dies at any touch of its ring leaves every record that was appended, and whatever is asked of the ring meanwhile is answered with the staged ones.

mod rig;

use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::{HeapPages, PageMemory, STAGING_BYTES, file_of};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::open;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::record::Kind;
use mainstay_journal::storage::Storage;
use mainstay_types::id::InstanceId;
use rig::{Rig, in_halves, payload, small};
use std::cell::RefCell;
use std::rc::Rc;

/// The ring as a process that dies leaves it: once before everything that changes it, and within every copy out of the staging buffer.
type Deaths = Rc<RefCell<Vec<Vec<u8>>>>;

#[derive(Debug)]
struct Watched {
    pages: HeapPages,
    count: u16,
    deaths: Deaths,
}

impl Watched {
    fn dies(&self) {
        self.deaths.borrow_mut().push(file_of(&self.pages, self.count));
    }
}

impl PageMemory for Watched {
    fn page(&self, slot: usize) -> &[u8] {
        self.pages.page(slot)
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        self.dies();
        self.pages.page_mut(slot)
    }

    fn staging(&self) -> &[u8] {
        self.pages.staging()
    }

    fn staging_mut(&mut self) -> &mut [u8] {
        self.dies();
        self.pages.staging_mut()
    }

    fn unstage(&mut self, slot: usize, at: usize, bytes: usize) {
        for copied in [0, 1, bytes / 2, bytes - 1] {
            self.pages.unstage(slot, at, copied);
            self.dies();
        }
        self.pages.unstage(slot, at, bytes);
        self.dies();
    }

    fn control(&self) -> &[u8] {
        self.pages.control()
    }

    fn control_mut(&mut self) -> &mut [u8] {
        self.dies();
        self.pages.control_mut()
    }
}

/// The payloads that opening finds in `storage` with this ring.
fn found(storage: &MemoryStorage, ring: &[u8], options: &OpenOptions) -> Vec<Vec<u8>> {
    let mut storage = storage.clone();
    storage.store_mapping("ring", ring);
    let mut rig = Rig::open(storage, options).expect("a killed journal opens");
    assert!(!rig.report.ring_missing);
    rig.read_back().expect("what was opened is readable")
}

fn dies_at_every_touch(options: &OpenOptions, lengths: impl Iterator<Item = usize>, flush_every: usize) {
    let mut storage = MemoryStorage::new();
    let opened = open(&mut storage, options).unwrap();
    let mut catalog = opened.catalog;
    let deaths = Deaths::default();
    let geometry = opened.resume.geometry();
    let pages = HeapPages::new(geometry.page_bytes, geometry.pages);
    let watched = Watched { pages, count: geometry.pages, deaths: Rc::clone(&deaths) };
    let mut journal = Journal::start(opened.resume, watched);
    deaths.borrow_mut().clear();
    let mut out = Vec::new();
    let mut appended: Vec<Vec<u8>> = Vec::new();
    let mut seen = 0;
    for (number, bytes) in lengths.enumerate() {
        let next = payload(number as u64, bytes);
        while journal.append(Kind::FIRST_USER, InstanceId(7), &[&next], &mut out).is_err() {
            perform(&mut journal, &mut storage, &mut catalog, &mut out);
        }
        half_made(&journal, &deaths, geometry.pages);
        // Those who died within this append may have left it, too.
        check(&deaths, &storage, options, &appended, Some(&next), &mut seen);
        appended.push(next);
        if number % flush_every == flush_every - 1 {
            journal.flush(&mut out);
            perform(&mut journal, &mut storage, &mut catalog, &mut out);
            check(&deaths, &storage, options, &appended, None, &mut seen);
        }
    }
    assert!(seen >= 3 * appended.len(), "{seen} deaths");
}

/// Two more deaths, within the last touch: of the bytes that it changed, one left the first half and one the second.
fn half_made(journal: &Journal<Watched>, deaths: &Deaths, count: u16) {
    let now = file_of(journal.memory(), count);
    let before = deaths.borrow().last().expect("an append touches the ring").clone();
    let changed: Vec<usize> = (0..now.len()).filter(|&at| now[at] != before[at]).collect();
    let (first, second) = changed.split_at(changed.len() / 2);
    for half in [first, second] {
        let mut left = before.clone();
        half.iter().for_each(|&at| left[at] = now[at]);
        deaths.borrow_mut().push(left);
    }
}

/// Every death since the last call: nothing that was appended is missing, and nothing else is there but `next`.
fn check(
    deaths: &Deaths,
    storage: &MemoryStorage,
    options: &OpenOptions,
    appended: &[Vec<u8>],
    next: Option<&Vec<u8>>,
    seen: &mut usize,
) {
    for ring in deaths.borrow_mut().drain(..) {
        *seen += 1;
        let found = found(storage, &ring, options);
        assert!(found.len() >= appended.len(), "{} appended, {} found", appended.len(), found.len());
        let all: Vec<_> = appended.iter().chain(next).collect();
        assert!(found.iter().eq(all.into_iter().take(found.len())), "records come back as they were");
    }
}

fn perform(
    journal: &mut Journal<Watched>,
    storage: &mut MemoryStorage,
    catalog: &mut mainstay_journal::catalog::Catalog,
    out: &mut Vec<DiskEffect>,
) {
    while !out.is_empty() {
        let event = match out.remove(0) {
            DiskEffect::Write { ticket, slot, from, to, place, .. } => {
                let bytes = journal.memory().page(slot)[from as usize..to as usize].to_vec();
                let file = catalog.file_of(place.segment).expect("written only when prepared");
                storage.write_durable(&file, place.offset, &bytes).expect("memory has space");
                DiskEvent::Done { ticket }
            }
            DiskEffect::Sync { ticket, first_segment, last_segment } => {
                for segment in first_segment..=last_segment {
                    storage.sync(&catalog.file_of(segment).expect("it is prepared")).expect("it syncs");
                }
                DiskEvent::Done { ticket }
            }
            DiskEffect::Prepare { segment } => {
                catalog.prepare(storage, segment).expect("memory has space");
                DiskEvent::Prepared { segment }
            }
            DiskEffect::Trim { .. } => unreachable!("nothing is trimmed"),
        };
        journal.step(event, out);
    }
}

#[test]
fn short_records_survive_a_death_at_every_touch() {
    dies_at_every_touch(&small(2, 2), (0..60).map(|number| 20 + number * 13 % 400), 7);
}

#[test]
fn short_and_long_records_in_turn_survive_a_death_at_every_touch() {
    let lengths = (0..60).map(|number| if number % 3 == 2 { 4096 + number } else { number * 97 % 4000 });
    dies_at_every_touch(&in_halves(3), lengths, 11);
}

#[test]
fn a_full_staging_buffer_survives_a_death_at_every_touch() {
    let mut options = in_halves(2);
    options.geometry.page_bytes = 65536;
    // None is flushed: all stand in the ring alone.
    dies_at_every_touch(&options, (0..150).map(|number| 300 + number), 1000);
}

#[test]
fn what_is_staged_can_be_copied_like_what_is_not() {
    let mut rig = Rig::open(MemoryStorage::new(), &in_halves(2)).unwrap();
    let first = rig.append(&payload(0, 4500)).unwrap();
    let begin = first.lsn;
    let mut ends = Vec::new();
    for number in 1..40 {
        ends.push(rig.append(&payload(number, 700)).unwrap().end);
    }
    let end = rig.journal.end();
    assert!(end.0 - begin.0 > STAGING_BYTES as u64, "the staging buffer was emptied once");
    let mut staged = Vec::new();
    rig.journal.copy(begin, end, &mut staged).unwrap();
    let mut pieces = Vec::new();
    let mut from = begin;
    for &to in &ends {
        rig.journal.copy(from, to, &mut pieces).unwrap();
        from = to;
    }
    assert!(staged == pieces);
    rig.flush();
    let mut settled = Vec::new();
    rig.journal.copy(begin, end, &mut settled).unwrap();
    assert!(staged == settled);
}

#[test]
fn a_staging_buffer_that_is_not_of_this_place_is_left_alone() {
    let options = small(2, 2);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let mut expected: Vec<_> = (0..5).map(|number| payload(number, 60)).collect();
    for record in &expected {
        rig.append(record).unwrap();
    }
    let ring = rig.ring();
    let storage = rig.kill();
    assert_eq!(found(&storage, &ring, &options), expected);
    let cell = 2048;
    // Where no record of it belongs, where another one does, in a page that the ring does not have, and nowhere.
    for wrong in [8, 64 + 96, 4096 * 7 + 64, u64::MAX, 0] {
        let mut ring = ring.clone();
        ring[cell..cell + 8].copy_from_slice(&u64::to_le_bytes(wrong));
        expected.truncate(0);
        assert_eq!(found(&storage, &ring, &options), expected, "the cell says {wrong}");
    }
}

#[test]
fn a_ring_without_a_staging_buffer_is_read() {
    let options = small(2, 2);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let expected = [payload(0, 60), payload(1, 70)];
    for record in &expected {
        rig.append(record).unwrap();
    }
    // Puts them into the page; the disk is never told to write.
    rig.flush();
    let mut ring = rig.ring();
    ring.truncate(ring.len() - STAGING_BYTES);
    ring[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
    let crc = crc32c::crc32c(&ring[..512]);
    ring[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(found(&rig.kill(), &ring, &options), expected);
}
