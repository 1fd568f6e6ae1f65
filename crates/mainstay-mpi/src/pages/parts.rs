//! The body of a record, in several pieces, on its way into a page.

use mainstay_checksum::crc32c_append;

/// So many bytes are copied and then checksummed, while the processor's first cache still has them.
const BLOCK_BYTES: usize = 24 << 10;

/// What is left of the pieces.
pub(super) struct Parts<'a> {
    parts: &'a [&'a [u8]],
    /// How far the first of them is copied, in bytes.
    at: usize,
}

impl<'a> Parts<'a> {
    pub(super) fn of(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, at: 0 }
    }

    /// Fills `target` with what comes next, and continues a CRC-32C with it. As much must be left.
    pub(super) fn copy_to(&mut self, target: &mut [u8], mut crc: u32) -> u32 {
        for block in target.chunks_mut(BLOCK_BYTES) {
            self.fill(block);
            crc = crc32c_append(crc, block);
        }
        crc
    }

    fn fill(&mut self, mut target: &mut [u8]) {
        while !target.is_empty() {
            let part = &self.parts[0][self.at..];
            let length = part.len().min(target.len());
            target[..length].copy_from_slice(&part[..length]);
            target = &mut target[length..];
            self.at += length;
            if self.at == self.parts[0].len() {
                self.parts = &self.parts[1..];
                self.at = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_come_out_one_behind_the_other_with_their_checksum() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 5).map(|at| at.to_le_bytes()[0]).collect();
        let pieces = [&bytes[..3], &[], &bytes[3..BLOCK_BYTES + 9], &bytes[BLOCK_BYTES + 9..]];
        let mut parts = Parts::of(&pieces);
        let mut copied = vec![0; bytes.len()];
        let (first, rest) = copied.split_at_mut(2 * BLOCK_BYTES + 1);
        let crc = parts.copy_to(first, 7);
        assert_eq!(parts.copy_to(rest, crc), crc32c::crc32c_append(7, &bytes));
        assert_eq!(copied, bytes);
    }
}
