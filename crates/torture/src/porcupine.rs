// SPDX-License-Identifier: Apache-2.0
//! Asks Porcupine, a checker in Go that others wrote. `./dev torture` builds it where Go is.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Beside this program.
const NAME: &str = "porcupine-check";

/// The verdict of Porcupine.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Linearizable.
    Yes,
    /// Not, for these keys.
    No(String),
    /// These keys are too hard.
    Unknown(String),
    /// Why it wasn't asked.
    Skipped(String),
}

impl Verdict {
    /// Returns the result in words, for people and for JSON.
    pub fn text(&self) -> String {
        match self {
            Verdict::Yes => "yes".to_string(),
            Verdict::No(keys) => format!("no: {keys}"),
            Verdict::Unknown(keys) => format!("unknown: {keys}"),
            Verdict::Skipped(why) => format!("SKIPPED: {why}"),
        }
    }
}

/// Has it check a history that was written to a file.
pub fn check(history: &Path) -> Verdict {
    let Some(program) = program() else {
        return Verdict::Skipped(format!(
            "{NAME} isn't there; ./dev torture builds it with Go"
        ));
    };
    match run(&program, history) {
        Ok(document) => verdict(&document),
        Err(why) => Verdict::Skipped(why),
    }
}

fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.with_file_name(NAME);
    beside.exists().then_some(beside)
}

fn run(program: &Path, history: &Path) -> Result<Value, String> {
    let file = File::open(history).map_err(|e| format!("{}: {e}", history.display()))?;
    let output = Command::new(program)
        .stdin(file)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{}: {e}", program.display()))
}

fn verdict(document: &Value) -> Verdict {
    match document["verdict"].as_str() {
        Some("yes") => Verdict::Yes,
        Some("no") => Verdict::No(document["illegal"].to_string()),
        _ => Verdict::Unknown(document["unknown"].to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_it_says() {
        let said = |text: &str| json!({ "verdict": text, "illegal": ["a"], "unknown": ["b"] });
        assert_eq!(verdict(&said("yes")), Verdict::Yes);
        assert_eq!(verdict(&said("no")), Verdict::No("[\"a\"]".to_string()));
        assert_eq!(
            verdict(&said("unknown")),
            Verdict::Unknown("[\"b\"]".to_string())
        );
    }
}
