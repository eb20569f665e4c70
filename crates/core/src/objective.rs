//! The loss that is minimised: per-record losses whose gradients are handled in factored form.
//!
//! For record `j` let `g_j = grad f_j(x)`. For every model here `g_j` is determined by the record
//! and a few numbers, its **factors**: one number for logistic regression, the activations and
//! back-propagated errors for a network (the gradient of a linear layer is the outer product of
//! what came in and what came back). So a round is four steps, and none of them builds a
//! per-record gradient:
//!
//! 1. [`Objective::factors`]: forward and backward pass over a batch;
//! 2. [`Objective::squared_norms`]: `|g_j|^2` from the factors ("ghost" norms), over all
//!    coordinates or only over those that travel; or [`Objective::squared_distances`]:
//!    `|g_j - h_j|^2`, over all;
//! 3. the caller turns norms into weights (clipping);
//! 4. [`Objective::accumulate`]: `sum_j weight_j g_j`, on all coordinates or only on those that
//!    travel, at a cost that shrinks with their number.
//!
//! Estimators are compositions of these steps. SAGA's table stores factors.
//!
//! **Guarantee.** Every number that belongs to record `j` is a function of the model and of record
//! `j` alone up to floating-point rounding; with a batch of one record, exactly.
//!
//! **Place in the paper.** `f_{i,j}` of equation (1); the regularizer is kept apart
//! ([`regularizer`]) because it holds no data.

pub mod elsewhere;
pub mod explicit;
pub mod linear;
pub mod margin_loss;
pub mod network;
pub mod regularizer;

pub use elsewhere::{ClipBound, Elsewhere, ObjectiveError};
pub use explicit::{Explicit, RecordLoss, RowView};
pub use linear::{Linear, LinearRegression, Logistic};
pub use margin_loss::{CrossEntropy, MarginLoss, TargetLoss};
pub use network::{Activation, LayerShape, Network, NetworkError};
pub use regularizer::Regularizer;

use crate::data::Dataset;
use crate::data::identity::Identity;
use crate::linalg::memory::thread_buffer;

/// Which coordinates of the model are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates<'a> {
    /// All `d` of them, in order.
    All,
    /// These, ascending and without repetition; outputs are indexed by position in this slice.
    Selected(&'a [u32]),
}

impl Coordinates<'_> {
    /// How many there are in a model of dimension `dimension`.
    pub fn count(&self, dimension: usize) -> usize {
        match self {
            Coordinates::All => dimension,
            Coordinates::Selected(chosen) => chosen.len(),
        }
    }
}

/// Some rows of a data set: a batch.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    /// The data set.
    pub data: &'a Dataset,
    /// Which rows.
    pub rows: &'a [u32],
}

impl Records<'_> {
    /// Number of records in the batch.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Per-record gradients in factored form, the `j`-th scaled by `weights[j]`.
#[derive(Clone, Copy, Debug)]
pub struct Gradients<'a> {
    /// `factor_len` numbers per record, record after record.
    pub factors: &'a [f32],
    /// One scale per record.
    pub weights: &'a [f32],
}

/// Loss and prediction of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The record's loss.
    pub loss: f32,
    /// The predicted class; 0 where records have targets.
    pub class: u32,
}

/// A sum of per-record losses with factored gradients. Object-safe; see the module for the steps.
///
/// For a model of your own, implement the much smaller [`RecordLoss`] and wrap it in
/// [`Explicit`].
pub trait Objective: Send + Sync {
    /// Number of parameters `d`.
    fn dimension(&self) -> usize;

    /// Whether records fit the model: their number of columns, and their classes. Objectives that
    /// do not say take what they are given.
    ///
    /// # Errors
    /// What does not fit, in words.
    fn check(&self, data: &Dataset) -> Result<(), String> {
        let _ = data;
        Ok(())
    }

    /// Numbers per record in factored form. An objective that says nothing else has whole gradients
    /// as factors; then the three methods below `predict` need not be written either.
    fn factor_len(&self) -> usize {
        self.dimension()
    }

    /// Forward and, where `factors` is given, backward pass. Writes one [`Outcome`] per record into
    /// `outcomes` and `factor_len` numbers per record into `factors`.
    ///
    /// # Errors
    /// Where numbers are computed [`elsewhere`](Self::elsewhere), and only there: when they cannot
    /// be.
    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError>;

    /// The objective as one whose numbers are computed elsewhere, if they are.
    fn elsewhere(&self) -> Option<&dyn Elsewhere> {
        None
    }

    /// How many numbers [`predict`](Self::predict) writes per record; 0 where an objective has no
    /// more to say than the class of an [`Outcome`], or computes [`elsewhere`](Self::elsewhere).
    fn outputs(&self) -> usize {
        0
    }

    /// Writes what the model says about each record, `outputs` numbers: the natural logarithm of
    /// every class's probability, in the order of classes (logarithms keep apart what rounds to a
    /// probability of 1); or of records with targets, the place of the target in its range.
    fn predict(
        &self,
        model: &[f32],
        records: Records<'_>,
        predictions: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let _ = (model, records, workspace);
        assert!(predictions.is_empty(), "no outputs per record");
    }

    /// Writes `|g_j|^2`, restricted to `coordinates`, one per record. Over all coordinates the
    /// relative error is below `2^-40` given the factors (sums of squares in `f64`); over selected
    /// ones it is that of `f32`.
    fn squared_norms(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        workspace: &mut Workspace,
    ) {
        let _ = workspace;
        assert_eq!(squared_norms.len(), records.len(), "one norm per record");
        explicit::norms_of_rows(whole(self), gradients, coordinates, squared_norms);
    }

    /// Writes `|left_j - right_j|^2` over all coordinates, one per record. Given the factors, the
    /// error is below `2^-40` of the two squared norms.
    fn squared_distances(
        &self,
        records: Records<'_>,
        left: Gradients<'_>,
        right: Gradients<'_>,
        squared_distances: &mut [f64],
        workspace: &mut Workspace,
    ) {
        let _ = workspace;
        let count = squared_distances.len();
        assert_eq!(count, records.len(), "one distance per record");
        explicit::distances_of_rows(whole(self), left, right, squared_distances);
    }

    /// Adds `sum_j weight_j g_j`, restricted to `coordinates`, to `sum`.
    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        workspace: &mut Workspace,
    ) {
        let _ = workspace;
        let count = gradients.weights.len();
        assert_eq!(count, records.len(), "one weight per record");
        explicit::sum_rows(whole(self), gradients, coordinates, sum);
    }
}

/// The numbers of a gradient that is its own factors.
fn whole<O: Objective + ?Sized>(objective: &O) -> usize {
    let dimension = objective.dimension();
    let len = objective.factor_len();
    assert_eq!(len, dimension, "other factors need methods of their own");
    dimension
}

/// Checks records against the columns and classes that a model has.
pub(crate) fn check_shape(data: &Dataset, columns: usize, classes: usize) -> Result<(), String> {
    check_columns(data, columns)?;
    if data.targets().is_some() {
        return Err("the model answers with a class, the records have numbers".to_owned());
    }
    let held = data.classes();
    if held > classes {
        return Err(format!(
            "the model knows {classes} classes, the records have {held}"
        ));
    }
    Ok(())
}

/// Checks records against the columns that a model reads.
pub(crate) fn check_columns(data: &Dataset, columns: usize) -> Result<(), String> {
    let found = data.columns();
    if found != columns {
        return Err(format!(
            "the model reads {columns} columns, the records have {found}"
        ));
    }
    Ok(())
}

/// Scratch memory for one thread: buffers grow on first use and are then reused, so that a round
/// allocates nothing after the first.
#[derive(Debug, Default)]
pub struct Workspace {
    buffers: Vec<Vec<f32>>,
    indices: Vec<Vec<u32>>,
    phase: u64,
    prepared: Vec<Prepared>,
    columns: CachedColumns,
}

/// What an objective has prepared for a model (packed weights), kept for the next call with the
/// same model.
#[derive(Debug)]
struct Prepared {
    key: PreparedKey,
    buffer: Vec<f32>,
}

/// The columns of a batch of records, kept for the next call with the same records.
#[derive(Debug, Default)]
struct CachedColumns {
    data: Option<Identity>,
    rows: Vec<u32>,
    buffer: Vec<u8>,
}

/// What [`Prepared`] numbers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreparedKey {
    /// Nothing is kept in phase 0.
    pub(crate) phase: u64,
    pub(crate) network: Identity,
    /// The model's address. Within a phase the numbers at one address do not change.
    pub(crate) model: usize,
    pub(crate) offset: Option<Identity>,
    /// Whether rows are sparse.
    pub(crate) sparse: bool,
    /// Whether the backward pass is prepared, too.
    pub(crate) backward: bool,
}

/// Models in use at the same time: SVRG has two.
const PREPARED: usize = 2;

impl Workspace {
    /// An empty workspace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a phase, within which what an objective prepares for a model (packed weights) is used
    /// again for all clients. A model is recognised by its address: until the next phase begins, no
    /// model in use may change, or be freed so that another takes its place. Phases differ by their
    /// number; in phase 0, where every workspace begins, nothing is kept.
    pub fn begin_phase(&mut self, phase: u64) {
        self.phase = phase;
    }

    /// The number of the phase.
    pub(crate) fn phase(&self) -> u64 {
        self.phase
    }

    /// What was prepared under `key` and `true`, or a buffer of `len` numbers to prepare it in and
    /// `false`.
    pub(crate) fn take_prepared(&mut self, key: PreparedKey, len: usize) -> (Vec<f32>, bool) {
        let known = self
            .prepared
            .iter()
            .position(|prepared| prepared.key == key);
        match known.filter(|_| key.phase > 0) {
            Some(place) => (self.prepared.swap_remove(place).buffer, true),
            None if self.prepared.len() >= PREPARED => {
                let mut buffer = self.prepared.remove(0).buffer;
                buffer.resize(len, 0.0);
                (buffer, false)
            }
            None => (self.take(len), false),
        }
    }

    /// Keeps what was prepared under `key`.
    pub(crate) fn put_prepared(&mut self, key: PreparedKey, buffer: Vec<f32>) {
        if key.phase > 0 {
            self.prepared.push(Prepared { key, buffer });
        } else {
            self.put(buffer);
        }
    }

    /// The columns of these rows of some data and `true`, or a buffer for them and `false`.
    pub(crate) fn take_columns(&mut self, data: Identity, rows: &[u32]) -> (Vec<u8>, bool) {
        let columns = &mut self.columns;
        let known = columns.data.take() == Some(data) && columns.rows == rows;
        (std::mem::take(&mut columns.buffer), known)
    }

    /// Keeps the columns of these rows.
    pub(crate) fn put_columns(&mut self, data: Identity, rows: &[u32], buffer: Vec<u8>) {
        let columns = &mut self.columns;
        columns.data = Some(data);
        columns.rows.clear();
        columns.rows.extend_from_slice(rows);
        columns.buffer = buffer;
    }

    /// Takes a buffer of `len` numbers with unspecified content; give it back with
    /// [`put`](Self::put).
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = take_from(&mut self.buffers, len);
        buffer.resize(len, 0.0);
        buffer
    }

    /// Takes a buffer of `len` zeros.
    pub fn take_zeroed(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    /// Returns a buffer for reuse.
    pub fn put(&mut self, buffer: Vec<f32>) {
        self.buffers.push(buffer);
    }

    /// Takes a buffer of `len` indices with unspecified content.
    pub fn take_indices(&mut self, len: usize) -> Vec<u32> {
        let mut buffer = take_from(&mut self.indices, len);
        buffer.resize(len, 0);
        buffer
    }

    /// Returns a buffer of indices for reuse.
    pub fn put_indices(&mut self, buffer: Vec<u32>) {
        self.indices.push(buffer);
    }
}

/// A buffer of exactly this length, which is mostly there, because every call makes the same
/// requests. Else the smallest that is large enough, so that requests whose length varies with the
/// batch do not shorten a large buffer, which would have to be filled again; else the largest.
fn take_from<Number>(buffers: &mut Vec<Vec<Number>>, len: usize) -> Vec<Number> {
    let fit = |buffer: &Vec<Number>| match buffer.capacity() {
        _ if buffer.len() == len => (0, 0),
        room if room >= len => (1, room),
        room => (2, usize::MAX - room),
    };
    let best = (0..buffers.len())
        .rev()
        .min_by_key(|&place| fit(&buffers[place]));
    best.map_or_else(|| thread_buffer(len), |place| buffers.swap_remove(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_for_requests_that_repeat() {
        let mut workspace = Workspace::new();
        let mut places = Vec::new();
        for _ in 0..3 {
            let (a, b) = (workspace.take(1000), workspace.take_zeroed(10));
            let indices = workspace.take_indices(7);
            assert_eq!((a.len(), b.len(), indices.len()), (1000, 10, 7));
            assert_eq!(b, [0.0; 10]);
            places.push((a.as_ptr(), b.as_ptr(), indices.as_ptr()));
            workspace.put(b.iter().map(|_| 1.0).collect());
            workspace.put(a);
            workspace.put(b);
            workspace.put_indices(indices);
        }
        assert_eq!(places[0].0, places[1].0);
        assert_eq!(places[1], places[2]);
    }
}
