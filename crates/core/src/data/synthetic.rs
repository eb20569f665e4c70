//! Synthetic data of any size: a linear rule with noise, the same from the same seed everywhere.
//!
//! Features are uniform with mean 0 and variance `1/features`, so that rows have norm about 1 (at
//! most `sqrt(3)`). The label is the class whose hidden direction scores highest,
//! `argmax_c (sqrt(features) * <w_c, x> + noise_c)`; with two classes it is the sign of one score.
//! Directions are normalised to a score of standard deviation 1; the noise is uniform with standard
//! deviation 0.3. The best linear model is right on about nine of ten records of two classes.
//!
//! Every row is drawn from a stream of its own, so that any range of rows can be made by itself, on
//! any thread. Nothing but additions, multiplications and square roots is used: the bytes are the
//! same on every machine.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::Rng;

use super::{Dataset, DenseRows, Features, MOST_FEATURES, RecordsError, public_random};

/// Standard deviation of the noise on a score of standard deviation 1.
const NOISE: f64 = 0.3;
/// The most values one set may have: 64 GiB of them.
const MOST_VALUES: u64 = 1 << 34;
/// Half the width of a uniform distribution with variance 1.
const HALF_WIDTH: f64 = 1.732_050_807_568_877_2;

/// The size of a synthetic problem, written `ROWSxFEATURES` or `ROWSxFEATURESxCLASSES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    rows: u32,
    features: u32,
    classes: u32,
}

impl Synthetic {
    /// A problem of at least one row and feature and two classes.
    pub fn new(rows: u32, features: u32, classes: u32) -> Result<Synthetic, RecordsError> {
        let size = Synthetic {
            rows,
            features,
            classes,
        };
        let refuse = |reason: String| {
            Err(RecordsError::Choice {
                what: "synthetic data",
                value: size.to_string(),
                reason,
            })
        };
        if rows == 0 || features == 0 || features > MOST_FEATURES {
            return refuse(format!(
                "expected at least one row and 1 to {MOST_FEATURES} features"
            ));
        }
        if !(2..=1 << 16).contains(&classes) {
            return refuse("expected 2 to 65536 classes".to_owned());
        }
        let values = u64::from(features)
            * (u64::from(rows) + u64::from(size.test_rows()) + u64::from(classes));
        if values > MOST_VALUES {
            return refuse(format!("expected at most {MOST_VALUES} values"));
        }
        Ok(size)
    }

    /// Rows of the training set.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// The training set.
    pub fn train(&self, seed: u64) -> Result<Dataset, RecordsError> {
        self.generate(seed, 0..u64::from(self.rows))
    }

    /// The test set: a fifth as many further rows, at most 10,000.
    pub fn test(&self, seed: u64) -> Result<Dataset, RecordsError> {
        let first = u64::from(self.rows);
        self.generate(seed, first..first + u64::from(self.test_rows()))
    }

    /// Any rows of the endless sequence that training and test set are cut from.
    pub fn generate(&self, seed: u64, rows: Range<u64>) -> Result<Dataset, RecordsError> {
        let rule = Rule::new(self, seed);
        let features = self.features as usize;
        let mut values = Vec::new();
        let count = (rows.end.saturating_sub(rows.start) as usize).saturating_mul(features);
        values
            .try_reserve_exact(count)
            .map_err(|_| RecordsError::Choice {
                what: "synthetic data",
                value: self.to_string(),
                reason: "it does not fit into the memory of this machine".to_owned(),
            })?;
        let mut labels = Vec::with_capacity(count / features);
        let mut random = public_random::generator("synthetic rows", seed);
        for row in rows {
            random.set_stream(row);
            random.set_word_pos(0);
            let start = values.len();
            values.extend((0..features).map(|_| (uniform(&mut random) * rule.width) as f32));
            labels.push(rule.label(&values[start..], &mut random));
        }
        let data = Features::Dense(DenseRows::new(features, values)?);
        Dataset::new(data, labels, self.classes as usize)?.with_label_names(self.label_names())
    }

    fn test_rows(&self) -> u32 {
        (self.rows / 5).clamp(1, 10_000)
    }

    fn label_names(&self) -> Arc<[String]> {
        match self.classes {
            2 => ["-1".to_owned(), "+1".to_owned()].into(),
            classes => (0..classes).map(|class| class.to_string()).collect(),
        }
    }
}

/// The hidden rule: one direction per class, or a single one for two classes.
struct Rule {
    /// `sqrt(3 / features)`: half the width of a feature's distribution.
    width: f64,
    /// Scaled so that the score of a random row has standard deviation 1.
    directions: Vec<Vec<f64>>,
}

impl Rule {
    fn new(size: &Synthetic, seed: u64) -> Rule {
        let features = f64::from(size.features);
        let mut random = public_random::generator("synthetic rule", seed);
        let count = if size.classes == 2 { 1 } else { size.classes };
        let directions = (0..count).map(|_| {
            let drawn: Vec<f64> = (0..size.features).map(|_| uniform(&mut random)).collect();
            let norm = libm::sqrt(drawn.iter().map(|w| w * w).sum::<f64>());
            // Not all zero: the middle of a cell is never zero.
            drawn
                .iter()
                .map(|w| w / norm * libm::sqrt(features))
                .collect()
        });
        Rule {
            width: HALF_WIDTH / libm::sqrt(features),
            directions: directions.collect(),
        }
    }

    fn label(&self, row: &[f32], random: &mut ChaCha8Rng) -> u32 {
        let mut score = |direction: &[f64]| {
            let clean: f64 = direction
                .iter()
                .zip(row)
                .map(|(w, &x)| w * f64::from(x))
                .sum();
            clean + NOISE * HALF_WIDTH * uniform(random)
        };
        if let [direction] = self.directions.as_slice() {
            return u32::from(score(direction) > 0.0);
        }
        let mut best = (0, f64::NEG_INFINITY);
        for (class, direction) in self.directions.iter().enumerate() {
            let score = score(direction);
            if score > best.1 {
                best = (class as u32, score);
            }
        }
        best.0
    }
}

/// Uniform in (-1, 1), the middle of one of `2^32` equal cells.
fn uniform(random: &mut ChaCha8Rng) -> f64 {
    (f64::from(random.next_u32()) + 0.5) / f64::from(1u32 << 31) - 1.0
}

impl fmt::Display for Synthetic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}x{}", self.rows, self.features)?;
        if self.classes != 2 {
            write!(formatter, "x{}", self.classes)?;
        }
        Ok(())
    }
}

impl FromStr for Synthetic {
    type Err = RecordsError;

    fn from_str(text: &str) -> Result<Synthetic, RecordsError> {
        let numbers: Option<Vec<u32>> = text.split('x').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([rows, features]) => Synthetic::new(*rows, *features, 2),
            Some([rows, features, classes]) => Synthetic::new(*rows, *features, *classes),
            _ => Err(RecordsError::Choice {
                what: "synthetic data",
                value: text.to_owned(),
                reason: "expected ROWSxFEATURES or ROWSxFEATURESxCLASSES, as in 10000x50"
                    .to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accuracy_of_the_rule(size: Synthetic, data: &Dataset, seed: u64) -> f64 {
        let rule = Rule::new(&size, seed);
        let right = (0..data.rows()).filter(|&row| {
            let row_values = data.full_row(row);
            let scores: Vec<f64> = rule
                .directions
                .iter()
                .map(|direction| direction.iter().zip(&row_values).map(|(w, x)| w * x).sum())
                .collect();
            let guess = match scores.as_slice() {
                [score] => usize::from(*score > 0.0),
                scores => (0..scores.len())
                    .max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
                    .unwrap(),
            };
            guess == data.labels()[row] as usize
        });
        right.count() as f64 / data.rows() as f64
    }

    #[test]
    fn the_hidden_rule_is_right_most_of_the_time_and_classes_are_balanced() {
        // Two classes: a score of deviation 1 and noise of deviation 0.3 disagree in sign with
        // probability about atan(0.3)/pi = 0.093. Standard errors are below 0.005: six of them make
        // the bands below, false alarm below 1e-8.
        let size: Synthetic = "10000x30".parse().unwrap();
        let data = size.train(7).unwrap();
        assert!((0.877..0.937).contains(&accuracy_of_the_rule(size, &data, 7)));
        let positive = data.labels().iter().sum::<u32>() as f64 / 10_000.0;
        assert!((positive - 0.5).abs() < 0.03, "{positive}");
        let mean_norm = data.squared_norms().iter().sum::<f64>() / 10_000.0;
        assert!((mean_norm - 1.0).abs() < 0.01, "{mean_norm}");

        let size: Synthetic = "5000x40x5".parse().unwrap();
        let data = size.train(7).unwrap();
        assert!((0.7..0.95).contains(&accuracy_of_the_rule(size, &data, 7)));
        assert!((0..5).all(|class| {
            data.labels()
                .iter()
                .filter(|&&label| label == class)
                .count()
                > 500
        }));
    }

    #[test]
    fn any_range_of_rows_is_the_same_rows() {
        let size: Synthetic = "20x70".parse().unwrap();
        let whole = size.train(3).unwrap();
        let part = size.generate(3, 5..9).unwrap();
        assert_eq!(part, whole.select(&[5, 6, 7, 8]));
        assert_ne!(size.train(4).unwrap(), whole);
        let test = size.test(3).unwrap();
        assert_eq!(test.rows(), 4);
        assert_eq!(test, size.generate(3, 20..24).unwrap());
    }

    #[test]
    fn sizes_are_parsed_printed_and_limited() {
        for text in ["10x2", "10x2x3", "4294967295x1"] {
            assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "10",
            "10x",
            "0x1",
            "1x0",
            "1x1x1",
            "1x1x99999",
            "1x2x3x4",
            "-1x2",
            "4000000000x1000000",
        ] {
            assert!(text.parse::<Synthetic>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_numbers_never_change() {
        let data = "3x2".parse::<Synthetic>().unwrap().train(0).unwrap();
        let bits: Vec<u32> = data
            .features()
            .values()
            .iter()
            .map(|value| value.to_bits())
            .collect();
        // Golden, from an independent ChaCha8 and the formulas above.
        let golden = [
            1066016486, 1067042017, 3206874326, 1064619435, 3212419275, 3190528057,
        ];
        assert_eq!(bits, golden);
        assert_eq!(data.labels(), [1, 0, 0]);
    }
}
