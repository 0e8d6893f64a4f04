// SPDX-License-Identifier: Apache-2.0
//! The programs' sources, and compiling those of a network.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::bmv2::Tools;

/// The largest value that the programs carry, in bytes (`MAX_VALUE` of `include/headers.p4`).
pub const MAX_VALUE: u16 = 128;

/// Names the directory of the programs.
const DIR_VARIABLE: &str = "WIREPAXOS_P4_DIR";

/// How a program is made: how large its registers are (`SLOTS`, `PARTITIONS` and `GROUPS` of
/// `include/headers.p4`), and whether it checks and makes tags (`SIGNED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The number of slots of all partitions together.
    pub slots: u64,
    /// The number of partitions of all groups together.
    pub partitions: u64,
    /// Groups of a node.
    pub groups: u64,
    /// True if the program accepts only signed packets, and signs what it sends.
    pub signs: bool,
}

impl Build {
    /// The sizes for labs and tests. A switch in software creates its registers anew each time it
    /// starts.
    pub const SMALL: Build = Build {
        slots: 4096,
        partitions: 8,
        groups: 2,
        signs: false,
    };

    /// Returns the sizes under the names that a program gives them.
    pub fn defines(&self) -> Vec<(&'static str, u64)> {
        let mut defines = vec![
            ("SLOTS", self.slots),
            ("PARTITIONS", self.partitions),
            ("GROUPS", self.groups),
        ];
        defines.extend(self.signs.then_some(("SIGNED", 1)));
        defines
    }
}

/// Returns the directory of the programs for BMv2: `WIREPAXOS_P4_DIR`, or `p4/v1model` beside the
/// running program or above it, or that of the source tree.
pub fn directory() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(DIR_VARIABLE) {
        return Ok(given.into());
    }
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = binary.ancestors().skip(1).map(|dir| dir.join("p4/v1model"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/v1model");
    let found = beside
        .chain([source])
        .find(|dir| dir.join("acceptor.p4").is_file());
    found.ok_or_else(|| {
        format!("no P4 programs found: say in {DIR_VARIABLE} where programs/p4/v1model is")
    })
}

/// Compiles the program of a role into `out`.
pub fn compile(tools: &Tools, role: &str, build: Build, out: &Path) -> Result<()> {
    let program = directory()?.join(format!("{role}.p4"));
    tools.compile(&program, &build.defines(), out)
}
