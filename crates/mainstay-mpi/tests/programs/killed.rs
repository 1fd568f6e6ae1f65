//! A rank that is killed: its log is replayed to the last call, and to the last good one when it was damaged since.

use super::{Scene, installed};
use mainstay_mpi::command::replay::Outcome;
use mainstay_mpi::command::stat::rank_stat;
use mainstay_mpi::format::FILE_HEADER_BYTES;
use mainstay_mpi::settings::PAGE_BYTES_DEFAULT;

#[test]
fn a_rank_that_was_killed_replays_to_the_call_it_was_in() {
    for mpi in installed("a killed rank") {
        let scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["killed"]);
        let recorded = scene.record();
        assert!(!recorded.status.success());
        let stat = rank_stat(&recorded.run, 1).expect("a log");
        assert!(!stat.ended);
        let replayed = scene.replay(1);
        // It kills itself between two calls, and so does its replay.
        assert!(replayed.same(), "{}", replayed.line());
        assert_eq!(replayed.left.calls, stat.calls);
        scene.assert_same_output(1);
        // The others were in the next exchange when the launcher ended them.
        for rank in [0, 2] {
            let replayed = scene.replay(rank);
            assert_eq!(replayed.left.word, "log-ends", "{}", replayed.line());
            scene.assert_same_output(rank);
        }
        // One of the last bytes of what rank 0 recorded, changed since.
        let ring = recorded.run.log(0).with_extension("ring");
        let mut bytes = std::fs::read(&ring).expect("a ring");
        let page = &bytes[FILE_HEADER_BYTES..FILE_HEADER_BYTES + PAGE_BYTES_DEFAULT as usize];
        let last = page.iter().rposition(|byte| *byte != 0).expect("calls");
        bytes[FILE_HEADER_BYTES + last - 9] ^= 1;
        std::fs::write(&ring, bytes).expect("a file");
        let calls = rank_stat(&recorded.run, 0).expect("a log").calls;
        let replayed = scene.replay(0);
        assert_eq!(replayed.outcome(), Outcome::Damaged, "{}", replayed.line());
        assert_eq!(replayed.damage.map(|damage| damage.calls), Some(calls));
        assert_eq!(replayed.left.calls, calls);
    }
}
