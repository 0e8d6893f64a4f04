// SPDX-License-Identifier: Apache-2.0
//! A leader or sequencer behind sockets.

use std::net::SocketAddr;

use control::{Message, View};
use paxos::stamping::{Kind, Stamper};
use paxos::{Packet, Verdict, trace};
use serde_json::Value;
use tracing::info;

use super::LeaderStatus;
use crate::cluster_file::{self, ClusterFile, Node};
use crate::roles::control_loop::{Refusals, of_group};
use crate::roles::links::Links;
use crate::roles::sockets::Role;
use crate::{Error, random_nonce};

pub(super) struct StampingRole<K> {
    /// The stamper of each group, in the order of the cluster file.
    stampers: Vec<Stamper<K>>,
    refusals: Refusals,
}

impl<K: Kind> StampingRole<K> {
    pub fn open(cluster: &ClusterFile, node: &Node, links: &mut Links) -> Result<Self, Error> {
        let mut stampers = Vec::new();
        for group in &cluster.groups {
            let stamper = Stamper::new(cluster.deployment(node, group), random_nonce()?);
            let role = match node.role {
                cluster_file::Role::Sequencer => trace::Role::Sequencer,
                _ => trace::Role::Leader,
            };
            links.record(group.id, |trace| trace.started(role, stamper.nonce(), 0));
            stampers.push(stamper);
        }
        let refusals = Refusals::default();
        Ok(StampingRole { stampers, refusals })
    }
}

impl<K: Kind> Role for StampingRole<K> {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error> {
        Ok(self.stampers[group].step(packet, links))
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
        let id = |stamper: &Stamper<K>| stamper.deployment().group;
        let Some(stamper) = of_group(&mut self.stampers, group, id) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows.
        if program.nonce == stamper.nonce() && stamper.round().epoch() == program.epoch {
            return Ok(());
        }
        links.record(group, |trace| trace.programmed(&program));
        match stamper.program(&program) {
            Ok(()) => info!(group, epoch = program.epoch, "leads from now on"),
            Err(why) => {
                let node = stamper.deployment().node;
                let order = format!("programming epoch {} of group {group}", program.epoch);
                self.refusals.say(node, order, why);
            }
        }
        Ok(())
    }

    /// Retires the stamper if a later epoch has begun. [L-RETIRE] [Q-RETIRE]
    fn view(&mut self, view: &View, links: &mut Links) {
        let id = |stamper: &Stamper<K>| stamper.deployment().group;
        let stamper = of_group(&mut self.stampers, view.group, id);
        if let (Some(epoch), Some(stamper)) = (view.begun(), stamper) {
            links.record(view.group, |trace| trace.retired(epoch));
            let led = stamper.round();
            stamper.retire(epoch);
            if stamper.round() != led {
                info!(
                    group = view.group,
                    epoch, "leads no more: another epoch has begun"
                );
            }
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let status = |stamper: &Stamper<K>| {
            let partitions = 0..stamper.deployment().partitions;
            let shown = LeaderStatus {
                group: stamper.deployment().group,
                round: stamper.round(),
                nonce: stamper.nonce(),
                window: stamper.window(),
                partitions: partitions
                    .map(|pid| (stamper.next(pid), stamper.trimmed(pid)))
                    .collect(),
            };
            shown.to_json(warnings)
        };
        self.stampers.iter().map(status).collect()
    }
}
