// SPDX-License-Identifier: Apache-2.0
//! Who is suspected: nodes that are silent, and leaders whose ports are closed. [E-SUSPECT]
//! [E-EVIDENCE]

use control::suspicion::Suspicion;
use paxos::outbox::Sent;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{Header, Instance, MsgType, NodeId, Packet, Reason, Time};

use crate::world::{self, ACCEPTORS, LEADERS, REPLICAS, World};

const LEADER: NodeId = LEADERS[0];
const INTERVAL: Time = 10;

// ---- Silence ---------------------------------------------------------------------------------

/// A node isn't suspected because a few probes were lost. [E-SUSPECT]
#[test]
fn a_few_lost_probes_make_no_suspect() {
    let mut world = World::started();
    for _ in 0..20 {
        world.net.down.insert(LEADER);
        world.run(70);
        world.net.down.clear();
        world.run(60);
    }
    assert_eq!(world.epoch(), 1);
}

/// A controller that stood still for long suspects nobody, since it counts probes and not time.
/// [E-SUSPECT]
#[test]
fn a_controller_that_was_held_up_suspects_nobody() {
    let mut world = World::started();
    for _ in 0..10 {
        world.skip(5_000);
        world.run(50);
    }
    assert_eq!(world.epoch(), 1);
}

/// A late answer to an old probe doesn't make a node count as alive. [E-SUSPECT]
#[test]
fn an_answer_from_the_past_makes_nobody_alive() {
    let mut suspicion = Suspicion::new(world::deployment(9), Probe::Acceptor, INTERVAL, 3, 44);
    suspicion.watch(Probe::Leader, LEADER);
    let mut out = Sent::default();
    for round in 0..10 {
        assert!(suspicion.probe(round * INTERVAL, &mut out));
    }
    let answers: Vec<Ack> = out.0.iter().map(|sent| ack(&sent.1, 0)).collect();
    for old in &answers[..7] {
        assert_eq!(suspicion.answer(&old.packet()), Err(Reason::Stale));
    }
    assert!(!suspicion.is_alive(Probe::Leader, LEADER));
    let latest = answers[9].packet();
    assert_eq!(suspicion.answer(&latest), Ok(Probe::Leader));
    assert_eq!(suspicion.answer(&latest), Err(Reason::Stale), "once");
    assert_eq!(suspicion.memory(Probe::Leader, LEADER), Some(5));
    let is_alive = suspicion.is_alive(Probe::Acceptor, LEADER);
    assert!(!is_alive, "another role of that node");
}

// ---- Evidence --------------------------------------------------------------------------------

#[test]
fn a_leader_whose_port_is_closed_is_replaced_without_waiting_for_silence() {
    let mut world = started();
    world.net.down.insert(LEADER);
    refuse(&mut world, LEADER);
    assert_eq!((world.epoch(), world.leader()), (2, LEADERS[1]));
    world.run(100);
    let status = world.controller.as_ref().unwrap().status(world.now());
    let last = status.groups[0].last_failover.as_ref().unwrap();
    assert_eq!(last.reason, "leader 1 is dead: nobody has its port");
    assert!(world.is_served());
}

/// The machine beside a DPDK port or a program in the kernel says so of a leader that is alive.
#[test]
fn a_closed_port_is_no_evidence_of_a_leader_that_is_not_on_sockets() {
    let mut world = World::started();
    refuse(&mut world, LEADER);
    world.run(100);
    assert_eq!((world.epoch(), world.leader()), (1, LEADER));
}

#[test]
fn a_closed_port_of_a_member_that_may_be_down_changes_nothing() {
    let mut world = started();
    for node in [LEADERS[1], ACCEPTORS[0], REPLICAS[0], 999] {
        refuse(&mut world, node);
    }
    world.run(1_000);
    assert_eq!(world.epoch(), 1);
    assert_eq!(world.warnings(), "");
}

/// A leader that has never answered may be starting.
#[test]
fn a_closed_port_at_the_first_start_is_no_evidence() {
    let mut world = on_sockets(World::new());
    world.net.down.insert(LEADER);
    refuse(&mut world, LEADER);
    world.net.down.clear();
    assert!(world.run_until(1_000, |w| w.is_served()));
    assert_eq!((world.epoch(), world.leader()), (1, LEADER));
}

/// Forged messages make epochs no faster than [E-PACE] allows, and the service goes on.
#[test]
fn forged_messages_cost_no_more_epochs_than_may_come() {
    let mut world = started();
    for _ in 0..5_000 {
        let leader = world.leader();
        refuse(&mut world, leader);
        world.run(1);
    }
    let epochs = world.epoch();
    assert!((2..=1 + 8 + 5).contains(&epochs), "{epochs} epochs");
    assert!(world.run_until(2_000, |w| w.is_served()));
}

#[test]
fn a_live_leader_that_was_suspected_by_mistake_serves_again() {
    let mut world = started();
    world.net.down.insert(LEADERS[1]);
    world.run(1_000);
    refuse(&mut world, LEADER);
    world.run(1_000);
    assert_eq!((world.epoch(), world.leader()), (1, LEADER), "it answers");
    assert!(world.is_served());
}

/// A leader is asked often while its position moves, and not more often than others otherwise.
#[test]
fn a_port_is_asked_for_while_its_leader_is_at_work() {
    let mut suspicion = Suspicion::new(world::deployment(9), Probe::Acceptor, INTERVAL, 3, 44);
    suspicion.watch(Probe::Leader, LEADER);
    let deadline = |s: &Suspicion| s.knock_deadline(Probe::Leader, LEADER);
    let mut now = 0;
    let mut answer = |suspicion: &mut Suspicion, inst: Instance| {
        let mut out = Sent::default();
        assert!(suspicion.probe(now, &mut out));
        now += INTERVAL;
        let (_, header, _) = &out.0[0];
        suspicion.answer(&ack(header, inst).packet()).unwrap();
    };
    for _ in 0..6 {
        answer(&mut suspicion, 5);
    }
    assert_eq!(deadline(&suspicion), Time::MAX);
    answer(&mut suspicion, 6);
    assert_eq!(deadline(&suspicion), Time::MAX, "once is no work");
    answer(&mut suspicion, 7);
    assert!(deadline(&suspicion) < Time::MAX, "it moves on");
    let mut out = Sent::default();
    suspicion.knock(100, Probe::Leader, LEADER, 2, &mut out);
    assert_eq!(out.0.len(), 1);
    assert_eq!(deadline(&suspicion), 102);
    let again = ack(&out.0[0].1, 7);
    assert_eq!(suspicion.answer(&again.packet()), Ok(Probe::Leader));
    for _ in 0..6 {
        answer(&mut suspicion, 7);
    }
    assert_eq!(deadline(&suspicion), Time::MAX, "it rests");
}

/// Returns a cluster whose first epoch is in force, with leaders on sockets.
fn started() -> World {
    let mut world = on_sockets(World::new());
    assert!(world.run_until(3_000, |w| w.is_served()));
    world
}

fn on_sockets(mut world: World) -> World {
    world.settings.on_sockets = LEADERS.to_vec();
    world.start_controller();
    world
}

/// Tells the controller that nobody has the port of this node.
fn refuse(world: &mut World, node: NodeId) {
    let now = world.now();
    world.give(|controller, out| controller.refused(now, node, out));
}

struct Ack(Header, Vec<u8>);

impl Ack {
    fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.0,
            tag: None,
            value: &self.1,
        }
    }
}

fn ack(question: &Header, inst: Instance) -> Ack {
    let report = ProbeReport {
        nonce: 5,
        trim: 0,
        start: 0,
    };
    let header = Header {
        msgtype: MsgType::ProbeAck,
        swid: LEADER,
        inst,
        ..*question
    };
    Ack(header, report.emit().to_vec())
}

// ---- Who doesn't count ------------------------------------------------------------------------

/// While another acceptor is down no epoch can name the new memory, so the next failure would stop
/// the group.
#[test]
fn a_member_that_lost_its_memory_is_a_warning_until_it_counts() {
    let mut world = World::started();
    world.net.down.insert(ACCEPTORS[0]);
    world.run(500);
    world.boot(ACCEPTORS[2]);
    world.run(500);
    let warnings = world.warnings();
    assert!(
        warnings.contains("acceptor 5 has another memory"),
        "{warnings}"
    );
    world.net.down.clear();
    assert!(world.run_until(2_000, |w| w.epoch() == 2 && w.is_served()));
    world.run(500);
    assert_eq!(world.warnings(), "");
}
