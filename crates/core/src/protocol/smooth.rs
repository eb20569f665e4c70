//! A public preconditioner for models whose first layer reads an image: neighbouring pixels'
//! weights move together.
//!
//! The server's direction `v` becomes `K v`, where `K` replaces every first-layer weight by the
//! binomial average `(1, 2, 1)/4` of its neighbours, along columns and rows of the image,
//! [`passes`](Smoothing::passes) times, for each unit of the layer on its own.
//!
//! **Why it helps.** Pixels of an image resemble their neighbours, so the gradient of the first
//! layer is smooth over the image and passes `K` nearly unchanged. Privacy noise and the error of
//! random-k are independent from pixel to pixel: each pass removes most of what is left of their
//! variance (2 passes keep 7%, 3 passes 5%). Each of random-k's few coordinates also updates its
//! neighbours.
//!
//! **Guarantee.** `K` is symmetric and positive definite (along one axis its eigenvalues are
//! `cos^2(pi j / 2(n+1))`, all above 0), with norm below 1: `-K grad f` is a descent direction, a
//! stable step size stays stable, and the stationary points of `f` stay what they were. It acts on
//! released values only and is the same for all data, so it is post-processing and costs no
//! privacy.
//!
//! **Cost.** Two additions a weight, axis and pass, and one row of the image times the units as
//! memory. **Place in the paper:** none; Algorithm 1 with the step `eta K`.

/// The image that a first layer reads, and how often its weights are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smoothing {
    /// Rows of pixels.
    pub rows: usize,
    /// Columns of pixels.
    pub columns: usize,
    /// Outputs of the layer; its weights are the model's first `rows * columns * units` numbers,
    /// pixel after pixel.
    pub units: usize,
    /// How often the average is taken.
    pub passes: u32,
}

impl Smoothing {
    /// How many weights are smoothed.
    pub fn weights(&self) -> usize {
        self.rows * self.columns * self.units
    }

    /// Smooths the first [`weights`](Self::weights) numbers of `direction` in place. `line` is
    /// scratch memory that keeps its size.
    ///
    /// # Panics
    /// If `direction` is shorter than that.
    pub fn apply(&self, direction: &mut [f32], line: &mut Vec<f32>) {
        let weights = &mut direction[..self.weights()];
        let row = self.columns * self.units;
        if weights.is_empty() {
            return;
        }
        for _ in 0..self.passes {
            average(weights, row, line);
            for pixels in weights.chunks_exact_mut(row) {
                average(pixels, self.units, line);
            }
        }
    }
}

/// `b_i <- (b_{i-1} + 2 b_i + b_{i+1})/4` over consecutive blocks of `length` numbers; beyond the
/// ends there is zero.
fn average(values: &mut [f32], length: usize, line: &mut Vec<f32>) {
    line.clear();
    line.resize(length, 0.0);
    let blocks = values.len() / length;
    for block in 0..blocks {
        let (here, after) = values[block * length..].split_at_mut(length);
        let next = (block + 1 < blocks).then(|| &after[..length]);
        for (i, (value, before)) in here.iter_mut().zip(line.iter_mut()).enumerate() {
            let old = *value;
            let following = next.map_or(0.0, |next| next[i]);
            *value = 0.25 * (*before + following) + 0.5 * old;
            *before = old;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(smoothing: Smoothing, direction: &[f32]) -> Vec<f32> {
        let mut direction = direction.to_vec();
        smoothing.apply(&mut direction, &mut Vec::new());
        direction
    }

    /// One weight spreads as the product of two binomial averages, within its unit, and what
    /// follows the first layer stays as it is.
    #[test]
    fn one_weight_spreads_over_its_neighbours() {
        let smoothing = Smoothing {
            rows: 3,
            columns: 4,
            units: 2,
            passes: 1,
        };
        let mut direction = vec![0.0; 26];
        direction[(4 + 1) * 2 + 1] = 16.0; // row 1, column 1, unit 1
        direction[25] = 7.0;
        let spread = apply(smoothing, &direction);
        for row in 0..3 {
            for column in 0..4 {
                let expected = [1.0, 2.0, 1.0][row] * [1.0, 2.0, 1.0, 0.0][column];
                assert_eq!(spread[(row * 4 + column) * 2], 0.0);
                assert_eq!(spread[(row * 4 + column) * 2 + 1], expected);
            }
        }
        assert_eq!(spread[24..], [0.0, 7.0]);
    }

    /// `<u, K v> = <K u, v>`, `0 < <v, K v> < <v, v>`, and two passes are one pass twice.
    #[test]
    fn it_is_symmetric_positive_and_short() {
        let once = Smoothing {
            rows: 5,
            columns: 3,
            units: 2,
            passes: 1,
        };
        let twice = Smoothing { passes: 2, ..once };
        let wave =
            |shift: f32| -> Vec<f32> { (0..30).map(|i| (i as f32 * 1.7 + shift).sin()).collect() };
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (u, v) = (wave(0.0), wave(0.9));
        let (ku, kv) = (apply(twice, &u), apply(twice, &v));
        assert!((dot(&u, &kv) - dot(&ku, &v)).abs() < 1e-5);
        assert!(dot(&v, &kv) > 0.0 && dot(&v, &kv) < dot(&v, &v));
        assert_eq!(kv, apply(once, &apply(once, &v)));
        assert_eq!(apply(Smoothing { passes: 0, ..once }, &v), v);
    }
}
