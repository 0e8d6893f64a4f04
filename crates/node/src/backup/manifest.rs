// SPDX-License-Identifier: Apache-2.0
//! The manifest of a backup: whose it is, where each partition stands, and what every file holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use control::Level;
use control::level::FIRST;
use paxos::{Deployment, GroupId, Instance, PartitionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::document::Document;
use crate::level;

/// The format of a backup's directory as a whole.
const FORMAT: u32 = 1;
/// The name of the manifest's file.
pub const MANIFEST: &str = "manifest.json";
/// The name of the copy of the cluster file.
pub const CLUSTER_FILE: &str = "cluster.toml";
/// The name of the record of epochs.
pub const EPOCHS: &str = "epochs.json";
/// A manifest is much shorter, so that a longer file isn't read.
const MAX_LEN: u64 = 16 << 20;
/// The largest number of partitions that a group can have.
const MAX_PARTITIONS: u16 = 64;

/// What a backup holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The number of the cluster.
    pub cluster: u32,
    /// When the backup was begun, in seconds since 1970.
    pub begun_s: u64,
    /// The version of the program that made it.
    pub program: String,
    /// The format level of the states.
    #[serde(default = "first_level", skip_serializing_if = "is_first_level")]
    pub level: Level,
    /// The groups, in ascending order of their numbers.
    pub groups: Vec<GroupEntry>,
    /// Every other file by its name in the backup's directory.
    pub files: BTreeMap<String, FileEntry>,
}

/// A group in a backup.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupEntry {
    /// The number of the group.
    pub id: GroupId,
    /// The name of the application that it replicates.
    pub application: String,
    /// The name of its protocol.
    pub protocol: String,
    /// The replica whose state was copied.
    pub replica: String,
    /// For each partition the next instance: everything before it is in the backup.
    pub positions: Vec<Instance>,
}

/// The contents of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its length in bytes.
    pub bytes: u64,
    /// SHA-256 over these, in hexadecimal digits.
    pub sha256: String,
}

impl GroupEntry {
    /// Returns the name of the directory with the group's state.
    pub fn directory(&self) -> String {
        format!("group-{}", self.id)
    }

    /// Returns the partitions.
    pub fn pids(&self) -> std::ops::Range<PartitionId> {
        0..self.positions.len() as PartitionId
    }

    /// Returns the deployment whose states these are.
    pub fn deployment(&self, cluster: u32) -> Deployment {
        Deployment {
            cluster,
            group: self.id,
            partitions: self.positions.len() as u16,
            max_value: 0,
            node: 0,
        }
    }
}

impl Manifest {
    /// Returns the names of all files that the backup must have besides the manifest.
    pub fn names(&self) -> BTreeSet<String> {
        let of_group = |group: &GroupEntry| {
            let directory = group.directory();
            let states = group.pids().map(|pid| format!("state-{pid}"));
            let names = states.chain(["head".to_owned()]);
            let names = names.map(|name| format!("{directory}/{name}"));
            names.collect::<Vec<_>>()
        };
        let own = [CLUSTER_FILE, EPOCHS].map(str::to_owned);
        self.groups.iter().flat_map(of_group).chain(own).collect()
    }

    /// Returns whether a directory has all of these files, each as long as it was. That is known
    /// without reading them.
    pub fn has_all_files(&self, directory: &Path) -> bool {
        let is_there = |(name, entry): (&String, &FileEntry)| {
            fs::metadata(directory.join(name)).is_ok_and(|found| found.len() == entry.bytes)
        };
        self.files.iter().all(is_there)
    }

    /// Returns the bytes of all files together.
    pub fn bytes(&self) -> u64 {
        let files = self.files.values();
        files.fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Returns the manifest's own file.
    pub fn emit(&self) -> io::Result<Vec<u8>> {
        let document = Document::new(FORMAT, self)?;
        Ok(serde_json::to_vec_pretty(&document)?)
    }

    /// Reads the manifest of the backup in a directory. The error says what is wrong with it.
    pub fn read(directory: &Path) -> Result<Manifest, String> {
        let path = directory.join(MANIFEST);
        let file = File::open(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!("it has no {MANIFEST}, so it is no backup"),
            _ => format!("{MANIFEST} can't be read: {e}"),
        })?;
        let mut bytes = Vec::new();
        let read = file.take(MAX_LEN).read_to_end(&mut bytes);
        read.map_err(|e| format!("{MANIFEST} can't be read: {e}"))?;
        Manifest::parse(&bytes)
    }

    /// Reads a manifest, which may hold anything.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        let damaged = || format!("{MANIFEST} is damaged: take another backup");
        let value: Value = serde_json::from_slice(bytes).map_err(|_| damaged())?;
        let format = value["format"].as_u64().ok_or_else(damaged)?;
        if format != u64::from(FORMAT) {
            return Err(format!(
                "it is of format {format}, and this program reads format {FORMAT}: use the version \
                 that made it"
            ));
        }
        let document: Document<Manifest> = serde_json::from_value(value).map_err(|_| damaged())?;
        let is_whole = document.is_whole().map_err(|_| damaged())?;
        let manifest = document.body;
        let own = level::levels();
        if !own.have(manifest.level) {
            return Err(format!(
                "it is of format level {}, and this program has level {own}: use version {}, which \
                 made it",
                manifest.level, manifest.program
            ));
        }
        match is_whole && manifest.is_sound() {
            true => Ok(manifest),
            false => Err(damaged()),
        }
    }

    fn is_sound(&self) -> bool {
        let ascend = self.groups.windows(2).all(|two| two[0].id < two[1].id);
        let number = |group: &GroupEntry| group.positions.len();
        let counts = 1..=usize::from(MAX_PARTITIONS);
        let few = self.groups.iter().all(|g| counts.contains(&number(g)));
        ascend && few && self.files.keys().cloned().collect::<BTreeSet<_>>() == self.names()
    }
}

fn first_level() -> Level {
    FIRST
}

fn is_first_level(level: &Level) -> bool {
    *level == FIRST
}

/// Reads a file of a backup and describes its contents.
pub fn describe(path: &Path) -> io::Result<FileEntry> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
    }
    let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileEntry { bytes, sha256 })
}

/// Returns an error if a file of a backup isn't as it was written.
pub fn compare(directory: &Path, name: &str, entry: &FileEntry) -> Result<(), String> {
    let path = directory.join(name);
    let failed = |e: io::Error| format!("{name} can't be read: {e}: take another backup");
    let length = fs::metadata(&path).map_err(failed)?.len();
    if length != entry.bytes {
        return Err(format!(
            "{name} has {length} bytes, and had {}: it is damaged; take another backup",
            entry.bytes
        ));
    }
    match describe(&path).map_err(failed)? == *entry {
        true => Ok(()),
        false => Err(format!("{name} is damaged: take another backup")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn manifest() -> Manifest {
        let group = |id, positions| GroupEntry {
            id,
            application: "rocksdb".into(),
            protocol: "paxos".into(),
            replica: "replica-1".into(),
            positions,
        };
        let mut manifest = Manifest {
            cluster: 7,
            begun_s: 1,
            program: "0.1.0".into(),
            level: FIRST,
            groups: vec![group(0, vec![5]), group(3, vec![9, 10])],
            files: BTreeMap::new(),
        };
        let entry = FileEntry {
            bytes: 3,
            sha256: "00".into(),
        };
        let names = manifest.names().into_iter();
        manifest.files = names.map(|name| (name, entry.clone())).collect();
        manifest
    }

    /// [E-LEVEL]
    #[test]
    fn a_backup_of_a_later_level_is_refused_by_name() {
        let later = Manifest {
            level: 9,
            program: "3.0.0".into(),
            ..manifest()
        };
        let why = Manifest::parse(&later.emit().unwrap()).unwrap_err();
        assert!(why.contains("level 9"), "{why}");
        assert!(why.contains("use version 3.0.0"), "{why}");
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_or_refused() {
        let manifest = manifest();
        let written = manifest.emit().unwrap();
        assert_eq!(Manifest::parse(&written), Ok(manifest.clone()));
        assert_eq!(manifest.bytes(), 3 * 7);
        for len in 0..written.len() {
            assert!(Manifest::parse(&written[..len]).is_err(), "{len}");
        }
        for at in 0..written.len() {
            let mut changed = written.clone();
            changed[at] ^= 1;
            let read = Manifest::parse(&changed);
            assert!(read.is_err() || read == Ok(manifest.clone()), "{at}");
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let newer = br#"{"format": 2, "contents": "of another kind"}"#;
        let refused = Manifest::parse(newer).unwrap_err();
        assert!(refused.contains("format 2"), "{refused}");
    }

    /// A whole manifest can't lead its reader out of the backup's directory.
    #[test]
    fn only_the_files_of_a_backup_are_named() {
        let mut other = manifest();
        let entry = other.files.pop_first().unwrap().1;
        other.files.insert("../cluster.toml".into(), entry);
        assert!(Manifest::parse(&other.emit().unwrap()).is_err());
        let mut many = manifest();
        many.groups[0].positions = vec![0; 65];
        assert!(Manifest::parse(&many.emit().unwrap()).is_err());
        let mut twice = manifest();
        twice.groups[1].id = 0;
        assert!(Manifest::parse(&twice.emit().unwrap()).is_err());
    }
}
