//! A client's own records: loaded as the run wants them, and known by a digest that no run can
//! change.
//!
//! The digest names the data set in the ledger. It is taken of the whole source before the server
//! has said anything: of every record the nonzero values with their places and the label, each
//! record hashed alone and the hashes sorted. The order of rows and the file format do not change
//! it; and nothing in a description can: not the number of features, the spelling of classes, the
//! scaling, the limit on rows, nor the seed that deals the parts of `SOURCE:i/n`, whose ledger is
//! that of the whole source. Synthetic records, which are nobody's, are known by their source's
//! name.
//!
//! What it cannot see: a data set with one row added, changed or taken away is another one to it,
//! although nearly everything in it has been spent before. That is why all data sets of a state are
//! counted together, unless a person says that they share no record (`--disjoint-data-sets`).

use std::sync::Arc;

use sha2::{Digest, Sha256};
use soteriafl_data::{
    Adjustment, ColumnFault, DataDirectories, DataError, Dataset, FeatureKind, Features, GUESSED,
    Grouping, OtherName, RecordsError, Schema, Share, Source, TargetRange,
};

use super::Hash;
use super::description::{Dealing, Description};
use soteriafl::config::NoiseName;
use soteriafl::persons::{self, Bounded};
use soteriafl::problem::needs_dense_rows;

/// Most values of rows that have to be dense.
const LARGEST_DENSE: usize = 1 << 29;

/// Records ready to train on.
pub struct Records {
    /// Scaled, with the constant feature where the model has one.
    pub data: Arc<Dataset>,
    /// Digest of the source that they are from.
    pub digest: Hash,
    /// What the schema of their table did not know: for their owner's eyes, and no log's.
    pub adjustments: Vec<Adjustment>,
    /// Where a column says whose records are whose: what bounding persons did, for their owner's
    /// eyes.
    pub bounded: Option<Bounded>,
    /// Whether the source names its features, so that their order was compared with the run's, if
    /// it names any.
    pub named: bool,
}

/// The digest of all records of a source, as its owner has them.
///
/// # Errors
/// When they cannot be read.
pub fn source_digest(source: &Source, directories: &DataDirectories) -> Result<Hash, DataError> {
    if let Source::Synthetic(_) = source {
        return Ok(Sha256::digest(source.to_string().as_bytes()).into());
    }
    let found = match source.load(directories, 0) {
        // Numbers to predict: their range does not enter the digest.
        Err(DataError::Quantity { .. }) => {
            let schema = Schema {
                targets: Some(TargetRange::new(-1.0, 1.0)?),
                ..Schema::default()
            };
            source.load_as(&schema, directories, 0)
        }
        found => found,
    };
    match found {
        Ok(loaded) => Ok(digest(&loaded.train)),
        // Text, gaps and dates become features by a schema, which the server names: the digest is
        // of what stands in the file.
        Err(DataError::Table(_) | DataError::Names { .. }) if source.is_table() => {
            let mut rows = Vec::new();
            source.for_each_row(&mut |fields| rows.push(fields_digest(fields)))?;
            Ok(digest_of_rows(rows))
        }
        Err(error) => Err(error),
    }
}

/// Why records cannot take part. After a server has spoken nothing is said about any record: which
/// descriptions fail would tell about it, and so would a log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The records are of another kind.
    #[error(
        "these records do not have the features and classes that the run's description names, or cannot be dealt as it says"
    )]
    Unfit,
    /// The features are called otherwise. Names are no records: they may be spoken of, if it is
    /// certain that they are names.
    #[error("these records do not have the columns that the run names: {}", other_name(.0))]
    Names(OtherName),
    /// The columns are not those of the run's schema, in words that quote no record.
    #[error("these records do not have the columns that the run's schema names: {0}")]
    Columns(String),
    /// A part of a source whose records belong to persons.
    #[error(
        "this run bounds what a person brings, by a column of the schema: a client brings all of a source, for \
         records dealt to parts would leave a person's with several clients (not SOURCE:i/n)"
    )]
    Part,
    /// The files have changed.
    #[error("the records have changed since they were read first")]
    Changed,
    /// The run's model is none for them, in words that speak of public things alone.
    #[error("{0}")]
    Model(String),
}

/// What is wrong with columns, told by the schema's names and by numbers alone: a first line that
/// is no header is a record.
fn columns(faults: &[ColumnFault]) -> String {
    let texts: Vec<String> = faults.iter().map(ColumnFault::without_names).collect();
    texts.join("; ")
}

fn other_name(difference: &OtherName) -> String {
    match difference.guessed {
        true => format!("{}; {GUESSED}", difference.expected_by("the run")),
        false => difference.beside("the run"),
    }
}

/// Loads `share`, whose source has the digest `own`, as `description` asks.
///
/// # Errors
/// When the records do not have the run's features, by number, name and order, and classes, or have
/// changed.
pub fn load(
    share: &Share,
    own: Hash,
    description: &Description,
    directories: &DataDirectories,
) -> Result<Records, LoadError> {
    if description.bounds_persons() && share.part.is_some() {
        return Err(LoadError::Part);
    }
    let seed = description.resolved.seed;
    let loaded = share
        .source
        .load_as(&description.schema(), directories, seed);
    let loaded = loaded.map_err(|error| match error {
        DataError::Names { difference, .. } => LoadError::Names(difference),
        DataError::Columns { faults, .. } => LoadError::Columns(columns(&faults)),
        _ => LoadError::Unfit,
    })?;
    // Without that column nobody could be bounded.
    if let Some(person) = description.person_column()
        && loaded.people.is_none()
    {
        let missing = ColumnFault::Missing(person.to_owned());
        return Err(LoadError::Columns(columns(&[missing])));
    }
    let (whole, adjustments) = (loaded.train, loaded.adjustments);
    // Files can change under one's hands; the ledger must know what is trained on. Through a schema
    // records are others than their owner's own.
    let unchanged = match (&share.source, &description.shape.schema) {
        (Source::Synthetic(_), _) => true,
        (source, Some(_)) => source_digest(source, directories).is_ok_and(|now| now == own),
        (_, None) => digest(&whole) == own,
    };
    if !unchanged {
        return Err(LoadError::Changed);
    }
    prepared(
        Whole {
            data: whole,
            people: loaded.people,
            adjustments,
        },
        share.part,
        &share.source,
        own,
        description,
    )
}

/// Records as they were read.
pub(super) struct Whole {
    pub(super) data: Dataset,
    /// Whose each of them is, where a column says so.
    pub(super) people: Option<Grouping>,
    /// What the schema did not know.
    pub(super) adjustments: Vec<Adjustment>,
}

/// What becomes of records before the first round, as the run says.
pub(super) fn prepared(
    whole: Whole,
    part: Option<(usize, usize)>,
    source: &Source,
    own: Hash,
    description: &Description,
) -> Result<Records, LoadError> {
    let Whole {
        data: mut whole,
        people,
        adjustments,
    } = whole;
    let unfit = |_: RecordsError| LoadError::Unfit;
    let run = &description.resolved;
    let named = whole.feature_names().is_some();
    if let (Some(_), Some(rows)) = (part, run.rows)
        && rows < whole.rows()
    {
        whole = whole.select(&(0..rows as u32).collect::<Vec<_>>());
    }
    let bounded = people.map(|people| {
        let rows: Vec<u32> = (0..whole.rows() as u32).collect();
        let most = run.records_per_person;
        persons::bound(&whole, &rows, people.of_rows(), most, run.seed)
    });
    if let Some(bounded) = &bounded {
        // Null records outlive every map; rows that are left out are read by none.
        whole = whole
            .select(&bounded.kept)
            .with_null_records(bounded.null_records);
    }
    if description.intercept() {
        whole = whole.with_intercept();
    }
    let scaling = description.scaling().map_err(unfit)?;
    if run.noise == NoiseName::Secure && needs_dense_rows(source, &scaling) {
        reserve(whole.records().saturating_mul(whole.columns()))?;
        whole = whole.dense().map_err(unfit)?;
    }
    whole = scaling.apply_clamped(whole).map_err(unfit)?;
    if let Some((part, parts)) = part {
        let partition = Dealing::partition(run.partition, description.test_seed.is_some());
        let dealt = partition.part(&whole, part, parts, run.seed);
        whole = dealt.map_err(unfit)?;
    }
    let features = description.features().map_err(unfit)?;
    if features.kind() != FeatureKind::None {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        whole = features.apply_by(whole, threads).map_err(unfit)?;
    }
    if let Some(basis) = description.basis().map_err(unfit)? {
        whole = basis.apply(whole).map_err(unfit)?;
    }
    Ok(Records {
        data: Arc::new(whole),
        digest: own,
        adjustments,
        bounded,
        named,
    })
}

/// Whether dense rows fit: by their size alone, which is public, the memory is there or it is not.
fn reserve(values: usize) -> Result<(), LoadError> {
    let mut memory: Vec<f32> = Vec::new();
    if values > LARGEST_DENSE || memory.try_reserve_exact(values).is_err() {
        return Err(LoadError::Unfit);
    }
    // Written, for some systems promise memory that they do not have.
    memory.resize(values, 1.0);
    std::hint::black_box(&memory);
    Ok(())
}

/// The digest of unscaled records, whatever their columns and classes were fixed to.
pub fn digest(data: &Dataset) -> Hash {
    let names: Vec<Vec<u8>> = data
        .label_names()
        .iter()
        .map(|name| canonical(name))
        .collect();
    let rows: Vec<Hash> = (0..data.rows())
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
            hasher.update(u64::MAX.to_le_bytes());
            match data.targets() {
                Some(targets) => hasher.update(canonical_number(targets.original()[row])),
                None => {
                    let name = names.get(data.labels()[row] as usize);
                    hasher.update(name.map_or(&[][..], Vec::as_slice));
                }
            }
            hasher.finalize().into()
        })
        .collect();
    digest_of_rows(rows)
}

/// The digest of rows in any order.
pub(super) fn digest_of_rows(mut rows: Vec<Hash>) -> Hash {
    rows.sort_unstable();
    let mut hasher = Sha256::new();
    rows.iter().for_each(|row| hasher.update(row));
    hasher.finalize().into()
}

/// The digest of a row of text. Lengths stand before fields, so that no two rows look alike.
fn fields_digest(fields: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(b"text");
    for field in fields {
        hasher.update((field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.finalize().into()
}

/// The digest of records as a run trains on them, in their order, scaled, with their offset: what a
/// message depends on.
pub fn trained_on(data: &Dataset) -> Hash {
    let mut hasher = Sha256::new();
    let mut put = |name: &[u8], values: &mut dyn Iterator<Item = [u8; 4]>| {
        hasher.update(name);
        let mut buffer = Vec::with_capacity(4096);
        let mut count = 0u64;
        for value in values {
            buffer.extend_from_slice(&value);
            count += 1;
            if buffer.len() == 4096 {
                hasher.update(&buffer);
                buffer.clear();
            }
        }
        hasher.update(&buffer);
        hasher.update(count.to_le_bytes());
    };
    put(
        b"columns",
        &mut [(data.columns() as u32).to_le_bytes()].into_iter(),
    );
    put(
        b"labels",
        &mut data.labels().iter().map(|label| label.to_le_bytes()),
    );
    if data.targets().is_some() {
        put(b"targets", &mut floats(data.target_values()));
    }
    if let Some(offset) = data.offset() {
        put(b"offset", &mut floats(offset));
    }
    // What the sums are divided by, where that is not the number of rows.
    if data.records() > data.rows() {
        let records = (data.records() as u64).to_le_bytes();
        put(b"records", &mut records.as_chunks().0.iter().copied());
    }
    match data.features() {
        Features::Dense(dense) => put(b"dense", &mut floats(dense.values())),
        Features::Sparse(sparse) => {
            let lengths = sparse.starts().windows(2);
            put(
                b"lengths",
                &mut lengths.map(|pair| ((pair[1] - pair[0]) as u32).to_le_bytes()),
            );
            put(
                b"indices",
                &mut sparse.indices().iter().map(|index| index.to_le_bytes()),
            );
            put(b"values", &mut floats(sparse.values()));
        }
    }
    hasher.finalize().into()
}

fn floats(values: &[f32]) -> impl Iterator<Item = [u8; 4]> {
    values.iter().map(|value| value.to_le_bytes())
}

/// A label by its value if it is a number, so that "1", "+1" and "1.0" are one; by its text
/// otherwise.
fn canonical(name: &str) -> Vec<u8> {
    match name.parse::<f64>() {
        Ok(value) if value.is_finite() => canonical_number(value),
        _ => [b"text ", name.as_bytes()].concat(),
    }
}

fn canonical_number(value: f64) -> Vec<u8> {
    [&b"number "[..], &(value + 0.0).to_le_bytes()].concat()
}
