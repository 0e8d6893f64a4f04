// SPDX-License-Identifier: Apache-2.0
//! The parts of a NOPaxos group's sessions that the checkers and the faults need. The controller
//! decides on sessions.

use paxos::{Member, Time};
use replica::NoPaxos;

use super::Cluster;
use super::world::Event;
use crate::queue::MILLISECOND;

/// How often the checkers look at the replicas' logs.
const LOOK: Time = 2 * MILLISECOND;

impl Cluster<NoPaxos> {
    /// Shows the checkers the replicas' logs and disks.
    pub(super) fn show_logs(&mut self) {
        for n in 0..self.replicas.len() {
            self.replicas[n].show_logs(&mut self.world);
        }
        self.world.queue.after(LOOK, Event::Look);
    }

    /// Returns whether enough members of each session that a view may need are left without this
    /// replica's memory.
    pub(super) fn may_lose_memory(&self, replica: usize) -> bool {
        let others = self.replicas.iter().enumerate();
        let others: Vec<Member> = others
            .filter(|(n, r)| *n != replica && r.is_up() && !r.lies())
            .map(|(_, r)| r.member())
            .collect();
        self.controller.needed_sessions().iter().all(|session| {
            let is_left = |member: &&Member| others.contains(member);
            session.acceptors.iter().filter(is_left).count() > usize::from(session.f)
        })
    }
}
