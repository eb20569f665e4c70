//! `soteria bench`: the tables of rounds and growth of `docs/performance.md`, measured on this
//! machine.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use soteriafl_core::linalg::{self, Matrix};
use soteriafl_core::simulate::EvaluationPlan;
use soteriafl_data::Source;

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
        let a9a = "data.source=a9a algorithm.batch=51 privacy.sigma=0.0028";
        let image = format!("{} model.kind=mlp", self.image_source());
        let mnist =
            format!("{image} algorithm.batch=128 privacy.sigma=0.0186 model.init=normal:0.2");
        for threads in self.thread_counts() {
            for (problem, settings, rounds) in
                [("a9a", a9a, 2000), ("784-64-10 network", &mnist, 60)]
            {
                for estimator in ["gd", "sgd", "svrg", "saga"] {
                    let preset = format!("soteriafl-{estimator}");
                    let settings = format!("{settings} algorithm.preset={preset}");
                    let name = format!("{problem}, {preset}");
                    self.measure("rounds", name, threads, &settings, rounds)?;
                }
            }
            let settings = format!("{image} algorithm.preset=auto");
            let name = "784-64-10 network, auto".to_string();
            self.measure("rounds", name, threads, &settings, 10)?;
        }
        Ok(())
    }

    fn clients(&mut self) -> Result<(), Failure> {
        let most = if self.options.quick { 10_000 } else { 100_000 };
        let counts = [10, 100, 1_000, 10_000, 100_000];
        for clients in counts.into_iter().filter(|clients| *clients <= most) {
            let settings = format!(
                "data.source=synthetic:{}x20 data.clients={clients} data.partition=iid \
                 algorithm.preset=soteriafl-sgd algorithm.batch=5 privacy.sigma=0.1",
                clients * 10
            );
            let name = format!("{clients} clients of 10 records");
            self.measure("clients", name, self.cores, &settings, 20)?;
        }
        Ok(())
    }

    fn dimension(&mut self) -> Result<(), Failure> {
        let most = if self.options.quick { 10_000 } else { 100_000 };
        let widths = [1, 10, 100, 1_000, 10_000, 90_000];
        for hidden in widths.into_iter().filter(|hidden| *hidden <= most) {
            let settings = format!(
                "data.source=synthetic:640x100x10 data.clients=10 model.kind=mlp \
                 model.hidden=[{hidden}] algorithm.preset=soteriafl-sgd algorithm.batch=16 \
                 privacy.sigma=0.1"
            );
            let name = format!("{} parameters", 101 * hidden + 10 * (hidden + 1));
            self.measure("dimension", name, self.cores, &settings, 10)?;
        }
        Ok(())
    }

    fn records(&mut self) -> Result<(), Failure> {
        for records in [100, 1_000, 10_000, 100_000] {
            for (estimator, batch) in [
                ("gd", ""),
                ("sgd", "algorithm.batch=64"),
                ("saga", "algorithm.batch=64"),
            ] {
                let settings = format!(
                    "data.source=synthetic:{}x100 data.clients=10 data.partition=iid \
                     privacy.sigma=0.1 algorithm.preset=soteriafl-{estimator} {batch}",
                    10 * records
                );
                let name = format!("{records} records a client, {estimator}");
                self.measure("records", name, self.cores, &settings, 20)?;
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

    fn image_source(&self) -> &'static str {
        let directories = self.options.data.directories();
        let mnist = "mnist".parse::<Source>();
        if mnist.is_ok_and(|mnist| mnist.load(&directories, 0).is_ok()) {
            return "data.source=mnist";
        }
        self.verbosity
            .warn("MNIST not found: dense synthetic data of the same shape instead");
        "data.source=synthetic:60000x784x10"
    }

    /// Best time of a round over three runs of `rounds` rounds with these settings, which are
    /// `KEY=VALUE` with spaces between.
    fn measure(
        &mut self,
        table: &'static str,
        name: String,
        threads: usize,
        settings: &str,
        rounds: u32,
    ) -> Result<(), Failure> {
        self.verbosity
            .say(format!("measuring {name} on {threads} threads"));
        let mut document = Document::default();
        for assignment in settings.split_whitespace() {
            document.set(assignment)?;
        }
        document.set("run.eval_every=0")?;
        document.set(&format!("algorithm.rounds={rounds}"))?;
        let config = Config::read(&document)?;
        let directories = self.options.data.directories();
        let problem = Problem::load(&config, &directories)?;
        let (resolved, _) = problem.resolve(&config)?;
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
            let ended = simulation.run(threads, &plan, |progress, _| {
                // The best of eight stretches after the warm-up: other programs run too.
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
            ended.map_err(|error| Failure::Failed(error.to_string()))?;
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
