// SPDX-License-Identifier: Apache-2.0
//! A learner in a switch. Its counts are in registers, and the configurations by which it counts
//! are in tables.
//!
//! When the process ends, the learner keeps counting for the epochs that it knows. A switch reports
//! no votes of unknown epochs, but it counts them; when their number grows, the process asks for
//! the view.

use control::View;
use loader::run::counter;
use p4::tables::{Configurations, clear_configurations};
use paxos::{GroupId, Reason};
use serde_json::{Value, json};

use super::shown;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::plane::Handler;
use crate::plane::p4::P4Plane;
use crate::roles::control_loop::of_group;
use crate::roles::detached::{Detached, listeners};

pub(super) struct SwitchLearner {
    plane: P4Plane,
    /// The configurations of each group, in the order of the cluster file.
    known: Vec<Configurations>,
    /// The slots of a partition of each group.
    slots: Vec<u64>,
    /// The number of votes of unknown epochs at the last look.
    unknown: u64,
    /// The groups whose view is wanted.
    wanted: Vec<GroupId>,
}

impl Detached for SwitchLearner {
    type Plane = P4Plane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        let plane = P4Plane::open(cluster, node, |group| listeners(cluster, node, group))?;
        let places: Vec<_> = plane.groups().map(|group| group.place()).collect();
        let mut learner = SwitchLearner {
            known: places
                .iter()
                .map(|p| Configurations::of(p.deployment))
                .collect(),
            slots: places.iter().map(|p| p.slots).collect(),
            unknown: plane.counter(Reason::UnknownEpoch as usize),
            wanted: places.iter().map(|p| p.deployment.group).collect(),
            plane,
        };
        learner.count_by_known();
        Ok(learner)
    }

    fn plane(&self) -> &P4Plane {
        &self.plane
    }

    fn plane_mut(&mut self) -> &mut P4Plane {
        &mut self.plane
    }

    fn refresh(&mut self) {
        self.plane.refresh();
        let unknown = self.plane.counter(Reason::UnknownEpoch as usize);
        if unknown > self.unknown {
            self.wanted = self.known.iter().map(Configurations::group).collect();
        }
        // A switch that was restarted counts from 0.
        self.unknown = unknown;
    }

    fn wants_view(&mut self) -> Option<GroupId> {
        self.wanted.pop()
    }

    fn view(&mut self, view: &View) {
        let Some(known) = of_group(&mut self.known, view.group, Configurations::group) else {
            return;
        };
        let mut changed = false;
        for epoch in view.begun_epochs() {
            changed |= known.learn(&epoch.configuration());
        }
        if changed {
            self.count_by_known();
        }
    }

    fn status(&self, document: &mut Value, _: &mut Vec<String>) {
        let decided = self.plane.counter(counter::DECIDED);
        document["counters"]["sent"] = json!({ "deliver": decided });
        let groups = self.known.iter().zip(&self.slots);
        document["groups"] = groups
            .map(|(known, slots)| shown(known.group(), known.epochs(), *slots))
            .collect();
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.plane.take_off()
    }
}

impl SwitchLearner {
    fn count_by_known(&mut self) {
        let mut lines = clear_configurations();
        lines.extend(self.known.iter().flat_map(Configurations::lines));
        self.plane.set_own_lines(lines);
    }
}
