//! Fully connected networks with softmax cross-entropy, `f_j(x) = -w_label log p_label(a_j; x)`
//! with public weights `w` of classes (1 unless given), or with one output and a loss of its
//! residual, `f_j(x) = phi(z(a_j; x) - y_j)` ([`TargetLoss`]).
//!
//! Layer `l` computes `z_l = W_l^T a_l + b_l` from its input `a_l`; the first layer's input `a_0`
//! is the record itself. Its gradient is the outer product of `a_l` and the back-propagated error
//! `delta_l`, so the factors of a record are the errors of all layers and the inputs of all layers
//! but the first: 64 + 64 + 10 = 138 numbers for 784-64-10, instead of 50,890. Without hidden
//! layers this is softmax regression.
//!
//! **Order of parameters.** For every layer the weights, input-major (`[inputs][outputs]`, so that
//! a sparse row touches whole lines of memory), then the biases. [`Network::layers`] gives the
//! ranges.
//!
//! **Guarantee.** Factors, outcomes and norms of record `j` are the same to the bit in any batch
//! and at any place of it: every output number is one chain of fused multiply-adds in the order of
//! the inputs (`linalg/packed_matrix.rs`). A dense row gives the same bits as the sparse row that
//! leaves out its zeros.
//!
//! **Cost.** Forward and backward pass are proportional to the stored features; norms over all
//! coordinates need only the factors ("ghost" norms): `|g|^2 = sum_l (|a_l|^2 + 1) |delta_l|^2`.
//! Batches are worked through in blocks, so that scratch memory stays in the cache.
//!
//! **Place in the paper.** The second experiment (shallow network on MNIST).

mod columns;
mod norms;
mod pass;
mod quantised_pixels;
mod sums;

use std::ops::Range;

use thiserror::Error;

use super::{
    Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, TargetLoss, Workspace,
    check_columns, check_shape,
};
use crate::data::Dataset;
use crate::linalg::{self, kernels::padded};

/// Records per block of the forward and backward pass.
const BLOCK: usize = 64;

/// What a hidden layer applies to every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `1 / (1 + exp(-z))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `max(z, 0)`.
    Relu,
}

soteriafl_accountant::words!(
    Activation,
    "activation",
    Sigmoid = "sigmoid",
    Tanh = "tanh",
    Relu = "relu",
);

/// Where one layer's parameters are in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Number of inputs.
    pub inputs: usize,
    /// Number of outputs.
    pub outputs: usize,
    /// The weights, `[inputs][outputs]`.
    pub weights: Range<usize>,
    /// The biases, one per output; none in a network without them.
    pub biases: Range<usize>,
}

impl LayerShape {
    /// The weights as an `[outputs, inputs]` matrix, row after row: the usual form for export.
    ///
    /// # Panics
    /// If the model is too short.
    pub fn output_major(&self, model: &[f32]) -> Vec<f32> {
        let weights = &model[self.weights.clone()];
        (0..self.outputs)
            .flat_map(|r| (0..self.inputs).map(move |c| weights[c * self.outputs + r]))
            .collect()
    }
}

/// Why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A layer without numbers.
    #[error("layer {layer} has no outputs (layer 0 is the input)")]
    EmptyLayer {
        /// Which layer, the input being 0.
        layer: usize,
    },
    /// Fewer than two classes.
    #[error("expected at least 2 classes, found {found}")]
    Classes {
        /// How many were asked for.
        found: usize,
    },
    /// Not a weight for every class.
    #[error("expected {expected} weights, one per class, finite and not negative")]
    Weights {
        /// How many.
        expected: usize,
    },
    /// Coordinates are numbered by 32 bits.
    #[error("expected at most {expected} parameters, found more")]
    TooLarge {
        /// The most there may be.
        expected: usize,
    },
}

/// A fully connected network; see the module.
#[derive(Clone, Debug)]
pub struct Network {
    layers: Vec<LayerShape>,
    activation: Activation,
    head: Head,
    places: Vec<FactorPlace>,
    factor_len: usize,
    layout: pass::PassLayout,
}

/// What the last layer's outputs are, and what they cost.
#[derive(Clone, Debug, PartialEq)]
enum Head {
    /// One logit for each class; weights of the classes, or none.
    Classes(Vec<f32>),
    /// The place of the target.
    Target(TargetLoss),
}

/// Equal layers, activations and losses make equal networks: everything else follows from them.
impl PartialEq for Network {
    fn eq(&self, other: &Self) -> bool {
        self.layers == other.layers
            && self.activation == other.activation
            && self.head == other.head
    }
}

/// Where one layer's numbers are among a record's factors.
#[derive(Clone, Debug)]
struct FactorPlace {
    /// The layer's input; empty for the first layer.
    input: Range<usize>,
    /// The back-propagated error.
    error: Range<usize>,
    /// Square of the constant that biases stand beside: 1, or 0 in a network without them.
    constant: f64,
}

impl Network {
    /// A network with these layer sizes; `hidden` may be empty.
    pub fn new(
        inputs: usize,
        hidden: &[usize],
        classes: usize,
        activation: Activation,
    ) -> Result<Self, NetworkError> {
        if classes < 2 {
            return Err(NetworkError::Classes { found: classes });
        }
        Self::with_head(
            inputs,
            hidden,
            classes,
            activation,
            Head::Classes(Vec::new()),
        )
    }

    /// A network with one output, the place of a record's target.
    pub fn regression(
        inputs: usize,
        hidden: &[usize],
        activation: Activation,
        loss: TargetLoss,
    ) -> Result<Self, NetworkError> {
        Self::with_head(inputs, hidden, 1, activation, Head::Target(loss))
    }

    /// The same network over another number of inputs.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn with_inputs(&self, inputs: usize) -> Result<Self, NetworkError> {
        let hidden: Vec<usize> = self.layers[1..].iter().map(|layer| layer.inputs).collect();
        let head = self.head.clone();
        Self::with_head(inputs, &hidden, self.outputs(), self.activation, head)
    }

    /// The same with a weight for the loss of every class.
    ///
    /// # Errors
    /// Unless there are as many as classes, finite and not negative.
    pub fn weighted(self, weights: &[f32]) -> Result<Self, NetworkError> {
        let expected = self.outputs();
        let good = |weight: &f32| weight.is_finite() && *weight >= 0.0;
        let fits = weights.len() == expected && weights.iter().all(good);
        if !fits || matches!(self.head, Head::Target(_)) {
            return Err(NetworkError::Weights { expected });
        }
        let head = Head::Classes(weights.to_vec());
        Ok(Network { head, ..self })
    }

    fn with_head(
        inputs: usize,
        hidden: &[usize],
        outputs: usize,
        activation: Activation,
        head: Head,
    ) -> Result<Self, NetworkError> {
        let sizes: Vec<usize> = [inputs]
            .iter()
            .chain(hidden)
            .chain([&outputs])
            .copied()
            .collect();
        if let Some(layer) = sizes.iter().position(|&size| size == 0) {
            return Err(NetworkError::EmptyLayer { layer });
        }
        let (mut layers, mut places) = (Vec::new(), Vec::new());
        let (mut next, mut factor_len) = (0usize, 0);
        for pair in sizes.windows(2) {
            let (inputs, outputs) = (pair[0], pair[1]);
            let expected = u32::MAX as usize;
            let end = inputs
                .checked_mul(outputs)
                .and_then(|weights| weights.checked_add(outputs)?.checked_add(next))
                .filter(|&end| end <= expected)
                .ok_or(NetworkError::TooLarge { expected })?;
            let biases = end - outputs..end;
            let first_error = factor_len + if layers.is_empty() { 0 } else { inputs };
            places.push(FactorPlace {
                input: factor_len..first_error,
                error: first_error..first_error + outputs,
                constant: 1.0,
            });
            factor_len = first_error + outputs;
            layers.push(LayerShape {
                inputs,
                outputs,
                weights: next..biases.start,
                biases,
            });
            next = end;
        }
        let layout = pass::PassLayout::new(&layers);
        Ok(Network {
            layers,
            activation,
            head,
            places,
            factor_len,
            layout,
        })
    }

    /// Softmax regression without biases, for records that hold a constant: the gradient of a
    /// record of length one is then at most `sqrt(2)` long.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn softmax_without_biases(inputs: usize, classes: usize) -> Result<Self, NetworkError> {
        // Nothing is hidden, so no activation is applied.
        let mut network = Self::new(inputs, &[], classes, Activation::Sigmoid)?;
        let layer = &mut network.layers[0];
        layer.biases = layer.weights.end..layer.weights.end;
        network.places[0].constant = 0.0;
        Ok(network)
    }

    /// The layers in order, with the ranges of their parameters.
    pub fn layers(&self) -> Vec<LayerShape> {
        self.layers.clone()
    }

    /// What hidden layers apply.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// What it costs to miss a target; `None` of a network that answers with classes.
    pub fn target_loss(&self) -> Option<TargetLoss> {
        match self.head {
            Head::Classes(_) => None,
            Head::Target(loss) => Some(loss),
        }
    }

    fn assert_fits(&self, data: &Dataset) {
        let fits = self.check(data);
        assert!(fits.is_ok(), "{fits:?}");
    }

    fn check_gradients(&self, records: Records<'_>, gradients: Gradients<'_>) {
        self.assert_fits(records.data);
        assert_eq!(
            gradients.weights.len(),
            records.len(),
            "one weight per record"
        );
        assert_eq!(
            gradients.factors.len(),
            records.len() * self.factor_len,
            "factors of every record"
        );
    }
}

impl Activation {
    fn apply(self, values: &mut [f32]) {
        match self {
            Activation::Sigmoid => linalg::sigmoid(values),
            Activation::Tanh => linalg::tanh(values),
            // Not `max`, which would turn not-a-number into zero.
            Activation::Relu => values
                .iter_mut()
                .for_each(|value| *value = if *value < 0.0 { 0.0 } else { *value }),
        }
    }

    /// Multiplies errors by the derivative, given the layer's outputs.
    fn times_derivative(self, errors: &mut [f32], outputs: &[f32]) {
        let pairs = errors.iter_mut().zip(outputs);
        linalg::vectorised_widely(
            #[inline(always)]
            || match self {
                Activation::Sigmoid => pairs.for_each(|(error, &a)| *error *= a * (1.0 - a)),
                Activation::Tanh => pairs.for_each(|(error, &a)| *error *= a.mul_add(-a, 1.0)),
                Activation::Relu => pairs.for_each(|(error, &a)| {
                    *error = if a == 0.0 { 0.0 } else { *error };
                }),
            },
        );
    }
}

impl Objective for Network {
    fn dimension(&self) -> usize {
        self.layers[self.layers.len() - 1].biases.end
    }

    fn check(&self, data: &Dataset) -> Result<(), String> {
        let inputs = self.layers[0].inputs;
        match self.head {
            Head::Classes(_) => check_shape(data, inputs, self.outputs()),
            Head::Target(_) => {
                check_columns(data, inputs)?;
                TargetLoss::check(data)
            }
        }
    }

    fn factor_len(&self) -> usize {
        self.factor_len
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        self.assert_fits(records.data);
        assert_eq!(model.len(), self.dimension(), "one number per parameter");
        pass::run(self, model, records, outcomes, factors, None, workspace);
        Ok(())
    }

    fn outputs(&self) -> usize {
        self.layers[self.layers.len() - 1].outputs
    }

    fn predict(
        &self,
        model: &[f32],
        records: Records<'_>,
        predictions: &mut [f32],
        workspace: &mut Workspace,
    ) {
        self.assert_fits(records.data);
        assert_eq!(model.len(), self.dimension(), "one number per parameter");
        pass::run(
            self,
            model,
            records,
            None,
            None,
            Some(predictions),
            workspace,
        );
    }

    fn squared_norms(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        workspace: &mut Workspace,
    ) {
        self.check_gradients(records, gradients);
        assert_eq!(squared_norms.len(), records.len(), "one norm per record");
        match coordinates {
            Coordinates::All => norms::ghost(self, records, gradients, squared_norms),
            Coordinates::Selected(chosen) => {
                norms::selected(self, records, gradients, chosen, squared_norms, workspace);
            }
        }
    }

    fn squared_distances(
        &self,
        records: Records<'_>,
        left: Gradients<'_>,
        right: Gradients<'_>,
        squared_distances: &mut [f64],
        _workspace: &mut Workspace,
    ) {
        self.check_gradients(records, left);
        self.check_gradients(records, right);
        let count = squared_distances.len();
        assert_eq!(count, records.len(), "one distance per record");
        norms::distances(self, records, left, right, squared_distances);
    }

    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        self.check_gradients(records, gradients);
        assert_eq!(
            sum.len(),
            coordinates.count(self.dimension()),
            "one sum per coordinate"
        );
        match coordinates {
            Coordinates::All => sums::all(self, records, gradients, sum, workspace),
            Coordinates::Selected(chosen) => {
                sums::selected(self, records, gradients, chosen, sum, workspace);
            }
        }
    }
}

const _: () = assert!(padded(BLOCK) == BLOCK, "blocks are whole registers");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_cover_the_model_in_order() {
        let network = Network::new(784, &[64], 10, Activation::Sigmoid).unwrap();
        assert_eq!((network.dimension(), network.factor_len()), (50_890, 138));
        let layers = network.layers();
        assert_eq!((layers[0].inputs, layers[0].outputs), (784, 64));
        assert_eq!(layers[0].weights, 0..50_176);
        assert_eq!(layers[0].biases, 50_176..50_240);
        assert_eq!(layers[1].weights, 50_240..50_880);
        assert_eq!(layers[1].biases, 50_880..50_890);
        let softmax = Network::new(7, &[], 3, Activation::Relu).unwrap();
        assert_eq!((softmax.dimension(), softmax.factor_len()), (24, 3));
    }

    #[test]
    fn shapes_that_make_no_network_are_refused() {
        let new = |inputs, hidden: &[usize], classes| {
            Network::new(inputs, hidden, classes, Activation::Tanh).unwrap_err()
        };
        assert_eq!(new(3, &[], 1), NetworkError::Classes { found: 1 });
        assert_eq!(new(0, &[2], 3), NetworkError::EmptyLayer { layer: 0 });
        assert_eq!(new(3, &[2, 0], 3), NetworkError::EmptyLayer { layer: 2 });
        let expected = u32::MAX as usize;
        assert_eq!(
            new(3, &[usize::MAX], 2),
            NetworkError::TooLarge { expected }
        );
        assert_eq!(
            new(70_000, &[70_000], 2),
            NetworkError::TooLarge { expected }
        );
    }

    #[test]
    fn exported_weights_are_output_major() {
        let network = Network::new(2, &[3], 2, Activation::Tanh).unwrap();
        let model: Vec<f32> = (0..17).map(|i| i as f32).collect();
        let layers = network.layers();
        assert_eq!(
            layers[0].output_major(&model),
            [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
        );
        assert_eq!(model[layers[0].biases.clone()], [6.0, 7.0, 8.0]);
        assert_eq!(
            layers[1].output_major(&model),
            [9.0, 11.0, 13.0, 10.0, 12.0, 14.0]
        );
        assert_eq!(model[layers[1].biases.clone()], [15.0, 16.0]);
    }
}
