//! Bytes from a server: an average is finite and of the right size, or refused; and it is read back
//! as written. What is told in its place where the way down is compressed is so many finite values,
//! or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use soteriafl_core::compress::{Downlink, DownlinkKind, Rounding, Update};
use soteriafl_core::random::PublicSeed;
use soteriafl_core::wire;

const DIMENSION: usize = 33;

fuzz_target!(|bytes: &[u8]| {
    let mut average = [f32::NAN; DIMENSION];
    if wire::decode_average(1, bytes, &mut average).is_ok() {
        assert!(average.iter().all(|value| value.is_finite()));
        let (mut again, mut back) = (Vec::new(), [f32::NAN; DIMENSION]);
        wire::put_average(&average, 1, &mut again);
        wire::decode_average(1, &again, &mut back).expect("what was written");
        assert_eq!(average, back);
    }
    for rounding in [
        Rounding::Exact,
        Rounding::Qsgd { levels: 5 },
        Rounding::Natural,
        Rounding::Sign,
    ] {
        for coordinates in [None, Some(12)] {
            let kind = DownlinkKind {
                coordinates,
                rounding,
            };
            let downlink = Downlink::new(kind, DIMENSION, PublicSeed(1)).expect("fits");
            let mut update = Update::default();
            let mut told = Vec::new();
            wire::put_downlink_header(&downlink, 1, &mut told);
            told.extend_from_slice(bytes);
            for bytes in [bytes, &told] {
                if wire::decode_downlink(&downlink, 1, bytes, &mut update).is_ok() {
                    assert_eq!(update.values().len(), downlink.values());
                    assert!(update.values().iter().all(|value| value.is_finite()));
                } else {
                    assert!(update.values().is_empty());
                }
            }
        }
    }
});
