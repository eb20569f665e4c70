//! The ledger's name for records does not depend on what a server says.

use std::path::Path;

use soteriafl::config::{Config, Document};
use soteriafl::problem::Preparation;
use soteriafl::record_shape::RecordShape;
use soteriafl_data::{DataDirectories, Features, Schema, Share, Source, TargetRange};
use soteriafl_deploy::Hash;
use soteriafl_deploy::description::{Description, DescriptionError};
use soteriafl_deploy::records::{self, LoadError, Records};

/// A description as some server might write it, for a logistic model without intercept.
pub fn describe(features: usize, labels: [&str; 2], more: &[&str]) -> Description {
    describe_named(features, None, labels, more)
}

/// The same with names of features.
pub fn describe_named(
    features: usize,
    names: Option<&[&str]>,
    labels: [&str; 2],
    more: &[&str],
) -> Description {
    try_describe(features, names, labels, more).unwrap()
}

/// The same where it may be refused.
pub fn try_describe(
    features: usize,
    names: Option<&[&str]>,
    labels: [&str; 2],
    more: &[&str],
) -> Result<Description, DescriptionError> {
    let text = "[data]\nsource = \"libsvm:d.txt\"\nclients = 2\n[model]\nkind = \"logistic\"\nintercept = false\n[algorithm]\npreset = \"soteriafl-sgd\"\nbatch = 2\nrounds = 3\n[privacy]\nsigma = 0.5\nclip = 1.0\n";
    let mut document = Document::from_text(text, "server").unwrap();
    for assignment in more {
        document.set(assignment).unwrap();
    }
    let config = Config::read(&document).unwrap();
    let shape = RecordShape {
        targets: None,
        features,
        names: names.map(|names| names.iter().map(|name| name.to_string()).collect()),
        schema: None,
        labels: labels.map(str::to_string).to_vec(),
    };
    let preparation = Preparation::of(&config, &shape).unwrap();
    let (resolved, _) = config.resolve(&preparation.shape(vec![4; 2])).unwrap();
    let model = preparation.model;
    let start = vec![0.0; model.objective().dimension()];
    Description::new(&resolved, shape, &model, &start, None, [3; 16])
}

pub const ROWS: &str =
    "+1 1:0.5 3:2\n-1 2:1.5\n+1 1:3 2:0\n-1 3:-1\n1 2:7\n-1.0 1:4\n+1 3:9\n-1 2:2 3:2\n";

fn read(path: &Path, part: &str, description: &Description) -> Records {
    let share: Share = format!("libsvm:{}{part}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let own = records::source_digest(&share.source, &directories).unwrap();
    records::load(&share, own, description, &directories).unwrap()
}

/// A file of numbers is one data set in the ledger, whether a run takes them as classes or predicts
/// them, and whatever range it says; another number makes another one.
#[test]
fn numbers_to_predict_are_known_by_themselves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    let source: Source = format!("libsvm:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let digest = || records::source_digest(&source, &directories).unwrap();
    // Few enough numbers to be classes.
    std::fs::write(&path, ROWS).unwrap();
    let classes = digest();
    for (low, high) in [(-1.0, 1.0), (0.0, 7.0)] {
        let schema = Schema {
            targets: TargetRange::new(low, high).ok(),
            ..Schema::default()
        };
        let loaded = source.load_as(&schema, &directories, 0).unwrap().train;
        assert!(loaded.targets().is_some() && records::digest(&loaded) == classes);
    }
    // Too many to be classes: nobody has to say that before the digest is taken.
    let many = |last: &str| {
        let rows: String = (0..60).map(|row| format!("{row}.5 1:{row}\n")).collect();
        std::fs::write(&path, format!("{rows}{last} 1:3\n")).unwrap();
        digest()
    };
    assert!(many("7.25") != many("7.5") && many("7.25") == many("+7.250"));
}

/// One file, told by a server to have more features, classes spelled otherwise, other seeds,
/// partitions, limits and scalings: it is one data set in the ledger.
#[test]
fn no_description_makes_another_data_set_of_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    std::fs::write(&path, ROWS).unwrap();
    let labels = ["-1", "+1"];
    let descriptions = [
        (describe(3, labels, &[]), ""),
        (describe(11, labels, &[]), ""),
        (describe(3, ["-1", "1.0"], &[]), ""),
        (describe(3, ["1", "-1"], &[]), ""),
        (describe(3, labels, &["run.seed=1"]), ":0/2"),
        (describe(3, labels, &["run.seed=2"]), ":0/2"),
        (describe(3, labels, &["run.seed=3"]), ":1/2"),
        (describe(3, labels, &["data.partition=sorted"]), ":0/2"),
        (describe(3, labels, &["data.rows=4"]), ":0/2"),
    ];
    let digests: Vec<Hash> = descriptions
        .iter()
        .map(|(description, part)| read(&path, part, description).digest)
        .collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    // Nor does the order of rows; another record or label does.
    let turned: Vec<&str> = ROWS.lines().rev().collect();
    let other = directory.path().join("other.txt");
    std::fs::write(&other, turned.join("\n")).unwrap();
    assert_eq!(read(&other, "", &descriptions[0].0).digest, digests[0]);
    for changed in [ROWS.replace("2:7", "2:8"), ROWS.replace("+1 3:9", "-1 3:9")] {
        std::fs::write(&other, changed).unwrap();
        assert_ne!(read(&other, "", &descriptions[0].0).digest, digests[0]);
    }
}

/// What is trained on is what the ledger knows.
#[test]
fn records_that_change_after_the_ledger_was_asked_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    std::fs::write(&path, ROWS).unwrap();
    let share: Share = format!("libsvm:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let own = records::source_digest(&share.source, &directories).unwrap();
    std::fs::write(&path, ROWS.replace("2:7", "2:8")).unwrap();
    let description = describe(3, ["-1", "+1"], &[]);
    let found = records::load(&share, own, &description, &directories).err();
    assert_eq!(found, Some(LoadError::Changed));
}

/// Scaling by any constants that a description may name succeeds on any records: joining tells
/// nothing about how large they are.
#[test]
fn no_scaling_constant_makes_records_fail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    std::fs::write(&path, format!("{ROWS}-1 1:1e19\n")).unwrap();
    for power in [1, 20, 40, 61, 62] {
        let factor = format!("data.factor={}", 2f64.powi(power));
        for center in ["data.center=0", "data.center=-3.5e18"] {
            let description = describe(3, ["-1", "+1"], &["data.scale=constant", &factor, center]);
            Description::parse(description.text(), 9).unwrap();
            assert_eq!(read(&path, "", &description).data.rows(), 9);
        }
    }
    for (factor, center) in [
        ("1e19", "0"),
        ("1e-19", "0"),
        ("1", "1e19"),
        ("1", "-1e300"),
    ] {
        let (factor, center) = (
            format!("data.factor={factor}"),
            format!("data.center={center}"),
        );
        let description = describe(3, ["-1", "+1"], &["data.scale=constant", &factor, &center]);
        assert!(
            Description::parse(description.text(), 9).is_err(),
            "{factor} {center}"
        );
    }
}

/// Records that do not have a run's features or classes say nothing about themselves.
#[test]
fn records_that_do_not_fit_are_not_spoken_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    std::fs::write(&path, ROWS).unwrap();
    let share: Share = format!("libsvm:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let digest = records::source_digest(&share.source, &directories).unwrap();
    for other in [
        describe(2, ["-1", "+1"], &[]),
        describe(3, ["-1", "2"], &[]),
    ] {
        let error = records::load(&share, digest, &other, &directories)
            .err()
            .unwrap();
        assert_eq!(error, LoadError::Unfit);
        assert!(
            !error.to_string().contains(|c: char| c.is_ascii_digit()),
            "{error}"
        );
    }
}

/// Tables must have the columns that a run names. Their names are no records and may be spoken of;
/// the ledger's name for the records does not know them, and neither does a run that names none.
#[test]
fn columns_are_those_that_the_run_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.csv");
    let share: Share = format!("csv:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let rows = "0.5,0,2,+1\n1,1.5,0,-1\n3,0,0,+1\n0,0,-1,-1\n";
    let load = |header: &str, names: Option<&[&str]>| {
        std::fs::write(&path, format!("{header}{rows}")).unwrap();
        let own = records::source_digest(&share.source, &directories).unwrap();
        let description = describe_named(3, names, ["-1", "+1"], &[]);
        let parsed = Description::parse(description.text(), 4).unwrap();
        assert_eq!(parsed.shape, description.shape);
        records::load(&share, own, &parsed, &directories)
    };
    let agreed: Option<&[&str]> = Some(&["a", "b", "c"]);
    let first = load("a,b,c,label\n", agreed).unwrap();
    assert!(first.named);
    for (header, names) in [("", agreed), ("c,b,a,label\n", None), ("", None)] {
        let other = load(header, names).unwrap();
        assert_eq!(other.digest, first.digest);
        assert_eq!(other.named, !header.is_empty());
    }
    for (header, number, reordered) in [
        ("c,b,a,label\n", 1, true),
        ("a,b,C,label\n", 3, false),
        ("a,b,\"\",label\n", 3, false),
    ] {
        match load(header, agreed).err() {
            Some(LoadError::Names(difference)) => {
                let found = (difference.number, difference.reordered);
                assert_eq!(found, (number, reordered), "{header}");
            }
            other => panic!("{header}: {other:?}"),
        }
    }
}

/// A description that names a file of the client is refused before anything is opened.
#[test]
fn descriptions_name_no_files() {
    let good = describe(3, ["-1", "+1"], &[]);
    Description::parse(good.text(), 8).unwrap();
    for (from, to) in [
        ("init = \"zeros\"", "init = \"file:/etc/hostname\""),
        ("libsvm:d.txt", "libsvm:/etc/hostname"),
        ("libsvm:d.txt", "libsvm:../d.txt"),
    ] {
        let text = good.text().replace(from, to);
        assert_ne!(text, good.text(), "{from}");
        let error = Description::parse(&text, 8).unwrap_err();
        assert!(matches!(error, DescriptionError::Path), "{to}: {error}");
    }
}

/// One record decides neither how the others are stored nor what they are: sums over sparse and
/// over dense rows round differently, and a server that chooses the model could make that
/// difference as large as it likes.
#[test]
fn no_record_decides_how_the_others_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    let secure = "privacy.noise=secure";
    for center in ["0", "1", "-2.5"] {
        let center = format!("data.center={center}");
        let more = [secure, "data.scale=constant", "data.factor=3", &center];
        let description = describe(3, ["-1", "+1"], &more);
        let mut seen: Option<Vec<(bool, Vec<u64>)>> = None;
        // On either centre, on none, far away, and empty.
        for record in ["1:1 2:1 3:1", "1:-2.5 2:-2.5 3:-2.5", "1:7", "3:1e9", ""] {
            std::fs::write(&path, format!("{ROWS}+1 {record}\n")).unwrap();
            let data = read(&path, "", &description).data;
            let sparse = matches!(data.features(), Features::Sparse(_));
            let others = (0..8).map(|row| {
                let values = data.full_row(row);
                (sparse, values.iter().map(|value| value.to_bits()).collect())
            });
            let others: Vec<_> = others.collect();
            assert_eq!(data.offset(), None);
            assert_eq!(
                *seen.get_or_insert(others.clone()),
                others,
                "{center}: {record}"
            );
        }
    }
}

/// Nor who else is in a part of a file: a description that asks for dealing by labels does not get
/// it.
#[test]
fn no_label_decides_who_else_is_in_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    for partition in ["sorted", "iid", "dirichlet"] {
        let partition = format!("data.partition={partition}");
        let description = describe(3, ["-1", "+1"], &["privacy.noise=secure", &partition]);
        let parts = [ROWS.to_string(), ROWS.replace("+1 1:0.5", "-1 1:0.5")].map(|rows| {
            std::fs::write(&path, rows).unwrap();
            [":0/2", ":1/2"].map(|part| {
                let data = read(&path, part, &description).data;
                (0..data.rows())
                    .map(|row| data.full_row(row))
                    .collect::<Vec<_>>()
            })
        });
        assert_eq!(parts[0], parts[1], "{partition}");
    }
}

/// The same for pictures, of which more or fewer than half of the pixels may be dark.
#[test]
fn no_picture_decides_how_the_others_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let share: Share = format!("idx:{}", directory.path().display())
        .parse()
        .unwrap();
    let directories = DataDirectories::default();
    let write = |name: &str, header: &[u32], bytes: &[u8]| {
        let header = header.iter().flat_map(|word| word.to_be_bytes());
        let content: Vec<u8> = header.chain(bytes.iter().copied()).collect();
        std::fs::write(directory.path().join(name), content).unwrap();
    };
    for center in ["0", "0.25"] {
        let center = format!("data.center={center}");
        let more = [
            "privacy.noise=secure",
            "data.scale=constant",
            "data.factor=3",
            &center,
        ];
        let description = describe(4, ["0", "1"], &more);
        let mut seen: Option<Vec<u64>> = None;
        for last in [[0; 4], [9; 4]] {
            let pixels = [[0, 0, 7, 255], [1, 0, 3, 0], last].concat();
            for set in ["train", "t10k"] {
                write(
                    &format!("{set}-images-idx3-ubyte"),
                    &[2051, 3, 2, 2],
                    &pixels,
                );
                write(&format!("{set}-labels-idx1-ubyte"), &[2049, 3], &[0, 1, 1]);
            }
            let own = records::source_digest(&share.source, &directories).unwrap();
            let data = records::load(&share, own, &description, &directories)
                .unwrap()
                .data;
            let others = (0..2).flat_map(|row| data.full_row(row)).map(f64::to_bits);
            let others: Vec<u64> = others.collect();
            assert!(matches!(data.features(), Features::Dense(_)) && data.offset().is_none());
            assert_eq!(*seen.get_or_insert(others.clone()), others, "{center}");
        }
    }
}

/// A centre makes rows dense. What that takes depends on the size of the records alone, so that
/// running out of memory tells nothing about them.
#[cfg(target_os = "linux")]
#[test]
fn memory_for_a_centre_depends_on_the_size_alone() {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM"));
        let digits: String = line.unwrap().chars().filter(char::is_ascii_digit).collect();
        digits.parse::<usize>().unwrap() << 10
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    // 3,000 rows of 20,000 features, nearly all zero, far from the centre: 240 MB.
    let rows = "+1 1:1\n-1 2:1\n".repeat(1500);
    std::fs::write(&path, rows).unwrap();
    let more = [
        "privacy.noise=secure",
        "data.scale=constant",
        "data.factor=1",
        "data.center=1",
    ];
    let centred = describe(20_000, ["-1", "+1"], &more);
    let read = read(&path, "", &centred);
    assert!(read.data.offset().is_none(), "the offset is in the rows");
    assert!(peak() > 240_000_000, "{}", peak());
}

/// The digest of what is trained on knows the order of rows, their values, labels and offset.
#[test]
fn what_is_trained_on_has_a_digest_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    let labels = ["-1", "+1"];
    let turned: Vec<&str> = ROWS.lines().rev().collect();
    let mut seen = Vec::new();
    let plain: &[&str] = &[];
    let centred: &[&str] = &["data.scale=constant", "data.factor=1", "data.center=0.5"];
    for (rows, part, more) in [
        (ROWS.to_string(), "", plain),
        (turned.join("\n"), "", plain),
        (ROWS.replace("2:7", "2:8"), "", plain),
        (ROWS.replace("2:7", "3:7"), "", plain),
        (ROWS.replace("+1 3:9", "-1 3:9"), "", plain),
        (ROWS.to_string(), ":0/2", plain),
        (ROWS.to_string(), ":1/2", plain),
        (ROWS.to_string(), "", centred),
    ] {
        std::fs::write(&path, rows).unwrap();
        let description = describe(3, labels, more);
        let found = records::trained_on(&read(&path, part, &description).data);
        assert_eq!(
            found,
            records::trained_on(&read(&path, part, &description).data)
        );
        assert!(!seen.contains(&found), "{part} {more:?}");
        seen.push(found);
    }
}

/// A client maps its own records as the description says, and as a simulation does.
#[test]
fn records_go_through_the_public_map_of_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.txt");
    std::fs::write(&path, ROWS).unwrap();
    let labels = ["-1", "+1"];
    let scaled = ["data.center=0.5", "data.factor=2"];
    let mapped = describe(3, labels, &[&scaled[..], &["data.features=unit"]].concat());
    assert!(!mapped.intercept() && mapped.dimension() == 4);
    let again = Description::parse(mapped.text(), 4).unwrap();
    assert_eq!(again.text(), mapped.text());
    let bare = read(&path, "", &describe(3, labels, &scaled)).data;
    let data = read(&path, "", &again).data;
    let expected = mapped.features().unwrap().apply((*bare).clone()).unwrap();
    assert_eq!(data.columns(), 4);
    for (row, norm) in data.squared_norms().iter().enumerate() {
        assert_eq!(data.full_row(row), expected.full_row(row));
        assert!((norm - 1.0).abs() < 1e-6, "{norm}");
    }
}

/// A description of a run on a table with text, gaps and an identifier, whose schema has these
/// ranges.
fn describe_table(ranges: &str) -> Result<Description, DescriptionError> {
    let text = format!(
        "[data]\nsource = \"clients\"\nclients = 2\n[algorithm]\nrounds = 3\n[privacy]\nsigma = 0.5\nclip = 1.0\n\
         [schema]\nranges = \"{ranges}\"\ncolumns = [\n{{ name = \"id\", role = \"ignored\" }},\n\
         {{ name = \"age\", kind = \"number\", range = [0, 100], gap = \"indicator\" }},\n\
         {{ name = \"ward\", kind = \"category\", values = [\"a\", \"b\"] }},\n\
         {{ name = \"ill\", role = \"label\", classes = [\"no\", \"yes\"] }},\n]\n"
    );
    let config = Config::read(&Document::from_text(&text, "server").unwrap()).unwrap();
    let schema = config.schema.clone().unwrap();
    let shape = RecordShape {
        features: schema.features().len(),
        names: Some(schema.features().to_vec()),
        targets: None,
        schema: Some(schema),
        labels: ["no", "yes"].map(str::to_string).to_vec(),
    };
    let preparation = Preparation::of(&config, &shape).unwrap();
    let (resolved, _) = config.resolve(&preparation.shape(vec![4; 2])).unwrap();
    let start = vec![0.0; preparation.model.objective().dimension()];
    Description::new(&resolved, shape, &preparation.model, &start, None, [3; 16])
}

/// The schema travels in the description: clients read their tables through it, by names and in
/// order, and what they refuse quotes no record.
#[test]
fn tables_are_read_through_the_schema_of_the_run() {
    let description = describe_table("public").unwrap();
    let again = Description::parse(description.text(), 4).unwrap();
    assert_eq!(again.shape, description.shape);
    let named = ["age", "age is missing", "ward=a", "ward=b"];
    assert_eq!(
        again.shape.names.as_deref(),
        Some(&named.map(str::to_string)[..])
    );
    // Ranges that somebody read from records are no ground for a claim.
    assert!(matches!(
        describe_table("read from records"),
        Err(DescriptionError::Ranges)
    ));
    let draft = description
        .text()
        .replace("\"public\"", "\"read from records\"");
    assert!(Description::parse(&draft, 4).is_err());
    // Nor may a server make a client open a file.
    let file = description
        .text()
        .replace("[data]\n", "[data]\nschema = \"/etc/passwd\"\n");
    assert!(matches!(
        Description::parse(&file, 4),
        Err(DescriptionError::Path)
    ));

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    let share: Share = format!("csv:{}", path.display()).parse().unwrap();
    let directories = DataDirectories::default();
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let own = records::source_digest(&share.source, &directories).unwrap();
        records::load(&share, own, &description, &directories)
    };
    let rows = "id,age,ward,ill\nP1,50,a,no\nP2,NA,b,yes\nP3,120,secret,no\n";
    let records = load(rows).unwrap();
    let turned = "id,age,ward,ill\nP3,120,secret,no\nP1,50,a,no\nP2,NA,b,yes\n";
    assert_eq!(load(turned).unwrap().digest, records.digest);
    assert_ne!(
        load(&rows.replace("50", "51")).unwrap().digest,
        records.digest
    );
    let told: Vec<String> = records
        .adjustments
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for (text, said) in [
        ("id,ward,age,ill\nP1,a,50,no\n", "stands behind"),
        (
            "id,age,secret,ill\nP1,50,a,no\n",
            "column 3 is not in the schema",
        ),
        ("P1,50,secret,no\nP2,50,a,no\n", "column \"age\" is missing"),
    ] {
        let error = load(text).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(said), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
    assert_eq!(
        load("id,age,ward,ill\nP1,secret,a,no\n").err(),
        Some(LoadError::Unfit)
    );
}

/// A server that writes a release of second moments into a run that has no target for its noise, by
/// hand, is refused.
#[test]
fn a_release_without_a_noise_is_refused() {
    let text = describe(3, ["-1", "+1"], &["data.features=unit"])
        .text()
        .to_string();
    let asked = text.replace("whiten = \"none\"", "whiten = 0.15");
    assert_ne!(asked, text);
    let error = Description::parse(&asked, 4).unwrap_err();
    assert!(error.to_string().contains("data.whiten"), "{error}");
}

/// Clients of a deployment have the model of one server.
#[test]
fn clients_without_a_server_are_refused() {
    let text = describe(3, ["-1", "+1"], &["algorithm.preset=ldp-sgd"]);
    let text = text.text().to_string();
    let asked = text.replace("preset = \"ldp-sgd\"", "preset = \"sdm-dsgd\"");
    assert_ne!(asked, text);
    let error = Description::parse(&asked, 4).unwrap_err();
    assert!(matches!(error, DescriptionError::Simulated(_)), "{error}");
    assert!(error.to_string().contains("without a server"), "{error}");
}
