//! With which features, by number and by name, and with which classes a client's source is tried:
//! with those of one description.
//!
//! A description names the shape of records before any is seen, and records have it or they do not.
//! Whether a client joins is therefore one bit about them, and a client that is started again and
//! again would give one for every shape that a server thinks of. So the first shape that a source
//! is tried with is kept in the state, durably and *before* a record is read by it. Every other one
//! is refused by comparing texts: the refusal takes no look at records, and says what the server
//! has said itself.
//!
//! A person may permit another shape by its name (`--shape`). The name stands for one shape, so
//! that it does no harm on a command line that is repeated unattended.
//!
//! Names of features are part of it. The header of a table is no record, but whether it has these
//! names is told by joining as well, so it is tried with one list of names only.
//!
//! The shape belongs to the source as it was named, not to its content: records that grow are tried
//! with the same one.

use sha2::{Digest, Sha256};
use soteriafl_data::Source;

use soteriafl::record_shape::RecordShape;
use soteriafl::schema_text;

use super::description::shape_of;
use super::hex;
use super::holding::Holding;
use super::store::{ClientStore, StoreError};

/// Why a source is not tried with a shape.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// It cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The client wrote another number of features itself.
    #[error("this run has records of {found} features, and --data says {own}")]
    Features {
        /// The client's.
        own: usize,
        /// The run's.
        found: usize,
    },
    /// The client was told to take another shape.
    #[error("this run's records have shape {found}, and --shape says {own}")]
    Name {
        /// The client's.
        own: String,
        /// The run's.
        found: String,
    },
    /// The source was tried with another shape.
    #[error(
        "this run names other features or classes ({features} and {classes} of them) than the first run that this source was tried with; \
         no record was read for it"
    )]
    Other {
        /// What the shape is permitted by.
        name: String,
        /// Its features.
        features: usize,
        /// Its classes.
        classes: usize,
    },
}

/// The shape as it is kept: the lines of a description that name it.
pub fn text(shape: &RecordShape) -> String {
    let list = |names: &[String]| {
        let names = names.iter().cloned().map(toml::Value::String);
        toml::Value::Array(names.collect())
    };
    let names = match &shape.names {
        Some(names) => format!("names = {}\n", list(names)),
        None => String::new(),
    };
    let schema = match &shape.schema {
        Some(schema) => format!("schema = {}\n", schema_text::to_value(schema)),
        None => String::new(),
    };
    let targets = match shape.targets {
        Some(range) => {
            let ends = [range.low(), range.high()].map(toml::Value::Float);
            format!("target_range = {}\n", toml::Value::Array(ends.to_vec()))
        }
        None => String::new(),
    };
    format!(
        "features = {}\n{names}labels = {}\n{targets}{schema}",
        shape.features,
        list(&shape.labels)
    )
}

/// What a shape is permitted by: 16 digits of the digest of its text.
fn name(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..8])
}

/// Lets a source be tried with a shape, which is kept from then on, or refuses it: because another
/// one was kept, because a run that was joined with the same records (`joined`, by their
/// descriptions) had another one, or because the client itself says otherwise. `permitted` is the
/// name of the one shape that is taken whatever was tried before.
///
/// # Errors
/// When it is refused, or cannot be kept: then no record may be looked at.
pub fn admit<'a>(
    store: &mut impl ClientStore,
    holding: &Holding,
    shape: &RecordShape,
    mut joined: impl Iterator<Item = &'a str>,
    permitted: Option<&str>,
) -> Result<(), ShapeError> {
    let source = match holding {
        Holding::Source { share, .. } => share.source.to_string(),
        Holding::Memory(_) => "memory".to_owned(),
        // No record is looked at.
        Holding::Elsewhere(_) => return Ok(()),
    };
    if let Holding::Source { share, .. } = holding
        && let Source::Libsvm {
            features: Some(own),
            ..
        } = share.source
        && own != shape.features
    {
        return Err(ShapeError::Features {
            own,
            found: shape.features,
        });
    }
    let text = text(shape);
    let found = name(&text);
    let kept = store.shape(&source)?;
    if kept.as_ref() == Some(&text) && permitted.is_none_or(|own| own == found) {
        return Ok(());
    }
    let refused = match permitted {
        Some(own) if own != found => {
            return Err(ShapeError::Name {
                own: own.to_string(),
                found,
            });
        }
        // Two shapes of one name would be two attempts.
        Some(_) => kept.is_some_and(|kept| name(&kept) == found),
        None => {
            kept.is_some()
                || joined.any(|description| shape_of(description).as_ref() != Some(shape))
        }
    };
    if refused {
        return Err(ShapeError::Other {
            name: found,
            features: shape.features,
            classes: shape.labels.len(),
        });
    }
    Ok(store.keep_shape(&source, &text)?)
}
