//! A leader's process: the role of every group behind one socket, or in the kernel (`kernel.rs`).
//!
//! Nothing is stored. A leader that starts has a new boot nonce and stamps nothing until the
//! controller programs it in a new epoch; until then it is a backup.

mod kernel;

use control::{Message, View};
use paxos::{GroupId, Instance, Leader, Packet, Round, Verdict, trace};
use serde_json::{Value, json};

use self::kernel::KernelLeader;
use crate::cluster_file::{ClusterFile, Node};
use crate::host::Stop;
use crate::roles::control_loop::refused;
use crate::roles::kernel as in_kernel;
use crate::roles::outbox::AddressedOutbox;
use crate::roles::sockets::{Role, RoleLoop};
use crate::trace::{Recorded, Recorder};
use crate::{Error, random_nonce, status};

/// Runs a leader until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
    if in_kernel::run::<KernelLeader>(cluster, node, stop)? {
        return Ok(());
    }
    let role_loop = RoleLoop::open(cluster, node, stop)?;
    let leader = |group| {
        Ok(Leader::new(
            cluster.deployment(node, group),
            random_nonce()?,
        ))
    };
    let leaders = cluster.groups.iter().map(leader);
    let leaders: Vec<Leader> = leaders.collect::<Result<_, Error>>()?;
    let mut traces = Recorder::open_all(cluster, node)?;
    for (trace, leader) in traces.iter_mut().zip(&leaders) {
        trace.started(trace::Role::Leader, leader.nonce(), 0);
    }
    role_loop.run(&mut LeaderRole { leaders, traces })
}

struct LeaderRole {
    /// By group, in the order of the cluster file.
    leaders: Vec<Leader>,
    /// By group.
    traces: Vec<Recorder>,
}

impl LeaderRole {
    fn of_group(&mut self, group: GroupId) -> Option<(&mut Leader, &mut Recorder)> {
        let mut leaders = self.leaders.iter_mut().zip(&mut self.traces);
        leaders.find(|(leader, _)| leader.deployment().group == group)
    }
}

impl Role for LeaderRole {
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
        self.leaders[group].step(packet, &mut Recorded { out, trace })
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.traces.iter_mut().try_for_each(Recorder::flush)
    }

    fn order(&mut self, order: &Message) -> Result<(), Error> {
        let Some((group, program)) = order.program() else {
            return Ok(());
        };
        let Some((leader, trace)) = self.of_group(group) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows.
        if program.nonce == leader.nonce() && leader.round().epoch() == program.epoch {
            return Ok(());
        }
        trace.programmed(&program);
        if let Err(why) = leader.program(&program) {
            refused(
                leader.deployment().node,
                &format!("programming epoch {}", program.epoch),
                why,
            );
        }
        Ok(())
    }

    /// [L-RETIRE]
    fn view(&mut self, view: &View) {
        if let (Some(epoch), Some((leader, trace))) = (view.begun(), self.of_group(view.group)) {
            trace.retired(epoch);
            leader.retire(epoch);
        }
    }

    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
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

/// What a leader of one group shows, on any plane.
struct Shown {
    group: GroupId,
    round: Round,
    nonce: u64,
    window: u64,
    /// `next` and `trimmed`, by partition.
    partitions: Vec<(Instance, Instance)>,
}

impl Shown {
    fn to_json(&self, warnings: &mut Vec<String>) -> Value {
        let leading = !self.round.is_none();
        let partition = |(pid, (next, trimmed)): (usize, &(Instance, Instance))| {
            let open = next.saturating_sub(*trimmed);
            if leading {
                let full = status::ring_warning("the window", self.group, pid, open, self.window);
                warnings.extend(full);
            }
            json!({ "pid": pid, "next": next, "trimmed": trimmed, "open": open })
        };
        let partitions: Vec<_> = self.partitions.iter().enumerate().map(partition).collect();
        json!({
            "group": self.group,
            "leading": leading,
            "epoch": self.round.epoch(),
            "nonce": format!("{:016x}", self.nonce),
            "window": self.window,
            "partitions": partitions,
        })
    }
}
