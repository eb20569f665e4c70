use chacha20::ChaCha20Rng;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

use super::*;

fn norm_squared(record: &[i64]) -> u128 {
    record.iter().map(|&integer| square(integer)).sum()
}

fn quantized(grid: &Grid, values: &[f64]) -> Vec<i64> {
    let mut out = vec![0; values.len()];
    grid.quantize(values, &mut out);
    out
}

#[test]
fn bound_is_the_exact_floor() {
    let bound = |clip, divisor, exponent| {
        let grid = Grid::with_exponent(clip, divisor, exponent).unwrap();
        grid.bound_squared()
    };
    assert_eq!(bound(5.0, 4.0, -10), 1280 * 1280);
    assert_eq!(bound(1.0, 3.0, -20), (1u128 << 40) / 9);
    assert_eq!(bound(7.0, 3.0, -40), (49u128 << 80) / 9);
    // One unit in the last place below 1: floating-point squares round up to 2^40, the floor is one
    // less.
    let below_one = 1.0 - f64::EPSILON / 2.0;
    assert_eq!((below_one * 1048576.0f64).powi(2).round() as u128, 1 << 40);
    assert_eq!(bound(below_one, 1.0, -20), (1 << 40) - 1);
    assert_eq!(bound(1.0, 1.0 + f64::EPSILON, -20), (1 << 40) - 1);
    // 0.1 is 3602879701896397 / 2^55.
    let tenth = 3_602_879_701_896_397u128;
    assert_eq!(bound(0.1, 1.0, -30), (tenth * tenth) >> 50);
    // Extremes: only the ratio counts.
    assert_eq!(bound(1e300, 1e300, -20), 1 << 40);
    assert_eq!(bound(f64::from_bits(3), f64::from_bits(1), -20), 9 << 40);
    assert_eq!(bound(1.0, 1.0, -52), 1 << 104);
    assert_eq!(bound(1.0, 1.0, 0), 1);
}

#[test]
fn unusable_grids_are_refused() {
    let refused =
        |clip, divisor, exponent| Grid::with_exponent(clip, divisor, exponent).unwrap_err();
    let range = |error| matches!(error, NoiseError::BoundRange { .. });
    assert!(range(refused(1.0, 1.0, 1)));
    assert!(range(refused(1.0, 1.0, -53)));
    assert!(range(refused(1.0 + f64::EPSILON, 1.0, -52)));
    assert!(range(refused(1e300, 1e-300, -10)));
    assert!(range(refused(1e-300, 1e300, -10)));
    for exponent in [i32::MIN, -1022, 1022, i32::MAX] {
        assert!(matches!(
            refused(1.0, 1.0, exponent),
            NoiseError::GridExponent { .. }
        ));
    }
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            refused(bad, 1.0, -20),
            NoiseError::NotPositive { name: "clip", .. }
        ));
        assert!(matches!(
            refused(1.0, bad, -20),
            NoiseError::NotPositive {
                name: "divisor",
                ..
            }
        ));
        let error = Grid::new(1.0, 1.0, bad, 1).unwrap_err();
        assert!(matches!(
            error,
            NoiseError::NotPositive { name: "sigma", .. }
        ));
    }
    let term = TermBound {
        clip: 1.0,
        divisor: 1.0,
    };
    assert_eq!(
        GridPlan::new(1.0, 1, &[]).unwrap_err(),
        NoiseError::Empty { name: "term" }
    );
    let error = GridPlan::new(1.0, 0, &[term]).unwrap_err();
    assert_eq!(error, NoiseError::Empty { name: "coordinate" });
    // Noise 2^60 times the record.
    let error = GridPlan::new(2f64.powi(60), 1, &[term]).unwrap_err();
    assert!(matches!(error, NoiseError::TooCoarse { .. }));
}

#[test]
fn values_at_the_bound_and_around_it() {
    let grid = Grid::with_exponent(1.0, 1.0, -20).unwrap();
    let unit = 1i64 << 20;
    let up = 1.0 + f64::EPSILON;
    let down = 1.0 - f64::EPSILON / 2.0;
    assert_eq!(quantized(&grid, &[1.0, 0.0]), [unit, 0]);
    assert_eq!(quantized(&grid, &[-1.0, 0.0]), [-unit, 0]);
    assert_eq!(quantized(&grid, &[up, 0.0]), [unit, 0]);
    assert_eq!(quantized(&grid, &[down, 0.0]), [unit - 1, 0]);
    assert_eq!(quantized(&grid, &[1.001, 0.0]), [unit, 0]);
    // 3-4-5: exactly at the bound, and the same with one coordinate a step too long.
    assert_eq!(
        norm_squared(&quantized(&grid, &[0.75, 0.0])),
        786_432 * 786_432
    );
    let diagonal = [0.5; 4];
    assert_eq!(norm_squared(&quantized(&grid, &diagonal)), 1 << 40);
    let over = [0.5, 0.5, 0.5, 0.5 + 1.0 / unit as f64];
    let shortened = quantized(&grid, &over);
    assert!(norm_squared(&shortened) <= 1 << 40);
    assert!(
        shortened
            .iter()
            .all(|&integer| (unit / 2 - 2..=unit / 2).contains(&integer))
    );
    // Where the bound itself is no whole number of steps.
    let grid = Grid::with_exponent(0.1, 7.0, -30).unwrap();
    let at_clip = quantized(&grid, &[0.1]);
    assert_eq!(square(at_clip[0]), grid.bound_squared().isqrt().pow(2));
}

#[test]
fn what_is_no_number_is_zero_and_what_is_huge_is_clipped() {
    let grid = Grid::with_exponent(1.0, 1.0, -20).unwrap();
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
    assert_eq!(quantized(&grid, &values), [0, 0, 0, 1 << 19]);
    let huge = quantized(&grid, &[f64::MAX, -f64::MAX, f64::NAN, 1.0]);
    assert!(norm_squared(&huge) <= 1 << 40);
    assert_eq!(huge[0], -huge[1]);
    assert!((huge[0] as f64 / 2f64.powi(20) - 0.5f64.sqrt()).abs() < 2e-6);
    assert_eq!(huge[2..], [0, 0]);
    let many = quantized(&grid, &[f64::MAX; 1000]);
    assert!(norm_squared(&many) <= 1 << 40);
    assert!(
        many.iter()
            .all(|&integer| integer == many[0] && integer > 33_000)
    );
    let mut out = [0; 3];
    grid.quantize(&[f32::MAX, f32::NAN, -1.0f32], &mut out);
    assert_eq!(out, [1 << 20, 0, 0]);
}

/// Any pattern of bits, with the ordinary magnitudes well represented.
fn any_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        -2.0..2.0f64,
        (-60i32..60, -1.0..1.0f64).prop_map(|(power, value)| value * 2f64.powi(power)),
        Just(1.0),
        Just(1.0 + f64::EPSILON),
        Just(-1.0 - f64::EPSILON),
    ]
}

fn any_grid() -> impl Strategy<Value = Grid> {
    (0.5..2.0f64, -30i32..30, 1.0..1e5f64, 10i32..50).prop_map(|(clip, power, divisor, steps)| {
        let clip = clip * 2f64.powi(power);
        let exponent = (clip / divisor).log2().floor() as i32 - steps;
        Grid::with_exponent(clip, divisor, exponent).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_record_exceeds_the_bound(
        grid in any_grid(),
        values in prop::collection::vec(any_value(), 1..40),
    ) {
        prop_assert!(norm_squared(&quantized(&grid, &values)) <= grid.bound_squared());
    }

    #[test]
    fn extreme_parameters_keep_the_guarantee(
        clip in any::<u64>(),
        divisor in any::<u64>(),
        offset in -3i32..56,
        values in prop::collection::vec(any_value(), 1..8),
    ) {
        let (clip, divisor) = (f64::from_bits(clip).abs(), f64::from_bits(divisor).abs());
        let ratio = clip.log2() - divisor.log2();
        prop_assume!(ratio.is_finite());
        if let Ok(grid) = Grid::with_exponent(clip, divisor, ratio as i32 - offset) {
            let around: Vec<f64> = values.iter().map(|value| value * clip).collect();
            for values in [values, around] {
                prop_assert!(norm_squared(&quantized(&grid, &values)) <= grid.bound_squared());
            }
        }
    }

    #[test]
    fn truncation_is_toward_zero_and_small(
        grid in any_grid(),
        direction in prop::collection::vec(-1.0..1.0f64, 1..40),
        length in 0.0..0.999f64,
    ) {
        let norm = direction.iter().map(|value| value * value).sum::<f64>().sqrt().max(1e-9);
        let clip = grid.bound * grid.divisor * grid.step;
        let values: Vec<f64> = direction.iter().map(|value| value / norm * length * clip).collect();
        let step = grid.divisor * grid.step;
        for (&integer, &value) in quantized(&grid, &values).iter().zip(&values) {
            let back = integer as f64 * step;
            // Within one step, and never beyond the value but for the rounding of the float
            // products.
            prop_assert!((value - back).abs() <= step + clip * 1e-15);
            prop_assert!(back.abs() <= value.abs() * (1.0 + 1e-15));
        }
    }

    #[test]
    fn a_long_record_keeps_its_direction(
        grid in any_grid(),
        direction in prop::collection::vec(-1.0..1.0f64, 1..40),
        length in 1.001..1e12f64,
    ) {
        let norm = direction.iter().map(|value| value * value).sum::<f64>().sqrt();
        prop_assume!(norm > 1e-3);
        let clip = grid.bound * grid.divisor * grid.step;
        let values: Vec<f64> = direction.iter().map(|value| value / norm * length * clip).collect();
        for (&integer, &value) in quantized(&grid, &values).iter().zip(&direction) {
            let ideal = value / norm * grid.bound;
            prop_assert!((integer as f64 - ideal).abs() <= 1.0 + grid.bound * 1e-13);
        }
    }

    #[test]
    fn one_record_moves_a_sum_by_its_bound(
        grid in any_grid(),
        start in prop::collection::vec(prop_oneof![Just(i64::MAX - 3), Just(i64::MIN + 3), any::<i64>(), -1000..1000i64], 6),
        records in prop::collection::vec(prop::collection::vec(any_value(), 6), 1..12),
        other in prop::collection::vec(any_value(), 6),
        position: prop::sample::Index,
    ) {
        // Sums that saturate included: every other record is added in the same order.
        let position = position.index(records.len());
        let records: Vec<_> = records.iter().map(|record| quantized(&grid, record)).collect();
        let total = |replacement: Option<&[i64]>| {
            let mut sum = start.clone();
            for (index, record) in records.iter().enumerate() {
                match replacement {
                    Some(replacement) if index == position => grid.add(replacement, &mut sum),
                    _ => grid.add(record, &mut sum),
                }
            }
            sum
        };
        let distance = |a: &[i64], b: &[i64]| -> u128 {
            a.iter().zip(b).map(|(&x, &y)| u128::from(x.abs_diff(y)).pow(2)).sum()
        };
        let with = total(None);
        prop_assert!(distance(&with, &total(Some(&[0; 6]))) <= grid.bound_squared());
        let exchanged = total(Some(&quantized(&grid, &other)));
        prop_assert!(distance(&with, &exchanged) <= 4 * grid.bound_squared());
    }

    #[test]
    fn sums_do_not_depend_on_order(
        grid in any_grid(),
        records in prop::collection::vec(prop::collection::vec(any_value(), 3), 2..20),
        seed: u64,
    ) {
        prop_assume!(grid.capacity() >= 20);
        let mut records: Vec<_> = records.iter().map(|record| quantized(&grid, record)).collect();
        let total = |records: &[Vec<i64>]| {
            let mut sum = vec![0; 3];
            for record in records {
                grid.add(record, &mut sum);
            }
            sum
        };
        let forward = total(&records);
        let exact: Vec<i64> = (0..3)
            .map(|index| {
                let integers = records.iter().map(|record| i128::from(record[index]));
                integers.sum::<i128>() as i64
            })
            .collect();
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        for last in (1..records.len()).rev() {
            records.swap(last, rng.random_range(0..=last));
        }
        prop_assert_eq!(&forward, &exact);
        prop_assert_eq!(forward, total(&records));
    }

    #[test]
    fn two_terms_stay_within_the_sum_of_their_bounds(
        difference in prop::collection::vec(any_value(), 5),
        gradient in prop::collection::vec(any_value(), 5),
        clip in 0.01..10.0f64,
        share in 0.05..1.0f64,
        batch in 1.0..500.0f64,
        ratio in 1.0..50.0f64,
        multiplier in 0.1..100.0f64,
    ) {
        let difference_term = TermBound { clip: clip * share, divisor: batch };
        let terms = [difference_term, TermBound { clip, divisor: batch * ratio }];
        let plan = GridPlan::new(multiplier * clip / batch, 5, &terms).unwrap();
        let [on_batch, on_records] = plan.grids() else { panic!("two grids") };
        prop_assert_eq!(on_batch.exponent(), on_records.exponent());
        let a = quantized(on_batch, &difference);
        let b = quantized(on_records, &gradient);
        // |a + b| <= sqrt(A) + sqrt(B) in integers: 2 <a, b> <= 2 sqrt(A B).
        let product: i128 = a.iter().zip(&b).map(|(&x, &y)| i128::from(x) * i128::from(y)).sum();
        prop_assert!(norm_squared(&a) <= on_batch.bound_squared());
        prop_assert!(norm_squared(&b) <= on_records.bound_squared());
        let [a, b] = [on_batch, on_records].map(|grid| BigInteger::from(grid.bound_squared()));
        let product = BigInteger::from(product.unsigned_abs());
        prop_assert!(product.times(&product) <= a.times(&b));
    }

    #[test]
    fn without_a_difference_clip_the_coefficients_are_exact(
        gradient in prop::collection::vec(any_value(), 4),
        anchor in prop::collection::vec(any_value(), 4),
        clip in 0.01..10.0f64, batch in 1.0..500.0f64, ratio in 1i64..50,
    ) {
        let divisors = [batch, batch * ratio as f64];
        let terms = divisors.map(|divisor| TermBound { clip, divisor });
        let plan = GridPlan::new(clip / batch, 4, &terms).unwrap();
        let [on_batch, on_records] = plan.grids() else { panic!("two grids") };
        let g = quantized(on_batch, &gradient);
        let h = quantized(on_records, &anchor);
        let mut shift = vec![0; 4];
        on_batch.add(&g, &mut shift);
        on_records.add_multiple(&h, -ratio, &mut shift);
        on_records.add(&h, &mut shift);
        let naive: Vec<i64> = g.iter().zip(&h).map(|(&g, &h)| g - (ratio - 1) * h).collect();
        prop_assert_eq!(&shift, &naive);
        // (2 - rate) clip / batch in steps, rate = 1 / ratio; the float is off by a few units in
        // the last place.
        let bound = (2.0 - 1.0 / ratio as f64) * on_batch.bound;
        prop_assert!((norm_squared(&shift) as f64).sqrt() <= bound * (1.0 + 1e-15));
    }

    #[test]
    fn plans_guarantee_what_they_state(
        clip in 0.001..1000.0f64,
        divisor in 1.0..1e5f64,
        ratio in 1.0..1e3f64,
        multiplier in 0.01..1e3f64,
        dimension in 1usize..2_000_000,
    ) {
        let terms = [TermBound { clip, divisor }, TermBound { clip, divisor: divisor * ratio }];
        let sigma = multiplier * clip / divisor;
        let plan = GridPlan::new(sigma, dimension, &terms).unwrap();
        let scale = plan.noise().scale();
        prop_assert_eq!(scale, libm::ldexp(sigma, -plan.exponent()));
        prop_assert!((2f64.powi(20)..=2f64.powi(44)).contains(&scale));
        for grid in plan.grids() {
            let bias = grid.truncation_bound(dimension) / clip;
            prop_assert!(bias <= 2f64.powi(-10));
            prop_assert!(bias <= 2f64.powi(-20) || scale > 2f64.powi(43));
            prop_assert!(grid.capacity() >= 1 << 20);
        }
        // No finer than needed: a step twice as large would break the noise or (within the powers
        // of two it works with) the bias.
        let worst = plan.grids()[1].truncation_bound(dimension) / clip;
        prop_assert!(scale < 2f64.powi(21) || worst > 2f64.powi(-25));
    }
}

#[test]
fn a_sum_of_floats_is_more_sensitive_than_its_records() {
    // Why the sums are integers: above 2^24 single precision keeps even numbers only, and a record
    // of norm 1 moves this sum by 2.
    let before = 16_777_218.0f32;
    assert_eq!((before + 1.0) - (before + 0.0), 2.0);
    // The same on the grid: exactly one.
    let grid = Grid::with_exponent(1.0, 1.0, -20).unwrap();
    let before = [16_777_218i64 << 20];
    let mut with = before;
    grid.add(&quantized(&grid, &[1.0]), &mut with);
    assert_eq!(with[0] - before[0], 1 << 20);
}

#[test]
fn noised_sums_return_to_units() {
    let grid = Grid::new(1.0, 50.0, 0.1, 100).unwrap();
    let integers = [0, 1, -1, 123_456_789, -(1 << 52), i64::MAX];
    let mut doubles = [0.0; 6];
    grid.to_f64(&integers, &mut doubles);
    let step = 2f64.powi(grid.exponent());
    for (&value, &integer) in doubles.iter().zip(&integers[..5]) {
        assert_eq!(value / step, integer as f64);
    }
    let mut singles = [0.0; 6];
    grid.to_f32(&integers, &mut singles);
    for (&single, &double) in singles.iter().zip(&doubles) {
        assert_eq!(single, double as f32);
    }
}

#[test]
fn the_whole_mechanism() {
    // Records of norm 1 in 16 dimensions over a divisor of 50: the released mean is theirs, plus
    // Gaussian noise.
    let (clip, divisor, sigma, dimension, records) = (1.0, 50.0, 0.08, 16, 60);
    let plan = GridPlan::new(sigma, dimension, &[TermBound { clip, divisor }]).unwrap();
    let grid = &plan.grids()[0];
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let mut noise = vec![0; dimension];
    let mut squares = 0.0;
    let rounds = 4000;
    for _ in 0..rounds {
        plan.noise().fill(&mut rng, &mut noise);
        let mut sum = vec![0; dimension];
        for _ in 0..records {
            let record = quantized(grid, &vec![0.25; dimension]);
            grid.add(&record, &mut sum);
        }
        grid.add(&noise, &mut sum);
        let mut estimate = vec![0.0; dimension];
        grid.to_f64(&sum, &mut estimate);
        squares += (estimate.iter())
            .map(|value| (value - 0.25 * 60.0 / 50.0).powi(2))
            .sum::<f64>();
    }
    // A mean of 64000 squares: relative deviation sqrt(2 / 64000) = 0.0056; 6.2 of them, one seed
    // in 10^9.
    let variance = squares / (rounds * dimension) as f64;
    assert!((variance / (sigma * sigma) - 1.0).abs() < 6.2 * 0.0056);
}
