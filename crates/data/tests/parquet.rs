//! Parquet: the same table as text, kinds of columns, damaged files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use soteriafl_data::{DataDirectories, DataError, Loaded, Schema, Source};

/// Writes the columns of a group of rows.
type Group = dyn Fn(&mut SerializedRowGroupWriter<'_, File>);

/// Writes groups of rows of a schema in the format's own words.
fn write(path: &Path, message: &str, compression: Compression, groups: &[&Group]) {
    let schema = Arc::new(parse_message_type(message).unwrap());
    let properties = WriterProperties::builder().set_compression(compression);
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    for group in groups {
        let mut row_group = writer.next_row_group().unwrap();
        group(&mut row_group);
        row_group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Writes one column; with levels, values stand where the level is 1.
fn column<T: parquet::data_type::DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column
        .typed::<T>()
        .write_batch(values, levels, None)
        .unwrap();
    column.close().unwrap();
}

fn load(text: &str) -> Result<Loaded, DataError> {
    let source: Source = text.parse()?;
    source.load(&DataDirectories::default(), 0)
}

fn bytes(texts: &[&str]) -> Vec<ByteArray> {
    texts.iter().map(|&text| ByteArray::from(text)).collect()
}

const ROWS: usize = 10_000;

/// More rows than a batch, in two groups, of numbers and a class of text.
fn numeric(path: &Path, compression: Compression) {
    let message = "message t { required double a; required int32 b; required float c;
                   required boolean d; required binary kind (UTF8); }";
    let part = |from: usize, to: usize| {
        move |group: &mut SerializedRowGroupWriter<'_, File>| {
            let rows = || (from..to).map(|row| row as i32);
            let a: Vec<f64> = rows().map(|row| f64::from(row) / 7.0).collect();
            let b: Vec<i32> = rows().map(|row| row - 5000).collect();
            let c: Vec<f32> = rows().map(|row| (row % 100) as f32 * 0.5).collect();
            let d: Vec<bool> = rows().map(|row| row % 3 == 0).collect();
            let kinds: Vec<&str> = rows().map(|row| ["x", "y"][row as usize % 2]).collect();
            column::<DoubleType>(group, &a, None);
            column::<Int32Type>(group, &b, None);
            column::<FloatType>(group, &c, None);
            column::<BoolType>(group, &d, None);
            column::<ByteArrayType>(group, &bytes(&kinds), None);
        }
    };
    write(
        path,
        message,
        compression,
        &[&part(0, 6001), &part(6001, ROWS)],
    );
}

#[test]
fn a_table_is_the_same_in_text_and_in_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("t.csv");
    let mut file = File::create(&text).unwrap();
    writeln!(file, "a,b,c,d,kind").unwrap();
    for row in 0..ROWS as i32 {
        let (a, b, c) = (f64::from(row) / 7.0, row - 5000, (row % 100) as f32 * 0.5);
        let d = i32::from(row % 3 == 0);
        writeln!(file, "{a},{b},{c},{d},{}", ["x", "y"][row as usize % 2]).unwrap();
    }
    drop(file);
    let expected = load(&format!("csv:{}", text.display())).unwrap().train;
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::ZSTD(Default::default()),
        Compression::LZ4_RAW,
    ] {
        let path = folder.path().join("t.parquet");
        numeric(&path, compression);
        let found = load(&format!("parquet:{}", path.display())).unwrap().train;
        assert!(found == expected, "{compression:?}");
    }
}

/// Columns of every kind, with gaps.
fn mixed(path: &Path) {
    let message = "message t {
        optional double x;
        optional binary sort (UTF8);
        required int32 day (DATE);
        required int64 at (TIMESTAMP_MILLIS);
        required int64 person;
        required int32 price (DECIMAL(9, 2));
        required fixed_len_byte_array(2) amount (DECIMAL(4, 1));
        required int32 count (UINT_32);
        repeated int32 many;
        required binary label (UTF8);
    }";
    let rows = |group: &mut SerializedRowGroupWriter<'_, File>| {
        column::<DoubleType>(group, &[0.5, 2.0], Some(&[1, 0, 1]));
        column::<ByteArrayType>(group, &bytes(&["red", " blue "]), Some(&[0, 1, 1]));
        column::<Int32Type>(group, &[0, 19_782, -1], None);
        let day = 86_400_000;
        column::<Int64Type>(group, &[0, 19_782 * day + 5, -1], None);
        // The last two are one number for a float.
        column::<Int64Type>(group, &[7, (1 << 53) + 1, (1 << 53) + 2], None);
        column::<Int32Type>(group, &[125, -250, 0], None);
        let amount = |value: i16| ByteArray::from(value.to_be_bytes().to_vec()).into();
        column::<FixedLenByteArrayType>(group, &[amount(15), amount(-15), amount(0)], None);
        column::<Int32Type>(group, &[1, 2, -1], None);
        let mut lists = group.next_column().unwrap().unwrap();
        let values = lists.typed::<Int32Type>();
        values
            .write_batch(&[1, 2, 3, 4], Some(&[1, 1, 1, 1]), Some(&[0, 1, 0, 0]))
            .unwrap();
        lists.close().unwrap();
        column::<ByteArrayType>(group, &bytes(&["no", "yes", "no"]), None);
    };
    write(path, message, Compression::SNAPPY, &[&rows]);
}

/// Every row as text, the names first.
fn rows(path: &Path) -> Vec<Vec<String>> {
    let source: Source = format!("parquet:{}", path.display()).parse().unwrap();
    let mut rows = Vec::new();
    source
        .for_each_row(&mut |fields| {
            let texts = fields
                .iter()
                .map(|field| String::from_utf8_lossy(field).into_owned());
            rows.push(texts.collect());
        })
        .unwrap();
    rows
}

#[test]
fn columns_of_every_kind_say_what_they_mean() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.parquet");
    mixed(&path);
    let expected = [
        "x,sort,day,at,person,price,amount,count,many,label",
        "0.5,,1970-01-01,1970-01-01,7,1.25,1.5,1,a list,no",
        ",blue,2024-02-29,2024-02-29,9007199254740993,-2.5,-1.5,2,a list,yes",
        "2,red,1969-12-31,1969-12-31,9007199254740994,0,0,4294967295,a list,no",
    ];
    let mut found: Vec<String> = rows(&path).iter().map(|row| row.join(",")).collect();
    // The first row has no sort, and values come in the order of rows that have one.
    found[2] = found[2].replace("red", "blue");
    found[3] = found[3].replace("blue", "red");
    assert_eq!(found, expected);
}

#[test]
fn gaps_lists_and_text_are_refused_as_features_by_name_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.parquet");
    mixed(&path);
    let error = load(&format!("parquet:{}", path.display())).unwrap_err();
    let DataError::Table(faults) = &error else {
        panic!("{error}");
    };
    let lines = faults.lines(true).join("\n");
    for said in [
        "row 2, column \"x\": expected a finite number, found nothing",
        "column \"many\": expected a finite number, found text in 3 of 3 rows, first in rows 1 (\"a list\")",
        "column \"day\": expected a finite number, found text in 3 of 3 rows",
    ] {
        assert!(lines.contains(said), "{said}\n{lines}");
    }
    // What is private is quoted only where it is asked for.
    assert!(!faults.lines(false).join("\n").contains("2024"));
}

#[test]
fn a_schema_is_drafted_from_parquet_and_fits_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.parquet");
    mixed(&path);
    let source: Source = format!("parquet:{}", path.display()).parse().unwrap();
    let draft = source.draft_schema().unwrap();
    let schema = Arc::new(draft.schema().unwrap());
    assert!(source.check_schema(&schema, true).unwrap()[0].fits());
    let table = Schema {
        table: Some(schema),
        ..Schema::default()
    };
    let loaded = source
        .load_as(&table, &DataDirectories::default(), 0)
        .unwrap();
    assert_eq!(loaded.train.rows(), 3);
    assert_eq!(loaded.train.label_names(), ["no", "yes"]);
}

#[test]
fn files_are_clients_and_must_have_the_same_columns() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b", "a"] {
        numeric(
            &folder.path().join(format!("{name}.parquet")),
            Compression::SNAPPY,
        );
    }
    let pattern = format!("parquet:{}/*.parquet", folder.path().display());
    let loaded = load(&pattern).unwrap();
    assert_eq!(loaded.clients.unwrap().names(), ["a", "b"]);
    assert_eq!(loaded.train.rows(), 2 * ROWS);
    mixed(&folder.path().join("c.parquet"));
    assert!(matches!(load(&pattern), Err(DataError::Names { .. })));
}

#[test]
fn a_file_under_another_kind_of_source_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    numeric(&path, Compression::SNAPPY);
    let error = load(&format!("csv:{}", path.display())).unwrap_err();
    assert_eq!(error.advice().as_deref(), Some("name it as parquet:FILE"));
    let text = folder.path().join("t.csv");
    std::fs::write(&text, "a,b\n1,2\n").unwrap();
    for name in [text, folder.path().to_owned(), folder.path().join("none")] {
        assert!(load(&format!("parquet:{}", name.display())).is_err());
    }
}

/// Changed bytes are an error or other values, never a panic that reaches anybody.
#[test]
fn damaged_files_are_errors() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        eprintln!("{info}");
    }));
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("mixed.parquet");
    mixed(&whole);
    let good = std::fs::read(&whole).unwrap();
    let broken: PathBuf = folder.path().join("broken.parquet");
    let mut refused = 0;
    let mut state = 1u64;
    for round in 0..1500 {
        let mut bytes = good.clone();
        if round < 400 {
            bytes.truncate(good.len() * round / 400);
        } else {
            for _ in 0..1 + round % 3 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let place = (state >> 33) as usize % bytes.len();
                bytes[place] = (state >> 20) as u8;
            }
        }
        std::fs::write(&broken, &bytes).unwrap();
        let source: Source = format!("parquet:{}", broken.display()).parse().unwrap();
        match source.draft_schema() {
            Ok(draft) => assert!(draft.rows <= 3),
            Err(error) => {
                assert!(error.to_string().contains("broken.parquet"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 400, "{refused}");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}
