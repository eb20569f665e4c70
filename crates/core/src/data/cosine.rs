//! Images as the coefficients of their lowest frequencies: a public linear map, applied to every
//! record by itself.
//!
//! With the orthonormal waves `c_u(i) = a_u cos(pi (2i + 1) u / 2n)` (`a_0 = 1/sqrt(n)`, else
//! `sqrt(2/n)`; the cosine transform DCT-II), an `n x n` image `x` becomes the `p x p` numbers
//!
//! ```text
//!     y_uv = (p/n) sum over i, j of c_u(i) c_v(j) x_ij,      u, v < p.
//! ```
//!
//! These are the coefficients of the image scaled down to `p x p` pixels; the factor `p/n` keeps
//! the brightness of a pixel.
//!
//! **Why it helps.** Neighbouring pixels are similar, so nearly all of an image is in its low
//! frequencies. A network that reads `y` is the network that reads `x` with first-layer weights
//! `W = B V` ([`weights`](Cosine::weights)), so that the kind of model is the same; but privacy
//! noise is added to `p^2` numbers per unit instead of `n^2`, and a whole gradient fits in a
//! message.
//!
//! **Guarantee.** A function of each record alone, fixed before any is seen: neighbouring data sets
//! stay neighbouring, and it costs no privacy. `|y| <= (p/n) |x|`, with equality for `p = n`. Sums
//! are in `f64`, and values are cut off at `2^63`, so that no record makes it fail.
//!
//! **Cost.** `n^2 p + n p^2` multiplications a record, once; rows become dense. **Place in the
//! paper:** none.

use std::fmt;

use super::{Dataset, DenseRows, Features, LARGEST_VALUE, RecordsError};

/// The low frequencies of square images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cosine {
    side: usize,
    frequencies: usize,
}

impl Cosine {
    /// The `frequencies x frequencies` slowest waves of images with this many pixels.
    ///
    /// # Errors
    /// When the pixels are no square, or there are fewer waves than asked for, or none asked for.
    pub fn new(pixels: usize, frequencies: usize) -> Result<Cosine, RecordsError> {
        let refuse = |reason| {
            Err(RecordsError::Choice {
                what: "basis",
                value: format!("cosine:{frequencies}"),
                reason,
            })
        };
        let side = pixels.isqrt();
        if side * side != pixels {
            return refuse(format!("it needs square images, not {pixels} features"));
        }
        if !(1..=side).contains(&frequencies) {
            return refuse(format!(
                "expected 1 to {side} for images of {side}x{side} pixels"
            ));
        }
        Ok(Cosine { side, frequencies })
    }

    /// Waves along each side.
    pub fn frequencies(&self) -> usize {
        self.frequencies
    }

    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        self.side * self.side
    }

    /// Numbers that an image becomes.
    pub fn coefficients(&self) -> usize {
        self.frequencies * self.frequencies
    }

    /// Every row replaced by its coefficients; labels and their names stay.
    ///
    /// # Errors
    /// When rows do not have as many features as these images have pixels.
    pub fn apply(&self, data: Dataset) -> Result<Dataset, RecordsError> {
        if data.columns() != self.pixels() {
            return Err(RecordsError::Shape {
                what: "pixels",
                expected: self.pixels(),
                found: data.columns(),
            });
        }
        let waves = self.waves();
        let mut lines = vec![0.0; self.side * self.frequencies];
        // Linear: the constant that is in every row is transformed once.
        let mut constant = vec![0.0; self.coefficients()];
        if let Some(offset) = data.offset() {
            let pixels = offset.iter().copied().enumerate();
            pixels.for_each(|(pixel, value)| self.add(&waves, pixel, value, &mut lines));
            self.finish(&waves, &lines, &mut constant);
        }
        let most = f64::from(LARGEST_VALUE / 2.0);
        let mut values = Vec::with_capacity(data.rows() * self.coefficients());
        let mut sums = vec![0.0; self.coefficients()];
        for row in 0..data.rows() {
            lines.fill(0.0);
            data.features().visit_row(row, |pixel, value| {
                self.add(&waves, pixel, value, &mut lines);
            });
            sums.copy_from_slice(&constant);
            self.finish(&waves, &lines, &mut sums);
            values.extend(sums.iter().map(|sum| sum.clamp(-most, most) as f32));
        }
        let rows = DenseRows::new(self.coefficients(), values)?;
        data.with_features(Features::Dense(rows))
    }

    /// First-layer weights that read pixels, `[pixels][units]`, from those that read coefficients,
    /// `[coefficients][units]`: both layers give the same numbers.
    ///
    /// # Panics
    /// If there are not `units` weights for every coefficient.
    pub fn weights(&self, coefficients: &[f32], units: usize) -> Vec<f32> {
        assert_eq!(
            coefficients.len(),
            self.coefficients() * units,
            "one weight for every coefficient and unit"
        );
        let waves = self.waves();
        let scale = self.scale();
        let mut sums = vec![0.0; units];
        let mut weights = Vec::with_capacity(self.pixels() * units);
        for pixel in 0..self.pixels() {
            let (i, j) = (pixel / self.side, pixel % self.side);
            sums.fill(0.0);
            for (number, of_coefficient) in coefficients.chunks_exact(units).enumerate() {
                let (u, v) = (number / self.frequencies, number % self.frequencies);
                let wave =
                    scale * waves[i * self.frequencies + u] * waves[j * self.frequencies + v];
                for (sum, &weight) in sums.iter_mut().zip(of_coefficient) {
                    *sum += wave * f64::from(weight);
                }
            }
            weights.extend(sums.iter().map(|&sum| sum as f32));
        }
        weights
    }

    fn scale(&self) -> f64 {
        self.frequencies as f64 / self.side as f64
    }

    /// `c_u(i)`, as `[i][u]`.
    fn waves(&self) -> Vec<f64> {
        let side = self.side as f64;
        let places = (0..self.side).flat_map(|i| (0..self.frequencies).map(move |u| (i, u)));
        places
            .map(|(i, u)| {
                let height = if u == 0 { 1.0 } else { 2.0 };
                let angle = std::f64::consts::PI * (2 * i + 1) as f64 * u as f64 / (2.0 * side);
                (height / side).sqrt() * angle.cos()
            })
            .collect()
    }

    /// Adds a pixel to the transform along its line: `lines[i][v] += c_v(j) value`.
    fn add(&self, waves: &[f64], pixel: usize, value: f32, lines: &mut [f64]) {
        let p = self.frequencies;
        let (i, j) = (pixel / self.side, pixel % self.side);
        let line = &mut lines[i * p..][..p];
        for (sum, wave) in line.iter_mut().zip(&waves[j * p..][..p]) {
            *sum += wave * f64::from(value);
        }
    }

    /// Adds the transform across lines, scaled: `sums[u][v] += (p/n) sum_i c_u(i) lines[i][v]`.
    fn finish(&self, waves: &[f64], lines: &[f64], sums: &mut [f64]) {
        let p = self.frequencies;
        for (of_line, line) in waves.chunks_exact(p).zip(lines.chunks_exact(p)) {
            if line.iter().all(|&value| value == 0.0) {
                continue;
            }
            for (wave, sums) in of_line.iter().zip(sums.chunks_exact_mut(p)) {
                let wave = self.scale() * wave;
                for (sum, value) in sums.iter_mut().zip(line) {
                    *sum += wave * value;
                }
            }
        }
    }
}

impl fmt::Display for Cosine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cosine:{}", self.frequencies)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SparseRows;
    use super::*;

    /// Every other pixel of two images, as sparse rows with a constant added to all pixels.
    fn images(side: usize) -> Dataset {
        let half: Vec<u32> = (0..(side * side) as u32).step_by(2).collect();
        let values = (0..2 * half.len()).map(|i| (i as f32 * 0.7).sin());
        let rows = SparseRows::new(
            side * side,
            vec![0, half.len(), 2 * half.len()],
            half.repeat(2),
            values.collect(),
        )
        .unwrap();
        let data = Dataset::new(Features::Sparse(rows), vec![1, 0], 2).unwrap();
        let offset: Vec<f32> = (0..side * side).map(|i| 0.01 * i as f32 - 0.3).collect();
        data.with_offset(offset).unwrap()
    }

    /// The definition, summand by summand.
    fn by_hand(image: &[f64], side: usize, p: usize) -> Vec<f64> {
        let n = side as f64;
        let wave = |u: usize, i: usize| {
            let height: f64 = if u == 0 { 1.0 / n } else { 2.0 / n };
            height.sqrt()
                * (std::f64::consts::PI * (2.0 * i as f64 + 1.0) * u as f64 / (2.0 * n)).cos()
        };
        let mut all = Vec::new();
        for u in 0..p {
            for v in 0..p {
                let mut sum = 0.0;
                for i in 0..side {
                    for j in 0..side {
                        sum += wave(u, i) * wave(v, j) * image[i * side + j];
                    }
                }
                all.push(p as f64 / n * sum);
            }
        }
        all
    }

    #[test]
    fn it_is_the_double_sum_of_its_definition() {
        let data = images(7);
        let mapped = Cosine::new(49, 4).unwrap().apply(data.clone()).unwrap();
        assert_eq!((mapped.columns(), mapped.classes()), (16, 2));
        assert_eq!(mapped.labels(), data.labels());
        assert!(mapped.offset().is_none());
        for row in 0..2 {
            let expected = by_hand(&data.full_row(row), 7, 4);
            for (found, expected) in mapped.full_row(row).iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
        }
    }

    #[test]
    fn waves_are_orthonormal() {
        let (side, p) = (28, 10);
        let waves = Cosine::new(side * side, p).unwrap().waves();
        for u in 0..p {
            for v in 0..p {
                let dot: f64 = (0..side).map(|i| waves[i * p + u] * waves[i * p + v]).sum();
                let expected = f64::from(u8::from(u == v));
                assert!((dot - expected).abs() < 1e-14, "{u} {v} {dot}");
            }
        }
    }

    /// With all frequencies the map is a rotation: lengths stay, and the transposed map, which is
    /// what weights go through, leads back.
    #[test]
    fn all_waves_lead_back() {
        let data = images(28);
        let cosine = Cosine::new(784, 28).unwrap();
        let mapped = cosine.apply(data.clone()).unwrap();
        for row in 0..2 {
            let coefficients: Vec<f32> = mapped.full_row(row).iter().map(|&x| x as f32).collect();
            for (found, expected) in cosine
                .weights(&coefficients, 1)
                .iter()
                .zip(data.full_row(row))
            {
                assert!((f64::from(*found) - expected).abs() < 1e-4);
            }
            let (long, short) = (data.squared_norms()[row], mapped.squared_norms()[row]);
            assert!((long - short).abs() < 1e-4 * long);
        }
    }

    /// `V^T y = (B V)^T x` for every unit.
    #[test]
    fn composed_weights_read_pixels() {
        let data = images(6);
        let cosine = Cosine::new(36, 3).unwrap();
        let mapped = cosine.apply(data.clone()).unwrap();
        let weights: Vec<f32> = (0..18).map(|i| (i as f32 * 1.3).cos()).collect();
        let composed = cosine.weights(&weights, 2);
        let output = |row: Vec<f64>, weights: &[f32], unit: usize| -> f64 {
            let of_unit = weights.iter().skip(unit).step_by(2);
            row.iter()
                .zip(of_unit)
                .map(|(x, &w)| x * f64::from(w))
                .sum()
        };
        for row in 0..2 {
            for unit in 0..2 {
                let direct = output(data.full_row(row), &composed, unit);
                let through = output(mapped.full_row(row), &weights, unit);
                assert!((direct - through).abs() < 1e-5, "{direct} {through}");
            }
        }
    }

    #[test]
    fn no_record_makes_it_fail() {
        let rows = DenseRows::new(4, vec![LARGEST_VALUE; 4]).unwrap();
        let data = Dataset::new(Features::Dense(rows), vec![0], 1).unwrap();
        let mapped = Cosine::new(4, 2).unwrap().apply(data).unwrap();
        assert_eq!(mapped.full_row(0)[0], f64::from(LARGEST_VALUE) / 2.0);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        for (pixels, frequencies, said) in [
            (123, 4, "square images, not 123 features"),
            (784, 29, "expected 1 to 28"),
            (784, 0, "expected 1 to 28"),
        ] {
            let error = Cosine::new(pixels, frequencies).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let cosine = Cosine::new(49, 3).unwrap();
        assert!(cosine.apply(images(6)).is_err());
        assert_eq!(cosine.to_string(), "cosine:3");
    }
}
