//! Files of arbitrary bytes, and intact ones with arbitrary stretches written over, are opened or refused, never trusted.

mod rig;

use mainstay_journal::inspect::inspect;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::repair::plan_repair;
use mainstay_journal::storage::Storage;
use proptest::prelude::*;
use rig::{Rig, payload, small};

fn filled() -> MemoryStorage {
    let mut rig = Rig::open(MemoryStorage::new(), &small(2, 2)).unwrap();
    for number in 0..9 {
        rig.append_waiting(&payload(number, 600));
        rig.flush_and_settle();
    }
    rig.kill()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_open_as_records(
        superblock in proptest::collection::vec(any::<u8>(), 0..1024),
        segment in proptest::collection::vec(any::<u8>(), 0..9000),
        ring in proptest::collection::vec(any::<u8>(), 0..9000),
    ) {
        let mut storage = MemoryStorage::new();
        for (file, bytes) in [("superblock", &superblock), ("segment-0000000000000000", &segment), ("ring", &ring)] {
            storage.store_mapping(file, bytes);
        }
        let inspected = inspect(&mut storage, &mut |_| {});
        prop_assert!(inspected.is_err());
        prop_assert!(plan_repair(&mut storage).is_err());
        prop_assert!(Rig::open(storage, &small(2, 2)).is_err());
    }

    #[test]
    fn stretches_written_over_never_make_a_wrong_record(
        holes in proptest::collection::vec((any::<u64>(), 1usize..5000, any::<u64>(), any::<u8>()), 1..4),
    ) {
        let mut storage = filled();
        for (file, length, at, with) in holes {
            let files = storage.list().unwrap();
            let file = files[(file % files.len() as u64) as usize].clone();
            let at = (at % file.bytes) as usize;
            storage.damage(&file.name, |bytes| {
                let end = (at + length).min(bytes.len());
                bytes[at..end].fill(with);
            });
        }
        let mut number = 0;
        let mut intact = |record: &mainstay_journal::record::Record<'_>| {
            if !record.kind.is_own() {
                assert_eq!(record.payload, payload(number, 600));
                number += 1;
            }
        };
        let _ = inspect(&mut storage, &mut intact);
        if let Ok(mut rig) = Rig::open(storage, &small(2, 2)) {
            for (number, read) in rig.read_back().unwrap().into_iter().enumerate() {
                prop_assert!(read == payload(number as u64, 600));
            }
        }
    }
}
