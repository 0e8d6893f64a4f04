// SPDX-License-Identifier: Apache-2.0
//! A disk that forgets unsynced data, tears the last write, and becomes full. It may also lie about
//! a sync, and flip a bit of its data.
//!
//! A file consists of its synced bytes and the appends since. A killed process loses nothing that
//! it wrote, since the kernel has it; a machine that loses power keeps the synced bytes and any
//! prefix of the rest, cut at any byte. A disk that lies goes back to the state in which it began
//! to lie.

use std::collections::BTreeMap;

use crate::rng::Rng;

/// The error that a write did not fit; nothing of it was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// One node's disk.
#[derive(Clone, Debug)]
pub struct Disk {
    files: BTreeMap<String, File>,
    capacity: usize,
    /// The files when it began to lie.
    truth: Option<BTreeMap<String, File>>,
}

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    synced: usize,
}

impl Default for Disk {
    fn default() -> Self {
        Disk {
            files: BTreeMap::new(),
            capacity: usize::MAX,
            truth: None,
        }
    }
}

impl Disk {
    /// Sets how many bytes fit from now on. If less than is used, every further write fails.
    pub fn set_capacity(&mut self, bytes: usize) {
        self.capacity = bytes;
    }

    /// Returns the number of bytes in use.
    pub fn used(&self) -> usize {
        self.files.values().map(|f| f.bytes.len()).sum()
    }

    /// Appends to a file, which is created with its first byte.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), Full> {
        // The sum over all files is only needed if there is a limit.
        if self.capacity != usize::MAX && self.used() + bytes.len() > self.capacity {
            return Err(Full);
        }
        match self.files.get_mut(name) {
            Some(file) => file.bytes.extend_from_slice(bytes),
            None => {
                let file = self.files.entry(name.to_owned()).or_default();
                file.bytes.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Makes a file survive a power failure.
    pub fn sync(&mut self, name: &str) {
        self.sync_up_to(name, usize::MAX);
    }

    /// Makes the first bytes of a file survive a power failure.
    pub fn sync_up_to(&mut self, name: &str, bytes: usize) {
        if let Some(file) = self.files.get_mut(name) {
            file.synced = file.synced.max(bytes.min(file.bytes.len()));
        }
    }

    /// Makes the disk lie: nothing written from now on survives a power failure, whatever a sync
    /// returns.
    pub fn lie(&mut self) {
        self.truth.get_or_insert_with(|| self.files.clone());
    }

    /// Returns the state that the next power failure leaves of a disk that lies.
    pub fn truth(&self) -> Option<Disk> {
        Some(Disk {
            files: self.truth.clone()?,
            ..Disk::default()
        })
    }

    /// Flips a bit of a file; returns false if the file is empty.
    pub fn rot(&mut self, name: &str, rng: &mut Rng) -> bool {
        let Some(file) = self.files.get_mut(name).filter(|f| !f.bytes.is_empty()) else {
            return false;
        };
        let at = rng.below(file.bytes.len() as u64) as usize;
        file.bytes[at] ^= 1 << rng.below(8);
        true
    }

    /// Replaces a whole file like write, sync, rename and directory sync: the contents are either
    /// the old or the new ones, and the new ones once this returns.
    pub fn replace(&mut self, name: &str, bytes: &[u8]) -> Result<(), Full> {
        let old = self.files.get(name).map_or(0, |f| f.bytes.len());
        if self.capacity != usize::MAX && self.used() - old + bytes.len() > self.capacity {
            return Err(Full);
        }
        let file = File {
            bytes: bytes.to_vec(),
            synced: bytes.len(),
        };
        self.files.insert(name.to_owned(), file);
        Ok(())
    }

    /// Returns the contents as the running machine sees them.
    pub fn read(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|f| f.bytes.as_slice())
    }

    /// Cuts a file to its first `len` bytes, as a log is cut after its last whole record.
    pub fn truncate(&mut self, name: &str, len: usize) {
        if let Some(file) = self.files.get_mut(name) {
            file.bytes.truncate(len);
            file.synced = file.synced.min(len);
        }
    }

    /// Deletes a file.
    pub fn remove(&mut self, name: &str) {
        self.files.remove(name);
    }

    /// Lets the power fail: any prefix of the unsynced data remains. A disk that lied is honest
    /// from then on.
    pub fn lose_power(&mut self, rng: &mut Rng) {
        if let Some(truth) = self.truth.take() {
            self.files = truth;
        }
        for file in self.files.values_mut() {
            let unsynced = (file.bytes.len() - file.synced) as u64;
            let kept = rng.below(unsynced + 1) as usize;
            file.bytes.truncate(file.synced + kept);
        }
    }

    /// Replaces the disk by an empty one.
    pub fn wipe(&mut self) {
        self.files.clear();
        self.truth = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_prefix_of_unsynced_bytes_survives_power_loss() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut disk = Disk::default();
            disk.append("log", b"abc").unwrap();
            disk.sync("log");
            disk.append("log", b"defg").unwrap();
            assert_eq!(disk.read("log"), Some(&b"abcdefg"[..]));
            disk.lose_power(&mut Rng::new(seed));
            let left = disk.read("log").unwrap();
            assert!(b"abcdefg".starts_with(left) && left.len() >= 3);
            lengths.insert(left.len());
        }
        assert_eq!(lengths.len(), 5, "every cut happens");
    }

    #[test]
    fn a_disk_that_lies_goes_back() {
        let mut disk = Disk::default();
        disk.append("log", b"abc").unwrap();
        disk.sync("log");
        disk.lie();
        disk.append("log", b"d").unwrap();
        disk.sync("log");
        disk.replace("other", b"e").unwrap();
        assert_eq!(disk.read("log"), Some(&b"abcd"[..]));
        disk.lose_power(&mut Rng::new(1));
        assert_eq!(
            (disk.read("log"), disk.read("other")),
            (Some(&b"abc"[..]), None)
        );
        disk.replace("other", b"e").unwrap();
        disk.lose_power(&mut Rng::new(1));
        assert_eq!(disk.read("other"), Some(&b"e"[..]), "it lies no more");
    }

    #[test]
    fn rot_is_one_bit() {
        let mut disk = Disk::default();
        assert!(!disk.rot("log", &mut Rng::new(1)));
        disk.append("log", &[0; 100]).unwrap();
        assert!(disk.rot("log", &mut Rng::new(1)));
        let ones = disk.read("log").unwrap().iter().map(|b| b.count_ones());
        assert_eq!(ones.sum::<u32>(), 1);
    }

    #[test]
    fn a_full_disk_stores_nothing_of_the_write() {
        let mut disk = Disk::default();
        disk.append("a", &[0; 10]).unwrap();
        disk.set_capacity(15);
        assert_eq!(disk.append("b", &[0; 6]), Err(Full));
        assert_eq!(disk.replace("a", &[0; 16]), Err(Full));
        assert_eq!(disk.used(), 10);
        disk.replace("a", &[0; 15]).unwrap();
        disk.remove("a");
        assert_eq!(disk.read("a"), None);
    }
}
