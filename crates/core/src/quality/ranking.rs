//! How well scores rank positive records above negative ones.
//!
//! The area under the ROC curve is the share of pairs of a positive and a negative record in which
//! the positive one has the higher score, ties counting half:
//!
//! ```text
//! AUC = sum over distinct scores of  p (N_below + n/2)  /  (P N)
//! ```
//!
//! with `p` positives and `n` negatives of that score. Scores are sorted once and counted in
//! integers, so the area is exact up to its last division.

use std::cmp::Ordering;

/// Points that a curve has at most.
const POINTS: usize = 200;

/// The ROC curve: which share of negatives (first) is taken for positive where which share of
/// positives (second) is found, from (0, 0) to (1, 1) by falling threshold. Long curves are thinned
/// to some 200 points, evenly along their length.
pub type Roc = Vec<(f64, f64)>;

/// Positives and negatives that share one score.
#[derive(Clone, Copy)]
struct Tie {
    positives: u64,
    negatives: u64,
}

/// The area under the ROC curve; `None` unless there are both kinds and all scores are numbers.
pub fn auc(scores: impl Iterator<Item = (f32, bool)>) -> Option<f64> {
    let ties = ties(scores)?;
    let (mut below, mut doubled, mut positives) = (0u64, 0u128, 0u64);
    for tie in ties.iter().rev() {
        doubled += u128::from(tie.positives) * u128::from(2 * below + tie.negatives);
        below += tie.negatives;
        positives += tie.positives;
    }
    let pairs = u128::from(positives) * u128::from(below);
    (pairs > 0).then(|| doubled as f64 / (2.0 * pairs as f64))
}

/// The ROC curve of the same scores.
pub fn roc(scores: impl Iterator<Item = (f32, bool)>) -> Option<Roc> {
    let ties = ties(scores)?;
    let all = ties.iter().fold((0, 0), |(negatives, positives), tie| {
        (negatives + tie.negatives, positives + tie.positives)
    });
    if all.0 == 0 || all.1 == 0 {
        return None;
    }
    let mut curve = vec![(0.0, 0.0)];
    let (mut negatives, mut positives, mut kept) = (0, 0, 0.0);
    for tie in &ties {
        negatives += tie.negatives;
        positives += tie.positives;
        let point = (
            negatives as f64 / all.0 as f64,
            positives as f64 / all.1 as f64,
        );
        let length = point.0 + point.1;
        let last = (negatives, positives) == all;
        if last || length - kept >= 2.0 / POINTS as f64 {
            curve.push(point);
            kept = length;
        }
    }
    Some(curve)
}

/// Records by score, the highest first; `None` if a score is no number.
fn ties(scores: impl Iterator<Item = (f32, bool)>) -> Option<Vec<Tie>> {
    let mut sorted: Vec<(f32, bool)> = scores.collect();
    if sorted.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    let order = |a: &(f32, bool), b: &(f32, bool)| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal);
    sorted.sort_unstable_by(order);
    let groups = sorted.chunk_by(|a, b| a.0 == b.0);
    let tie = |group: &[(f32, bool)]| {
        let positives = group.iter().filter(|(_, positive)| *positive).count() as u64;
        let negatives = group.len() as u64 - positives;
        Tie {
            positives,
            negatives,
        }
    };
    Some(groups.map(tie).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::PublicSeed;
    use rand::Rng;

    /// Scores with many ties.
    fn drawn(rows: usize, levels: u32, seed: u64) -> Vec<(f32, bool)> {
        let mut rng = PublicSeed(seed).stream(crate::random::PublicPurpose::Start, 0);
        let mut draw = || {
            let positive = rng.next_u32().is_multiple_of(3);
            let score = rng.next_u32() % levels + u32::from(positive);
            (score as f32 - 3.0, positive)
        };
        (0..rows).map(|_| draw()).collect()
    }

    #[test]
    fn the_area_is_the_share_of_pairs_in_the_right_order() {
        for (seed, levels) in [(1, 3), (2, 40), (3, 100_000)] {
            let scores = drawn(300, levels, seed);
            let (mut halves, mut pairs) = (0u64, 0u64);
            for positive in scores.iter().filter(|(_, positive)| *positive) {
                for negative in scores.iter().filter(|(_, positive)| !*positive) {
                    pairs += 1;
                    halves += match positive.0.total_cmp(&negative.0) {
                        Ordering::Greater => 2,
                        Ordering::Equal => 1,
                        Ordering::Less => 0,
                    };
                }
            }
            let naive = halves as f64 / (2 * pairs) as f64;
            assert_eq!(auc(scores.iter().copied()), Some(naive));
            // The trapezoids under the curve have the same area, where it is not thinned.
            let curve = roc(scores.into_iter()).unwrap();
            let area: f64 = curve
                .windows(2)
                .map(|pair| (pair[1].0 - pair[0].0) * (pair[0].1 + pair[1].1) / 2.0)
                .sum();
            let tolerance = if levels > POINTS as u32 { 5e-3 } else { 1e-12 };
            assert!((area - naive).abs() < tolerance, "{area} {naive}");
            assert_eq!((curve[0], curve[curve.len() - 1]), ((0.0, 0.0), (1.0, 1.0)));
            assert!(curve.len() <= POINTS + 2);
        }
    }

    #[test]
    fn known_areas() {
        let scores = |list: &[(f32, bool)]| auc(list.iter().copied());
        let perfect = [(0.9, true), (0.8, true), (0.1, false)];
        assert_eq!(scores(&perfect), Some(1.0));
        assert_eq!(scores(&[(0.1, true), (0.9, false)]), Some(0.0));
        assert_eq!(scores(&[(0.5, true), (0.5, false)]), Some(0.5));
        // Both zeros are one score.
        assert_eq!(scores(&[(0.0, true), (-0.0, false)]), Some(0.5));
        // The example of scikit-learn's documentation.
        let known = [(0.1, false), (0.4, false), (0.35, true), (0.8, true)];
        assert_eq!(scores(&known), Some(0.75));
        assert_eq!(scores(&[(0.1, true)]), None);
        assert_eq!(scores(&[(0.1, true), (f32::NAN, false)]), None);
        let infinite = [(f32::NEG_INFINITY, false), (0.0, true)];
        assert_eq!(scores(&infinite), Some(1.0));
    }
}
