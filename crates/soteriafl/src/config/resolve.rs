//! Every `"auto"` replaced by what was chosen, and what does not go together refused.
//!
//! Under a named preset `auto` follows the paper: batch and snapshot probability from its
//! corollaries (with `L = 1`, so that no private data decides), its shift step, 5% of the
//! coordinates, 100 rounds, step size 0.3. Under `preset = "auto"` the system chooses what it can
//! prove the most for (`best.rs`).

use std::sync::Arc;

use soteriafl_accountant::{Estimator, MEMORY, Recursion};
use soteriafl_core::compress::{Compressor, CompressorKind, DownlinkKind};
use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::{Schedule, shift_step};
use soteriafl_core::theory;
use soteriafl_data::schema::Ranges;
use soteriafl_data::{Cosine, FeatureKind, Partition, Source, TableSchema, TargetRange};

use crate::problem::{ElsewhereModel, regularizer};
use crate::specification::{Aggregation, Batches, Clip, Coordinates, Gossip, Specification};

use super::document::ConfigError;
use super::elsewhere;
use super::linear::private_ranges;
use super::{
    AccountantName, Adjacency, Auto, ClipScope, Config, EstimatorKind, FeatureList, Init, LossName,
    ModelKind, NaturalClients, NoiseName, NoiseTarget, Output, Preset, RegularizerKind,
    ScaleChoice, ShiftChoice, Theory,
};

pub use crate::specification::StepSizeOrigin;

/// A configuration that can run: nothing left to choose.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // The fields are the keys of the file, explained in `docs/configuration.md`.
pub struct Resolved {
    pub source: Source,
    pub test: Option<Source>,
    pub rows: Option<usize>,
    /// What the columns of the table mean.
    pub schema: Option<Arc<TableSchema>>,
    /// Clients that the data itself names; the partition is not used then.
    pub natural: Option<NaturalClients>,
    /// The share of rows that is tested on.
    pub holdout: Option<f64>,
    /// The public range of the numbers to predict; none where there are classes.
    pub target_range: Option<TargetRange>,
    pub clients: usize,
    pub partition: Partition,
    pub scale: ScaleChoice,
    /// The public map of records.
    pub feature_map: FeatureKind,
    /// The share of the budget that second moments get, whose release whitens records.
    pub whiten: Option<f64>,
    /// Frequencies of a cosine basis.
    pub basis: Option<usize>,
    /// Whether columns are standardised by their records, and the saved model reads them as they
    /// are.
    pub standardize: bool,
    pub equal_weights: bool,
    pub model: ModelKind,
    /// What is known of a model that is computed elsewhere.
    pub elsewhere: Option<Arc<ElsewhereModel>>,
    pub loss: LossName,
    /// Where Huber's loss becomes linear, in the unit of the target.
    pub huber: Option<f64>,
    pub class_weights: Option<Vec<f64>>,
    pub hidden: Vec<usize>,
    pub activation: Activation,
    pub intercept: bool,
    pub regularizer: RegularizerKind,
    pub lambda: f64,
    pub regularizer_at_client: bool,
    pub init: Init,
    pub preset: Preset,
    pub estimator: EstimatorKind,
    pub batch: Option<f64>,
    pub snapshot_probability: f64,
    pub compressor: CompressorKind,
    pub downlink: Option<DownlinkKind>,
    /// What clients tell each other where there is no server.
    pub gossip: Option<Gossip>,
    pub shift: ShiftChoice,
    pub step_size: f64,
    pub schedule: Schedule,
    pub momentum: f64,
    /// The weight of the table's mean (SAG).
    pub memory: f64,
    pub recursion: Option<Recursion>,
    pub step_cap: Option<f64>,
    pub smoothing: u32,
    pub equalize: f64,
    pub shared_coordinates: bool,
    pub rounds: u32,
    pub output: Output,
    pub participation: f64,
    pub noise_target: NoiseTarget,
    pub delta: f64,
    pub adjacency: Adjacency,
    pub records_per_person: u32,
    pub clip: f64,
    /// Whether it is applied: always with noise, without it only if it was asked for.
    pub clipped: bool,
    pub clip_scope: ClipScope,
    pub with_replacement: bool,
    pub difference_clip: Option<f64>,
    pub accountant: AccountantName,
    pub amplification: bool,
    pub trusted_aggregation: bool,
    pub noise: NoiseName,
    pub quorum: Option<usize>,
    pub deadline: Option<f64>,
    pub features: Option<FeatureList>,
    pub labels: Option<Vec<String>>,
    pub records: Option<usize>,
    pub most_records: Option<usize>,
    pub seed: u64,
    pub eval_every: u32,
    pub step_size_origin: StepSizeOrigin,
}

impl Resolved {
    /// What the run does to records and claims for it, without data, model and files.
    pub fn specification(&self) -> Specification {
        let scope = self.clip_scope;
        let clip = Clip {
            bound: self.clip,
            scope,
        };
        Specification {
            estimator: match (self.estimator, self.recursion) {
                (_, Some(recursion)) => Estimator::Recursive(recursion),
                (EstimatorKind::Sag, _) => Estimator::Sag {
                    memory: self.memory,
                },
                (EstimatorKind::Svrg, _) => Estimator::Svrg {
                    snapshot_probability: self.snapshot_probability,
                    difference_clip: self.difference_clip,
                },
                (kind, None) => Estimator::new(kind, self.difference_clip),
            },
            batch: self.batch,
            batches: match self.with_replacement {
                true => Batches::WithReplacement,
                false => Batches::Poisson,
            },
            clip: self.clipped.then_some(clip),
            compressor: self.compressor,
            downlink: self.downlink,
            participation: self.participation,
            coordinates: match self.shared_coordinates {
                true => Coordinates::Shared,
                false => Coordinates::Own,
            },
            gossip: self.gossip.clone(),
            shift: match self.shift {
                ShiftChoice::Off => None,
                ShiftChoice::Step(step) => Some(step),
            },
            moments: self.whiten,
            ranges: private_ranges(self.schema.as_deref()),
            target: self.noise_target,
            delta: self.delta,
            adjacency: self.adjacency,
            records_per_person: self.records_per_person,
            accountant: self.accountant,
            direct_theorem: matches!(
                self.preset,
                Preset::CdpSgd | Preset::Ldp(EstimatorKind::Sgd)
            ),
            amplification: self.amplification,
            aggregation: match self.trusted_aggregation {
                true => Aggregation::Trusted {
                    equal_weights: self.equal_weights,
                },
                false => Aggregation::Open,
            },
            noise: self.noise,
            step_size_origin: self.step_size_origin,
            ranges_from_records: self
                .schema
                .as_ref()
                .is_some_and(|schema| schema.ranges() == Ranges::ReadFromRecords),
            step_size: self.step_size,
            schedule: self.schedule,
            momentum: self.momentum,
            step_cap: self.step_cap,
            regularizer: regularizer(self.regularizer, self.lambda),
            regularizer_at_client: self.regularizer_at_client,
            rounds: self.rounds,
            output: self.output,
            seed: self.seed,
        }
    }
}

/// A [`Resolved`] of fields as they were typed, of local variables, and of the rest.
macro_rules! resolved_with {
    ($config:expr; as_typed: $($typed:ident),+; chosen: $($chosen:ident),+; $($rest:tt)+) => {
        Resolved {
            $($typed: Clone::clone(&$config.$typed),)+
            $($chosen,)+
            $($rest)+
        }
    };
}

/// What resolving needs to know about data and model.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Parameters.
    pub dimension: usize,
    /// Every client's number of records.
    pub records: Vec<usize>,
    /// The chosen model.
    pub model: ModelKind,
    /// Smoothness of the loss on these records, where it is known.
    pub smoothness: Option<f64>,
    /// Whether the model reads as many features as a square image has pixels.
    pub image: bool,
    /// The public map of records.
    pub feature_map: FeatureKind,
    /// The share of the budget that second moments get.
    pub whiten: Option<f64>,
    /// The basis that records are written in.
    pub basis: Option<Cosine>,
    /// Parameters that the model would have without the basis; what may travel is measured by them.
    pub whole: usize,
}

impl Config {
    /// The number of clients.
    ///
    /// # Errors
    /// When a single-client preset meets several clients.
    pub fn clients(&self) -> Result<usize, ConfigError> {
        match (self.preset, self.clients) {
            (preset, Auto::Given(clients)) if preset.has_one_node() && clients > 1 => {
                Err(ConfigError::with_hint(
                    format!(
                        "{} has one client, but `data.clients` is {clients}",
                        self.preset.word()
                    ),
                    match self.preset {
                        Preset::DpSrm => "use ldp-srm for several clients",
                        _ => "use ldp-sgd for several clients without compression",
                    },
                ))
            }
            (preset, _) if preset.has_one_node() => Ok(1),
            (_, clients) => Ok(clients.or(10)),
        }
    }

    /// The model family for data with `classes` classes and `inputs` features; no classes where it
    /// has numbers to predict.
    ///
    /// # Errors
    /// When the model is not for such data.
    pub fn model_for(&self, classes: usize, inputs: usize) -> Result<ModelKind, ConfigError> {
        if self.regression()?.is_some() {
            return self.regression_model();
        }
        let model = self
            .model
            .or(if self.preset == Preset::Auto && self.scatters(inputs) {
                ModelKind::Softmax
            } else if classes == 2 {
                ModelKind::Logistic
            } else if self.is_ordinary() {
                // A network's noise grows with its parameters, a linear model's does not.
                ModelKind::Softmax
            } else {
                ModelKind::Mlp
            });
        match model {
            ModelKind::Logistic if classes != 2 => Err(ConfigError::with_hint(
                format!("logistic regression needs two classes, the data has {classes}"),
                "use model.kind = \"softmax\" or \"mlp\"",
            )),
            ModelKind::Linear => Err(ConfigError::with_hint(
                "`model.kind = \"linear\"` predicts numbers, and the data has classes",
                "give data.target_range = [LOW, HIGH], or use model.kind = \"logistic\" or \"softmax\"",
            )),
            model => Ok(model),
        }
    }

    /// The regularizer for `model` on records that went through this map.
    pub fn regularizer_for(&self, model: ModelKind, map: FeatureKind) -> RegularizerKind {
        let bounded = self.preset == Preset::Auto && map != FeatureKind::None;
        self.regularizer
            .or(if model == ModelKind::Logistic && !bounded {
                RegularizerKind::Nonconvex
            } else {
                RegularizerKind::None
            })
    }

    /// The scaling for this source. Scattering looks at how pixels differ, whatever their unit.
    pub fn scale_choice(&self, map: FeatureKind) -> ScaleChoice {
        self.scale.or(if self.is_elsewhere() {
            ScaleChoice::None
        } else if self.source.is_images() && map != FeatureKind::Scattering {
            ScaleChoice::Standard
        } else {
            ScaleChoice::None
        })
    }

    /// Chooses everything that is left to choose, and lists what the user should know.
    ///
    /// # Errors
    /// When values do not go together.
    pub fn resolve(&self, shape: &Shape) -> Result<(Resolved, Vec<String>), ConfigError> {
        let d = shape.dimension;
        let smallest = shape.records.iter().copied().min().unwrap_or(0);
        let estimator = self.estimator.or(self.preset.estimator());
        let checked = self.checked_compressor(shape)?;
        let compressor = checked.kind();
        let clip_scope = self
            .clip_scope
            .or_else(|| self.scope(estimator, compressor));
        let (clip, clipped) = self.clipping(shape, clip_scope, &checked)?;
        let shared = self
            .shared_coordinates
            .or_else(|| self.sharing_rule(shape, clip_scope));
        let (smoothing, equalize) = (self.smoothing(shape)?, self.equalizing(shape)?);
        let problem = self.theory_problem(shape, &checked, clip);
        let batch = self.batch_size(estimator, &problem, smallest)?;
        let (snapshot_probability, difference_clip) =
            self.references(estimator, clip_scope, clip, batch, smallest);
        let recursion = self.recursion(estimator, clip)?;
        let corollary = Corollary {
            problem,
            estimator,
            batch: batch.unwrap_or(smallest as f64),
            snapshot_probability,
        };
        let rounds = self.rounds_choice(shape, &checked, &corollary);
        let (step_size, step_size_origin) =
            self.step_choice(shape, equalize, rounds, &corollary)?;
        let (schedule, momentum) = self.server_rules(shape, shared, equalize, recursion.is_some());
        let gossip = self.gossip(&checked, shape.records.len(), step_size, rounds)?;
        let resolved = resolved_with!(self;
            as_typed: source, test, rows, schema, natural, holdout, partition, equal_weights,
                elsewhere, loss, class_weights, hidden, lambda, regularizer_at_client, preset,
                step_cap, participation, noise_target, delta, adjacency, records_per_person,
                with_replacement, accountant, amplification, quorum, deadline, features, labels,
                records, most_records, seed, eval_every;
            chosen: estimator, batch, snapshot_probability, compressor, gossip, step_size,
                step_size_origin, schedule, momentum, recursion, smoothing, equalize, rounds, clip, clipped,
                clip_scope, difference_clip;
            target_range: self.regression()?,
            clients: shape.records.len(),
            scale: self.scale_choice(shape.feature_map),
            feature_map: shape.feature_map,
            whiten: shape.whiten,
            basis: shape.basis.map(|basis| basis.frequencies()),
            standardize: self.standardizes(),
            model: shape.model,
            huber: self.huber_bound()?,
            activation: self.activation_for(shape.basis.is_some()),
            intercept: self.has_intercept(shape.model, shape.feature_map),
            regularizer: self.regularizer_for(shape.model, shape.feature_map),
            init: self.init_choice(shape)?,
            downlink: self.downlink.map(|choice| choice.of(d)),
            shift: self.shift_choice(shape, &checked, estimator, shared),
            memory: self.memory.or(MEMORY),
            shared_coordinates: shared,
            output: self.output.or(match self.preset {
                Preset::Rrpsgd => Output::Random,
                _ => Output::Last,
            }),
            trusted_aggregation: self
                .trusted_aggregation
                .or(self.preset == Preset::DistributedDpSrm),
            noise: self.noise.or(NoiseName::Float),
        );
        self.check_values(&resolved, d)?;
        self.check_recursion(&resolved)?;
        self.check_gossip(&resolved)?;
        self.check_sag(&resolved)?;
        resolved.check_aggregation()?;
        resolved.check_downlink(d)?;
        resolved.check(smallest)?;
        let mut warnings = self.warnings(&resolved, smallest);
        warnings.extend(resolved.gossip_warning(&checked));
        Ok((resolved, warnings))
    }

    /// The bound on records, and whether it is applied.
    fn clipping(
        &self,
        shape: &Shape,
        scope: ClipScope,
        compressor: &Compressor,
    ) -> Result<(f64, bool), ConfigError> {
        let clip = match self.clip {
            Auto::Given(Some(clip)) => clip,
            _ => self.clip_rule(shape, scope, compressor),
        };
        // Without noise nothing is protected, so nothing is clipped unless it is asked for.
        let clipped = match self.clip {
            Auto::Given(clip) => clip.is_some(),
            Auto::Auto => self.noise_target != NoiseTarget::None,
        };
        if !clipped && self.noise_target != NoiseTarget::None {
            return Err(ConfigError::with_hint(
                "`privacy.clip = \"none\"` goes with `privacy.epsilon = \"none\"` only: noise hides no more than what is bounded",
                "give a clip, or leave it out",
            ));
        }
        Ok((clip, clipped))
    }

    /// The run as the paper's corollaries see it.
    fn theory_problem(&self, shape: &Shape, compressor: &Compressor, clip: f64) -> theory::Problem {
        theory::Problem {
            clients: shape.records.len() as f64,
            records: shape.records.iter().copied().min().unwrap_or(0) as f64,
            dimension: shape.dimension as f64,
            omega: known_omega(compressor),
            smoothness: 1.0,
            clip,
            epsilon: match self.noise_target {
                NoiseTarget::Epsilon(epsilon) => epsilon,
                _ => 1.0,
            },
            delta: self.delta,
        }
    }

    fn shift_choice(
        &self,
        shape: &Shape,
        compressor: &Compressor,
        estimator: EstimatorKind,
        shared: bool,
    ) -> ShiftChoice {
        let whole = compressor.kind() == CompressorKind::Identity;
        self.shift.or(match self.preset {
            // Coordinates that all clients share, and whole gradients, leave no difference between
            // clients to learn.
            Preset::Auto if shared || self.plain(shape) || self.number_rule(shape) => {
                ShiftChoice::Off
            }
            Preset::Auto if whole && self.logit_rule(shape).is_some() => ShiftChoice::Off,
            _ if estimator == EstimatorKind::Recursive => ShiftChoice::Off,
            Preset::Auto | Preset::Soteria(_) => {
                ShiftChoice::Step(shift_step(known_omega(compressor)))
            }
            _ => ShiftChoice::Off,
        })
    }

    fn rounds_choice(&self, shape: &Shape, compressor: &Compressor, theory: &Corollary) -> u32 {
        let rule = || Theory::Given(self.rounds_rule(shape, compressor));
        match self.rounds.or_else(rule) {
            Theory::Given(rounds) => rounds,
            // The potential of the start is not public; the theory's order of magnitude is taken at
            // 1.
            Theory::Theory => {
                let Corollary {
                    problem,
                    estimator,
                    batch,
                    snapshot_probability,
                } = *theory;
                let rounds = problem.rounds(estimator, batch, snapshot_probability, 1.0);
                rounds.ceil().clamp(1.0, 1e7) as u32
            }
        }
    }

    fn step_choice(
        &self,
        shape: &Shape,
        equalize: f64,
        rounds: u32,
        theory: &Corollary,
    ) -> Result<(f64, StepSizeOrigin), ConfigError> {
        let rule = || self.step_rule(shape, equalize, f64::from(rounds));
        let step = || Theory::Given(self.gossip_step(rounds).unwrap_or_else(rule));
        match (self.step_size.or_else(step), shape.smoothness) {
            (Theory::Given(step), _) => {
                let origin = match self.step_size_from_data {
                    true => StepSizeOrigin::Records,
                    false => StepSizeOrigin::Public,
                };
                Ok((step, origin))
            }
            (Theory::Theory, Some(smoothness)) => {
                let problem = theory::Problem {
                    smoothness,
                    ..theory.problem
                };
                let step =
                    problem.step_size(theory.estimator, theory.batch, theory.snapshot_probability);
                Ok((step, StepSizeOrigin::Theory))
            }
            (Theory::Theory, None) => Err(ConfigError::with_hint(
                "`algorithm.step_size = \"theory\"` needs a known smoothness, which only logistic and linear models have: that of a network has no bound",
                "give a number",
            )),
        }
    }

    /// How the server's step changes over the rounds, and its momentum.
    fn server_rules(
        &self,
        shape: &Shape,
        shared: bool,
        equalize: f64,
        recursive: bool,
    ) -> (Schedule, f64) {
        let ruled = self.logit_rule(shape).is_some();
        let plain = self.plain(shape);
        let falls = !ruled && (shared || (plain && equalize > 0.0));
        let remembers = !ruled && !recursive && (shared || plain);
        let schedule = self.schedule.or(match falls {
            true => Schedule::Cosine,
            false => Schedule::Constant,
        });
        let momentum = self.momentum.or_else(|| match remembers {
            true => self.momentum_rule(shape),
            false => 0.0,
        });
        (schedule, momentum)
    }

    fn init_choice(&self, shape: &Shape) -> Result<Init, ConfigError> {
        Ok(match (&self.init, shape.model) {
            (Auto::Given(init), _) => init.clone(),
            (Auto::Auto, ModelKind::Mlp) => Init::Normal(self.start_rule(shape)),
            (Auto::Auto, ModelKind::Elsewhere) => return Err(elsewhere::no_start()),
            (Auto::Auto, _) => Init::Zeros,
        })
    }
}

/// What the corollaries of the paper take their numbers from.
struct Corollary {
    problem: theory::Problem,
    estimator: EstimatorKind,
    batch: f64,
    snapshot_probability: f64,
}

/// What the theory knows of a compressor: nothing, where it is not unbiased.
fn known_omega(compressor: &Compressor) -> f64 {
    match compressor.is_unbiased() {
        true => compressor.omega(),
        false => 0.0,
    }
}
