// SPDX-License-Identifier: Apache-2.0
//! Learners as nodes of their own, between acceptors and a replica that the test plays.

mod common;

use std::cell::{Cell, RefCell};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::{Bed, end, leading_epoch};
use control::{EpochRecord, EpochState, Message, View};
use node::ControlPeers;
use paxos::{Configuration, Header, Member, MsgType, Packet, PartitionId};
use serde_json::Value;

const NODES: [(&str, &str); 8] = [
    ("controller", "controller"),
    ("leader", "leader"),
    ("acceptor-1", "acceptor"),
    ("acceptor-2", "acceptor"),
    ("acceptor-3", "acceptor"),
    ("replica", "replica"),
    ("learner-1", "learner"),
    ("learner-2", "learner"),
];
const PARTITIONS: PartitionId = 2;
/// After this time a command is sent again.
const PATIENCE: Duration = Duration::from_millis(200);

/// The replica's sockets, and what has come there.
struct Replica {
    bed: Bed,
    sockets: Vec<UdpSocket>,
    client: UdpSocket,
    requests: Cell<u64>,
}

impl Replica {
    fn new(test: &str) -> Replica {
        let group = "id = 3\napplication = \"echo\"\npartitions = 2\nslots = 256";
        let bed = Bed::new(test, group, &NODES);
        let node = bed.cluster.node("replica").unwrap();
        let socket = |address| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let sockets = (0..PARTITIONS).map(|pid| socket(node.partition_address(pid)));
        Replica {
            sockets: sockets.collect(),
            client: UdpSocket::bind("127.0.0.1:0").unwrap(),
            requests: Cell::new(0),
            bed,
        }
    }

    /// Submits commands until one of them is delivered from `learner`; returns its header. What a
    /// learner that has ended since said of earlier ones doesn't count. The limit is there only so
    /// that a failing test ends.
    fn delivered(&self, pid: PartitionId, learner: &str) -> Header {
        let learner = self.bed.cluster.node(learner).unwrap().id;
        let first = self.requests.get() + 1;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            self.submit(pid);
            while let Some((header, value)) = self.receive(pid) {
                assert_eq!(header.pid, pid);
                if header.swid == learner && header.request >= first {
                    let expected = format!("value {}", header.request);
                    assert_eq!(String::from_utf8_lossy(&value), expected);
                    return header;
                }
            }
        }
        panic!("nothing is delivered by node {learner}");
    }

    fn submit(&self, pid: PartitionId) {
        self.requests.set(self.requests.get() + 1);
        let header = Header {
            cluster: self.bed.cluster.cluster,
            group: 3,
            pid,
            client: 5,
            request: self.requests.get(),
            ..Header::new(MsgType::Request)
        };
        let value = format!("value {}", self.requests.get());
        let leader = self.bed.cluster.node("leader").unwrap().address;
        let datagram = header.datagram(value.as_bytes());
        self.client.send_to(&datagram, leader).unwrap();
    }

    /// Returns the next packet that carries a command. Markers and probes are skipped; a vote is an
    /// error.
    fn receive(&self, pid: PartitionId) -> Option<(Header, Vec<u8>)> {
        let mut buffer = vec![0; 2048];
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let n = self.sockets[usize::from(pid)].recv(&mut buffer).ok()?;
            let packet = Packet::parse(&buffer[..n]).unwrap();
            let h = packet.header;
            assert_ne!(h.msgtype, MsgType::Phase2b, "a vote came to a replica");
            if h.msgtype == MsgType::Deliver && h.client == 5 {
                return Some((h, packet.value.to_vec()));
            }
        }
        None
    }
}

fn decided(document: &Value) -> u64 {
    let sent = &document["counters"]["sent"]["deliver"];
    sent.as_u64().unwrap_or_default()
}

fn knows(epoch: u64) -> impl Fn(&Value) -> Option<()> {
    move |document| (document["groups"][0]["epoch"] == epoch).then_some(())
}

#[test]
fn learners_count_the_votes_and_tell_the_replicas_and_may_come_and_go() {
    let replica = Replica::new("learner");
    let others = ["acceptor-1", "acceptor-2", "acceptor-3", "leader"];
    let others = others.map(|name| replica.bed.start(name));
    let (first, second) = (
        replica.bed.start("learner-1"),
        replica.bed.start("learner-2"),
    );
    let controller = replica.bed.start("controller");
    let epoch = replica.bed.until("leader", leading_epoch);

    for pid in 0..PARTITIONS {
        for learner in ["learner-1", "learner-2"] {
            let header = replica.delivered(pid, learner);
            assert_eq!(u64::from(header.rnd.epoch()), epoch);
        }
    }
    replica.bed.until("learner-1", knows(epoch));
    replica
        .bed
        .until("learner-1", |d| (decided(d) >= 2).then_some(()));

    // One learner node is enough, and one that starts with no memory takes part again. The
    // controller tells it nothing; it asks when it sees a vote.
    end(first);
    replica.delivered(0, "learner-2");
    let first = replica.bed.start("learner-1");
    replica.delivered(1, "learner-1");
    end(second);
    replica.delivered(0, "learner-1");

    // A learner node ignores packets that are no votes or don't come from a node.
    let learner = replica.bed.cluster.node("learner-1").unwrap().address;
    for msgtype in [MsgType::Request, MsgType::Phase2b] {
        let stranger = Header {
            cluster: replica.bed.cluster.cluster,
            group: 3,
            client: 5,
            swid: 1,
            ..Header::new(msgtype)
        };
        let datagram = stranger.datagram(&[]);
        replica.client.send_to(&datagram, learner).unwrap();
    }
    replica.bed.until("learner-1", |document| {
        let dropped = &document["counters"]["dropped"];
        let both = dropped["not_for_role"] == 1 && dropped["foreign_address"] == 1;
        both.then_some(())
    });

    for running in others.into_iter().chain([first, controller]) {
        end(running);
    }
}

/// Epochs come and go while a learner is away, and the controller is away when it is back.
#[test]
fn a_learner_asks_for_the_epoch_of_a_vote_that_it_cant_judge() {
    let replica = Replica::new("learner-asks");
    let others = ["acceptor-1", "acceptor-2", "acceptor-3", "leader"];
    let others = others.map(|name| replica.bed.start(name));
    let controller = replica.bed.start("controller");
    let epoch = replica.bed.until("leader", leading_epoch);
    end(controller);
    let learner = replica.bed.start("learner-1");
    // Votes of an epoch that nobody can tell it about.
    replica.bed.until("learner-1", |document| {
        replica.submit(0);
        let dropped = document["counters"]["dropped"]["unknown_epoch"].as_u64();
        (dropped >= Some(3)).then_some(())
    });
    replica.bed.until("learner-1", |d| {
        d["groups"][0]["epoch"].is_null().then_some(())
    });
    let controller = replica.bed.start("controller");
    replica.delivered(0, "learner-1");
    replica.bed.until("learner-1", knows(epoch));

    // A later epoch is told before its votes come, or asked for.
    let order = Message::Failover {
        group: 3,
        epoch: epoch as u32,
        to: None,
        forced: true,
        accept_data_loss: false,
    };
    let to = replica.bed.cluster.controller_node().control;
    let peers = ControlPeers::new(&replica.bed.cluster, control::OUTSIDE);
    let operator = UdpSocket::bind((to.ip(), 0)).unwrap();
    operator.set_read_timeout(Some(PATIENCE)).unwrap();
    let buffer = RefCell::new(vec![0; 65_536]);
    let later = replica.bed.until("leader", |document| {
        let bytes = peers.seal(to, &order).unwrap();
        operator.send_to(&bytes, to).unwrap();
        let received = operator.recv(&mut buffer.borrow_mut()[..]);
        if let Ok(n) = received {
            // A challenge, which is answered next time. [E-CHALLENGE]
            let _ = peers.open(&buffer.borrow()[..n], to);
        }
        leading_epoch(document).filter(|later| *later > epoch)
    });
    let delivered = replica.delivered(0, "learner-1");
    assert_eq!(u64::from(delivered.rnd.epoch()), later);

    for running in others.into_iter().chain([learner, controller]) {
        end(running);
    }
}

/// There may be a second store under the same cluster number. A node that goes on counting votes by
/// the first configuration it was told might take a value for decided that isn't. [E-ONE]
#[test]
fn who_counts_votes_and_is_told_one_epoch_in_two_ways_stops() {
    let group = "id = 3\napplication = \"echo\"\n";
    let bed = Bed::new("contradiction", group, &NODES);
    let controller = bed.cluster.controller_node();
    let socket = UdpSocket::bind(controller.control).unwrap();
    let peers = ControlPeers::new(&bed.cluster, controller.id);
    for (name, shows_epoch) in [("learner-1", "/groups/0/epoch"), ("replica", "/epoch")] {
        let to = bed.cluster.node(name).unwrap().control;
        let tell = |nonce| {
            let view = Message::View(view_of_epoch_4(nonce));
            let bytes = peers.seal(to, &view).unwrap();
            socket.send_to(&bytes, to).unwrap();
        };
        let (_, thread) = bed.start(name);
        bed.until(name, |document| {
            tell(1);
            let known = document.pointer(shows_epoch)?;
            (*known == 4 && document["control"]["unknown_sender"] == 0).then_some(())
        });
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            tell(2);
            std::thread::sleep(Duration::from_millis(10));
        }
        let why = thread.join().unwrap().unwrap_err().to_string();
        let expected = "epoch 4 was told with two configurations";
        assert!(why.contains(expected), "{name}: {why}");
        assert!(why.contains("stop every other"), "{name}: {why}");
    }
}

fn view_of_epoch_4(nonce: u64) -> View {
    let member = |node| Member { node, nonce };
    let configuration = Configuration {
        epoch: 4,
        leader: member(2),
        acceptors: vec![member(3), member(4), member(5)],
        f: 1,
        replicas: vec![6],
        g: 0,
    };
    View {
        version: nonce,
        epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
        ..View::nothing(3)
    }
}
