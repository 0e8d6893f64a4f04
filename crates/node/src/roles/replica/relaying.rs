// SPDX-License-Identifier: Apache-2.0
//! Connects the front end through a replica's DPDK port: its packets to the leader leave there, and
//! the leader's answers reach it there.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::control_loop::Turn;
use super::super::rotation::{Door, Polled};
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node};
use crate::host::Stop;
use crate::plane::{DpdkPlane, Relay, SendBatch};

/// The first of the UDP ports that have no fixed owner, from which systems choose temporary ports.
const FIRST_FREE: u16 = 49_152;

/// The front end's place at the port.
pub struct Relaying {
    port: DpdkPlane,
    relay: Relay,
    batch: SendBatch,
    stop: Arc<Stop>,
}

impl Relaying {
    /// Adds the front end to the rotation, at an address that none of the replica's partitions has.
    /// It stays until the stop.
    pub fn enter(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        door: &Door<'_>,
        relay: &Relay,
        stop: &Arc<Stop>,
    ) -> Result<(), Error> {
        let address = free_address(node, group.partitions);
        door.enter(Box::new(Relaying {
            port: DpdkPlane::open(cluster, node, address, door.ports)?,
            relay: relay.clone(),
            batch: SendBatch::new(),
            stop: stop.clone(),
        }))
    }
}

/// Returns an address of the node that none of its partitions has.
fn free_address(node: &Node, partitions: u16) -> SocketAddr {
    let is_free =
        |port: &u16| (0..partitions).all(|pid| node.partition_address(pid).port() != *port);
    let port = (FIRST_FREE..=u16::MAX).find(is_free);
    SocketAddr::new(node.address.ip(), port.expect("there are fewer partitions"))
}

impl Polled for Relaying {
    fn turn(&mut self, _: bool) -> Result<Turn, Error> {
        if self.stop.is_requested() {
            return Ok(Turn::Ended);
        }
        match self.relay.pass(&mut self.port, &mut self.batch)? {
            true => Ok(Turn::Busy),
            false => Ok(Turn::Idle),
        }
    }

    fn end(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}
