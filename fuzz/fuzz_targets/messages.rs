//! Bytes from clients: whatever they are, decoding neither panics nor takes more memory than a
//! message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use soteriafl_core::compress::{Compressor, CompressorKind, Update};
use soteriafl_core::wire;

fuzz_target!(|bytes: &[u8]| {
    let kinds = [
        CompressorKind::Identity,
        CompressorKind::RandK { k: 3 },
        CompressorKind::Qsgd { levels: 5 },
        CompressorKind::Natural,
    ];
    for kind in kinds {
        let compressor = Compressor::new(kind, 9, 0.5).expect("a valid compressor");
        let mut update = Update::default();
        if wire::decode(&compressor, 1, bytes, &mut update) == Ok(true) {
            assert!(update.values().iter().all(|value| value.is_finite()));
        }
    }
});
