// SPDX-License-Identifier: Apache-2.0
//! Tests of the client.

use super::*;

fn reply(view: Round, from: NodeId, inst: Instance) -> Header {
    Header {
        rnd: view,
        swid: from,
        inst,
        client: 7,
        request: inst + 1,
        ..Header::new(MsgType::Reply)
    }
}

pub(super) fn ack(view: Round, from: NodeId, next: Instance) -> Header {
    ack_in(&session_of_five(), view, from, next)
}

fn ack_in(session: &Session, view: Round, from: NodeId, next: Instance) -> Header {
    Header {
        rnd: view,
        vrnd: session.shown(),
        swid: from,
        inst: next,
        ..Header::new(MsgType::Ack)
    }
}

fn session_of_five() -> Session {
    let members: Vec<Member> = (1..=5).map(member).collect();
    session(1, &members, 0)
}

pub(super) fn client() -> Quorum<&'static str> {
    let mut quorum = Quorum::new(0);
    quorum.learn(&session_of_five()).unwrap();
    quorum
}

/// An answer is final once f other members of its view have acknowledged the slot. [K-QUORUM]
/// [K-NEWEST]
#[test]
fn an_answer_is_final_with_f_others_of_its_view() {
    let mut client = client();
    assert_eq!(client.reply(&reply(view_of(1, 0), 1, 0), "a"), Ok(None));
    assert_eq!(client.reply(&reply(view_of(1, 0), 1, 1), "b"), Ok(None));
    client.ack(&ack(view_of(1, 0), 2, 2)).unwrap();
    assert_eq!(client.ack(&ack(view_of(1, 0), 2, 1)), Err(Reason::Stale));
    assert_eq!(client.next(), None, "f is 2");
    client.ack(&ack(view_of(1, 1), 3, 9)).unwrap();
    assert_eq!(client.next(), None, "of another view");
    client.ack(&ack(view_of(1, 0), 4, 1)).unwrap();
    assert_eq!((client.next(), client.next()), (Some("a"), None));
    client.ack(&ack(view_of(1, 0), 5, 2)).unwrap();
    assert_eq!((client.next(), client.next()), (Some("b"), None));
}

/// Acknowledgements of followers prove nothing without the leader's answer. [K-LEADER]
#[test]
fn followers_alone_prove_nothing() {
    let mut client = client();
    assert_eq!(
        client.reply(&reply(view_of(1, 0), 2, 0), "x"),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.ack(&ack(view_of(1, 0), 1, 9)),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.ack(&ack(view_of(1, 0), 6, 9)),
        Err(Reason::UnknownSender)
    );
    assert_eq!(
        client.reply(&reply(view_of(2, 0), 1, 0), "x"),
        Err(Reason::UnknownEpoch)
    );
    client.reply(&reply(view_of(1, 1), 2, 0), "new").unwrap();
    assert_eq!(
        client.reply(&reply(view_of(1, 0), 1, 0), "old"),
        Err(Reason::Stale)
    );
}

/// An answer from a stable slot is final without any acknowledgement. [K-STABLE]
#[test]
fn an_answer_from_a_stable_slot_is_final_by_itself() {
    let mut client = client();
    assert_eq!(client.reply(&reply(Round::NONE, 4, 0), "a"), Ok(Some("a")));
}

/// Two controllers with copies of one store have issued session 1, each with the boot nonces that
/// it saw. A member of the other one is another member here. [K-SAME]
#[test]
fn who_acknowledges_in_another_session_of_that_number_is_no_member() {
    let mut other = session_of_five();
    other.members[1].nonce += 1;
    let mut client = client();
    client.reply(&reply(view_of(1, 0), 1, 0), "a").unwrap();
    for follower in 2..=5 {
        let ack = ack_in(&other, view_of(1, 0), follower, 9);
        assert_eq!(client.ack(&ack), Err(Reason::Conflict));
    }
    assert_eq!(client.next(), None);
    assert_eq!(client.learn(&other), Err(Reason::Conflict));
    for follower in 2..=3 {
        client.ack(&ack(view_of(1, 0), follower, 9)).unwrap();
    }
    assert_eq!(client.next(), Some("a"), "the first one stays");
}

/// ACK shows the session's digest, by which clients notice that a replica is in another session.
/// [K-SAME]
#[test]
fn a_follower_shows_clients_which_session_it_is_in() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let follower = group.replicas.get_mut(&2).unwrap();
    let ack = follower.take_ack().unwrap().header;
    let members: Vec<Member> = (1..=3).map(member).collect();
    assert_eq!(ack.vrnd, session(1, &members, 0).shown());
}

/// The session was issued with three members by a store that was replaced by an older copy, and
/// begins with five. [E-ONE]
#[test]
fn a_session_that_was_only_issued_counts_nothing() {
    let five = session_of_five();
    let three = Session {
        stage: Stage::Issued,
        ..session(1, &five.members[..3], 0)
    };
    let mut client = Quorum::new(0);
    client.learn(&three).unwrap();
    assert_eq!(client.newest(), 0);
    client.learn(&five).unwrap();
    client.reply(&reply(view_of(1, 0), 1, 0), "a").unwrap();
    client.ack(&ack(view_of(1, 0), 2, 1)).unwrap();
    assert_eq!(client.next(), None, "f is 2");
    client.ack(&ack(view_of(1, 0), 3, 1)).unwrap();
    assert_eq!(client.next(), Some("a"));
}
