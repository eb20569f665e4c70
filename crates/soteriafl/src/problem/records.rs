//! Records as they were read, dealt to clients, before anything is made of them.

use std::sync::Arc;

use soteriafl_core::random::{PublicPurpose, PublicSeed, below};
use soteriafl_data::{
    Adjustment, DataDirectories, DataError, Dataset, Grouping, Partition, RecordsError, Schema,
    Source, TableSchema, Targets,
};

use super::{ProblemError, ranges};
use crate::config::{Auto, Config, ConfigError, NaturalClients, private_ranges};
use crate::persons::{self, Bounded};
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
    /// Whether whoever gave them has prepared them by numbers computed from them.
    pub(super) prepared_by_records: bool,
    /// Where a column says whose records are whose: what bounding persons did at every client.
    pub(super) bounded: Option<Vec<Bounded>>,
    /// How many columns have ranges that clients have released.
    pub(super) private_ranges: usize,
    /// The noise that these ranges were found in, see [`Problem`](super::Problem).
    pub(super) range_noise: Option<f64>,
}

impl Records {
    /// Reads what `config` asks for.
    ///
    /// # Errors
    /// When data or numbers of clients do not fit.
    pub fn read(config: &Config, directories: &DataDirectories) -> Result<Self, ProblemError> {
        let Some(schema) = &config.schema else {
            return Self::read_by(config, None, directories);
        };
        let private = schema.private_numbers().len();
        let first = Self::read_by(config, Some(schema), directories)?;
        if private == 0 {
            return Ok(first);
        }
        let clients = first.dealt.iter().map(|rows| first.train.select(rows));
        let Some(found) = ranges::estimated(config, schema, &clients.collect())? else {
            return Ok(first);
        };
        Ok(Self {
            private_ranges: private,
            range_noise: Some(found.noise),
            ..Self::read_by(config, Some(&found.schema), directories)?
        })
    }

    /// Reads by this schema.
    fn read_by(
        config: &Config,
        table: Option<&Arc<TableSchema>>,
        directories: &DataDirectories,
    ) -> Result<Self, ProblemError> {
        let natural = config.natural.as_ref();
        let schema = Schema {
            targets: config.regression()?,
            table: table.cloned(),
            client_column: natural.and_then(NaturalClients::column).map(str::to_owned),
            ..Schema::default()
        };
        let (source, seed) = (&config.source, config.seed);
        let loaded = match &config.test {
            None => source.load_as(&schema, directories, seed)?,
            Some(test) => source.load_with_test(test, &schema, directories, seed)?,
        };
        let clients = match natural {
            Some(natural) => Some(clients_of(config, natural, loaded.clients)?),
            None => None,
        };
        let people = loaded.people;
        if people.is_some() && (config.rows.is_some() || config.holdout.is_some()) {
            return Err(ConfigError::conflict(
                "`data.rows` and `data.holdout` do not go with a column of the role \"person\"",
            )
            .into());
        }
        let mut records = Self {
            adjustments: loaded.adjustments,
            ..Self::deal(config, loaded.train, loaded.test, clients)?
        };
        records.shape.schema = table.cloned();
        if let Some(people) = people {
            records.bound_persons(people.of_rows(), config.records_per_person, seed)?;
        }
        Ok(records)
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
        if private_ranges(config.schema.as_deref()).is_some() {
            return Err(ConfigError::conflict(
                "`range = \"private\"` is for tables that are read here: the given records are features \
                 already",
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

    /// Leaves out what any person has beyond `most` records at a client, by a rule that looks at
    /// nothing but that person's records ([`persons`]).
    fn bound_persons(
        &mut self,
        person_of: &[u32],
        most: u32,
        seed: u64,
    ) -> Result<(), ProblemError> {
        let mut bounded = Vec::with_capacity(self.dealt.len());
        for (client, rows) in self.dealt.iter_mut().enumerate() {
            let found = persons::bound(&self.train, rows, person_of, most, seed);
            if found.kept.is_empty() {
                return Err(ProblemError::Model(format!(
                    "client {client} has no records"
                )));
            }
            rows.clone_from(&found.kept);
            bounded.push(found);
        }
        self.bounded = Some(bounded);
        Ok(())
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
        mut test: Option<Dataset>,
        mut clients: Option<Vec<Vec<u32>>>,
    ) -> Result<Self, ProblemError> {
        let named = config.natural.is_some() || config.partition == Partition::Given;
        if clients.is_some() != named {
            return Err(ConfigError::conflict(
                "`data.partition = \"given\"` goes with records of which a program says which \
                 client has which, and no other partition does",
            )
            .into());
        }
        if clients.is_some() && config.rows.is_some() {
            return Err(ConfigError::conflict(
                "`data.rows` does not go with clients that have rows of their own",
            )
            .into());
        }
        if let Some(clients) = &clients {
            config.clients()?;
            check_dealt(clients, train.rows())?;
        }
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
            let (rest, held_out) = match &mut clients {
                None => hold_out(train.rows(), share, config.seed)?,
                Some(clients) => hold_out_of_each(clients, share, config.seed)?,
            };
            test = Some(train.select(&held_out));
            train = train.select(&rest);
        }
        // Only labels decide, which no preparation changes.
        let dealt = match clients {
            None => config
                .partition
                .assign(&train, config.clients()?, config.seed)?,
            Some(clients) => clients,
        };
        Ok(Self {
            source: config.source.clone(),
            shape: RecordShape {
                features: train.columns(),
                names: train.feature_names().map(<[String]>::to_vec),
                schema: config.schema.clone(),
                labels: train.label_names().to_vec(),
                targets: train.targets().map(Targets::range),
            },
            train,
            test,
            dealt,
            adjustments: Vec::new(),
            prepared_by_records: false,
            bounded: None,
            private_ranges: 0,
            range_noise: None,
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

/// Every client's rows, where the data says whose they are.
fn clients_of(
    config: &Config,
    natural: &NaturalClients,
    clients: Option<Grouping>,
) -> Result<Vec<Vec<u32>>, ConfigError> {
    let Some(clients) = clients else {
        return Err(ConfigError::conflict(format!(
            "`data.partition = \"{natural}\"`: {} does not say whose record each row is",
            config.source
        )));
    };
    let dealt = clients.rows();
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
    let held = drawn(rows, count, seed, 0);
    let side = |wanted: bool| {
        let rows = (0u32..).zip(&held);
        rows.filter_map(move |(row, held)| (*held == wanted).then_some(row))
    };
    Ok((side(false).collect(), side(true).collect()))
}

/// The same of every client's rows, which are renamed to their places among those that are left:
/// each has this share of its own held out, and trains on at least one. A client's rows on either
/// side follow from its number and how many it has.
fn hold_out_of_each(
    clients: &mut [Vec<u32>],
    share: f64,
    seed: u64,
) -> Result<(Vec<u32>, Vec<u32>), ConfigError> {
    let rows = clients.iter().map(Vec::len).sum();
    let mut held = vec![false; rows];
    for (client, own) in clients.iter().enumerate() {
        let count = ((share * own.len() as f64).round() as usize).min(own.len() - 1);
        for (&row, drawn) in own.iter().zip(drawn(own.len(), count, seed, client as u32)) {
            held[row as usize] = drawn;
        }
    }
    if !held.contains(&true) {
        return Err(ConfigError::conflict(format!(
            "`data.holdout` is {share}: no client has so many rows that this makes one to test on"
        )));
    }
    let mut next = 0;
    let place_of: Vec<u32> = held
        .iter()
        .map(|held| {
            let place = next;
            next += u32::from(!held);
            place
        })
        .collect();
    for own in clients {
        own.retain(|&row| !held[row as usize]);
        own.iter_mut()
            .for_each(|row| *row = place_of[*row as usize]);
    }
    let side = |wanted: bool| {
        let rows = (0u32..).zip(&held);
        rows.filter_map(move |(row, held)| (*held == wanted).then_some(row))
    };
    Ok((side(false).collect(), side(true).collect()))
}

/// Which of some rows are among `count` that a public seed draws.
fn drawn(rows: usize, count: usize, seed: u64, stream: u32) -> Vec<bool> {
    let mut random = PublicSeed(seed).stream(PublicPurpose::Holdout, stream);
    // Floyd's algorithm: every set of `count` rows has the same probability.
    let mut held = vec![false; rows];
    for last in rows - count..rows {
        let drawn = below(&mut random, last as u32 + 1) as usize;
        let row = if held[drawn] { last } else { drawn };
        held[row] = true;
    }
    held
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
    fn every_client_holds_out_its_own_share_and_keeps_the_rest() {
        let before: Vec<Vec<u32>> = vec![
            (0..100).step_by(2).collect(),
            vec![101],
            (1..100).step_by(2).chain([100]).collect(),
        ];
        let mut clients = before.clone();
        let (rest, held_out) = hold_out_of_each(&mut clients, 0.2, 7).unwrap();
        let of_each: Vec<usize> = clients.iter().map(Vec::len).collect();
        assert_eq!((of_each, held_out.len()), (vec![40, 1, 41], 20));
        for (own, before) in clients.iter().zip(&before) {
            assert!(own.iter().all(|&row| before.contains(&rest[row as usize])));
        }
        // One client's rows do not move another's.
        let mut others = before.clone();
        others[0].pop();
        others[2] = before[2]
            .iter()
            .map(|&row| if row == 100 { 98 } else { row })
            .collect();
        others[1] = vec![100];
        let (other_rest, _) = hold_out_of_each(&mut others, 0.2, 7).unwrap();
        let kept = |clients: &[Vec<u32>], rest: &[u32]| -> Vec<u32> {
            clients[2].iter().map(|&row| rest[row as usize]).collect()
        };
        assert_eq!(
            kept(&clients, &rest)[..30],
            kept(&others, &other_rest)[..30]
        );
        let mut single = vec![vec![0], vec![1]];
        assert!(hold_out_of_each(&mut single, 0.5, 7).is_err());
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
