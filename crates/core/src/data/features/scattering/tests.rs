use super::super::super::SparseRows;
use super::super::{FeatureKind, FeatureMap};
use super::filters::{STRIDE, gaussian, morlet};
use super::*;
use crate::data::{DenseRows, Features, LARGEST_VALUE};

/// Whole numbers modulo a prime: an image with edges and texture that is easily made elsewhere.
fn texture(side: usize) -> Vec<f32> {
    let pixel = |i: usize| ((i * i * 7 + i * 13) % 101) as f32 / 100.0;
    (0..side * side).map(pixel).collect()
}

/// Scattering coefficients of one image, before channels are mixed.
fn coefficients(image: &[f32]) -> Vec<f32> {
    let transform = Transform::new(image.len().isqrt()).unwrap();
    let pixels: Vec<Real> = image.iter().map(|&pixel| [pixel; LANES]).collect();
    let mut out = vec![[0.0; LANES]; CHANNELS * transform.places()];
    transform.block(&pixels, &mut Memory::default(), &mut out);
    out.iter().map(|value| value[LANES - 1]).collect()
}

fn dense(images: &[Vec<f32>]) -> Dataset {
    let values = DenseRows::new(images[0].len(), images.concat()).unwrap();
    Dataset::new(Features::Dense(values), vec![0; images.len()], 2).unwrap()
}

fn map(pixels: usize) -> FeatureMap {
    FeatureMap::new(FeatureKind::Scattering, pixels).unwrap()
}

fn distance(left: &[f32], right: &[f32]) -> f64 {
    let squares = left
        .iter()
        .zip(right)
        .map(|(&a, &b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

/// `vectors/README.md` says how these were made. That package computes its filters in single
/// precision, which leaves 3e-5 of a value, and cuts those of thinned-out channels off at half
/// their band, which moves these by up to 0.0006; the test below has neither.
#[test]
fn coefficients_are_those_of_the_published_package() {
    const GOLDEN: [(usize, [f64; 4]); 12] = [
        (0, [0.4091605, 0.4842943, 0.5013202, 23.5921964]),
        (1, [0.0487439, 0.0491799, 0.0542981, 2.7211006]),
        (4, [0.0511718, 0.03493, 0.043786, 2.293795]),
        (8, [0.1008923, 0.0666793, 0.0658558, 3.1423682]),
        (9, [0.0092551, 0.0192064, 0.0222726, 1.0481229]),
        (13, [0.052207, 0.028105, 0.0281403, 1.7428419]),
        (16, [0.0172541, 0.0373891, 0.0316755, 1.6959947]),
        (17, [0.0035173, 0.0045631, 0.0047016, 0.2888155]),
        (24, [0.005352, 0.0052756, 0.0029333, 0.2718499]),
        (25, [0.0048381, 0.0032018, 0.0028598, 0.1922152]),
        (50, [0.0069801, 0.002165, 0.003201, 0.1463193]),
        (80, [0.0116154, 0.0102611, 0.0086409, 0.4742411]),
    ];
    let found = coefficients(&texture(28));
    for (channel, [first, middle, last, sum]) in GOLDEN {
        let values = &found[channel * 49..][..49];
        let tolerance = if channel < 9 { 2e-5 } else { 6e-4 };
        for (found, expected) in [(values[0], first), (values[24], middle), (values[48], last)] {
            let off = (f64::from(found) - expected).abs();
            assert!(off < tolerance, "{channel}: {found} {expected}");
        }
        let total: f64 = values.iter().map(|&value| f64::from(value)).sum();
        assert!(
            (total - sum).abs() < 49.0 * tolerance,
            "{channel}: {total} {sum}"
        );
    }
}

/// The naive twin: convolutions in space, summand by summand, in `f64`.
#[test]
fn coefficients_are_those_of_convolutions_in_space() {
    const N: usize = 16;
    let image = texture(8);
    let reflect = |place: usize| match place as i64 - 4 {
        before @ ..0 => -before as usize,
        inside @ 0..8 => inside as usize,
        after => (14 - after) as usize,
    };
    let pixel = |i: usize| f64::from(image[reflect(i / N) * 8 + reflect(i % N)]);
    let padded: Vec<f64> = (0..N * N).map(pixel).collect();
    let modulus = |values: &[f64], wave: &[(f64, f64)]| -> Vec<f64> {
        let at = |place: usize| {
            let sum = (0..N * N).fold((0.0, 0.0), |sum, from| {
                let row = (place / N + N - from / N) % N;
                let (re, im) = wave[row * N + (place % N + N - from % N) % N];
                (sum.0 + values[from] * re, sum.1 + values[from] * im)
            });
            f64::hypot(sum.0, sum.1)
        };
        (0..N * N).map(at).collect()
    };
    // Thinned-out grids are averaged on what is left of them.
    let average = |values: &[f64], level: usize| -> Vec<f64> {
        let line = gaussian(N >> level, level);
        let at = |row: usize, column: usize| -> f64 {
            let kept = (0..N * N)
                .filter(|i| (i / N).is_multiple_of(1 << level) && i.is_multiple_of(1 << level));
            kept.map(|from| {
                let weight = |place: usize, from: usize| line[((place + N - from) % N) >> level];
                values[from] * weight(row, from / N) * weight(column, from % N)
            })
            .sum()
        };
        [(4, 4), (4, 8), (8, 4), (8, 8)]
            .map(|(row, column)| at(row, column))
            .into()
    };
    let mut expected = average(&padded, 0);
    let mut second = Vec::new();
    for j in 0..2 {
        for t in 0..8 {
            let first = modulus(&padded, &morlet(N, j, t));
            expected.extend(average(&first, j));
            for coarser in (0..8).filter(|_| j == 0) {
                second.extend(average(&modulus(&first, &morlet(N, 1, coarser)), 1));
            }
        }
    }
    expected.extend(second);
    let found = coefficients(&image);
    assert_eq!(found.len(), expected.len());
    for (number, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        assert!(
            (f64::from(found) - expected).abs() < 3e-6,
            "{number}: {found} {expected}"
        );
    }
}

#[test]
fn waves_have_no_mean_and_the_average_has_all_of_it() {
    for (j, t) in [(0, 0), (0, 5), (1, 3), (1, 7)] {
        let sums = morlet(36, j, t)
            .iter()
            .fold((0.0, 0.0), |sum, w| (sum.0 + w.0, sum.1 + w.1));
        assert!(f64::hypot(sums.0, sums.1) < 1e-12, "{j} {t}: {sums:?}");
    }
    for level in 0..SIZES_OF_AVERAGES {
        let sum: f64 = gaussian(36 >> level, level).iter().sum();
        assert!((sum - 1.0).abs() < 1e-3, "{level}: {sum}");
    }
}

const SIZES_OF_AVERAGES: usize = 2;

/// Layers do not expand distances: the energies of the filters add up to at most 1 at every
/// frequency (Littlewood and Paley), so images of padded distance `d` have coefficients, each
/// standing for 16 pixels, of distance at most about `d` (thinning out folds a little energy back).
#[test]
fn images_do_not_move_apart() {
    let mut random = pictures::stream();
    let images: Vec<Vec<f32>> = (0..6).map(|_| pictures::picture(28, &mut random)).collect();
    let spread = |image: &[f32]| -> Vec<f32> {
        let pixels: Vec<Real> = image.iter().map(|&pixel| [pixel; LANES]).collect();
        Transform::new(28).unwrap().padded(&pixels)
    };
    for left in 0..images.len() {
        for right in 0..left {
            let apart = distance(&spread(&images[left]), &spread(&images[right]));
            let after = distance(&coefficients(&images[left]), &coefficients(&images[right]));
            let after = after * STRIDE as f64;
            assert!(
                after < 1.06 * apart && after > 0.1 * apart,
                "{after} {apart}"
            );
        }
    }
}

/// What moves by one pixel stays nearly where it was: its coefficients move by less than a third of
/// what its pixels move.
#[test]
fn a_small_shift_moves_little() {
    let mut random = pictures::stream();
    for _ in 0..5 {
        let mut image = pictures::picture(28, &mut random);
        // A dark border, so that nothing comes in at the side.
        for (place, pixel) in image.iter_mut().enumerate() {
            let inside = |place: usize| (6..22).contains(&place);
            *pixel *= f32::from(u8::from(inside(place / 28) && inside(place % 28)));
        }
        let mut moved = image.clone();
        moved.rotate_right(1);
        let length = |values: &[f32]| distance(values, &vec![0.0; values.len()]);
        let pixels = distance(&image, &moved) / length(&image);
        let (before, after) = (coefficients(&image), coefficients(&moved));
        let waves = distance(&before, &after) / length(&before);
        assert!(waves < pixels / 2.0, "{waves} {pixels}");
    }
}

#[test]
fn a_record_has_the_same_bits_alone_sparse_and_by_any_number_of_threads() {
    let mut random = pictures::stream();
    let images: Vec<Vec<f32>> = (0..19).map(|_| pictures::picture(8, &mut random)).collect();
    let map = map(64);
    let all = map.apply(dense(&images)).unwrap();
    assert_eq!((all.rows(), all.columns()), (19, map.outputs()));
    assert_eq!(map.apply_by(dense(&images), 3).unwrap(), all);
    for (row, image) in images.iter().enumerate() {
        let alone = map.apply(dense(std::slice::from_ref(image))).unwrap();
        assert_eq!(alone.full_row(0), all.full_row(row));
        assert!((all.squared_norms()[row] - 1.0).abs() < 1e-6);
    }
    let stored: Vec<u32> = (0..64).filter(|&i| images[1][i as usize] != 0.0).collect();
    let values = stored.iter().map(|&i| images[1][i as usize]).collect();
    let sparse = SparseRows::new(64, vec![0, stored.len()], stored, values).unwrap();
    let sparse = Dataset::new(Features::Sparse(sparse), vec![0], 2).unwrap();
    assert_eq!(map.apply(sparse).unwrap().full_row(0), all.full_row(1));
}

#[test]
fn no_record_makes_it_fail() {
    let huge = |i: usize| {
        if i.is_multiple_of(3) {
            LARGEST_VALUE
        } else {
            -LARGEST_VALUE
        }
    };
    let images = vec![
        vec![0.0; 64],
        vec![0.7; 64],
        (0..64).map(huge).collect(),
        vec![f32::MIN_POSITIVE / 4.0; 64],
        (0..64)
            .map(|i| f32::from(u8::from(i == 9)) * 1e-30)
            .collect(),
    ];
    let all = map(64).apply(dense(&images)).unwrap();
    assert!(
        all.squared_norms()
            .iter()
            .all(|norm| (norm - 1.0).abs() < 1e-6)
    );
    assert_eq!(all.full_row(0), all.full_row(1), "blank is blank");
    let moved = dense(&images[2..3])
        .with_offset(vec![LARGEST_VALUE; 64])
        .unwrap();
    assert!((map(64).apply(moved).unwrap().squared_norms()[0] - 1.0).abs() < 1e-6);
}

/// `P` makes the pictures' channels equally loud, but for what is empty in them: the moments of
/// what it makes of them are `M / (M + c)`, of which no direction exceeds one.
#[test]
fn mixing_flattens_the_pictures() {
    let transform = Transform::new(8).unwrap();
    let mixing = mixing(&transform, 8);
    for (row, weights) in mixing.chunks_exact(CHANNELS).enumerate() {
        for (column, &weight) in weights.iter().enumerate() {
            let other = mixing[column * CHANNELS + row];
            assert!((weight - other).abs() <= 1e-3 * weight.abs().max(1.0));
        }
        // Never louder than what fills the ridge alone.
        assert!(weights[row] > 0.0 && f64::from(weights[row]) <= 1.001 / RIDGE.sqrt());
    }
    let diagonal = |row: usize| mixing[row * CHANNELS + row];
    assert!(
        diagonal(CHANNELS - 1) > 10.0 * diagonal(0),
        "fine texture is raised over light"
    );
}

#[test]
fn other_shapes_are_refused() {
    for (pixels, reason) in [(783, "square"), (49, "8x8"), (129 * 129, "8x8 to 128x128")] {
        let error = FeatureMap::new(FeatureKind::Scattering, pixels).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    for side in SIDES {
        assert!(Transform::places_of(side) > 0);
    }
    // The largest factor of a padded side is below that of the transform.
    assert!(
        SIDES
            .map(|side| STRIDE * ((side + STRIDE) / STRIDE + 1))
            .all(|n| n / STRIDE <= 61)
    );
}
