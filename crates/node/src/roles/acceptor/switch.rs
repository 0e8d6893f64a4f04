// SPDX-License-Identifier: Apache-2.0
//! An acceptor in a switch. Its votes are in registers.
//!
//! When the process ends by a signal, or is killed, the acceptor keeps voting, and the next process
//! finds it. An order to stop removes it; its memory stays in the switch as long as the switch
//! runs, and nowhere else.

use std::path::Path;

use control::Message;
use p4::order::PLACES;
use paxos::acceptor::Start;
use paxos::{Epoch, Instance, Round};
use serde_json::Value;

use super::memory::memory_on_disk;
use super::{AcceptorStatus, PartitionStatus};
use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::plane::p4::{OfGroup, P4Plane};
use crate::roles::control_loop::Refusals;
use crate::roles::detached::{Detached, listeners};

pub(super) struct SwitchAcceptor {
    plane: P4Plane,
    refusals: Refusals,
}

impl Detached for SwitchAcceptor {
    type Plane = P4Plane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        refuse_dump(&memory_on_disk(cluster, node)?)?;
        Ok(SwitchAcceptor {
            plane: P4Plane::open(cluster, node, |group| listeners(cluster, node, group))?,
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
        let Some((group, enable)) = order.enable() else {
            return Ok(());
        };
        let Some(acceptor) = self.plane.of_group(group) else {
            return Ok(());
        };
        let enabled = acceptor.role().enable(&enable);
        if let Err(why) = enabled {
            let node = acceptor.place().deployment.node;
            let order = format!("enabling in epoch {} of group {group}", enable.epoch);
            self.refusals.say(node, order, &why);
        }
        Ok(())
    }

    /// Answers that a switch's memory was never read from disk: it is at its first start, and was
    /// at no other. [A-MUTE]
    fn answer(&mut self, question: &Message) -> Result<Option<Message>, Error> {
        let Some(request) = question.earlier_start_request() else {
            return Ok(None);
        };
        let Some(acceptor) = self.plane.of_group(request.group) else {
            return Ok(None);
        };
        let node = acceptor.place().deployment.node;
        let nonce = acceptor.role().look(0).map(|look| look.nonce);
        if nonce != Ok(request.nonce) || request.start != Start::FIRST {
            let order = "saying which starts it knows".to_owned();
            self.refusals.say(node, order, "another memory is asked");
            return Ok(None);
        }
        Ok(Some(request.answer(node, request.earlier == Start::FIRST)))
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let groups = self.plane.groups().filter_map(|group| shown(&group));
        document["groups"] = groups.map(|shown| shown.to_json(warnings)).collect();
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.plane.take_off()
    }
}

/// Returns an error if there is a memory in a file. A switch can't read one, and once the switch
/// has voted the file would be a memory that has forgotten those votes.
fn refuse_dump(dump: &Path) -> Result<(), Error> {
    match dump.exists() {
        false => Ok(()),
        true => Err(Error::store(format!(
            "{dump} holds the votes that this acceptor had on another plane, and no switch can \
             take them. Start it there; or move the file away, and it joins as a new member. Never \
             do so with more than f acceptors of a cluster at a time, and wait until each is a \
             member again",
            dump = dump.display()
        ))),
    }
}

/// Returns a group's state, or `None` if the switch doesn't answer.
fn shown(group: &OfGroup<'_>) -> Option<AcceptorStatus> {
    let place = group.place();
    let mut role = group.role();
    let first = role.look(0).ok()?;
    let mut partitions = Vec::new();
    for pid in group.partitions() {
        let look = role.look(pid).ok()?;
        let (floor, trim, end): (Round, Instance, Instance) = (look.round, look.a, look.b);
        let mut reports = Vec::new();
        for at in 0..PLACES {
            reports.push(role.report(pid, at).ok()?);
        }
        reports.retain(|(replica, _)| *replica != 0);
        partitions.push(PartitionStatus {
            floor,
            trim,
            end,
            reports,
        });
    }
    let epoch: Epoch = first.epoch;
    Some(AcceptorStatus {
        group: place.deployment.group,
        epoch,
        nonce: first.nonce,
        start: Start::FIRST,
        mute: false,
        storage: Storage::Volatile,
        slots: place.slots,
        partitions,
    })
}
