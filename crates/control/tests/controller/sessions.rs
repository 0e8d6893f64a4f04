// SPDX-License-Identifier: Apache-2.0
//! The controller with real sequencers and real NOPaxos replicas.

mod controllers;
mod logs;

use super::session_world::{REPLICAS, SEQUENCERS, World};
use super::world::{CONTROLLER, GROUP, PARTITIONS};
use control::{EpochState, Message, Peer, Protocol};
use paxos::nopaxos::{Status, view};
use paxos::round::MAX_EPOCH;
use paxos::{Epoch, NodeId, Round};
use test_world::Rng;
use test_world::network::Rates;

/// Sends commands for each partition, and everything that follows from them, `n` times.
fn commands(world: &mut World, n: usize) {
    for _ in 0..n {
        world.request();
        world.run(5);
    }
}

/// Checks that the group serves in a session, commits a command there, and has lost nothing.
fn goes_on_in(world: &mut World, session: Epoch) {
    let served = |w: &World| w.session() == session && w.is_served();
    assert!(world.run_until(3_000, served), "{}", world.report());
    // The checkpoints make room in the window.
    for node in members(world).into_iter().map(|member| member.0) {
        if !world.down.contains(&node) {
            world.checkpoint(node);
        }
    }
    world.run(50);
    let before: Vec<_> = (0..PARTITIONS).map(|pid| world.committed(pid)).collect();
    commands(world, 10);
    for pid in 0..PARTITIONS {
        let now = world.committed(pid);
        assert!(now >= before[usize::from(pid)] + 10, "{now}");
    }
    assert_eq!(world.session(), session, "{}", world.last_reason());
    world.check();
}

/// Parts per million that are lost, and that others overtake.
fn rates(loss: u32, slow: u32) -> Rates {
    Rates {
        loss,
        slow,
        ..Rates::PERFECT
    }
}

fn members(world: &World) -> Vec<(NodeId, u64)> {
    world.state().in_force().unwrap().acceptors.clone()
}

// ---- The first one ---------------------------------------------------------------------------

/// A new cluster starts in session 1 once all replicas have answered. [E-FIRST] [F-ACTIVE]
#[test]
fn a_cluster_starts_in_session_1_once_all_replicas_have_answered() {
    let mut world = World::new(1);
    world.down.insert(REPLICAS[2]);
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), 0, "no session is spent");
    assert!(world.warnings().contains("node 13 hasn't answered"));
    world.down.clear();
    goes_on_in(&mut world, 1);
    let state = world.state();
    let (record, handed) = (state.in_force().unwrap(), state.handed.clone().unwrap());
    assert_eq!(record.leader.0, SEQUENCERS[0]);
    assert_eq!((record.replicas.as_slice(), record.g), (&REPLICAS[..], 1));
    assert_eq!((handed.next, record.by.len()), (vec![0, 0], 2));
    assert_eq!(world.warnings(), "");
}

#[test]
fn losses_and_delays_do_not_prevent_a_start() {
    let mut world = World::new(2);
    world.settings.suspect_after = 50;
    world.restart_controller();
    world.network.rates = rates(200_000, 200_000);
    assert!(
        world.run_until(20_000, World::is_served),
        "{}",
        world.report()
    );
    world.check();
}

// ---- Another sequencer -----------------------------------------------------------------------

/// A new session replaces a silent sequencer, and committed commands stay. [F-NEED] [F-ACTIVE]
#[test]
fn a_silent_sequencer_is_replaced_and_what_is_committed_stays() {
    let mut world = World::started(3);
    commands(&mut world, 20);
    let committed = world.committed(0);
    assert!(committed >= 20);
    world.down.insert(SEQUENCERS[0]);
    goes_on_in(&mut world, 2);
    assert_eq!(world.sequencer(), SEQUENCERS[1]);
    assert!(world.state().handed.unwrap().next[0] >= committed);
    assert_eq!(world.last_reason(), "sequencer 1 doesn't answer");
    // The old one is back, and stamps for nobody.
    world.down.clear();
    commands(&mut world, 10);
    assert_eq!(world.session(), 2);
    world.check();
}

/// A client that asked for the view before a session began is told of it without asking again.
/// [E-ASKED]
#[test]
fn who_asked_before_another_session_began_is_told_without_asking_again() {
    let mut world = World::started(3);
    world.down.insert(SEQUENCERS[0]);
    world.ask_for_view();
    world.run(5);
    assert_eq!(world.sessions_told(), [1]);
    goes_on_in(&mut world, 2);
    assert_eq!(world.sessions_told(), [1, 2, 2], "in force, and programmed");
    // A client that hasn't asked for long is told nothing.
    world.run(1_000);
    world.boot_sequencer(world.sequencer());
    goes_on_in(&mut world, 3);
    assert_eq!(world.sessions_told().len(), 3);
}

/// A sequencer that restarted gets a new session for its new memory. [F-NEED] [F-PROGRAM]
#[test]
fn a_sequencer_that_restarted_gets_a_session_for_its_new_memory() {
    let mut world = World::started(4);
    commands(&mut world, 5);
    world.boot_sequencer(SEQUENCERS[0]);
    world.request();
    goes_on_in(&mut world, 2);
    assert_eq!(world.sequencer(), SEQUENCERS[0]);
    assert_eq!(world.last_reason(), "sequencer 1 was restarted");
}

/// A sequencer that restarts needs another session even if nobody has seen the round that it had.
/// [F-PROGRAM]
#[test]
fn a_sequencer_that_restarts_before_it_shows_its_round_needs_another_session() {
    let mut world = World::new(5);
    world.run_until(2_000, |w| w.programs.len() == 1);
    assert_eq!(world.programs, [(SEQUENCERS[0], 1)]);
    world.boot_sequencer(SEQUENCERS[0]);
    world.run(100);
    assert_eq!(world.sequencers[&SEQUENCERS[0]].round(), Round::base(2));
    goes_on_in(&mut world, 2);
    assert_eq!(world.programs, [(SEQUENCERS[0], 1), (SEQUENCERS[0], 2)]);
}

/// The sequencer is programmed until its probes show the session, and not again after that.
/// [F-PROGRAM]
#[test]
fn a_sequencer_is_programmed_until_it_shows_it_and_never_again() {
    let mut world = World::new(6);
    world.network.rates = rates(400_000, 0);
    world.settings.suspect_after = 100;
    world.restart_controller();
    assert!(
        world.run_until(20_000, World::is_served),
        "{}",
        world.report()
    );
    world.network.rates = Rates::PERFECT;
    world.run(500);
    let mute = world.sequencers.get_mut(&SEQUENCERS[0]).unwrap();
    mute.retire(99);
    world.run(60);
    let record = world.state().last_epoch();
    assert_eq!(
        record, 2,
        "it isn't told again, so another session is needed"
    );
    assert_eq!(world.programs.len(), 2);
}

#[test]
fn an_operator_moves_a_group_to_another_sequencer() {
    let mut world = World::started(7);
    world.failover(Some(REPLICAS[0]), false);
    world.run(1);
    let refused = world.told_failover().pop().unwrap().unwrap_err();
    assert_eq!(refused, "node 11 is no sequencer in the cluster file");
    world.failover(Some(SEQUENCERS[1]), false);
    goes_on_in(&mut world, 2);
    assert_eq!(world.sequencer(), SEQUENCERS[1]);
    assert_eq!(world.told_failover().pop(), Some(Ok(2)));
}

// ---- Members ---------------------------------------------------------------------------------

/// The death of a replica is no reason for a new session. [F-NEED]
#[test]
fn a_dead_replica_triggers_nothing() {
    let mut world = World::started(8);
    world.down.insert(REPLICAS[0]);
    commands(&mut world, 200);
    assert_eq!(world.state().last_epoch(), 1);
    world.down.clear();
    goes_on_in(&mut world, 1);
}

/// A replica that lost its log becomes a member again in a new session. [F-NEED] [N-MUTE]
#[test]
fn a_replica_that_lost_its_log_joins_by_a_session() {
    let mut world = World::started(9);
    commands(&mut world, 20);
    world.checkpoint(REPLICAS[2]);
    commands(&mut world, 20);
    world.boot_replica(REPLICAS[2]);
    let joined = world.replicas[&REPLICAS[2]].member();
    goes_on_in(&mut world, 2);
    assert!(members(&world).contains(&(joined.node, joined.nonce)));
    assert_eq!(world.last_reason(), "replica 13 joins with an empty memory");
    // The new member counts, so another one may go.
    world.down.insert(REPLICAS[0]);
    world.run(500);
    goes_on_in(&mut world, 2);
}

/// Replicas can be replaced, added and removed while commands are executed. [F-NEED]
#[test]
fn replicas_are_replaced_added_and_removed_while_commands_go_on() {
    let mut world = World::started(10);
    commands(&mut world, 10);
    world.boot_replica(14);
    world.configure(&[11, 12, 14]);
    goes_on_in(&mut world, 2);
    // Old members may be switched off once it is active.
    world.down.insert(13);
    world.replicas.remove(&13);
    world.down.remove(&13);
    [13, 15]
        .into_iter()
        .for_each(|node| world.boot_replica(node));
    world.configure(&[11, 12, 13, 14, 15]);
    goes_on_in(&mut world, 3);
    assert_eq!(
        (members(&world).len(), world.state().in_force().unwrap().f),
        (5, 2)
    );
    // Two may fail now.
    world.down.extend([11, 12]);
    world.run(1_000);
    goes_on_in(&mut world, 3);
    world.down.clear();
    world.run(500);
    world.configure(&[13, 14, 15]);
    goes_on_in(&mut world, 4);
    assert_eq!(world.state().in_force().unwrap().f, 1);
}

/// A new member that never answered keeps nobody from replacing a sequencer, nor does the f of the
/// new file count yet. [F-NEED]
#[test]
fn a_session_needs_nobody_who_is_new_and_away() {
    let mut world = World::started(11);
    world.configure(&[11, 12, 13, 14, 15]);
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), 1);
    world.down.insert(SEQUENCERS[0]);
    goes_on_in(&mut world, 2);
    assert_eq!(
        (members(&world).len(), world.state().in_force().unwrap().f),
        (3, 1)
    );
}

// ---- What leaders report ---------------------------------------------------------------------

/// Reports of other sessions, from strangers or repeated ones change nothing. [F-STARTED]
#[test]
fn reports_of_other_sessions_from_strangers_and_repeated_change_nothing() {
    let mut world = World::started(16);
    commands(&mut world, 5);
    let old = world.reports.clone();
    assert!(!old.is_empty());
    world.mute_reports = true;
    world.down.insert(SEQUENCERS[0]);
    assert!(world.run_until(1_000, |w| {
        w.state().epochs.last().unwrap().state == EpochState::Writing
    }));
    world.run(300);
    let new: Vec<_> = world.reports[old.len()..].to_vec();
    let before = world.state();
    for (node, report) in &old {
        world.say(Peer::Node(*node), report.clone());
    }
    for (node, report) in &new {
        let Message::ViewStarted {
            group,
            pid,
            session,
            view,
            end,
            ref members,
            nonce,
            ..
        } = *report
        else {
            panic!("{report:?}");
        };
        let stranger = |nonce, members| Message::ViewStarted {
            group,
            node: *node,
            nonce,
            pid,
            session,
            view,
            end,
            members,
        };
        let some = members[..1].to_vec();
        let other = vec![members[0], (members[1].0, 5)];
        world.say(Peer::Node(*node), stranger(nonce + 1, members.clone()));
        world.say(Peer::Node(*node), stranger(nonce, some));
        world.say(Peer::Node(*node), stranger(nonce, other));
    }
    assert_eq!(world.state(), before);
    // Partition 0 alone isn't enough, however often it is said.
    let is_of = |pid: u16| move |(_, r): &&(NodeId, Message)| r.started().unwrap().0 == pid;
    for (node, report) in new
        .iter()
        .filter(is_of(0))
        .chain(new.iter().filter(is_of(0)))
    {
        world.say(Peer::Node(*node), report.clone());
    }
    assert_eq!(world.state(), before);
    let (node, report) = new.iter().find(is_of(1)).unwrap();
    world.say(Peer::Node(*node), report.clone());
    assert_eq!(world.session(), 2);
    // Late ones, when the next session is on its way.
    world.mute_reports = false;
    goes_on_in(&mut world, 2);
    world.mute_reports = true;
    world.boot_sequencer(SEQUENCERS[1]);
    world.run(300);
    assert_eq!(world.state().last_epoch(), 3);
    for (node, report) in old.iter().chain(&new) {
        world.say(Peer::Node(*node), report.clone());
    }
    assert_eq!(world.session(), 0, "they say nothing of session 3");
    world.mute_reports = false;
    goes_on_in(&mut world, 3);
}

// ---- Random runs -----------------------------------------------------------------------------

/// Draws the next fault and causes it.
fn trouble(world: &mut World, rng: &mut Rng) {
    let sequencer = SEQUENCERS[rng.below(2) as usize];
    let replica = REPLICAS[rng.below(3) as usize];
    let record = world.state().last_active().cloned();
    let others_are_there = |world: &World, node: NodeId| {
        let Some(record) = &record else { return false };
        let is_there = |(n, nonce): &&(NodeId, u64)| {
            *n != node && !world.down.contains(n) && world.replicas[n].nonce == *nonce
        };
        world.session() == record.epoch && record.acceptors.iter().filter(is_there).count() == 2
    };
    match rng.below(10) {
        0 | 1 => world.boot_sequencer(sequencer),
        2 if !world.down.contains(&SEQUENCERS[0]) && !world.down.contains(&SEQUENCERS[1]) => {
            world.down.insert(sequencer);
        }
        3 if others_are_there(world, replica) => world.boot_replica(replica),
        4 if others_are_there(world, replica) => {
            world.down.insert(replica);
        }
        5 | 6 => world.down.clear(),
        7 => world.restart_controller(),
        8 => world.kill_after = Some(rng.below(60)),
        _ => world.checkpoint(replica),
    }
}

/// In random runs with failures everything committed stays. [F-ACTIVE] [F-STARTED] [F-RESUME]
#[test]
fn whatever_happens_what_is_committed_stays() {
    let mut sessions = 0;
    for seed in 100..130 {
        let mut world = World::new(seed);
        let mut rng = Rng::new(seed);
        world.network.rates = Rates {
            duplicate: 30_000,
            late: 10_000,
            hour: 3_000,
            ..rates(rng.below(120_000) as u32, rng.below(200_000) as u32)
        };
        world.settings.suspect_after = 8;
        world.settings.epoch_interval = 50_000_000;
        world.settings.attempt_timeout = 200_000_000;
        world.restart_controller();
        for _ in 0..40 {
            commands(&mut world, 8);
            world.check();
            if rng.percent(40) {
                trouble(&mut world, &mut rng);
            }
            if world.controllers.is_empty() {
                world.start_controller();
            }
        }
        world.network.rates = Rates::PERFECT;
        world.kill_after = None;
        world.down.clear();
        world.restart_controller();
        assert!(
            world.run_until(10_000, World::is_served),
            "seed {seed}: {}",
            world.report()
        );
        world.run(1_000);
        assert!(world.is_served(), "seed {seed}: {}", world.report());
        let session = world.session();
        goes_on_in(&mut world, session);
        world.deliver_old();
        goes_on_in(&mut world, session);
        sessions += session;
    }
    assert!(sessions > 100, "{sessions}");
}
