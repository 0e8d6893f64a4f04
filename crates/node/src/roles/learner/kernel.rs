// SPDX-License-Identifier: Apache-2.0
//! A learner in the kernel. Its counts, and the configurations by which it counts, are in pinned
//! maps.
//!
//! When the process ends, the learner keeps counting for the epochs that it knows. Votes of a later
//! epoch wait until the process is back, since the process asks for views when the program passes
//! it a vote of an unknown epoch.

use control::View;
use loader::layout::{GROUP_DELIVER, GROUP_PASS_OTHERS};
use loader::learner::Learner;
use loader::object;
use loader::run::counter;
use paxos::{GroupId, MsgType, Packet};
use serde_json::{Value, json};

use super::shown;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::plane::xdp::XdpPlane;
use crate::roles::control_loop::of_group;
use crate::roles::detached::{Detached, listeners};

pub(super) struct KernelLearner {
    plane: XdpPlane,
    /// The learner of each group, in the order of the cluster file.
    learners: Vec<Learner>,
    /// A group with votes of an epoch that isn't known here.
    unknown: Option<GroupId>,
}

impl Detached for KernelLearner {
    type Plane = XdpPlane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        let replicas = cluster.groups.iter();
        let replicas = replicas.map(|g| (g.id, listeners(cluster, node, g.id)));
        let mut plane = XdpPlane::load(cluster, node, object::Role::Learner, replicas.collect())?;
        let places = plane.places().iter().copied();
        let learners = places.map(|place| Learner::in_network(plane.object(), place));
        let learners = learners.collect::<Result<_, String>>()?;
        plane.attach(GROUP_DELIVER | GROUP_PASS_OTHERS)?;
        Ok(KernelLearner {
            plane,
            learners,
            unknown: None,
        })
    }

    fn plane(&self) -> &XdpPlane {
        &self.plane
    }

    fn plane_mut(&mut self) -> &mut XdpPlane {
        &mut self.plane
    }

    /// Handles packets that the program has passed on: votes of unknown epochs, packets that are no
    /// votes, and votes of acceptors on this machine.
    fn take_passed(&mut self) -> Result<(), Error> {
        let KernelLearner {
            plane,
            learners,
            unknown,
        } = self;
        plane.handle_passed(|packet| {
            let learner = of_group(learners, packet.header.group, group);
            if learner.is_some_and(|learner| is_unknown(packet, learner)) {
                *unknown = Some(packet.header.group);
            }
        })
    }

    fn wants_view(&mut self) -> Option<GroupId> {
        self.unknown.take()
    }

    fn view(&mut self, view: &View) {
        if let Some(learner) = of_group(&mut self.learners, view.group, group) {
            let all: Vec<_> = view.begun_epochs().map(|e| e.configuration()).collect();
            if learner.learn_all(&all) {
                learner.settle();
            }
        }
    }

    fn status(&self, document: &mut Value, _: &mut Vec<String>) {
        let decided = self.plane.object().counter(counter::DECIDED);
        document["counters"]["sent"] = json!({ "deliver": decided });
        let groups = self.learners.iter();
        document["groups"] = groups
            .map(|l| shown(group(l), l.epochs(), l.place().slots))
            .collect();
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.plane.detach()?;
        self.plane.forget()
    }
}

fn group(learner: &Learner) -> GroupId {
    learner.place().deployment.group
}

fn is_unknown(packet: &Packet<'_>, learner: &Learner) -> bool {
    let epoch = packet.header.rnd.epoch();
    packet.header.msgtype == MsgType::Phase2b && !learner.epochs().contains(&epoch)
}
