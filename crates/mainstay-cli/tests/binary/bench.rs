//! `mainstay bench`: the figures that are promised are there, whatever they are; nothing is left behind.

use crate::harness::{Folder, run};

#[test]
fn logging_measures_every_policy_beside_none_and_bare_sockets() {
    let folder = Folder::new();
    let said =
        run(&folder, &["bench", "logging", "--quick", "--json", "--only", "stream", "--plot", "stream.svg"]);
    // 1: a target is missed, which on a machine that runs tests says nothing.
    assert!([0, 1].contains(&said.code), "{}\n{}", said.out, said.err);
    let report = said.json();
    let arms = report["figures"][0]["arms"].as_array().expect("a list of arms");
    let names: Vec<_> = arms.iter().map(|arm| arm["name"].as_str().expect("text")).collect();
    for wanted in ["bare TCP", "none", "deferred", "sender-based", "hybrid", "causal", "optimistic"] {
        assert!(names.contains(&wanted), "{wanted} is not among {names:?}");
    }
    for arm in arms {
        let samples = arm["samples"].as_array().expect("raw samples");
        assert_eq!(arm["operations"].as_u64(), Some(samples.len() as u64), "{arm}");
        assert!(samples.iter().all(|sample| sample.as_f64() >= Some(0.0)), "{}", arm["name"]);
    }
    assert!(report["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{report}");
    let picture = std::fs::read_to_string(folder.path("stream.svg")).expect("it was drawn");
    assert!(picture.contains("sender-based, process") && picture.ends_with("</svg>\n"), "{picture}");
    assert_eq!(std::fs::read_dir(folder.path("")).expect("a folder").count(), 1, "only the picture is left");
}

#[test]
fn patterns_take_as_many_hops_as_the_model_says() {
    let folder = Folder::new();
    let arguments = [
        "bench",
        "patterns",
        "--quick",
        "--json",
        "--only",
        "link delay",
        "--link-delay-us",
        "5000",
        "--plot",
        "hops.svg",
    ];
    let said = run(&folder, &arguments);
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report = said.json();
    let arms = report["figures"][0]["arms"].as_array().expect("a list of arms");
    assert_eq!(arms.len(), 7, "{report}");
    for (arm, row) in arms.iter().zip(report["tables"][0]["rows"].as_array().expect("a list of rows")) {
        let hops: f64 = row[2].as_str().and_then(|hops| hops.parse().ok()).expect("a number");
        let least =
            arm["samples"].as_array().expect("raw samples").iter().filter_map(serde_json::Value::as_f64);
        // Every hop is held back for 5 ms, however slow or fast the machine is.
        assert!(least.fold(f64::MAX, f64::min) >= hops * 5000.0, "{arm}");
    }
    let picture = std::fs::read_to_string(folder.path("hops.svg")).expect("it was drawn");
    assert!(picture.contains("one-hop-client"), "{picture}");
    assert_eq!(std::fs::read_dir(folder.path("")).expect("a folder").count(), 1, "only the picture is left");
}

#[test]
fn logging_cost_measures_every_way_at_both_ends() {
    let folder = Folder::new();
    let said = run(
        &folder,
        &["bench", "logging-cost", "--quick", "--json", "--only", "latency", "--plot", "cost.svg"],
    );
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report = said.json();
    let figures = report["figures"].as_array().expect("a list of figures");
    let arms: Vec<_> =
        figures.iter().map(|figure| figure["arms"].as_array().expect("a list").len()).collect();
    // Five ways of logging, and none at the client, by five sizes.
    assert_eq!(arms, [25, 30]);
    let picture = std::fs::read_to_string(folder.path("cost.svg")).expect("it was drawn");
    assert!(picture.contains("journal, disk") && picture.contains("100000 B"), "{picture}");
    let nowhere = run(&folder, &["bench", "logging-cost", "--plot", "missing/cost.svg"]);
    assert_eq!(nowhere.code, 3, "{}", nowhere.err);
    assert!(nowhere.err.contains("missing/cost.svg"), "{}", nowhere.err);
}
