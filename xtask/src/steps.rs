//! Which steps there are: a table, no logic.

use crate::campaign::{Found, Need, Program, Step};
use std::num::NonZero;
use std::path::Path;
use std::thread;

/// How much the campaigns of `full` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Simulated seeds, all machines together.
    seeds: u64,
    /// Requests and kills of the demo.
    demo: (u64, u64),
    /// Requests and kills of the demo that is recorded.
    recorded: (u64, u64),
    /// Points of its recording at which the power is cut, at most.
    cut_points: u64,
    /// The test that flips bytes of a journal's files.
    flips: (&'static str, &'static str),
    /// Each benchmark with what is added to its command.
    bench: [(&'static str, &'static [&'static str]); 7],
    /// What is added to the command that measures peers.
    peers: &'static [&'static str],
    /// Time for each fuzz target, in seconds.
    fuzz_seconds: u64,
}

impl Scale {
    /// What stands in the documentation.
    pub const WHOLE: Self = Self {
        seeds: 200_000,
        demo: (40_000, 200),
        recorded: (2_000, 20),
        cut_points: 2_000,
        flips: (
            "every byte of a journal flipped",
            "no_flipped_byte_gives_a_wrong_record_or_hides_a_durable_one",
        ),
        bench: [
            ("journal", &[]),
            ("step", &[]),
            ("logging", &[]),
            ("logging-cost", &[]),
            ("transport", &[]),
            ("patterns", &[]),
            ("mpi", &[]),
        ],
        peers: &[],
        fuzz_seconds: 300,
    };

    /// The same steps with so little to do that they show only that they can be run.
    pub const SMALL: Self = Self {
        seeds: 4_000,
        demo: (400, 8),
        recorded: (200, 2),
        cut_points: 20,
        flips: (
            "every 97th byte of a journal flipped",
            "a_flipped_byte_never_gives_a_wrong_record_and_never_hides_a_durable_one",
        ),
        bench: [
            ("journal", &["--quick", "--only", "append"]),
            ("step", &["--quick", "--only", "memory"]),
            ("logging", &["--quick", "--only", "ping-pong"]),
            ("logging-cost", &["--quick", "--only", "latency"]),
            ("transport", &["--quick", "--only", "stream"]),
            ("patterns", &["--quick", "--only", "link delay"]),
            ("mpi", &["--quick", "--only", "small"]),
        ],
        peers: &["--quick"],
        fuzz_seconds: 5,
    };
}

/// Without tests: a minute after the first time.
#[must_use]
pub fn check() -> Vec<Step> {
    // All steps share the release profile, so that nothing is compiled twice.
    let lints = "clippy --release --workspace --all-targets --locked --quiet -- --deny warnings";
    vec![
        cargo("format", "fmt --all --check"),
        Step::new("structure", Program::Xtask, &["check-structure"]),
        cargo("lints", lints),
        // They are a workspace of their own. Nothing is linked, so libFuzzer need not be there, nor the C++ compiler that builds it.
        cargo(
            "fuzz targets",
            "check --release --manifest-path fuzz/Cargo.toml --target-dir target --locked --quiet",
        )
        .with("CUSTOM_LIBFUZZER_PATH", "target/libfuzzer.a"),
    ]
}

/// What CI runs.
#[must_use]
pub fn test() -> Vec<Step> {
    let mut steps = short_of_simulation();
    steps.push(Step::new("simulation, 10,000 seeds of each machine", Program::Xtask, &["simulate", "10000"]));
    steps
}

/// What CI runs with a longer simulation, then the campaigns that take longer, the benchmarks, and what needs tools that
/// are not set up everywhere. What is recorded goes into the folder `scratch`; `fuzz_targets` are names.
#[must_use]
pub fn full(scale: &Scale, scratch: &Path, fuzz_targets: &[String]) -> Vec<Step> {
    let mut steps = short_of_simulation();
    let seeds = scale.seeds.to_string();
    steps.push(Step::new(
        format!("simulation, {} seeds split over the machines", thousands(scale.seeds)),
        Program::Xtask,
        &["simulate", &seeds, "--split"],
    ));
    let (flipped, test) = scale.flips;
    steps.push(cargo(
        format!("{flipped}, both backends"),
        &format!(
            "test --release --locked --package mainstay-disk --test journal_on_files -- --include-ignored --exact {test}"
        ),
    ));

    steps.push(cargo(
        "real MPI programs, each rank replayed alone",
        "test --release --locked --package mainstay-mpi --test programs every_rank_of -- --ignored --show-output",
    ));

    let (requests, kills) = (scale.demo.0.to_string(), scale.demo.1.to_string());
    let audit = Found::Figures(&["requests", "kills", "lost", "doubled", "outputs_lost", "outputs_doubled"]);
    let demo = ["demo", "--requests", &requests, "--kills", &kills, "--seed", "7", "--json"];
    steps.push(Step::new(format!("demo, {kills} kills"), Program::Mainstay, &demo).found(audit));

    let recording = scratch.join("demo.recording").display().to_string();
    let (requests, kills) = (scale.recorded.0.to_string(), scale.recorded.1.to_string());
    let demo = ["demo", "--requests", &requests, "--kills", &kills, "--record", &recording, "--json"];
    steps
        .push(Step::new("demo, recorded", Program::Mainstay, &demo).found(audit).making((&recording).into()));
    let points = scale.cut_points.to_string();
    let cuts = Found::Figures(&["acknowledgements", "points", "images", "asked", "violations"]);
    steps.push(
        Step::new(
            "power cuts of the recorded demo",
            Program::Mainstay,
            &["sim", "cuts", &recording, "--points", &points, "--json"],
        )
        .found(cuts),
    );

    for (bench, added) in scale.bench {
        let arguments = [&["bench", bench, "--json"], added].concat();
        let step = Step::new(format!("bench {bench}"), Program::Mainstay, &arguments);
        steps.push(step.found(Found::Targets));
    }

    for target in fuzz_targets {
        let seconds = format!("-max_total_time={}", scale.fuzz_seconds);
        steps.push(
            Step::new(
                format!("fuzz {target}, {} s", scale.fuzz_seconds),
                Program::Rustup,
                &["run", "nightly", "cargo", "fuzz", "run", target, "--", &seconds],
            )
            .needing(Need {
                arguments: &["run", "nightly", "cargo", "fuzz", "--version"],
                remedy: "needs rustup's nightly and `cargo install cargo-fuzz`",
            })
            .in_folder("fuzz"),
        );
    }
    steps.push(
        cargo("advisories and licences", "deny check")
            .needing(Need { arguments: &["deny", "--version"], remedy: "needs `cargo install cargo-deny`" }),
    );
    let beside = [&["peers/beside-ours.sh", "--json"], scale.peers].concat();
    let java = Need {
        arguments: &["-c", "command -v javac && command -v mvn"],
        remedy: "needs a JDK (17) and Maven, and the registry that its settings name",
    };
    steps.push(Step::new("peers beside ours", Program::Bash, &beside).needing(java).found(Found::Targets));
    steps
}

fn short_of_simulation() -> Vec<Step> {
    let mut steps = check();
    // Most of the longer ones wait: for a process to come back, for a node to be missed.
    let threads = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    steps.push(cargo(
        "tests",
        &format!(
            "test --release --workspace --locked --no-fail-fast -- --show-output --test-threads {threads}"
        ),
    ));
    // The comments of flags are help texts as well, where `<name>` is a placeholder and needs no backticks. The pages are for
    // contributors, too, who may follow a link to a private item.
    let flags = "--deny warnings --allow rustdoc::invalid-html-tags --allow rustdoc::private-intra-doc-links";
    let documentation = cargo("documentation", "doc --release --workspace --no-deps --locked --quiet");
    steps.push(documentation.with("RUSTDOCFLAGS", flags));
    steps
}

/// A step of cargo; its arguments, none of which has a space, in one text.
fn cargo(name: impl Into<String>, arguments: &str) -> Step {
    Step::new(name, Program::Cargo, &arguments.split(' ').collect::<Vec<_>>())
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_whole_are_the_same_steps() {
        let targets = ["headers".to_owned()];
        let programs = |scale| {
            let steps = full(&scale, Path::new("scratch"), &targets);
            steps.iter().map(|step| (step.program, step.arguments[0].clone())).collect::<Vec<_>>()
        };
        assert_eq!(programs(Scale::SMALL), programs(Scale::WHOLE));
        assert!(programs(Scale::WHOLE).len() > test().len() + 8);
        assert_eq!(thousands(200_000), "200,000");
        assert_eq!(thousands(999), "999");
    }
}
