// SPDX-License-Identifier: Apache-2.0
//! What the control plane tells a role: the lines of a script that are neither packets nor looks.

use paxos::acceptor::Start;
use paxos::auth::Keyring;
use paxos::{Configuration, Enable, Epoch, Instance, Member, NodeId, PartitionId, Program};

use super::device::{Role, Setup};
use super::fields::Fields;

/// One such line. On a device it is a write to its maps or registers.
#[derive(Clone, Debug)]
pub enum Order {
    /// An epoch counts on an acceptor's memory.
    Enable(Enable),
    /// An acceptor's memory is saved and loaded again.
    Reload,
    /// An acceptor's memory is read from disk.
    Restart {
        /// Drawn by that start.
        salt: u32,
    },
    /// A start of a memory may go on.
    Resume {
        /// Of the memory.
        nonce: u64,
        /// Which start.
        start: Start,
    },
    /// A start of a memory is asked whether it was at an earlier one; refused = it wasn't.
    Asked {
        /// Of the memory.
        nonce: u64,
        /// Which start is asked.
        start: Start,
        /// Which one it is asked about.
        earlier: Start,
    },
    /// A mute memory is given up for an empty one.
    Discard {
        /// Of the empty one.
        nonce: u64,
    },
    /// A leader or sequencer gets a round.
    Program(Program),
    /// It hears of a later epoch.
    Retire {
        /// That one.
        epoch: Epoch,
    },
    /// A learner hears of an epoch's acceptors.
    Configuration(Configuration),
    /// A receiver listens to a session from now on.
    Listen {
        /// In this partition.
        pid: PartitionId,
        /// That one.
        session: Epoch,
        /// Whose messages are its.
        sequencer: NodeId,
        /// Where it begins.
        slot: Instance,
    },
    /// Packets count only if they are signed with one of these keys, and are sent signed, from now on.
    Keys(Keyring),
    /// A learner's window moves. A receiver's, too, with what has come: it is passed on, or passed over.
    Floor {
        /// In this partition.
        pid: PartitionId,
        /// To here.
        inst: Instance,
    },
}

impl Order {
    /// Reads a line for a role that was set up like that.
    ///
    /// # Errors
    /// If the role knows no such word, or a field can't be read.
    pub(super) fn parse(word: &str, rest: &str, setup: &Setup) -> Result<Order, String> {
        let mut fields = Fields::parse(rest)?;
        let order = match (setup.role, word) {
            (_, "keys") => Order::Keys(setup.keys.keyring(&mut fields)?),
            (Role::Acceptor, "enable") => Order::Enable(enable(&mut fields, setup)?),
            (Role::Acceptor, "reload") => Order::Reload,
            (Role::Acceptor, "restart") => Order::Restart {
                salt: fields.u32("salt", 0)?,
            },
            (Role::Acceptor, "resume") => Order::Resume {
                nonce: fields.u64("nonce", setup.nonce)?,
                start: start(&mut fields, "start")?,
            },
            (Role::Acceptor, "asked") => Order::Asked {
                nonce: fields.u64("nonce", setup.nonce)?,
                start: start(&mut fields, "start")?,
                earlier: start(&mut fields, "earlier")?,
            },
            (Role::Acceptor, "discard") => Order::Discard {
                nonce: fields.u64("nonce", 0)?,
            },
            (Role::Leader | Role::Sequencer, "program") => {
                Order::Program(program(&mut fields, setup)?)
            }
            (Role::Leader | Role::Sequencer, "retire") => Order::Retire {
                epoch: fields.u32("epoch", 0)?,
            },
            (Role::Learner | Role::HostLearner, "configuration") => {
                Order::Configuration(configuration(&mut fields)?)
            }
            (Role::Receiver, "listen") => Order::Listen {
                pid: setup.partition(&mut fields)?,
                session: fields.u32("session", 0)?,
                sequencer: fields.u16("sequencer", 0)?,
                slot: fields.u64("slot", 0)?,
            },
            (Role::Learner | Role::HostLearner | Role::Receiver, "floor") => Order::Floor {
                pid: setup.partition(&mut fields)?,
                inst: fields.u64("inst", 0)?,
            },
            _ => return Err(format!("this role knows no {word}")),
        };
        fields.finish()?;
        Ok(order)
    }
}

fn enable(fields: &mut Fields<'_>, setup: &Setup) -> Result<Enable, String> {
    let partitions = setup.deployment.partitions.into();
    Ok(Enable {
        epoch: fields.u32("epoch", 0)?,
        nonce: fields.u64("nonce", setup.nonce)?,
        trim: fields.list("trim", partitions)?,
        end: fields.list("end", partitions)?,
        replicas: fields.nodes("replicas")?,
        g: fields.u8("g", 0)?,
    })
}

fn start(fields: &mut Fields<'_>, key: &str) -> Result<Start, String> {
    let start = Start::from_number(fields.u64(key, 0)?);
    start.ok_or_else(|| "there is no such start".to_owned())
}

fn program(fields: &mut Fields<'_>, setup: &Setup) -> Result<Program, String> {
    let partitions = setup.deployment.partitions.into();
    Ok(Program {
        epoch: fields.u32("epoch", 0)?,
        nonce: fields.u64("nonce", setup.nonce)?,
        next: fields.list("next", partitions)?,
        trimmed: fields.list("trimmed", partitions)?,
        window: fields.u64("window", 8)?,
        acceptors: fields.nodes("acceptors")?,
        f: fields.u8("f", 0)?,
        replicas: fields.nodes("replicas")?,
        g: fields.u8("g", 0)?,
    })
}

/// A learner needs the epoch, the acceptors and f; the rest is made up.
fn configuration(fields: &mut Fields<'_>) -> Result<Configuration, String> {
    let member = |node| Member { node, nonce: 1 };
    Ok(Configuration {
        epoch: fields.u32("epoch", 0)?,
        leader: member(1),
        acceptors: fields.nodes("acceptors")?.into_iter().map(member).collect(),
        f: fields.u8("f", 0)?,
        replicas: vec![1],
        g: 0,
    })
}
