//! What several commands read in the same way: the configuration with its overrides, and the
//! directories in which data sets are looked for.

use std::path::{Path, PathBuf};

use soteriafl_data::{DataDirectories, Source};

use soteriafl::config::{ConfigError, Document};
use soteriafl::problem::FeatureCache;

/// The configuration of a file, or the defaults, with the assignments of `--set` applied in order.
///
/// # Errors
/// When the file cannot be read, or an assignment names no key.
pub fn document(file: Option<&Path>, assignments: &[String]) -> Result<Document, ConfigError> {
    let mut document = match file {
        Some(file) => Document::from_file(file)?,
        None => Document::default(),
    };
    for assignment in assignments {
        document.set(assignment)?;
    }
    Ok(document)
}

/// The option `--data-dir`; flatten this into a command's options.
#[derive(clap::Args, Clone, Debug)]
pub struct DataDirectory {
    /// Directory in which known data sets (mnist, ...) are looked for first; `--data` is the same
    /// here
    #[arg(
        long = "data-dir",
        alias = "data",
        value_name = "DIR",
        value_parser = not_a_source
    )]
    data_dir: Option<PathBuf>,
}

impl DataDirectory {
    /// This directory, then those of the environment.
    pub fn directories(&self) -> DataDirectories {
        DataDirectories::from_environment(self.data_dir.as_deref())
    }
}

/// The option `--no-cache`; flatten this into a command's options.
#[derive(clap::Args, Clone, Debug)]
pub struct CacheOption {
    /// Neither look up nor keep scattering coefficients in the user's cache directory
    /// (`features` in $XDG_CACHE_HOME/soteria or ~/.cache/soteria, readable by its owner alone)
    #[arg(long)]
    no_cache: bool,
}

impl CacheOption {
    /// Where coefficients are kept.
    pub fn cache(&self) -> FeatureCache {
        match self.no_cache {
            true => FeatureCache::none(),
            false => FeatureCache::of_user(),
        }
    }
}

/// Refuses a source of data. In `evaluate` and `join` the name `--data` takes one: accepted as a
/// directory here, it would be ignored, and something else be trained on.
pub fn not_a_source(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if text.parse::<Source>().is_ok() && !path.is_dir() {
        return Err(format!(
            "this is a source of data, not a directory; give it as --set data.source={text}"
        ));
    }
    Ok(path)
}
