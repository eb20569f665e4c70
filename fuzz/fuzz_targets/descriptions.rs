//! Run descriptions from a server: refused, or canonical.
#![no_main]

use libfuzzer_sys::fuzz_target;
use soteriafl_deploy::description::Description;

fuzz_target!(|text: &str| {
    if let Ok(description) = Description::parse(text, 1000) {
        assert_eq!(description.text(), text);
    }
});
