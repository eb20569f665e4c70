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
//!           estimate, records clipped    estimator::EstimatorState
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
//! | [`preliminary`] | what clients release once, before the first round |
//! | [`moments`] | such a release: second moments, and the map of records that they give |
//! | [`ranges`] | two more: in which range the values of a column lie |
//! | [`protocol`] | client and server |
//! | [`gossip`] | clients without a server: graphs, and what neighbours tell each other |
//! | [`simulate`] | all clients in one process |
//! | [`quality`] | how good a model is on records that it was not trained on |
//! | [`random`] | secret and public randomness, as two types |
//! | [`theory`] | the paper's own choices of batch, step size, rounds |
//! | [`linalg`] | the arithmetic underneath |
//!
//! A module uses only modules that come after it in this order (`tests/module_order.rs`): theory,
//! simulate, gossip, quality, protocol, ranges, moments, preliminary, wire, compress, estimator,
//! privacy, objective, data, sampling, random, linalg.
//!
//! The crate `soteriafl-data` reads records, `soteriafl-accountant` computes what a sigma costs and
//! which sigma meets a target; the library `soteriafl` combines them: a run with calibrated noise
//! in a few lines. One client and one server by hand: `examples/one_round.rs`.

pub mod compress;
pub mod data;
pub mod estimator;
pub mod gossip;
pub mod linalg;
pub mod moments;
pub mod objective;
pub mod preliminary;
pub mod privacy;
pub mod protocol;
pub mod quality;
pub mod random;
pub mod ranges;
pub mod sampling;
pub mod simulate;
pub mod theory;
pub mod wire;
