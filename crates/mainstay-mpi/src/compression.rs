//! Pages of a log, made small: what repeats from call to call is put side by side, then compressed with Zstandard.
//!
//! Calls of one kind have bodies of one length, whose bytes at one place hardly change: the same communicator, type and count
//! each time, and one of a few sources. So the bodies of each *shape* (kind, function, thread, length) stand as columns. A
//! checksum of a record cannot be compressed and follows from the rest: it is left out and made again.

use crate::format::{
    FileHeader, Kind, PAGE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader, decode_page_header,
    encode_page_header, u32_at,
};
use crate::varint::{Bytes, put_unsigned};
use std::collections::HashMap;

/// How pages stand in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Compression {
    /// As they are in the ring, each at its place.
    #[default]
    None = 0,
    /// Compressed, one behind the other.
    Zstandard = 1,
}

impl Compression {
    /// The one with that number in a header.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::None, Self::Zstandard].into_iter().find(|compression| *compression as u32 == number)
    }
}

/// First four bytes of a compressed page.
pub const FRAME_MAGIC: [u8; 4] = *b"MSMZ";
/// Length of what stands before the compressed bytes of a page.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Bodies up to this length are put into columns, in bytes; longer ones are payload.
const COLUMN_BYTES_MAX: usize = 512;
/// The level of Zstandard: the fastest that has all its means.
const LEVEL: i32 = 3;

/// What a record says besides its body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    kind: u8,
    flags: u8,
    function: u16,
    thread: u16,
    body_bytes: u32,
}

impl Shape {
    fn in_columns(self) -> bool {
        self.body_bytes as usize <= COLUMN_BYTES_MAX
    }
}

/// A page as it stands in a compressed log: header, compressed bytes, zeroes to a multiple of 8. The page ends with its last
/// whole record.
#[must_use]
pub fn compress(page: &[u8], header: &FileHeader, number: u64) -> Vec<u8> {
    let seed = header.seed(number);
    let columns = columns(page, seed, number);
    let packed = zstd::bulk::compress(&columns, LEVEL).expect("memory for a page is memory for less");
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    frame.extend_from_slice(&packed);
    frame[8..16].copy_from_slice(&number.to_le_bytes());
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a page is short").to_le_bytes();
    frame[16..20].copy_from_slice(&length(&packed));
    frame[20..24].copy_from_slice(&length(&columns));
    let crc = crc32c::crc32c_append(seed, &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    frame[..4].copy_from_slice(&FRAME_MAGIC);
    frame.resize(frame.len().next_multiple_of(8), 0);
    frame
}

/// How long the frame is that begins so, zeroes included; `None` if no frame does.
#[must_use]
pub fn frame_bytes(begin: &[u8]) -> Option<usize> {
    let begin = begin.first_chunk::<FRAME_HEADER_BYTES>()?;
    (begin[..4] == FRAME_MAGIC).then(|| (FRAME_HEADER_BYTES + u32_at(begin, 16) as usize).next_multiple_of(8))
}

/// The page in a frame, with all its checksums; `None` unless the frame is whole and of page `number`.
#[must_use]
pub fn decompress(frame: &[u8], header: &FileHeader, number: u64) -> Option<Vec<u8>> {
    let seed = header.seed(number);
    let packed_bytes = u32_at(frame.get(..FRAME_HEADER_BYTES)?, 16) as usize;
    let whole = frame.get(..FRAME_HEADER_BYTES.checked_add(packed_bytes)?)?;
    let is_this = whole[..4] == FRAME_MAGIC
        && u32_at(whole, 4) == crc32c::crc32c_append(seed, &whole[8..])
        && whole[8..16] == number.to_le_bytes();
    // Columns are never longer than the page and its shapes.
    let columns_bytes = u32_at(whole, 20) as usize;
    if !is_this || columns_bytes > 2 * header.page_bytes as usize {
        return None;
    }
    let columns = zstd::bulk::decompress(&whole[FRAME_HEADER_BYTES..], columns_bytes).ok()?;
    page_of(&columns, header, number)
}

/// Number of the first call, shapes, the shape of each record, then the bodies of each shape.
fn columns(page: &[u8], seed: u32, number: u64) -> Vec<u8> {
    let mut shapes: Vec<(Shape, Vec<&[u8]>)> = Vec::new();
    let mut places: HashMap<Shape, usize> = HashMap::new();
    let mut order = Vec::new();
    let mut at = PAGE_HEADER_BYTES;
    // The page is ours and whole: its checksums were made a moment ago and are not looked at again.
    while let Some(head) = page.get(at..at + RECORD_HEADER_BYTES) {
        let kind = head[8];
        let body_bytes = if kind == Kind::Pad as u8 { 0 } else { u32_at(head, 4) };
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let shape = Shape { kind, flags: head[9], function: half(10), thread: half(12), body_bytes };
        let Some(body) = page.get(at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + body_bytes as usize)
        else {
            break;
        };
        let place = *places.entry(shape).or_insert_with(|| {
            shapes.push((shape, Vec::new()));
            shapes.len() - 1
        });
        shapes[place].1.push(body);
        order.push(place);
        at += (RECORD_HEADER_BYTES + body.len()).next_multiple_of(8);
        if kind == Kind::Pad as u8 {
            break;
        }
    }
    let mut out = Vec::with_capacity(page.len());
    put_unsigned(&mut out, decode_page_header(page, seed, number).unwrap_or(0));
    put_unsigned(&mut out, shapes.len() as u64);
    for (shape, bodies) in &shapes {
        out.extend_from_slice(&[shape.kind, shape.flags]);
        let numbers = [u64::from(shape.function), u64::from(shape.thread), u64::from(shape.body_bytes)];
        numbers.into_iter().for_each(|number| put_unsigned(&mut out, number));
        put_unsigned(&mut out, bodies.len() as u64);
    }
    order.iter().for_each(|place| put_unsigned(&mut out, *place as u64));
    for (shape, bodies) in &shapes {
        if shape.in_columns() {
            for column in 0..shape.body_bytes as usize {
                out.extend(bodies.iter().map(|body| body[column]));
            }
        } else {
            bodies.iter().for_each(|body| out.extend_from_slice(body));
        }
    }
    out
}

fn page_of(columns: &[u8], header: &FileHeader, number: u64) -> Option<Vec<u8>> {
    let page_bytes = header.page_bytes as usize;
    let seed = header.seed(number);
    let mut bytes = Bytes::new(columns);
    let first_call = bytes.unsigned()?;
    // Each shape takes five bytes at least, each record one.
    let count = usize::try_from(bytes.unsigned()?).ok().filter(|count| *count <= columns.len())?;
    let mut shapes = Vec::new();
    let mut records = 0_usize;
    for _ in 0..count {
        let (kind, flags) = (bytes.byte()?, bytes.byte()?);
        let function = u16::try_from(bytes.unsigned()?).ok()?;
        let thread = u16::try_from(bytes.unsigned()?).ok()?;
        let body_bytes = u32::try_from(bytes.unsigned()?).ok()?;
        let bodies = usize::try_from(bytes.unsigned()?).ok().filter(|bodies| *bodies <= columns.len())?;
        records += bodies;
        shapes.push((Shape { kind, flags, function, thread, body_bytes }, bodies));
    }
    if records > columns.len() {
        return None;
    }
    let order: Vec<usize> =
        (0..records).map(|_| usize::try_from(bytes.unsigned()?).ok()).collect::<Option<_>>()?;
    let mut data = Vec::with_capacity(shapes.len());
    for (shape, bodies) in &shapes {
        data.push(bytes.take(bodies.checked_mul(shape.body_bytes as usize)?)?);
    }
    let mut page = vec![0; PAGE_HEADER_BYTES];
    encode_page_header(&mut page, seed, number, first_call);
    let mut used = vec![0; shapes.len()];
    for place in order {
        let (shape, bodies) = *shapes.get(place)?;
        let row = used[place];
        used[place] += 1;
        let body_bytes = shape.body_bytes as usize;
        let record = RecordHeader {
            kind: Kind::from_byte(shape.kind)?,
            flags: shape.flags,
            function: shape.function,
            thread: shape.thread,
            body_bytes: shape.body_bytes,
        };
        let at = page.len();
        if row >= bodies || at + record.span() > page_bytes.next_multiple_of(8) {
            return None;
        }
        page.extend_from_slice(&record.encode());
        if shape.in_columns() {
            page.extend((0..body_bytes).map(|column| data[place][column * bodies + row]));
        } else {
            page.extend_from_slice(&data[place][row * body_bytes..][..body_bytes]);
        }
        let crc = crc32c::crc32c_append(seed, &page[at + 4..]);
        page[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        page.resize(at + record.span(), 0);
    }
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;
    use proptest::prelude::*;

    const HEADER: FileHeader = FileHeader {
        run: [4; 16],
        page_bytes: 4096,
        pages: 2,
        payload: Payload::Receiver,
        compression: Compression::Zstandard,
        kept_pages: 0,
    };

    /// A page of records with bodies of these lengths, as far as they fit.
    fn page(lengths: &[u16], number: u64) -> Vec<u8> {
        let seed = HEADER.seed(number);
        let mut page = vec![0; PAGE_HEADER_BYTES];
        encode_page_header(&mut page, seed, number, 77);
        for (place, length) in lengths.iter().enumerate() {
            let function = u16::try_from(place % 3).expect("small");
            let body_bytes = u32::from(*length);
            let header = RecordHeader { kind: Kind::Call, flags: 0, function, thread: 0, body_bytes };
            let at = page.len();
            if at + header.span() > HEADER.page_bytes as usize {
                break;
            }
            page.extend_from_slice(&header.encode());
            page.extend((0..*length).map(|at| (at / 3).to_le_bytes()[0] ^ u8::from(place % 7 == 0)));
            let crc = crc32c::crc32c_append(seed, &page[at + 4..]);
            page[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            page.resize(at + header.span(), 0);
        }
        page
    }

    #[test]
    fn a_damaged_frame_or_one_of_another_page_is_none() {
        let whole = page(&[20, 21, 20, 900, 0, 21], 6);
        let frame = compress(&whole, &HEADER, 6);
        assert_eq!(frame_bytes(&frame), Some(frame.len()));
        assert_eq!(decompress(&frame, &HEADER, 6), Some(whole));
        assert_eq!(decompress(&frame, &HEADER, 7), None);
        let packed = FRAME_HEADER_BYTES + u32_at(&frame, 16) as usize;
        for at in 0..packed {
            let mut flipped = frame.clone();
            flipped[at] ^= 4;
            assert_eq!(decompress(&flipped, &HEADER, 6), None, "byte {at}");
            assert_eq!(decompress(&frame[..at], &HEADER, 6), None, "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn a_page_comes_back_with_every_byte(lengths in proptest::collection::vec(0..700_u16, 0..200), number: u64) {
            let whole = page(&lengths, number);
            prop_assert_eq!(decompress(&compress(&whole, &HEADER, number), &HEADER, number), Some(whole));
        }

        #[test]
        fn any_columns_are_a_page_or_refused(columns in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(page) = page_of(&columns, &HEADER, 0) {
                prop_assert!(page.len() <= HEADER.page_bytes as usize);
            }
        }
    }
}
