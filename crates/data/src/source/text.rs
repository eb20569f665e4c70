//! Sources as users write them: `a9a`, `mnist`, `fashion-mnist`, `libsvm:PATH`, `idx:DIR`,
//! `csv:PATH`, `parquet:PATH`, `npy:PATH`, `npz:PATH`, `synthetic:ROWSxFEATURES`.
//!
//! A path may be followed by options: `libsvm:PATH?features=123`, and
//! `csv:PATH?label=NAME&header=yes&separator=;` where the label is a column's name or its number
//! from 1 (`parquet:PATH` and `npy:PATH` take `label` alone). What is printed parses as the same.

use std::fmt;
use std::str::FromStr;

use super::super::table::TableKind;
use super::super::{DataError, MOST_FEATURES};
use super::{Format, LabelColumn, Share, Source, wrong};

const FORMS: &str = "expected a9a, mnist, fashion-mnist, libsvm:PATH, idx:DIR, csv:PATH, parquet:PATH, npy:PATH, npz:PATH or \
                     synthetic:ROWSxFEATURES";

impl FromStr for Source {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Source, DataError> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !rest.is_empty() => (kind, rest),
            Some(_) => return Err(wrong(text, FORMS)),
            None => {
                return match text {
                    "a9a" => Ok(Source::A9a),
                    "mnist" => Ok(Source::Mnist),
                    "fashion-mnist" => Ok(Source::FashionMnist),
                    "clients" => Ok(Source::Clients),
                    "memory" => Ok(Source::Memory),
                    _ => Err(unknown(text)),
                };
            }
        };
        let (path, options) = split_options(rest);
        match kind {
            "libsvm" => {
                let mut features = None;
                for (key, value) in options {
                    match (key, value.parse()) {
                        ("features", Ok(count))
                            if (1..=MOST_FEATURES as usize).contains(&count) =>
                        {
                            features = Some(count)
                        }
                        _ => {
                            return Err(wrong(
                                text,
                                format!(
                                    "cannot use {key}={value}; possible: features=NUMBER, at most {}",
                                    MOST_FEATURES
                                ),
                            ));
                        }
                    }
                }
                Ok(Source::Libsvm {
                    path: path.into(),
                    features,
                })
            }
            "csv" => Ok(Source::Table {
                path: path.into(),
                format: table_format(text, &options)?,
            }),
            "parquet" => match table_format(text, &options)? {
                Format {
                    label,
                    header: None,
                    separator: None,
                    ..
                } => Ok(Source::Table {
                    path: path.into(),
                    format: Format {
                        kind: TableKind::Parquet,
                        label,
                        ..Format::default()
                    },
                }),
                _ => Err(wrong(
                    text,
                    "possible: label=NAME, label=NUMBER, label=last",
                )),
            },
            "npy" => match table_format(text, &options)? {
                Format {
                    label,
                    header: None,
                    separator: None,
                    ..
                } if !matches!(label, LabelColumn::Name(_)) => Ok(Source::Npy {
                    path: path.into(),
                    label,
                }),
                _ => Err(wrong(text, "possible: label=NUMBER, label=last")),
            },
            "npz" => Ok(Source::Npz { path: rest.into() }),
            "idx" => Ok(Source::Idx {
                directory: rest.into(),
            }),
            "synthetic" => Ok(Source::Synthetic(rest.parse()?)),
            _ => Err(unknown(text)),
        }
    }
}

/// The error for what is no source, with what may have been meant.
fn unknown(text: &str) -> DataError {
    match meant(text) {
        Some(source) => wrong(text, format!("did you mean {source}? {FORMS}")),
        None => wrong(text, FORMS),
    }
}

/// The source that a bare path stands for, by its ending. Only its text is looked at: a server's
/// description is read here, too, and must not make a client look into its own folders.
fn meant(text: &str) -> Option<String> {
    let place = text.find('?').unwrap_or(text.len());
    let (path, options) = text.split_at(place);
    // One letter is a drive; a longer word before a colon was meant as a kind of source.
    let path = match path.split_once(':') {
        Some((drive, rest)) if drive.len() == 1 => rest,
        Some((file, _)) if file.contains('.') => file,
        Some(_) => return None,
        None => path,
    };
    let path = path.to_ascii_lowercase();
    if path.ends_with(['/', '\\']) {
        return Some(format!("idx:{text}"));
    }
    let path = path.strip_suffix(".gz").unwrap_or(&path);
    let path = path.strip_suffix(".zst").unwrap_or(path);
    match path.rsplit_once('.')?.1 {
        "csv" => Some(format!("csv:{text}")),
        "tsv" | "tab" if options.is_empty() => Some(format!("csv:{text}?separator=tab")),
        "svm" | "libsvm" | "svmlight" => Some(format!("libsvm:{text}")),
        "parquet" | "pq" => Some(format!("parquet:{text}")),
        "npy" => Some(format!("npy:{text}")),
        "npz" => Some(format!("npz:{text}")),
        "txt" | "data" | "dat" => Some(format!("csv:{text} or libsvm:{text}")),
        _ => None,
    }
}

/// Options follow the last question mark, if all that follows reads as `key=value&...`; otherwise
/// the question mark belongs to the file's name.
fn split_options(rest: &str) -> (&str, Vec<(&str, &str)>) {
    let split = rest.rsplit_once('?').and_then(|(path, options)| {
        let pairs: Option<Vec<_>> = options
            .split('&')
            .map(|pair| pair.split_once('='))
            .collect();
        Some((path, pairs?))
    });
    split
        .filter(|(path, _)| !path.is_empty())
        .unwrap_or((rest, Vec::new()))
}

fn table_format(text: &str, options: &[(&str, &str)]) -> Result<Format, DataError> {
    let mut format = Format::default();
    for &(key, value) in options {
        match (key, value, value.as_bytes()) {
            ("label", "last", _) => format.label = LabelColumn::Last,
            ("label", name, [_, ..]) => {
                format.label = match name.parse() {
                    Ok(number) => LabelColumn::Number(number),
                    Err(_) => LabelColumn::Name(name.to_owned()),
                };
            }
            ("header", "yes", _) => format.header = Some(true),
            ("header", "no", _) => format.header = Some(false),
            ("separator", "tab", _) => format.separator = Some(b'\t'),
            ("separator", _, &[byte]) if byte.is_ascii_punctuation() && byte != b'"' => {
                format.separator = Some(byte);
            }
            _ => {
                let possible =
                    "label=NAME, label=NUMBER, label=last, header=yes|no, separator=CHARACTER|tab";
                return Err(wrong(
                    text,
                    format!("cannot use {key}={value}; possible: {possible}"),
                ));
            }
        }
    }
    if format.header == Some(false) && matches!(format.label, LabelColumn::Name(_)) {
        return Err(wrong(text, "a label column with a name needs a header"));
    }
    Ok(format)
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::A9a => formatter.write_str("a9a"),
            Source::Mnist => formatter.write_str("mnist"),
            Source::FashionMnist => formatter.write_str("fashion-mnist"),
            Source::Clients => formatter.write_str("clients"),
            Source::Memory => formatter.write_str("memory"),
            Source::Libsvm { path, features } => {
                write!(formatter, "libsvm:{}", path.display())?;
                features.map_or(Ok(()), |count| write!(formatter, "?features={count}"))
            }
            Source::Npy { path, label } => {
                write!(formatter, "npy:{}", path.display())?;
                match label {
                    LabelColumn::Number(number) => write!(formatter, "?label={number}"),
                    LabelColumn::Last | LabelColumn::Name(_) => Ok(()),
                }
            }
            Source::Npz { path } => write!(formatter, "npz:{}", path.display()),
            Source::Idx { directory } => write!(formatter, "idx:{}", directory.display()),
            Source::Table { path, format } => {
                let kind = match format.kind {
                    TableKind::Text => "csv",
                    TableKind::Parquet => "parquet",
                };
                write!(formatter, "{kind}:{}", path.display())?;
                let mut options = Vec::new();
                match &format.label {
                    LabelColumn::Last => {}
                    LabelColumn::Number(number) => options.push(format!("label={number}")),
                    LabelColumn::Name(name) => options.push(format!("label={name}")),
                }
                match format.header {
                    None => {}
                    Some(true) => options.push("header=yes".to_owned()),
                    Some(false) => options.push("header=no".to_owned()),
                }
                match format.separator {
                    None => {}
                    Some(b'\t') => options.push("separator=tab".to_owned()),
                    Some(other) => options.push(format!("separator={}", char::from(other))),
                }
                if options.is_empty() {
                    Ok(())
                } else {
                    write!(formatter, "?{}", options.join("&"))
                }
            }
            Source::Synthetic(size) => write!(formatter, "synthetic:{size}"),
        }
    }
}

impl FromStr for Share {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Share, DataError> {
        if let Some((head, tail)) = text.rsplit_once(':')
            && let Some((part, parts)) = tail.split_once('/')
            && let (Ok(part), Ok(parts)) = (part.parse::<usize>(), parts.parse::<usize>())
            // What comes before must be a source: `libsvm:0/10` is a file.
            && let Ok(source) = head.parse()
        {
            if part >= parts {
                let reason = format!("expected a part from 0 to below {parts}, found {part}");
                return Err(wrong(text, reason));
            }
            return Ok(Share {
                source,
                part: Some((part, parts)),
            });
        }
        Ok(Share {
            source: text.parse()?,
            part: None,
        })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.source)?;
        self.part
            .map_or(Ok(()), |(part, parts)| write!(formatter, ":{part}/{parts}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{DataDirectories, Partition, Schema, Synthetic};
    use super::*;

    #[test]
    fn every_source_is_parsed_and_printed() {
        for text in [
            "a9a",
            "mnist",
            "fashion-mnist",
            "clients",
            "libsvm:some/file.gz",
            "libsvm:C:/odd?name",
            "libsvm:f?features=123",
            "idx:folder",
            "idx:folder?a=b",
            "csv:rows.csv",
            "csv:rows.csv?label=class&header=yes",
            "csv:rows.csv?label=1&separator=;",
            "csv:rows.csv?separator=tab",
            "csv:why?.csv",
            "parquet:rows.parquet",
            "parquet:rows.parquet?label=class",
            "npy:rows.npy",
            "npy:rows.npy?label=1",
            "npz:rows.npz",
            "synthetic:100x5",
            "synthetic:100x5x3",
        ] {
            let source: Source = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(source.to_string(), text);
        }
        let Source::Table { format, .. } = "csv:r?label=3&header=no".parse().unwrap() else {
            panic!()
        };
        assert_eq!(
            format,
            Format {
                label: LabelColumn::Number(3),
                header: Some(false),
                ..Format::default()
            }
        );
    }

    #[test]
    fn what_is_no_source_is_refused_with_the_possibilities() {
        for text in [
            "",
            "a9b",
            "a9a:",
            "libsvm:",
            "libsvm",
            "http://x",
            "synthetic:5",
            "csv:",
            "mnist:x",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
        assert_eq!(
            "a9b".parse::<Source>().unwrap_err().to_string(),
            format!("source \"a9b\": {FORMS}")
        );
        for (text, source) in [
            ("clean.csv", "csv:clean.csv"),
            ("a/b.CSV.gz", "csv:a/b.CSV.gz"),
            ("clean.csv?label=y", "csv:clean.csv?label=y"),
            ("C:\\rows.csv", "csv:C:\\rows.csv"),
            ("clean.csv:0/3", "csv:clean.csv:0/3"),
            ("rows.tsv", "csv:rows.tsv?separator=tab"),
            ("train.svm", "libsvm:train.svm"),
            ("rows.txt", "csv:rows.txt or libsvm:rows.txt"),
            ("rows.csv.zst", "csv:rows.csv.zst"),
            ("x.parquet", "parquet:x.parquet"),
            ("rows.npy", "npy:rows.npy"),
            ("a/rows.npz", "npz:a/rows.npz"),
            ("images/", "idx:images/"),
        ] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            let wanted = format!("source {text:?}: did you mean {source}? {FORMS}");
            assert_eq!(error.replace('\\', ""), wanted.replace('\\', ""));
            for source in source.split(" or ") {
                assert!(source.parse::<Share>().is_ok(), "{source}");
            }
        }
        for text in ["http://x/y.csv", "arrow:x.csv", "mnist2", "x.arrow"] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            assert_eq!(error, format!("source \"{text}\": {FORMS}"));
        }
        for text in [
            "libsvm:f?features=0",
            "libsvm:f?label=1",
            "csv:f?label=",
            "csv:f?header=no&label=x",
            "csv:f?separator=ab",
            "parquet:f?header=yes",
            "npy:f?label=x",
            "npy:f?header=yes",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_name_a_part() {
        let share: Share = "a9a:0/10".parse().unwrap();
        assert_eq!((&share.source, share.part), (&Source::A9a, Some((0, 10))));
        assert_eq!(share.to_string(), "a9a:0/10");
        assert_eq!("libsvm:x:2/3".parse::<Share>().unwrap().part, Some((2, 3)));
        assert_eq!(
            "synthetic:100x5:1/2".parse::<Share>().unwrap().part,
            Some((1, 2))
        );
        let file: Share = "libsvm:0/10".parse().unwrap();
        assert_eq!(
            file,
            Share {
                source: Source::Libsvm {
                    path: "0/10".into(),
                    features: None
                },
                part: None
            }
        );
        let second = "synthetic:101x5:1/2".parse::<Share>().unwrap();
        let second = second
            .load(
                Partition::Sorted,
                &Schema::default(),
                &DataDirectories::default(),
                3,
            )
            .unwrap();
        let whole = "101x5".parse::<Synthetic>().unwrap().train(3).unwrap();
        assert_eq!(second.rows(), 50);
        assert!(second == Partition::Sorted.split(&whole, 2, 3).unwrap()[1]);
        assert!("a9a:10/10".parse::<Share>().is_err());
        assert!("a9a:0/0".parse::<Share>().is_err());
    }
}
