//! Little-endian, length-checked reading and writing of bytes, shared by wire and disk.

/// The bytes ended before the value did. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes needed at byte {at}, {left} left")]
pub struct Truncated {
    /// Offset of the value, in bytes from the start.
    pub at: usize,
    /// Bytes that the value takes.
    pub needed: usize,
    /// Bytes that were left.
    pub left: usize,
}

/// A number in bytes of varying count could not be read. Bytes of it may have been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VarintError {
    /// It ends too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// It does not fit into 64 bits.
    #[error("the number at byte {at} does not fit into 64 bits")]
    TooLarge {
        /// Offset of its first byte.
        at: usize,
    },
}

/// Reads values one after another from a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes have been read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes not read yet.
    #[must_use]
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`Truncated`] if fewer are left.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let left = self.bytes.len() - self.at;
        if left < length {
            return Err(Truncated { at: self.at, needed: length, left });
        }
        let taken = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.take(N).map(|bytes| bytes.try_into().expect("take returned N bytes"))
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    /// Two bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number written by [`put_varint`].
    ///
    /// # Errors
    /// See [`VarintError`].
    #[inline]
    pub fn varint(&mut self) -> Result<u64, VarintError> {
        let at = self.at;
        let mut value = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                return Err(VarintError::TooLarge { at });
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(VarintError::TooLarge { at })
    }

    /// A byte string written by [`put_bytes`].
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Truncated> {
        let length = self.u32()?;
        self.take(length as usize)
    }
}

/// Appends a byte string with its length (u32) before it.
///
/// # Panics
/// Past 4 GiB, which every limit forbids long before.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(
        &u32::try_from(bytes.len()).expect("byte strings are limited below 4 GiB").to_le_bytes(),
    );
    out.extend_from_slice(bytes);
}

/// Appends a number in 1 to 10 bytes (LEB128): seven bits each, the lowest first, with the highest bit set in all but the last.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_read_back_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.rest(), [0; 0]);
        }
        let refused = Err(VarintError::TooLarge { at: 0 });
        assert_eq!(Reader::new(&[0xff; 10]).varint(), refused);
        assert_eq!(Reader::new(&[0x80; 11]).varint(), refused);
        let mut two_past_64_bits = [0x80; 10];
        two_past_64_bits[9] = 2;
        assert_eq!(Reader::new(&two_past_64_bits).varint(), refused);
        assert!(matches!(Reader::new(&[0x80]).varint(), Err(VarintError::Truncated(_))));
    }

    #[test]
    fn a_truncated_value_says_where_and_reads_nothing() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"abc");
        let mut reader = Reader::new(&out[..6]);
        assert_eq!(reader.bytes(), Err(Truncated { at: 4, needed: 3, left: 2 }));
        assert_eq!(Reader::new(&out).bytes(), Ok(&b"abc"[..]));
    }
}
