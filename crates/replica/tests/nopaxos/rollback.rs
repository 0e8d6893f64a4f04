// SPDX-License-Identifier: Apache-2.0
//! What ran ahead and is taken back, by another view or by an accepted loss, and stored logs.

use super::*;

/// A deposed leader takes back what it has executed ahead, and follows the new view. [N-ANSWER]
/// [N-REWIND] [N-MUTE] [K-QUORUM]
fn deposed<K: Persistent>() {
    let mut c = Cluster::<K>::begun(1);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    let view = c.hosts[0].role().view();
    assert_eq!(positions(&c)[0], (slot + 1, slot), "it has run ahead");
    let (last, answer) = c.answers.last().unwrap();
    assert_eq!((last.rnd, last.inst), (view, slot));
    assert_eq!((answer.0, answer.1), of);
    assert!(!c.finals.contains_key(&of), "nobody has acknowledged it");

    // The others go on without the leader, and the slot becomes a no-op for them.
    c.cut(SEQUENCER, &FOLLOWERS, false);
    c.open_session();
    assert!(c.hosts[1].role().view() > view);
    let rewinds = goes_back(&mut c, slot);
    let worker = c.hosts[0].worker.as_ref().unwrap();
    assert!(worker.statistics().rollbacks >= rewinds);
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Makes a slot a no-op on the others, and tells that to a replica that ran ahead. Returns how
/// often it goes back.
fn goes_back<K: Persistent>(c: &mut Cluster<K>, slot: Instance) -> u64 {
    c.wait("stable", |c| c.history.len() as Instance > slot);
    assert!(c.history[slot as usize].0.has(Flags::NOOP));
    let before = c.rewinds;
    c.world.network.heal();
    c.check();
    assert!(c.rewinds > before, "it has gone back");
    c.rewinds - before
}

#[test]
fn a_deposed_leader_takes_back_what_it_alone_has_executed() {
    deposed::<Disk>();
    deposed::<MemoryDisk>();
}

/// A leader holds back the answers that it owes a crowd, and never sends those that it can't make
/// stable. [N-CROWD] [N-REWIND]
#[test]
fn a_deposed_leader_has_told_a_crowd_nothing() {
    let mut c = Cluster::<Disk>::with(1, true, 0, Disk::default);
    c.wait_for_session(1);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (slot + 1, slot), "it has run ahead");
    assert!(c.hosts[0].role().held_below() > slot);
    assert!(c.answers.iter().all(|(_, a)| (a.0, a.1) != of));
    c.cut(SEQUENCER, &FOLLOWERS, false);
    c.open_session();
    goes_back(&mut c, slot);
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Commands that a killed leader has executed ahead are not in its store. [N-COMMIT] [X-ATOMIC]
#[test]
fn what_a_killed_leader_has_executed_ahead_is_not_in_its_store() {
    let mut c = Cluster::<Disk>::begun(2);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (slot + 1, slot));
    // There is time for any commit, checkpoint and copy that may be due.
    let worker = c.hosts[0].worker.as_mut().unwrap();
    let (position, _) = worker.snapshot().unwrap();
    assert_eq!(position, slot);
    c.go_on(20 * MS);
    assert!(positions(&c)[0].0 > slot, "it has executed it again");
    c.kill(0);
    c.world.network.heal();
    c.wait_for_session(2);
    c.check();
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Loses two of three logs. The leader has the third, has run ahead of it, and has executed most.
fn accepted_loss<K: Persistent>() {
    let mut c = Cluster::<K>::begun(15);
    let of = leader_alone(&mut c);
    let stable = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (stable + 1, stable));
    c.kill(1);
    c.kill(2);
    c.go_on(20 * MS);
    assert_eq!(c.store.last().unwrap().number, 2);
    for host in &mut c.hosts {
        let worker = host.worker.as_mut().unwrap();
        worker.stop_execution(3).unwrap();
        worker.stop_execution(2).unwrap();
        let stopped = worker.execution().stopped();
        assert!(stopped.is_none_or(|(until, _)| until == 3));
    }
    assert_eq!(positions(&c)[0].0, stable, "what ran ahead is taken back");
    c.accept_loss(stable..stable + 1_000);
    c.go_on(MS);
    c.world.network.heal();
    c.wait_for_session(3);
    c.open_session();
    c.check();
    assert_eq!(c.finals[&of].0, Status::Ok, "once, when it came again");
    assert!(c.history.len() as Instance > stable + 1_000);
    // From then on sessions follow as usual.
    c.kill(1);
    c.wait_for_session(4);
    c.command(0);
    c.check();
    (0..3).for_each(|index| c.check_stored(index));
}

/// After an accepted loss of logs the group continues from what was stable. [F-ANEW] [G-STOP]
/// [G-LEAP] [G-BEHIND] [N-COMMIT]
#[test]
fn an_accepted_loss_goes_on_from_what_was_stable() {
    accepted_loss::<Disk>();
    accepted_loss::<MemoryDisk>();
}

/// A replica that missed the stop and ran ahead of the stable log to where the loss begins must not
/// go on there. [F-ANEW] [N-REWIND]
#[test]
fn who_ran_ahead_to_where_a_loss_begins_does_not_go_on_there() {
    let mut c = Cluster::<Disk>::begun(16);
    leader_alone(&mut c);
    let stable = c.history.len() as Instance;
    let now = c.now();
    let worker = c.hosts[0].worker.as_mut().unwrap();
    assert_eq!(worker.next(), stable + 1);
    let given_up = stable + 1..stable + 1_000;
    worker.give_up(now, std::slice::from_ref(&given_up));
    assert!(worker.next() <= stable, "{}", worker.next());
    assert_eq!(worker.wanted().checkpoint_at_least, Some(given_up.end));
}

/// Returns the stored memory of a log as it is now.
fn stored_log(worker: &mut Worker<impl Application, NoPaxos>) -> Loaded {
    let replica = worker.agreement_mut().replica_mut();
    if let Some(unstored) = replica.unstored() {
        assert!(unstored.slots.is_empty());
        replica.has_stored(unstored);
    }
    let mut head = Vec::new();
    replica.save_stored_head(&mut head);
    let mut loaded = Loaded::new(*replica.deployment(), 0, SLOTS as usize);
    loaded.head(&head).unwrap();
    loaded
}

/// The replica's log begins behind the loss as soon as it is told, but its application gets there
/// only with another replica's state. A replica that is killed in between, twice, goes on fetching.
/// [F-ANEW] [N-RESTART]
#[test]
fn who_is_killed_before_it_has_the_state_behind_a_loss_starts_again() {
    let mut c = Cluster::<Disk>::begun(18);
    c.open_session();
    c.go_on(600 * MS);
    let now = c.now();
    let nonce = c.hosts[1].role().member().nonce;
    let start = |count: u64| Start::from_number(count << 32 | 1).unwrap();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let position = worker.next();
    let given_up = position + 3..position + 1_000;
    let session = |number, stage, anew| Session {
        number,
        stage,
        anew,
        ..c.store[0].clone()
    };
    let by = view::first(9);
    let told = [
        vec![session(2, Stage::Writing, Some(given_up.end))],
        // The replica was away while other sessions followed, and isn't told of the session with
        // the loss any more.
        vec![session(9, Stage::Active { by }, None)],
    ];
    worker.agreement_mut().replica_mut().keep(start(1));
    for (count, told) in (2..).zip(told) {
        let worker = c.hosts[1].worker.as_mut().unwrap();
        worker.give_up(now, std::slice::from_ref(&given_up));
        let told: Vec<Session> = [c.store.clone(), told].concat();
        let first = if count == 2 { 0 } else { 1 };
        worker.configure(now, &told[first..]);
        assert_eq!(worker.wanted().checkpoint_at_least, Some(given_up.end));
        let loaded = stored_log(worker);
        c.hosts[1].worker = None;

        let mut settings = c.settings.clone();
        settings.deployment = deployment(REPLICAS[1]);
        let app = c.hosts[1].kept.open();
        let mut worker = Worker::<_, NoPaxos>::open_in(settings, app, nonce, now).unwrap();
        assert!(worker.next() <= position);
        let remembered = worker.agreement_mut().remember(loaded, start(count));
        assert_eq!(remembered.map_err(|why| why.to_string()), Ok(()));
        c.hosts[1].worker = Some(worker);
    }
}

/// If the application is below its log, entries are missing that nobody has given up. [N-RESTART]
#[test]
fn an_application_that_went_back_below_its_log_is_refused() {
    let mut c = Cluster::<Disk>::begun(19);
    c.open_session();
    let now = c.now();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let nonce = worker.agreement().replica().member().nonce;
    worker.agreement_mut().replica_mut().keep(Start::FIRST);
    let floor = worker.next() + 10;
    worker.agreement_mut().on_event(Event::Restored(floor));
    let loaded = stored_log(worker);
    let mut settings = c.settings.clone();
    settings.deployment = deployment(REPLICAS[1]);
    let app = c.hosts[1].kept.open();
    let mut worker = Worker::<_, NoPaxos>::open_in(settings, app, nonce, now).unwrap();
    let refused = worker.agreement_mut().remember(loaded, Start::FIRST);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains(&format!("it begins at slot {floor}")), "{why}");
}

/// The application had stored more than the log. Its state counts as one that was taken over, and
/// nothing is executed again. [N-RESTART] [W-CHECKPOINT]
#[test]
fn an_application_that_is_ahead_of_its_log_goes_on_from_there() {
    let mut c = Cluster::<Disk>::begun(19);
    c.open_session();
    let now = c.now();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let nonce = worker.agreement().replica().member().nonce;
    worker.agreement_mut().replica_mut().keep(Start::FIRST);
    let begin = worker.agreement().replica().next();
    worker.agreement_mut().on_event(Event::Restored(begin));
    let loaded = stored_log(worker);
    let mut settings = c.settings.clone();
    settings.deployment = deployment(REPLICAS[1]);
    let position = begin + 5;
    let mut agreement = NoPaxos::open(&settings, nonce, position, now);
    agreement.remember(loaded, Start::FIRST).unwrap();
    let replica = agreement.replica();
    assert_eq!((replica.floor(), replica.stable()), (position, position));
    assert!(replica.next() >= position);
}
