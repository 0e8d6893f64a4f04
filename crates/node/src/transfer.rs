// SPDX-License-Identifier: Apache-2.0
//! A replica that fell below the trim point fetches another one's state: that of all partitions
//! together, and what is decided while it is on its way.
//!
//! TCP to the other replica's `control` address. Each question is a line of JSON, and so is its answer;
//! in some answers bytes follow, with their length and CRC-32 in the line. With keys, both sides prove with each of
//! them that they have the cluster's ([`channel`]); with `state_tls` all of it goes over TLS ([`wire`]).
//!
//! | question | answer |
//! |---|---|
//! | `willing`: how far the state must reach, by partition | `willing` with its positions, at once, whatever its workers do; or `refused` |
//! | `hold`: the same | `held`: a number, and the positions of a state that is kept open under it |
//! | `part` of a partition's state | `part`: at most 1 MiB, and whether it is the last |
//! | `log` of a partition, from a byte on | `log`: what was decided behind the state, at most 1 MiB; and where the replica is now |
//! | `stay` | `staying` |
//! | `release` | `released` |
//!
//! An address has so many connections at most, and each must ask within a while. Without keys and certificates only the
//! addresses of nodes are listened to ([`askers`]). Who names another cluster or group has to wait before the next try.
//!
//! All replicas are asked at once, so that one that doesn't answer holds up nobody. Whoever fetches asks
//! for one part after the other and keeps each in a file, with its checksum; so it goes on after a
//! connection that broke, or after its own end, where it had got. A state is held open as long as
//! somebody asks for it. What is decided meanwhile goes to files of the replica that hands it out: a
//! state may take longer than acceptors remember. [X-CATCHUP] [X-LOG]

pub mod askers;
pub mod channel;
pub mod client;
pub mod copy;
pub mod held;
pub mod incoming;
pub mod linked;
pub mod places;
pub mod server;
pub mod wire;

use std::io;
use std::time::Duration;

use paxos::{Deployment, GroupId, Instance, PartitionId};
use serde::{Deserialize, Serialize};

/// Bytes in a part, but for the last one of a state.
pub const PART_LEN: usize = 1 << 20;

/// How long the other side may be silent.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Until it has answered a question that it answers by itself.
    pub answer: Duration,
    /// Until its workers have opened their states, or a part has come.
    pub stream: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            answer: Duration::from_secs(2),
            stream: Duration::from_secs(20),
        }
    }
}

/// How far a state must reach that helps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    cluster: u32,
    group: GroupId,
    partitions: u16,
    /// By partition: what is needed there.
    needs: Vec<Option<Instance>>,
}

impl Question {
    /// For a state that helps in at least one of the partitions that need it.
    pub fn new(deployment: &Deployment, needs: Vec<Option<Instance>>) -> Question {
        Question {
            cluster: deployment.cluster,
            group: deployment.group,
            partitions: deployment.partitions,
            needs,
        }
    }

    /// In how many partitions a state at `positions` helps.
    fn helped(&self, positions: &[Instance]) -> usize {
        let both = self.needs.iter().zip(positions);
        both.filter(|(need, at)| need.is_some_and(|need| need <= **at))
            .count()
    }

    /// In how many partitions one is needed.
    fn wanted(&self) -> usize {
        self.needs.iter().flatten().count()
    }

    /// Whether it is of another cluster or group: by somebody who guesses, or a node with another cluster file.
    fn is_strange(&self, own: &Deployment) -> bool {
        (self.cluster, self.group) != (own.cluster, own.group)
    }

    fn invalid(&self, own: &Deployment) -> Option<String> {
        if self.is_strange(own) {
            return Some("another cluster or group".into());
        }
        if self.partitions != own.partitions {
            return Some(format!("{} partitions here", own.partitions));
        }
        (self.needs.len() != usize::from(own.partitions))
            .then(|| "a need for each partition".into())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Willing(Question),
    Hold(Question),
    Part {
        state: u64,
        pid: PartitionId,
        number: u64,
    },
    Log {
        state: u64,
        pid: PartitionId,
        from: u64,
    },
    Stay {
        state: u64,
    },
    Release {
        state: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// A state at about these positions can be had.
    Willing(Vec<Instance>),
    /// It is held open.
    Held {
        state: u64,
        positions: Vec<Instance>,
    },
    Part {
        length: u32,
        crc: u32,
        last: bool,
    },
    Log {
        length: u32,
        crc: u32,
        next: Instance,
    },
    Staying,
    Released,
    Refused(String),
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("damaged on its way: {what}"),
    )
}

#[cfg(test)]
mod tests;
