//! Records as they were read, dealt to clients, before anything is made of them.

use soteriafl_data::{DataDirectories, DataError, Dataset, Partition, RecordsError, Source};

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
    /// Whether whoever gave them has prepared them by numbers computed from them.
    pub(super) prepared_by_records: bool,
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
        Self::deal(config, loaded.train, loaded.test, None)
    }

    /// Records that a program has in memory, and, if it says so, which rows of `train` each client
    /// has: every row one client, no client without rows.
    ///
    /// # Errors
    /// When the configuration names a source or a partition of its own, or the records do not fit
    /// it or each other.
    pub fn given(
        config: &Config,
        train: Dataset,
        test: Option<Dataset>,
        clients: Option<Vec<Vec<u32>>>,
    ) -> Result<Self, ProblemError> {
        if config.source != Source::Memory || config.test.is_some() {
            return Err(ConfigError::with_hint(
                "records are given, and the configuration names others",
                "leave `data.source` and `data.test` out, or give no records",
            )
            .into());
        }
        if let Some(test) = &test
            && test.columns() != train.columns()
        {
            return Err(RecordsError::Shape {
                what: "features of the test set",
                expected: train.columns(),
                found: test.columns(),
            }
            .into());
        }
        Self::deal(config, train, test, clients)
    }

    /// Says that features were scaled or chosen by numbers computed from the records before they
    /// were given: nothing is claimed then.
    #[must_use]
    pub fn prepared_by_records(mut self) -> Self {
        self.prepared_by_records = true;
        self
    }

    fn deal(
        config: &Config,
        mut train: Dataset,
        test: Option<Dataset>,
        clients: Option<Vec<Vec<u32>>>,
    ) -> Result<Self, ProblemError> {
        if clients.is_some() != (config.partition == Partition::Given) {
            return Err(ConfigError::conflict(
                "`data.partition = \"given\"` goes with records of which a program says which \
                 client has which, and no other partition does",
            )
            .into());
        }
        if let Some(rows) = config.rows {
            if clients.is_some() {
                let reason = "`data.rows` does not go with clients that have rows of their own";
                return Err(ConfigError::conflict(reason).into());
            }
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
        let dealt = match clients {
            None => config
                .partition
                .assign(&train, config.clients()?, config.seed)?,
            Some(clients) => {
                config.clients()?;
                check_dealt(&clients, train.rows())?;
                clients
            }
        };
        Ok(Self {
            source: config.source.clone(),
            shape: RecordShape {
                features: train.columns(),
                names: train.feature_names().map(<[String]>::to_vec),
                labels: train.label_names().to_vec(),
            },
            train,
            test,
            dealt,
            prepared_by_records: false,
        })
    }

    /// Their features and classes.
    pub fn shape(&self) -> &RecordShape {
        &self.shape
    }
}

/// Every row belongs to one client, and no client goes without.
fn check_dealt(clients: &[Vec<u32>], rows: usize) -> Result<(), DataError> {
    let mut taken = vec![false; rows];
    let wrong = |reason: String| {
        let value = counted(clients.len(), "client");
        let what = "clients";
        Err(RecordsError::Choice {
            what,
            value,
            reason,
        }
        .into())
    };
    for (client, rows) in clients.iter().enumerate() {
        if rows.is_empty() {
            return wrong(format!("client {client} has no rows"));
        }
        for &row in rows {
            match taken.get_mut(row as usize) {
                Some(taken) if !*taken => *taken = true,
                Some(_) => return wrong(format!("row {row} belongs to two clients")),
                None => return wrong(format!("row {row} does not exist")),
            }
        }
    }
    match taken.iter().position(|taken| !taken) {
        Some(row) => wrong(format!("row {row} belongs to nobody")),
        None => Ok(()),
    }
}
