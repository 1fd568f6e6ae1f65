//! Pins the bytes of a tiny journal: `docs/journal-format.md` shows the same ones. If this fails, the format has changed,
//! and with it must its version.

mod rig;

use mainstay_journal::memory_storage::MemoryStorage;
use rig::{Rig, small};

/// The bytes that are not zero, in lines of 16: offset, then hexadecimal.
fn dump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0));
    let line = |(place, line): (usize, &[u8])| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x}  {}\n", place * 16, hex.join(" "))
    };
    lines.map(line).collect()
}

#[test]
fn a_tiny_journal_has_exactly_these_bytes() {
    let mut rig = Rig::open(MemoryStorage::new(), &small(1, 1)).unwrap();
    rig.append(b"hello").unwrap();
    rig.flush_and_settle();
    rig.append(b"world!").unwrap();
    rig.flush_and_settle();
    let storage = rig.kill();
    let expected = include_str!("tiny_journal.txt");
    let mut found = String::new();
    for file in ["superblock", "segment-0000000000000000", "ring"] {
        found += &format!("{file}\n{}\n", dump(storage.bytes(file).unwrap()));
    }
    let documented = include_str!("../../../docs/journal-format.md");
    assert!(documented.contains(expected.trim_end()), "the document shows these bytes");
    assert!(found.trim_end() == expected.trim_end(), "the bytes are\n{found}");
}
