//! What clipping needs of many numbers that a framework has computed: lengths of rows, and weights.
//!
//! **Guarantee.** Lengths are summed in `f64`, where no square of an `f32` is lost, so that no
//! record is longer than it looks.
//!
//! **Cost.** One pass over the rows, without a copy.

use std::thread;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use soteriafl::core::linalg;

/// Clipped norms stay this much below the bound, relative: more than rounding adds.
const SLACK: f64 = 1.0 / (1 << 18) as f64;
/// The least weight: those near `2^-126` are rounded by more than the slack, some to twice the
/// weight.
const LEAST: f32 = 7.888_609e-31; // 2^-100
/// Fewer numbers than this are not worth a second thread.
const ALONE: usize = 1 << 21;

/// The squared length of every row, on so many threads.
#[pyfunction]
pub fn squared_lengths<'py>(
    py: Python<'py>,
    rows: PyReadonlyArray2<'py, f32>,
    threads: usize,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let &[count, columns] = rows.shape() else {
        unreachable!("two dimensions")
    };
    let values = rows.as_slice()?;
    let mut found = vec![0.0; count];
    let threads = match count * columns < ALONE {
        true => 1,
        false => threads.clamp(1, count),
    };
    if columns > 0 {
        py.detach(|| {
            let share = count.div_ceil(threads);
            thread::scope(|scope| {
                let parts = values.chunks(share * columns).zip(found.chunks_mut(share));
                for (number, (values, found)) in parts.enumerate() {
                    let work = move || {
                        for (row, found) in values.chunks_exact(columns).zip(found) {
                            *found = linalg::squared_norm(row);
                        }
                    };
                    match number + 1 < threads {
                        true => drop(scope.spawn(work)),
                        false => work(),
                    }
                }
            });
        });
    }
    Ok(found.into_pyarray(py))
}

/// What clips gradients of these squared norms: 0 where a norm is not finite, or so large that
/// `f32` no longer holds the weight to its last bits.
#[pyfunction]
pub fn clip_weights<'py>(
    py: Python<'py>,
    squared_norms: PyReadonlyArray1<'py, f64>,
    clip: f64,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let bound = clip * (1.0 - SLACK);
    let weight = |&squared_norm: &f64| {
        let norm = squared_norm.sqrt();
        let weight = (bound / norm).min(1.0) as f32;
        match norm.is_finite() && weight >= LEAST {
            true => weight,
            false => 0.0,
        }
    };
    let weights: Vec<f32> = squared_norms.as_slice()?.iter().map(weight).collect();
    Ok(weights.into_pyarray(py))
}
