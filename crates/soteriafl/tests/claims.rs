//! One way from a configuration to a sigma or an epsilon: whatever sigma is printed for a target, a
//! run with it claims no more than the target.

use proptest::prelude::*;
use soteriafl::accounting::Privacy;
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Document};
use soteriafl::planning::{Inquiry, Known, Row};
use soteriafl::problem::Problem;
use soteriafl_data::DataDirectories;

/// The run that a configuration means.
fn resolved(document: &Document) -> Resolved {
    let config = Config::read(document).unwrap();
    let problem = Problem::load(&config, &DataDirectories::from_environment(None)).unwrap();
    let (resolved, _) = config.resolve(&problem.shape(&config).unwrap()).unwrap();
    resolved
}

/// What `soteria train` claims for this configuration: the steps of the command up to its first
/// round.
fn train(document: &Document) -> Result<Privacy, String> {
    let config = Config::read(document).map_err(|error| error.to_string())?;
    let problem = Problem::load(&config, &DataDirectories::from_environment(None))
        .map_err(|error| error.to_string())?;
    let shape = problem.shape(&config).map_err(|error| error.to_string())?;
    let (resolved, _) = config.resolve(&shape).map_err(|error| error.to_string())?;
    Privacy::calibrate(
        &resolved.specification(),
        problem.objective.dimension(),
        &shape.records,
        problem.data_dependent(),
    )
    .map_err(|error| error.to_string())
}

/// The plan of this configuration, as `soteria plan --config` makes it, for a given smoothness.
fn plan(document: &Document) -> Result<Vec<Row>, String> {
    let config = Config::read(document).map_err(|error| error.to_string())?;
    let problem = Problem::load(&config, &DataDirectories::from_environment(None))
        .map_err(|error| error.to_string())?;
    let shape = problem.shape(&config).map_err(|error| error.to_string())?;
    let known = Known {
        clients: problem.shards.len() as f64,
        smoothness: 0.3,
        smoothness_from_data: false,
        omega: None,
    };
    let inquiry = Inquiry::new(document.clone(), Vec::new(), shape, &known)
        .map_err(|error| error.to_string())?;
    inquiry.rows(0.01).map_err(|error| error.to_string())
}

fn document(settings: &[String]) -> Document {
    let mut document = Document::default();
    for assignment in settings {
        document.set(assignment).unwrap();
    }
    document
}

/// This configuration with fixed noise in place of its target.
fn with_sigma(base: &Document, settings: &[String], sigma: f64) -> Document {
    let mut document = base.clone();
    for assignment in settings {
        document.set(assignment).unwrap();
    }
    document.remove("privacy.epsilon");
    document.set(&format!("privacy.sigma={sigma}")).unwrap();
    document
}

/// A sigma has six digits, rounded up, and a fixed one is assessed by the same function. Clients
/// with more records than the one that decides get more noise than they need; between two sigmas
/// the grids of the accountants may differ by a part in a million.
const TOLERANCE: f64 = 1e-6;

fn configurations() -> impl Strategy<Value = (Vec<String>, f64)> {
    let pick = |key: &'static str, values: &'static [&'static str]| {
        prop::sample::select(values).prop_map(move |value| match value {
            "" => None,
            value => Some(format!("{key}={value}")),
        })
    };
    let algorithm = (
        pick(
            "algorithm.preset",
            &[
                "auto",
                "auto",
                "soteriafl-gd",
                "soteriafl-sgd",
                "soteriafl-svrg",
                "soteriafl-saga",
                "soteriafl-sag",
                "cdp-sgd",
                "ldp-svrg",
                "dp-sgd",
                "ldp-srm",
                "ldp-spider",
                "diff2",
            ],
        ),
        pick(
            "algorithm.estimator",
            &["", "", "", "gd", "sgd", "svrg", "saga", "sag", "recursive"],
        ),
        pick("algorithm.compressor", &["", "rand-k", "identity", "qsgd"]),
        pick("algorithm.fraction", &["", "0.1", "0.5", "1.0"]),
        pick("algorithm.coordinates", &["", "own", "shared"]),
        pick("algorithm.participation", &["", "0.5"]),
        pick("algorithm.rounds", &["", "7", "40"]),
    );
    let privacy = (
        pick("privacy.clip", &["", "0.2", "3"]),
        pick("privacy.clip_scope", &["", "record", "selected"]),
        pick("privacy.amplification", &["", "auto", "off"]),
        pick("privacy.adjacency", &["", "replace-one", "zero-out"]),
        pick("privacy.difference_clip", &["", "none", "0.1"]),
        pick("privacy.accountant", &["", "", "pld", "rdp"]),
        pick("privacy.delta", &["1e-3", "1e-5"]),
        pick("privacy.noise_ratio", &["", "1", "3"]),
        pick("data.partition", &["iid", "sorted", "dirichlet"]),
    );
    let target = prop::sample::select(&[0.3, 1.0, 4.0][..]);
    (algorithm, privacy, target).prop_map(|(a, p, target)| {
        let keys = [
            a.0, a.1, a.2, a.3, a.4, a.5, a.6, p.0, p.1, p.2, p.3, p.4, p.5, p.6, p.7, p.8,
        ];
        let mut settings: Vec<String> = keys.into_iter().flatten().collect();
        settings.push("data.source=synthetic:600x12".to_string());
        if !settings.iter().any(|key| key == "algorithm.preset=dp-sgd") {
            settings.push("data.clients=3".to_string());
        }
        settings.push("data.alpha=5".to_string());
        settings.push(format!("privacy.epsilon={target}"));
        (settings, target)
    })
}

/// Rows with a sigma, checked.
fn check(settings: &[String], target: f64) -> Result<usize, TestCaseError> {
    let base = document(settings);
    let mut checked = 0;
    let mut claims_no_more = |document: Document, what: String| {
        let privacy = train(&document)
            .map_err(|error| TestCaseError::fail(format!("{what} with {settings:?}: {error}")))?;
        prop_assert_eq!(
            privacy.claim.to_string(),
            "proved",
            "{} with {:?}",
            what,
            settings
        );
        let epsilon = privacy.epsilon.unwrap();
        prop_assert!(
            epsilon <= target * (1.0 + TOLERANCE),
            "{} with {:?}: epsilon {}",
            what,
            settings,
            epsilon
        );
        checked += 1;
        Ok(())
    };
    if let Ok(privacy) = train(&base) {
        let sigma = privacy.sigmas.iter().copied().fold(0.0, f64::max);
        // Some choices depend on whether there is an epsilon; in the written configuration none is
        // left.
        let written = Document::from_text(&resolved(&base).to_toml(), "config.toml").unwrap();
        claims_no_more(with_sigma(&written, &[], sigma), "train".to_string())?;
    }
    for row in plan(&base).unwrap_or_default() {
        if let Some(level) = row.exact {
            let run = with_sigma(&base, &row.settings, level.sigma);
            claims_no_more(run, format!("plan, {}", row.name))?;
        }
    }
    Ok(checked)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sigma_for_a_target_never_costs_more((settings, target) in configurations()) {
        check(&settings, target)?;
    }
}

/// The property above is about something: of these configurations every row has a sigma.
#[test]
fn rows_have_a_sigma_to_check() {
    let small = [
        "data.source=synthetic:600x12",
        "data.clients=3",
        "privacy.epsilon=1",
    ];
    let owned = |more: &[&str]| -> Vec<String> {
        small.iter().chain(more).map(ToString::to_string).collect()
    };
    for more in [
        &[][..],
        &["algorithm.preset=soteriafl-saga"],
        &["algorithm.coordinates=shared", "privacy.amplification=off"],
        &["privacy.adjacency=zero-out", "privacy.accountant=rdp"],
        &["algorithm.preset=ldp-srm"],
        &["algorithm.preset=ldp-spider"],
    ] {
        assert_eq!(check(&owned(more), 1.0).unwrap(), 6, "{more:?}");
    }
    // Selected scope has a proof for gd and sgd alone; the other rows have no sigma.
    let selected = owned(&["privacy.clip_scope=selected"]);
    assert_eq!(check(&selected, 1.0).unwrap(), 4);
}

/// ClipScope and coordinates decide whether random-k saves noise: it does not where the clip bounds
/// what travels, and not where everybody knows the coordinates.
#[test]
fn random_k_saves_once() {
    let settings = |more: &[&str]| -> Vec<String> {
        let base = [
            "data.source=synthetic:3000x60",
            "data.clients=3",
            "privacy.epsilon=1",
            "privacy.clip=0.5",
        ];
        base.iter().chain(more).map(ToString::to_string).collect()
    };
    let gd = |more: &[&str]| {
        let rows = plan(&document(&settings(more))).unwrap();
        let row = rows.into_iter().find(|row| row.name == "SoteriaFL-GD");
        let level = row.unwrap().exact.unwrap();
        (level.sigma, level.amplified)
    };
    let (amplified, counted) = gd(&["privacy.clip_scope=record"]);
    assert!(counted);
    let off = gd(&["privacy.clip_scope=record", "privacy.amplification=off"]);
    assert!(!off.1 && off.0 > 1.5 * amplified, "{off:?} {amplified}");
    assert_eq!(gd(&["privacy.clip_scope=selected"]), off);
    let shared = ["algorithm.coordinates=shared", "privacy.amplification=off"];
    assert_eq!(gd(&shared), off);
    // Zeroing a record out changes less than replacing it.
    let zero_out = gd(&["privacy.clip_scope=selected", "privacy.adjacency=zero-out"]);
    assert!(zero_out.0 < off.0);
}

/// What the records decided is not claimed, and repeating the written settings does not bring the
/// claim back.
#[test]
fn a_step_size_from_the_records_stays_one() {
    let base: Vec<String> = [
        "data.source=synthetic:60x4",
        "data.clients=3",
        "algorithm.rounds=5",
        "algorithm.preset=soteriafl-sgd",
    ]
    .map(str::to_string)
    .to_vec();
    let written = |more: &[&str]| {
        let settings: Vec<String> = base
            .iter()
            .cloned()
            .chain(more.iter().map(ToString::to_string))
            .collect();
        resolved(&document(&settings)).to_toml()
    };
    for (more, claim) in [
        (
            &[
                "algorithm.step_size=0.5",
                "algorithm.step_size_from_data=true",
            ][..],
            "step size tuned on the records",
        ),
        (&["algorithm.step_size=theory"], "data-dependent step size"),
        (&["algorithm.step_size=0.5"], "proved"),
        (
            &[
                "algorithm.step_size=0.5",
                "algorithm.step_size_from_data=false",
            ],
            "proved",
        ),
    ] {
        let mut text = written(more);
        for _ in 0..2 {
            let again = Document::from_text(&text, "config.toml").unwrap();
            let privacy = train(&again).unwrap();
            assert_eq!(privacy.claim.to_string(), claim, "{more:?}");
            assert_eq!(privacy.epsilon.is_some(), claim == "proved", "{more:?}");
            text = resolved(&again).to_toml();
        }
    }
}

/// Where clients share the noise of one, a run claims nothing, and a plan has neither an epsilon nor
/// the noise that one client alone would need: nobody draws that.
#[test]
fn a_plan_is_silent_about_shared_noise() {
    let settings = [
        "data.source=synthetic:400x6",
        "data.clients=4",
        "data.scale=none",
        "algorithm.preset=distributed-dp-srm",
        "algorithm.rounds=5",
    ];
    let document = document(&settings.map(str::to_owned));
    let privacy = train(&document).unwrap();
    assert!(privacy.epsilon.is_none() && !privacy.claim.is_proved());
    let rows = plan(&document).unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert!(
            row.exact.is_none() && row.epsilon_of_sigma.is_none(),
            "{}",
            row.name
        );
        assert!(row.missing.is_some(), "{}", row.name);
    }
}
