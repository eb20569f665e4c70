//! Records as they were read, dealt to clients, before anything is made of them.

use soteriafl_core::random::{PublicPurpose, PublicSeed, below};
use soteriafl_data::{DataDirectories, Dataset, Schema, Source, Targets};

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
        let schema = Schema {
            targets: config.regression()?,
            ..Schema::default()
        };
        let (source, seed) = (&config.source, config.seed);
        let loaded = match &config.test {
            None => source.load_as(&schema, directories, seed)?,
            Some(test) => source.load_with_test(test, &schema, directories, seed)?,
        };
        let (mut train, mut test) = (loaded.train, loaded.test);
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
        if let Some(share) = config.holdout {
            if test.is_some() {
                return Err(holdout_beside_test(config).into());
            }
            let (rest, held_out) = hold_out(train.rows(), share, seed)?;
            test = Some(train.select(&held_out));
            train = train.select(&rest);
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
                targets: train.targets().map(Targets::range),
            },
            train,
            test,
            dealt,
        })
    }

    /// Their features and classes.
    pub fn shape(&self) -> &RecordShape {
        &self.shape
    }
}

/// Why rows are not held out where there is a test set.
fn holdout_beside_test(config: &Config) -> ConfigError {
    let (message, hint) = match &config.test {
        Some(_) => (
            "`data.holdout` and `data.test` are both given".to_owned(),
            "leave one of them out",
        ),
        None => (
            format!(
                "`data.holdout` is given, but {} has a test set of its own",
                config.source
            ),
            "leave data.holdout out",
        ),
    };
    ConfigError::with_hint(message, hint)
}

/// The rows to train on and those to test on, both ascending. Which rows are held out follows from
/// the seed and the number of rows: no record is looked at, so replacing one changes no other's
/// side, and classes are not balanced.
fn hold_out(rows: usize, share: f64, seed: u64) -> Result<(Vec<u32>, Vec<u32>), ConfigError> {
    let count = (share * rows as f64).round() as usize;
    if count == 0 || count >= rows {
        return Err(ConfigError::conflict(format!(
            "`data.holdout` is {share}: of {} that is {count} to test on, and both sides need at least one",
            counted(rows, "row"),
        )));
    }
    let mut random = PublicSeed(seed).stream(PublicPurpose::Holdout, 0);
    // Floyd's algorithm: every set of `count` rows has the same probability.
    let mut held = vec![false; rows];
    for last in rows - count..rows {
        let drawn = below(&mut random, last as u32 + 1) as usize;
        let row = if held[drawn] { last } else { drawn };
        held[row] = true;
    }
    let side = |wanted: bool| {
        let rows = (0u32..).zip(&held);
        rows.filter_map(move |(row, held)| (*held == wanted).then_some(row))
    };
    Ok((side(false).collect(), side(true).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_held_out_by_seed_and_number_alone() {
        let (rest, held_out) = hold_out(1000, 0.2, 7).unwrap();
        assert_eq!((rest.len(), held_out.len()), (800, 200));
        let mut all = [rest.clone(), held_out.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<u32>>());
        assert_eq!(hold_out(1000, 0.2, 7).unwrap(), (rest, held_out.clone()));
        assert_ne!(hold_out(1000, 0.2, 8).unwrap().1, held_out);
        assert!(hold_out(4, 0.01, 0).is_err() && hold_out(4, 0.99, 0).is_err());
    }

    #[test]
    fn every_row_is_held_out_equally_often() {
        // 400 draws of 5 of 20: each row 100 times, with a standard deviation of 8.7. A fresh seed
        // fails with a probability below 1e-6 a row.
        let mut times = [0u32; 20];
        for seed in 0..400 {
            let (_, held_out) = hold_out(20, 0.25, seed).unwrap();
            held_out.iter().for_each(|&row| times[row as usize] += 1);
        }
        assert!(
            times.iter().all(|times| (55..145).contains(times)),
            "{times:?}"
        );
    }
}
