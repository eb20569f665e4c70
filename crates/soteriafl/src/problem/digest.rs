//! What the loaded records are, in 32 bytes: other files under the same name give another digest.
//!
//! Of every client's records and of the test set, as they were scaled and dealt, in their order
//! and storage form: of whatever decides the numbers of a run. Not the ledger's digest, which
//! knows a data set whatever a run makes of it.

use sha2::{Digest, Sha256};
use soteriafl_core::data::{Dataset, Features};

use super::Problem;

/// The digest of all records, in hexadecimal.
pub(super) fn of(problem: &Problem) -> String {
    let mut hash = Sha256::new();
    hash.update((problem.shards.len() as u64).to_le_bytes());
    for shard in &problem.shards {
        add(&mut hash, shard);
    }
    hash.update([u8::from(problem.test.is_some())]);
    if let Some(test) = &problem.test {
        add(&mut hash, test);
    }
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds one data set; lengths come before what they count, so that no two look alike.
fn add(hash: &mut Sha256, data: &Dataset) {
    for size in [data.rows(), data.columns(), data.classes()] {
        hash.update((size as u64).to_le_bytes());
    }
    if data.records() > data.rows() {
        hash.update(b"records");
        hash.update((data.records() as u64).to_le_bytes());
    }
    add_all(hash, data.labels(), |label| label.to_le_bytes());
    if let Some(targets) = data.targets() {
        add_all(hash, targets.original(), |target| target.to_le_bytes());
        add_all(hash, targets.values(), |value| value.to_le_bytes());
    }
    let offset = data.offset();
    hash.update([u8::from(offset.is_some())]);
    if let Some(offset) = offset {
        add_all(hash, offset, |value| value.to_le_bytes());
    }
    match data.features() {
        Features::Dense(dense) => {
            hash.update([0]);
            add_all(hash, dense.values(), |value| value.to_le_bytes());
        }
        Features::Sparse(sparse) => {
            hash.update([1]);
            add_all(hash, sparse.starts(), |start| (start as u64).to_le_bytes());
            add_all(hash, sparse.indices(), |index| index.to_le_bytes());
            add_all(hash, sparse.values(), |value| value.to_le_bytes());
        }
    }
}

/// Adds numbers in the order of bytes that every machine agrees on, many at a time.
fn add_all<T: Copy, const N: usize>(hash: &mut Sha256, numbers: &[T], bytes: fn(T) -> [u8; N]) {
    let mut buffer = Vec::with_capacity(4096 * N);
    for part in numbers.chunks(4096) {
        buffer.clear();
        for &number in part {
            buffer.extend_from_slice(&bytes(number));
        }
        hash.update(&buffer);
    }
}
