//! Static figures: panels of curves with mean and spread, written as SVG.
//!
//! A [`Figure`] is plain data: panels with linear or logarithmic axes, each with series of points and
//! an optional band around them. [`Figure::to_svg`] turns it into one file that any browser, README
//! or word processor shows: attributes only (no style sheet, no script, no font file), on white.
//! Points that an axis cannot show (not finite, or not positive on a logarithmic axis) leave a gap.
//!
//! The SVG is written by hand: it is a few lines and rectangles, and a plotting library's SVG has
//! neither shared legends nor clean text without more code than this.

use super::text::{escape, push};
use super::{decimate, ticks};

/// Colours that stay apart for colour-blind readers, used in this order where a series names none.
pub(super) const PALETTE: [&str; 8] = [
    "#3b5bdb", "#e8590c", "#2b8a3e", "#9c36b5", "#0c8599", "#c92a2a", "#b08900", "#5c636a",
];

const INK: &str = "#1f2430";
const MUTED: &str = "#667085";
const GRID: &str = "#e6e8ec";
const FONT: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
/// More points than a panel has pixels show nothing more.
const POINTS_PER_SERIES: usize = 1000;
/// Space around a panel's plotting area: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (70.0, 34.0, 22.0, 52.0);

/// A figure: a title over panels that share one legend.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figure {
    /// The heading; empty for none.
    pub title: String,
    /// The panels, row by row: up to three side by side, four as two by two.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Panel {
    /// The heading of the panel; empty for none.
    pub title: String,
    /// What the horizontal axis shows.
    pub x_label: String,
    /// What the vertical axis shows.
    pub y_label: String,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_y: bool,
    /// The curves, the first one lowest.
    pub series: Vec<Series>,
}

/// One curve.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend; series of the same name in several panels share entry and colour. Empty: no entry.
    pub label: String,
    /// The points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// The spread: lower and upper value at each point.
    pub band: Option<Vec<(f64, f64)>>,
    /// A CSS colour; none takes the next one of the palette.
    pub color: Option<String>,
    /// Whether the line is dashed, for references rather than results.
    pub dashed: bool,
}

impl Series {
    /// A plain curve.
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series {
            label: label.into(),
            points,
            ..Series::default()
        }
    }

    /// The mean of several runs of one algorithm, with a band of one sample standard deviation.
    ///
    /// The runs are matched by position, as runs that differ in their seed alone evaluate the same
    /// rounds; what a longer run has beyond the shortest is left out, and x is averaged too (the bytes
    /// of two seeds differ a little). One run has no band. Two passes, so the spread of nearly equal
    /// values is not lost to cancellation.
    pub fn over_runs(label: impl Into<String>, runs: &[Vec<(f64, f64)>]) -> Series {
        let length = runs.iter().map(Vec::len).min().unwrap_or(0);
        let total = runs.len() as f64;
        let mut series = Series::new(label, Vec::with_capacity(length));
        let mut band = Vec::with_capacity(length);
        for index in 0..length {
            let x = runs.iter().map(|run| run[index].0).sum::<f64>() / total;
            let mean = runs.iter().map(|run| run[index].1).sum::<f64>() / total;
            let squares: f64 = runs.iter().map(|run| (run[index].1 - mean).powi(2)).sum();
            let deviation = (squares / (total - 1.0)).sqrt();
            series.points.push((x, mean));
            band.push((mean - deviation, mean + deviation));
        }
        series.band = (runs.len() > 1).then_some(band);
        series
    }
}

impl Figure {
    /// What is spent after how many rounds: one panel, linear axes.
    pub fn epsilon_by_round(title: impl Into<String>, series: Vec<Series>) -> Figure {
        Figure::single(title, "rounds", "epsilon", false, series)
    }

    /// The privacy profile, delta against epsilon: one panel, delta logarithmic.
    pub fn delta_by_epsilon(title: impl Into<String>, series: Vec<Series>) -> Figure {
        Figure::single(title, "epsilon", "delta", true, series)
    }

    fn single(
        title: impl Into<String>,
        x_label: &str,
        y_label: &str,
        log_y: bool,
        series: Vec<Series>,
    ) -> Figure {
        let (x_label, y_label) = (x_label.to_owned(), y_label.to_owned());
        Figure {
            title: title.into(),
            panels: vec![Panel {
                x_label,
                y_label,
                log_y,
                series,
                ..Panel::default()
            }],
        }
    }

    /// The figure as one SVG file.
    pub fn to_svg(&self) -> String {
        let columns = match self.panels.len() {
            0 | 1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        let (width, height) = if self.panels.len() == 1 {
            (680.0, 400.0)
        } else {
            (440.0, 310.0)
        };
        let rows = self.panels.len().div_ceil(columns);
        let total_width = width * columns as f64 + 16.0;
        let legend = Legend::of(self);
        let mut head = if self.title.is_empty() { 14.0 } else { 50.0 };
        let legend_at = head;
        head += legend.height(total_width);
        let total_height = head + height * rows as f64 + 8.0;

        let mut out = String::new();
        push(
            &mut out,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{total_width}\" height=\"{total_height}\" \
             viewBox=\"0 0 {total_width} {total_height}\" font-family=\"{FONT}\" font-size=\"12\" fill=\"{INK}\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                escape(if self.title.is_empty() {
                    "Figure"
                } else {
                    &self.title
                }),
            ),
        );
        if !self.title.is_empty() {
            let middle = total_width / 2.0;
            push(
                &mut out,
                format_args!(
                    "<text x=\"{middle}\" y=\"31\" text-anchor=\"middle\" font-size=\"17\" font-weight=\"600\">{}</text>\n",
                    escape(&self.title)
                ),
            );
        }
        legend.draw(&mut out, total_width, legend_at);
        for (index, panel) in self.panels.iter().enumerate() {
            let (left, top) = (
                8.0 + width * (index % columns) as f64,
                head + height * (index / columns) as f64,
            );
            let area = Area {
                left: left + MARGIN.0,
                top: top + MARGIN.1,
                width: width - MARGIN.0 - MARGIN.2,
                height: height - MARGIN.1 - MARGIN.3,
            };
            panel.draw(&mut out, index, area, &legend);
        }
        out.push_str("</svg>\n");
        out
    }
}

/// The labels of a figure with their colours.
struct Legend<'a>(Vec<(&'a Series, &'a str)>);

impl<'a> Legend<'a> {
    fn of(figure: &'a Figure) -> Legend<'a> {
        let mut entries: Vec<(&Series, &str)> = Vec::new();
        for series in figure.panels.iter().flat_map(|panel| &panel.series) {
            if entries.iter().all(|(known, _)| known.label != series.label) {
                let color = series
                    .color
                    .as_deref()
                    .unwrap_or(PALETTE[entries.len() % PALETTE.len()]);
                entries.push((series, color));
            }
        }
        Legend(entries)
    }

    fn color(&self, series: &'a Series) -> &str {
        let known = self.0.iter().find(|(known, _)| known.label == series.label);
        series
            .color
            .as_deref()
            .or(known.map(|(_, color)| *color))
            .unwrap_or(INK)
    }

    /// The entries in rows that fit, each entry with its estimated width.
    fn rows(&self, width: f64) -> Vec<Vec<(&Series, &str, f64)>> {
        let mut rows: Vec<Vec<(&Series, &str, f64)>> = Vec::new();
        let mut used = f64::INFINITY;
        for (series, color) in self.0.iter().filter(|(series, _)| !series.label.is_empty()) {
            // Without font metrics: 0.58 em per character is a little wide for most text.
            let wide = 32.0 + 0.58 * 13.0 * series.label.chars().count() as f64 + 22.0;
            if used + wide > width - 40.0 {
                rows.push(Vec::new());
                used = 0.0;
            }
            used += wide;
            if let Some(row) = rows.last_mut() {
                row.push((series, color, wide));
            }
        }
        rows
    }

    fn height(&self, width: f64) -> f64 {
        22.0 * self.rows(width).len() as f64
    }

    fn draw(&self, out: &mut String, width: f64, top: f64) {
        for (index, row) in self.rows(width).iter().enumerate() {
            let mut x = (width - row.iter().map(|(_, _, wide)| wide).sum::<f64>() + 22.0) / 2.0;
            let y = top + 22.0 * index as f64 + 8.0;
            for (series, color, wide) in row {
                push(
                    out,
                    format_args!(
                        "<path d=\"M{x:.1} {y:.1}h22\" stroke=\"{}\" stroke-width=\"3\"{}/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\">{}</text>\n",
                        escape(color),
                        dash(series),
                        x + 30.0,
                        y + 4.5,
                        escape(&series.label)
                    ),
                );
                x += wide;
            }
        }
    }
}

fn dash(series: &Series) -> &'static str {
    if series.dashed {
        " stroke-dasharray=\"6 4\""
    } else {
        ""
    }
}

/// Where a panel's plotting area lies.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// One axis: its range in data, before the logarithm.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// An axis that shows all of `values`; `padded` leaves room beyond them, and begins at zero where that is near.
    fn over(values: impl Iterator<Item = f64> + Clone, log: bool, padded: bool) -> Axis {
        // Beyond these bounds the arithmetic of axes would overflow: such values are not drawn.
        let shown = values.filter(|value| value.abs() < 1e150 && (!log || *value > 1e-150));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if low > high {
            return if log {
                Axis {
                    low: 0.1,
                    high: 1.0,
                    log,
                }
            } else {
                Axis {
                    low: 0.0,
                    high: 1.0,
                    log,
                }
            };
        }
        if log {
            let pad = if low == high {
                2.0
            } else if padded {
                (high / low).powf(0.06)
            } else {
                1.0
            };
            return Axis {
                low: low / pad,
                high: high * pad,
                log,
            };
        }
        if low == high {
            let pad = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            return Axis {
                low: low - pad,
                high: high + pad,
                log,
            };
        }
        let pad = if padded { (high - low) * 0.06 } else { 0.0 };
        let from_zero = padded && low >= 0.0 && low < 0.3 * high;
        Axis {
            low: if from_zero { 0.0 } else { low - pad },
            high: high + pad,
            log,
        }
    }

    /// The place of a value as a share of the axis; none where the axis cannot show it.
    fn place(self, value: f64) -> Option<f64> {
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        (share.abs() < 10.0 && (!self.log || value > 0.0)).then_some(share)
    }

    fn ticks(self, target: usize) -> Vec<f64> {
        if self.log {
            ticks::logarithmic(self.low, self.high, target)
        } else {
            ticks::linear(self.low, self.high, target)
        }
    }
}

impl Panel {
    fn draw(&self, out: &mut String, index: usize, area: Area, legend: &Legend<'_>) {
        let (x_axis, y_axis) = self.axes();
        let Area {
            left,
            top,
            width,
            height,
        } = area;
        let (right, bottom) = (left + width, top + height);
        for (value, share) in y_axis
            .ticks(5)
            .iter()
            .filter_map(|tick| Some((tick, y_axis.place(*tick)?)))
        {
            let y = bottom - share * height;
            push(
                out,
                format_args!(
                    "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{GRID}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{MUTED}\">{}</text>\n",
                    left - 8.0,
                    y + 4.0,
                    ticks::label(*value)
                ),
            );
        }
        for (value, share) in x_axis
            .ticks(5)
            .iter()
            .filter_map(|tick| Some((tick, x_axis.place(*tick)?)))
        {
            let x = left + share * width;
            push(
                out,
                format_args!(
                    "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"{MUTED}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{MUTED}\">{}</text>\n",
                    bottom + 19.0,
                    ticks::label(*value)
                ),
            );
        }
        push(
            out,
            format_args!(
                "<path d=\"M{left:.1} {bottom:.1}H{right:.1}\" stroke=\"{MUTED}\"/>\n\
             <text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}</text>\n\
             <text transform=\"translate({3:.1} {4:.1}) rotate(-90)\" text-anchor=\"middle\">{5}</text>\n\
             <text x=\"{0:.1}\" y=\"{6:.1}\" text-anchor=\"middle\" font-size=\"13.5\" font-weight=\"600\">{7}</text>\n\
             <clipPath id=\"panel-{index}\"><rect x=\"{left:.1}\" y=\"{8:.1}\" width=\"{width:.1}\" height=\"{9:.1}\"/></clipPath>\n\
             <g clip-path=\"url(#panel-{index})\" fill=\"none\">\n",
                left + width / 2.0,
                bottom + 40.0,
                escape(&self.x_label),
                left - 54.0,
                top + height / 2.0,
                escape(&self.y_label),
                top - 13.0,
                escape(&self.title),
                top - 2.0,
                height + 4.0,
            ),
        );
        for series in &self.series {
            let color = escape(legend.color(series));
            series.draw(
                out,
                &color,
                |point| {
                    Some((
                        left + x_axis.place(point.0)? * width,
                        bottom - y_axis.place(point.1)? * height,
                    ))
                },
                y_axis.low,
            );
        }
        out.push_str("</g>\n");
    }

    fn axes(&self) -> (Axis, Axis) {
        let points = self
            .series
            .iter()
            .flat_map(|series| series.points.iter().copied());
        let lowest = points
            .clone()
            .map(|(_, y)| y)
            .filter(|y| *y > 0.0)
            .fold(f64::INFINITY, f64::min);
        let bands = self
            .series
            .iter()
            .filter_map(|series| series.band.as_ref())
            .flatten();
        // On a logarithmic axis a spread may reach down to nothing; a decade below the curves is enough to say so.
        let floor = if self.log_y {
            lowest / 10.0
        } else {
            f64::NEG_INFINITY
        };
        let spread = bands.flat_map(move |(low, high)| [low.max(floor), *high]);
        let y = Axis::over(
            points.clone().map(|(_, y)| y).chain(spread),
            self.log_y,
            true,
        );
        (Axis::over(points.map(|(x, _)| x), self.log_x, false), y)
    }
}

impl Series {
    fn draw(
        &self,
        out: &mut String,
        color: &str,
        place: impl Fn((f64, f64)) -> Option<(f64, f64)>,
        floor: f64,
    ) {
        let (low, high) = (|at: usize| self.spread(at).0, |at: usize| self.spread(at).1);
        let kept = decimate::keep(
            self.points.len(),
            POINTS_PER_SERIES,
            &[&|at| self.points[at].1, &low, &high],
        );
        if self.band.is_some() {
            // A missing bound is no bound: only a finite one may be raised to the foot of the axis.
            let edge = |at: &usize, value: f64| {
                place((
                    self.points[*at].0,
                    if value.is_finite() {
                        value.max(floor)
                    } else {
                        value
                    },
                ))
            };
            let upper = kept
                .iter()
                .filter_map(|at| edge(at, high(*at)).zip(edge(at, low(*at))));
            let (above, below): (Vec<_>, Vec<_>) = upper.unzip();
            let outline: Vec<String> = above
                .iter()
                .chain(below.iter().rev())
                .map(|(x, y)| format!("{x:.1} {y:.1}"))
                .collect();
            if !outline.is_empty() {
                push(
                    out,
                    format_args!(
                        "<path d=\"M{}Z\" fill=\"{color}\" fill-opacity=\"0.16\"/>\n",
                        outline.join("L")
                    ),
                );
            }
        }
        let mut line = String::new();
        let mut dots = String::new();
        let places: Vec<_> = kept.iter().map(|at| place(self.points[*at])).collect();
        for run in places.split(Option::is_none) {
            for (index, (x, y)) in run.iter().flatten().enumerate() {
                push(
                    &mut line,
                    format_args!("{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" }),
                );
                if run.len() == 1 {
                    push(
                        &mut dots,
                        format_args!(
                            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>\n"
                        ),
                    );
                }
            }
        }
        if !line.is_empty() {
            push(
                out,
                format_args!(
                    "<path d=\"{line}\" stroke=\"{color}\" stroke-width=\"2\" stroke-linejoin=\"round\"{}/>\n",
                    dash(self)
                ),
            );
        }
        out.push_str(&dots);
    }

    /// The band at a point; not a number where there is none.
    fn spread(&self, at: usize) -> (f64, f64) {
        self.band
            .as_ref()
            .and_then(|band| band.get(at))
            .copied()
            .unwrap_or((f64::NAN, f64::NAN))
    }
}
