//! Any bytes in place of a rank's ring: every record that parses, its fields and definitions. Nothing may panic or ask for much memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_mpi::compression::Compression;
use mainstay_mpi::definition::{Comm, decode_fortran, decode_texts};
use mainstay_mpi::field::fields;
use mainstay_mpi::format::{FileHeader, Kind, PAGE_HEADER_BYTES, RING_MAGIC, RecordHeader, encode_page_header};
use mainstay_mpi::payload::Payload;
use mainstay_mpi::reader::Reader;
use mainstay_mpi::typemap::Typemap;
use mainstay_mpi::varint::Bytes;

const HEADER: FileHeader =
    FileHeader { run: [0; 16], page_bytes: 4096, pages: 2, payload: Payload::Receiver, compression: Compression::None, kept_pages: 0 };

fuzz_target!(|input: &[u8]| {
    // Bodies behind good checksums, so that decoding is reached; then the same bytes as they are.
    let mut ring = HEADER.encode(RING_MAGIC);
    for page in 0..2 {
        let seed = HEADER.seed(page);
        let mut bytes = vec![0; 4096];
        encode_page_header(&mut bytes, seed, page, 1);
        let mut at = PAGE_HEADER_BYTES;
        for part in input.chunks(97) {
            let kind = [Kind::Call, Kind::Misses, Kind::Type, Kind::Comm, Kind::Fortran, Kind::Names];
            let [first, second, ..] = *part else { break };
            let header = RecordHeader {
                kind: kind[usize::from(first) % kind.len()],
                flags: second & 3,
                function: 0,
                thread: 0,
                body_bytes: part.len() as u32,
            };
            if at + header.span() > bytes.len() {
                break;
            }
            let head = header.encode();
            bytes[at + 4..at + 16].copy_from_slice(&head[4..]);
            bytes[at + 16..at + 16 + part.len()].copy_from_slice(part);
            let crc = crc32c::crc32c_append(seed, &bytes[at + 4..at + 16 + part.len()]);
            bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            at += header.span();
        }
        ring.extend_from_slice(&bytes);
    }
    read(ring);
    read(input.to_vec());
});

fn read(ring: Vec<u8>) {
    let Ok(mut reader) = Reader::over_ring(ring) else { return };
    while let Some(record) = reader.next_record() {
        let _ = fields(&record.body).count();
        let _ = (Comm::decode(&record.body), decode_fortran(&record.body), decode_texts(&record.body));
        if let Some(map) = Typemap::decode(&mut Bytes::new(&record.body)) {
            let _ = map.runs(3, 1 << 20).take(1000).count();
        }
    }
}
