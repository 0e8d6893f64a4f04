// SPDX-License-Identifier: Apache-2.0
//! Loading: one compiled object is one role on one node.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::SeqCst, fence};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData, ProgramArray};
use aya::programs::{Program, ProgramError, ProgramFd, Xdp};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use paxos::NodeId;

use crate::layout::{
    Counters, DEVICE_CLONES, DEVICE_FEW_COPIES, DEVICE_WITHIN, Device, Group, NodeAddress,
};
use crate::program_files;
use crate::sys::{Mapped, Shared};

/// The environment variable with the directory in which compiled objects are looked for first.
pub const DIR_VARIABLE: &str = "WIREPAXOS_BPF_DIR";

/// A result whose error is a text that says what went wrong and what to do.
pub type Result<T> = std::result::Result<T, String>;

/// The role of a node in the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Role {
    Leader,
    Acceptor,
    Learner,
    Forwarder,
    Sequencer,
    Receiver,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 6] = [
        Role::Leader,
        Role::Acceptor,
        Role::Learner,
        Role::Forwarder,
        Role::Sequencer,
        Role::Receiver,
    ];

    /// Returns the name of the role, of its program and of its object.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Acceptor => "acceptor",
            Role::Learner => "learner",
            Role::Forwarder => "forwarder",
            Role::Sequencer => "sequencer",
            Role::Receiver => "receiver",
        }
    }

    /// Returns whether it puts requests in order, in copies for several partitions, too.
    pub const fn stamps(self) -> bool {
        matches!(self, Role::Leader | Role::Sequencer)
    }
}

/// The numbers of entries of maps whose size depends on the deployment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Groups on this node.
    pub groups: u32,
    /// Partitions, of all groups together.
    pub partitions: u32,
    /// Slots, of all partitions together.
    pub slots: u32,
    /// Bytes of each ring of a learner, or a receiver: a power of two, at least a page.
    pub ring_bytes: u32,
    /// The rings that are used, one a partition.
    pub rings: u32,
}

impl Sizes {
    /// Returns the sizes for groups with this many partitions and slots each, and rings of 4 MiB.
    pub fn of(groups: u32, partitions: u16, slots: u32) -> Sizes {
        Sizes {
            groups,
            partitions: groups * u32::from(partitions),
            slots: groups * u32::from(partitions) * slots,
            ring_bytes: 1 << 22,
            rings: groups * u32::from(partitions),
        }
    }
}

/// Returns the directory with the compiled objects: `WIREPAXOS_BPF_DIR`, or `bpf` beside the
/// running program or above it, or `target/bpf` of the source tree.
pub fn directory() -> Result<PathBuf> {
    program_files::directory(DIR_VARIABLE, "bpf", "acceptor.bpf.o")?.ok_or_else(|| {
        format!(
            "no compiled XDP programs found: build them with `make -C programs/xdp`, or say in \
                 {DIR_VARIABLE} where they are"
        )
    })
}

/// Returns the number of CPUs that programs may run on, whatever this process is bound to.
pub fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    let last = text
        .ok()
        .and_then(|text| text.trim().rsplit(['-', ',']).next()?.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

/// A role's loaded object: its maps, its own program, and those of its others that somebody has
/// asked for. What nobody needs isn't loaded, as the kernel's verifier takes its time for each.
#[derive(Debug)]
pub struct Object {
    ebpf: Ebpf,
    role: Role,
    path: PathBuf,
    counters: Mapped<Counters>,
}

impl Object {
    /// Loads a role's object from `dir`: creates its maps and hands its own program to the kernel.
    pub fn load(dir: &Path, role: Role, sizes: &Sizes) -> Result<Object> {
        Self::load_file(dir, role, sizes, None)
    }

    /// Loads a role's object for a node. The maps are those that an earlier process pinned in
    /// `pins`, with their contents, or new ones, which are pinned there.
    /// [`crate::pins::Pins::claim`] tells whether the pinned maps are this node's.
    pub fn load_kept(dir: &Path, role: Role, sizes: &Sizes, pins: &Path) -> Result<Object> {
        Self::load_file(&dir.join("kept"), role, sizes, Some(pins))
    }

    fn load_file(dir: &Path, role: Role, sizes: &Sizes, pins: Option<&Path>) -> Result<Object> {
        let path = dir.join(format!("{}.bpf.o", role.name()));
        let mut loader = EbpfLoader::new();
        // A program that the kernel refuses is verified once more with a log. By default that log
        // has all steps and up to 16 MiB.
        loader.verifier_log_level(VerifierLogLevel::STATS);
        if let Some(pins) = pins {
            loader.map_pin_path(pins);
        }
        let ring_names: Vec<String> = (0..MAX_RINGS).map(|ring| format!("ring{ring}")).collect();
        match role {
            Role::Leader | Role::Sequencer => {
                loader.set_max_entries("leaders", sizes.groups);
                loader.set_max_entries("partitions", sizes.partitions);
            }
            Role::Acceptor => {
                loader.set_max_entries("members", sizes.groups);
                loader.set_max_entries("partitions", sizes.partitions);
                loader.set_max_entries("slots", sizes.slots);
                loader.set_max_entries("long_values", sizes.slots);
            }
            Role::Learner | Role::Receiver => {
                match role {
                    Role::Learner => loader.set_max_entries("configurations", sizes.groups),
                    _ => loader.set_max_entries("listening", sizes.partitions),
                };
                loader.set_max_entries("partitions", sizes.partitions);
                loader.set_max_entries("slots", sizes.slots);
                for (ring, name) in ring_names.iter().enumerate() {
                    let used = (ring as u32) < sizes.rings;
                    loader.set_max_entries(name, if used { sizes.ring_bytes } else { 4096 });
                }
            }
            Role::Forwarder => {}
        }
        let ebpf = loader
            .load_file(&path)
            .map_err(|error| format!("{}: {}", path.display(), whole(&error)))?;
        let counters = map_memory(&ebpf, "counters", 0, Some(possible_cpus()), false)?;
        let mut object = Object {
            ebpf,
            role,
            path,
            counters,
        };
        object.loaded(role.name())?;
        Ok(object)
    }

    /// Returns the role that the object is for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the loaded maps, to pin them and to fill them.
    pub fn ebpf(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// Returns one of the object's programs, and loads it into the kernel at the first call.
    pub fn loaded(&mut self, name: &str) -> Result<&mut Program> {
        let program = self.ebpf.program_mut(name);
        let program = program.ok_or_else(|| format!("the object has no program {name}"))?;
        if program.fd().is_err() {
            verify(program)
                .map_err(|error| format!("{} {name}: {}", self.path.display(), whole(&error)))?;
        }
        Ok(program)
    }

    /// Returns an XDP program, to attach it.
    pub fn xdp(&mut self, name: &str) -> Result<&mut Xdp> {
        self.loaded(name)?.try_into().map_err(|e| whole(&e))
    }

    /// Returns an XDP program's descriptor.
    pub fn program(&mut self, name: &str) -> Result<ProgramFd> {
        descriptor(self.xdp(name)?)
    }

    /// Returns the descriptor of the role's own program, which is loaded with the object.
    pub fn own_program(&self) -> Result<ProgramFd> {
        let program = self.ebpf.program(self.role.name()).ok_or("no program")?;
        descriptor(program.try_into().map_err(|e| whole(&e))?)
    }

    /// Pins the role's program, in the place of what is pinned there.
    pub(crate) fn pin_program(&mut self, path: &Path) -> Result<()> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let program = self.loaded(self.role.name())?;
        if path.exists() {
            std::fs::remove_file(path).map_err(|e| failed(e.to_string()))?;
        }
        program.pin(path).map_err(|e| failed(whole(&e)))
    }

    /// Makes the object call this program from `place` of one of its arrays of programs.
    pub fn call(&mut self, map: &str, place: u32, program: &ProgramFd) -> Result<()> {
        let found = self.ebpf.map_mut(map);
        let found = found.ok_or_else(|| format!("no map {map}"))?;
        let mut programs: ProgramArray<_> = found.try_into().map_err(|e| whole(&e))?;
        programs
            .set(place, program, 0)
            .map_err(|e| format!("map {map}: {}", whole(&e)))
    }

    /// Returns the memory of one of its array maps, all entries.
    pub fn memory<T: Shared>(&self, name: &str) -> Result<Mapped<T>> {
        map_memory(&self.ebpf, name, 0, None, true)
    }

    /// Returns a ring of a learner, or a receiver, and its size in bytes.
    pub(crate) fn ring(&self, ring: usize) -> Result<(BorrowedFd<'_>, usize)> {
        let map = self.ebpf.map(&format!("ring{ring}")).and_then(data);
        let map = map.ok_or_else(|| format!("no ring {ring}"))?;
        let info = map.info().map_err(|error| whole(&error))?;
        Ok((map.fd().as_fd(), info.max_entries() as usize))
    }

    /// Returns the memory of one of its array maps as words, whatever its entries are; to be read.
    pub fn words(&self, name: &str) -> Result<Mapped<u64>> {
        let map = self.ebpf.map(name).and_then(data);
        let map = map.ok_or_else(|| format!("no map {name}"))?;
        let info = map.info().map_err(|error| whole(&error))?;
        // The kernel lays entries out in whole words.
        let words = info.value_size().div_ceil(8) as usize * info.max_entries() as usize;
        Mapped::new(map.fd(), 0, words, false).map_err(|error| format!("map {name}: {error}"))
    }

    /// Says where this node stands.
    pub fn set_device(&mut self, device: &Device) -> Result<()> {
        let map = self.ebpf.map_mut("device").ok_or("no map device")?;
        let mut map: aya::maps::Array<_, Device> = map.try_into().map_err(|e| whole(&e))?;
        let before = map.get(&0, 0).map_err(|error| whole(&error))?;
        let device = Device {
            // How multicast leaves is said elsewhere.
            flags: (before.flags & OF_MULTICAST) | device.flags,
            only_port: before.only_port,
            ..*device
        };
        map.set(0, device, 0).map_err(|error| whole(&error))
    }

    /// Returns where this node stands, as it was said.
    pub(crate) fn device(&self) -> Result<Device> {
        let map = self.ebpf.map("device").ok_or("no map device")?;
        let map: aya::maps::Array<_, Device> = map.try_into().map_err(|e| whole(&e))?;
        map.get(&0, 0).map_err(|error| whole(&error))
    }

    /// Says where nodes are; all others are nowhere.
    pub fn set_nodes(&mut self, nodes: &[(NodeId, IpAddr)]) -> Result<()> {
        let memory = self.memory::<NodeAddress>("nodes")?;
        let mut all = vec![NodeAddress::default(); memory.len()];
        for (node, address) in nodes {
            let at = &mut all[usize::from(*node)];
            match address {
                IpAddr::V4(v4) => at.ip4 = v4.octets(),
                IpAddr::V6(v6) => at.ip6 = v6.octets(),
            }
        }
        for (node, address) in all.into_iter().enumerate() {
            // Programs may run.
            if memory.get(node) != address {
                memory.set(node, address);
            }
        }
        Ok(())
    }

    /// Says where clients may be: the first address of each network, and how many bits all of its
    /// addresses begin with.
    pub fn set_askers(&mut self, networks: &[(IpAddr, u8)]) -> Result<()> {
        let map = self.ebpf.map_mut("askers").ok_or("no map askers")?;
        let mut map: LpmTrie<_, [u8; 16], u32> = map.try_into().map_err(|e| whole(&e))?;
        let key = |(address, bits): &(IpAddr, u8)| match address {
            IpAddr::V4(v4) => (96 + u32::from(*bits), v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => (u32::from(*bits), v6.octets()),
        };
        let wanted: BTreeSet<_> = networks.iter().map(key).collect();
        let there: Result<Vec<_>> = map.keys().map(|key| key.map_err(|e| whole(&e))).collect();
        for (bits, address) in &wanted {
            let key = Key::new(*bits, *address);
            map.insert(&key, 1, 0).map_err(|e| whole(&e))?;
        }
        for key in there? {
            if !wanted.contains(&(key.prefix_len(), key.data())) {
                map.remove(&key).map_err(|e| whole(&e))?;
            }
        }
        Ok(())
    }

    /// Says what a group is to this node.
    pub fn set_group(&mut self, id: u16, group: &Group) -> Result<()> {
        let groups = self.memory::<Group>("groups")?;
        if groups.get(id.into()) == *group {
            return Ok(());
        }
        // Programs must not see half of it.
        let closed = Group {
            partitions: 0,
            ..*group
        };
        groups.set(id.into(), closed);
        fence(SeqCst);
        groups.set(id.into(), *group);
        Ok(())
    }

    /// Writes an entry of a hash map.
    pub fn insert<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &str,
        key: &K,
        value: &V,
    ) -> Result<()> {
        let map = self.ebpf.map_mut(name);
        let map = map.ok_or_else(|| format!("no map {name}"))?;
        let mut map: aya::maps::HashMap<_, K, V> = map.try_into().map_err(|e| whole(&e))?;
        map.insert(key, value, 0).map_err(|error| whole(&error))
    }

    /// Returns what was counted under a verdict, on all CPUs.
    pub fn counter(&self, which: usize) -> u64 {
        (0..self.counters.len())
            .map(|cpu| self.counters.get(cpu).of[which])
            .sum()
    }

    /// Returns how many CPUs count.
    pub fn cpus(&self) -> usize {
        self.counters.len()
    }

    /// Returns all counters of one CPU.
    pub fn counters_of(&self, cpu: usize) -> Counters {
        self.counters.get(cpu)
    }
}

fn descriptor(program: &Xdp) -> Result<ProgramFd> {
    let fd = program.fd().map_err(|error| whole(&error))?;
    fd.try_clone().map_err(|error| whole(&error))
}

/// Hands a program to the kernel, whose verifier gives up when a signal comes, also one that stops
/// this process for a while.
pub(crate) fn verify(program: &mut Program) -> std::result::Result<(), ProgramError> {
    let mut tries = 0;
    loop {
        let verified = match &mut *program {
            Program::SchedClassifier(program) => program.load(),
            Program::SocketFilter(program) => program.load(),
            program => <&mut Xdp>::try_from(program).and_then(Xdp::load),
        };
        match verified {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == io::ErrorKind::WouldBlock && tries < MAX_INTERRUPTIONS =>
            {
                tries += 1;
            }
            verified => return verified,
        }
    }
}

/// After this many interruptions in a row the call is given up, because they are no accident.
const MAX_INTERRUPTIONS: u32 = 1000;

/// Flags of a device that say how multicast leaves.
const OF_MULTICAST: u16 = DEVICE_CLONES | DEVICE_FEW_COPIES | DEVICE_WITHIN;

/// Rings of a learner's object, or a receiver's.
pub const MAX_RINGS: usize = 16;

/// Returns the text of an error with all its causes. A text that two causes in a row share appears
/// once.
pub fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// Returns the data of any kind of map.
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data) | Map::HashMap(data) | Map::RingBuf(data) | Map::DevMapHash(data) => {
            Some(data)
        }
        _ => None,
    }
}

pub(crate) fn map_memory<T: Shared>(
    ebpf: &Ebpf,
    name: &str,
    offset: usize,
    entries: Option<usize>,
    write: bool,
) -> Result<Mapped<T>> {
    let map = ebpf.map(name).and_then(data);
    let map = map.ok_or_else(|| format!("no map {name}"))?;
    let info = map.info().map_err(|error| whole(&error))?;
    if info.value_size() as usize != size_of::<T>() {
        return Err(format!(
            "map {name}: the program's entries have {} bytes, here they have {}",
            info.value_size(),
            size_of::<T>()
        ));
    }
    let all = info.max_entries() as usize;
    let entries = entries.unwrap_or(all).min(all);
    Mapped::new(map.fd(), offset, entries, write).map_err(|e| format!("map {name}: {e}"))
}
