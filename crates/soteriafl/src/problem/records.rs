//! Records as they were read, dealt to clients, before anything is made of them.

use soteriafl_data::{Adjustment, DataDirectories, Dataset, Grouping, Schema, Source};

use super::ProblemError;
use crate::config::{Auto, Config, ConfigError, NaturalClients};
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
    /// What the schema of a table did not know, for its owner's eyes.
    pub(super) adjustments: Vec<Adjustment>,
}

impl Records {
    /// Reads what `config` asks for.
    ///
    /// # Errors
    /// When data or numbers of clients do not fit.
    pub fn read(config: &Config, directories: &DataDirectories) -> Result<Self, ProblemError> {
        let natural = config.natural.as_ref();
        let schema = Schema {
            table: config.schema.clone(),
            client_column: natural.and_then(NaturalClients::column).map(str::to_owned),
            ..Schema::default()
        };
        let loaded = match &config.test {
            None => config.source.load_as(&schema, directories, config.seed)?,
            Some(test) => config
                .source
                .load_with_test(test, &schema, directories, config.seed)?,
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
        let dealt = match natural {
            None => config
                .partition
                .assign(&train, config.clients()?, config.seed)?,
            Some(natural) => deal(config, natural, loaded.clients, train.rows())?,
        };
        Ok(Self {
            source: config.source.clone(),
            shape: RecordShape {
                features: train.columns(),
                names: train.feature_names().map(<[String]>::to_vec),
                schema: config.schema.clone(),
                labels: train.label_names().to_vec(),
            },
            adjustments: loaded.adjustments,
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

/// Every client's rows, where the data says whose they are.
fn deal(
    config: &Config,
    natural: &NaturalClients,
    clients: Option<Grouping>,
    rows: usize,
) -> Result<Vec<Vec<u32>>, ConfigError> {
    let Some(clients) = clients else {
        return Err(ConfigError::conflict(format!(
            "`data.partition = \"{natural}\"`: {} does not say whose record each row is",
            config.source
        )));
    };
    let dealt = clients.select(0..rows as u32).rows();
    let expected = match config.clients {
        Auto::Given(_) => config.clients()?,
        // Presets with a single client keep their word.
        Auto::Auto if config.clients()? == 1 => 1,
        Auto::Auto => dealt.len(),
    };
    if expected != dealt.len() {
        return Err(ConfigError::with_hint(
            format!(
                "`data.clients` is {expected}, but the data names {} (`data.partition = \"{natural}\"`)",
                counted(dealt.len(), "client")
            ),
            "leave `data.clients` out, or choose another partition",
        ));
    }
    Ok(dealt)
}
