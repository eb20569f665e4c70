//! Fully specified runs whose results are written down: models, noise, cost and traffic must not
//! change.
//!
//! `vectors/runs.csv` holds them, one run a line. A restructuring that changes a line has changed
//! behaviour. Where a change is meant, `SOTERIA_WRITE_VECTORS=1 cargo test -p soteriafl-cli --test
//! cli golden` writes the file anew; the difference belongs into the same commit, with its reason.
//!
//! The digest is of the tensors alone, not of the file's metadata. Matrix products may be rounded
//! differently by processors with other instruction sets: where the digest differs, the model's
//! loss decides, except on processors like the one the file was written on.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::program::Place;

/// What a run leaves, as it stands in the file.
#[derive(Clone, Debug, PartialEq)]
struct Results {
    model: String,
    sigma: f64,
    epsilon: Option<f64>,
    uplink_bytes: u64,
    downlink_bytes: u64,
    loss: f64,
}

struct Run {
    name: String,
    /// Its own settings; those of the file's head are common to all.
    settings: String,
    expected: Option<Results>,
}

#[test]
fn results_are_those_that_were_written_down() {
    let text = std::fs::read_to_string(vectors()).expect("vectors/runs.csv");
    let (head, common, runs) = parse(&text);
    let write = std::env::var_os("SOTERIA_WRITE_VECTORS").is_some();
    let same_processor = head.contains(&format!("instruction sets: {}\n", instruction_sets()));
    let mut written = String::new();
    for run in &runs {
        let found = results(&format!("{common} {}", run.settings));
        if write {
            line(&mut written, run, &found);
            continue;
        }
        let expected = run.expected.as_ref().expect("a run with results");
        compare(&run.name, expected, &found, same_processor);
    }
    if write {
        let head: String = head
            .lines()
            .map(|line| match line.starts_with("# instruction sets:") {
                true => format!("# instruction sets: {}\n", instruction_sets()),
                false => format!("{line}\n"),
            })
            .collect();
        std::fs::write(vectors(), head + &written).expect("vectors/runs.csv can be written");
    }
    assert!(runs.len() >= 20);
}

/// Every estimator, compressor, neighbouring relation and kind of noise occurs.
#[test]
fn all_choices_are_covered() {
    let text = std::fs::read_to_string(vectors()).expect("vectors/runs.csv");
    for choice in [
        "estimator=gd",
        "estimator=sgd",
        "estimator=svrg",
        "estimator=saga",
        "estimator=recursive",
        "compressor=identity",
        "compressor=rand-k",
        "compressor=qsgd",
        "compressor=natural",
        "adjacency=replace-one",
        "adjacency=zero-out",
        "noise=float",
        "noise=secure",
        "clip_scope=record",
        "clip_scope=selected",
        "clip_scope=estimate",
        "kind=logistic",
        "kind=softmax",
        "kind=mlp",
        "coordinates=shared",
        "participation=0.5",
    ] {
        assert!(text.contains(choice), "no run with {choice}");
    }
}

fn compare(name: &str, expected: &Results, found: &Results, same_processor: bool) {
    let numbers = |results: &Results| {
        let Results {
            sigma,
            epsilon,
            uplink_bytes,
            downlink_bytes,
            ..
        } = results.clone();
        (sigma, epsilon, uplink_bytes, downlink_bytes)
    };
    assert_eq!(numbers(found), numbers(expected), "{name}");
    if found.model != expected.model {
        let near = (found.loss / expected.loss - 1.0).abs() < 1e-4;
        assert!(
            near && !same_processor,
            "{name}: another model, {found:?} instead of {expected:?}"
        );
    }
}

fn results(settings: &str) -> Results {
    let place = Place::new();
    let mut arguments = vec!["train", "--quiet", "--out", "run", "--threads", "2"];
    for setting in settings.split(' ') {
        arguments.extend(["--set", setting]);
    }
    place.run(&arguments).well();
    let summary = place.json("run/summary.json");
    let number = |value: &Value| value.as_f64();
    let count = |value: &Value| value.as_u64().expect("a count");
    Results {
        model: digest(&place.read("run/model.safetensors")),
        sigma: number(&summary["privacy"]["sigma"]).expect("sigma"),
        epsilon: number(&summary["privacy"]["epsilon"]),
        uplink_bytes: count(&summary["traffic"]["uplink_bytes"]),
        downlink_bytes: count(&summary["traffic"]["downlink_bytes"]),
        loss: number(&summary["final"]["loss"]).expect("a loss"),
    }
}

/// Of the tensors' bytes, which follow a header of the length that the first eight bytes say.
fn digest(file: &[u8]) -> String {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let digest = Sha256::digest(&rest[length..]);
    digest[..8].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse(text: &str) -> (String, String, Vec<Run>) {
    let (head, lines): (Vec<&str>, Vec<&str>) = text
        .lines()
        .partition(|line| line.starts_with('#') || line.starts_with("name,"));
    let head = head.join("\n") + "\n";
    let common = head
        .lines()
        .find_map(|line| line.strip_prefix("# common: "))
        .expect("common settings")
        .to_string();
    let runs = lines.into_iter().map(|line| {
        let mut fields = line.split(',');
        let mut next = || fields.next().unwrap_or("").to_string();
        let (name, settings) = (next(), next());
        let (model, sigma, epsilon) = (next(), next(), next());
        let (up, down, loss) = (next(), next(), next());
        let expected = (!model.is_empty()).then(|| Results {
            model,
            sigma: sigma.parse().expect("sigma"),
            epsilon: epsilon.parse().ok(),
            uplink_bytes: up.parse().expect("bytes up"),
            downlink_bytes: down.parse().expect("bytes down"),
            loss: loss.parse().expect("a loss"),
        });
        Run {
            name,
            settings,
            expected,
        }
    });
    let runs = runs.collect();
    (head, common, runs)
}

fn line(text: &mut String, run: &Run, results: &Results) {
    let Results {
        model,
        sigma,
        epsilon,
        uplink_bytes,
        downlink_bytes,
        loss,
    } = results;
    let epsilon = epsilon.map_or(String::new(), |epsilon| epsilon.to_string());
    let Run { name, settings, .. } = run;
    let _ = writeln!(
        text,
        "{name},{settings},{model},{sigma},{epsilon},{uplink_bytes},{downlink_bytes},{loss}"
    );
}

fn instruction_sets() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let found = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
        ];
        let names = found.iter().filter(|(_, there)| *there);
        let names: Vec<&str> = names.map(|(name, _)| *name).collect();
        format!("x86_64 {}", names.join(" "))
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_string()
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/runs.csv")
}
