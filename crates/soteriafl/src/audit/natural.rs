//! Natural canaries: records that the client really has, as they are or with another class, under
//! the server of the configured run instead of one that chooses the worst models.
//!
//! | neighbours | heads | tails |
//! | --- | --- | --- |
//! | replace-one | the record | the same with another class |
//! | zero-out | the record with another class | a null record |
//!
//! The attacker knows all other records and every model. In each round it subtracts what these
//! records send on average, and of every canary's two answers computes the clipped gradients `u`
//! and `w` on the coordinates that travel. With `r` what is left of the release,
//!
//! ```text
//! score += ln (1 - q + q e^(u.(r - u/2)/sigma^2)) - ln (1 - q + q e^(w.(r - w/2)/sigma^2)).
//! ```
//!
//! Coins of the other canaries are noise to it, so it is not the best attack; the bound that
//! follows holds for any (`bound`). It says how near ordinary records come to the worst case.

use std::sync::Arc;

use soteriafl_accountant::Adjacency;
use soteriafl_core::data::{Dataset, Labels};
use soteriafl_core::estimator::Clipping;
use soteriafl_core::objective::{Coordinates, Gradients, Objective, Records, Workspace};
use soteriafl_core::protocol::{Client, ClientPlan, Round, RoundScratch, Server, ServerPlan};
use soteriafl_core::random::{Purpose, SecretKey, below};

use super::AuditError;
use super::game::{COINS, Scores};
use crate::specification::Specification;

/// Canaries of a run: their contributions disturb each other, and only a little while they are few.
const CANARIES: usize = 32;
/// Records of one pass.
const CHUNK: usize = 256;

/// The records of the client that is attacked, and the model that its run starts from.
#[derive(Clone)]
pub struct Subject {
    /// The loss.
    pub objective: Arc<dyn Objective>,
    /// The client's records, as it trains on them.
    pub data: Arc<Dataset>,
    /// The start.
    pub start: Vec<f32>,
    /// The server of the run, with this client alone.
    pub server: ServerPlan,
}

/// A game with natural canaries.
pub(super) struct NaturalGame {
    run: Specification,
    plan: Arc<ClientPlan>,
    subject: Subject,
    /// The records with another class each.
    twins: Dataset,
    /// The rows that are canaries, ascending.
    canaries: Vec<u32>,
    /// All others.
    known: Vec<u32>,
    adjacency: Adjacency,
    sigma: f64,
    rate: f64,
    seed: u64,
}

impl NaturalGame {
    pub(super) fn new(
        run: &Specification,
        subject: Subject,
        sigma: f64,
        seed: u64,
    ) -> Result<Self, AuditError> {
        super::playable(run)?;
        let refuse = |reason: &str| Err(AuditError::Natural(reason.to_string()));
        if !run.estimator.is_memoryless() {
            return refuse("are played with gd and sgd");
        }
        if run.records_per_person > 1 || run.moments.is_some() || run.regularizer_at_client {
            return refuse(
                "are played for single records, without second moments and with the regularizer at the server",
            );
        }
        let data = &subject.data;
        if data.targets().is_some() || data.classes() < 2 {
            return refuse("need classes");
        }
        let twins = with_labels(data, |row| (data.labels()[row] + 1) % data.classes() as u32)?;
        let plan = run
            .client_plan(&subject.objective)
            .map_err(|error| AuditError::Client(error.to_string()))?;
        // Rows far apart, from a place that the seed chooses.
        let count = CANARIES.min(data.rows());
        let first = seed as usize % data.rows();
        let mut canaries: Vec<u32> = (0..count)
            .map(|i| ((first + i * data.rows() / count) % data.rows()) as u32)
            .collect();
        canaries.sort_unstable();
        let known = (0..data.rows() as u32).filter(|row| canaries.binary_search(row).is_err());
        let records = data.records() as f64;
        Ok(Self {
            known: known.collect(),
            canaries,
            twins,
            plan: Arc::new(plan),
            adjacency: run.adjacency,
            sigma,
            rate: run.batch.map_or(1.0, |batch| (batch / records).min(1.0)),
            run: run.clone(),
            subject,
            seed,
        })
    }

    pub(super) fn canaries(&self) -> usize {
        self.canaries.len()
    }

    /// As many runs as about a minute of two cores allows.
    pub(super) fn affordable(&self) -> u32 {
        const BUDGET: f64 = 1e11;
        let (rows, values) = (self.subject.data.rows(), self.plan.compressor.values());
        let dimension = self.subject.objective.dimension();
        // Passes over all records by client and attacker, and two gradients of each canary.
        let round = 40.0 * rows as f64 * (1.0 + self.rate)
            + (rows as f64 + 4.0 * self.canaries() as f64) * values.min(200) as f64
            + 30.0 * dimension as f64;
        (BUDGET / (f64::from(self.run.rounds) * round)).clamp(100.0, 2e4) as u32
    }

    /// Plays run `number`.
    pub(super) fn play(
        &self,
        number: u32,
        scratch: &mut RoundScratch,
    ) -> Result<Scores, AuditError> {
        let unfit = |error: &dyn std::fmt::Display| AuditError::Client(error.to_string());
        let mut coins =
            SecretKey::simulated(self.seed ^ COINS, number).stream(0, Purpose::Sampling);
        let tossed: Vec<bool> = self
            .canaries
            .iter()
            .map(|_| below(&mut coins, 2) == 1)
            .collect();
        let mut client = Client::new(
            0,
            Arc::clone(&self.plan),
            Arc::new(self.records(&tossed)?),
            self.run.sampling(),
            self.sigma,
            SecretKey::simulated(self.seed, number),
        )
        .map_err(|error| unfit(&error))?;
        let mut server = Server::new(self.subject.server.clone(), self.subject.start.clone());
        let mut scores = vec![0.0; tossed.len()];
        let mut workspace = Workspace::new();
        for round in 0..self.run.rounds {
            let model = Arc::clone(server.model());
            let message = client.message(round as Round, &model, scratch);
            let message = message.map_err(|error| unfit(&error))?;
            if let Some(update) = message.update {
                let seen = self.release(update, client.shift());
                self.learn(
                    &model,
                    update.coordinates(),
                    seen,
                    &mut scores,
                    &mut workspace,
                )?;
                client.accepted(update);
                server.add(0, update).map_err(|error| unfit(&error))?;
            }
            server.close().map_err(|error| unfit(&error))?;
        }
        let scores = scores.into_iter().map(|score| score as f32);
        Ok(tossed.into_iter().zip(scores).collect())
    }

    /// The client's records for these coins.
    fn records(&self, tossed: &[bool]) -> Result<Dataset, AuditError> {
        let data = &self.subject.data;
        let coin_of = |row: u32| self.canaries.binary_search(&row).ok().map(|at| tossed[at]);
        let turned = match self.adjacency {
            Adjacency::ReplaceOne => false,
            Adjacency::ZeroOut => true,
        };
        let made = with_labels(data, |row| match coin_of(row as u32) {
            Some(heads) if heads == turned => self.twins.labels()[row],
            _ => data.labels()[row],
        })?;
        if self.adjacency == Adjacency::ReplaceOne {
            return Ok(made.with_null_records(data.records() - data.rows()));
        }
        let rows = 0..data.rows() as u32;
        let kept: Vec<u32> = rows.filter(|&row| coin_of(row) != Some(false)).collect();
        let null = data.records() - kept.len();
        Ok(made.select(&kept).with_null_records(null))
    }

    /// What was released, shift included, on the coordinates that travelled.
    fn release(&self, update: &soteriafl_core::compress::Update, shift: &[f32]) -> Vec<f64> {
        let compressor = &self.plan.compressor;
        let stretched = compressor.scaling();
        let value = |place: usize, index: usize| {
            let shift = shift.get(index).copied().unwrap_or(0.0);
            f64::from(update.values()[place]) / stretched + f64::from(shift)
        };
        match update.coordinates() {
            Coordinates::All => (0..update.values().len()).map(|i| value(i, i)).collect(),
            Coordinates::Selected(chosen) => {
                let places = chosen.iter().enumerate();
                places
                    .map(|(place, &index)| value(place, index as usize))
                    .collect()
            }
        }
    }

    /// Adds what one round says about every canary.
    fn learn(
        &self,
        model: &[f32],
        coordinates: Coordinates<'_>,
        mut seen: Vec<f64>,
        scores: &mut [f64],
        workspace: &mut Workspace,
    ) -> Result<(), AuditError> {
        let data = &self.subject.data;
        let divisor = self.run.sampling().divisor(data.records());
        let count = seen.len();
        let mut sum = |data: &Dataset, rows: &[u32]| {
            self.clipped(data, rows, model, coordinates, count, workspace)
        };
        let known = sum(data, &self.known)?;
        for (left, known) in seen.iter_mut().zip(known) {
            *left -= self.rate * f64::from(known) / divisor;
        }
        let mut answers = Vec::with_capacity(self.canaries.len());
        for row in &self.canaries {
            let scaled = |sum: Vec<f32>| -> Vec<f64> {
                sum.iter()
                    .map(|&value| f64::from(value) / divisor)
                    .collect()
            };
            let twin = scaled(sum(&self.twins, &[*row])?);
            let pair = match self.adjacency {
                Adjacency::ReplaceOne => [scaled(sum(data, &[*row])?), twin],
                Adjacency::ZeroOut => [twin, vec![0.0; count]],
            };
            for ((left, one), other) in seen.iter_mut().zip(&pair[0]).zip(&pair[1]) {
                *left -= 0.5 * self.rate * (one + other);
            }
            answers.push(pair);
        }
        let variance = self.sigma * self.sigma;
        for (score, [one, other]) in scores.iter_mut().zip(&answers) {
            // Its own mean comes back.
            let exponent = |answer: &[f64]| {
                let terms = answer.iter().zip(&seen).zip(one.iter().zip(other));
                let products = terms
                    .map(|((u, left), (a, b))| u * (left + 0.5 * self.rate * (a + b) - 0.5 * u));
                products.sum::<f64>() / variance
            };
            let mixed = |exponent: f64| match self.rate < 1.0 {
                true => (1.0 - self.rate + self.rate * exponent.exp()).ln(),
                false => exponent,
            };
            *score += mixed(exponent(one)) - mixed(exponent(other));
        }
        Ok(())
    }

    /// The sum of the clipped gradients of some records, on the coordinates that travel.
    fn clipped(
        &self,
        data: &Dataset,
        rows: &[u32],
        model: &[f32],
        coordinates: Coordinates<'_>,
        count: usize,
        workspace: &mut Workspace,
    ) -> Result<Vec<f32>, AuditError> {
        let objective = &self.subject.objective;
        let (clip, bounded) = match self.plan.clipping {
            Clipping::Record(clip) => (clip, Coordinates::All),
            Clipping::Selected(clip) => (clip, coordinates),
            _ => return Err(AuditError::NoClaim("nothing is clipped".to_string())),
        };
        let mut sum = vec![0.0; count];
        for rows in rows.chunks(CHUNK) {
            let records = Records { data, rows };
            let mut factors = vec![0.0; rows.len() * objective.factor_len()];
            objective
                .factors(model, records, None, Some(&mut factors), workspace)
                .map_err(|error| AuditError::Client(error.to_string()))?;
            let mut weights = vec![1.0f32; rows.len()];
            let mut norms = vec![0.0; rows.len()];
            let whole = Gradients {
                factors: &factors,
                weights: &weights,
            };
            objective.squared_norms(records, whole, bounded, &mut norms, workspace);
            for (weight, square) in weights.iter_mut().zip(&norms) {
                *weight = (clip / square.sqrt()).min(1.0) as f32;
            }
            let gradients = Gradients {
                factors: &factors,
                weights: &weights,
            };
            objective.accumulate(records, gradients, coordinates, &mut sum, workspace);
        }
        Ok(sum)
    }
}

/// The same rows with other classes.
fn with_labels(data: &Dataset, class: impl Fn(usize) -> u32) -> Result<Dataset, AuditError> {
    let labels = Labels::Classes {
        of: (0..data.rows()).map(class).collect(),
        names: data.label_names().into(),
    };
    let made =
        Dataset::labelled(data.features().clone(), labels).and_then(|made| match data.offset() {
            Some(offset) => made.with_offset(Arc::clone(offset)),
            None => Ok(made),
        });
    made.map_err(|error| AuditError::Client(error.to_string()))
}

#[cfg(test)]
mod tests {
    use soteriafl_core::compress::{CompressorKind, DownlinkKind, Rounding};
    use soteriafl_core::data::{Partition, Synthetic};
    use soteriafl_core::gossip::{Topology, Transport};
    use soteriafl_core::objective::Logistic;

    use super::*;
    use crate::audit::fixtures::run;
    use crate::audit::game::Game;
    use crate::specification::{Clip, Gossip};
    use soteriafl_accountant::{ClipScope, Estimator};

    fn subject(run: &Specification) -> Subject {
        let source: Synthetic = "240x10".parse().unwrap();
        let data = Partition::Iid
            .split(&source.train(3).unwrap(), 1, 3)
            .unwrap();
        let objective: Arc<dyn Objective> = Arc::new(Logistic::new(10));
        let plan = run.client_plan(&objective).unwrap();
        Subject {
            server: run.server_plan(&plan, vec![1.0]),
            objective,
            data: Arc::new(data[0].clone()),
            start: vec![0.0; 10],
        }
    }

    /// The attack knows the client's law: the mean of the ratio is one under the answer below it,
    /// and of its inverse under the other, up to what canaries disturb each other. Means within
    /// five standard errors as they were found, and a tenth.
    #[test]
    fn ratios_have_mean_one() {
        for (estimator, batch, scope) in [
            (Estimator::Gd, None, ClipScope::Record),
            (Estimator::Gd, None, ClipScope::Selected),
            (Estimator::Sgd, Some(30.0), ClipScope::Record),
        ] {
            for adjacency in [Adjacency::ReplaceOne, Adjacency::ZeroOut] {
                let run = Specification {
                    estimator,
                    batch,
                    adjacency,
                    compressor: CompressorKind::RandK { k: 6 },
                    clip: Some(Clip { bound: 0.5, scope }),
                    rounds: 6,
                    ..run()
                };
                let game = NaturalGame::new(&run, subject(&run), 0.03, 5).unwrap();
                let mut scratch = RoundScratch::default();
                let (mut ratios, mut means) = ([Vec::new(), Vec::new()], [0.0f64; 2]);
                for number in 0..60 {
                    for (coin, score) in game.play(number, &mut scratch).unwrap() {
                        let score = f64::from(score);
                        means[usize::from(coin)] += score;
                        ratios[usize::from(coin)].push(if coin { -score } else { score }.exp());
                    }
                }
                for (ratios, sums) in ratios.into_iter().zip(&mut means) {
                    let count = ratios.len() as f64;
                    let mean = ratios.iter().sum::<f64>() / count;
                    *sums /= count;
                    let squares = ratios.iter().map(|ratio| (ratio - mean).powi(2));
                    let spread = (squares.sum::<f64>() / count / count).sqrt();
                    assert!(
                        (mean - 1.0).abs() < 5.0 * spread + 0.1,
                        "{adjacency} {mean}"
                    );
                }
                // And it tells them apart; what canaries of a run have in common moves both.
                assert!(means[1] > means[0], "{means:?}");
            }
        }
    }

    #[test]
    fn what_is_not_played_is_refused() {
        let persons = Specification {
            records_per_person: 2,
            ..run()
        };
        let saga = Specification {
            estimator: Estimator::Saga {
                difference_clip: Some(0.1),
            },
            batch: Some(10.0),
            ..run()
        };
        let sag = Specification {
            estimator: Estimator::Sag { memory: 0.5 },
            ..saga.clone()
        };
        for run in [persons, saga, sag] {
            let refused = NaturalGame::new(&run, subject(&run), 0.03, 5);
            let refused = refused.err().unwrap();
            assert!(matches!(refused, AuditError::Natural(_)), "{refused}");
        }
    }

    /// What one kind of canaries is refused for, the other is: a run that is not played.
    #[test]
    fn both_kinds_of_canaries_refuse_the_same_runs() {
        let gossip = Specification {
            gossip: Some(Gossip {
                transport: Transport::Differences,
                topology: Topology::Ring,
                mixing: 0.5,
            }),
            ..run()
        };
        let ranges = Specification {
            ranges: Some(0.2),
            ..run()
        };
        let subject = subject(&run());
        for (run, words) in [(gossip, "server"), (ranges, "ranges")] {
            let natural = NaturalGame::new(&run, subject.clone(), 0.03, 5);
            let worst = Game::new(&run, 10, 240, 0.03, Adjacency::ReplaceOne, 5);
            let refused = [natural.err().unwrap(), worst.err().unwrap()].map(|e| e.to_string());
            assert_eq!(refused[0], refused[1]);
            assert!(refused[0].contains(words), "{refused:?}");
        }
    }

    /// The models are those of the run's own server, whatever it does with a direction.
    #[test]
    fn the_server_of_the_run_is_played() {
        let run = Specification { rounds: 4, ..run() };
        let scores = |step_size: f64| {
            let mut subject = subject(&run);
            subject.server.step_size = step_size;
            let game = NaturalGame::new(&run, subject, 0.03, 5).unwrap();
            game.play(0, &mut RoundScratch::default()).unwrap()
        };
        assert_ne!(scores(1.0), scores(3.0));
    }

    /// The way down may be compressed: the attacker, like the client, has what has arrived.
    #[test]
    fn a_compressed_way_down_is_played() {
        let run = Specification {
            downlink: Some(DownlinkKind {
                coordinates: Some(4),
                rounding: Rounding::Exact,
            }),
            rounds: 4,
            ..run()
        };
        let game = NaturalGame::new(&run, subject(&run), 0.03, 5).unwrap();
        let scores = game.play(0, &mut RoundScratch::default()).unwrap();
        assert_eq!(scores.len(), CANARIES);
        assert!(scores.iter().all(|(_, score)| score.is_finite()));
    }
}
