// SPDX-License-Identifier: Apache-2.0
//! What the workers of one replica tell one another about commands over several partitions.
//!
//! Messages between two workers are reliable and in order. All are lost together, with the process. A worker
//! gives them to its [`Output`](crate::Output) with the replies, and takes those for it by
//! [`Worker::sibling`](crate::Worker::sibling).

use crate::agreement::Decided;
use crate::outcome::Outcome;
use paxos::wire::value::Vector;
use paxos::{Flags, Instance, PartitionId, Round};
use std::sync::Arc;

/// One of the copies of a command over several partitions: what all of them hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The round that stamped it.
    pub(crate) round: Round,
    /// Its vector: the partitions, ascending, with the place that it took in each.
    pub(crate) places: Vec<(PartitionId, Instance)>,
    pub(crate) client: u64,
    pub(crate) request: u64,
    pub(crate) command: Vec<u8>,
}

impl Copy {
    /// Reads a decided value; `None` if it isn't well formed, or names a partition that doesn't exist.
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

    /// Where it lies in a partition, if it names that one.
    pub fn place_in(&self, pid: PartitionId) -> Option<Instance> {
        let mut places = self.places.iter();
        places.find(|(of, _)| *of == pid).map(|(_, inst)| *inst)
    }

    /// The partition that decides.
    pub(crate) fn lowest(&self) -> (PartitionId, Instance) {
        self.places[0]
    }

    /// The other partitions.
    pub(crate) fn siblings_of(
        &self,
        pid: PartitionId,
    ) -> impl Iterator<Item = (PartitionId, Instance)> {
        let places = self.places.iter().copied();
        places.filter(move |(of, _)| *of != pid)
    }
}

/// What one worker tells another one of the same replica.
#[derive(Clone, Debug)]
pub enum SiblingMessage {
    /// To the lowest partition: the sender stands at its copy, and has read this for it.
    Stands {
        /// The copy.
        copy: Arc<Copy>,
        /// What the application prepared there.
        prepared: Vec<u8>,
    },
    /// From the lowest partition, which stands at its copy: where does the receiver stand?
    Asks(Arc<Copy>),
    /// The sender has met a copy that names this place of the receiver.
    Met {
        /// The round that stamped the copy.
        round: Round,
        /// The receiver's place.
        inst: Instance,
    },
    /// This came of a command.
    Alive(Arc<Outcome>),
    /// This command takes effect nowhere.
    Dead(Arc<Copy>),
    /// The sender can go on behind what was given up, or has done so. [G-LEAP]
    GoesOn {
        /// Where that ends in the receiver's partition.
        end: Instance,
        /// What came of commands that the sender has passed and that have a place in it.
        outcomes: Vec<Arc<Outcome>>,
    },
    /// Everything below this instance of the sender survives a power failure.
    Synced(Instance),
}

impl SiblingMessage {
    /// The receiver's place in the command that it is about, and the round that stamped that, if it shows that
    /// the leader has stamped it.
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
