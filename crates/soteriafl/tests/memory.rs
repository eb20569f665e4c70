//! Records that a program has in memory give the bits of the same records in a file.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use soteriafl::config::{Config, Document};
use soteriafl::output::{COLUMNS, FinishedRun, RoundTable, RunDirectory};
use soteriafl::prepared::Prepared;
use soteriafl::problem::{Preparation, Problem, Records};
use soteriafl_data::{DataDirectories, Dataset, Source, export};

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

fn config(settings: &[&str]) -> Config {
    let mut document = Document::default();
    for setting in settings {
        document.set(setting).unwrap();
    }
    Config::read(&document).unwrap()
}

const SETTINGS: [&str; 3] = [
    "data.clients=4",
    "algorithm.rounds=20",
    "privacy.noise=float",
];

fn data() -> Dataset {
    let source: Source = "synthetic:400x6".parse().unwrap();
    let directories = DataDirectories::default();
    let data = source.load(&directories, 3).unwrap().train;
    // As the header of a table calls them.
    let names: Vec<String> = (1..=6).map(|column| format!("x{column}")).collect();
    data.with_feature_names(names).unwrap()
}

/// Runs to the end in memory.
fn run(config: &Config, records: Records) -> FinishedRun {
    let preparation = Preparation::of(config, records.shape()).unwrap();
    let problem = Problem::new(records, preparation).unwrap();
    let (resolved, _) = problem.resolve(config).unwrap();
    let prepared = Prepared::calibrate(resolved, problem).unwrap();
    let mut simulation = prepared.simulation().unwrap();
    let mut table = RoundTable::new(Vec::new(), COLUMNS).unwrap();
    let began = Instant::now();
    let row = |round, traffic, metrics: &_, spent| table.row(round, traffic, metrics, spent);
    let reached = prepared
        .simulate(&mut simulation, 1, None, row, |_| ControlFlow::Continue(()))
        .unwrap();
    let mut result = prepared.result(&simulation, &reached, 1, began);
    let start = table.start_loss();
    let end = prepared.conclude(&simulation, &mut result, start).unwrap();
    let rounds = String::from_utf8(table.into_inner()).unwrap();
    FinishedRun::new(prepared.resolved.to_toml(), rounds, end)
}

fn given(more: &[&str], clients: Option<Vec<Vec<u32>>>) -> Result<FinishedRun, String> {
    let settings = [&SETTINGS[..], &["data.source=memory"], more].concat();
    let config = config(&settings);
    let records = Records::given(&config, data(), Some(data()), clients);
    Ok(run(&config, records.map_err(|error| error.to_string())?))
}

#[test]
fn records_in_memory_give_the_bits_of_a_file() {
    let folder = Folder::new("memory");
    let file = folder.0.join("records.csv");
    export::write(&data(), export::ExportFormat::Csv, &file).unwrap();
    let source = format!("csv:{}", file.display());
    let settings = [
        format!("data.source={source}"),
        format!("data.test={source}"),
    ];
    let settings: Vec<&str> = settings
        .iter()
        .map(String::as_str)
        .chain(SETTINGS)
        .collect();
    let config = config(&settings);
    let read = Records::read(&config, &DataDirectories::default()).unwrap();
    let (from_file, from_memory) = (run(&config, read), given(&[], None).unwrap());
    assert_eq!(from_file.rounds, from_memory.rounds);
    assert_eq!(from_file.model, from_memory.model);
    let of_file = from_file
        .config
        .replace(&format!("{source:?}"), "\"memory\"");
    let others = |line: &&str| !line.starts_with("test = ") && !line.starts_with('#');
    assert_eq!(
        of_file.lines().filter(others).collect::<Vec<_>>(),
        from_memory
            .config
            .lines()
            .filter(others)
            .collect::<Vec<_>>()
    );
    // What is written is read, and a run directory that grew row by row has the same bytes.
    let whole = folder.0.join("whole");
    from_memory.write(&whole, false).unwrap();
    assert_eq!(FinishedRun::read(&whole).unwrap(), from_memory);
    assert!(from_memory.write(&whole, false).is_err());
    from_memory.write(&whole, true).unwrap();
    let (_, last) = RunDirectory::resume(&whole, COLUMNS).unwrap();
    assert_eq!(last.unwrap().round, 20);
    let kept = std::fs::read_to_string(whole.join("rounds.csv")).unwrap();
    assert_eq!(kept, from_memory.rounds);
}

#[test]
fn clients_may_be_given_and_must_be_whole() {
    let partition = "data.partition=given";
    let sorted = soteriafl_data::Partition::Sorted
        .assign(&data(), 4, 0)
        .unwrap();
    let dealt = given(&[partition], Some(sorted)).unwrap();
    assert_eq!(dealt.model, given(&[], None).unwrap().model);
    assert!(dealt.config.contains("partition = \"given\""));
    assert!(dealt.summary.contains("\"claim\": \"proved\""));
    let settings = [&SETTINGS[..], &["data.source=memory"]].concat();
    let config_of_given = config(&settings);
    let records = Records::given(&config_of_given, data(), None, None).unwrap();
    let scaled = run(&config_of_given, records.prepared_by_records());
    assert!(
        scaled
            .summary
            .contains("\"claim\": \"data-dependent scaling\"")
    );
    let all: Vec<u32> = (0..400).collect();
    for (clients, said) in [
        (vec![all.clone(), Vec::new()], "client 1 has no rows"),
        (vec![all.clone(), vec![7]], "row 7 belongs to two clients"),
        (vec![all[1..].to_vec()], "row 0 belongs to nobody"),
        (vec![all.clone(), vec![400]], "row 400 does not exist"),
    ] {
        let error = given(&[partition], Some(clients)).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    let one = || Some(vec![(0..400).collect()]);
    assert!(given(&[], one()).unwrap_err().contains("given"));
    assert!(given(&[partition], None).is_err());
    assert!(
        given(&[partition, "data.rows=10"], one())
            .unwrap_err()
            .contains("data.rows")
    );
    let error = given(&["data.source=a9a"], None).unwrap_err();
    assert!(error.contains("the configuration names others"), "{error}");
    // Nobody else has them.
    let config = config(&["data.source=memory"]);
    let error = Problem::load(&config, &DataDirectories::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("a program's memory"), "{error}");
}
