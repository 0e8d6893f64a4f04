// SPDX-License-Identifier: Apache-2.0
//! Links the system's RocksDB and LevelDB, and says what to do where they are missing. The
//! bindings themselves are a few hand-written declarations over the C headers.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for (library, package) in [("rocksdb", "librocksdb-dev"), ("leveldb", "libleveldb-dev")] {
        if !is_installed(library) {
            eprintln!(
                "error: the {library} library is missing: install {package} (or run ./dev setup)"
            );
            std::process::exit(1);
        }
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// Whether the C compiler that will link finds the library: it prints a path if so, and the bare
/// name otherwise. Without a compiler linking fails anyway, with a message of its own.
fn is_installed(library: &str) -> bool {
    let file = format!("lib{library}.so");
    let found = Command::new("cc")
        .arg(format!("-print-file-name={file}"))
        .output();
    match found {
        Ok(output) => Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute(),
        Err(_) => true,
    }
}
