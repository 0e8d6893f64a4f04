// SPDX-License-Identifier: Apache-2.0
//! A node's socket, with the batch that it received last.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;
use serde_json::{Value, json};
use tracing::warn;

use super::{
    Arrival, DataPlane, PlaneOptions, RecvBatch, SendBatch, SendCounters, Sends, UdpPlane,
};
use crate::Error;
use crate::cluster_file::{Node, Role};
use crate::listen::cannot_listen;

pub(crate) struct Sockets {
    socket: UdpPlane,
    inbox: RecvBatch,
}

impl Sockets {
    /// Opens a socket at the node's address. A controller's hears which ports are closed.
    pub fn open(node: &Node) -> Result<Sockets, Error> {
        let mut socket = UdpPlane::bind(node.address, PlaneOptions::default())
            .map_err(|e| Error::new(cannot_listen(node.address, "UDP", "address", &e)))?;
        if node.role == Role::Controller {
            if let Err(why) = socket.hear_refusals() {
                warn!(
                    "can't hear of closed ports, so a dead process is found as late as a silent \
                    machine: {why}"
                );
            }
        }
        Ok(Sockets {
            socket,
            inbox: RecvBatch::new(),
        })
    }
}

impl Sends for UdpPlane {
    fn send(&mut self, batch: &mut SendBatch) {
        UdpPlane::send(self, batch);
    }
}

impl Sends for Sockets {
    fn send(&mut self, batch: &mut SendBatch) {
        self.socket.send(batch);
    }
}

impl DataPlane for Sockets {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn receive(&mut self) -> io::Result<bool> {
        self.socket.receive(&mut self.inbox)
    }

    fn refused(&mut self) -> Vec<SocketAddr> {
        self.socket.refused()
    }

    fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>> {
        self.inbox.iter()
    }

    fn may_have_more(&self) -> bool {
        self.inbox.is_full()
    }

    fn use_keys(&mut self, keyring: &Keyring) {
        self.socket.use_keys(keyring);
    }

    fn dropped(&self) -> ReasonCounters {
        self.socket.dropped()
    }

    fn counters(&self) -> SendCounters {
        self.socket.counters()
    }

    fn status(&self, warnings: &mut Vec<String>) -> Value {
        let refused = self.socket.counters().refused;
        if refused > 0 {
            warnings.push(format!(
                "the kernel refused {refused} datagrams: check routes and filters"
            ));
        }
        json!({
            "name": "udp",
            "udp_segment": self.socket.segments(),
            "udp_gro": self.socket.coalesces(),
            "tag_filter": self.socket.filters(),
        })
    }
}
