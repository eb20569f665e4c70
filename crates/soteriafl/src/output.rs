//! The files of a run, and how they are written: whole or not at all, except `rounds.csv`, which
//! grows a row at a time so that an interrupted run leaves what it has.

mod deployed;
mod finished;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use soteriafl_core::compress::CompressorKind;
use soteriafl_core::quality::Quality;
use soteriafl_core::simulate::{Clock, Metrics, Traffic};
use soteriafl_data::schema::Role;

use crate::accounting::{self, Privacy};
use crate::config::resolve::Resolved;
use crate::config::{NoiseName, NoiseTarget, Output, gossip, private_ranges};
use crate::model_card;
use crate::quality;
use crate::report::{self, RunFiles};
use crate::specification::Preliminary;
use crate::words::readable;

pub use deployed::{Deployed, TestSet};
pub use finished::FinishedRun;

/// The header of `rounds.csv`.
pub const COLUMNS: &str =
    "round,paper_bits,uplink_bytes,downlink_bytes,loss,grad_norm_sq,utility,test_accuracy,epsilon";

/// The last column of `rounds.csv` where every client has a model of its own.
const CONSENSUS_ERROR: &str = "consensus_error";

/// The columns of a run's `rounds.csv`.
pub fn columns(resolved: &Resolved) -> String {
    match resolved.gossip {
        Some(_) => format!("{COLUMNS},{CONSENSUS_ERROR}"),
        None => COLUMNS.to_string(),
    }
}

/// The last column of `rounds.csv` in a deployment, whose server measures the loss of its test set.
const TEST_LOSS: &str = "test_loss";

/// What a finished run has, in the order in which the files are written: with the last one it is
/// complete.
pub const FILES: [&str; 5] = [
    "config.toml",
    "rounds.csv",
    "model.safetensors",
    "report.html",
    "summary.json",
];

/// Which records an unfinished run is of. It goes at the end: whoever has it can check a guess of all
/// records, and a finished run has no use for it.
const RECORDS: &str = "records.sha256";

/// The digest of the records that an unfinished run is of, if it left one.
///
/// # Errors
/// When it cannot be read.
pub fn remembered_records(path: &Path) -> Result<Option<String>, OutputError> {
    let path = path.join(RECORDS);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim_end().to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OutputError::Io { path, error }),
    }
}

/// Whether what is in a directory, if anything, is of the run with this `config.toml`.
pub fn belongs(path: &Path, config: &str) -> bool {
    match fs::read_to_string(path.join("config.toml")) {
        Ok(text) => text == config,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether a run's directory has all of its files, and nothing half written beside them.
pub fn is_complete(path: &Path) -> bool {
    FILES.iter().all(|name| {
        let temporary = path.join(format!("{name}.tmp"));
        path.join(name).is_file() && !temporary.exists()
    })
}

/// Before files are written anew: what an earlier run said at its end goes, that it is complete
/// first, and so does what was left half written. Files of two runs never stand side by side.
fn reopen(path: &Path) -> Result<(), OutputError> {
    let ends = [
        "summary.json",
        "report.html",
        "curves.svg",
        "model.safetensors",
    ];
    let temporary = FILES.iter().map(|name| format!("{name}.tmp"));
    let ends = ends.into_iter().chain([RECORDS]).map(str::to_string);
    for name in ends.chain(temporary) {
        let file = path.join(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(OutputError::at(file)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a file whole or not at all.
///
/// # Errors
/// When the file system refuses.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A run's directory, open for writing.
pub struct RunDirectory {
    path: PathBuf,
    rounds: RoundTable<BufWriter<File>>,
}

/// The table `rounds.csv` as it grows, in a file or in memory, with the utility so far.
pub struct RoundTable<W> {
    to: W,
    utility: f64,
    rows: u64,
    start_loss: Option<f64>,
}

impl<W: Write> RoundTable<W> {
    /// An empty table with these [columns].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut to: W, columns: &str) -> io::Result<Self> {
        writeln!(to, "{columns}")?;
        Ok(Self::over(to))
    }

    fn over(to: W) -> Self {
        Self {
            to,
            utility: 0.0,
            rows: 0,
            start_loss: None,
        }
    }

    /// Appends an evaluated round and returns the utility so far.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn row(
        &mut self,
        round: u32,
        traffic: Traffic,
        metrics: &Metrics,
        epsilon: Option<f64>,
    ) -> io::Result<f64> {
        self.count(round, metrics);
        let utility = self.utility;
        let own = metrics.consensus_error;
        self.append(format_args!(
            "{round},{},{},{},{utility},{},{}{}",
            traffic_cells(traffic),
            metrics.loss,
            metrics.grad_norm_sq,
            optional(metrics.test_accuracy),
            optional(epsilon),
            own.map(|error| format!(",{error}")).unwrap_or_default(),
        ))?;
        Ok(utility)
    }

    /// Takes a row into the utility.
    fn count(&mut self, round: u32, metrics: &Metrics) {
        if round == 0 {
            self.start_loss = Some(metrics.loss);
        }
        self.rows += 1;
        self.utility += (metrics.grad_norm_sq - self.utility) / self.rows as f64;
    }

    fn append(&mut self, row: fmt::Arguments<'_>) -> io::Result<()> {
        writeln!(self.to, "{row}")?;
        self.to.flush()
    }

    /// The loss of the model that the run started from, once it is known.
    pub fn start_loss(&self) -> Option<f64> {
        self.start_loss
    }

    /// What it was written to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// The last evaluated round of an interrupted run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastRow {
    /// The round.
    pub round: u32,
    /// What it achieved.
    pub metrics: Metrics,
    /// The utility up to it.
    pub utility: f64,
}

impl LastRow {
    fn parse(line: &str, columns: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != columns.split(',').count() {
            return None;
        }
        let own = cells.get(9).map(|cell| cell.parse().ok());
        let metrics = Metrics {
            loss: cells[4].parse().ok()?,
            grad_norm_sq: cells[5].parse().ok()?,
            test_accuracy: if cells[7].is_empty() {
                None
            } else {
                Some(cells[7].parse().ok()?)
            },
            consensus_error: own.flatten(),
        };
        Some(Self {
            round: cells[0].parse().ok()?,
            metrics,
            utility: cells[6].parse().ok()?,
        })
    }
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It has files in it.
    #[error("{0} is not empty")]
    NotEmpty(PathBuf),
    /// The file system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl OutputError {
    fn at(path: impl Into<PathBuf>) -> impl Fn(io::Error) -> Self {
        let path = path.into();
        move |error| OutputError::Io {
            path: path.clone(),
            error,
        }
    }
}

/// Refuses a directory with files in it, unless `force`.
///
/// # Errors
/// When it has files or cannot be read.
pub fn check_empty(path: &Path, force: bool) -> Result<(), OutputError> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OutputError::at(path)(error)),
        Ok(_) if force => Ok(()),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(OutputError::NotEmpty(path.to_path_buf())),
        },
    }
}

impl RunDirectory {
    /// Creates the directory with `config.toml` and an empty table of rounds. What an earlier run
    /// said at its end goes first, so that files of two runs never stand side by side.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create(path: &Path, resolved: &Resolved) -> Result<Self, OutputError> {
        Self::begin(path, &resolved.to_toml(), &columns(resolved))
    }

    /// The same for a deployment with this `config.toml`.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn create_deployed(path: &Path, config: &str) -> Result<Self, OutputError> {
        Self::begin(path, config, &format!("{COLUMNS},{TEST_LOSS}"))
    }

    fn begin(path: &Path, config: &str, columns: &str) -> Result<Self, OutputError> {
        let wrap = OutputError::at(path);
        fs::create_dir_all(path).map_err(&wrap)?;
        reopen(path)?;
        write_whole(&path.join("config.toml"), config.as_bytes()).map_err(&wrap)?;
        let rounds = BufWriter::new(File::create(path.join("rounds.csv")).map_err(&wrap)?);
        Ok(Self {
            path: path.to_path_buf(),
            rounds: RoundTable::new(rounds, columns).map_err(&wrap)?,
        })
    }

    /// Writes down of which records the run is, so that it is not resumed with others.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remember_records(&self, digest: &str) -> Result<(), OutputError> {
        let path = self.path.join(RECORDS);
        write_whole(&path, format!("{digest}\n").as_bytes())
            .map_err(|error| OutputError::Io { path, error })
    }

    /// The loss of the model that the run started from, once it is known.
    pub fn start_loss(&self) -> Option<f64> {
        self.rounds.start_loss
    }

    /// Opens the directory of an interrupted run with these [columns]: complete rows stay, a torn last one goes. Returns
    /// the last row, if there is one.
    ///
    /// # Errors
    /// When the table cannot be read or is not one of ours.
    pub fn resume(path: &Path, columns: &str) -> Result<(Self, Option<LastRow>), OutputError> {
        let file = path.join("rounds.csv");
        let wrap = OutputError::at(&file);
        let text = match fs::read_to_string(&file) {
            // It died before its first row: nothing is known.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(&wrap)?,
        };
        let mut kept = format!("{columns}\n");
        let mut rows: Vec<LastRow> = Vec::new();
        for line in text
            .split_inclusive('\n')
            .skip(1)
            .filter(|line| line.ends_with('\n'))
        {
            let row = LastRow::parse(line.trim_end(), columns).ok_or_else(|| {
                wrap(io::Error::other(format!(
                    "row {} is not one of a run",
                    rows.len() + 1
                )))
            })?;
            rows.push(row);
            kept += line;
        }
        write_whole(&file, kept.as_bytes()).map_err(&wrap)?;
        let to = BufWriter::new(File::options().append(true).open(&file).map_err(&wrap)?);
        let mut rounds = RoundTable::over(to);
        for row in &rows {
            rounds.count(row.round, &row.metrics);
        }
        let utility = rounds.utility;
        let path = path.to_path_buf();
        let last = rows.pop().map(|row| LastRow { utility, ..row });
        Ok((Self { path, rounds }, last))
    }

    /// Appends an evaluated round and returns the utility so far.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn row(
        &mut self,
        round: u32,
        traffic: Traffic,
        metrics: &Metrics,
        epsilon: Option<f64>,
    ) -> Result<f64, OutputError> {
        let written = self.rounds.row(round, traffic, metrics, epsilon);
        written.map_err(OutputError::at(self.path.join("rounds.csv")))
    }

    /// Appends a round of a deployment: what only the clients' records could tell stays empty.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn measured_row(
        &mut self,
        round: u32,
        traffic: Traffic,
        (test_loss, test_accuracy): (Option<f64>, Option<f64>),
        epsilon: Option<f64>,
    ) -> Result<(), OutputError> {
        let written = self.rounds.append(format_args!(
            "{round},{},,,,{},{},{}",
            traffic_cells(traffic),
            optional(test_accuracy),
            optional(epsilon),
            optional(test_loss),
        ));
        written.map_err(OutputError::at(self.path.join("rounds.csv")))
    }

    /// Writes everything that can be said at the end.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn finish(mut self, summary: &Value, model: &[u8]) -> Result<(), OutputError> {
        if summary["interrupted"] != true {
            let _ = fs::remove_file(self.path.join(RECORDS));
        }
        let path = self.path;
        let write = |name: &str, bytes: &[u8]| {
            let file = path.join(name);
            write_whole(&file, bytes).map_err(OutputError::at(file))
        };
        let flushed = self.rounds.to.flush();
        flushed.map_err(OutputError::at(path.join("rounds.csv")))?;
        write("model.safetensors", model)?;
        write(
            "MODEL_CARD.md",
            model_card::markdown(summary, model).as_bytes(),
        )?;
        let text = format!("{summary:#}\n");
        let files = RunFiles::read_with(&path, &text).map_err(|error| {
            OutputError::at(path.join("report.html"))(io::Error::other(error.to_string()))
        })?;
        write("report.html", report::html(&files).as_bytes())?;
        // The last one: whoever finds it finds the others.
        write("summary.json", text.as_bytes())
    }
}

fn optional(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn traffic_cells(traffic: Traffic) -> String {
    let Traffic {
        paper_bits,
        uplink_bytes,
        downlink_bytes,
    } = traffic;
    format!("{paper_bits},{uplink_bytes},{downlink_bytes}")
}

/// What a run has come to.
pub struct RunResult<'a> {
    /// What ran.
    pub resolved: &'a Resolved,
    /// Every client's number of records.
    pub records: &'a [usize],
    /// Parameters.
    pub dimension: usize,
    /// Noise and cost.
    pub privacy: &'a Privacy,
    /// Rounds done.
    pub rounds: u32,
    /// Metrics at the end.
    pub metrics: Metrics,
    /// Utility at the end.
    pub utility: f64,
    /// Traffic.
    pub traffic: Traffic,
    /// Time in rounds and metrics.
    pub clock: Clock,
    /// Time altogether.
    pub total_seconds: f64,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    /// What a server knows of a deployment; `None` for a simulation, which knows everything.
    pub deployed: Option<Deployed<'a>>,
    /// What always answering the most common class would reach on the test set.
    pub majority_accuracy: Option<f64>,
    /// What else was found about the model on the test set.
    pub quality: Option<Quality>,
    /// What the classes are called, in their order.
    pub class_names: &'a [String],
    /// The longest way of the signal over the length of the noise ([`advice`](crate::advice)).
    pub signal_to_noise: Option<f64>,
    /// What a reader must know before anything else, in sentences.
    pub warnings: Vec<String>,
}

impl RunResult<'_> {
    /// Whether the model has left the range of numbers.
    pub fn diverged(&self) -> bool {
        if let Some(deployed) = &self.deployed {
            return deployed.diverged();
        }
        let metrics = self.metrics;
        !(metrics.loss.is_finite() && metrics.grad_norm_sq.is_finite())
    }

    /// The column that says whose each record is: then the claim is about whom it names.
    fn person_column(&self) -> Option<&str> {
        let resolved = self.resolved;
        let own = resolved.schema.as_ref();
        let schema = match &self.deployed {
            Some(deployed) => deployed.shape.schema.as_ref(),
            // Of records that come as numbers nobody reads it.
            None => own.filter(|_| resolved.source.is_table()),
        };
        schema?.named_by(&Role::Person)
    }

    /// The file `summary.json`.
    pub fn summary(&self) -> Value {
        let resolved = self.resolved;
        let noise = match (resolved.noise_target, resolved.noise) {
            (NoiseTarget::None, _) => "none",
            (_, NoiseName::Float) => "float (simulated)",
            (_, NoiseName::Secure) => "secure",
        };
        let mut summary = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "kind": "simulation",
            "algorithm": resolved.algorithm(),
            "dataset": resolved.source.to_string(),
            "clients": self.records.len(),
            "samples_per_client": self.records,
            "dimension": self.dimension,
            "rounds": self.rounds,
            "seed": resolved.seed,
            "secrets": "the seed",
            "privacy": {
                "epsilon": self.privacy.epsilon,
                "delta": resolved.delta,
                "adjacency": resolved.adjacency.word(),
                "sigma": self.privacy.sigmas.iter().copied().fold(0.0, f64::max),
                "sigmas": self.privacy.sigmas,
                "noise": noise,
                "accountant": self.privacy.accountant,
                "amplified": self.privacy.amplified,
                "epsilon_unamplified": self.privacy.epsilon_unamplified,
                "claim": self.privacy.claim,
                "signal_to_noise": self.signal_to_noise,
            },
            "final": {
                "loss": finite(self.metrics.loss),
                "grad_norm_sq": finite(self.metrics.grad_norm_sq),
                "utility": finite(self.utility),
                "test_accuracy": self.metrics.test_accuracy,
                "majority_accuracy": self.majority_accuracy,
            },
            "warnings": self.warnings,
            "choices": self.resolved.choices(self.records, self.dimension),
            "traffic": {
                "paper_bits": self.traffic.paper_bits,
                "uplink_bytes": self.traffic.uplink_bytes,
                "downlink_bytes": self.traffic.downlink_bytes,
            },
            "seconds": {
                "total": self.total_seconds,
                "training": self.clock.training.as_secs_f64(),
                "evaluation": self.clock.evaluation.as_secs_f64(),
            },
        });
        if let Some(found) = &self.quality {
            quality::describe(found, self.class_names, &mut summary["final"]);
        }
        if resolved.records_per_person > 1 {
            summary["privacy"]["records_per_person"] = json!(resolved.records_per_person);
        }
        if let Some(column) = self.person_column() {
            summary["privacy"]["person_column"] = json!(column);
        }
        let smallest = self.records.iter().copied().min().unwrap_or(1);
        let before = accounting::preliminaries(&resolved.specification(), smallest);
        let ranges = private_ranges(resolved.schema.as_deref());
        for release in before.unwrap_or_default() {
            let (key, share) = match release.kind {
                Preliminary::Magnitudes | Preliminary::Parts => ("ranges", ranges),
                Preliminary::Moments => ("moments", resolved.whiten),
            };
            summary["privacy"][key] = json!({ "share": share, "sigma": release.sigma });
        }
        if !self.privacy.broken_premises.is_empty() {
            summary["privacy"]["broken_premises"] = json!(self.privacy.broken_premises);
        }
        if let Some(epsilon) = self.privacy.epsilon_exact {
            summary["privacy"]["epsilon_exact"] = json!(epsilon);
        }
        if let Some(deployed) = &self.deployed {
            deployed.describe(&mut summary);
        }
        if let Some(gossip) = self.gossip() {
            summary["gossip"] = gossip;
        }
        if resolved.output == Output::Random {
            summary["output"] = json!({ "random_round_of": resolved.rounds });
        }
        if self.diverged() {
            summary["diverged"] = json!(true);
        }
        if self.interrupted {
            summary["interrupted"] = json!(true);
            summary["rounds_planned"] = json!(resolved.specification().last_round());
            // The claim stays that of the whole schedule: stopping by what one sees is not covered
            // by the smaller number, which is for information.
            if let Some(spending) = &self.privacy.odometer {
                summary["privacy"]["epsilon_spent"] = json!(spending.after(u64::from(self.rounds)));
            }
        }
        summary
    }
}

impl RunResult<'_> {
    /// Who talked to whom, where there was no server.
    fn gossip(&self) -> Option<Value> {
        let (gossip, graph) = (self.resolved.gossip.as_ref()?, self.resolved.graph()?);
        Some(json!({
            "topology": gossip::shown(&gossip.topology),
            "edges": graph.edges(),
            "spectral_gap": graph.spectral_gap(),
            "mixing": gossip.mixing,
            "consensus_error": self.metrics.consensus_error.and_then(finite),
        }))
    }
}

/// Numbers that JSON cannot hold become null.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// One line on what travels.
pub fn compressor_text(compressor: CompressorKind, dimension: usize) -> String {
    match compressor {
        CompressorKind::Identity => format!("all {dimension} coordinates"),
        CompressorKind::RandK { k } if k == dimension => format!("all {dimension} coordinates"),
        CompressorKind::RandK { k } => {
            format!(
                "random-k, {k} of {dimension} coordinates ({:.1}%)",
                100.0 * k as f64 / dimension as f64
            )
        }
        CompressorKind::Qsgd { levels } => format!("qsgd, {levels} levels"),
        CompressorKind::Grid { step, bits } => {
            format!("multiples of {} in {bits} bits", readable(step))
        }
        CompressorKind::TopK { k } => format!(
            "the {k} largest of {dimension} coordinates ({:.1}%)",
            100.0 * k as f64 / dimension as f64
        ),
        CompressorKind::Natural => "natural compression, 9 bits a coordinate".to_string(),
    }
}
