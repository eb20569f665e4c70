//! A model of your own, trained privately: a support vector machine with squared hinge loss.
//!
//! All it takes is the loss and the gradient of one record; clipping, noise, compression and
//! accounting are those of every other model. Run it with
//! `cargo run -p soteriafl --example own_model`.

use soteriafl::core::data::{Partition, Synthetic};
use soteriafl::core::objective::{Explicit, Outcome, RecordLoss, RowView};
use soteriafl::{Adjacency, ClipScope, CompressorKind, Estimator, Target, Training};

/// `max(0, 1 - y <a, x>)^2 / 2` over this many features.
struct SquaredHinge(usize);

impl RecordLoss for SquaredHinge {
    fn dimension(&self) -> usize {
        self.0
    }

    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        label: u32,
        gradient: &mut [f32],
    ) -> Outcome {
        let sign = if label == 1 { 1.0 } else { -1.0 };
        let margin = features.dot(model);
        let shortfall = (1.0 - sign * margin).max(0.0);
        features.add_scaled(-sign * shortfall, gradient);
        Outcome {
            loss: shortfall * shortfall / 2.0,
            class: u32::from(margin > 0.0),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: Synthetic = "6000x12".parse()?;
    let (train, test) = (source.train(3)?, source.test(3)?);
    let run = Training::new(
        Explicit(SquaredHinge(12)),
        Partition::Iid.split(&train, 5, 3)?,
    )
    .estimator(Estimator::Sgd)
    .batch(300.0)
    .compress(CompressorKind::RandK { k: 4 })
    .shifted()
    .clip(0.5, ClipScope::Record)
    .private(Target::epsilon(2.0, 1e-5, Adjacency::ReplaceOne))
    .rounds(120)
    .step_size(0.5)
    .seed(3)
    .build()?;
    let result = run.simulate(&test)?;
    println!(
        "{}: epsilon {:?}, test accuracy {:?}",
        run.claim(),
        run.epsilon(),
        result.test_accuracy
    );
    assert!(run.claim().is_proved() && result.test_accuracy > Some(0.75));
    Ok(())
}
