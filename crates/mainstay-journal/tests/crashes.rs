//! Histories of appends, flushes, crashes and power cuts against a model of what must be there afterwards.

mod rig;

use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::options::OpenOptions;
use mainstay_types::rules::{Rule, Rules};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rig::{Rig, in_halves, payload, small};
use std::cell::Cell;

#[derive(Clone, Debug)]
enum Step {
    Append {
        bytes: usize,
    },
    Flush,
    /// Performs one of the effects that were asked for.
    Perform {
        choice: usize,
    },
    Settle,
    TrimHalf,
    /// Lets the next sync fail, whoever asks for it.
    FailSync,
    /// Leaves no space for another segment, or lifts that limit.
    Space {
        full: bool,
    },
    Retry,
    Kill,
    /// Power loss, with a seed for what arrives.
    Cut {
        seed: u64,
        during_open: Option<u64>,
    },
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..1500).prop_map(|bytes| Step::Append { bytes }),
        1 => (3000usize..4000).prop_map(|bytes| Step::Append { bytes }),
        3 => Just(Step::Flush),
        6 => any::<usize>().prop_map(|choice| Step::Perform { choice }),
        1 => Just(Step::Settle),
        1 => Just(Step::TrimHalf),
        1 => Just(Step::FailSync),
        1 => any::<bool>().prop_map(|full| Step::Space { full }),
        1 => Just(Step::Retry),
        1 => Just(Step::Kill),
        1 => (any::<u64>(), proptest::option::of(0u64..40))
            .prop_map(|(seed, during_open)| Step::Cut { seed, during_open }),
        1 => Just(Step::Stop),
    ]
}

/// Much is appended between two crashes, so that halves of pages go to the disk.
fn step_of_a_stream() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => (0usize..6000).prop_map(|bytes| Step::Append { bytes }),
        2 => Just(Step::Flush),
        6 => any::<usize>().prop_map(|choice| Step::Perform { choice }),
        1 => Just(Step::Settle),
        1 => step(),
    ]
}

/// Choices of a power cut, made from a seed.
fn chooser(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    }
}

struct Model {
    /// Payloads appended, in order, with where each ends; those of lost tails are taken out again.
    appended: Vec<(Vec<u8>, mainstay_types::id::Lsn, mainstay_types::id::Lsn)>,
    number: u64,
}

impl Model {
    /// What was read back must be a prefix of what was appended, from the first byte kept, and not shorter than what
    /// was promised.
    fn check(&mut self, rig: &mut Rig, promised: mainstay_types::id::Lsn) {
        let first = rig.report.first;
        self.appended.retain(|&(_, lsn, _)| lsn >= first);
        let read = rig.read_back().expect("what was opened is readable");
        assert!(read.len() <= self.appended.len(), "nothing appears from nowhere");
        for (there, (expected, _, _)) in read.iter().zip(&self.appended) {
            assert!(there == expected, "records come back as they were, in order");
        }
        let kept = self.appended.iter().filter(|&&(_, _, end)| end <= promised).count();
        assert!(read.len() >= kept, "{} records were promised, {} are there", kept, read.len());
        assert!(rig.report.records == read.len() as u64);
        self.appended.truncate(read.len());
    }
}

/// Returns how many halves of pages went to the disk on their own.
fn run(options: &OpenOptions, steps: &[Step]) -> u64 {
    let mut halves = 0;
    let mut model = Model { appended: Vec::new(), number: 0 };
    let mut rig = Rig::open(MemoryStorage::new(), options).expect("an empty directory opens");
    for step in steps {
        match step {
            Step::Append { bytes } => {
                let bytes = payload(model.number, *bytes);
                if let Ok(appended) = rig.append(&bytes) {
                    model.appended.push((bytes, appended.lsn, appended.end));
                    model.number += 1;
                }
            }
            Step::Flush => {
                rig.flush();
            }
            Step::Perform { choice } => {
                if !rig.asked.is_empty() {
                    let place = choice % rig.asked.len();
                    rig.perform(place);
                }
            }
            Step::Settle => rig.settle(),
            Step::TrimHalf => {
                let durable = rig.journal.durable();
                let covered: Vec<_> = model.appended.iter().filter(|&&(_, _, end)| end <= durable).collect();
                if let Some(&&(_, lsn, _)) = covered.get(covered.len() / 2) {
                    rig.journal.trim(lsn, &mut rig.asked);
                }
            }
            Step::FailSync => rig.storage.fail_syncs(1),
            Step::Space { full } => rig.storage.limit_space(full.then_some(0)),
            Step::Retry => rig.journal.retry(&mut rig.asked),
            Step::Kill => {
                halves += rig.journal.stats().halves;
                rig.storage.fail_syncs(0);
                let promised = rig.journal.end();
                rig = Rig::open(rig.kill(), options).expect("a killed journal opens");
                assert!(!rig.report.ring_missing && rig.report.cut.is_none());
                model.check(&mut rig, promised);
            }
            Step::Cut { seed, during_open } => {
                halves += rig.journal.stats().halves;
                let promised = rig.journal.durable();
                let mut choose = chooser(*seed);
                let mut storage = rig.cut(&mut choose);
                if let Some(operations) = during_open {
                    storage.crash_after(*operations);
                    let _ = Rig::open(storage.clone(), options);
                    let mut crashed = storage;
                    let _ = mainstay_journal::open::open(&mut crashed, options);
                    storage = crashed.crash_image(&mut choose);
                }
                rig = Rig::open(storage, options).expect("what a power cut leaves opens");
                model.check(&mut rig, promised);
            }
            Step::Stop => {
                if !matches!(rig.journal.health(), mainstay_journal::journal::Health::Good) {
                    continue;
                }
                rig.storage.fail_syncs(0);
                rig.storage.limit_space(None);
                let promised = rig.journal.end();
                rig = Rig::open(rig.stop(), options).expect("a stopped journal opens");
                assert!(rig.report.sealed);
                model.check(&mut rig, promised);
            }
        }
    }
    halves
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_promised_is_lost_and_nothing_else_appears(
        pages in 1u16..4,
        segment_pages in 1u32..4,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        run(&small(pages, segment_pages), &steps);
    }
}

#[test]
fn nothing_promised_is_lost_and_nothing_else_appears_where_pages_are_written_by_halves() {
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    let halves = Cell::new(0);
    let strategy = (2u16..4, proptest::collection::vec(step_of_a_stream(), 1..200));
    let outcome = TestRunner::new(config).run(&strategy, |(pages, steps)| {
        halves.set(halves.get() + run(&in_halves(pages), &steps));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(halves.get() > 500, "only {} halves were written before a crash", halves.get());
}

/// Every number of operations that the making of a journal can be cut after.
#[test]
fn a_journal_that_is_cut_while_it_is_made_is_made_again() {
    let options = small(2, 2);
    let mut whole = MemoryStorage::new();
    mainstay_journal::open::open(&mut whole, &options).unwrap();
    assert!(whole.operations() > 8);
    for operations in 0..whole.operations() {
        for arrived in 0..2 {
            let mut storage = MemoryStorage::new();
            storage.crash_after(operations);
            assert!(mainstay_journal::open::open(&mut storage, &options).is_err());
            let mut image = storage.crash_image(&mut |below| arrived * (below - 1));
            let opened = mainstay_journal::open::open(&mut image, &options).unwrap();
            assert_eq!(opened.report.records, 0, "cut after {operations}");
            // And a plain kill, where all that was done stays.
            storage.crash_after(u64::MAX);
            mainstay_journal::open::open(&mut storage, &options).unwrap();
        }
    }
}

/// A recycled segment keeps the records of its former life at the same places of its pages: with the rule they never
/// parse, without it they are taken for new ones.
#[test]
fn stale_records_of_recycled_segments_are_refused_unless_the_rule_is_broken() {
    let options = small(2, 1);
    let mut rig = Rig::open(MemoryStorage::new(), &options).unwrap();
    let mut written = Vec::new();
    for number in 0..12 {
        written.push(payload(number, 1800));
        let appended = rig.append_waiting(&payload(number, 1800));
        rig.flush_and_settle();
        rig.journal.trim(appended.lsn, &mut rig.asked);
        rig.settle();
    }
    let storage = rig.kill();
    let kept = Rig::open(storage.clone(), &options).unwrap().read_back().unwrap();
    assert_eq!(kept, written[written.len() - kept.len()..]);

    let broken = OpenOptions { rules: Rules::without(Rule::StaleRecordRefused), ..options };
    let mut rig = Rig::open(storage, &broken).unwrap();
    let read = rig.read_back().unwrap();
    assert!(read.len() > kept.len(), "without the rule, stale records reappear: {} read", read.len());
}
