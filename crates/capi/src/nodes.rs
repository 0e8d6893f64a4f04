// SPDX-License-Identifier: Apache-2.0
//! Runs the nodes of a cluster that aren't replicas as threads of this process, for tests of
//! programs.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

use keys::KeyFile;
use wirepaxos::cluster_file::{ApplicationKind, Auth, Draft};
use wirepaxos::{ClusterFile, Embedded};

use crate::{answer, text};

/// All nodes of a cluster but its replicas, as threads of this process. Tests start a `paxos_ctx`
/// for each replica beside them, and then have a whole cluster in one process.
#[allow(non_camel_case_types)] // C's names
pub struct paxos_nodes {
    file: PathBuf,
    running: Option<Embedded>,
    error: CString,
}

/// Prepares the nodes of a cluster. `cluster_file` is the path of the cluster file, which needn't
/// exist yet. Returns NULL if memory is short or the argument is no text.
///
/// # Safety
/// `cluster_file` must be a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_nodes_new(cluster_file: *const c_char) -> *mut paxos_nodes {
    // SAFETY: the caller vouches for the string.
    let Some(file) = (unsafe { text(cluster_file) }) else {
        return ptr::null_mut();
    };
    Box::into_raw(Box::new(paxos_nodes {
        file: PathBuf::from(file),
        running: None,
        error: CString::default(),
    }))
}

/// Writes the cluster file of a new cluster, and its key beside it. The cluster has a random number
/// and a random loopback address, so that it is alone at its ports. It has a controller, two
/// leaders, three acceptors, and `replica-1`, `replica-2` and `replica-3` of a group with
/// `application = "own"`. Packets are signed, and the data is in the directory `data` beside the
/// file. Returns 0, or -1: see `paxos_nodes_error`. A file that exists is an error, and stays as it
/// is.
///
/// # Safety
/// `nodes` comes from `paxos_nodes_new`. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_nodes_write_file(
    nodes: *mut paxos_nodes,
    partitions: c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    let nodes = unsafe { &mut *nodes };
    let partitions = partitions.clamp(0, u16::MAX.into()) as u16;
    let result = write_file(&nodes.file, partitions);
    nodes.note(result)
}

/// Starts all nodes of the cluster file but its replicas, and waits until they listen. Returns 0,
/// or -1 if one can't start: see `paxos_nodes_error`. Then none of them runs.
///
/// # Safety
/// `nodes` comes from `paxos_nodes_new`. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_nodes_start(nodes: *mut paxos_nodes) -> c_int {
    // SAFETY: the caller vouches for it.
    let nodes = unsafe { &mut *nodes };
    let result = nodes.start();
    nodes.note(result)
}

/// Returns what the last call that returned -1 had to say; valid until the next call.
///
/// # Safety
/// `nodes` comes from `paxos_nodes_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_nodes_error(nodes: *mut paxos_nodes) -> *const c_char {
    // SAFETY: the caller vouches for it.
    unsafe { (*nodes).error.as_ptr() }
}

/// Stops the nodes in good order, and frees them. Returns 0, or -1 if one had failed; why is on
/// standard error. Free the contexts of replicas and clients first.
///
/// # Safety
/// `nodes` comes from `paxos_nodes_new` and is not used again; or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_nodes_free(nodes: *mut paxos_nodes) -> c_int {
    if nodes.is_null() {
        return 0;
    }
    // SAFETY: the box comes from `paxos_nodes_new`, and the caller doesn't use it again.
    let nodes = unsafe { Box::from_raw(nodes) };
    // The log on standard error already has the error.
    answer(nodes.running.is_none_or(|running| running.stop().is_ok()))
}

impl paxos_nodes {
    fn start(&mut self) -> Result<(), String> {
        if self.running.is_some() {
            return Err("the nodes are started already".into());
        }
        let cluster = ClusterFile::load(&self.file).map_err(|e| e.to_string())?;
        // A C program has no other way to hear what its nodes say.
        wirepaxos::log_to_stderr().map_err(|e| e.to_string())?;
        self.running = Some(Embedded::start_others(&cluster).map_err(|e| e.to_string())?);
        Ok(())
    }

    fn note(&mut self, result: Result<(), String>) -> c_int {
        let Err(text) = result else { return 0 };
        self.error = CString::new(text).unwrap_or_default();
        -1
    }
}

fn write_file(file: &Path, partitions: u16) -> Result<(), String> {
    if file.exists() {
        return Err(format!("{} exists: name a new file", file.display()));
    }
    let draft = draft(partitions).map_err(|e| e.to_string())?;
    let cluster = draft.write(file).map_err(|e| e.to_string())?;
    let key = KeyFile::new(draft.cluster).and_then(|key| key.create(&cluster.keys));
    key.map_err(|e| e.to_string())
}

fn draft(partitions: u16) -> Result<Draft, wirepaxos::Error> {
    let mut draft = Draft::on_loopback("data", ApplicationKind::Own)?;
    draft.auth = Some(Auth::SipHash);
    draft.groups[0].partitions = Some(partitions);
    // The nodes get addresses anew, since replicas take a port for each partition.
    let host = draft.nodes[0].address.ip();
    for node in std::mem::take(&mut draft.nodes) {
        draft.add_node(node.role, host);
    }
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::net::UdpSocket;

    struct Nodes {
        directory: PathBuf,
        nodes: *mut paxos_nodes,
    }

    impl Nodes {
        /// Prepares nodes whose cluster file is in a directory of its own.
        fn new(test: &str) -> Nodes {
            let name = format!("wirepaxos-capi-{test}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let file = CString::new(directory.join("cluster.toml").to_str().unwrap()).unwrap();
            // SAFETY: it is a string that ends with a zero.
            let nodes = unsafe { paxos_nodes_new(file.as_ptr()) };
            Nodes { directory, nodes }
        }

        fn write_file(&self, partitions: c_int) -> c_int {
            // SAFETY: the nodes were made above, and aren't freed yet.
            unsafe { paxos_nodes_write_file(self.nodes, partitions) }
        }

        fn start(&self) -> c_int {
            // SAFETY: as above.
            unsafe { paxos_nodes_start(self.nodes) }
        }

        fn error(&self) -> String {
            // SAFETY: as above.
            let error = unsafe { CStr::from_ptr(paxos_nodes_error(self.nodes)) };
            error.to_string_lossy().into_owned()
        }

        fn cluster(&self) -> ClusterFile {
            ClusterFile::load(&self.directory.join("cluster.toml")).unwrap()
        }
    }

    impl Drop for Nodes {
        fn drop(&mut self) {
            // SAFETY: the nodes are freed once.
            unsafe { paxos_nodes_free(self.nodes) };
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }

    #[test]
    fn a_cluster_file_is_written_once_and_its_nodes_listen() {
        let nodes = Nodes::new("nodes");
        assert_eq!(nodes.start(), -1, "there is no file yet");
        assert!(nodes.error().contains("can't be read"), "{}", nodes.error());
        assert_eq!(nodes.write_file(65), -1);
        assert!(nodes.error().contains("1 to 64"), "{}", nodes.error());
        assert_eq!(nodes.write_file(3), 0, "{}", nodes.error());
        let cluster = nodes.cluster();
        assert_eq!(cluster.groups[0].partitions, 3);
        assert_eq!(cluster.auth, Auth::SipHash);
        assert_eq!(nodes.write_file(3), -1);
        assert!(nodes.error().contains("name a new file"));
        assert_eq!(nodes.cluster().cluster, cluster.cluster);
        assert_eq!(nodes.start(), 0, "{}", nodes.error());
        assert!(UdpSocket::bind(cluster.node("leader-2").unwrap().address).is_err());
        assert!(UdpSocket::bind(cluster.node("replica-1").unwrap().address).is_ok());
        assert_eq!(nodes.start(), -1, "they run");
    }

    #[test]
    fn if_one_node_cannot_start_none_runs() {
        let nodes = Nodes::new("taken");
        assert_eq!(nodes.write_file(1), 0, "{}", nodes.error());
        let cluster = nodes.cluster();
        let taken = UdpSocket::bind(cluster.node("acceptor-3").unwrap().address).unwrap();
        assert_eq!(nodes.start(), -1);
        let why = nodes.error();
        assert!(why.contains("another process has the port"), "{why}");
        drop(taken);
        assert_eq!(nodes.start(), 0, "{}", nodes.error());
    }
}
