//! Writers: the rows of a data set as LIBSVM text or as a table of comma-separated values.
//!
//! What is written reads back as the same rows, bit for bit: numbers are printed with as many
//! digits as tell them apart. An offset is added to the rows, so centred data become dense text.
//! The number of features and classes without a row are not part of either format; a
//! [`Schema`](super::Schema) restores them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

use super::{DataError, Dataset};

/// A format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportFormat {
    /// `label index:value ...`, nonzero values only.
    Libsvm,
    /// A header, then all values of a row and its label.
    Csv,
}

impl FromStr for ExportFormat {
    type Err = DataError;

    fn from_str(text: &str) -> Result<ExportFormat, DataError> {
        match text {
            "libsvm" => Ok(ExportFormat::Libsvm),
            "csv" => Ok(ExportFormat::Csv),
            _ => Err(DataError::choice("format", text, "expected libsvm or csv")),
        }
    }
}

/// Writes a data set to a file.
pub fn write(data: &Dataset, format: ExportFormat, path: &Path) -> Result<(), DataError> {
    let written = File::create(path).and_then(|file| {
        let mut output = BufWriter::new(file);
        write_to(data, format, &mut output)?;
        output.flush()
    });
    written.map_err(|error| DataError::File {
        path: path.to_owned(),
        error,
    })
}

/// Writes a data set to anything that takes bytes.
pub fn write_to(data: &Dataset, format: ExportFormat, output: &mut impl Write) -> io::Result<()> {
    match format {
        ExportFormat::Libsvm => write_libsvm(data, output),
        ExportFormat::Csv => write_csv(data, output),
    }
}

fn write_libsvm(data: &Dataset, output: &mut impl Write) -> io::Result<()> {
    // The format knows only numbers: classes with other names are written as theirs.
    let numeric = data
        .label_names()
        .iter()
        .all(|name| name.parse().is_ok_and(f64::is_finite));
    let mut failed = Ok(());
    for row in 0..data.rows() {
        match data.targets() {
            None if !numeric => write!(output, "{}", data.labels()[row])?,
            _ => output.write_all(label(data, row).as_bytes())?,
        }
        let mut entry = |column: usize, value: f32| {
            if value != 0.0 && failed.is_ok() {
                failed = write!(output, " {}:{value}", column + 1);
            }
        };
        if data.offset().is_some() {
            full_row(data, row)
                .iter()
                .enumerate()
                .for_each(|(column, &value)| entry(column, value));
        } else {
            data.features().visit_row(row, entry);
        }
        std::mem::replace(&mut failed, Ok(()))?;
        output.write_all(b"\n")?;
    }
    Ok(())
}

fn write_csv(data: &Dataset, output: &mut impl Write) -> io::Result<()> {
    let mut table = ::csv::Writer::from_writer(output);
    let names = (1..=data.columns()).map(|column| format!("x{column}"));
    table.write_record(names.chain(["label".to_owned()]))?;
    for row in 0..data.rows() {
        for value in full_row(data, row) {
            table.write_field(value.to_string())?;
        }
        table.write_field(label(data, row))?;
        table.write_record(None::<&[u8]>)?;
    }
    table.flush()
}

/// What is true of a row, as it came.
fn label(data: &Dataset, row: usize) -> String {
    match data.targets() {
        Some(targets) => targets.original()[row].to_string(),
        None => data.label_names()[data.labels()[row] as usize].clone(),
    }
}

fn full_row(data: &Dataset, row: usize) -> Vec<f32> {
    data.full_row(row)
        .into_iter()
        .map(|value| value as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{DenseRows, Features, SparseRows};
    use super::*;

    fn text(data: &Dataset, format: ExportFormat) -> String {
        let mut bytes = Vec::new();
        write_to(data, format, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn both_formats_look_as_expected() {
        let rows = SparseRows::new(3, vec![0, 2, 2], vec![0, 2], vec![0.5, -2.0]).unwrap();
        let data = Dataset::new(Features::Sparse(rows), vec![1, 0], 2).unwrap();
        let named = data
            .clone()
            .with_label_names(vec!["-1".to_owned(), "+1".to_owned()])
            .unwrap();
        assert_eq!(text(&named, ExportFormat::Libsvm), "+1 1:0.5 3:-2\n-1\n");
        assert_eq!(
            text(&named, ExportFormat::Csv),
            "x1,x2,x3,label\n0.5,0,-2,+1\n0,0,0,-1\n"
        );
        let animals = data
            .with_label_names(vec!["a \"cat\"".to_owned(), "dog, wet".to_owned()])
            .unwrap();
        assert_eq!(text(&animals, ExportFormat::Libsvm), "1 1:0.5 3:-2\n0\n");
        let csv = text(&animals, ExportFormat::Csv);
        assert_eq!(
            csv,
            "x1,x2,x3,label\n0.5,0,-2,\"dog, wet\"\n0,0,0,\"a \"\"cat\"\"\"\n"
        );
        let shifted = named.with_offset(vec![0.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            text(&shifted, ExportFormat::Libsvm),
            "+1 1:0.5 2:1\n-1 2:1 3:2\n"
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let rows = DenseRows::new(1, vec![1.0]).unwrap();
        let data = Dataset::new(Features::Dense(rows), vec![0], 1).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing").join("file");
        let error = write(&data, ExportFormat::Csv, &path)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!("xml".parse::<ExportFormat>().is_err());
    }
}
