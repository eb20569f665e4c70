//! What a linear model's one number means for the loss: two classes, or a target.
//!
//! ```text
//! cross entropy   phi(z) = w_y log(1 + exp(-y z))        phi'(z) = -w_y y sigmoid(-y z)
//! squared         phi(z) = r^2 / 2,  r = z - y            phi'(z) = r
//! Huber           phi(z) = r^2 / 2 where |r| <= h,        phi'(z) = min(h, max(-h, r))
//!                          h (|r| - h/2) elsewhere
//! ```
//!
//! with `y = -1` for class 0 and `+1` for class 1 and public weights `w` of classes, or `y` the
//! target, which lies in [-1, 1] ([`Targets`](crate::data::Targets)). The regression losses are
//! those of the network with one output, too.

use super::linear::BLOCK;
use super::{Outcome, Records, check_shape};
use crate::data::Dataset;
use crate::linalg::vector_math;

/// What a target's residual `r` costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetLoss {
    /// `r^2 / 2`.
    Squared,
    /// Squared up to this size of `r`, and linear beyond.
    Huber(f32),
}

impl TargetLoss {
    /// The loss of a residual.
    #[inline(always)]
    pub fn value(self, residual: f32) -> f32 {
        match self {
            TargetLoss::Squared => residual * residual / 2.0,
            TargetLoss::Huber(bound) => {
                let size = residual.abs();
                if size <= bound {
                    residual * residual / 2.0
                } else {
                    bound * (size - bound / 2.0)
                }
            }
        }
    }

    /// Its derivative.
    #[inline(always)]
    pub fn derivative(self, residual: f32) -> f32 {
        match self {
            TargetLoss::Squared => residual,
            // `clamp` keeps what is not a number.
            TargetLoss::Huber(bound) => residual.clamp(-bound, bound),
        }
    }

    pub(super) fn check(data: &Dataset) -> Result<(), String> {
        match data.targets() {
            Some(_) => Ok(()),
            None => Err("the model predicts a number, the records have classes".to_owned()),
        }
    }
}

/// Cross entropy of two classes with a public weight for each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// By what the loss of a record of class 0 and of class 1 is multiplied.
    pub weights: [f32; 2],
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy { weights: [1.0; 2] }
    }
}

/// A loss as a function of a linear model's number `z = <a, x>`. There are two: [`CrossEntropy`]
/// and [`TargetLoss`].
pub trait MarginLoss: Copy + Send + Sync {
    /// Whether records have what it needs.
    ///
    /// # Errors
    /// What is missing, in words.
    fn check_records(self, data: &Dataset) -> Result<(), String>;

    /// The largest `phi''`.
    fn curvature(self) -> f64;

    /// How many numbers are predicted from one `z`.
    fn outputs(self) -> usize;

    /// Replaces every `z` by `phi'(z)`, and writes the outcomes.
    fn turn_into_factors(
        self,
        records: Records<'_>,
        margins: &mut [f32],
        outcomes: Option<&mut [Outcome]>,
    );

    /// Writes the predictions, `outputs` for every `z`.
    fn predict(self, margins: &[f32], predictions: &mut [f32]);
}

impl MarginLoss for CrossEntropy {
    fn check_records(self, data: &Dataset) -> Result<(), String> {
        check_shape(data, data.columns(), 2)
    }

    fn curvature(self) -> f64 {
        f64::from(self.weights[0].max(self.weights[1])) / 4.0
    }

    fn outputs(self) -> usize {
        2
    }

    #[inline(always)]
    fn turn_into_factors(
        self,
        records: Records<'_>,
        margins: &mut [f32],
        outcomes: Option<&mut [Outcome]>,
    ) {
        let labels = records.data.labels();
        let mut signs = [0.0; BLOCK];
        let mut weights = [1.0; BLOCK];
        for ((sign, weight), &row) in signs.iter_mut().zip(&mut weights).zip(records.rows) {
            let label = labels[row as usize];
            *sign = if label == 0 { 1.0 } else { -1.0 };
            *weight = self.weights[usize::from(label != 0)];
        }
        if let Some(outcomes) = outcomes {
            let both = signs.iter().zip(&weights);
            for ((outcome, &margin), (&sign, &weight)) in
                outcomes.iter_mut().zip(&*margins).zip(both)
            {
                outcome.loss = weight * vector_math::softplus(sign * margin);
                outcome.class = u32::from(margin > 0.0);
            }
        }
        let both = signs.iter().zip(&weights);
        for (value, (&sign, &weight)) in margins.iter_mut().zip(both) {
            *value = weight * sign * vector_math::sigmoid(sign * *value);
        }
    }

    #[inline(always)]
    fn predict(self, margins: &[f32], predictions: &mut [f32]) {
        for (both, &margin) in predictions.chunks_exact_mut(2).zip(margins) {
            both[0] = -vector_math::softplus(margin);
            both[1] = -vector_math::softplus(-margin);
        }
    }
}

impl MarginLoss for TargetLoss {
    fn check_records(self, data: &Dataset) -> Result<(), String> {
        TargetLoss::check(data)
    }

    fn curvature(self) -> f64 {
        1.0
    }

    fn outputs(self) -> usize {
        1
    }

    #[inline(always)]
    fn turn_into_factors(
        self,
        records: Records<'_>,
        margins: &mut [f32],
        mut outcomes: Option<&mut [Outcome]>,
    ) {
        let targets = records.data.target_values();
        for (j, (value, &row)) in margins.iter_mut().zip(records.rows).enumerate() {
            let residual = *value - targets[row as usize];
            if let Some(outcomes) = outcomes.as_deref_mut() {
                let (loss, class) = (self.value(residual), 0);
                outcomes[j] = Outcome { loss, class };
            }
            *value = self.derivative(residual);
        }
    }

    #[inline(always)]
    fn predict(self, margins: &[f32], predictions: &mut [f32]) {
        predictions.copy_from_slice(margins);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huber_is_squared_near_zero_and_linear_beyond() {
        let huber = TargetLoss::Huber(0.5);
        for residual in [-0.5, -0.2, 0.0, 0.3, 0.5] {
            assert_eq!(huber.value(residual), TargetLoss::Squared.value(residual));
            assert_eq!(huber.derivative(residual), residual);
        }
        assert_eq!((huber.value(2.0), huber.derivative(2.0)), (0.875, 0.5));
        assert_eq!((huber.value(-2.0), huber.derivative(-2.0)), (0.875, -0.5));
        assert!(huber.derivative(f32::NAN).is_nan());
        // The derivative is that of the value.
        for residual in [-1.7f32, -0.4, 0.2, 0.9] {
            let step = 1e-3;
            let slope =
                (huber.value(residual + step) - huber.value(residual - step)) / (2.0 * step);
            assert!((slope - huber.derivative(residual)).abs() < 1e-3);
        }
    }
}
