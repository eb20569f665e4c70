//! MNIST where it is at hand, and image sources in files made here.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use soteriafl_data::{DataDirectories, DataError, Dataset, Features, Scale, Schema, Source};

fn shared_data() -> Option<PathBuf> {
    let folder = match std::env::var_os("SOTERIA_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(3)?
            .join("shared"),
    };
    let path = folder.join("data");
    if !path.join("mnist").exists() {
        println!("skipped: no MNIST in {}", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn mnist_has_its_known_counts_and_moments() {
    let Some(folder) = shared_data() else { return };
    let loaded = Source::Mnist
        .load(&DataDirectories::new(vec![folder]), 0)
        .unwrap();
    let test = loaded.test.unwrap();
    let train = loaded.train;
    assert_eq!(
        (train.rows(), train.columns(), train.classes()),
        (60_000, 784, 10)
    );
    assert_eq!(
        (test.rows(), test.columns(), test.classes()),
        (10_000, 784, 10)
    );
    assert!(matches!(train.features(), Features::Sparse(_)));
    let count = |set: &Dataset, digit| set.labels().iter().filter(|&&label| label == digit).count();
    assert_eq!(
        (count(&train, 0), count(&train, 5), count(&test, 9)),
        (5923, 5421, 1009)
    );
    assert_eq!(train.label_names()[7], "7");
    assert_eq!(train.labels()[..5], [5, 0, 4, 1, 9]);

    let scaling = Scale::Standard.fit(&train).unwrap();
    assert!(
        (scaling.center().at(0) - 0.130660).abs() < 5e-7,
        "{scaling}"
    );
    assert!(
        (1.0 / scaling.factor().at(0) - 0.308108).abs() < 5e-7,
        "{scaling}"
    );
    let scaled = scaling.apply(train).unwrap();
    assert!(matches!(scaled.features(), Features::Sparse(_)));
    // Standardised values have mean square 1, so rows have mean squared norm 784.
    let mean = scaled.squared_norms().iter().sum::<f64>() / 60_000.0;
    assert!((mean - 784.0).abs() < 1e-3, "{mean}");
    assert!(scaling.apply(test).unwrap().offset().is_some());
}

fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    dimensions
        .iter()
        .for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend_from_slice(data);
    bytes
}

fn write_gzip(path: &Path, bytes: &[u8]) {
    let mut encoder = GzEncoder::new(fs::File::create(path).unwrap(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap();
}

#[test]
fn image_sets_are_found_in_the_first_directory_that_has_them() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("fashion-mnist");
    fs::create_dir(&folder).unwrap();
    // The names lie about compression: content decides.
    write_gzip(
        &folder.join("train-images-idx3-ubyte"),
        &idx(&[2, 1, 3], &[0, 0, 255, 0, 51, 0]),
    );
    fs::write(
        folder.join("train-labels-idx1-ubyte.gz"),
        idx(&[2], &[4, 2]),
    )
    .unwrap();
    write_gzip(
        &folder.join("t10k-images-idx3-ubyte.gz"),
        &idx(&[1, 1, 3], &[255; 3]),
    );
    write_gzip(&folder.join("t10k-labels-idx1-ubyte.gz"), &idx(&[1], &[4]));
    let directories = DataDirectories::new(vec![root.path().join("none"), root.path().to_owned()]);

    let loaded = Source::FashionMnist.load(&directories, 0).unwrap();
    assert_eq!(loaded.train.labels(), [1, 0]);
    assert_eq!(loaded.train.full_row(1), [0.0, f64::from(0.2f32), 0.0]);
    let test = loaded.test.unwrap();
    assert_eq!((test.labels(), test.classes()), (&[1][..], 2));

    let idx_source: Source = format!("idx:{}", folder.display()).parse().unwrap();
    assert!(idx_source.load(&directories, 0).unwrap().train == loaded.train);
    assert!(matches!(
        Source::Mnist.load(&directories, 0),
        Err(DataError::Missing { name: "mnist", .. })
    ));

    // A test set with a class that training does not have.
    write_gzip(&folder.join("t10k-labels-idx1-ubyte.gz"), &idx(&[1], &[9]));
    let error = Source::FashionMnist
        .load(&directories, 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("expected one of the known classes (2, 4), found \"9\" in row 0"),
        "{error}"
    );
}

#[test]
fn training_and_test_sources_must_fit() {
    let root = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        fs::write(root.path().join(name), text).unwrap();
        root.path().join(name).display().to_string()
    };
    let nowhere = DataDirectories::default();
    let train: Source = format!("libsvm:{}", file("train", "+1 1:1 3:1\n-1 2:1\n"))
        .parse()
        .unwrap();
    let test: Source = format!("libsvm:{}", file("test", "-1 1:1\n"))
        .parse()
        .unwrap();
    let loaded = train
        .load_with_test(&test, &Schema::default(), &nowhere, 0)
        .unwrap();
    assert_eq!(loaded.test.unwrap().columns(), 3);
    let wide: Source = format!("libsvm:{}", file("wide", "-1 4:1\n"))
        .parse()
        .unwrap();
    let error = train
        .load_with_test(&wide, &Schema::default(), &nowhere, 0)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("at most 3, the number of features in training"),
        "{error}"
    );
    let error = train
        .load_with_test(&Source::A9a, &Schema::default(), &nowhere, 0)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "source \"a9a\": expected 3 features, found 123");

    // A client's file without the last features, told how many there are.
    let client: Source = format!("libsvm:{}?features=7", file("client", "1 2:1\n"))
        .parse()
        .unwrap();
    assert_eq!(client.load(&nowhere, 0).unwrap().train.columns(), 7);
    let a9a = Source::A9a.load(&nowhere, 0).unwrap();
    assert_eq!(a9a.test.unwrap().rows(), 16_281);
    let synthetic = "synthetic:50x4".parse::<Source>().unwrap();
    let (one, two) = (
        synthetic.load(&nowhere, 1).unwrap(),
        synthetic.load(&nowhere, 2).unwrap(),
    );
    assert!(one.train != two.train && one.test.is_some());
}
