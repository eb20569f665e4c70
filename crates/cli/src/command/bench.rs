//! `soteria bench`: the tables of rounds and growth of `docs/performance.md`, measured on this
//! machine.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use soteriafl_core::linalg::{self, Matrix};
use soteriafl_core::simulate::EvaluationPlan;

use super::inputs::DataDirectory;
use super::{Failure, Verbosity, all_cores, print, print_json};
use soteriafl::config::{Config, Document};
use soteriafl::problem::{Problem, regularizer};
use soteriafl::run;

/// Measure this machine: the tables of rounds and growth of docs/performance.md
///
/// Times are the best of several repetitions; compare numbers of one run only. Without MNIST a
/// synthetic stand-in of the same shape is used.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Which tables [default: all]
    #[arg(value_enum)]
    tables: Vec<Table>,
    /// Leave out what takes long (100,000 clients, 10 million parameters)
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    data: DataDirectory,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Table {
    /// Dense matrix products: the roof.
    Machine,
    /// Rounds of the paper's two problems.
    Rounds,
    /// Growth with the number of clients.
    Clients,
    /// Growth with the number of parameters.
    Dimension,
    /// Growth with the number of records.
    Records,
}

/// One line of a table.
struct Line {
    table: &'static str,
    name: String,
    threads: usize,
    microseconds: f64,
    state_bytes: usize,
    note: String,
}

/// Runs the command.
///
/// # Errors
/// When a problem cannot be set up.
pub fn run(options: &Options, verbosity: Verbosity) -> Result<(), Failure> {
    let all = [
        Table::Machine,
        Table::Rounds,
        Table::Clients,
        Table::Dimension,
        Table::Records,
    ];
    let tables = if options.tables.is_empty() {
        &all[..]
    } else {
        &options.tables[..]
    };
    let cores = all_cores();
    let mut bench = Bench {
        options,
        verbosity,
        cores,
        lines: Vec::new(),
    };
    for table in tables {
        match table {
            Table::Machine => bench.machine(),
            Table::Rounds => bench.rounds()?,
            Table::Clients => bench.clients()?,
            Table::Dimension => bench.dimension()?,
            Table::Records => bench.records()?,
        }
    }
    if options.json {
        let lines: Vec<Value> = bench.lines.iter().map(Line::to_json).collect();
        print_json(&json!({ "cores": cores, "lines": lines }))?;
    } else {
        for line in &bench.lines {
            print(&format!("{}\n", line.to_text()))?;
        }
    }
    Ok(())
}

impl Line {
    fn to_json(&self) -> Value {
        json!({
            "table": self.table, "name": self.name, "threads": self.threads,
            "microseconds": self.microseconds, "state_bytes": self.state_bytes, "note": self.note,
        })
    }

    fn to_text(&self) -> String {
        let time = match self.microseconds {
            slow if slow >= 1e4 => format!("{:.1} ms", slow / 1e3),
            fast => format!("{fast:.1} us"),
        };
        let state = match self.state_bytes {
            0 => String::new(),
            bytes => format!("{}", indicatif::HumanBytes(bytes as u64)),
        };
        format!(
            "{:<10} {:<44} {:>2} threads {time:>12} {state:>12}  {}",
            self.table, self.name, self.threads, self.note
        )
    }
}

struct Bench<'a> {
    options: &'a Options,
    verbosity: Verbosity,
    cores: usize,
    lines: Vec<Line>,
}

impl Bench<'_> {
    fn machine(&mut self) {
        for (m, k, n) in [(6000, 784, 64), (128, 784, 64)] {
            let (a, b, mut c) = (vec![0.5f32; m * k], vec![0.25f32; k * n], vec![0f32; m * n]);
            let seconds = best(Duration::from_millis(600), || {
                linalg::matmul(&mut c, Matrix::new(&a, m, k, k), Matrix::new(&b, k, n, n));
                black_box(&mut c);
            });
            let rate = 2.0 * (m * k * n) as f64 / seconds / 1e9;
            self.lines.push(Line {
                table: "machine",
                name: format!("matrix product {m}x{k} by {k}x{n}, f32"),
                threads: 1,
                microseconds: seconds * 1e6,
                state_bytes: 0,
                note: format!("{rate:.0} GFLOP/s"),
            });
        }
    }

    fn rounds(&mut self) -> Result<(), Failure> {
        let a9a = [
            "data.source=a9a",
            "algorithm.batch=51",
            "privacy.sigma=0.0028",
        ];
        let image = self.image_source();
        let mnist = [
            image.as_str(),
            "model.kind=mlp",
            "algorithm.batch=128",
            "privacy.sigma=0.0186",
            "model.init=normal:0.2",
        ];
        for threads in self.thread_counts() {
            for estimator in ["gd", "sgd", "svrg", "saga"] {
                let preset = format!("algorithm.preset=soteriafl-{estimator}");
                self.measure(
                    "rounds",
                    format!("a9a, soteriafl-{estimator}"),
                    threads,
                    &a9a,
                    &[&preset],
                    2000,
                )?;
            }
            for estimator in ["gd", "sgd", "svrg", "saga"] {
                let preset = format!("algorithm.preset=soteriafl-{estimator}");
                let name = format!("784-64-10 network, soteriafl-{estimator}");
                self.measure("rounds", name, threads, &mnist, &[&preset], 60)?;
            }
            let selected = ["algorithm.preset=auto"];
            self.measure(
                "rounds",
                "784-64-10 network, auto".into(),
                threads,
                &mnist[..2],
                &selected,
                10,
            )?;
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<(), Failure> {
        let most = if self.options.quick { 10_000 } else { 100_000 };
        for clients in [10, 100, 1_000, 10_000, 100_000]
            .into_iter()
            .filter(|n| *n <= most)
        {
            let source = format!("data.source=synthetic:{}x20", clients * 10);
            let count = format!("data.clients={clients}");
            let sets = [
                source.as_str(),
                &count,
                "data.partition=iid",
                "algorithm.preset=soteriafl-sgd",
                "algorithm.batch=5",
                "privacy.sigma=0.1",
            ];
            self.measure(
                "clients",
                format!("{clients} clients of 10 records"),
                self.cores,
                &sets,
                &[],
                20,
            )?;
        }
        Ok(())
    }

    fn dimension(&mut self) -> Result<(), Failure> {
        let most = if self.options.quick { 10_000 } else { 100_000 };
        for hidden in [1, 10, 100, 1_000, 10_000, 90_000]
            .into_iter()
            .filter(|hidden| *hidden <= most)
        {
            let layers = format!("model.hidden=[{hidden}]");
            let sets = [
                "data.source=synthetic:640x100x10",
                "data.clients=10",
                "model.kind=mlp",
                layers.as_str(),
                "algorithm.preset=soteriafl-sgd",
                "algorithm.batch=16",
                "privacy.sigma=0.1",
            ];
            let parameters = 101 * hidden + 10 * (hidden + 1);
            self.measure(
                "dimension",
                format!("{parameters} parameters"),
                self.cores,
                &sets,
                &[],
                10,
            )?;
        }
        Ok(())
    }

    fn records(&mut self) -> Result<(), Failure> {
        for records in [100, 1_000, 10_000, 100_000] {
            let source = format!("data.source=synthetic:{}x100", 10 * records);
            let sets = [
                source.as_str(),
                "data.clients=10",
                "data.partition=iid",
                "privacy.sigma=0.1",
            ];
            for estimator in ["gd", "sgd", "saga"] {
                let preset = format!("algorithm.preset=soteriafl-{estimator}");
                let extra: &[&str] = if estimator == "gd" {
                    &[&preset]
                } else {
                    &[&preset, "algorithm.batch=64"]
                };
                let name = format!("{records} records a client, {estimator}");
                self.measure("records", name, self.cores, &sets, extra, 20)?;
            }
        }
        Ok(())
    }

    fn thread_counts(&self) -> Vec<usize> {
        if self.cores > 1 {
            vec![1, self.cores]
        } else {
            vec![1]
        }
    }

    fn image_source(&self) -> String {
        let directories = self.options.data.directories();
        match "mnist"
            .parse::<soteriafl_core::data::Source>()
            .map(|source| source.load(&directories, 0))
        {
            Ok(Ok(_)) => "data.source=mnist".to_string(),
            _ => {
                self.verbosity
                    .warn("MNIST not found: dense synthetic data of the same shape instead");
                "data.source=synthetic:60000x784x10".to_string()
            }
        }
    }

    /// Best time of a round over three runs of `rounds` rounds, the first one discarded as warm-up.
    fn measure(
        &mut self,
        table: &'static str,
        name: String,
        threads: usize,
        sets: &[&str],
        more: &[&str],
        rounds: u32,
    ) -> Result<(), Failure> {
        self.verbosity
            .say(format!("measuring {name} on {threads} threads"));
        let mut document = Document::default();
        for assignment in sets.iter().chain(more) {
            document.set(assignment)?;
        }
        document.set("run.eval_every=0")?;
        document.set(&format!("algorithm.rounds={rounds}"))?;
        let config = Config::read(&document)?;
        let directories = self.options.data.directories();
        let problem = Problem::load(&config, &directories)?;
        let (resolved, _) = config.resolve(&problem.shape(&config)?)?;
        let sigmas = vec![0.01; problem.shards.len()];
        let weights = problem.weights(&resolved);
        let plan = EvaluationPlan {
            objective: problem.objective.as_ref(),
            regularizer: regularizer(resolved.regularizer, resolved.lambda),
            weights: &weights,
            test: None,
            every: 0,
            from: 0,
        };
        let (mut fastest, mut state_bytes) = (f64::INFINITY, 0);
        for _ in 0..3 {
            let mut simulation = run::simulation(&resolved, &problem, &sigmas)?;
            let mut mark = Instant::now();
            let (mut quickest, warm) = (f64::INFINITY, (rounds / 5).max(1));
            let stretch = ((rounds - warm) / 8).max(1);
            simulation.run(threads, &plan, |progress, _| {
                // The best of eight stretches after the warm-up: the machine has other things to do too.
                if progress.round >= warm && (progress.round - warm) % stretch == 0 {
                    let now = Instant::now();
                    if progress.round > warm {
                        quickest =
                            f64::min(quickest, (now - mark).as_secs_f64() / f64::from(stretch));
                    }
                    mark = now;
                }
                ControlFlow::Continue(())
            });
            fastest = fastest.min(quickest);
            state_bytes = simulation.state_bytes();
        }
        let note = format!("{:.0} rounds/s", 1.0 / fastest);
        self.lines.push(Line {
            table,
            name,
            threads,
            microseconds: fastest * 1e6,
            state_bytes,
            note,
        });
        Ok(())
    }
}

/// The best time of many calls within `budget`.
fn best(budget: Duration, mut work: impl FnMut()) -> f64 {
    work();
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < budget {
        let call = Instant::now();
        work();
        best = best.min(call.elapsed().as_secs_f64());
    }
    best
}
