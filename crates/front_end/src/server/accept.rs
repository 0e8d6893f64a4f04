// SPDX-License-Identifier: Apache-2.0
//! The way of a client to a connection: it is accepted, shakes hands, and shows the password in
//! time.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Token};
use tls::Failure;

use crate::log::Plane;
use crate::metrics::Metrics;
use crate::server::peer::Peer;
use crate::server::stream::{self, Stream};
use crate::server::{FIRST_CONNECTION, Server, TOO_MANY_CLIENTS};
use crate::state::client::Client;
use crate::state::waiter::Waiter;

impl<P: Plane> Server<P> {
    pub(super) fn accept(&mut self) {
        self.accept_again = false;
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, address)) => self.add(stream, address),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if is_of_the_client(&e) => {}
                Err(_) => {
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn add(&mut self, mut stream: TcpStream, address: SocketAddr) {
        let metrics = self.shared.metrics.clone();
        let is_full = self.clients() >= self.shared.max_clients;
        if is_full && !self.make_a_place() {
            Metrics::add(&metrics.connections_refused);
            if self.tls.is_none() {
                // Only the bytes that fit at once are sent: the front end waits for no client.
                let _ = stream.write(format!("-{TOO_MANY_CLIENTS}\r\n").as_bytes());
            }
            return;
        }
        let Ok(session) = self.tls.as_mut().map(tls::Server::session).transpose() else {
            return Metrics::add(&metrics.connections_refused);
        };
        if let Some(tls) = &self.tls {
            let trouble = tls.is_in_trouble().into();
            metrics.tls_trouble.store(trouble, Relaxed);
        }
        let index = self.peers.place();
        let token = Token(FIRST_CONNECTION + index);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = stream
            .set_nodelay(true)
            .and_then(|()| self.poll.registry().register(&mut stream, token, interest));
        if registered.is_err() {
            self.peers.give_back(index);
            return;
        }
        Metrics::add(&metrics.connections);
        Metrics::add(&metrics.connected);
        self.last_client += 1;
        let local_address = stream.local_addr().unwrap_or(address);
        let mut client = Client::new(self.last_client, index, address, local_address);
        client.user = self.shared.users.borrow().of_a_stranger().cloned();
        let stream = Stream::new(stream, session);
        self.peers
            .put(index, Box::new(Peer::new(client, Some(stream))));
        self.begin_handshake(index);
        self.meet(index);
        self.pump(index);
    }

    fn meet(&mut self, index: usize) {
        let peer = self.peers.at(index);
        if !peer.connection.client.is_authenticated() {
            self.strangers
                .meet(peer.connection.client.waiter(), Instant::now());
        }
    }

    fn is_stranger(&self, of: Waiter) -> bool {
        let peer = self.peers.find(of);
        peer.is_some_and(|peer| !peer.connection.client.is_authenticated())
    }

    /// Removes the client that has been connected longest without authenticating; returns false if
    /// there is none.
    fn make_a_place(&mut self) -> bool {
        while let Some(first) = self.strangers.first() {
            if self.is_stranger(first) {
                self.remove(first.index);
                return true;
            }
        }
        false
    }

    pub(super) fn end_late_strangers(&mut self) {
        let now = Instant::now();
        while let Some(late) = self.strangers.late(now) {
            if self.is_stranger(late) {
                self.remove(late.index);
            }
        }
    }

    /// Begins the handshake if the connection has one; the oldest one is given up if there are too
    /// many.
    fn begin_handshake(&mut self, index: usize) {
        let peer = self.peers.at(index);
        if !peer.is_handshaking() {
            return;
        }
        let (whose, now) = (peer.connection.client.waiter(), Instant::now());
        if let Some(first) = self.handshakes.begin(whose, now) {
            self.give_up_handshake(first);
        }
    }

    /// Continues the handshake if this turn has time for it; returns true if it is done.
    pub(super) fn shake_hands(&mut self, index: usize) -> bool {
        if !self.handshakes.have_time() {
            self.again.push(index);
            return false;
        }
        let begun = Instant::now();
        let peer = self.peers.at(index);
        let (whose, client) = (
            peer.connection.client.waiter(),
            peer.connection.client.address,
        );
        let done = peer.shake_hands(&mut self.read_buffer);
        let now = Instant::now();
        self.handshakes.spend(now - begun);
        let metrics = self.shared.metrics.clone();
        match done {
            Ok(false) => return false,
            Ok(true) => {
                Metrics::add(&metrics.tls_handshakes);
                self.handshakes.end(whose);
                return true;
            }
            Err(e) => match stream::failure(&e) {
                None => Metrics::add(&metrics.tls_unfinished),
                Some(failure) => {
                    Metrics::add(match failure {
                        Failure::Plain => &metrics.tls_missing,
                        Failure::Refused(_) => &metrics.tls_refused,
                    });
                    self.handshakes.say(client, &failure.to_string(), now);
                }
            },
        }
        self.remove(index);
        false
    }

    pub(super) fn end_late_handshakes(&mut self) {
        let now = Instant::now();
        while let Some(late) = self.handshakes.late(now) {
            self.give_up_handshake(late);
        }
    }

    fn give_up_handshake(&mut self, of: Waiter) {
        if self.peers.find(of).is_some() {
            Metrics::add(&self.shared.metrics.tls_unfinished);
            self.remove(of.index);
        }
    }
}

/// Returns true if an accept failed only because that one client is gone.
fn is_of_the_client(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
