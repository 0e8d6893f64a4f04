// SPDX-License-Identifier: Apache-2.0
//! What can happen to files between a node's stop and its start.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use test_world::Rng;

use super::plan::Damage;

/// Flips a bit, cuts or removes one of the files below a directory; says which, or `None` where
/// there is no file with anything in it.
pub fn damage(directory: &Path, damage: Damage, salt: u64) -> io::Result<Option<String>> {
    let mut rng = Rng::new(salt);
    let mut files = Vec::new();
    list(directory, &mut files)?;
    files.retain(|(_, used)| *used > 0);
    files.sort();
    if files.is_empty() {
        return Ok(None);
    }
    let (path, used) = rng.pick(&files).clone();
    let name = path.strip_prefix(directory).unwrap_or(&path).display();
    Ok(Some(match damage {
        Damage::Flip => {
            let (at, bit) = (rng.below(used), rng.below(8));
            flip(&path, at, 1 << bit)?;
            format!("bit {bit} of byte {at} of {name}")
        }
        Damage::Truncate => {
            let len = rng.below(used);
            File::options().write(true).open(&path)?.set_len(len)?;
            format!("{name} cut to {len} bytes")
        }
        _ => {
            fs::remove_file(&path)?;
            format!("{name} removed")
        }
    }))
}

fn flip(path: &Path, at: u64, mask: u8) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut byte)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&[byte[0] ^ mask])
}

/// Files with the number of bytes up to the last one that isn't zero: files are made long before
/// they are filled, and cutting off what was never written isn't damage to what was.
fn list(directory: &Path, found: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), found)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path())?;
            let last = bytes.iter().rposition(|byte| *byte != 0);
            found.push((entry.path(), last.map_or(0, |at| at as u64 + 1)));
        }
    }
    Ok(())
}

/// Empties a directory, which may be where something is mounted.
pub fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Copies what is in a directory into another one, which is made or emptied first.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    empty(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => fs::copy(entry.path(), target).map(|_| ())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("wirepaxos-tamper-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(path.join("sub")).unwrap();
            fs::write(path.join("sub/file"), [1, 2, 3, 0, 0, 0]).unwrap();
            fs::write(path.join("zero"), [0; 9]).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_bit_of_what_was_written_is_flipped() {
        for salt in 0..20 {
            let scratch = Scratch::new("flip");
            damage(&scratch.0, Damage::Flip, salt).unwrap().unwrap();
            let after = fs::read(scratch.0.join("sub/file")).unwrap();
            let differing: u32 = [1u8, 2, 3, 0, 0, 0]
                .iter()
                .zip(&after)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!((differing, &after[3..]), (1, &[0, 0, 0][..]));
        }
    }

    #[test]
    fn a_file_is_cut_within_what_was_written_or_removed() {
        let scratch = Scratch::new("cut");
        damage(&scratch.0, Damage::Truncate, 1).unwrap().unwrap();
        assert!(fs::metadata(scratch.0.join("sub/file")).unwrap().len() < 3);
        fs::write(scratch.0.join("sub/file"), [1]).unwrap();
        damage(&scratch.0, Damage::Remove, 1).unwrap().unwrap();
        assert!(!scratch.0.join("sub/file").exists() && scratch.0.join("zero").exists());
        assert_eq!(damage(&scratch.0, Damage::Flip, 1).unwrap(), None);
    }

    #[test]
    fn copies_are_whole() {
        let (from, to) = (Scratch::new("from"), Scratch::new("to"));
        fs::write(from.0.join("more"), [7]).unwrap();
        fs::write(to.0.join("other"), [7]).unwrap();
        copy(&from.0, &to.0).unwrap();
        assert_eq!(fs::read(to.0.join("more")).unwrap(), [7]);
        assert_eq!(fs::read(to.0.join("sub/file")).unwrap()[..3], [1, 2, 3]);
        assert!(!to.0.join("other").exists());
        empty(&to.0).unwrap();
        assert_eq!(fs::read_dir(&to.0).unwrap().count(), 0);
    }
}
