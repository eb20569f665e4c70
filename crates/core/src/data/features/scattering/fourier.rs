//! The discrete Fourier transform of small square grids, of eight records side by side.
//!
//! ```text
//!     X[u, v] = sum over i, j of x[i, j] exp(-2 pi i (u i + v j) / n)
//! ```
//!
//! Stockham's algorithm with one stage for every factor of `n`: 4, 3 and 2 by their butterflies,
//! other primes by the definition. Every number is eight numbers, one of each record, so that
//! vector instructions work on eight records and none can touch another's bits.
//!
//! **Guarantee.** Only `+ - *` in a fixed order on roots from a portable library: the same bits on
//! every machine. **Cost.** Some `10 n^2 log2 n` operations a record.

/// Records that are transformed together.
pub(super) const LANES: usize = 8;

/// A real number of each record.
pub(super) type Real = [f32; LANES];

/// A complex number of each record.
#[derive(Clone, Copy, Default)]
pub(super) struct Complex {
    pub(super) re: Real,
    pub(super) im: Real,
}

/// The largest prime factor that a side may have.
const LARGEST_PRIME: usize = 61;

/// The transform for one side.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fourier {
    side: usize,
    factors: Vec<usize>,
    /// `exp(-2 pi i k / side)`.
    roots: Vec<(f32, f32)>,
}

impl Fourier {
    /// The transform of `side x side` grids; `None` if a prime factor is too large.
    pub(super) fn new(side: usize) -> Option<Fourier> {
        let mut factors = Vec::new();
        let mut rest = side;
        for factor in [4, 2, 3].into_iter().chain((5..=LARGEST_PRIME).step_by(2)) {
            while rest.is_multiple_of(factor) {
                factors.push(factor);
                rest /= factor;
            }
        }
        let roots = (0..side).map(|k| {
            let angle = -std::f64::consts::TAU * k as f64 / side as f64;
            (libm::cos(angle) as f32, libm::sin(angle) as f32)
        });
        (rest == 1).then(|| Fourier {
            side,
            factors,
            roots: roots.collect(),
        })
    }

    /// Numbers along a side.
    pub(super) fn side(&self) -> usize {
        self.side
    }

    /// Transforms a grid in place.
    #[inline(always)]
    pub(super) fn grid(&self, grid: &mut [Complex], scratch: &mut Scratch) {
        let Scratch {
            turned,
            line,
            other,
        } = scratch;
        turned.resize(grid.len(), Complex::default());
        line.resize(self.side, Complex::default());
        other.resize(self.side, Complex::default());
        self.lines(grid, turned, line, other);
        self.lines(turned, grid, line, other);
    }

    /// Transforms every line of `from` into a column of `into`.
    #[inline(always)]
    fn lines(
        &self,
        from: &[Complex],
        into: &mut [Complex],
        line: &mut [Complex],
        other: &mut [Complex],
    ) {
        for (number, values) in from.chunks_exact(self.side).enumerate() {
            line.copy_from_slice(values);
            let (mut now, mut next) = (&mut *line, &mut *other);
            let (mut length, mut stride) = (self.side, 1);
            for &radix in &self.factors {
                length /= radix;
                self.stage(radix, length, stride, now, next);
                std::mem::swap(&mut now, &mut next);
                stride *= radix;
            }
            let column = into[number..].iter_mut().step_by(self.side);
            column.zip(&*now).for_each(|(place, value)| *place = *value);
        }
    }

    /// One stage: `radix` numbers at a distance of `length * stride` become `radix` neighbours.
    #[inline(always)]
    fn stage(
        &self,
        radix: usize,
        length: usize,
        stride: usize,
        from: &[Complex],
        into: &mut [Complex],
    ) {
        let distance = length * stride;
        for p in 0..length {
            for q in 0..stride {
                let first = p * stride + q;
                let at = |k: usize| from[first + k * distance];
                let mut put = |k: usize, value: Complex| {
                    let root = self.roots[p * k * stride];
                    let value = if p == 0 { value } else { value.times(root) };
                    into[(p * radix + k) * stride + q] = value;
                };
                match radix {
                    2 => {
                        put(0, at(0).plus(at(1)));
                        put(1, at(0).minus(at(1)));
                    }
                    3 => {
                        let (sum, difference) = (at(1).plus(at(2)), at(1).minus(at(2)));
                        // exp(-2 pi i / 3) = -1/2 - i sqrt(3)/2.
                        let middle = at(0).plus(sum.scaled(-0.5));
                        let turn = difference.scaled(0.866_025_4).turned();
                        put(0, at(0).plus(sum));
                        put(1, middle.plus(turn));
                        put(2, middle.minus(turn));
                    }
                    4 => {
                        let (even, odd) = (at(0).plus(at(2)), at(1).plus(at(3)));
                        let (low, turn) = (at(0).minus(at(2)), at(1).minus(at(3)).turned());
                        put(0, even.plus(odd));
                        put(1, low.plus(turn));
                        put(2, even.minus(odd));
                        put(3, low.minus(turn));
                    }
                    _ => {
                        for k in 0..radix {
                            let turned = |i: usize| {
                                at(i).times(self.roots[i * k % radix * (self.side / radix)])
                            };
                            let sum = (1..radix).fold(at(0), |sum, i| sum.plus(turned(i)));
                            put(k, sum);
                        }
                    }
                }
            }
        }
    }
}

/// Memory of a transform, reused.
#[derive(Default)]
pub(super) struct Scratch {
    turned: Vec<Complex>,
    line: Vec<Complex>,
    other: Vec<Complex>,
}

impl Complex {
    #[inline(always)]
    fn plus(self, other: Complex) -> Complex {
        Complex {
            re: std::array::from_fn(|lane| self.re[lane] + other.re[lane]),
            im: std::array::from_fn(|lane| self.im[lane] + other.im[lane]),
        }
    }

    #[inline(always)]
    fn minus(self, other: Complex) -> Complex {
        Complex {
            re: std::array::from_fn(|lane| self.re[lane] - other.re[lane]),
            im: std::array::from_fn(|lane| self.im[lane] - other.im[lane]),
        }
    }

    #[inline(always)]
    fn scaled(self, factor: f32) -> Complex {
        Complex {
            re: self.re.map(|value| value * factor),
            im: self.im.map(|value| value * factor),
        }
    }

    /// Times `-i`.
    #[inline(always)]
    fn turned(self) -> Complex {
        Complex {
            re: self.im,
            im: self.re.map(|value| -value),
        }
    }

    #[inline(always)]
    fn times(self, (re, im): (f32, f32)) -> Complex {
        Complex {
            re: std::array::from_fn(|lane| self.re[lane] * re - self.im[lane] * im),
            im: std::array::from_fn(|lane| self.re[lane] * im + self.im[lane] * re),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, summand by summand, of every lane; sides with every kind of factor.
    #[test]
    fn grids_become_what_the_definition_says() {
        for side in [1, 2, 3, 4, 5, 6, 12, 14, 18, 22, 36] {
            let fourier = Fourier::new(side).unwrap();
            let value = |i: usize, lane: usize| (i as f32 * 0.37 + lane as f32).sin();
            let mut grid: Vec<Complex> = (0..side * side)
                .map(|i| Complex {
                    re: std::array::from_fn(|lane| value(i, lane)),
                    im: std::array::from_fn(|lane| value(i + 7, 3 * lane)),
                })
                .collect();
            let before = grid.clone();
            fourier.grid(&mut grid, &mut Scratch::default());
            for place in [0, side * side / 2, side * side - 1] {
                let (u, v) = (place / side, place % side);
                for lane in [0, LANES - 1] {
                    let mut sum = (0.0, 0.0);
                    for (i, value) in before.iter().enumerate() {
                        let turns = (u * (i / side) + v * (i % side)) as f64 / side as f64;
                        let (sine, cosine) = (-std::f64::consts::TAU * turns).sin_cos();
                        let (re, im) = (f64::from(value.re[lane]), f64::from(value.im[lane]));
                        sum = (
                            sum.0 + re * cosine - im * sine,
                            sum.1 + re * sine + im * cosine,
                        );
                    }
                    let found = (grid[place].re[lane], grid[place].im[lane]);
                    let off = (f64::from(found.0) - sum.0).hypot(f64::from(found.1) - sum.1);
                    assert!(off < 1e-6 * (side * side) as f64, "{side} {place}: {off}");
                }
            }
        }
    }

    #[test]
    fn sides_with_a_large_prime_are_refused() {
        assert!(Fourier::new(4 * 61).is_some());
        assert!(Fourier::new(4 * 67).is_none());
    }
}
