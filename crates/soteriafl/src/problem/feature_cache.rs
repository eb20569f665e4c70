//! Scattering coefficients kept on disk: computing them takes longer than reading them.
//!
//! **What is kept.** One file for each set of images, called after its key: the SHA-256 of what the
//! images are, bit for bit, of the map, and of what this program's map makes of a picture of noise,
//! so that whatever changes in the map changes the key. Its first line says in JSON what it holds;
//! little-endian `f32` follow, row after row.
//!
//! **Guarantee.** A file is used only if its first line is to the byte the one that would be
//! written and the SHA-256 of all that follows is the one it names: whatever is stale, cut short,
//! damaged or somebody else's is computed again and replaced. Coefficients have the same bits from
//! the file as from the map. Files appear whole or not at all (written aside, then renamed), and a
//! disk that is full or read-only only costs the time.
//!
//! **Privacy.** Coefficients say nearly as much as the images. Files can be read by their owner
//! alone (mode 0600 in a folder of mode 0700) and go nowhere; whoever does not want them says so
//! ([`FeatureCache::none`]). Networked participants never keep any.
//!
//! **Cost.** 4 bytes for each number, up to [`MOST_BYTES`] in all: the files that were written
//! longest ago go first.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use sha2::{Digest, Sha256};
use soteriafl_data::{
    DataDirectories, Dataset, DenseRows, FeatureKind, FeatureMap, Features, RecordsError,
};

/// The most that is kept in the folder.
const MOST_BYTES: u64 = 4 << 30;

/// The longest first line that is read.
const LONGEST_LINE: u64 = 4096;

/// Numbers that are read or written at a time.
const TOGETHER: usize = 1 << 16;

/// How the files are called.
const EXTENSION: &str = "features";

/// Where coefficients are kept, if anywhere.
#[derive(Clone, Debug, Default)]
pub struct FeatureCache {
    folder: Option<PathBuf>,
}

impl FeatureCache {
    /// Nothing is kept.
    pub fn none() -> Self {
        Self::default()
    }

    /// In this folder, which is made when there is something to keep.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder: Some(folder),
        }
    }

    /// In `features` of the user's cache directory; nowhere if there is none.
    pub fn of_user() -> Self {
        Self {
            folder: DataDirectories::cache().map(|cache| cache.join("features")),
        }
    }

    /// What the map makes of these records, read where it is known and kept where it is not. Only
    /// what takes long is kept: scattering coefficients.
    ///
    /// # Errors
    /// As [`FeatureMap::apply_by`].
    pub fn apply(
        &self,
        map: &FeatureMap,
        data: Dataset,
        threads: usize,
    ) -> Result<Dataset, RecordsError> {
        let folder = match &self.folder {
            Some(folder) if map.kind() == FeatureKind::Scattering && data.rows() > 0 => folder,
            _ => return map.apply_by(data, threads),
        };
        if data.columns() != map.inputs() {
            return map.apply_by(data, threads);
        }
        let key = key(map, &data)?;
        let file = folder.join(format!("{key}.{EXTENSION}"));
        let (rows, columns) = (data.rows(), map.outputs());
        if let Ok(values) = read(&file, &key, rows, columns) {
            return data.with_features(Features::Dense(DenseRows::new(columns, values)?));
        }
        let mapped = map.apply_by(data, threads)?;
        if let Features::Dense(rows) = mapped.features() {
            // Without it the next run takes longer, and that is all.
            let _ = write(folder, &file, &key, rows);
        }
        Ok(mapped)
    }
}

/// What makes coefficients what they are: 64 hexadecimal digits.
fn key(map: &FeatureMap, data: &Dataset) -> Result<String, RecordsError> {
    let mut hasher = Sha256::new();
    hasher.update(format!(
        "soteria features\n{}\n{} x {}\n",
        map.kind(),
        data.rows(),
        data.columns()
    ));
    // As good as a version of the map: nobody can forget to change it.
    let noise = (0..map.inputs()).map(|pixel| ((pixel * pixel % 251) as f32 * 0.7).sin());
    let picture = DenseRows::new(map.inputs(), noise.collect())?;
    let picture = map.apply(Dataset::new(Features::Dense(picture), vec![0], 2)?)?;
    for value in picture.full_row(0) {
        hasher.update((value as f32).to_le_bytes());
    }
    let mut bytes = Vec::new();
    for row in 0..data.rows() {
        bytes.clear();
        bytes.extend((data.full_row(row).iter()).flat_map(|value| value.to_le_bytes()));
        hasher.update(&bytes);
    }
    Ok(hex(&hasher.finalize()))
}

/// The first line of a file whose numbers have this digest.
fn first_line(key: &str, rows: usize, columns: usize, digest: &str) -> String {
    let line = json!({
        "what": "scattering coefficients of images, kept by soteria to save time; can be deleted",
        "private": "as private as the images that they were computed from",
        "format": "this line, then little-endian 32-bit floats, row after row",
        "key": key,
        "rows": rows,
        "columns": columns,
        "sha256": digest,
    });
    format!("{line}\n")
}

/// The numbers of a file that is what it should be.
fn read(path: &Path, key: &str, rows: usize, columns: usize) -> io::Result<Vec<f32>> {
    let unfit = || io::Error::from(io::ErrorKind::InvalidData);
    let file = File::open(path)?;
    let mut reader = BufReader::new(&file);
    let mut line = String::new();
    (&mut reader).take(LONGEST_LINE).read_line(&mut line)?;
    let described: serde_json::Value = serde_json::from_str(&line).map_err(|_| unfit())?;
    let digest = described["sha256"].as_str().unwrap_or_default();
    let count = rows.checked_mul(columns).ok_or_else(unfit)?;
    // What is there, not what is said to be, decides about memory.
    let length = line.len() as u64 + 4 * count as u64;
    if line != first_line(key, rows, columns, digest) || file.metadata()?.len() != length {
        return Err(unfit());
    }
    let mut values = Vec::with_capacity(count);
    let (mut hasher, mut bytes) = (Sha256::new(), vec![0; 4 * TOGETHER]);
    while values.len() < count {
        let part = &mut bytes[..4 * TOGETHER.min(count - values.len())];
        reader.read_exact(part)?;
        hasher.update(&*part);
        let number = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        values.extend(part.chunks_exact(4).map(number));
    }
    match hex(&hasher.finalize()) == digest {
        true => Ok(values),
        false => Err(unfit()),
    }
}

/// Writes a file aside and gives it its name when it is whole.
fn write(folder: &Path, path: &Path, key: &str, rows: &DenseRows) -> io::Result<()> {
    let parts = || (0..rows.rows()).map(|row| rows.row(row));
    let bytes = |row: &[f32]| -> Vec<u8> { row.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let mut hasher = Sha256::new();
    parts().for_each(|row| hasher.update(bytes(row)));
    let line = first_line(key, rows.rows(), rows.columns(), &hex(&hasher.finalize()));
    let length = line.len() as u64 + 4 * (rows.rows() * rows.columns()) as u64;
    make_private(folder)?;
    make_room(folder, length)?;
    // Its owner alone may read it from the beginning.
    let aside = tempfile::Builder::new()
        .suffix(".part")
        .tempfile_in(folder)?;
    let mut writer = BufWriter::new(aside.as_file());
    writer.write_all(line.as_bytes())?;
    for row in parts() {
        writer.write_all(&bytes(row))?;
    }
    writer.flush()?;
    drop(writer);
    aside.persist(path)?;
    Ok(())
}

/// The folder, for its owner alone where it is made here.
fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// What a process that was killed has left aside is removed after so long.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// Removes what was written longest ago until so many bytes more are within the bound, and what was
/// left unfinished. Touches nothing but files of this module.
fn make_room(folder: &Path, length: u64) -> io::Result<()> {
    if length > MOST_BYTES {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let ours = path
            .extension()
            .is_some_and(|extension| extension == EXTENSION);
        let unfinished = path
            .extension()
            .is_some_and(|extension| extension == "part");
        if let (true, Ok(metadata)) = (unfinished, fs::symlink_metadata(&path)) {
            let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > LEFT) {
                fs::remove_file(&path)?;
            }
        }
        if let (true, Ok(metadata)) = (ours, fs::symlink_metadata(&path)) {
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            kept.push((written, metadata.len(), path));
        }
    }
    kept.sort();
    let mut all: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in kept {
        if all + length <= MOST_BYTES {
            break;
        }
        fs::remove_file(path)?;
        all -= bytes;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 12;

    fn images(seed: usize) -> Dataset {
        let pixels = (0..3 * SIDE * SIDE).map(|i| ((i * 31 + seed * 7) % 97) as f32 / 97.0);
        let rows = DenseRows::new(SIDE * SIDE, pixels.collect()).unwrap();
        Dataset::new(Features::Dense(rows), vec![0, 1, 0], 2).unwrap()
    }

    fn map() -> FeatureMap {
        FeatureMap::new(FeatureKind::Scattering, SIDE * SIDE).unwrap()
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        files.sort();
        files
    }

    #[test]
    fn what_was_kept_is_read_and_has_the_same_bits() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("features");
        let cache = FeatureCache::in_folder(folder.clone());
        let plain = map().apply(images(1)).unwrap();
        assert_eq!(cache.apply(&map(), images(1), 2).unwrap(), plain);
        let [file] = &files(&folder)[..] else {
            panic!("{:?}", files(&folder))
        };
        let whole = fs::read(file).unwrap();
        let key = key(&map(), &images(1)).unwrap();
        let values = read(file, &key, 3, map().outputs()).unwrap();
        assert_eq!(values.len(), 3 * map().outputs());
        assert_eq!(cache.apply(&map(), images(1), 1).unwrap(), plain);
        assert_eq!(fs::read(file).unwrap(), whole);
        let first = whole.split(|&byte| byte == b'\n').next().unwrap();
        let said: serde_json::Value = serde_json::from_slice(first).unwrap();
        assert!(said["what"].as_str().unwrap().contains("scattering"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(file), mode(&folder)), (0o600, 0o700));
        }
        // Other images, or the same ones in another order, are other files.
        cache.apply(&map(), images(2), 1).unwrap();
        cache
            .apply(&map(), images(1).select(&[1, 0, 2]), 1)
            .unwrap();
        assert_eq!(files(&folder).len(), 3);
    }

    /// Cut short, longer, one bit off anywhere, of another key, or no file at all: all are computed
    /// again and replaced by what is right.
    #[test]
    fn what_is_damaged_is_computed_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = FeatureCache::in_folder(directory.path().to_owned());
        let plain = cache.apply(&map(), images(1), 1).unwrap();
        let file = files(directory.path()).remove(0);
        let whole = fs::read(&file).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let said = String::from_utf8_lossy(&whole);
        let start = said.find("\"key\":\"").unwrap() + 8;
        for wrong in [
            whole[..whole.len() - 1].to_vec(),
            [&whole[..], &[0]].concat(),
            flipped(whole.len() - 2),
            flipped(whole.len() / 2),
            flipped(start),
            flipped(0),
            Vec::new(),
            vec![b' '; 10_000],
        ] {
            fs::write(&file, &wrong).unwrap();
            assert_eq!(cache.apply(&map(), images(1), 1).unwrap(), plain);
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
    }

    #[test]
    fn where_nothing_can_be_kept_all_is_computed() {
        let plain = map().apply(images(1)).unwrap();
        assert_eq!(
            FeatureCache::none().apply(&map(), images(1), 1).unwrap(),
            plain
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        let blocked = FeatureCache::in_folder(file.path().join("features"));
        assert_eq!(blocked.apply(&map(), images(1), 1).unwrap(), plain);
        // What takes no time is not kept.
        let directory = tempfile::tempdir().unwrap();
        let unit = FeatureMap::new(FeatureKind::Unit, SIDE * SIDE).unwrap();
        let cache = FeatureCache::in_folder(directory.path().to_owned());
        cache.apply(&unit, images(1), 1).unwrap();
        assert!(files(directory.path()).is_empty());
    }

    #[test]
    fn the_oldest_files_make_room_and_no_others_do() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let sizes = [("old.features", 3), ("new.features", 2), ("else.txt", 9)];
        for (seconds, (name, gigabytes)) in sizes.into_iter().enumerate() {
            let file = File::create(at(name)).unwrap();
            // A file of holes.
            file.set_len(gigabytes << 29).unwrap();
            let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds as u64);
            file.set_modified(written).unwrap();
        }
        make_room(directory.path(), 3 << 29).unwrap();
        assert!(at("old.features").exists());
        make_room(directory.path(), 4 << 29).unwrap();
        assert!(!at("old.features").exists());
        assert!(at("new.features").exists() && at("else.txt").exists());
        assert!(make_room(directory.path(), MOST_BYTES + 1).is_err());
    }
}
