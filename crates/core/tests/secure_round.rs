//! Rounds with secure noise, to the last integer. The noise of a round is drawn again from the
//! client's key and taken away, and what is left is the sum of the records' integers: it must
//! depend on each record alone, stay within the exact bounds, and mean what the floating-point mode
//! means.

mod common;

use std::sync::Arc;

use common::*;
use soteriafl_accountant::{IncrementClip, Recursion};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::data::Dataset;
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Coordinates, Explicit, Objective};
use soteriafl_core::privacy::Noise;
use soteriafl_core::privacy::secure::{GridPlan, TermBound};
use soteriafl_core::protocol::{Client, ClientError, ClientPlan, Estimator, Round};
use soteriafl_core::random::{IndexSeed, Purpose, SecretKey};
use soteriafl_core::sampling::{Coins, Sampling};

const KEY: (u64, u32) = (5, 1);

fn poisson(batch: f64) -> Sampling {
    Sampling::Poisson {
        batch,
        coins: Coins::Exact,
    }
}

/// A secure client whose messages are looked at as integers.
struct Integers {
    sender: Sender,
    grids: GridPlan,
    /// What random-k multiplies by: a power of two here, so that nothing is rounded.
    scale: f64,
    recursion: Option<Recursion>,
}

impl Integers {
    fn new(plan: &Arc<ClientPlan>, data: Dataset, sampling: Sampling, sigma: f64) -> Self {
        let records = data.rows();
        let Clipping::Record(clip) = plan.clipping else {
            panic!("records are clipped");
        };
        let divisor = sampling.divisor(records);
        let (terms, coordinates) = match plan.estimator {
            Estimator::Gd | Estimator::Sgd | Estimator::Recursive(_) => {
                (vec![TermBound { clip, divisor }], plan.compressor.values())
            }
            Estimator::Sag { memory } => {
                let all = records as f64 / memory;
                let divisors = [divisor / (1.0 - memory), all];
                let terms = divisors.map(|divisor| TermBound { clip, divisor });
                let first = usize::from(memory == 1.0);
                (terms[first..].to_vec(), plan.compressor.dimension())
            }
            Estimator::Svrg {
                difference_clip, ..
            }
            | Estimator::Saga { difference_clip } => {
                let difference = TermBound {
                    clip: difference_clip.unwrap(),
                    divisor,
                };
                let reference = TermBound {
                    clip,
                    divisor: records as f64,
                };
                (vec![difference, reference], plan.compressor.dimension())
            }
        };
        let key = SecretKey::simulated(KEY.0, KEY.1);
        let client = Client::new(0, Arc::clone(plan), Arc::new(data), sampling, sigma, key);
        Self {
            sender: Sender::new(client.unwrap()),
            grids: GridPlan::new(sigma, coordinates, &terms).unwrap(),
            scale: 1.0 + plan.compressor.omega(),
            recursion: plan.estimator.recursion(),
        }
    }

    fn step(&self) -> f64 {
        2f64.powi(self.grids.exponent())
    }

    fn noise(&self, round: Round) -> Vec<i64> {
        let mut noise = vec![0; self.sender.update.values().len()];
        let mut stream = SecretKey::simulated(KEY.0, KEY.1).stream(round, Purpose::Noise);
        IndexSeed::draw(&mut stream);
        self.grids.noise().fill(&mut stream, &mut noise);
        noise
    }

    /// The unit that the message of a round is in.
    fn unit(&self, round: Round) -> f64 {
        match self.recursion {
            Some(recursion) if !recursion.starts_anew(round) => recursion.scale(1.0, 0.0),
            _ => 1.0,
        }
    }

    /// The message of a round in grid steps, noise taken away. Panics where 24 bits do not hold it.
    fn sum(&mut self, round: Round, model: &Arc<Vec<f32>>) -> Vec<i64> {
        assert!(self.sender.send(round, model));
        let noise = self.noise(round);
        let values = self.sender.update.values().iter();
        let step = self.step() * self.unit(round);
        let steps = values.map(|&value| f64::from(value) / self.scale / step);
        let integer = |(steps, noise): (f64, i64)| {
            assert!(steps.abs() < f64::from(1 << 24), "{steps} is not exact");
            assert_eq!(steps, steps.trunc());
            steps as i64 - noise
        };
        steps.zip(noise).map(integer).collect()
    }
}

fn add_integers(target: &mut [i64], source: &[i64]) {
    target.iter_mut().zip(source).for_each(|(t, s)| *t += s);
}

fn differences(left: &[i64], right: &[i64]) -> Vec<i64> {
    left.iter().zip(right).map(|(l, r)| l - r).collect()
}

fn secure(
    objective: Arc<dyn Objective>,
    kind: CompressorKind,
    estimator: Estimator,
    clip: f64,
) -> ClientPlan {
    ClientPlan {
        noise: Noise::Secure,
        estimator,
        clipping: Clipping::Record(clip),
        ..client_plan(objective, kind)
    }
}

/// The estimators that secure noise goes with, differences clipped to `difference`.
fn estimators(difference: f64) -> [Estimator; 6] {
    let difference_clip = Some(difference);
    [
        Estimator::Sgd,
        Estimator::Svrg {
            snapshot_probability: 0.4,
            difference_clip,
        },
        Estimator::Saga { difference_clip },
        Estimator::Sag { memory: 0.5 },
        Estimator::Sag { memory: 1.0 },
        Estimator::Recursive(RECURSION),
    ]
}

/// Whether its sums fit the 24 bits in which they are looked at. SAG's, of all records and of a
/// batch, do not; `sensitivity.rs` compares its messages.
fn is_narrow(estimator: &Estimator) -> bool {
    !matches!(estimator, Estimator::Sag { .. })
}

/// Increments of two clips: a power of two, so that what is released tells the integers.
const RECURSION: Recursion = Recursion {
    keep: 1.0,
    period: Some(5),
    increments: IncrementClip::Fixed(1e9),
    noise_ratio: 1.0,
};

/// A record that is alone among null records, and the same record in batches of other sizes, at
/// other places, with other neighbours: the sum of a batch is the sum of its records' integers when
/// alone.
#[test]
fn a_batch_is_the_sum_of_its_records_alone() {
    let (columns, records, batch, sigma) = (4, 64, 8.0, 0.02);
    let (rows, labels) = table(6, records, columns, 2);
    let model = Arc::new(Stream(1).numbers(columns, 2.0));
    for storage in [dense, sparse] {
        for kind in [CompressorKind::Identity, CompressorKind::RandK { k: 2 }] {
            let plan = secure(logistic(columns), kind, Estimator::Sgd, 0.3);
            let plan = Arc::new(plan);
            let all = storage(&rows, &labels, 2);
            let mut whole = Integers::new(&plan, all, poisson(batch), sigma);
            let mut sizes = Vec::new();
            for round in 0..8 {
                assert!(whole.sender.send(round, &model));
                let mut drawn = Vec::new();
                let mut coins = SecretKey::simulated(KEY.0, KEY.1).stream(round, Purpose::Sampling);
                poisson(batch).draw(records, &mut coins, &mut drawn);
                sizes.push(drawn.len());
                let mut expected = whole.noise(round);
                for &j in &drawn {
                    let mut few = vec![vec![0.0; columns]; batch as usize];
                    let place = j as usize % few.len();
                    few[place].clone_from(&rows[j as usize]);
                    let few = storage(&few, &vec![labels[j as usize]; batch as usize], 2);
                    let mut alone = Integers::new(&plan, few, poisson(batch), sigma);
                    add_integers(&mut expected, &alone.sum(round, &model));
                }
                let step = whole.step();
                let expected = expected.iter().map(|&sum| (sum as f64 * step) as f32);
                let found = whole.sender.update.values().iter();
                let found = found.map(|value| value / whole.scale as f32);
                assert!(found.eq(expected), "{kind:?} round {round}");
            }
            assert!(sizes.iter().any(|&size| size != sizes[0]), "{sizes:?}");
        }
    }
}

/// What replacing one record changes does not depend on its neighbours, through all the memory of
/// SVRG and SAGA: network, sparse and dense.
#[test]
fn neighbours_do_not_change_a_record() {
    let (columns, classes, records, sigma) = (3, 2, 10, 0.15);
    let objective = network(columns, &[2], classes);
    let d = objective.dimension();
    let kinds = [CompressorKind::Identity, CompressorKind::RandK { k: d / 2 }];
    let target = 4;
    for (storage, kind) in [dense, sparse]
        .into_iter()
        .flat_map(|s| kinds.map(|k| (s, k)))
    {
        for estimator in estimators(4.0).into_iter().filter(is_narrow) {
            let plan = Arc::new(secure(Arc::clone(&objective), kind, estimator, 8.0));
            let change = |neighbours: u64, scale: f32| {
                let (mut rows, mut labels) = table(neighbours, records, columns, classes);
                rows.iter_mut().flatten().for_each(|value| *value *= scale);
                let mut client = |row: Vec<f32>, label| {
                    (rows[target], labels[target]) = (row, label);
                    Integers::new(&plan, storage(&rows, &labels, classes), poisson(4.0), sigma)
                };
                let mut one = client(vec![0.7, -0.2, 0.5], 0);
                let mut other = client(vec![-3.0, 0.0, 9.0], 1);
                let mut stream = Stream(3);
                let mut model = || Arc::new(stream.numbers(d, 1.5));
                (0..12)
                    .map(|round| {
                        let model = model();
                        differences(&one.sum(round, &model), &other.sum(round, &model))
                    })
                    .collect::<Vec<_>>()
            };
            let reference = change(100, 1.0);
            assert!(reference.iter().flatten().any(|&integer| integer != 0));
            for (neighbours, scale) in [(101, 1.0), (102, 1e-3), (103, 0.5)] {
                assert_eq!(
                    reference,
                    change(neighbours, scale),
                    "{estimator:?} {kind:?}"
                );
            }
        }
    }
}

/// Replacing a record moves the released sum by at most `2 C/b` grid steps, `2 (C_A/b + G/m)` with
/// two terms: compared in integers, with records that go for the bound. A record that is no number
/// moves nothing.
#[test]
fn replacing_a_record_stays_within_the_exact_bound() {
    let (columns, records, batch) = (4, 9, 3.0);
    let row = |first: f32| {
        let mut row = vec![0.4; columns];
        row[0] = first;
        row
    };
    let targets = [
        vec![0.0; columns],
        row(NOT_A_NUMBER),
        row(INFINITE),
        row(ALL_INFINITE),
        row(HUGE),
        row(0.1),
        row(700.0),
        row(-700.0),
        row(1e18),
        vec![0.0, 0.0, 0.5, 0.0],
        vec![0.0, 0.0, -0.5, 0.0],
    ];
    for kind in [CompressorKind::Identity, CompressorKind::RandK { k: 2 }] {
        for estimator in estimators(0.15).into_iter().filter(is_narrow) {
            // What fits the 24 bits in which sums are looked at.
            let small = matches!(estimator, Estimator::Svrg { .. } | Estimator::Saga { .. });
            let sigma = if small { 0.02 } else { 0.1 };
            let objective: Arc<dyn Objective> = Arc::new(Explicit(Marked(columns)));
            let plan = Arc::new(secure(objective, kind, estimator, 0.5));
            let (mut rows, labels) = table(8, records, columns, 2);
            rows.iter_mut().flatten().for_each(|value| *value *= 0.05);
            let mut bounds = Vec::new();
            let mut sums = Vec::new();
            for target in &targets {
                rows[2].clone_from(target);
                let data = dense(&rows, &labels, 2);
                let mut client = Integers::new(&plan, data, poisson(batch), sigma);
                bounds = client
                    .grids
                    .grids()
                    .iter()
                    .map(|g| g.bound_squared())
                    .collect();
                // The server turns gradients round, and once sends something that is no model.
                let send = |round: Round| {
                    let first = match round {
                        13 => f32::NAN,
                        17 => 1e38,
                        _ => [0.5, 1.0, -1.0][round as usize % 3],
                    };
                    client.sum(round, &Arc::new(vec![first, 0.0, 0.0, 0.0]))
                };
                sums.push((0..60).map(send).collect::<Vec<_>>());
            }
            for wrong in 1..4 {
                assert_eq!(sums[0], sums[wrong], "{estimator:?}: not a number");
            }
            let mut worst = 0.0f64;
            for (a, left) in sums.iter().enumerate() {
                for right in &sums[a + 1..] {
                    for (left, right) in left.iter().zip(right) {
                        let squares = squared(&differences(left, right));
                        assert!(within_twice(squares, &bounds), "{estimator:?} {squares}");
                        let roots: f64 = bounds.iter().map(|&b| (b as f64).sqrt()).sum();
                        worst = worst.max((squares as f64).sqrt() / (2.0 * roots));
                    }
                }
            }
            // Two aligned records attain the bound of one term.
            let attained = if bounds.len() == 1 { 0.999 } else { 0.6 };
            assert!(worst > attained, "{estimator:?} {kind:?}: {worst}");
        }
    }
}

fn squared(integers: &[i64]) -> u128 {
    let squares = integers.iter().map(|n| u128::from(n.unsigned_abs()).pow(2));
    squares.sum()
}

/// Whether `sqrt(squares) <= 2 sum_i sqrt(bound_i)` for one bound or two, in integers.
fn within_twice(squares: u128, bounds: &[u128]) -> bool {
    match *bounds {
        [bound] => squares <= 4 * bound,
        // squares <= 4 (p + q) + 8 sqrt(p q)
        [p, q] => match squares.checked_sub(4 * (p + q)) {
            Some(excess) => excess * excess <= 64 * p * q,
            None => true,
        },
        _ => panic!("one term or two"),
    }
}

/// Random-k shows a few coordinates of a record in every round. Put together they are one vector,
/// and its norm on *all* coordinates must obey the clip, as amplification needs, though no round's
/// check ever sees it: also where a large constant is taken off every row, so that what is left of
/// a record is the small difference of large numbers.
#[test]
fn coordinates_of_all_rounds_together_obey_the_clip() {
    let columns = 6;
    for storage in [dense, sparse] {
        for objective in [logistic(columns), network(columns, &[2], 2)] {
            let d = objective.dimension();
            let minibatch = Estimator::Sgd;
            let kind = CompressorKind::RandK { k: d / 2 };
            let plan = Arc::new(secure(objective, kind, minibatch, 0.15));
            let mut clipped = 0;
            for (seed, level) in (0..60).flat_map(|seed| [0.0, 30.0, 2000.0].map(|l| (seed, l))) {
                let mut stream = Stream(seed);
                let offset: Vec<f32> = (0..columns)
                    .map(|_| -level * (1.0 + 0.3 * stream.next()))
                    .collect();
                let row = offset.iter().map(|o| 2.0 * stream.next() - o).collect();
                let data = storage(&[row], &[1], 2).with_offset(offset).unwrap();
                let data = data.dense().unwrap();
                let mut client = Integers::new(&plan, data, Sampling::Full, 0.016);
                let model = Arc::new(stream.numbers(d, 1.0 / (1.0 + level)));
                let mut together = vec![None; d];
                for round in 0..20 {
                    let sum = client.sum(round, &model);
                    let Coordinates::Selected(chosen) = client.sender.update.coordinates() else {
                        panic!("half of the coordinates travel");
                    };
                    for (&i, integer) in chosen.iter().zip(sum) {
                        let known = together[i as usize].replace(integer);
                        assert!(known.is_none_or(|known| known == integer));
                    }
                }
                // Each coordinate stays behind 20 times in a row with probability 1e-6.
                let together: Vec<i64> = together.into_iter().map(Option::unwrap).collect();
                let (squares, bound) =
                    (squared(&together), client.grids.grids()[0].bound_squared());
                assert!(squares <= bound, "d {d} level {level}: {squares} > {bound}");
                clipped += usize::from(squares as f64 > 0.999 * bound as f64);
            }
            assert!(clipped > 90, "{clipped} of 180 records are clipped");
        }
    }
}

/// The same key and the same models give the same bytes; what is released is the estimate of the
/// floating-point mode plus noise of the right size. The estimates agree to 2^-18 of the clip
/// (truncation on the grid and rounding in 32 bits). The variance of 4,000 noises is allowed six
/// standard errors: failure probability below 1e-8, and the seed is fixed.
#[test]
fn secure_and_floating_point_mean_the_same() {
    let (columns, records, sigma, clip) = (8, 20, 0.02, 0.4);
    let (rows, labels) = table(9, records, columns, 2);
    let data = || {
        sparse(&rows, &labels, 2)
            .with_offset(vec![0.2; columns])
            .and_then(Dataset::dense)
            .unwrap()
    };
    for estimator in estimators(0.4) {
        for kind in [CompressorKind::Identity, CompressorKind::RandK { k: 4 }] {
            let plan = secure(logistic(columns), kind, estimator, clip);
            let silent = ClientPlan {
                noise: Noise::None,
                ..plan.clone()
            };
            let plan = Arc::new(plan);
            let new = || Integers::new(&plan, data(), poisson(5.0), sigma);
            let (mut first, mut second) = (new(), new());
            let key = SecretKey::simulated(KEY.0, KEY.1);
            let float = Client::new(
                0,
                Arc::new(silent),
                Arc::new(data()),
                poisson(5.0),
                sigma,
                key,
            );
            let mut float = Sender::new(float.unwrap());
            let mut stream = Stream(4);
            let (mut squares, mut count) = (0.0, 0.0);
            for round in 0..500 {
                let model = Arc::new(stream.numbers(columns, 2.0));
                first.sender.send(round, &model);
                second.sender.send(round, &model);
                float.send(round, &model);
                assert_eq!(first.sender.bytes, second.sender.bytes, "{estimator:?}");
                let noise = first.noise(round);
                let values = first.sender.update.values().iter();
                for ((secure, float), noise) in values.zip(float.update.values()).zip(noise) {
                    let noise = noise as f64 * first.step() * first.unit(round);
                    let estimate = f64::from(*secure) / first.scale - noise;
                    let error =
                        (estimate - f64::from(*float) / first.scale).abs() / first.unit(round);
                    assert!(error < clip / f64::from(1 << 18), "{estimator:?}: {error}");
                    squares += (noise / first.unit(round)).powi(2);
                    count += 1.0;
                }
            }
            let variance: f64 = squares / count / (sigma * sigma);
            let allowed = 6.0 * (2.0 / count).sqrt();
            assert!((variance - 1.0).abs() < allowed, "{variance}");
        }
    }
}

/// What the proofs do not cover is refused.
#[test]
fn unbounded_records_are_refused() {
    let (rows, labels) = table(9, 10, 4, 2);
    let data = Arc::new(dense(&rows, &labels, 2));
    let sampled = |plan: ClientPlan, sampling: Sampling, sigma: f64| {
        let key = SecretKey::simulated(1, 1);
        let data = Arc::clone(&data);
        Client::new(0, Arc::new(plan), data, sampling, sigma, key).map(|_| ())
    };
    let build = |plan: ClientPlan, sigma: f64| sampled(plan, poisson(2.0), sigma);
    let plan = |estimator| secure(logistic(4), CompressorKind::Identity, estimator, 1.0);
    let unsupported = |result| matches!(result, Err(ClientError::Unsupported(_)));
    assert!(build(plan(Estimator::Sgd), 0.1).is_ok());
    let mut unclipped = plan(Estimator::Sgd);
    unclipped.clipping = Clipping::None;
    assert!(unsupported(build(unclipped, 0.1)));
    let mut whole = plan(Estimator::Sgd);
    whole.estimate_clip = Some(1.0);
    assert!(unsupported(build(whole, 0.1)));
    let difference_clip = None;
    assert!(unsupported(build(
        plan(Estimator::Saga { difference_clip }),
        0.1
    )));
    let snapshot_probability = 0.1;
    assert!(unsupported(build(
        plan(Estimator::Svrg {
            snapshot_probability,
            difference_clip
        }),
        0.1
    )));
    let mut selected = plan(estimators(1.0)[2]);
    selected.clipping = Clipping::Selected(1.0);
    assert!(unsupported(build(selected, 0.1)));
    let fast = Sampling::Poisson {
        batch: 2.0,
        coins: Coins::Fast,
    };
    for sampling in [fast, Sampling::WithReplacement { batch: 2 }] {
        let minibatch = plan(Estimator::Sgd);
        assert!(unsupported(sampled(minibatch, sampling, 0.1)));
    }
    // Roundings among the smallest numbers could double a record.
    for clip in [1e-26, 1e-13, 1e13] {
        let mut tiny = plan(Estimator::Sgd);
        tiny.clipping = Clipping::Record(clip);
        assert!(unsupported(build(tiny, 0.1)), "{clip}");
        let difference_clip = Some(clip);
        let saga = plan(Estimator::Saga { difference_clip });
        assert!(unsupported(build(saga, 0.1)), "{clip}");
    }
    for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e30] {
        let result = build(plan(Estimator::Sgd), sigma);
        assert!(matches!(result, Err(ClientError::Noise(_))), "{sigma}");
    }
}
