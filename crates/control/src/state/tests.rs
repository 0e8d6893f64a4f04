// SPDX-License-Identifier: Apache-2.0
use super::*;
use paxos::Member;
use paxos::nopaxos::{self, view};

fn configuration() -> Configuration {
    let member = |node, nonce| Member { node, nonce };
    Configuration {
        epoch: 0,
        leader: member(1, 11),
        acceptors: vec![member(3, 13), member(4, 14), member(5, 15)],
        f: 1,
        replicas: vec![6, 7, 8],
        g: 1,
    }
}

fn handed() -> Handed {
    Handed {
        next: vec![1],
        trim: vec![0],
        end: vec![0],
    }
}

fn activate(state: &mut GroupState) -> Epoch {
    let epoch = state.issue(&configuration()).unwrap();
    state.mark_writing(epoch).unwrap();
    state.mark_active(epoch, handed()).unwrap();
    epoch
}

/// Epochs move forward one step at a time. [E-ISSUE]
#[test]
fn epochs_move_forward_one_step_at_a_time() {
    let mut state = GroupState::default();
    assert_eq!(
        state.issue(&configuration()),
        Ok(1),
        "whatever the configuration says"
    );
    assert!(state.is_sound());
    assert_eq!(state.epochs[0].state, EpochState::Issued);
    assert_eq!(state.mark_active(1, handed()), Err(Refused::OutOfOrder));
    assert_eq!(state.mark_writing(1), Ok(()));
    assert_eq!(state.mark_writing(1), Err(Refused::OutOfOrder));
    assert_eq!(state.mark_active(1, handed()), Ok(()));
    assert_eq!(state.mark_active(1, handed()), Err(Refused::OutOfOrder));
    assert_eq!(state.mark_writing(2), Err(Refused::OutOfOrder));
}

/// No epoch moves once a later one exists. [E-ISSUE]
#[test]
fn no_epoch_moves_once_a_later_one_exists() {
    let mut state = GroupState::default();
    activate(&mut state);
    state.issue(&configuration()).unwrap();
    state.mark_writing(2).unwrap();
    state.issue(&configuration()).unwrap();
    assert_eq!(state.mark_active(2, handed()), Err(Refused::Superseded));
    state.issue(&configuration()).unwrap();
    assert_eq!(state.mark_writing(3), Err(Refused::Superseded));
}

/// A new epoch needs promises of the last active epoch and of all that wrote since. [C-PROMISE]
/// [C-FENCE]
#[test]
fn promises_are_needed_from_the_last_active_epoch_and_all_that_wrote_since() {
    let mut state = GroupState::default();
    activate(&mut state);
    activate(&mut state);
    state.issue(&configuration()).unwrap();
    state.mark_writing(3).unwrap();
    state.issue(&configuration()).unwrap();
    let needed =
        |state: &GroupState| -> Vec<Epoch> { state.needed().iter().map(|c| c.epoch).collect() };
    assert_eq!(needed(&state), [2, 3]);
    state.issue(&configuration()).unwrap();
    assert_eq!(needed(&state), [2, 3]);
    assert_eq!(
        state.last_epoch(),
        5,
        "the number of one that never wrote is not reused"
    );
}

#[test]
fn versions_grow_with_every_change() {
    let mut state = GroupState::default();
    let mut last = state.version;
    for _ in 0..3 {
        activate(&mut state);
        assert_eq!(state.version, last + 3);
        last = state.version;
    }
}

/// No epoch follows the last number. [E-ISSUE]
#[test]
fn the_last_epoch_is_never_followed_by_another() {
    let mut state = GroupState::default();
    activate(&mut state);
    state.epochs[0].epoch = MAX_EPOCH;
    let before = state.clone();
    assert_eq!(state.issue(&configuration()), Err(Refused::EpochsExhausted));
    assert_eq!(state, before);
}

/// A lane belongs to one process start in one epoch. [E-LANE]
#[test]
fn a_lane_belongs_to_one_process_start_of_one_epoch() {
    let mut state = GroupState::default();
    assert_eq!(state.draw_lane(1, 70), Err(Refused::NotActive));
    activate(&mut state);
    for nonce in 1..=u64::from(MAX_LANE) {
        assert_eq!(state.draw_lane(1, nonce), Ok(nonce as u8));
    }
    let version = state.version;
    assert_eq!(state.draw_lane(1, 5), Ok(5), "the same again");
    assert_eq!(state.version, version);
    assert_eq!(state.draw_lane(1, 1_000), Err(Refused::LanesExhausted));
    state.issue(&configuration()).unwrap();
    assert_eq!(state.draw_lane(1, 5), Err(Refused::NotActive));
    assert_eq!(state.draw_lane(2, 5), Err(Refused::NotActive));
}

/// A disk gets a larger number than all before. [T-DISK]
#[test]
fn a_disk_has_a_larger_number_than_all_before() {
    let mut state = GroupState::default();
    assert_eq!(state.draw_incarnation(6, 70), Err(Refused::NotActive));
    activate(&mut state);
    let first = state.draw_incarnation(6, 70).unwrap();
    let version = state.version;
    assert_eq!(state.draw_incarnation(6, 70), Ok(first), "the same again");
    assert_eq!(state.version, version);
    let other = state.draw_incarnation(7, 80).unwrap();
    let second = state.draw_incarnation(6, 71).unwrap();
    assert!(first < other && other < second);
    assert_eq!(state.disks.len(), 2, "one of each replica");
    // An old copy of the store issues the next epoch before it draws a number.
    activate(&mut state);
    let later = state.draw_incarnation(6, 72).unwrap();
    assert!(later > second && later >> 32 == 2);
}

#[test]
fn a_view_shows_the_active_epoch_however_many_follow() {
    let mut state = GroupState::default();
    activate(&mut state);
    activate(&mut state);
    for _ in 0..50 {
        let epoch = state.issue(&configuration()).unwrap();
        state.mark_writing(epoch).unwrap();
    }
    let view = state.view(1);
    assert_eq!(view.epochs.len(), View::MAX_EPOCHS);
    assert_eq!(
        (view.epochs[0].epoch, view.epochs[0].state),
        (2, EpochState::Active)
    );
    assert_eq!(view.epochs.last().map(|e| e.epoch), Some(52));
    assert_eq!(
        view.begins(0),
        Some((view.epochs[0].epoch, handed().end[0]))
    );
    assert_eq!(view.active(), None);
    assert_eq!(
        state.needed().len(),
        51,
        "promises are needed from all of them"
    );
}

fn begins(epoch: Epoch) -> Begins {
    Begins {
        next: vec![7],
        by: vec![view::first(epoch)],
    }
}

/// A view of a session has its beginning and all sessions in between. [F-ACTIVE] [F-TOLD]
#[test]
fn a_session_is_told_with_where_it_begins_and_all_that_came_between() {
    let mut state = GroupState::default();
    for epoch in [1, 2] {
        assert_eq!(state.issue_session(&configuration(), 1), Ok(epoch));
        state.mark_writing(epoch).unwrap();
        let early = GroupState::mark_session_active;
        let (last, trim) = (state.clone(), vec![3]);
        assert_eq!(
            early(&mut state, epoch + 1, begins(epoch), trim.clone()),
            Err(Refused::OutOfOrder)
        );
        assert_eq!(state, last);
        state
            .mark_session_active(epoch, begins(epoch), trim)
            .unwrap();
    }
    // The first session never wrote, and the second one did.
    assert_eq!(state.issue_session(&configuration(), 1), Ok(3));
    assert_eq!(state.issue_session(&configuration(), 1), Ok(4));
    state.mark_writing(4).unwrap();
    assert_eq!(state.mark_writing(3), Err(Refused::Superseded));
    let told = state.view(1).sessions(0).unwrap();
    let stages: Vec<_> = told.iter().map(|s| (s.number, s.stage)).collect();
    let active = |by| nopaxos::Stage::Active { by };
    assert_eq!(
        stages,
        [
            (1, active(view::last(1))),
            (2, active(view::first(2))),
            (3, nopaxos::Stage::Issued),
            (4, nopaxos::Stage::Writing),
        ]
    );
    let mut replica = nopaxos::Sessions::default();
    assert_eq!(replica.learn(&told), Ok(true));
    let handed = state.handed.unwrap();
    assert_eq!((handed.next, handed.trim), (vec![7], vec![3]));
}

/// No more sessions stay unfinished than a view can show. [F-TOLD]
#[test]
fn no_more_sessions_are_left_unfinished_than_a_view_shows() {
    let mut state = GroupState::default();
    state.issue_session(&configuration(), 0).unwrap();
    state.mark_writing(1).unwrap();
    state.mark_session_active(1, begins(1), vec![0]).unwrap();
    while !state.is_full() {
        let epoch = state.issue_session(&configuration(), 0).unwrap();
        state.mark_writing(epoch).unwrap();
    }
    let before = state.clone();
    assert_eq!(
        state.issue_session(&configuration(), 0),
        Err(Refused::TooManyUnfinished)
    );
    assert_eq!(state, before);
    let told = state.view(1).sessions(0).unwrap();
    let mut replica = nopaxos::Sessions::default();
    assert_eq!(replica.learn(&told), Ok(true));
    let last = state.last_epoch();
    let needed = replica.needed(view::first(last)).expect("none is missing");
    assert_eq!(needed.len(), told.len() - 1, "all that wrote are asked");
    // When the last session becomes active, there is room again.
    state
        .mark_session_active(last, begins(last), vec![0])
        .unwrap();
    assert!(!state.is_full());
    state.epochs.last_mut().unwrap().epoch = MAX_EPOCH;
    assert_eq!(
        state.issue_session(&configuration(), 0),
        Err(Refused::EpochsExhausted)
    );
}

#[test]
fn old_epochs_are_forgotten_in_the_end() {
    let mut state = GroupState::default();
    for _ in 0..100 {
        activate(&mut state);
    }
    assert_eq!(state.epochs.len(), OLDER_EPOCHS + 1);
}

/// The list of the members' changes only grows, by who knows all of it. [E-CHANGES]
#[test]
fn the_members_changes_only_grow() {
    let mut state = GroupState::default();
    let change = |f| MemberChange::SetF { group: 0, f };
    assert_eq!(state.append_members(0, &[change(2)]), Ok(()));
    assert_eq!(state.version, 1);
    assert_eq!(
        state.append_members(0, &[change(3)]),
        Err(Refused::OutOfOrder)
    );
    assert_eq!(
        state.append_members(2, &[change(3)]),
        Err(Refused::OutOfOrder)
    );
    let record = "x".repeat(20_000);
    let long = MemberChange::Add {
        name: "acceptor-4".to_owned(),
        node: 4,
        record,
    };
    assert_eq!(
        state.append_members(1, &[long]),
        Err(Refused::TooManyChanges)
    );
    assert_eq!(state.append_members(1, &[change(3)]), Ok(()));
    assert_eq!((state.version, state.members.len()), (2, 2));
    activate(&mut state);
    assert_eq!(state.members, [change(2), change(3)], "they outlive epochs");
}

/// A change that this program doesn't know is never stored, since its contents are lost. [E-LEVEL]
#[test]
fn a_later_versions_change_is_not_stored() {
    let mut state = GroupState::default();
    let refused = state.append_members(0, &[MemberChange::Unknown]);
    assert_eq!(refused, Err(Refused::UnknownChange));
    assert_eq!(state, GroupState::default());
    let begun = GroupState::begun_from_backup(vec![7], 2);
    assert_eq!(level::of(&begun.members), 2);
}
