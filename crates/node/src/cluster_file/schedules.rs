// SPDX-License-Identifier: Apache-2.0
//! What nodes copy by themselves: a replica its state, and the controller the whole cluster.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::read::{RawBackup, RawNode};
use super::validate::{Check, at};
use super::{Group, Protocol};

/// The longest time between two copies or backups, a year.
const MAX_EVERY_S: i64 = 31_536_000;

/// The copies of its state that a replica makes regularly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// The copies are in this directory, in a subdirectory with the node's name.
    pub directory: PathBuf,
    /// The seconds between two copies.
    pub every_s: u64,
    /// How many of the newest copies are kept, at least one.
    pub kept: usize,
}

/// The backups of the whole cluster that the controller makes regularly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupSettings {
    /// The backups are in this directory of the controller's machine.
    pub directory: PathBuf,
    /// The seconds between two backups.
    pub every_s: u64,
    /// How many of the newest backups are kept, at least one.
    pub keep: usize,
    /// All that is decided is archived beside them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub archive: bool,
}

impl Check {
    pub(super) fn backup(
        &mut self,
        raw: Option<&RawBackup>,
        dir: &Path,
        groups: &[Group],
    ) -> Option<BackupSettings> {
        let raw = raw?;
        self.directory("directory", &raw.directory);
        let every = self.number("every_s", &raw.every_s, 1..=MAX_EVERY_S, 86_400);
        let keep = self.number("keep", &raw.keep, 1..=1_000, 7);
        let archive = raw.archive.as_ref().filter(|archive| *archive.get_ref());
        let is_ordered = |group: &&Group| group.protocol == Protocol::NoPaxos;
        if let (Some(archive), Some(group)) = (archive, groups.iter().find(is_ordered)) {
            self.error(
                at(archive),
                format!("group {} agrees by NOPaxos, which has no archive", group.id),
                "leave `archive` out: backups are made without it",
            );
        }
        Some(BackupSettings {
            directory: dir.join(raw.directory.get_ref()),
            every_s: every as u64,
            keep: keep as usize,
            archive: archive.is_some(),
        })
    }

    pub(super) fn copies(&mut self, raw: &RawNode, dir: &Path) -> Option<CopySettings> {
        let Some(directory) = &raw.copies else {
            let with = ("copies", "DIRECTORY");
            self.only_with(with, "copy_every_s", &raw.copy_every_s);
            self.only_with(with, "copies_kept", &raw.copies_kept);
            return None;
        };
        self.directory("copies", directory);
        let every = self.number("copy_every_s", &raw.copy_every_s, 1..=MAX_EVERY_S, 3_600);
        let kept = self.number("copies_kept", &raw.copies_kept, 1..=1_000, 2);
        Some(CopySettings {
            directory: dir.join(directory.get_ref()),
            every_s: every as u64,
            kept: kept as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{Draft, parse};

    const SAMPLE: &str = include_str!("../../../../testdata/cluster.toml");

    fn with(section: &str) -> Result<Option<BackupSettings>, String> {
        let text = format!("{SAMPLE}\n[backup]\n{section}\n");
        let file = parse(&text, "/etc/cluster.toml");
        file.map(|file| file.backup).map_err(|e| e.to_string())
    }

    #[test]
    fn backups_are_made_only_where_the_file_asks_for_them() {
        let without = parse(SAMPLE, "/etc/cluster.toml").unwrap();
        assert_eq!(without.backup, None);
        let settings = with("directory = \"b\"\nevery_s = 60").unwrap().unwrap();
        assert_eq!(settings.directory, Path::new("/etc/b"));
        assert_eq!((settings.every_s, settings.keep), (60, 7));
        assert!(!settings.archive);
        let text = format!("{SAMPLE}\n[backup]\ndirectory = \"/b\"\nkeep = 3\narchive = true\n");
        let file = parse(&text, "/etc/cluster.toml").unwrap();
        let again = Draft::from(&file).check().unwrap();
        assert_eq!(again.backup, file.backup);
        assert!(file.backup.unwrap().archive);
    }

    #[test]
    fn wrong_settings_are_refused_with_what_to_do() {
        for (section, words) in [
            ("every_s = 60", "directory"),
            ("directory = \"\"", "name a directory"),
            ("directory = \"b\"\nevery_s = 0", "1 to 31536000"),
            ("directory = \"b\"\nkeep = 0", "1 to 1000"),
            ("directory = \"b\"\nevery = 60", "every"),
        ] {
            let refused = with(section).unwrap_err();
            assert!(refused.contains(words), "{section}: {refused}");
        }
    }
}
