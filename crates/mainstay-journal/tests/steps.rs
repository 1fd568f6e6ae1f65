//! The running journal, step by step: pages, stalls, group commit, deferral, seal, full disk, poison.

mod rig;

use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::journal::{AppendError, Health};
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::{Attempt, NOTE_BYTES, Note, UNRECORDED};
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::Failure;
use mainstay_types::id::Lsn;
use mainstay_types::rules::{Rule, Rules};
use rig::{Rig, in_halves, payload, small};

fn fresh(options: &OpenOptions) -> Rig {
    let mut rig = Rig::open(MemoryStorage::new(), options).unwrap();
    rig.flush_and_settle();
    rig
}

fn writes(rig: &Rig) -> Vec<(u32, u32, bool)> {
    let write = |effect: &DiskEffect| match *effect {
        DiskEffect::Write { from, to, durable, .. } => Some((from, to, durable)),
        _ => None,
    };
    rig.asked.iter().filter_map(write).collect()
}

#[test]
fn nothing_is_written_before_a_flush_and_then_one_block_is() {
    let mut rig = fresh(&OpenOptions {
        geometry: mainstay_journal::geometry::Geometry { page_bytes: 16384, pages: 3, segment_pages: 4 },
        ..small(3, 4)
    });
    for number in 0..3 {
        rig.append(&payload(number, 100)).unwrap();
    }
    assert_eq!(rig.asked, []);
    rig.flush();
    assert_eq!(writes(&rig), [(0, 4096, true)]);
    rig.settle();
    // The next batch begins in the second block, since the records before it end there.
    rig.append(&payload(3, 5000)).unwrap();
    rig.flush_and_settle();
    rig.append(&payload(4, 10)).unwrap();
    rig.flush();
    assert_eq!(writes(&rig), [(4096, 8192, true)]);
    rig.settle();
    assert_eq!(rig.journal.stats().syncs, 0);
    assert_eq!(rig.journal.stats().flushes_in_one_write, rig.journal.stats().flushes);
}

#[test]
fn what_is_appended_during_a_flush_shares_the_next_one() {
    let mut rig = fresh(&small(3, 4));
    let first = rig.append(&payload(1, 8)).unwrap();
    rig.flush();
    let second = rig.append(&payload(2, 8)).unwrap();
    let third = rig.append(&payload(3, 8)).unwrap();
    let target = rig.flush();
    assert!(target >= third.end);
    assert_eq!(writes(&rig).len(), 1, "one flush is in flight");
    rig.perform(0);
    assert!(rig.journal.durable() >= first.end && rig.journal.durable() < second.end);
    assert!(rig.journal.flushing());
    rig.perform(0);
    assert!(rig.journal.durable() >= third.end);
    assert!(!rig.journal.flushing());
    assert_eq!(rig.journal.stats().flushes_joined, 1);
}

#[test]
fn one_page_waits_for_its_write_and_three_do_not() {
    for (pages, stalled_at) in [(1, 2), (2, 3), (3, 4)] {
        let mut rig = fresh(&small(pages, 16));
        let mut appended = 0;
        let stalled = loop {
            match rig.append(&payload(appended, 3000)) {
                Ok(_) => appended += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(stalled, AppendError::Stalled);
        // One record of 3,000 bytes fits a page.
        assert_eq!(appended + 1, stalled_at, "{pages} pages");
        assert_eq!(writes(&rig).len(), usize::from(pages), "every full page is on its way");
        assert_eq!(rig.journal.stats().stalls, 1);
        rig.perform(0);
        rig.append(&payload(appended, 3000)).unwrap();
        rig.flush_and_settle();
        let read = Rig::open(rig.kill(), &small(pages, 16)).unwrap().read_back().unwrap();
        assert_eq!(read.len(), appended as usize + 1);
    }
}

#[test]
fn pages_written_before_are_synced_once_all_writes_are_complete() {
    let mut rig = fresh(&small(3, 16));
    for number in 0..3 {
        rig.append(&payload(number, 3000)).unwrap();
    }
    let before = rig.journal.durable();
    rig.flush();
    assert!(writes(&rig).iter().all(|&(_, _, durable)| !durable));
    // The last write first, then the others: no sync before all are complete.
    while rig.asked.iter().any(|effect| matches!(effect, DiskEffect::Write { .. })) {
        assert!(!rig.asked.iter().any(|effect| matches!(effect, DiskEffect::Sync { .. })));
        assert_eq!(rig.journal.durable(), before);
        let last = rig.asked.len() - 1;
        rig.perform(last);
    }
    assert_eq!(rig.asked.len(), 1);
    assert_eq!(rig.journal.durable(), before);
    rig.settle();
    assert_eq!(rig.journal.durable(), rig.journal.end());
    assert_eq!(rig.journal.stats().syncs, 1);
}

#[test]
fn the_first_half_of_a_page_is_written_while_the_rest_fills() {
    let mut rig = fresh(&in_halves(3));
    let before = rig.journal.durable();
    let mut number = 0;
    while writes(&rig).is_empty() {
        rig.append(&payload(number, 1000)).unwrap();
        number += 1;
    }
    assert_eq!(writes(&rig), [(0, 12288, false)], "whole blocks below the half");
    assert_eq!(rig.journal.stats().halves, 1);
    // A flush now has to wait for it, and to sync: a durable write covers no bytes but its own.
    let target = rig.flush();
    assert_eq!(writes(&rig)[1..], [(12288, 20480, false)], "they share no block");
    rig.perform(1);
    assert_eq!((rig.asked.len(), rig.journal.durable()), (1, before), "the half is not written");
    rig.perform(0);
    assert!(matches!(rig.asked[..], [DiskEffect::Sync { .. }]));
    rig.settle();
    assert_eq!(rig.journal.durable(), target);
    let syncs = rig.journal.stats().syncs;
    rig.append(&payload(number, 8)).unwrap();
    rig.flush();
    assert_eq!(writes(&rig), [(16384, 20480, true)], "behind the sync one write is enough again");
    rig.settle();
    assert_eq!(rig.journal.stats().syncs, syncs);
    let read = Rig::open(rig.kill(), &in_halves(3)).unwrap().read_back().unwrap();
    assert_eq!(read.len() as u64, number + 1);
}

#[test]
fn the_halves_of_a_page_may_be_written_in_any_order() {
    for first_written in [0, 1] {
        let mut rig = fresh(&in_halves(2));
        let mut number = 0;
        while rig.journal.stats().pages_closed == 0 {
            rig.append(&payload(number, 1000)).unwrap();
            number += 1;
        }
        let halves = writes(&rig);
        assert_eq!(halves.iter().map(|&(from, _, _)| from).collect::<Vec<_>>(), [0, 12288]);
        rig.perform(first_written);
        // The next page but one takes the same slot.
        while rig
            .append(&payload(number, 1000))
            .map_err(|error| assert_eq!(error, AppendError::Stalled))
            .is_ok()
        {
            number += 1;
        }
        rig.settle();
        rig.append(&payload(number, 1000)).unwrap();
        rig.flush_and_settle();
        let read = Rig::open(rig.kill(), &in_halves(2)).unwrap().read_back().unwrap();
        assert_eq!(read.len() as u64, number + 1);
    }
}

#[test]
fn what_commits_have_written_is_not_written_in_halves() {
    let mut rig = fresh(&in_halves(3));
    for number in 0..100 {
        rig.append_waiting(&payload(number, 1000));
        rig.flush_and_settle();
    }
    assert!(rig.journal.stats().pages_closed >= 3);
    assert_eq!(rig.journal.stats().halves, 0);
}

#[test]
fn one_page_alone_is_written_when_it_is_full() {
    let mut rig = fresh(&in_halves(1));
    for number in 0..100 {
        rig.append_waiting(&payload(number, 1000));
    }
    assert!(rig.journal.stats().pages_closed >= 3);
    assert_eq!(rig.journal.stats().halves, 0);
}

#[test]
fn two_writes_that_share_a_block_are_never_in_flight() {
    let mut rig = fresh(&small(3, 16));
    rig.append(&payload(0, 1000)).unwrap();
    rig.flush();
    rig.append(&payload(1, 2800)).unwrap();
    rig.append(&payload(2, 2800)).unwrap();
    assert_eq!(writes(&rig).len(), 1, "the rest of the full page waits for the flush of its beginning");
    rig.perform(0);
    assert_eq!(writes(&rig), [(0, 4096, false)]);
    rig.flush_and_settle();
    let mut again = Rig::open(rig.kill(), &small(3, 16)).unwrap();
    assert_eq!(again.read_back().unwrap(), [payload(0, 1000), payload(1, 2800), payload(2, 2800)]);
}

#[test]
fn a_record_that_fits_no_page_is_refused_and_the_largest_fits() {
    let mut rig = fresh(&small(2, 4));
    let max = rig.journal.record_bytes_max();
    assert_eq!(max, 4096 - 64 - 32);
    let end = rig.journal.end();
    assert_eq!(
        rig.append(&vec![1; max + 1]),
        Err(AppendError::TooLarge { payload_bytes: max + 1, payload_bytes_max: max })
    );
    assert_eq!(rig.journal.end(), end);
    rig.append(&vec![2; max]).unwrap();
    rig.append_waiting(b"small after large");
    rig.flush_and_settle();
    let mut again = Rig::open(rig.kill(), &small(2, 4)).unwrap();
    assert_eq!(again.read_back().unwrap(), [vec![2; max], b"small after large".to_vec()]);
}

#[test]
fn a_seal_after_a_flush_is_a_clean_stop_and_refuses_more() {
    let mut rig = fresh(&small(2, 4));
    rig.append(b"last").unwrap();
    rig.flush_and_settle();
    rig.journal.seal(&mut rig.asked).unwrap();
    rig.settle();
    assert_eq!(rig.journal.health(), Health::Sealed);
    assert_eq!(rig.append(b"more"), Err(AppendError::Sealed));
    let storage = rig.kill();
    let mut again = Rig::open(storage.clone(), &small(2, 4)).unwrap();
    assert!(again.report.sealed && again.report.cut.is_none() && !again.report.ring_missing);
    assert_eq!(again.read_back().unwrap(), [b"last".to_vec()]);

    // Also without the ring, as after a power loss, the seal says that nothing is missing.
    let without_ring = storage.crash_image(&mut |_| 0);
    let report = Rig::open(without_ring, &small(2, 4)).unwrap().report;
    assert!(report.sealed && !report.ring_missing);

    // A seal over unsynced records is none.
    let mut rig = fresh(&small(2, 4));
    rig.append(b"unsynced").unwrap();
    rig.journal.seal(&mut rig.asked).unwrap();
    rig.settle();
    assert!(!Rig::open(rig.kill(), &small(2, 4)).unwrap().report.sealed);
}

#[test]
fn a_full_disk_stops_accepting_and_goes_on_when_there_is_space() {
    let options = small(2, 1);
    let mut rig = fresh(&options);
    let used: u64 = mainstay_journal::storage::Storage::list(&mut rig.storage)
        .unwrap()
        .iter()
        .map(|file| file.bytes)
        .sum();
    rig.storage.limit_space(Some(used));
    let mut appended = Vec::new();
    let refused = loop {
        match rig.append(&payload(appended.len() as u64, 3000)) {
            Ok(_) => appended.push(payload(appended.len() as u64, 3000)),
            Err(AppendError::Stalled) => rig.settle(),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Full { failure: Failure::NoSpace, .. }));
    assert!(matches!(rig.journal.health(), Health::Full { failure: Failure::NoSpace, .. }));
    // What was accepted becomes durable all the same, since its segments were made ready before.
    rig.flush_and_settle();
    // Also when it is restarted meanwhile.
    let mut reopened = Rig::open(rig.storage.clone(), &options).unwrap();
    assert_eq!(reopened.read_back().unwrap(), appended);
    loop {
        match reopened.append(b"full") {
            Err(AppendError::Full { failure: Failure::NoSpace, .. }) => break,
            Err(AppendError::Stalled) => reopened.settle(),
            other => panic!("{other:?}"),
        }
    }
    reopened.storage.limit_space(None);
    reopened.journal.retry(&mut reopened.asked);
    let largest = vec![8; reopened.journal.record_bytes_max()];
    reopened.append_waiting(&largest);
    reopened.flush_and_settle();
    let mut again = Rig::open(reopened.kill(), &options).unwrap();
    assert_eq!(again.read_back().unwrap()[..], [&appended[..], &[largest]].concat());

    rig.journal.retry(&mut rig.asked);
    rig.settle();
    assert!(matches!(rig.journal.health(), Health::Full { .. }), "there is still no space");

    rig.storage.limit_space(None);
    rig.journal.retry(&mut rig.asked);
    rig.settle();
    assert_eq!(rig.journal.health(), Health::Good);
    appended.push(payload(99, 3000));
    rig.append_waiting(&payload(99, 3000));
    rig.flush_and_settle();
    assert_eq!(Rig::open(rig.kill(), &options).unwrap().read_back().unwrap(), appended);
}

#[test]
fn a_failed_sync_poisons_for_good_unless_the_rule_is_broken() {
    let options = small(2, 4);
    let mut rig = fresh(&options);
    let durable = rig.journal.durable();
    rig.append(b"lost").unwrap();
    rig.flush();
    rig.storage.fail_syncs(1);
    rig.settle();
    assert_eq!(rig.journal.health(), Health::Poisoned { failure: Failure::Os(5) });
    assert_eq!(rig.append(b"more"), Err(AppendError::Poisoned { failure: Failure::Os(5) }));
    rig.flush();
    assert_eq!((rig.asked.len(), rig.journal.durable()), (0, durable), "the sync is never tried again");

    let broken = OpenOptions { rules: Rules::without(Rule::FailedSyncPoisons), ..options };
    let mut rig = fresh(&broken);
    let end = rig.append(b"lost").unwrap().end;
    rig.flush();
    rig.storage.fail_syncs(1);
    rig.settle();
    assert!(rig.journal.durable() >= end, "the broken rule takes a failed sync for a good one");
    let mut again = Rig::open(rig.cut(&mut |_| 0), &options).unwrap();
    assert_eq!(again.read_back().unwrap(), Vec::<Vec<u8>>::new(), "and so what it called durable is lost");
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_written_again_at_the_next_opening() {
    let options = small(2, 4);
    let mut rig = fresh(&options);
    rig.append(b"in the page cache only").unwrap();
    rig.flush();
    rig.storage.fail_syncs(1);
    rig.settle();
    // Restarted by its supervisor: reading gives the bytes, the disk does not have them.
    let mut again = Rig::open(rig.kill(), &options).unwrap();
    assert_eq!(again.read_back().unwrap(), [b"in the page cache only".to_vec()]);
    let mut after_cut = Rig::open(again.cut(&mut |_| 0), &options).unwrap();
    assert_eq!(after_cut.read_back().unwrap(), [b"in the page cache only".to_vec()]);
}

#[test]
fn trimming_recycles_segments_and_never_passes_what_is_durable() {
    let options = OpenOptions { free_segments_max: 1, ..small(2, 1) };
    let mut rig = fresh(&options);
    let mut records = Vec::new();
    for number in 0..8 {
        records.push(rig.append_waiting(&payload(number, 3000)));
    }
    let durable = rig.journal.durable();
    rig.journal.trim(Lsn(u64::MAX), &mut rig.asked);
    rig.settle();
    assert_eq!(rig.journal.first(), durable);
    rig.flush_and_settle();
    rig.journal.trim(records[6].lsn, &mut rig.asked);
    rig.settle();
    assert_eq!(rig.journal.first(), records[6].lsn);
    assert_eq!(rig.catalog.free_segments(), 1);
    let files = mainstay_journal::storage::Storage::list(&mut rig.storage).unwrap().len();
    for number in 8..30 {
        let appended = rig.append_waiting(&payload(number, 3000));
        rig.flush_and_settle();
        rig.journal.trim(appended.lsn, &mut rig.asked);
        rig.settle();
    }
    let files_later = mainstay_journal::storage::Storage::list(&mut rig.storage).unwrap().len();
    assert!(files_later <= files, "{files_later} files now, {files} before");
    let mut again = Rig::open(rig.kill(), &options).unwrap();
    assert_eq!(again.read_back().unwrap(), [payload(29, 3000)]);
}

#[test]
fn attempts_survive_kill_and_are_counted_per_record() {
    let options = small(2, 4);
    let mut rig = fresh(&options);
    let record = rig.append(b"poisonous").unwrap();
    rig.flush_and_settle();
    assert_eq!(rig.journal.begin_attempt(record.lsn), 1);
    let mut rig = Rig::open(rig.kill(), &options).unwrap();
    assert_eq!(rig.report.attempt.unwrap().attempts, 1);
    assert_eq!(rig.journal.begin_attempt(record.lsn), 2);
    // Killed between the opening and the start of the next life: still known.
    let mut storage = rig.kill();
    mainstay_journal::open::open(&mut storage, &options).unwrap();
    let mut rig = Rig::open(storage, &options).unwrap();
    assert_eq!(rig.report.attempt.unwrap().attempts, 2);
    assert_eq!(rig.journal.begin_attempt(Lsn(8)), 1, "another record");
    rig.journal.end_attempt();
    let mut rig = Rig::open(rig.kill(), &options).unwrap();
    let ended_well = rig.report.attempt.unwrap();
    assert_eq!((ended_well.lsn, ended_well.attempts), (Lsn(8), 0));
    // What has no record survives as well, though the journal ends before it.
    let unrecorded = Attempt { lsn: UNRECORDED.plus(7), attempts: 2 };
    rig.journal.resume_attempt(unrecorded);
    assert_eq!(Rig::open(rig.kill(), &options).unwrap().report.attempt, Some(unrecorded));
}

#[test]
fn a_note_survives_kill_and_goes_with_its_record_and_with_the_ring() {
    let options = small(2, 4);
    let mut rig = fresh(&options);
    let kept = rig.append(b"kept").unwrap();
    rig.flush_and_settle();
    let note = |end, byte| Note { end, bytes: [byte; NOTE_BYTES] };
    rig.journal.note(Some(note(kept.end, 1)));
    let rig = Rig::open(rig.kill(), &options).unwrap();
    assert_eq!(rig.report.note, Some(note(kept.end, 1)));
    // Killed before anything else is noted: still known.
    let storage = rig.kill();
    let mut rig = Rig::open(storage, &options).unwrap();
    assert_eq!(rig.report.note, Some(note(kept.end, 1)));
    let behind = rig.append(b"behind").unwrap();
    rig.journal.note(Some(note(behind.end, 2)));
    let storage = rig.kill();
    let mut rig = Rig::open(storage.clone(), &options).unwrap();
    assert_eq!(rig.report.note, Some(note(behind.end, 2)), "the ring has both");
    let lost = Rig::open(storage.crash_image(&mut |_| 0), &options).unwrap();
    assert_eq!((lost.report.note, lost.report.end <= behind.lsn), (None, true));
    // As if its record had been lost alone.
    rig.journal.note(Some(note(rig.report.end.plus(1 << 16), 3)));
    let mut rig = Rig::open(rig.kill(), &options).unwrap();
    assert_eq!(rig.report.note, None);
    rig.journal.note(Some(note(kept.end, 4)));
    rig.journal.note(None);
    assert_eq!(Rig::open(rig.kill(), &options).unwrap().report.note, None);
}

#[test]
fn a_note_of_a_lost_record_does_not_count_because_the_page_was_padded_behind_it() {
    let options = small(2, 4);
    let mut rig = fresh(&options);
    let before = rig.append(&[1; 3500]).unwrap();
    rig.flush_and_settle();
    // A record that the page had room for, noted by a ring that outlived it.
    let end = before.end.plus(64);
    rig.journal.note(Some(Note { end, bytes: [1; NOTE_BYTES] }));
    let rig = Rig::open(rig.kill(), &options).unwrap();
    assert!(rig.report.end > end, "the rest of the page is passed over");
    assert_eq!(rig.report.note, None);
}

#[test]
fn buffering_only_asks_for_nothing() {
    let options = OpenOptions { buffer_only: true, ..small(1, 1) };
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let durable = rig.journal.durable();
    for number in 0..50 {
        rig.append(&payload(number, 1000)).unwrap();
        rig.flush();
    }
    assert_eq!((rig.asked.len(), rig.journal.durable()), (0, durable));
}

#[test]
fn completions_of_a_poisoned_life_change_nothing() {
    let mut rig = fresh(&small(3, 16));
    for number in 0..3 {
        rig.append(&payload(number, 3000)).unwrap();
    }
    let durable = rig.journal.durable();
    let DiskEffect::Write { ticket, .. } = rig.asked[0] else { panic!("{:?}", rig.asked) };
    rig.journal.step(DiskEvent::Failed { ticket, failure: Failure::Os(5) }, &mut Vec::new());
    rig.asked.remove(0);
    rig.settle();
    assert_eq!(rig.journal.durable(), durable);
    assert!(matches!(rig.journal.health(), Health::Poisoned { .. }));
}
