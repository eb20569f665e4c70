//! Where a pair's line is cut: tails that are given up, and cells between two cuts.

use crate::mixture::MixturePair;
use crate::normal;

/// How much of the largest losses may be counted as infinite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutoff {
    /// What giving up may add to delta in one round.
    pub(crate) tail: f64,
    /// An epsilon not below the one in question, or infinity: a loss `l` that is given up adds
    /// only its `exp(epsilon - l)`.
    pub(crate) epsilon: f64,
}

/// Normal tails at one point: positive the upper tail, negative minus the lower one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    tails: Vec<f64>,
}

impl MixturePair {
    /// Total variation distance: delta of one round at epsilon zero.
    pub(crate) fn total_variation(&self) -> f64 {
        let (mut low, mut high) = (-40.0, self.up.largest() + 40.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if self.at(middle).loss > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.mass_above(high) - self.other_mass_above(high)
    }

    /// Distance over which everything smooth about the pair changes: its largest slope, plus what
    /// the normal density itself does within its tails.
    pub(crate) fn roughness(&self) -> f64 {
        10.0 + 2.0 * (self.up.largest() + self.down.largest())
    }

    /// `P(low < y <= high)`.
    pub(crate) fn mass(&self, low: f64, high: f64) -> f64 {
        self.up
            .mean(|shift| normal::between(low - shift, high - shift))
    }

    /// Moves a cut to `point`; neighbouring cells share one.
    pub(crate) fn cut_at(&self, point: f64, cut: &mut Cut) {
        cut.tails.clear();
        for (shift, _) in self.up.parts() {
            let distance = point - shift;
            let tail = normal::upper_tail(distance.abs());
            cut.tails.push(if distance < 0.0 { -tail } else { tail });
        }
    }

    /// The mass between two cuts. Tails telescope, so the cells of a partition lose nothing.
    pub(crate) fn mass_between(&self, low: &Cut, high: &Cut) -> f64 {
        let mut mass = 0.0;
        for (part, (_, probability)) in self.up.parts().iter().enumerate() {
            let (from, to) = (low.tails[part], high.tails[part]);
            // Both above the shift: upper tails; both below: lower tails, stored negative.
            let same_side = from.is_sign_negative() == to.is_sign_negative();
            let between = if same_side {
                from - to
            } else {
                1.0 - to + from
            };
            mass += probability * between;
        }
        mass
    }

    /// The lowest point, nearly, above which giving everything up costs at most `cutoff.tail`: the
    /// probability under `P`, or that under `Q` times `exp(epsilon)`.
    pub(crate) fn upper_cut(&self, cutoff: Cutoff) -> f64 {
        let weight = cutoff.epsilon.exp();
        let cost = |point: f64| {
            self.mass_above(point)
                .min(weight * self.other_mass_above(point))
        };
        let (mut low, mut high) = (-40.0, self.up.largest() + 40.0);
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            // Not a number is infinity times zero: the probability under `P` decides.
            if cost(middle) > cutoff.tail {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// A point with at most `tail` of `P` below it, and hardly less.
    pub(crate) fn lower_cut(&self, tail: f64) -> f64 {
        let (mut low, mut high) = (-40.0, self.up.largest());
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if self.mass_below(middle) > tail {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjacency::Adjacency;
    use crate::mixture::ShiftMixture;

    #[test]
    fn cuts_leave_the_promised_tail() {
        let shifts = ShiftMixture::new(&[0.2, 1.4, 4.0], &[0.9, 0.07, 0.03]).unwrap();
        for pair in MixturePair::directions(&shifts, Adjacency::ZeroOut) {
            for tail in [1e-5, 1e-20, 1e-40] {
                let epsilon = f64::INFINITY;
                let cut = pair.upper_cut(Cutoff { tail, epsilon });
                let above = pair.mass_above(cut);
                assert!(above <= tail && above > 0.99 * tail);
                let near = pair.upper_cut(Cutoff { tail, epsilon: 0.0 });
                assert!(near <= cut && pair.at(near).loss > 0.0);
                let below = pair.mass_below(pair.lower_cut(tail));
                assert!(below <= tail && below > 0.99 * tail);
            }
        }
    }
}
