// SPDX-License-Identifier: Apache-2.0
//! Facts about the disk that a measurement of storage needs: its file system, and whether the
//! stores had to write to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use local_cluster::Error;

/// The file system of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// `ext4`, `tmpfs`, ...
    pub kind: String,
    /// The place where it is mounted.
    pub mount: PathBuf,
}

impl FileSystem {
    pub(super) fn of(directory: &Path) -> Result<FileSystem, Error> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let directory = directory.canonicalize()?;
        find(&mounts, &directory)
            .ok_or_else(|| Error::new(format!("{} is on no mount", directory.display())))
    }

    /// Returns whether what is stored there is in memory alone.
    fn is_ram(&self) -> bool {
        ["tmpfs", "ramfs", "devtmpfs", "hugetlbfs"].contains(&self.kind.as_str())
    }

    /// Returns an error if durable storage would be measured on a RAM disk.
    pub(super) fn refuse_ram(&self) -> Result<(), Error> {
        if !self.is_ram() {
            return Ok(());
        }
        Err(Error::new(format!(
            "--durable: {} is a RAM disk ({}), where syncing costs nothing and nothing survives. \
             Name a directory on the disk to measure with --data, or allow it with \
             --allow-ram-disk",
            self.mount.display(),
            self.kind
        )))
    }
}

/// Returns the mount of a path, by the contents of /proc/self/mountinfo.
fn find(mounts: &str, path: &Path) -> Option<FileSystem> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        Some(FileSystem {
            kind: right.split(' ').next()?.to_owned(),
            mount: unescaped(left.split(' ').nth(4)?).into(),
        })
    };
    let all = mounts.lines().filter_map(parse);
    // A later mount at the same place hides an earlier one, and `max_by_key` returns the last.
    all.filter(|m| path.starts_with(&m.mount))
        .max_by_key(|m| m.mount.components().count())
}

/// Spaces and the like are written as three octal digits.
fn unescaped(mount: &str) -> String {
    let octal = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    octal
        .iter()
        .fold(mount.to_owned(), |text, (code, c)| text.replace(code, c))
}

/// The files of stores that hold what has left their memory.
pub(super) struct Tables {
    directories: Vec<PathBuf>,
    before: Vec<BTreeSet<PathBuf>>,
}

impl Tables {
    /// Returns those that are new from now on below these directories, a store each.
    pub fn since_now(directories: Vec<PathBuf>) -> Tables {
        Tables {
            before: directories.iter().map(|d| tables(d)).collect(),
            directories,
        }
    }

    /// Returns how many each store has written.
    pub fn written(&self) -> Vec<usize> {
        let stores = self.directories.iter().zip(&self.before);
        stores
            .map(|(directory, before)| tables(directory).difference(before).count())
            .collect()
    }
}

fn tables(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        // A file that has just gone is no new file.
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let extension = path.extension().and_then(|e| e.to_str());
            match extension {
                Some("sst" | "ldb") => drop(found.insert(path)),
                _ if path.is_dir() => directories.push(path),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /tmp rw - tmpfs tmpfs rw
24 23 8:2 / /tmp/a\\040disk rw shared:3 master:1 - xfs /dev/sdb1 rw
25 22 0:22 / /data rw - tmpfs tmpfs rw
26 22 8:3 / /data rw - btrfs /dev/sdc1 rw";

    fn kind(path: &str) -> String {
        find(MOUNTS, Path::new(path)).unwrap().kind
    }

    #[test]
    fn a_directory_is_on_the_innermost_mount() {
        assert_eq!(kind("/home/x"), "ext4");
        assert_eq!(kind("/tmp/x"), "tmpfs");
        assert_eq!(kind("/tmpx"), "ext4");
        assert_eq!(kind("/tmp/a disk/y"), "xfs");
        assert_eq!(kind("/data/x"), "btrfs", "the later one hides the earlier");
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn a_ram_disk_is_refused_by_name() {
        let on = |path| find(MOUNTS, Path::new(path)).unwrap();
        assert!(on("/home").refuse_ram().is_ok());
        let refusal = on("/tmp/x").refuse_ram().unwrap_err().to_string();
        for word in ["/tmp", "tmpfs", "--data", "--allow-ram-disk"] {
            assert!(refusal.contains(word), "{refusal}");
        }
    }

    #[test]
    fn this_directory_is_on_some_file_system() {
        let found = FileSystem::of(Path::new(".")).unwrap();
        assert!(found.mount.is_absolute() && !found.kind.is_empty());
    }

    #[test]
    fn a_store_has_written_when_it_has_a_new_table() {
        let name = format!("wirepaxos-bench-tables-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let stores = [dir.join("one"), dir.join("two")];
        for store in &stores {
            fs::create_dir_all(store.join("db-1")).unwrap();
            fs::write(store.join("db-1/000004.sst"), "").unwrap();
        }
        let tables = Tables::since_now(stores.to_vec());
        assert_eq!(tables.written(), [0, 0]);
        fs::write(stores[0].join("db-1/000005.log"), "").unwrap();
        assert_eq!(tables.written(), [0, 0]);
        fs::write(stores[0].join("db-1/000006.sst"), "").unwrap();
        fs::write(stores[1].join("db-1/000007.ldb"), "").unwrap();
        fs::remove_file(stores[1].join("db-1/000004.sst")).unwrap();
        assert_eq!(tables.written(), [1, 1]);
        fs::remove_dir_all(dir).unwrap();
    }
}
