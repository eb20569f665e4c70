use chacha20::ChaCha20Rng;
use rand::{Rng, SeedableRng};

use super::*;

fn curve(x: f64) -> f64 {
    LEVELS as f64 * (-x * x / 2.0).exp()
}

fn slots() -> Vec<Slot> {
    (0..1u64 << SLOT_BITS)
        .map(|slot| RejectionTable::get().slot(slot << (64 - SLOT_BITS)))
        .collect()
}

#[test]
fn the_boxes_cover_the_curve() {
    let slots = slots();
    let count = |wanted: fn(&Slot) -> bool| slots.iter().filter(|slot| wanted(slot)).count();
    assert_eq!(count(|slot| *slot == Slot::Tail), 1);
    // Counted independently: 4079 boxes, 3822 of them inside.
    assert_eq!(count(|slot| *slot == Slot::Empty), 4096 - 1 - 4079);
    assert_eq!(count(|slot| matches!(slot, Slot::Inside { .. })), 3822);
    for cell in 0..CELLS as u64 {
        let (left, right) = (cell as f64 / 32.0, (cell + 1) as f64 / 32.0);
        let inside = (slots.iter())
            .filter(|slot| **slot == Slot::Inside { cell })
            .count();
        let crossed: Vec<u64> = (slots.iter())
            .filter_map(|slot| match slot {
                Slot::Crossed { cell: c, level } if *c == cell => Some(*level),
                _ => None,
            })
            .collect();
        // Inside boxes lie under the lowest point, crossed ones follow without a gap up to the
        // highest.
        assert_eq!(inside, curve(right).floor() as usize);
        let top = curve(left).ceil() as u64;
        assert_eq!(crossed, (inside as u64..top).collect::<Vec<_>>());
    }
}

#[test]
fn the_tail_covers_the_curve() {
    for rectangle in 0..TAIL_RECTANGLES as i32 {
        let height = 2f64.powi(-(rectangle + 6));
        // Logarithms: the curve vanishes among the floats.
        let x = f64::from(TAIL_START as i32 + rectangle);
        assert!((LEVELS as f64).ln() - x * x / 2.0 < height.ln());
    }
    // A slot has the area of a box: the rectangles share it as 2^-(j+1), and one has width 1.
    let area = 1.0 / 32.0;
    let shares: f64 = (0..64).map(|rectangle| 2f64.powi(-(rectangle + 6))).sum();
    assert_eq!(shares, area);
}

#[test]
fn heights_enclose_the_curve() {
    for (cell, &(lower, upper)) in RejectionTable::get().heights.iter().enumerate() {
        let exact = curve(cell as f64 / 32.0) * 2f64.powi(57);
        // One unit of rounding, and one more where the height is a whole number.
        assert!(upper - lower <= 2);
        assert!((lower as f64 - exact).abs() <= 1.0 + exact * 1e-14);
    }
}

#[test]
fn growth_is_enclosed() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    for round in 0..2000u32 {
        // All below 0.16, small ones included.
        let exponent = (rng.next_u64() / 7) >> (round % 60);
        let numerator = BigInteger::from(u128::from(exponent));
        let (lower, upper) = (growth_lower(exponent), growth_upper(exponent));
        let exact_upper = exponential_upper(&numerator, 64, 200);
        let exact_lower = exponential_lower(&numerator, 64, 200);
        let natural =
            |value: u64| BigInteger::from(u128::from(value)).shifted_left(200 - GROWTH_BITS);
        assert!(natural(lower) <= exact_lower && exact_upper <= natural(upper));
        assert!(upper - lower < 100);
    }
}

/// A generator for questions that must not need one.
struct NoWords;

impl rand::TryRng for NoWords {
    type Error = std::convert::Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        panic!("no word should be drawn")
    }
    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        panic!("no word should be drawn")
    }
    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        panic!("no word should be drawn")
    }
}

impl rand::TryCryptoRng for NoWords {}

fn exactly<R: CryptoRng>(rng: &mut R, cell: u64, fraction: u64, level: u64, height: u64) -> bool {
    under_curve_exactly(
        rng,
        &mut Prefix::new(cell << FRACTION_BITS | fraction, POSITION_BITS),
        level,
        &mut Prefix::new(height, 64),
        &BigInteger::from(u128::from(LEVELS)),
    )
}

#[test]
fn the_fast_test_is_the_exact_test() {
    let table = RejectionTable::get();
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    let crossed: Vec<_> = (slots().into_iter())
        .filter_map(|slot| match slot {
            Slot::Crossed { cell, level } => Some((cell, level)),
            _ => None,
        })
        .collect();
    let (mut under, mut tests) = (0, 0);
    for &(cell, level) in crossed.iter().cycle().take(8 * crossed.len()) {
        let (fraction, height) = (rng.next_u64() >> 13, rng.next_u64());
        let fast = table.under_curve(cell, fraction, level, height).unwrap();
        assert_eq!(fast, exactly(&mut NoWords, cell, fraction, level, height));
        let x = (cell as f64 + fraction as f64 / 2f64.powi(51)) / 32.0;
        let margin = curve(x) - level as f64 - height as f64 / 2f64.powi(64);
        assert!(margin.abs() < 1e-9 || fast == (margin > 0.0));
        under += u64::from(fast);
        tests += 1;
    }
    assert!(under > tests / 10 && under < tests * 9 / 10);
}

#[test]
fn near_the_curve_digits_are_drawn_until_they_decide() {
    let table = RejectionTable::get();
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let (mut met, mut depends) = (0, 0);
    for slot in slots() {
        let Slot::Crossed { cell, level } = slot else {
            continue;
        };
        let fraction = rng.next_u64() >> 13;
        let x = (cell as f64 + fraction as f64 / 2f64.powi(51)) / 32.0;
        if !(0.01..0.99).contains(&(curve(x) - level as f64)) {
            continue;
        }
        met += 1;
        // The least height that is not certainly under, and the least that is certainly not.
        let threshold = |certain: fn(Option<bool>) -> bool| {
            let (mut low, mut high) = (0u64, u64::MAX);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if certain(table.under_curve(cell, fraction, level, middle)) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            high
        };
        let first_doubt = threshold(|answer| answer == Some(true));
        let last_doubt = threshold(|answer| answer != Some(false)) - 1;
        // Doubt is rare, and covers what the digits of x do not tell: at least the width of f over
        // 2^-56.
        assert!(last_doubt - first_doubt < 1 << 20);
        assert_eq!(table.under_curve(cell, fraction, level, first_doubt), None);
        // Just outside of doubt the exact test agrees without drawing.
        assert!(exactly(
            &mut NoWords,
            cell,
            fraction,
            level,
            first_doubt - 1
        ));
        assert!(!exactly(
            &mut NoWords,
            cell,
            fraction,
            level,
            last_doubt + 1
        ));
        // Within, digits decide: zeros (the smallest numbers) keep the point under the curve at
        // least as long as ones do, and from a certain height on neither does.
        let stride = 1 + ((last_doubt - first_doubt) / 64) as usize;
        let mut before = (true, true);
        for height in (first_doubt..=last_doubt).step_by(stride) {
            let zeros = exactly(&mut Constant(0), cell, fraction, level, height);
            let ones = exactly(&mut Constant(u64::MAX), cell, fraction, level, height);
            assert!(zeros >= ones && zeros <= before.0 && ones <= before.1);
            depends += u64::from(zeros != ones);
            before = (zeros, ones);
        }
    }
    // That the digits matter somewhere is the point of drawing them.
    assert!(depends > met);
    assert!(met > 100);
}

/// One word for ever.
struct Constant(u64);

impl rand::TryRng for Constant {
    type Error = std::convert::Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(self.0 as u32)
    }
    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.0)
    }
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        bytes.fill(self.0 as u8);
        Ok(())
    }
}

impl rand::TryCryptoRng for Constant {}

#[test]
fn the_digits_that_follow_decide() {
    // x = 1 and f(1) = exp(-1/2) = 0.606..., 98 f(1) = 59.440...: a height of its first 64 digits
    // is under or over the curve as x and w go on: with zeros (smaller) under, with ones (larger)
    // over.
    let level = 59;
    let bounds = exponential_lower(&BigInteger::from(1), 1, 256);
    let curve = BigInteger::from(98)
        .shifted_left(256 + 64)
        .quotient_floor(&bounds)
        .unwrap();
    let height = (curve - (level << 64)) as u64;
    assert_eq!(
        RejectionTable::get().under_curve(32, 0, level as u64, height),
        None
    );
    assert!(exactly(&mut Constant(0), 32, 0, level as u64, height));
    assert!(!exactly(
        &mut Constant(u64::MAX),
        32,
        0,
        level as u64,
        height
    ));
}

#[test]
fn the_tail_has_the_law_of_the_tail() {
    let mut rng = ChaCha20Rng::seed_from_u64(4);
    let trials = 200_000;
    let found: Vec<f64> = (0..trials)
        .filter_map(|_| RejectionTable::try_tail(&mut rng))
        .map(|position| position.head as f64 / 2f64.powi(56))
        .collect();
    let beyond = |x: f64| libm::erfc(x / 2f64.sqrt());
    // Area under the curve over the area of a slot; a correct tail fails for one seed in 10^6 (4.9
    // deviations).
    let rate = LEVELS as f64 * 32.0 * (std::f64::consts::PI / 2.0).sqrt() * beyond(5.0);
    let expected = rate * f64::from(trials);
    assert!((found.len() as f64 - expected).abs() < 4.9 * expected.sqrt());
    // Conditional law, by Dvoretzky-Kiefer-Wolfowitz at 10^-6.
    let mut found = found;
    found.sort_by(f64::total_cmp);
    assert!(found[0] >= 5.0);
    let limit = (2e6f64.ln() / (2.0 * found.len() as f64)).sqrt();
    for (index, &x) in found.iter().enumerate() {
        let exact = 1.0 - beyond(x) / beyond(5.0);
        assert!((exact - index as f64 / found.len() as f64).abs() < limit);
    }
}
