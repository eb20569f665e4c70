//! Makes `crates/data/data/a9a.zlib` from the records of UCI Adult: encodes them as a9a does and
//! packs them as `crates/data/src/a9a.rs` unpacks them.
//!
//!     cargo run -p pack-a9a -- adult.data adult.test crates/data/data/a9a.zlib

use std::error::Error;
use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// How a column of Adult becomes one block of binary features, of which at most one is set.
enum Block {
    /// Feature `p` for the value at place `p`.
    Names(&'static [&'static str]),
    /// Feature `p` for a number that exceeds `p` of these.
    Above(&'static [u32]),
}

use Block::{Above, Names};

/// The columns of Adult in their order. Education-num is checked, not stored: education tells it.
const COLUMNS: [(&str, Block); 14] = [
    ("age", Above(&[25, 32, 40, 49])),
    (
        "workclass",
        Names(&[
            "Private",
            "Self-emp-not-inc",
            "Self-emp-inc",
            "Federal-gov",
            "Local-gov",
            "State-gov",
            "Without-pay",
            "Never-worked",
        ]),
    ),
    ("fnlwgt", Above(&[106640, 158660, 196337, 259870])),
    (
        "education",
        Names(&[
            "Bachelors",
            "Some-college",
            "11th",
            "HS-grad",
            "Prof-school",
            "Assoc-acdm",
            "Assoc-voc",
            "9th",
            "7th-8th",
            "12th",
            "Masters",
            "1st-4th",
            "10th",
            "Doctorate",
            "5th-6th",
            "Preschool",
        ]),
    ),
    ("education-num", Above(&[8, 9, 10, 12])),
    (
        "marital-status",
        Names(&[
            "Married-civ-spouse",
            "Divorced",
            "Never-married",
            "Separated",
            "Widowed",
            "Married-spouse-absent",
            "Married-AF-spouse",
        ]),
    ),
    (
        "occupation",
        Names(&[
            "Tech-support",
            "Craft-repair",
            "Other-service",
            "Sales",
            "Exec-managerial",
            "Prof-specialty",
            "Handlers-cleaners",
            "Machine-op-inspct",
            "Adm-clerical",
            "Farming-fishing",
            "Transport-moving",
            "Priv-house-serv",
            "Protective-serv",
            "Armed-Forces",
        ]),
    ),
    (
        "relationship",
        Names(&[
            "Wife",
            "Own-child",
            "Husband",
            "Not-in-family",
            "Other-relative",
            "Unmarried",
        ]),
    ),
    (
        "race",
        Names(&[
            "White",
            "Asian-Pac-Islander",
            "Amer-Indian-Eskimo",
            "Other",
            "Black",
        ]),
    ),
    ("sex", Names(&["Female", "Male"])),
    ("capital-gain", Above(&[0])),
    ("capital-loss", Above(&[0])),
    ("hours-per-week", Above(&[34, 39, 40, 47])),
    (
        "native-country",
        Names(&[
            "United-States",
            "Cambodia",
            "England",
            "Puerto-Rico",
            "Canada",
            "Germany",
            "Outlying-US(Guam-USVI-etc)",
            "India",
            "Japan",
            "Greece",
            "South",
            "China",
            "Cuba",
            "Iran",
            "Honduras",
            "Philippines",
            "Italy",
            "Poland",
            "Jamaica",
            "Vietnam",
            "Mexico",
            "Portugal",
            "Ireland",
            "France",
            "Dominican-Republic",
            "Laos",
            "Ecuador",
            "Taiwan",
            "Haiti",
            "Columbia",
            "Hungary",
            "Guatemala",
            "Nicaragua",
            "Scotland",
            "Thailand",
            "Yugoslavia",
            "El-Salvador",
            "Trinadad&Tobago",
            "Peru",
            "Hong",
            "Holand-Netherlands",
        ]),
    ),
];

const EDUCATION: usize = 3;
const EDUCATION_NUMBER: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [training, test, output] = arguments.as_slice() else {
        return Err("usage: pack_a9a adult.data adult.test OUTPUT".into());
    };
    // One column of bytes per column of Adult, and the labels last.
    let mut columns = vec![Vec::new(); COLUMNS.len() + 1];
    for path in [training, test] {
        let before = columns[0].len();
        for (number, line) in fs::read_to_string(path)?.lines().enumerate() {
            encode(line, &mut columns)
                .map_err(|error| format!("{path}, line {}: {error}", number + 1))?;
        }
        let labels = &columns[COLUMNS.len()][before..];
        let positive = labels.iter().filter(|&&label| label == 1).count();
        println!(
            "{path}: {} rows, {positive} of them above 50K",
            labels.len()
        );
    }
    println!(
        "education-num by education: {:?}",
        number_of_education(&columns)?
    );
    columns.remove(EDUCATION_NUMBER);
    let packed = pack(&columns)?;
    fs::write(output, &packed)?;
    println!("{output}: {} bytes", packed.len());
    Ok(())
}

/// Appends a line's record to the columns; comment lines and blank lines hold none.
fn encode(line: &str, columns: &mut [Vec<u8>]) -> Result<(), Box<dyn Error>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('|') {
        return Ok(());
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.len() {
        return Err(format!("expected {} fields, found {}", columns.len(), fields.len()).into());
    }
    for (((name, block), field), column) in COLUMNS.iter().zip(&fields).zip(columns.iter_mut()) {
        let feature = match block {
            _ if *field == "?" => 0,
            Names(names) => match names.iter().position(|name| name == field) {
                Some(place) => place + 1,
                None => return Err(format!("{name}: unknown value {field}").into()),
            },
            Above(bounds) => {
                let value: u32 = field
                    .parse()
                    .map_err(|error| format!("{name}: {field}: {error}"))?;
                1 + bounds.iter().filter(|&&bound| value > bound).count()
            }
        };
        column.push(u8::try_from(feature)?);
    }
    let label = match fields[COLUMNS.len()].trim_end_matches('.') {
        "<=50K" => 0,
        ">50K" => 1,
        other => return Err(format!("unknown label {other}").into()),
    };
    columns[COLUMNS.len()].push(label);
    Ok(())
}

/// The packed education-num for each packed education: the table that `crates/data/src/a9a.rs`
/// holds.
fn number_of_education(columns: &[Vec<u8>]) -> Result<[u8; 17], Box<dyn Error>> {
    let mut table = [None; 17];
    for (&education, &number) in columns[EDUCATION].iter().zip(&columns[EDUCATION_NUMBER]) {
        let entry = &mut table[education as usize];
        if *entry.get_or_insert(number) != number {
            return Err(format!("education {education} does not determine education-num").into());
        }
    }
    Ok(table.map(|number| number.unwrap_or(0)))
}

fn pack(columns: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    for column in columns {
        encoder.write_all(column)?;
        // A flush ends the block, so that every column gets a code of its own: 4% smaller.
        encoder.flush()?;
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_one_feature_of_each_block_or_none() {
        let line = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, \
                    Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K.";
        let mut columns = vec![Vec::new(); COLUMNS.len() + 1];
        encode(line, &mut columns).unwrap();
        encode("| a comment", &mut columns).unwrap();
        encode(
            &line.replace("State-gov", "?").replace("<=", ">"),
            &mut columns,
        )
        .unwrap();
        let row = |row: usize| columns.iter().map(|column| column[row]).collect::<Vec<_>>();
        assert_eq!(row(0), [3, 6, 1, 1, 5, 3, 9, 4, 1, 2, 2, 1, 3, 1, 0]);
        assert_eq!(row(1)[1], 0, "a missing value is no feature");
        assert_eq!(row(1)[14], 1);
        assert_eq!(columns[0].len(), 2, "a comment is no record");
        assert_eq!(number_of_education(&columns).unwrap()[1], 5);
        for wrong in ["39, State-gov", &line.replace("Male", "male")] {
            assert!(encode(wrong, &mut columns.clone()).is_err());
        }
    }
}
