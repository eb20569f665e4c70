//! Sources of several files, each a client's: `csv:sites/*.csv`.
//!
//! A star in the last part of a path stands for any characters. The files are read as one table, in
//! the order of their names; every file is one client, called as the file without its ending.

use std::path::{Path, PathBuf};

use super::source::Loaded;
use super::table::{Format, Reader, load_all};
use super::{DataError, Grouping, Schema};

/// Whether a path stands for several files.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().contains(&b'*'))
}

/// The files that a path stands for, in the order of their names: one, if it is no pattern.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let Some(pattern) = path.file_name().filter(|_| is_pattern(path)) else {
        return Ok(vec![path.to_owned()]);
    };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |error| DataError::File {
        path: folder.to_owned(),
        error,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        // A hidden file was hidden on purpose, unless it is asked for.
        let hidden = bytes.starts_with(b".") && !pattern.as_encoded_bytes().starts_with(b".");
        if !hidden && matches(pattern.as_encoded_bytes(), bytes) && entry.path().is_file() {
            found.push(path.with_file_name(name));
        }
    }
    if found.is_empty() {
        let error = std::io::Error::new(std::io::ErrorKind::NotFound, "no file has such a name");
        return Err(DataError::File {
            path: path.to_owned(),
            error,
        });
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads all files as one table. Unless a column says whose records they are, their files do.
pub(super) fn load(path: &Path, format: &Format, schema: &Schema) -> Result<Loaded, DataError> {
    let files = files(path)?;
    let readers = files.iter().map(|path| Reader::open(path, format));
    let (mut loaded, counts) = load_all(readers, format, schema)?;
    if schema.client_column.is_none() {
        let names = files.iter().map(|file| client(file)).collect();
        let of_rows = counts.iter().enumerate();
        let of_rows = of_rows.flat_map(|(file, &rows)| std::iter::repeat_n(file as u32, rows));
        loaded.clients = Some(Grouping::new(names, of_rows.collect()));
    }
    Ok(loaded)
}

/// What the client is called whose file this is.
fn client(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    name.rsplit_once('.')
        .map_or(name, |(stem, _)| stem)
        .to_owned()
}

/// Whether a name is what a pattern stands for.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|&byte| byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&[u8]> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        // The first place is the best one: it leaves most for what follows.
        let found = match part.is_empty() {
            true => Some(0),
            false => rest.windows(part.len()).position(|window| window == *part),
        };
        match found {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, name, expected) in [
            ("*.csv", "a.csv", true),
            ("*.csv", "a.csv.gz", false),
            ("*.csv*", "a.csv.gz", true),
            ("a*b", "ab", true),
            ("a*b", "a", false),
            ("ab*ba", "aba", false),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxa", false),
            ("**", "", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn every_file_is_a_client_of_its_own_size() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("b.csv", "x,y,label\n1,2,no\n3,4,yes\n5,6,no\n"),
            ("a.csv", "x,y,label\n7,8,yes\n"),
            ("c.txt", "nothing of ours"),
            (".d.csv", "hidden"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let pattern = folder.path().join("*.csv");
        let format = Format::default();
        let loaded = load(&pattern, &format, &Schema::default()).unwrap();
        let clients = loaded.clients.unwrap();
        assert_eq!(clients.names(), ["a", "b"]);
        assert_eq!(clients.rows(), [vec![0], vec![1, 2, 3]]);
        // Classes are those of all files.
        assert_eq!(loaded.train.label_names(), ["no", "yes"]);
        assert_eq!(loaded.train.labels(), [1, 0, 1, 0]);
        assert_eq!(loaded.train.full_row(0), [7.0, 8.0]);
        let other = folder.path().join("d.csv");
        std::fs::write(&other, "y,x,label\n1,2,no\n").unwrap();
        let error = load(&pattern, &format, &Schema::default()).unwrap_err();
        assert!(matches!(error, DataError::Names { .. }) && error.to_string().contains("d.csv"));
        std::fs::write(&other, "x,y,label\n1,?,no\n").unwrap();
        let error = load(&pattern, &format, &Schema::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("d.csv, line 2, column \"y\""), "{error}");
        let nothing = load(&folder.path().join("*.tsv"), &format, &Schema::default());
        assert!(matches!(nothing, Err(DataError::File { .. })));
    }
}
