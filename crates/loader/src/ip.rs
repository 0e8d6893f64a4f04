// SPDX-License-Identifier: Apache-2.0
//! Lines of `ip`'s language, in the calling thread's network namespace.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use crate::object::Result;

/// Runs lines of `ip`'s commands, up to the first that fails, and returns the output of `ip`.
pub fn run(options: &[&str], lines: &[String]) -> io::Result<Output> {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().expect("it is piped");
    // If `ip` ends early, its own message explains more than an error of this write.
    let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
    drop(input);
    child.wait_with_output()
}

/// Runs lines, and returns what they print.
pub fn batch(options: &[&str], lines: &[String]) -> Result<Vec<u8>> {
    let output = run(options, lines).map_err(|e| format!("ip: {e}; apt-get install iproute2"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", lines.join("; "), said.trim()))
}
