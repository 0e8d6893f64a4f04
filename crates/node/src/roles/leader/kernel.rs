// SPDX-License-Identifier: Apache-2.0
//! A leader or sequencer in the kernel. `ProgramLeader` sets `next` and the round in its maps, as
//! on any other plane.
//!
//! When the process ends by a signal the program keeps serving, with its boot nonce and its epoch;
//! an order to stop removes it.

use control::{Message, View};
use loader::leader::Leader;
use loader::members::Member;
use loader::object;
use serde_json::Value;

use super::LeaderStatus;
use crate::cluster_file::{ClusterFile, Group, Node, Role};
use crate::plane::xdp::XdpPlane;
use crate::roles::control_loop::{Refusals, of_group};
use crate::roles::detached::{Detached, members};
use crate::{Error, random_nonce};

pub(super) struct KernelStamper {
    plane: XdpPlane,
    /// The leader of each group, in the order of the cluster file.
    leaders: Vec<Leader>,
    refusals: Refusals,
}

/// Returns the nodes that receive the values that this node stamps.
pub(super) fn receivers(cluster: &ClusterFile, node: &Node, group: &Group) -> Vec<Member> {
    match cluster.stampers(group).iter().any(|n| n.id == node.id) {
        true => members(cluster.memories(group)),
        false => Vec::new(),
    }
}

impl Detached for KernelStamper {
    type Plane = XdpPlane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        let program = match node.role {
            Role::Sequencer => object::Role::Sequencer,
            _ => object::Role::Leader,
        };
        let groups = cluster.groups.iter();
        let receivers = groups.map(|g| (g.id, receivers(cluster, node, g)));
        let mut plane = XdpPlane::load(cluster, node, program, receivers.collect())?;
        let leader = |place| Ok(Leader::new(plane.object(), place, random_nonce()?)?);
        let leaders = plane.places().iter().copied().map(leader);
        let leaders = leaders.collect::<Result<_, Error>>()?;
        plane.attach(0)?;
        let refusals = Refusals::default();
        Ok(KernelStamper {
            plane,
            leaders,
            refusals,
        })
    }

    fn plane(&self) -> &XdpPlane {
        &self.plane
    }

    fn plane_mut(&mut self) -> &mut XdpPlane {
        &mut self.plane
    }

    fn order(&mut self, order: &Message) -> Result<(), Error> {
        let Some((group, program)) = order.program() else {
            return Ok(());
        };
        let id = |leader: &Leader| leader.place().deployment.group;
        let Some(leader) = of_group(&mut self.leaders, group, id) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows.
        if program.nonce == leader.nonce() && leader.round().epoch() == program.epoch {
            return Ok(());
        }
        if let Err(why) = leader.program(&program) {
            let node = leader.place().deployment.node;
            let order = format!("programming epoch {} of group {group}", program.epoch);
            self.refusals.say(node, order, why);
        }
        // The new bank serves by now. Waiting here saves the next order the wait.
        leader.settle();
        Ok(())
    }

    fn view(&mut self, view: &View) {
        let id = |leader: &Leader| leader.place().deployment.group;
        let leader = of_group(&mut self.leaders, view.group, id);
        if let (Some(epoch), Some(leader)) = (view.begun(), leader) {
            leader.retire(epoch);
        }
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let groups = self.leaders.iter().map(|leader| {
            let deployment = leader.place().deployment;
            let partitions = 0..deployment.partitions;
            let shown = LeaderStatus {
                group: deployment.group,
                round: leader.round(),
                nonce: leader.nonce(),
                window: leader.window(),
                partitions: partitions
                    .map(|pid| (leader.next(pid), leader.trimmed(pid)))
                    .collect(),
            };
            shown.to_json(warnings)
        });
        document["groups"] = groups.collect();
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.plane.detach()?;
        self.plane.forget()
    }
}
