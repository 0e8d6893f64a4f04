// SPDX-License-Identifier: Apache-2.0
//! Values execute in the order of their instances, and bad packets change nothing.

use super::*;

/// Values are executed in the order of instances, in whatever order they arrive. [X-ORDER]
#[test]
fn values_execute_in_instance_order_however_they_come() {
    let mut r = fed();
    let s = r.open(1, true, 16);
    let mut later: Vec<u64> = (1..=8).collect();
    later.reverse();
    for request in later {
        assert_eq!(r.worker.next(), 1);
        let verdict = r.decide(request, Flags::NONE, (s, request), &command(request));
        assert_eq!(verdict, Verdict::Changed);
        if request > 1 {
            let repeated = r.decide(request, Flags::NONE, (s, request), &command(request));
            assert_eq!(repeated, Verdict::Dropped(Reason::Duplicate));
            // Another value for a decided instance is a conflict. [D-CONFLICT]
            let other = r.decide(request, Flags::NONE, (s, request + 1), &command(request));
            assert_eq!(other, Verdict::Dropped(Reason::Conflict));
        }
    }
    let replies = r.finish();
    let order: Vec<u64> = replies.iter().map(|r| r.request).collect();
    assert_eq!(order, (1..=8).collect::<Vec<_>>());
    assert_eq!(
        r.decide(3, Flags::NONE, (s, 3), &command(3)),
        Verdict::Dropped(Reason::Stale)
    );
    assert_eq!(r.worker.waiting(), 0);
}

#[test]
fn values_beyond_the_buffer_are_dropped() {
    let mut r = fed();
    let length = r.settings.buffer as u64;
    assert_eq!(
        r.decide(length - 1, Flags::NOOP, (0, 0), &[]),
        Verdict::Changed
    );
    for inst in [length, u64::MAX] {
        let verdict = r.decide(inst, Flags::NOOP, (0, 0), &[]);
        assert_eq!(verdict, Verdict::Dropped(Reason::Window));
    }
    assert_eq!(r.worker.waiting(), 1);
}

/// A packet that isn't valid changes nothing. [M-REFUSE] [D-DELIVER]
#[test]
fn bad_packets_change_nothing() {
    let mut r = fed();
    let good = Header {
        client: 5,
        request: 1,
        ..deliver_header()
    };
    let typed = |msgtype| Header { msgtype, ..good };
    let of = |rnd| Header { rnd, ..good };
    let bad = [
        (Header { cluster: 1, ..good }, Reason::WrongCluster),
        (Header { group: 2, ..good }, Reason::UnknownGroup),
        (Header { pid: 1, ..good }, Reason::UnknownPartition),
        (Header { swid: 98, ..good }, Reason::UnknownSender),
        (Header { client: 0, ..good }, Reason::BadSession),
        (of(Round(7)), Reason::BadRound),
        (of(Round::base(2)), Reason::UnknownEpoch),
        (typed(MsgType::Phase2a), Reason::NotForRole),
        (typed(MsgType::Request), Reason::NotForRole),
        (typed(MsgType::Trim), Reason::NotForRole),
        (typed(MsgType::Ordered), Reason::NotForRole),
        (typed(MsgType::StartView), Reason::NotForRole),
        (typed(MsgType::Read), Reason::NotForRole),
        (typed(MsgType::Phase2b), Reason::UnknownSender),
        (typed(MsgType::Phase1b), Reason::Unexpected),
        (typed(MsgType::Reject), Reason::Unexpected),
        (typed(MsgType::Probe), Reason::BadValue),
        (
            Header {
                flags: Flags::RANGE,
                ..typed(MsgType::Phase1b)
            },
            Reason::BadValue,
        ),
    ];
    for (header, reason) in bad {
        let datagram = header.datagram(&command(1));
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = r.worker.step(0, &packet, &mut r.out);
        assert_eq!(verdict, Verdict::Dropped(reason), "{header:?}");
    }
    assert!(r.finish().is_empty() && r.out.sent.is_empty());
    assert_eq!((r.worker.next(), r.worker.waiting()), (0, 0));
    assert_eq!(r.disk.with(|d| d.commits), 0);
    assert_eq!(
        r.worker.wanted().view_with,
        Some(2),
        "but a later epoch is worth asking for"
    );
}

#[test]
fn a_probe_shows_what_is_committed_and_what_is_durable() {
    let mut r = fed();
    r.open(1, false, 8);
    r.worker.checkpoint(0).unwrap();
    r.give(1, Flags::NOOP, (0, 0), &[]);
    r.finish();
    r.out.sent.clear();
    r.give(2, Flags::NOOP, (0, 0), &[]);
    let question = Header {
        msgtype: MsgType::Probe,
        client: 8,
        request: 9,
        rnd: Round::NONE,
        vrnd: Round::NONE,
        ..deliver_header()
    };
    let datagram = question.datagram(&Probe::Replica.emit());
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!(r.worker.step(0, &packet, &mut r.out), Verdict::Answered);
    let (to, header, value) = r.out.sent.pop().unwrap();
    let report = ProbeReport::parse(&value).unwrap();
    assert_eq!((to, header.msgtype), (To::Sender, MsgType::ProbeAck));
    assert_eq!((header.inst, report.trim, report.nonce), (2, 1, 1));
    assert_eq!(
        (header.client, header.request, header.swid),
        (8, 9, REPLICAS[0])
    );
    assert!(header.rnd.is_none());
    for other in [Probe::Leader, Probe::Acceptor, Probe::Sequencer] {
        let datagram = question.datagram(&other.emit());
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = r.worker.step(0, &packet, &mut r.out);
        assert_eq!(verdict, Verdict::Dropped(Reason::NotForRole));
    }
}
