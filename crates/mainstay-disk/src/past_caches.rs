//! Copying past the caches, where the processor can, what nobody on this core reads again soon.
//!
//! A copy through the caches first fetches what it overwrites, and pushes out what others need; what it leaves there has to be taken from this
//! core again by whoever writes it to a disk.

/// Copies `from` to `into` past the caches. What was copied is visible to other threads before anything that this one stores afterwards.
///
/// # Panics
/// When the two differ in length.
pub(crate) fn copy_past_caches(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "a copy is as long as what it is of");
    copy(into, from);
}

#[cfg(not(target_arch = "x86_64"))]
fn copy(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// The beginning up to an aligned line and the end behind the last go through the caches.
#[cfg(target_arch = "x86_64")]
fn copy(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE_BYTES: usize = 64;
    let before = into.as_ptr().align_offset(LINE_BYTES).min(into.len());
    let (begin, rest) = into.split_at_mut(before);
    let (from_begin, from_rest) = from.split_at(before);
    begin.copy_from_slice(from_begin);
    let (lines, end) = rest.as_chunks_mut::<LINE_BYTES>();
    let (from_lines, from_end) = from_rest.as_chunks::<LINE_BYTES>();
    end.copy_from_slice(from_end);
    if lines.is_empty() {
        return;
    }
    for (line, source) in lines.iter_mut().zip(from_lines) {
        let (line, source) = (line.as_mut_ptr().cast::<__m128i>(), source.as_ptr().cast::<__m128i>());
        for at in 0..LINE_BYTES / 16 {
            // SAFETY: both have 64 bytes, and the line stands at a multiple of that.
            unsafe { _mm_stream_si128(line.add(at), _mm_loadu_si128(source.add(at))) };
        }
    }
    // SAFETY: every x86-64 has it. Stores past the caches are ordered by nothing else.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_every_length_to_every_place_and_nothing_beside_it() {
        let source: Vec<u8> = (0..600_usize).map(|at| (at * 31).to_le_bytes()[0]).collect();
        for place in 0..70 {
            for length in (0..140).chain([256, 511]) {
                let mut into = vec![0xEE; 700];
                let from = &source[place / 3..place / 3 + length];
                copy_past_caches(&mut into[place..place + length], from);
                assert_eq!(into[place..place + length], *from);
                assert!(into[..place].iter().chain(&into[place + length..]).all(|&byte| byte == 0xEE));
            }
        }
    }
}
