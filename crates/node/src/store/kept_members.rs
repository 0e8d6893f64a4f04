// SPDX-License-Identifier: Apache-2.0
//! A node's copy of all changes of the members by command, in a file of its directory. [E-CHANGES]

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use control::MemberChange;
use replica::storage::{private_directory, replace_file};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::cluster_file::{ClusterFile, Node};
use crate::document::Document;

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Body {
    cluster: u32,
    changes: Vec<MemberChange>,
}

/// Where a node keeps the changes.
#[derive(Clone)]
pub(crate) struct KeptMembers {
    directory: PathBuf,
    cluster: u32,
}

impl fmt::Display for KeptMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file().display().fmt(f)
    }
}

impl KeptMembers {
    pub fn of(cluster: &ClusterFile, node: &Node) -> KeptMembers {
        KeptMembers {
            directory: cluster.node_dir(node),
            cluster: cluster.cluster,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("members.json")
    }

    /// Returns the changes. A damaged copy counts as none, since the controller tells them again.
    pub fn read(&self) -> Vec<MemberChange> {
        match self.read_whole(&self.file()) {
            Ok(changes) => changes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(why) => {
                warn!("{self} is left out: {why}");
                Vec::new()
            }
        }
    }

    /// Replaces the file. After an error the old one is still whole.
    pub fn write(&self, changes: &[MemberChange]) -> io::Result<()> {
        let body = Body {
            cluster: self.cluster,
            changes: changes.to_vec(),
        };
        let bytes = serde_json::to_vec(&Document::new(FORMAT, body)?)?;
        private_directory(&self.directory)?;
        replace_file(&self.file(), &bytes)
    }

    fn read_whole(&self, file: &Path) -> io::Result<Vec<MemberChange>> {
        let document: Document<Body> = serde_json::from_slice(&fs::read(file)?)?;
        if document.format != FORMAT || !document.is_whole()? {
            return Err(io::Error::other("it is damaged, or of another version"));
        }
        if document.body.cluster != self.cluster {
            return Err(io::Error::other("it belongs to another cluster"));
        }
        Ok(document.body.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_copy_is_read_again_and_a_damaged_or_foreign_one_counts_as_none() {
        let directory = TestDir::new();
        let kept = KeptMembers {
            directory: directory.path().to_owned(),
            cluster: 7,
        };
        assert_eq!(kept.read(), []);
        let changes = [MemberChange::SetF { group: 0, f: 2 }];
        kept.write(&changes).unwrap();
        assert_eq!(kept.read(), changes);
        let foreign = KeptMembers {
            cluster: 8,
            ..kept.clone()
        };
        assert_eq!(foreign.read(), []);
        let bytes = fs::read(kept.file()).unwrap();
        for len in 0..bytes.len() {
            fs::write(kept.file(), &bytes[..len]).unwrap();
            assert_eq!(kept.read(), []);
        }
        let other = String::from_utf8(bytes)
            .unwrap()
            .replace("\"f\":2", "\"f\":3");
        fs::write(kept.file(), other).unwrap();
        assert_eq!(kept.read(), []);
    }
}
