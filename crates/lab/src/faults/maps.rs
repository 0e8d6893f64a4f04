// SPDX-License-Identifier: Apache-2.0
//! The fault injector's program and maps, pinned in the lab's own bpffs.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap, Map, MapData, PerCpuHashMap, PerCpuValues};
use aya::programs::Xdp;
use aya::util::nr_cpus;
use loader::object::whole;

use super::layout::{Handled, Wire, WireState};
use crate::{Error, Result};

/// The environment variable with the directory that is searched first for the compiled objects.
const DIR_VARIABLE: &str = "WIREPAXOS_BPF_DIR";
const OBJECT: &str = "fault.bpf.o";
const MAPS: [&str; 3] = ["wires", "states", "handled"];

/// The maps, indexed by the interface at which frames arrive.
pub(super) struct Maps {
    wires: HashMap<MapData, u32, Wire>,
    states: PerCpuHashMap<MapData, u32, WireState>,
    handled: HashMap<MapData, u32, Handled>,
}

/// Returns the path where the program is pinned in a bpffs.
pub(super) fn program(bpffs: &Path) -> PathBuf {
    bpffs.join("fault")
}

/// Loads and pins the program and its maps, unless they are there already.
pub(super) fn load(bpffs: &Path) -> Result<()> {
    // The program is pinned last, so if it is there, the maps are, too.
    if program(bpffs).exists() {
        return Ok(());
    }
    let object = object()?;
    loader::pins::mount_bpffs(bpffs).map_err(Error::new)?;
    let cannot = |e: &dyn std::error::Error| {
        Error::new(format!(
            "the fault injector, {}: {}; it needs a kernel of 6.1 or later with BPF and XDP, and \
             CAP_BPF",
            object.display(),
            whole(e)
        ))
    };
    let mut ebpf = aya::EbpfLoader::new()
        .load_file(&object)
        .map_err(|e| cannot(&e))?;
    for name in MAPS {
        let map = ebpf.map(name);
        let map = map.ok_or_else(|| Error::new(format!("{}: no map {name}", object.display())))?;
        let path = bpffs.join(name);
        // An interrupted attempt may have left it there.
        let _ = fs::remove_file(&path);
        map.pin(&path).map_err(|e| cannot(&e))?;
    }
    let program: &mut Xdp = ebpf
        .program_mut("fault")
        .ok_or_else(|| Error::new(format!("{}: no program fault", object.display())))?
        .try_into()
        .map_err(|e: aya::programs::ProgramError| cannot(&e))?;
    program.load().map_err(|e| cannot(&e))?;
    program.pin(self::program(bpffs)).map_err(|e| cannot(&e))
}

/// Returns the path of the compiled object: in `WIREPAXOS_BPF_DIR`, or in `bpf` beside or above the
/// running program, or in `target/bpf` of the source tree.
fn object() -> Result<PathBuf> {
    let candidates = match std::env::var_os(DIR_VARIABLE) {
        Some(given) => vec![PathBuf::from(given)],
        None => {
            let binary = std::env::current_exe().map_err(Error::at("this program"))?;
            let above = binary.ancestors().skip(1).map(|dir| dir.join("bpf"));
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bpf");
            above.chain([source]).collect()
        }
    };
    let mut objects = candidates.iter().map(|dir| dir.join(OBJECT));
    objects.find(|path| path.is_file()).ok_or_else(|| {
        Error::new(format!(
            "faults need the compiled program {OBJECT}: build it with `make -C programs/xdp` \
             (packages make clang libbpf-dev), or say in {DIR_VARIABLE} in which directory it is"
        ))
    })
}

impl Maps {
    /// Opens the pinned maps, or returns `None` if no program was loaded.
    pub fn open(bpffs: &Path) -> Result<Option<Maps>> {
        if !program(bpffs).exists() {
            return Ok(None);
        }
        let pinned = |name: &str| {
            MapData::from_pin(bpffs.join(name))
                .map_err(|e| Error::new(format!("map {name}: {}", whole(&e))))
        };
        Ok(Some(Maps {
            wires: HashMap::try_from(Map::HashMap(pinned("wires")?)).map_err(of_map)?,
            states: PerCpuHashMap::try_from(Map::PerCpuHashMap(pinned("states")?))
                .map_err(of_map)?,
            handled: HashMap::try_from(Map::HashMap(pinned("handled")?)).map_err(of_map)?,
        }))
    }

    /// Returns the faults for frames that arrive at this interface.
    pub fn wire(&self, index: u32) -> Option<Wire> {
        self.wires.get(&index, 0).ok()
    }

    /// Changes these faults from the next frame on. The program and the detour notice the new
    /// generation, and reset their counters.
    pub fn set_wire(&mut self, index: u32, wire: &Wire) -> Result<()> {
        let cpus = nr_cpus().map_err(|(what, e)| Error::new(format!("{what}: {e}")))?;
        let zero = PerCpuValues::try_from(vec![WireState::default(); cpus])
            .map_err(Error::at("map states"))?;
        self.states.insert(index, zero, 0).map_err(of_map)?;
        self.wires.insert(index, wire, 0).map_err(of_map)
    }

    /// Returns the program's counters for this interface, one for each CPU that has seen frames.
    pub fn states(&self, index: u32, generation: u32) -> Vec<WireState> {
        let Ok(states) = self.states.get(&index, 0) else {
            return Vec::new();
        };
        let current = states.iter().filter(|s| s.generation == generation);
        current.copied().collect()
    }

    /// Returns the detour's counters for this interface.
    pub fn handled(&self, index: u32, generation: u32) -> Handled {
        match self.handled.get(&index, 0) {
            Ok(handled) if handled.generation == generation => handled,
            _ => Handled::default(),
        }
    }

    /// Stores the detour's counters; the detour itself calls this.
    pub fn set_handled(&mut self, all: &BTreeMap<u32, Handled>) -> Result<()> {
        all.iter()
            .try_for_each(|(index, handled)| self.handled.insert(index, handled, 0))
            .map_err(of_map)
    }
}

fn of_map(e: aya::maps::MapError) -> Error {
    Error::new(format!("the fault injector's maps: {}", whole(&e)))
}

/// Unmounts the file system as often as it was mounted.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    while is_mounted(path)? {
        let target = c_path(path)?;
        // SAFETY: target is a string that ends with a zero.
        if unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) } != 0 {
            return Err(Error::at(format!("can't unmount {}", path.display()))(
                io::Error::last_os_error(),
            ));
        }
    }
    Ok(())
}

fn is_mounted(path: &Path) -> Result<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::at("/proc/self/mounts"))?;
    let mut places = mounts.lines().filter_map(|l| l.split(' ').nth(1));
    Ok(places.any(|place| Path::new(place) == path))
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(Error::at(path.display()))
}
