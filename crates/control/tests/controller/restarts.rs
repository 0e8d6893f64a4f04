// SPDX-License-Identifier: Apache-2.0
//! Acceptors that are read from disk.

use control::Message;
use paxos::acceptor::Start;

use crate::world::{ACCEPTORS, GROUP, World};

const ALIVE: u64 = 500;

fn voted(world: &mut World, inst: u64) {
    let epoch = world.epoch();
    world.stamp(epoch, 0, inst);
    world.stamp(epoch, 1, inst);
    world.run(100);
}

/// Checks that acceptor 3 may go on.
fn goes_on(world: &mut World) {
    assert!(world.run_until(ALIVE, |w| !w.net.acceptors[&3].is_mute()));
}

/// Checks that this many starts were allowed to go on before acceptor 3's memory was put aside.
fn put_aside_after(world: &World, starts: usize) {
    let found = (world.resumed.len(), world.discarded.as_slice());
    assert_eq!(found, (starts, &[3][..]));
}

#[test]
fn a_restarted_acceptor_goes_on_as_the_member_that_it_was() {
    let mut world = World::started();
    voted(&mut world, 5);
    world.restart(3);
    assert!(world.net.acceptors[&3].is_mute());
    goes_on(&mut world);
    assert_eq!(world.resumed.len(), 1);
    world.run(ALIVE);
    assert_eq!((world.epoch(), world.discarded.len()), (1, 0));
    let start = world.net.acceptors[&3].start().number();
    let stored = world.state().memories;
    assert!(stored.iter().any(|m| m.node == 3 && m.start == start));
}

/// An acceptor that restarts with an old copy of its memory is emptied and joins again. [A-COMPARE]
/// [A-DISCARD]
#[test]
fn an_old_copy_is_emptied_and_joins_again() {
    let mut world = World::started();
    voted(&mut world, 5);
    let copy = world.saved(3);
    let nonce = world.net.acceptors[&3].nonce();
    voted(&mut world, 6);
    world.restart_from(3, &copy);
    world.run_until(3_000, |w| {
        w.epoch() == 2 && w.net.acceptors[&3].epoch() == 2
    });
    assert_eq!(world.discarded, [3]);
    assert!(world.resumed.is_empty(), "an old copy never goes on");
    assert_ne!(world.net.acceptors[&3].nonce(), nonce);
}

/// Files that a stop had left are used a second time, after a kill. What they show was true once,
/// and the start that they lead to was allowed to go on before. [A-COMPARE]
#[test]
fn a_copy_that_makes_a_start_twice_is_noticed_by_the_start() {
    let mut world = World::started();
    let copy = world.saved(3);
    world.restart_from(3, &copy);
    goes_on(&mut world);
    world.restart_from(3, &copy);
    world.run(ALIVE);
    put_aside_after(&world, 1);
}

/// A controller that starts later also notices the old copy, by what the store has of that memory.
/// [A-COMPARE]
#[test]
fn a_later_controller_notices_by_what_is_stored() {
    let mut world = World::started();
    let copy = world.saved(3);
    world.restart(3);
    goes_on(&mut world);
    world.kill_controller();
    world.restart_from(3, &copy);
    world.run(ALIVE);
    assert!(world.net.acceptors[&3].is_mute(), "nobody has compared it");
    world.start_controller();
    world.run(ALIVE);
    put_aside_after(&world, 1);
}

/// The copy starts again before the first start was compared, each time with another controller.
/// What it shows is no less than what is stored, but it wasn't at the start that went on.
#[test]
fn a_copy_that_starts_more_often_than_its_original_does_not_know_the_last_start() {
    let mut world = World::started();
    let copy = world.saved(3);
    world.restart(3);
    goes_on(&mut world);
    let stored = world.state();
    voted(&mut world, 5);
    world.kill_controller();
    world.shared.put(stored);
    world.restart_from(3, &copy);
    for _ in 0..4 {
        world.restart(3);
        world.start_controller();
        world.run(20);
        world.kill_controller();
    }
    world.start_controller();
    world.run(ALIVE);
    put_aside_after(&world, 1);
}

/// Whichever of two copies goes on first is the memory from then on, also if the controller never
/// sees it go on.
#[test]
fn of_two_copies_one_goes_on() {
    for seen in [false, true] {
        let mut world = World::started();
        let copy = world.saved(3);
        world.restart_from(3, &copy);
        goes_on(&mut world);
        if seen {
            world.run(ALIVE);
        }
        world.restart_from(3, &copy);
        for _ in 0..5 {
            world.restart(3);
            world.run(7);
        }
        world.run(ALIVE);
        put_aside_after(&world, 1);
    }
}

/// An answer is true for ever, but says nothing of a later question.
#[test]
fn an_answer_about_an_earlier_question_lets_nobody_go_on() {
    let mut world = World::started();
    let copy = world.saved(3);
    world.restart(3);
    goes_on(&mut world);
    world.restart_from(3, &copy);
    world.restart(3);
    let memory = &world.net.acceptors[&3];
    let late = Message::EarlierStart {
        group: GROUP,
        node: 3,
        nonce: memory.nonce(),
        start: memory.start().number(),
        earlier: Start::FIRST.number(),
        known: true,
    };
    for _ in 0..50 {
        world.answers.push((3, late.clone()));
        world.run(10);
    }
    put_aside_after(&world, 1);
}

/// Otherwise question and answer would follow each other as fast as the network goes.
#[test]
fn an_answer_that_cannot_be_stored_draws_no_further_question() {
    let mut world = World::started();
    world.shared.0.borrow_mut().store.failing = Some("no space left on device".into());
    world.restart(3);
    world.run(1_000);
    let (asked, resumed) = (world.asked, world.resumed.len());
    assert!((1..100).contains(&asked), "{asked}");
    assert_eq!(resumed, 0);
    world.shared.0.borrow_mut().store.failing = None;
    goes_on(&mut world);
    assert!(world.discarded.is_empty());
}

#[test]
fn an_older_store_takes_no_healthy_memory_for_a_copy() {
    let mut world = World::started();
    let older = world.state();
    for _ in 0..20 {
        world.restart(3);
        goes_on(&mut world);
    }
    world.kill_controller();
    world.shared.put(older);
    world.start_controller();
    world.restart(3);
    goes_on(&mut world);
    assert!(world.discarded.is_empty());
}

#[test]
fn a_memory_that_the_store_has_never_seen_goes_on() {
    let mut world = World::started();
    world.restart(3);
    goes_on(&mut world);
    world.kill_controller();
    let mut state = world.state();
    state.memories.clear();
    world.shared.put(state);
    world.restart(3);
    world.start_controller();
    goes_on(&mut world);
    assert!(world.discarded.is_empty());
}

/// Nobody has asked for the starts in between, so nobody can name them.
#[test]
fn any_number_of_starts_that_nobody_compared_is_healthy() {
    let mut world = World::started();
    world.kill_controller();
    for _ in 0..300 {
        world.restart(3);
    }
    world.start_controller();
    goes_on(&mut world);
    assert!(world.discarded.is_empty());
}

#[test]
fn an_orderly_stop_stores_positions() {
    let mut world = World::started();
    voted(&mut world, 7);
    let copy = world.saved(3);
    voted(&mut world, 8);
    world.stop_controller();
    world.restart_from(3, &copy);
    world.start_controller();
    world.run(ALIVE);
    put_aside_after(&world, 0);
}

/// Positions are stored while they move on, not with each answer.
#[test]
fn positions_reach_the_store() {
    let mut world = World::started();
    voted(&mut world, 7);
    let changes = world.shared.0.borrow().changes;
    let copy = world.saved(3);
    voted(&mut world, 8);
    world.run(12_000);
    let written = world.shared.0.borrow().changes - changes;
    assert!((1..=3).contains(&written), "{written} writes");
    world.run(60_000);
    let idle = world.shared.0.borrow().changes - changes - written;
    assert_eq!(idle, 0, "nothing moved on");
    world.kill_controller();
    world.restart_from(3, &copy);
    world.start_controller();
    world.run(ALIVE);
    put_aside_after(&world, 0);
}

/// If more than f acceptors have forgotten votes, their files are kept until an operator decides.
/// [A-DISCARD]
#[test]
fn what_more_than_f_have_forgotten_is_kept_until_an_operator_says_otherwise() {
    let mut world = World::started();
    voted(&mut world, 5);
    let copies: Vec<_> = [3, 4].map(|node| (node, world.saved(node))).into();
    voted(&mut world, 6);
    for (node, copy) in &copies {
        world.restart_from(*node, copy);
    }
    world.run(3_000);
    assert!(world.discarded.is_empty() && world.resumed.is_empty());
    let warnings = world.warnings();
    assert!(
        warnings.contains("ACCEPTOR 3 HAS FORGOTTEN VOTES") && warnings.contains("so it is kept"),
        "{warnings}"
    );
    for _ in 0..3 {
        world.failover(None, true);
        world.run(1_000);
    }
    assert_eq!(world.discarded.len(), 2);
    assert!(world.is_served(), "{}", world.warnings());
}

/// A restarted acceptor may go on only after its start is in the store. [A-COMPARE]
#[test]
fn no_start_goes_on_before_it_is_stored() {
    let mut world = World::started();
    world.shared.0.borrow_mut().store.failing = Some("the disk is full".into());
    world.restart(3);
    world.run(ALIVE);
    assert!(world.net.acceptors[&3].is_mute());
    world.shared.0.borrow_mut().store.failing = None;
    goes_on(&mut world);
}

/// Crashes of acceptors and of the controller, half of all packets and orders lost, votes all the
/// time.
#[test]
fn a_hundred_healthy_restarts_are_never_taken_for_forgetting() {
    let mut world = World::started();
    world.set_loss(50);
    for i in 0..100 {
        let node = ACCEPTORS[i % ACCEPTORS.len()];
        if i % 7 == 3 {
            world.kill_controller();
        }
        let epoch = world.epoch().max(1);
        world.stamp(epoch, 0, i as u64 % 40);
        world.restart(node);
        if world.controller.is_none() {
            world.start_controller();
        }
        world.run((i as u64 * 37) % 200);
    }
    world.set_loss(0);
    assert!(world.run_until(5_000, |w| w.net.acceptors.values().all(|a| !a.is_mute())));
    assert!(world.discarded.is_empty(), "{:?}", world.discarded);
}

#[test]
fn all_at_once_come_back_by_themselves() {
    let mut world = World::started();
    voted(&mut world, 5);
    world.kill_controller();
    for node in ACCEPTORS {
        world.restart(node);
    }
    for leader in crate::world::LEADERS {
        world.boot(leader);
    }
    world.start_controller();
    assert!(world.run_until(5_000, |w| w.epoch() == 2 && w.is_served()));
    assert!(world.discarded.is_empty());
}

/// A PROBE that is late reaches the process after the one that answered the next PROBE, and the
/// answers come in the order of neither.
#[test]
fn a_late_answer_of_the_start_before_is_stale() {
    use paxos::outbox::Sent;
    use paxos::wire::value::{Probe, ProbeReport};
    use paxos::{Header, MsgType, Packet, Reason};
    let mut suspicion =
        control::suspicion::Suspicion::new(crate::world::deployment(9), Probe::Acceptor, 10, 9, 44);
    suspicion.watch(Probe::Acceptor, 3);
    let mut out = Sent::default();
    let mut probes = 0;
    let mut probe = |suspicion: &mut control::suspicion::Suspicion| {
        probes += 10;
        suspicion.probe(probes, &mut out);
        out.0.last().unwrap().1
    };
    let answer = |probe: Header, start: u64| {
        let report = ProbeReport {
            nonce: 5,
            trim: 0,
            start,
        };
        let header = Header {
            msgtype: MsgType::ProbeAck,
            swid: 3,
            value_len: ProbeReport::LEN as u16,
            ..probe
        };
        header.datagram(&report.emit())
    };
    let (before, after) = (Start::FIRST, Start::FIRST.next(7));
    let (late, next) = (probe(&mut suspicion), probe(&mut suspicion));
    let give = |suspicion: &mut control::suspicion::Suspicion, datagram: &[u8]| {
        suspicion.answer(&Packet::parse(datagram).unwrap())
    };
    let told = give(&mut suspicion, &answer(late, after.shown(true)));
    assert_eq!(told, Ok(Probe::Acceptor));
    let told = give(&mut suspicion, &answer(next, before.shown(false)));
    assert_eq!(told, Err(Reason::Stale), "it was asked before");
    let watched = suspicion.get(Probe::Acceptor, 3).unwrap();
    assert_eq!((watched.start, watched.mute), (Some(after), true));
    // An answer to a question that was asked after the later start had been seen isn't late.
    let newest = probe(&mut suspicion);
    let told = give(&mut suspicion, &answer(newest, before.shown(false)));
    assert_eq!(told, Ok(Probe::Acceptor));
    assert_eq!(
        suspicion.get(Probe::Acceptor, 3).unwrap().start,
        Some(before)
    );
}
