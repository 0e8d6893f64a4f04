// SPDX-License-Identifier: Apache-2.0
//! Long reads, which are answered from copies of the partitions' states once the log of each
//! partition has been asked. [X-READ]

use paxos::PartitionId;

use super::ReplicaHost;
use crate::check::ClientKnowledge;
use crate::cluster::layout::node_id;
use crate::cluster::mutation::Mutation;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::World;

/// A walk over all contents of a replica.
pub(super) struct Walk {
    /// The knowledge of all clients when the walk began.
    known: ClientKnowledge,
    /// For each partition, a command that was submitted since has been executed here.
    asked: Vec<bool>,
}

impl Walk {
    /// Notes that a command has been executed in a partition.
    pub fn note(&mut self, pid: usize, command: u64) {
        self.asked[pid] |= self.known.came_before(command);
    }
}

impl<G: Protocol> ReplicaHost<G> {
    /// Begins a walk. A command is submitted in each partition next.
    pub fn walk(&mut self, world: &mut World) {
        if self.is_up() {
            let at_once = world.mutated(Mutation::ReadsAtOnce);
            self.walks.push(Walk {
                known: world.executions.known(),
                asked: vec![at_once; self.shards.len()],
            });
            self.read_for_walks(world);
        }
    }

    /// Ends the walks that have asked all logs.
    pub(super) fn read_for_walks(&mut self, world: &mut World) {
        let waits = |walk: &Walk| walk.asked.contains(&false);
        let walks = std::mem::take(&mut self.walks);
        let (waiting, ready): (Vec<_>, Vec<_>) = walks.into_iter().partition(waits);
        self.walks = waiting;
        for walk in ready {
            let pids = 0..self.shards.len();
            let late = pids.filter(|pid| !self.show(world, *pid, &walk.known));
            if late.count() > 0 {
                self.walks.push(walk);
            }
        }
    }

    /// Shows a partition's contents, or returns false if they aren't stable yet, and then is called
    /// again.
    fn show(&mut self, world: &mut World, pid: usize, known: &ClientKnowledge) -> bool {
        let Some(worker) = &mut self.shards[pid].worker else {
            return true;
        };
        let mut shown = Vec::new();
        let Some(reader) = worker.reader() else {
            return false;
        };
        let read = reader.and_then(|mut reader| reader.read(&[], &mut shown));
        if read.is_ok() {
            let word =
                |at: usize| u64::from_be_bytes(shown[at..at + 8].try_into().expect("a word"));
            let (replica, findings) = (node_id(self.host.name), &mut world.findings);
            let shown = (word(0), word(8));
            world
                .executions
                .shows(replica, pid as PartitionId, known, shown, findings);
        }
        self.finished(world, pid, read);
        true
    }
}
