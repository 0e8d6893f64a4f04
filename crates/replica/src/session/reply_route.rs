// SPDX-License-Identifier: Apache-2.0
//! Who hears an answer from this replica. [S-HOME]

use crate::agreement::Answers;
use crate::protocol::ReplyAddress;
use crate::reply::ReplyTo;
use paxos::NodeId;

/// Returns who hears a first answer from this replica. Only the session's home gives it, or, with a
/// leader, the leader and the front end's own replica. [S-HOME] [N-RETRY]
pub(super) fn first(to: &ReplyAddress, node: NodeId, answers: Answers) -> Option<ReplyTo> {
    let reached = reach(to, node);
    let answered_here = match answers {
        Answers::AtHome => to.home == 0 || to.home == node,
        Answers::Here(_) => true,
        Answers::Elsewhere => reached == ReplyTo::Local,
    };
    answered_here.then_some(reached)
}

/// Returns who hears the answer to a repetition, or a refusal. All replicas send it to a client's
/// address, since the home replica may be gone; a front end hears it only from its own replica and
/// from the leader. [S-HOME]
pub(super) fn again(to: &ReplyAddress, node: NodeId, answers: Answers) -> Option<ReplyTo> {
    match to.address {
        Some(address) => Some(ReplyTo::Address(address, to.key)),
        None => first(to, node, answers),
    }
}

/// Returns how a session is reached from this replica.
pub(super) fn reach(to: &ReplyAddress, node: NodeId) -> ReplyTo {
    match to.address {
        Some(address) => ReplyTo::Address(address, to.key),
        None if to.home == 0 || to.home == node => ReplyTo::Local,
        None => ReplyTo::Node(to.home),
    }
}
