//! Bytes from a server: an average is finite and of the right size, or refused; and it is read back as written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use soteriafl_core::wire;

fuzz_target!(|bytes: &[u8]| {
    let mut average = [f32::NAN; 33];
    if wire::decode_average(1, bytes, &mut average).is_ok() {
        assert!(average.iter().all(|value| value.is_finite()));
        let (mut again, mut back) = (Vec::new(), [f32::NAN; 33]);
        wire::put_average(&average, 1, &mut again);
        wire::decode_average(1, &again, &mut back).expect("what was written");
        assert_eq!(average, back);
    }
});
