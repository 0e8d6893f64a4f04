// SPDX-License-Identifier: Apache-2.0
//! Finds out which files of the system's RocksDB and LevelDB are loaded when a database is opened,
//! and says what to do where they are missing; the bindings are a few hand-written declarations
//! over the C headers. Also compiles the library that is preloaded into Redis servers.

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
            "error: {PRELOAD} can't be compiled: {why} (install build-essential, or run ./dev \
             setup)"
        );
        std::process::exit(1);
    }
    for (library, package) in [("rocksdb", "librocksdb-dev"), ("leveldb", "libleveldb-dev")] {
        let Some(file) = file_of(library) else {
            eprintln!(
                "error: the {library} library is missing: install {package} (or run ./dev setup)"
            );
            std::process::exit(1);
        };
        println!(
            "cargo:rustc-env=WIREPAXOS_{}={file}",
            library.to_uppercase()
        );
    }
}

/// Returns the name of the library's file with its version, under which programs find the one that
/// fits the installed headers. The C compiler knows where the library is.
fn file_of(library: &str) -> Option<String> {
    let link = format!("-print-file-name=lib{library}.so");
    let found = Command::new("cc").arg(link).output().ok()?;
    let path = String::from_utf8_lossy(&found.stdout).trim().to_string();
    // It prints the bare name of a file that it doesn't find.
    if !Path::new(&path).is_absolute() {
        return None;
    }
    let headers = Command::new("objdump").arg("-p").arg(&path).output().ok()?;
    let headers = String::from_utf8_lossy(&headers.stdout).into_owned();
    let name = headers
        .lines()
        .find_map(|line| line.trim().strip_prefix("SONAME"))?;
    Some(name.trim().to_string())
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
