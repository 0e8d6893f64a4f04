// SPDX-License-Identifier: Apache-2.0
//! Network namespaces by name, as `ip netns` keeps them.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

const NAMED: &str = "/run/netns";

pub(crate) fn is_root() -> bool {
    // SAFETY: the call has no arguments and can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the path of the namespace with this name.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(NAMED).join(name)
}

/// Returns the namespaces whose names begin with `prefix`, sorted.
pub(crate) fn list(prefix: &str) -> Vec<String> {
    let Ok(directory) = fs::read_dir(NAMED) else {
        return Vec::new();
    };
    let names = directory.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Identifies a namespace, by whatever path it is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Identity(u64, u64);

/// Returns the identity of the namespace at a path.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    Some(Identity(metadata.dev(), metadata.ino()))
}

/// Moves the calling thread into a namespace. The file system stays as it is, unlike with `ip netns
/// exec`, which hides the mounts under /sys.
pub(crate) fn enter(name: &str) -> io::Result<()> {
    enter_file(&File::open(path(name))?)
}

/// Moves the calling thread into an open namespace. It may be called between fork and exec.
pub(crate) fn enter_file(namespace: &File) -> io::Result<()> {
    // SAFETY: the call takes only numbers, and is async-signal-safe.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does some work in a namespace, in a separate thread.
pub(crate) fn inside<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(name).map_err(Error::at(format!("network namespace {name}")))?;
            work()
        });
        thread
            .join()
            .expect("what runs in a namespace doesn't panic")
    })
}

/// Runs lines for `ip -batch`, in a namespace or in the caller's, and stops at the first that
/// fails.
pub(crate) fn ip(namespace: Option<&str>, lines: &[String]) -> Result<()> {
    let options = namespace.map_or(vec![], |name| vec!["-n", name]);
    let output = loader::ip::run(&options, lines).map_err(|e| cannot_run("ip", &e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&String::from_utf8_lossy(&output.stderr), lines))
}

/// Returns the output of `ip -json` in a namespace.
pub(crate) fn ip_json(namespace: &str, arguments: &[&str]) -> Result<serde_json::Value> {
    let output = Command::new("ip")
        .args(["-n", namespace, "-json"])
        .args(arguments)
        .output()
        .map_err(|e| cannot_run("ip", &e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(&said, &[arguments.join(" ")]));
    }
    serde_json::from_slice(&output.stdout).map_err(Error::at("ip -json"))
}

fn cannot_run(program: &str, e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::NotFound => Error::new(format!(
            "{program} isn't installed: apt-get install iproute2"
        )),
        _ => Error::new(format!("{program}: {e}")),
    }
}

/// Returns an error with the message of `ip`, the line that it is about, and the remedy.
fn failed(said: &str, lines: &[String]) -> Error {
    let line = said
        .lines()
        .find_map(|l| l.strip_prefix("Command failed -:"))
        .and_then(|number| number.trim().parse::<usize>().ok())
        .and_then(|number| lines.get(number.checked_sub(1)?))
        .or(lines.first());
    let words: Vec<&str> = said
        .lines()
        .filter(|l| !l.starts_with("Command failed"))
        .collect();
    let words = words.join("; ");
    let remedy = match () {
        () if words.contains("not permitted") || words.contains("Permission denied") => {
            "; a lab needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as root, in a container only if \
             that is privileged"
        }
        () if words.contains("Unknown device type") || words.contains("not supported") => {
            "; this kernel lacks it: try `modprobe veth bridge`, or a kernel with CONFIG_VETH and \
             CONFIG_BRIDGE"
        }
        () => "",
    };
    Error::new(format!(
        "ip {}: {words}{remedy}",
        line.map_or("", String::as_str)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_line_and_the_remedy() {
        let lines = [
            "netns add a".to_string(),
            "link add b type veth".to_string(),
        ];
        let said = "Error: Unknown device type.\nCommand failed -:2\n";
        let text = failed(said, &lines).to_string();
        assert!(
            text.contains("link add b") && text.contains("modprobe veth"),
            "{text}"
        );
        let said = "RTNETLINK answers: Operation not permitted\nCommand failed -:1\n";
        let text = failed(said, &lines).to_string();
        assert!(
            text.contains("netns add a") && text.contains("as root"),
            "{text}"
        );
    }
}
