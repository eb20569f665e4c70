//! The committed code for the protocol is what its description generates.
//!
//! `SOTERIA_WRITE_GENERATED=1 cargo test -p soteriafl-deploy --test generated` writes it anew. Building the program
//! needs neither the description nor a compiler for it.

use std::path::Path;

#[test]
fn committed_code_is_what_the_description_generates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(["soteria.proto"], [root.join("proto")]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(out.path())
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)
        .unwrap();
    let generated = std::fs::read_to_string(out.path().join("soteria.v1.rs")).unwrap();
    let committed = root.join("src/net/rpc/generated.rs");
    if std::env::var_os("SOTERIA_WRITE_GENERATED").is_some() {
        std::fs::write(&committed, &generated).unwrap();
    }
    let found = std::fs::read_to_string(&committed).unwrap();
    assert!(
        found == generated,
        "src/net/rpc/generated.rs is not up to date"
    );
}
