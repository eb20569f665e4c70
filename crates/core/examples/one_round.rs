//! One client and one server by hand, and what they say to each other.
//! Run it with `cargo run -p soteriafl-core --example one_round`.

use std::sync::Arc;

use soteriafl_core::compress::{Compressor, CompressorKind, Update};
use soteriafl_core::data::{Dataset, DenseRows, Features};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::Logistic;
use soteriafl_core::privacy::Noise;
use soteriafl_core::protocol::{Client, ClientPlan, Estimator, RoundScratch};
use soteriafl_core::protocol::{Schedule, Server, ServerPlan, shift_step};
use soteriafl_core::random::{PublicSeed, SecretKey};
use soteriafl_core::sampling::Sampling;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let points = vec![2.0, 1.0, 1.5, 2.5, -1.0, -2.0, -2.5, 0.5];
    let rows = Features::Dense(DenseRows::new(2, points)?);
    let data = Dataset::new(rows, vec![1, 1, 0, 0], 2)?.with_intercept();
    // Two of three coordinates travel; the step of the shift follows from that.
    let compressor = Compressor::new(CompressorKind::RandK { k: 2 }, 3, 1.0)?;
    let plan = ClientPlan {
        objective: Arc::new(Logistic::new(3)),
        estimator: Estimator::Sgd,
        clipping: Clipping::Record(1.0),
        estimate_clip: None,
        regularizer: None,
        shift_step: Some(shift_step(compressor.omega())),
        compressor: compressor.clone(),
        noise: Noise::Secure,
        shared_coordinates: false,
        public_seed: PublicSeed(1),
    };
    let server_plan = ServerPlan {
        weights: vec![1.0],
        step_size: 0.5,
        schedule: Schedule::Constant,
        momentum: 0.0,
        recursion: None,
        step_cap: None,
        smoothing: None,
        equalizing: None,
        downlink: None,
        shift_step: plan.shift_step,
        regularizer: None,
        rounds: 3,
        compressor,
    };
    let mut server = Server::new(server_plan, vec![0.0; 3]);
    let key = SecretKey::from_operating_system()?;
    let mut client = Client::new(0, plan.into(), data.into(), Sampling::Full, 0.2, key)?;
    let (mut scratch, mut received) = (RoundScratch::default(), Update::default());
    while !server.finished() {
        let message = client.message(server.round(), server.model(), &mut scratch)?;
        server.decode(0, message.bytes, &mut received)?;
        server.add(0, &received)?;
        client.accepted(&received); // The server has added it, so both shifts move.
        server.close()?;
        println!(
            "{} bytes, model {:.3?}",
            message.bytes.len(),
            server.model()
        );
    }
    Ok(())
}
