//! A node's end of the control plane: one JSON message a datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use control::{Message, View};
use paxos::GroupId;
use serde_json::{Value, json};

use crate::{Error, listen};

/// The largest payload of a datagram.
const MAX_MESSAGE_LEN: usize = 65_507;

/// Sends and receives control messages, without waiting.
pub struct ControlSocket {
    socket: UdpSocket,
    buffer: Vec<u8>,
    malformed: u64,
    unsent: u64,
}

impl ControlSocket {
    /// Binds to a node's `control` address.
    pub fn bind(address: SocketAddr) -> Result<ControlSocket, Error> {
        Ok(ControlSocket {
            socket: listen::udp(address, "control")?,
            buffer: vec![0; MAX_MESSAGE_LEN + 1],
            malformed: 0,
            unsent: 0,
        })
    }

    /// The next message that waits here. Anyone may send anything: what is no message is counted
    /// and passed over.
    pub fn receive(&mut self) -> Option<(Message, SocketAddr)> {
        loop {
            let (n, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                // About an earlier send, or a signal: says nothing about the next message.
                Err(_) => continue,
            };
            match serde_json::from_slice(&self.buffer[..n]) {
                Ok(message) => return Some((message, from)),
                Err(_) => self.malformed += 1,
            }
        }
    }

    /// Sends a message; it may be lost, as every message may.
    pub fn send(&mut self, to: SocketAddr, message: &Message) {
        let sent = serde_json::to_vec(message)
            .map_err(io::Error::from)
            .and_then(|bytes| self.socket.send_to(&bytes, to));
        if sent.is_err() {
            self.unsent += 1;
        }
    }

    /// For `status`.
    pub fn to_json(&self) -> Value {
        json!({ "malformed": self.malformed, "unsent": self.unsent })
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The newest view of each group that this node was told.
#[derive(Clone, Debug, Default)]
pub struct Views(BTreeMap<GroupId, View>);

impl Views {
    /// Keeps a view if it is newer than the one known; returns it then.
    pub fn offer(&mut self, view: &View) -> Option<&View> {
        let known = self.0.get(&view.group);
        if known.is_some_and(|k| k.version >= view.version) {
            return None;
        }
        self.0.insert(view.group, view.clone());
        self.0.get(&view.group)
    }

    /// The newest view of a group.
    pub fn get(&self, group: GroupId) -> Option<&View> {
        self.0.get(&group)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::wait;

    #[test]
    fn what_is_no_message_is_counted_and_passed_over() {
        let mut socket = ControlSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.socket.local_addr().unwrap();
        let mut peer = ControlSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let from = peer.socket.local_addr().unwrap();
        let garbage = [
            &b""[..],
            b"{",
            b"[1]",
            b"{\"type\":\"stop\"",
            &[0xff; 65_507],
        ];
        for bytes in garbage {
            peer.socket.send_to(bytes, address).unwrap();
        }
        peer.send(address, &Message::Stop);
        wait(&[socket.as_fd()], Some(Duration::from_secs(5))).unwrap();
        assert_eq!(socket.receive(), Some((Message::Stop, from)));
        assert_eq!(socket.receive(), None);
        assert_eq!(socket.malformed, garbage.len() as u64);
        let json = "x".repeat(70_000);
        peer.send(address, &Message::Status { json });
        assert_eq!(peer.unsent, 1);
    }

    #[test]
    fn an_older_view_never_replaces_a_newer_one() {
        let view = |version| View {
            group: 3,
            version,
            epochs: Vec::new(),
            given_up: None,
        };
        let mut views = Views::default();
        assert!(views.offer(&view(2)).is_some());
        assert!(views.offer(&view(1)).is_none() && views.offer(&view(2)).is_none());
        assert_eq!(views.get(3).unwrap().version, 2);
        assert!(views.get(4).is_none());
    }
}
