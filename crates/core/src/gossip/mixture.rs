//! What a node sends in a round, and how another node mixes what it receives.

use std::sync::Arc;

use crate::compress::Update;
use crate::gossip::Transport;

/// A node's messages of one round.
#[derive(Debug, Default)]
pub struct Sent {
    /// Of the model.
    pub(super) model: Update,
    /// Of the tracked direction; used by [`Transport::Tracking`] alone.
    pub(super) direction: Update,
    /// Length of both on the wire.
    pub bytes: usize,
    /// Values in both.
    pub values: usize,
}

/// What a node has heard: `sum_j W_ij` of what everybody knows of the nodes `j`, itself included.
/// Where everybody hears the mean of all, one serves all nodes.
#[derive(Clone, Debug)]
pub struct Mixture {
    transport: Transport,
    pub(super) model: Vec<f32>,
    /// Empty unless directions are tracked.
    pub(super) direction: Vec<f32>,
}

impl Mixture {
    /// The mixture at the start, where all nodes have the same model.
    pub fn new(transport: Transport, start: &[f32]) -> Self {
        let tracked = match transport {
            Transport::Tracking => start.len(),
            Transport::Differences | Transport::Models => 0,
        };
        Self {
            transport,
            model: start.to_vec(),
            direction: vec![0.0; tracked],
        }
    }

    /// Before the messages of a round are heard: models are sent anew in every round, everything
    /// else as differences.
    pub fn begin(&mut self) {
        if self.transport == Transport::Models {
            self.model.fill(0.0);
        }
    }

    /// Hears a node's messages with the weight `W_ij`. Nodes are heard in ascending order, so that
    /// sums have one order.
    pub fn hear(&mut self, weight: f64, sent: &Sent) {
        let weight = weight as f32;
        sent.model.add_to(weight, &mut self.model);
        if self.transport == Transport::Tracking {
            sent.direction.add_to(weight, &mut self.direction);
        }
    }

    /// Nonzero values of each vector that a server sends back after it has heard these messages.
    pub fn changed<'a>(
        &self,
        sent: impl Iterator<Item = &'a Sent> + Clone,
    ) -> impl Iterator<Item = usize> {
        let count = |update: fn(&Sent) -> &Update| {
            let mut marks = vec![false; self.model.len()];
            sent.clone()
                .for_each(|sent| update(sent).mark_nonzero(&mut marks));
            marks.into_iter().filter(|mark| *mark).count()
        };
        let tracks = self.transport == Transport::Tracking;
        let direction = tracks.then(|| count(|sent| &sent.direction));
        std::iter::once(count(|sent| &sent.model)).chain(direction)
    }
}

/// The mean of all nodes' models, and how far they are from it: `1/n sum_i |x_i - mean|^2`.
pub(crate) fn consensus(models: &[Arc<Vec<f32>>], mean: &mut Vec<f32>) -> f64 {
    let count = models.len() as f64;
    let mut exact = vec![0f64; models.first().map_or(0, |model| model.len())];
    for model in models {
        let pairs = exact.iter_mut().zip(model.iter());
        pairs.for_each(|(sum, &value)| *sum += f64::from(value));
    }
    exact.iter_mut().for_each(|sum| *sum /= count);
    mean.clear();
    mean.extend(exact.iter().map(|&value| value as f32));
    let distance = |model: &Arc<Vec<f32>>| {
        let pairs = model.iter().zip(&exact);
        pairs
            .map(|(&value, mean)| (f64::from(value) - mean).powi(2))
            .sum::<f64>()
    };
    models.iter().map(distance).sum::<f64>() / count
}
