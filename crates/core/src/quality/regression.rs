//! Quality of predictions that are numbers, in the unit of the target.
//!
//! ```text
//! RMSE  sqrt(mean of (p - y)^2)        MAE  mean of |p - y|
//! R2    1 - sum of (p - y)^2 / sum of (y - mean y)^2
//! ```
//!
//! `R2` is 0 for always answering the mean of these records, 1 for a model that is always right and
//! below 0 for one that is worse than the mean. True targets are taken as they are, also outside of
//! their public range; predictions are cut off at it, since nothing else can be meant.

use crate::data::Targets;

/// Cells of the picture along each side.
pub const GRID: usize = 20;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// How many records there are.
    pub records: usize,
    /// The root of the mean squared error.
    pub rmse: f64,
    /// The mean size of an error.
    pub mae: f64,
    /// The share of the targets' variance that is explained; `None` if all targets are equal.
    pub r2: Option<f64>,
    /// The error of always answering the mean of these records.
    pub mean_rmse: f64,
    /// How many targets lie outside of the public range.
    pub outside: usize,
    /// The public range, which the picture covers.
    pub range: (f64, f64),
    /// The picture: how many records with a true target (row, rising) have a prediction (column,
    /// rising), in [`GRID`] cells of equal width each way.
    pub grid: Vec<Vec<u64>>,
}

impl Regression {
    /// Of targets and the places that were predicted.
    ///
    /// # Panics
    /// If there are none, or not as many.
    pub fn new(targets: &Targets, predicted: &[f32]) -> Self {
        let records = predicted.len();
        assert!(records > 0 && records == targets.values().len());
        let (range, count) = (targets.range(), records as f64);
        // What is not a number stays so.
        let cut = |place: f32| f64::from(place.clamp(-1.0, 1.0));
        let both = || {
            let places = targets.original().iter().zip(predicted);
            places.map(|(&truth, &place)| (range.scale(truth), cut(place)))
        };
        let errors = || both().map(|(truth, place)| place - truth);
        let squares: f64 = errors().map(|error| error * error).sum();
        let sizes: f64 = errors().map(f64::abs).sum();
        let mean = both().map(|(truth, _)| truth).sum::<f64>() / count;
        let variance: f64 = both().map(|(truth, _)| (truth - mean).powi(2)).sum();
        let mut grid = vec![vec![0; GRID]; GRID];
        let cell = |place: f64| {
            let cell = (place.clamp(-1.0, 1.0) + 1.0) / 2.0 * GRID as f64;
            (cell as usize).min(GRID - 1)
        };
        for (truth, place) in both().filter(|(_, place)| place.is_finite()) {
            grid[cell(truth)][cell(place)] += 1;
        }
        let unit = range.unit();
        Self {
            records,
            rmse: (squares / count).sqrt() * unit,
            mae: sizes / count * unit,
            // Equal targets leave rounding errors of their mean.
            r2: (variance > 1e-12 * count).then(|| 1.0 - squares / variance),
            mean_rmse: (variance / count).sqrt() * unit,
            outside: targets.cut_off(),
            range: (range.low(), range.high()),
            grid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TargetRange;

    #[test]
    fn known_values_in_the_unit_of_the_target() {
        let range = TargetRange::new(0.0, 8.0).unwrap();
        let targets = Targets::new(&[3.0, 1.0, 2.0, 7.0], range).unwrap();
        // Predictions 2.5, 0, 2, 8: the example of scikit-learn's documentation, moved by one half.
        let places = [2.5, 0.0, 2.0, 8.0].map(|value| range.scale(value) as f32);
        let found = Regression::new(&targets, &places);
        assert!((found.rmse - 0.5625f64.sqrt()).abs() < 1e-6, "{found:?}");
        assert!((found.mae - 0.625).abs() < 1e-6);
        assert!((found.r2.unwrap() - (1.0 - 2.25 / 20.75)).abs() < 1e-6);
        assert!((found.mean_rmse - (20.75f64 / 4.0).sqrt()).abs() < 1e-6);
        assert_eq!(found.grid.iter().flatten().sum::<u64>(), 4);
        assert_eq!(found.grid[17][19], 1, "7 of 8, answered by 8");
    }

    #[test]
    fn true_targets_count_as_they_are_and_predictions_are_cut_off() {
        let range = TargetRange::new(0.0, 2.0).unwrap();
        let targets = Targets::new(&[5.0, 0.0], range).unwrap();
        let found = Regression::new(&targets, &[9.0, -7.0]);
        assert_eq!((found.outside, found.mae), (1, 1.5));
        let equal = Targets::new(&[0.3, 0.3, 0.3], range).unwrap();
        let found = Regression::new(&equal, &[0.0; 3]);
        assert_eq!(found.r2, None);
        let lost = Regression::new(&equal, &[f32::NAN; 3]);
        assert!(lost.rmse.is_nan() && lost.grid.iter().flatten().all(|count| *count == 0));
    }
}
