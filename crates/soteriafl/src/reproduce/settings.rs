//! The figures as configurations of this program.

use std::path::Path;
use std::sync::Arc;

use soteriafl_data::DataDirectories;

use super::published::{A9A_FACTOR, Algorithm, DELTA, Setup, Task};
use crate::config::resolve::Resolved;
use crate::config::{Config, ConfigError, Document};
use crate::experiment::Setting;
use crate::problem::{Problem, ProblemError};

/// The three ways in which a figure is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The authors' set-up. No claim.
    Published,
    /// The same algorithms with records clipped, Poisson batches and noise from the exact
    /// accountant.
    Proved,
    /// The system's own choice.
    Best,
}

impl Mode {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Published => "as published",
            Mode::Proved => "proved",
            Mode::Best => "best proved",
        }
    }

    /// Whether its step sizes were tuned, by the authors, on the records that it runs on.
    pub fn step_size_from_data(self) -> bool {
        self != Mode::Best
    }

    /// Its name in files.
    pub fn slug(self) -> &'static str {
        match self {
            Mode::Published => "published",
            Mode::Proved => "proved",
            Mode::Best => "best",
        }
    }
}

/// Data and models that settings share, loaded once.
pub struct Data {
    task: Task,
    /// Scaled by the matrix itself, as published.
    published: Arc<Problem>,
    /// Scaled by constants.
    constant: Arc<Problem>,
    /// As the system's own choice wants it.
    best: Arc<Problem>,
    start: String,
}

impl Data {
    /// Loads a problem. `start` is the file with the authors' start on a9a.
    ///
    /// # Errors
    /// When the data cannot be found or read.
    pub fn load(
        task: Task,
        start: &Path,
        directories: &DataDirectories,
    ) -> Result<Self, ProblemError> {
        let load = |mode| {
            let config = Config::read(&document(&common(task, mode))?)?;
            Ok::<_, ProblemError>(Arc::new(Problem::load(&config, directories)?))
        };
        let published = load(Mode::Published)?;
        let (constant, best) = match task {
            Task::A9a => {
                let constant = load(Mode::Proved)?;
                (Arc::clone(&constant), constant)
            }
            // Its scaling constants are public anyway; the best run writes images in a basis of its
            // own.
            Task::Mnist => (Arc::clone(&published), load(Mode::Best)?),
        };
        Ok(Self {
            task,
            published,
            constant,
            best,
            start: start.display().to_string(),
        })
    }

    /// One curve of a figure; the algorithm means nothing for [`Mode::Best`].
    ///
    /// # Errors
    /// When the values do not go together.
    pub fn setting(
        &self,
        setup: &Setup,
        mode: Mode,
        algorithm: Algorithm,
        eval_every: u32,
    ) -> Result<Arc<Setting>, ProblemError> {
        debug_assert_eq!(setup.task, self.task);
        let mut keys = common(self.task, mode);
        keys.push(format!("privacy.epsilon={}", setup.epsilon));
        keys.push(format!("privacy.delta={DELTA}"));
        keys.push(format!("run.eval_every={eval_every}"));
        if mode == Mode::Best {
            // What is compared has the same traffic.
            keys.push(format!("algorithm.values={}", setup.values()));
        } else {
            keys.extend(self.algorithm(setup, mode, algorithm));
        }
        let problem = match mode {
            Mode::Published => &self.published,
            Mode::Proved => &self.constant,
            Mode::Best => &self.best,
        };
        let resolved = resolve(&keys, problem)?;
        let what = match mode {
            Mode::Best => "auto".to_string(),
            _ => algorithm.preset(),
        };
        let name = format!(
            "{}-epsilon-{}-{}-{what}",
            self.task.name(),
            setup.epsilon,
            mode.slug()
        );
        Ok(Setting::new(name, resolved, Arc::clone(problem)))
    }

    fn algorithm(&self, setup: &Setup, mode: Mode, algorithm: Algorithm) -> Vec<String> {
        let mut keys = vec![
            format!("algorithm.preset={}", algorithm.preset()),
            format!("algorithm.rounds={}", setup.rounds),
            format!("algorithm.step_size={}", setup.step_size(algorithm)),
            format!("algorithm.batch={}", setup.batch(algorithm)),
            format!("privacy.clip={}", self.task.clip()),
            "model.regularizer_at=client".to_string(),
            match self.task {
                Task::A9a => format!("model.init=file:{}", self.start),
                Task::Mnist => "model.init=normal:0.2".to_string(),
            },
        ];
        if algorithm.is_svrg() {
            // The paper's `p = b/m`, in both modes.
            let rate = f64::from(setup.batch(algorithm)) / self.task.records() as f64;
            keys.push(format!("algorithm.snapshot_probability={rate}"));
        }
        if algorithm.is_svrg() && mode == Mode::Proved {
            keys.push(format!(
                "privacy.difference_clip={}",
                self.task.clip() / 4.0
            ));
        }
        if mode == Mode::Published {
            keys.extend(
                [
                    "privacy.clip_scope=estimate",
                    "privacy.sampling=with-replacement",
                    "privacy.accountant=paper",
                ]
                .map(str::to_string),
            );
        }
        keys
    }
}

/// What all curves of a problem share.
fn common(task: Task, mode: Mode) -> Vec<String> {
    match (task, mode) {
        // The paper's model, whatever would be chosen for images otherwise.
        (Task::Mnist, Mode::Best) => vec![
            "data.source=mnist".to_string(),
            "model.kind=mlp".to_string(),
        ],
        (Task::Mnist, _) => vec![
            "data.source=mnist".to_string(),
            "data.basis=none".to_string(),
        ],
        (Task::A9a, mode) => {
            let mut keys = vec![
                "data.source=a9a".to_string(),
                "data.rows=32560".to_string(),
                "model.lambda=0.2".to_string(),
            ];
            if mode == Mode::Published {
                keys.push("data.scale=spectral".to_string());
            } else {
                keys.push("data.scale=constant".to_string());
                keys.push("data.center=0.0".to_string());
                keys.push(format!("data.factor={A9A_FACTOR}"));
            }
            keys
        }
    }
}

pub(super) fn document(keys: &[String]) -> Result<Document, ConfigError> {
    let mut document = Document::default();
    for key in keys {
        document.set(key)?;
    }
    Ok(document)
}

fn resolve(keys: &[String], problem: &Problem) -> Result<Resolved, ProblemError> {
    let config = Config::read(&document(keys)?)?;
    // Warnings speak of choices that are the paper's here.
    let (resolved, _) = problem.resolve(&config)?;
    Ok(resolved)
}
