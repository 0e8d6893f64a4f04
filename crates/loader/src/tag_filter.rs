// SPDX-License-Identifier: Apache-2.0
//! A look at tags before a socket: a program drops datagrams that have none, or a wrong one, before
//! they are queued and wake anybody (`programs/xdp/tag_filter.bpf.c`). Who reads the socket checks
//! all that comes to it, as without the program.

use std::os::fd::AsFd;

use aya::programs::SocketFilter;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use paxos::Reason;
use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;

use crate::keyring::KernelKeyring;
use crate::layout::Counters;
use crate::object::{Result, directory, map_memory, possible_cpus, verify, whole};
use crate::sys::Mapped;

/// The name of the program, and of its object.
const NAME: &str = "tag_filter";

/// Taken away when it is dropped, which must be before its socket is closed.
#[derive(Debug)]
pub struct TagFilter {
    keyring: KernelKeyring,
    counters: Mapped<Counters>,
    /// The program's.
    _ebpf: Ebpf,
}

impl TagFilter {
    /// Puts one before a socket.
    pub fn before(socket: impl AsFd, keyring: &Keyring) -> Result<TagFilter> {
        let path = directory()?.join(format!("{NAME}.bpf.o"));
        let failed = |e: &dyn std::error::Error| format!("{}: {}", path.display(), whole(e));
        let cpus = possible_cpus();
        let mut ebpf = EbpfLoader::new()
            .verifier_log_level(VerifierLogLevel::STATS)
            .set_max_entries("counters", cpus as u32)
            .load_file(&path)
            .map_err(|e| failed(&e))?;
        // No packet may meet it without keys.
        let keys = KernelKeyring::in_memory(map_memory(&ebpf, "keyring", 0, None, true)?)?;
        keys.set(keyring)?;
        let counters = map_memory(&ebpf, "counters", 0, Some(cpus), false)?;
        let program = ebpf.program_mut(NAME).ok_or("no program")?;
        verify(program).map_err(|e| failed(&e))?;
        let program: &mut SocketFilter = program.try_into().map_err(|e| failed(&e))?;
        program.attach(socket).map_err(|e| failed(&e))?;
        Ok(TagFilter {
            keyring: keys,
            counters,
            _ebpf: ebpf,
        })
    }

    /// Replaces the keys with which packets are checked.
    pub fn use_keys(&self, keyring: &Keyring) -> Result<()> {
        self.keyring.set(keyring)
    }

    /// Returns what it has dropped.
    pub fn dropped(&self) -> ReasonCounters {
        let mut dropped = ReasonCounters::default();
        for of_cpu in self.counters.copy() {
            for reason in Reason::ALL {
                dropped.add(reason, of_cpu.of[reason as usize]);
            }
        }
        dropped
    }
}
