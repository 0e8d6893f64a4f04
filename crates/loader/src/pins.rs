// SPDX-License-Identifier: Apache-2.0
//! A directory of a BPF file system, in which a node's maps and programs outlive its process.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use crate::attach::remove_link;
use crate::object::Result;
use crate::switch::take_off;

/// Used where nothing else is said. Not /sys/fs/bpf: `ip netns exec` mounts a fresh /sys.
pub const DEFAULT_MOUNT: &str = "/run/wirepaxos/bpf";

/// The file system's magic number, from linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// The directory with one node's pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins(PathBuf);

impl Pins {
    /// Returns the directory of a node of a cluster, made if it isn't there, in the BPF file system
    /// at `mount`, which is mounted if it isn't.
    pub fn of_node(mount: &Path, cluster: u32, node: &str) -> Result<Pins> {
        mount_bpffs(mount)?;
        let directory = directory_of(mount, cluster, node);
        fs::create_dir_all(&directory).map_err(|e| {
            format!(
                "can't make {}: {e}; the XDP plane needs root",
                directory.display()
            )
        })?;
        Ok(Pins(directory))
    }

    /// Returns whether a node has left programs or memory there.
    pub fn are_left(mount: &Path, cluster: u32, node: &str) -> bool {
        let mut entries = fs::read_dir(directory_of(mount, cluster, node));
        entries
            .as_mut()
            .is_ok_and(|entries| entries.next().is_some())
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns whether a program is at an interface or a switch.
    pub fn is_attached(&self) -> bool {
        fs::read_dir(&self.0).is_ok_and(|entries| entries.flatten().any(|e| is_link(&e.path())))
    }

    /// Removes everything: programs leave their interfaces, and their memory is lost.
    pub fn remove(&self) -> Result<()> {
        let failed = |e: io::Error| format!("can't remove {}: {e}", self.0.display());
        let entries = fs::read_dir(&self.0).map_err(failed)?;
        let mut paths: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        // Links first: no program meets a memory that is going.
        paths.sort_by_key(|path| !is_link(path));
        for path in paths {
            take_off(&path)?;
            remove_link(&path).map_err(failed)?;
        }
        fs::remove_dir(&self.0).map_err(failed)
    }

    /// Takes the programs off their interfaces and switches; their memory stays.
    pub fn detach(&self) -> Result<()> {
        let failed = |e: io::Error| format!("can't detach by {}: {e}", self.0.display());
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if is_link(&path) {
                take_off(&path)?;
                remove_link(&path).map_err(failed)?;
            }
        }
        Ok(())
    }
}

fn directory_of(mount: &Path, cluster: u32, node: &str) -> PathBuf {
    mount.join(format!("{cluster:08x}-{node}"))
}

fn is_link(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let name = name.as_bytes();
    name.starts_with(b"link-") || name.starts_with(b"clones-")
}

/// Mounts a BPF file system at `path`, unless there is one.
pub fn mount_bpffs(path: &Path) -> Result<()> {
    let failed = |what: &str| {
        let what = format!("{}: {what}", path.display());
        move |e: io::Error| format!("{what}: {e}; the XDP plane needs root")
    };
    fs::create_dir_all(path).map_err(failed("can't make it"))?;
    let target = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a zeroed statfs is valid, and the path ends with a zero.
    let (found, kind) = unsafe {
        let mut of: libc::statfs = std::mem::zeroed();
        (libc::statfs(target.as_ptr(), &mut of), of.f_type)
    };
    #[allow(clippy::unnecessary_cast)] // its type differs between architectures
    if found == 0 && kind as i64 == BPF_FS_MAGIC {
        return Ok(());
    }
    // SAFETY: strings that end with a zero; no data.
    let mounted = unsafe {
        libc::mount(
            c"bpf".as_ptr(),
            target.as_ptr(),
            c"bpf".as_ptr(),
            0,
            ptr::null(),
        )
    };
    match mounted {
        0 => Ok(()),
        _ => Err(failed("can't mount a BPF file system there")(
            io::Error::last_os_error(),
        )),
    }
}
