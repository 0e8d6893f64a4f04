// SPDX-License-Identifier: Apache-2.0
//! A learner behind sockets.

use control::View;
use paxos::{GroupId, Learner, Packet, Reason, Verdict};
use serde_json::Value;

use super::shown;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::roles::control_loop::of_group;
use crate::roles::links::Links;
use crate::roles::sockets::Role;

pub(super) struct LearnerRole {
    /// The learner of each group, in the order of the cluster file.
    learners: Vec<Learner>,
    /// A group with votes of an epoch that isn't known here.
    unknown: Option<GroupId>,
}

impl LearnerRole {
    pub fn new(cluster: &ClusterFile, node: &Node) -> LearnerRole {
        let groups = cluster.groups.iter();
        let learner = |group| Learner::new(cluster.deployment(node, group), group.slots);
        LearnerRole {
            learners: groups.map(learner).collect(),
            unknown: None,
        }
    }
}

impl Role for LearnerRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error> {
        let verdict = self.learners[group].step(packet, links);
        if verdict == Verdict::Dropped(Reason::UnknownEpoch) {
            self.unknown = Some(packet.header.group);
        }
        Ok(verdict)
    }

    fn view(&mut self, view: &View, _: &mut Links) {
        let group = |learner: &Learner| learner.deployment().group;
        if let Some(learner) = of_group(&mut self.learners, view.group, group) {
            for epoch in view.begun_epochs() {
                learner.learn(&epoch.configuration());
            }
        }
    }

    fn wants_view(&mut self) -> Option<GroupId> {
        self.unknown.take()
    }

    fn status(&self, _: &mut Vec<String>) -> Vec<Value> {
        let status = |learner: &Learner| {
            let deployment = learner.deployment();
            shown(
                deployment.group,
                learner.epochs().collect(),
                learner.slots(),
            )
        };
        self.learners.iter().map(status).collect()
    }
}
