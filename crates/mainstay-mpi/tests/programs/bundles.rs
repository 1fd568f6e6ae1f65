//! Runs that senders logged: refused by replay, extracted, and replayed from a bundle where no MPI is.

use super::{RANKS, Scene, installed, runs};
use mainstay_mpi::command::extract::extract;
use mainstay_mpi::command::replay::{self, ReplayError, Replayed};
use mainstay_mpi::command::stat::rank_stat;
use mainstay_mpi::payload::Payload;
use mainstay_mpi::run::Run;
use std::path::PathBuf;
use std::process::Command;

/// All that is installed of both MPIs is hidden, and the network gone; then the bundle is replayed.
const WITHOUT_MPI: &str = r#"
for library in /usr/lib/*/libmpi*.so* /usr/lib/*/libmpich*.so* /usr/lib/*/libopen-*.so* /usr/lib/*/libpmix*.so*; do
    [ ! -e "$library" ] || mount --bind /dev/null "$library" || exit 90
done
for folder in /usr/lib/*/openmpi /usr/lib/*/mpich /usr/lib/*/pmix*; do
    [ ! -d "$folder" ] || mount -t tmpfs tmpfs "$folder" || exit 90
done
! "$PROGRAM" 2>/dev/null || exit 91
exec "$@"
"#;

#[test]
#[ignore = "not a test: started by the test of bundles, in a namespace"]
fn replay_the_bundle_of_the_environment() {
    let named = |name: &str| PathBuf::from(std::env::var_os(name).expect("started by the test of bundles"));
    let scratch = tempfile::tempdir().expect("a folder");
    let replayed = replay::replay(&replay::Options {
        folder: named("BUNDLE"),
        rank: Run::open(&named("BUNDLE")).expect("a bundle").ranks[0],
        output: Some(named("OUTPUT")),
        scratch: scratch.path().to_owned(),
        ..replay::Options::default()
    });
    assert!(replayed.as_ref().is_ok_and(Replayed::same), "{:?}", replayed.map(|replayed| replayed.line()));
}

impl Scene {
    /// Extracts a rank, and replays the bundle where no MPI is. Whether that could be arranged.
    pub(super) fn assert_bundle_replays(&self, rank: u32) -> bool {
        let bundle = self.path(&format!("bundle-{rank}"));
        let extracted = extract(&self.path("run"), rank, &bundle, false).expect("a bundle");
        assert_eq!(extracted.assembled.cut, None);
        assert!(extracted.contents.libraries > 3, "{:?}", extracted.contents);
        let there = runs("unshare", &["--net", "--mount", "true"]);
        let mut command = if there { Command::new("unshare") } else { Command::new("env") };
        if there {
            command.args(["--net", "--mount", "sh", "-c", WITHOUT_MPI, "sh"]);
        }
        let replayed = command
            .arg(std::env::current_exe().expect("this test"))
            .args(["--ignored", "--exact", "bundles::replay_the_bundle_of_the_environment"])
            .env("PROGRAM", &self.program[0])
            .env("BUNDLE", &bundle)
            .env("OUTPUT", self.path(&format!("replayed-{rank}")))
            .output()
            .expect("a shell");
        let said = [replayed.stdout, replayed.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(replayed.status.success(), "rank {rank} under {}: {}", self.mpi.name, said.concat());
        self.assert_same_output(rank);
        there
    }
}

#[test]
fn what_senders_logged_is_extracted_and_replays_where_no_mpi_is() {
    // Few rounds each: every kernel is replayed in full by other tests.
    let kernels = [
        "ring:10",
        "halo:20",
        "workers:40",
        "pool:40",
        "server:20",
        "persistent:6",
        "derived:4",
        "split:3",
        "collectives:4",
        "probe:30",
        "corner:3",
        "truncated:2",
        "forked:1",
    ];
    for mpi in installed("a run that senders logged") {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &kernels);
        (scene.payload, scene.compress) = (Payload::Sender, true);
        let recorded = scene.record();
        assert!(recorded.status.success(), "{}: {}", mpi.name, recorded.status);
        let options = replay::Options { folder: scene.path("run"), ..replay::Options::default() };
        let Err(error @ ReplayError::NeedsExtract { .. }) = replay::replay(&options) else {
            panic!("a replay")
        };
        assert!(error.to_string().contains("mainstay mpi extract"), "{error}");
        for rank in 0..RANKS {
            assert_eq!(rank_stat(&recorded.run, rank).expect("a log").payload, Payload::Sender);
            if !scene.assert_bundle_replays(rank) {
                println!("skipped: a bundle without {} beside it: needs root for a namespace", mpi.name);
            }
        }
        let refused = |part: &str| {
            let options = replay::Options { folder: scene.path("bundle-0"), ..replay::Options::default() };
            let Err(error @ ReplayError::Bundle(_)) = replay::replay(&options) else { panic!("a replay") };
            assert!(error.to_string().contains(part), "{error}");
        };
        let added = scene.path("bundle-0/libraries/libadded.so");
        std::fs::write(&added, "").expect("a file");
        refused("libadded.so is not in the manifest");
        std::fs::remove_file(added).expect("the file");
        let path = scene.path("bundle-0/manifest");
        let manifest = std::fs::read_to_string(&path).expect("a manifest");
        assert!(manifest.contains("  rank-00000.log\n"), "{manifest}");
        std::fs::write(&path, format!("{manifest}00  ../bundle-1/shim.so\n")).expect("a file");
        refused("../bundle-1/shim.so");
        std::fs::write(&path, manifest).expect("a file");
        let library = std::fs::read_dir(scene.path("bundle-0/libraries")).expect("libraries").next();
        let library = library.expect("a library").expect("its name").path();
        std::fs::write(&library, "another").expect("a file");
        let options = replay::Options { folder: scene.path("bundle-0"), ..options };
        let Err(error @ ReplayError::Bundle(_)) = replay::replay(&options) else { panic!("a replay") };
        assert!(error.to_string().contains(&*library.to_string_lossy()), "{error}");
    }
}

#[test]
fn a_killed_rank_that_senders_logged_replays_as_far() {
    for mpi in installed("a killed rank that senders logged") {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["killed"]);
        (scene.payload, scene.compress) = (Payload::Sender, true);
        assert!(!scene.record().status.success());
        for rank in 0..RANKS {
            let bundle = scene.path("bundle");
            let extracted = extract(&scene.path("run"), rank, &bundle, false).expect("a bundle");
            let options = replay::Options { folder: bundle.clone(), ..replay::Options::default() };
            let replayed = scene.replay_with(rank, &options);
            assert!(replayed.same(), "rank {rank}: {}", replayed.line());
            if rank == 0 && runs("gdb", &["--version"]) {
                let scratch = tempfile::tempdir().expect("a folder");
                let options = replay::Options {
                    folder: bundle.clone(),
                    rank,
                    output: Some(scene.path("gdb")),
                    scratch: scratch.path().to_owned(),
                    debugger: true,
                    debugger_commands: ["break killed", "run", "backtrace", "kill"]
                        .map(str::to_owned)
                        .to_vec(),
                    ..Default::default()
                };
                replay::replay(&options).expect("gdb");
                let said = std::fs::read_to_string(scene.path("gdb")).expect("what gdb says");
                // The program's own names are known, though a loader was started.
                assert!(said.contains(", killed (rounds=40)") && said.contains(" in main ("), "{said}");
            }
            std::fs::remove_dir_all(bundle).expect("the bundle");
            // A neighbour may have been killed in the call that sent the last message, which then is in no log; and the rank
            // itself before it printed what the last call brought.
            let read =
                |name: &str| std::fs::read_to_string(scene.path(&format!("{name}-{rank}"))).expect("output");
            let (recorded, again) = (read("output"), read("replayed"));
            assert!(recorded.starts_with(&again) || again.starts_with(&recorded), "rank {rank}: {again}");
            // This one kills itself, behind what it printed.
            if rank == 1 && extracted.assembled.cut.is_none() {
                scene.assert_same_output(rank);
            }
        }
    }
}

#[test]
fn an_order_alone_is_recorded_and_not_replayed() {
    for mpi in installed("an order alone") {
        let mut scene = Scene::compiled(mpi, "mpicc", "kernels.c", &["workers", "halo"]);
        scene.payload = Payload::None;
        let recorded = scene.record();
        assert!(recorded.status.success());
        let stat = rank_stat(&recorded.run, 0).expect("a log");
        assert!(stat.ended && stat.payload == Payload::None, "{stat:?}");
        assert!(stat.by_call["MPI_Recv"] >= 200 && stat.received_bytes > 40_000, "{stat:?}");
        let options = replay::Options { folder: scene.path("run"), ..replay::Options::default() };
        assert!(matches!(replay::replay(&options), Err(ReplayError::OrderOnly)));
        let bundle = scene.path("bundle");
        assert!(extract(&scene.path("run"), 0, &bundle, false).is_err() && !bundle.exists());
    }
}
