// SPDX-License-Identifier: Apache-2.0
//! Answers: repetitions, losses that nobody noticed, and front ends.

use super::*;

/// Nobody heard the answer, the leader dies, and the command comes again: in another view, in
/// another session, and to replicas that were followers. [N-RETRY] [S-ONCE]
#[test]
fn a_retry_gets_the_first_result_in_whatever_view() {
    let mut c = Cluster::<Disk>::begun(3);
    c.open_session();
    REPLICAS.iter().for_each(|r| c.cut(*r, &[CLIENT], true));
    let of = c.command(0);
    c.go_on(10 * MS);
    assert!(c.expected.contains_key(&of), "it is stable");
    c.kill(0);
    c.wait_for_session(2);
    REPLICAS.iter().for_each(|r| c.cut(*r, &[CLIENT], false));
    c.check();
    assert_eq!(c.finals.get(&of), c.expected.get(&of));
    let repeated = c.history.iter().filter(|v| (v.1, v.2) == of);
    assert!(repeated.count() > 1);
}

/// A command that reached no replica becomes a no-op, and nothing behind it is answered before all
/// agree on that. [H-NOOP] [H-ASK]
#[test]
fn a_command_that_reached_nobody_becomes_a_no_op_that_all_agree_on_first() {
    let mut c = Cluster::<Disk>::begun(4);
    c.open_session();
    c.go_on(5 * MS);
    let slot = c.history.len() as Instance;
    c.cut(SEQUENCER, &REPLICAS, true);
    let lost = c.command(0);
    c.go_on(MS);
    c.cut(SEQUENCER, &REPLICAS, false);
    // The leader can't hear whether others have the no-op.
    FOLLOWERS.iter().for_each(|f| c.cut(*f, &[LEADER], true));
    let next = c.command(0);
    c.go_on(5 * MS);
    let role = c.hosts[0].role();
    assert_eq!((role.next(), role.ready()), (slot + 2, slot));
    assert_eq!(positions(&c)[0].0, slot, "not beyond the gap");
    assert!(c.answers.iter().all(|(_, a)| (a.0, a.1) != next));
    c.world.network.heal();
    c.check();
    assert!(c.history[slot as usize].0.has(Flags::NOOP));
    assert!(c.finals.contains_key(&lost) && c.finals.contains_key(&next));
}

/// If the end of a burst reached no replica, they notice it without another command. [Y-TAIL]
#[test]
fn the_end_of_a_burst_that_reached_nobody_is_found_without_another_command() {
    let mut c = Cluster::<Disk>::begun(5);
    c.open_session();
    c.cut(SEQUENCER, &REPLICAS, true);
    let of = c.command(0);
    c.clients[0].resend_at = Time::MAX;
    c.go_on(2 * MS);
    c.cut(SEQUENCER, &REPLICAS, false);
    c.wait("a no-op", |c| {
        c.history.last().is_some_and(|v| v.0.has(Flags::NOOP))
    });
    assert!(!c.finals.contains_key(&of));
    c.clients[0].resend_at = 0;
    c.check();
}

/// A replica that was away for longer than the logs reach installs a checkpoint. [W-CHECKPOINT]
/// [N-FULL]
#[test]
fn who_was_away_for_longer_than_the_logs_reach_takes_a_checkpoint() {
    let mut c = Cluster::<Disk>::begun(6);
    c.open_session();
    let away = REPLICAS[2];
    let others = [SEQUENCER, REPLICAS[0], REPLICAS[1]];
    others.iter().for_each(|n| c.cut(*n, &[away], true));
    c.cut(away, &REPLICAS[..2], true);
    for _ in 0..2 * SLOTS {
        c.command(0);
        c.wait("an answer", |c| c.clients[0].open.is_empty());
    }
    assert!(c.hosts[0].role().floor() > c.hosts[2].role().next());
    c.world.network.heal();
    c.check();
    assert!(c.restored > 0);
}

/// A replica whose application can't take effects back answers only from stable slots. [N-COMMIT]
/// [K-STABLE]
#[test]
fn who_can_take_nothing_back_answers_only_what_is_stable() {
    let mut c = Cluster::<Disk>::with(8, true, 7, || {
        let disk = Disk::default();
        disk.with(|d| d.cannot_discard = true);
        disk
    });
    c.wait_for_session(1);
    c.open_session();
    for _ in 0..5 {
        c.command(0);
        c.go_on(MS);
    }
    c.check();
    assert_eq!((c.speculative, c.rewinds), (0, 0));
}

/// The leader alone has executed a command. Whatever packet comes now, from any sender, nobody
/// gives a final answer to it; every other test here checks that, too (`check_final`). [K-STABLE]
/// [N-RETRY] [N-MUTE]
#[test]
fn nothing_provokes_a_final_answer_to_what_is_not_stable() {
    let mut c = Cluster::<Disk>::begun(20);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    let bytes = command(of.0 << 16 | of.1);
    // The command comes once more, in a slot of its own.
    let again = stamped(&mut c, Flags::NONE, of.0, of.1, &bytes);
    for index in 0..REPLICAS.len() {
        let packet = Packet::parse(&again).unwrap();
        let _ = c.step(index, SEQUENCER, &packet);
    }
    c.go_on(2 * MS);
    assert!(positions(&c)[0].0 >= slot + 2, "the leader answers it, too");

    let view = c.hosts[0].role().view();
    let types = (1..=25).filter_map(MsgType::from_u8);
    let mut refused = 0;
    for msgtype in types {
        for rnd in [Round::NONE, view, Round(view.0 + 1), Round::base(2)] {
            for inst in [0, slot, slot + 1, slot + 5] {
                // These packets claim members' numbers, and memories that the members don't have.
                for (swid, client) in [(REPLICAS[0], of.0), (REPLICAS[1], 999), (77, 1)] {
                    for value in [&bytes[..], &[], &[0; 16]] {
                        let header = Header {
                            cluster: CLUSTER,
                            group: GROUP,
                            inst,
                            rnd,
                            swid,
                            client,
                            request: of.1,
                            ..Header::new(msgtype)
                        };
                        let datagram = header.datagram(value);
                        let Ok(packet) = Packet::parse(&datagram) else {
                            continue;
                        };
                        for index in 0..REPLICAS.len() {
                            let verdict = c.step(index, swid, &packet);
                            refused += u64::from(matches!(verdict, Some(Verdict::Dropped(_))));
                        }
                    }
                }
            }
        }
        c.go_on(MS / 10);
    }
    assert!(refused > 1_000, "{refused}");
    let is_final = |(h, a): &&(Header, Answer)| (a.0, a.1) == of && h.rnd.is_none();
    assert_eq!(c.answers.iter().filter(is_final).count(), 0);
    assert!(!c.finals.contains_key(&of) && !c.expected.contains_key(&of));
    c.world.network.heal();
    c.check();
    assert!(c.finals.contains_key(&of));
}

/// Answers to a front end can't be taken back, and it counts no acknowledgements. [N-RETRY]
#[test]
fn the_leaders_own_front_end_gets_what_is_stable() {
    let mut c = Cluster::<Disk>::begun(14);
    c.go_on(5 * MS);
    let to = ReplyAddress {
        home: LEADER,
        ..ReplyAddress::default()
    };
    let slot = c.sequencer.next(0);
    let op = open(false, 4, to).to_bytes();
    let datagram = stamped(&mut c, Flags::NONE, 5, 0, &op);
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    let (now, mut out) = (c.now(), Out::default());
    let worker = c.hosts[0].worker.as_mut().unwrap();
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), &out.replies[..]), (slot + 1, &[][..]));
    c.forward(0, SEQUENCER, out);
    c.go_on(5 * MS);
    let told: Vec<_> = c.locals.iter().map(|r| (r.basis, r.client)).collect();
    assert_eq!(told, [(None, 5)]);
    assert_eq!(c.locals[0].session_id(), (slot + 1) << 16);
}

/// The leader makes a command at once stable for which the front end beside another replica waits,
/// and sends that front end no answer. [N-RETRY]
#[test]
fn another_replicas_front_end_waits_for_no_timer() {
    let mut c = Cluster::<Disk>::begun(14);
    c.go_on(5 * MS);
    let to = ReplyAddress {
        home: FOLLOWERS[0],
        ..ReplyAddress::default()
    };
    let slot = c.sequencer.next(0);
    let op = open(false, 4, to).to_bytes();
    let datagram = stamped(&mut c, Flags::NONE, 5, 0, &op);
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    c.go_on(5 * MS);
    c.locals.clear();
    let session = (slot + 1) << 16;
    let datagram = stamped(&mut c, Flags::NONE, session, 1, &command(1));
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    let (now, mut out) = (c.now(), Out::default());
    let worker = c.hosts[0].worker.as_mut().unwrap();
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), &out.replies[..]), (slot + 2, &[][..]));
    let synchronises = |(_, h, _): &(To, Header, Vec<u8>)| h.msgtype == MsgType::SyncPrepare;
    assert!(out.sent.iter().any(synchronises));
    c.forward(0, SEQUENCER, out);
    c.go_on(5 * MS);
    let told: Vec<_> = c.locals.iter().map(|r| (r.basis, r.client)).collect();
    assert_eq!(told, [(None, session)]);
}
