// SPDX-License-Identifier: Apache-2.0
use super::*;

const FIRST: Round = Round(1 << 12);
const SECOND: Round = Round((1 << 12) + 1);

fn world() -> Committed {
    let mut committed = Committed::new(0);
    committed.session(1, &[(1, 1), (2, 1), (3, 1)], 1, 0);
    committed
}

fn packet(msgtype: MsgType, rnd: Round, swid: NodeId, inst: Instance) -> Header {
    Header {
        rnd,
        swid,
        inst,
        ..Header::new(msgtype)
    }
}

fn send(committed: &mut Committed, header: Header, value: &[u8]) {
    committed.sent(&header.datagram(value));
}

fn reply(committed: &mut Committed, view: Round, from: NodeId, inst: Instance, request: u64) {
    let header = Header {
        client: 7,
        request,
        ..packet(MsgType::Reply, view, from, inst)
    };
    send(committed, header, b"answer");
}

fn start(committed: &mut Committed, view: Round, end: Instance, noops: &[Range<Instance>]) {
    let mut value = Vec::new();
    Noops::append(&mut value, 0, noops.iter().cloned());
    send(committed, packet(MsgType::StartView, view, 2, end), &value);
}

/// Returns facts in which one request is committed in the first view.
fn one_committed() -> Committed {
    let mut committed = world();
    reply(&mut committed, FIRST, 1, 0, 1);
    assert_eq!(committed.committed_in(FIRST), 0);
    send(&mut committed, packet(MsgType::Ack, FIRST, 2, 1), &[]);
    assert_eq!(committed.committed_in(FIRST), 1);
    committed
}

fn ids(committed: &Committed) -> Vec<&'static str> {
    committed.violations().iter().map(|v| v.id).collect()
}

/// The checker notices a later view that lacks a committed entry. [K-QUORUM]
#[test]
fn what_is_committed_must_be_in_later_views() {
    let mut sound = one_committed();
    start(&mut sound, SECOND, 1, &[]);
    reply(&mut sound, SECOND, 2, 0, 1);
    assert_eq!(ids(&sound), [""; 0]);

    let mut cut_off = one_committed();
    start(&mut cut_off, SECOND, 0, &[]);
    assert_eq!(ids(&cut_off), ["INV-10"]);

    let mut noop = one_committed();
    start(&mut noop, SECOND, 1, &[0..1]);
    assert_eq!(ids(&noop).first(), Some(&"INV-10"));

    let mut other = one_committed();
    start(&mut other, SECOND, 1, &[]);
    reply(&mut other, SECOND, 2, 0, 2);
    assert_eq!(ids(&other).first(), Some(&"INV-10"));
}

/// The order in which facts come doesn't matter. [K-LEADER]
#[test]
fn an_acknowledgement_seen_late_counts() {
    let mut committed = world();
    reply(&mut committed, FIRST, 1, 0, 1);
    start(&mut committed, SECOND, 0, &[]);
    send(&mut committed, packet(MsgType::Ack, FIRST, 1, 1), &[]);
    assert_eq!(
        ids(&committed),
        [""; 0],
        "the leader's own counts for nothing"
    );
    send(&mut committed, packet(MsgType::Ack, FIRST, 3, 1), &[]);
    assert_eq!(ids(&committed), ["INV-10"]);
}

#[test]
fn a_view_has_one_start_and_its_leader_one_log() {
    let mut two_starts = world();
    start(&mut two_starts, SECOND, 1, &[]);
    start(&mut two_starts, SECOND, 1, &[0..1]);
    assert_eq!(ids(&two_starts), ["INV-11"]);

    let mut answered = world();
    reply(&mut answered, FIRST, 1, 0, 1);
    let mut value = Vec::new();
    Noops::append(&mut value, 0, [0..1]);
    send(
        &mut answered,
        packet(MsgType::GapCommit, FIRST, 1, 1),
        &value,
    );
    assert_eq!(ids(&answered), ["INV-11"]);
}

#[test]
fn a_slot_stamped_twice_and_a_stable_slot_that_changes() {
    let mut committed = world();
    for request in [1, 1, 2] {
        let header = Header {
            client: 7,
            request,
            flags: Flags::NONE,
            ..packet(MsgType::Ordered, FIRST, 9, 4)
        };
        send(&mut committed, header, b"v");
    }
    assert_eq!(ids(&committed), ["INV-15"]);

    let mut committed = world();
    committed.shown(1, None, (0, 1, 1), |_| Content::Known(7, 1));
    committed.shown(2, None, (0, 0, 1), |_| Content::Noop);
    committed.shown(3, None, (0, 1, 1), |_| Content::Noop);
    assert_eq!(ids(&committed), ["INV-12"]);
}

/// A command over several partitions, sent again in the next session: the same name, another
/// vector. [W-VECTOR]
#[test]
fn entries_are_more_than_their_names() {
    let vector = |value: &'static [u8]| move |_| Content::whole((7, 1), Flags::MULTI.0, value);
    let mut stable = world();
    stable.shown(1, None, (0, 1, 1), vector(b"first"));
    stable.shown(2, None, (0, 1, 1), vector(b"second"));
    assert_eq!(ids(&stable), ["INV-12"]);

    for (value, broken) in [(b"first", None), (b"other", Some("INV-10"))] {
        let mut committed = world();
        committed.shown(1, Some(FIRST.0), (0, 0, 1), vector(b"first"));
        send(
            &mut committed,
            packet(MsgType::SyncCommit, FIRST, 1, 1),
            &[],
        );
        start(&mut committed, SECOND, 1, &[]);
        committed.shown(3, Some(SECOND.0), (0, 0, 1), vector(value));
        assert_eq!(ids(&committed).first().copied(), broken);
    }

    let mut answered = one_committed();
    answered.shown(2, Some(SECOND.0), (0, 0, 1), vector(b"it has its name"));
    assert_eq!(ids(&answered), [""; 0]);
}
