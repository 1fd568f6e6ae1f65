//! Numbers of seven bits a byte, lowest first (LEB128); signed ones with the sign in the lowest bit.

/// Appends the lowest `length` bytes of a word, at most eight: one store, where a slice of a few bytes is a call.
#[inline]
pub fn put_word(out: &mut Vec<u8>, word: u64, length: usize) {
    assert!(length <= 8, "a word has eight bytes");
    out.reserve(8);
    let end = out.len();
    // SAFETY: there is room for eight bytes behind the end, and `length` of them are written.
    unsafe {
        out.as_mut_ptr().add(end).cast::<[u8; 8]>().write(word.to_le_bytes());
        out.set_len(end + length);
    }
}

/// Appends a number.
#[inline]
pub fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    match one_byte(value) {
        Some(byte) => out.push(byte),
        None => put_long(out, value),
    }
}

/// The number as it is written, if that is one byte.
#[inline]
#[must_use]
pub fn one_byte(value: u64) -> Option<u8> {
    u8::try_from(value).ok().filter(|byte| *byte < 0x80)
}

/// A signed number as an unsigned one, with the sign in the lowest bit.
#[inline]
#[must_use]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn put_long(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Appends a signed number.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_unsigned(out, zigzag(value));
}

/// Appends a length and bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_unsigned(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes that are read from the front. Every method gives `None`, and reads nothing more, where they do not hold.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads from the beginning of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What is not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number.
    pub fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A signed number.
    pub fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// A length and bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.unsigned()?).ok()?;
        self.take(length)
    }

    /// A length and text.
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.counted()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_read_back(unsigned: u64, signed: i64) {
            let mut out = Vec::new();
            put_unsigned(&mut out, unsigned);
            put_signed(&mut out, signed);
            let mut bytes = Bytes::new(&out);
            prop_assert_eq!(bytes.unsigned(), Some(unsigned));
            prop_assert_eq!(bytes.signed(), Some(signed));
            prop_assert!(bytes.rest().is_empty());
        }
    }

    #[test]
    fn a_number_past_64_bits_is_refused() {
        assert_eq!(Bytes::new(&[0xff; 11]).unsigned(), None);
        assert_eq!(Bytes::new(&[0x80; 3]).unsigned(), None, "cut");
    }
}
