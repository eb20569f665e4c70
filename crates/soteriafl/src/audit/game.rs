//! The game of the definition, played with the client that runs: coins are tossed, records laid
//! out, and an honest client answers a server that chooses its models so that canaries stand out.
//!
//! One run is one client with fresh keys and up to [`MOST_CANARIES`] canaries among its records,
//! each present or not by a coin of its own. The transcript is what a server has: bytes, decoded.

use std::sync::Arc;

use soteriafl_accountant::{Adjacency, ClipScope, Estimator};
use soteriafl_core::compress::{CompressorKind, Update};
use soteriafl_core::objective::Coordinates;
use soteriafl_core::protocol::{Client, ClientPlan, Round, RoundScratch};
use soteriafl_core::random::{Purpose, SecretKey, below};

use super::AuditError;
use super::attack::{Attack, Belief, RoundShifts};
use super::canaries::{Answer, Canaries, Layout, MOST_SHARED, data};
use super::moments::MomentsGame;
use crate::accounting;
use crate::specification::{NoiseName, Preliminary, Specification};

/// More canaries in a run are cheaper, but all of them may fail together with probability delta, so
/// fewer runs say less: a run has about `SHARE_OF_DELTA / delta` canaries, within these bounds.
const MOST_CANARIES: usize = 256;
const FEWEST_CANARIES: usize = 64;
const SHARE_OF_DELTA: f64 = 0.0025;
/// With secure noise every record is put on the grid of all coordinates, and second moments have
/// the square of their number.
const MOST_DEAR_CANARIES: usize = 64;
/// Coordinates of a block that travel in a round, on average, where a canary has one for itself.
const TRAVELLING: f64 = 6.0;
/// The largest model of a game.
const LARGEST: usize = 1 << 18;
/// A gradient as far beyond the clip, so that a missing clip would show.
const BEYOND: f64 = 4.0;

/// A game, ready to be played any number of times.
pub(crate) struct Game {
    run: Specification,
    plan: Arc<ClientPlan>,
    pub(crate) layout: Layout,
    attack: Attack,
    other: Answer,
    records: usize,
    copies: usize,
    sigma: f64,
    /// By round: which model the server sends, and what that makes of a canary.
    rounds: Vec<(Steer, RoundShifts)>,
    models: [Arc<Vec<f32>>; 3],
    moments: Option<MomentsGame>,
    seed: u64,
}

/// What the server chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steer {
    Low,
    High,
    Back,
}

/// One transcript, scored: for each canary the coin and the score.
pub(crate) type Scores = Vec<(bool, f32)>;

impl Game {
    /// Of a client with so many records of `run`, whose noise is `sigma`, for a model of
    /// `dimension`.
    pub(crate) fn new(
        run: &Specification,
        dimension: usize,
        records: usize,
        sigma: f64,
        adjacency: Adjacency,
        seed: u64,
    ) -> Result<Self, AuditError> {
        let Some(clip) = run.clip else {
            return Err(AuditError::NoClaim("nothing is clipped".to_string()));
        };
        super::playable(run)?;
        let copies = (run.records_per_person as usize).clamp(1, records.max(1));
        let fraction = match run.compressor {
            CompressorKind::RandK { k } => Fraction(k.min(dimension), dimension),
            _ => Fraction(1, 1),
        };
        let most = match run.noise == NoiseName::Secure || run.moments.is_some() {
            true => MOST_DEAR_CANARIES,
            false => ((SHARE_OF_DELTA / run.delta) as usize).clamp(FEWEST_CANARIES, MOST_CANARIES),
        };
        // Second moments are released before the first round, under the run's own relation.
        let releases = accounting::preliminaries(run, records)?;
        let mut releases = releases.into_iter();
        let moments = releases.find(|release| release.kind == Preliminary::Moments);
        let sampled = run.batch.is_some_and(|batch| batch < records as f64);
        let layout = layout(
            most.min(records / copies),
            clip.scope == ClipScope::Selected && fraction.value() < 1.0,
            sampled,
            fraction,
        );
        if layout.dimension() > LARGEST {
            return Err(AuditError::Client(format!(
                "of {dimension} coordinates {} travel: a game of the same share has more than \
                 {LARGEST}, which is too many to be played",
                fraction.0
            )));
        }
        let game = Specification {
            compressor: match run.compressor {
                CompressorKind::RandK { .. } => CompressorKind::RandK {
                    k: fraction.of(layout.used()),
                },
                other => other,
            },
            // What the adversary sends is the model itself.
            downlink: None,
            regularizer_at_client: false,
            ..run.clone()
        };
        let plan = game
            .client_plan(&Canaries::shared(layout))
            .map_err(|error| AuditError::Client(error.to_string()))?;
        let other = match adjacency {
            Adjacency::ReplaceOne => Answer::Opposite,
            Adjacency::ZeroOut => Answer::Null,
        };
        let strategy = Strategy::of(&game, records, sigma, clip.bound);
        let rate = if sampled {
            run.batch.unwrap_or(1.0) / records as f64
        } else {
            1.0
        };
        let rounds = strategy.rounds(&plan, run.rounds);
        let moments = moments.map(|release| MomentsGame::new(release.sigma, copies, records));
        let model = |level: f64| {
            let mut model = vec![0.0; layout.dimension()];
            model[0] = level as f32;
            Arc::new(model)
        };
        let high = BEYOND * clip.bound;
        Ok(Self {
            plan: Arc::new(plan),
            layout,
            attack: Attack::new(
                rate,
                copies,
                matches!(
                    run.estimator,
                    Estimator::Saga { .. } | Estimator::Sag { .. }
                ),
                other,
            ),
            other,
            records,
            copies,
            sigma,
            rounds,
            models: [model(strategy.low), model(high), model(-high)],
            moments,
            run: game,
            seed,
        })
    }

    /// Plays run `number`: the same transcript for the same seed and number, on any thread.
    pub(crate) fn play(
        &self,
        number: u32,
        scratch: &mut RoundScratch,
    ) -> Result<Scores, AuditError> {
        let mut coins =
            SecretKey::simulated(self.seed ^ COINS, number).stream(0, Purpose::Sampling);
        let tossed: Vec<bool> = (0..self.layout.canaries)
            .map(|_| below(&mut coins, 2) == 1)
            .collect();
        let answers: Vec<Answer> = tossed
            .iter()
            .map(|&heads| if heads { Answer::Present } else { self.other })
            .collect();
        let data = data(self.layout, &answers, self.copies, self.records);
        let mut client = Client::new(
            0,
            Arc::clone(&self.plan),
            Arc::new(data),
            self.run.sampling(),
            self.sigma,
            SecretKey::simulated(self.seed, number),
        )
        .map_err(|error| AuditError::Client(error.to_string()))?;
        let mut reader = Reader::new(self);
        if let Some(moments) = &self.moments {
            let key = SecretKey::simulated(self.seed, number);
            let found = moments.play(&answers, self.other, &key)?;
            for (belief, ratio) in reader.beliefs.iter_mut().zip(found) {
                Attack::add(belief, ratio);
            }
        }
        for (round, &(steer, shifts)) in self.rounds.iter().enumerate() {
            let model = &self.models[steer as usize];
            let message = client
                .message(round as Round, model, scratch)
                .map_err(|error| AuditError::Client(error.to_string()))?;
            // A client that takes no part says nothing, and remembers nothing.
            let Some(update) = message.update else {
                continue;
            };
            reader.read(update, client.shift(), shifts);
            client.accepted(update);
        }
        let scores = reader.scores();
        Ok(tossed.into_iter().zip(scores).collect())
    }
}

/// Mixed into the seed for the coins of the game, so that they share nothing with the client's.
pub(super) const COINS: u64 = 0x9e37_79b9_7f4a_7c15;

/// So many of so many coordinates travel.
#[derive(Clone, Copy, Debug)]
struct Fraction(usize, usize);

impl Fraction {
    fn value(self) -> f64 {
        self.0 as f64 / self.1 as f64
    }

    /// How many travel of a game whose canaries use so many: rounded up, since the layout adds idle
    /// coordinates.
    fn of(self, used: usize) -> usize {
        (used as u128 * self.0 as u128).div_ceil(self.1 as u128) as usize
    }

    /// The fewest coordinates of which `of(used)` are no greater share. Never more may travel than
    /// was accounted for: amplification is priced by the share.
    fn least(self, used: usize) -> usize {
        (self.of(used) as u128 * self.1 as u128).div_ceil(self.0 as u128) as usize
    }
}

fn layout(canaries: usize, blocks: bool, sampled: bool, fraction: Fraction) -> Layout {
    let mut layout = Layout {
        canaries,
        per_block: 1,
        width: 1,
        idle: 0,
    };
    if blocks {
        layout.per_block = match sampled {
            true => 1,
            false => MOST_SHARED.min(1 << canaries.max(1).ilog2()),
        };
        let travelling = TRAVELLING.max(layout.per_block as f64);
        layout.width = (travelling / fraction.value()).ceil() as usize;
        // Of idle coordinates there are fewer than one that travels stands for.
        let room = LARGEST.saturating_sub(fraction.least(1));
        let blocks = (room / layout.width).max(1);
        layout.canaries = canaries.min(blocks * layout.per_block);
    }
    layout.idle = fraction.least(layout.used()) - layout.used();
    layout
}

/// How the server turns gradients.
struct Strategy {
    estimator: Estimator,
    /// In units of the noise: one copy's gradient of full length in the minibatch sum, a hit's
    /// difference, and the two levels in the mean over all records.
    full: f64,
    hit: f64,
    unvisited: f64,
    visited: f64,
    /// The value behind the low level.
    low: f64,
    clip: f64,
}

impl Strategy {
    fn of(run: &Specification, records: usize, sigma: f64, clip: f64) -> Self {
        let m = records as f64;
        let b = run.batch.unwrap_or(m);
        let difference = match run.estimator.has_two_terms() {
            true => run.estimator.difference_clip().unwrap_or(2.0 * clip),
            false => 0.0,
        };
        // The longest reference gradient that leaves room for a whole difference.
        let low = (clip - difference).max(-clip);
        Self {
            estimator: run.estimator,
            full: clip / (b * sigma),
            hit: (clip - low) / (b * sigma),
            unvisited: low / (m * sigma),
            visited: clip / (m * sigma),
            low,
            clip,
        }
    }

    /// The noise of a round, in units of sigma, and of that what the round's noise is in units of
    /// its clip: where a recursion does not start anew both follow its public scale.
    fn noise(&self, round: Round) -> (f64, f64) {
        match self.estimator {
            Estimator::Recursive(recursion) if !recursion.starts_anew(round) => {
                // From one end to the other: the distance that a client sees.
                let distance = 2.0 * f64::from((BEYOND * self.clip) as f32);
                let scale = recursion.scale(self.clip, distance);
                (scale * recursion.noise_ratio, recursion.noise_ratio)
            }
            _ => (1.0, 1.0),
        }
    }

    fn rounds(&self, plan: &ClientPlan, rounds: Round) -> Vec<(Steer, RoundShifts)> {
        let still = RoundShifts {
            sign: 1.0,
            hit: 0.0,
            unvisited: self.unvisited,
            visited: self.unvisited,
            again: 0.0,
            noise: 1.0,
        };
        (0..rounds)
            .map(|round| match self.estimator {
                // To and fro, so that noise that is used again would cancel, and increments are as
                // long as any.
                Estimator::Gd | Estimator::Sgd | Estimator::Recursive(_) => {
                    let (steer, sign) = match round % 2 {
                        0 => (Steer::High, 1.0),
                        _ => (Steer::Back, -1.0),
                    };
                    let (noise, ratio) = self.noise(round);
                    let shifts = RoundShifts {
                        sign,
                        hit: self.full / ratio,
                        unvisited: 0.0,
                        visited: 0.0,
                        again: 0.0,
                        noise,
                    };
                    (steer, shifts)
                }
                // Always the same way, so that memory and batch pull together. What was not visited
                // yet is zero.
                Estimator::Sag { memory } => (
                    Steer::High,
                    RoundShifts {
                        sign: 1.0,
                        hit: (1.0 - memory) * self.full + memory * self.visited,
                        unvisited: 0.0,
                        visited: memory * self.visited,
                        again: (1.0 - memory) * self.full,
                        noise: 1.0,
                    },
                ),
                // The snapshot is taken at the low level, and nothing differs from it there.
                Estimator::Svrg { .. } if round == 0 || plan.snapshot_coin(round) => {
                    (Steer::Low, still)
                }
                Estimator::Saga { .. } if round == 0 => (Steer::Low, still),
                _ => (
                    Steer::High,
                    RoundShifts {
                        sign: 1.0,
                        hit: self.hit,
                        unvisited: self.unvisited,
                        visited: self.visited,
                        again: 0.0,
                        noise: 1.0,
                    },
                ),
            })
            .collect()
    }
}

/// The attacker at work on one transcript.
struct Reader<'a> {
    game: &'a Game,
    beliefs: Vec<Belief>,
    /// By canary, where scores are sums: what of them is not in the beliefs.
    linear: Vec<f64>,
    /// What turns a decoded value into a released one, in units of the noise.
    scale: f64,
    /// By canary: the projection of the round.
    sums: Vec<f32>,
    /// By block: how many of its coordinates travelled.
    counts: Vec<u32>,
}

impl<'a> Reader<'a> {
    fn new(game: &'a Game) -> Self {
        let compressor = &game.plan.compressor;
        Self {
            beliefs: vec![game.attack.belief(); game.layout.canaries],
            scale: 1.0 / (compressor.scaling() * game.sigma),
            linear: vec![0.0; game.layout.blocks() * game.layout.per_block],
            sums: vec![0.0; game.layout.blocks() * game.layout.per_block],
            counts: vec![0; game.layout.blocks()],
            game,
        }
    }

    fn read(&mut self, update: &Update, shift: &[f32], shifts: RoundShifts) {
        // Loops of a length that is known.
        match self.game.layout.per_block {
            1 => self.project::<1>(update, shift, shifts),
            2 => self.project::<2>(update, shift, shifts),
            4 => self.project::<4>(update, shift, shifts),
            _ => self.project::<MOST_SHARED>(update, shift, shifts),
        }
        self.learn(shifts);
    }

    /// The projections of a message on the canaries' codes, `N` to a block.
    fn project<const N: usize>(&mut self, update: &Update, shift: &[f32], shifts: RoundShifts) {
        let layout = self.game.layout;
        debug_assert_eq!(layout.per_block, N);
        let used = layout.used();
        self.sums.fill(0.0);
        self.counts.fill(0);
        let inverse = (1.0 / (self.game.sigma * shifts.noise)) as f32;
        let scale = (self.scale / shifts.noise) as f32;
        let mut walk = Walk::<N>::new(layout, &mut self.sums, &mut self.counts);
        let mut add = |value: f32, index: usize| {
            if index < used {
                let shift = shift.get(index).copied().unwrap_or(0.0);
                walk.add(value * scale + shift * inverse, index);
            }
        };
        let values = update.values();
        match update.coordinates() {
            Coordinates::All => {
                for (index, &value) in values.iter().enumerate() {
                    add(value, index);
                }
            }
            Coordinates::Selected(chosen) => {
                for (&value, &index) in values.iter().zip(chosen) {
                    add(value, index as usize);
                }
            }
        }
        walk.leave();
    }

    fn learn(&mut self, shifts: RoundShifts) {
        let attack = &self.game.attack;
        let per_block = self.game.layout.per_block;
        if attack.is_linear() {
            let sums = self.sums.chunks(per_block).zip(&self.counts);
            for (scores, (sums, &count)) in self.linear.chunks_mut(per_block).zip(sums) {
                attack.add_up(scores, shifts, sums, count);
            }
            return;
        }
        let mean = attack.mean(shifts);
        let blocks = self.beliefs.chunks_mut(per_block);
        for ((beliefs, sums), &count) in blocks.zip(self.sums.chunks(per_block)).zip(&self.counts) {
            let root = f64::from(count).sqrt();
            for (belief, &sum) in beliefs.iter_mut().zip(sums) {
                let seen = (count > 0).then(|| f64::from(sum) / root - mean);
                attack.observe(belief, shifts, seen);
            }
        }
    }

    fn scores(&self) -> impl Iterator<Item = f32> {
        let sums = self.beliefs.iter().zip(&self.linear);
        sums.map(|(belief, sum)| (Attack::score(belief) + sum) as f32)
    }
}

/// From block to block over ascending coordinates, with the sums of one block at hand.
struct Walk<'a, const N: usize> {
    layout: Layout,
    sums: &'a mut [[f32; N]],
    counts: &'a mut [u32],
    /// The block, where the next begins, and what it has so far.
    block: usize,
    next: usize,
    sum: [f32; N],
    count: u32,
}

impl<'a, const N: usize> Walk<'a, N> {
    fn new(layout: Layout, sums: &'a mut [f32], counts: &'a mut [u32]) -> Self {
        Self {
            layout,
            sums: sums.as_chunks_mut().0,
            counts,
            block: 0,
            next: layout.width,
            sum: [0.0; N],
            count: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, z: f32, index: usize) {
        let width = self.layout.width;
        if index >= self.next {
            self.leave();
            let passed = match width {
                1 => index - self.next + 1,
                _ => (index - self.next) / width + 1,
            };
            self.block += passed;
            self.next += passed * width;
        }
        self.count += 1;
        let signs = self.layout.signs::<N>(index + width - self.next);
        for (sum, sign) in self.sum.iter_mut().zip(signs) {
            *sum += z * sign;
        }
    }

    /// Writes down what the block has.
    fn leave(&mut self) {
        self.sums[self.block] = std::mem::replace(&mut self.sum, [0.0; N]);
        self.counts[self.block] = std::mem::take(&mut self.count);
    }
}

impl Game {
    /// As many runs as about a minute of two cores allows, by a count of what a run does.
    pub(crate) fn affordable(&self) -> u32 {
        const BUDGET: f64 = 7.8e10;
        let (rounds, canaries) = (self.rounds.len() as f64, self.layout.canaries as f64);
        let batch = self.attack.rate * canaries * self.copies as f64;
        let travelling = self.plan.compressor.values() as f64;
        let secure = self.run.noise == NoiseName::Secure;
        let dear = self.attack.remembers || self.attack.copies > 1;
        let score = if self.attack.is_linear() {
            2.0
        } else if dear {
            90.0
        } else {
            12.0
        };
        // Nanoseconds of a round.
        let round = 1000.0
            + batch
                * if secure {
                    200.0 + 4.0 * travelling
                } else {
                    10.0
                }
            + travelling * if secure { 120.0 } else { 12.0 }
            + canaries * score;
        let once = self
            .moments
            .as_ref()
            .map_or(0.0, |moments| moments.nanoseconds());
        (BUDGET / (rounds * round + once)).clamp(200.0, 2e5) as u32
    }
}

#[cfg(test)]
mod tests;
