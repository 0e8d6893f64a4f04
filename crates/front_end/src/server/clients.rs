// SPDX-License-Identifier: Apache-2.0
//! Answers questions about all clients.

use std::collections::HashSet;
use std::time::Instant;

use crate::commands::acl;
use crate::connection::Connection;
use crate::log::Plane;
use crate::server::Server;
use crate::state::client::Client;
use crate::state::client_query::{Ask, Listed};
use crate::turns::LOOK_UP;

/// The answer to a connection's question about all clients.
enum ClientsAnswer {
    Text(String),
    Number(i64),
    Ok,
    Error(String),
}

impl<P: Plane> Server<P> {
    /// Answers a connection's question about all clients and lets the connection continue; returns
    /// false if it has none.
    pub(super) fn tell_of_clients(&mut self, index: usize) -> bool {
        let peer = self.peers.at(index);
        let Some((number, ask)) = peer.connection.take_ask() else {
            return false;
        };
        let itself = peer.connection.client.id;
        if ask != Ask::Info {
            self.shared.turn.spend(self.peers.places() * LOOK_UP);
        }
        let peer = self.peers.at(index);
        let answer = match ask {
            Ask::Info => ClientsAnswer::Text(format!("{}\n", peer.connection.describe())),
            Ask::List(listed) => {
                let list = self.list(&listed);
                self.shared.turn.copy(list.len());
                ClientsAnswer::Text(list)
            }
            Ask::Kill(kill) => {
                let killed = self.kill(itself, |client| kill.fits(client));
                match (kill.is_old, killed) {
                    (false, killed) => ClientsAnswer::Number(killed as i64),
                    (true, 0) => ClientsAnswer::Error("ERR No such client".to_owned()),
                    (true, _) => ClientsAnswer::Ok,
                }
            }
            Ask::LoadUsers => match acl::read_again(&self.shared) {
                Ok(()) => {
                    self.end_former_users(itself);
                    ClientsAnswer::Ok
                }
                Err(why) => ClientsAnswer::Error(format!("ERR the users stay as they were: {why}")),
            },
        };
        let peer = self.peers.at(index);
        peer.connection
            .on_told(number, &self.shared, |writer| match answer {
                ClientsAnswer::Text(text) => writer.verbatim(&text),
                ClientsAnswer::Number(number) => writer.integer(number),
                ClientsAnswer::Ok => writer.status("OK"),
                ClientsAnswer::Error(why) => writer.error(why),
            });
        peer.connection.run(&self.shared);
        true
    }

    /// Returns a line for each of these clients. A connection in its handshake is no client yet.
    fn list(&self, listed: &Listed) -> String {
        let peers = self.peers.iter().map(|(_, peer)| peer);
        let clients = peers.filter(|peer| peer.is_there() && !peer.is_handshaking());
        let line = |connection: &Connection| format!("{}\n", connection.describe());
        let mut all: Vec<&Connection> = clients.map(|peer| &peer.connection).collect();
        all.sort_unstable_by_key(|connection| connection.client.id);
        match listed {
            Listed::All => all.into_iter().map(line).collect(),
            Listed::Of(of) => {
                let is_it = |connection: &&Connection| of.is_of(&connection.client);
                all.into_iter().filter(is_it).map(line).collect()
            }
            Listed::These(ids) => {
                let by_id = |id: &u64| {
                    let at = all.binary_search_by_key(id, |connection| connection.client.id);
                    at.ok().map(|at| line(all[at]))
                };
                ids.iter().filter_map(by_id).collect()
            }
        }
    }

    /// Ends the connections of clients whose users aren't any more what they were: such a client
    /// may have subscribed to what its user may no longer hear.
    fn end_former_users(&mut self, itself: u64) {
        let users = self.shared.users.borrow();
        let clients = self.peers.iter().map(|(_, peer)| &peer.connection.client);
        let former = clients.filter(|client| {
            let user = client.user.as_ref();
            user.is_some_and(|user| !users.still_have(user))
        });
        let former: HashSet<u64> = former.map(|client| client.id).collect();
        drop(users);
        self.kill(itself, |client| former.contains(&client.id));
    }

    /// Ends the clients that fit and returns their number. If the client that asks is one of them,
    /// it still gets its answer.
    fn kill(&mut self, itself: u64, fits: impl Fn(&Client) -> bool) -> usize {
        let mut killed = 0;
        for (index, peer) in self.peers.iter_mut() {
            let client = &peer.connection.client;
            if !peer.is_there() || !fits(client) {
                continue;
            }
            killed += 1;
            match client.id == itself {
                true => peer.connection.end(),
                false => {
                    peer.abandon();
                    self.again.push(index);
                }
            }
        }
        killed
    }

    pub(super) fn go_on_after_pause(&mut self) {
        let over = self.shared.pause.borrow_mut().take_over(Instant::now());
        for index in over {
            if let Some(peer) = self.peers.get_mut(index) {
                peer.connection.go_on();
                self.again.push(index);
            }
        }
    }
}
