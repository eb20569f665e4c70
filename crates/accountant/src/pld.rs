//! Privacy-loss-distribution accounting: the cost of a schedule of releases, to 1e-4 and from
//! above. Where every shift is certain there is a closed form, and it is used.
//!
//! ```text
//! shifts -> pair (P, Q) -> loss distribution on a grid -> tilt -> F^T -> delta(epsilon)
//!           mixture.rs     discretise.rs                  window.rs  compose.rs
//! ```
//!
//! Guarantee: every answer is an upper bound of the cost of the pairs, whatever the step; the step
//! only decides how tight it is. It starts at a quarter of the (tilted) standard deviation of one
//! round's loss and is halved until halving it once more would change the answer by less than
//! about 1e-4 of itself. A fixed step, as other accountants use, is tens of percent too high for
//! rounds of small loss.
//!
//! What is accounted are mixtures of shifts, for a schedule fixed in advance: a release of which
//! random-k hides a part is none, and cannot be passed here.
//!
//! Cost: milliseconds; the window over the step grows like `sqrt(T)`.

mod compose;
mod cut;
mod direction;
mod discretise;
mod losses;
mod schedule;
mod search;
mod tilted;
mod transform;
mod window;

pub(crate) use compose::epsilon_of_losses;
pub(crate) use losses::LossDistribution;
pub(crate) use schedule::{RoundCosts, Schedule};
