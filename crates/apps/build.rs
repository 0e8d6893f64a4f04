// SPDX-License-Identifier: Apache-2.0
//! Links the system's RocksDB and LevelDB, and says what to do where they are missing; the bindings
//! are a few hand-written declarations over the C headers. Also compiles the library that is
//! preloaded into Redis servers.

use std::path::{Path, PathBuf};
use std::process::Command;

const PRELOAD: &str = "../../programs/preload/preload.c";
/// The files that the library includes.
const INCLUDED: [&str; 2] = [
    "../../programs/preload/arena.h",
    "../../programs/preload/scripts.h",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={PRELOAD}");
    for file in INCLUDED {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    if let Err(why) = compile_preload(&out.join("preload.so")) {
        eprintln!(
            "error: {PRELOAD} can't be compiled: {why} (install build-essential, or run ./dev setup)"
        );
        std::process::exit(1);
    }
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

/// Returns whether the C compiler that will link finds the library: it prints a path if so, and the
/// bare name otherwise. Without a compiler linking fails anyway, with a message of its own.
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

/// Compiles the preloaded library with the C compiler that will link.
fn compile_preload(out: &Path) -> Result<(), String> {
    let flags = [
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ];
    let mut command = Command::new("cc");
    let status = command.args(flags).arg("-o").arg(out).arg(PRELOAD).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(e) => Err(e.to_string()),
    }
}
