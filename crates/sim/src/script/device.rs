// SPDX-License-Identifier: Apache-2.0
//! The device that a script drives: one role of one implementation. The runner reads the script and
//! writes what it sees, and a device knows neither.

use std::fmt;

use paxos::auth::Algorithm;
use paxos::learner::SlotView;
use paxos::{
    Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, PartitionId, Round, To, Verdict,
};

use super::fields::Fields;
use super::keys::Known;
use super::order::Order;
use super::{packet, value};

/// The role of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Role {
    Acceptor,
    Leader,
    Sequencer,
    /// A learner in the network.
    Learner,
    /// A learner in a replica's host.
    HostLearner,
    /// A receiver in a replica's host.
    Receiver,
}

/// A role as a script's `role` line describes it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The role.
    pub role: Role,
    /// The role's deployment.
    pub deployment: Deployment,
    /// The number of slots of one partition (acceptor, learners, receiver).
    pub slots: usize,
    /// The boot nonce (acceptor, leader, sequencer).
    pub nonce: u64,
    /// The nodes whose DELIVER is a decision (host_learner).
    pub trusted: Vec<NodeId>,
    /// The keys that the script has named since.
    pub(super) keys: Known,
}

/// One role of one implementation.
pub trait Device {
    /// Takes a datagram, and returns the datagrams that it sends, and the verdict. A message of a
    /// host's learner or receiver to its worker counts as a datagram to its own node
    /// ([`handed_over`]).
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict);

    /// Carries out an order for this role, and returns false if it is refused.
    fn order(&mut self, order: &Order) -> Result<bool, String>;

    /// Returns the visible state of a partition, or `None` if this role has only slots.
    fn state(&self, pid: PartitionId) -> Option<State>;

    /// Returns what is remembered of an instance.
    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState>;

    /// Returns a text that differs whenever the state differs.
    fn fingerprint(&self) -> String;
}

/// The visible state of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum State {
    Acceptor {
        epoch: Epoch,
        floor: Round,
        trim: Instance,
        end: Instance,
    },
    /// The state of a leader, or of a sequencer.
    Leader {
        rnd: Round,
        next: Instance,
        trimmed: Instance,
    },
}

/// The visible state of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SlotState {
    Acceptor {
        rnd: Round,
        vrnd: Round,
        flags: Flags,
        client: u64,
        request: u64,
        value: Vec<u8>,
    },
    Learner(SlotView),
}

/// Returns a message of the learner or receiver of a host at `deployment` to its worker as a
/// datagram to its own node: a DELIVER of a decision, or an ORDERED as it came.
pub fn handed_over(deployment: &Deployment, of: &Header, value: &[u8]) -> (To, Vec<u8>) {
    let (msgtype, vrnd) = match of.msgtype {
        MsgType::Ordered => (MsgType::Ordered, Round::NONE),
        _ => (MsgType::Deliver, of.rnd),
    };
    let header = Header {
        msgtype,
        swid: deployment.node,
        vrnd,
        flags: of.flags.of_value(),
        ..*of
    };
    (To::Node(deployment.node), header.datagram(value))
}

impl Role {
    fn parse(text: &str) -> Result<Role, String> {
        match text {
            "acceptor" => Ok(Role::Acceptor),
            "leader" => Ok(Role::Leader),
            "sequencer" => Ok(Role::Sequencer),
            "learner" => Ok(Role::Learner),
            "host_learner" => Ok(Role::HostLearner),
            "receiver" => Ok(Role::Receiver),
            role => Err(format!("no such role: {role}")),
        }
    }
}

impl Setup {
    /// Returns a role without a script.
    pub fn new(role: Role, deployment: Deployment, slots: usize, nonce: u64) -> Setup {
        Setup {
            role,
            deployment,
            slots,
            nonce,
            trusted: Vec::new(),
            keys: Known::by(Algorithm::SipHash),
        }
    }

    /// Parses a `role` line of a cluster that signs with this algorithm.
    pub(super) fn parse(text: &str, algorithm: Algorithm) -> Result<Setup, String> {
        let (role, rest) = super::keyword(text);
        let mut fields = Fields::parse(rest)?;
        let setup = Setup {
            role: Role::parse(role)?,
            deployment: Deployment {
                cluster: fields.u32("cluster", 0xc1)?,
                group: fields.u16("group", 1)?,
                partitions: fields.u16("partitions", 1)?,
                max_value: fields.u16("max_value", 64)?,
                node: fields.u16("node", 1)?,
            },
            slots: fields.u16("slots", 8)?.into(),
            nonce: fields.u64("nonce", 0xa1)?,
            trusted: fields.nodes("trusted")?,
            keys: Known::by(algorithm),
        };
        fields.finish()?;
        Ok(setup)
    }

    /// Takes a line's partition, which must exist.
    pub(super) fn partition(&self, fields: &mut Fields<'_>) -> Result<PartitionId, String> {
        let pid = fields.u16("pid", 0)?;
        if pid < self.deployment.partitions {
            Ok(pid)
        } else {
            Err(format!("there is no partition {pid}"))
        }
    }
}

/// Prints the fields of a `state` line after `pid`.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Acceptor {
                epoch,
                floor,
                trim,
                end,
            } => write!(f, "epoch={epoch} floor={floor} trim={trim} end={end}"),
            State::Leader { rnd, next, trimmed } => {
                write!(f, "rnd={rnd} next={next} trimmed={trimmed}")
            }
        }
    }
}

/// Prints the fields of a `slot` line after `pid` and `inst`.
impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotState::Acceptor {
                rnd,
                vrnd,
                flags,
                client,
                request,
                value,
            } => write!(
                f,
                "rnd={rnd} vrnd={vrnd} flags={} client={client} request={request} value={}",
                packet::print_flags(*flags),
                value::print(MsgType::Phase2b, *flags, value)
            ),
            SlotState::Learner(slot) => write!(
                f,
                "rnd={} votes={:#b} noop={} client={} request={} delivered={}",
                slot.rnd, slot.votes, slot.noop, slot.client, slot.request, slot.delivered
            ),
        }
    }
}
