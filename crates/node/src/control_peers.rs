// SPDX-License-Identifier: Apache-2.0
//! Seals and opens envelopes according to the cluster file, which says who has which address, and
//! the key file, which says who has which key.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use control::{Envelope, Message, OUTSIDE, Sender, Turned, is_for_clients};
use keys::{Holder, KeyFile, NODES};
use paxos::NodeId;
use serde::ser::Error as _;

use crate::Error;
use crate::cluster_file::ClusterFile;
use crate::lock::lock;
use crate::signature::{self, Signer};
use crate::watched_keys::{SharedKeys, WatchedKeys};

/// The number of clients whose answers are signed with their own keys. If there are more, some must
/// ask again.
const MAX_CLIENTS: usize = 4_096;

/// No signed envelope is much shorter than this. So a forged one never gets an answer that is
/// longer than itself.
const MIN_SIGNED_LEN: usize = 140;

/// The knowledge that one end of the control plane has of the others.
#[derive(Clone, Debug)]
pub struct ControlPeers {
    cluster: u32,
    me: NodeId,
    controllers: Vec<SocketAddr>,
    nodes: Vec<(SocketAddr, NodeId)>,
    keys: SharedKeys,
    known: Arc<Mutex<Known>>,
}

/// Facts that were learnt from messages.
#[derive(Default, Debug)]
struct Known {
    /// The challenge that each node has sent [E-CHALLENGE], which the next message to it shows.
    challenges: BTreeMap<SocketAddr, u64>,
    /// The generation of the key with which each node has last signed, or claims to have signed.
    generations: BTreeMap<SocketAddr, u32>,
    /// The number of the client at each address.
    clients: BTreeMap<SocketAddr, u8>,
}

/// A message that came from an address and counts here.
pub struct Opened {
    /// The message itself.
    pub message: Message,
    /// The challenge number that its sender showed, if it must show one. [E-CHALLENGE]
    pub challenged: Option<u64>,
}

/// Returns a new socket at any port, of the IP version of an address.
pub(crate) fn open_socket_to(address: SocketAddr) -> io::Result<UdpSocket> {
    match address {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

impl ControlPeers {
    /// Returns the peers of a node, or of a client ([`OUTSIDE`]).
    pub fn new(cluster: &ClusterFile, me: NodeId) -> ControlPeers {
        ControlPeers {
            cluster: cluster.cluster,
            me,
            controllers: cluster.controllers().map(|n| n.control).collect(),
            nodes: cluster.nodes.iter().map(|n| (n.control, n.id)).collect(),
            keys: match me {
                OUTSIDE => WatchedKeys::of_outside(cluster),
                _ => WatchedKeys::of_node(cluster),
            },
            known: Arc::default(),
        }
    }

    /// Returns a new socket of the controllers' IP version, for somebody who is no node.
    pub fn open_socket(&self) -> io::Result<UdpSocket> {
        open_socket_to(self.controllers[0])
    }

    /// Returns an error if keys are required and missing, since then no message can be sent.
    pub fn check_keys(&self) -> Result<(), Error> {
        self.key_file().map(|_| ())
    }

    /// Returns an error if a message is an order of an operator and this end has a client's key,
    /// since nodes ignore such an order and wouldn't answer. [E-SIGNED]
    pub fn check_order(&self, message: &Message) -> Result<(), Error> {
        let keys = self.key_file()?;
        match keys.as_ref().map(|keys| keys.holder()) {
            Some(Holder::Client { name, .. }) if !is_for_clients(message) => {
                Err(Error::configuration(
                    format!(
                        "`keys` in the cluster file is the key of the client {name:?}, with which \
                         nodes take commands and questions, but no orders"
                    ),
                    "run this on a node's machine, with the nodes' key file",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes of a message to an address, signed if there are keys. [E-SIGNED]
    pub fn seal(&self, to: SocketAddr, message: &Message) -> serde_json::Result<Vec<u8>> {
        let bytes = serde_json::to_vec(&Envelope {
            cluster: self.cluster,
            from: self.me,
            to: self.node_at(to).unwrap_or(OUTSIDE),
            challenge: self.challenge_of(to),
            message,
        })?;
        let Some(keys) = self.key_file().map_err(serde_json::Error::custom)? else {
            return Ok(bytes);
        };
        let by = self.signer(&keys, to);
        let unknown = || serde_json::Error::custom("the key file has no key for this");
        signature::sign(&keys, by, bytes).ok_or_else(unknown)
    }

    /// Returns the message in a datagram from an address, if it counts here. [E-VIEW]
    pub fn open(&self, bytes: &[u8], from: SocketAddr) -> Result<Message, Turned> {
        Ok(self.open_challenged(bytes, from)?.message)
    }

    /// Opens a message like [`open`](Self::open), and returns the challenge number that a node must
    /// check. A challenge that comes is noted for later messages.
    pub fn open_challenged(&self, bytes: &[u8], from: SocketAddr) -> Result<Opened, Turned> {
        let (said, by) = match self.key_file().map_err(|_| Turned::OtherKey)? {
            None => (bytes, None),
            Some(keys) => {
                let (said, by) = self.check(&keys, bytes, from)?;
                (said, Some(by))
            }
        };
        let envelope: Envelope = serde_json::from_slice(said).map_err(|_| Turned::Malformed)?;
        let sender = self.sender(from, by);
        // Nodes sign for a client with its key, and for a command line with their own, so a
        // client's key is no proof of a node.
        let own = self.key_file().ok().flatten().map(|keys| keys.number());
        if self.me == OUTSIDE && by.map(|by| by.holder) != own {
            return Err(Turned::UnknownSender);
        }
        // A message signed by a node must name that node as its sender.
        let named = sender == Sender::Client || envelope.from == sender_id(self, from);
        if by.is_some() && !named {
            return Err(Turned::UnknownSender);
        }
        let must_show = envelope.needs_challenge(sender);
        let challenged = must_show.then_some(envelope.challenge);
        let message = envelope.open(self.cluster, self.me, sender)?;
        self.note(from, by, &message);
        Ok(Opened {
            message,
            challenged,
        })
    }

    /// Returns the addresses of the controllers, of which one acts.
    pub fn controllers(&self) -> &[SocketAddr] {
        &self.controllers
    }

    /// Returns the node at an address, if there is one.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let node = self.nodes.iter().find(|(at, _)| *at == address);
        node.map(|(_, id)| *id)
    }

    /// Returns a node's address.
    pub fn address_of(&self, node: NodeId) -> Option<SocketAddr> {
        let place = self.nodes.iter().find(|(_, id)| *id == node);
        place.map(|(at, _)| *at)
    }

    /// Returns the challenge that a node has last sent, or 0 if there is none.
    pub fn challenge_of(&self, node: SocketAddr) -> u64 {
        let known = lock(&self.known);
        known.challenges.get(&node).copied().unwrap_or(0)
    }

    /// Returns whether the sender of these bytes has older keys than this end, so that it can't
    /// read messages signed with the newer ones. It must be sent a message that shows it the newer
    /// generation.
    pub fn is_newer(&self, bytes: &[u8]) -> bool {
        if bytes.len() < MIN_SIGNED_LEN {
            return false;
        }
        let newest = self.key_file().ok().flatten();
        let newest = newest.and_then(|keys| keys.generations().max());
        let claims = signature::claims(bytes).map(|by| by.generation);
        matches!((claims, newest), (Some(theirs), Some(own)) if theirs > own)
    }

    /// Returns warnings about keys for the operator: about this node's, and about nodes whose keys
    /// are old.
    pub fn key_warnings(&self) -> Vec<String> {
        let trouble = self.keys.as_ref().and_then(|keys| keys.trouble());
        let trouble = trouble.map(|e| format!("{e}; what the key file held before stays in use"));
        let signs = self.generations().map(|(signs, _)| signs);
        let known = lock(&self.known);
        let old = known.generations.iter().filter_map(|(at, generation)| {
            let signs = signs.filter(|signs| generation < signs)?;
            let node = self.node_at(*at)?;
            Some(format!(
                "node {node} signs with generation {generation} of the key, and generation {signs} \
                 is in force: copy the key file there"
            ))
        });
        trouble.into_iter().chain(old).collect()
    }

    /// Returns the generation of the key that signs, and those that are accepted, if there are
    /// keys.
    pub fn generations(&self) -> Option<(u32, Vec<u32>)> {
        let keys = self.key_file().ok().flatten()?;
        Some((keys.signs(), keys.generations().collect()))
    }

    fn key_file(&self) -> Result<Option<Arc<KeyFile>>, Error> {
        self.keys.as_ref().map(|keys| keys.file()).transpose()
    }

    /// Returns the key for messages to an address. Nodes sign for a client with that client's key.
    fn signer(&self, keys: &KeyFile, to: SocketAddr) -> Signer {
        let clients = &lock(&self.known).clients;
        Signer {
            holder: match keys.number() {
                NODES => clients.get(&to).copied().unwrap_or(NODES),
                own => own,
            },
            generation: keys.signs(),
        }
    }

    fn check<'a>(
        &self,
        keys: &KeyFile,
        bytes: &'a [u8],
        from: SocketAddr,
    ) -> Result<(&'a [u8], Signer), Turned> {
        let checked = signature::check(keys, bytes);
        if checked == Err(Turned::OtherKey) {
            // The claim may be false, but an operator should look at it in any case.
            let claims = signature::claims(bytes).filter(|by| by.holder == NODES);
            if let (Some(by), Some(_)) = (claims, self.node_at(from)) {
                lock(&self.known).generations.insert(from, by.generation);
            }
        }
        checked
    }

    fn sender(&self, from: SocketAddr, by: Option<Signer>) -> Sender {
        if by.is_some_and(|by| by.holder != NODES) && self.me != OUTSIDE {
            return Sender::Client;
        }
        match self.node_at(from) {
            Some(_) if self.controllers.contains(&from) => Sender::Controller,
            Some(node) => Sender::Node(node),
            None => Sender::Outside,
        }
    }

    fn note(&self, from: SocketAddr, by: Option<Signer>, message: &Message) {
        let mut known = lock(&self.known);
        if let Message::Challenge { number } = message {
            known.challenges.insert(from, *number);
        }
        let Some(by) = by else { return };
        if self.node_at(from).is_some() {
            known.generations.insert(from, by.generation);
        }
        if known.clients.len() == MAX_CLIENTS {
            known.clients.clear();
        }
        match by.holder {
            _ if self.me == OUTSIDE => {}
            NODES => drop(known.clients.remove(&from)),
            client => drop(known.clients.insert(from, client)),
        }
    }
}

fn sender_id(peers: &ControlPeers, from: SocketAddr) -> NodeId {
    peers.node_at(from).unwrap_or(OUTSIDE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{self, Auth};
    use crate::test_dir::TestDir;
    use control::View;

    #[test]
    fn an_order_is_refused_here_if_nodes_would_ignore_it() {
        let directory = TestDir::new();
        let sample = include_str!("../../../testdata/cluster.toml");
        let mut cluster = cluster_file::parse(sample, "test").unwrap();
        cluster.auth = Auth::Control;
        cluster.keys = directory.path().join("nodes.key");
        let mut keys = KeyFile::new(cluster.cluster).unwrap();
        let client = keys.client("billing").unwrap();
        keys.create(&cluster.keys).unwrap();
        let question = Message::ViewRequest { group: 0 };
        let of_nodes = ControlPeers::new(&cluster, OUTSIDE);
        assert!(of_nodes.check_order(&Message::Stop).is_ok());
        client.replace(&cluster.keys).unwrap();
        let of_client = ControlPeers::new(&cluster, OUTSIDE);
        assert!(of_client.check_order(&question).is_ok());
        let refused = of_client.check_order(&Message::Stop).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("the client \"billing\""), "{refused}");
        assert!(refused.contains("the nodes' key file"), "{refused}");
    }

    /// A client's key proves no message of a node. [E-SIGNED]
    #[test]
    fn a_clients_key_speaks_for_no_node() {
        let directory = TestDir::new();
        let sample = include_str!("../../../testdata/cluster.toml");
        let mut cluster = cluster_file::parse(sample, "test").unwrap();
        cluster.auth = Auth::Control;
        cluster.keys = directory.path().join("nodes.key");
        let mut keys = KeyFile::new(cluster.cluster).unwrap();
        let client = keys.client("some").unwrap();
        keys.create(&cluster.keys).unwrap();
        let (controller, leader) = (cluster.controller_node(), &cluster.nodes[1]);
        let forged = |to| {
            let bytes = serde_json::to_vec(&Envelope {
                cluster: cluster.cluster,
                from: controller.id,
                to,
                challenge: 0,
                message: Message::View(View::nothing(0)),
            });
            let by = Signer {
                holder: client.number(),
                generation: client.signs(),
            };
            signature::sign(&client, by, bytes.unwrap()).unwrap()
        };
        for me in [OUTSIDE, leader.id] {
            let opened = ControlPeers::new(&cluster, me).open(&forged(me), controller.control);
            assert_eq!(opened, Err(Turned::UnknownSender), "{me}");
        }
        // The controller's own messages to both nodes and to the client count.
        let from = ControlPeers::new(&cluster, controller.id);
        let view = Message::View(View::nothing(0));
        let to_leader = from.seal(leader.control, &view).unwrap();
        let opened = ControlPeers::new(&cluster, leader.id).open(&to_leader, controller.control);
        assert_eq!(opened, Ok(view.clone()));
        let asker = "127.0.0.1:1".parse().unwrap();
        let to_asker = from.seal(asker, &view).unwrap();
        let opened = ControlPeers::new(&cluster, OUTSIDE).open(&to_asker, controller.control);
        assert_eq!(opened, Ok(view));
        assert_eq!(
            ControlPeers::new(&cluster, leader.id).open(&to_leader, leader.control),
            Err(Turned::UnknownSender)
        );
    }
}
