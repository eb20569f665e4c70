//! Second moments, released once: what they cost together with the rounds, and what a run makes of
//! them.

use std::ops::ControlFlow;

use soteriafl::accounting::{self, Privacy};
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Document};
use soteriafl::problem::{Problem, regularizer};
use soteriafl::run;
use soteriafl_accountant::largest_mu;
use soteriafl_core::simulate::EvaluationPlan;
use soteriafl_data::DataDirectories;

const BASE: [&str; 5] = [
    "data.source=synthetic:600x5x3",
    "data.clients=4",
    "model.kind=softmax",
    "data.features=unit",
    "data.whiten=0.15",
];

fn load(settings: &[&str]) -> (Problem, Resolved) {
    let mut document = Document::default();
    for assignment in BASE.iter().chain(settings) {
        document.set(assignment).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let problem = Problem::load(&config, &DataDirectories::default()).unwrap();
    let (resolved, _) = problem.resolve(&config).unwrap();
    (problem, resolved)
}

fn sizes(problem: &Problem) -> Vec<usize> {
    problem.shards.iter().map(|shard| shard.rows()).collect()
}

/// For whole gradients release and rounds compose in closed form: `mu` squared of both adds up to
/// that of the target.
#[test]
fn release_and_rounds_together_cost_the_target() {
    for (adjacency, distance) in [("replace-one", 2.0), ("zero-out", 1.0)] {
        for (epsilon, share) in [(1.0, 0.15), (8.0, 0.4)] {
            let (problem, resolved) = load(&[
                &format!("privacy.adjacency={adjacency}"),
                &format!("privacy.epsilon={epsilon}"),
                &format!("data.whiten={share}"),
                "data.partition=dirichlet",
            ]);
            let (run, records) = (resolved.specification(), sizes(&problem));
            let dimension = problem.objective.dimension();
            let privacy = Privacy::calibrate(&run, dimension, &records, false).unwrap();
            let claimed = privacy.epsilon.unwrap();
            assert!(claimed <= epsilon && claimed > 0.999 * epsilon, "{claimed}");
            let mu = largest_mu(epsilon, run.delta);
            for (&m, &sigma) in records.iter().zip(&privacy.sigmas) {
                let released = accounting::preliminaries(&run, m).unwrap().remove(0);
                let root = if distance == 2.0 { 2f64.sqrt() } else { 1.0 };
                let first = root / (m as f64 * released.sigma);
                let rounds = f64::from(run.rounds).sqrt() * distance * resolved.clip;
                let rest = rounds / (m as f64 * sigma);
                assert!((first * first / (share * mu * mu) - 1.0).abs() < 1e-4);
                let both = (first * first + rest * rest) / (mu * mu);
                assert!(both <= 1.0 + 1e-9 && both > 0.999, "{m}: {both}");
            }
            // After every round less has been spent, and at the start not nothing.
            let spent = privacy.odometer.unwrap();
            assert!(spent.after(0) > 0.0 && spent.after(1) < claimed);
        }
    }
}

/// By Rényi divergences it takes more noise, and the exact epsilon stays below the target.
#[test]
fn the_other_accountant_counts_it_too() {
    let (problem, resolved) = load(&["privacy.accountant=rdp"]);
    let (run, records) = (resolved.specification(), sizes(&problem));
    let dimension = problem.objective.dimension();
    let level = |run| {
        accounting::level(run, dimension, &records)
            .unwrap()
            .unwrap()
    };
    let (_, exact) = load(&[]);
    let exact = exact.specification();
    assert!(level(&run).sigma > level(&exact).sigma);
    assert!(level(&run).epsilon <= 1.0);
    let without = soteriafl::specification::Specification {
        moments: None,
        ..exact.clone()
    };
    assert!(level(&exact).sigma > level(&without).sigma);
}

fn model(problem: &Problem, resolved: &Resolved, threads: usize) -> (Vec<f32>, u64) {
    let (run, records) = (resolved.specification(), sizes(problem));
    let dimension = problem.objective.dimension();
    let privacy = Privacy::calibrate(&run, dimension, &records, false).unwrap();
    let mut simulation = run::simulation(resolved, problem, &privacy.sigmas).unwrap();
    let weights = problem.weights(resolved);
    let plan = EvaluationPlan {
        objective: problem.objective.as_ref(),
        regularizer: regularizer(resolved.regularizer, resolved.lambda),
        weights: &weights,
        test: problem.test.as_ref(),
        every: 0,
        from: 0,
    };
    let mut up = 0;
    simulation
        .run(threads, &plan, |progress, _| {
            up = progress.traffic.uplink_bytes;
            ControlFlow::Continue(())
        })
        .unwrap();
    (simulation.server().model().as_ref().clone(), up)
}

/// Records keep length one, the digest of the records is that of what was read, the bits are the
/// same on any number of threads, with both kinds of noise; other seeds release other moments.
#[test]
fn a_whitened_run_is_a_function_of_its_seed() {
    for noise in ["float", "secure"] {
        let noise = format!("privacy.noise={noise}");
        let (problem, resolved) = load(&[&noise]);
        let whitened = problem.whitened(&resolved).unwrap();
        assert_eq!(whitened.digest(), problem.digest());
        for set in whitened
            .shards
            .iter()
            .map(AsRef::as_ref)
            .chain(&whitened.test)
        {
            assert!(
                set.squared_norms()
                    .iter()
                    .all(|norm| (norm - 1.0).abs() < 1e-6)
            );
        }
        let (found, up) = model(&whitened, &resolved, 1);
        assert_eq!((found, up), model(&whitened, &resolved, 3));
        // Six numbers a record: twenty-one entries beside each client's rounds.
        let rounds = 4 * u64::from(resolved.rounds) * (10 + 4 * 18);
        assert_eq!(up, rounds + 4 * (10 + 4 * 21));
        let (_, other) = load(&[&noise, "run.seed=1"]);
        let other = problem.whitened(&other).unwrap();
        assert_ne!(whitened.whitening, other.whitening);
    }
}

/// A run that says it is whitened cannot run on records that are not.
#[test]
fn records_that_were_not_whitened_are_refused() {
    let (problem, resolved) = load(&[]);
    let sigmas = vec![1.0; problem.shards.len()];
    let error = run::simulation(&resolved, &problem, &sigmas).err().unwrap();
    assert!(error.to_string().contains("not whitened"), "{error}");
}

#[test]
fn what_has_no_proof_is_refused_with_its_key() {
    for (settings, said) in [
        (&["data.features=none"][..], "data.features"),
        (&["privacy.sigma=0.1"], "privacy.epsilon"),
        (&["privacy.epsilon=none"], "privacy.epsilon"),
        (&["privacy.accountant=paper"], "privacy.accountant"),
    ] {
        let mut document = Document::default();
        for assignment in BASE.iter().chain(settings) {
            document.set(assignment).unwrap();
        }
        let config = Config::read(&document).unwrap();
        let error = Problem::load(&config, &DataDirectories::default()).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains("`data.whiten`") && error.contains(said),
            "{error}"
        );
    }
    for wrong in ["0", "1", "1.5", "all"] {
        let mut document = Document::default();
        document.set(&format!("data.whiten={wrong}")).unwrap();
        assert!(Config::read(&document).is_err(), "{wrong}");
    }
}
