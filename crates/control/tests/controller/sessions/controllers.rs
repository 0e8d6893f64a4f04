// SPDX-License-Identifier: Apache-2.0
//! Tests of the controller's own end, and of its store's copies.

use super::*;

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

/// Replicas and sequencer know that session 2 is active, and tell nobody any more that a view of it
/// has begun. [F-RESUME]
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
