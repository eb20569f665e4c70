//! The paper's experiments: figures 1 to 8, what stands behind them, and how far a proof goes.
//!
//! Every figure is run three times over. *As published*: the authors' set-up, which clips whole
//! estimates and draws with replacement, with the noise of the paper's formula; it claims nothing.
//! *Proved*: the same algorithms, batches, step sizes and rounds, but every record is clipped,
//! batches are Poisson, and the noise is the exact one for the target under replace-one. *Best
//! proved*: whatever `preset = "auto"` chooses for that target, within the bits that the published
//! SoteriaFL runs use.
//!
//! - [`published`]: the settings of the figures, and values measured from the authors' algorithms.
//! - [`settings`]: those as configurations of this program.
//! - [`Results`]: outcomes beside the bands, goals and orderings they are compared with.
//! - [`figures`], [`page`], [`tables`]: how all of it is shown.

pub mod figures;
pub mod page;
pub mod published;
mod results;
pub mod settings;
pub mod tables;

pub use results::{
    Comparison, Entry, Goal, Ordering, RealEpsilon, Results, Verdict, measure, noise_really_gives,
    real_epsilons,
};
