//! What a benchmark reports: arms with their raw samples, figures beside their floors, tables, and targets.

use mainstay_types::level::Level;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// Raw samples of one quantity, in one unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Samples {
    values: Vec<f64>,
}

impl Samples {
    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// Adds all.
    pub fn extend(&mut self, values: impl IntoIterator<Item = f64>) {
        self.values.extend(values);
    }

    /// In the order of measuring.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The value that `share` (0 to 1) of the samples do not exceed; not a number when there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        if self.values.is_empty() {
            return f64::NAN;
        }
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length is a length"
        )]
        let index = ((sorted.len() - 1) as f64 * share.clamp(0.0, 1.0)).round() as usize;
        sorted[index]
    }

    /// The middle one.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The standard deviation; zero below two samples.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        let count = self.values.len() as f64;
        let mean = self.values.iter().sum::<f64>() / count;
        let squares: f64 = self.values.iter().map(|value| (value - mean).powi(2)).sum();
        if self.values.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() }
    }

    /// The quotients of what was measured in the same round, ours over `reference`.
    #[must_use]
    pub fn ratios_to(&self, reference: &Self) -> Self {
        let pairs = self.values.iter().zip(&reference.values);
        Self { values: pairs.map(|(ours, reference)| ours / reference).collect() }
    }

    /// The mean of the samples and half the width of its 95 % interval (two standard errors); no interval below 20
    /// samples.
    #[must_use]
    pub fn mean_with_bound(&self) -> (f64, Option<f64>) {
        let count = self.values.len() as f64;
        let mean = self.values.iter().sum::<f64>() / count;
        if self.values.len() < PAIRS_MIN {
            return (mean, None);
        }
        (mean, Some(2.0 * self.deviation() / count.sqrt()))
    }
}

/// In words, how far the shares of the rounds of `what` tell whether its target is held; nothing below [`PAIRS_MIN`] rounds.
#[must_use]
pub fn resolution(what: &str, shares: &Samples, target: f64) -> Option<String> {
    let (mean, Some(bound)) = shares.mean_with_bound() else {
        return None;
    };
    let resolved = if (mean - target).abs() < bound { "not resolved" } else { "resolved" };
    Some(format!(
        "{what}, {} rounds of pairs: median {:.3}, mean {mean:.3} +- {bound:.3}; beside {target} {resolved}",
        shares.values().len(),
        shares.median()
    ))
}

/// Fewest paired differences from which a ratio of a few per cent is said to be resolved.
pub const PAIRS_MIN: usize = 20;

/// What the kernel counted for one block device meanwhile, whoever caused it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskCounts {
    /// Writes completed.
    pub writes: u64,
    /// Bytes of these.
    pub write_bytes: u64,
    /// Flushes completed.
    pub flushes: u64,
}

/// One way of doing the work, ours or the one it is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    /// What was done.
    pub name: String,
    /// What each operation waited for; nothing when it writes nothing.
    pub level: Option<Level>,
    /// Operations outstanding at once.
    pub window: u32,
    /// Bytes of one operation.
    pub payload_bytes: u64,
    /// Unit of the samples.
    pub unit: &'static str,
    /// Operations done in all.
    pub operations: u64,
    /// Processor time of the whole process per operation, in nanoseconds.
    pub cpu_ns_per_operation: Option<f64>,
    /// What the device did meanwhile.
    pub disk: Option<DiskCounts>,
    /// The raw samples.
    pub samples: Samples,
}

impl Arm {
    /// One operation a sample, in microseconds, one at a time, of `payload_bytes`; neither processor time nor the device was looked at.
    pub(crate) fn of_latencies(
        name: String,
        level: Option<Level>,
        payload_bytes: u64,
        samples: Samples,
    ) -> Self {
        Self {
            name,
            level,
            window: 1,
            payload_bytes,
            unit: "us",
            operations: samples.values().len() as u64,
            cpu_ns_per_operation: None,
            disk: None,
            samples,
        }
    }
}

/// Our arm and what it is measured against, interleaved in one run.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Its short name.
    pub name: &'static str,
    /// What the figure means, in a sentence.
    pub meaning: String,
    /// The arms, ours first.
    pub arms: Vec<Arm>,
    /// What else was found, one fact a line.
    pub notes: Vec<String>,
}

/// A table whose rows are no arms.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its short name.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub meaning: String,
    /// Head of each column, with its unit.
    pub columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

/// Which side of a target is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value may not be higher.
    AtMost,
    /// The value may not be lower.
    AtLeast,
}

/// What was promised of a figure, and whether it holds.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What is promised.
    pub name: Cow<'static, str>,
    /// What was measured.
    pub value: f64,
    /// What was promised.
    pub target: f64,
    /// On which side the value must be.
    pub bound: Bound,
    /// Of both.
    pub unit: &'static str,
    /// The durability level of the operations.
    pub level: Option<Level>,
    /// Whether it holds.
    pub holds: bool,
}

impl Target {
    /// Compares.
    #[must_use]
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        value: f64,
        bound: Bound,
        target: f64,
        unit: &'static str,
        level: Option<Level>,
    ) -> Self {
        let holds = match bound {
            Bound::AtMost => value <= target,
            Bound::AtLeast => value >= target,
        };
        Self { name: name.into(), value, target, bound, unit, level, holds }
    }
}

/// The machine that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor, by its own name.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load average of the last minute at the start: a busy machine measures badly.
    pub load_1_minute: f64,
    /// The block device beneath the scratch directory, if the kernel counts it.
    pub device: Option<String>,
}

/// A whole benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name.
    pub bench: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Whether it was the short form.
    pub quick: bool,
    /// What is modelled and not measured.
    pub modelled: &'static str,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Targets: last, so that they are at the end of the JSON.
    pub targets: Vec<Target>,
}

impl Report {
    /// Everything, raw samples included, as one JSON object.
    ///
    /// # Panics
    /// Never: no part of a report can fail to be JSON.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only strings, numbers and lists")
    }

    /// Whether every target holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.targets.iter().all(|target| target.holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "bench {}{}", self.bench, if self.quick { " (quick)" } else { "" })?;
        writeln!(
            f,
            "{} x {}, Linux {}, device {}, load {:.2}; modelled: {}",
            machine.processors,
            machine.processor,
            machine.kernel,
            machine.device.as_deref().unwrap_or("unknown"),
            machine.load_1_minute,
            self.modelled
        )?;
        for figure in &self.figures {
            writeln!(f, "\n{}: {}", figure.name, figure.meaning)?;
            let head = [
                "arm",
                "level",
                "window",
                "bytes",
                "p50",
                "p10",
                "p90",
                "p99",
                "unit",
                "cpu ns/op",
                "writes/op",
                "flushes/op",
            ];
            let rows: Vec<_> = figure.arms.iter().map(arm_row).collect();
            write_table(f, &head.map(str::to_owned), &rows)?;
            for note in &figure.notes {
                writeln!(f, "  {note}")?;
            }
        }
        for table in &self.tables {
            writeln!(f, "\n{}: {}", table.name, table.meaning)?;
            write_table(f, &table.columns, &table.rows)?;
        }
        writeln!(f, "\ntargets")?;
        let head = ["holds", "target", "value", "promised", "unit", "level"].map(str::to_owned);
        let rows: Vec<_> = self
            .targets
            .iter()
            .map(|target| {
                let side = if target.bound == Bound::AtMost { "<=" } else { ">=" };
                vec![
                    if target.holds { "yes" } else { "NO" }.to_owned(),
                    target.name.to_string(),
                    number(target.value),
                    format!("{side} {}", number(target.target)),
                    target.unit.to_owned(),
                    level_name(target.level),
                ]
            })
            .collect();
        write_table(f, &head, &rows)
    }
}

fn arm_row(arm: &Arm) -> Vec<String> {
    let per_operation = |count: u64| format!("{:.3}", count as f64 / arm.operations.max(1) as f64);
    let disk = |count: fn(&DiskCounts) -> u64| {
        arm.disk.as_ref().map_or_else(|| "-".to_owned(), |disk| per_operation(count(disk)))
    };
    vec![
        arm.name.clone(),
        level_name(arm.level),
        arm.window.to_string(),
        arm.payload_bytes.to_string(),
        number(arm.samples.median()),
        number(arm.samples.quantile(0.1)),
        number(arm.samples.quantile(0.9)),
        number(arm.samples.quantile(0.99)),
        arm.unit.to_owned(),
        arm.cpu_ns_per_operation.map_or_else(|| "-".to_owned(), number),
        disk(|disk| disk.writes),
        disk(|disk| disk.flushes),
    ]
}

fn level_name(level: Option<Level>) -> String {
    level.map_or_else(|| "-".to_owned(), |level| level.to_string())
}

/// Few digits, enough to compare.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, head: &[String], rows: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    for row in std::iter::once(head).chain(rows.iter().map(Vec::as_slice)) {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(f, "  {}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bounds() {
        let mut samples = Samples::default();
        samples.extend((1..=101).rev().map(f64::from));
        assert_eq!(samples.median(), 51.0);
        assert_eq!(samples.quantile(0.99), 100.0);
        assert_eq!(samples.quantile(1.0), 101.0);
        let (mean, bound) = samples.mean_with_bound();
        assert_eq!(mean, 51.0);
        assert!((5.0..7.0).contains(&bound.expect("enough samples")));
        let mut four = Samples::default();
        four.extend([2.0, 4.0, 4.0, 6.0]);
        assert!((four.deviation() - (8.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        let mut twice = Samples::default();
        twice.extend([4.0, 8.0, 8.0, 12.0]);
        assert_eq!(twice.ratios_to(&four).values(), [2.0; 4]);
        let mut few = Samples::default();
        few.push(1.0);
        assert_eq!(few.mean_with_bound(), (1.0, None));
    }

    #[test]
    fn the_json_ends_with_the_targets() {
        let target = Target::new("latency", 1.3, Bound::AtMost, 1.2, "x", Some(Level::Disk));
        assert!(!target.holds);
        let report = Report {
            bench: "journal",
            machine: Machine {
                processor: "p".into(),
                processors: 2,
                kernel: "k".into(),
                load_1_minute: 0.5,
                device: None,
            },
            quick: true,
            modelled: "nothing",
            figures: Vec::new(),
            tables: Vec::new(),
            targets: vec![target],
        };
        let json = report.json();
        let value: serde_json::Value = serde_json::from_str(&json).expect("valid");
        assert_eq!(value["targets"][0]["holds"], false);
        assert_eq!(value["targets"][0]["level"], "disk");
        assert!(json.rfind("\"targets\"") > json.rfind("\"tables\""));
        assert!(report.to_string().contains("<= 1.200"));
    }
}
