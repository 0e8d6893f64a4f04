//! A leader's process: the role of every group behind one socket.
//!
//! Nothing is stored. A leader that starts has a new boot nonce and stamps nothing until the
//! controller programs it in a new epoch; until then it is a backup.

use control::{EpochState, Message, View};
use paxos::leader::Program;
use paxos::{GroupId, Leader, Packet, Verdict, trace};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node};
use crate::control_loop::refused;
use crate::host::Stop;
use crate::outbox::AddressedOutbox;
use crate::role_loop::{Role, RoleLoop};
use crate::trace::{Recorded, Recorder};
use crate::{Error, random_nonce, status};

/// Runs a leader until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
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
        trace.started(trace::Role::Leader, leader.nonce());
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
        let Message::ProgramLeader {
            group,
            epoch,
            nonce,
            next,
            trimmed,
            window,
            replicas,
            g,
        } = order
        else {
            return Ok(());
        };
        let Some((leader, trace)) = self.of_group(*group) else {
            return Ok(());
        };
        // The controller repeats an order until its effect shows.
        if *nonce == leader.nonce() && leader.round().epoch() == *epoch {
            return Ok(());
        }
        let program = Program {
            epoch: *epoch,
            nonce: *nonce,
            next: next.clone(),
            trimmed: trimmed.clone(),
            window: *window,
            replicas: replicas.clone(),
            g: *g,
        };
        trace.programmed(&program);
        if let Err(why) = leader.program(&program) {
            refused(
                leader.deployment().node,
                &format!("programming epoch {epoch}"),
                why,
            );
        }
        Ok(())
    }

    /// An epoch that may be writing has the promises of a quorum: this leader can decide nothing
    /// more, so its clients should look for the next one.
    fn view(&mut self, view: &View) {
        let begun = view
            .epochs
            .iter()
            .rev()
            .find(|e| e.state >= EpochState::Writing);
        if let (Some(epoch), Some((leader, trace))) = (begun, self.of_group(view.group)) {
            trace.retired(epoch.epoch);
            leader.retire(epoch.epoch);
        }
    }

    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let status = |leader: &Leader| {
            let (group, window) = (leader.deployment().group, leader.window());
            let partition = |pid| {
                let (next, trimmed) = (leader.next(pid), leader.trimmed(pid));
                let open = next.saturating_sub(trimmed);
                if !leader.round().is_none() {
                    let full = status::ring_warning("the window", group, pid.into(), open, window);
                    warnings.extend(full);
                }
                json!({ "pid": pid, "next": next, "trimmed": trimmed, "open": open })
            };
            let partitions: Vec<_> = (0..leader.deployment().partitions).map(partition).collect();
            json!({
                "group": group,
                "leading": !leader.round().is_none(),
                "epoch": leader.round().epoch(),
                "nonce": format!("{:016x}", leader.nonce()),
                "window": window,
                "partitions": partitions,
            })
        };
        self.leaders.iter().map(status).collect()
    }
}
