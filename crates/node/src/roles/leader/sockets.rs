// SPDX-License-Identifier: Apache-2.0
//! A leader behind sockets.

use std::net::SocketAddr;

use control::{Message, View};
use paxos::{Leader, Packet, Verdict, trace};
use serde_json::Value;

use super::Shown;
use crate::cluster_file::{ClusterFile, Node};
use crate::roles::control_loop::{Refusals, of_group};
use crate::roles::links::Links;
use crate::roles::sockets::Role;
use crate::{Error, random_nonce};

pub(super) struct LeaderRole {
    /// By group, in the order of the cluster file.
    leaders: Vec<Leader>,
    refusals: Refusals,
}

impl LeaderRole {
    pub fn open(cluster: &ClusterFile, node: &Node, links: &mut Links) -> Result<Self, Error> {
        let mut leaders = Vec::new();
        for group in &cluster.groups {
            let leader = Leader::new(cluster.deployment(node, group), random_nonce()?);
            links.record(group.id, |trace| {
                trace.started(trace::Role::Leader, leader.nonce(), 0);
            });
            leaders.push(leader);
        }
        let refusals = Refusals::default();
        Ok(LeaderRole { leaders, refusals })
    }
}

impl Role for LeaderRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error> {
        Ok(self.leaders[group].step(packet, links))
    }

    fn message(
        &mut self,
        message: &Message,
        _from: SocketAddr,
        links: &mut Links,
    ) -> Result<(), Error> {
        let Some((group, program)) = message.program() else {
            return Ok(());
        };
        let id = |leader: &Leader| leader.deployment().group;
        let Some(leader) = of_group(&mut self.leaders, group, id) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows.
        if program.nonce == leader.nonce() && leader.round().epoch() == program.epoch {
            return Ok(());
        }
        links.record(group, |trace| trace.programmed(&program));
        if let Err(why) = leader.program(&program) {
            let node = leader.deployment().node;
            let order = format!("programming epoch {} of group {group}", program.epoch);
            self.refusals.say(node, order, why);
        }
        Ok(())
    }

    /// [L-RETIRE]
    fn view(&mut self, view: &View, links: &mut Links) {
        let id = |leader: &Leader| leader.deployment().group;
        let leader = of_group(&mut self.leaders, view.group, id);
        if let (Some(epoch), Some(leader)) = (view.begun(), leader) {
            links.record(view.group, |trace| trace.retired(epoch));
            leader.retire(epoch);
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let status = |leader: &Leader| {
            let partitions = 0..leader.deployment().partitions;
            let shown = Shown {
                group: leader.deployment().group,
                round: leader.round(),
                nonce: leader.nonce(),
                window: leader.window(),
                partitions: partitions
                    .map(|pid| (leader.next(pid), leader.trimmed(pid)))
                    .collect(),
            };
            shown.to_json(warnings)
        };
        self.leaders.iter().map(status).collect()
    }
}
