// SPDX-License-Identifier: Apache-2.0
//! The clients of the cluster, and the check at the end.

use super::*;

impl<K: Persistent> Cluster<K> {
    // ---- The client

    pub(super) fn request(&mut self, client: u64, request: u64, bytes: Vec<u8>) {
        if self.scripted {
            let datagram = request_of(Flags::NONE, client, request, &bytes);
            self.world.carry(CLIENT, SEQUENCER, &datagram);
        } else {
            self.items.push((client, request, bytes));
        }
    }

    pub(super) fn send_items(&mut self) {
        let items = std::mem::take(&mut self.items);
        for datagram in requests(items, &mut self.world.rng) {
            self.world.carry(CLIENT, SEQUENCER, &datagram);
        }
    }

    pub(super) fn add_client(&mut self) {
        let nonce = 900 + self.clients.len() as u64;
        self.clients.push(Client {
            nonce,
            ..Client::default()
        });
    }

    /// Opens a session, and waits until it is open.
    pub(super) fn open_session(&mut self) -> u64 {
        self.add_client();
        self.wait("a session of a client", |c| {
            c.clients.iter().all(|client| client.id.is_some())
        });
        self.clients.last().unwrap().id.unwrap()
    }

    /// Sends a command and doesn't wait.
    pub(super) fn command(&mut self, at: usize) -> (u64, u64) {
        let client = &mut self.clients[at];
        client.last += 1;
        client.open.insert(client.last);
        client.resend_at = self.world.now() + 20 * MS;
        let (id, request) = (client.id.unwrap(), client.last);
        self.request(id, request, command(id << 16 | request));
        (id, request)
    }

    /// Sends again the requests that have no answer.
    pub(super) fn clients_send(&mut self) {
        let now = self.now();
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if now < client.resend_at {
                continue;
            }
            client.resend_at = now + 20 * MS;
            let Some(id) = client.id else {
                let nonce = client.nonce;
                let op = open(false, WINDOW as u16, at_port(1 + at as u16)).to_bytes();
                self.request(nonce, 0, op);
                continue;
            };
            for request in client.open.clone() {
                self.request(id, request, command(id << 16 | request));
            }
        }
    }

    pub(super) fn on_client_packet(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if (h.cluster, h.group, h.pid) != (CLUSTER, GROUP, 0) {
            return;
        }
        match h.msgtype {
            MsgType::Ack => {
                self.acks.push(*h);
                let _ = self.quorum.ack(h);
            }
            MsgType::Reply => {
                let (status, bytes) = packet.value.split_first().unwrap();
                let status = Status::from_u8(*status).unwrap();
                let answer = (h.client, h.request, status, bytes.to_vec());
                self.answers.push((*h, answer.clone()));
                if let Ok(Some(answer)) = self.quorum.reply(h, answer) {
                    self.is_final(answer);
                }
            }
            _ => {}
        }
        while let Some(answer) = self.quorum.next() {
            self.is_final(answer);
        }
    }

    pub(super) fn is_final(&mut self, (client, request, status, bytes): Answer) {
        let of = (client, request);
        if status == Status::StaleRequest {
            // A repetition came when the window had moved on, and the client had its answer before.
            assert!(self.finals.contains_key(&of));
            return;
        }
        let known = self.finals.entry(of).or_insert((status, bytes.clone()));
        assert_eq!(*known, (status, bytes.clone()), "two answers to {of:?}");
        for c in &mut self.clients {
            if request == 0 && c.nonce == client {
                c.id = Some(u64::from_be_bytes(bytes[..].try_into().unwrap()));
            } else if c.id == Some(client) {
                c.open.remove(&request);
            }
        }
    }

    // ---- The end

    /// Checks that every replica has the whole log, and that clients were told its results.
    pub(super) fn check(&mut self) {
        self.wait("all answers", |c| {
            c.clients.iter().all(|c| c.open.is_empty())
        });
        self.wait("all stand at the end", |c| {
            let ends = c.hosts.iter().map(|h| {
                let role = h.worker.as_ref().map(|w| w.agreement().replica());
                role.map(|r| (r.status() == Doing::Normal, r.next(), r.stable()))
            });
            let end = c.sequencer.next(0);
            let mut ends = ends.collect::<Vec<_>>().into_iter();
            ends.all(|at| at == Some((true, end, end)))
                && c.hosts
                    .iter()
                    .all(|h| h.worker.as_ref().unwrap().next() == end)
        });
        assert_eq!(self.checker.violations(), []);
        for (of, answer) in &self.finals {
            assert_eq!(self.expected.get(of), Some(answer), "{of:?}");
        }
        let total = self.model.behind.last().unwrap().clone();
        for host in &mut self.hosts {
            let worker = host.worker.as_mut().unwrap();
            assert_eq!(*K::tally(worker.application()), total);
        }
        assert!(total.by_command.values().all(|times| *times == 1));
        for (session, request) in self.finals.keys().filter(|(_, r)| *r > 0) {
            assert!(total.by_command.contains_key(&(session << 16 | request)));
        }
    }
}
