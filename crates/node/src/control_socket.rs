// SPDX-License-Identifier: Apache-2.0
//! A node's end of the control plane, with one envelope in each datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use control::{Documents, Message, Turned};
use serde_json::{Value, json};

use crate::budget::Budget;
use crate::challenges::Challenges;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::refused_packets::RefusedPackets;
use crate::{Error, listen};

/// The largest payload of a datagram.
const MAX_MESSAGE_LEN: usize = 65_507;
/// How many datagrams, and about how many bytes, one turn of a control loop takes. So a flood of
/// control messages can't keep the node from its main work.
const TURN: usize = 64;
const TURN_BYTES: usize = 128 << 10;
/// How many status documents are made at once, and per second.
const DOCUMENTS: (u32, u32) = (200, 100);

/// Sends and receives control messages without waiting.
pub struct ControlSocket {
    sender: ControlSender,
    buffer: Vec<u8>,
    challenges: Challenges,
    turn: Turn,
    turned: BTreeMap<Turned, u64>,
    refused: RefusedPackets,
    challenged: u64,
    documents: Documents,
    making: Budget,
    refused_documents: u64,
}

/// The datagrams that one turn has taken.
#[derive(Default)]
struct Turn {
    datagrams: usize,
    bytes: usize,
    /// The number of turns that were full.
    full: u64,
}

/// The sending half, for use by any thread.
#[derive(Clone)]
pub struct ControlSender {
    socket: Arc<UdpSocket>,
    peers: Arc<ControlPeers>,
    unsent: Arc<AtomicU64>,
}

impl ControlSocket {
    /// Binds to a node's `control` address.
    pub fn bind(cluster: &ClusterFile, node: &Node) -> Result<ControlSocket, Error> {
        let peers = ControlPeers::new(cluster, node.id);
        peers.check_keys()?;
        let sender = ControlSender {
            socket: Arc::new(listen::udp(node.control, "control")?),
            peers: Arc::new(peers),
            unsent: Arc::default(),
        };
        Ok(ControlSocket {
            sender,
            buffer: vec![0; MAX_MESSAGE_LEN + 1],
            challenges: Challenges::draw()?,
            turn: Turn::default(),
            turned: BTreeMap::new(),
            refused: RefusedPackets::new(cluster, |node| node.control),
            challenged: 0,
            documents: Documents::default(),
            making: Budget::new(DOCUMENTS.0, DOCUMENTS.1),
            refused_documents: 0,
        })
    }

    /// Begins a turn, in which a limited number of messages can be [received](Self::receive). The
    /// others wait for the next turn.
    pub fn begin_turn(&mut self) {
        self.turn = Turn {
            full: self.turn.full,
            ..Turn::default()
        };
    }

    /// Returns the next waiting message, unless the turn is full. Anybody may send anything here,
    /// so messages that don't count are skipped, and counted for `status`.
    pub fn receive(&mut self) -> Option<(Message, SocketAddr)> {
        while self.turn.has_room() {
            match self.sender.socket.recv_from(&mut self.buffer) {
                Ok((n, from)) => {
                    self.turn.take(n);
                    if let Some(message) = self.open(n, from) {
                        return Some((message, from));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                // The error is about an earlier send, or a signal came. Neither concerns the next
                // message.
                Err(_) => self.turn.take(0),
            }
        }
        None
    }

    /// Returns the message of a datagram if it counts. A sender that must prove its address is sent
    /// a challenge. [E-CHALLENGE]
    fn open(&mut self, n: usize, from: SocketAddr) -> Option<Message> {
        let opened = self
            .sender
            .peers
            .open_challenged(&self.buffer[..n], from)
            .map_err(|why| self.turn_away(why, n, from))
            .ok()?;
        let shown = opened.challenged;
        if shown.is_none_or(|number| self.challenges.accepts(from, number)) {
            return Some(opened.message);
        }
        self.challenge(from);
        None
    }

    fn challenge(&mut self, asker: SocketAddr) {
        self.challenged += 1;
        let number = self.challenges.number(asker);
        self.send(asker, &Message::Challenge { number });
    }

    /// Counts a message that doesn't count. If its sender has an older key, it is answered so that
    /// it sees the newer one.
    fn turn_away(&mut self, why: Turned, n: usize, from: SocketAddr) {
        *self.turned.entry(why).or_default() += 1;
        // Nobody in particular sends what is no message, and a late message to a former address
        // says nothing.
        if !matches!(why, Turned::Malformed | Turned::Misdirected) {
            self.refused.note(why.name(), from);
        }
        if why == Turned::OtherKey && self.sender.peers.is_newer(&self.buffer[..n]) {
            self.challenge(from);
        }
    }

    /// Sends a message, which may be lost like every message.
    pub fn send(&self, to: SocketAddr, message: &Message) {
        self.sender.send(to, message);
    }

    /// Returns whether a status document must be made for this id. Making one takes a while, so
    /// their number per second is limited.
    pub fn wants_status(&mut self, id: u64) -> bool {
        if self.documents.has(id) {
            return false;
        }
        let makes = self.making.take(Instant::now());
        self.refused_documents += u64::from(!makes);
        makes
    }

    /// Keeps a status document for a while.
    pub fn keep_status(&mut self, id: u64, document: &Value) {
        self.documents.keep(id, &document.to_string());
    }

    /// Sends a part of a status document, if that document is still kept.
    pub fn send_status(&self, to: SocketAddr, id: u64, part: u32) {
        if let Some(part) = self.documents.part(id, part) {
            self.send(to, &part);
        }
    }

    /// Returns the sending half.
    pub fn sender(&self) -> ControlSender {
        self.sender.clone()
    }

    /// Returns warnings about members whose messages don't count.
    pub fn warnings(&self) -> Vec<String> {
        self.refused.warnings()
    }

    /// Returns the counters for `status`.
    pub fn to_json(&self) -> Value {
        let mut counters = json!({
            "unsent": self.sender.unsent.load(Ordering::Relaxed),
            "full_turns": self.turn.full,
            "challenged": self.challenged,
            "refused_documents": self.refused_documents,
        });
        if let Some((signs, accepts)) = self.sender.peers.generations() {
            counters["keys"] = json!({ "signs": signs, "accepts": accepts });
        }
        for why in Turned::ALL {
            counters[why.name()] = self.turned.get(&why).copied().unwrap_or(0).into();
        }
        counters
    }
}

impl Turn {
    fn has_room(&self) -> bool {
        self.datagrams < TURN && self.bytes < TURN_BYTES
    }

    fn take(&mut self, bytes: usize) {
        self.datagrams += 1;
        self.bytes += bytes;
        self.full += u64::from(!self.has_room());
    }
}

impl ControlSender {
    /// Returns the addresses of the other nodes.
    pub fn peers(&self) -> &ControlPeers {
        &self.peers
    }

    /// Sends a message to all controllers, of which the one that acts takes it. [E-ACTS]
    pub fn send_to_controller(&self, message: &Message) {
        for controller in self.peers.controllers() {
            self.send(*controller, message);
        }
    }

    /// Sends a message like [`ControlSocket::send`].
    pub fn send(&self, to: SocketAddr, message: &Message) {
        let sealed = self.peers.seal(to, message).map_err(io::Error::from);
        if sealed
            .and_then(|bytes| self.socket.send_to(&bytes, to))
            .is_err()
        {
            self.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster_file;
    use crate::host::wait;
    use control::{OUTSIDE, View};

    const SAMPLE: &str = include_str!("../../../testdata/cluster.toml");

    /// Returns the example's cluster on addresses of this test's own.
    fn cluster() -> ClusterFile {
        let host = crate::loopback::draw().unwrap().to_string();
        cluster_file::parse(&SAMPLE.replace("127.0.0.1", &host), "test").unwrap()
    }

    fn bind(cluster: &ClusterFile, name: &str) -> ControlSocket {
        ControlSocket::bind(cluster, cluster.node(name).unwrap()).unwrap()
    }

    fn receive(socket: &mut ControlSocket) -> Option<(Message, SocketAddr)> {
        wait(&[socket.as_fd()], Some(Duration::from_secs(5))).unwrap();
        socket.receive()
    }

    #[test]
    fn what_is_no_message_is_counted_and_passed_over() {
        let cluster = cluster();
        let at = |name| cluster.node(name).unwrap().control;
        let mut socket = bind(&cluster, "leader-1");
        let peer = bind(&cluster, "leader-2");
        let bare = serde_json::to_vec(&Message::Stop).unwrap();
        let garbage = [
            &b""[..],
            b"{",
            b"[1]",
            b"{\"type\":\"stop\"",
            &bare,
            b"{\"cluster\":\"5eed001\",\"to\":11,\"message\":{\"type\":\"stop\"}}",
            &[0xff; 65_507],
        ];
        for bytes in garbage {
            peer.sender.socket.send_to(bytes, at("leader-1")).unwrap();
        }
        let question = Message::ViewRequest { group: 0 };
        peer.send(at("leader-1"), &question);

        let from = at("leader-2");
        assert_eq!(receive(&mut socket), Some((question, from)));
        assert_eq!(socket.receive(), None);
        assert_eq!(socket.to_json()["malformed"], garbage.len());
        let large = Message::FailoverReply {
            group: 0,
            result: Err("x".repeat(70_000)),
        };
        peer.send(at("leader-1"), &large);
        assert_eq!(peer.to_json()["unsent"], 1);
    }

    /// Messages that don't count are skipped, and counted by their reason. [E-VIEW]
    #[test]
    fn what_does_not_count_is_counted_by_name_and_passed_over() {
        let cluster = cluster();
        let at = |name| cluster.node(name).unwrap().control;
        let mut socket = bind(&cluster, "replica-1");
        let controller = bind(&cluster, "controller");
        let other = bind(&cluster, "leader-2");
        let view = Message::View(View::nothing(0));
        // The controller of an old cluster has the very address of this one's.
        let mut old = cluster.clone();
        old.cluster += 1;
        let old = ControlPeers::new(
            &old,
            controller.sender.peers().node_at(at("controller")).unwrap(),
        );
        let bytes = old.seal(at("replica-1"), &view).unwrap();
        let raw = &controller.sender.socket;
        raw.send_to(&bytes, at("replica-1")).unwrap();
        // The controller's message is for another node, like a delayed one to a node that had this
        // address before.
        let bytes = controller
            .sender
            .peers()
            .seal(at("replica-2"), &view)
            .unwrap();
        raw.send_to(&bytes, at("replica-1")).unwrap();
        // These messages claim to come from the controller, but another node and a stranger send
        // them.
        other.send(at("replica-1"), &view);
        let stranger = UdpSocket::bind((at("controller").ip(), 0)).unwrap();
        let bytes = ControlPeers::new(&cluster, OUTSIDE).seal(at("replica-1"), &view);
        stranger.send_to(&bytes.unwrap(), at("replica-1")).unwrap();
        controller.send(at("replica-1"), &view);
        assert_eq!(receive(&mut socket), Some((view, at("controller"))));
        assert_eq!(socket.receive(), None);
        let counted = socket.to_json();
        assert_eq!(
            counted,
            json!({ "unsent": 0, "full_turns": 0, "challenged": 0, "refused_documents": 0,
                    "malformed": 0, "wrong_cluster": 1, "misdirected": 1, "unknown_sender": 2,
                    "unsigned": 0, "bad_mac": 0, "other_key": 0 })
        );
    }

    /// A flood at a node's control address must not keep the node from its main work.
    #[test]
    fn a_turn_takes_so_many_datagrams_and_bytes() {
        let cluster = cluster();
        let at = |name| cluster.node(name).unwrap().control;
        let mut socket = bind(&cluster, "leader-1");
        let peer = bind(&cluster, "leader-2");
        let question = Message::ViewRequest { group: 0 };
        let turn = |socket: &mut ControlSocket| {
            socket.begin_turn();
            wait(&[socket.as_fd()], Some(Duration::from_secs(5))).unwrap();
            let mut taken = 0;
            while socket.receive().is_some() {
                taken += 1;
            }
            taken
        };
        for _ in 0..TURN + 5 {
            peer.send(at("leader-1"), &question);
        }
        assert_eq!(turn(&mut socket), TURN);
        assert_eq!(socket.receive(), None, "not in this turn");
        assert_eq!(turn(&mut socket), 5);
        assert_eq!(socket.to_json()["full_turns"], 1);
        // Large datagrams without a message don't keep the turn going, either.
        for _ in 0..3 {
            let sent = peer.sender.socket.send_to(&[0; 65_000], at("leader-1"));
            sent.unwrap();
        }
        peer.send(at("leader-1"), &question);
        assert_eq!(turn(&mut socket), 0);
        assert_eq!(turn(&mut socket), 1);
        assert_eq!(socket.to_json()["full_turns"], 2);
    }

    /// An asker must prove that it receives packets at its address. [E-CHALLENGE]
    #[test]
    fn who_asks_from_anywhere_must_be_where_it_says() {
        let cluster = cluster();
        let leader = cluster.node("leader-1").unwrap();
        let mut socket = bind(&cluster, "leader-1");
        let asker = UdpSocket::bind((leader.control.ip(), 0)).unwrap();
        let peers = ControlPeers::new(&cluster, OUTSIDE);
        let ask = |message: &Message| {
            let bytes = peers.seal(leader.control, message).unwrap();
            asker.send_to(&bytes, leader.control).unwrap();
            bytes.len()
        };
        let question = Message::StatusRequest { id: 1, part: 0 };
        let asked = ask(&question);
        assert_eq!(receive(&mut socket), None, "it is told a number first");
        let mut buffer = [0; 2_048];
        let n = asker.recv(&mut buffer).unwrap();
        assert!(n <= asked + 32, "{asked} bytes ask, {n} answer");
        let told = peers.open(&buffer[..n], leader.control);
        assert!(matches!(told, Ok(Message::Challenge { .. })), "{told:?}");
        ask(&question);
        let from = asker.local_addr().unwrap();
        assert_eq!(receive(&mut socket), Some((question.clone(), from)));
        // The number is of no use to another asker, nor for a harmful order in the name of a
        // member.
        let other = UdpSocket::bind((leader.control.ip(), 0)).unwrap();
        let bytes = peers.seal(leader.control, &question).unwrap();
        other.send_to(&bytes, leader.control).unwrap();
        assert_eq!(receive(&mut socket), None);
        let peer = bind(&cluster, "leader-2");
        peer.send(leader.control, &Message::Stop);
        assert_eq!(receive(&mut socket), None);
        assert_eq!(socket.to_json()["challenged"], 3);
    }

    #[test]
    fn so_many_status_documents_are_made() {
        let mut socket = bind(&cluster(), "leader-1");
        let made = (0..1_000).filter(|id| socket.wants_status(*id)).count();
        assert!((1..1_000).contains(&made), "{made}");
        assert_eq!(socket.to_json()["refused_documents"], 1_000 - made);
        let mut other = bind(&cluster(), "leader-1");
        assert!(other.wants_status(7));
        other.keep_status(7, &json!({}));
        assert!(!other.wants_status(7), "it is there");
        assert_eq!(other.to_json()["refused_documents"], 0);
    }
}
