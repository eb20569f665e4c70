//! The release of second moments in the game: one more message, before the first round.
//!
//! For the moments a record is a unit vector, and neighbours are as far apart as any: canary `i` is
//! `e_(2i)`, the record in its place `e_(2i+1)`, whose squares lie on different entries of the
//! diagonal. The proof counts moments and gradients apart, whatever a record makes of both, so the
//! game may: what is released of the squares knows nothing of the gradients.

use soteriafl_core::data::{Dataset, DenseRows, Features};
use soteriafl_core::moments;
use soteriafl_core::random::SecretKey;

use super::AuditError;
use super::canaries::Answer;

/// The release, ready to be played.
pub(super) struct MomentsGame {
    sigma: f64,
    copies: usize,
    records: usize,
}

impl MomentsGame {
    pub(super) fn new(sigma: f64, copies: usize, records: usize) -> Self {
        Self {
            sigma,
            copies,
            records,
        }
    }

    /// For every canary the log likelihood ratio of what was released.
    pub(super) fn play(
        &self,
        answers: &[Answer],
        other: Answer,
        key: &SecretKey,
    ) -> Result<Vec<f64>, AuditError> {
        let columns = 2 * answers.len();
        let stored = answers.len() * self.copies;
        let mut values = vec![0.0f32; stored * columns];
        for (row, values) in values.chunks_exact_mut(columns).enumerate() {
            let canary = row / self.copies;
            match answers[canary] {
                Answer::Present => values[2 * canary] = 1.0,
                Answer::Opposite => values[2 * canary + 1] = 1.0,
                Answer::Null => {}
            }
        }
        let features = DenseRows::new(columns, values).expect("finite columns");
        let data = Dataset::new(Features::Dense(features), vec![0; stored], 1);
        let null = self.records - stored;
        let data = data.expect("one class for all").with_null_records(null);
        let released = moments::release(&data, self.sigma, key)
            .map_err(|error| AuditError::Client(error.to_string()))?;
        let seen = |column: usize| f64::from(released.values()[diagonal(column, columns)]);
        let shift = self.copies as f64 / (self.records as f64 * self.sigma);
        Ok((0..answers.len())
            .map(|canary| {
                let (own, others) = (seen(2 * canary), seen(2 * canary + 1));
                match other {
                    Answer::Null => shift * (own / self.sigma - 0.5 * shift),
                    _ => shift * (own - others) / self.sigma,
                }
            })
            .collect())
    }

    /// About how long it takes.
    pub(super) fn nanoseconds(&self) -> f64 {
        3e6
    }
}

/// The place of a square among the entries of the upper triangle, row after row.
fn diagonal(column: usize, columns: usize) -> usize {
    column * columns - column * column.saturating_sub(1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_stand_on_the_diagonal() {
        for columns in [1usize, 2, 5, 9] {
            let mut place = 0;
            for column in 0..columns {
                assert_eq!(diagonal(column, columns), place);
                place += columns - column;
            }
            assert_eq!(place, moments::entries(columns));
        }
    }

    /// With little noise the ratio is that of the closed form: of two Gaussians `sqrt(2)` apart for
    /// a record replaced, 1 for one left out.
    #[test]
    fn ratios_are_those_of_two_gaussians() {
        let game = MomentsGame::new(0.05, 1, 40);
        let shift = 1.0 / (40.0 * 0.05);
        for (other, square) in [(Answer::Opposite, 2.0), (Answer::Null, 1.0)] {
            let mut sums = [0.0; 2];
            let runs = 400;
            for number in 0..runs {
                let key = SecretKey::simulated(3, number);
                let answers = [Answer::Present, other, Answer::Present, other];
                let found = game.play(&answers, other, &key).unwrap();
                sums[0] += (found[0] + found[2]) / 2.0;
                sums[1] += (found[1] + found[3]) / 2.0;
            }
            // Means +- mu^2/2, within five standard errors.
            let mu2: f64 = square * shift * shift;
            let error = 5.0 * (mu2 / f64::from(2 * runs)).sqrt();
            for (sum, expected) in sums.into_iter().zip([mu2 / 2.0, -mu2 / 2.0]) {
                let mean = sum / f64::from(runs);
                assert!((mean - expected).abs() < error, "{mean} {expected}");
            }
        }
    }
}
