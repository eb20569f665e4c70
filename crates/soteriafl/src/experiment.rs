//! Many runs side by side: settings, seeds, and what they come to together.
//!
//! An experiment is a list of [`Setting`]s, each with the seeds it is run for. Every pair is one
//! job: a whole simulated run on one thread, so that jobs fill the cores without waiting for one
//! another and a result never depends on how many there are. Jobs share loaded data; the longest
//! start first.
//!
//! **Finished jobs** are files, each named by a hash of its resolved configuration, its records,
//! its start and the program's version. A second call finds them there and goes on with what is
//! missing; what was interrupted leaves nothing behind. Of such a file only the curve is used:
//! noise and claim are computed.
//!
//! **Utility** is the mean of `|grad f|^2` over rounds `0..=t`. Rounds that were not evaluated
//! count as if values changed by the same factor from round to round between their evaluated
//! neighbours, so that a start that is evaluated once counts once however rarely the rest is. (On
//! a9a with every fifth round evaluated that is 0.5% off on average and 5% at most; straight lines
//! are 3% off on average and 8% at most.)

mod curve;
mod job;
mod pool;

pub use curve::{Curve, Guarantee, Measure, Spread, Statistic};
pub use job::{Job, Outcome, Point, Setting};
pub use pool::{Pool, PoolError};
