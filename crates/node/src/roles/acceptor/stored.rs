//! An acceptor with its files and without its sockets, for tests that damage the files.

use std::path::Path;

use control::Message;
use paxos::{Acceptor, Packet};

use super::AcceptorRole;
use crate::Error;
use crate::cluster_file::{self, ClusterFile};
use crate::counters::MessageCounters;
use crate::plane::SendBatch;
use crate::roles::outbox::{AddressedOutbox, Directory};
use crate::roles::sockets::Role;

/// `acceptor-1` of the example's cluster, with another `storage` and small rings.
pub struct Stored {
    cluster: ClusterFile,
    role: AcceptorRole,
}

/// The example's cluster with its data in `directory`.
pub fn cluster(directory: &Path, storage: &str) -> ClusterFile {
    let text = include_str!("../../../../../examples/cluster.toml")
        .replacen(
            "storage = \"volatile\"",
            &format!("storage = {storage:?}"),
            1,
        )
        .replacen("slots = 65536", "slots = 64", 1);
    let file = directory.join("cluster.toml");
    cluster_file::parse(&text, &file.display().to_string()).expect("the example")
}

impl Stored {
    /// Starts it on what is in its directory.
    pub fn open(cluster: &ClusterFile) -> Result<Stored, Error> {
        let node = cluster.node("acceptor-1").expect("the example's acceptor");
        Ok(Stored {
            cluster: cluster.clone(),
            role: AcceptorRole::open(cluster, node)?,
        })
    }

    /// A packet, stored before it returns.
    pub fn take(&mut self, datagram: &[u8]) {
        let packet = Packet::parse(datagram).expect("well-formed");
        let node = self.cluster.node("acceptor-1").expect("its own");
        let mut out = AddressedOutbox {
            directory: &Directory::new(&self.cluster, node, 0),
            sender: None,
            batch: &mut SendBatch::new(),
            sent: &mut MessageCounters::default(),
        };
        // A refusal is part of what is tried.
        let _ = self.role.step(0, &packet, datagram, &mut out);
        self.role.commit().expect("there is room");
    }

    /// An order of the controller.
    pub fn order(&mut self, order: &Message) {
        self.role.order(order).expect("there is room");
    }

    /// Its memory.
    pub fn acceptor(&self) -> &Acceptor {
        &self.role.acceptors[0]
    }

    /// An orderly stop.
    pub fn stop(mut self) {
        self.role.stop().expect("there is room");
    }
}
