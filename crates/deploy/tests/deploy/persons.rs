//! Persons in a deployment: a client leaves out what anybody has beyond `K` records, whatever the
//! server says, and what it sends does not depend on how many records others have.

use std::path::Path;

use soteriafl::core::data::Dataset;
use soteriafl::persons::Bounded;
use soteriafl_data::{Adjustment, DataDirectories, Share};
use soteriafl_deploy::agreement::{AgreementError, Consent, PersonError, Terms};
use soteriafl_deploy::budget::{self, Cost, Limits};
use soteriafl_deploy::description::Description;
use soteriafl_deploy::holding::Holding;
use soteriafl_deploy::node::{Node, NodeError};
use soteriafl_deploy::records::{self, LoadError, Records};
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::store::{ClientStore, LedgerRun};

use super::exchange::{NOW, Silent, questions};
use super::harness::{Deployment, bits};

/// A visit: who, how old, ill or not.
type Visit = (String, u32, bool);

/// `visits[p]` records of each person, dealt round robin, so that nobody's stand together.
fn visits(site: u32, counts: &[usize]) -> Vec<Visit> {
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut found = Vec::new();
    for visit in 0..most {
        for (person, &count) in counts.iter().enumerate() {
            if visit < count {
                let age = 20 + (7 * person as u32 + 13 * visit as u32 + 5 * site) % 60;
                let ill = (person + visit) % 2 == 0;
                found.push((format!("P{site}-{person}"), age, ill));
            }
        }
    }
    found
}

fn write(path: &Path, visits: &[Visit]) {
    let mut text = String::from("patient,age,ill\n");
    for (patient, age, ill) in visits {
        text += &format!("{patient},{age},{}\n", ["no", "yes"][usize::from(*ill)]);
    }
    std::fs::write(path, text).unwrap();
}

/// A run over the files `site-0.csv`, ... of a folder, for persons with up to so many records.
fn deployment(folder: &Path, most: u32, overrides: &[&str]) -> Deployment {
    let base = format!(
        "[data]\nsource = \"csv:{}/site-*.csv\"\npartition = \"files\"\nscale = \"none\"\n\
         [algorithm]\npreset = \"soteriafl-sgd\"\nfraction = 1.0\nbatch = 4\nrounds = 6\n\
         [privacy]\nsigma = 0.05\nclip = 1.0\namplification = \"off\"\nrecords_per_person = {most}\n\
         [run]\nseed = 11\n\
         [schema]\nranges = \"public\"\ncolumns = [\n{{ name = \"patient\", role = \"person\" }},\n\
         {{ name = \"age\", kind = \"number\", range = [0, 100] }},\n\
         {{ name = \"ill\", role = \"label\", classes = [\"no\", \"yes\"] }},\n]\n",
        folder.display()
    );
    Deployment::with(&base, overrides)
}

fn sites(folder: &Path) {
    write(&folder.join("site-0.csv"), &visits(0, &[1, 5, 2, 2, 3]));
    write(&folder.join("site-1.csv"), &visits(1, &[4, 1, 1]));
    write(&folder.join("site-2.csv"), &visits(2, &[2, 2, 9, 1]));
}

fn terms(folder: &Path, client: usize, deployment: &Deployment) -> Terms {
    Terms {
        client: client as u32,
        holding: Holding::Source {
            share: format!("csv:{}/site-{client}.csv", folder.display())
                .parse()
                .unwrap(),
            directories: DataDirectories::default(),
        },
        limits: Limits {
            epsilon: None,
            delta: None,
            read: None,
            replace_one: false,
            accept_unknown: false,
        },
        records_per_person: 1,
        person: Some("patient".to_string()),
        disjoint: false,
        shape: None,
        test_seed: deployment.description.test_seed,
    }
}

/// Every estimator, with and without secure noise: the clients bound their own tables, in a process
/// for every message, and the model is that of the simulation, which bounds them at one place.
#[test]
fn clients_bound_persons_as_the_simulation_does() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    for settings in [
        &["algorithm.preset=soteriafl-gd"][..],
        &[],
        &["algorithm.preset=soteriafl-svrg"],
        &["algorithm.preset=soteriafl-saga", "privacy.noise=secure"],
    ] {
        let deployment = deployment(folder.path(), 2, settings);
        // Persons times two, however many records they have.
        assert_eq!(deployment.problem.sizes(), [10, 6, 8], "{settings:?}");
        let states = tempfile::tempdir().unwrap();
        let mut server = questions(&deployment);
        let mut shown = Silent::default();
        while !server.coordinator().acknowledged() {
            for client in server.missing() {
                let Some(question) = server.ask(client).unwrap() else {
                    continue;
                };
                let terms = terms(folder.path(), client as usize, &deployment);
                let mut node = Node::new(states.path().join(client.to_string()), terms);
                let reply = node.answer(&question, &mut shown).unwrap().encode();
                server.hear(u64::from(client), reply.into(), NOW).unwrap();
            }
        }
        let model = bits(server.coordinator().model().unwrap());
        assert_eq!(model, deployment.simulated(), "{settings:?}");
        // The ledger has the public number, and K.
        for (client, expected) in [10, 6, 8].into_iter().enumerate() {
            let path = states.path().join(client.to_string());
            let runs = ClientSqlite::open(&path).unwrap().runs().unwrap();
            assert_eq!(runs[0].price.records, expected);
            assert_eq!(runs[0].price.records_per_person, 2);
            assert!(runs[0].finished);
        }
    }
}

fn load(path: &Path, description: &Description) -> Result<Records, LoadError> {
    let share: Share = format!("csv:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let own = records::source_digest(&share.source, &directories).unwrap();
    records::load(&share, own, description, &directories)
}

/// Rows as numbers, in an order of their own.
fn rows(data: &Dataset) -> Vec<(Vec<u64>, u32)> {
    let row = |row| {
        let values = data
            .full_row(row)
            .iter()
            .map(|value| value.to_bits())
            .collect();
        (values, data.labels()[row])
    };
    let mut all: Vec<_> = (0..data.rows()).map(row).collect();
    all.sort_unstable();
    all
}

/// A whole person exchanged for another with more or fewer records, at any place: as many records
/// for the server, and the bounded data differ in at most `K` rows.
#[test]
fn exchanging_a_person_moves_at_most_k_rows_and_no_number() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let path = folder.path().join("other.csv");
    for most in [1, 2, 4] {
        let deployment = deployment(folder.path(), most, &["algorithm.batch=2"]);
        let before = visits(3, &[1, 5, 2, 2, 3, 7]);
        write(&path, &before);
        let one = load(&path, &deployment.description).unwrap();
        assert_eq!(one.data.records(), 6 * most as usize);
        let bounded = one.bounded.as_ref().unwrap();
        assert_eq!(bounded.left_out, before.len() - one.data.rows());
        assert_eq!(bounded.null_records, one.data.records() - one.data.rows());
        for count in 1..9 {
            // The second person goes; another one comes, with so many records, at another place.
            let mut after: Vec<Visit> = before.iter().filter(|v| v.0 != "P3-1").cloned().collect();
            for visit in 0..count {
                let at = (5 * visit) % after.len();
                after.insert(at, ("Q".to_string(), 30 + visit as u32, visit % 3 == 0));
            }
            write(&path, &after);
            let other = load(&path, &deployment.description).unwrap();
            assert_eq!(other.data.records(), one.data.records());
            let (mut ours, theirs) = (rows(&one.data), rows(&other.data));
            for row in &theirs {
                if let Some(place) = ours.iter().position(|own| own == row) {
                    ours.remove(place);
                }
            }
            assert!(ours.len() <= most as usize, "{most} {count}: {ours:?}");
            // The ledger knows them as other records, whatever was left out.
            assert_ne!(other.digest, one.digest);
        }
    }
}

/// What a run says of persons changes which records are kept, and not the name of the data set:
/// otherwise a server could spend the same records again under another `K` or seed.
#[test]
fn the_ledger_knows_the_source_and_not_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let path = folder.path().join("site-2.csv");
    let first = deployment(folder.path(), 1, &["algorithm.batch=1"]);
    let reference = load(&path, &first.description).unwrap();
    for (most, seed) in [(1, "run.seed=12"), (3, "run.seed=11")] {
        let other = deployment(folder.path(), most, &["algorithm.batch=1", seed]);
        let found = load(&path, &other.description).unwrap();
        assert_eq!(found.digest, reference.digest);
        assert_ne!(rows(&found.data), rows(&reference.data));
    }
    let share = format!("csv:{}:0/2", path.display())
        .parse::<Share>()
        .unwrap();
    let directories = DataDirectories::default();
    let part = records::load(&share, reference.digest, &first.description, &directories);
    assert_eq!(part.err(), Some(LoadError::Part));
    // Persons cost more noise than records of the same number.
    let price = |most| {
        let deployment = deployment(folder.path(), most, &["algorithm.batch=1"]);
        budget::price(&deployment.description, 24).unwrap().shifts
    };
    assert!(price(3).last() > price(1).last());
}

/// What was left out is told to whoever has the records.
#[derive(Default)]
struct Told(Vec<(Bounded, u32)>);

impl Consent for Told {
    fn unnamed(&mut self, _: &[String]) {}

    fn adjusted(&mut self, _: &[Adjustment]) {}

    fn bounded(&mut self, bounded: &Bounded, most: u32) {
        self.0.push((bounded.clone(), most));
    }

    fn shown(&mut self, _: &Cost<'_>, _: &Description) {}

    fn without_limit(&mut self, _: &Cost<'_>) -> Result<(), AgreementError> {
        Ok(())
    }
}

#[test]
fn who_has_the_records_hears_what_was_left_out() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let deployment = deployment(folder.path(), 2, &[]);
    let mut server = questions(&deployment);
    let question = server.ask(2).unwrap().unwrap();
    let states = tempfile::tempdir().unwrap();
    let mut node = Node::new(
        states.path().to_path_buf(),
        terms(folder.path(), 2, &deployment),
    );
    let mut told = Told::default();
    let answer = node.answer(&question, &mut told).unwrap().encode();
    server.hear(2, answer.into(), NOW).unwrap();
    // Nine records of one person are seven too many; of one another is missing.
    let (bounded, most) = &told.0[0];
    assert_eq!((bounded.left_out, bounded.null_records, *most), (7, 1, 2));
    assert_eq!(bounded.kept.len(), 7);
}

/// The same table without the column that says who is who: nobody could be bounded, so it takes no
/// part, whatever place the file has among several.
#[test]
fn a_table_that_does_not_say_who_is_who_takes_no_part() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let deployment = deployment(folder.path(), 2, &[]);
    let nameless = "age,ill\n20,yes\n21,no\n22,yes\n23,no\n";
    std::fs::write(folder.path().join("nameless.csv"), nameless).unwrap();
    for files in ["nameless", "part-*"] {
        let names: &[&str] = match files {
            "part-*" => &["part-0.csv", "part-1.csv", "part-2.csv"],
            _ => &[],
        };
        for without in 0..3 {
            for (at, name) in names.iter().enumerate() {
                let path = folder.path().join(name);
                match at == without {
                    true => std::fs::write(path, nameless).unwrap(),
                    false => write(&path, &visits(at as u32, &[3, 1])),
                }
            }
            let found = load(
                &folder.path().join(format!("{files}.csv")),
                &deployment.description,
            );
            let expected = LoadError::Columns("column \"patient\" is missing".to_string());
            assert_eq!(found.err(), Some(expected), "{files} {without}");
        }
    }
}

/// How many different names stand in a column is told to the server, so it must be the column that
/// the owner has named: not one that the server would like to know about. Nothing is kept of such a
/// run, not even its shape.
#[test]
fn who_is_who_is_said_by_the_owner_of_the_records() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let deployment = deployment(folder.path(), 2, &[]);
    let question = questions(&deployment).ask(0).unwrap().unwrap();
    for said in [None, Some("age")] {
        let states = tempfile::tempdir().unwrap();
        let mut terms = terms(folder.path(), 0, &deployment);
        terms.person = said.map(str::to_string);
        let mut node = Node::new(states.path(), terms);
        let error = node.answer(&question, &mut Silent::default());
        let Err(NodeError::Agreement(error)) = error else {
            panic!("{error:?}");
        };
        let expected = match said {
            None => PersonError::Unsaid("patient".to_string()),
            Some(own) => PersonError::Other {
                own: own.to_string(),
                found: "patient".to_string(),
            },
        };
        assert!(
            matches!(&*error, AgreementError::Person(found) if *found == expected),
            "{error}"
        );
        let mut store = ClientSqlite::open(states.path()).unwrap();
        assert!(store.runs().unwrap().is_empty());
        let source = format!("csv:{}/site-0.csv", folder.path().display());
        assert_eq!(store.shape(&source).unwrap(), None);
    }
    // And a run that bounds nobody is not the one that was meant.
    let nobody = Deployment::new(&["data.partition=iid"]);
    let question = questions(&nobody).ask(0).unwrap().unwrap();
    let states = tempfile::tempdir().unwrap();
    let mut terms = terms(folder.path(), 0, &nobody);
    terms.person = Some("patient".to_string());
    let error = Node::new(states.path(), terms)
        .answer(&question, &mut Silent::default())
        .unwrap_err();
    assert!(error.to_string().contains("bounds by no column"), "{error}");
}

/// What the schema calls a gap, and numbers that look like others, name nobody: rows of several
/// persons would be one person's, and exchanging one of them would move two persons' records.
#[test]
fn a_name_that_is_missing_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let deployment = deployment(folder.path(), 1, &["algorithm.batch=1"]);
    let path = folder.path().join("names.csv");
    for (name, fits) in [("NA", false), ("", false), ("?", false), ("N", true)] {
        let text = format!("patient,age,ill\nA,20,yes\n{name},30,no\n");
        std::fs::write(&path, text).unwrap();
        let found = load(&path, &deployment.description);
        match fits {
            true => assert_eq!(found.unwrap().data.records(), 2, "{name}"),
            false => assert_eq!(found.err(), Some(LoadError::Unfit), "{name}"),
        }
    }
}

/// The same seed and `K` under another schema keep other records of the same persons, and both have
/// been in some message.
#[test]
fn records_kept_by_two_schemas_count_twice() {
    let folder = tempfile::tempdir().unwrap();
    sites(folder.path());
    let path = folder.path().join("site-0.csv");
    let first = deployment(folder.path(), 1, &["algorithm.batch=1"]);
    let text = first.description.text().replace(", 100]", ", 90]");
    let other = Description::parse(&text, 5).unwrap();
    let run = |description: &Description| {
        let records = load(&path, description).unwrap();
        LedgerRun {
            hash: *description.hash(),
            description: description.text().to_string(),
            client: 0,
            data: records.digest,
            part: None,
            price: budget::price(description, records.data.records()).unwrap(),
            messages: 1,
            finished: true,
        }
    };
    let (one, two) = (run(&first.description), run(&other));
    assert_ne!(one.hash, two.hash);
    let records = |runs: &[&LedgerRun]| {
        let runs = runs.iter().copied();
        budget::Counted::new(runs, None, false).records()
    };
    assert_eq!(records(&[&one]), 5);
    assert_eq!(records(&[&one, &two]), 10);
}
