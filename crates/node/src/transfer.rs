// SPDX-License-Identifier: Apache-2.0
//! A replica that fell below the trim point fetches the state of another replica: the state of all
//! partitions together, and the values that are decided while it is on its way.
//!
//! Replicas talk over TCP to the other replica's `control` address. Each question is a line of
//! JSON, and so is its answer; some answers are followed by bytes, whose length and CRC-32 are in
//! the line. With keys, both sides prove for each message that they have the cluster's keys
//! ([`channel`]); with `state_tls` the whole connection goes over TLS ([`wire`]).
//!
//! | question | answer |
//! |---|---|
//! | `willing`: how far to reach, by partition | `willing`, its positions, at once; or `refused` |
//! | | whatever its workers do |
//! | `hold`: the same | `held`: a number, and the positions of a state that is kept open under it |
//! | `part` of a partition's state | `part`: at most 1 MiB, and whether it is the last |
//! | `log` of a partition, from a byte on | `log`: what was decided behind it, at most 1 MiB |
//! | | and where the replica is now |
//! | `stay` | `staying` |
//! | `release` | `released` |
//! | `decided`: values from an instance on | `decided`: records of an archive; or `kept` |
//!
//! An address may have a limited number of connections, and each must ask within a limited time.
//! Without keys and certificates only connections from the addresses of nodes are accepted
//! ([`askers`]). A connection that names another cluster or group must wait before its next try.
//!
//! All replicas are asked at once, so a replica that doesn't answer holds up nobody. The fetching
//! replica asks for one part after the other and keeps each in a file with its checksum; so after a
//! broken connection or a restart it continues where it was. A state is held open as long as
//! somebody asks for it. Values that are decided meanwhile go to files of the replica that hands
//! out the state, since fetching may take longer than acceptors remember them. [X-CATCHUP] [X-LOG]

pub mod askers;
pub mod channel;
pub mod client;
pub mod connection_limit;
pub mod copy;
pub mod incoming;
pub mod linked_copy;
pub mod recent;
pub mod served_state;
pub mod server;
pub mod wire;

use std::io;
use std::time::Duration;

use paxos::{Deployment, GroupId, Instance, PartitionId};
use serde::{Deserialize, Serialize};

/// The bytes in a part, except for the last part of a state.
pub const PART_LEN: usize = 1 << 20;

/// How long the other side may be silent.
#[derive(Clone, Copy)]
pub struct Patience {
    /// The wait for an answer that the other replica gives without asking its workers.
    pub answer: Duration,
    /// The wait until the other replica's workers have opened their states, or until a part has
    /// come.
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

/// How far a state must reach to be of use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    cluster: u32,
    group: GroupId,
    partitions: u16,
    /// For each partition the instance that a state must reach; `None` if that partition needs no
    /// state.
    needs: Vec<Option<Instance>>,
}

impl Question {
    /// Returns a question for a state that helps in at least one of the partitions that need it.
    pub fn new(deployment: &Deployment, needs: Vec<Option<Instance>>) -> Question {
        Question {
            cluster: deployment.cluster,
            group: deployment.group,
            partitions: deployment.partitions,
            needs,
        }
    }

    /// Returns in how many partitions a state at `positions` helps.
    fn helped(&self, positions: &[Instance]) -> usize {
        let both = self.needs.iter().zip(positions);
        both.filter(|(need, at)| need.is_some_and(|need| need <= **at))
            .count()
    }

    /// Returns how many partitions need a state.
    fn wanted(&self) -> usize {
        self.needs.iter().flatten().count()
    }

    /// Returns whether the question names another cluster or group: the asker guesses, or its
    /// cluster file is another one.
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
    Decided {
        question: Question,
        pid: PartitionId,
        from: Instance,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The replica can hand out a state at about these positions.
    Willing(Vec<Instance>),
    /// The state is held open.
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
    Decided {
        length: u32,
        crc: u32,
        next: Instance,
    },
    Kept {
        first: Instance,
        end: Instance,
    },
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
