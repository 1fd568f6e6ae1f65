//! Fuzzes the decoders of file headers, page headers and the payload of a LIFE record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_journal::format::{FileHeader, FileKind, Life, PageHeader, Superblock};
use mainstay_types::id::StoreId;

fuzz_target!(|bytes: &[u8]| {
    for kind in [FileKind::Superblock, FileKind::Segment, FileKind::Ring, FileKind::Stripe] {
        if let Ok(header) = FileHeader::decode(kind, bytes) {
            assert_eq!(FileHeader::decode(kind, &header.encode(kind)), Ok(header));
        }
    }
    let _ = Superblock::decode(bytes);
    let store = StoreId([0; 16]);
    if let Some(header) = PageHeader::decode(store, bytes) {
        assert_eq!(PageHeader::decode(store, &header.encode(store)), Some(header));
    }
    if let Some(life) = Life::decode(bytes) {
        assert_eq!(life.encode()[..], *bytes);
    }
});
