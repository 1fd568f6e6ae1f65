//! Runs seeds without the command line: `seeds MACHINE FROM TO [RULE | twice]`, `seeds MACHINE trace SEED [RULE]`, or
//! `seeds MACHINE all FROM TO`, which names every violation.

use mainstay_sim::run::{SimOptions, run, trace};
use mainstay_types::rules::Rule;
use std::num::NonZeroU64;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let machine = arguments[0].parse().expect("a machine");
    let number = |place: usize| arguments[place].parse::<u64>().expect("a number");
    let last = arguments.get(3).map_or("", String::as_str);
    let broken = Rule::ALL.into_iter().find(|rule| rule.broken_name() == last);
    match arguments[1].as_str() {
        "trace" => {
            let (lines, violation) = trace(machine, number(2), broken);
            lines.iter().for_each(|line| println!("{line}"));
            println!("{violation:#?}");
        }
        "all" => {
            for seed in number(2)..number(3) {
                let options = SimOptions { machine, seeds: seed..seed + 1, twice_every: None, broken: None };
                if let Some(violation) = run(&options, &mut |_| {}).first_violation {
                    println!("{violation}");
                }
            }
        }
        _ => {
            let options = SimOptions {
                machine,
                seeds: number(1)..number(2),
                twice_every: (last == "twice").then_some(NonZeroU64::MIN),
                broken,
            };
            let report = run(&options, &mut |_| {});
            println!("{}", serde_json::to_string_pretty(&report).expect("a report is JSON"));
        }
    }
}
