//! `mainstay sim`: exit codes and figures; what it finds is tested where it lives.

use crate::harness::{Folder, mainstay, run};
use std::io::Read;
use std::process::Stdio;

#[test]
fn a_few_seeds_run_twice_give_figures_and_no_violation() {
    let folder = Folder::new();
    for machine in ["process", "journal"] {
        let said = run(&folder, &["sim", "--machine", machine, "--seeds", "3..9", "--twice", "--json"]);
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        let report = said.json();
        assert_eq!((&report["seeds"], &report["violations"]), (&6.into(), &0.into()), "{report}");
        assert!(report["first_violation"].is_null(), "{report}");
        for figure in ["steps", "crashes"] {
            assert!(report[figure].as_u64() > Some(0), "{report}");
        }
        assert!(report["reached"].as_object().is_some_and(|reached| !reached.is_empty()), "{report}");
    }
}

#[test]
fn every_broken_rule_that_is_listed_can_be_named_and_its_violation_is_exit_code_1() {
    let folder = Folder::new();
    let list = run(&folder, &["sim", "--list", "--json"]).json();
    let rules = list["rules"].as_array().expect("a list").clone();
    assert!(rules.len() >= 8, "{list}");
    for listed in rules.iter().chain(list["machines"].as_array().expect("a list")) {
        assert!(listed["source"].as_str().is_some_and(|source| !source.is_empty()), "{listed}");
    }
    for listed in rules {
        let rule = listed["name"].as_str().expect("a rule has a name");
        let said = run(&folder, &["sim", "--seeds", "0..1000", "--break", rule, "--json"]);
        assert_eq!(said.code, 1, "{rule}: {}{}", said.out, said.err);
        let violation = &said.json()["first_violation"];
        let seed = violation["seed"].to_string();
        let again = run(&folder, &["sim", "--seed", &seed, "--break", rule, "--json"]);
        assert_eq!(&again.json()["first_violation"], violation, "{rule}");
        let trace = run(&folder, &["sim", "--seed", &seed, "--break", rule, "--trace"]);
        assert_eq!(trace.code, 1);
        assert!(trace.out.lines().count() > 1 && trace.out.contains("VIOLATION"), "{}", trace.out);
    }
}

#[test]
fn seeds_rules_and_machines_that_are_none_are_usage_errors() {
    let folder = Folder::new();
    for arguments in [
        &["sim", "--seeds", "9..3"][..],
        &["sim", "--seeds", "9"],
        &["sim", "--seed", "-1"],
        &["sim", "--seed", "1", "--seeds", "0..3"],
        &["sim", "--break", "nothing"],
        &["sim", "--machine", "perpetuum-mobile"],
        &["sim", "--trace"],
    ] {
        let said = run(&folder, arguments);
        assert_eq!(said.code, 2, "{arguments:?}: {}{}", said.out, said.err);
    }
}

#[test]
fn a_pipe_that_nobody_reads_ends_it_without_a_word() {
    let folder = Folder::new();
    for arguments in [&["sim", "--list"][..], &["sim", "--seed", "1", "--json"]] {
        let (unread, output) = std::io::pipe().expect("a pipe can be made");
        drop(unread);
        let child = mainstay(&folder).args(arguments).stdout(output).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let mut said = String::new();
        child.stderr.take().expect("it is a pipe").read_to_string(&mut said).expect("it is text");
        let status = child.wait().expect("it ends");
        assert!(!status.success() && said.is_empty(), "{status}: {said}");
    }
}
