//! A client's own records: loaded as the run wants them, and known by a digest that no run can change.
//!
//! The digest names the data set in the ledger. It is taken of the whole source before the server has
//! said anything: of every record the nonzero values with their places and the label, each record hashed
//! alone and the hashes sorted. The order of rows and the file format do not change it; and nothing in a
//! description can: not the number of features, the spelling of classes, the scaling, the limit on rows,
//! nor the seed that deals the parts of `SOURCE:i/n`, whose ledger is that of the whole source. Synthetic
//! records, which are nobody's, are known by their source's name.
//!
//! What it cannot see: a data set with one row added or changed is another one to it, although nearly
//! everything in it has been spent before. Whoever lets records grow must count their cost together, by
//! keeping one state directory and adding up its ledger.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use soteria_core::data::{DataDirectories, DataError, Dataset, Features, Share, Source};

use super::Hash;
use super::description::Description;

/// Records ready to train on.
pub struct Records {
    /// Scaled, with the constant feature where the model has one.
    pub data: Arc<Dataset>,
    /// Digest of the source that they are from.
    pub digest: Hash,
}

/// The digest of all records of a source, as its owner has them.
///
/// # Errors
/// When they cannot be read.
pub fn source_digest(source: &Source, directories: &DataDirectories) -> Result<Hash, DataError> {
    match source {
        Source::Synthetic(_) => Ok(Sha256::digest(source.to_string().as_bytes()).into()),
        _ => Ok(digest(&source.load(directories, 0)?.train)),
    }
}

/// Loads `share`, whose source has the digest `own`, as `description` asks.
///
/// # Errors
/// When the records cannot be read or do not have the run's features and classes.
pub fn load(
    share: &Share,
    own: Hash,
    description: &Description,
    directories: &DataDirectories,
) -> Result<Records, DataError> {
    let run = &description.resolved;
    let mut whole = share
        .source
        .load_as(&description.schema(), directories, run.seed)?
        .train;
    // Files can change under one's hands; the ledger must know what is trained on.
    if !matches!(share.source, Source::Synthetic(_)) && digest(&whole) != own {
        return Err(DataError::Choice {
            what: "source",
            value: share.source.to_string(),
            reason: "its records have changed since they were read first".to_string(),
        });
    }
    if let (Some(_), Some(rows)) = (share.part, run.rows)
        && rows < whole.rows()
    {
        whole = whole.select(&(0..rows as u32).collect::<Vec<_>>());
    }
    let part = |data: &Dataset| match share.part {
        Some((part, parts)) => run.partition.part(data, part, parts, run.seed),
        None => Ok(data.clone()),
    };
    // In the order of a simulated run: scaling looks at all rows when it decides how to store them.
    if description.intercept() {
        whole = whole.with_intercept();
    }
    whole = description.scaling()?.apply(whole)?;
    Ok(Records {
        data: Arc::new(part(&whole)?),
        digest: own,
    })
}

/// The digest of unscaled records, whatever their columns and classes were fixed to.
pub fn digest(data: &Dataset) -> Hash {
    let names: Vec<Vec<u8>> = data.label_names().iter().map(|name| canonical(name)).collect();
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
            hasher.update(u64::MAX.to_le_bytes());
            hasher.update(names.get(label).map_or(&[][..], Vec::as_slice));
            hasher.finalize().into()
        })
        .collect();
    rows.sort_unstable();
    let mut hasher = Sha256::new();
    rows.iter().for_each(|row| hasher.update(row));
    hasher.finalize().into()
}

/// A label by its value if it is a number, so that "1", "+1" and "1.0" are one; by its text otherwise.
fn canonical(name: &str) -> Vec<u8> {
    match name.parse::<f64>() {
        Ok(value) if value.is_finite() => {
            [&b"number "[..], &(value + 0.0).to_le_bytes()].concat()
        }
        _ => [b"text ", name.as_bytes()].concat(),
    }
}
