//! All calls of the Fourier transform, in one place so that its generic code is compiled once.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex;
use std::cell::RefCell;

/// Bin of a spectrum.
pub(crate) type Bin = Complex<f64>;

thread_local! {
    /// Twiddle factors cost as much as a transform; a search asks for the same lengths again.
    static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
}

/// The smallest length not below `least` that transforms fast: 2^k or 3*2^k, even.
pub(crate) fn fast_length(least: usize) -> usize {
    let power = least.max(16).next_power_of_two();
    let three_quarters = power / 4 * 3;
    if three_quarters >= least {
        three_quarters
    } else {
        power
    }
}

/// Bins `0..=n/2` of the transform of `values`; the input is used as scratch.
pub(crate) fn forward(values: &mut [f64]) -> Vec<Bin> {
    let transform = PLANNER.with_borrow_mut(|planner| planner.plan_fft_forward(values.len()));
    let mut spectrum = transform.make_output_vec();
    transform
        .process(values, &mut spectrum)
        .expect("the planner made buffers of matching length");
    spectrum
}

/// The values of length `length` with the given bins; the bins are used as scratch.
pub(crate) fn inverse(spectrum: &mut [Bin], length: usize) -> Vec<f64> {
    let transform = PLANNER.with_borrow_mut(|planner| planner.plan_fft_inverse(length));
    let mut values = transform.make_output_vec();
    // A real signal has real first and last bins; rounding may have left something else there.
    let last = spectrum.len() - 1;
    spectrum[0].im = 0.0;
    spectrum[last].im = 0.0;
    transform
        .process(spectrum, &mut values)
        .expect("the planner made buffers of matching length");
    let scale = 1.0 / length as f64;
    for value in &mut values {
        *value *= scale;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transform_matches_the_definition_and_inverts() {
        let values: Vec<f64> = (0..24).map(|i| f64::from(i * i % 7) - 2.0).collect();
        let spectrum = forward(&mut values.clone());
        for (bin, value) in spectrum.iter().enumerate() {
            let mut naive = Bin::new(0.0, 0.0);
            for (index, x) in values.iter().enumerate() {
                let angle = -std::f64::consts::TAU * (bin * index) as f64 / 24.0;
                naive += Bin::from_polar(*x, angle);
            }
            assert!((naive - value).norm() < 1e-12);
        }
        let back = inverse(&mut spectrum.clone(), 24);
        for (left, right) in back.iter().zip(&values) {
            assert!((left - right).abs() < 1e-14);
        }
    }

    #[test]
    fn lengths_are_even_and_close() {
        for least in [1, 16, 17, 24, 25, 1000, 1025, 1_500_000] {
            let length = fast_length(least);
            assert!(length >= least.max(12) && length.is_multiple_of(2));
            assert!(length <= (3 * least / 2 + 1).max(16), "{least} {length}");
        }
    }
}
