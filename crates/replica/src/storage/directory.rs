// SPDX-License-Identifier: Apache-2.0
//! Directories that survive a power failure. A directory is a name in the one above it, and that
//! name is on the disk only once the upper directory has been synced; syncing what is *in* a
//! directory doesn't save its own name.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// Makes a directory that only its owner may read, and those above it that are missing, so that
/// they survive a power failure. A directory that is there already is closed to others. All that
/// nodes store lies in directories that were made here.
pub fn private_directory(path: &Path) -> io::Result<()> {
    make(&mut FileSystem, path)?;
    let mut permissions = fs::metadata(path)?.permissions();
    if permissions.mode() & 0o077 != 0 {
        permissions.set_mode(0o700);
        fs::set_permissions(path, permissions)?;
    }
    Ok(())
}

/// The operations needed to make a directory. Tests have an implementation whose power fails.
trait Directories {
    fn exists(&self, path: &Path) -> bool;
    /// Makes a directory whose parent is there.
    fn make(&mut self, path: &Path) -> io::Result<()>;
    /// Makes the names in the directory survive a power failure.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

/// Makes a directory once the name of the one above it is on the disk. So, however many processes
/// were killed here, the names of all existing directories but the lowest are on the disk, and the
/// lowest one's is synced again.
fn make(on: &mut impl Directories, path: &Path) -> io::Result<()> {
    let Some(above) = path.parent() else {
        return Ok(());
    };
    let above = match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    };
    if on.exists(path) {
        return match on.sync(above) {
            // We may not read the upper directory, so it belongs to somebody else, who has made the
            // names in it.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        };
    }
    make(on, above)?;
    on.make(path)?;
    on.sync(above)
}

struct FileSystem;

impl Directories for FileSystem {
    fn exists(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn make(&mut self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            // Another process may have been quicker; anything but a directory is an error.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    /// A disk that forgets what wasn't synced when power fails. Its process is killed after a
    /// number of calls.
    #[derive(Clone, Default)]
    struct Fake {
        there: BTreeSet<PathBuf>,
        on_disk: BTreeSet<PathBuf>,
        calls_left: usize,
    }

    impl Fake {
        fn call(&mut self) -> io::Result<()> {
            self.calls_left = self.calls_left.checked_sub(1).ok_or(io::ErrorKind::Other)?;
            Ok(())
        }

        fn survives_a_power_failure(&self, path: &Path) -> bool {
            let named = path.ancestors().filter(|p| p.parent().is_some());
            named.into_iter().all(|p| self.on_disk.contains(p))
        }
    }

    impl Directories for Fake {
        fn exists(&self, path: &Path) -> bool {
            path == Path::new("/") || self.there.contains(path)
        }

        fn make(&mut self, path: &Path) -> io::Result<()> {
            self.call()?;
            assert!(self.exists(path.parent().unwrap()), "{path:?}");
            self.there.insert(path.into());
            Ok(())
        }

        fn sync(&mut self, path: &Path) -> io::Result<()> {
            self.call()?;
            let in_it = self.there.iter().filter(|p| p.parent() == Some(path));
            self.on_disk.extend(in_it.cloned());
            Ok(())
        }
    }

    /// Whichever processes were killed before, and wherever: once one has come through, all names
    /// are on the disk.
    #[test]
    fn whatever_was_made_is_there_after_a_power_failure() {
        let path = Path::new("/data/replica/partition");
        let mut came_through = 0;
        for kills in 0..8 * 8 * 8 {
            let mut disk = Fake::default();
            for calls_left in [kills % 8, kills / 8 % 8, kills / 64, 100] {
                disk.calls_left = calls_left;
                if make(&mut disk, path).is_ok() {
                    came_through += 1;
                    assert!(disk.survives_a_power_failure(path), "killed at {kills:o}");
                }
            }
        }
        assert!(came_through > 512, "{came_through}");
    }

    #[test]
    fn what_is_stored_is_in_directories_of_its_owner() {
        let name = format!("wirepaxos-directory-{}", std::process::id());
        let above = std::env::temp_dir().join(name);
        let own = above.join("own");
        private_directory(&own).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&above), mode(&own)), (0o700, 0o700));
        fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        private_directory(&own).unwrap();
        assert_eq!(mode(&own), 0o700, "closed, as it was open");
        fs::write(own.join("file"), "").unwrap();
        private_directory(&own.join("file")).unwrap_err();
        fs::remove_dir_all(above).unwrap();
    }
}
