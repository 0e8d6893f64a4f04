// SPDX-License-Identifier: Apache-2.0
//! Sends questions to controllers and nodes over the control plane.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Message, OUTSIDE};
use node::{ClusterFile, ControlPeers};

use crate::error::Error;

/// The error of a question without an answer, from which the caller can make a message.
#[derive(Debug)]
pub struct NoAnswer {
    /// The nodes that were asked.
    pub asked: Vec<SocketAddr>,
    /// How long the client waited.
    pub waited: Duration,
}

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let asked: Vec<String> = self.asked.iter().map(SocketAddr::to_string).collect();
        write!(
            f,
            "no answer from {} within {:.1} s; is it running, and is this the right cluster file?",
            asked.join(", "),
            self.waited.as_secs_f64()
        )
    }
}

impl std::error::Error for NoAnswer {}

/// A socket for control messages. Messages may be lost, so a question is repeated until it is
/// answered.
pub struct ControlClient {
    peers: ControlPeers,
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// The messages sent to each node since it last answered. If the node answers with a challenge,
    /// these are sent again with it. [E-CHALLENGE]
    sent: BTreeMap<SocketAddr, Vec<Message>>,
}

const RESEND_AFTER: Duration = Duration::from_millis(200);
const MAX_MESSAGE_LEN: usize = 65_536;
/// How many different messages to one node are repeated.
const MAX_SENT: usize = 4;

impl ControlClient {
    /// Binds a socket of the same IP version as the controller's.
    pub fn new(cluster: &ClusterFile) -> io::Result<ControlClient> {
        let peers = ControlPeers::new(cluster, OUTSIDE);
        peers.check_keys().map_err(io::Error::other)?;
        Ok(ControlClient {
            socket: peers.open_socket()?,
            peers,
            buffer: vec![0; MAX_MESSAGE_LEN],
            sent: BTreeMap::new(),
        })
    }

    /// Returns an error if nodes would ignore a message because this end has a client's key.
    ///
    /// # Errors
    /// [`Error::Configuration`].
    pub fn check_order(&self, message: &Message) -> Result<(), Error> {
        Ok(self.peers.check_order(message)?)
    }

    /// Sends one message. Errors of nodes that are down show at later calls, and are ignored.
    pub fn send(&mut self, to: SocketAddr, message: &Message) {
        let sent = self.sent.entry(to).or_default();
        if !sent.contains(message) && sent.len() < MAX_SENT {
            sent.push(message.clone());
        }
        self.put(to, message);
    }

    fn put(&self, to: SocketAddr, message: &Message) {
        if let Ok(bytes) = self.peers.seal(to, message) {
            let _ = self.socket.send_to(&bytes, to);
        }
    }

    /// Repeats the messages to a node if it has sent a new challenge.
    fn answer_challenge(&self, from: SocketAddr, known: u64) {
        if self.peers.challenge_of(from) != known {
            let sent = self.sent.get(&from).into_iter().flatten();
            sent.for_each(|message| self.put(from, message));
        }
    }

    /// Returns the next message that counts, if one comes within `timeout`.
    pub fn receive(&mut self, timeout: Duration) -> Option<(SocketAddr, Message)> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            // A timeout of zero would mean no limit.
            let left = left.max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).ok()?;
            let Ok((n, from)) = self.socket.recv_from(&mut self.buffer) else {
                continue;
            };
            let known = self.peers.challenge_of(from);
            match self.peers.open(&self.buffer[..n], from) {
                Ok(Message::Challenge { .. }) => self.answer_challenge(from, known),
                Ok(message) => {
                    self.sent.remove(&from);
                    return Some((from, message));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns a descriptor that is readable when there is something to [`receive`](Self::receive),
    /// for messages that come without a question.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks all of `peers` until one gives an answer that `pick` accepts.
    pub fn ask<T>(
        &mut self,
        peers: &[SocketAddr],
        message: &Message,
        timeout: Duration,
        mut pick: impl FnMut(SocketAddr, Message) -> Option<T>,
    ) -> Result<T, NoAnswer> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            for &peer in peers {
                self.send(peer, message);
            }
            let resend_at = Instant::now() + RESEND_AFTER.min(timeout);
            while let Some(left) = resend_at.checked_duration_since(Instant::now()) {
                let Some((from, answer)) = self.receive(left) else {
                    break;
                };
                if let Some(answer) = pick(from, answer) {
                    return Ok(answer);
                }
            }
        }
        Err(NoAnswer {
            asked: peers.to_vec(),
            waited: timeout,
        })
    }
}
