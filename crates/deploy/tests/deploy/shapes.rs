//! The shape of records is not for a server to try: a source is tried with one, and every other is
//! refused by its text.

use soteriafl_data::DataDirectories;
use soteriafl_deploy::description::{Description, DescriptionError};
use soteriafl_deploy::holding::Holding;
use soteriafl_deploy::memory::{ClientMemory, PlannedFailure};
use soteriafl_deploy::schema_pin::{self, ShapeError};
use soteriafl_deploy::sqlite::ClientSqlite;
use soteriafl_deploy::store::ClientStore;

use crate::records::{describe, describe_named, try_describe};

/// Descriptions of five shapes; `admit` does not see any records, so a file need not exist.
fn shapes() -> [Description; 5] {
    [
        describe(3, ["-1", "+1"], &[]),
        describe(4, ["-1", "+1"], &[]),
        describe(2, ["-1", "+1"], &[]),
        describe(3, ["-1", "1"], &[]),
        describe(3, ["+1", "-1"], &[]),
    ]
}

fn holding(text: &str) -> Holding {
    Holding::Source {
        share: text.parse().unwrap(),
        directories: DataDirectories::default(),
    }
}

fn admit(
    store: &mut impl ClientStore,
    source: &str,
    description: &Description,
    permitted: Option<&str>,
) -> Result<(), ShapeError> {
    let none = std::iter::empty();
    schema_pin::admit(store, &holding(source), &description.shape, none, permitted)
}

/// What permits a shape, as the refusal names it.
fn name(refusal: ShapeError) -> String {
    let text = refusal.to_string();
    match refusal {
        ShapeError::Other { name, .. } => name,
        _ => panic!("{text}"),
    }
}

/// The first shape stays, over starts of the process, and every other is refused as often as it is
/// tried.
#[test]
fn a_source_is_tried_with_one_shape() {
    let [first, others @ ..] = shapes();
    let directory = tempfile::tempdir().unwrap();
    for start in 0..3 {
        let mut store = ClientSqlite::open(directory.path()).unwrap();
        if start > 0 {
            for other in &others {
                name(admit(&mut store, "libsvm:d.txt", other, None).unwrap_err());
            }
        }
        // Another nonce, another seed: still this shape.
        let again = describe(3, ["-1", "+1"], &["run.seed=5"]);
        admit(&mut store, "libsvm:d.txt", &first, None).unwrap();
        admit(&mut store, "libsvm:d.txt", &again, None).unwrap();
        admit(&mut store, "libsvm:d.txt:1/3", &first, None).unwrap();
        name(admit(&mut store, "libsvm:d.txt:1/3", &others[0], None).unwrap_err());
        // Other sources have their own.
        admit(&mut store, "libsvm:e.txt", &others[1], None).unwrap();
    }
}

/// Names of features are part of the shape: a server learns of one list of names whether a table
/// has it. As many features under other names, in another order, with names or without: each is
/// another shape.
#[test]
fn a_source_is_tried_with_one_list_of_names() {
    let labels = ["-1", "+1"];
    let lists: [Option<&[&str]>; 4] = [
        Some(&["a", "b", "c"]),
        Some(&["c", "b", "a"]),
        Some(&["a", "b", "C"]),
        None,
    ];
    let shapes = lists.map(|names| describe_named(3, names, labels, &[]));
    for first in &shapes {
        let mut store = ClientMemory::default();
        admit(&mut store, "csv:d.csv", first, None).unwrap();
        for other in &shapes {
            let admitted = admit(&mut store, "csv:d.csv", other, None);
            assert_eq!(admitted.is_ok(), other.shape == first.shape);
        }
        // Also for records that have joined under another name of their source.
        let mut store = ClientMemory::default();
        for other in &shapes {
            let joined = [first.text()].into_iter();
            let source = holding("csv:moved.csv");
            let admitted = schema_pin::admit(&mut store, &source, &other.shape, joined, None);
            assert_eq!(admitted.is_ok(), other.shape == first.shape);
        }
    }
    // A line break in a name is the server's mistake, and found there: it could end the head of the
    // text.
    let broken: [Option<&[&str]>; 2] = [Some(&["a", "b\n---\n", "c"]), Some(&["a", "---\n", "c"])];
    for names in broken {
        let refused = try_describe(3, names, labels, &[]);
        assert!(matches!(refused, Err(DescriptionError::Names)), "{names:?}");
    }
    // As many names as features, or it is no description.
    let text = shapes[0].text();
    for (from, to) in [
        ("names = [\"a\", \"b\", \"c\"]", "names = [\"a\", \"b\"]"),
        ("names = [\"a\", \"b\", \"c\"]", "names = \"abc\""),
        ("version 2", "version 1"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        assert!(Description::parse(&changed, 8).is_err(), "{to}");
    }
}

/// One name permits one shape. It may stay on the command line: the server gets nothing else for
/// it, and without it the shape that was permitted last is the one.
#[test]
fn a_person_permits_one_other_shape() {
    let [first, second, third, ..] = shapes();
    let mut store = ClientMemory::default();
    let source = "libsvm:d.txt";
    admit(&mut store, source, &first, None).unwrap();
    let permitted = name(admit(&mut store, source, &second, None).unwrap_err());
    for _ in 0..2 {
        for other in [&first, &third] {
            let refused = admit(&mut store, source, other, Some(&permitted));
            assert!(matches!(refused, Err(ShapeError::Name { .. })));
        }
        admit(&mut store, source, &second, Some(&permitted)).unwrap();
    }
    admit(&mut store, source, &second, None).unwrap();
    name(admit(&mut store, source, &first, None).unwrap_err());
}

/// A shape that cannot be kept is not tried; one that was kept although the process died before it
/// got the answer, is.
#[test]
fn what_is_tried_is_kept_before() {
    let [first, second, ..] = shapes();
    for after in [false, true] {
        let mut store = ClientMemory::default();
        store.failure(|plan| *plan = PlannedFailure::at(0, after));
        let failed = admit(&mut store, "libsvm:d.txt", &first, None);
        assert!(matches!(failed, Err(ShapeError::Store(_))));
        store.failure(PlannedFailure::heal);
        let next = admit(&mut store, "libsvm:d.txt", &second, None);
        assert_eq!(next.is_err(), after);
    }
}

/// Runs that the same records have joined count under every name of their source; and what the
/// client wrote itself does.
#[test]
fn runs_that_were_joined_and_the_clients_own_word_count() {
    let [first, second, ..] = shapes();
    let source = holding("libsvm:moved.txt");
    let mut store = ClientMemory::default();
    let joined = || [first.text()].into_iter();
    let refused = schema_pin::admit(&mut store, &source, &second.shape, joined(), None);
    let permitted = name(refused.unwrap_err());
    schema_pin::admit(&mut store, &source, &first.shape, joined(), None).unwrap();
    let permitted = Some(permitted.as_str());
    schema_pin::admit(&mut store, &source, &second.shape, joined(), permitted).unwrap();
    // From then on without being told.
    schema_pin::admit(&mut store, &source, &second.shape, joined(), None).unwrap();
    let own = "libsvm:d.txt?features=5";
    for permitted in [None, permitted] {
        let refused = admit(&mut store, own, &second, permitted);
        assert_eq!(refused, Err(ShapeError::Features { own: 5, found: 4 }));
    }
    assert_eq!(store.shape(own), Ok(None), "it was not tried");
}
