//! a9a, built in: the paper's first data set, so that its first experiment runs offline.
//!
//! a9a is the UCI Adult census data in a one-hot encoding: 32,561 training and 16,281 test rows,
//! 123 binary features in 14 blocks, one block per column of Adult; a missing value sets no feature
//! of its block. The label is +1 for an income above 50K.
//!
//! Packed: one byte per block and row, 0 for missing and `1 + p` for the block's feature `p`, block
//! by block over all rows of both sets, then the labels; and all of it as one zlib stream
//! (`data/a9a.zlib`, made by `tools/pack_a9a`). The block education-num is a coarsening of the
//! block education and is not stored. Decoding takes a few milliseconds.

use std::io::Read;
use std::path::Path;

use flate2::read::ZlibDecoder;

use super::{DataError, Dataset, Features, Place, SparseRows};

/// Rows of the training set.
pub const TRAINING_ROWS: usize = 32_561;
/// Rows of the test set.
pub const TEST_ROWS: usize = 16_281;
/// Binary features of a row.
pub const FEATURES: usize = 123;

/// Features per block, in the order of Adult's columns.
const BLOCKS: [u8; 14] = [5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41];
/// The block of education, and that of education-num which follows from it.
const EDUCATION: usize = 3;
const EDUCATION_NUMBER: usize = 4;
/// The feature of education-num (from 1; 0 for missing) for each packed value of education.
const NUMBER_OF_EDUCATION: [u8; 17] = [0, 5, 3, 1, 2, 5, 4, 4, 1, 1, 1, 5, 1, 1, 5, 1, 1];

const PACKED: &[u8] = include_bytes!("../data/a9a.zlib");

/// The training and the test set.
pub fn load() -> Result<(Dataset, Dataset), DataError> {
    let columns = unpack(PACKED)?;
    let names: std::sync::Arc<[String]> = ["-1".to_owned(), "+1".to_owned()].into();
    let train = decode(&columns, 0..TRAINING_ROWS)?;
    let test = decode(&columns, TRAINING_ROWS..TRAINING_ROWS + TEST_ROWS)?;
    Ok((
        train.with_label_names(names.clone())?,
        test.with_label_names(names)?,
    ))
}

/// One column of bytes per block, and the labels last.
fn unpack(packed: &[u8]) -> Result<Vec<Vec<u8>>, DataError> {
    let rows = TRAINING_ROWS + TEST_ROWS;
    let stored = BLOCKS.len(); // without education-num, with the labels
    let mut bytes = Vec::with_capacity(rows * stored);
    let unpacked = ZlibDecoder::new(packed)
        .take(bytes.capacity() as u64 + 1)
        .read_to_end(&mut bytes);
    unpacked.map_err(|error| damaged(error.to_string()))?;
    if bytes.len() != rows * stored {
        return Err(damaged(format!("{} bytes", bytes.len())));
    }
    let mut columns: Vec<Vec<u8>> = bytes.chunks_exact(rows).map(<[u8]>::to_vec).collect();
    let number = |&education: &u8| NUMBER_OF_EDUCATION.get(education as usize).copied();
    let numbers: Option<Vec<u8>> = columns[EDUCATION].iter().map(number).collect();
    columns.insert(
        EDUCATION_NUMBER,
        numbers.ok_or_else(|| damaged("an unknown education".to_owned()))?,
    );
    Ok(columns)
}

fn decode(columns: &[Vec<u8>], rows: std::ops::Range<usize>) -> Result<Dataset, DataError> {
    let mut starts = Vec::with_capacity(rows.len() + 1);
    let mut indices = Vec::with_capacity(rows.len() * BLOCKS.len());
    starts.push(0);
    for row in rows.clone() {
        let mut first = 0;
        for (&size, column) in BLOCKS.iter().zip(columns) {
            let value = column[row];
            if value > size {
                return Err(damaged(format!("feature {value} in a block of {size}")));
            }
            if value > 0 {
                indices.push(first + u32::from(value) - 1);
            }
            first += u32::from(size);
        }
        starts.push(indices.len());
    }
    let labels = columns[BLOCKS.len()][rows]
        .iter()
        .map(|&label| u32::from(label))
        .collect();
    let values = vec![1.0; indices.len()];
    Ok(Dataset::new(
        Features::Sparse(SparseRows::new(FEATURES, starts, indices, values)?),
        labels,
        2,
    )?)
}

fn damaged(found: String) -> DataError {
    let place = Place::file(Path::new("the built-in a9a"));
    DataError::Format {
        place,
        expected: "its packed records".to_owned(),
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_are_an_error() {
        assert!(unpack(&[]).is_err());
        assert!(unpack(&PACKED[..PACKED.len() / 2]).is_err());
        let mut flipped = PACKED.to_vec();
        flipped[PACKED.len() / 2] ^= 1;
        assert!(unpack(&flipped).is_err());
    }

    #[test]
    fn blocks_cover_the_features() {
        assert_eq!(
            BLOCKS.iter().map(|&size| size as usize).sum::<usize>(),
            FEATURES
        );
    }
}
