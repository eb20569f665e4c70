//! Files of records, plain or compressed: data that is sound, or an error that names the file.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use soteriafl_data::csv::{self, Format};
use soteriafl_data::{Schema, idx, libsvm};

fuzz_target!(|bytes: &[u8]| {
    let name = Path::new("bytes");
    let schema = Schema::default();
    let labels: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 1, 3];
    for result in [
        libsvm::read_from(bytes, name, &schema),
        csv::read_from(bytes, name, &Format::default(), &schema),
        idx::read_from((bytes, name), (labels, name), &schema),
        idx::read_from((bytes, name), (bytes, name), &schema),
    ] {
        match result {
            Ok(data) => {
                assert!(data.rows() > 0 && data.columns() > 0);
                assert!(data.squared_norms().iter().all(|norm| norm.is_finite()));
            }
            Err(error) => assert!(error.to_string().starts_with("bytes"), "{error}"),
        }
    }
});
