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
fn immediate() {
    nothing_is_lost_or_doubled_under("immediate", 2);
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

/// While it is recorded, every machine that crashes loses, by chance, what its disk had not synced; afterwards all lose it at once.
#[test]
fn power_cuts_of_a_recorded_pipeline_lose_nothing() {
    let folder = Folder::new();
    for (policy, answers_promised) in
        [("deferred", true), ("optimistic", true), ("sender-based", false), ("causal", false)]
    {
        let record = ["--requests", "200", "--kills", "6", "--seed", "3", "--record", policy];
        let arguments = ["demo", "--topology", "pipeline", "--policy", policy, "--json"];
        let said = run(&folder, &[&arguments[..], &record].concat());
        assert_eq!(said.code, 0, "{policy}: {}\n{}", said.out, said.err);
        assert!(said.json()["power_cuts"].as_u64() > Some(0), "{}", said.out);
        let said = run(&folder, &["sim", "cuts", policy, "--points", "12", "--json"]);
        assert_eq!(said.code, 0, "{policy}: {}{}", said.out, said.err);
        let report = said.json();
        assert_eq!((&report["violations"], &report["points"]), (&0.into(), &12.into()), "{report}");
        assert_eq!(report["answers_promised"], answers_promised, "{report}");
        assert_eq!(report["asked"].as_u64() > Some(100), answers_promised, "{report}");
    }
}

#[test]
fn a_pipeline_that_leaves_out_syncs_is_found_out() {
    let folder = Folder::new();
    for policy in ["deferred", "optimistic"] {
        let arguments = ["demo", "--topology", "pipeline", "--policy", policy, "--requests", "100", "--json"];
        let record = ["--kills", "0", "--record", policy, "--skip-syncs", "40..60"];
        let said = run(&folder, &[&arguments[..], &record].concat());
        assert_eq!(said.code, 0, "without a power cut nobody sees it: {}{}", said.out, said.err);
        let said = run(&folder, &["sim", "cuts", policy, "--points", "400"]);
        assert_eq!(said.code, 1, "{policy}: {}{}", said.out, said.err);
        assert!(said.out.contains("VIOLATION"), "{}", said.out);
    }
}

#[test]
fn when_more_crash_than_a_policy_survives_it_is_said_and_nothing_else_is_lost() {
    let folder = Folder::new();
    let beyond = ["demo", "--topology", "pipeline", "--beyond", "--json", "--policy"];
    let small = ["--requests", "400", "--kills", "2", "--seed", "5"];
    for policy in ["sender-based", "hybrid"] {
        let said = run(&folder, &[&beyond[..], &[policy], &small].concat());
        assert_eq!(said.code, 0, "{policy}: {}\n{}", said.out, said.err);
        let report = said.json();
        assert_eq!((&report["kills"], &report["lost_in_silence"]), (&2.into(), &0.into()), "{report}");
        assert_eq!(report["crashed"].as_array().map(Vec::len), Some(2), "{report}");
        assert!(report["losses"].as_array().is_some_and(|losses| !losses.is_empty()), "{report}");
        assert_eq!(report["went_on"], true, "{report}");
        assert_eq!((&report["doubled"], &report["missing"]), (&0.into(), &0.into()), "{report}");
        assert!(report["answers_repeated"].as_u64() >= Some(400), "{report}");
    }
    let said = run(&folder, &[&beyond[..], &["deferred"], &small].concat());
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("survives any number"), "{}", said.err);
}
