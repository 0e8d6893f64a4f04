// SPDX-License-Identifier: Apache-2.0
//! How packets come to a worker, and leave it: by a socket, or by a port of DPDK, which it may share with other nodes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;

use super::kernel::Decisions;
use super::partition::Partition;
use crate::Error;
use crate::cluster_file::Plane;
use crate::listen::cannot_listen;
use crate::plane::{
    Arrival, DataPlane, DpdkPlane, PlaneOptions, PortOut, Ports, RecvBatch, SendBatch,
    SendCounters, Sends, UdpPlane,
};

/// What is opened for a worker before itself.
pub struct Ways {
    pub plane: WorkerPlane,
    /// Of a learner in the kernel.
    pub decisions: Option<Decisions>,
}

/// See the module.
pub enum WorkerPlane {
    Socket {
        socket: UdpPlane,
        /// The way out: by the socket of the thread's first worker, where answers are handed on.
        out: UdpPlane,
        inbox: Box<RecvBatch>,
    },
    Port(Box<DpdkPlane>),
}

impl WorkerPlane {
    /// At the address of a partition.
    pub fn open(partition: Partition<'_>, ports: Option<&Ports>) -> Result<WorkerPlane, Error> {
        let Partition {
            cluster, node, pid, ..
        } = partition;
        let address = node.partition_address(pid);
        if node.plane == Plane::Dpdk {
            let nowhere = || Error::new("there is nobody to look at the port all the time");
            let ports = ports.ok_or_else(nowhere)?;
            let port = DpdkPlane::open(cluster, node, address, ports)?;
            return Ok(WorkerPlane::Port(Box::new(port)));
        }
        let socket = UdpPlane::bind(address, PlaneOptions::default())
            .map_err(|e| Error::new(cannot_listen(address, "UDP", "address", &e)))?;
        Ok(WorkerPlane::Socket {
            out: socket.another()?,
            socket,
            inbox: Box::default(),
        })
    }

    /// Readable when something has come; nothing where it is to be looked at all the time.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            WorkerPlane::Socket { socket, .. } => Some(socket.as_fd()),
            WorkerPlane::Port(_) => None,
        }
    }

    /// Another way out by its socket, if it has one.
    pub fn way_out(&self) -> Result<Option<UdpPlane>, Error> {
        match self {
            WorkerPlane::Socket { socket, .. } => Ok(Some(socket.another()?)),
            WorkerPlane::Port(_) => Ok(None),
        }
    }

    /// From now on what it sends leaves by another one's socket.
    pub fn send_by(&mut self, other: UdpPlane) {
        if let WorkerPlane::Socket { out, .. } = self {
            *out = other;
        }
    }

    /// Takes what is there, without waiting. False if there is nothing.
    pub fn receive(&mut self) -> io::Result<bool> {
        match self {
            WorkerPlane::Socket { socket, inbox, .. } => socket.receive(inbox),
            WorkerPlane::Port(port) => port.receive(),
        }
    }

    /// What was received last, and the way out.
    pub fn split(&mut self) -> (impl Iterator<Item = Arrival<'_>>, Out<'_>) {
        let (by_socket, by_port, out) = match self {
            WorkerPlane::Socket { out, inbox, .. } => (Some(inbox.iter()), None, Out::Socket(out)),
            WorkerPlane::Port(port) => {
                let (arrivals, out) = port.split();
                (None, Some(arrivals), Out::Port(out))
            }
        };
        let by_socket = by_socket.into_iter().flatten();
        (by_socket.chain(by_port.into_iter().flatten()), out)
    }

    /// What arrives must be signed with these keys: the worker checks it, and the plane may before.
    pub fn use_keys(&mut self, keyring: &Keyring) {
        if let WorkerPlane::Socket { socket, .. } = self {
            socket.use_keys(keyring);
        }
    }

    /// What the plane has dropped.
    pub fn dropped(&self) -> ReasonCounters {
        match self {
            WorkerPlane::Socket { socket, .. } => socket.dropped(),
            WorkerPlane::Port(port) => port.dropped(),
        }
    }

    /// Whether more may be there than was received last.
    pub fn may_have_more(&self) -> bool {
        match self {
            WorkerPlane::Socket { inbox, .. } => inbox.is_full(),
            WorkerPlane::Port(port) => port.may_have_more(),
        }
    }

    /// What became of sends so far.
    pub fn counters(&self) -> SendCounters {
        match self {
            WorkerPlane::Socket { out, .. } => out.counters(),
            WorkerPlane::Port(port) => port.counters(),
        }
    }
}

/// A way out.
pub enum Out<'a> {
    Socket(&'a mut UdpPlane),
    Port(PortOut<'a>),
}

impl Sends for Out<'_> {
    fn send(&mut self, batch: &mut SendBatch) {
        match self {
            Out::Socket(socket) => Sends::send(*socket, batch),
            Out::Port(port) => port.send(batch),
        }
    }
}

impl Sends for WorkerPlane {
    fn send(&mut self, batch: &mut SendBatch) {
        match self {
            WorkerPlane::Socket { out, .. } => Sends::send(out, batch),
            WorkerPlane::Port(port) => port.send(batch),
        }
    }
}
