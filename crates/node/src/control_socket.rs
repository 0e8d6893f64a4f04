// SPDX-License-Identifier: Apache-2.0
//! A node's end of the control plane: one envelope a datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use control::{Documents, Message, Turned};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::{Error, listen};

/// The largest payload of a datagram.
const MAX_MESSAGE_LEN: usize = 65_507;

/// Sends and receives control messages, without waiting.
pub struct ControlSocket {
    sender: ControlSender,
    buffer: Vec<u8>,
    turned: BTreeMap<Turned, u64>,
    documents: Documents,
}

/// The half that sends, for any thread.
#[derive(Clone)]
pub struct ControlSender {
    socket: Arc<UdpSocket>,
    peers: Arc<ControlPeers>,
    unsent: Arc<AtomicU64>,
}

impl ControlSocket {
    /// Binds to a node's `control` address.
    pub fn bind(cluster: &ClusterFile, node: &Node) -> Result<ControlSocket, Error> {
        let sender = ControlSender {
            socket: Arc::new(listen::udp(node.control, "control")?),
            peers: Arc::new(ControlPeers::new(cluster, node.id)),
            unsent: Arc::default(),
        };
        Ok(ControlSocket {
            sender,
            buffer: vec![0; MAX_MESSAGE_LEN + 1],
            turned: BTreeMap::new(),
            documents: Documents::default(),
        })
    }

    /// The next message that waits here. Anybody may send anything: messages that don't count here
    /// are skipped, and their number is kept for `status`.
    pub fn receive(&mut self) -> Option<(Message, SocketAddr)> {
        let ControlSender { socket, peers, .. } = &self.sender;
        loop {
            let (n, from) = match socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                // The error is about an earlier send, or a signal. It says nothing about the next
                // message.
                Err(_) => continue,
            };
            match peers.open(&self.buffer[..n], from) {
                Ok(message) => return Some((message, from)),
                Err(why) => *self.turned.entry(why).or_default() += 1,
            }
        }
    }

    /// Sends a message; it may be lost, as every message may.
    pub fn send(&self, to: SocketAddr, message: &Message) {
        self.sender.send(to, message);
    }

    /// Whether a status document is kept under this id.
    pub fn has_status(&self, id: u64) -> bool {
        self.documents.has(id)
    }

    /// Keeps a status document for a while.
    pub fn keep_status(&mut self, id: u64, document: &Value) {
        self.documents.keep(id, &document.to_string());
    }

    /// Sends a part of one that is kept, if it is.
    pub fn send_status(&self, to: SocketAddr, id: u64, part: u32) {
        if let Some(part) = self.documents.part(id, part) {
            self.send(to, &part);
        }
    }

    /// The half that sends.
    pub fn sender(&self) -> ControlSender {
        self.sender.clone()
    }

    /// For `status`.
    pub fn to_json(&self) -> Value {
        let mut counters = json!({ "unsent": self.sender.unsent.load(Ordering::Relaxed) });
        for why in Turned::ALL {
            counters[why.name()] = self.turned.get(&why).copied().unwrap_or(0).into();
        }
        counters
    }
}

impl ControlSender {
    /// Whose address is whose.
    pub fn peers(&self) -> &ControlPeers {
        &self.peers
    }

    /// Sends to the controller.
    pub fn send_to_controller(&self, message: &Message) {
        self.send(self.peers.controller(), message);
    }

    /// As [`ControlSocket::send`].
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

    const SAMPLE: &str = include_str!("../../../examples/cluster.toml");

    /// The example's cluster, on addresses of this test's own.
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
        peer.send(at("leader-1"), &Message::Stop);
        let from = at("leader-2");
        assert_eq!(receive(&mut socket), Some((Message::Stop, from)));
        assert_eq!(socket.receive(), None);
        assert_eq!(socket.to_json()["malformed"], garbage.len());
        let large = Message::FailoverReply {
            group: 0,
            result: Err("x".repeat(70_000)),
        };
        peer.send(at("leader-1"), &large);
        assert_eq!(peer.to_json()["unsent"], 1);
    }

    /// [E-VIEW]
    #[test]
    fn what_does_not_count_is_counted_by_name_and_passed_over() {
        let cluster = cluster();
        let at = |name| cluster.node(name).unwrap().control;
        let mut socket = bind(&cluster, "replica-1");
        let controller = bind(&cluster, "controller");
        let other = bind(&cluster, "leader-2");
        let view = Message::View(View::nothing(0));
        // An old cluster's controller, at the very address of this one's.
        let mut old = cluster.clone();
        old.cluster += 1;
        let old = ControlPeers::new(
            &old,
            controller.sender.peers().node_at(at("controller")).unwrap(),
        );
        let bytes = old.seal(at("replica-1"), &view).unwrap();
        let raw = &controller.sender.socket;
        raw.send_to(&bytes, at("replica-1")).unwrap();
        // The controller's word to somebody else, as a delayed one to who was here before.
        let bytes = controller
            .sender
            .peers()
            .seal(at("replica-2"), &view)
            .unwrap();
        raw.send_to(&bytes, at("replica-1")).unwrap();
        // Somebody else's word: another node's, and a stranger's.
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
            json!({ "unsent": 0, "malformed": 0, "wrong_cluster": 1, "misdirected": 1,
                    "unknown_sender": 2 })
        );
    }
}
