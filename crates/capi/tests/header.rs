// SPDX-License-Identifier: Apache-2.0
//! The committed header is the one that the code gives.

use std::path::Path;

#[test]
fn the_header_is_current() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(directory.join("cbindgen.toml")).unwrap();
    let mut generated = Vec::new();
    cbindgen::Builder::new()
        .with_src(directory.join("src/lib.rs"))
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut generated);
    let path = directory.join("include/wirepaxos.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "{} is out of date; run UPDATE_HEADER=1 cargo test -p capi --test header",
        path.display()
    );
}
