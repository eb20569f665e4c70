//! Which coordinates travel, and a message that was read.

use crate::linalg::memory::thread_buffer;
use crate::objective::Coordinates;
use crate::random::IndexSeed;

/// The coordinates that will travel this round, with the scratch memory to draw them.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub(super) seed: Option<IndexSeed>,
    /// Whether only `indices` travel: drawn from the seed, or chosen by the values themselves.
    pub(super) some: bool,
    pub(super) indices: Vec<u32>,
    pub(super) marks: Vec<u64>,
}

impl Selection {
    /// An empty selection with the buffers of one thread.
    pub(crate) fn for_thread() -> Self {
        Self {
            seed: None,
            some: false,
            indices: thread_buffer(0),
            marks: thread_buffer(0),
        }
    }

    /// The coordinates, ascending.
    pub fn coordinates(&self) -> Coordinates<'_> {
        match self.some {
            true => Coordinates::Selected(&self.indices),
            false => Coordinates::All,
        }
    }
}

/// A decoded message: values on coordinates. Buffers are reused.
#[derive(Clone, Debug, Default)]
pub struct Update {
    pub(super) selection: Selection,
    pub(super) values: Vec<f32>,
}

impl Update {
    /// An empty update with the buffers of one thread.
    pub(crate) fn for_thread() -> Self {
        Self {
            selection: Selection::for_thread(),
            values: thread_buffer(0),
        }
    }

    /// Forgets everything: adding it adds nothing.
    pub fn clear(&mut self) {
        self.selection.seed = None;
        self.values.clear();
    }

    /// Where the values belong.
    pub fn coordinates(&self) -> Coordinates<'_> {
        self.selection.coordinates()
    }

    /// The values, in the order of the coordinates.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Marks the coordinates with a value that is not zero.
    pub(crate) fn mark_nonzero(&self, marks: &mut [bool]) {
        match self.coordinates() {
            Coordinates::All => {
                let marks = marks.iter_mut().zip(&self.values);
                marks.for_each(|(mark, value)| *mark |= *value != 0.0);
            }
            Coordinates::Selected(indices) => {
                for (&index, value) in indices.iter().zip(&self.values) {
                    marks[index as usize] |= *value != 0.0;
                }
            }
        }
    }

    /// Adds `scale` times this update to a dense vector.
    pub fn add_to(&self, scale: f32, target: &mut [f32]) {
        match self.coordinates() {
            Coordinates::All => {
                for (target, value) in target.iter_mut().zip(&self.values) {
                    *target += scale * value;
                }
            }
            Coordinates::Selected(indices) => {
                for (&index, value) in indices.iter().zip(&self.values) {
                    target[index as usize] += scale * value;
                }
            }
        }
    }
}
