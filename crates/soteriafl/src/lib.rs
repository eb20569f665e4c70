//! Private federated learning with compressed communication.
//!
//! Many clients hold private records; together they train one model. In every round each client
//! sends one short message, a clipped, noised and compressed estimate of its gradient, and before
//! anything runs an exact accountant sets the noise for the privacy that was asked for.
//!
//! A private run in a few lines, with no sigma in it: [`Training`].
//!
//! | module | contents |
//! | --- | --- |
//! | [`training`] | a run described, calibrated and simulated by a program |
//! | [`specification`] | what runs: the one description from which everything else is derived |
//! | [`accounting`] | a specification's noise, cost and claim |
//! | [`claim`] | what is claimed, or why nothing is |
//! | [`config`] | the same from a TOML file: what was typed, what it means, what was resolved |
//! | [`problem`], [`record_shape`] | records, model and objective of a configuration |
//! | [`run`] | clients and server of a configured problem |
//! | [`output`], [`model_file`], [`report`] | the files of a run |
//! | [`advice`] | what a run says about itself before and after |
//! | [`planning`] | the paper's theory for given numbers, and what to recommend |
//! | [`experiment`], [`comparison`], [`reproduce`] | studies: many runs, side by side |
//! | [`words`] | numbers and plurals in text for people |
//!
//! The algorithm itself is [`core`], readers of records are [`data`], the accountant is
//! [`accountant`]; each can be used alone.

pub mod accounting;
pub mod advice;
pub mod claim;
pub mod comparison;
pub mod config;
pub mod experiment;
pub mod model_file;
pub mod output;
pub mod planning;
pub mod problem;
pub mod quality;
pub mod record_shape;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod specification;
pub mod training;
pub mod words;

pub use soteriafl_accountant as accountant;
pub use soteriafl_core as core;
pub use soteriafl_data as data;

pub use claim::{Claim, Reason};
pub use soteriafl_accountant::{Adjacency, ClipScope, Estimator};
pub use soteriafl_core::compress::CompressorKind;
pub use soteriafl_core::data::Dataset;
pub use training::{Run, Target, Training, TrainingError, TrainingResult};

/// The README's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And so are those of the page for library users.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Library;
