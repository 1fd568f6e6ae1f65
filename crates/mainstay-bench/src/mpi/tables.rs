//! Run times with buffering alone and with one to three pages beside the base, and how often no page was free.

use super::launch::{Arm, Launcher, Program, Run};
use super::programs::Found;
use super::{MpiError, Setting};
use crate::report::{self, Bound, Figure, Report, Samples, Table, Target, number};
use mainstay_mpi::figures::Figures;

/// The arms of the seed, the base first.
const ARMS: [Arm; 5] = [Arm::Base, Arm::pages(0), Arm::pages(1), Arm::pages(2), Arm::pages(3)];

/// The same with the recorder's own clocks on, for what they say.
const MEASURED: Arm = Arm::Pages { pages: 2, synced: false, in_memory: false, measured: true };

const TIMES: &str = "execution-times";
const FULL: &str = "buffer-full-rates";
const CLOCKS: &str = "clocks";

/// How many ranks' demand a disk can be held responsible for: the share of its rate up to which stalls are promised away.
const DEMAND_SHARE_MAX: f64 = 0.8;

/// Measures all programs that `find` finds.
pub(super) fn measure(
    setting: &Setting<'_>,
    report: &mut Report,
    find: fn(&Setting<'_>, &Launcher) -> Result<Found, MpiError>,
) -> Result<(), MpiError> {
    let launcher = Launcher::new(setting.given, setting.directory)?;
    let programs = match find(setting, &launcher)? {
        Ok(programs) => programs,
        Err(why) => {
            setting.say(&format!("left out: {why}"));
            return Ok(());
        }
    };
    let written_bytes_s = write_rate(setting)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for program in programs {
        setting.say(&program.name);
        let measured = of_program(setting, &launcher, &program)?;
        let promised = !["ring", "halo", "workers", "pool", "server", "persistent", "derived", "split"]
            .contains(&program.name.as_str())
            && program.ranks as usize <= processors;
        put(report, &program, &measured, promised, written_bytes_s);
    }
    Ok(())
}

/// All runs of one program: by arm, in the order of [`ARMS`], and one with clocks.
struct Measured {
    runs: Vec<Vec<Run>>,
    clocked: Run,
}

impl Measured {
    fn times(&self, arm: usize) -> Samples {
        let mut samples = Samples::default();
        samples.extend(self.runs[arm].iter().map(|run| run.elapsed_s));
        samples
    }
}

fn of_program(setting: &Setting<'_>, launcher: &Launcher, program: &Program) -> Result<Measured, MpiError> {
    let repeats = setting.choose(3, report::PAIRS_MIN);
    launcher.run(program, &Arm::Base)?;
    let mut runs = vec![Vec::new(); ARMS.len()];
    for repeat in 0..repeats {
        // Each arm comes in each place of a repeat.
        for place in 0..ARMS.len() {
            let arm = (place + repeat) % ARMS.len();
            runs[arm].push(launcher.run(program, &ARMS[arm])?);
        }
    }
    Ok(Measured { runs, clocked: launcher.run(program, &MEASURED)? })
}

fn put(report: &mut Report, program: &Program, measured: &Measured, promised: bool, written_bytes_s: f64) {
    let base = measured.times(0);
    let ratios: Vec<Samples> = (0..ARMS.len()).map(|arm| measured.times(arm).ratios_to(&base)).collect();
    let mut arms = Vec::new();
    for (place, arm) in ARMS.iter().enumerate() {
        let samples = measured.times(place);
        let cpu_s: f64 = measured.runs[place].iter().map(|run| run.cpu_s).sum();
        let operations = samples.values().len() as u64;
        arms.push(report::Arm {
            name: arm.name(),
            level: None,
            window: program.ranks,
            payload_bytes: 0,
            unit: "s",
            operations,
            cpu_ns_per_operation: Some(cpu_s * 1e9 / operations.max(1) as f64),
            disk: None,
            samples,
        });
    }
    report.figures.push(Figure {
        name: "run-time",
        meaning: format!(
            "{}, {} ranks, from MPI_Init to MPI_Finalize of the slowest",
            program.name, program.ranks
        ),
        arms,
        notes: Vec::new(),
    });

    let cells = ARMS.iter().enumerate().map(|(place, _)| match place {
        0 => number(base.median()),
        _ => format!("{} ({})", number(measured.times(place).median()), ratio_text(&ratios[place])),
    });
    row(
        report,
        TIMES,
        "median seconds, and the median of the ratios to the base of the same repeat with its 95 % interval",
        &["program", "base", "buffering only", "1 page", "2 pages", "3 pages"],
        [program.name.clone()].into_iter().chain(cells),
    );
    let full = (2..ARMS.len()).map(|place| full_text(&measured.runs[place]));
    row(
        report,
        FULL,
        "how often no page was free when one was full, and how long the ranks waited for one, of the run time",
        &["program", "1 page", "2 pages", "3 pages"],
        [program.name.clone()].into_iter().chain(full),
    );
    let clocked = &measured.clocked;
    let share = |ns: fn(&Figures) -> u64| format!("{:.2}", 100.0 * share_of(clocked, ns));
    let demand_bytes_s = demand(clocked);
    row(
        report,
        CLOCKS,
        "by the recorder's own clocks with 2 pages, percent of the run time of a rank; demand in MB/s and calls/s of a rank",
        &[
            "program",
            "demand",
            "calls",
            "copy",
            "stall",
            "drain",
            "writer",
            "writer's cpu",
            "with these clocks on",
        ],
        [
            program.name.clone(),
            number(demand_bytes_s / 1e6),
            number(mean(clocked, |figures| figures.calls) / clocked.elapsed_s),
            share(|figures| figures.copy_ns),
            share(|figures| figures.stall_ns),
            share(|figures| figures.drain_ns),
            share(|figures| figures.write_ns),
            share(|figures| figures.writer_cpu_ns),
            format!("{:.3} of 2 pages", clocked.elapsed_s / measured.times(3).median()),
        ]
        .into_iter(),
    );
    if !promised {
        return;
    }
    for (place, most) in [(1, 1.02), (3, 1.03)] {
        let (ratio, _, high) = interval(&ratios[place]);
        let name = format!(
            "{}: {} over base, median ({})",
            program.name,
            ARMS[place].name(),
            high.map_or_else(
                || "too few repeats for an interval".to_owned(),
                |high| format!("95 % interval up to {high:.3}")
            )
        );
        report.targets.push(Target::new(name, ratio, Bound::AtMost, most, "x", None));
    }
    if demand_bytes_s * f64::from(program.ranks) <= DEMAND_SHARE_MAX * written_bytes_s {
        let mut shares = Samples::default();
        shares.extend(measured.runs[3].iter().map(|run| 100.0 * share_of(run, |figures| figures.stall_ns)));
        let name = format!("{}: stall with 2 pages, of the run time", program.name);
        report.targets.push(Target::new(name, shares.median(), Bound::AtMost, 1.0, "%", None));
    }
}

/// Adds a row to a table, which is made if it is not there.
pub(super) fn row(
    report: &mut Report,
    name: &'static str,
    meaning: &str,
    columns: &[&str],
    cells: impl Iterator<Item = String>,
) {
    let place = report.tables.iter().position(|table| table.name == name).unwrap_or_else(|| {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        report.tables.push(Table { name, meaning: meaning.to_owned(), columns, rows: Vec::new() });
        report.tables.len() - 1
    });
    report.tables[place].rows.push(cells.collect());
}

/// The median and, from enough samples, between which of them it lies with 95 %: order statistics, no distribution is assumed.
pub(super) fn interval(samples: &Samples) -> (f64, Option<f64>, Option<f64>) {
    let mut sorted = samples.values().to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    if count < report::PAIRS_MIN {
        return (samples.median(), None, None);
    }
    let half = 0.98 * (count as f64).sqrt();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
    let below = (count as f64 / 2.0 - half).floor() as usize;
    (samples.median(), Some(sorted[below - 1]), Some(sorted[count - below]))
}

pub(super) fn ratio_text(ratios: &Samples) -> String {
    match interval(ratios) {
        (median, Some(low), Some(high)) => format!("{median:.3}: {low:.3} to {high:.3}"),
        (median, ..) => format!("{median:.3}"),
    }
}

/// How often no page was free, and for how long.
pub(super) fn full_text(runs: &[Run]) -> String {
    let sum =
        |value: fn(&Figures) -> u64| -> u64 { runs.iter().flat_map(|run| &run.figures).map(value).sum() };
    let filled = sum(|figures| figures.pages_filled);
    if filled == 0 {
        return "N/A".to_owned();
    }
    let full = 100.0 * sum(|figures| figures.pages_awaited) as f64 / filled as f64;
    let mut stalls = Samples::default();
    stalls.extend(runs.iter().map(|run| 100.0 * share_of(run, |figures| figures.stall_ns)));
    format!("{full:.1} %, stall {:.2} %", stalls.median())
}

/// A time of the ranks' recorders, of the run time.
pub(super) fn share_of(run: &Run, ns: fn(&Figures) -> u64) -> f64 {
    mean(run, ns) / 1e9 / run.elapsed_s
}

/// Bytes of log in a second, of one rank.
pub(super) fn demand(run: &Run) -> f64 {
    mean(run, |figures| figures.log_bytes) / run.elapsed_s
}

pub(super) fn mean(run: &Run, value: fn(&Figures) -> u64) -> f64 {
    run.figures.iter().map(|figures| value(figures) as f64).sum::<f64>() / run.figures.len().max(1) as f64
}

/// Bytes in a second that plain writes of the page cache take, one after the other.
fn write_rate(setting: &Setting<'_>) -> Result<f64, MpiError> {
    let (written, _) = super::demand::write_rates(setting.directory, setting.choose(32, 128))?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_needs_twenty_samples_and_holds_the_median() {
        let mut samples = Samples::default();
        samples.extend((1..=19).map(f64::from));
        assert_eq!(interval(&samples), (10.0, None, None));
        samples.push(20.0);
        // Of 20 samples the 5th and the 16th: 98.8 % by the binomial distribution, the next narrower pair 95.9 %.
        assert_eq!(interval(&samples).1, Some(5.0));
        assert_eq!(interval(&samples).2, Some(16.0));
    }

    #[test]
    fn nothing_filled_has_no_full_rate() {
        let run =
            Run { elapsed_s: 2.0, cpu_s: 1.0, figures: vec![Figures::default()], printed: String::new() };
        assert_eq!(full_text(std::slice::from_ref(&run)), "N/A");
        let figures =
            Figures { pages_filled: 4, pages_awaited: 1, stall_ns: 20_000_000, ..Figures::default() };
        assert_eq!(full_text(&[Run { figures: vec![figures], ..run }]), "25.0 %, stall 1.00 %");
    }
}
