//! Tables of text, categories and gaps: a schema drafted, checked and trained with, and a model
//! used.

use soteriafl::words::counted;

use super::program::{Place, Ran, tensors};

/// A table with an identifier, text, gaps, a date, and a rule that can be learnt.
pub fn patients(rows: usize, seed: u64) -> String {
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut text = String::from("number;site;age;pressure;smoker;admitted;ward;outcome\n");
    for row in 0..rows {
        let age = 18 + draw(73);
        let smoker = draw(3) == 0;
        let pressure = 90 + draw(90);
        let ward = ["north", "south", "west"][draw(3) as usize];
        let score = age + if smoker { 30 } else { 0 } + pressure / 4 + draw(20);
        text += &format!(
            "P{row:05};s{};{age};{};{};20{:02}-0{}-11;{};{}\n",
            draw(4),
            if draw(10) == 0 {
                "NA".to_owned()
            } else {
                pressure.to_string()
            },
            if smoker { "yes" } else { "no" },
            10 + draw(15),
            1 + draw(9),
            if draw(20) == 0 { "" } else { ward },
            if score > 105 { "ill" } else { "well" },
        );
    }
    text
}

fn ok(place: &Place, arguments: &[&str]) -> Ran {
    let ran = place.run(arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran
}

fn refused(place: &Place, arguments: &[&str]) -> Ran {
    let ran = place.run(arguments);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    ran
}

const TRAIN: &[&str] = &[
    "train",
    "--out",
    "run",
    "--force",
    "--set",
    "data.source=csv:patients.csv",
    "--set",
    "data.schema=patients.toml",
    "--set",
    "data.clients=4",
    "--set",
    "privacy.epsilon=4",
    "--set",
    "run.eval_every=0",
];

#[test]
fn a_draft_claims_nothing_until_a_person_has_confirmed_it() {
    let place = Place::new();
    place.write("patients.csv", patients(2000, 1));
    place.write(
        "new.csv",
        patients(50, 2).replace(";well", ";").replace(";ill", ";"),
    );
    ok(
        &place,
        &[
            "schema",
            "draft",
            "csv:patients.csv",
            "--out",
            "patients.toml",
        ],
    );
    let draft = place.text("patients.toml");
    for line in [
        "ranges = \"read from records\"",
        "{ name = \"number\", role = \"ignored\" }",
        "{ name = \"age\", kind = \"number\", range = [0, 90] }",
        "{ name = \"pressure\", kind = \"number\", range = [90, 180], gap = \"indicator\" }",
        "{ name = \"smoker\", kind = \"yes/no\" }",
        "{ name = \"admitted\", kind = \"date\", range = [\"2010-01-01\", \"2024-12-31\"] }",
        "{ name = \"ward\", kind = \"category\", values = [\"north\", \"south\", \"west\"], gap = \"indicator\" }",
        "{ name = \"outcome\", role = \"label\", classes = [\"ill\", \"well\"] }",
    ] {
        assert!(draft.contains(line), "{line} in\n{draft}");
    }
    let ran = ok(&place, TRAIN);
    assert!(
        ran.stderr.contains("no epsilon can be claimed"),
        "{}",
        ran.stderr
    );
    let summary = place.json("run/summary.json");
    assert_eq!(
        summary["privacy"]["claim"],
        "the schema's ranges were read from records"
    );
    assert!(summary["privacy"]["epsilon"].is_null());
    // A plan of it says so, too.
    let plan = ["plan", "--config", "run/config.toml", "--json"];
    let remarks = ok(&place, &plan).object()["remarks"].to_string();
    assert!(remarks.contains("read from records"), "{remarks}");

    place.write(
        "patients.toml",
        draft.replace("read from records", "public"),
    );
    let ran = ok(&place, TRAIN);
    assert!(!ran.stderr.contains("no epsilon"), "{}", ran.stderr);
    let summary = place.json("run/summary.json");
    assert_eq!(summary["privacy"]["claim"], "proved");
    // The run's own configuration repeats it, without the file of the schema.
    std::fs::remove_file(place.path("patients.toml")).unwrap();
    ok(
        &place,
        &["train", "--config", "run/config.toml", "--out", "again"],
    );
    assert_eq!(
        place.read("run/model.safetensors"),
        place.read("again/model.safetensors")
    );

    // And the run's directory is all that it takes to predict rows without labels.
    std::fs::remove_file(place.path("patients.csv")).unwrap();
    ok(
        &place,
        &[
            "predict",
            "--model",
            "run",
            "--data",
            "csv:new.csv",
            "--out",
            "p.csv",
        ],
    );
    let table = place.text("p.csv");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 51);
    assert_eq!(lines[0], "prediction,probability_ill,probability_well");
    let labels: Vec<String> = patients(50, 2)
        .lines()
        .skip(1)
        .map(|line| line.rsplit(';').next().unwrap().to_owned())
        .collect();
    let right = lines[1..]
        .iter()
        .zip(&labels)
        .filter(|(line, label)| line.split(',').next() == Some(label.as_str()));
    // Answering always the same is right in 30 of these rows.
    assert!(right.count() >= 35, "{table}");
    for line in &lines[1..] {
        let numbers: Vec<f64> = line
            .split(',')
            .skip(1)
            .map(|n| n.parse().unwrap())
            .collect();
        assert!((numbers.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{line}");
    }
    python_says_the_same(&place, &table);
    let (_, about) = tensors(&place.path("run/model.safetensors"));
    assert_eq!(about["classes"], serde_json::json!(["ill", "well"]));
    assert_eq!(about["schema"]["ranges"], "public");
    let card = place.text("run/MODEL_CARD.md");
    assert!(
        card.contains("| ward | feature | north, south, west |"),
        "{card}"
    );
    assert!(card.contains("locally differentially private"), "{card}");
}

/// Runs the Python of the model card, where there is Python, and compares probabilities.
fn python_says_the_same(place: &Place, table: &str) {
    let card = place.text("run/MODEL_CARD.md");
    let Some((_, code)) = card.split_once("```python\n") else {
        // A map that takes more than a few lines has none.
        eprintln!("skipped: this model's card has no Python");
        return;
    };
    let (code, _) = code.split_once("```").expect("the end of the code");
    place.write("run/predict.py", code);
    // The reader of Python's library expects commas.
    place.write("commas.csv", place.text("new.csv").replace(';', ","));
    let python = std::process::Command::new("python3")
        .args(["predict.py", "../commas.csv"])
        .current_dir(place.path("run"))
        .output();
    let output = match python {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: no python3 ({error})");
            return;
        }
    };
    let said = String::from_utf8(output.stdout).unwrap();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{failed}\n{code}");
    assert_eq!(said.lines().count(), table.lines().count() - 1, "{said}");
    for (ours, theirs) in table.lines().skip(1).zip(said.lines()) {
        let (ours, theirs): (Vec<&str>, Vec<&str>) =
            (ours.split(',').collect(), theirs.split(',').collect());
        assert_eq!(ours[0], theirs[0]);
        for (ours, theirs) in ours[1..].iter().zip(&theirs[1..]) {
            let (ours, theirs): (f64, f64) = (ours.parse().unwrap(), theirs.parse().unwrap());
            // Products are summed in 32 bits here, in 64 there.
            assert!((ours - theirs).abs() < 1e-4, "{ours} {theirs}");
        }
    }
}

/// Nobody has more records than the claim says: what is too much is left out before anything else
/// sees it, and only its number is told.
#[test]
fn persons_have_no_more_records_than_the_claim_says() {
    let place = Place::new();
    let mut text = String::from("patient;age;outcome\n");
    for row in 0..60 {
        // Patient 0 has twenty records, each of the others two.
        let patient = if row < 20 { 0 } else { 1 + (row - 20) / 2 };
        let outcome = ["well", "ill"][row % 2];
        text += &format!("{patient};{};{outcome}\n", 20 + row);
    }
    place.write("people.csv", text);
    place.write(
        "people.toml",
        r#"ranges = "public"
columns = [
  { name = "patient", role = "person" },
  { name = "age", kind = "number", range = [0, 100] },
  { name = "outcome", role = "label", classes = ["well", "ill"] },
]
"#,
    );
    for (most_records, left_out) in [(2, 18), (5, 15), (20, 0)] {
        let most = format!("privacy.records_per_person={most_records}");
        let settings = [
            "data.source=csv:people.csv",
            "data.schema=people.toml",
            "data.clients=1",
            "algorithm.rounds=2",
            &most,
        ];
        let mut words = vec!["train", "--force", "--out", "run"];
        words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let ran = ok(&place, &words);
        // Twenty-one persons, and as many places each, so that nobody sees who has how many.
        let places = 21 * most_records;
        let said = format!(
            "persons: {left_out} records left out, so that nobody has more than {most_records} at a \
             client; {} stand for what others have less",
            counted(places - (60 - left_out), "null record")
        );
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        assert!(!ran.stderr.contains("presumes"), "{}", ran.stderr);
        let summary = place.json("run/summary.json");
        assert_eq!(summary["samples_per_client"][0], places);
    }
}

#[test]
fn everything_that_does_not_fit_is_told_at_once() {
    let place = Place::new();
    place.write(
        "s.toml",
        "ranges = \"public\"\ncolumns = [\n\
         { name = \"age\", kind = \"number\", range = [0, 50] },\n\
         { name = \"ward\", kind = \"category\", values = [\"a\", \"b\"], unknown = \"refuse\" },\n\
         { name = \"since\", kind = \"date\", range = [\"2000-01-01\", \"2020-12-31\"] },\n\
         { name = \"ill\", role = \"label\", classes = [\"no\", \"yes\"] },\n]\n",
    );
    place.write(
        "bad.csv",
        "age,ward,since,name,ill\n1,a,2001-01-01,x,no\nold,c,2001-01-01,x,yes\n,b,never,x,no\n\
         60,b,2001-01-01,x,maybe\n",
    );
    let check = ["schema", "check", "csv:bad.csv", "--schema", "s.toml"];
    let ran = refused(&place, &check);
    for said in [
        "error: bad.csv: column \"name\" is not in the schema",
        "error: bad.csv, line 3, column \"age\": expected a number, found \"old\"",
        "error: bad.csv, line 4, column \"age\": expected a number, found nothing",
        "error: bad.csv, line 3, column \"ward\": expected one of a, b, found \"c\"",
        "error: bad.csv, line 4, column \"since\": expected a date as 2024-12-31, found \"never\"",
        "error: bad.csv, line 5, column \"ill\": expected one of the known classes (no, yes), found \"maybe\"",
        "hint: columns that the model must not see stand in the schema with role = \"ignored\"",
        "gap = \"indicator\"",
    ] {
        assert!(ran.stderr.contains(said), "{said} in\n{}", ran.stderr);
    }
    // Training says the same of the columns, and leaves nothing behind.
    let train = [
        "train",
        "--out",
        "run",
        "--set",
        "data.source=csv:bad.csv",
        "--set",
        "data.schema=s.toml",
    ];
    let ran = refused(&place, &train);
    assert!(
        ran.stderr.contains("column \"name\" is not in the schema"),
        "{}",
        ran.stderr
    );
    assert!(!place.path("run").exists());
    // What lies outside of a range fits, and is counted.
    place.write(
        "good.csv",
        "age,ward,since,ill\n1,a,2001-01-01,no\n60,b,1999-01-01,yes\n",
    );
    let ran = ok(
        &place,
        &["schema", "check", "csv:good.csv", "--schema", "s.toml"],
    );
    assert!(ran.stdout.contains("2 rows, 4 features"), "{}", ran.stdout);
    for said in [
        "column \"age\": 1 of 2 values lie outside of [0, 50] and are cut off",
        "column \"since\": 1 of 2 values lie outside of [2000-01-01, 2020-12-31]",
    ] {
        assert!(ran.stderr.contains(said), "{said} in\n{}", ran.stderr);
    }
    // Another order of columns is refused, in training and in use.
    place.write("turned.csv", "ward,age,since,ill\na,1,2001-01-01,no\n");
    let ran = refused(
        &place,
        &["schema", "check", "csv:turned.csv", "--schema", "s.toml"],
    );
    assert!(ran.stderr.contains("stands behind"), "{}", ran.stderr);
}

#[test]
fn columns_and_files_name_the_clients() {
    let place = Place::new();
    place.write("patients.csv", patients(600, 3));
    ok(
        &place,
        &["schema", "draft", "csv:patients.csv", "--out", "s.toml"],
    );
    let draft = place.text("s.toml").replace("read from records", "public");
    place.write("s.toml", &draft);
    let train = |out: &str, settings: &[&str]| {
        let mut arguments = vec!["train", "--out", out, "--set", "run.eval_every=0"];
        settings
            .iter()
            .for_each(|setting| arguments.extend(["--set", setting]));
        let ran = place.run(&arguments);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        place.json(&format!("{out}/summary.json"))
    };
    let source = "data.source=csv:patients.csv";
    let by_column = train(
        "column",
        &[source, "data.schema=s.toml", "data.partition=column:site"],
    );
    let sizes = by_column["samples_per_client"].as_array().unwrap();
    assert_eq!(sizes.len(), 4);
    let counted = |site: &str| {
        let text = patients(600, 3);
        text.lines()
            .filter(|line| line.split(';').nth(1) == Some(site))
            .count()
    };
    assert_eq!(sizes[0], counted("s0"));
    assert_eq!(sizes[3], counted("s3"));
    // The schema may say so, too, and the run repeats itself.
    let site = draft
        .lines()
        .find(|line| line.contains("name = \"site\""))
        .unwrap();
    place.write(
        "by.toml",
        draft.replace(site, "  { name = \"site\", role = \"client\" },"),
    );
    let by_role = train("role", &[source, "data.schema=by.toml"]);
    assert_eq!(
        by_role["samples_per_client"],
        by_column["samples_per_client"]
    );
    ok(
        &place,
        &["train", "--config", "role/config.toml", "--out", "again"],
    );
    assert_eq!(
        place.read("role/model.safetensors"),
        place.read("again/model.safetensors")
    );
    // One file each, which is the same data in the same order.
    let text = patients(600, 3);
    let header = text.lines().next().unwrap();
    for site in ["s0", "s1", "s2", "s3"] {
        let rows = text
            .lines()
            .filter(|line| line.split(';').nth(1) == Some(site));
        let rows: Vec<&str> = std::iter::once(header).chain(rows).collect();
        place.write(&format!("sites/{site}.csv"), rows.join("\n"));
    }
    let files = [
        "data.source=csv:sites/*.csv",
        "data.schema=by.toml",
        "data.partition=files",
    ];
    let by_file = train("files", &files);
    assert_eq!(
        by_file["samples_per_client"],
        by_column["samples_per_client"]
    );
    assert_eq!(
        place.read("role/model.safetensors"),
        place.read("files/model.safetensors")
    );
    // Without a schema: numbers, and one column that names clients.
    place.write("plain.csv", "x,site,y,label\n1,b,2,0\n3,a,4,1\n5,b,6,0\n");
    let plain = train(
        "plain",
        &["data.source=csv:plain.csv", "data.partition=column:site"],
    );
    assert_eq!(plain["samples_per_client"], serde_json::json!([1, 2]));
    let town = [
        "--set",
        source,
        "--set",
        "data.schema=s.toml",
        "--set",
        "data.partition=column:town",
    ];
    let wrong = place.run(&[&["train"], &town[..]].concat());
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("column:town"), "{}", wrong.stderr);
}

/// Runs the commands of the tutorial on its files, up to the sections that only explain.
#[test]
fn the_tutorial_goes_from_a_raw_table_to_predictions() {
    let place = Place::new();
    let files = [
        (
            "credit.csv",
            include_str!("../../../../examples/tables/credit.csv"),
        ),
        (
            "applications.csv",
            include_str!("../../../../examples/tables/applications.csv"),
        ),
        (
            "credit.toml",
            include_str!("../../../../examples/tables/credit.toml"),
        ),
    ];
    files
        .iter()
        .for_each(|(name, text)| _ = place.write(name, text));
    let page = include_str!("../../../../docs/tables.md");
    let (steps, _) = page.split_once("## What a schema says").unwrap();
    let (mut inside, mut commands, mut said) = (false, 0, String::new());
    for line in steps.lines() {
        match line.strip_prefix("```") {
            Some(kind) => inside = kind == "console",
            None if inside => {
                let words: Vec<&str> = line.split(' ').collect();
                assert_eq!(words[0], "soteria");
                let ran = ok(&place, &words[1..]);
                said += &(ran.stderr + &ran.stdout);
                commands += 1;
            }
            None => {}
        }
    }
    assert_eq!(commands, 6);
    let draft = place.text("draft.toml");
    // What the page shows is what the commands give.
    let block = |kind: &str| {
        let (_, rest) = steps.split_once(&format!("```{kind}\n")).unwrap();
        let lines = rest.split_once("```").unwrap().0.lines();
        lines.filter(|line| line.trim() != "...")
    };
    for line in block("toml") {
        assert!(
            draft.lines().any(|drafted| drafted == line),
            "{line} in\n{draft}"
        );
    }
    for line in block("text") {
        assert!(said.contains(line), "{line} in\n{said}");
    }
    let summary = place.json("run/summary.json");
    assert_eq!(summary["privacy"]["claim"], "proved");
    let (accuracy, majority) = (
        summary["final"]["test_accuracy"].as_f64().unwrap(),
        summary["final"]["majority_accuracy"].as_f64().unwrap(),
    );
    assert!(accuracy > majority, "{accuracy} {majority}");
    // What was written says what the metrics counted.
    let predictions = place.text("predictions.csv");
    let labels = files[1]
        .1
        .lines()
        .skip(1)
        .map(|line| line.rsplit(',').next().unwrap());
    let right = predictions
        .lines()
        .skip(1)
        .zip(labels)
        .filter(|(line, label)| line.split(',').next() == Some(label));
    assert!(
        (right.count() as f64 / 890.0 - accuracy).abs() < 1e-9,
        "{accuracy}"
    );
}
