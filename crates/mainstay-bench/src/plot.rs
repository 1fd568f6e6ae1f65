//! Plots of what was measured, as SVG: a grid of panels over one logarithmic axis each.

use crate::report::{Arm, Figure, number};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::collections::BTreeMap;

/// Width of a panel, in pixels.
const PANEL_WIDTH: u32 = 520;

/// Height of what is not curves or rows in a panel, in pixels.
const PANEL_FRAME_HEIGHT: u32 = 70;

/// Height of the curves of a panel of densities, in pixels.
const CURVES_HEIGHT: u32 = 170;

/// Height of a row in a panel of ranges, for each of the marks in it, and between rows, in pixels.
const MARK_HEIGHT: u32 = 6;
const ROW_GAP: u32 = 10;

/// Width of the names of rows, in pixels.
const NAMES_WIDTH: u32 = 150;

/// How finely samples are counted: bins in a factor of ten.
const BINS_PER_DECADE: f64 = 24.0;

/// Nothing could be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot could not be drawn: {why}")]
pub struct PlotError {
    why: String,
}

/// One diagram.
#[derive(Clone, Debug)]
pub struct Panel {
    title: String,
    unit: &'static str,
    marks: Marks,
}

#[derive(Clone, Debug)]
enum Marks {
    /// A curve for each payload size.
    Densities(Vec<Curve>),
    /// A row for each arm, with a mark in it for each payload size.
    Ranges(Vec<Row>),
}

#[derive(Clone, Debug)]
struct Curve {
    bytes: u64,
    /// Middle of a bin, and the density in it.
    points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
struct Row {
    name: String,
    marks: Vec<Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    bytes: u64,
    p10: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Panel {
    /// How the samples of each arm are distributed: a curve each, told apart by payload size. The area below a curve is 1 when the
    /// axis is counted in factors of ten.
    #[must_use]
    pub fn of_densities<'a>(title: impl Into<String>, arms: impl Iterator<Item = &'a Arm>) -> Self {
        let mut unit = "";
        let curves = arms.filter(|arm| !arm.samples.values().is_empty()).map(|arm| {
            unit = arm.unit;
            Curve { bytes: arm.payload_bytes, points: density(arm.samples.values()) }
        });
        let marks = Marks::Densities(curves.collect());
        Self { title: title.into(), unit, marks }
    }

    /// Where most samples of each arm are: from the 10th to the 90th percentile a bar, with the median and the 99th marked.
    #[must_use]
    pub fn of_ranges(figure: &Figure) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        for arm in figure.arms.iter().filter(|arm| !arm.samples.values().is_empty()) {
            let name = arm.level.map_or_else(|| arm.name.clone(), |level| format!("{}, {level}", arm.name));
            let at = |share| arm.samples.quantile(share);
            let mark =
                Mark { bytes: arm.payload_bytes, p10: at(0.1), p50: at(0.5), p90: at(0.9), p99: at(0.99) };
            match rows.iter_mut().find(|row| row.name == name) {
                Some(row) => row.marks.push(mark),
                None => rows.push(Row { name, marks: vec![mark] }),
            }
        }
        let unit = figure.arms.first().map_or("", |arm| arm.unit);
        Self { title: figure.name.to_owned(), unit, marks: Marks::Ranges(rows) }
    }

    /// Whether there is anything to be seen in it.
    #[must_use]
    pub fn shows_something(&self) -> bool {
        self.range().is_some()
    }

    fn height(&self) -> u32 {
        let marks = match &self.marks {
            Marks::Densities(_) => CURVES_HEIGHT,
            Marks::Ranges(rows) => rows
                .iter()
                .map(|row| ROW_GAP + MARK_HEIGHT * u32::try_from(row.marks.len()).unwrap_or(1))
                .sum(),
        };
        PANEL_FRAME_HEIGHT + marks
    }

    /// The payload sizes, each with the place of its colour.
    fn sizes(&self) -> BTreeMap<u64, usize> {
        let mut sizes: Vec<u64> = match &self.marks {
            Marks::Densities(curves) => curves.iter().map(|curve| curve.bytes).collect(),
            Marks::Ranges(rows) => rows.iter().flat_map(|row| &row.marks).map(|mark| mark.bytes).collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().enumerate().map(|(place, bytes)| (bytes, place)).collect()
    }

    /// From the least to the greatest value, with some room; nothing when there is nothing above zero.
    fn range(&self) -> Option<std::ops::Range<f64>> {
        let values: Vec<f64> = match &self.marks {
            Marks::Densities(curves) => {
                curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).collect()
            }
            Marks::Ranges(rows) => {
                rows.iter().flat_map(|row| &row.marks).flat_map(|mark| [mark.p10, mark.p99]).collect()
            }
        };
        let above = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) = above.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
        (least <= most).then_some(least / 1.2..most * 1.2)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), PlotError> {
        let Some(x) = self.range() else { return Ok(()) };
        let sizes = self.sizes();
        let rows_height = match &self.marks {
            Marks::Densities(curves) => {
                let densities = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
                densities.fold(0.0, f64::max) * 1.05
            }
            Marks::Ranges(_) => f64::from(self.height() - PANEL_FRAME_HEIGHT),
        };
        let names = if matches!(self.marks, Marks::Ranges(_)) { NAMES_WIDTH } else { 30 };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 15))
            .margin(6)
            .margin_right(20)
            .x_label_area_size(32)
            .y_label_area_size(names)
            .build_cartesian_2d(x.clone().log_scale(), 0.0..rows_height)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh()
            .light_line_style(WHITE)
            .x_desc(self.unit)
            .x_label_formatter(&|value| number(*value));
        match &self.marks {
            Marks::Densities(_) => mesh.y_desc("density per factor of ten").y_labels(0),
            Marks::Ranges(_) => mesh.y_labels(0),
        };
        mesh.draw().map_err(failed)?;
        let (mut top, colour) = (rows_height, |bytes: u64| Palette99::pick(sizes[&bytes]).to_rgba());
        match &self.marks {
            Marks::Densities(curves) => {
                for curve in curves {
                    let line =
                        LineSeries::new(curve.points.iter().copied(), colour(curve.bytes).stroke_width(2));
                    chart.draw_series(line).map_err(failed)?;
                }
            }
            Marks::Ranges(rows) => {
                for row in rows {
                    let height = f64::from(MARK_HEIGHT) * row.marks.len() as f64 + f64::from(ROW_GAP);
                    let (_, pixel) = chart.plotting_area().map_coordinate(&(x.start, top - height / 2.0));
                    let (left, upper) = area.get_base_pixel();
                    let name = Text::new(row.name.clone(), (8, pixel - upper - 5), ("sans-serif", 11));
                    debug_assert!(left >= 0, "a panel begins in the picture");
                    area.draw(&name).map_err(failed)?;
                    for (place, mark) in row.marks.iter().enumerate() {
                        let y =
                            top - f64::from(ROW_GAP) / 2.0 - f64::from(MARK_HEIGHT) * (place as f64 + 0.5);
                        let colour = colour(mark.bytes);
                        let bar =
                            PathElement::new(vec![(mark.p10, y), (mark.p90, y)], colour.stroke_width(3));
                        let tail =
                            PathElement::new(vec![(mark.p90, y), (mark.p99, y)], colour.stroke_width(1));
                        let median = Circle::new((mark.p50, y), 3, colour.filled());
                        chart.draw_series([bar, tail]).map_err(failed)?;
                        chart.draw_series([median]).map_err(failed)?;
                    }
                    top -= height;
                }
            }
        }
        // Without a payload there is nothing to tell apart.
        for (bytes, place) in sizes.into_iter().filter(|(bytes, _)| *bytes > 0) {
            let at = (
                i32::try_from(PANEL_WIDTH).expect("small") - 90,
                28 + 13 * i32::try_from(place).expect("few"),
            );
            let style = ("sans-serif", 11).into_font().color(&Palette99::pick(place));
            area.draw(&Text::new(format!("{bytes} B"), at, style)).map_err(failed)?;
        }
        Ok(())
    }
}

/// The panels, `columns` beside each other, as an SVG picture.
///
/// # Errors
/// [`PlotError`].
pub fn svg(panels: &[Panel], columns: usize) -> Result<String, PlotError> {
    let lines: Vec<&[Panel]> = panels.chunks(columns.max(1)).collect();
    let heights: Vec<u32> =
        lines.iter().map(|line| line.iter().map(Panel::height).max().unwrap_or(0)).collect();
    let width = PANEL_WIDTH * u32::try_from(columns.clamp(1, panels.len().max(1))).unwrap_or(1);
    let mut picture = String::new();
    {
        let size = (width, heights.iter().sum::<u32>().max(1));
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut rest = root.clone();
        for (line, height) in lines.iter().zip(heights) {
            let (now, below) = rest.split_vertically(height);
            rest = below;
            let cells = now.split_evenly((1, columns.clamp(1, panels.len().max(1))));
            line.iter().zip(&cells).try_for_each(|(panel, cell)| panel.draw(cell))?;
        }
        root.present().map_err(failed)?;
    }
    Ok(picture)
}

fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError { why: error.to_string() }
}

/// The share of samples in each bin, over the width of a bin in factors of ten; from the first bin with samples in it to the last.
fn density(samples: &[f64]) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_possible_truncation, reason = "logarithms of times are small")]
    let bin = |sample: f64| (sample.log10() * BINS_PER_DECADE).floor() as i64;
    let mut counts = BTreeMap::<i64, u64>::new();
    for sample in samples.iter().filter(|sample| **sample > 0.0) {
        *counts.entry(bin(*sample)).or_default() += 1;
    }
    let (Some((&first, _)), Some((&last, _))) = (counts.first_key_value(), counts.last_key_value()) else {
        return Vec::new();
    };
    let all = samples.len() as f64;
    let point = |bin: i64| {
        let count = counts.get(&bin).copied().unwrap_or(0) as f64;
        (10_f64.powf((bin as f64 + 0.5) / BINS_PER_DECADE), count / all * BINS_PER_DECADE)
    };
    // From zero and back to it, so that a curve of one bin is one.
    (first - 1..=last + 1).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Samples;
    use mainstay_types::level::Level;

    fn arm(name: &str, bytes: u64, samples: impl IntoIterator<Item = f64>) -> Arm {
        let mut all = Samples::default();
        all.extend(samples);
        Arm {
            name: name.to_owned(),
            level: Some(Level::Disk),
            window: 1,
            payload_bytes: bytes,
            unit: "us",
            operations: 1,
            cpu_ns_per_operation: None,
            disk: None,
            samples: all,
        }
    }

    #[test]
    fn the_area_below_a_density_is_one() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        let points = density(&samples);
        let area: f64 = points.iter().map(|point| point.1 / BINS_PER_DECADE).sum();
        assert!((area - 1.0).abs() < 1e-9, "{area}");
        assert_eq!(density(&[0.0]), []);
    }

    #[test]
    fn every_row_and_every_size_is_named_in_the_picture() {
        let arms =
            vec![arm("hybrid", 10, [1.0, 2.0, 30.0]), arm("hybrid", 1000, [3.0]), arm("absent", 10, [])];
        let figure = Figure { name: "ping-pong", meaning: String::new(), arms, notes: Vec::new() };
        let panels = [
            Panel::of_ranges(&figure),
            Panel::of_densities("logging", figure.arms.iter()),
            Panel::of_densities("empty", std::iter::empty()),
        ];
        let picture = svg(&panels, 2).expect("it can be drawn");
        for wanted in ["<svg", "ping-pong", "hybrid, disk", "logging", "10 B", "1000 B"] {
            assert!(picture.contains(wanted), "{wanted}: {picture}");
        }
        assert!(!picture.contains("absent"), "what has no samples is left out");
    }
}
