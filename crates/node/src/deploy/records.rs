//! A client's own records: loaded as the run wants them, and known by a digest.
//!
//! The digest names the data set in the ledger. It is that of the records as they are read, each
//! hashed alone and the hashes sorted: the order of rows, the file format and the run's scaling do not
//! change it. What it cannot see: a data set with one row added or changed is another one to it,
//! although nearly everything in it has been spent before. Whoever lets records grow must count their
//! cost together, by keeping one state directory and adding up its ledger.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use soteria_core::data::{DataDirectories, DataError, Dataset, Features, Share};

use super::Hash;
use super::description::Description;

/// Records ready to train on.
pub struct Records {
    /// Scaled, with the constant feature where the model has one.
    pub data: Arc<Dataset>,
    /// Digest of the records as they were read.
    pub digest: Hash,
}

/// Loads `share` as `description` asks.
///
/// # Errors
/// When the records cannot be read or do not have the run's features and classes.
pub fn load(
    share: &Share,
    description: &Description,
    directories: &DataDirectories,
) -> Result<Records, DataError> {
    let run = &description.resolved;
    let mut whole = share
        .source
        .load_as(&description.schema(), directories, run.seed)?
        .train;
    if let (Some(_), Some(rows)) = (share.part, run.rows)
        && rows < whole.rows()
    {
        whole = whole.select(&(0..rows as u32).collect::<Vec<_>>());
    }
    let part = |data: &Dataset| match share.part {
        Some((part, parts)) => run.partition.part(data, part, parts, run.seed),
        None => Ok(data.clone()),
    };
    let digest = digest(&part(&whole)?);
    // In the order of a simulated run: scaling looks at all rows when it decides how to store them.
    if description.intercept() {
        whole = whole.with_intercept();
    }
    whole = description.scaling()?.apply(whole)?;
    Ok(Records {
        data: Arc::new(part(&whole)?),
        digest,
    })
}

/// The digest of unscaled records.
pub fn digest(data: &Dataset) -> Hash {
    let mut rows: Vec<Hash> = (0..data.rows())
        .map(|row| {
            let mut hasher = Sha256::new();
            let mut put = |index: usize, value: f32| {
                if value != 0.0 {
                    hasher.update((index as u64).to_le_bytes());
                    hasher.update(value.to_le_bytes());
                }
            };
            match data.features() {
                Features::Dense(dense) => {
                    let values = dense.row(row).iter().enumerate();
                    values.for_each(|(index, &value)| put(index, value));
                }
                Features::Sparse(sparse) => {
                    let sparse = sparse.row(row);
                    let values = sparse.indices.iter().zip(sparse.values);
                    values.for_each(|(&index, &value)| put(index as usize, value));
                }
            }
            let label = data.labels()[row] as usize;
            let name = data.label_names().get(label).map_or("", String::as_str);
            hasher.update(u64::MAX.to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.finalize().into()
        })
        .collect();
    rows.sort_unstable();
    let mut hasher = Sha256::new();
    hasher.update((data.columns() as u64).to_le_bytes());
    rows.iter().for_each(|row| hasher.update(row));
    hasher.finalize().into()
}
