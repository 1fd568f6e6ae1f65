//! CRC-32C of what is short. A record of a log or of a call has some hundred bytes, of which a library that is made for megabytes
//! spends more on where they begin and end than on the bytes.

/// From so many bytes on the library is faster: it computes three parts at the same time.
const LIBRARY_BYTES_MIN: usize = 768;

/// Continues a CRC-32C: the same as `crc32c::crc32c_append`.
#[inline]
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c_append_two(crc, bytes, &[])
}

/// Continues a CRC-32C with two pieces, one after the other.
#[inline]
#[must_use]
pub fn crc32c_append_two(crc: u32, first: &[u8], second: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if first.len().max(second.len()) < LIBRARY_BYTES_MIN && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { short_two(crc, first, second) };
    }
    crc32c::crc32c_append(crc32c::crc32c_append(crc, first), second)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn short_two(crc: u32, first: &[u8], second: &[u8]) -> u32 {
    short(short(crc, first), second)
}

/// Eight bytes at a time from the first on, wherever that stands, then four, two and one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    let mut wide = u64::from(!crc);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut crc = u32::try_from(wide).expect("the instruction leaves the upper half zero");
    let (fours, rest) = rest.as_chunks::<4>();
    for four in fours {
        crc = _mm_crc32_u32(crc, u32::from_le_bytes(*four));
    }
    let (twos, rest) = rest.as_chunks::<2>();
    for two in twos {
        crc = _mm_crc32_u16(crc, u16::from_le_bytes(*two));
    }
    for byte in rest {
        crc = _mm_crc32_u8(crc, *byte);
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_as_the_librarys_for_every_length_and_alignment() {
        let bytes: Vec<u8> = (0..2000_usize).map(|at| (at * 7).to_le_bytes()[0] ^ 0x5a).collect();
        let edge = LIBRARY_BYTES_MIN;
        for begin in 0..9 {
            for end in (begin..40).chain([255, edge - 1 + begin, edge + begin, 1999]) {
                let data = &bytes[begin..end];
                assert_eq!(crc32c_append(0x1234_5678, data), crc32c::crc32c_append(0x1234_5678, data));
                let whole = [&bytes[..12], data].concat();
                assert_eq!(crc32c_append_two(9, &bytes[..12], data), crc32c::crc32c_append(9, &whole));
            }
        }
    }
}
