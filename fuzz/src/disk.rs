// SPDX-License-Identifier: Apache-2.0
//! A disk in memory for the checkpoint of a replica; copies show the same one.

use std::io;
use std::sync::{Arc, Mutex};

use replica::storage::Storage;

#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<Option<Vec<u8>>>>);

impl Disk {
    /// Returns what is stored.
    pub fn content(&self) -> Option<Vec<u8>> {
        self.0.lock().expect("nobody panics").clone()
    }
}

impl Storage for Disk {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.content())
    }

    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        *self.0.lock().expect("nobody panics") = Some(checkpoint.to_vec());
        Ok(())
    }
}
