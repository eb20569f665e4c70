//! What clients release once, before the first round: the noised mean of one vector per record.
//!
//! **What it computes.** With `v(x)` a public function of one record, `|v(x)| <= 1` and
//! `v(x) . v(y) >= 0`, client `i` of `m` records sends
//!
//! ```text
//! M_i = (1/m) sum_j v(x_j) + N(0, sigma^2 I),
//! ```
//!
//! and the server averages, `A = sum_i w_i M_i`. What everybody does with the average is
//! post-processing: [`moments`](crate::moments) makes a map of records of it.
//!
//! **Guarantee.** A record left out moves the sum by at most 1, one replaced by at most `sqrt(2)`
//! (`docs/privacy.md`, Proposition 6a). The sum is one of integers, each record put on the grid by
//! itself, with exact integer noise, whatever noise the rounds have: the bound holds for the
//! numbers that are sent, and there is no rounding to account for beyond [`SLACK`]. The noise's key
//! is bound to the sum, so that one secret seed never puts one noise on two sums. Bits do not
//! depend on threads or machine.
//!
//! **Cost.** One vector per record, one message of all its numbers. **Place in the paper:** none.

use soteriafl_accountant::mutation::{Mutation, active};

use crate::compress::{Compressor, CompressorKind, DecodeError, Selection, Update};
use crate::objective::Workspace;
use crate::privacy::secure::NoiseError;
use crate::privacy::{GaussianMechanism, Noise, Released, TermBound};
use crate::random::{Purpose, SecretKey};
use crate::wire;

/// By how much one replaced record may exceed `sqrt(2)`, relatively, after each was put on a grid:
/// what the accountant is told. On a grid records end within `2^-19` of where they were
/// ([`release`] refuses coarser ones).
pub const SLACK: f64 = 1.0 / (1u64 << 18) as f64;

/// How far a grid may move a record.
const COARSEST: f64 = 1.0 / (1u64 << 19) as f64;

/// Why nothing can be released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreliminaryError {
    /// No grid suits the noise.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// What is to be released is not made of these records.
    #[error("ranges are released of values as they stand in a table")]
    Subject,
    /// The noise is so large that a grid under it would be too coarse for the proof.
    #[error("a grid under this noise moves records by {found:e} of their length, more than 2^-19")]
    Coarse {
        /// By how much.
        found: f64,
    },
}

/// What is released.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan<'a> {
    /// What the vectors are: part of what the noise is bound to.
    pub label: &'a str,
    /// How many rows have a vector.
    pub rows: usize,
    /// The public number of records: rows, and null records whose vector is zero.
    pub records: usize,
    /// Numbers of a vector.
    pub len: usize,
    /// Standard deviation of the noise on every number of the mean; without noise 0, for nobody's
    /// records and for tests.
    pub sigma: f64,
}

/// The noised mean of `vector(j)` over the rows `j`, and of zeros for null records.
///
/// # Errors
/// When no grid suits the noise.
pub fn release(
    plan: Plan<'_>,
    key: &SecretKey,
    mut vector: impl FnMut(usize, &mut Vec<f64>),
) -> Result<Released, PreliminaryError> {
    let Plan {
        label,
        rows,
        records,
        len,
        sigma,
    } = plan;
    let term = TermBound {
        clip: 1.0,
        divisor: records as f64,
    };
    let sigma = match active(Mutation::MomentsBare) {
        true => 1e-3 * sigma,
        false => sigma,
    };
    let noise = match sigma > 0.0 {
        true => Noise::Secure,
        false => Noise::None,
    };
    let mechanism = GaussianMechanism::new(noise, sigma, &[term], len)?;
    let found = mechanism.truncation_bound(len);
    if found > COARSEST {
        return Err(PreliminaryError::Coarse { found });
    }
    let mut workspace = Workspace::new();
    let divisor = records as f64;
    let mut sum = mechanism.empty_estimate(len, [divisor, divisor], &mut workspace);
    let (mut values, mut integers) = (Vec::with_capacity(len), Vec::with_capacity(len));
    for row in 0..rows {
        values.clear();
        vector(row, &mut values);
        sum.add_vector(&values, &mut integers);
    }
    let label = format!("soteria preliminary {label} of {records} records");
    Ok(mechanism.release_bound(sum, key, label.as_bytes(), &mut workspace))
}

/// What travels: all numbers, after the header of a message whose round is the release's number.
pub fn message(number: u32, released: &Released) -> Vec<u8> {
    let compressor = whole(released.values().len());
    let mut bytes = Vec::with_capacity(message_len(compressor.dimension()));
    wire::put_header(&compressor, number, &mut bytes);
    // All coordinates travel as they are: no coins are used.
    let mut coins = SecretKey::kept([0; SecretKey::LEN]).stream(0, Purpose::Rounding);
    let (mut selection, mut update) = (Selection::default(), Update::default());
    compressor.encode(
        released,
        &mut selection,
        &mut coins,
        &mut bytes,
        &mut update,
    );
    bytes
}

/// The numbers of a message.
///
/// # Errors
/// When the bytes are not `len` finite numbers of this release.
pub fn decode(number: u32, len: usize, bytes: &[u8]) -> Result<Vec<f32>, DecodeError> {
    let mut update = Update::default();
    match wire::decode(&whole(len), number, bytes, &mut update)? {
        true => Ok(update.values().to_vec()),
        // Nobody sits a release out.
        false => Err(DecodeError::Length {
            expected: message_len(len),
            found: bytes.len(),
        }),
    }
}

/// Bytes of a message of `len` numbers.
pub fn message_len(len: usize) -> usize {
    wire::HEADER_LEN + 4 * len
}

fn whole(len: usize) -> Compressor {
    Compressor::new(CompressorKind::Identity, len, 1.0)
        .expect("a release has fewer numbers than a model may have")
}

/// What all clients have released, averaged.
#[derive(Clone, Debug, PartialEq)]
pub struct Average {
    /// `A`, rounded once at the end.
    pub values: Vec<f32>,
    /// Standard deviation of the noise on every number.
    pub noise: f64,
}

impl Average {
    /// The average of `len` numbers, client by client in the order given: weight, standard
    /// deviation of the noise, numbers.
    pub fn of<V: AsRef<[f32]>>(
        len: usize,
        clients: impl IntoIterator<Item = (f64, f64, V)>,
    ) -> Self {
        let (mut sum, mut variance) = (vec![0.0f64; len], 0.0);
        for (weight, sigma, values) in clients {
            for (sum, &value) in sum.iter_mut().zip(values.as_ref()) {
                *sum += weight * f64::from(value);
            }
            variance += (weight * sigma) * (weight * sigma);
        }
        Self {
            values: sum.into_iter().map(|value| value as f32).collect(),
            noise: variance.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(label: &str, sigma: f64) -> Plan<'_> {
        Plan {
            label,
            rows: 3,
            records: 3,
            len: 2,
            sigma,
        }
    }

    /// The noise of a release, in units of its size.
    fn noise(plan: Plan<'_>, key: &SecretKey, shift: f64) -> Vec<f64> {
        let vector = |j: usize, out: &mut Vec<f64>| out.extend([0.1 * j as f64 + shift, 0.3]);
        let exact = release(Plan { sigma: 0.0, ..plan }, key, vector).unwrap();
        let found = release(plan, key, vector).unwrap();
        let both = found.values().iter().zip(exact.values());
        both.map(|(a, b)| f64::from(a - b) / plan.sigma).collect()
    }

    /// One secret for two releases: the noise is another one wherever anything differs, so that
    /// neither can be taken off by the other.
    #[test]
    fn noise_is_bound_to_all_that_the_release_depends_on() {
        let key = SecretKey::simulated(3, 0);
        let first = noise(plan("a", 0.5), &key, 0.0);
        let again = noise(plan("a", 0.5), &key, 0.0);
        assert_eq!(first, again);
        let others = [
            noise(plan("a", 0.25), &key, 0.0),
            noise(plan("b", 0.5), &key, 0.0),
            noise(plan("a", 0.5), &key, 0.01),
            noise(plan("a", 0.5), &SecretKey::simulated(4, 0), 0.0),
        ];
        for other in others {
            for (one, other) in first.iter().zip(&other) {
                assert!((one - other).abs() > 1e-3, "{one} {other}");
            }
        }
    }

    #[test]
    fn messages_are_read_back_and_others_refused() {
        let key = SecretKey::simulated(3, 0);
        let released = release(plan("a", 0.5), &key, |_, out| out.extend([0.1, 0.2])).unwrap();
        let bytes = message(1, &released);
        assert_eq!(bytes.len(), message_len(2));
        assert_eq!(decode(1, 2, &bytes).unwrap(), released.values());
        assert!(decode(0, 2, &bytes).is_err() && decode(1, 3, &bytes).is_err());
        for end in 0..bytes.len() {
            assert!(decode(1, 2, &bytes[..end]).is_err());
        }
        let mut wrong = bytes.clone();
        wrong[13] = 0xff;
        wrong[12] = 0xff;
        assert!(decode(1, 2, &wrong).is_err(), "not a number");
    }

    #[test]
    fn an_average_is_the_weighted_mean() {
        let clients = [(0.25, 2.0, [1.0f32, 2.0]), (0.75, 4.0, [3.0, -2.0])];
        let found = Average::of(2, clients);
        assert_eq!(found.values, [2.5, -1.0]);
        assert_eq!(found.noise, (0.25f64 + 9.0).sqrt());
    }
}
