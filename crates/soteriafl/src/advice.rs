//! What a run says about itself: before it, whether it can work; after it, whether it has.
//!
//! Nothing here changes a run. Three kinds of sentences, by what they rest on:
//!
//! - [`noise`]: public quantities alone (clip, noise, schedule, clients, parameters). The longest
//!   way that records can move the model against the length of the noise that it ends with; see
//!   [`signal_to_noise`].
//! - [`columns`]: how large features are, which only the records can tell. A simulation may look;
//!   the sentence says that it stands outside the claim. A server looks at its own test set only.
//! - [`after`]: metrics of the end, which stand outside the claim like all metrics.
//!
//! The same sentences go to the terminal, to `summary.json` and to the report.

use soteriafl_core::compress::Compressor;
use soteriafl_core::data::{Dataset, FeatureKind, squared_columns};
use soteriafl_core::simulate::Metrics;

use crate::claim::Claim;
use crate::config::resolve::Resolved;
use crate::config::{ClipScope, NoiseTarget};
use crate::problem::Problem;

/// What a claim about persons presumes, since nothing says who is who.
pub fn persons(most: u32, claim: &Claim) -> Option<String> {
    let presumed = most > 1 && claim.is_proved();
    presumed.then(|| {
        format!(
            "the claim presumes that nobody has more than {most} records at one client: nothing \
             says which records are one person's, so none was left out"
        )
    })
}

/// What a claim about persons is about, where a column says who is who and rows were dealt to clients
/// without it.
pub fn persons_dealt_by_rows(clients: usize, claim: &Claim) -> Option<String> {
    (clients > 1 && claim.is_proved()).then(|| {
        "rows were dealt to clients one by one, so that a person's records may be at several of them: \
         the claim is for those at one client (`data.partition` by a column of clients keeps them \
         together)"
            .to_owned()
    })
}

/// The ratio below which a run is called hopeless. Gradients of records that point in different
/// directions are, on average, a third of the clip or less; the tables of `docs/configuration.md`
/// say what was seen on either side.
const LEAST_SIGNAL: f64 = 3.0;

/// Root mean square above which a column is far out of scale: noise and steps are made for features
/// of about 1.
const LARGEST_COLUMN: f64 = 5.0;

/// The way that the records move the model, if they all always pull the same way, over the length
/// of the noise in it at the end.
///
/// One round moves the model by at most `eta_t G`, all rounds together by `G sum_t eta_t`. Under
/// `selected` the clip `G_k` bounds the coordinates that travel, and a single round may move the
/// model by `eta_t G_k d/k`; what counts is what such rounds come to together, and there a gradient
/// of length `G = G_k sqrt(d/k)` just passes the clip: that `G` is used, and the ratio is no bound
/// any more. The noise of a round has, in each of `d` coordinates, the standard deviation `eta_t
/// sqrt((1 + omega) sum_i w_i^2 sigma_i^2)`; over all rounds and coordinates its length is about
/// the root of the sum of squares. Momentum multiplies both alike. For full gradients and equal
/// clients without a schedule this is `m mu sqrt(n) / (2 sqrt(d))` with `mu` of the Gaussian
/// mechanism: neither rounds, step nor clip matter. For a linear model on records of length one the
/// noise is that of a logit, without `sqrt(d)`. None without noise.
pub fn signal_to_noise(
    resolved: &Resolved,
    dimension: usize,
    sigmas: &[f64],
    weights: &[f64],
) -> Option<f64> {
    if resolved.noise_target == NoiseTarget::None {
        return None;
    }
    let compressor =
        Compressor::new(resolved.compressor, dimension, resolved.participation).ok()?;
    let clip = match (resolved.clip_scope, compressor.fraction()) {
        (ClipScope::Selected, Some(fraction)) => resolved.clip / fraction.sqrt(),
        _ => resolved.clip,
    };
    let (mut way, mut squares) = (0.0, 0.0);
    for round in 0..resolved.rounds {
        let factor = resolved.schedule.factor(round, resolved.rounds);
        way += factor;
        squares += factor * factor;
    }
    let averaged: f64 = sigmas
        .iter()
        .zip(weights)
        .map(|(sigma, weight)| (sigma * weight).powi(2))
        .sum();
    // What a linear model says of a record of length one has the noise of one coordinate.
    let felt = match resolved.is_linear_on_unit_records() {
        true => 1,
        false => dimension,
    };
    // Noise that clients keep reaches the mean as it is, whatever a message leaves out.
    let keeps = resolved.gossip.as_ref();
    let omega = match keeps.is_some_and(|gossip| gossip.transport.keeps_noise()) {
        true => 0.0,
        false => compressor.omega(),
    };
    let noise = (squares * (1.0 + omega) * averaged * felt as f64).sqrt();
    Some(clip * way / noise).filter(|ratio| ratio.is_finite())
}

/// A warning where noise of this ratio leaves nothing to be learnt.
pub fn noise(ratio: Option<f64>, parameters: usize) -> Option<String> {
    let ratio = ratio.filter(|ratio| *ratio < LEAST_SIGNAL)?;
    Some(format!(
        "noise will swamp the signal: the {parameters} parameters move by about {ratio:.2} times \
         the noise they end with even if all records always pull the same way, and below {LEAST_SIGNAL} little is learnt; more records \
         or clients, a larger epsilon or fewer parameters help (model.kind, model.hidden), more \
         rounds do not"
    ))
}

/// The noise on the share of a column's records in one power of two above which nobody can tell
/// where they are: of some fifty sums of three such shares the largest is then about four times as
/// large by noise alone, and all records together have one.
const LOUDEST_RANGE: f64 = 0.25;

/// A warning where ranges that clients have released are guesses, for noise that public quantities
/// decide.
pub fn ranges(noise: f64) -> Option<String> {
    (noise > LOUDEST_RANGE).then(|| {
        format!(
            "private ranges are guesses here: the noise on the share of a column's records in one \
             power of two is {noise:.2}, and above {LOUDEST_RANGE} it is chance which one holds \
             most; any range in the schema that is not absurd does better, and so do more records, \
             fewer columns whose ranges are private, or a larger epsilon"
        )
    })
}

/// A warning where models have left the range of their messages.
pub fn cut_off(values: u64) -> Option<String> {
    (values > 0).then(|| {
        format!(
            "{values} values of models were cut off at the ends of the grid: more bits \
             (algorithm.grid_bits), a longer step (algorithm.grid_step) or shorter steps help"
        )
    })
}

/// A warning where columns of the records are far out of scale. `whose` names the records that were
/// looked at.
pub fn columns<'a>(
    parts: impl IntoIterator<Item = &'a Dataset>,
    constant: bool,
    whose: &str,
) -> Option<String> {
    let (mut rows, mut squares) = (0, Vec::new());
    for part in parts {
        rows += part.rows();
        let found = squared_columns(part);
        squares.resize(found.len(), 0.0);
        squares
            .iter_mut()
            .zip(found)
            .for_each(|(sum, square)| *sum += square);
    }
    squares.truncate(squares.len() - usize::from(constant && !squares.is_empty()));
    let sizes: Vec<f64> = squares
        .iter()
        .map(|square| (square / rows.max(1) as f64).sqrt())
        .collect();
    let (largest, size) = sizes
        .iter()
        .copied()
        .enumerate()
        .max_by(|one, other| one.1.total_cmp(&other.1))?;
    let many = sizes.iter().filter(|size| **size > LARGEST_COLUMN).count();
    (many > 0).then(|| {
        format!(
            "{many} of {} feature columns {} far out of scale: column {} has a root mean square \
             of {}, where steps and noise are made for about 1; map columns to about [-1, 1] by \
             ranges that are public (this was found by looking at {whose}: it changes nothing in \
             the run)",
            sizes.len(),
            if many == 1 { "is" } else { "are" },
            largest + 1,
            short(size),
        )
    })
}

/// Whose records [`columns_of`] has looked at.
pub const LOOKED_AT: &str = "the records, as a simulation may, outside of the claim";

/// What a claim presumes of a model that is computed elsewhere.
pub fn elsewhere() -> String {
    "the model is computed by a program of the clients' own: the claim presumes that it computes, \
     and clips, every record by itself"
        .to_owned()
}

/// [`columns`] of the training records, which a simulation may look at, as they were before a
/// public map.
pub fn columns_of(problem: &Problem) -> Option<String> {
    let preparation = &problem.preparation;
    if problem.is_elsewhere() {
        return None;
    }
    if preparation.features.kind() != FeatureKind::None {
        return problem.out_of_scale.clone();
    }
    if problem.standardizing.is_some() || preparation.basis.is_some() {
        return None;
    }
    columns(
        problem.shards.iter().map(AsRef::as_ref),
        problem.preparation.model.intercept(),
        LOOKED_AT,
    )
}

/// The share of `test` that is right when the most common class of `parts` is always the answer.
pub fn majority_accuracy<'a>(
    parts: impl IntoIterator<Item = &'a Dataset>,
    test: &Dataset,
) -> Option<f64> {
    let mut counts = vec![0usize; test.classes()];
    for &label in parts.into_iter().flat_map(Dataset::labels) {
        *counts.get_mut(label as usize)? += 1;
    }
    // Of equally common ones the first.
    let most = counts.iter().max()?;
    let class = counts.iter().position(|count| count == most)? as u32;
    let right = test
        .labels()
        .iter()
        .filter(|label| **label == class)
        .count();
    (test.rows() > 0).then(|| right as f64 / test.rows() as f64)
}

/// What went wrong, by metrics of the start and the end; what was not measured says nothing.
pub fn after(
    start: Option<f64>,
    end: &Metrics,
    majority: Option<f64>,
    diverged: bool,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if diverged {
        warnings.push(
            "the run diverged: its loss is not a number any more; try a smaller \
             `algorithm.step_size` or `algorithm.shift`"
                .to_string(),
        );
    }
    if let Some(start) = start.filter(|start| end.loss > *start) {
        warnings.push(format!(
            "the loss rose, from {} to {}: by this measure the model is worse than the one it \
             started from; features of about 1, a smaller `algorithm.step_size` or less noise \
             help",
            short(start),
            short(end.loss)
        ));
    }
    warnings.extend(no_better(end.test_accuracy, majority));
    warnings
}

/// A warning where a model is right no more often than the most common class.
pub fn no_better(accuracy: Option<f64>, majority: Option<f64>) -> Option<String> {
    let (accuracy, majority) = (accuracy?, majority?);
    (accuracy <= majority).then(|| {
        format!(
            "the model does not beat always answering the most common class: {accuracy:.4} of the \
             test records are right, {majority:.4} would be without a model"
        )
    })
}

/// Four digits or so of a number that may be of any size.
fn short(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.4}"),
        value if value < 1e4 => format!("{value:.1}"),
        value => format!("{value:.3e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(loss: f64, test_accuracy: Option<f64>) -> Metrics {
        Metrics {
            loss,
            grad_norm_sq: 1.0,
            test_accuracy,
            consensus_error: None,
        }
    }

    #[test]
    fn what_got_better_is_not_warned_of() {
        let better = metrics(0.4, Some(0.8));
        assert!(after(Some(0.7), &better, Some(0.76), false).is_empty());
        // Nothing was measured.
        assert!(after(None, &metrics(f64::NAN, None), None, false).is_empty());
    }

    #[test]
    fn a_loss_that_rose_and_a_model_that_knows_nothing_are_said() {
        let worse = metrics(482.0, Some(0.4));
        let said = after(Some(1.07), &worse, Some(0.4), false);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("from 1.0700 to 482.0"), "{said:?}");
        assert!(said[1].contains("most common class"), "{said:?}");
        let said = after(Some(1.0), &metrics(f64::INFINITY, None), None, true);
        assert!(said[0].contains("diverged") && said.len() == 2, "{said:?}");
    }

    #[test]
    fn noise_is_warned_of_below_the_bound_only() {
        // The same words under every clip scope: `at most` is not true under all of them.
        let line = noise(Some(0.2), 515).unwrap();
        assert!(
            line.contains("515 parameters move by about 0.20 times"),
            "{line}"
        );
        assert!(!line.contains("at most"), "{line}");
        assert!(noise(Some(8.0), 9).is_none() && noise(None, 9).is_none());
    }
}
