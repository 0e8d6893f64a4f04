//! Lines of `ip`'s language, in the calling thread's network namespace.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::object::Result;

/// Runs lines, and gives back what they print; stops at the first that fails.
pub(crate) fn batch(options: &[&str], lines: &[String]) -> Result<Vec<u8>> {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("ip: {e}; apt-get install iproute2"))?;
    let mut input = child.stdin.take().expect("it is piped");
    // Where it ends early, what it says of that is the better message.
    let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(|e| format!("ip: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", lines.join("; "), said.trim()))
}
