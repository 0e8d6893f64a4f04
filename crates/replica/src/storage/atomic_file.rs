// SPDX-License-Identifier: Apache-2.0
//! Small files that are replaced as a whole: after a kill in the middle either the old one or the
//! new one is there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes a file, or replaces it, durably and atomically. Its directory must exist.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(&mut FileSystem, path, bytes)
}

/// Makes the creation, renaming or removal of a file beside `path` survive a power failure.
pub fn sync_directory_of(path: &Path) -> io::Result<()> {
    FileSystem.sync(directory_of(path))
}

/// The operations needed to replace a file. Tests have an implementation whose power fails.
trait Files {
    /// Writes a file of these bytes. A file that had the name before is emptied first.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the contents of a file, or the names in a directory, survive a power failure.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

fn replace(on: &mut impl Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    on.write(&new, bytes)?;
    on.sync(&new)?;
    on.rename(&new, path)?;
    on.sync(directory_of(path))
}

fn directory_of(path: &Path) -> &Path {
    let above = path.parent().filter(|p| !p.as_os_str().is_empty());
    above.unwrap_or(Path::new("."))
}

struct FileSystem;

impl Files for FileSystem {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        File::create(path)?.write_all(bytes)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SECTOR: usize = 512;

    /// The contents of a file: the bytes that were written, and those that must be on the disk.
    #[derive(Clone, Default)]
    struct Contents {
        written: Vec<u8>,
        synced: Vec<u8>,
    }

    /// A directory whose process is killed after a number of calls, and whose power fails then.
    #[derive(Clone, Default)]
    struct Fake {
        files: Vec<Contents>,
        names: BTreeMap<PathBuf, usize>,
        names_on_disk: BTreeMap<PathBuf, usize>,
        calls_left: usize,
    }

    impl Fake {
        fn call(&mut self) -> io::Result<()> {
            self.calls_left = self.calls_left.checked_sub(1).ok_or(io::ErrorKind::Other)?;
            Ok(())
        }

        /// Returns the contents of a file after a power failure. The names are those of before the
        /// last changes or of now, and each sector that wasn't synced is either on the disk or not.
        fn after_power_failure(&self, path: &Path, newer: bool, sectors: u32) -> Option<Vec<u8>> {
            let names = match newer {
                true => &self.names,
                false => &self.names_on_disk,
            };
            let Contents { written, synced } = &self.files[*names.get(path)?];
            let longer = written.len().max(synced.len());
            let mut bytes = match newer {
                true => vec![0; longer],
                false => vec![0; synced.len()],
            };
            for (n, sector) in bytes.chunks_mut(SECTOR).enumerate() {
                let from = match sectors & 1 << n {
                    0 => synced,
                    _ => written,
                };
                let found = from.get(n * SECTOR..).unwrap_or_default();
                let len = found.len().min(sector.len());
                sector[..len].copy_from_slice(&found[..len]);
            }
            Some(bytes)
        }
    }

    impl Files for Fake {
        fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            self.call()?;
            let file = *self.names.entry(path.into()).or_insert_with(|| {
                self.files.push(Contents::default());
                self.files.len() - 1
            });
            self.files[file].written = bytes.to_vec();
            Ok(())
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.call()?;
            let file = self.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            self.names.insert(to.into(), file);
            Ok(())
        }

        fn sync(&mut self, path: &Path) -> io::Result<()> {
            self.call()?;
            match self.names.get(path) {
                Some(file) => self.files[*file].synced = self.files[*file].written.clone(),
                None => self.names_on_disk = self.names.clone(),
            }
            Ok(())
        }
    }

    /// This also holds where an earlier process has left a new file of its own.
    #[test]
    fn a_power_failure_leaves_the_old_file_or_the_new_one() {
        let path = Path::new("/data/install");
        let text = |byte| vec![byte; 3 * SECTOR - 100];
        let mut disk = Fake {
            calls_left: 100,
            ..Fake::default()
        };
        replace(&mut disk, path, &text(1)).unwrap();
        let (mut olds, mut news) = (0, 0);
        for killed_before in 0..5 {
            for killed in 0..5 {
                let mut disk = disk.clone();
                disk.calls_left = killed_before;
                let before = replace(&mut disk, path, &text(2)).is_ok();
                disk.calls_left = killed;
                let done = replace(&mut disk, path, &text(3)).is_ok();
                for case in 0..16 {
                    let found = disk.after_power_failure(path, case & 1 == 1, case >> 1);
                    let found = found.expect("the file is there");
                    let which = found[0];
                    assert_eq!(found, text(which), "{killed_before}, {killed}, {case}");
                    assert!(which == 3 || !done, "{killed_before}, {killed}, {case}");
                    assert!(which >= 2 || !before, "{killed_before}, {killed}, {case}");
                    olds += u32::from(which == 1);
                    news += u32::from(which == 3);
                }
            }
        }
        assert!(olds > 0 && news > 0);
    }
}
