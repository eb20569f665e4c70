//! Numbers that nobody can read: a message never has a row of digits longer than a line.

use crate::program::Place;

/// The longest row of digits in a text.
fn longest(text: &str) -> usize {
    let rows = text.split(|letter: char| !letter.is_ascii_digit());
    rows.map(str::len).max().unwrap_or(0)
}

#[test]
fn huge_and_tiny_numbers_have_exponents() {
    let place = Place::new();
    let mechanism = ["account", "--estimator", "sgd", "--samples", "1000"];
    let more = ["--rounds", "10", "--clip", "1"];
    let account = |given: &[&'static str]| [&mechanism, &more[..], given].concat();
    let set = |setting: &'static str| ["train", "--out", "out", "--set", setting].to_vec();
    let join = |limit: &'static str| {
        let server = ["join", "--server", "http://127.0.0.1:1", "--insecure"];
        let client = ["--client", "0", "--state", "state", "--data", "a9a"];
        [&server[..], &client, &[limit]].concat()
    };
    let cases = [
        (set("algorithm.batch=-1e300"), "found -1e300"),
        (set("algorithm.fraction=1e300"), "found 1e300"),
        (set("algorithm.schedule=1e-300"), "found 1e-300"),
        (set("privacy.delta=1e300"), "found 1e300"),
        (join("--max-epsilon=-1e300"), "found -1e300"),
        (join("--max-delta=1e300"), "found 1e300"),
        (
            account(&["--batch", "10", "--sigma", "1e-300", "--delta", "1e-5"]),
            "e299 times the noise",
        ),
        (
            account(&["--batch", "10", "--sigma", "1", "--delta", "1e-300"]),
            "found 1e-300",
        ),
        (
            account(&["--batch", "1e300", "--sigma", "1", "--delta", "1e-5"]),
            "`--batch` is 1e300",
        ),
    ];
    for (arguments, expected) in cases {
        let said = place.run(&arguments).badly(2);
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(longest(&said) <= 16, "{arguments:?}: {said}");
    }
}

/// A run that went wrong says so in numbers that fit on a line.
#[test]
fn a_loss_beyond_all_bounds_fits_on_a_line() {
    let place = Place::new();
    let ran = place.train("out", &["algorithm.shift=1e30"]);
    assert!(longest(&ran.stdout) <= 16, "{}", ran.stdout);
    assert!(ran.stdout.contains("training loss"), "{}", ran.stdout);
}
