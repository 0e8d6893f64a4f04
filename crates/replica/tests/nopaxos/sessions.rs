// SPDX-License-Identifier: Apache-2.0
//! Sessions of a sequencer, their views, and states that are taken over in them.

use super::*;

/// A replica in a later session tells the sequencer of an earlier one, which goes on stamping, that
/// nobody listens. It asks about an unknown session from which a packet has come. [Q-RETIRE]
/// [O-LATER]
#[test]
fn a_sequencer_of_an_earlier_session_hears_that_it_is_over() {
    let mut c = Cluster::<Disk>::begun(10);
    let mut old = Sequencer::new(deployment(SEQUENCER), 91);
    std::mem::swap(&mut old, &mut c.sequencer);
    c.kill(2);
    c.wait_for_session(2);
    c.go_on(20 * MS);
    std::mem::swap(&mut old, &mut c.sequencer);
    let datagram = stamped(&mut c, Flags::NONE, 1 << 16, 1, &command(1));
    for index in 0..2 {
        assert_eq!(c.sequencer.round().epoch(), 1);
        let worker = c.hosts[index].worker.as_mut().unwrap();
        let (now, mut out) = (c.world.now(), Out::default());
        let packet = Packet::parse(&datagram).unwrap();
        for repeated in [false, true] {
            let verdict = worker.step(now, &packet, &mut out);
            let expected = match repeated {
                false => Verdict::Rejected(Reason::Preempted),
                true => Verdict::Dropped(Reason::OldSession),
            };
            assert_eq!(verdict, expected);
        }
        let [(To::Sender, header, value)] = &out.sent[..] else {
            panic!("{:?}", out.sent);
        };
        let rejection = header.datagram(value);
        let packet = Packet::parse(&rejection).unwrap();
        assert_eq!(
            c.sequencer.step(&packet, &mut Sent::default()),
            Verdict::Changed
        );
        assert_eq!(worker.wanted().view_with, None);
    }
    assert!(c.sequencer.round().is_none(), "f+1 have said so");

    // The packet is of an unknown session. It may be damaged, so the session is only asked about.
    let mut header = *Packet::parse(&datagram).map(|p| p.header).as_ref().unwrap();
    header.rnd = Round::base(9);
    let datagram = header.datagram(&command(1));
    let worker = c.hosts[0].worker.as_mut().unwrap();
    let packet = Packet::parse(&datagram).unwrap();
    let verdict = worker.step(c.world.now(), &packet, &mut Out::default());
    assert_eq!(verdict, Verdict::Dropped(Reason::OldSession));
    assert_eq!(worker.wanted().view_with, Some(9));
}

/// A controller with an old store must hear of the session that its store lacks. [E-NEWEST]
#[test]
fn who_changes_views_shows_the_session_and_who_takes_part_the_view() {
    let mut c = Cluster::<Disk>::begun(14);
    let shown = |c: &mut Cluster<Disk>| {
        let value = Probe::Replica.emit();
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            value_len: value.len() as u16,
            ..Header::new(MsgType::Probe)
        };
        let datagram = header.datagram(&value);
        let mut out = Out::default();
        let (now, worker) = (c.world.now(), c.hosts[0].worker.as_mut().unwrap());
        let verdict = worker.step(now, &Packet::parse(&datagram).unwrap(), &mut out);
        assert_eq!(verdict, Verdict::Answered);
        let (_, header, _) = &out.sent[0];
        (worker.agreement().replica().status(), header.rnd)
    };
    let view = c.hosts[0].role().view();
    assert_eq!(shown(&mut c), (Doing::Normal, view));
    let member = c.hosts[1].role().member();
    let header = Header {
        cluster: CLUSTER,
        group: GROUP,
        rnd: Round(view.0 + 5),
        swid: member.node,
        client: member.nonce,
        request: c.store.last().unwrap().digest(),
        ..Header::new(MsgType::ViewChangeReq)
    };
    let datagram = header.datagram(&[]);
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!(c.step(0, member.node, &packet), Some(Verdict::Changed));
    // The number of a view that may never begin says nothing.
    assert_eq!(shown(&mut c), (Doing::ViewChange, Round::base(1)));
}

/// No view follows the session's last one. [W-WHEN]
#[test]
fn a_session_whose_views_are_used_up_needs_another_one() {
    let mut c = Cluster::<Disk>::begun(13);
    let member = c.hosts[1].role().member();
    let last = view::first(1).0 | view::MAX_LEADER;
    for (view, is_last) in [(last - 1, false), (last, true)] {
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            rnd: Round(view),
            swid: member.node,
            client: member.nonce,
            request: c.store.last().unwrap().digest(),
            ..Header::new(MsgType::ViewChangeReq)
        };
        let datagram = header.datagram(&[]);
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = c.step(0, member.node, &packet);
        assert_eq!(verdict, Some(Verdict::Changed));
        let wanted = c.hosts[0].worker.as_ref().unwrap().wanted();
        assert_eq!(wanted.new_epoch, is_last);
    }
}

/// Values that another replica has kept behind its state are stable, and execution goes on from
/// them. [X-LOG] [X-CATCHUP]
#[test]
fn what_was_kept_behind_a_state_is_executed_as_stable() {
    let mut c = Cluster::<Disk>::begun(11);
    c.open_session();
    c.go_on(5 * MS);
    let source = c.hosts[0].worker.as_mut().unwrap();
    source.execution_mut().keep_log(true);
    let (position, mut snapshot) = source.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    for _ in 0..3 {
        c.command(0);
        c.go_on(3 * MS);
    }
    c.check();
    assert_eq!(c.speculative, 1, "only the OPEN was answered ahead");
    let source = c.hosts[0].worker.as_mut().unwrap();
    let log = source.execution_mut().take_log().unwrap();
    let app = Durable::open(&Disk::default());
    let settings = ordered_settings(REPLICAS[2]);
    let mut fresh = Worker::<_, NoPaxos>::open_in(settings, app, 5, 0).unwrap();
    let mut out = Out::default();
    fresh.restore(0, position, &mut &bytes[..]).unwrap();
    fresh.replay(0, &log, &mut out).unwrap();
    let end = c.history.len();
    assert_eq!(fresh.next(), end as Instance);
    assert_eq!(fresh.application().tally, c.model.behind[end]);
    assert_eq!(fresh.agreement().stable(), end as Instance);
    assert_eq!(out.replies, [], "it is nobody's leader");
}
