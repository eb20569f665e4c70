//! What a client brings to a run: records that a source names, records in the memory of its own
//! program, or records behind a model that this program computes itself.
//!
//! **Guarantee.** Whatever they are, the ledger knows them by a digest that is taken before a
//! server has said anything ([`records`]), and a run that does not fit them is refused before
//! anything is sent or kept. Where the run's model is computed elsewhere, no record is looked at to
//! find that out: what is compared is public.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use soteriafl::config::resolve::Resolved;
use soteriafl::problem::{ElsewhereModel, Model};
use soteriafl_core::data::Labels;
use soteriafl_core::objective::{Objective, ObjectiveError};
use soteriafl_data::{
    DataDirectories, DataError, Dataset, OtherName, RecordsError, Schema, Share, Source, Targets,
    classes_of,
};

use super::Hash;
use super::description::Description;
use super::records::{self, LoadError, Records, Whole};

/// A client's own records.
#[derive(Clone, Debug)]
pub enum Holding {
    /// Read from files, or another source, when the run is known.
    Source {
        /// The source, or a part of it.
        share: Share,
        /// Where data sets are looked for.
        directories: DataDirectories,
    },
    /// Numbers in memory, as their owner has them: no file is read.
    Memory(Arc<Dataset>),
    /// Known to another program, which computes the model.
    Elsewhere(Arc<ElsewhereRecords>),
}

/// The objective of a run, or why there is none.
type MakeObjective = dyn Fn(&Resolved) -> Result<Arc<dyn Objective>, ObjectiveError> + Send + Sync;

/// Records behind a model that is computed elsewhere.
pub struct ElsewhereRecords {
    /// The model that computes them, as its owner has it.
    pub model: ElsewhereModel,
    /// A row for each: what stands in it, the objective alone understands.
    pub stand_ins: Arc<Dataset>,
    /// The digest of the records, the same in any order.
    pub digest: Hash,
    /// The digest of the records in their order, which is what messages depend on.
    pub in_order: Hash,
    /// Makes the objective of a run, over the stand-ins; called before anything is sent.
    pub objective: Box<MakeObjective>,
}

impl fmt::Debug for ElsewhereRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.stand_ins.rows();
        write!(f, "ElsewhereRecords({rows} records, {:?})", self.model)
    }
}

impl Holding {
    /// The part of the source, where one is named.
    pub fn part(&self) -> Option<(usize, usize)> {
        match self {
            Holding::Source { share, .. } => share.part,
            Holding::Memory(_) | Holding::Elsewhere(_) => None,
        }
    }

    /// The digest of all that it is from.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn digest(&self) -> Result<Hash, DataError> {
        match self {
            Holding::Source { share, directories } => {
                records::source_digest(&share.source, directories)
            }
            Holding::Memory(data) => Ok(records::digest(data)),
            Holding::Elsewhere(elsewhere) => Ok(elsewhere.digest),
        }
    }

    /// The digest of the records in their order, where the rows that a run is given do not hold
    /// them.
    pub fn in_order(&self) -> Option<Hash> {
        match self {
            Holding::Elsewhere(elsewhere) => Some(elsewhere.in_order),
            Holding::Source { .. } | Holding::Memory(_) => None,
        }
    }

    /// Refuses a run whose model is computed by somebody else than these records' would be.
    ///
    /// # Errors
    /// When it is.
    pub fn check_model(&self, description: &Description) -> Result<(), LoadError> {
        match (self, &description.model) {
            (Holding::Elsewhere(own), Model::Elsewhere(run)) => match run.difference(&own.model) {
                None => Ok(()),
                Some(difference) => Err(LoadError::Model(format!(
                    "this run is about another model: {}",
                    super::shortened(&difference)
                ))),
            },
            (Holding::Elsewhere(_), _) => Err(LoadError::Model(
                "this run trains a model of SoteriaFL's own, and you bring one: give the records \
                 alone"
                    .to_owned(),
            )),
            (_, Model::Elsewhere(_)) => Err(LoadError::Model(
                "the clients of this run compute its model by programs of their own: join it from \
                 Python, with soteriafl.join(module=...)"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// The records as a run wants them; `own` is their digest.
    ///
    /// # Errors
    /// When they do not fit, or have changed since.
    pub fn load(&self, own: Hash, description: &Description) -> Result<Records, LoadError> {
        self.check_model(description)?;
        match self {
            Holding::Source { share, directories } => {
                records::load(share, own, description, directories)
            }
            Holding::Memory(data) => {
                let whole = fitting(data, &description.schema())?;
                let whole = Whole {
                    data: whole,
                    people: None,
                    adjustments: Vec::new(),
                };
                records::prepared(whole, None, &Source::Clients, own, description)
            }
            Holding::Elsewhere(elsewhere) => Ok(Records {
                data: Arc::clone(&elsewhere.stand_ins),
                digest: own,
                adjustments: Vec::new(),
                bounded: None,
                named: true,
            }),
        }
    }

    /// The loss of a run over these records.
    ///
    /// # Errors
    /// When whoever computes it cannot.
    pub fn objective(
        &self,
        description: &Description,
    ) -> Result<Arc<dyn Objective>, ObjectiveError> {
        match self {
            Holding::Elsewhere(elsewhere) => (elsewhere.objective)(&description.resolved),
            Holding::Source { .. } | Holding::Memory(_) => Ok(description.model.objective()),
        }
    }
}

/// Records in memory with the columns, and the classes or targets, of `schema`.
fn fitting(data: &Dataset, schema: &Schema) -> Result<Dataset, LoadError> {
    if schema.table.is_some() {
        return Err(LoadError::Model(
            "this run reads tables through a schema, and these records are numbers in memory: \
             join it with the file"
                .to_owned(),
        ));
    }
    if schema.columns != Some(data.columns()) {
        return Err(LoadError::Unfit);
    }
    let names = data.feature_names();
    if let (Some(expected), Some(names)) = (&schema.feature_names, names)
        && let Some(difference) = OtherName::first(expected, names)
    {
        return Err(LoadError::Names(difference));
    }
    let unfit = |_: RecordsError| LoadError::Unfit;
    let features = data.features().clone();
    let fitted = match schema.targets {
        Some(range) => {
            let targets = Targets::new(&numbers(data)?, range).map_err(unfit)?;
            Dataset::labelled(features, Labels::Targets(targets)).map_err(unfit)?
        }
        None if data.targets().is_some() => return Err(LoadError::Unfit),
        None => {
            let (labels, names) =
                classes_of(data.label_names(), data.labels(), schema, Path::new("y"))
                    .map_err(|_| LoadError::Unfit)?;
            let fitted = Dataset::new(features, labels, names.len()).map_err(unfit)?;
            fitted.with_label_names(names).map_err(unfit)?
        }
    };
    match names {
        Some(names) => fitted.with_feature_names(names.to_vec()).map_err(unfit),
        None => Ok(fitted),
    }
}

/// The numbers to predict: also of records whose labels are few enough to be taken for classes.
fn numbers(data: &Dataset) -> Result<Vec<f64>, LoadError> {
    if let Some(targets) = data.targets() {
        return Ok(targets.original().to_vec());
    }
    let names = data.label_names().iter();
    let values = names.map(|name| name.parse::<f64>().ok().filter(|value| value.is_finite()));
    let values = values
        .collect::<Option<Vec<f64>>>()
        .ok_or(LoadError::Unfit)?;
    let of = |&label: &u32| values.get(label as usize).copied();
    let all = data.labels().iter().map(of);
    all.collect::<Option<Vec<f64>>>().ok_or(LoadError::Unfit)
}

/// Names records in memory that no file holds: hashes each by itself, whatever its bytes mean.
///
/// `kind` says what they mean (shapes and types), so that equal bytes of another kind are others.
/// Returns the digest that is the same in any order, and the one of this order.
pub fn digests(kind: &str, records: usize, parts: &[(&[u8], usize)]) -> (Hash, Hash) {
    let of = |record: usize| -> Hash {
        let mut hasher = Sha256::new();
        hasher.update((kind.len() as u64).to_le_bytes());
        hasher.update(kind);
        for &(bytes, width) in parts {
            hasher.update(&bytes[record * width..(record + 1) * width]);
        }
        hasher.finalize().into()
    };
    let rows: Vec<Hash> = (0..records).map(of).collect();
    let mut ordered = Sha256::new();
    ordered.update(b"in order");
    rows.iter().for_each(|row| ordered.update(row));
    (records::digest_of_rows(rows), ordered.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_told_by_one_digest_alone() {
        let parts = |bytes: &'static [u8]| digests("two bytes", 3, &[(bytes, 2)]);
        let (first, first_in_order) = parts(b"aabbcc");
        let (other, other_in_order) = parts(b"bbaacc");
        assert_eq!(first, other);
        assert_ne!(first_in_order, other_in_order);
        assert_ne!(first, parts(b"aabbcd").0);
        assert_ne!(first, digests("others", 3, &[(b"aabbcc", 2)]).0);
    }
}
