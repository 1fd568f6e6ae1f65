//! `mainstay status`.

use crate::served::{Workplace, printed};
use crate::trial;
use libtest_mimic::Trial;
use serde_json::Value;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("status_counts_what_a_recovery_would_replay", status_counts_what_a_recovery_would_replay)]
}

fn status_counts_what_a_recovery_would_replay() {
    let place = Workplace::new();
    let served = place.start("1", None);
    for number in 0..100 {
        served.deposit(&format!("k{number}"), 1);
    }
    let status = |service: &str| -> Value {
        let output = place.mainstay(&["status", service, "--json"]);
        serde_json::from_str(&printed(&output, 0)).expect("it prints JSON")
    };
    let running = status(&served.url);
    assert_eq!((&running["status"], &running["service"]), (&"running".into(), &"saver".into()));
    assert_eq!((&running["level"], &running["policy"]), (&"disk".into(), &"deferred".into()));
    assert_eq!((&running["deliveries"], &running["recovery"]["deliveries"]), (&100.into(), &100.into()));
    assert_eq!(running["checkpoint"], Value::Null);
    assert_eq!(running["recovery"]["basis"], "this-life");
    assert!(running["recovery"]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{running}");
    let metrics = served.get("/metrics");
    assert!(metrics.contains("\nmainstay_recovery_deliveries 100\n"), "{metrics}");
    let by_directory = status("DIR");
    assert_eq!((&by_directory["status"], &by_directory["deliveries"]), (&"running".into(), &100.into()));
    let words = printed(&place.mainstay(&["status", &served.url]), 0);
    assert!(words.contains("if it died now: 100 deliveries"), "{words}");
    served.kill();
    let killed = status("DIR");
    assert_eq!((&killed["status"], &killed["version"]), (&"killed".into(), &1.into()));
    assert_eq!((&killed["deliveries"], &killed["recovery"]["deliveries"]), (&100.into(), &100.into()));
    assert_eq!(killed["recovery"]["bytes"], running["recovery"]["bytes"]);
    let served = place.start("1", None);
    let recovered = status(&served.url);
    assert_eq!(recovered["recovery"]["basis"], "last-replay");
    assert!(recovered["recovery"]["opening_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    served.stop();
    let stopped = status("DIR");
    assert_eq!((&stopped["status"], &stopped["recovery"]["deliveries"]), (&"stopped".into(), &0.into()));
    let words = printed(&place.mainstay(&["status", "DIR"]), 0);
    assert!(words.contains("a start replays 0 deliveries"), "{words}");
}
