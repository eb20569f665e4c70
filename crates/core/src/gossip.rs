//! Clients without a server: each keeps a model of its own and mixes it with its neighbours'
//! (SDM-DSGD and Q-DPSGD-1 of the paper's Table 1, and PORTER).
//!
//! ```text
//!  W: one row per client, rows and columns sum to one       graph::Graph (Metropolis weights)
//!  release_i = estimate of grad f_i(x_i) + noise            protocol::Client, as with a server
//!
//!  differences   v_i  = C( a (sum_j W_ij x_j - x_i) - a s release_i )              SDM-DSGD
//!                x_i += v_i                         at the client and at all who hear it
//!  models        z_i  = Q(x_i)                                                     Q-DPSGD-1
//!                x_i += a (sum_j W_ij z_j - W_ii z_i - (1 - W_ii) x_i) - a s release_i
//!  tracking      d_i += a (sum_j W_ij d'_j - d'_i) + release_i - last release_i    PORTER
//!                x_i += a (sum_j W_ij x'_j - x'_i) - s d_i
//!                x', d' are what all know of x and d: each moves by C(x - x'), C(d - d')
//! ```
//!
//! `a` is the *mixing* (theta, epsilon and gamma of the three papers), `s` the step size. The mean
//! of all models moves by released values alone, because the columns of `W` sum to one: with
//! differences by the mean of `v_i`, with tracking by `-s` times the mean of the last releases.
//!
//! **Guarantee.** What leaves a node is a function of releases, of others' messages and of coins of
//! its own: [`Released`](crate::privacy::Released) as everywhere. Under *differences* everything
//! but the message is public, so noise is drawn on what travels alone, and random-k hides what does
//! not travel. The other two **keep** noisy vectors, which are sent later: there noise is on all
//! coordinates ([`Transport::keeps_noise`]), nothing is hidden by what does not travel, and
//! compressors may look at values (`docs/privacy.md`, section 16).
//!
//! **Cost.** A round adds up one message for every neighbour. Memory: two vectors for each client
//! (differences, models), seven (tracking).

mod graph;
mod mixture;
mod node;
mod plan;

pub use graph::{Graph, GraphError, Neighbour, Topology};
pub(crate) use mixture::consensus;
pub use mixture::{Mixture, Sent};
pub use node::Node;
pub use plan::{GossipPlan, PlanError, Transport};
