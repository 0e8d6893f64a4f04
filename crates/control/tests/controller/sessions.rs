// SPDX-License-Identifier: Apache-2.0
//! The controller with real sequencers and real NOPaxos replicas.

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

/// A client that asked for the view before a session began is told of it without asking again. [E-ASKED]
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

/// A sequencer that restarts needs another session even if nobody has seen the round that it had. [F-PROGRAM]
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

/// The sequencer is programmed until its probes show the session, and not again after that. [F-PROGRAM]
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

/// A new member that never answered keeps nobody from replacing a sequencer, nor does the f of the new file count yet.
/// [F-NEED]
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

// ---- Logs on disk ----------------------------------------------------------------------------

/// A replica that restarts with its log stays the same member. [N-RESTART]
#[test]
fn a_replica_that_comes_back_with_its_log_is_the_member_that_it_was() {
    let mut world = World::durable(70);
    commands(&mut world, 10);
    let before = members(&world);
    for node in REPLICAS {
        world.restart_replica(node);
        assert!(world.replicas[&node].partitions[0].is_mute());
        let is_back = |w: &World| {
            let mut partitions = w.replicas[&node].partitions.iter();
            partitions.all(|p| !p.is_mute() && p.status() == Status::Normal)
        };
        assert!(world.run_until(1_000, is_back), "{}", world.report());
        goes_on_in(&mut world, 1);
    }
    assert_eq!(members(&world), before);
    assert_eq!(world.warnings(), "");
}

/// All processes end at once, the sequencers and the controller among them. [N-STORED] [F-LOST]
#[test]
fn a_cluster_with_logs_on_disk_starts_again_by_itself() {
    let mut world = World::durable(71);
    for round in 1..4 {
        commands(&mut world, 10);
        let before = members(&world);
        for node in REPLICAS {
            world.restart_replica(node);
        }
        for node in SEQUENCERS {
            world.boot_sequencer(node);
        }
        world.restart_controller();
        goes_on_in(&mut world, round + 1);
        assert_eq!(members(&world), before, "the same memories");
    }
    assert_eq!(world.discarded, []);
}

/// The copy is of an earlier start, or of this one from before some of what it had shown. [N-RESTART]
#[test]
fn an_old_copy_of_a_log_is_put_aside() {
    for is_of_earlier_start in [true, false] {
        let mut world = World::durable(72);
        commands(&mut world, 10);
        let node = REPLICAS[2];
        let copy = world.logs(node);
        if is_of_earlier_start {
            world.restart_replica(node);
            goes_on_in(&mut world, 1);
        } else {
            commands(&mut world, 10);
            world.run(200);
        }
        world.restart_replica_on(node, &copy);
        let is_put_aside = |w: &World| w.discarded == [node];
        assert!(
            world.run_until(2_000, is_put_aside),
            "{is_of_earlier_start}: {}",
            world.report()
        );
        // The replica is another member now.
        goes_on_in(&mut world, 2);
        world.check();
    }
}

/// If the old copies were put aside, too few logs would be left, so they are kept for an operator. [N-RESTART] [F-LOST]
#[test]
fn more_than_f_old_copies_are_kept() {
    let mut world = World::durable(73);
    commands(&mut world, 10);
    let copies = [REPLICAS[1], REPLICAS[2]].map(|node| (node, world.logs(node)));
    commands(&mut world, 10);
    world.run(200);
    for (node, copy) in &copies {
        world.restart_replica_on(*node, copy);
    }
    world.run(3_000);
    assert_eq!(world.discarded, []);
    let warnings = world.warnings();
    assert!(
        warnings.contains("REPLICA 12 HAS FORGOTTEN") && warnings.contains("so it is kept"),
        "{warnings}"
    );
    assert_eq!(world.session(), 1);
    for _ in 0..3 {
        world.failover(None, true);
        world.run(1_000);
    }
    assert_eq!(world.discarded.len(), 2);
    assert!(world.is_served(), "{}", world.warnings());
    world.check();
}

/// If more than f logs are lost, no further session is issued. [F-LOST]
#[test]
fn with_more_than_f_logs_lost_no_session_follows() {
    let mut world = World::started(12);
    commands(&mut world, 10);
    world.boot_replica(REPLICAS[1]);
    world.boot_replica(REPLICAS[2]);
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 1, "{}", world.report());
    let warning = world.warnings();
    assert!(
        warning.contains(
            "more than f = 1 logs of session 1 are missing: node 12, 13 has lost its log"
        ),
        "{warning}"
    );
    world.failover(None, false);
    world.run(500);
    let told = world.told_failover().pop().unwrap().unwrap_err();
    assert!(warning.contains(&told), "{told}");
    assert_eq!(world.state().last_epoch(), 1);
    world.check();
}

/// Returns a world in which two of three logs are gone. Replica 13, which has the third, has executed most.
fn with_two_logs_lost(seed: u64) -> World {
    let mut world = World::started(seed);
    commands(&mut world, 10);
    world.checkpoint(REPLICAS[0]);
    world.checkpoint(REPLICAS[1]);
    commands(&mut world, 10);
    world.boot_replica(REPLICAS[0]);
    world.boot_replica(REPLICAS[1]);
    world.run(500);
    assert_eq!(world.state().last_epoch(), 1);
    world
}

/// An operator may accept the loss of logs, and then the group continues. [F-LOST] [F-ANEW] [G-ONE] [G-RANGE]
#[test]
fn an_operator_may_accept_the_loss_of_logs() {
    let mut world = with_two_logs_lost(40);
    let stable: Vec<_> = {
        let host = &world.replicas[&REPLICAS[2]];
        host.partitions.iter().map(|p| p.stable()).collect()
    };
    world.failover(None, true);
    goes_on_in(&mut world, 3);
    assert_eq!(world.told_failover(), [Ok(3)], "2 only stopped execution");
    let state = world.state();
    let given_up = state.given_up.clone().unwrap();
    assert_eq!(
        given_up.from, stable,
        "where the one stood that had executed most"
    );
    assert!(given_up.to.iter().all(|to| *to >= control::LEAP));
    assert_eq!(state.in_force().unwrap().anew, Some(given_up.to.clone()));
    assert_eq!(
        (state.accepted, state.handed.unwrap().trim),
        (None, given_up.to.clone())
    );
    assert!(world.warnings().contains("DATA LOSS ACCEPTED"));
    for host in world.replicas.values() {
        assert_eq!(host.stopped, 0);
        assert!(
            host.on_disk
                .iter()
                .zip(&given_up.to)
                .all(|(at, to)| at >= to)
        );
    }
    // From now on sessions follow as usual, and such an order gives nothing up if nothing is lost.
    world.failover(None, true);
    goes_on_in(&mut world, 4);
    assert_eq!(world.state().given_up, Some(given_up));
    world.boot_replica(REPLICAS[2]);
    goes_on_in(&mut world, 5);
}

/// The silent replica may be the one that has executed most, or be cut off and go on serving. [G-ALL] [F-LOST]
#[test]
fn no_loss_is_accepted_while_a_replica_is_silent() {
    let mut world = with_two_logs_lost(41);
    world.down.insert(REPLICAS[2]);
    world.run(500);
    world.failover(None, true);
    world.run(2_000);
    let told = world.told_failover().pop().unwrap().unwrap_err();
    let why = "accepting data loss needs every replica, also an empty one; node 13 doesn't answer";
    assert!(told.contains(why), "{told}");
    assert_eq!(
        (world.state().last_epoch(), world.state().given_up),
        (1, None)
    );
    // The replica is back with its log, and answers.
    world.down.clear();
    world.run(500);
    world.failover(None, true);
    goes_on_in(&mut world, 3);
}

/// The restarted replica keeps its nonce and its next process executes what comes, so the earlier answer counts no
/// more. [G-STOP]
#[test]
fn a_replica_that_restarts_after_it_has_stopped_is_stopped_again() {
    let mut world = World::durable(48);
    commands(&mut world, 10);
    world.boot_replica(REPLICAS[0]);
    world.boot_replica(REPLICAS[1]);
    world.run(500);
    world.replicas.get_mut(&REPLICAS[1]).unwrap().never_stops = true;
    world.failover(None, true);
    let has_stopped = |w: &World| w.replicas[&REPLICAS[2]].stopped == 2;
    assert!(world.run_until(2_000, has_stopped), "{}", world.report());
    world.run(100);
    world.restart_replica(REPLICAS[2]);
    let goes_on = |w: &World| !w.replicas[&REPLICAS[2]].partitions[0].is_mute();
    assert!(world.run_until(2_000, goes_on), "{}", world.report());
    world.replicas.get_mut(&REPLICAS[1]).unwrap().never_stops = false;
    let is_issued = |w: &World| w.state().last_epoch() == 3;
    assert!(world.run_until(5_000, is_issued), "{}", world.report());
    assert!(has_stopped(&world), "the loss is of another process");
    goes_on_in(&mut world, 3);
}

/// Replica 13 has executed most, and isn't in the cluster file any more: nobody could take its state. [G-ONE] [F-ANEW]
#[test]
fn a_loss_goes_on_from_a_replica_of_the_cluster_file() {
    let mut world = with_two_logs_lost(47);
    world.boot_replica(14);
    world.configure(&[11, 12, 14]);
    world.run(500);
    let on_disk = world.replicas[&REPLICAS[0]].on_disk.clone();
    world.failover(None, true);
    goes_on_in(&mut world, 3);
    assert_eq!(world.state().given_up.unwrap().from, on_disk);
    let nodes: Vec<_> = members(&world).into_iter().map(|member| member.0).collect();
    assert_eq!(nodes, [11, 12, 14]);
}

/// Until the session is *writing* nothing is given up. [F-ANEW] [F-RESUME]
#[test]
fn an_accepted_loss_that_was_only_issued_is_not_resumed() {
    // Killed right after it has stored session 3, before it has told anybody.
    let killed = (0..200).find_map(|inputs| {
        let mut world = with_two_logs_lost(42);
        world.kill_after = Some(inputs);
        world.failover(None, true);
        world.run_until(1_000, |w| w.controllers.is_empty());
        (world.state().last_epoch() == 3).then_some(world)
    });
    let mut world = killed.expect("it gets there");
    let mut stored = world.state();
    let last = stored.epochs.last_mut().unwrap();
    assert!(last.anew.is_some());
    last.state = EpochState::Issued;
    stored.accepted = stored.given_up.take();
    world.put_before_loss(stored);
    assert!(world.replicas.values().all(|host| host.stopped == 2));
    world.start_controller();
    world.run(2_000);
    assert_eq!(
        (world.state().last_epoch(), world.state().given_up),
        (3, None)
    );
    assert!(
        world.warnings().contains("logs of session 1 are missing"),
        "{}",
        world.warnings()
    );
    world.failover(None, true);
    goes_on_in(&mut world, 5);
    assert_eq!(world.told_failover().pop(), Some(Ok(5)));
}

/// The next controller finds the logs again that were lost: nothing is given up. [F-ANEW] [F-RESUME]
#[test]
fn logs_that_are_found_before_a_loss_is_final_are_not_lost() {
    let killed = (0..200).find_map(|inputs| {
        let mut world = World::started(46);
        commands(&mut world, 20);
        let lost = [REPLICAS[0], REPLICAS[1]];
        let hosts = lost.map(|node| (node, world.replicas.remove(&node).unwrap()));
        lost.into_iter().for_each(|node| world.boot_replica(node));
        world.run(500);
        world.kill_after = Some(inputs);
        world.failover(None, true);
        world.run_until(1_000, |w| w.controllers.is_empty());
        (world.state().last_epoch() == 3).then_some((world, hosts))
    });
    let (mut world, hosts) = killed.expect("it gets there");
    let mut stored = world.state();
    stored.epochs.last_mut().unwrap().state = EpochState::Issued;
    stored.accepted = stored.given_up.take();
    assert!(stored.accepted.is_some());
    world.put_before_loss(stored);
    world.replicas.extend(hosts);
    world.start_controller();
    goes_on_in(&mut world, 4);
    assert_eq!(
        (world.state().given_up, world.state().accepted),
        (None, None)
    );
}

/// Wherever it is killed: either nothing was given up and the order is given again, or the next one goes on with what
/// is stored. [F-ANEW] [F-RESUME]
#[test]
fn a_controller_may_be_killed_while_a_loss_is_accepted() {
    let (mut given_again, mut went_on) = (0, 0);
    for inputs in (0..120).step_by(3) {
        let mut world = with_two_logs_lost(43);
        world.kill_after = Some(inputs);
        world.failover(None, true);
        world.run_until(1_000, |w| w.controllers.is_empty() || w.is_served());
        world.kill_after = None;
        world.run(20);
        world.restart_controller();
        let first = world.state().given_up;
        if !world.run_until(1_500, World::is_served) {
            assert_eq!(first, None, "{}", world.report());
            given_again += 1;
            world.failover(None, true);
        } else {
            went_on += 1;
        }
        assert!(
            world.run_until(3_000, World::is_served),
            "{inputs}: {}",
            world.report()
        );
        if first.is_some() {
            assert_eq!(world.state().given_up, first);
        }
        let session = world.session();
        goes_on_in(&mut world, session);
    }
    assert!(given_again > 0 && went_on > 0, "{given_again}, {went_on}");
}

/// The session's sequencer dies before anything was stamped. The loss stays accepted, and the next session asks no
/// session before it. [F-ANEW]
#[test]
fn a_session_behind_an_accepted_loss_needs_no_second_order() {
    let mut world = with_two_logs_lost(44);
    world.mute_reports = true;
    world.failover(None, true);
    assert!(world.run_until(1_000, |w| w.state().given_up.is_some()));
    world.down.insert(SEQUENCERS[0]);
    world.run(300);
    world.mute_reports = false;
    let given_up = world.state().given_up;
    goes_on_in(&mut world, 4);
    assert_eq!(world.state().given_up, given_up);
    let state = world.state();
    assert_eq!(state.in_force().unwrap().anew, None);
    assert_eq!(state.handed.unwrap().next.len(), usize::from(PARTITIONS));
}

/// The replica's report is from before the loss. [F-STARTED] [F-ANEW]
#[test]
fn no_session_begins_below_what_was_given_up() {
    let mut world = with_two_logs_lost(45);
    world.mute_reports = true;
    world.failover(None, true);
    assert!(world.run_until(1_000, |w| w.state().given_up.is_some()));
    world.run(100);
    let begun = world
        .reports
        .iter()
        .rev()
        .find(|(_, r)| r.started().unwrap().0 == 0);
    let (node, mut report) = begun.unwrap().clone();
    let Message::ViewStarted { end, view, .. } = &mut report else {
        panic!("{report:?}");
    };
    assert_eq!(Round(*view).epoch(), 3);
    *end = 5;
    let before = world.state();
    world.say(Peer::Node(node), report);
    world.mute_reports = false;
    goes_on_in(&mut world, 3);
    let next = world.state().handed.unwrap().next;
    assert_eq!(next, before.given_up.unwrap().to);
}

/// A replica that is only away comes back with its log, so the session waits for it. [F-LOST]
#[test]
fn a_session_waits_for_who_has_the_log() {
    let mut world = World::started(13);
    commands(&mut world, 10);
    world.down.extend([REPLICAS[0], REPLICAS[1], SEQUENCERS[0]]);
    world.run(5_000);
    assert_eq!(world.state().last_epoch(), 1);
    let warning = world.warnings();
    let why = "more than f = 1 replicas don't answer: node 11, 12. Start them again";
    assert!(warning.contains(why), "{warning}");
    world.down.remove(&REPLICAS[0]);
    goes_on_in(&mut world, 2);
}

/// If a replica reports that it has executed what no other has, one new session follows. A late or repeated report
/// causes none. [F-NEED]
#[test]
fn a_contradiction_is_settled_by_one_session() {
    let mut world = World::started(14);
    let member = world.replicas[&REPLICAS[1]].member();
    let complaint = |epoch, nonce| Message::SessionWanted {
        group: GROUP,
        node: member.node,
        nonce,
        epoch,
    };
    let from = Peer::Node(member.node);
    world.say(from, complaint(1, member.nonce + 1));
    world.say(from, complaint(7, member.nonce));
    world.run(200);
    assert_eq!(
        world.session(),
        1,
        "a stranger, and a session that isn't there"
    );
    world.say(from, complaint(1, member.nonce));
    goes_on_in(&mut world, 2);
    world.say(from, complaint(1, member.nonce));
    world.run(500);
    assert_eq!(world.session(), 2, "it is late");
    world.say(from, complaint(2, member.nonce));
    world.run(500);
    assert_eq!(world.session(), 2, "another one settles nothing");
    assert!(
        world
            .warnings()
            .contains("REPLICA 12 HAS EXECUTED WHAT NO OTHER HAS")
    );
}

/// The controller ends a session long before its leader numbers are used up. [F-NEED]
#[test]
fn a_session_ends_long_before_its_leaders_do() {
    let mut world = World::started(15);
    world.shows = Some(Round(view::first(1).0 + view::MAX_LEADER / 2 + 1));
    assert!(world.run_until(1_000, |w| w.state().last_epoch() == 2));
    world.shows = None;
    goes_on_in(&mut world, 2);
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

// ---- The controller's own end ----------------------------------------------------------------

/// Wherever it is killed, the next one goes on from the store. [F-RESUME]
#[test]
fn a_controller_may_be_killed_at_any_step() {
    let mut last = 0;
    for inputs in 0.. {
        let mut world = World::started(17);
        commands(&mut world, 5);
        world.down.insert(SEQUENCERS[0]);
        world.kill_after = Some(inputs);
        let done = world.run_until(1_000, |w| w.controllers.is_empty() || w.session() == 2);
        assert!(done, "killed after {inputs}");
        let is_over = world.session() == 2 && world.is_served() && !world.controllers.is_empty();
        world.run(20);
        world.restart_controller();
        goes_on_in(&mut world, 2);
        last = inputs;
        if is_over || inputs > 400 {
            break;
        }
    }
    assert!((20..400).contains(&last), "{last} inputs");
}

/// The number isn't spent again. [F-RESUME]
#[test]
fn a_session_that_a_killed_controller_left_is_finished() {
    for state in [EpochState::Issued, EpochState::Writing] {
        let mut world = World::started(18);
        commands(&mut world, 5);
        world.mute_reports = true;
        world.down.insert(SEQUENCERS[0]);
        assert!(world.run_until(1_000, |w| w.state().last_epoch() == 2));
        world.controllers.clear();
        if state == EpochState::Issued {
            // The next move wasn't stored.
            let mut stored = world.state();
            stored.epochs.last_mut().unwrap().state = state;
            world.shared.put(stored);
        }
        world.mute_reports = false;
        world.run(500);
        world.start_controller();
        goes_on_in(&mut world, 2);
    }
}

/// Two controllers on one store continue the same session. [F-RESUME] [E-ISSUE]
#[test]
fn two_controllers_of_one_store_meet_in_it() {
    for seed in 20..26 {
        let mut world = World::started(seed);
        world.start_controller();
        world.network.rates = rates(0, 300_000);
        commands(&mut world, 5);
        world.down.insert(SEQUENCERS[0]);
        let served = |w: &World| w.session() >= 2 && w.is_served();
        assert!(world.run_until(5_000, served), "{}", world.report());
        world.network.rates = Rates::PERFECT;
        world.run(2_000);
        assert!(world.is_served(), "{}", world.report());
        let session = world.session();
        goes_on_in(&mut world, session);
        let mut epochs: Vec<_> = world.programs.iter().map(|p| p.1).collect();
        epochs.dedup();
        assert_eq!(
            epochs.len(),
            world.programs.len(),
            "each is programmed once"
        );
    }
}

/// Each issues session 2, with a sequencer of its own. [W-SAME]
#[test]
fn of_two_controllers_with_copies_of_a_store_one_stops() {
    for seed in 200..240 {
        let mut world = World::started(seed);
        commands(&mut world, 5);
        world.start_rival();
        // Until the controller has probed, no sequencer counts as alive.
        world.run(100);
        for (n, sequencer) in (0..).zip(SEQUENCERS) {
            world.order(n, Some(sequencer), false);
        }
        world.network.rates = rates(50_000, 300_000);
        for _ in 0..60 {
            commands(&mut world, 4);
            world.check();
        }
        let begun = world.programs.iter().filter(|program| program.1 == 2);
        assert!(begun.count() <= 1, "{:?}", world.programs);
    }
}

/// A controller whose store is an old copy doesn't issue a session number twice. [E-NEWEST]
#[test]
fn an_old_copy_of_the_store_issues_no_session_twice() {
    let mut world = World::started(30);
    let old = world.state();
    world.down.insert(SEQUENCERS[0]);
    goes_on_in(&mut world, 2);
    world.controllers.clear();
    world.shared.put(old);
    world.start_controller();
    world.run(2_000);
    assert_eq!(world.state().last_epoch(), 1);
    let warning = world.warnings();
    assert!(
        warning.contains("has seen epoch 2, but the controller's store ends at epoch 1"),
        "{warning}"
    );
    world.check();
}

/// Replicas and sequencer know that session 2 is active, and tell nobody any more that a view of it has begun. [F-RESUME]
#[test]
fn a_copy_of_the_store_from_before_its_session_was_active_is_followed_by_another_session() {
    for programmed in [true, false] {
        let mut world = World::started(34);
        world.down.insert(SEQUENCERS[0]);
        let writing = |w: &World| w.state().epochs.last().unwrap().state == EpochState::Writing;
        assert!(world.run_until(2_000, writing));
        let old = world.state();
        let (from, to) = (CONTROLLER.into(), SEQUENCERS[1].into());
        world.network.block(from, to, !programmed);
        let active = |w: &World| w.session() == 2;
        assert!(world.run_until(2_000, active));
        world.run(20);
        assert_eq!(world.is_served(), programmed);
        world.controllers.clear();
        world.shared.put(old.clone());
        world.network.heal();
        world.start_controller();
        world.run(300);
        world.failover(None, false);
        let served = |w: &World| w.session() > 2 && w.is_served();
        assert!(world.run_until(20_000, served), "{}", world.report());
        let answered = |w: &World| w.is_served() && !w.told_failover().is_empty();
        assert!(world.run_until(5_000, answered), "{}", world.report());
        assert!(world.told_failover()[0].is_ok());
        world.run(1_000);
        let session = world.session();
        goes_on_in(&mut world, session);
    }
}

/// The only nodes that show the session are replicas that have begun none of its views. [E-NEWEST]
#[test]
fn an_old_copy_of_the_store_is_noticed_while_views_change() {
    let mut world = World::started(33);
    let old = world.state();
    // The replicas don't hear one another.
    for (from, to) in REPLICAS.iter().flat_map(|a| REPLICAS.map(|b| (*a, b))) {
        world.network.block(from.into(), to.into(), true);
    }
    world.down.insert(SEQUENCERS[0]);
    let writing = |w: &World| w.state().epochs.last().unwrap().state == EpochState::Writing;
    assert!(world.run_until(1_000, writing));
    world.run(100);
    world.controllers.clear();
    world.shared.put(old);
    world.start_controller();
    world.run(2_000);
    assert_eq!(world.state().last_epoch(), 1, "{}", world.warnings());
    assert!(world.warnings().contains("has seen epoch 2"));
    world.check();
}

/// No session follows the one with the largest number. [E-ISSUE]
#[test]
fn the_last_session_is_followed_by_none() {
    let mut world = World::started(31);
    world.controllers.clear();
    let mut state = world.state();
    let last = state.epochs.last().unwrap().clone();
    let configuration = paxos::Configuration {
        epoch: MAX_EPOCH,
        ..last.configuration()
    };
    let mut record = control::EpochRecord::of(&configuration, last.lead, EpochState::Active);
    record.by = vec![view::first(MAX_EPOCH).0; PARTITIONS.into()];
    *state.epochs.last_mut().unwrap() = record;
    world.shared.put(state);
    world.start_controller();
    world.down.insert(SEQUENCERS[0]);
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), MAX_EPOCH);
    let warning = world.warnings();
    let why = "all epochs are used up: copy the data into a new cluster";
    assert!(warning.contains(why), "{warning}");
}

/// A group can't change its protocol. [F-TOLD]
#[test]
fn a_group_keeps_its_protocol() {
    let mut world = World::started(32);
    world.settings.groups[0].protocol = Protocol::Paxos;
    world.settings.groups[0].acceptors = vec![3, 4, 5];
    world.restart_controller();
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), 1);
    let warning = world.warnings();
    assert!(
        warning.contains("is of protocol \"nopaxos\", and the cluster file says \"paxos\""),
        "{warning}"
    );
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
