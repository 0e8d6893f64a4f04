// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes, made from outside the roles: what they get, send or keep is falsified, so
//! that the cluster behaves as if the rule in question had been left out.

use paxos::wire::value::RangeReport;
use paxos::{Flags, Header, MsgType, Reason, Round, To, Verdict};

use crate::actor::{Actor, Outputs};
use crate::bounds::Bounds;
use crate::network::Payload;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// An acceptor that lost its memory takes part as if it had not.
    AcceptorForgets,
    /// A range promise doesn't raise the floor.
    RangeRaisesNoFloor,
    /// An acceptor votes below the round that it promised.
    VotesBelowPromise,
    /// A promise doesn't show the vote.
    VotesIgnored,
    /// A range promise says that nothing was voted.
    NothingToRead,
    /// The candidate is content with promises of f.
    PromisesOfF,
    /// A learner takes one acceptor's vote for two.
    VoteCountedTwice,
    /// "No vote" in answer to a QUERY passes for a promise.
    QueryIsPromise,
    /// Repairing hosts share a lane.
    SharedLane,
    /// A restarted leader begins its round again.
    LeaderStampsAgain,
    /// The leader begins at the marker's instance instead of behind it.
    NextIsMarker,
    /// The report of one replica is enough to trim.
    TrimByOne,
    /// A member that lost its memory is enabled in the first epoch's round.
    RejoinsOldEpoch,
    /// A packet that is turned away leaves a trace.
    RefusalChanges,
}

/// Falsifies what an actor gets.
pub fn falsify_input(mutation: Mutation, bounds: &Bounds, to: &Actor, payload: &mut Payload) {
    match payload {
        Payload::Packet { header, value } if proposes(to) => match mutation {
            Mutation::VotesIgnored if is_promise(header) => {
                header.vrnd = Round::NONE;
                (header.client, header.request) = (0, 0);
                header.flags = Flags::NONE;
                header.value_len = 0;
                value.clear();
            }
            Mutation::NothingToRead if header.flags.has(Flags::RANGE) => {
                let report = RangeReport::parse(value).expect("an acceptor's own");
                let report = RangeReport {
                    end: report.trim,
                    ..report
                };
                *value = report.emit().to_vec();
            }
            _ => {}
        },
        Payload::Packet { .. } => {}
        Payload::Active { lane, .. } if mutation == Mutation::SharedLane => *lane = 1,
        Payload::Program(program) if mutation == Mutation::NextIsMarker => {
            program.next.iter_mut().for_each(|next| *next -= 1);
        }
        Payload::Enable(enable) => match mutation {
            Mutation::TrimByOne => enable.g = 0,
            Mutation::RejoinsOldEpoch => {
                let fresh = |a: &paxos::Acceptor| a.is_stranger() && !bounds.unborn;
                if matches!(to, Actor::Acceptor(acceptor) if fresh(acceptor)) {
                    enable.epoch = 1;
                }
            }
            _ => {}
        },
        _ => {}
    }
}

fn proposes(actor: &Actor) -> bool {
    matches!(actor, Actor::Control(_) | Actor::Repairer(_))
}

fn is_promise(header: &Header) -> bool {
    header.msgtype == MsgType::Phase1b && !header.flags.has(Flags::RANGE) && !header.rnd.is_none()
}

/// Falsifies what an actor keeps and sends after it took a message.
pub fn falsify_step(
    mutation: Mutation,
    before: &Actor,
    after: &mut Actor,
    payload: &Payload,
    out: &mut Outputs,
) {
    let Payload::Packet { header, value } = payload else {
        return;
    };
    match (mutation, &mut *after) {
        (Mutation::RangeRaisesNoFloor, Actor::Acceptor(_))
            if header.msgtype == MsgType::Phase1a && header.flags.has(Flags::RANGE) =>
        {
            *after = before.clone();
        }
        (Mutation::VotesBelowPromise, Actor::Acceptor(acceptor)) => {
            let refused = out.verdict == Some(Verdict::Rejected(Reason::Preempted));
            if refused && header.msgtype == MsgType::Phase2a {
                let vote = Header {
                    msgtype: MsgType::Phase2b,
                    vrnd: header.rnd,
                    swid: acceptor.deployment().node,
                    ..*header
                };
                out.packets.0 = vec![(To::Learners, vote, value.clone())];
                out.verdict = Some(Verdict::Changed);
            }
        }
        (Mutation::QueryIsPromise, Actor::Repairer(_)) => {
            let no_vote = header.msgtype == MsgType::Phase1b && header.rnd.is_none();
            if no_vote && matches!(out.verdict, Some(Verdict::Dropped(_))) {
                let promise = Header {
                    rnd: Round::repair(1, 1, 0).expect("a round"),
                    client: 0,
                    request: 0,
                    ..*header
                };
                *out = after.receive(&Payload::Packet {
                    header: promise,
                    value: Vec::new(),
                });
            }
        }
        (Mutation::VoteCountedTwice, Actor::Learner(_)) => {
            let mut again = payload.clone();
            if let Payload::Packet { header, .. } = &mut again {
                header.swid = if header.swid == 11 { 12 } else { 11 };
            }
            out.delivered.append(&mut after.receive(&again).delivered);
        }
        (Mutation::RefusalChanges, Actor::Leader(leader)) => {
            if matches!(out.verdict, Some(Verdict::Rejected(_))) {
                leader.retire(paxos::round::MAX_EPOCH);
            }
        }
        _ => {}
    }
}
