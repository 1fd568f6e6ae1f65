//! Small campaigns: no violation, every seed the same twice, every broken rule noticed, no rare branch out of reach.

use mainstay_sim::run::{SimMachine, SimOptions, SimReport, list, run, trace};
use mainstay_types::rules::Rule;
use std::num::NonZeroU64;
use std::ops::Range;

fn campaign(machine: SimMachine, seeds: Range<u64>, twice: bool, broken: Option<Rule>) -> SimReport {
    let twice_every = twice.then_some(NonZeroU64::MIN);
    run(&SimOptions { machine, seeds, twice_every, broken }, &mut |_| {})
}

#[test]
fn no_seed_violates_a_property_and_each_gives_the_same_trace_twice() {
    for machine in SimMachine::ALL {
        let report = campaign(machine, 0..150, true, None);
        assert_eq!(report.first_violation, None);
        assert_eq!((report.seeds, report.violations), (150, 0));
        assert!(report.steps >= 150 * 500, "{} steps", report.steps);
        assert!(report.crashes >= 150 * 3, "{} crashes", report.crashes);
    }
}

#[test]
fn the_report_does_not_depend_on_which_thread_ran_a_seed() {
    let reports = [(); 2].map(|()| campaign(SimMachine::Process, 200..260, false, None));
    assert_eq!(reports[0], reports[1]);
}

#[test]
fn every_broken_rule_is_noticed() {
    for machine in SimMachine::ALL {
        for &rule in machine.rules() {
            let report = campaign(machine, 0..1000, false, Some(rule));
            let violation = report
                .first_violation
                .unwrap_or_else(|| panic!("{rule:?} is broken and no {} notices", machine.name()));
            let (lines, again) = trace(machine, violation.seed, Some(rule));
            // A panic ends a run without its trace.
            if violation.property != "asserts" {
                assert_eq!(again.as_ref(), Some(&violation), "the seed shows it again");
                assert!(lines.len() > 1, "and the trace tells how");
            }
        }
    }
}

#[test]
fn each_rule_is_shown_broken_by_some_machine() {
    for rule in Rule::ALL {
        assert!(SimMachine::ALL.iter().any(|machine| machine.rules().contains(&rule)), "{rule:?}");
    }
}

#[test]
fn no_branch_of_process_and_cluster_stays_out_of_reach() {
    for machine in [SimMachine::Process, SimMachine::Cluster, SimMachine::Beyond, SimMachine::Group] {
        let report = campaign(machine, 0..1000, false, None);
        assert_eq!(report.first_violation, None);
        let never: Vec<_> = report.reached.iter().filter(|(_, times)| **times == 0).collect();
        assert!(never.is_empty(), "never reached by {}: {never:?}", machine.name());
    }
}

/// Each line of `seeds.txt`: machine, seed, what was found with it.
#[test]
fn seeds_that_found_something_once_pass() {
    let kept = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    for line in kept {
        let mut words = line.split_whitespace();
        let machine: SimMachine = words.next().expect("a machine").parse().expect("a known machine");
        let seed: u64 = words.next().expect("a seed").parse().expect("a number");
        let report = campaign(machine, seed..seed + 1, true, None);
        assert_eq!(report.first_violation, None, "{line}");
    }
}

/// What nobody can go on from is no violation, and is told from all else: a view that let in a store, with half of the votes, whose disk was gone by then.
#[test]
fn a_group_that_waits_for_a_lost_store_is_told_from_one_that_does_not_go_on() {
    let (lines, violation) = trace(SimMachine::Group, 73_429, None);
    assert_eq!(violation, None);
    let at =
        |what: &str| lines.iter().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}"));
    let (lost, let_in) = (at("process 4 lost its store"), at("10.0.0.4:7001<v4>"));
    assert!(lost < let_in && let_in < at("waits for stores that were lost"));
}

#[test]
fn everything_listed_has_a_name_and_a_source() {
    let list = list();
    let all = [&list.machines, &list.rules, &list.properties];
    assert!(all.iter().all(|listed| !listed.is_empty()));
    for listed in all.into_iter().flatten() {
        assert!(!listed.name.is_empty() && !listed.source.is_empty(), "{listed:?}");
    }
}
