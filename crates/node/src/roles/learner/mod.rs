//! A learner's process: the role of every group behind one socket, or in the kernel (`kernel.rs`).
//! It counts votes for the replicas and tells them what is decided, one DELIVER each.
//!
//! Nothing is stored, and nothing must be: the votes are the acceptors' memory. What a learner
//! forgets, or never heard, a replica notices as a gap, or by asking how far the acceptors are, and
//! repairs. So one may start, restart or vanish at any time, and several may count the same votes:
//! replicas ignore repeats.
//!
//! It counts by the configurations of the epochs, which the controller tells it. A vote of an epoch
//! that isn't known makes it ask.

mod kernel;

use control::{Message, View};
use paxos::{Epoch, GroupId, Learner, Packet, Reason, Verdict};
use serde_json::{Value, json};

use self::kernel::KernelLearner;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::host::Stop;
use crate::roles::control_loop::of_group;
use crate::roles::kernel as in_kernel;
use crate::roles::outbox::AddressedOutbox;
use crate::roles::sockets::{Role, RoleLoop};
use crate::trace::{Recorded, Recorder};

/// Runs a learner until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
    if in_kernel::run::<KernelLearner>(cluster, node, stop)? {
        return Ok(());
    }
    let role_loop = RoleLoop::open(cluster, node, stop)?;
    role_loop.run(&mut LearnerRole {
        learners: cluster
            .groups
            .iter()
            .map(|group| Learner::new(cluster.deployment(node, group), group.slots))
            .collect(),
        traces: Recorder::open_all(cluster, node)?,
        unknown: None,
    })
}

struct LearnerRole {
    /// By group, in the order of the cluster file.
    learners: Vec<Learner>,
    /// By group.
    traces: Vec<Recorder>,
    /// A group with votes of an epoch that isn't known here.
    unknown: Option<GroupId>,
}

impl Role for LearnerRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        datagram: &[u8],
        out: &mut AddressedOutbox<'_>,
    ) -> Verdict {
        let trace = &mut self.traces[group];
        trace.received(datagram);
        let verdict = self.learners[group].step(packet, &mut Recorded { out, trace });
        if verdict == Verdict::Dropped(Reason::UnknownEpoch) {
            self.unknown = Some(packet.header.group);
        }
        verdict
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.traces.iter_mut().try_for_each(Recorder::flush)
    }

    fn order(&mut self, _: &Message) -> Result<(), Error> {
        Ok(())
    }

    fn view(&mut self, view: &View) {
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

    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
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

/// What a learner of one group shows, on any plane: the epochs whose configurations it knows, newest
/// first. How much it has decided is `counters.sent.deliver`.
fn shown(group: GroupId, epochs: Vec<Epoch>, slots: u64) -> Value {
    json!({ "group": group, "epoch": epochs.first(), "epochs": epochs, "slots": slots })
}
