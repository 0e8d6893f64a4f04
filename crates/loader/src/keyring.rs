// SPDX-License-Identifier: Apache-2.0
//! The keys with which a role in the kernel checks packets and signs its own ([`paxos::auth`]).
//! They are replaced while packets pass: two generations are live at a time, so what was signed
//! before is still taken.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::auth::{Algorithm, KEY_IDS, KeyPair, Keyring};

use crate::banks::Banks;
use crate::layout::{DEVICE_SIGNED, Keys, Pair, SharedKeyring};
use crate::object::{Object, Result};
use crate::sys::{Mapped, atomic32};

/// A role's keys in the kernel.
#[derive(Debug)]
pub struct KernelKeyring {
    memory: Mapped<SharedKeyring>,
    banks: Banks,
}

impl KernelKeyring {
    /// Opens the keyring of a loaded role, with the keys that an earlier process has left.
    pub fn of(object: &Object) -> Result<KernelKeyring> {
        Self::in_memory(object.memory("keyring")?)
    }

    /// Opens a keyring in this memory, wherever that lies.
    pub(crate) fn in_memory(memory: Mapped<SharedKeyring>) -> Result<KernelKeyring> {
        Ok(KernelKeyring {
            memory,
            banks: Banks::new(false)?,
        })
    }

    /// Replaces the keys. A packet that is being handled is checked with the old keys, and may be
    /// signed with the new ones.
    pub fn set(&self, keyring: &Keyring) -> Result<()> {
        let keys = keys(keyring);
        let now = self.memory.get(0);
        let used = (now.bank & 1) as usize;
        if now.banks[used] == keys {
            return Ok(());
        }
        self.banks.settle()?;
        let new = 1 - used;
        let entry = self.memory.at(0);
        // SAFETY: the entry is inside the mapping that `self` owns; programs use this bank only
        // after the call.
        unsafe {
            (&raw mut (*entry).banks[new]).write_volatile(keys);
            atomic32(&raw mut (*entry).bank).store(new as u32, SeqCst);
        }
        self.banks.changed();
        Ok(())
    }
}

impl Object {
    /// Requires packets to be signed with one of these keys from now on. This is for tests and
    /// measurements, which have no key file to follow.
    pub fn sign_with(&mut self, keyring: &Keyring) -> Result<()> {
        KernelKeyring::of(self)?.set(keyring)?;
        self.change_device(|device| device.flags |= DEVICE_SIGNED)
    }
}

fn keys(keyring: &Keyring) -> Keys {
    let mut keys = Keys {
        own: keyring.own().emit().into(),
        ..Keys::default()
    };
    let mut known = 0;
    for at in 0..KEY_IDS {
        if let Some(pair) = keyring.pair(at) {
            known |= 1 << at;
            keys.pair[at] = words_of(pair);
        }
    }
    match keyring.algorithm() {
        Algorithm::SipHash => keys.known = known,
        Algorithm::HalfSipHash => keys.known_half = known,
    }
    keys
}

fn words_of(pair: &KeyPair) -> Pair {
    let words = |key: &[u8; 16]| {
        let both = u128::from_le_bytes(*key);
        [both as u64, (both >> 64) as u64]
    };
    Pair {
        mac: words(&pair.mac),
        digest: words(&pair.digest),
    }
}
