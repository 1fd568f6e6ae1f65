//! `mainstay demo`: small ones, each kind of kill, nothing left behind.

use crate::harness::{Folder, mainstay, processes_of, run, said};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const FIGURES: [&str; 16] = [
    "requests",
    "kills",
    "kills_in_recovery",
    "kills_in_checkpoint",
    "kills_with_inflight",
    "recoveries",
    "recovery_ms_p50",
    "recovery_ms_max",
    "replayed",
    "duplicates_suppressed",
    "lost",
    "doubled",
    "outputs_lost",
    "outputs_doubled",
    "outputs_in_doubt",
    "level",
];

#[test]
fn a_small_demo_loses_and_doubles_nothing_under_every_kind_of_kill() {
    let folder = Folder::new();
    let kept = folder.path("run");
    let said = run(
        &folder,
        &["demo", "--requests", "600", "--kills", "24", "--seed", "5", "--json", "--dir", "run"],
    );
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report = said.json();
    for figure in FIGURES {
        assert!(report.get(figure).is_some(), "`{figure}` is missing in {report}");
    }
    assert_eq!(report["requests"], 600);
    assert_eq!(report["kills"], 24);
    for figure in
        ["lost", "doubled", "answers_wrong", "outputs_lost", "outputs_doubled", "outputs_unexplained"]
    {
        assert_eq!(report[figure], 0, "{report}");
    }
    for figure in
        ["kills_in_recovery", "kills_in_checkpoint", "kills_with_inflight", "recoveries", "replayed"]
    {
        assert!(report[figure].as_f64() > Some(0.0), "`{figure}` is zero in {report}");
    }
    wait_until_none_is_left(&kept);
    let verified = run(&folder, &["journal", "verify", "run/ledger.mainstay"]);
    assert_eq!(verified.code, 0, "{}", verified.out);
}

#[test]
fn without_kills_nothing_is_replayed_and_nothing_is_in_doubt() {
    let folder = Folder::new();
    let report =
        run(&folder, &["demo", "--requests", "80", "--kills", "0", "--level", "process", "--json"]).json();
    for figure in
        ["kills", "recoveries", "replayed", "duplicates_suppressed", "lost", "doubled", "outputs_in_doubt"]
    {
        assert_eq!(report[figure], 0, "{report}");
    }
    assert_eq!(report["level"], "process");
}

/// A loss planted below the service. Level process does not promise to survive it, so that the audit has something to find;
/// level disk does.
#[test]
fn a_ring_lost_with_every_kill_is_found_by_the_audit_at_level_process_and_harms_nothing_at_level_disk() {
    let folder = Folder::new();
    let demo = |level| {
        let arguments = ["demo", "--requests", "300", "--kills", "6", "--seed", "3", "--lose-ring", "--json"];
        run(&folder, &[&arguments[..], &["--level", level, "--dir", level]].concat())
    };
    let planted = demo("process");
    assert_eq!(planted.code, 1, "{}{}", planted.out, planted.err);
    let report = planted.json();
    assert!(report["lost"].as_u64() > Some(0), "{report}");
    assert!(report["described"].as_array().is_some_and(|described| !described.is_empty()), "{report}");
    let sound = demo("disk");
    assert_eq!(sound.code, 0, "{}{}", sound.out, sound.err);
    assert_eq!((&sound.json()["lost"], &sound.json()["doubled"]), (&0.into(), &0.into()));
}

#[test]
fn an_interrupted_demo_leaves_no_process_behind() {
    let folder = Folder::new();
    let run_folder = folder.path("run");
    let demo = mainstay(&folder)
        .args(["demo", "--requests", "1000000", "--kills", "3", "--dir", "run"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let began = Instant::now();
    while processes_of(&run_folder).len() < 8 {
        assert!(
            began.elapsed() < crate::harness::PATIENCE,
            "the demo does not start: {:?}",
            processes_of(&run_folder)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a child can be signalled");
    let ended = said(demo.wait_with_output().expect("a child can be waited for"));
    assert_eq!(ended.code, 3, "{}", ended.err);
    assert!(ended.err.contains("interrupted"), "{}", ended.err);
    // One that was being started ends when it finds its parent gone.
    wait_until_none_is_left(&run_folder);
}

#[test]
fn a_demo_killed_at_the_top_takes_all_its_processes_with_it() {
    let folder = Folder::new();
    let run_folder = folder.path("run");
    let mut demo = mainstay(&folder)
        .args(["demo", "--requests", "1000000", "--kills", "0", "--dir", "run"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let began = Instant::now();
    while processes_of(&run_folder).len() < 8 {
        assert!(
            began.elapsed() < crate::harness::PATIENCE,
            "the demo does not start: {:?}",
            processes_of(&run_folder)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    demo.kill().expect("a child can be killed");
    demo.wait().expect("a child can be waited for");
    wait_until_none_is_left(&run_folder);
}

fn wait_until_none_is_left(run_folder: &Path) {
    let began = Instant::now();
    while !processes_of(run_folder).is_empty() {
        assert!(began.elapsed() < crate::harness::PATIENCE, "left behind: {:?}", processes_of(run_folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn power_cuts_of_a_recorded_demo_lose_nothing_and_a_skipped_sync_is_noticed() {
    let folder = Folder::new();
    let demo = ["demo", "--requests", "200", "--kills", "2", "--json"];
    let recorded = run(&folder, &[&demo[..], &["--record", "sound"]].concat());
    assert_eq!(recorded.code, 0, "{}{}", recorded.out, recorded.err);
    let said = run(&folder, &["sim", "cuts", "sound", "--points", "40", "--json"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let report = said.json();
    assert_eq!(report["violations"], 0, "{report}");
    assert!(report["asked"].as_u64() > Some(100), "{report}");

    let recorded = run(&folder, &[&demo[..], &["--record", "skipping", "--skip-syncs", "20..60"]].concat());
    assert_eq!(recorded.code, 0, "kill -9 alone does not show it: {}{}", recorded.out, recorded.err);
    let said = run(&folder, &["sim", "cuts", "skipping", "--points", "200"]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("VIOLATION"), "{}", said.out);

    std::fs::write(folder.path("foreign"), "no recording").expect("a file can be written");
    for (file, code) in [("foreign", 3), ("missing", 3)] {
        let said = run(&folder, &["sim", "cuts", file]);
        assert_eq!(said.code, code, "{file}: {}{}", said.out, said.err);
    }
}
