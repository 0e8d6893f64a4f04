// SPDX-License-Identifier: Apache-2.0
//! An acceptor with its files but without sockets, for tests that damage the files.

use std::net::Ipv4Addr;
use std::path::Path;

use control::Message;
use paxos::{Acceptor, Epoch, Header, Instance, MsgType, Packet, Round, Verdict};

use super::AcceptorRole;
use crate::Error;
use crate::cluster_file::{self, ClusterFile};
use crate::roles::links::Links;
use crate::roles::sockets::Role;

/// `acceptor-1` of the example's cluster, with another `storage` and small rings.
pub struct Stored {
    role: AcceptorRole,
    links: Links,
}

/// Returns the example's cluster with its data in `directory`.
pub fn cluster(directory: &Path, storage: &str) -> ClusterFile {
    let text = include_str!("../../../../../testdata/cluster.toml")
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
    /// Starts the acceptor with the files in its directory.
    pub fn open(cluster: &ClusterFile) -> Result<Stored, Error> {
        let node = cluster.node("acceptor-1").expect("the example's acceptor");
        let mut links = Links::open(cluster, node)?;
        let role = AcceptorRole::open(cluster, node, &mut links)?;
        Ok(Stored { role, links })
    }

    /// Handles a packet, and stores its changes before it returns. The packet may be refused.
    pub fn take(&mut self, datagram: &[u8]) {
        let _ = self.step(datagram);
    }

    /// Handles a packet like [`take`](Self::take), and returns the verdict.
    pub fn step(&mut self, datagram: &[u8]) -> Verdict {
        let packet = Packet::parse(datagram).expect("well-formed");
        let links = &mut self.links;
        let verdict = self.role.step(0, &packet, datagram, links);
        self.store();
        verdict.expect("no step fails")
    }

    /// Handles a proposal of epoch 1 like [`step`](Self::step).
    pub fn vote(&mut self, inst: Instance) -> Verdict {
        let header = Header {
            cluster: self.acceptor().deployment().cluster,
            inst,
            rnd: Round::base(1),
            client: 9,
            request: inst + 1,
            ..Header::new(MsgType::Phase2a)
        };
        self.step(&header.datagram(b"value"))
    }

    /// Handles an order of the controller.
    pub fn order(&mut self, order: &Message) {
        let from = (Ipv4Addr::LOCALHOST, 0).into();
        let done = self.role.message(order, from, &mut self.links);
        done.expect("there is room");
        self.store();
    }

    /// Stores all changes, as the process does before anything leaves.
    fn store(&mut self) {
        let links = &mut self.links;
        self.role.commit(links).expect("there is room");
        if links.begins_to_store() {
            self.role.store().expect("there is room");
            assert!(self.role.stored(true).expect("there is room"));
            links.has_stored();
        }
    }

    /// Gives the order that makes the memory a member of an epoch.
    pub fn enable(&mut self, epoch: Epoch) {
        let nonce = self.acceptor().nonce();
        self.order(&Message::EnableAcceptor {
            group: 0,
            epoch,
            nonce,
            trim: vec![0],
            end: vec![0],
            replicas: vec![31, 32, 33],
            g: 1,
        });
    }

    /// Gives the order that lets this start of the memory continue.
    pub fn resume(&mut self) {
        let (nonce, start) = (self.acceptor().nonce(), self.acceptor().start().number());
        self.order(&Message::ResumeAcceptor {
            group: 0,
            nonce,
            start,
        });
    }

    /// Answers a question of the controller.
    pub fn answer(&mut self, question: &Message) -> Option<Message> {
        let answer = self.role.answer(question, &mut self.links);
        self.store();
        answer.expect("there is room")
    }

    /// Returns the acceptor's memory.
    pub fn acceptor(&self) -> &Acceptor {
        &self.role.acceptors[0]
    }

    /// Stops the acceptor in good order.
    pub fn stop(mut self) {
        self.role.stop().expect("there is room");
    }
}
