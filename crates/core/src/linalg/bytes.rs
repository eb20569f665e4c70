//! Numbers as little-endian bytes.

/// Appends the bytes of `values`.
#[inline]
pub(crate) fn append_floats(values: &[f32], bytes: &mut Vec<u8>) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// The numbers that `bytes` hold; what is left over is ignored.
#[inline]
pub(crate) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|&number| f32::from_le_bytes(number))
}
