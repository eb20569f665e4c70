//! Records as they were read, dealt to clients, before anything is made of them.

use soteriafl_data::{DataDirectories, Dataset, Source};

use super::ProblemError;
use crate::config::{Config, ConfigError};
use crate::record_shape::RecordShape;
use crate::words::counted;

/// Records as they were read, and which client has which.
pub struct Records {
    pub(super) source: Source,
    pub(super) train: Dataset,
    pub(super) test: Option<Dataset>,
    /// Every client's rows of `train`.
    pub(super) dealt: Vec<Vec<u32>>,
    pub(super) shape: RecordShape,
}

impl Records {
    /// Reads what `config` asks for.
    ///
    /// # Errors
    /// When data or numbers of clients do not fit.
    pub fn read(config: &Config, directories: &DataDirectories) -> Result<Self, ProblemError> {
        let loaded = match &config.test {
            None => config.source.load(directories, config.seed)?,
            Some(test) => config
                .source
                .load_with_test(test, directories, config.seed)?,
        };
        let mut train = loaded.train;
        if let Some(rows) = config.rows {
            if rows > train.rows() {
                return Err(ConfigError::conflict(format!(
                    "`data.rows` is {rows}, but the data has {}",
                    counted(train.rows(), "row")
                ))
                .into());
            }
            train = train.select(&(0..rows as u32).collect::<Vec<_>>());
        }
        // Only labels decide, which no preparation changes.
        let dealt = config
            .partition
            .assign(&train, config.clients()?, config.seed)?;
        Ok(Self {
            source: config.source.clone(),
            shape: RecordShape {
                features: train.columns(),
                names: train.feature_names().map(<[String]>::to_vec),
                labels: train.label_names().to_vec(),
            },
            train,
            test: loaded.test,
            dealt,
        })
    }

    /// Their features and classes.
    pub fn shape(&self) -> &RecordShape {
        &self.shape
    }
}
