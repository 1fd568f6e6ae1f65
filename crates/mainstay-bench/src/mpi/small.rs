//! What is added to a small message, at its sender and at its receiver, beside a bare copy of it.

use super::launch::{Arm, Launcher, Program};
use super::{MpiError, Setting};
use crate::report::{self, Bound, Figure, Report, Samples, Target, number};

/// The name of the figure.
pub(super) const NAME: &str = "small-messages";

const LOADS: &str = include_str!("loads.c");

const SIZES: [u64; 3] = [8, 64, 512];

/// The size of which something is promised.
const PROMISED_BYTES: u64 = 64;

/// What may be added, in nanoseconds.
const ADDED_NS_MAX: f64 = 150.0;

const ARMS: [Arm; 3] = [Arm::Base, Arm::pages(0), Arm::pages(3)];

const ENDS: [&str; 2] = ["send", "receive"];

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), MpiError> {
    let launcher = Launcher::new(setting.given, setting.directory)?;
    let loads = launcher.compile("loads.c", LOADS)?.display().to_string();
    let repeats = setting.choose(3, report::PAIRS_MIN);
    let (mut arms, mut notes) = (Vec::new(), Vec::new());
    for bytes in SIZES {
        let program = Program {
            name: format!("small messages of {bytes} B"),
            words: vec![loads.clone(), "small".to_owned(), bytes.to_string()],
            ranks: 2,
            folder: setting.directory.to_owned(),
        };
        let mut sampled = vec![[Samples::default(), Samples::default()]; ARMS.len()];
        let mut copies = Samples::default();
        for repeat in 0..repeats {
            for place in 0..ARMS.len() {
                let arm = (place + repeat) % ARMS.len();
                let printed = launcher.run(&program, &ARMS[arm])?.printed;
                for (end, samples) in ENDS.iter().zip(&mut sampled[arm]) {
                    samples.push(said(&printed, end, &program)?);
                }
                copies.push(said(&printed, "memcpy", &program)?);
            }
        }
        for (place, end) in ENDS.iter().enumerate() {
            let base = sampled[0][place].clone();
            for (arm, samples) in ARMS.iter().zip(&sampled) {
                let samples = samples[place].clone();
                arms.push(arm_of(format!("{end}, {}", arm.name()), bytes, samples));
            }
            let mut added = Samples::default();
            let pairs = sampled[1][place].values().iter().zip(base.values());
            added.extend(pairs.map(|(recorded, base)| recorded - base));
            let (median, low, high) = super::tables::interval(&added);
            let spread = low.zip(high).map_or_else(String::new, |(low, high)| {
                format!(" (95 %: {} to {})", number(low), number(high))
            });
            notes.push(format!(
                "{end} of {bytes} B: {} ns added by buffering{spread}, a bare memcpy takes {} ns",
                number(median),
                number(copies.median())
            ));
            if bytes == PROMISED_BYTES {
                let name = format!("added to one {end} of {bytes} B, buffering only");
                report.targets.push(Target::new(name, median, Bound::AtMost, ADDED_NS_MAX, "ns", None));
            }
        }
        arms.push(arm_of("bare memcpy".to_owned(), bytes, copies));
    }
    report.figures.push(Figure {
        name: NAME,
        meaning:
            "one MPI_Send, and one MPI_Recv of what has arrived: median of batches of 64, one value a run"
                .to_owned(),
        arms,
        notes,
    });
    Ok(())
}

fn said(printed: &str, what: &str, program: &Program) -> Result<f64, MpiError> {
    let line = printed.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).ok_or_else(|| MpiError::Program {
        program: program.name.clone(),
        arm: what.to_owned(),
        what: format!("printed `{printed}`"),
    })
}

fn arm_of(name: String, bytes: u64, samples: Samples) -> report::Arm {
    report::Arm {
        name,
        level: None,
        window: 1,
        payload_bytes: bytes,
        unit: "ns",
        operations: samples.values().len() as u64,
        cpu_ns_per_operation: None,
        disk: None,
        samples,
    }
}
