//! Where the time goes when a program's messages ask for much of the disk: a load whose demand is set, and what writes its pages.

use super::launch::{Arm, Launcher, Program, Run};
use super::tables::{demand, full_text, ratio_text, row, share_of};
use super::{MpiError, Setting};
use crate::report::{Bound, Report, Samples, Target, number};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// The name of the table.
pub(super) const NAME: &str = "demand";

const LOADS: &str = include_str!("loads.c");

/// Bytes of log that a rank shall make in a second.
const DEMANDS: [u32; 3] = [50_000_000, 200_000_000, 800_000_000];

/// Bytes of each message.
const MESSAGE_BYTES: u32 = 256 << 10;

/// Bytes of a page, and of each write of the floor.
const PAGE_BYTES: usize = 4 << 20;

const fn arm(pages: u32, synced: bool, in_memory: bool) -> Arm {
    Arm::Pages { pages, synced, in_memory, measured: true }
}

/// The base first; then copying alone; then a second copy by another thread; then with a disk behind it.
const ARMS: [Arm; 9] = [
    Arm::Base,
    arm(0, false, false),
    arm(2, false, true),
    arm(1, false, false),
    arm(2, false, false),
    arm(3, false, false),
    arm(1, true, false),
    arm(2, true, false),
    arm(3, true, false),
];

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), MpiError> {
    let launcher = Launcher::new(setting.given, setting.directory)?;
    let (written, synced) = write_rates(setting.directory, setting.choose(32, 128))?;
    let loads = launcher.compile("loads.c", LOADS)?.display().to_string();
    let flow = |steps: u32, units: u32, demand: u32| Program {
        name: format!("flow at {} MB/s a rank", demand / 1_000_000),
        words: [&loads, "flow", &steps.to_string(), &units.to_string(), &MESSAGE_BYTES.to_string()]
            .map(String::from)
            .to_vec(),
        ranks: launcher.ranks,
        folder: setting.directory.to_owned(),
    };
    let repeats = setting.choose(2, 8);
    let run_s = setting.choose(0.4, 0.8);
    for asked in DEMANDS {
        let program = set(&launcher, &flow, asked, run_s)?;
        setting.say(&program.name);
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); ARMS.len()];
        for repeat in 0..repeats {
            for place in 0..ARMS.len() {
                let arm = (place + repeat) % ARMS.len();
                runs[arm].push(launcher.run(&program, &ARMS[arm])?);
            }
        }
        put(report, &program, &runs);
        let rate = f64::from(asked) * f64::from(program.ranks);
        for (place, most) in [(4, written), (7, synced)] {
            if rate <= 0.8 * most {
                let mut shares = Samples::default();
                shares
                    .extend(runs[place].iter().map(|run| 100.0 * share_of(run, |figures| figures.stall_ns)));
                let name = format!(
                    "{}: stall with {}, of the run time ({} % of what plain writes reach)",
                    program.name,
                    ARMS[place].name(),
                    number(100.0 * rate / most)
                );
                report.targets.push(Target::new(name, shares.median(), Bound::AtMost, 1.0, "%", None));
            }
        }
    }
    row(
        report,
        "write-rates",
        "plain writes of 4 MiB one after the other, MB/s",
        &["page cache", "each followed by fdatasync"],
        [number(written / 1e6), number(synced / 1e6)].into_iter(),
    );
    Ok(())
}

/// The load, with as much to compute between messages as makes it ask for `asked` bytes in a second.
fn set(
    launcher: &Launcher,
    flow: &dyn Fn(u32, u32, u32) -> Program,
    asked: u32,
    run_s: f64,
) -> Result<Program, MpiError> {
    const TRIAL: (u32, u32) = (200, 20_000);
    let step_s = |units: u32| -> Result<f64, MpiError> {
        Ok(launcher.run(&flow(TRIAL.0, units, asked), &Arm::Base)?.elapsed_s / f64::from(TRIAL.0))
    };
    let (bare_s, filled_s) = (step_s(0)?, step_s(TRIAL.1)?);
    let unit_s = ((filled_s - bare_s) / f64::from(TRIAL.1)).max(1e-9);
    let wanted_s = f64::from(MESSAGE_BYTES) / f64::from(asked);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and not negative")]
    let (units, steps) =
        (((wanted_s - bare_s).max(0.0) / unit_s) as u32, (run_s / wanted_s.max(bare_s)).ceil() as u32);
    Ok(flow(steps, units, asked))
}

fn put(report: &mut Report, program: &Program, runs: &[Vec<Run>]) {
    let times = |arm: usize| {
        let mut samples = Samples::default();
        samples.extend(runs[arm].iter().map(|run| run.elapsed_s));
        samples
    };
    let base = times(0);
    for (place, arm) in ARMS.iter().enumerate() {
        let median = |of: &dyn Fn(&Run) -> f64| {
            let mut samples = Samples::default();
            samples.extend(runs[place].iter().map(of));
            samples.median()
        };
        let percent = |ns: fn(&mainstay_mpi::figures::Figures) -> u64| {
            format!("{:.2}", 100.0 * median(&|run| share_of(run, ns)))
        };
        let ratios = times(place).ratios_to(&base);
        let recorded = place > 0;
        let or_none = |text: String| if recorded { text } else { "-".to_owned() };
        row(
            report,
            NAME,
            "where the time goes, percent of the run time of a rank; other: what the ratio has beyond copy and stall",
            &[
                "program",
                "arm",
                "seconds",
                "ratio to base",
                "demand MB/s",
                "full, stall",
                "copy",
                "other",
                "writer",
                "writer's cpu",
                "cpu ratio",
            ],
            [
                program.name.clone(),
                arm.name().replace(", measured", ""),
                number(times(place).median()),
                ratio_text(&ratios),
                or_none(number(median(&demand) / 1e6)),
                or_none(full_text(&runs[place])),
                or_none(percent(|figures| figures.copy_ns)),
                or_none(format!(
                    "{:.2}",
                    100.0
                        * (1.0
                            - 1.0 / ratios.median()
                            - median(&|run| share_of(run, |figures| figures.copy_ns + figures.stall_ns)))
                )),
                or_none(percent(|figures| figures.write_ns)),
                or_none(percent(|figures| figures.writer_cpu_ns)),
                format!(
                    "{:.3}",
                    median(&|run| run.cpu_s) / {
                        let mut samples = Samples::default();
                        samples.extend(runs[0].iter().map(|run| run.cpu_s));
                        samples.median()
                    }
                ),
            ]
            .into_iter(),
        );
    }
}

/// Bytes in a second that plain writes reach: into the page cache, and each on the disk before the next.
pub(super) fn write_rates(directory: &Path, pages: u32) -> io::Result<(f64, f64)> {
    let page = vec![0x5A; PAGE_BYTES];
    let rate = |synced: bool| -> io::Result<f64> {
        let path = directory.join("write-rate");
        let file = File::create(&path)?;
        let begun = Instant::now();
        for number in 0..pages {
            file.write_all_at(&page, u64::from(number) * PAGE_BYTES as u64)?;
            if synced {
                file.sync_data()?;
            }
        }
        let took_s = begun.elapsed().as_secs_f64();
        drop(file);
        std::fs::remove_file(&path)?;
        Ok(f64::from(pages) * PAGE_BYTES as f64 / took_s)
    };
    Ok((rate(false)?, rate(true)?))
}
