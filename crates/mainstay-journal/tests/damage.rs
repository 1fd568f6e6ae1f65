//! Damage: every byte flipped, files missing, foreign, newer or truncated, and what repair makes of it.

mod rig;

use mainstay_journal::format::{FileHeader, FileKind, segment_file_name};
use mainstay_journal::inspect::inspect;
use mainstay_journal::memory::STAGING_BYTES;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::{DamageKind, OpenError, open};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::repair::{Agreement, Remedy, RepairError, plan_repair, repair};
use mainstay_journal::storage::Storage;
use mainstay_journal::striping::{Striping, identity_file_name};
use mainstay_types::id::{Lsn, StoreId};
use rig::{Rig, payload, small};

/// A journal of three lives over four segments, trimmed once, with five records that are only in the ring, and the
/// payloads and ends of what it holds.
struct History {
    options: OpenOptions,
    killed: MemoryStorage,
    sealed: MemoryStorage,
    records: Vec<(Vec<u8>, Lsn)>,
}

fn history() -> History {
    history_over(1)
}

fn history_over(stripes: u16) -> History {
    let options = OpenOptions { stripes, ..small(2, 1) };
    let mut records = Vec::new();
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let mut add = |rig: &mut Rig, number: u64, bytes: usize| {
        let appended = rig.append_waiting(&payload(number, bytes));
        records.push((payload(number, bytes), appended.lsn, appended.end));
        appended
    };
    for number in 0..6 {
        add(&mut rig, number, 900);
        rig.flush_and_settle();
    }
    let first = add(&mut rig, 6, 40).lsn;
    rig.flush_and_settle();
    rig.journal.trim(first, &mut rig.asked);
    rig.settle();
    let mut rig = Rig::open(rig.stop(), &options).unwrap();
    for number in 7..10 {
        add(&mut rig, number, 700);
        rig.flush_and_settle();
    }
    let mut rig = Rig::open(rig.kill(), &options).unwrap();
    for number in 10..16 {
        add(&mut rig, number, 500);
        rig.flush_and_settle();
    }
    for number in 16..21 {
        add(&mut rig, number, 60);
    }
    let killed = Rig {
        storage: rig.storage.clone(),
        catalog: rig.catalog.clone(),
        report: rig.report.clone(),
        asked: Vec::new(),
        journal: rig.journal.clone(),
    }
    .kill();
    let sealed = rig.stop();
    records.retain(|&(_, lsn, _)| lsn >= first);
    let records = records.into_iter().map(|(payload, _, end)| (payload, end)).collect();
    History { options, killed, sealed, records }
}

fn files(storage: &MemoryStorage) -> Vec<(String, usize)> {
    let mut storage = storage.clone();
    let files = storage.list().unwrap();
    files.into_iter().map(|file| (file.name, usize::try_from(file.bytes).unwrap())).collect()
}

/// Opens a damaged copy and says whether it was refused. Whatever opens has every record up to `watermark`, and no
/// record that is not the right one.
fn opens(history: &History, storage: MemoryStorage, watermark: Lsn, what: &str) -> bool {
    let mut untouched = storage.clone();
    let operations = storage.operations();
    match Rig::open(storage, &history.options) {
        Ok(mut rig) => {
            let read = rig.read_back().unwrap_or_else(|error| panic!("{what}: opened, then {error}"));
            let expected = history.records.iter().take(read.len());
            assert!(read.iter().eq(expected.map(|(payload, _)| payload)), "{what}: a wrong record");
            let needed = history.records.iter().filter(|&&(_, end)| end <= watermark).count();
            assert!(read.len() >= needed, "{what}: {} of {needed} durable records left", read.len());
            true
        }
        Err(error) => {
            let refused = open(&mut untouched, &history.options).map(|_| ());
            assert_eq!(refused, Err(error.clone()), "{what}");
            assert_eq!(untouched.operations(), operations, "{what}: refused, and yet changed");
            if let OpenError::Damaged(damage) = error {
                assert!(damage.lsn < damage.watermark && damage.watermark <= watermark, "{what}: {damage:?}");
                let mut intact = 0;
                inspect(&mut untouched, &mut |record| {
                    if !record.kind.is_own() {
                        assert_eq!(record.payload, history.records[intact].0, "{what}");
                        assert!(record.end <= damage.lsn);
                        intact += 1;
                    }
                })
                .unwrap();
                let below = history.records.iter().filter(|&&(_, end)| end <= damage.lsn).count();
                assert_eq!(intact, below, "{what}: every record below the damage is intact");
            }
            false
        }
    }
}

#[test]
fn flipping_any_single_byte_never_loses_a_durable_record_silently() {
    let history = history();
    flip_every_byte(&history, "killed", &history.killed);
    flip_every_byte(&history, "sealed", &history.sealed);
}

#[test]
fn flipping_any_single_byte_of_two_stripes_never_loses_a_durable_record_silently() {
    let history = history_over(2);
    flip_every_byte(&history, "killed", &history.killed);
}

fn flip_every_byte(history: &History, name: &str, storage: &MemoryStorage) {
    let watermark = inspect(&mut storage.clone(), &mut |_| {}).unwrap().watermark;
    assert!(history.records.iter().filter(|&&(_, end)| end <= watermark).count() >= 10);
    let mut refused = 0;
    for (file, bytes) in files(storage) {
        for at in 0..bytes {
            let mut damaged = storage.clone();
            damaged.damage(&file, |bytes| bytes[at] ^= 1 << (at % 8));
            let what = format!("{name}: byte {at} of {file}");
            refused += u32::from(!opens(history, damaged, watermark, &what));
        }
    }
    assert!(refused > 1000, "{name}: {refused} refused");
}

#[test]
fn a_truncated_or_missing_segment_is_refused_where_it_was_durable() {
    let history = history();
    for storage in [&history.killed, &history.sealed] {
        let watermark = inspect(&mut storage.clone(), &mut |_| {}).unwrap().watermark;
        let mut refused = 0;
        for (file, bytes) in files(storage) {
            for kept in (0..bytes).step_by(509) {
                let mut damaged = storage.clone();
                damaged.damage(&file, |bytes| bytes.truncate(kept));
                refused += u32::from(!opens(&history, damaged, watermark, &format!("{file} cut to {kept}")));
            }
            let mut damaged = storage.clone();
            damaged.remove(&file).unwrap();
            refused += u32::from(!opens(&history, damaged, watermark, &format!("{file} removed")));
        }
        assert!(refused > 10, "{refused} refused");
    }
}

#[test]
fn a_missing_segment_is_named_and_the_rest_is_not_touched() {
    let history = history();
    let mut storage = history.killed.clone();
    let inspection = inspect(&mut storage, &mut |_| {}).unwrap();
    let used: Vec<_> = inspection.segments.iter().filter(|segment| segment.in_use).collect();
    storage.remove(&used[1].file).unwrap();
    storage.remove("ring").unwrap();
    let Err(OpenError::Damaged(damage)) = open(&mut storage, &history.options) else {
        panic!("it was opened")
    };
    assert_eq!(damage.kind, DamageKind::SegmentMissing { segment: used[1].segment.unwrap() });
    assert_eq!(damage.lsn, used[1].range.start);
    let said = OpenError::Damaged(damage.clone()).to_string();
    for word in [format!("segment {}", used[1].segment.unwrap()), damage.lsn.to_string(), "repair".to_owned()]
    {
        assert!(said.contains(&word), "{said}");
    }
}

#[test]
fn a_journal_without_its_superblock_is_not_taken_for_an_empty_directory() {
    let history = history();
    let mut storage = history.sealed.clone();
    storage.remove("superblock").unwrap();
    assert!(matches!(open(&mut storage, &history.options), Err(OpenError::SuperblockMissing { .. })));
    let mut storage = history.sealed.clone();
    storage.damage("superblock", |bytes| bytes.fill(0));
    assert_eq!(open(&mut storage, &history.options).map(|_| ()), Err(OpenError::SuperblockDamaged));
    let mut storage = MemoryStorage::new();
    let only_existing = OpenOptions { create: false, ..history.options };
    assert_eq!(open(&mut storage, &only_existing).map(|_| ()), Err(OpenError::NoJournal));
    assert_eq!(storage.operations(), 0);
}

#[test]
fn one_damaged_copy_of_the_superblock_is_rewritten_and_reported() {
    let history = history();
    for offset in [0, 4096] {
        let mut storage = history.sealed.clone();
        storage.damage("superblock", |bytes| bytes[offset + 50] ^= 4);
        let rig = Rig::open(storage, &history.options).unwrap();
        assert!(rig.report.repaired_superblock);
        assert!(!Rig::open(rig.kill(), &history.options).unwrap().report.repaired_superblock);
    }
}

fn newer(bytes: &mut [u8]) {
    bytes[8] = 9;
    bytes[12..16].fill(0);
    let crc = crc32c::crc32c(&bytes[..512]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn files_of_a_newer_version_are_refused_by_name() {
    let history = history();
    for (file, _) in files(&history.sealed) {
        let mut storage = history.sealed.clone();
        storage.damage(&file, |bytes| newer(bytes));
        let Err(OpenError::NewerVersion { file: named, found: 9, supported }) =
            open(&mut storage, &history.options)
        else {
            panic!("{file} was not refused");
        };
        assert_eq!((named, supported), (file.clone(), if file == "ring" { 3 } else { 2 }));
    }
}

#[test]
fn a_file_of_another_journal_is_refused_and_can_be_quarantined() {
    let history = history();
    let mut storage = history.sealed.clone();
    let foreign = FileHeader {
        store: StoreId([9; 16]),
        serial: 1,
        generation: mainstay_types::id::Generation(1),
        geometry: history.options.geometry,
        striping: Striping::ALONE,
        fields: [77, 0, 0, 0, 0, 0],
    };
    let file = segment_file_name(0xfe);
    storage.create(&file, 8192).unwrap();
    storage.write(&file, 0, &foreign.encode(FileKind::Segment)).unwrap();
    let error = open(&mut storage, &history.options).map(|_| ()).unwrap_err();
    let store = history.options.new_store;
    assert_eq!(
        error,
        OpenError::ForeignStore { file: file.clone(), expected: store, found: StoreId([9; 16]) }
    );
    let plan = plan_repair(&mut storage).unwrap();
    assert_eq!(plan.remedies, [Remedy::Quarantine { file: file.clone() }]);
    repair(&mut storage, &Agreement(plan)).unwrap();
    assert!(storage.bytes(&format!("quarantine-{file}")).is_some());
    assert_eq!(Rig::open(storage, &history.options).unwrap().report.records, history.records.len() as u64);
}

#[test]
fn repair_cuts_where_agreed_and_what_is_appended_then_stays() {
    let history = history();
    for storage in [&history.killed, &history.sealed] {
        let mut storage = storage.clone();
        storage.remove("ring").unwrap();
        let used: Vec<_> = inspect(&mut storage, &mut |_| {}).unwrap().segments;
        let file = used.iter().filter(|segment| segment.in_use).nth(1).unwrap().file.clone();
        storage.damage(&file, |bytes| bytes[4096 + 64 + 900] ^= 1);
        let plan = plan_repair(&mut storage).unwrap();
        let [Remedy::Cut { at, lost }] = &plan.remedies[..] else { panic!("{plan:?}") };
        assert!(lost.start == *at && lost.end > *at);
        let kept = history.records.iter().filter(|&&(_, end)| end <= *at).count();
        assert!(kept > 0 && kept < history.records.len());

        let none = Agreement(Default::default());
        let operations = storage.operations();
        assert_eq!(repair(&mut storage, &none), Err(RepairError::Changed { now: plan.clone() }));
        assert_eq!(storage.operations(), operations);

        repair(&mut storage, &Agreement(plan.clone())).unwrap();
        assert_eq!(plan_repair(&mut storage).unwrap().remedies, []);
        // Several lives after the repair, with crashes: the old watermarks beyond the cut never count again.
        let mut rig = Rig::open(storage, &history.options).unwrap();
        let mut expected: Vec<_> =
            history.records.iter().take(kept).map(|(payload, _)| payload.clone()).collect();
        assert_eq!(rig.read_back().unwrap(), expected);
        for number in 100..104 {
            rig = Rig::open(rig.kill().crash_image(&mut |_| 0), &history.options).unwrap();
            rig.append_waiting(&payload(number, 300));
            expected.push(payload(number, 300));
            rig.flush_and_settle();
            rig = Rig::open(rig.kill(), &history.options).unwrap();
            assert_eq!(rig.read_back().unwrap(), expected);
        }
    }
}

#[test]
fn without_the_ring_what_was_durable_is_there_and_the_loss_is_reported() {
    let history = history();
    let mut storage = history.killed.clone();
    storage.remove("ring").unwrap();
    let mut rig = Rig::open(storage, &history.options).unwrap();
    assert!(rig.report.ring_missing);
    assert_eq!(rig.read_back().unwrap().len(), history.records.len() - 5);
    let rig = Rig::open(history.killed.clone(), &history.options).unwrap();
    assert!(!rig.report.ring_missing);
    assert_eq!(rig.report.records, history.records.len() as u64);
}

#[test]
fn durable_bytes_that_the_disk_lost_are_mended_from_the_ring_as_long_as_it_has_them() {
    let history = history();
    let mut storage = history.killed.clone();
    let end = inspect(&mut storage, &mut |_| {}).unwrap().end;
    let file = inspect(&mut storage, &mut |_| {}).unwrap().segments;
    let file = file.iter().find(|segment| segment.range.contains(&end)).unwrap().file.clone();
    storage.damage(&file, |bytes| bytes[4096 + 70] ^= 1);
    let mut rig = Rig::open(storage, &history.options).unwrap();
    assert_eq!(rig.report.pages_healed, 1);
    assert_eq!(rig.read_back().unwrap().len(), history.records.len());
    let mut again = Rig::open(rig.cut(&mut |_| 0), &history.options).unwrap();
    assert_eq!(again.report.pages_healed, 0);
    assert_eq!(again.read_back().unwrap().len(), history.records.len());
}

#[test]
fn an_unsynced_tail_is_cut_and_reported() {
    let options = small(3, 4);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    rig.append(&payload(0, 100)).unwrap();
    rig.flush_and_settle();
    let torn = rig.append(&payload(1, 100)).unwrap();
    let behind = rig.append(&payload(2, 100)).unwrap();
    let mut storage = rig.kill();
    // The process died while it copied the first of the two.
    storage.damage("ring", |bytes| {
        let staging = bytes.len() - STAGING_BYTES;
        bytes[staging] ^= 1;
    });
    let mut rig = Rig::open(storage, &options).unwrap();
    assert_eq!(rig.report.cut, Some(torn.lsn..behind.end));
    assert_eq!(rig.report.end, torn.lsn);
    assert_eq!(rig.read_back().unwrap(), [payload(0, 100)]);
    assert_eq!(Rig::open(rig.kill(), &options).unwrap().report.cut, None);
}

#[test]
fn what_was_cut_is_not_reported_by_the_life_after_the_next() {
    let options = small(2, 2);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    // As long as the record that begins a life, so that both lives have records at the same places.
    let record = payload(0, 24);
    rig.append(&record).unwrap();
    rig.flush_and_settle();
    let torn = rig.append(&record).unwrap().lsn;
    while rig.journal.end() < Lsn(4096 + 2000) {
        rig.append_waiting(&record);
    }
    // Brings all into the pages; the disk is not told.
    rig.flush();
    let mut storage = rig.storage.clone();
    storage.store_mapping("ring", &rig.ring());
    storage.damage("ring", |bytes| bytes[4096 + torn.0 as usize] ^= 1);
    let mut rig = Rig::open(storage, &options).unwrap();
    assert_eq!(rig.report.cut.as_ref().map(|cut| cut.start), Some(torn));
    while rig.journal.end() < Lsn(4096 + 500) {
        rig.append_waiting(&record);
    }
    let end = rig.journal.end();
    let again = Rig::open(rig.kill(), &options).unwrap().report;
    assert_eq!((again.cut, again.end), (None, end));
}

#[test]
fn segments_go_round_over_the_stripes_also_when_they_are_recycled() {
    let history = history_over(3);
    for storage in [&history.killed, &history.sealed] {
        let inspection = inspect(&mut storage.clone(), &mut |_| {}).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for segment in &inspection.segments {
            let Some(number) = segment.segment else { continue };
            let stripe = Striping::stripe_of(&segment.file, 3);
            assert_eq!(u64::from(stripe), number % 3, "{}", segment.file);
            seen.insert(stripe);
        }
        assert_eq!(seen.len(), 3);
        let rig = Rig::open(storage.clone(), &history.options).unwrap();
        assert_eq!(rig.report.records, history.records.len() as u64);
    }
}

#[test]
fn a_missing_an_exchanged_and_a_foreign_stripe_are_refused_by_name_and_an_unreadable_identity_is_mended() {
    let history = history_over(3);
    let refused = |change: &dyn Fn(&mut MemoryStorage)| {
        let mut storage = history.sealed.clone();
        change(&mut storage);
        let operations = storage.operations();
        let error = open(&mut storage, &history.options).map(|_| ()).unwrap_err();
        assert_eq!(storage.operations(), operations, "refused, and yet changed");
        assert_eq!(plan_repair(&mut storage), Err(error.clone()), "no remedy is offered");
        error
    };
    let [first, second] = [1, 2].map(identity_file_name);
    let error = refused(&|storage| storage.remove(&second).unwrap());
    assert_eq!(error, OpenError::StripeMissing { stripe: 2, stripes: 3, file: second.clone() });
    let error = refused(&|storage| {
        let other = storage.bytes(&second).unwrap().to_vec();
        storage.damage(&first, |bytes| bytes.copy_from_slice(&other));
    });
    let [expected, found] = [1, 2].map(|stripe| Striping { stripe, stripes: 3 });
    assert_eq!(error, OpenError::StripeExchanged { file: first.clone(), expected, found });
    let error = refused(&|storage| {
        let other =
            Rig::open(MemoryStorage::new(), &OpenOptions { new_store: StoreId([8; 16]), ..history.options });
        let other = other.unwrap().storage.bytes(&first).unwrap().to_vec();
        storage.damage(&first, |bytes| bytes.copy_from_slice(&other));
    });
    assert!(
        matches!(error, OpenError::StripeForeign { stripe: 1, found: StoreId(found), .. } if found == [8; 16])
    );

    let mut storage = history.sealed.clone();
    let intact = storage.bytes(&first).unwrap()[..40].to_vec();
    storage.damage(&first, |bytes| bytes[20] ^= 1);
    let rig = Rig::open(storage, &history.options).unwrap();
    assert_eq!(rig.report.records, history.records.len() as u64);
    // The checksum and the store's identity are back; what differs is the life that wrote it.
    assert_eq!(rig.storage.bytes(&first).unwrap()[16..32], intact[16..32]);
}
