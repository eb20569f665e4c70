//! The built-in a9a: counts, rows and a hash that were taken from the LIBSVM files independently,
//! and the files themselves where they are at hand.

use std::path::{Path, PathBuf};
use std::time::Instant;

use soteriafl_data::{
    DataDirectories, Dataset, Features, Partition, Scale, Schema, Source, SparseRows, a9a, libsvm,
};

fn rows(data: &Dataset) -> &SparseRows {
    match data.features() {
        Features::Sparse(rows) => rows,
        Features::Dense(_) => panic!("a9a is sparse"),
    }
}

/// FNV-1a over each row's label (0 or 1) and the indices of its features (from 0), a byte each.
fn hash(data: &Dataset) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for (row, &label) in data.labels().iter().enumerate() {
        take(label as u8);
        rows(data)
            .row(row)
            .indices
            .iter()
            .for_each(|&index| take(index as u8));
    }
    hash
}

fn indices_from_one(data: &Dataset, row: usize) -> Vec<u32> {
    rows(data)
        .row(row)
        .indices
        .iter()
        .map(|index| index + 1)
        .collect()
}

/// The folder of shared data: named by `SOTERIA_SHARED`, or beside the repository.
fn shared(file: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("SOTERIA_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(3)?
            .join("shared"),
    };
    let path = folder.join("data").join(file);
    if !path.exists() {
        println!("skipped: no {} here", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn counts_hash_and_rows_are_those_of_the_original() {
    let (train, test) = a9a::load().unwrap();
    for (set, count, positive, stored) in [
        (&train, 32_561, 7_841, 451_592),
        (&test, 16_281, 3_846, 225_731),
    ] {
        assert_eq!((set.rows(), set.columns(), set.classes()), (count, 123, 2));
        assert_eq!(set.labels().iter().sum::<u32>(), positive);
        assert_eq!(set.features().stored(), stored);
        assert!(set.features().values().iter().all(|&value| value == 1.0));
        assert_eq!(set.label_names(), ["-1", "+1"]);
        assert!(set.offset().is_none());
    }
    assert_eq!(hash(&train), 0xc6a0_bdd5_3301_cdc1);
    assert_eq!(hash(&test), 0x4301_52d2_a71e_379c);
    assert_eq!(
        (
            train.labels()[0],
            train.labels()[27],
            train.labels()[32_560]
        ),
        (0, 1, 1)
    );
    assert_eq!(
        indices_from_one(&train, 27),
        [5, 16, 20, 37, 40, 63, 68, 73, 74, 76, 82, 93]
    );
    assert_eq!(
        indices_from_one(&train, 32_560),
        [5, 8, 18, 22, 36, 40, 51, 61, 67, 72, 75, 76, 80, 83]
    );
    assert_eq!((test.labels()[0], test.labels()[16_280]), (0, 1));
    assert_eq!(
        indices_from_one(&test, 0),
        [1, 6, 17, 21, 35, 42, 54, 62, 71, 73, 74, 76, 80, 83]
    );
    assert_eq!(
        indices_from_one(&test, 16_280),
        [3, 8, 16, 19, 39, 40, 51, 63, 67, 73, 74, 76, 82, 83]
    );
    assert_eq!(
        indices_from_one(&train, 0),
        [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]
    );
}

#[test]
fn every_row_equals_the_libsvm_files() {
    let (Some(train), Some(test)) = (shared("a9a/a9a.gz"), shared("a9a/a9a.t.gz")) else {
        return;
    };
    let built_in = a9a::load().unwrap();
    let read = libsvm::read(&train, &Schema::default()).unwrap();
    assert!(built_in.0 == read);
    assert!(built_in.1 == libsvm::read(&test, &Schema::of(&read)).unwrap());
}

#[test]
fn decoding_is_fast() {
    // The first call also pays for page faults; the bound is far above what either takes.
    let start = Instant::now();
    a9a::load().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!("a9a decoded in {:.1} ms", 1e3 * seconds);
    assert!(seconds < 1.0);
}

/// The paper's set-up: the first 32,560 rows with a constant feature, scaled spectrally, sorted by
/// label, dealt to ten clients.
#[test]
fn the_papers_set_up_comes_out() {
    let first: Vec<u32> = (0..32_560).collect();
    let data = a9a::load().unwrap().0.select(&first).with_intercept();
    assert_eq!(data.columns(), 124);
    let scaling = Scale::Spectral.fit(&data).unwrap();
    assert!(
        (1.0 / scaling.factor().at(0) - 1.34856).abs() < 5e-6,
        "{scaling}"
    );
    assert!(scaling.data_dependent());
    let data = scaling.apply(data).unwrap();
    assert!((data.features().values()[0] - 0.741531).abs() < 1e-6);

    let clients = Partition::Sorted.split(&data, 10, 0).unwrap();
    let positive: Vec<u32> = clients
        .iter()
        .map(|client| client.labels().iter().sum())
        .collect();
    assert!(clients.iter().all(|client| client.rows() == 3256));
    assert_eq!(positive, [0, 0, 0, 0, 0, 0, 0, 7840 - 2 * 3256, 3256, 3256]);
}

/// Files of a data directory come first; without a test set there is none.
#[test]
fn a_directory_with_other_records_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let directories = DataDirectories::new(vec![folder.path().to_owned()]);
    let load = || Source::A9a.load(&directories, 0).unwrap();
    assert_eq!(load().train.rows(), 32_561);
    std::fs::create_dir(folder.path().join("a9a")).unwrap();
    std::fs::write(folder.path().join("a9a/a9a"), "-1 3:1 11:1\n+1 5:1\n").unwrap();
    let loaded = load();
    assert_eq!((loaded.train.rows(), loaded.train.columns()), (2, 123));
    assert_eq!(loaded.train.label_names(), ["-1", "+1"]);
    assert!(loaded.test.is_none());
    std::fs::write(folder.path().join("a9a/a9a.t"), "+1 124:1\n").unwrap();
    let error = Source::A9a.load(&directories, 0).err().unwrap();
    assert!(error.to_string().contains("at most 123"), "{error}");
}
