//! At most so many records of a person: which are kept, and for how many a person counts.
//!
//! **What it computes.** Of a person with more than `K` records the `K` with the smallest digests
//! `SHA-256(seed, record)`, the record being its features and its class. Kept rows stay in their
//! order. A person with fewer records counts for `K` all the same: null records stand for what is
//! missing, so a client of `P` persons has `m = K P` records.
//!
//! **Guarantee.** Which of a person's records are kept depends on these records and the public seed
//! alone: not on other people's records, on places in a file, or on how many people there are. So
//! two data sets that differ in one person are kept so that they differ in that person's kept
//! records, at most `K` in each, and both have the same `m` (`docs/privacy.md`, persons). Equal
//! records are interchangeable.
//!
//! **Cost.** A digest for each record of a person with too many.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use soteriafl_accountant::mutation::{self, Mutation};
use soteriafl_core::data::Dataset;

use crate::words::counted;

/// What is left of a client's rows. All but `K` is for their owner's eyes: it says how many records
/// persons have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// The rows that are kept, in their order.
    pub kept: Vec<u32>,
    /// How many were left out.
    pub left_out: usize,
    /// How many null records stand for those that persons do not have.
    pub null_records: usize,
}

/// What bounding came to, in words for the owner of the records.
pub fn told(left_out: usize, null_records: usize, most: u32) -> String {
    format!(
        "persons: {} left out, so that nobody has more than {most} at a client; {} stand for \
         what others have less",
        counted(left_out, "record"),
        counted(null_records, "null record"),
    )
}

/// The rows of one client, bounded. `person_of` says whose each row of the data is.
pub fn bound(data: &Dataset, rows: &[u32], person_of: &[u32], most: u32, seed: u64) -> Bounded {
    let places = most as usize;
    let mut by_person: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for &row in rows {
        by_person
            .entry(person_of[row as usize])
            .or_default()
            .push(row);
    }
    let persons = by_person.len();
    let mut kept: Vec<u32> = Vec::with_capacity(rows.len());
    for mut theirs in by_person.into_values() {
        if theirs.len() > places {
            theirs.sort_by_cached_key(|&row| digest(data, row, seed));
            if !mutation::active(Mutation::PersonsUnbounded) {
                theirs.truncate(places);
            }
        }
        kept.extend(theirs);
    }
    // In the order of the client's rows, which need not ascend.
    let kept: BTreeSet<u32> = kept.into_iter().collect();
    let in_order = rows.iter().copied();
    let kept: Vec<u32> = in_order.filter(|row| kept.contains(row)).collect();
    let null_records = match mutation::active(Mutation::NullRecordsForgotten) {
        true => 0,
        false => places.saturating_mul(persons).saturating_sub(kept.len()),
    };
    Bounded {
        left_out: rows.len() - kept.len(),
        null_records,
        kept,
    }
}

/// A record's digest: of the seed, its class or target and its features, nothing else.
fn digest(data: &Dataset, row: u32, seed: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"soteria person");
    hash.update(seed.to_le_bytes());
    if mutation::active(Mutation::PersonsBoundedByPlace) {
        hash.update(row.to_le_bytes());
    }
    match data.targets() {
        Some(targets) => hash.update(targets.values()[row as usize].to_bits().to_le_bytes()),
        None => hash.update(data.labels()[row as usize].to_le_bytes()),
    }
    data.features().visit_row(row as usize, |column, value| {
        // Zeros are stored or not, by what all records look like.
        if value != 0.0 {
            hash.update((column as u64).to_le_bytes());
            hash.update(value.to_bits().to_le_bytes());
        }
    });
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use soteriafl_core::data::{DenseRows, Features};

    /// Records of one feature each.
    fn data(values: &[f32]) -> Dataset {
        let features = DenseRows::new(1, values.to_vec()).unwrap();
        Dataset::new(Features::Dense(features), vec![0; values.len()], 1).unwrap()
    }

    fn kept_values(values: &[f32], person_of: &[u32], most: u32) -> Vec<(u32, f32)> {
        let data = data(values);
        let rows: Vec<u32> = (0..values.len() as u32).collect();
        let bounded = bound(&data, &rows, person_of, most, 7);
        assert_eq!(bounded.left_out, rows.len() - bounded.kept.len());
        let kept = bounded.kept.iter();
        kept.map(|&row| (person_of[row as usize], values[row as usize]))
            .collect()
    }

    #[test]
    fn nobody_has_more_and_nobody_loses_without_need() {
        let values: Vec<f32> = (0..60).map(|i| i as f32).collect();
        let person_of: Vec<u32> = (0..60).map(|i| (i * i) % 7).collect();
        for most in 1..12 {
            let kept = kept_values(&values, &person_of, most);
            for person in 0..7 {
                let had = person_of.iter().filter(|&&p| p == person).count();
                let has = kept.iter().filter(|(p, _)| *p == person).count();
                assert_eq!(has, had.min(most as usize));
            }
            assert!(kept.is_sorted_by(|a, b| a.1 < b.1), "rows keep their order");
        }
    }

    /// Whole persons exchanged for others, rows moved about: what is kept of everybody else is the
    /// same.
    #[test]
    fn what_is_kept_of_a_person_depends_on_that_person_alone() {
        let values: Vec<f32> = (0..40).map(|i| (i * 37 % 101) as f32).collect();
        let person_of: Vec<u32> = (0..40).map(|i| i % 5).collect();
        let of_others = |mut kept: Vec<(u32, f32)>| {
            kept.retain(|(person, _)| *person != 3);
            kept.sort_by(|a, b| a.partial_cmp(b).unwrap());
            kept
        };
        let reference = of_others(kept_values(&values, &person_of, 3));
        assert_eq!(reference.len(), 12);
        for change in 1..30 {
            let (mut values, mut person_of) = (values.clone(), person_of.clone());
            for row in 0..40 {
                if person_of[row] == 3 {
                    values[row] = -((row * change) as f32);
                }
            }
            // The person has more or fewer records, at any place.
            for extra in 0..change % 4 {
                values.insert(change, 1000.0 + extra as f32);
                person_of.insert(change, 3);
            }
            values.rotate_left(change);
            person_of.rotate_left(change);
            assert_eq!(of_others(kept_values(&values, &person_of, 3)), reference);
        }
    }

    /// Every person counts for as many records, so who has how many does not show in their number.
    #[test]
    fn the_number_of_records_is_that_of_persons() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let rows: Vec<u32> = (0..12).collect();
        let data = data(&values);
        // Two people with one and eleven, two and ten, ... records.
        for first in 1..12 {
            let person_of: Vec<u32> = (0..12).map(|i| u32::from(i >= first)).collect();
            for most in 1..14u32 {
                let bounded = bound(&data, &rows, &person_of, most, 7);
                let count = bounded.kept.len() + bounded.null_records;
                assert_eq!(count, 2 * most as usize);
            }
        }
        let said = told(3, 1, 5);
        assert!(
            said.contains("3 records left out") && said.contains("1 null record "),
            "{said}"
        );
    }

    /// Persons are not told apart by their numbers, which other people's names decide.
    #[test]
    fn renaming_persons_changes_nothing() {
        let values: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let person_of: Vec<u32> = (0..30).map(|i| i % 4).collect();
        let renamed: Vec<u32> = person_of.iter().map(|p| 90 - p).collect();
        let values_of =
            |kept: Vec<(u32, f32)>| kept.into_iter().map(|(_, v)| v).collect::<Vec<_>>();
        assert_eq!(
            values_of(kept_values(&values, &person_of, 2)),
            values_of(kept_values(&values, &renamed, 2))
        );
    }
}
