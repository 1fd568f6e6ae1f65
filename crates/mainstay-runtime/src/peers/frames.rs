//! Frames: a length (u32, little-endian) and so many bytes. A frame without bytes is a heartbeat and never handed on.
//!
//! ```text
//!   | 5 0 0 0 | h e l l o | 0 0 0 0 | 2 0 0 0 | o k |
//!     length     frame     heartbeat   length  frame
//! ```

use mainstay_types::codec::put_bytes;

/// Bytes of the length before each frame.
pub const LENGTH_BYTES: usize = 4;

/// A heartbeat on the wire.
pub(crate) const HEARTBEAT: [u8; LENGTH_BYTES] = [0; LENGTH_BYTES];

/// Room made for one read, in bytes.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Room that an empty buffer keeps at most, in bytes.
const ROOM_BYTES_MAX: usize = 4 * READ_BYTES;

/// A frame is longer than its receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes, at most {frame_bytes_max} are taken")]
pub struct FrameTooLong {
    /// Its length in bytes, without the length itself.
    pub bytes: u32,
    /// The limit.
    pub frame_bytes_max: u32,
}

/// Appends one frame.
///
/// # Panics
/// On an empty one, which would be a heartbeat.
pub fn put_frame(out: &mut Vec<u8>, frame: &[u8]) {
    assert!(!frame.is_empty(), "an empty frame is a heartbeat, which belongs to the transport");
    put_bytes(out, frame);
}

/// The frames of a run of whole frames, as [`Splitter::whole`] and so the transport hand them over.
///
/// # Panics
/// While walking, if the bytes are not whole frames: that is a bug of who made them.
pub fn frames(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let length = length_at(rest, 0).expect("whole frames begin with a length") as usize;
        let (frame, behind) = rest[LENGTH_BYTES..].split_at(length);
        rest = behind;
        Some(frame)
    })
}

/// Checks frames before they are sent, so that a peer does not have to.
///
/// # Errors
/// [`FrameTooLong`].
///
/// # Panics
/// If the bytes are not whole frames, or one is empty.
pub(crate) fn check_outgoing(bytes: &[u8], frame_bytes_max: u32) -> Result<(), FrameTooLong> {
    let longest =
        frames(bytes).map(<[u8]>::len).inspect(|length| assert!(*length > 0, "an empty frame")).max();
    match u32::try_from(longest.unwrap_or(0)).expect("the length was read from a u32") {
        bytes if bytes > frame_bytes_max => Err(FrameTooLong { bytes, frame_bytes_max }),
        _ => Ok(()),
    }
}

/// Cuts a stream of bytes into runs of whole frames.
#[derive(Debug)]
pub struct Splitter {
    buffer: Vec<u8>,
    frame_bytes_max: u32,
}

impl Splitter {
    /// At the beginning of a stream.
    #[must_use]
    pub fn new(frame_bytes_max: u32) -> Self {
        Self { buffer: Vec::with_capacity(READ_BYTES), frame_bytes_max }
    }

    /// The bytes not cut off yet, with room behind them for the next read, which must append there and do nothing else.
    ///
    /// The room grows with what has arrived, not with what a length announces: memory is pinned only by bytes sent.
    pub fn room(&mut self) -> &mut Vec<u8> {
        if self.buffer.is_empty() && self.buffer.capacity() > ROOM_BYTES_MAX {
            self.buffer = Vec::with_capacity(READ_BYTES);
        }
        let missing = match length_at(&self.buffer, 0) {
            Some(length) => (length as usize + LENGTH_BYTES).saturating_sub(self.buffer.len()),
            None => 0,
        };
        self.buffer.reserve(missing.clamp(READ_BYTES / 4, self.buffer.len().max(READ_BYTES)));
        &mut self.buffer
    }

    /// The next run of whole frames, `None` when more bytes are needed. Call it until then, before the next read.
    ///
    /// # Errors
    /// [`FrameTooLong`], after all frames before that one have been returned. The stream cannot be read any further.
    pub fn whole(&mut self) -> Result<Option<Vec<u8>>, FrameTooLong> {
        let mut end = 0;
        while let Some(length) = length_at(&self.buffer, end) {
            if length > self.frame_bytes_max {
                if end > 0 {
                    break;
                }
                return Err(FrameTooLong { bytes: length, frame_bytes_max: self.frame_bytes_max });
            }
            if length == 0 {
                if end > 0 {
                    break;
                }
                self.buffer.drain(..LENGTH_BYTES);
                continue;
            }
            let next = end + LENGTH_BYTES + length as usize;
            if next > self.buffer.len() {
                break;
            }
            end = next;
        }
        if end == 0 {
            return Ok(None);
        }
        // A buffer mostly filled is given away as it is; small runs are copied out, or each would hold a large buffer while
        // it waits to be dealt with.
        if end * 2 >= self.buffer.capacity() {
            // What comes next is likely to need as much room: grown from a smaller buffer it would be copied on the way.
            let room = self.buffer.capacity().clamp(READ_BYTES, ROOM_BYTES_MAX);
            let mut rest = Vec::with_capacity(room.max(self.buffer.len() - end));
            rest.extend_from_slice(&self.buffer[end..]);
            self.buffer.truncate(end);
            return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
        }
        let run = self.buffer[..end].to_vec();
        self.buffer.drain(..end);
        Ok(Some(run))
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<u32> {
    let length = bytes.get(at..at + LENGTH_BYTES)?;
    Some(u32::from_le_bytes(length.try_into().expect("four bytes were taken")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_BYTES_MAX: u32 = 200_000;

    fn stream(lengths: &[usize]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        for (index, length) in lengths.iter().enumerate() {
            if *length == 0 {
                bytes.extend_from_slice(&HEARTBEAT);
                continue;
            }
            let frame = vec![u8::try_from(index % 251).expect("below 251"); *length];
            put_frame(&mut bytes, &frame);
            sent.push(frame);
        }
        (bytes, sent)
    }

    #[test]
    fn frames_come_out_whole_and_in_order_however_the_stream_is_cut() {
        let (bytes, sent) = stream(&[1, 0, 5, 0, 0, 3000, 200_000, 7, 70_000, 0, 1, 1, 1, 0]);
        for step in [1, 2, 3, 5, 4096, 65_536, 100_000, bytes.len()] {
            let mut splitter = Splitter::new(FRAME_BYTES_MAX);
            let mut came = Vec::new();
            for part in bytes.chunks(step) {
                splitter.room().extend_from_slice(part);
                while let Some(run) = splitter.whole().expect("no frame is too long") {
                    came.extend(frames(&run).map(<[u8]>::to_vec));
                }
            }
            assert!(came == sent, "cut every {step} bytes");
            assert!(splitter.room().is_empty(), "heartbeats leave nothing behind");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_as_soon_as_its_length_is_known_and_after_what_stands_before_it() {
        let (mut bytes, sent) = stream(&[10, 20]);
        bytes.extend_from_slice(&(FRAME_BYTES_MAX + 1).to_le_bytes());
        let mut splitter = Splitter::new(FRAME_BYTES_MAX);
        splitter.room().extend_from_slice(&bytes);
        let run = splitter.whole().expect("two frames are fine").expect("they are whole");
        assert_eq!(frames(&run).collect::<Vec<_>>(), sent);
        let refused = FrameTooLong { bytes: FRAME_BYTES_MAX + 1, frame_bytes_max: FRAME_BYTES_MAX };
        assert_eq!(splitter.whole(), Err(refused));
    }

    #[test]
    fn a_length_that_is_only_announced_takes_no_memory() {
        let mut splitter = Splitter::new(u32::MAX);
        splitter.room().extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(splitter.whole(), Ok(None));
        assert!(splitter.room().capacity() <= ROOM_BYTES_MAX);
    }

    #[test]
    fn a_small_run_does_not_hold_a_large_buffer() {
        let mut splitter = Splitter::new(FRAME_BYTES_MAX);
        put_frame(splitter.room(), b"small");
        let run = splitter.whole().expect("it is short").expect("it is whole");
        assert!(run.capacity() < 64);
    }

    #[test]
    #[should_panic(expected = "an empty frame")]
    fn an_empty_frame_is_a_bug_of_the_sender() {
        let _ = check_outgoing(&HEARTBEAT, FRAME_BYTES_MAX);
    }
}
