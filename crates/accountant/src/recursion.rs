//! Recursive gradient estimates: clients send increments, and the server adds them up.
//!
//! ```text
//! a round that starts anew   r = 1/b sum_j C_G(g_j(x_t))                           + N(0, sigma^2)
//! any other round            r = 1/b sum_j C_H(C_G(g_j(x_t)) - a C_G(g_j(x_{t-1}))) + N(0, (z s sigma)^2)
//! the server                 v = r, or v = a v + r;  x_{t+1} = x_t - eta (v + grad R(x_t))
//! ```
//!
//! `C_G` clips to norm `G`, `C_H` to `H = s G`. The scale `s` is a function of public models and
//! public constants, and noise follows it: divided by `s`, every increment is a round of SGD with
//! clip `G` and noise `z sigma`. So with equal ratios of noise to clip (`z = 1`) a run costs what
//! as many rounds of SGD cost, and otherwise what rounds with two noise levels do
//! (`docs/privacy.md`, rounds on a public scale).
//!
//! | `a` | starts anew | is |
//! | --- | --- | --- |
//! | 0 | always | SGD |
//! | `1 - gamma` | in the first round | DP-SRM, with many clients LDP-SRM (PriSMA) |
//! | 1 | every `Q` rounds | LDP-SPIDER, DIFF2 |

use crate::error::{EventError, check_range};

/// The smallest scale: far above the rounding of a difference of two gradients, which is relative
/// to the gradients.
const SMALLEST_SCALE: f64 = 1.0 / (1u64 << 12) as f64;

/// How increments are made, bounded and noised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recursion {
    /// `a`: how much of its velocity the server keeps in a round that does not start anew.
    pub keep: f64,
    /// `Q`: after how many rounds the recursion starts anew; `None`: never.
    pub period: Option<u32>,
    /// What bounds an increment.
    pub increments: IncrementClip,
    /// `z`, at least 1: the noise of increments in units of their clip, over that of the rounds
    /// that start anew. Increments are many and add up, so that they may need more.
    pub noise_ratio: f64,
}

/// The bound `H` on each record's increment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IncrementClip {
    /// The same in every round.
    Fixed(f64),
    /// What records can reach whose gradients change at most this much per unit of distance:
    /// `H = (1 - a) G + a L |x_t - x_{t-1}|`.
    Smooth(f64),
}

impl Recursion {
    /// The recursive momentum of DP-SRM: a tenth of a new gradient in every round, and increments
    /// bounded by `clip`.
    #[must_use]
    pub fn momentum(clip: f64) -> Self {
        Recursion {
            keep: 0.9,
            period: None,
            increments: IncrementClip::Fixed(clip),
            noise_ratio: 1.0,
        }
    }

    /// Refuses numbers that make no sense.
    ///
    /// # Errors
    /// Which one.
    pub fn check(&self) -> Result<(), EventError> {
        let Recursion {
            keep, noise_ratio, ..
        } = *self;
        let holds = (0.0..=1.0).contains(&keep);
        check_range("what the recursion keeps", "[0, 1]", keep, holds)?;
        let holds = (1.0..=1e6).contains(&noise_ratio);
        check_range("the noise ratio", "[1, 1e6]", noise_ratio, holds)?;
        let (name, bound) = match self.increments {
            IncrementClip::Fixed(clip) => ("the difference clip", clip),
            IncrementClip::Smooth(smoothness) => ("the smoothness", smoothness),
        };
        let holds = bound > 0.0 && bound.is_finite();
        check_range(name, "(0, infinity)", bound, holds)?;
        let period = self.period.map_or(1.0, f64::from);
        check_range("the period", "[1, infinity)", period, period >= 1.0)
    }

    /// Whether the recursion starts anew in `round`, counted from 0. One that keeps nothing does in
    /// every round.
    #[must_use]
    pub fn starts_anew(&self, round: u32) -> bool {
        self.keep == 0.0
            || self
                .period
                .map_or(round == 0, |period| round.is_multiple_of(period))
    }

    /// In how many of the first `rounds` rounds it starts anew.
    #[must_use]
    pub fn starts(&self, rounds: u64) -> u64 {
        match self.keep {
            0.0 => rounds,
            _ => starts(self.period, rounds),
        }
    }

    /// `s = H/G`, for models at this distance: at most `1 + a`, which no difference of two clipped
    /// gradients exceeds, and not so small that rounding would count.
    #[must_use]
    pub fn scale(&self, clip: f64, distance: f64) -> f64 {
        let scale = match self.increments {
            IncrementClip::Fixed(bound) => bound / clip,
            IncrementClip::Smooth(smoothness) => {
                (1.0 - self.keep) + self.keep * smoothness * distance / clip
            }
        };
        // `min` takes the other one where the distance is no number.
        scale.min(1.0 + self.keep).max(SMALLEST_SCALE)
    }

    /// The largest scale of any round, the rounds that start anew included.
    #[must_use]
    pub fn largest_scale(&self, clip: f64) -> f64 {
        self.scale(clip, f64::INFINITY).max(1.0)
    }

    /// The two levels of noise of its rounds, where there are two.
    #[must_use]
    pub fn noise_levels(&self) -> Option<NoiseLevels> {
        let one = self.noise_ratio == 1.0 || self.keep == 0.0 || self.period == Some(1);
        (!one).then_some(NoiseLevels {
            period: self.period,
            ratio: self.noise_ratio,
        })
    }
}

/// Two levels of noise in one run, in units of what is released: `sigma` in the first round of
/// every period, `ratio` times as much in all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseLevels {
    /// Rounds of a period; `None`: the run is one period.
    pub period: Option<u32>,
    /// At least 1, so that whoever overlooks it counts too much.
    pub ratio: f64,
}

impl NoiseLevels {
    /// Of the first `rounds` rounds, how many have the first level, and how many the second.
    #[must_use]
    pub fn split(&self, rounds: u64) -> (u64, u64) {
        let first = starts(self.period, rounds);
        (first, rounds - first)
    }
}

/// The number of periods that `rounds` rounds begin.
fn starts(period: Option<u32>, rounds: u64) -> u64 {
    match period {
        Some(period) => rounds.div_ceil(u64::from(period.max(1))),
        None => rounds.min(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_as_they_come() {
        for (keep, period) in [(0.9, None), (1.0, Some(1)), (1.0, Some(7)), (0.0, None)] {
            let recursion = Recursion {
                keep,
                period,
                ..Recursion::momentum(1.0)
            };
            let mut count = 0;
            for round in 0..40 {
                assert_eq!(recursion.starts(u64::from(round)), count);
                count += u64::from(recursion.starts_anew(round));
            }
        }
    }

    #[test]
    fn scales_stay_between_what_rounding_allows_and_what_clips_reach() {
        let smooth = |keep, smoothness| Recursion {
            keep,
            increments: IncrementClip::Smooth(smoothness),
            ..Recursion::momentum(1.0)
        };
        assert_eq!(smooth(1.0, 0.5).scale(2.0, 0.4), 0.1);
        assert_eq!(smooth(0.75, 0.5).scale(2.0, 0.4), 0.325);
        assert_eq!(smooth(1.0, 0.5).scale(2.0, 0.0), SMALLEST_SCALE);
        for distance in [1e300, f64::INFINITY, f64::NAN] {
            assert_eq!(smooth(0.75, 0.5).scale(2.0, distance), 1.75);
        }
        assert_eq!(Recursion::momentum(0.5).scale(2.0, f64::NAN), 0.25);
        assert_eq!(Recursion::momentum(50.0).scale(2.0, 0.0), 1.9);
        assert_eq!(Recursion::momentum(0.5).largest_scale(2.0), 1.0);
        assert_eq!(smooth(1.0, 0.5).largest_scale(2.0), 2.0);
    }

    #[test]
    fn senseless_numbers_are_refused() {
        let good = Recursion::momentum(1.0);
        assert!(good.check().is_ok());
        let bad = [
            Recursion { keep: -0.1, ..good },
            Recursion { keep: 1.1, ..good },
            Recursion {
                keep: f64::NAN,
                ..good
            },
            Recursion {
                noise_ratio: 0.9,
                ..good
            },
            Recursion {
                noise_ratio: f64::INFINITY,
                ..good
            },
            Recursion {
                period: Some(0),
                ..good
            },
            Recursion::momentum(0.0),
            Recursion::momentum(f64::INFINITY),
            Recursion {
                increments: IncrementClip::Smooth(-1.0),
                ..good
            },
        ];
        for recursion in bad {
            assert!(recursion.check().is_err(), "{recursion:?}");
        }
    }
}
