//! `data.features`: what a configuration means by it, and what does not go with it.

use soteriafl::config::{Config, Document, ModelKind, ScaleChoice};
use soteriafl::problem::{Model, Problem, ProblemError};
use soteriafl_core::compress::CompressorKind;
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

/// The map comes after the scaling and before the model, for training and test records alike; it
/// holds the intercept; and it leaves the claim alone.
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
        weights: [1.0; 2],
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

/// A folder of small square pictures in three classes, like MNIST's.
fn pictures(name: &str, side: u32) -> String {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, header: &[u32], bytes: Vec<u8>| {
        let header = header.iter().flat_map(|word| word.to_be_bytes());
        let content: Vec<u8> = header.chain(bytes).collect();
        std::fs::write(folder.join(name), content).unwrap();
    };
    for (set, count) in [("train", 60), ("t10k", 30)] {
        let pixel = |place: u32| {
            let (image, place) = (place / (side * side), place % (side * side));
            // Stripes across, along, or none, and some dust.
            let stripe = [place % side, place / side, 0][image as usize % 3] % 4 < 2;
            (u32::from(stripe) * 200 + place * (image + 7) * 37 % 50) as u8
        };
        let pixels = (0..count * side * side).map(pixel).collect();
        let images = format!("{set}-images-idx3-ubyte");
        write(&images, &[2051, count, side, side], pixels);
        let labels = (0..count).map(|image| (image % 3) as u8).collect();
        write(&format!("{set}-labels-idx1-ubyte"), &[2049, count], labels);
    }
    format!("data.source=idx:{}", folder.display())
}

/// Images become scattering coefficients and a linear model, by no constant of the records; whoever
/// asks for something else gets it.
#[test]
fn images_are_scattered_by_default() {
    let source = &pictures("scattered", 8)[..];
    let (config, problem) = load(&[source, "data.clients=2"]).unwrap();
    let (resolved, warnings) = problem.resolve(&config).unwrap();
    assert_eq!(resolved.feature_map, FeatureKind::Scattering);
    assert_eq!(resolved.model, ModelKind::Softmax);
    assert_eq!(resolved.scale, ScaleChoice::None);
    assert!(
        !problem.data_dependent() && warnings.is_empty(),
        "{warnings:?}"
    );
    for set in problem
        .shards
        .iter()
        .map(AsRef::as_ref)
        .chain(&problem.test)
    {
        assert_eq!(set.columns(), 81 * 4);
        assert!(
            set.squared_norms()
                .iter()
                .all(|norm| (norm - 1.0).abs() < 1e-6)
        );
    }
    // Whole messages that fit, and a step that goes with their number.
    let (rounds, dimension) = (f64::from(resolved.rounds), problem.objective.dimension());
    assert!(rounds * 4.0 * dimension as f64 <= 1e7 && resolved.step_size > 0.0);
    assert_eq!(resolved.compressor, CompressorKind::RandK { k: dimension });
    for other in [
        &["model.kind=mlp"][..],
        &["data.basis=none"],
        &["data.features=none"],
        &["data.center=0.5"],
        &["privacy.epsilon=none"],
        &["algorithm.preset=soteriafl-gd"],
    ] {
        let (config, problem) = load(&[&[source, "data.clients=2"], other].concat()).unwrap();
        let (resolved, _) = problem.resolve(&config).unwrap();
        assert_eq!(resolved.feature_map, FeatureKind::None, "{other:?}");
    }
    // Too small to be scattered.
    let (config, problem) = load(&[&pictures("small", 6), "data.clients=2"]).unwrap();
    let (resolved, _) = problem.resolve(&config).unwrap();
    assert_eq!(resolved.feature_map, FeatureKind::None);
}

/// The step follows from public numbers: more clients, records or epsilon make it longer, up to
/// where steps overshoot.
#[test]
fn the_step_of_images_follows_from_signal_and_noise() {
    let source = &pictures("steps", 8)[..];
    let step = |settings: &[&str]| {
        let (config, problem) = load(&[&[source], settings].concat()).unwrap();
        problem.resolve(&config).unwrap().0.step_size
    };
    let weak = step(&["data.clients=2", "privacy.epsilon=0.1"]);
    let strong = step(&["data.clients=2", "privacy.epsilon=0.2"]);
    assert!((1.8..2.2).contains(&(strong / weak)), "{weak} {strong}");
    // The same records in more hands: s = m mu sqrt(n)/2 falls by sqrt(2).
    let dealt = step(&["data.clients=4", "privacy.epsilon=0.1"]);
    assert!((weak / dealt - 2f64.sqrt()).abs() < 0.01, "{weak} {dealt}");
    let most = step(&["data.clients=2", "privacy.epsilon=5e5"]);
    assert_eq!(most, step(&["data.clients=2", "privacy.epsilon=1e6"]));
}
