//! `data.features`: what a configuration means by it, and what does not go with it.

use soteriafl::config::{Config, Document};
use soteriafl::problem::{Model, Problem, ProblemError};
use soteriafl_data::{DataDirectories, FeatureKind};

fn config(settings: &[&str]) -> Config {
    let mut document = Document::default();
    for assignment in settings {
        document.set(assignment).unwrap();
    }
    Config::read(&document).unwrap()
}

fn load(settings: &[&str]) -> Result<(Config, Problem), ProblemError> {
    let config = config(settings);
    let problem = Problem::load(&config, &DataDirectories::default())?;
    Ok((config, problem))
}

/// The map comes after the scaling and before the model, for training and test records alike; it holds the
/// intercept; and it leaves the claim alone.
#[test]
fn every_record_has_length_one_and_the_intercept_is_in_it() {
    let source = "data.source=synthetic:80x5";
    let scaled = ["data.center=0.2", "data.factor=7"];
    let (config, mapped) = load(&[&[source, "data.features=unit"], &scaled[..]].concat()).unwrap();
    let (_, bare) = load(&[&[source, "model.intercept=false"], &scaled[..]].concat()).unwrap();
    let sets = mapped.shards.iter().map(AsRef::as_ref).chain(&mapped.test);
    let before = bare.shards.iter().map(AsRef::as_ref).chain(&bare.test);
    for (set, before) in sets.zip(before) {
        for row in 0..set.rows() {
            let was = before.full_row(row);
            let whole = (was.iter().map(|v| v * v).sum::<f64>() + 0.25).sqrt();
            let expected = was.iter().copied().chain([0.5]);
            for (found, expected) in set.full_row(row).iter().zip(expected) {
                assert!((found - expected / whole).abs() < 1e-6);
            }
        }
    }
    let model = Model::Logistic {
        features: 6,
        intercept: false,
    };
    assert_eq!(mapped.preparation.model, model);
    assert!(!mapped.data_dependent());
    let (resolved, warnings) = mapped.resolve(&config).unwrap();
    assert!(!resolved.intercept && warnings.is_empty(), "{warnings:?}");
    assert_eq!(resolved.feature_map, FeatureKind::Unit);
    // Reading back what was resolved gives the same.
    let again = Document::from_text(&resolved.to_toml(), "config.toml").unwrap();
    let again = Config::read(&again).unwrap();
    let (again, _) = mapped.resolve(&again).unwrap();
    assert_eq!(again.to_toml(), resolved.to_toml());
    // Whoever asks for an intercept hears that there is one.
    let (config, problem) = load(&[source, "data.features=unit", "model.intercept=true"]).unwrap();
    let (_, warnings) = problem.resolve(&config).unwrap();
    assert!(
        warnings[0].contains("`model.intercept` is ignored"),
        "{warnings:?}"
    );
}

#[test]
fn what_does_not_go_with_a_map_is_refused_with_its_key() {
    let image = "data.source=synthetic:40x16x3";
    for (other, key) in [
        (&["data.standardize=true"][..], "data.standardize"),
        (&["data.basis=cosine:2"], "data.basis"),
        (
            &["algorithm.smoothing=2", "model.kind=mlp"],
            "algorithm.smoothing",
        ),
    ] {
        let settings = [&[image, "data.features=unit"], other].concat();
        let error = load(&settings).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(
            error.contains(key) && error.contains("data.features"),
            "{error}"
        );
    }
    let mut document = Document::default();
    document.set("data.features=length").unwrap();
    let error = Config::read(&document).unwrap_err().to_string();
    assert!(error.contains("`data.features` expects"), "{error}");
}
