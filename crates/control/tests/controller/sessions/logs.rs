// SPDX-License-Identifier: Apache-2.0
//! Tests of logs on disk, and of those that are lost.

use super::*;

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

/// The copy is of an earlier start, or of this one from before some of what it had shown.
/// [N-RESTART]
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

/// If the old copies were put aside, too few logs would be left, so they are kept for an operator.
/// [N-RESTART] [F-LOST]
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

/// Returns a world in which two of three logs are gone. Replica 13, which has the third, has
/// executed most.
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

/// An operator may accept the loss of logs, and then the group continues. [F-LOST] [F-ANEW] [G-ONE]
/// [G-RANGE]
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

/// The silent replica may be the one that has executed most, or be cut off and go on serving.
/// [G-ALL] [F-LOST]
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

/// The restarted replica keeps its nonce and its next process executes what comes, so the earlier
/// answer counts no more. [G-STOP]
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

/// Replica 13 has executed most, and isn't in the cluster file any more: nobody could take its
/// state. [G-ONE] [F-ANEW]
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

/// The next controller finds the logs again that were lost: nothing is given up. [F-ANEW]
/// [F-RESUME]
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

/// Wherever it is killed: either nothing was given up and the order is given again, or the next one
/// goes on with what is stored. [F-ANEW] [F-RESUME]
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

/// The session's sequencer dies before anything was stamped. The loss stays accepted, and the next
/// session asks no session before it. [F-ANEW]
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

/// If a replica reports that it has executed what no other has, one new session follows. A late or
/// repeated report causes none. [F-NEED]
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
