//! The audit can fail: one thing is broken at a time, and somebody must notice: the audit, or the
//! property that is responsible. Only built with the feature `mutations`, which no program has:
//!
//! ```console
//! cargo test -p soteriafl --features mutations --test mutations
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use soteriafl::accountant::mutation::{self, Mutation};
use soteriafl::accountant::{ClipScope, Estimator, Recursion};
use soteriafl::audit::{Audit, Settings, Verdict};
use soteriafl::core::compress::{Compressor, CompressorKind};
use soteriafl::core::data::{Dataset, DenseRows, Features};
use soteriafl::core::estimator::Clipping;
use soteriafl::core::objective::{Explicit, Outcome, RecordLoss, RowView};
use soteriafl::core::privacy::Noise;
use soteriafl::core::protocol::{Client, ClientPlan, RoundScratch};
use soteriafl::core::random::{PublicSeed, Purpose, SecretKey};
use soteriafl::core::sampling::{Coins, Sampling};
use soteriafl::persons;
use soteriafl::specification::{Clip, Coordinates, NoiseName, NoiseTarget, Specification};

/// Who notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// `soteria audit`.
    Audit,
    /// Two clients that differ in one record, the same keys: what they send differs by the bound at
    /// most, whatever the estimator.
    Sensitivity,
    /// The sum of a batch does not depend on how many records were drawn.
    Divisors,
    /// Clients with different records send the same coordinates.
    Selection,
    /// Data sets that differ in one person are bounded to as many records, of which they differ in
    /// that person's.
    Persons,
}

impl Watch {
    fn words(self) -> &'static str {
        match self {
            Watch::Audit => "the audit",
            Watch::Sensitivity => "sensitivity of two neighbours",
            Watch::Divisors => "constant divisors",
            Watch::Selection => "coordinates of two neighbours",
            Watch::Persons => "bounded records of two neighbours",
        }
    }
}

/// Every fault, what it is in words, and who notices.
const FAULTS: [(Mutation, &str, Watch); 15] = [
    (
        Mutation::NoiseHalved,
        "noise of half the size",
        Watch::Audit,
    ),
    (
        Mutation::NoiseReused,
        "the same noise in every round",
        Watch::Audit,
    ),
    (
        Mutation::ClippedAfterTheSum,
        "the batch's sum is clipped, not its records",
        Watch::Audit,
    ),
    (
        Mutation::DifferencesUnclipped,
        "differences are not clipped (SVRG, SAGA)",
        Watch::Sensitivity,
    ),
    (
        Mutation::RealisedDivisor,
        "sums divided by the number of records drawn",
        Watch::Divisors,
    ),
    (
        Mutation::CoinsReused,
        "the same coins in every round",
        Watch::Audit,
    ),
    (
        Mutation::CoordinatesFromRecords,
        "coordinates that depend on the records",
        Watch::Selection,
    ),
    (
        Mutation::SelectedAmplified,
        "amplification counted where what travels is clipped",
        Watch::Audit,
    ),
    (
        Mutation::PersonChargedOnce,
        "a person's second record not counted",
        Watch::Audit,
    ),
    (
        Mutation::PersonsUnbounded,
        "records of a person beyond K are not left out",
        Watch::Persons,
    ),
    (
        Mutation::PersonsBoundedByPlace,
        "which records of a person are kept depends on their places",
        Watch::Persons,
    ),
    (
        Mutation::NullRecordsForgotten,
        "a client's number of records says how many persons have",
        Watch::Persons,
    ),
    (
        Mutation::IncrementsQuieter,
        "increments of a recursion have less noise than is counted",
        Watch::Audit,
    ),
    (
        Mutation::IncrementsUnclipped,
        "increments of a recursion are not clipped",
        Watch::Audit,
    ),
    (
        Mutation::MomentsBare,
        "second moments released with next to no noise",
        Watch::Audit,
    ),
];

fn run() -> Specification {
    Specification {
        clip: Some(Clip {
            bound: 0.5,
            scope: ClipScope::Record,
        }),
        target: NoiseTarget::Epsilon(1.0),
        delta: 1e-3,
        rounds: 8,
        ..Specification::default()
    }
}

/// The run in which a fault shows.
fn shows(mutation: Mutation) -> Specification {
    let plain = run();
    match mutation {
        Mutation::CoinsReused => Specification {
            estimator: Estimator::Sgd,
            batch: Some(4.0),
            ..plain
        },
        Mutation::SelectedAmplified => Specification {
            clip: Some(Clip {
                bound: 0.5,
                scope: ClipScope::Selected,
            }),
            compressor: CompressorKind::RandK { k: 10 },
            rounds: 60,
            ..plain
        },
        Mutation::IncrementsQuieter => Specification {
            estimator: Estimator::Recursive(Recursion {
                noise_ratio: 3.0,
                ..Recursion::momentum(0.1)
            }),
            rounds: 40,
            ..plain
        },
        Mutation::IncrementsUnclipped => Specification {
            estimator: Estimator::Recursive(Recursion::momentum(0.1)),
            ..plain
        },
        // The attack weighs moments by the noise they should have: they must be most of the budget.
        Mutation::MomentsBare => Specification {
            moments: Some(0.9),
            ..plain
        },
        Mutation::PersonChargedOnce => Specification {
            records_per_person: 2,
            ..plain
        },
        _ => plain,
    }
}

fn audit(run: &Specification, noise: NoiseName) -> Verdict {
    let settings = Settings {
        runs: Some(700),
        seed: 3,
        threads: 2,
    };
    let run = Specification {
        noise,
        ..run.clone()
    };
    let audit = Audit::new(&run, 100, 128, settings).unwrap();
    audit
        .play(&|| {}, &AtomicBool::new(false))
        .unwrap()
        .verdict()
}

/// The gradient of every record is its features times the model's first parameter.
struct Steered;

const COLUMNS: usize = 24;
const RECORDS: usize = 10;
const BATCH: f64 = 2.5;
const CLIP: f64 = 0.5;
const DIFFERENCE: f64 = 0.1;

impl RecordLoss for Steered {
    fn dimension(&self) -> usize {
        COLUMNS
    }

    fn loss_and_gradient(
        &self,
        model: &[f32],
        features: RowView<'_>,
        _label: u32,
        gradient: &mut [f32],
    ) -> Outcome {
        features.add_scaled(model[0], gradient);
        Outcome::default()
    }
}

fn records(target: f32) -> Dataset {
    let mut values = vec![0.0; COLUMNS * RECORDS];
    for (row, values) in values.chunks_mut(COLUMNS).enumerate() {
        values[1 + row] = 0.25;
    }
    // The fourth record is the target: nothing, or a gradient on a coordinate of its own.
    values[3 * COLUMNS + 4] = 0.0;
    values[3 * COLUMNS + 20] = target;
    let features = DenseRows::new(COLUMNS, values).unwrap();
    Dataset::new(Features::Dense(features), vec![0; RECORDS], 1).unwrap()
}

fn plan(estimator: Estimator, kind: CompressorKind) -> Arc<ClientPlan> {
    Arc::new(ClientPlan {
        compressor: Compressor::new(kind, COLUMNS, 1.0).unwrap(),
        objective: Arc::new(Explicit(Steered)),
        estimator,
        clipping: Clipping::Record(CLIP),
        estimate_clip: None,
        regularizer: None,
        shift_step: None,
        noise: Noise::Float,
        shared_coordinates: false,
        public_seed: PublicSeed(3),
    })
}

const POISSON: Sampling = Sampling::Poisson {
    batch: BATCH,
    coins: Coins::Exact,
};

/// Coordinates and values of every round.
type Transcript = Vec<(Option<Vec<u32>>, Vec<f32>)>;

/// What a client with so little noise that only records are seen sends, round after round.
fn messages(estimator: Estimator, kind: CompressorKind, target: f32) -> Transcript {
    use soteriafl::core::objective::Coordinates;
    let plan = plan(estimator, kind);
    let key = SecretKey::simulated(8, 1);
    let data = Arc::new(records(target));
    let mut client = Client::new(0, Arc::clone(&plan), data, POISSON, 1e-7, key).unwrap();
    let mut scratch = RoundScratch::default();
    let levels = [0.6f32, 1.0, -1.0, 1.0, 1.0, -1.0, 0.2];
    (0..40)
        .map(|round| {
            let mut model = vec![0.0; COLUMNS];
            model[0] = 4.0 * levels[round % levels.len()];
            let message = client
                .message(round as u32, &Arc::new(model), &mut scratch)
                .unwrap();
            let update = message.update.unwrap();
            let chosen = match update.coordinates() {
                Coordinates::All => None,
                Coordinates::Selected(chosen) => Some(chosen.to_vec()),
            };
            (chosen, update.values().to_vec())
        })
        .collect()
}

fn sampled(round: usize) -> bool {
    let mut rows = Vec::new();
    let mut coins = SecretKey::simulated(8, 1).stream(round as u32, Purpose::Sampling);
    POISSON.draw(RECORDS, &mut coins, &mut rows);
    rows.contains(&3)
}

fn estimators() -> [(Estimator, [f64; 2]); 3] {
    let (m, difference_clip) = (RECORDS as f64, Some(DIFFERENCE));
    let pair = [CLIP / m, DIFFERENCE / BATCH + CLIP / m];
    [
        (Estimator::Sgd, [0.0, CLIP / BATCH]),
        (
            Estimator::Svrg {
                snapshot_probability: 0.3,
                difference_clip,
            },
            pair,
        ),
        (Estimator::Saga { difference_clip }, pair),
    ]
}

/// Whether all messages of neighbours are within the estimator's pair of each other.
fn sensitivity() -> bool {
    estimators().iter().all(|&(estimator, pair)| {
        let send = |target| messages(estimator, CompressorKind::Identity, target);
        let (with, without) = (send(1.0), send(0.0));
        with.iter()
            .zip(&without)
            .enumerate()
            .all(|(round, (one, other))| {
                let squares = one
                    .1
                    .iter()
                    .zip(&other.1)
                    .map(|(a, b)| f64::from(a - b).powi(2));
                squares.sum::<f64>().sqrt() <= pair[usize::from(sampled(round))] + 1e-5
            })
    })
}

/// Whether the other records' sums are `0.25 x_0 / b` each, however many were drawn.
fn divisors() -> bool {
    let sent = messages(Estimator::Sgd, CompressorKind::Identity, 0.0);
    // Every record's gradient is at most 1 and clipped to 0.5, or 0.2 in some rounds.
    sent.iter().enumerate().all(|(round, (_, values))| {
        let level = [0.6f32, 1.0, -1.0, 1.0, 1.0, -1.0, 0.2][round % 7];
        let expected = level.signum() * level.abs().min(CLIP as f32) / BATCH as f32;
        let close = |value: f32| (value - expected).abs() < 1e-4 || value.abs() < 1e-4;
        values[1..=RECORDS].iter().all(|&value| close(value))
    })
}

/// Whether neighbours send the same coordinates.
fn selection() -> bool {
    let send = |target| messages(Estimator::Sgd, CompressorKind::RandK { k: 5 }, target);
    let coordinates = |sent: Transcript| sent.into_iter().map(|(c, _)| c).collect::<Vec<_>>();
    let first = coordinates(send(0.0));
    [1.0, -3.0, 0.01]
        .into_iter()
        .all(|target| coordinates(send(target)) == first)
}

/// Whether a person can be exchanged for another with more or fewer records, at other places, and
/// all that changes are up to `K` kept records of that person.
fn persons() -> bool {
    const MOST: u32 = 3;
    // Of each record its person; values tell records apart.
    let bounded = |records: &[(u32, f32)]| {
        let values = records.iter().map(|record| record.1).collect();
        let features = DenseRows::new(1, values).unwrap();
        let labels = vec![0; records.len()];
        let data = Dataset::new(Features::Dense(features), labels, 1).unwrap();
        let rows: Vec<u32> = (0..records.len() as u32).collect();
        let person_of: Vec<u32> = records.iter().map(|record| record.0).collect();
        let bounded = persons::bound(&data, &rows, &person_of, MOST, 5);
        let kept = bounded.kept.iter().map(|&row| records[row as usize]);
        let mut others: Vec<_> = kept.clone().filter(|record| record.0 != 2).collect();
        others.sort_by(|one, other| one.1.total_cmp(&other.1));
        let theirs = kept.filter(|record| record.0 == 2).count();
        let number = bounded.kept.len() + bounded.null_records;
        (number, others, theirs <= MOST as usize)
    };
    let before: Vec<(u32, f32)> = (0..40).map(|i| (i % 5, (i * 37 % 101) as f32)).collect();
    let (number, others, _) = bounded(&before);
    (0..12usize).all(|count| {
        let mut after: Vec<(u32, f32)> = before.iter().copied().filter(|r| r.0 != 2).collect();
        for record in 0..=count {
            after.insert((7 * record) % after.len(), (2, 1000.0 + record as f32));
        }
        let found = bounded(&after);
        found.0 == number && found.1 == others && found.2
    })
}

/// Whether the watch is content.
fn content(watch: Watch, mutation: Mutation) -> bool {
    match watch {
        Watch::Audit => audit(&shows(mutation), NoiseName::Float) == Verdict::Consistent,
        Watch::Sensitivity => sensitivity(),
        Watch::Divisors => divisors(),
        Watch::Selection => selection(),
        Watch::Persons => persons(),
    }
}

/// One test, because the switch is one for the whole process. The audits of the sound program end
/// with "violated" with probability 5% at most each for a fresh seed; the seed is fixed.
#[test]
fn every_fault_is_noticed_and_nothing_else_is() {
    for (mutation, words, watch) in FAULTS {
        mutation::set(None);
        assert!(
            content(watch, mutation),
            "{words}: {watch:?} complains of the sound program"
        );
        mutation::set(Some(mutation));
        let noticed = !content(watch, mutation);
        mutation::set(None);
        assert!(noticed, "{words}: {watch:?} does not notice");
    }
    // Secure noise goes through other code.
    assert_eq!(audit(&run(), NoiseName::Secure), Verdict::Consistent);
    mutation::set(Some(Mutation::NoiseHalved));
    assert_eq!(audit(&run(), NoiseName::Secure), Verdict::Violated);
    mutation::set(None);
}

/// The table of `docs/audit.md` says who notices what.
#[test]
fn the_documented_table_is_this_one() {
    let text = include_str!("../../../docs/audit.md");
    for (_, words, watch) in FAULTS {
        let row = format!("| {words} | {} |", watch.words());
        assert!(text.contains(&row), "docs/audit.md lacks the row\n{row}");
    }
}
