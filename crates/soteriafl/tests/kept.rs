//! Kept work is of the records that are there now, and its claim is computed, not believed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use soteriafl::claim::Claim;
use soteriafl::config::{Config, Document};
use soteriafl::experiment::{Job, Outcome, Pool, Setting};
use soteriafl::problem::Problem;
use soteriafl_data::DataDirectories;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("soteria-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sixty records of two features; `turn` decides which.
fn table(turn: f64) -> String {
    let row = |i: u32| {
        let angle = turn + f64::from(i);
        let (x, y) = (angle.sin(), angle.cos());
        format!("{x},{y},{}\n", if x > 0.2 * turn { "yes" } else { "no" })
    };
    (0..60).map(row).collect()
}

fn job(file: &Path, more: &[&str]) -> Job {
    let mut document = Document::default();
    let source = format!("data.source=csv:{}", file.display());
    let settings = [
        source.as_str(),
        "data.clients=2",
        "algorithm.preset=soteriafl-gd",
        "algorithm.rounds=3",
        "algorithm.step_size=0.1",
        "data.scale=none",
    ];
    for setting in settings.iter().chain(more) {
        document.set(setting).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let problem = Problem::load(&config, &DataDirectories::from_environment(None)).unwrap();
    let (resolved, _) = config.resolve(&problem.shape(&config).unwrap()).unwrap();
    let setting = Setting::new("a run", resolved, Arc::new(problem));
    Job { setting, seed: 0 }
}

/// The outcome, and whether it was there already.
fn run(job: &Job, directory: &Path) -> (Outcome, bool) {
    let interrupted = AtomicBool::new(false);
    let pool = Pool {
        threads: 1,
        directory,
        interrupted: &interrupted,
        show_progress: false,
    };
    let mut found = 0;
    let outcomes = pool.run(std::slice::from_ref(job), |kept| found = kept);
    (outcomes.unwrap().remove(0), found == 1)
}

#[test]
fn replaced_records_are_another_job() {
    let folder = Folder::new("replaced");
    let (file, jobs) = (folder.0.join("records.csv"), folder.0.join("jobs"));
    std::fs::write(&file, table(0.0)).unwrap();
    let first = job(&file, &[]);
    let (outcome, kept) = run(&first, &jobs);
    assert!(!kept);
    assert_eq!(run(&job(&file, &[]), &jobs), (outcome.clone(), true));

    std::fs::write(&file, table(1.0)).unwrap();
    let second = job(&file, &[]);
    assert_ne!(first.key().unwrap(), second.key().unwrap());
    let (other, kept) = run(&second, &jobs);
    assert!(!kept && other.points != outcome.points);
}

#[test]
fn a_kept_claim_is_not_believed() {
    let folder = Folder::new("believed");
    let (file, jobs) = (folder.0.join("records.csv"), folder.0.join("jobs"));
    std::fs::write(&file, table(0.0)).unwrap();
    let honest = job(&file, &["algorithm.step_size_from_data=true"]);
    let (outcome, _) = run(&honest, &jobs);
    assert!(!outcome.claim.is_proved() && outcome.epsilon.is_none());

    let path = jobs.join(format!("{}.json", honest.key().unwrap()));
    let forged = Outcome {
        claim: Claim::Proved,
        epsilon: Some(0.001),
        ..outcome.clone()
    };
    std::fs::write(&path, serde_json::to_vec(&forged).unwrap()).unwrap();
    assert_eq!(run(&honest, &jobs), (outcome.clone(), true));

    // Rounds under another noise are not this job's.
    let louder = Outcome {
        sigma: 2.0 * outcome.sigma,
        ..outcome.clone()
    };
    std::fs::write(&path, serde_json::to_vec(&louder).unwrap()).unwrap();
    assert_eq!(run(&honest, &jobs), (outcome, false));
}
