// SPDX-License-Identifier: Apache-2.0
//! A leader or sequencer in a switch. Its rounds are orders to the program, which refuses an order
//! that doesn't fit its memory.
//!
//! When the process ends by a signal the program keeps serving, with its boot nonce and its epoch;
//! an order to stop removes the role.

use control::{Message, View};
use paxos::Round;
use serde_json::Value;

use super::LeaderStatus;
use super::kernel::receivers;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Role};
use crate::plane::p4::{OfGroup, P4Plane};
use crate::roles::control_loop::Refusals;
use crate::roles::detached::Detached;

pub(super) struct SwitchStamper {
    plane: P4Plane,
    stamps: p4::role::Stamps,
    refusals: Refusals,
}

impl Detached for SwitchStamper {
    type Plane = P4Plane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        let members = |id| {
            let group = cluster.group(id);
            group.map_or(Vec::new(), |group| receivers(cluster, node, group))
        };
        Ok(SwitchStamper {
            plane: P4Plane::open(cluster, node, members)?,
            stamps: match node.role {
                Role::Sequencer => p4::role::Stamps::Sequencer,
                _ => p4::role::Stamps::Leader,
            },
            refusals: Refusals::default(),
        })
    }

    fn plane(&self) -> &P4Plane {
        &self.plane
    }

    fn plane_mut(&mut self) -> &mut P4Plane {
        &mut self.plane
    }

    fn order(&mut self, order: &Message) -> Result<(), Error> {
        let Some((group, program)) = order.program() else {
            return Ok(());
        };
        let Some(leader) = self.plane.of_group(group) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows, and the answer of an earlier one
        // may have been lost.
        let is_done = || {
            let wanted = (program.nonce, Round::base(program.epoch));
            let shown = leader.role().look(0);
            shown.is_ok_and(|look| (look.nonce, look.round) == wanted)
        };
        if is_done() {
            return Ok(());
        }
        let programmed = leader.role().program(&program, self.stamps);
        if let Err(why) = programmed {
            if !is_done() {
                let node = leader.place().deployment.node;
                let order = format!("programming epoch {} of group {group}", program.epoch);
                self.refusals.say(node, order, &why);
            }
        }
        Ok(())
    }

    /// Retires the leader if a later epoch has begun. [L-RETIRE] [Q-RETIRE]
    fn view(&mut self, view: &View) {
        let leader = self.plane.of_group(view.group);
        if let (Some(epoch), Some(leader)) = (view.begun(), leader) {
            let mut role = leader.role();
            let retired = role.look(0).and_then(|look| role.retire(epoch, look.nonce));
            if let Err(why) = retired {
                let node = leader.place().deployment.node;
                self.refusals
                    .say(node, format!("retiring before epoch {epoch}"), &why);
            }
        }
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let groups = self.plane.groups().filter_map(|group| shown(&group));
        document["groups"] = groups.map(|shown| shown.to_json(warnings)).collect();
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.plane.take_off()
    }
}

/// Returns a group's state, or `None` if the switch doesn't answer.
fn shown(group: &OfGroup<'_>) -> Option<LeaderStatus> {
    let mut role = group.role();
    let first = role.look(0).ok()?;
    let partition = |pid| {
        let look = role.look(pid).ok()?;
        Some((look.a, look.b))
    };
    Some(LeaderStatus {
        group: group.place().deployment.group,
        round: p4::role::round_shown(&first),
        nonce: first.nonce,
        window: first.c,
        partitions: group.partitions().map(partition).collect::<Option<_>>()?,
    })
}
