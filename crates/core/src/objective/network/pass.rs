//! Forward and backward pass of a network over a batch, block by block.

use std::ops::Range;

use super::super::{Outcome, PreparedKey, Records, TargetLoss, Workspace};
use super::quantised_pixels::{QuantisedPixels, RecordedColumns};
use super::{BLOCK, Head, LayerShape, Network};
use crate::data::Features;
use crate::data::identity::Identity;
use crate::data::packed::{RowSource, with_rows};
use crate::linalg::kernels::{self, padded};
use crate::linalg::{LINE, aligned, packed_matrix, vector_math, vectorised_widely};

/// Where everything is in the two scratch buffers of a pass: one that is prepared for a model, and
/// one for a block of records.
#[derive(Clone, Debug)]
pub(super) struct PassLayout {
    /// Identifies the network in caches.
    identity: Identity,
    layers: Vec<LayerLayout>,
    /// Prepared: as many zeros as the widest layer has outputs, where sums of errors start from.
    zeros: Range<usize>,
    prepared_len: usize,
    forward_len: usize,
    block_len: usize,
}

#[derive(Clone, Debug)]
struct LayerLayout {
    /// Outputs in whole registers.
    width: usize,
    /// Prepared: the weights, packed in panels.
    weights: Range<usize>,
    /// Prepared: where every sum starts from, the bias and the data offset's share.
    start: Range<usize>,
    /// Prepared, for the backward pass: the transposed weights, packed; not for the first layer.
    transposed: Range<usize>,
    /// Block: the outputs, `[record][width]`; of the last layer later its errors.
    values: Range<usize>,
    /// Block: the errors, `[record][width]`.
    errors: Range<usize>,
}

impl PassLayout {
    pub(super) fn new(layers: &[LayerShape]) -> Self {
        let mut prepared = 0;
        let mut block = 0;
        let take = |next: &mut usize, len: usize| {
            let start = *next;
            *next = (start + len).next_multiple_of(LINE);
            start..start + len
        };
        let mut layouts: Vec<LayerLayout> = Vec::new();
        for (l, layer) in layers.iter().enumerate() {
            let width = padded(layer.outputs);
            layouts.push(LayerLayout {
                width,
                weights: take(&mut prepared, layer.inputs * width),
                start: take(&mut prepared, width),
                transposed: match l {
                    0 => 0..0,
                    _ => take(&mut prepared, layer.outputs * padded(layer.inputs)),
                },
                values: take(&mut block, BLOCK * width),
                errors: 0..0,
            });
        }
        let forward_len = block;
        // In the order in which they are written, so that each can be split from its sources.
        let last = layouts.len() - 1;
        layouts[last].errors = layouts[last].values.clone();
        for layout in layouts[..last].iter_mut().rev() {
            layout.errors = take(&mut block, BLOCK * layout.width);
        }
        let widest = layouts.iter().map(|layout| layout.width).max().unwrap_or(0);
        PassLayout {
            identity: Identity::new(),
            layers: layouts,
            zeros: take(&mut prepared, widest),
            prepared_len: prepared,
            forward_len,
            block_len: block,
        }
    }
}

/// See [`Objective::factors`](super::super::Objective::factors), and
/// [`Objective::predict`](super::super::Objective::predict) where predictions are asked for, alone.
pub(super) fn run(
    network: &Network,
    model: &[f32],
    records: Records<'_>,
    mut outcomes: Option<&mut [Outcome]>,
    mut factors: Option<&mut [f32]>,
    mut predictions: Option<&mut [f32]>,
    workspace: &mut Workspace,
) {
    let count = records.len();
    let outputs = network.layers[network.layers.len() - 1].outputs;
    if let Some(predictions) = predictions.as_deref() {
        assert_eq!(
            predictions.len(),
            count * outputs,
            "outputs of every record"
        );
    }
    if let Some(outcomes) = outcomes.as_deref() {
        assert_eq!(outcomes.len(), count, "one outcome per record");
    }
    if let Some(factors) = factors.as_deref() {
        assert_eq!(
            factors.len(),
            count * network.factor_len,
            "factors of every record"
        );
    }
    let all = records;
    let layout = &network.layout;
    let backward = factors.is_some();
    let key = prepared_key(network, model, records, backward, workspace.phase());
    let (mut prepared_buffer, known) = workspace.take_prepared(key, layout.prepared_len + LINE);
    let prepared = aligned(&mut prepared_buffer);
    if !known {
        prepare(network, model, records, backward, prepared);
    }
    let block_len = if backward {
        layout.block_len
    } else {
        layout.forward_len
    };
    let mut block_buffer = workspace.take(block_len + LINE);
    let pixels = QuantisedPixels::of(records).filter(|_| backward);
    let mut recorded = pixels.and_then(|pixels| pixels.start_recording(workspace));
    let block = aligned(&mut block_buffer);
    for (b, rows) in records.rows.chunks(BLOCK).enumerate() {
        let records = Records {
            data: records.data,
            rows,
        };
        if let Some(next) = all.rows.chunks(BLOCK).nth(b + 1) {
            all.data.prefetch(next);
        }
        let recorded = recorded.as_mut().map(|recorded| (recorded, b * BLOCK));
        forward(network, prepared, records, recorded, block);
        let place = b * BLOCK..b * BLOCK + rows.len();
        let mut outcomes = outcomes
            .as_deref_mut()
            .map(|outcomes| &mut outcomes[place.clone()]);
        let logits = &mut block[layout.layers[layout.layers.len() - 1].values.clone()];
        if let Some(predictions) = predictions.as_deref_mut() {
            let predictions = &mut predictions[place.start * outputs..place.end * outputs];
            match network.head {
                Head::Classes(_) => log_probabilities(logits, outputs, predictions),
                Head::Target(_) => {
                    let places = logits.chunks_exact(padded(1));
                    let both = predictions.iter_mut().zip(places);
                    both.for_each(|(prediction, place)| *prediction = place[0]);
                }
            }
            continue;
        }
        match &network.head {
            Head::Classes(weights) => {
                softmax(network, records, logits, outcomes.as_deref_mut());
                if !weights.is_empty() {
                    weigh(weights, records, logits, outcomes);
                }
            }
            Head::Target(loss) => residuals(*loss, records, logits, outcomes),
        }
        if let Some(factors) = factors.as_deref_mut() {
            backpropagate(network, prepared, rows.len(), block);
            let len = network.factor_len;
            let factors = &mut factors[place.start * len..place.end * len];
            write_factors(network, block, factors);
        }
    }
    workspace.put(block_buffer);
    if let (Some(pixels), Some(recorded)) = (pixels, recorded) {
        pixels.finish_recording(recorded, workspace);
    }
    workspace.put_prepared(key, prepared_buffer);
}

/// What the prepared weights depend on.
fn prepared_key(
    network: &Network,
    model: &[f32],
    records: Records<'_>,
    backward: bool,
    phase: u64,
) -> PreparedKey {
    PreparedKey {
        phase,
        network: network.layout.identity,
        model: model.as_ptr().addr(),
        offset: records.data.offset_identity(),
        sparse: matches!(records.data.features(), Features::Sparse(_)),
        backward,
    }
}

/// Packs and transposes weights, once per model and phase.
fn prepare(
    network: &Network,
    model: &[f32],
    records: Records<'_>,
    backward: bool,
    prepared: &mut [f32],
) {
    for (l, (layer, layout)) in network
        .layers
        .iter()
        .zip(&network.layout.layers)
        .enumerate()
    {
        let weights = &model[layer.weights.clone()];
        let (packed, rest) = prepared[layout.weights.start..]
            .split_at_mut(layout.start.start - layout.weights.start);
        let packed = &mut packed[..layout.weights.len()];
        let start = &mut rest[..layout.width];
        let biases = &model[layer.biases.clone()];
        start[..biases.len()].copy_from_slice(biases);
        start[biases.len()..].fill(0.0);
        let widest = match (l, records.data.features()) {
            (0, Features::Sparse(_)) => packed_matrix::SPARSE_PANEL,
            _ => packed_matrix::dense_panel(),
        };
        // The offset is the same for every record, so its share is added to the bias.
        let offset = records
            .data
            .offset()
            .filter(|_| l == 0)
            .map(|offset| &offset[..]);
        vectorised_widely(
            #[inline(always)]
            || packed_matrix::pack(weights, layer.outputs, widest, offset, start, packed),
        );
        if l > 0 && backward {
            let transposed = &mut prepared[layout.transposed.clone()];
            packed_matrix::pack_transposed(
                weights,
                layer.outputs,
                packed_matrix::dense_panel(),
                transposed,
            );
        }
    }
    prepared[network.layout.zeros.clone()].fill(0.0);
}

fn forward(
    network: &Network,
    prepared: &[f32],
    records: Records<'_>,
    mut recorded: Option<(&mut RecordedColumns<'_>, usize)>,
    block: &mut [f32],
) {
    let count = records.len();
    let last = network.layers.len() - 1;
    for (l, (layer, layout)) in network
        .layers
        .iter()
        .zip(&network.layout.layers)
        .enumerate()
    {
        let weights = &prepared[layout.weights.clone()];
        let start = &prepared[layout.start.clone()];
        let (before, rest) = block.split_at_mut(layout.values.start);
        let target = &mut rest[..count * layout.width];
        if l == 0 {
            first_layer(records, weights, start, recorded.take(), target);
        } else {
            let inputs = &network.layout.layers[l - 1];
            let values = &before[inputs.values.clone()];
            dense_layer(values, inputs.width, layer.inputs, weights, start, target);
        }
        if l < last {
            network.activation.apply(target);
        }
    }
}

/// `target_j = start + row_j W` for the rows of the data.
fn first_layer(
    records: Records<'_>,
    weights: &[f32],
    start: &[f32],
    recorded: Option<(&mut RecordedColumns<'_>, usize)>,
    target: &mut [f32],
) {
    vectorised_widely(
        #[inline(always)]
        || match records.data.features() {
            Features::Sparse(sparse) => {
                for target in target.chunks_exact_mut(start.len()) {
                    target.copy_from_slice(start);
                }
                // Where the rows begin is looked up for all of them before any is read: the
                // lookups then wait for memory together.
                let width = start.len();
                match recorded {
                    Some((recorded, first)) => {
                        let block = &recorded.rows.block::<BLOCK>(records.rows)[..records.len()];
                        packed_matrix::sparse_rows_times_matrix(
                            block,
                            weights,
                            width,
                            target,
                            recorded.columns(),
                            #[inline(always)]
                            |j| first + j,
                        );
                    }
                    None => with_rows!(sparse, |rows| {
                        let block = &rows.block::<BLOCK>(records.rows)[..records.len()];
                        packed_matrix::sparse_rows_times_matrix(
                            block,
                            weights,
                            width,
                            target,
                            &mut vec![[]; weights.len() / width],
                            #[inline(always)]
                            |j| j,
                        );
                    }),
                }
            }
            Features::Dense(dense) => packed_matrix::rows_times_matrix(
                records.len(),
                #[inline(always)]
                |j| dense.row(records.rows[j] as usize),
                weights,
                packed_matrix::dense_panel(),
                start,
                target,
            ),
        },
    );
}

/// `target_j = start + values_j W`, the rows of `values` being `stride` apart and `depth` long.
fn dense_layer(
    values: &[f32],
    stride: usize,
    depth: usize,
    weights: &[f32],
    start: &[f32],
    target: &mut [f32],
) {
    vectorised_widely(
        #[inline(always)]
        || {
            packed_matrix::rows_times_matrix(
                target.len() / start.len(),
                #[inline(always)]
                |j| &values[j * stride..][..depth],
                weights,
                packed_matrix::dense_panel(),
                start,
                target,
            );
        },
    );
}

/// Turns the last layer's outputs into its errors, `p - onehot(label)`, and writes the outcomes.
fn softmax(
    network: &Network,
    records: Records<'_>,
    logits: &mut [f32],
    mut outcomes: Option<&mut [Outcome]>,
) {
    let classes = network.layers[network.layers.len() - 1].outputs;
    let all = records.data.labels();
    let mut labels = [0; BLOCK];
    for (label, &row) in labels.iter_mut().zip(records.rows) {
        *label = all[row as usize];
    }
    let width = padded(classes);
    let logits = &mut logits[..records.len() * width];
    vectorised_widely(
        #[inline(always)]
        || {
            // Three passes, each simple enough to become vector code.
            for (j, logits) in logits.chunks_exact_mut(width).enumerate() {
                logits[classes..].fill(f32::NEG_INFINITY);
                let largest = kernels::maximum(logits);
                if let Some(outcomes) = outcomes.as_deref_mut() {
                    let class = logits.iter().position(|&logit| logit == largest);
                    let correct = logits[labels[j] as usize];
                    outcomes[j] = Outcome {
                        loss: largest - correct,
                        class: class.unwrap_or(0) as u32,
                    };
                }
                logits.iter_mut().for_each(|logit| *logit -= largest);
            }
            for value in logits.iter_mut() {
                *value = vector_math::exp_saturating(*value);
            }
            for (j, values) in logits.chunks_exact_mut(width).enumerate() {
                let sum = kernels::sum(values);
                if let Some(outcomes) = outcomes.as_deref_mut() {
                    outcomes[j].loss += libm::logf(sum);
                }
                let scale = 1.0 / sum;
                values.iter_mut().for_each(|value| *value *= scale);
                values[labels[j] as usize] -= 1.0;
            }
        },
    );
}

/// Multiplies losses and errors by the weights of the records' classes.
fn weigh(
    weights: &[f32],
    records: Records<'_>,
    errors: &mut [f32],
    mut outcomes: Option<&mut [Outcome]>,
) {
    let labels = records.data.labels();
    let errors = errors.chunks_exact_mut(padded(weights.len()));
    for (j, (errors, &row)) in errors.zip(records.rows).enumerate() {
        let weight = weights[labels[row as usize] as usize];
        errors.iter_mut().for_each(|error| *error *= weight);
        if let Some(outcomes) = outcomes.as_deref_mut() {
            outcomes[j].loss *= weight;
        }
    }
}

/// Turns the one output of every record into the derivative of its loss, and writes the outcomes.
fn residuals(
    loss: TargetLoss,
    records: Records<'_>,
    outputs: &mut [f32],
    mut outcomes: Option<&mut [Outcome]>,
) {
    let targets = records.data.target_values();
    let outputs = outputs.chunks_exact_mut(padded(1));
    for (j, (output, &row)) in outputs.zip(records.rows).enumerate() {
        let residual = output[0] - targets[row as usize];
        if let Some(outcomes) = outcomes.as_deref_mut() {
            let (loss, class) = (loss.value(residual), 0);
            outcomes[j] = Outcome { loss, class };
        }
        // What pads the register is no output.
        output.fill(0.0);
        output[0] = loss.derivative(residual);
    }
}

/// `z_c - log sum_c' exp(z_c')` of every record and class.
fn log_probabilities(logits: &[f32], classes: usize, predictions: &mut [f32]) {
    let records = logits.chunks_exact(padded(classes));
    for (predictions, logits) in predictions.chunks_exact_mut(classes).zip(records) {
        let logits = &logits[..classes];
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let largest = f64::from(largest);
        let exponentials = logits
            .iter()
            .map(|&logit| libm::exp(f64::from(logit) - largest));
        let sum = libm::log(exponentials.sum::<f64>());
        for (prediction, &logit) in predictions.iter_mut().zip(logits) {
            *prediction = (f64::from(logit) - largest - sum) as f32;
        }
    }
}

fn backpropagate(network: &Network, prepared: &[f32], count: usize, block: &mut [f32]) {
    for l in (1..network.layers.len()).rev() {
        let (layout, below) = (&network.layout.layers[l], &network.layout.layers[l - 1]);
        let outputs = network.layers[l].outputs;
        let (before, rest) = block.split_at_mut(below.errors.start);
        let target = &mut rest[..count * below.width];
        let errors = &before[layout.errors.clone()];
        let transposed = &prepared[layout.transposed.clone()];
        let zeros = &prepared[network.layout.zeros.clone()][..below.width];
        dense_layer(errors, layout.width, outputs, transposed, zeros, target);
        let values = &before[below.values.clone()][..count * below.width];
        network.activation.times_derivative(target, values);
    }
}

fn write_factors(network: &Network, block: &[f32], factors: &mut [f32]) {
    let layouts = &network.layout.layers;
    for (j, factors) in factors.chunks_exact_mut(network.factor_len).enumerate() {
        for (l, place) in network.places.iter().enumerate() {
            if l > 0 {
                let below = &layouts[l - 1];
                let values = &block[below.values.start + j * below.width..];
                factors[place.input.clone()].copy_from_slice(&values[..place.input.len()]);
            }
            let errors = &block[layouts[l].errors.start + j * layouts[l].width..];
            factors[place.error.clone()].copy_from_slice(&errors[..place.error.len()]);
        }
    }
}
