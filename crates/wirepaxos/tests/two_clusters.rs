// SPDX-License-Identifier: Apache-2.0
//! Two clusters were given the same addresses. One serves; the controller of the other one, which
//! is older and was forgotten, comes back while the controller in force is away. [E-VIEW]

mod nodes;

use std::net::UdpSocket;

use control::{EpochRecord, EpochState, Message, View};
use node::ControlPeers;
use nodes::{CONTROLLER, Cluster, Commands, TempDir, repeat};
use paxos::{Configuration, Member};

/// Nodes that both clusters have at the same addresses.
const SHARED: [&str; 3] = ["leader", "acceptor-1", "replica-1"];

/// Returns a member of a running cluster, as it names itself.
fn member(cluster: &Cluster, name: &str) -> Member {
    Member {
        node: cluster.file.node(name).unwrap().id,
        nonce: cluster.shown(name, "/groups/0/nonce"),
    }
}

/// Returns orders that would bring about an epoch of one acceptor, which is later than all others.
fn orders_of_one_acceptor(leader: Member, acceptor: Member, replica: u16) -> Vec<Message> {
    let configuration = Configuration {
        epoch: 900,
        leader,
        acceptors: vec![acceptor],
        f: 0,
        replicas: vec![replica],
        g: 0,
    };
    let view = View {
        version: 900,
        epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
        ..View::nothing(0)
    };
    let enable = Message::EnableAcceptor {
        group: 0,
        epoch: 900,
        nonce: acceptor.nonce,
        trim: vec![0],
        end: vec![0],
        replicas: vec![replica],
        g: 0,
    };
    let program = Message::ProgramLeader {
        group: 0,
        epoch: 900,
        nonce: leader.nonce,
        next: vec![0],
        trimmed: vec![0],
        window: 64,
        acceptors: vec![acceptor.node],
        f: 0,
        replicas: vec![replica],
        g: 0,
    };
    vec![Message::View(view), enable, program]
}

#[test]
fn an_old_controller_at_the_same_addresses_changes_nothing() {
    let dir = TempDir::new("two-clusters");
    let host = node::loopback::draw().unwrap();
    let mut old = Cluster::new(&dir.0, host, 0x01d0_01d0, 1);
    let mut new = Cluster::new(&dir.0, host, 0x4e40_4e40, 3);

    // The old cluster has one acceptor, and a later epoch than the new cluster will have.
    old.start_all();
    let mut last = old.epoch_after(0);
    for _ in 0..4 {
        old.order_an_epoch(last, false);
        last = old.epoch_after(last);
    }
    Commands::open(&old).some();
    old.stop_all();

    new.start_all();
    let epoch = new.epoch_after(0);
    assert!(epoch < last);
    let mut commands = Commands::open(&new);
    commands.some();
    // Every replica has a number, since a question that is open when a controller goes costs its
    // successor an epoch.
    let is_numbered = |replica: &str| new.shown(replica, "/partitions/0/incarnation") > 0;
    repeat(|| {
        let mut replicas = ["replica-1", "replica-2", "replica-3"].into_iter();
        replicas.all(is_numbered).then_some(())
    });

    // The old cluster's controller comes back, with orders of its operator, and has the address for
    // itself.
    new.stop(CONTROLLER);
    old.start(CONTROLLER);
    repeat(|| {
        old.order_an_epoch(last, false);
        commands.some();
        let heard = |name: &&str| {
            let of_packets = match *name {
                "replica-1" => "/partitions/0/dropped/wrong_cluster",
                _ => "/counters/dropped/wrong_cluster",
            };
            new.shown(name, of_packets) > 0
        };
        SHARED.iter().all(heard).then_some(())
    });
    assert_eq!(old.shown(CONTROLLER, "/groups/0/active"), u64::from(last));
    old.stop(CONTROLLER);

    // The old controller might even know the boot nonces of the nodes that have its nodes'
    // addresses now.
    let [leader, acceptor, replica] = SHARED.map(|name| member(&new, name));
    let its_orders = orders_of_one_acceptor(leader, acceptor, replica.node);
    let socket = UdpSocket::bind(old.control(CONTROLLER)).unwrap();
    let peers = ControlPeers::new(&old.file, 1);
    let heard = |name: &str| new.shown(name, "/control/wrong_cluster");
    let before = SHARED.map(heard);
    for name in SHARED {
        for order in &its_orders {
            let bytes = peers.seal(new.control(name), order).unwrap();
            socket.send_to(&bytes, new.control(name)).unwrap();
        }
    }
    for (name, before) in SHARED.into_iter().zip(before) {
        repeat(|| (heard(name) >= before + 3).then_some(()));
    }
    commands.some();
    drop(socket);

    // The new cluster has its own controller again, and goes through an epoch of its own.
    new.start(CONTROLLER);
    assert_eq!(new.epoch_after(epoch - 1), epoch);
    new.order_an_epoch(epoch, false);
    new.epoch_after(epoch);
    commands.some();
    repeat(|| new.replicas_are_equal().then_some(()));
    new.stop_all();
}
