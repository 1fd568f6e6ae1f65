//! `SERVICE replay DIRECTORY`.

use crate::served::{Workplace, printed, text};
use crate::trial;
use libtest_mimic::Trial;
use mainstay::replay::line::{Delivered, Line};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "a_replay_shows_every_delivery_and_changes_nothing",
            a_replay_shows_every_delivery_and_changes_nothing,
        ),
        trial("a_replay_begins_and_stops_where_asked", a_replay_begins_and_stops_where_asked),
        trial(
            "another_version_replays_only_when_told_to_go_on",
            another_version_replays_only_when_told_to_go_on,
        ),
        trial("a_replay_of_what_is_not_there_says_so", a_replay_of_what_is_not_there_says_so),
        // Named among the ignored where there is no gdb.
        trial("a_debugger_stops_in_a_handler", a_debugger_stops_in_a_handler).with_ignored_flag(!has_gdb()),
    ]
}

/// The lines of `replay --json`.
fn lines(place: &Workplace, version: &str, flags: &[&str], code: i32) -> Vec<Line> {
    let directory = place.directory();
    let arguments = [&["replay", text(&directory), "--json"], flags].concat();
    let output = printed(&place.run(version, &arguments), code);
    output.lines().map(|line| serde_json::from_str(line).expect("a line of a replay")).collect()
}

fn answers(lines: &[Line]) -> Vec<(u64, String)> {
    let answer = |line: &Line| match line {
        Line::Delivery(replayed) => {
            let answer = replayed.did.answer.as_ref().expect("every request is answered at once");
            Some((replayed.lsn, answer.body.to_string()))
        }
        _ => None,
    };
    lines.iter().filter_map(answer).collect()
}

fn a_replay_shows_every_delivery_and_changes_nothing() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.send("k1", &crate::saver::Deposit { amount: 5, notice: true });
    served.deposit("k2", 6);
    // Also while it is served.
    assert_eq!(answers(&lines(&place, "1", &[], 0)).len(), 2);
    served.kill();
    let before = place.picture();
    let shown = lines(&place, "1", &[], 0);
    let [Line::Begin(begin), Line::Delivery(first), Line::Delivery(second), Line::End(end)] = &shown[..]
    else {
        panic!("{shown:?}")
    };
    assert_eq!((begin.service.as_str(), begin.version, begin.checkpoint), ("saver", 1, None));
    let Delivered::Request { identity, body } = &first.delivered else { panic!("{first:?}") };
    assert_eq!(identity.as_deref(), Some("key k1"));
    assert_eq!(body.to_string(), r#"{"amount":5,"notice":true}"#);
    assert_eq!(first.did.outputs[0].body.to_string(), r#"{"amount":5,"by":1}"#);
    assert_eq!(
        (first.as_recorded, second.as_recorded),
        (Some(true), Some(true)),
        "the ring outlives kill -9, and what the second did stands there"
    );
    assert_eq!((end.deliveries, end.differ, end.stopped, end.writer), (2, 0, false, None));
    let directory = place.directory();
    let words = printed(&place.run("1", &["replay", text(&directory)]), 0);
    for expected in [
        "request, key k1",
        "answer 200: 5",
        "to notices: {\"amount\":5,\"by\":1}",
        "2 deliveries replayed: all as recorded",
    ] {
        assert!(words.contains(expected), "`{expected}` is missing in:\n{words}");
    }
    let with = place.mainstay(&["replay", "DIR", "--with", "saver-1"]);
    assert_eq!(printed(&with, 0), words, "`mainstay replay --with` is the binary's own replay");
    assert_eq!(place.picture(), before, "the directory was changed");
}

fn a_replay_begins_and_stops_where_asked() {
    let place = Workplace::new();
    let served = place.start("1", None);
    for number in 1..=4 {
        served.deposit(&format!("k{number}"), number);
    }
    served.kill();
    let all = answers(&lines(&place, "1", &[], 0));
    assert_eq!(all.iter().map(|(_, total)| total.as_str()).collect::<Vec<_>>(), ["1", "3", "6", "10"]);
    let (second, third) = (all[1].0.to_string(), all[2].0.to_string());
    let between = lines(&place, "1", &["--from", &second, "--until", &third], 0);
    assert_eq!(answers(&between), all[1..3]);
    let Some(Line::End(end)) = between.last() else { panic!("{between:?}") };
    assert!(end.stopped, "{end:?}");
    // Step by step: two, then no more.
    let directory = place.directory();
    let mut stepping = std::process::Command::new(place.program("1"))
        .args(["replay", text(&directory), "--from", "0", "--step"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program can be started");
    std::io::Write::write_all(&mut stepping.stdin.take().expect("it is piped"), b"2\nq\n").expect("it reads");
    let stepped = printed(&stepping.wait_with_output().expect("it ends"), 0);
    assert_eq!(stepped.matches("    answer 200").count(), 2, "{stepped}");
    assert!(stepped.contains("delivery 3  "), "the third was shown and not executed:\n{stepped}");
    begins_with_a_checkpoint(&place);
}

/// Two checkpoints are kept; what lies before the older one is gone.
fn begins_with_a_checkpoint(place: &Workplace) {
    place.start("1", None).stop();
    let [Line::Begin(older), Line::End(end)] = &lines(place, "1", &[], 0)[..] else {
        panic!("a clean stop leaves nothing to replay")
    };
    assert_eq!(end.deliveries, 0);
    let served = place.start("1", None);
    served.deposit("k5", 5);
    served.stop();
    let served = place.start("1", None);
    served.deposit("k6", 6);
    served.kill();
    assert_eq!(answers(&lines(place, "1", &[], 0)).len(), 1, "the newest checkpoint knows the fifth");
    let older = older.checkpoint.expect("it was stopped cleanly").to_string();
    assert_eq!(answers(&lines(place, "1", &["--from", &older], 0)).len(), 2);
    let too_early = place.run("1", &["replay", text(&place.directory()), "--from", "0"]);
    assert!(
        String::from_utf8_lossy(&too_early.stderr).contains("the history before is gone"),
        "{too_early:?}"
    );
}

fn another_version_replays_only_when_told_to_go_on() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 100);
    served.deposit("k2", 1);
    served.kill();
    let directory = place.directory();
    let refused = place.run("generous", &["replay", text(&directory)]);
    printed(&refused, 1);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("was made by version 1 of the handler, this is version 2"), "{complaint}");
    let shown = lines(&place, "generous", &["--go-on"], 1);
    let Line::Delivery(first) = &shown[1] else { panic!("{shown:?}") };
    assert_eq!((first.version, first.as_recorded), (Some(1), Some(false)));
    assert_eq!(answers(&shown)[1].1, "102", "it goes on from what it did itself");
}

fn has_gdb() -> bool {
    std::process::Command::new("gdb").arg("--version").output().is_ok_and(|said| said.status.success())
}

fn a_debugger_stops_in_a_handler() {
    let place = Workplace::new();
    let served = place.start("1", None);
    served.deposit("k1", 5);
    served.kill();
    // A debugger starts what a link leads to, under its own name.
    let program = place.program("1");
    std::fs::remove_file(&program).expect("it is a link");
    std::fs::copy(std::env::current_exe().expect("it runs"), &program).expect("there is room");
    let directory = place.directory();
    // By its line, which every profile of the build keeps.
    let source = include_str!("saver.rs");
    let line =
        1 + source.lines().position(|line| line.contains("if deposit.notice {")).expect("it is in tell");
    let debugged = std::process::Command::new("gdb")
        .args(["-nx", "-batch", "-ex", &format!("break saver.rs:{line}"), "-ex", "run", "-ex", "backtrace"])
        .arg("--args")
        .arg(&program)
        .args(["replay", text(&directory)])
        .env_remove("DEBUGINFOD_URLS")
        .output()
        .expect("it was there a moment ago");
    let said = String::from_utf8_lossy(&debugged.stdout);
    assert!(said.contains("Breakpoint 1, ") && said.contains("tell"), "{debugged:?}");
    assert!(said.contains("retrace"), "below it lies the replay: {said}");
}

fn a_replay_of_what_is_not_there_says_so() {
    let place = Workplace::new();
    let nothing = place.run("1", &["replay", "nowhere"]);
    assert_eq!(nothing.status.code(), Some(3), "{nothing:?}");
    std::fs::create_dir(place.directory()).expect("there is room");
    let empty = place.mainstay(&["replay", "DIR"]);
    assert!(String::from_utf8_lossy(&empty.stderr).contains("there is no journal here"), "{empty:?}");
    assert_eq!(std::fs::read_dir(place.directory()).expect("it is there").count(), 0, "something was made");
}
