// SPDX-License-Identifier: Apache-2.0
//! The small cluster that tests speak of: f = 1 and g = 1, the smallest in which a failure has to
//! be survived.

use paxos::wire::value::{RangeReport, Rejection};
use paxos::{
    Configuration, Deployment, Enable, Epoch, Flags, GroupId, Header, Instance, Member, MsgType,
    NodeId, Program, Reason, Round,
};

/// The cluster's number.
pub const CLUSTER: u32 = 77;
/// The cluster's only group.
pub const GROUP: GroupId = 1;
/// The first is the preferred one.
pub const LEADERS: [NodeId; 2] = [1, 2];
/// 2f+1.
pub const ACCEPTORS: [NodeId; 3] = [3, 4, 5];
/// 2g+1.
pub const REPLICAS: [NodeId; 3] = [6, 7, 8];
/// The node that issues the epochs.
pub const CONTROLLER: NodeId = 9;
/// A learner node.
pub const LEARNER: NodeId = 10;
/// The address of clients, which are no nodes.
pub const CLIENT: NodeId = 0;
/// The number from which [`nonce_of`] makes the nonces of first memories.
const FIRST_NONCE: u64 = 100;

/// Returns a node's place in the cluster.
pub fn deployment(node: NodeId, partitions: u16) -> Deployment {
    Deployment {
        cluster: CLUSTER,
        group: GROUP,
        partitions,
        max_value: 1_024,
        node,
    }
}

/// Returns the boot nonce of a node's first memory.
pub fn nonce_of(node: NodeId) -> u64 {
    FIRST_NONCE + u64::from(node)
}

/// Returns an epoch of the first leader and the first memories of all nodes.
pub fn configuration(epoch: Epoch) -> Configuration {
    let member = |node| Member {
        node,
        nonce: nonce_of(node),
    };
    Configuration {
        epoch,
        leader: member(LEADERS[0]),
        acceptors: ACCEPTORS.map(member).into(),
        f: 1,
        replicas: REPLICAS.into(),
        g: 1,
    }
}

/// Returns the REJECT of a message, for a reason that needs no more said.
pub fn refused(message: &Header, reason: Reason) -> (Header, [u8; Rejection::LEN]) {
    let header = Header {
        msgtype: MsgType::Reject,
        flags: Flags::NONE,
        ..*message
    };
    let rejection = Rejection {
        reason,
        round: Round::NONE,
        trim: 0,
    };
    (header, rejection.emit())
}

/// Returns what an acceptor answers to a QUERY for a whole partition, of which it has trimmed
/// nothing: header and value.
pub fn range_answer(
    question: &Header,
    from: Member,
    floor: Epoch,
    end: Instance,
) -> (Header, [u8; RangeReport::LEN]) {
    let report = RangeReport {
        end,
        trim: 0,
        nonce: from.nonce,
    };
    let header = Header {
        msgtype: MsgType::Phase1b,
        swid: from.node,
        rnd: Round::base(floor),
        value_len: RangeReport::LEN as u16,
        ..*question
    };
    (header, report.emit())
}

/// Returns the order to a memory to take part in an epoch; `trim` and `end` partition by partition.
pub fn enable(of: &Configuration, nonce: u64, trim: Vec<Instance>, end: Vec<Instance>) -> Enable {
    Enable {
        epoch: of.epoch,
        nonce,
        trim,
        end,
        replicas: of.replicas.clone(),
        g: of.g,
    }
}

/// Returns the order that enables a memory which begins with nothing.
pub fn enable_empty(of: &Configuration, nonce: u64, partitions: u16) -> Enable {
    let zero = vec![0; partitions.into()];
    enable(of, nonce, zero.clone(), zero)
}

/// Returns the order to an epoch's leader to stamp from `next` on, in each partition; nothing is
/// trimmed.
pub fn program(of: &Configuration, next: Instance, partitions: u16, window: u64) -> Program {
    Program {
        epoch: of.epoch,
        nonce: of.leader.nonce,
        next: vec![next; partitions.into()],
        trimmed: vec![0; partitions.into()],
        window,
        acceptors: of.acceptors.iter().map(|a| a.node).collect(),
        f: of.f,
        replicas: of.replicas.clone(),
        g: of.g,
    }
}
