//! Where an axis has its marks, and how they read.

use super::text;

/// Round numbers within `low..=high`, about `target` of them: multiples of 1, 2, 2.5 or 5 times a
/// power of ten.
pub(super) fn linear(low: f64, high: f64, target: usize) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low];
    }
    let rough = span / target.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.9)
        .unwrap_or(10.0 * power);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    // Far from zero a step can drown in the numbers' own resolution.
    let marks = last - first;
    if marks.is_nan() || marks > 100.0 {
        return vec![low, high];
    }
    // Adding zero turns a negative zero, which would be written with its sign, into zero.
    (0..=marks as usize)
        .map(|index| (first + index as f64) * step + 0.0)
        .collect()
}

/// Marks of a logarithmic axis within `low..=high` (both positive): powers of ten over two decades
/// or more, 1, 2 and 5 times those over less, and round numbers over less than half a decade.
pub(super) fn logarithmic(low: f64, high: f64, target: usize) -> Vec<f64> {
    let (first, last) = (
        (low.log10() - 1e-9).ceil() as i32,
        (high.log10() + 1e-9).floor() as i32,
    );
    if last - first >= 2 {
        let stride = ((last - first) as usize / target.max(1) + 1) as i32;
        return (first..=last)
            .filter(|power| power.rem_euclid(stride) == 0)
            .map(|power| 10f64.powi(power))
            .collect();
    }
    let fine: Vec<f64> = (first - 1..=last)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(power)))
        .filter(|value| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value))
        .collect();
    if fine.len() >= 3 {
        fine
    } else {
        linear(low, high, target)
    }
}

/// A mark as it is written: `0.05`, `20k`, `1.5M`, `10⁻⁴`.
pub(super) fn label(value: f64) -> String {
    let size = value.abs();
    if !(1e4..1e15).contains(&size) {
        return text::number(value, 6);
    }
    let (unit, prefix) = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(unit, _)| size >= *unit)
        .unwrap_or((1.0, ""));
    format!("{}{prefix}", text::number(value / unit, 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: Vec<f64>) -> Vec<String> {
        ticks.into_iter().map(label).collect()
    }

    #[test]
    fn linear_marks_are_round_and_inside() {
        assert_eq!(
            labels(linear(0.0, 1.0, 5)),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(labels(linear(-0.31, 0.29, 5)), ["-0.2", "0", "0.2"]);
        assert_eq!(
            labels(linear(0.0, 123_456.0, 5)),
            ["0", "25k", "50k", "75k", "100k"]
        );
        assert_eq!(
            labels(linear(0.83, 0.8504, 4)),
            ["0.83", "0.835", "0.84", "0.845", "0.85"]
        );
        assert_eq!(linear(3.0, 3.0, 5), [3.0]);
        for (low, high) in [
            (1e300, 1.1e300),
            (1.0, 1.0 + 1e-15),
            (-7e-9, 1e9),
            (f64::MIN, f64::MAX),
        ] {
            let ticks = linear(low, high, 5);
            assert!(
                !ticks.is_empty() && ticks.len() < 20,
                "{low} {high}: {ticks:?}"
            );
        }
    }

    #[test]
    fn logarithmic_marks_fit_the_span() {
        assert_eq!(
            labels(logarithmic(3e-5, 20.0, 6)),
            ["10⁻⁴", "0.001", "0.01", "0.1", "1", "10"]
        );
        assert_eq!(
            labels(logarithmic(0.9, 60.0, 6)),
            ["1", "2", "5", "10", "20", "50"]
        );
        assert_eq!(labels(logarithmic(0.52, 0.69, 4)), ["0.55", "0.6", "0.65"]);
        assert!(logarithmic(1e-300, 1e300, 6).len() <= 8);
        for tick in logarithmic(0.013, 0.37, 6) {
            assert!((0.013..=0.37).contains(&tick));
        }
    }
}
