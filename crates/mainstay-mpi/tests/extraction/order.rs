//! What the order of a master's wildcard receives costs when nothing else is logged and pages are compressed.

use crate::rank::{ANY, BYTE, Rank, Status, WORLD};
use mainstay_mpi::compression::Compression;
use mainstay_mpi::core::Buffer;
use mainstay_mpi::field::Role;
use mainstay_mpi::payload::Payload;

const RECEIVES: u64 = 60_000;

/// Bytes of the master's log for each receive, with so many workers that answer in no order.
fn bytes_per_receive(workers: i64, seed: u64) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("none")).expect("a folder");
    let policies = [(Payload::None, Compression::Zstandard)];
    let size = usize::try_from(workers + 1).expect("few");
    let mut master = Rank::new(folder.path(), 0, size, &policies, 1 << 22);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut memory = [0_u8; 8];
    let buffer = Buffer { address: memory.as_mut_ptr() as u64, count: 8, datatype: BYTE };
    for task in 0..RECEIVES {
        master.open("MPI_Recv", 0);
        master.arguments(buffer, &[(Role::Peer, ANY), (Role::Tag, ANY)], Some(WORLD));
        let source = random.i64(1..=workers);
        // The answer's tag hangs on the task, as in the kernel of the tests with a real MPI.
        let status = Status { source, tag: 10 + i64::try_from(task % 7).expect("small"), bytes: 8 };
        master.result();
        master.status(&status);
        master.receives(buffer, &status);
        master.close();
        master.open("MPI_Send", 0);
        master.sends(buffer, false);
        master.arguments(buffer, &[(Role::Peer, source), (Role::Tag, 1)], Some(WORLD));
        master.result();
        master.close();
    }
    master.finish();
    let bytes = std::fs::metadata(folder.path().join("none/rank-00000.log")).expect("the log").len();
    bytes as f64 / RECEIVES as f64
}

#[test]
fn a_wildcard_receive_takes_less_than_two_bytes() {
    for workers in [3, 15, 63] {
        let bytes = bytes_per_receive(workers, 1);
        println!("{workers} workers: {bytes:.2} bytes of log for each wildcard receive and its answer");
        assert!(bytes < 2.0, "{workers} workers: {bytes}");
    }
}
