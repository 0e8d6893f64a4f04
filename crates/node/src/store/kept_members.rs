// SPDX-License-Identifier: Apache-2.0
//! A node's copy of all changes of the members by command, in a file of its directory. [E-CHANGES]

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use control::MemberChange;
use replica::storage::{private_directory, replace_file};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::cluster_file::{ClusterFile, Node};
use crate::document::{Document, Unusable};
use crate::level;

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
    ///
    /// # Errors
    /// If another version has written the copy, or if this program can't work with the changes.
    pub fn read(&self) -> Result<Vec<MemberChange>, String> {
        let left_out = |why: &dyn fmt::Display| {
            warn!("{self} is left out: {why}");
            Ok(Vec::new())
        };
        let bytes = match fs::read(self.file()) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(why) => return left_out(&why),
        };
        let document = match Document::<Body>::read_unchecked(&bytes, &[FORMAT]) {
            Ok(document) => document,
            Err(why @ Unusable::OtherFormat { .. }) => return Err(format!("{self}: {why}")),
            Err(why) => return left_out(&why),
        };
        let is_whole = document.is_whole().unwrap_or(false);
        let Body { cluster, changes } = document.body;
        if cluster != self.cluster {
            return left_out(&"it belongs to another cluster");
        }
        // Changes that this program doesn't know have lost their contents, so there is no checksum.
        if is_whole || changes.contains(&MemberChange::Unknown) {
            return match level::against(&changes) {
                None => Ok(changes),
                Some(why) => Err(format!("{self}: {why}")),
            };
        }
        left_out(&"it is damaged: its checksum is wrong")
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
        assert_eq!(kept.read(), Ok(vec![]));
        let changes = [MemberChange::SetF { group: 0, f: 2 }];
        kept.write(&changes).unwrap();
        assert_eq!(kept.read().as_deref(), Ok(&changes[..]));
        let foreign = KeptMembers {
            cluster: 8,
            ..kept.clone()
        };
        assert_eq!(foreign.read(), Ok(vec![]));
        let bytes = fs::read(kept.file()).unwrap();
        for len in 0..bytes.len() {
            fs::write(kept.file(), &bytes[..len]).unwrap();
            assert_eq!(kept.read(), Ok(vec![]));
        }
        let other = String::from_utf8(bytes)
            .unwrap()
            .replace("\"f\":2", "\"f\":3");
        fs::write(kept.file(), other).unwrap();
        assert_eq!(kept.read(), Ok(vec![]));
    }

    /// Returns the reason why a copy with other contents is refused, which stays as it is.
    fn refused(body: &str) -> String {
        let directory = TestDir::new();
        let kept = KeptMembers {
            directory: directory.path().to_owned(),
            cluster: 7,
        };
        fs::write(kept.file(), body).unwrap();
        let why = kept.read().unwrap_err();
        assert_eq!(fs::read_to_string(kept.file()).unwrap(), body);
        why
    }

    #[test]
    fn a_copy_of_another_version_is_refused_by_name() {
        let format = refused(r#"{"format":2,"digest":"of a newer form"}"#);
        assert!(format.contains("members.json: it has format 2"), "{format}");
        let of = |change: &str| {
            format!(r#"{{"format":1,"crc32":0,"body":{{"cluster":7,"changes":[{change}]}}}}"#)
        };
        let unknown = refused(&of(r#"{"change":"give_away","to":"the moon"}"#));
        assert!(unknown.contains("doesn't know"), "{unknown}");
        let body = Body {
            cluster: 7,
            changes: vec![MemberChange::SetLevel { level: 9 }],
        };
        let level = Document::new(FORMAT, body).unwrap();
        let level = refused(&serde_json::to_string(&level).unwrap());
        assert!(level.contains("is at format level 9"), "{level}");
    }
}
