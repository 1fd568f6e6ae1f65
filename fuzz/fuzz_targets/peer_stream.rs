//! Fuzzes what a node reads from another: preamble, verdict, and the stream of frames, however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_runtime::peers::frames::{LENGTH_BYTES, Splitter, frames};
use mainstay_runtime::peers::preamble::{Preamble, Verdict};

const FRAME_BYTES_MAX: u32 = 1000;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(preamble) = Preamble::decode(bytes) {
        assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
    }
    let _ = Verdict::text_bytes(bytes);
    let _ = Verdict::decode(bytes);

    let step = bytes.first().map_or(1, |byte| usize::from(*byte) + 1);
    assert_eq!(split(bytes, step), split(bytes, bytes.len().max(1)), "the same frames however the stream is cut");
});

fn split(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, bool) {
    let mut splitter = Splitter::new(FRAME_BYTES_MAX);
    let mut came = Vec::new();
    for part in bytes.chunks(step) {
        splitter.room().extend_from_slice(part);
        loop {
            match splitter.whole() {
                Ok(Some(run)) => came.extend(frames(&run).map(<[u8]>::to_vec)),
                Ok(None) => break,
                Err(_) => return (came, false),
            }
        }
        assert!(splitter.room().len() < LENGTH_BYTES + FRAME_BYTES_MAX as usize, "what waits is less than one frame");
    }
    (came, true)
}
