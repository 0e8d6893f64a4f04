// SPDX-License-Identifier: Apache-2.0
//! The orders of the control plane to a role, which are the lines of a script that are neither
//! packets nor looks.

use paxos::acceptor::Start;
use paxos::auth::Keyring;
use paxos::{Configuration, Enable, Epoch, Instance, Member, NodeId, PartitionId, Program};

use super::device::{Role, Setup};
use super::fields::Fields;

/// One order. On a device it is a write to its maps or registers.
#[derive(Clone, Debug)]
pub enum Order {
    /// An epoch makes an acceptor's memory a member.
    Enable(Enable),
    /// An acceptor's memory is saved and loaded again.
    Reload,
    /// An acceptor's memory is read from disk.
    Restart {
        /// The number drawn by that start.
        salt: u32,
    },
    /// A start of a memory may continue.
    Resume {
        /// The nonce of the memory.
        nonce: u64,
        /// The start that may continue.
        start: Start,
    },
    /// A start of a memory is asked whether it was at an earlier one. The order is refused if it
    /// wasn't.
    Asked {
        /// The nonce of the memory.
        nonce: u64,
        /// The start that is asked.
        start: Start,
        /// The earlier start.
        earlier: Start,
    },
    /// A mute memory is replaced by an empty one.
    Discard {
        /// The nonce of the empty memory.
        nonce: u64,
    },
    /// A leader or sequencer gets a round.
    Program(Program),
    /// A leader or sequencer hears of a later epoch.
    Retire {
        /// The later epoch.
        epoch: Epoch,
    },
    /// A learner hears of an epoch's acceptors.
    Configuration(Configuration),
    /// A receiver listens to a session from now on.
    Listen {
        /// The partition.
        pid: PartitionId,
        /// The session.
        session: Epoch,
        /// The sequencer whose messages belong to the session.
        sequencer: NodeId,
        /// The first slot of the session.
        slot: Instance,
    },
    /// Packets count only if they are signed with one of these keys from now on, and are sent
    /// signed.
    Keys(Keyring),
    /// A learner's window moves. For a receiver the messages in between are passed on, or passed
    /// over.
    Floor {
        /// The partition.
        pid: PartitionId,
        /// The new lower end of the window.
        inst: Instance,
    },
}

impl Order {
    /// Parses a line for a role with this setup.
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

/// Returns a configuration. A learner needs the epoch, the acceptors and f; the rest is made up.
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
