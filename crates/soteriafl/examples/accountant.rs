//! Only the accountant: what does a mechanism cost, and how much noise meets a target?
//!
//! Run it with `cargo run -p soteriafl --example accountant`.

use soteriafl::accountant::{Adjacency, ClipScope, Estimator, Mechanism};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mechanism = Mechanism {
        estimator: Estimator::Sgd,
        records: 6000,
        batch: 128.0,
        clip: 1.0,
        clip_scope: ClipScope::Record,
        rand_k: Some(0.05),
    };
    let question = mechanism.question(150, 1e-5, Adjacency::ReplaceOne)?;
    let cost = question.cost(0.02)?;
    println!("noise 0.02 costs epsilon {:.3}", cost.epsilon);
    println!("amplification: {:?}", cost.amplification);
    let least = question.calibrate(1.0)?;
    println!("epsilon 1 needs noise {}", least.sigma);
    assert!(least.epsilon <= 1.0);
    Ok(())
}
