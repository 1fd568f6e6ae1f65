//! `mainstay serve`: the same request before and after a kill -9, clean stops, flags.

use crate::harness::{Folder, Service, first_line, mainstay, post, run};
use std::process::Stdio;

const OPEN: &str = r#"{"open":{"account":"ann"}}"#;
const DEPOSIT: &str = r#"{"deposit":{"account":"ann","amount":500}}"#;

#[test]
fn the_same_request_after_a_kill_gets_the_same_answer_and_takes_effect_once() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    service.call("1", OPEN);
    let first = service.call("2", DEPOSIT);
    assert_eq!((first.status, first.replayed), (200, false));
    service.kill();

    let service = Service::start(&folder, "ledger", &[]);
    let again = service.call("2", DEPOSIT);
    assert_eq!((again.status, again.replayed, &again.body), (200, true, &first.body));
    let view = service.view();
    assert_eq!(view["operations"], 2);
    assert_eq!(view["accounts"][0]["balance"], 500);
}

#[test]
fn kill_after_kill_at_level_process_loses_nothing_acknowledged() {
    let folder = Folder::new();
    for round in 0..4 {
        let service = Service::start(&folder, "ledger", &["--level", "process"]);
        for number in 0..20 {
            let answered = service.call(&format!("{round}-{number}"), OPEN);
            assert_eq!(answered.json()["operation"], round * 20 + number + 1);
        }
        service.kill();
    }
}

#[test]
fn a_clean_stop_seals_the_journal_and_nothing_is_replayed_after_it() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    service.call("1", OPEN);
    let view = service.view();
    assert_eq!(service.stop(), 0);
    let stat = run(&folder, &["journal", "stat", "ledger", "--json"]).json();
    assert_eq!(stat["sealed"], true, "{stat}");

    let service = Service::start(&folder, "ledger", &[]);
    assert_eq!(service.view(), view);
    assert!(service.call("1", OPEN).replayed);
    let metrics = ureq::get(format!("{}/metrics", service.url)).call().expect("metrics are always there");
    let metrics = metrics.into_body().read_to_string().expect("metrics are text");
    assert!(metrics.contains("\nmainstay_replayed_total 0\n"), "{metrics}");
}

#[test]
fn notices_are_written_to_the_default_files_exactly_once_across_a_kill() {
    let folder = Folder::new();
    let service = Service::start(&folder, "ledger", &[]);
    service.call("1", OPEN);
    for number in 0..10 {
        service.call(&format!("d{number}"), DEPOSIT);
    }
    service.kill();
    let service = Service::start(&folder, "ledger", &[]);
    service.call("last", DEPOSIT);
    assert_eq!(service.stop(), 0);
    for port in ["notify-once", "notify-again"] {
        let text =
            std::fs::read_to_string(folder.path(&format!("ledger.{port}.jsonl"))).expect("the file is there");
        let operations: Vec<u64> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line is JSON"))
            .map(|notice| notice["operation"].as_u64().expect("a notice names its operation"))
            .collect();
        assert_eq!(operations, (2..=12).collect::<Vec<u64>>(), "{port}");
    }
}

#[test]
fn the_first_line_says_where_it_listens_and_what_it_promises() {
    let folder = Folder::new();
    let mut service = mainstay(&folder)
        .args(["serve", "--dir", "ledger", "--listen", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let line = first_line(service.stderr.take().expect("it is piped"));
    let url =
        line.split_whitespace().find(|word| word.starts_with("http://")).map(|url| url.trim_end_matches(','));
    let answered = url.map(|url| post(&format!("{url}/query"), &[], b"").status);
    service.kill().expect("a child can be killed");
    service.wait().expect("a child can be waited for");
    assert_eq!(answered, Some(200), "{line}");
    assert!(line.contains("level disk"), "{line}");
}
