//! The staging buffer: a process that dies at any touch of its ring leaves every record that was appended, what is staged can be copied like the rest, and
//! damage to it is noticed.

mod rig;

use mainstay_journal::format::record_bytes;
use mainstay_journal::memory::{HeapPages, PageMemory, STAGING_BYTES};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::options::OpenOptions;
use mainstay_types::id::Lsn;
use rig::{Rig, in_halves, payload, small};
use std::cell::RefCell;
use std::rc::Rc;

/// The rings that processes leave which die while this one lives: one before everything that changes its ring, and some within each copy out of the
/// staging buffer.
#[derive(Clone, Debug, Default)]
struct Deaths(Rc<RefCell<Vec<HeapPages>>>);

#[derive(Debug)]
struct Watched {
    pages: HeapPages,
    deaths: Deaths,
}

impl Watched {
    fn record_death(&self) {
        self.deaths.0.borrow_mut().push(self.pages.clone());
    }
}

impl PageMemory for Watched {
    fn page(&self, slot: usize) -> &[u8] {
        self.pages.page(slot)
    }

    fn page_mut(&mut self, slot: usize) -> &mut [u8] {
        self.record_death();
        self.pages.page_mut(slot)
    }

    fn staging(&self) -> &[u8] {
        self.pages.staging()
    }

    fn staging_mut(&mut self) -> &mut [u8] {
        self.record_death();
        self.pages.staging_mut()
    }

    fn destage(&mut self, slot: usize, at: usize, bytes: usize) {
        for copied in [0, 1, bytes / 2, bytes - 1, bytes] {
            self.pages.destage(slot, at, copied);
            self.record_death();
        }
    }

    fn control(&self) -> &[u8] {
        self.pages.control()
    }

    fn control_mut(&mut self) -> &mut [u8] {
        self.record_death();
        self.pages.control_mut()
    }
}

impl Deaths {
    /// Two more deaths, within the last touch: of the bytes that it changed, one leaves the first half and one the second.
    fn add_half_made(&self, now: &HeapPages, options: &OpenOptions) {
        let before = self.0.borrow().last().expect("the ring was touched").to_file();
        let now = now.to_file();
        let changed: Vec<usize> = (0..now.len()).filter(|&at| now[at] != before[at]).collect();
        let (first, second) = changed.split_at(changed.len() / 2);
        for half in [first, second] {
            let mut left = before.clone();
            half.iter().for_each(|&at| left[at] = now[at]);
            let geometry = options.geometry;
            self.0.borrow_mut().push(HeapPages::of_file(&left, geometry.page_bytes, geometry.pages));
        }
    }

    /// Opens what each has left since the last call: everything `appended` is there, and nothing else but perhaps `next`. Returns how many there were.
    fn check(
        &self,
        storage: &MemoryStorage,
        options: &OpenOptions,
        appended: &[Vec<u8>],
        next: Option<&Vec<u8>>,
    ) -> usize {
        let deaths = std::mem::take(&mut *self.0.borrow_mut());
        for ring in &deaths {
            let (found, _) = open(storage, &ring.to_file(), options);
            assert!(found.len() >= appended.len(), "{} appended, {} found", appended.len(), found.len());
            let all = appended.iter().chain(next);
            assert!(found.iter().eq(all.take(found.len())), "records come back as they were");
        }
        deaths.len()
    }
}

/// The payloads that opening finds in `storage` with this ring, and whether it reports a tail that was cut.
fn open(storage: &MemoryStorage, ring: &[u8], options: &OpenOptions) -> (Vec<Vec<u8>>, bool) {
    let mut storage = storage.clone();
    storage.store_mapping("ring", ring);
    let mut rig = Rig::open(storage, options).expect("a killed journal opens");
    assert!(!rig.report.ring_missing);
    (rig.read_back().expect("what was opened is readable"), rig.report.cut.is_some())
}

/// Appends records of these lengths and flushes behind each `flush_every` of them.
fn dies_at_every_touch(options: &OpenOptions, lengths: impl Iterator<Item = usize>, flush_every: usize) {
    let deaths = Deaths::default();
    let watched = |pages| Watched { pages, deaths: deaths.clone() };
    let mut rig = Rig::open_in(MemoryStorage::new(), options, watched).unwrap();
    // The ring is none of this life's before its header is written, which is not what is looked at here.
    deaths.0.borrow_mut().clear();
    let mut appended: Vec<Vec<u8>> = Vec::new();
    let mut count = 0;
    for (number, bytes) in (0..).zip(lengths) {
        let next = payload(number, bytes);
        rig.append_waiting(&next);
        deaths.add_half_made(&rig.journal.memory().pages, options);
        count += deaths.check(&rig.storage, options, &appended, Some(&next));
        appended.push(next);
        if appended.len().is_multiple_of(flush_every) {
            rig.flush();
            count += deaths.check(&rig.storage, options, &appended, None);
            rig.settle();
            count += deaths.check(&rig.storage, options, &appended, None);
        }
    }
    assert!(count >= 3 * appended.len(), "{count} deaths");
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
    let begin = rig.append(&payload(0, 4500)).unwrap().lsn;
    let ends: Vec<Lsn> = (1..40).map(|number| rig.append(&payload(number, 700)).unwrap().end).collect();
    let end = rig.journal.end();
    assert!(end.0 - begin.0 > STAGING_BYTES as u64, "the staging buffer was emptied once");
    let (mut whole, mut pieces, mut destaged) = (Vec::new(), Vec::new(), Vec::new());
    rig.journal.copy(begin, end, &mut whole).unwrap();
    let mut from = begin;
    for to in ends {
        rig.journal.copy(from, to, &mut pieces).unwrap();
        from = to;
    }
    rig.flush();
    rig.journal.copy(begin, end, &mut destaged).unwrap();
    assert!(whole == pieces && whole == destaged);
}

/// Short records, of which all but the first two are staged.
fn staged() -> (OpenOptions, Vec<Vec<u8>>, Rig) {
    let options = small(2, 2);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let records: Vec<_> = (0..7).map(|number| payload(number, 60)).collect();
    for (number, record) in records.iter().enumerate() {
        rig.append(record).unwrap();
        if number == 1 {
            rig.flush_and_settle();
        }
    }
    (options, records, rig)
}

const CELL: usize = 2048;

#[test]
fn any_flipped_byte_of_what_is_staged_is_mended_or_reported() {
    let (options, records, rig) = staged();
    let (ring, storage) = (rig.ring(), rig.kill());
    assert_eq!(open(&storage, &ring, &options), (records.clone(), false));
    let staging = ring.len() - STAGING_BYTES;
    let last = staging + 4 * record_bytes(60);
    let last_lsn = last + 8..last + 16;
    for at in (CELL..CELL + 16).chain(staging..last + 200) {
        let mut flipped = ring.clone();
        flipped[at] ^= 0x24;
        let (found, cut) = open(&storage, &flipped, &options);
        assert!(records.starts_with(&found), "byte {at}: no other records appear");
        // Nothing tells the last record's flipped address from what was never appended.
        let found_but_last = found.len() == records.len() - 1;
        let reported = cut || found.len() == records.len() || found_but_last && last_lsn.contains(&at);
        assert!(reported, "byte {at}: {} records, none reported cut", found.len());
        assert!(at >= staging || !cut, "byte {at}: the cell says it twice");
    }
}

#[test]
fn a_staging_buffer_that_belongs_elsewhere_changes_no_record() {
    let (options, records, mut rig) = staged();
    // Brings them into the page; the disk is not told.
    rig.flush();
    let (ring, storage) = (rig.ring(), rig.kill());
    let staged_at = 64 + record_bytes(24) as u64 + 2 * record_bytes(60) as u64;
    for (what, lsn) in [
        ("a place within a page's header", 8),
        ("the place of an earlier record", 64 + record_bytes(24) as u64),
        ("the place of the record before", staged_at - record_bytes(60) as u64),
        ("the place of the next record", staged_at + record_bytes(60) as u64),
        ("a page whose slot has another one now", 8 * 4096 + staged_at),
        ("no place at all", u64::MAX),
    ] {
        let mut ring = ring.clone();
        ring[CELL..CELL + 8].copy_from_slice(&lsn.to_le_bytes());
        ring[CELL + 8..CELL + 16].copy_from_slice(&(!lsn).to_le_bytes());
        assert_eq!(open(&storage, &ring, &options), (records.clone(), false), "{what}");
    }
}

#[test]
fn a_page_that_reached_the_disk_later_than_the_staging_buffer_keeps_its_records() {
    let (options, mut records, mut rig) = staged();
    let (old, storage) = (rig.ring(), rig.storage.clone());
    rig.flush_and_settle();
    for number in 7..12 {
        records.push(payload(number, 100));
        rig.append(&payload(number, 100)).unwrap();
    }
    rig.flush_and_settle();
    let new = rig.ring();
    // Control block and staging buffer of one moment, the pages of another.
    let staging = new.len() - STAGING_BYTES;
    let mut mixed = [&old[..4096], &new[4096..staging], &old[staging..]].concat();
    assert_eq!(open(&storage, &mixed, &options), (records.clone(), false));
    mixed[staging + 40] ^= 1;
    assert_eq!(open(&storage, &mixed, &options), (records, false), "nor does a damaged one take its place");
}

#[test]
fn a_ring_that_lost_its_staging_buffer_reports_what_is_missing() {
    let (options, records, rig) = staged();
    let mut ring = rig.ring();
    ring.truncate(ring.len() - STAGING_BYTES);
    assert_eq!(open(&rig.kill(), &ring, &options), (records[..2].to_vec(), true));
}

#[test]
fn a_life_that_dies_before_it_stages_anything_finds_nothing_of_the_one_before() {
    let (options, records, rig) = staged();
    let deaths = Deaths::default();
    let again =
        Rig::open_in(rig.kill(), &options, |pages| Watched { pages, deaths: deaths.clone() }).unwrap();
    let deaths = deaths.0.take();
    let [.., before_cell, before_record] = &deaths[..] else { panic!("LIFE is staged") };
    assert_eq!(open(&again.storage, &before_cell.to_file(), &options), (records.clone(), false));
    assert_eq!(open(&again.storage, &before_record.to_file(), &options).0, records);
}

#[test]
fn a_ring_from_before_there_was_a_staging_buffer_is_read() {
    let (options, records, mut rig) = staged();
    // Brings them into the page; the disk is not told.
    rig.flush();
    let mut ring = rig.ring();
    ring.truncate(ring.len() - STAGING_BYTES);
    ring[CELL..CELL + 16].fill(0);
    ring[8..12].copy_from_slice(&1_u32.to_le_bytes());
    // The checksum of the header counts itself as zero.
    ring[12..16].fill(0);
    let crc = crc32c::crc32c(&ring[..512]);
    ring[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(open(&rig.kill(), &ring, &options), (records, false));
}
