//! Everything a user can get wrong: the exit code, one line that names what is at fault, and
//! nothing written.

use std::io::Write;

use crate::program::Place;

/// Runs `train` with these settings after those of the small problem; it must fail before writing.
fn refused(code: i32, settings: &[&str], wanted: &[&str]) {
    let place = Place::new();
    let said = place.train("run", settings).badly(code);
    for part in wanted {
        assert!(
            said.contains(part),
            "{settings:?}: `{part}` is not in\n{said}"
        );
    }
    assert!(!place.path("run").exists(), "{settings:?} left files");
}

#[test]
fn wrong_configurations_are_refused() {
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["privacy.epsilom=1"],
            &[
                "unknown key `privacy.epsilom`",
                "did you mean `privacy.epsilon`",
            ],
        ),
        (&["rounds=1"], &["did you mean `algorithm.rounds`"]),
        (&["data.clients"], &["key=VALUE"]),
        (&["data.clients=0"], &["`data.clients`", "0"]),
        (&["data.clients=2.5"], &["`data.clients`", "2.5"]),
        (&["data.clients=61"], &["61", "60"]),
        (&["data.rows=61"], &["`data.rows`", "61", "60"]),
        (
            &["data.partition=round-robin"],
            &["`data.partition`", "round-robin"],
        ),
        (
            &["data.partition=dirichlet", "data.alpha=-1"],
            &["`data.alpha`", "-1"],
        ),
        (
            &["data.source=mnist2"],
            &["mnist2", "synthetic:ROWSxFEATURES"],
        ),
        (&["data.source=synthetic:0x3"], &["0x3"]),
        (
            &["data.source=synthetic:60x4x3", "model.kind=logistic"],
            &["two classes", "3"],
        ),
        (&["data.scale=constant"], &["data.center"]),
        (&["algorithm.k=6"], &["`algorithm.k`", "6", "5"]),
        (
            &["algorithm.compressor=qsgd", "algorithm.levels=99999999"],
            &["`algorithm.levels`"],
        ),
        (
            &["algorithm.downlink=identity"],
            &["`algorithm.downlink", "none"],
        ),
        (
            &["algorithm.downlink=top-k:0.1"],
            &["`algorithm.downlink`", "rand-k:SHARE", "top-k:0.1"],
        ),
        (
            &["algorithm.downlink=rand-k:6"],
            &["`algorithm.downlink`", "6", "5"],
        ),
        (
            &["algorithm.downlink=sign", "algorithm.step_size=theory"],
            &["`algorithm.step_size", "algorithm.downlink"],
        ),
        (&["privacy.clip=none"], &["`privacy.clip", "noise"]),
        (&["privacy.epsilo\x1b[1mn=1"], &["epsilo\\u{1b}[1mn"]),
        (
            &["algorithm.k=2", "algorithm.fraction=0.5"],
            &["`algorithm.k`", "`algorithm.fraction`"],
        ),
        (
            &["algorithm.fraction=1.5"],
            &["`algorithm.fraction`", "1.5"],
        ),
        (
            &["algorithm.preset=soteriafl-sgd", "algorithm.batch=21"],
            &["`algorithm.batch` is 21", "20"],
        ),
        (
            &["algorithm.preset=soteriafl-sgd", "algorithm.batch=-1"],
            &["`algorithm.batch`", "-1"],
        ),
        (
            &["algorithm.preset=fedavg"],
            &["`algorithm.preset`", "soteriafl-sgd", "fedavg"],
        ),
        (&["algorithm.preset=dp-sgd"], &["one client", "3"]),
        (&["algorithm.preset=rrpsgd"], &["one client", "3"]),
        (&["algorithm.preset=rppsgd"], &["rrpsgd"]),
        (&["algorithm.preset=dp-srm"], &["one client", "ldp-srm"]),
        (
            &["algorithm.preset=ldp-srm", "algorithm.shift=0.1"],
            &["algorithm.shift", "recursive"],
        ),
        (
            &["algorithm.preset=ldp-srm", "privacy.clip_scope=selected"],
            &["clip_scope", "record"],
        ),
        (
            &[
                "algorithm.preset=distributed-dp-srm",
                "privacy.noise=secure",
            ],
            &["privacy.noise", "float"],
        ),
        (
            &["algorithm.compressor=top-k"],
            &["top-k", "biased", "rand-k", "leak", "porter"],
        ),
        (
            &["algorithm.compressor=grid"],
            &["grid", "whole models", "q-dpsgd-1"],
        ),
        (
            &["algorithm.preset=porter", "algorithm.topology=[[0, 1]]"],
            &[
                "`algorithm.topology`",
                "not connected",
                "client 2",
                "add edges",
            ],
        ),
        (
            &["algorithm.preset=porter", "algorithm.topology=[[0, 7]]"],
            &["`algorithm.topology`", "client 7", "0 to 2"],
        ),
        (
            &["algorithm.preset=porter", "algorithm.topology=star:3"],
            &["`algorithm.topology` expects star", "edges:FILE"],
        ),
        (
            &["algorithm.preset=porter", "algorithm.topology=edges:none"],
            &["none: "],
        ),
        (
            &["algorithm.preset=sdm-dsgd", "algorithm.mixing=0.9"],
            &["`algorithm.mixing` is 0.9", "stability bound 0.4"],
        ),
        (
            &["algorithm.preset=sdm-dsgd", "algorithm.shift=0.1"],
            &["algorithm.shift", "off"],
        ),
        (
            &["algorithm.preset=sdm-dsgd", "algorithm.estimator=saga"],
            &["algorithm.estimator", "sgd or gd"],
        ),
        (
            &["algorithm.preset=sdm-dsgd", "algorithm.participation=0.5"],
            &["algorithm.participation", "every round"],
        ),
        (
            &["algorithm.preset=q-dpsgd-1", "algorithm.compressor=qsgd"],
            &["algorithm.compressor", "a grid, or identity"],
        ),
        (
            &["algorithm.preset=q-dpsgd-1", "privacy.clip_scope=selected"],
            &["privacy.clip_scope", "noisy vectors"],
        ),
        (
            &["algorithm.preset=porter", "privacy.accountant=paper"],
            &["privacy.accountant", "no formula"],
        ),
        (&["algorithm.compressor=sign"], &["sign", "biased"]),
        (
            &["algorithm.compressor=zip"],
            &["`algorithm.compressor`", "zip"],
        ),
        (&["algorithm.rounds=0"], &["`algorithm.rounds`"]),
        (&["algorithm.rounds=99999999999"], &["`algorithm.rounds`"]),
        (
            &["algorithm.step_size=-0.1"],
            &["`algorithm.step_size`", "-0.1"],
        ),
        (&["algorithm.step_size=nan"], &["`algorithm.step_size`"]),
        (
            &["algorithm.participation=0"],
            &["`algorithm.participation`"],
        ),
        (
            &["algorithm.step_size=theory", "model.kind=softmax"],
            &["smoothness"],
        ),
        (&["privacy.epsilon=0"], &["`privacy.epsilon`", "0"]),
        (&["privacy.epsilon=-1"], &["`privacy.epsilon`", "-1"]),
        (&["privacy.epsilon=inf"], &["`privacy.epsilon`"]),
        (
            &["privacy.epsilon=1", "privacy.sigma=1"],
            &["`privacy.sigma`", "`privacy.epsilon`"],
        ),
        (&["privacy.delta=0"], &["`privacy.delta`"]),
        (&["privacy.delta=1"], &["`privacy.delta`"]),
        (&["privacy.clip=0"], &["`privacy.clip`"]),
        (
            &["privacy.noise=secure", "privacy.clip=1e-26"],
            &["`privacy.clip`", "1e-26", "2^-40"],
        ),
        (
            &["privacy.adjacency=both"],
            &["`privacy.adjacency`", "replace-one | zero-out"],
        ),
        (
            &[
                "privacy.clip_scope=selected",
                "algorithm.preset=soteriafl-svrg",
            ],
            &["clip_scope", "gd and sgd"],
        ),
        (
            &["privacy.noise=secure", "privacy.clip_scope=estimate"],
            &["secure"],
        ),
        (&["privacy.accountant=paper", "privacy.sigma=1"], &["paper"]),
        (&["model.kind=mlp", "model.hidden=[0]"], &["`model.hidden`"]),
        (&["model.init=file:absent.txt"], &["absent.txt"]),
        (&["deployment.quorum=4"], &["quorum", "4", "3"]),
        (&["run.seed=-1"], &["`run.seed`", "-1"]),
    ];
    std::thread::scope(|scope| {
        for half in cases.chunks(cases.len().div_ceil(2)) {
            scope.spawn(move || {
                for (settings, wanted) in half {
                    refused(2, settings, wanted);
                }
            });
        }
    });
}

#[test]
fn configuration_files_name_the_line() {
    let place = Place::new();
    place.write(
        "bad.toml",
        "[data]\nclients = 3\n[privacy]\nepsilon = \"low\"\n",
    );
    let said = place.run(&["train", "--config", "bad.toml"]).badly(2);
    assert!(
        said.contains("bad.toml:4") && said.contains("`privacy.epsilon`") && said.contains("low"),
        "{said}"
    );
    place.write("bad.toml", "[data\nclients = 3\n");
    assert!(
        place
            .run(&["train", "--config", "bad.toml"])
            .badly(2)
            .contains("bad.toml:1")
    );
    place.write("bad.toml", [0x5b, 0xff, 0xfe]);
    assert!(
        place
            .run(&["train", "--config", "bad.toml"])
            .badly(2)
            .contains("bad.toml")
    );
    assert!(
        place
            .run(&["train", "--config", "absent.toml"])
            .badly(2)
            .contains("absent.toml")
    );
    assert!(!place.path("runs").exists());
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// IDX files of `images` pictures of 2 by 2 pixels.
fn idx(images: u8) -> (Vec<u8>, Vec<u8>) {
    let mut pictures = vec![0, 0, 8, 3, 0, 0, 0, images, 0, 0, 0, 2, 0, 0, 0, 2];
    pictures.extend((0..4 * u32::from(images)).map(|pixel| (pixel * 37 % 256) as u8));
    let mut labels = vec![0, 0, 8, 1, 0, 0, 0, images];
    labels.extend((0..images).map(|image| image % 3));
    (pictures, labels)
}

/// Trains on a source made of these files, which must fail with this exit code before anything is
/// written.
fn unreadable(code: i32, files: &[(&str, &[u8])], source: &str, wanted: &[&str]) {
    let place = Place::new();
    for (name, bytes) in files {
        place.write(name, bytes);
    }
    let source = format!("data.source={source}");
    let said = place
        .train("run", &[&source, "model.kind=auto"])
        .badly(code);
    for part in wanted {
        assert!(said.contains(part), "{source}: `{part}` is not in\n{said}");
    }
    assert!(!place.path("run").exists(), "{source} left files");
}

/// A table that is not what the configuration says: exit code 2, the file, where in it, and what to
/// do.
#[test]
fn tables_with_faults_are_refused() {
    let refused = |text: &str, wanted: &[&str]| {
        unreadable(2, &[("x.csv", text.as_bytes())], "csv:x.csv", wanted);
    };
    let numbers = "hint: write text as numbers";
    refused(
        "1,2,0\n1,oops,1\n",
        &["x.csv, line 2, column 2", "oops", numbers],
    );
    let columns = "line 2: expected 3 columns, as in the first line, found 4";
    refused("1,2,0\n1,2,3,1\n", &[columns, "hint: give every row"]);
    refused(
        "1,2,0\n1,2,\"1\n3,4,0\n",
        &["x.csv, line 2, column 3", "closing quote"],
    );
    refused("1,2,0\n1e20,2,1\n", &["x.csv, line 2, column 1", "2^64"]);
    refused(
        "1,2,0\n1,nan,1\n",
        &["line 2, column 2", "nan", "hint: replace"],
    );
    refused("1,2,0\n1e999,0,1\n", &["line 2, column 1", "1e999"]);
    unreadable(
        2,
        &[("x.csv", b"a;b;c\n1;2;3\n")],
        "csv:x.csv?separator=,",
        &["at least two columns", "?separator=;"],
    );
}

/// Damaged or missing data: exit code 1, the file and where in it, and no output directory.
#[test]
fn damaged_data_is_refused() {
    let damaged = |files: &[(&str, &[u8])], source: &str, wanted: &[&str]| {
        unreadable(1, files, source, wanted);
    };
    damaged(&[], "csv:absent.csv", &["absent.csv"]);
    damaged(&[], "libsvm:absent.txt", &["absent.txt"]);
    damaged(&[], "idx:absent", &["absent"]);
    damaged(&[], "mnist", &["mnist", "soteria data fetch mnist"]);
    damaged(
        &[("empty.csv", b"")],
        "csv:empty.csv",
        &["empty.csv", "at least one row"],
    );
    damaged(
        &[("empty.txt", b"")],
        "libsvm:empty.txt",
        &["empty.txt", "at least one row"],
    );
    damaged(
        &[("x.txt", b"+1 1:0.5\n-1 2:x\n")],
        "libsvm:x.txt",
        &["x.txt", "2"],
    );
    damaged(
        &[("x.txt", b"+1 1:0.5\n-1 2:inf\n")],
        "libsvm:x.txt",
        &["x.txt", "2"],
    );
    damaged(&[("x.txt", b"+1 0:0.5\n")], "libsvm:x.txt", &["x.txt", "1"]);
    damaged(
        &[("x.txt", b"+1 3:1 2:1\n")],
        "libsvm:x.txt",
        &["x.txt", "1"],
    );
    damaged(
        &[("x.txt", b"+1 4294967296:1\n")],
        "libsvm:x.txt",
        &["x.txt", "1"],
    );
    let whole = gzip(&b"+1 1:0.5\n-1 2:0.25\n".repeat(500));
    damaged(
        &[("x.gz", &whole[..whole.len() / 2])],
        "libsvm:x.gz",
        &["x.gz"],
    );
    let (pictures, labels) = idx(9);
    let set = |pictures: &[u8], labels: &[u8], wanted: &[&str]| {
        damaged(
            &[("s/train-images", pictures), ("s/train-labels", labels)],
            "idx:s",
            wanted,
        );
    };
    set(&pictures[..30], &labels, &["train-images"]);
    set(&pictures, &labels[..12], &["train-labels"]);
    set(&pictures, &idx(8).1, &["9", "8"]);
    set(&pictures[..3], &labels, &["train-images"]);
    set(b"", &labels, &["train-images"]);
    // A header that promises 2^32 - 1 pictures must not be believed.
    let mut huge = pictures.clone();
    huge[4..8].fill(255);
    set(&huge, &labels, &["train-images"]);
    damaged(&[("s/train-images", &pictures)], "idx:s", &["train-labels"]);
}

/// A test set whose header names other columns, or the same in another order.
#[test]
fn test_columns_are_those_of_training() {
    let place = Place::new();
    place.write("a.csv", "height,width,label\n1,2,x\n3,4,y\n5,6,x\n");
    place.write("b.csv", "width,height,label\n1,2,x\n3,4,y\n");
    let settings = [
        "data.source=csv:a.csv",
        "data.test=csv:b.csv",
        "model.kind=logistic",
    ];
    let said = place.train("run", &settings).badly(1);
    let wanted =
        "b.csv, line 1: expected the columns of training, next \"height\", found \"width\"";
    assert!(said.contains(wanted), "{said}");
    place.write("b.csv", "1,2,x\n3,4,y\n");
    place.train("run", &settings).well();
}

/// Features are counted or named; and a deployment without records of its own is nothing to train
/// on, whatever is built in.
#[test]
fn features_are_a_number_or_names() {
    let place = Place::new();
    for wrong in ["[]", "0", "[1, 2]", "[\"a\", 2]", "-3", "1.5"] {
        let said = place
            .train("run", &[&format!("deployment.features={wrong}")])
            .badly(2);
        assert!(said.contains("or a list of their names"), "{said}");
    }
    place.write(
        "run.toml",
        "[deployment]\nrecords = 40\nfeatures = [\"a\"]\n",
    );
    let arguments = ["train", "--config", "run.toml", "--out", "run"];
    let said = place.run(&arguments).badly(2);
    assert!(said.contains("every client has its own"), "{said}");
    let serve = ["serve", "--insecure", "--state", "s", "--out", "o"];
    let said = place
        .run(&[&serve[..], &["--set", "data.source=clients"]].concat())
        .badly(2);
    assert!(said.contains("deployment.records"), "{said}");
}

#[test]
fn wrong_command_lines_are_refused() {
    let place = Place::new();
    for (arguments, wanted) in [
        (&["tarin"] as &[&str], "train"),
        (&["train", "--outt", "x"], "--out"),
        (&["train", "--seed", "minus"], "minus"),
        (&["train", "--seed", "-1"], "-1"),
        (&["train", "extra"], "extra"),
        (&["train", "--resume", "x", "--out", "y"], "--resume"),
        (&["completions", "tcsh"], "tcsh"),
        (&["report", "absent"], "absent"),
    ] {
        let code = if arguments[0] == "report" { 1 } else { 2 };
        let said = place.run(arguments).badly(code);
        assert!(
            said.contains(wanted),
            "{arguments:?}: `{wanted}` is not in\n{said}"
        );
    }
    let none = place.run(&[]);
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.contains("Usage: soteria"), "{none:?}");
    assert!(!place.path("runs").exists());
}

/// A file where a directory should be, and a directory that cannot be made.
#[test]
fn unwritable_output_is_an_error() {
    let place = Place::new();
    place.write("file", "x");
    for out in ["file", "file/run"] {
        let ran = place.train(out, &[]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr
                .lines()
                .any(|line| line.starts_with("error: file")),
            "{ran:?}"
        );
    }
    assert_eq!(place.text("file"), "x");
}
