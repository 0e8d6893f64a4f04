// SPDX-License-Identifier: Apache-2.0
//! Messages about commands over several partitions between the workers of one replica.
//!
//! Messages between two workers are reliable and in order, and all of them are lost together, with
//! the process. A worker gives them to its [`Output`](crate::Output) with the replies, and takes
//! those for it by [`Worker::sibling`](crate::Worker::sibling).

use crate::agreement::Decided;
use crate::outcome::Outcome;
use paxos::wire::value::Vector;
use paxos::{Flags, Instance, PartitionId, Round};
use std::sync::Arc;

/// The contents that all copies of a command over several partitions share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The round that stamped the command.
    pub(crate) round: Round,
    /// The command's vector: its partitions, ascending, with its place in each.
    pub(crate) places: Vec<(PartitionId, Instance)>,
    pub(crate) client: u64,
    pub(crate) request: u64,
    pub(crate) command: Vec<u8>,
}

impl Copy {
    /// Reads a decided value; returns `None` if it isn't well formed, or names a partition that
    /// doesn't exist.
    pub(crate) fn parse(value: &Decided<'_>, partitions: u16) -> Option<Copy> {
        let vector = Vector::parse(value.value).ok()?;
        let exist = vector.iter().all(|(pid, _)| pid < partitions);
        let sound = exist && vector.round.is_base() && !value.flags.has(Flags::PACKED);
        sound.then(|| Copy {
            round: vector.round,
            places: vector.iter().collect(),
            client: value.client,
            request: value.request,
            command: vector.command.to_vec(),
        })
    }

    /// Returns the command's place in a partition, if it has one there.
    pub fn place_in(&self, pid: PartitionId) -> Option<Instance> {
        let mut places = self.places.iter();
        places.find(|(of, _)| *of == pid).map(|(_, inst)| *inst)
    }

    /// Returns the lowest partition, which decides, and the command's place there.
    pub(crate) fn lowest(&self) -> (PartitionId, Instance) {
        self.places[0]
    }

    /// Returns the other partitions and the places there.
    pub(crate) fn siblings_of(
        &self,
        pid: PartitionId,
    ) -> impl Iterator<Item = (PartitionId, Instance)> {
        let places = self.places.iter().copied();
        places.filter(move |(of, _)| *of != pid)
    }
}

/// A message from one worker to another one of the same replica.
#[derive(Clone, Debug)]
pub enum SiblingMessage {
    /// Tells the lowest partition that the sender stands at its copy, and what it has prepared.
    Stands {
        /// The copy.
        copy: Arc<Copy>,
        /// The data that the application prepared there.
        prepared: Vec<u8>,
    },
    /// The lowest partition, which stands at its copy, asks where the receiver stands.
    Asks(Arc<Copy>),
    /// The sender has met a copy that names this place of the receiver.
    Met {
        /// The round that stamped the copy.
        round: Round,
        /// The receiver's place.
        inst: Instance,
    },
    /// The command is alive and has this outcome.
    Alive(Arc<Outcome>),
    /// The command takes no effect anywhere.
    Dead(Arc<Copy>),
    /// The sender can go on behind the instances that were given up, or has done so. [G-LEAP]
    GoesOn {
        /// The end of the range that was given up in the receiver's partition.
        end: Instance,
        /// The outcomes of commands that the sender has passed and that have a place in that range.
        outcomes: Vec<Arc<Outcome>>,
    },
    /// Everything below this instance of the sender survives a power failure.
    Synced(Instance),
}

impl SiblingMessage {
    /// Returns the receiver's place in the message's command, and the round that stamped it, if the
    /// message shows that the leader has stamped the command.
    pub(crate) fn begun_in(&self, pid: PartitionId) -> Option<(Round, Instance)> {
        match self {
            SiblingMessage::Stands { copy, .. } | SiblingMessage::Asks(copy) => {
                Some((copy.round, copy.place_in(pid)?))
            }
            SiblingMessage::Met { round, inst } => Some((*round, *inst)),
            SiblingMessage::Alive(_)
            | SiblingMessage::Dead(_)
            | SiblingMessage::GoesOn { .. }
            | SiblingMessage::Synced(_) => None,
        }
    }
}
