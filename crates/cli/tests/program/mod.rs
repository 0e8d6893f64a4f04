// SPDX-License-Identifier: Apache-2.0
//! Finds the program `wirepaxos` for its own tests, and for those of `wirepaxos-lab`.
#![allow(dead_code)] // no test uses all of it

use std::path::Path;
use std::time::SystemTime;

/// The program. Cargo builds and names it for the tests of its own package only; those of
/// `wirepaxos-lab` take the one beside that.
pub const PROGRAM: &str = match option_env!("CARGO_BIN_EXE_wirepaxos") {
    Some(own) => own,
    None => beside(option_env!("CARGO_BIN_EXE_wirepaxos-lab")),
};

/// Returns the path without its end `-lab`.
const fn beside(lab: Option<&'static str>) -> &'static str {
    let Some(lab) = lab else {
        panic!("these are tests of neither program")
    };
    let (path, _) = lab.as_bytes().split_at(lab.len() - "-lab".len());
    match std::str::from_utf8(path) {
        Ok(path) => path,
        Err(_) => panic!("the path is cut within a character"),
    }
}

/// Panics if the program isn't built, or if one of its source files has changed since:
/// `cargo test -p lab_cli` doesn't build it.
pub fn must_be_fresh() {
    if option_env!("CARGO_BIN_EXE_wirepaxos").is_some() {
        return;
    }
    let why = match staleness() {
        Ok(None) => return,
        Ok(Some(source)) => format!("{source} is newer than {PROGRAM}"),
        Err(e) => format!("{PROGRAM}: {e}"),
    };
    panic!("{why}: build it by `cargo build -p cli`, or test both programs: -p cli -p lab_cli");
}

/// Returns a source file that is newer than the program, if there is one. Cargo lists them beside
/// the program if it was asked for the program itself; with the tests of the whole workspace it
/// builds the program without a list, and anew.
fn staleness() -> std::io::Result<Option<String>> {
    let changed =
        |path: &str| -> std::io::Result<SystemTime> { Path::new(path).metadata()?.modified() };
    let built = changed(PROGRAM)?;
    let list = std::fs::read_to_string(format!("{PROGRAM}.d")).unwrap_or_default();
    let sources = list.split_whitespace().skip(1);
    let mut newer = sources.filter(|source| changed(source).is_ok_and(|at| at > built));
    Ok(newer.next().map(str::to_owned))
}
