//! How records are distributed to clients.
//!
//! Given: a program says which rows each client has; nothing is dealt here. Sorted (the paper's):
//! all rows in the order of their labels, cut into equal runs. Iid: all rows shuffled, cut
//! likewise. Dirichlet: for each class, the clients' shares of its rows are drawn from a symmetric
//! Dirichlet distribution; a small `alpha` gives most of a class to few clients.
//!
//! For sorted and iid the first `rows mod clients` clients get one row more. Every client gets at
//! least one row under each of them. The draws are public: the same seed gives the same partition
//! on every node. Cost: one pass over the labels and `classes * clients` gamma draws.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::Range;

use super::{Dataset, RecordsError, public_random};

/// A way to deal records to clients.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Partition {
    /// Sorted by label (stable), in equal runs.
    Sorted,
    /// Shuffled, in equal runs.
    Iid,
    /// Each class dealt in shares drawn from a Dirichlet distribution.
    Dirichlet {
        /// The concentration: small for skewed clients, large for even ones.
        alpha: f64,
    },
    /// As the program that has the records says.
    Given,
}

/// The range of `alpha` in which all draws stay finite and mean something.
const ALPHAS: std::ops::RangeInclusive<f64> = 1e-4..=1e6;

impl Partition {
    /// The partition called `sorted`, `iid`, `dirichlet` or `given`; only `dirichlet` uses `alpha`.
    pub fn from_name(name: &str, alpha: f64) -> Result<Partition, RecordsError> {
        match name {
            "sorted" => Ok(Partition::Sorted),
            "iid" => Ok(Partition::Iid),
            "given" => Ok(Partition::Given),
            "dirichlet" if ALPHAS.contains(&alpha) => Ok(Partition::Dirichlet { alpha }),
            "dirichlet" => Err(RecordsError::Choice {
                what: "alpha",
                value: alpha.to_string(),
                reason: "expected a number from 0.0001 to 1000000".to_owned(),
            }),
            _ => Err(RecordsError::Choice {
                what: "partition",
                value: name.to_owned(),
                reason: "expected sorted, iid, dirichlet or given".to_owned(),
            }),
        }
    }

    /// Which rows each client gets, in the order of clients.
    pub fn assign(
        &self,
        data: &Dataset,
        clients: usize,
        seed: u64,
    ) -> Result<Vec<Vec<u32>>, RecordsError> {
        self.check(data, clients)?;
        Ok(match self {
            Partition::Given => return Err(nobody_deals()),
            Partition::Dirichlet { alpha } => dirichlet(data, clients, *alpha, seed),
            Partition::Sorted | Partition::Iid => {
                let order = self.order(data, seed);
                (0..clients)
                    .map(|client| order[run(order.len(), client, clients)].to_vec())
                    .collect()
            }
        })
    }

    /// Each client's records, in the order of clients.
    pub fn split(
        &self,
        data: &Dataset,
        clients: usize,
        seed: u64,
    ) -> Result<Vec<Dataset>, RecordsError> {
        Ok(self
            .assign(data, clients, seed)?
            .iter()
            .map(|rows| data.select(rows))
            .collect())
    }

    /// One client's records, without copying the others'.
    pub fn part(
        &self,
        data: &Dataset,
        client: usize,
        clients: usize,
        seed: u64,
    ) -> Result<Dataset, RecordsError> {
        self.check(data, clients)?;
        if client >= clients {
            return Err(RecordsError::Choice {
                what: "part",
                value: format!("{client}/{clients}"),
                reason: format!("parts are numbered from 0 to {}", clients - 1),
            });
        }
        Ok(match self {
            Partition::Given => return Err(nobody_deals()),
            Partition::Dirichlet { alpha } => {
                data.select(&dirichlet(data, clients, *alpha, seed)[client])
            }
            Partition::Sorted | Partition::Iid => {
                data.select(&self.order(data, seed)[run(data.rows(), client, clients)])
            }
        })
    }

    /// Whether these records can be dealt so.
    fn check(&self, data: &Dataset, clients: usize) -> Result<(), RecordsError> {
        check_clients(data.rows(), clients)?;
        match (self, data.targets()) {
            (Partition::Dirichlet { .. }, Some(_)) => Err(RecordsError::Choice {
                what: "partition",
                value: "dirichlet".to_owned(),
                reason: "it deals class by class, and these records have numbers; sorted and iid are possible"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// All rows in the order in which sorted and iid cut them.
    fn order(&self, data: &Dataset, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..data.rows() as u32).collect();
        if matches!(self, Partition::Sorted) {
            match data.targets() {
                // By their numbers; these are finite.
                Some(targets) => {
                    let values = targets.original();
                    order.sort_by(|&a, &b| values[a as usize].total_cmp(&values[b as usize]));
                }
                None => order.sort_by_key(|&row| data.labels()[row as usize]),
            }
        } else {
            public_random::shuffle(&mut public_random::generator("partition", seed), &mut order);
        }
        order
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Sorted => formatter.write_str("sorted"),
            Partition::Iid => formatter.write_str("iid"),
            Partition::Given => formatter.write_str("given"),
            Partition::Dirichlet { alpha } => write!(formatter, "dirichlet (alpha {alpha})"),
        }
    }
}

/// The error where rows should be dealt, and only a program that gave them can say how.
fn nobody_deals() -> RecordsError {
    RecordsError::Choice {
        what: "partition",
        value: Partition::Given.to_string(),
        reason: "a program that gives the records says which client has which; expected sorted, \
                 iid or dirichlet"
            .to_owned(),
    }
}

fn check_clients(rows: usize, clients: usize) -> Result<(), RecordsError> {
    if (1..=rows).contains(&clients) {
        return Ok(());
    }
    let reason = match clients {
        0 => "expected at least one client".to_owned(),
        _ if rows == 1 => "expected one client, because there is one record".to_owned(),
        _ => format!("expected at most one client per record, and there are {rows} records"),
    };
    Err(RecordsError::Choice {
        what: "clients",
        value: clients.to_string(),
        reason,
    })
}

/// The run of a client: the first `rows mod clients` are one longer.
fn run(rows: usize, client: usize, clients: usize) -> Range<usize> {
    let (length, longer) = (rows / clients, rows % clients);
    let start = client * length + client.min(longer);
    start..start + length + usize::from(client < longer)
}

/// Rows of each client ascend, so that equal sets of rows are equal lists.
fn dirichlet(data: &Dataset, clients: usize, alpha: f64, seed: u64) -> Vec<Vec<u32>> {
    let mut random = public_random::generator("partition", seed);
    let mut by_class = vec![Vec::new(); data.classes()];
    for (row, &label) in data.labels().iter().enumerate() {
        by_class[label as usize].push(row as u32);
    }
    let mut parts = vec![Vec::new(); clients];
    for mut rows in by_class {
        public_random::shuffle(&mut random, &mut rows);
        let logs: Vec<f64> = (0..clients)
            .map(|_| public_random::log_gamma_variable(&mut random, alpha))
            .collect();
        // Relative to the largest, which becomes 1: the sum is positive whatever the others are.
        let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = logs.iter().map(|log| libm::exp(log - largest)).collect();
        let total: f64 = shares.iter().sum();
        // Cutting where the running sum is gives every client its share to within one row.
        let (mut sum, mut start) = (0.0, 0);
        for (client, share) in shares.iter().enumerate() {
            sum += share;
            let cut = libm::floor(sum / total * rows.len() as f64 + 0.5) as usize;
            let end = if client + 1 == clients {
                rows.len()
            } else {
                cut.clamp(start, rows.len())
            };
            parts[client].extend_from_slice(&rows[start..end]);
            start = end;
        }
    }
    fill_empty_clients(&mut parts);
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

/// Gives each client without rows the last row of the client that then has most, the first of them
/// when several do. There are at least as many rows as clients, so that one keeps at least
/// one row.
fn fill_empty_clients(parts: &mut [Vec<u32>]) {
    let sizes = parts
        .iter()
        .enumerate()
        .map(|(client, part)| (part.len(), Reverse(client)));
    let mut largest: BinaryHeap<_> = sizes.filter(|&(size, _)| size > 1).collect();
    for client in 0..parts.len() {
        if !parts[client].is_empty() {
            continue;
        }
        let Some((size, Reverse(giver))) = largest.pop() else {
            return;
        };
        if let Some(row) = parts[giver].pop() {
            parts[client].push(row);
        }
        if size > 2 {
            largest.push((size - 1, Reverse(giver)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DenseRows, Features};
    use super::*;

    fn data(labels: &[u32], classes: usize) -> Dataset {
        let values = (0..labels.len()).map(|row| row as f32).collect();
        let rows = Features::Dense(DenseRows::new(1, values).unwrap());
        Dataset::new(rows, labels.to_vec(), classes).unwrap()
    }

    fn many(rows: usize, classes: u32) -> Dataset {
        data(
            &(0..rows as u32)
                .map(|row| row * 7 % classes)
                .collect::<Vec<_>>(),
            classes as usize,
        )
    }

    const ALL: [Partition; 4] = [
        Partition::Sorted,
        Partition::Iid,
        Partition::Dirichlet { alpha: 0.3 },
        Partition::Dirichlet { alpha: 1e-4 },
    ];

    #[test]
    fn sorted_is_stable_and_the_first_clients_get_more() {
        let parts = Partition::Sorted
            .assign(&data(&[1, 0, 2, 0, 1, 0, 2], 3), 3, 9)
            .unwrap();
        assert_eq!(parts, [vec![1, 3, 5], vec![0, 4], vec![2, 6]]);
    }

    #[test]
    fn every_row_goes_to_exactly_one_client_and_nobody_goes_without() {
        for partition in ALL {
            for (rows, clients) in [(1, 1), (10, 3), (10, 10), (1000, 7), (500, 499)] {
                let parts = partition.assign(&many(rows, 5), clients, 1).unwrap();
                assert_eq!(parts.len(), clients);
                assert!(
                    parts.iter().all(|part| !part.is_empty()),
                    "{partition} {rows} {clients}"
                );
                let mut all: Vec<u32> = parts.concat();
                all.sort_unstable();
                assert_eq!(
                    all,
                    (0..rows as u32).collect::<Vec<_>>(),
                    "{partition} {rows} {clients}"
                );
                if !matches!(partition, Partition::Dirichlet { .. }) {
                    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
                    let by_hand: Vec<usize> = (0..clients)
                        .map(|client| rows / clients + usize::from(client < rows % clients))
                        .collect();
                    assert_eq!(sizes, by_hand);
                }
            }
        }
    }

    #[test]
    fn parts_are_what_the_whole_partition_says() {
        let data = many(103, 4);
        for partition in ALL {
            let split = partition.split(&data, 10, 5).unwrap();
            assert_eq!(split, partition.split(&data, 10, 5).unwrap());
            for (client, expected) in split.iter().enumerate() {
                assert_eq!(&partition.part(&data, client, 10, 5).unwrap(), expected);
            }
            assert!(partition.part(&data, 10, 10, 5).is_err());
        }
        assert_ne!(
            Partition::Iid.assign(&data, 10, 5).unwrap(),
            Partition::Iid.assign(&data, 10, 6).unwrap()
        );
    }

    #[test]
    fn dirichlet_shares_have_their_variance() {
        // Shares of a symmetric Dirichlet over n clients have mean 1/n and variance (1/n)(1 -
        // 1/n)/(n alpha + 1). 200 classes x 5 clients of share 0.2, alpha = 0.5: variance 0.16/3.5
        // = 0.0457. The 1000 squares (dependent five by five) have deviation about 0.06 each, so
        // the estimate's is below 0.004: six of them make the band, false alarm < 1e-6.
        let (classes, each) = (200u32, 400u32);
        let labels: Vec<u32> = (0..classes * each).map(|row| row / each).collect();
        let data = data(&labels, classes as usize);
        let parts = Partition::Dirichlet { alpha: 0.5 }
            .assign(&data, 5, 11)
            .unwrap();
        let mut sum = 0.0;
        for part in &parts {
            let mut counts = vec![0.0; classes as usize];
            part.iter()
                .for_each(|&row| counts[(row / each) as usize] += 1.0);
            sum += counts
                .iter()
                .map(|count| (count / f64::from(each) - 0.2f64).powi(2))
                .sum::<f64>();
        }
        let variance = sum / 1000.0;
        assert!((variance - 0.16 / 3.5).abs() < 0.024, "{variance}");
        // Even shares for a large alpha: every client holds a fifth of every class, nearly.
        let parts = Partition::Dirichlet { alpha: 1e6 }
            .assign(&data, 5, 11)
            .unwrap();
        assert!(parts.iter().all(|part| part.len().abs_diff(16_000) <= 400));
    }

    #[test]
    fn impossible_parameters_are_refused() {
        let message = |clients| {
            Partition::Sorted
                .assign(&many(5, 2), clients, 0)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(6),
            "clients \"6\": expected at most one client per record, and there are 5 records"
        );
        assert_eq!(message(0), "clients \"0\": expected at least one client");
        assert!(Partition::from_name("dirichlet", f64::NAN).is_err());
        assert!(Partition::from_name("dirichlet", 0.0).is_err());
        assert!(Partition::from_name("random", 1.0).is_err());
        assert_eq!(
            Partition::from_name("iid", f64::NAN).unwrap(),
            Partition::Iid
        );
    }
}
