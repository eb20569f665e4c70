//! Readers on arbitrary bytes, and round trips of writers and readers.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use soteriafl_data::csv::{self, Format};
use soteriafl_data::export::{self, ExportFormat};
use soteriafl_data::{
    Dataset, DenseRows, Features, LARGEST_VALUE, Schema, SparseRows, idx, libsvm,
};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Every reader; whatever comes back is only asked to be sound.
fn read_all(bytes: &[u8]) {
    let name = Path::new("bytes");
    let schema = Schema::default();
    let labels: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 1, 3];
    for result in [
        libsvm::read_from(bytes, name, &schema),
        csv::read_from(bytes, name, &Format::default(), &schema),
        idx::read_from((bytes, name), (labels, name), &schema),
        idx::read_from((bytes, name), (bytes, name), &schema),
    ] {
        match result {
            Ok(data) => {
                assert!(data.rows() > 0 && data.columns() > 0);
                assert!(data.squared_norms().iter().all(|norm| norm.is_finite()));
            }
            Err(error) => assert!(error.to_string().starts_with("bytes"), "{error}"),
        }
    }
}

/// Text that looks like data: random bytes alone never reach the inner parsers.
fn nearly_data() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "1",
        "-1",
        "+1",
        " ",
        ":",
        "\n",
        ",",
        "2:",
        "1:1",
        "1e9",
        "nan",
        "#",
        "qid:1",
        "\"",
        "\r\n",
        "\t",
        "999999999999",
        "?",
        "\u{feff}",
        "abc",
        ".",
        "-",
    ]);
    prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat().into_bytes())
}

/// A header that may claim anything, and some bytes.
fn nearly_idx() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![0u32..5, any::<u32>()];
    let code = prop_oneof![Just(8u8), 8u8..15, any::<u8>()];
    let data = prop::collection::vec(any::<u8>(), 0..64);
    (code, prop::collection::vec(size, 0..5), data).prop_map(|(code, dimensions, data)| {
        let mut bytes = vec![0, 0, code, dimensions.len() as u8];
        dimensions
            .iter()
            .for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(data);
        bytes
    })
}

fn finite() -> impl Strategy<Value = f32> {
    // Zeros of both signs, integers, and any bits that are an acceptable number.
    prop_oneof![
        Just(0.0f32),
        (-9i8..9).prop_map(f32::from),
        any::<u32>()
            .prop_map(f32::from_bits)
            .prop_filter("acceptable", |value| value.abs() <= LARGEST_VALUE),
    ]
}

fn datasets() -> impl Strategy<Value = Dataset> {
    (1usize..6, 1usize..8, 2usize..4).prop_flat_map(|(rows, columns, classes)| {
        let values = prop::collection::vec(finite(), rows * columns);
        let labels = prop::collection::vec(0..classes as u32, rows);
        (values, labels, any::<bool>()).prop_map(move |(values, labels, sparse)| {
            let features = if sparse {
                sparse_rows(columns, &values)
            } else {
                Features::Dense(DenseRows::new(columns, values).unwrap())
            };
            let names: Vec<String> = (0..classes).map(|class| format!("{}", 3 * class)).collect();
            Dataset::new(features, labels, classes)
                .unwrap()
                .with_label_names(names)
                .unwrap()
        })
    })
}

fn sparse_rows(columns: usize, values: &[f32]) -> Features {
    let (mut starts, mut indices, mut stored) = (vec![0], vec![], vec![]);
    for row in values.chunks(columns) {
        for (column, &value) in row.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            indices.push(column as u32);
            stored.push(value);
        }
        starts.push(stored.len());
    }
    Features::Sparse(SparseRows::new(columns, starts, indices, stored).unwrap())
}

fn same_rows(a: &Dataset, b: &Dataset) -> bool {
    a.labels() == b.labels()
        && a.label_names() == b.label_names()
        && a.columns() == b.columns()
        && (0..a.rows()).all(|row| a.full_row(row) == b.full_row(row))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn readers_never_panic(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        nearly_data(),
        nearly_idx(),
    ], cut in 0usize..60) {
        read_all(&bytes);
        let packed = gzip(&bytes);
        read_all(&packed);
        read_all(&packed[..packed.len().saturating_sub(cut)]);
    }

    #[test]
    fn written_rows_read_back(data in datasets(), compressed in any::<bool>()) {
        let schema = Schema::of(&data);
        let text = |format| {
            let mut bytes = Vec::new();
            export::write_to(&data, format, &mut bytes).unwrap();
            if compressed { gzip(&bytes) } else { bytes }
        };
        let name = Path::new("text");
        let libsvm = libsvm::read_from(&text(ExportFormat::Libsvm)[..], name, &schema).unwrap();
        prop_assert!(same_rows(&data, &libsvm));
        let csv = text(ExportFormat::Csv);
        let table = csv::read_from(&csv[..], name, &Format::default(), &schema).unwrap();
        prop_assert!(same_rows(&data, &table));
    }

    #[test]
    fn selection_and_intercept_commute_and_keep_norms(
        data in datasets(),
        shift in prop::collection::vec(-2f32..2.0, 8),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let data = data.clone().with_offset(&shift[..data.columns()]).unwrap();
        let picks: Vec<u32> = picks.iter().map(|pick| pick.index(data.rows()) as u32).collect();
        let one = data.select(&picks).with_intercept();
        let other = data.clone().with_intercept().select(&picks);
        prop_assert!(one == other);
        for (row, &norm) in one.squared_norms().iter().enumerate() {
            let by_hand: f64 = one.full_row(row).iter().map(|x| x * x).sum();
            prop_assert_eq!(norm, by_hand);
        }
    }
}
