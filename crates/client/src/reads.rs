// SPDX-License-Identifier: Apache-2.0
//! Reads without the log: keeps those that are in progress, and chooses the replica to ask.
//! [B-CLIENT]

use std::collections::HashMap;
use std::net::SocketAddr;

use node::cluster_file::Node;
use paxos::wire::value::packed_items;
use paxos::{Deployment, Flags, Header, MsgType, NodeId, Packet, PartitionId, Time};
use replica::{Gathered, Gathering, Piece, Status, is_read_number, read_number};

/// The longest waiting time is the first one doubled this often, as with commands.
const MAX_DOUBLINGS: usize = 5;

/// How recent the state that a read shows must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// The read includes everything that any client was told before the read was submitted.
    Latest,
    /// The read shows whatever the replica that is asked has executed, which may be old.
    Stale,
}

/// The reads of a client.
pub(crate) struct Reads {
    deployment: Deployment,
    replicas: Vec<Node>,
    /// The index of the replica that is asked first.
    first: usize,
    patience: Time,
    /// How often sessions are named in the log while their client only reads, so that they don't
    /// expire.
    keep_alive: Time,
    last: u64,
    open: HashMap<(PartitionId, u64), Read>,
    /// Reads that must be sent now.
    due: Vec<(PartitionId, u64)>,
    /// No read must be repeated before this time.
    next_look: Time,
    /// The time when the sessions were last named in the log.
    named_at: Time,
}

struct Read {
    session: u64,
    command: Vec<u8>,
    /// How often the read was sent without an answer.
    tries: usize,
    again_at: Time,
    pieces: Gathering,
}

impl Reads {
    /// Returns reads that ask `home` first, if it is one of the replicas.
    pub fn new(
        deployment: Deployment,
        replicas: Vec<Node>,
        home: NodeId,
        [patience, keep_alive]: [Time; 2],
    ) -> Reads {
        let first = replicas.iter().position(|node| node.id == home);
        Reads {
            deployment,
            replicas,
            first: first.unwrap_or(0),
            patience,
            keep_alive,
            last: 0,
            open: HashMap::new(),
            due: Vec::new(),
            next_look: Time::MAX,
            named_at: 0,
        }
    }

    /// Adds a read, and returns its number.
    pub fn push(
        &mut self,
        (pid, session): (PartitionId, u64),
        command: &[u8],
        freshness: Freshness,
    ) -> u64 {
        self.last += 1;
        let number = read_number(self.last, freshness == Freshness::Stale);
        self.due.push((pid, number));
        self.open.insert(
            (pid, number),
            Read {
                session,
                command: command.to_vec(),
                tries: 0,
                again_at: 0,
                pieces: Gathering::default(),
            },
        );
        number
    }

    /// Sends the reads that are due.
    pub fn send(&mut self, now: Time, mut send: impl FnMut(SocketAddr, &Header, &[u8])) {
        for key in self.due.drain(..) {
            let Some(read) = self.open.get_mut(&key) else {
                continue;
            };
            let (pid, number) = key;
            let (Deployment { cluster, group, .. }, replicas) = (self.deployment, &self.replicas);
            let Some(replica) = replicas.get((self.first + read.tries) % replicas.len().max(1))
            else {
                continue;
            };
            // Every replica gets the same time to answer, and overloaded ones are asked less and
            // less often.
            let rounds = read.tries / replicas.len().max(1);
            let patience = self.patience.saturating_mul(1 << rounds.min(MAX_DOUBLINGS));
            read.again_at = now.saturating_add(patience);
            self.next_look = self.next_look.min(read.again_at);
            let header = Header {
                cluster,
                group,
                pid,
                client: read.session,
                request: number,
                inst: read.pieces.from() as u64,
                value_len: read.command.len() as u16,
                ..Header::new(MsgType::Read)
            };
            send(replica.address_for(pid), &header, &read.command);
        }
    }

    /// Returns when [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        (!self.open.is_empty()).then_some(self.next_look)
    }

    /// Sends unanswered reads to the next replica. Returns the partitions where no replica answers.
    pub fn tick(&mut self, now: Time) -> Vec<PartitionId> {
        let mut silent = Vec::new();
        if now < self.next_look || self.open.is_empty() {
            return silent;
        }
        let rounds = 2 * self.replicas.len().max(1);
        self.next_look = Time::MAX;
        for (key, read) in &mut self.open {
            if read.again_at <= now {
                read.tries += 1;
                self.due.push(*key);
                if read.tries % rounds == 0 {
                    silent.push(key.0);
                }
            } else {
                self.next_look = self.next_look.min(read.again_at);
            }
        }
        silent
    }

    /// Returns whether the sessions must be named in the log now because only reads use them.
    pub fn must_keep_alive(&mut self, now: Time) -> bool {
        let must = now.saturating_sub(self.named_at) >= self.keep_alive;
        if must {
            self.named_at = now;
        }
        must
    }

    /// Takes answers, and hands on those that are complete: partition, number, status, bytes.
    pub fn take(
        &mut self,
        packet: &Packet<'_>,
        mut hand_on: impl FnMut(PartitionId, u64, Status, &[u8]),
    ) {
        let h = &packet.header;
        let is_answer = h.msgtype == MsgType::Reply && !self.open.is_empty();
        if !is_answer || self.deployment.check(packet).is_err() {
            return;
        }
        if !h.flags.has(Flags::PACKED) {
            return self.take_one((h.pid, h.client, h.request), packet.value, &mut hand_on);
        }
        for item in packed_items(packet.value).filter_map(Result::ok) {
            self.take_one((h.pid, item.client, item.request), item.bytes, &mut hand_on);
        }
    }

    fn take_one(
        &mut self,
        (pid, session, number): (PartitionId, u64, u64),
        answer: &[u8],
        hand_on: &mut impl FnMut(PartitionId, u64, Status, &[u8]),
    ) {
        let key = (pid, number);
        let Some((status, bytes)) = answer.split_first() else {
            return;
        };
        let Some(mut status) = Status::from_u8(*status).filter(|_| is_read_number(number)) else {
            return;
        };
        let Some(read) = self.open.get_mut(&key).filter(|r| r.session == session) else {
            return;
        };
        if status == Status::Piece {
            let Some(piece) = Piece::parse(bytes) else {
                return;
            };
            match read.pieces.take(&piece) {
                Gathered::Waits => return,
                Gathered::Asks => return self.due.push(key),
                Gathered::Whole => {}
                Gathered::TooLong => status = Status::ReplyTooLarge,
            }
        }
        let Some(read) = self.open.remove(&key) else {
            return;
        };
        // The replica that has answered is asked first from now on.
        if read.tries > 0 {
            self.first = (self.first + read.tries) % self.replicas.len().max(1);
        }
        match status {
            Status::Piece => hand_on(pid, number, Status::Ok, &read.pieces.into_answer()),
            status => hand_on(pid, number, status, bytes),
        }
    }

    /// Gives up the reads of a partition, and returns their numbers in the order of submission.
    pub fn give_up(&mut self, pid: PartitionId) -> Vec<u64> {
        let of_partition = self.open.keys().filter(|(of, _)| *of == pid);
        let mut numbers: Vec<u64> = of_partition.map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        self.open.retain(|(of, _), _| *of != pid);
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::cluster_file::{ApplicationKind, Draft};
    use paxos::wire::value::{PackedItem, append_packed};

    const PATIENCE: Time = 50;
    const KEEP_ALIVE: Time = 1_000;
    const SESSION: u64 = 9;

    fn reads() -> Reads {
        let directory = std::env::temp_dir().join("wirepaxos-client-reads");
        let draft = Draft::on_loopback(&directory, ApplicationKind::Echo).unwrap();
        let cluster = draft.check().unwrap();
        let group = cluster.groups[0].id;
        let deployment = crate::session::deployment(&cluster, group).unwrap();
        let replicas: Vec<Node> = cluster.replicas(group).into_iter().cloned().collect();
        let home = replicas[1].id;
        Reads::new(deployment, replicas, home, [PATIENCE, KEEP_ALIVE])
    }

    /// Returns the reads that are sent: the replica, the number, and from which byte on.
    fn sent(reads: &mut Reads, now: Time) -> Vec<(usize, u64, u64)> {
        let replicas = reads.replicas.clone();
        let mut sent = Vec::new();
        reads.send(now, |to, header, command| {
            assert_eq!((header.client, command), (SESSION, &b"GET"[..]));
            let at = replicas.iter().position(|node| node.address_for(0) == to);
            sent.push((at.unwrap(), header.request, header.inst));
        });
        sent
    }

    fn told(reads: &mut Reads, session: u64, number: u64, answer: &[u8]) -> Vec<(u64, Status)> {
        let Deployment { cluster, group, .. } = reads.deployment;
        let header = Header {
            cluster,
            group,
            flags: Flags::PACKED,
            ..Header::new(MsgType::Reply)
        };
        let mut value = Vec::new();
        append_packed(
            &mut value,
            &PackedItem {
                client: session,
                request: number,
                bytes: answer,
            },
        );
        let datagram = header.datagram(&value);
        let mut told = Vec::new();
        reads.take(&Packet::parse(&datagram).unwrap(), |_, n, status, _| {
            told.push((n, status))
        });
        told
    }

    /// After a silent replica the next one is asked. [B-CLIENT]
    #[test]
    fn a_silent_replica_is_left_for_the_next_one() {
        let mut reads = reads();
        let number = reads.push((0, SESSION), b"GET", Freshness::Latest);
        assert_eq!(sent(&mut reads, 0), [(1, number, 0)]);
        assert!(reads.tick(PATIENCE - 1).is_empty());
        assert!(sent(&mut reads, PATIENCE - 1).is_empty());
        let _ = reads.tick(PATIENCE);
        assert_eq!(sent(&mut reads, PATIENCE), [(2, number, 0)]);
        let ok = [Status::Ok as u8, 1];
        let of_others = told(&mut reads, SESSION + 1, number, &ok);
        assert!(of_others.is_empty(), "not its session");
        assert_eq!(
            told(&mut reads, SESSION, number, &ok),
            [(number, Status::Ok)]
        );
        assert!(told(&mut reads, SESSION, number, &ok).is_empty(), "once");
        let next = reads.push((0, SESSION), b"GET", Freshness::Stale);
        assert_eq!(
            sent(&mut reads, 99),
            [(2, next, 0)],
            "who answered is asked"
        );
    }

    /// A client that hears nothing asks less and less often, and asks about its session. [B-CLIENT]
    #[test]
    fn who_hears_nothing_from_anybody_asks_more_and_more_rarely_and_about_its_session() {
        let mut reads = reads();
        let number = reads.push((0, SESSION), b"GET", Freshness::Latest);
        let mut now = 0;
        for n in 0..24 {
            let asked = sent(&mut reads, now);
            assert_eq!(asked, [([1, 2, 0][n % 3], number, 0)]);
            let next = reads.next_deadline().unwrap();
            let doublings = [0, 1, 2, 3, 4, 5, 5, 5][n / 3];
            assert_eq!(next - now, PATIENCE << doublings, "{n}");
            assert!(reads.tick(next - 1).is_empty() && sent(&mut reads, next - 1).is_empty());
            now = next;
            assert_eq!(reads.tick(now).is_empty(), n % 6 != 5, "{n}");
        }
        assert!(reads.give_up(1).is_empty());
        assert_eq!(reads.give_up(0), [number]);
        assert_eq!(reads.next_deadline(), None);
    }

    #[test]
    fn a_client_that_only_reads_names_its_sessions_now_and_then() {
        let mut reads = reads();
        assert!(!reads.must_keep_alive(KEEP_ALIVE - 1));
        assert!(reads.must_keep_alive(KEEP_ALIVE));
        assert!(!reads.must_keep_alive(KEEP_ALIVE + 1));
    }
}
