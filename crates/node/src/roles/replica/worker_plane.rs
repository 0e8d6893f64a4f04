// SPDX-License-Identifier: Apache-2.0
//! The ways by which a worker receives and sends packets: a socket, or a DPDK port, which it may
//! share with other nodes.

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

/// The sources of packets and decisions, opened before the worker itself.
pub struct WorkerIo {
    pub plane: WorkerPlane,
    /// The decisions of a learner in the kernel, if there is one.
    pub decisions: Option<Decisions>,
}

/// The plane of a worker.
pub enum WorkerPlane {
    Socket {
        socket: UdpPlane,
        /// Sends through the socket of the thread's first worker, where the answers are handed on.
        out: UdpPlane,
        inbox: Box<RecvBatch>,
    },
    Port(Box<DpdkPlane>),
}

impl WorkerPlane {
    /// Opens the plane at the address of a partition.
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

    /// Returns a descriptor that is readable when packets have come, or `None` if the plane must be
    /// polled all the time.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            WorkerPlane::Socket { socket, .. } => Some(socket.as_fd()),
            WorkerPlane::Port(_) => None,
        }
    }

    /// Returns another plane that sends through this socket, if there is a socket.
    pub fn way_out(&self) -> Result<Option<UdpPlane>, Error> {
        match self {
            WorkerPlane::Socket { socket, .. } => Ok(Some(socket.another()?)),
            WorkerPlane::Port(_) => Ok(None),
        }
    }

    /// Makes the worker send through another worker's socket.
    pub fn send_by(&mut self, other: UdpPlane) {
        if let WorkerPlane::Socket { out, .. } = self {
            *out = other;
        }
    }

    /// Receives the packets that are there, without waiting. Returns false if there are none.
    pub fn receive(&mut self) -> io::Result<bool> {
        match self {
            WorkerPlane::Socket { socket, inbox, .. } => socket.receive(inbox),
            WorkerPlane::Port(port) => port.receive(),
        }
    }

    /// Returns the packets of the last receive, and the sending side.
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

    /// Sets the keys with which arriving packets must be signed. The worker checks each packet; the
    /// plane may check it before.
    pub fn use_keys(&mut self, keyring: &Keyring) {
        if let WorkerPlane::Socket { socket, .. } = self {
            socket.use_keys(keyring);
        }
    }

    /// Returns how many packets the plane has dropped, by reason.
    pub fn dropped(&self) -> ReasonCounters {
        match self {
            WorkerPlane::Socket { socket, .. } => socket.dropped(),
            WorkerPlane::Port(port) => port.dropped(),
        }
    }

    /// Returns whether there may be more packets than the last receive returned.
    pub fn may_have_more(&self) -> bool {
        match self {
            WorkerPlane::Socket { inbox, .. } => inbox.is_full(),
            WorkerPlane::Port(port) => port.may_have_more(),
        }
    }

    /// Returns the counters of sends.
    pub fn counters(&self) -> SendCounters {
        match self {
            WorkerPlane::Socket { out, .. } => out.counters(),
            WorkerPlane::Port(port) => port.counters(),
        }
    }
}

/// The sending side of a plane.
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
