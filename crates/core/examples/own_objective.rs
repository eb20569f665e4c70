//! An objective of your own: a support vector machine with squared hinge loss, trained by plain
//! gradient steps.
//!
//! Run it with `cargo run -p soteriafl-core --example own_objective`.

use soteriafl_core::data::{Dataset, DenseRows, Features};
use soteriafl_core::objective::{
    Coordinates, Explicit, Gradients, Objective, Outcome, RecordLoss, Records, RowView, Workspace,
};

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
    let points = vec![2.0, 1.0, 1.5, 2.5, 3.0, 0.5, -1.0, -2.0, -2.5, 0.5];
    let rows = Features::Dense(DenseRows::new(2, points)?);
    let data = &Dataset::new(rows, vec![1, 1, 1, 0, 0], 2)?.with_intercept();
    let objective = Explicit(SquaredHinge(data.columns()));
    let rows = &[0, 1, 2, 3, 4];
    let (mut model, mut factors) = ([0.0; 3], [0.0; 5 * 3]);
    let (mut outcomes, mut scratch) = ([Outcome::default(); 5], Workspace::new());
    for _ in 0..100 {
        let (records, out) = (Records { data, rows }, Some(&mut outcomes[..]));
        objective.factors(&model, records, out, Some(&mut factors), &mut scratch);
        let (factors, weights) = (&factors[..], &[0.2; 5][..]);
        let (gradients, mut sum) = (Gradients { factors, weights }, [0.0; 3]);
        objective.accumulate(records, gradients, Coordinates::All, &mut sum, &mut scratch);
        model.iter_mut().zip(sum).for_each(|(x, g)| *x -= 0.1 * g);
    }
    println!("{:#?} with {model:.3?}", &outcomes);
    Ok(())
}
