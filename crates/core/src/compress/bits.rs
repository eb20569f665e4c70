//! Numbers of a few bits, packed without gaps, lowest bit first.

/// Packs fields into bytes.
pub struct BitWriter<'a> {
    bytes: &'a mut Vec<u8>,
    pending: u64,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self {
            bytes,
            pending: 0,
            filled: 0,
        }
    }

    /// Appends the lowest `width` (at most 32) bits of `field`.
    pub fn put(&mut self, field: u32, width: u32) {
        self.pending |= u64::from(field) << self.filled;
        self.filled += width;
        while self.filled >= 8 {
            self.bytes.push(self.pending as u8);
            self.pending >>= 8;
            self.filled -= 8;
        }
    }

    /// Writes the last, partly filled byte.
    pub fn finish(self) {
        if self.filled > 0 {
            self.bytes.push(self.pending as u8);
        }
    }
}

/// Reads fields back; missing bits read as zero.
pub struct BitReader<'a> {
    bytes: std::slice::Iter<'a, u8>,
    pending: u64,
    filled: u32,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: bytes.iter(),
            pending: 0,
            filled: 0,
        }
    }

    /// The next `width` (at most 32) bits.
    pub fn take(&mut self, width: u32) -> u32 {
        while self.filled < width {
            self.pending |= u64::from(self.bytes.next().copied().unwrap_or(0)) << self.filled;
            self.filled += 8;
        }
        let field = self.pending & ((1 << width) - 1);
        self.pending >>= width;
        self.filled -= width;
        field as u32
    }
}

/// Bytes that `count` fields of `width` bits take.
pub fn packed_len(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let fields = [(5u32, 3u32), (0, 1), (511, 9), (1, 1), (0x7fff, 15), (3, 2)];
        let mut bytes = Vec::new();
        let mut writer = BitWriter::new(&mut bytes);
        for (field, width) in fields {
            writer.put(field, width);
        }
        writer.finish();
        assert_eq!(bytes.len(), 31usize.div_ceil(8));
        let mut reader = BitReader::new(&bytes);
        for (field, width) in fields {
            assert_eq!(reader.take(width), field);
        }
        assert_eq!(packed_len(3, 9), 4);
    }
}
