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
//! | [`preliminary`] | what clients release before the first round |
//! | [`claim`] | what is claimed, or why nothing is |
//! | [`config`] | the same from a TOML file: what was typed, what it means, what was resolved |
//! | [`problem`], [`record_shape`] | records, model and objective of a configuration |
//! | [`schema_text`] | the public schema of a table, as TOML and JSON |
//! | [`run`] | clients and server of a configured problem |
//! | [`prepared`] | a configured run from its noise to its end, for every surface |
//! | [`output`], [`model_file`], [`model_card`], [`report`] | the files of a run |
//! | [`trained`] | a model from its file, applied to records |
//! | [`advice`] | what a run says about itself before and after |
//! | [`audit`] | the game of the definition, played: a lower bound on epsilon |
//! | [`persons`] | at most so many records of a person, and which |
//! | [`planning`] | the paper's theory for given numbers, and what to recommend |
//! | [`experiment`], [`comparison`], [`reproduce`] | studies: many runs, side by side |
//! | [`words`] | numbers and plurals in text for people |
//!
//! The algorithm itself is [`core`], readers of records are [`data`], the accountant is
//! [`accountant`]; each can be used alone.

pub mod accounting;
pub mod advice;
pub mod audit;
pub mod claim;
pub mod comparison;
pub mod config;
pub mod experiment;
pub mod model_card;
pub mod model_file;
pub mod output;
pub mod persons;
pub mod planning;
pub mod preliminary;
pub mod prepared;
pub mod problem;
pub mod quality;
pub mod record_shape;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod schema_text;
pub mod specification;
pub mod trained;
pub mod training;
pub mod words;

pub use soteriafl_accountant as accountant;
pub use soteriafl_core as core;
pub use soteriafl_data as data;

pub use claim::{Claim, Reason};
pub use soteriafl_accountant::{Adjacency, ClipScope, Estimator, IncrementClip, Recursion};
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
