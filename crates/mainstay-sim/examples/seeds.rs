//! Runs seeds without the command line: `seeds MACHINE FROM TO [RULE]`, or `seeds MACHINE trace SEED`.

use mainstay_sim::run::{SimOptions, run, trace};
use mainstay_types::rules::Rule;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let machine = arguments[0].parse().expect("a machine");
    let number = |place: usize| arguments[place].parse::<u64>().expect("a number");
    if arguments[1] == "trace" {
        let broken =
            arguments.get(3).and_then(|name| Rule::ALL.into_iter().find(|rule| rule.broken_name() == name));
        let (lines, violation) = trace(machine, number(2), broken);
        for line in lines {
            println!("{line}");
        }
        println!("{violation:#?}");
        return;
    }
    let broken =
        arguments.get(3).and_then(|name| Rule::ALL.into_iter().find(|rule| rule.broken_name() == name));
    let twice = arguments.get(3).is_some_and(|word| word == "twice");
    let options = SimOptions { machine, seeds: number(1)..number(2), twice, broken };
    let report = run(&options, &mut |_| {});
    println!("{}", serde_json::to_string_pretty(&report).expect("a report is JSON"));
}
