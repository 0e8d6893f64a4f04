// SPDX-License-Identifier: Apache-2.0
//! Where epochs begin.

use super::*;

fn marker(r: &mut Fed, epoch: u32) {
    let inst = r.worker.next();
    r.give(inst, Flags::NOOP, (0, 0), &emit_marker(epoch));
    r.finish();
}

/// A replica stops if an epoch begins below what it has executed. [X-BEGIN]
#[test]
fn a_replica_stops_where_an_epoch_begins_below_what_it_has_executed() {
    let mut r = fed();
    marker(&mut r, 1);
    let s = r.open(1, true, 8);
    r.log(s, 1, &command(1));
    assert_eq!(r.worker.next(), 3);
    r.worker.begins(1, 0);
    r.log(s, 2, &command(2));
    r.worker.begins(2, 3);
    assert_alarmed(&mut r);
    // The alarm comes again, as often as the worker is started.
    r.restart();
    r.worker.begins(2, 3);
    assert_alarmed(&mut r);
}

#[test]
fn a_replica_that_is_told_first_stops_before_it_stores_what_comes_in_the_markers_place() {
    let mut r = fed();
    marker(&mut r, 1);
    let s = r.open(1, true, 8);
    r.worker.begins(2, 2);
    r.give(3, Flags::NONE, (s, 2), &command(2));
    r.give(2, Flags::NONE, (s, 1), &command(1));
    assert_alarmed(&mut r);
    assert_eq!(r.disk.committed().tally.total, 0);
    // A plain no-op isn't a marker, and an older epoch's marker doesn't count.
    for value in [&[][..], &emit_marker(1)] {
        r.restart();
        r.worker.begins(2, 2);
        r.give(2, Flags::NOOP, (0, 0), value);
        assert_alarmed(&mut r);
    }
    r.restart();
    r.worker.begins(2, 2);
    assert!(!r.worker.execution().is_alarmed(), "the marker is next");
    marker(&mut r, 2);
    assert!(!r.worker.execution().is_alarmed());
}

/// The controller's store was emptied, so the numbers of disks begin anew, too. The process knows
/// that the number it has drawn isn't late. [X-ANEW]
#[test]
fn a_replica_stops_if_its_disk_gets_a_number_of_an_epoch_that_began_anew() {
    let number = |epoch: u64, n: u64| epoch << 32 | n;
    let before = number(2, 9);
    // The number is of an epoch before the last that was met, or isn't larger than the last one.
    for drawn in [number(1, 20), number(2, 7), before, number(3, 20)] {
        let mut r = fed();
        r.worker.set_incarnation(before).unwrap();
        marker(&mut r, 4);
        r.restart();
        assert!(r.worker.set_incarnation(drawn).is_err());
        assert_stopped(&mut r);
        // The alarm comes again, as often as the worker is started.
        r.restart();
        assert_eq!(r.worker.execution().incarnation(), Some(before));
        assert!(r.worker.set_incarnation(drawn).is_err());
        assert_stopped(&mut r);
        r.restart();
        r.worker.set_incarnation(number(4, 1)).unwrap();
    }
    // An epoch that it meets while the answer is on its way proves nothing.
    let mut r = fed();
    marker(&mut r, 1);
    marker(&mut r, 2);
    r.worker.set_incarnation(number(1, 1)).unwrap();
}

/// Votes of epochs before the last executed marker decide nothing. [X-EARLIER]
#[test]
fn nothing_is_decided_in_epochs_before_the_last_marker() {
    let mut r = fed();
    marker(&mut r, 4);
    // A view with epoch 1 alone is late, or belongs to another epoch 1.
    r.restart();
    let unknown = Verdict::Dropped(Reason::UnknownEpoch);
    assert_eq!(r.decide(1, Flags::NOOP, (0, 0), &[]), unknown);
    assert!(r.worker.wanted().incarnation);
    r.worker.configure(0, &[active(1), active(4)]);
    assert_eq!(r.decide(1, Flags::NOOP, (0, 0), &[]), unknown);
    r.tell_epoch(4);
    r.give(1, Flags::NOOP, (0, 0), &[]);
}

/// PROBE_ACK shows the last epoch whose marker was executed. [E-NEWEST]
#[test]
fn a_probe_shows_the_last_epoch_whose_marker_was_executed() {
    let mut r = fed();
    assert_eq!(shown(&mut r), Round::NONE);
    marker(&mut r, 4);
    marker(&mut r, 2);
    assert_eq!(shown(&mut r), Round::base(4));
    r.restart();
    assert_eq!(shown(&mut r), Round::base(4));
}

/// Returns the round in the answer to a PROBE.
fn shown(r: &mut Fed) -> Round {
    let question = Header {
        msgtype: MsgType::Probe,
        client: 8,
        request: 9,
        rnd: Round::NONE,
        vrnd: Round::NONE,
        ..deliver_header()
    };
    r.out.sent.clear();
    assert_eq!(
        step(r, &question, &Probe::Replica.emit()),
        Verdict::Answered
    );
    r.out.of_type(MsgType::ProbeAck)[0].1.rnd
}

fn step(r: &mut Fed, header: &Header, value: &[u8]) -> Verdict {
    let datagram = header.datagram(value);
    let packet = Packet::parse(&datagram).unwrap();
    r.worker.step(r.now, &packet, &mut r.out)
}

/// A report that is late or repeated doesn't cause an alarm. [X-BEGIN]
#[test]
fn what_is_told_late_or_again_is_no_alarm() {
    let mut r = fed();
    for epoch in [1, 2, 3] {
        marker(&mut r, epoch);
        r.worker.begins(epoch, r.worker.next() - 1);
    }
    // Behind a newer epoch's marker an older one doesn't count.
    marker(&mut r, 2);
    r.restart();
    for (epoch, at) in [(1, 0), (2, 1), (3, 2), (2, 1), (3, 2)] {
        r.worker.begins(epoch, at);
        assert!(!r.worker.execution().is_alarmed());
    }
    r.finish();
    // The replica's state moves elsewhere, and the marker with it.
    let (position, bytes) = snapshot(&mut r);
    let mut behind = Fed::new(settings(REPLICAS[1]));
    behind.worker.begins(3, 2);
    let restored = behind.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(4)), "{restored:?}");
    behind.finish();
    // The ranges that were given up lie below the beginning of the next epoch, also for a replica
    // that stands inside them.
    for next in [2, 3, 4] {
        let mut r = standing_at(next);
        r.worker.give_up(0, &[GIVEN_UP]);
        r.worker.begins(1, GIVEN_UP.end);
        r.finish();
        assert!(!r.worker.execution().is_alarmed());
    }
}
