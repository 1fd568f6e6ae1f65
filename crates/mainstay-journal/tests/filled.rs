//! A journal whose bytes were kept elsewhere is made again in an empty directory: the same records at the same addresses, and the next life.

mod rig;

use mainstay_journal::fill::{FillError, Filling, Origin, read_bytes};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::OpenError;
use mainstay_journal::reader::ReadError;
use mainstay_journal::storage::Storage;
use mainstay_types::id::{Generation, Lsn};
use rig::{Rig, payload, small};

/// What was kept of a journal: its bytes from the beginning.
#[derive(Default)]
struct Kept(Vec<u8>);

impl Kept {
    /// Opening fills up the last page of the life before, where there is too little room in it for another.
    fn take_opened(&mut self, rig: &mut Rig) {
        let stretch = (Lsn(self.0.len() as u64), rig.report.end);
        let read = read_bytes::<ReadError>(&mut rig.storage, &rig.catalog, stretch, 4096, |bytes| {
            self.0.extend_from_slice(bytes);
            Ok(())
        });
        read.expect("it is in the segments");
    }

    /// As a driver does behind each step.
    fn take(&mut self, rig: &Rig) {
        let from = Lsn(self.0.len() as u64);
        rig.journal.copy(from, rig.journal.end(), &mut self.0).expect("nothing was written meanwhile");
    }
}

/// Three lives of one directory, of some pages each.
fn lived() -> (Rig, Kept, Vec<(Lsn, Vec<u8>)>) {
    let options = small(3, 2);
    let (mut storage, mut kept, mut written) = (MemoryStorage::new(), Kept::default(), Vec::new());
    for life in 0..3_u64 {
        let mut rig = Rig::open(storage.clone(), &options).expect("it opens");
        kept.take_opened(&mut rig);
        kept.take(&rig);
        for number in 0..40 + life {
            let bytes = payload(100 * life + number, 300 + 7 * number as usize);
            let appended = rig.append_waiting(&bytes);
            kept.take(&rig);
            written.push((appended.lsn, bytes));
        }
        rig.flush_and_settle();
        kept.take(&rig);
        if life == 2 {
            return (rig, kept, written);
        }
        storage = rig.storage;
    }
    unreachable!("the third life returns")
}

fn origin(rig: &Rig, first: Lsn) -> Origin {
    let geometry = rig.journal.geometry();
    Origin { store: rig.report.store, geometry, generation: rig.report.generation, first }
}

fn filled(of: Origin, bytes: &[u8], at_once: usize) -> (MemoryStorage, Lsn) {
    let mut storage = MemoryStorage::new();
    let mut filling = Filling::begin(&mut storage, of).expect("the directory is empty");
    for piece in bytes.chunks(at_once) {
        filling.put(piece).expect("there is room");
    }
    let end = filling.finish().expect("these are pages");
    (storage.crash_image(&mut |_| 0), end)
}

#[test]
fn all_records_are_there_again_and_the_next_life_begins_behind_them() {
    let (rig, kept, written) = lived();
    let bytes = kept.0;
    for (first_page, at_once) in [(0, 1 << 20), (0, 13), (5, 4096), (9, 100)] {
        let first = rig.journal.geometry().page_start(first_page);
        let (storage, end) = filled(origin(&rig, first), &bytes[first.0 as usize..], at_once);
        assert_eq!(end, rig.journal.end());
        let mut again = Rig::open(storage, &small(3, 2)).expect("it opens like any other");
        assert_eq!(
            (again.report.end, again.report.first, again.report.store),
            (end, first, rig.report.store)
        );
        assert_eq!(again.report.generation, rig.report.generation.next());
        let expected: Vec<_> =
            written.iter().filter(|(lsn, _)| *lsn >= first).map(|(_, bytes)| bytes.clone()).collect();
        assert_eq!(again.read_back().expect("it is whole"), expected);
        again.append_waiting(b"and on");
    }
}

#[test]
fn every_end_of_a_record_is_an_end() {
    let (rig, kept, written) = lived();
    for (number, (lsn, bytes)) in written.iter().enumerate() {
        let end = lsn.0 as usize + mainstay_journal::format::record_bytes(bytes.len());
        let (storage, at) = filled(origin(&rig, Lsn(0)), &kept.0[..end], 4096);
        assert_eq!(at.0, end as u64);
        let mut again = Rig::open(storage, &small(3, 2)).expect("what is there is whole");
        assert!(again.report.end >= at, "the page may have been filled up");
        let read = again.read_back().expect("it is whole");
        assert_eq!(read.len(), number + 1);
        assert_eq!(read.last(), Some(bytes));
    }
}

#[test]
fn bytes_that_are_damaged_are_refused_when_it_is_opened() {
    let (rig, mut kept, written) = lived();
    let lsn = written[50..].iter().find(|(lsn, _)| lsn.0 % 4096 > 64).expect("not all begin a page").0;
    kept.0[lsn.0 as usize + 40] ^= 1;
    let (storage, _) = filled(origin(&rig, Lsn(0)), &kept.0, 4096);
    match Rig::open(storage, &small(3, 2)).map(|_| ()) {
        Err(OpenError::Damaged(damage)) => assert_eq!(damage.lsn, lsn),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_made_over_a_journal_nor_of_foreign_bytes_and_a_crash_in_between_leaves_none() {
    let (mut rig, kept, _) = lived();
    let of = origin(&rig, Lsn(0));
    assert_eq!(Filling::begin(&mut rig.storage, of).map(|_| ()), Err(FillError::Occupied));
    let middle = Origin { first: Lsn(64), ..of };
    assert_eq!(Filling::begin(&mut MemoryStorage::new(), middle).map(|_| ()), Err(FillError::Origin(middle)));
    let mut storage = MemoryStorage::new();
    let mut filling = Filling::begin(&mut storage, of).expect("it is empty");
    filling.put(&kept.0[4096..]).expect("there is room");
    assert!(matches!(filling.finish(), Err(FillError::Foreign { .. })));
    let mut cut = storage.crash_image(&mut |_| 0);
    assert!(cut.list().expect("it lists").iter().all(|file| file.name != "superblock"));
    let mut filling = Filling::begin(&mut cut, of).expect("what was left is no journal");
    filling.put(&kept.0).expect("there is room");
    filling.finish().expect("these are pages");
}

#[test]
fn an_empty_log_is_a_journal_whose_next_life_is_a_later_one() {
    let geometry = Geometry { page_bytes: 4096, pages: 3, segment_pages: 2 };
    let of = Origin { store: rig::STORE, geometry, generation: Generation(7), first: Lsn(5 * 4096) };
    let (storage, end) = filled(of, &[], 1);
    let mut again = Rig::open(storage, &small(3, 2)).expect("it opens");
    assert_eq!((again.report.end, end, again.report.generation), (of.first, of.first, Generation(8)));
    let appended = again.append_waiting(b"first");
    assert!(appended.lsn >= of.first);
}

#[test]
fn segments_say_the_same_as_the_ring() {
    let (mut rig, kept, _) = lived();
    let (from, to) = (Lsn(70), rig.journal.durable());
    let mut bytes = Vec::new();
    let read = read_bytes::<ReadError>(&mut rig.storage, &rig.catalog, (from, to), 1000, |piece| {
        assert!(piece.len() <= 1000);
        bytes.extend_from_slice(piece);
        Ok(())
    });
    read.expect("all is durable");
    // What stands behind the last record of a page has no meaning, and need not be the same.
    let page = 4096;
    assert_eq!(bytes.len() as u64, to.0 - from.0);
    assert_eq!(bytes[..page - 70 - 1000], kept.0[70..page - 1000]);
    assert!(rig.journal.copy(Lsn(0), Lsn(8), &mut bytes).is_err(), "the first page has left the ring");
}
