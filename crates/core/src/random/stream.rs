//! The generator of secret streams: the keystream of ChaCha20 with a nonce of 64 bits.
//!
//! The bytes are those of `chacha20::ChaCha20Rng` with that stream number. Long requests go
//! straight to the cipher, sixteen blocks at a time with AVX-512; the crate's own generator makes
//! four. The buffer is wiped when the generator is dropped. A generator that has made anything
//! should not be moved: that would leave a copy of the buffer behind.
//!
//! The cipher has its AVX-512 code only when compiled with `--cfg chacha20_avx512`. This repository
//! sets it in `.cargo/config.toml`; a program that uses this crate must set it in its own, and a
//! `RUSTFLAGS` variable overrides the file. Only speed depends on it.

use std::convert::Infallible;

use chacha20::ChaCha20Legacy;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use rand::{TryCryptoRng, TryRng};
use zeroize::optimization_barrier;

/// Bytes that are made at once for short requests: what the cipher makes in the time of one block.
const BUFFER: usize = 256;

/// One secret stream; see the module. Prints nothing.
pub struct SecretRng {
    cipher: ChaCha20Legacy,
    buffer: [u8; BUFFER],
    /// Bytes of the buffer that have been used; all of them, before it is first filled.
    used: usize,
    filled: bool,
}

impl SecretRng {
    pub(super) fn new(key: &[u8; 32], nonce: u64) -> Self {
        SecretRng {
            cipher: ChaCha20Legacy::new(key.into(), &nonce.to_le_bytes().into()),
            buffer: [0; BUFFER],
            used: BUFFER,
            filled: false,
        }
    }

    /// Whether nothing has been drawn yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.cipher.current_pos::<u64>() == 0
    }

    /// The next bytes, for short requests of which a whole number fits the buffer.
    #[inline]
    fn take<const COUNT: usize>(&mut self) -> [u8; COUNT] {
        let mut bytes = [0; COUNT];
        match self.buffer[self.used..].first_chunk() {
            Some(next) => {
                bytes = *next;
                self.used += COUNT;
            }
            None => self.fill(&mut bytes),
        }
        bytes
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let left = &self.buffer[self.used..];
        let (now, bytes) = bytes.split_at_mut(bytes.len().min(left.len()));
        now.copy_from_slice(&left[..now.len()]);
        self.used += now.len();
        // What would fill the buffer does not go through it.
        let (whole, rest) = bytes.split_at_mut(bytes.len() / BUFFER * BUFFER);
        if !whole.is_empty() {
            whole.fill(0);
            self.cipher.apply_keystream(whole);
        }
        if !rest.is_empty() {
            self.buffer.fill(0);
            self.cipher.apply_keystream(&mut self.buffer);
            rest.copy_from_slice(&self.buffer[..rest.len()]);
            (self.used, self.filled) = (rest.len(), true);
        }
    }
}

impl TryRng for SecretRng {
    type Error = Infallible;

    #[inline]
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.take()))
    }

    #[inline]
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.take()))
    }

    #[inline]
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

impl TryCryptoRng for SecretRng {}

impl Drop for SecretRng {
    fn drop(&mut self) {
        if self.filled {
            self.buffer.fill(0);
            optimization_barrier(&self.buffer);
        }
    }
}

impl std::fmt::Debug for SecretRng {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SecretRng(..)")
    }
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha20Rng;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};

    use super::*;

    proptest! {
        /// For any sequence of requests, the bytes are the keystream.
        #[test]
        fn the_stream_is_that_of_the_cipher(
            key: [u8; 32],
            nonce: u64,
            requests in prop::collection::vec(0usize..1200, 1..20),
        ) {
            let mut reference = ChaCha20Rng::from_seed(key);
            reference.set_stream(nonce);
            let mut expected = vec![0; 25_000];
            reference.fill_bytes(&mut expected);
            let mut rng = SecretRng::new(&key, nonce);
            let mut found = Vec::new();
            for count in requests {
                match count {
                    0..100 => found.extend(rng.next_u32().to_le_bytes()),
                    100..200 => found.extend(rng.next_u64().to_le_bytes()),
                    _ => {
                        let mut bytes = vec![1; count];
                        rng.fill_bytes(&mut bytes);
                        found.extend(bytes);
                    }
                }
            }
            prop_assert!(expected.starts_with(&found));
        }
    }

    #[test]
    fn it_prints_nothing() {
        assert_eq!(
            format!("{:?}", SecretRng::new(&[1; 32], 2)),
            "SecretRng(..)"
        );
    }
}
