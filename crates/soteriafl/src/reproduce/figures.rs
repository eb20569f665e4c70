//! The eight figures: utility, and loss or accuracy, against rounds and against bits.

use super::published::{Algorithm, Setup};
use super::results::{Entry, Results, measure};
use super::settings::Mode;
use crate::experiment::{Curve, Measure, Point};
use crate::report::{Figure, Panel, Series};

/// The colour of an algorithm, the same in every figure.
pub fn color(algorithm: Option<Algorithm>) -> &'static str {
    match algorithm {
        Some(Algorithm::LdpSgd) => "#0c8599",
        Some(Algorithm::LdpSvrg) => "#b08900",
        Some(Algorithm::CdpSgd) => "#2b8a3e",
        Some(Algorithm::SoteriaSgd) => "#3b5bdb",
        Some(Algorithm::SoteriaSvrg) => "#e8590c",
        None => "#1f2430",
    }
}

/// The colour of number `at` of so many curves: hues all around, and light and dark in turn, so
/// that neighbours in a legend stay apart.
pub fn one_of(at: usize, several: usize) -> String {
    let hue = 360.0 * at as f64 / several.max(1) as f64;
    let (saturation, lightness) = [(0.75, 0.45), (0.60, 0.32), (0.85, 0.60)][at % 3];
    let chroma = (1.0 - f64::abs(2.0 * lightness - 1.0)) * saturation;
    let part = |offset: f64| {
        let place = (offset + hue / 30.0) % 12.0;
        let share = (place - 3.0).min(9.0 - place).clamp(-1.0, 1.0);
        (255.0 * (lightness - 0.5 * chroma * share)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(0.0), part(8.0), part(4.0))
}

/// One figure of the paper: the algorithms in `mode`, and the best proved run over them.
pub fn figure(results: &Results, setup: &Setup, mode: Mode) -> Figure {
    let shown: Vec<&Entry> = results
        .of(setup.figure)
        .filter(|entry| entry.mode == mode || entry.mode == Mode::Best)
        .collect();
    draw(setup, mode.name(), &shown, false)
}

/// All three modes in one, for charts in which curves can be switched on and off.
pub fn everything(results: &Results, setup: &Setup) -> Figure {
    let shown: Vec<&Entry> = results.of(setup.figure).collect();
    draw(setup, "all three", &shown, true)
}

fn draw(setup: &Setup, what: &str, shown: &[&Entry], tell_modes_apart: bool) -> Figure {
    let value = measure(setup);
    let (utility, rounds, bits) = (Measure::Utility, Horizontal::Rounds, Horizontal::Bits);
    let panels = [
        (utility, rounds),
        (value, rounds),
        (utility, bits),
        (value, bits),
    ];
    Figure {
        title: format!(
            "Figure {}: {} at ε = {}, {what}",
            setup.figure,
            setup.task.title(),
            setup.epsilon
        ),
        panels: panels
            .into_iter()
            .map(|(measure, horizontal)| Panel {
                series: shown
                    .iter()
                    .map(|entry| {
                        let mut series = curve(&entry.curve, measure, horizontal);
                        series.label = label(entry, tell_modes_apart);
                        series.color = Some(color(entry.algorithm).to_string());
                        // Where curves lie on each other, both should be seen.
                        series.dashed = if tell_modes_apart {
                            entry.mode == Mode::Proved
                        } else {
                            entry.algorithm.is_some_and(Algorithm::is_svrg)
                        };
                        series.bold = entry.mode == Mode::Best;
                        series.group = entry.mode.name().to_string();
                        series
                    })
                    .collect(),
                ..panel(measure, horizontal)
            })
            .collect(),
    }
}

fn label(entry: &Entry, tell_modes_apart: bool) -> String {
    match entry.algorithm {
        None => "best proved".to_string(),
        Some(algorithm) if tell_modes_apart && entry.mode == Mode::Proved => {
            format!("{}, proved", algorithm.name())
        }
        Some(algorithm) => algorithm.name().to_string(),
    }
}

/// What a curve is drawn against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizontal {
    /// Rounds.
    Rounds,
    /// Bits, 64 for each value that travels.
    Bits,
    /// Bytes that are really sent, by clients and to them.
    BothWays,
}

impl Horizontal {
    fn of(self, point: &Point) -> f64 {
        match self {
            Horizontal::Rounds => f64::from(point.round),
            Horizontal::Bits => point.paper_bits as f64,
            Horizontal::BothWays => point.bytes_both_ways() as f64,
        }
    }
}

/// Axes for a measure against rounds or bits.
pub fn panel(measure: Measure, horizontal: Horizontal) -> Panel {
    let what = match measure {
        Measure::Utility => "Utility",
        Measure::Loss => "Training loss",
        Measure::Accuracy => "Test accuracy",
    };
    let (against, x_label) = match horizontal {
        Horizontal::Rounds => ("rounds", "rounds"),
        Horizontal::Bits => ("bits", "bits sent by all clients"),
        Horizontal::BothWays => ("bytes both ways", "bytes sent by all clients and to them"),
    };
    Panel {
        title: format!("{what} against {against}"),
        x_label: x_label.to_string(),
        log_x: horizontal != Horizontal::Rounds,
        log_y: measure == Measure::Utility,
        ..Panel::default()
    }
}

/// The mean of a curve's runs with a band of one standard deviation.
pub fn curve(curve: &Curve, measure: Measure, horizontal: Horizontal) -> Series {
    let mut series = Series::default();
    let mut band = Vec::new();
    for (at, point) in curve.points().iter().enumerate() {
        let statistic = curve.at(at, measure);
        series.points.push((horizontal.of(point), statistic.mean));
        let deviation = statistic.deviation;
        band.push((statistic.mean - deviation, statistic.mean + deviation));
    }
    series.band = (curve.runs.len() > 1).then_some(band);
    series
}
