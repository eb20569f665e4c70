//! Writing a [`Figure`] as SVG.
//!
//! By hand: a figure is a few lines and rectangles, and a plotting library's SVG has neither a
//! legend that panels share nor text that is text without more code than this. Coordinates have one
//! decimal, a tenth of a pixel.

use super::figure::{Figure, Panel, Series};
use super::text::{append, escape};
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

/// The figure as one SVG file.
pub(super) fn draw(figure: &Figure) -> String {
    let columns = match figure.panels.len() {
        0 | 1 => 1,
        2 | 4 => 2,
        _ => 3,
    };
    let (width, height) = if figure.panels.len() == 1 {
        (680.0, 400.0)
    } else {
        (440.0, 310.0)
    };
    let rows = figure.panels.len().div_ceil(columns);
    let total_width = width * columns as f64 + 16.0;
    let legend = Legend::of(figure);
    let mut head = if figure.title.is_empty() { 14.0 } else { 50.0 };
    let legend_at = head;
    head += legend.height(total_width);
    let total_height = head + height * rows as f64 + 8.0;

    let mut out = opening(&figure.title, total_width, total_height);
    legend.draw(&mut out, total_width, legend_at);
    for (index, panel) in figure.panels.iter().enumerate() {
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

/// The root element with background and title.
fn opening(title: &str, width: f64, height: f64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"{FONT}\" \
         font-size=\"12\" fill=\"{INK}\">\n\
         <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        if title.is_empty() {
            "Figure".to_owned()
        } else {
            escape(title)
        },
    );
    if !title.is_empty() {
        append!(
            &mut out,
            "<text x=\"{}\" y=\"31\" text-anchor=\"middle\" font-size=\"17\" \
             font-weight=\"600\">{}</text>\n",
            width / 2.0,
            escape(title)
        );
    }
    out
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
                append!(
                    out,
                    "<path d=\"M{x:.1} {y:.1}h22\" stroke=\"{}\" stroke-width=\"3\"{}/>\
                     <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\">{}</text>\n",
                    escape(color),
                    dash(series),
                    x + 30.0,
                    y + 4.5,
                    escape(&series.label)
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
    /// An axis that shows all of `values`; `padded` leaves room beyond them, and begins at zero
    /// where that is near.
    fn over(values: impl Iterator<Item = f64> + Clone, log: bool, padded: bool) -> Axis {
        // Beyond these bounds the arithmetic of axes would overflow: such values are not drawn.
        let shown = values.filter(|value| value.abs() < 1e150 && (!log || *value > 1e-150));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        let axis = |low, high| Axis { low, high, log };
        if low > high {
            return axis(if log { 0.1 } else { 0.0 }, 1.0);
        }
        if log {
            let pad = match padded {
                _ if low == high => 2.0,
                true => (high / low).powf(0.06),
                false => 1.0,
            };
            return axis(low / pad, high * pad);
        }
        if low == high {
            let pad = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            return axis(low - pad, high + pad);
        }
        let pad = if padded { (high - low) * 0.06 } else { 0.0 };
        let from_zero = padded && low >= 0.0 && low < 0.3 * high;
        axis(if from_zero { 0.0 } else { low - pad }, high + pad)
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
        self.draw_marks(out, area, x_axis, y_axis);
        self.draw_labels(out, area);
        let Area {
            left,
            top,
            width,
            height,
        } = area;
        // Two pixels more than the area, so that a line along its edge keeps its full width.
        append!(
            out,
            "<clipPath id=\"panel-{index}\">\
             <rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>\
             </clipPath>\n\
             <g clip-path=\"url(#panel-{index})\" fill=\"none\">\n",
            top - 2.0,
            height + 4.0,
        );
        let place = |(x, y): (f64, f64)| {
            Some((
                left + x_axis.place(x)? * width,
                top + height - y_axis.place(y)? * height,
            ))
        };
        for series in &self.series {
            series.draw(out, &escape(legend.color(series)), place, y_axis.low);
        }
        out.push_str("</g>\n");
    }

    /// Grid lines and marks with their numbers.
    fn draw_marks(&self, out: &mut String, area: Area, x_axis: Axis, y_axis: Axis) {
        let Area {
            left,
            top,
            width,
            height,
        } = area;
        let (right, bottom) = (left + width, top + height);
        for tick in y_axis.ticks(5) {
            let Some(share) = y_axis.place(tick) else {
                continue;
            };
            let (y, label) = (bottom - share * height, ticks::label(tick));
            append!(
                out,
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{GRID}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" \
                 fill=\"{MUTED}\">{label}</text>\n",
                left - 8.0,
                y + 4.0,
            );
        }
        for tick in x_axis.ticks(5) {
            let Some(share) = x_axis.place(tick) else {
                continue;
            };
            let (x, label) = (left + share * width, ticks::label(tick));
            append!(
                out,
                "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"{MUTED}\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
                 fill=\"{MUTED}\">{label}</text>\n",
                bottom + 19.0,
            );
        }
        append!(
            out,
            "<path d=\"M{left:.1} {bottom:.1}H{right:.1}\" stroke=\"{MUTED}\"/>\n"
        );
    }

    /// The heading and the names of the axes.
    fn draw_labels(&self, out: &mut String, area: Area) {
        let (middle, bottom) = (area.left + area.width / 2.0, area.top + area.height);
        append!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate({:.1} {:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>\n\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"13.5\" \
             font-weight=\"600\">{}</text>\n",
            bottom + 40.0,
            escape(&self.x_label),
            area.left - 54.0,
            area.top + area.height / 2.0,
            escape(&self.y_label),
            area.top - 13.0,
            escape(&self.title),
        );
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
        // On a logarithmic axis a spread may reach down to nothing; a decade below the curves is
        // enough to say so.
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

/// Where a point of a panel's data lies in the figure; none where the axes cannot show it.
trait Placement: Fn((f64, f64)) -> Option<(f64, f64)> {}
impl<F: Fn((f64, f64)) -> Option<(f64, f64)>> Placement for F {}

impl Series {
    fn draw(&self, out: &mut String, color: &str, place: impl Placement, floor: f64) {
        let (low, high) = (|at: usize| self.spread(at).0, |at: usize| self.spread(at).1);
        let columns: [&dyn Fn(usize) -> f64; 3] = [&|at| self.points[at].1, &low, &high];
        let kept = decimate::keep(self.points.len(), POINTS_PER_SERIES, &columns);
        self.draw_band(out, color, &kept, &place, floor);
        self.draw_line(out, color, &kept, &place);
    }

    fn draw_band(
        &self,
        out: &mut String,
        color: &str,
        kept: &[usize],
        place: &impl Placement,
        floor: f64,
    ) {
        // A missing bound is no bound: only a finite one may be raised to the foot of the axis.
        let edge = |at: usize, bound: f64| {
            place((
                self.points[at].0,
                if bound.is_finite() {
                    bound.max(floor)
                } else {
                    bound
                },
            ))
        };
        let edges = kept.iter().filter_map(|at| {
            let (low, high) = self.spread(*at);
            edge(*at, high).zip(edge(*at, low))
        });
        let (above, below): (Vec<_>, Vec<_>) = edges.unzip();
        let around = above.iter().chain(below.iter().rev());
        let outline: Vec<String> = around.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !outline.is_empty() {
            let outline = outline.join("L");
            append!(
                out,
                "<path d=\"M{outline}Z\" fill=\"{color}\" fill-opacity=\"0.16\"/>\n"
            );
        }
    }

    fn draw_line(&self, out: &mut String, color: &str, kept: &[usize], place: &impl Placement) {
        let mut line = String::new();
        let mut dots = String::new();
        let places: Vec<_> = kept.iter().map(|at| place(self.points[*at])).collect();
        for run in places.split(Option::is_none) {
            for (index, (x, y)) in run.iter().flatten().enumerate() {
                append!(
                    &mut line,
                    "{}{x:.1} {y:.1}",
                    if index == 0 { "M" } else { "L" }
                );
                // A line of one point is invisible.
                if run.len() == 1 {
                    append!(
                        &mut dots,
                        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>\n"
                    );
                }
            }
        }
        if !line.is_empty() {
            append!(
                out,
                "<path d=\"{line}\" stroke=\"{color}\" stroke-width=\"{}\" \
                 stroke-linejoin=\"round\"{}/>\n",
                if self.bold { 3 } else { 2 },
                dash(self)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(panel: Panel) -> Vec<String> {
        let svg = Figure {
            title: String::new(),
            panels: vec![panel],
        }
        .to_svg();
        let of_series = svg
            .lines()
            .filter(|line| line.contains("stroke-width=\"2\""));
        of_series
            .map(|line| line.split('"').nth(1).unwrap_or("").to_owned())
            .collect()
    }

    #[test]
    fn points_stand_where_the_axes_say() {
        // One panel without title and legend: the area is x 78..666, y 48..362. The vertical axis
        // starts at zero and ends 6 % of the span above the highest point.
        let points = vec![(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)];
        let drawn = lines(Panel {
            series: vec![Series::new("", points)],
            ..Panel::default()
        });
        let y = |value: f64| 362.0 - 314.0 * value / 106.0;
        assert_eq!(
            drawn,
            [format!(
                "M78.0 362.0L372.0 {:.1}L666.0 {:.1}",
                y(50.0),
                y(100.0)
            )]
        );
    }

    #[test]
    fn logarithmic_axes_place_by_ratio() {
        let points = vec![(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)];
        let panel = Panel {
            log_x: true,
            log_y: true,
            series: vec![Series::new("", points)],
            ..Panel::default()
        };
        // 6 % of the span below and above: the middle stays in the middle.
        let y = |share: f64| 362.0 - 314.0 * (share + 0.06) / 1.12;
        assert_eq!(
            lines(panel),
            [format!(
                "M78.0 {:.1}L372.0 205.0L666.0 {:.1}",
                y(0.0),
                y(1.0)
            )]
        );
    }

    #[test]
    fn gaps_part_a_line_and_a_lone_point_is_a_dot() {
        let points = vec![
            (0.0, 1.0),
            (1.0, 2.0),
            (2.0, f64::NAN),
            (3.0, 2.0),
            (4.0, f64::INFINITY),
            (5.0, 1.0),
            (6.0, 1.5),
        ];
        let figure = Figure {
            panels: vec![Panel {
                series: vec![Series::new("", points)],
                ..Panel::default()
            }],
            ..Figure::default()
        };
        let svg = figure.to_svg();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert_eq!(lines(figure.panels[0].clone())[0].matches('M').count(), 3);
    }
}
