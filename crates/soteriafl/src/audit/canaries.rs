//! The records of the worst-case game: canaries whose gradients lie on coordinates of their own,
//! and an objective that a server turns at will through the first parameter of its models.
//!
//! A record is two numbers: a sign (0 for a null record, whose gradient is zero) and a block. Its
//! gradient is `x_0 sign code`, where `code` has `+1` or `-1` on the block's coordinates and zero
//! elsewhere. Where the clip bounds the coordinates that travel, a block is so wide that about six
//! of them do in every round, so that the whole clip always travels; several canaries then share a
//! block, with orthogonal codes. Everywhere else a block is one coordinate: the worst that random-k
//! can be given.

use std::sync::Arc;

use soteriafl_core::data::{Dataset, DenseRows, Features};
use soteriafl_core::objective::{
    Coordinates, Gradients, Objective, ObjectiveError, Outcome, Records, Workspace,
};

/// Which coordinates belong to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    /// Coins of a run.
    pub(crate) canaries: usize,
    /// Canaries that share a block.
    pub(crate) per_block: usize,
    /// Coordinates of a block.
    pub(crate) width: usize,
    /// Coordinates behind all blocks that no gradient touches, so that no greater share of all
    /// travels than in the run.
    pub(crate) idle: usize,
}

impl Layout {
    pub(crate) fn blocks(&self) -> usize {
        self.canaries.div_ceil(self.per_block)
    }

    /// Coordinates of all blocks: the first ones.
    pub(crate) fn used(&self) -> usize {
        self.blocks() * self.width
    }

    pub(crate) fn dimension(&self) -> usize {
        self.used() + self.idle
    }

    pub(crate) fn block(&self, canary: usize) -> usize {
        // A division would take longer than what else is done for a record.
        canary >> self.per_block.trailing_zeros()
    }

    /// The code of a canary at a coordinate of its block, counted from the block's first.
    #[cfg(test)]
    pub(crate) fn sign(&self, canary: usize, offset: usize) -> f32 {
        let mask = self.per_block - 1;
        SIGNS[canary & mask][offset & mask]
    }

    /// The codes of the first `N` canaries of a block at a coordinate, counted from the block's
    /// first. What is beyond those that share it is no canary's.
    pub(crate) fn signs<const N: usize>(&self, offset: usize) -> &'static [f32; N] {
        // Walsh's matrix is symmetric.
        let row = &SIGNS[offset & (self.per_block - 1)];
        row.first_chunk().expect("no more than share a block")
    }
}

/// Most canaries that share a block; as many as share one are a power of two.
pub(crate) const MOST_SHARED: usize = 8;

/// Walsh's matrix: `-1` where the common ones of row and column are odd in number.
const SIGNS: [[f32; MOST_SHARED]; MOST_SHARED] = {
    let mut signs = [[1.0; MOST_SHARED]; MOST_SHARED];
    let mut row = 0;
    while row < MOST_SHARED {
        let mut column = 0;
        while column < MOST_SHARED {
            if (row & column).count_ones() % 2 == 1 {
                signs[row][column] = -1.0;
            }
            column += 1;
        }
        row += 1;
    }
    signs
};

/// What stands in the place of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The canary.
    Present,
    /// A record that pulls the other way.
    Opposite,
    /// A null record.
    Null,
}

/// A client's records: every canary in so many copies, one after the other. All others are null
/// records.
pub(crate) fn data(layout: Layout, answers: &[Answer], copies: usize, records: usize) -> Dataset {
    let stored = answers.len() * copies;
    let mut values = vec![0.0f32; 2 * stored];
    let mut rows = values.chunks_exact_mut(2);
    for (canary, answer) in answers.iter().enumerate() {
        for row in rows.by_ref().take(copies) {
            row[0] = match answer {
                Answer::Present => 1.0,
                Answer::Opposite => -1.0,
                Answer::Null => 0.0,
            };
            row[1] = canary as f32;
        }
    }
    debug_assert!(answers.len() <= layout.canaries);
    let features = DenseRows::new(2, values).expect("two finite columns");
    let data = Dataset::new(Features::Dense(features), vec![0; stored], 1);
    data.expect("one class for all")
        .with_null_records(records - stored)
}

/// The objective of the game; see the module.
pub(crate) struct Canaries(pub(crate) Layout);

impl Canaries {
    pub(crate) fn shared(layout: Layout) -> Arc<dyn Objective> {
        Arc::new(Self(layout))
    }

    /// Calls `visit` with record, its factor times its weight, canary and the places and coordinates
    /// of its block among those wanted. Canaries ascend in a batch, so one walk over the coordinates
    /// finds all of them, and those of one block find it once.
    fn visit<'c>(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'c>,
        mut visit: impl FnMut(usize, f32, usize, Block<'c>),
    ) {
        let layout = self.0;
        let Features::Dense(rows) = records.data.features() else {
            unreachable!("canaries are dense rows");
        };
        let mut found: Option<(usize, Block<'c>)> = None;
        let values = gradients.factors.iter().zip(gradients.weights);
        for (record, (&row, (factor, weight))) in records.rows.iter().zip(values).enumerate() {
            let value = factor * weight;
            if value == 0.0 {
                continue;
            }
            let canary = rows.row(row as usize)[1] as usize;
            let number = layout.block(canary);
            let block = match found {
                Some((last, block)) if last == number => block,
                _ => self.wanted(
                    number,
                    coordinates,
                    found.map(|(_, block)| block.first + block.len),
                ),
            };
            found = Some((number, block));
            visit(record, value, canary, block);
        }
    }

    /// The part of a block that is wanted, looked for from a place on.
    fn wanted<'c>(
        &self,
        number: usize,
        coordinates: Coordinates<'c>,
        from: Option<usize>,
    ) -> Block<'c> {
        let width = self.0.width;
        let (start, end) = (number * width, (number + 1) * width);
        let chosen = match coordinates {
            Coordinates::All => {
                return Block {
                    start,
                    first: start,
                    chosen: None,
                    len: width,
                };
            }
            Coordinates::Selected(chosen) => chosen,
        };
        let before = |&index: &u32| (index as usize) < start;
        let first = match from {
            None => chosen.partition_point(before),
            Some(at) => at + chosen[at..].iter().take_while(|i| before(i)).count(),
        };
        let inside = chosen[first..].iter();
        let len = inside.take_while(|&&index| (index as usize) < end).count();
        Block {
            start,
            first,
            chosen: Some(&chosen[first..first + len]),
            len,
        }
    }
}

/// The part of a block that is wanted.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// Its first coordinate.
    start: usize,
    /// Place of its first wanted coordinate in outputs.
    first: usize,
    /// The coordinates; all of the block if there is no list.
    chosen: Option<&'a [u32]>,
    len: usize,
}

impl Block<'_> {
    /// Of its part that is wanted: the place in the block.
    fn offset(&self, index: usize) -> usize {
        self.chosen
            .map_or(index, |chosen| chosen[index] as usize - self.start)
    }
}

impl Objective for Canaries {
    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn factor_len(&self) -> usize {
        1
    }

    fn factors(
        &self,
        model: &[f32],
        records: Records<'_>,
        outcomes: Option<&mut [Outcome]>,
        factors: Option<&mut [f32]>,
        _workspace: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        let Features::Dense(rows) = records.data.features() else {
            unreachable!("canaries are dense rows");
        };
        if let Some(outcomes) = outcomes {
            outcomes.fill(Outcome::default());
        }
        if let Some(factors) = factors {
            for (factor, &row) in factors.iter_mut().zip(records.rows) {
                *factor = model[0] * rows.row(row as usize)[0];
            }
        }
        Ok(())
    }

    fn squared_norms(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        squared_norms: &mut [f64],
        _workspace: &mut Workspace,
    ) {
        squared_norms.fill(0.0);
        self.visit(
            records,
            gradients,
            coordinates,
            |record, value, _, block| {
                squared_norms[record] = f64::from(value).powi(2) * block.len as f64;
            },
        );
    }

    fn squared_distances(
        &self,
        _records: Records<'_>,
        left: Gradients<'_>,
        right: Gradients<'_>,
        squared_distances: &mut [f64],
        _workspace: &mut Workspace,
    ) {
        let width = self.0.width as f64;
        let value = |side: Gradients<'_>, j: usize| f64::from(side.factors[j] * side.weights[j]);
        for (j, squared) in squared_distances.iter_mut().enumerate() {
            *squared = (value(left, j) - value(right, j)).powi(2) * width;
        }
    }

    fn accumulate(
        &self,
        records: Records<'_>,
        gradients: Gradients<'_>,
        coordinates: Coordinates<'_>,
        sum: &mut [f32],
        _workspace: &mut Workspace,
    ) {
        // All canaries of a block are added at once.
        let mut gathered: Option<Gathered<'_>> = None;
        self.visit(
            records,
            gradients,
            coordinates,
            |_, value, canary, block| {
                if gathered
                    .as_ref()
                    .is_none_or(|g| g.block.start != block.start)
                {
                    let values = [0.0; MOST_SHARED];
                    if let Some(full) = gathered.replace(Gathered { block, values }) {
                        full.add_to(self.0, sum);
                    }
                }
                if let Some(gathered) = &mut gathered {
                    gathered.values[canary & (self.0.per_block - 1)] += value;
                }
            },
        );
        if let Some(full) = gathered {
            full.add_to(self.0, sum);
        }
    }
}

/// By canary of a block: what its records pull with.
struct Gathered<'a> {
    block: Block<'a>,
    values: [f32; MOST_SHARED],
}

impl Gathered<'_> {
    fn add_to(&self, layout: Layout, sum: &mut [f32]) {
        let block = self.block;
        let places = &mut sum[block.first..block.first + block.len];
        for (index, place) in places.iter_mut().enumerate() {
            *place += match layout.per_block {
                1 => self.values[0],
                _ => {
                    let signs = layout.signs::<MOST_SHARED>(block.offset(index));
                    let products = signs.iter().zip(&self.values);
                    products.map(|(sign, value)| sign * value).sum::<f32>()
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Norms, distances and sums against gradients written out.
    #[test]
    fn factored_gradients_are_those_of_the_definition() {
        let layout = Layout {
            canaries: 11,
            per_block: 4,
            width: 12,
            idle: 5,
        };
        let answers: Vec<Answer> = (0..11)
            .map(|i| [Answer::Present, Answer::Opposite, Answer::Null][i % 3])
            .collect();
        let data = data(layout, &answers, 2, 30);
        assert_eq!((data.rows(), data.records()), (22, 30));
        let objective = Canaries(layout);
        let dimension = objective.dimension();
        let (mut workspace, rows): (_, Vec<u32>) = (Workspace::new(), (0..22).collect());
        let records = Records {
            data: &data,
            rows: &rows,
        };
        let mut factors = vec![0.0; 22];
        let model = vec![0.75; dimension];
        objective
            .factors(&model, records, None, Some(&mut factors), &mut workspace)
            .unwrap();
        let weights: Vec<f32> = (0..22).map(|j| 0.5 + j as f32 / 30.0).collect();
        let gradients = Gradients {
            factors: &factors,
            weights: &weights,
        };
        let gradient = |row: usize, coordinate: usize| {
            let canary = row / 2;
            let sign = match answers.get(canary) {
                Some(Answer::Present) => 1.0,
                Some(Answer::Opposite) => -1.0,
                _ => return 0.0,
            };
            match coordinate / 12 == canary / 4 {
                true => 0.75 * sign * weights[row] * layout.sign(canary, coordinate % 12),
                false => 0.0,
            }
        };
        let some: Vec<u32> = (0..dimension as u32)
            .filter(|i| i % 3 != 1 && i % 7 != 2)
            .collect();
        for chosen in [None, Some(some)] {
            let coordinates = chosen
                .as_ref()
                .map_or(Coordinates::All, |list| Coordinates::Selected(list));
            let list: Vec<usize> = match &chosen {
                None => (0..dimension).collect(),
                Some(list) => list.iter().map(|&index| index as usize).collect(),
            };
            let mut sum = vec![0.0; list.len()];
            objective.accumulate(records, gradients, coordinates, &mut sum, &mut workspace);
            for (found, &coordinate) in sum.iter().zip(&list) {
                let expected: f32 = (0..22).map(|row| gradient(row, coordinate)).sum();
                assert!((found - expected).abs() < 1e-5);
            }
            let mut norms = vec![f64::NAN; 22];
            objective.squared_norms(records, gradients, coordinates, &mut norms, &mut workspace);
            for (row, found) in norms.iter().enumerate() {
                let squares = list.iter().map(|&c| f64::from(gradient(row, c)).powi(2));
                assert!((found - squares.sum::<f64>()).abs() < 1e-5);
            }
        }
        let opposite: Vec<f32> = weights.iter().map(|weight| -weight).collect();
        let other = Gradients {
            factors: &factors,
            weights: &opposite,
        };
        let mut distances = vec![f64::NAN; 22];
        objective.squared_distances(records, gradients, other, &mut distances, &mut workspace);
        for (row, found) in distances.iter().enumerate() {
            let squares = (0..dimension).map(|c| f64::from(2.0 * gradient(row, c)).powi(2));
            assert!((found - squares.sum::<f64>()).abs() < 1e-4);
        }
    }

    #[test]
    fn codes_of_a_block_are_orthogonal() {
        let layout = Layout {
            canaries: 8,
            per_block: 8,
            width: 64,
            idle: 0,
        };
        for one in 0..8 {
            for other in 0..8 {
                let products = (0..64).map(|c| layout.sign(one, c) * layout.sign(other, c));
                let expected = if one == other { 64.0 } else { 0.0 };
                assert_eq!(products.sum::<f32>(), expected);
            }
        }
    }
}
