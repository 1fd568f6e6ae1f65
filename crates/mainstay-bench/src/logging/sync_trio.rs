//! The floor of a call over three journals: one durable write to each of three files at the same time.

use crate::floor::{DurableWrite, FloorFile};
use crate::report::Samples;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Files that are written at the same time.
const FILES: usize = 3;

/// Bytes of each file, after which it is written from its start again.
const FILE_BYTES: u64 = 16 << 20;

/// Three files, each written by a thread of its own.
#[derive(Debug)]
pub(super) struct SyncTrio {
    files: Vec<FloorFile>,
    write_bytes: usize,
}

impl SyncTrio {
    pub(super) fn create(
        directory: &Path,
        name: &str,
        method: DurableWrite,
        write_bytes: usize,
    ) -> io::Result<Self> {
        let create = |number| {
            FloorFile::create(&directory.join(format!("{name}-{number}")), method, FILE_BYTES, write_bytes)
        };
        Ok(Self { files: (0..FILES).map(create).collect::<io::Result<_>>()?, write_bytes })
    }

    /// Does it `count` times: how long each took, from the moment all may begin until the last is durable, in microseconds.
    /// The threads are awake beforehand, which no process that waits for a message is: this is the least it can take.
    pub(super) fn run(&mut self, count: usize) -> io::Result<Samples> {
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let write_bytes = self.write_bytes;
        let (own, others) = self.files.split_first_mut().expect("there are three");
        std::thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter_mut()
                .map(|file| {
                    let (begun, done) = (&begun, &done);
                    scope.spawn(move || {
                        let mut all_written = Ok(());
                        for turn in 1..=count {
                            wait_until(begun, turn);
                            let written = file.write(write_bytes);
                            done.fetch_add(1, Ordering::AcqRel);
                            // Goes on after an error, so that nobody waits for ever.
                            all_written = all_written.and(written);
                        }
                        all_written
                    })
                })
                .collect();
            let mut took_us = Samples::default();
            let mut own_written = Ok(());
            for turn in 1..=count {
                let since = Instant::now();
                begun.store(turn, Ordering::Release);
                own_written = own_written.and(own.write(write_bytes));
                wait_until(&done, turn * (FILES - 1));
                took_us.push(since.elapsed().as_secs_f64() * 1e6);
            }
            let written: io::Result<()> =
                threads.into_iter().try_for_each(|thread| thread.join().expect("writers do not panic"));
            own_written.and(written).map(|()| took_us)
        })
    }
}

fn wait_until(counter: &AtomicUsize, value: usize) {
    while counter.load(Ordering::Acquire) < value {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_writes_all_three_files() {
        let scratch = crate::scratch::Scratch::create(&std::env::temp_dir()).expect("a folder");
        let mut trio =
            SyncTrio::create(scratch.path(), "trio", DurableWrite::Fdatasync, 256).expect("three files");
        assert_eq!(trio.run(5).expect("they can be written").values().len(), 5);
        for number in 0..FILES {
            let bytes = std::fs::read(scratch.path().join(format!("trio-{number}"))).expect("it is there");
            assert!(bytes[..5 * 256].iter().all(|byte| *byte != 0) && bytes[5 * 256] == 0);
        }
    }
}
