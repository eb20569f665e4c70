//! Train at a proved epsilon 1: the noise is calibrated for what runs.
//!
//! Run it with `cargo run -p soteriafl --example train`.

use soteriafl::core::data::{Partition, Synthetic};
use soteriafl::core::objective::Logistic;
use soteriafl::{Adjacency, ClipScope, CompressorKind, Estimator, Target, Training};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: Synthetic = "8000x20".parse()?;
    let (train, test) = (source.train(7)?, source.test(7)?);
    let run = Training::new(Logistic::new(20), Partition::Iid.split(&train, 4, 7)?)
        .estimator(Estimator::Gd)
        .compress(CompressorKind::RandK { k: 5 })
        .shifted()
        .clip(0.25, ClipScope::Selected)
        .private(Target::epsilon(1.0, 1e-5, Adjacency::ReplaceOne))
        .rounds(100)
        .step_size(2.0)
        .seed(7)
        .build()?;
    println!("claim: {}, epsilon {:?}", run.claim(), run.epsilon());
    let result = run.simulate(&test)?;
    println!("test accuracy {:?}", result.test_accuracy);
    println!("sent up: {} bytes", result.traffic.uplink_bytes);
    assert!(run.claim().is_proved() && result.test_accuracy > Some(0.8));
    Ok(())
}
