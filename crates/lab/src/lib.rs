// SPDX-License-Identifier: Apache-2.0
//! A lab is a cluster's whole network on one machine: a network namespace for each host and each
//! switch and a pair of virtual interfaces for each link, with faults on any link.
//!
//! Everything in a lab can be found by its name alone: its namespaces are called
//! `wirepaxos-LAB-HOST`, all of its interfaces are in them, and its files are in
//! `/run/wirepaxos/LAB`. So [`Lab::down`] also removes what an interrupted [`Lab::up`] has left,
//! and touches nothing else.

mod cuts;
mod disks;
mod down;
pub mod faults;
mod forwarders;
mod interface;
mod namespace;
mod p4_switches;
pub mod process;
mod state;
mod status;
pub mod topology;
mod up;

use std::fmt;
use std::path::{Path, PathBuf};

pub use topology::{Host, Link, Shape, Topology};
pub use up::UpOptions;

/// An error, whose text says the remedy.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }

    /// Returns a function for `map_err` that adds what was tried to an error.
    fn at<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Error {
        move |e| Error(format!("{what}: {e}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

/// The directory where all labs keep their files.
const RUN: &str = "/run/wirepaxos";

/// A lab, identified by its name, whether it is up or not.
#[derive(Clone, Debug)]
pub struct Lab {
    name: String,
}

impl Lab {
    /// Returns the lab of this name: 1 to 16 lower-case letters and digits, so that no lab's names
    /// begin with another's.
    pub fn named(name: &str) -> Result<Lab> {
        let good = (1..=16).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !good {
            return Err(Error::new(format!(
                "{name:?} can't be a lab's name; take 1 to 16 lower-case letters and digits"
            )));
        }
        Ok(Lab {
            name: name.to_string(),
        })
    }

    /// Returns the lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory of the lab's files.
    pub fn directory(&self) -> PathBuf {
        Path::new(RUN).join(&self.name)
    }

    /// Returns the path of the cluster file for the lab's nodes.
    pub fn cluster_file(&self) -> PathBuf {
        self.directory().join("cluster.toml")
    }

    fn state_file(&self) -> PathBuf {
        Path::new(RUN).join(format!("{}.json", self.name))
    }

    fn lock_file(&self) -> PathBuf {
        Path::new(RUN).join(format!("{}.lock", self.name))
    }

    /// Returns the path of the lab's own bpffs; `ip netns exec` hides the one under /sys, but not
    /// this.
    fn bpffs(&self) -> PathBuf {
        self.directory().join("bpf")
    }

    /// Returns the namespace of a host or switch.
    pub fn namespace(&self, host: &str) -> String {
        format!("{}{host}", self.prefix())
    }

    fn prefix(&self) -> String {
        format!("wirepaxos-{}-", self.name)
    }

    fn must_be_root() -> Result<()> {
        if namespace::is_root() {
            return Ok(());
        }
        Err(Error::new(
            "a lab makes network namespaces, which only root may do: run it with sudo",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labs() {
        assert_eq!(
            Lab::named("a1").unwrap().namespace("leader-1"),
            "wirepaxos-a1-leader-1"
        );
        for bad in ["", "a-b", "A", "a/b", "..", "seventeen00000000"] {
            assert!(Lab::named(bad).is_err(), "{bad}");
        }
    }
}
