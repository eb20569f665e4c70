//! The algorithm of SoteriaFL: private federated learning with shifted, compressed communication.
//!
//! One model, many clients, and in every round one short message from each of them. The message is
//! a clipped gradient estimate with Gaussian noise, compressed after a shift that both sides know:
//!
//! ```text
//!  data -> objective -> estimator -> privacy -> compress -> wire -> protocol (server) -> model
//!
//!          client i                                                     server
//!   x^t ->  which coordinates travel     compress::Compressor::select
//!           noise of the round           privacy::GaussianMechanism::draw
//!           estimate, records clipped    estimator::Estimator
//!           release = estimate + noise   privacy::GaussianMechanism::release
//!           v_i = C(release - s_i)       compress, wire    --- v_i -->   v = s + sum_i w_i v_i
//!           s_i += gamma v_i                                             x^{t+1} = x^t - eta v
//!                                                                        s += gamma sum_i w_i v_i
//! ```
//!
//! Every algorithm of the paper is a choice of four things: estimator, compressor, shift and number
//! of clients. [`protocol::Client`] and [`protocol::Server`] are pure state machines: no clock,
//! socket, file, thread or global randomness. The same keys give the same bits in a simulation and
//! over a network.
//!
//! # Modules, in the order in which data flows
//!
//! | module | contents |
//! | --- | --- |
//! | [`data`] | records: rows, scaling, distribution to clients |
//! | [`objective`] | losses with factored per-record gradients, the public regularizer |
//! | [`sampling`] | which records a round uses |
//! | [`estimator`] | GD, SGD, SVRG and SAGA with every record clipped |
//! | [`privacy`] | the Gaussian mechanism, with floating-point or exact integer noise |
//! | [`compress`] | unbiased compressors, participation included |
//! | [`wire`] | messages as bytes |
//! | [`protocol`] | client and server |
//! | [`simulate`] | all clients in one process |
//! | [`random`] | secret and public randomness, as two types |
//! | [`theory`] | the paper's own choices of batch, step size, rounds |
//! | [`linalg`] | the arithmetic underneath |
//!
//! A module uses only modules that come after it in this order (`tests/module_order.rs`): theory,
//! simulate, protocol, wire, compress, estimator, privacy, objective, data, sampling, random, linalg.
//!
//! The crate `soteriafl-data` reads records, `soteriafl-accountant` computes what a sigma costs and
//! which sigma meets a target; the library `soteriafl` combines them.
//!
//! # Example
//!
//! SoteriaFL-GD over four clients, a quarter of the coordinates per message:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use soteriafl_core::compress::{Compressor, CompressorKind};
//! use soteriafl_core::data::{Partition, Synthetic};
//! use soteriafl_core::estimator::Clipping;
//! use soteriafl_core::objective::{Logistic, Regularizer};
//! use soteriafl_core::privacy::Noise;
//! use soteriafl_core::protocol::{
//!     Client, ClientPlan, EstimatorPlan, Schedule, Server, ServerPlan, shift_step,
//! };
//! use soteriafl_core::random::{PublicSeed, SecretKey};
//! use soteriafl_core::sampling::Sampling;
//! use soteriafl_core::simulate::{EvaluationPlan, Simulation};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source: Synthetic = "8000x20".parse()?;
//! let (train, test) = (source.train(7)?, source.test(7)?);
//! let shards = Partition::Iid.split(&train, 4, 7)?;
//!
//! // 2000 records each, clipped to 0.25, full gradients, 100 messages: by the closed form of the
//! // Gaussian mechanism this sigma is epsilon 1 at delta 1e-5 under replace-one.
//! let (clip, rounds, sigma) = (0.25, 100, 0.00933);
//! let compressor = Compressor::new(CompressorKind::RandK { k: 5 }, 20, 1.0)?;
//! let shift_step = Some(shift_step(compressor.omega()));
//! let plan = Arc::new(ClientPlan {
//!     objective: Arc::new(Logistic::new(20)),
//!     compressor: compressor.clone(),
//!     estimator: EstimatorPlan::Minibatch,
//!     clipping: Clipping::Selected(clip),
//!     estimate_clip: None,
//!     regularizer: None,
//!     shift_step,
//!     noise: Noise::Float,
//!     shared_coordinates: false,
//!     public_seed: PublicSeed(7),
//! });
//! let clients = (0..).zip(shards).map(|(id, shard)| {
//!     let key = SecretKey::simulated(7, id);
//!     Client::new(id, Arc::clone(&plan), Arc::new(shard), Sampling::Full, sigma, key)
//! });
//! let clients = clients.collect::<Result<Vec<_>, _>>()?;
//! let weights = vec![0.25; 4];
//! let server = ServerPlan {
//!     compressor,
//!     weights: weights.clone(),
//!     step_size: 2.0,
//!     schedule: Schedule::Constant,
//!     momentum: 0.0,
//!     smoothing: None,
//!     equalizing: None,
//!     shift_step,
//!     regularizer: None,
//!     rounds,
//! };
//! let mut simulation = Simulation::new(Server::new(server, vec![0.0; 20]), clients);
//! let metrics = EvaluationPlan {
//!     objective: plan.objective.as_ref(),
//!     regularizer: Regularizer::None,
//!     weights: &weights,
//!     test: Some(&test),
//!     every: 0,
//!     from: 0,
//! };
//! let mut accuracy = 0.0;
//! simulation.run(2, &metrics, |progress, _server| {
//!     if let Some(metrics) = progress.metrics {
//!         accuracy = metrics.test_accuracy.unwrap_or(0.0);
//!     }
//!     ControlFlow::Continue(())
//! });
//! println!("test accuracy {accuracy:.3}");
//! # assert!(accuracy > 0.8, "{accuracy}");
//! # Ok(())
//! # }
//! ```
//!

pub mod compress;
pub mod data;
pub mod estimator;
pub mod linalg;
pub mod objective;
pub mod privacy;
pub mod protocol;
pub mod random;
pub mod sampling;
pub mod simulate;
pub mod theory;
pub mod wire;

/// Compiles and runs the Rust snippets of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
