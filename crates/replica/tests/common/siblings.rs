// SPDX-License-Identifier: Apache-2.0
//! The workers of one replica; the test hands out their logs and messages.

use super::*;
use paxos::wire::value::Vector;
use std::collections::VecDeque;

/// A vector: each partition with its place there.
pub type Places = [(PartitionId, Instance)];

/// The session that each partition opens at instance 0, with equal ids.
pub const SESSION: u64 = 1 << 16;

/// The workers of all partitions, and their messages to one another.
pub struct Replica {
    pub partitions: Vec<Fed>,
    /// Messages by sender and receiver.
    pub mail: Vec<Vec<VecDeque<SiblingMessage>>>,
    pub replies: Vec<Reply>,
}

impl Replica {
    /// Returns a replica whose partitions have executed nothing.
    pub fn empty(partitions: u16) -> Replica {
        let fed = |pid| {
            let mut settings = settings(REPLICAS[0]);
            settings.deployment.partitions = partitions;
            settings.pid = pid;
            let disk = Disk::default();
            disk.with(|d| d.spans = true);
            Fed::on(settings, disk)
        };
        Replica {
            partitions: (0..partitions).map(fed).collect(),
            mail: no_mail(partitions.into()),
            replies: Vec::new(),
        }
    }

    /// Returns a replica whose partitions have opened their session.
    pub fn new(partitions: u16) -> Replica {
        let mut replica = Replica::empty(partitions);
        for pid in 0..partitions {
            replica.open(pid.into());
        }
        replica.settle();
        replica
    }

    /// Decides the OPEN at instance 0.
    pub fn open(&mut self, pid: usize) {
        let op = open(false, 64, ReplyAddress::default());
        self.at(pid).give(0, Flags::NONE, (7, 0), &op.to_bytes());
        self.finish(pid);
    }

    pub fn at(&mut self, pid: usize) -> &mut Fed {
        &mut self.partitions[pid]
    }

    /// Ends the batch of one partition.
    pub fn finish(&mut self, pid: usize) {
        let fed = &mut self.partitions[pid];
        self.replies.extend(fed.finish());
        for (to, message) in std::mem::take(&mut fed.out.mail) {
            self.mail[pid][usize::from(to)].push_back(message);
        }
    }

    /// Delivers the oldest message of one partition to another; returns false if there is none.
    pub fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(message) = self.mail[from][to].pop_front() else {
            return false;
        };
        let fed = self.at(to);
        fed.worker.sibling(fed.now, from as PartitionId, message);
        true
    }

    /// Ends the batches of all partitions, and delivers their messages until there are none.
    pub fn settle(&mut self) {
        let all = self.partitions.len();
        let mut again = true;
        while again {
            (0..all).for_each(|pid| self.finish(pid));
            again = false;
            for pair in 0..all * all {
                while self.deliver(pair / all, pair % all) {
                    again = true;
                }
            }
        }
    }

    pub fn next(&self) -> Vec<Instance> {
        self.partitions.iter().map(|p| p.worker.next()).collect()
    }

    /// Ends all processes. Their memories are lost, and so is what the partitions in `power` have
    /// not made durable.
    pub fn kill(&mut self, power: &[usize]) {
        self.mail = no_mail(self.partitions.len());
        for (pid, fed) in self.partitions.iter_mut().enumerate() {
            if power.contains(&pid) {
                fed.disk.power_failure();
            }
            fed.restart();
        }
    }

    pub fn checkpoint(&mut self, pid: usize) {
        let fed = self.at(pid);
        fed.fold();
        self.finish(pid);
    }

    pub fn kept(&self) -> Vec<usize> {
        let kept = self
            .partitions
            .iter()
            .map(|p| p.worker.execution().kept_outcomes());
        kept.collect()
    }
}

fn no_mail(partitions: usize) -> Vec<Vec<VecDeque<SiblingMessage>>> {
    let none = || (0..partitions).map(|_| VecDeque::new()).collect();
    (0..partitions).map(|_| none()).collect()
}

/// Returns a value as a leader has stamped it.
pub fn stamped(epoch: u32, vector: &Places, command: &[u8]) -> Vec<u8> {
    let pids: Vec<PartitionId> = vector.iter().map(|(pid, _)| *pid).collect();
    let mut value = Vec::new();
    Vector::reserve(&pids, &mut value);
    value.extend_from_slice(command);
    let mut places = vector.iter();
    Vector::stamp(&mut value, Round::base(epoch), |_| places.next().unwrap().1);
    value
}
