//! Ranges that nobody knows: what the run pays for them, what it makes of them, and where it
//! refuses.

use std::path::Path;

use soteriafl::accounting::{self, Privacy};
use soteriafl::config::resolve::Resolved;
use soteriafl::config::{Config, Document};
use soteriafl::prepared::Prepared;
use soteriafl::problem::{Problem, ProblemError};
use soteriafl::schema_text;
use soteriafl::specification::Preliminary;
use soteriafl_accountant::largest_mu;
use soteriafl_data::DataDirectories;
use soteriafl_data::schema::{ColumnKind, Role};

/// A table of years, incomes with gaps and a group, whose label follows from the first two.
fn table(folder: &Path) -> String {
    let row = |row: u32| {
        let u = f64::from(row * 7919 % 4000) / 4000.0;
        let w = f64::from(row * 104_729 % 4000) / 4000.0;
        let year = 1990.0 + (30.0 * u).floor();
        let income = match row % 10 {
            0 => String::new(),
            _ => format!("{:.1}", 1000.0 + 59_000.0 * w * w),
        };
        let group = ["a", "b"][row as usize % 2];
        let label = u32::from(u + w > 1.0);
        format!("{year},{income},{group},{label}\n")
    };
    let rows: String = (0..4000).map(row).collect();
    let path = folder.join("table.csv");
    std::fs::write(&path, format!("year,income,group,label\n{rows}")).unwrap();
    format!("csv:{}", path.display())
}

const SCHEMA: &str = r#"
[schema]
ranges = "public"
columns = [
  { name = "year", kind = "number", range = "private" },
  { name = "income", kind = "number", range = "private", gap = "indicator" },
  { name = "group", kind = "category", values = ["a", "b"] },
  { name = "label", role = "label", classes = ["0", "1"] },
]
[data]
clients = 4
holdout = 0.2
"#;

fn load(folder: &Path, settings: &[&str]) -> Result<(Problem, Resolved), ProblemError> {
    let mut document = Document::from_text(SCHEMA, "run.toml").unwrap();
    document
        .set(&format!("data.source={}", table(folder)))
        .unwrap();
    for setting in settings {
        document.set(setting).unwrap();
    }
    let config = Config::read(&document)?;
    let problem = Problem::load(&config, &DataDirectories::default())?;
    let (resolved, _) = problem.resolve(&config)?;
    Ok((problem, resolved))
}

/// The ranges that a problem's records were read by.
fn ranges(problem: &Problem) -> Vec<(f64, f64)> {
    let schema = problem.shape.schema.as_ref().unwrap();
    let columns = schema.columns().iter();
    let range = columns.filter_map(|column| match &column.role {
        Role::Feature {
            kind: ColumnKind::Number { low, high },
            ..
        } => Some((*low, *high)),
        _ => None,
    });
    range.collect()
}

#[test]
fn ranges_are_found_and_the_model_knows_public_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (problem, resolved) = load(folder.path(), &["privacy.epsilon=8"]).unwrap();
    let found = ranges(&problem);
    for ((low, high), (least, most)) in found.iter().zip([(1990.0, 2020.0), (0.0, 60_000.0)]) {
        assert!(*high - *low < 3.0 * (most - least), "[{low}, {high}]");
        let within = high.min(most) - low.max(least);
        assert!(within > 0.6 * (most - least), "[{low}, {high}]");
    }
    // The same seed, the same ranges; the configuration still says that nobody knows them.
    let (again, _) = load(folder.path(), &["privacy.epsilon=8"]).unwrap();
    assert_eq!(ranges(&again), found);
    let text = resolved.to_toml();
    assert!(text.contains("range = \"private\""), "{text}");
    let written = schema_text::to_json(problem.shape.schema.as_ref().unwrap()).to_string();
    assert!(!written.contains("private"), "{written}");
    let bytes = problem.model_file(&vec![0.0; problem.objective.dimension()]);
    let bytes = bytes.unwrap();
    let header = String::from_utf8_lossy(&bytes[..bytes.len().min(20_000)]).into_owned();
    assert!(header.contains("income") && !header.contains("private"));
}

fn settle(problem: &Problem, resolved: &Resolved) -> Privacy {
    let records: Vec<usize> = problem.shards.iter().map(|shard| shard.rows()).collect();
    let dimension = problem.objective.dimension();
    Privacy::calibrate(&resolved.specification(), dimension, &records, false).unwrap()
}

/// With 40 records at each of four clients the noise on a share is .4 of all records.
#[test]
fn a_run_says_when_its_ranges_are_guesses() {
    let folder = tempfile::tempdir().unwrap();
    for (epsilon, rows, guesses) in [("1", "200", true), ("8", "4000", false)] {
        let settings = [
            format!("privacy.epsilon={epsilon}"),
            format!("data.rows={rows}"),
        ];
        let settings = settings.each_ref().map(String::as_str);
        let (problem, resolved) = load(folder.path(), &settings).unwrap();
        let foreseen = Prepared::calibrate(resolved, problem).unwrap().foreseen();
        let said = foreseen
            .iter()
            .any(|warning| warning.starts_with("private ranges are guesses here"));
        assert_eq!(said, guesses, "{foreseen:?}");
    }
}

/// Three releases and the rounds cost the target together, in closed form for whole gradients.
#[test]
fn the_claim_is_proved_and_pays_for_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    for (adjacency, distance, root) in [("replace-one", 2.0, 2f64.sqrt()), ("zero-out", 1.0, 1.0)] {
        let adjacency = format!("privacy.adjacency={adjacency}");
        let (problem, resolved) = load(folder.path(), &[&adjacency, "privacy.epsilon=3"]).unwrap();
        let privacy = settle(&problem, &resolved);
        assert!(privacy.claim.is_proved());
        let claimed = privacy.epsilon.unwrap();
        assert!(claimed <= 3.0 && claimed > 2.99, "{claimed}");
        let run = resolved.specification();
        let kinds: Vec<_> = run
            .preliminaries()
            .into_iter()
            .map(|(kind, _)| kind)
            .collect();
        let expected = [
            Preliminary::Magnitudes,
            Preliminary::Parts,
            Preliminary::Moments,
        ];
        assert_eq!(kinds, expected);
        let m = problem.shards[0].rows();
        let mu = largest_mu(3.0, run.delta);
        let releases = accounting::preliminaries(&run, m).unwrap();
        let spent = releases
            .iter()
            .map(|one| (root / (m as f64 * one.sigma)).powi(2));
        let shares: Vec<f64> = spent.map(|square| square / (mu * mu)).collect();
        for (share, expected) in shares.iter().zip([0.05, 0.05, 0.15]) {
            assert!((share / expected - 1.0).abs() < 1e-4, "{shares:?}");
        }
        let rounds = f64::from(run.rounds).sqrt() * distance * resolved.clip;
        let rest = (rounds / (m as f64 * privacy.sigmas[0])).powi(2) / (mu * mu);
        let all = rest + shares.iter().sum::<f64>();
        assert!(all <= 1.0 + 1e-9 && all > 0.998, "{all}");
    }
}

/// Where nothing hides a range, and where no proof covers it, it is refused with the key.
#[test]
fn what_has_no_proof_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(folder.path(), &["privacy.sigma=0.1"]).err().unwrap();
    assert!(error.to_string().contains("privacy.epsilon"), "{error}");
    // Without privacy the ranges are those of the records, and nothing is claimed.
    let (problem, resolved) = load(folder.path(), &["privacy.epsilon=none"]).unwrap();
    assert!(!settle(&problem, &resolved).claim.is_proved());
    let (low, high) = ranges(&problem)[0];
    assert!((1984.0..=1990.0).contains(&low) && (2020.0..=2048.0).contains(&high));
}

#[test]
fn a_private_range_reads_back() {
    let table: toml::Table = SCHEMA.parse().unwrap();
    let schema = schema_text::read(table["schema"].as_table().unwrap(), "s.toml").unwrap();
    assert_eq!(schema.private_numbers(), [0, 1]);
    let again = schema_text::from_json(&schema_text::to_json(&schema)).unwrap();
    assert_eq!(again, schema);
    let known = schema.with_ranges(&[(1.0, 2.0), (3.0, 4.0)]).unwrap();
    assert!(known.private_numbers().is_empty());
    assert_eq!(known.features(), schema.features());
    assert!(schema.with_ranges(&[(1.0, 1.0), (3.0, 4.0)]).is_err());
}
