//! Every `"auto"` replaced by what was chosen, and what does not go together refused.
//!
//! Under a named preset `auto` follows the paper: batch and snapshot probability from its
//! corollaries (with `L = 1`, so that no private data decides), its shift step, 5% of the
//! coordinates, 100 rounds, step size 0.3. Under `preset = "auto"` the system chooses what it can prove the
//! most for (`best.rs`).

use std::sync::Arc;

use soteriafl_accountant::{Estimator, MEMORY, Recursion};
use soteriafl_core::compress::{CompressError, Compressor, CompressorKind, DownlinkKind};
use soteriafl_core::objective::Activation;
use soteriafl_core::protocol::{Schedule, shift_step, suits_secure_noise};
use soteriafl_core::theory;
use soteriafl_data::schema::Ranges;
use soteriafl_data::{Cosine, FeatureKind, Partition, Source, TableSchema, TargetRange};

use crate::problem::{ElsewhereModel, regularizer};
use crate::specification::{Aggregation, Batches, Clip, Coordinates, Gossip, Specification};

use super::automatic::holds_constant;
use super::document::ConfigError;
use super::elsewhere;
use super::linear::private_ranges;
use super::read::{PRESETS, name};
use super::{
    AccountantName, Adjacency, Auto, ClipScope, Config, EstimatorKind, FeatureList, Init, LossName,
    ModelKind, NaturalClients, NoiseName, NoiseTarget, Output, Preset, RegularizerKind,
    ScaleChoice, ShiftChoice, Theory,
};
use crate::words::readable;

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
                        name(PRESETS, self.preset)
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

    /// The model family for data with `classes` classes and `inputs` features; no classes where it has numbers to predict.
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
        let estimator = self.estimator.or(match self.preset {
            Preset::Auto => EstimatorKind::Gd,
            Preset::Soteria(estimator) | Preset::Ldp(estimator) | Preset::Dp(estimator) => {
                estimator
            }
            Preset::CdpSgd
            | Preset::Rrpsgd
            | Preset::SdmDsgd
            | Preset::QDpsgd1
            | Preset::Porter => EstimatorKind::Sgd,
            Preset::DpSrm
            | Preset::LdpSrm
            | Preset::DistributedDpSrm
            | Preset::LdpSpider
            | Preset::Diff2 => EstimatorKind::Recursive,
        });
        let compressor = self.compressor_kind(shape)?;
        let checked = Compressor::new(compressor, d, self.participation).map_err(|error| {
            let key = match error {
                CompressError::Count { .. } => "algorithm.k",
                CompressError::Grid { .. } => "algorithm.grid_step",
                CompressError::Levels(_) => "algorithm.levels",
                CompressError::Participation(_) => "algorithm.participation",
                _ => "algorithm.compressor",
            };
            ConfigError::conflict(format!("`{key}`: {error}"))
        })?;
        if !checked.is_unbiased() && self.preset.transport().is_none() {
            return Err(ConfigError::with_hint(
                "`algorithm.compressor = \"grid\"` rounds whole models: its error does not shrink with what is sent, and the theory of compressed gradients needs one that does",
                "use rand-k, qsgd or natural; the preset q-dpsgd-1 has grid",
            ));
        }
        // What the theory knows of it: nothing, where it is not unbiased.
        let omega = match checked.is_unbiased() {
            true => checked.omega(),
            false => 0.0,
        };
        let clip_scope = self
            .clip_scope
            .or_else(|| self.scope(estimator, compressor));
        let clip = match self.clip {
            Auto::Given(Some(clip)) => clip,
            _ => self.clip_rule(shape, clip_scope, &checked),
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
        let rule = self.logit_rule(shape);
        let shared = self
            .shared_coordinates
            .or_else(|| self.sharing_rule(shape, clip_scope));
        let shift = self.shift.or(match self.preset {
            // Coordinates that all clients share, and whole gradients, leave no difference between
            // clients to learn.
            Preset::Auto if shared || self.plain(shape) || self.number_rule(shape) => {
                ShiftChoice::Off
            }
            Preset::Auto if rule.is_some() && compressor == CompressorKind::Identity => {
                ShiftChoice::Off
            }
            _ if estimator == EstimatorKind::Recursive => ShiftChoice::Off,
            Preset::Auto | Preset::Soteria(_) => ShiftChoice::Step(shift_step(omega)),
            _ => ShiftChoice::Off,
        });
        let smoothing = self.smoothing(shape)?;
        let equalize = self.equalizing(shape)?;
        let problem = theory::Problem {
            clients: shape.records.len() as f64,
            records: smallest as f64,
            dimension: d as f64,
            omega,
            smoothness: 1.0,
            clip,
            epsilon: match self.noise_target {
                NoiseTarget::Epsilon(epsilon) => epsilon,
                _ => 1.0,
            },
            delta: self.delta,
        };
        let batch = self.batch_size(estimator, &problem, smallest)?;
        let (snapshot_probability, difference_clip) =
            self.references(estimator, clip_scope, clip, batch, smallest);
        let recursion = self.recursion(estimator, clip)?;
        let b = batch.unwrap_or(smallest as f64);
        let origin = if self.step_size_from_data {
            StepSizeOrigin::Records
        } else {
            StepSizeOrigin::Public
        };
        let rounds = match self
            .rounds
            .or_else(|| Theory::Given(self.rounds_rule(shape, &checked)))
        {
            Theory::Given(rounds) => rounds,
            // The potential of the start is not public; the theory's order of magnitude is taken at 1.
            Theory::Theory => problem
                .rounds(estimator, b, snapshot_probability, 1.0)
                .ceil()
                .clamp(1.0, 1e7) as u32,
        };
        let (step_size, step_size_origin) = match self.step_size.or_else(|| {
            let step = self.gossip_step(rounds);
            let rule = || self.step_rule(shape, equalize, f64::from(rounds));
            Theory::Given(step.unwrap_or_else(rule))
        }) {
            Theory::Given(step) => (step, origin),
            Theory::Theory => match shape.smoothness {
                Some(smoothness) => {
                    let problem = theory::Problem {
                        smoothness,
                        ..problem
                    };
                    (
                        problem.step_size(estimator, b, snapshot_probability),
                        StepSizeOrigin::Theory,
                    )
                }
                None => {
                    return Err(ConfigError::with_hint(
                        "`algorithm.step_size = \"theory\"` needs a known smoothness, which only logistic and linear models have: that of a network has no bound",
                        "give a number",
                    ));
                }
            },
        };
        let gossip = self.gossip(&checked, shape.records.len(), step_size, rounds)?;
        let resolved = Resolved {
            source: self.source.clone(),
            test: self.test.clone(),
            rows: self.rows,
            schema: self.schema.clone(),
            natural: self.natural.clone(),
            holdout: self.holdout,
            target_range: self.regression()?,
            clients: shape.records.len(),
            partition: self.partition,
            scale: self.scale_choice(shape.feature_map),
            feature_map: shape.feature_map,
            whiten: shape.whiten,
            basis: shape.basis.map(|basis| basis.frequencies()),
            standardize: self.standardizes(),
            equal_weights: self.equal_weights,
            model: shape.model,
            elsewhere: self.elsewhere.clone(),
            loss: self.loss,
            huber: self.huber_bound()?,
            class_weights: self.class_weights.clone(),
            hidden: self.hidden.clone(),
            activation: self.activation_for(shape.basis.is_some()),
            intercept: self.has_intercept(shape.model, shape.feature_map),
            regularizer: self.regularizer_for(shape.model, shape.feature_map),
            lambda: self.lambda,
            regularizer_at_client: self.regularizer_at_client,
            init: match (&self.init, shape.model) {
                (Auto::Given(init), _) => init.clone(),
                (Auto::Auto, ModelKind::Mlp) => Init::Normal(self.start_rule(shape)),
                (Auto::Auto, ModelKind::Elsewhere) => return Err(elsewhere::no_start()),
                (Auto::Auto, _) => Init::Zeros,
            },
            preset: self.preset,
            estimator,
            batch,
            snapshot_probability,
            compressor,
            downlink: self.downlink.map(|choice| choice.of(d)),
            gossip,
            shift,
            step_size,
            schedule: self.schedule.or(if rule.is_some() {
                Schedule::Constant
            } else if shared || (self.plain(shape) && equalize > 0.0) {
                Schedule::Cosine
            } else {
                Schedule::Constant
            }),
            momentum: self.momentum.or(if rule.is_some() || recursion.is_some() {
                0.0
            } else if shared || self.plain(shape) {
                self.momentum_rule(shape)
            } else {
                0.0
            }),
            memory: self.memory.or(MEMORY),
            recursion,
            step_cap: self.step_cap,
            smoothing,
            equalize,
            shared_coordinates: shared,
            rounds,
            output: self.output.or(match self.preset {
                Preset::Rrpsgd => Output::Random,
                _ => Output::Last,
            }),
            participation: self.participation,
            noise_target: self.noise_target,
            delta: self.delta,
            adjacency: self.adjacency,
            records_per_person: self.records_per_person,
            clip,
            clipped,
            clip_scope,
            with_replacement: self.with_replacement,
            difference_clip,
            accountant: self.accountant,
            amplification: self.amplification,
            trusted_aggregation: self
                .trusted_aggregation
                .or(self.preset == Preset::DistributedDpSrm),
            noise: self.noise.or(NoiseName::Float),
            quorum: self.quorum,
            deadline: self.deadline,
            features: self.features.clone(),
            labels: self.labels.clone(),
            records: self.records,
            most_records: self.most_records,
            seed: self.seed,
            eval_every: self.eval_every,
            step_size_origin,
        };
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

    fn warnings(&self, resolved: &Resolved, smallest: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut unused = |keys: &[&str], reason: &str| {
            for key in keys {
                if self.given.iter().any(|given| given == key) {
                    warnings.push(format!("`{key}` is ignored: {reason}"));
                }
            }
        };
        for (keys, reason) in resolved.ignored_by_compressor() {
            unused(keys, &reason);
        }
        if resolved.gossip.is_none() {
            let keys = ["algorithm.topology", "algorithm.mixing"];
            unused(
                &keys,
                "clients have a server (sdm-dsgd, q-dpsgd-1 and porter have none)",
            );
        }
        if resolved.estimator == EstimatorKind::Gd {
            unused(&["algorithm.batch"], "gd uses all records");
        }
        if resolved.estimator != EstimatorKind::Svrg {
            unused(&["algorithm.snapshot_probability"], "only svrg has it");
        }
        if matches!(
            resolved.estimator,
            EstimatorKind::Gd | EstimatorKind::Sgd | EstimatorKind::Sag
        ) {
            let reason = "only svrg, saga and recursive have it";
            unused(&["privacy.difference_clip"], reason);
        }
        if resolved.estimator != EstimatorKind::Sag {
            unused(&["algorithm.memory"], "only sag has it");
        }
        if resolved.recursion.is_none() {
            let keys = [
                "algorithm.keep",
                "algorithm.restart",
                "privacy.difference_scale",
                "privacy.noise_ratio",
            ];
            unused(&keys, "only recursive has it");
        }
        if resolved.noise_target == NoiseTarget::None {
            unused(&["privacy.accountant"], "there is no noise");
        }
        if !resolved.clipped {
            let keys = ["privacy.clip_scope", "privacy.difference_clip"];
            unused(
                &keys,
                "nothing is clipped without noise, unless `privacy.clip` is given",
            );
        }
        if resolved.regularizer == RegularizerKind::None {
            let keys = ["model.lambda", "model.regularizer_at"];
            unused(&keys, "there is no regularizer");
        }
        if !matches!(resolved.partition, Partition::Dirichlet { .. }) {
            unused(&["data.alpha"], "only the dirichlet partition has it");
        }
        if resolved.model != ModelKind::Mlp {
            unused(&["model.hidden", "model.activation"], "only mlp has it");
        }
        if resolved.model != ModelKind::Elsewhere {
            let keys = ["model.parameters", "model.architecture"];
            unused(&keys, "only a model that is computed elsewhere has it");
        }
        if resolved.model != ModelKind::Logistic {
            unused(&["model.intercept"], "networks have biases");
        } else if holds_constant(resolved.feature_map) {
            unused(
                &["model.intercept"],
                "`data.features` appends a constant to every record",
            );
        }
        if resolved.trusted_aggregation && resolved.noise_target != NoiseTarget::None {
            warnings.push(super::aggregation::UNPROTECTED.to_string());
        }
        if resolved.noise_target != NoiseTarget::None && resolved.delta > 1.0 / smallest as f64 {
            warnings.push(format!(
                "`privacy.delta` = {} is above 1/records = {:.1e}: it allows a record to be published in full with that probability",
                readable(resolved.delta),
                1.0 / smallest as f64
            ));
        }
        warnings
    }
}

impl Resolved {
    fn check(&self, smallest: usize) -> Result<(), ConfigError> {
        let two_terms = self.estimator.has_two_terms();
        if self.estimator.keeps_mean() && self.clip_scope == ClipScope::Selected {
            return Err(ConfigError::with_hint(
                "`privacy.clip_scope = \"selected\"` has a proof for gd and sgd only",
                "use clip_scope = \"record\" with svrg, saga and sag",
            ));
        }
        let random_k = matches!(self.compressor, CompressorKind::RandK { .. });
        if self.shared_coordinates
            && random_k
            && self.amplification
            && self.clip_scope != ClipScope::Selected
            && self.noise_target != NoiseTarget::None
        {
            // Amplification needs coordinates that the client draws itself, after it has the model.
            return Err(ConfigError::with_hint(
                "`algorithm.coordinates = \"shared\"` rules out random-k amplification",
                "use privacy.clip_scope = \"selected\" (gd and sgd), or privacy.amplification = \"off\"",
            ));
        }
        let theory = self.step_size_origin == StepSizeOrigin::Theory;
        if self.shared_coordinates && random_k && theory {
            return Err(ConfigError::conflict(
                "`algorithm.step_size = \"theory\"` rests on clients that draw their coordinates independently, not on `algorithm.coordinates = \"shared\"`",
            ));
        }
        if self.accountant == AccountantName::Paper
            && matches!(self.noise_target, NoiseTarget::Sigma(_))
        {
            return Err(ConfigError::conflict(
                "`privacy.accountant = \"paper\"` sets sigma from epsilon, but `privacy.sigma` is given",
            ));
        }
        let secure = self.noise == NoiseName::Secure && self.noise_target != NoiseTarget::None;
        if secure && (self.clip_scope == ClipScope::Estimate || self.with_replacement) {
            return Err(ConfigError::conflict(
                "`privacy.noise = \"secure\"` needs clipped records and Poisson sampling",
            ));
        }
        let clips = [
            ("privacy.clip", Some(self.clip)),
            (
                "privacy.difference_clip",
                self.difference_clip.filter(|_| two_terms),
            ),
        ];
        for (key, clip) in clips {
            if let Some(clip) = clip.filter(|&clip| secure && !suits_secure_noise(clip)) {
                return Err(ConfigError::conflict(format!(
                    "`{key}` = {clip:e} is outside of [2^-40, 2^40], where `privacy.noise = \"secure\"` has a proof"
                )));
            }
        }
        if secure && two_terms && self.difference_clip.is_none() {
            return Err(ConfigError::conflict(
                "`privacy.noise = \"secure\"` with svrg or saga needs a `privacy.difference_clip`",
            ));
        }
        if let Some(quorum) = self.quorum
            && quorum > self.clients
        {
            return Err(ConfigError::conflict(format!(
                "`deployment.quorum` is {quorum}, and the number of clients {}",
                self.clients
            )));
        }
        if smallest == 0 {
            return Err(ConfigError::conflict(
                "every client needs at least one record",
            ));
        }
        Ok(())
    }
}
