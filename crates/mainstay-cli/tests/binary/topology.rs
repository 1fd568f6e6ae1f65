//! `mainstay demo --topology`: small ones, one for each policy, nothing left behind.

use crate::harness::{Folder, Said, processes_of, run};

fn demo(folder: &Folder, policy: &str, more: &[&str]) -> Said {
    let arguments = ["demo", "--topology", "pipeline", "--policy", policy, "--json", "--dir", "run"];
    run(folder, &[&arguments[..], more].concat())
}

/// Runs a demo in which `down_max` nodes at least are down at the same time, and no more.
fn nothing_is_lost_or_doubled_under(policy: &str, down_max: u64) {
    let folder = Folder::new();
    let said = demo(&folder, policy, &["--requests", "300", "--kills", "6", "--seed", "5"]);
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report = said.json();
    assert_eq!((&report["policy"], &report["topology"]), (&policy.into(), &"pipeline".into()));
    assert_eq!(
        (&report["nodes"], &report["requests"], &report["kills"]),
        (&3.into(), &300.into(), &6.into())
    );
    for figure in ["lost", "doubled", "answers_wrong", "outputs_lost", "outputs_doubled", "outputs_in_doubt"]
    {
        assert_eq!(report[figure], 0, "{report}");
    }
    for figure in ["recoveries", "kills_of_machines", "answers_repeated"] {
        assert!(report[figure].as_u64() > Some(0), "`{figure}` is zero in {report}");
    }
    assert_eq!(report["down_max"], down_max, "{report}");
    assert!(report.get("orphans_rolled_back").is_some(), "{report}");
    assert_eq!(processes_of(&folder.path("run")), Vec::<String>::new());
}

#[test]
fn pessimistic() {
    nothing_is_lost_or_doubled_under("pessimistic", 2);
}

#[test]
fn deferred() {
    nothing_is_lost_or_doubled_under("deferred", 2);
}

#[test]
fn sender_based() {
    nothing_is_lost_or_doubled_under("sender-based", 1);
}

#[test]
fn hybrid() {
    nothing_is_lost_or_doubled_under("hybrid", 1);
}

#[test]
fn causal() {
    nothing_is_lost_or_doubled_under("causal", 1);
}

#[test]
fn causal_with_two_failures_at_a_time() {
    nothing_is_lost_or_doubled_under("causal:2", 2);
}

#[test]
fn optimistic() {
    nothing_is_lost_or_doubled_under("optimistic", 2);
}

#[test]
fn mixed() {
    nothing_is_lost_or_doubled_under("mixed", 1);
}

#[test]
fn policies_that_survive_nothing_or_need_more_nodes_are_refused() {
    let folder = Folder::new();
    for (policy, word) in [("none", "survives nothing"), ("causal:3", "needs 4 nodes"), ("eager", "mixed")] {
        let said = demo(&folder, policy, &[]);
        assert_eq!(said.code, 2, "{policy}: {}", said.err);
        assert!(said.err.contains(word), "{policy}: {}", said.err);
    }
    let alone = run(&folder, &["demo", "--policy", "causal"]);
    assert_eq!(alone.code, 2, "{}", alone.err);
    assert!(alone.err.contains("--topology"), "{}", alone.err);
}
