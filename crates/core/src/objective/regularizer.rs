//! Regularizers `r(x)`: a public term of the objective, kept apart from the losses because it holds
//! no data and needs no privacy.
//!
//! Both are sums over coordinates, so value and gradient cost `O(d)`, and the gradient on a few
//! coordinates costs only those. The nonconvex one is `lambda sum_i x_i^2 / (1 + x_i^2)`, the
//! regularizer of the paper's experiments on logistic regression.

use super::Coordinates;

/// A coordinatewise regularizer with its strength `lambda`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Regularizer {
    /// No regularizer.
    #[default]
    None,
    /// `lambda / 2 |x|^2`.
    L2 {
        /// Its strength.
        lambda: f32,
    },
    /// `lambda sum_i x_i^2 / (1 + x_i^2)`.
    Nonconvex {
        /// Its strength.
        lambda: f32,
    },
}

impl Regularizer {
    /// `r(x)`, summed in `f64`.
    pub fn value(&self, model: &[f32]) -> f64 {
        let squares = || model.iter().map(|&x| f64::from(x) * f64::from(x));
        match *self {
            Regularizer::None => 0.0,
            Regularizer::L2 { lambda } => f64::from(lambda) / 2.0 * squares().sum::<f64>(),
            Regularizer::Nonconvex { lambda } => {
                f64::from(lambda) * squares().map(bounded).sum::<f64>()
            }
        }
    }

    /// Adds `scale` times the gradient of `r`, restricted to `coordinates`, to `sum`.
    ///
    /// # Panics
    /// If `sum` does not have one number per coordinate, or a coordinate is not in the model.
    pub fn add_gradient(
        &self,
        model: &[f32],
        coordinates: Coordinates<'_>,
        scale: f32,
        sum: &mut [f32],
    ) {
        assert_eq!(
            sum.len(),
            coordinates.count(model.len()),
            "one sum per coordinate"
        );
        let (strength, slope): (f32, fn(f32) -> f32) = match *self {
            Regularizer::None => return,
            Regularizer::L2 { lambda } => (lambda, |x| x),
            Regularizer::Nonconvex { lambda } => (lambda, nonconvex_slope),
        };
        let strength = strength * scale;
        match coordinates {
            Coordinates::All => {
                for (sum, &x) in sum.iter_mut().zip(model) {
                    *sum += strength * slope(x);
                }
            }
            Coordinates::Selected(chosen) => {
                for (sum, &coordinate) in sum.iter_mut().zip(chosen) {
                    *sum += strength * slope(model[coordinate as usize]);
                }
            }
        }
    }

    /// A Lipschitz constant of the gradient: `lambda` for [`L2`](Self::L2); `2 lambda` for
    /// [`Nonconvex`](Self::Nonconvex), whose second derivative `2 lambda (1 - 3x^2) / (1 + x^2)^3`
    /// is largest in magnitude at zero.
    pub fn smoothness(&self) -> f64 {
        match *self {
            Regularizer::None => 0.0,
            Regularizer::L2 { lambda } => f64::from(lambda),
            Regularizer::Nonconvex { lambda } => 2.0 * f64::from(lambda),
        }
    }
}

/// `q / (1 + q)`, one at infinity.
fn bounded(q: f64) -> f64 {
    1.0 - 1.0 / (1.0 + q)
}

/// `2x / (1 + x^2)^2`, without overflow between.
fn nonconvex_slope(x: f32) -> f32 {
    let inverse = 1.0 / (1.0 + x * x);
    2.0 * (x * inverse) * inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Regularizer; 3] = [
        Regularizer::None,
        Regularizer::L2 { lambda: 0.3 },
        Regularizer::Nonconvex { lambda: 0.7 },
    ];

    #[test]
    fn gradient_is_the_slope_of_the_value() {
        let model = [0.0f32, -0.3, 0.9, 4.0, -120.0];
        for regularizer in ALL {
            let mut gradient = [1.0f32; 5];
            regularizer.add_gradient(&model, Coordinates::All, 2.0, &mut gradient);
            for i in 0..model.len() {
                // A step of 1/64 moves every one of these numbers exactly.
                let step = 1.0 / 64.0;
                let at = |moved: f32| {
                    let mut model = model;
                    model[i] += moved;
                    regularizer.value(&model)
                };
                let slope = (8.0 * (at(step) - at(-step)) - (at(2.0 * step) - at(-2.0 * step)))
                    / (12.0 * f64::from(step));
                let found = (f64::from(gradient[i]) - 1.0) / 2.0;
                assert!(
                    (found - slope).abs() < 1e-6 * (1.0 + slope.abs()),
                    "{regularizer:?} {i}: {found} {slope}"
                );
            }
            let chosen = [1u32, 3];
            let mut part = [1.0f32; 2];
            regularizer.add_gradient(&model, Coordinates::Selected(&chosen), 2.0, &mut part);
            assert_eq!(part, [gradient[1], gradient[3]]);
        }
    }

    #[test]
    fn values_in_closed_form() {
        let model = [1.0, -3.0];
        assert_eq!(ALL[0].value(&model), 0.0);
        assert!((ALL[1].value(&model) - 1.5).abs() < 1e-7);
        assert!((ALL[2].value(&model) - 0.7 * (0.5 + 0.9)).abs() < 1e-7);
    }

    #[test]
    fn smoothness_bounds_the_second_derivative_and_is_reached() {
        for regularizer in ALL {
            let slope = |x: f32| {
                let mut sum = [0.0];
                regularizer.add_gradient(&[x], Coordinates::All, 1.0, &mut sum);
                f64::from(sum[0])
            };
            let steepest = (-4000..4000)
                .map(|i| i as f32 / 1024.0)
                .map(|x| (slope(x + 1.0 / 1024.0) - slope(x)).abs() * 1024.0)
                .fold(0.0, f64::max);
            assert!(steepest <= regularizer.smoothness() * (1.0 + 1e-3));
            assert!(steepest >= regularizer.smoothness() * (1.0 - 1e-3));
        }
    }

    #[test]
    fn non_finite_models_do_not_panic() {
        for regularizer in ALL {
            let mut sum = [0.0; 3];
            let model = [f32::NAN, f32::INFINITY, f32::MAX];
            regularizer.add_gradient(&model, Coordinates::All, 1.0, &mut sum);
            regularizer.value(&model);
        }
    }
}
