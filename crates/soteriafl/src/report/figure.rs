//! Static figures: panels of curves with mean and spread, for documents and comparisons.
//!
//! A [`Figure`] is plain data: panels with linear or logarithmic axes, each with series of points
//! and an optional band around them. [`Figure::to_svg`] turns it into one file that any browser,
//! README or word processor shows: attributes only (no style sheet, no script, no font file), on
//! white. Points that an axis cannot show (not finite, or not positive on a logarithmic axis) leave
//! a gap.

use super::png::{self, PictureError};
use super::svg;

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
    /// Its name in the legend; series of the same name in several panels share entry and colour.
    /// Empty: no entry.
    pub label: String,
    /// The points, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// The spread: lower and upper value at each point.
    pub band: Option<Vec<(f64, f64)>>,
    /// A CSS colour; none takes the next one of the palette.
    pub color: Option<String>,
    /// Whether the line is dashed, for references rather than results.
    pub dashed: bool,
    /// Whether the line is thicker than others, for the one to look at.
    pub bold: bool,
    /// What the curve belongs to: a page can show and hide the curves of a group together. Empty:
    /// none.
    pub group: String,
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
    /// rounds; what a longer run has beyond the shortest is left out, and x is averaged too (the
    /// bytes of two seeds differ a little). One run has no band. Two passes, so the spread of
    /// nearly equal values is not lost to cancellation.
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
        svg::draw(self)
    }

    /// The figure as a picture, with `scale` pixels for each unit of the SVG.
    ///
    /// # Errors
    /// When the picture would be empty or too large.
    pub fn to_png(&self, scale: f32) -> Result<Vec<u8>, PictureError> {
        png::rasterise(&self.to_svg(), scale)
    }
}
