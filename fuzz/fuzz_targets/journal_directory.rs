//! Fuzzes opening: a journal of a few records with arbitrary bytes written over its files never gives a wrong record.
//! Each stretch of the input: file, offset (2 bytes), length, then the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::inspect::inspect;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::HeapPages;
use mainstay_journal::memory_storage::MemoryStorage;
use mainstay_journal::open::open;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::Reader;
use mainstay_journal::record::Kind;
use mainstay_journal::repair::plan_repair;
use mainstay_types::id::{InstanceId, StoreId};

const FILES: [&str; 4] = ["superblock", "ring", "segment-0000000000000000", "segment-0000000000000001"];

fuzz_target!(|bytes: &[u8]| {
    let options = OpenOptions {
        geometry: Geometry { page_bytes: 4096, pages: 1, segment_pages: 1 },
        new_store: StoreId([1; 16]),
        ..OpenOptions::default()
    };
    let mut storage = MemoryStorage::new();
    let opened = open(&mut storage, &options).expect("an empty directory opens");
    let mut catalog = opened.catalog;
    catalog.prepare(&mut storage, 1).expect("memory has space");
    let mut journal = Journal::start(opened.resume, HeapPages::new(4096, 1));
    for number in 0..20u8 {
        journal.append(Kind::FIRST_USER, InstanceId(0), &[&[number; 40]], &mut Vec::new()).expect("they fit one page");
    }
    storage.store_mapping("ring", &journal.memory().to_file());

    let mut rest = bytes;
    while let [file, low, high, length, after @ ..] = rest {
        let length = usize::from(*length).min(after.len());
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        storage.damage(FILES[usize::from(*file) % FILES.len()], |there| {
            let end = (at + length).min(there.len());
            if at < end {
                there[at..end].copy_from_slice(&after[..end - at]);
            }
        });
        rest = &after[length..];
    }

    let _ = inspect(&mut storage, &mut |_| {});
    let _ = plan_repair(&mut storage);
    if let Ok(opened) = open(&mut storage, &options) {
        let (from, to) = (opened.report.first, opened.report.end);
        let mut reader = Reader::new(&mut storage, &opened.catalog, from, to);
        let mut number = 0;
        while let Some(record) = reader.next().expect("what was opened is readable") {
            assert_eq!(record.payload, [number; 40]);
            number += 1;
        }
    }
});
