//! The paper's experiments as they were published (whole estimates clipped, sampling with
//! replacement, the paper's noise), against values measured from the authors' algorithms.
//!
//! Each band is a mean and standard deviation over seeds. Ours must agree within three standard
//! errors of the difference: for independent normal means a pair of them fails with probability
//! 0.0027 (more with three seeds, where the spread itself is uncertain), but the seeds here are
//! fixed. a9a is tested in full; of MNIST, which needs its files, two algorithms at one epsilon.
//! `make bands` checks all of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use soteriafl::experiment::{Curve, Job, Measure, Pool};
use soteriafl::reproduce::published::{A9A_START, ALGORITHMS, Algorithm, FIGURES, Task};
use soteriafl::reproduce::settings::{Data, Mode};
use soteriafl::reproduce::{Entry, Results, Verdict};
use soteriafl_data::DataDirectories;

fn run(
    task: Task,
    epsilons: &[f64],
    algorithms: &[Algorithm],
    seeds: u64,
    eval_every: u32,
    directories: &DataDirectories,
) -> Results {
    let folder = tempfile::tempdir().unwrap();
    let start = folder.path().join("start.csv");
    std::fs::write(&start, A9A_START).unwrap();
    let data = Data::load(task, &start, directories).unwrap();
    let setups = FIGURES
        .iter()
        .filter(|setup| setup.task == task && epsilons.contains(&setup.epsilon));
    let mut entries = Vec::new();
    for setup in setups {
        for &algorithm in algorithms {
            let setting = data
                .setting(setup, Mode::Published, algorithm, eval_every)
                .unwrap();
            entries.push(Entry {
                setup: *setup,
                mode: Mode::Published,
                algorithm: Some(algorithm),
                setting,
                curve: Curve { runs: Vec::new() },
            });
        }
    }
    let jobs: Vec<Job> = entries
        .iter()
        .flat_map(|entry| {
            (0..seeds).map(|seed| Job {
                setting: entry.setting.clone(),
                seed,
            })
        })
        .collect();
    let pool = Pool {
        threads: 2,
        directory: &folder.path().join("jobs"),
        interrupted: &AtomicBool::new(false),
        show_progress: false,
    };
    let mut outcomes = pool.run(&jobs, |_| {}).unwrap().into_iter();
    for entry in &mut entries {
        entry.curve.runs = outcomes.by_ref().take(seeds as usize).collect();
        assert_eq!(
            entry.curve.runs[0].epsilon, None,
            "nothing is claimed for this"
        );
        assert_eq!(entry.curve.runs[0].claim.to_string(), "paper calibration");
    }
    Results { entries }
}

fn assert_within_bands(results: &Results, expected: usize) {
    let comparisons = results.comparisons();
    assert_eq!(comparisons.len(), expected);
    for (entry, comparison) in comparisons {
        assert!(
            comparison.within() == Some(true),
            "{} on {} at epsilon {}: {} {:.4} is {:.1?} standard errors from {}",
            entry.name(),
            entry.setup.task.title(),
            entry.setup.epsilon,
            comparison.measure.name(),
            comparison.ours.mean,
            comparison.distance,
            comparison.theirs.mean
        );
    }
}

/// All five algorithms at epsilon 1 and 5, ten seeds; and what the paper says about them, with what
/// fails of it.
#[test]
fn a9a_falls_into_its_bands_and_orders_as_it_should() {
    let none = DataDirectories::new(Vec::new());
    let results = run(Task::A9a, &[1.0, 5.0], &ALGORITHMS, 10, 1, &none);
    for entry in &results.entries {
        let start = entry.curve.points()[0].grad_norm_sq.sqrt();
        assert!(
            (start - 0.896045).abs() < 1e-5,
            "the start differs: {start}"
        );
        let loss = entry.curve.points()[0].loss;
        assert!((loss - 1.62973).abs() < 1e-5, "the start differs: {loss}");
    }
    assert_within_bands(&results, 20);
    // Means further apart than three standard errors: by chance with probability 0.0027 each.
    for ordering in results.orderings() {
        let shift = ordering.claim.starts_with("shifted");
        let decided =
            !shift || (ordering.setup.epsilon == 5.0 && ordering.measure == Measure::Utility);
        let expected = if decided {
            Verdict::Holds
        } else {
            // Tuned for this little noise, direct compression is as good: the paper's claim is not
            // seen here.
            Verdict::Open
        };
        assert_eq!(ordering.verdict, expected, "{ordering:?}");
    }
}

#[test]
fn mnist_falls_into_its_bands() {
    let Some(directory) = shared_data() else {
        eprintln!("skipped: no MNIST files (SOTERIA_SHARED names the folder with data/mnist)");
        return;
    };
    let directories = DataDirectories::new(vec![directory]);
    let algorithms = [Algorithm::LdpSgd, Algorithm::SoteriaSgd];
    // Evaluated rarely: the line between two evaluations is close enough to what lies between them.
    let results = run(Task::Mnist, &[1.0], &algorithms, 3, 10, &directories);
    assert_within_bands(&results, 6);
}

fn shared_data() -> Option<PathBuf> {
    let shared = std::env::var_os("SOTERIA_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let data = shared.join("data");
    data.join("mnist").is_dir().then_some(data)
}

/// What the documentation says of SVRG in both modes: the paper's probability `b/m`; differences
/// clipped to `G/4` where records are, and not at all as published.
#[test]
fn svrg_is_reproduced_with_the_papers_probability() {
    let folder = tempfile::tempdir().unwrap();
    let start = folder.path().join("start.csv");
    std::fs::write(&start, A9A_START).unwrap();
    let data = Data::load(Task::A9a, &start, &DataDirectories::new(Vec::new())).unwrap();
    let setup = &FIGURES[0];
    for (mode, bound) in [(Mode::Published, None), (Mode::Proved, Some(0.125))] {
        for algorithm in [Algorithm::LdpSvrg, Algorithm::SoteriaSvrg] {
            let resolved = &data.setting(setup, mode, algorithm, 0).unwrap().resolved;
            assert_eq!(resolved.snapshot_probability, 54.0 / 3256.0);
            assert_eq!(resolved.difference_clip, bound);
        }
    }
}
