//! A leader's process: the role of every group behind one socket.
//!
//! Nothing is stored. A leader that starts has a new boot nonce and stamps nothing until the
//! controller programs it in a new epoch; until then it is a backup.

use control::{EpochState, Message, View};
use paxos::leader::Program;
use paxos::{Leader, Packet, Verdict};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node};
use crate::control_loop::{of_group, refused};
use crate::host::Stop;
use crate::outbox::AddressedOutbox;
use crate::role_loop::{Role, RoleLoop};
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
    role_loop.run(&mut LeaderRole {
        leaders: leaders.collect::<Result<_, Error>>()?,
    })
}

struct LeaderRole {
    /// By group, in the order of the cluster file.
    leaders: Vec<Leader>,
}

impl Role for LeaderRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        out: &mut AddressedOutbox<'_>,
    ) -> Verdict {
        self.leaders[group].step(packet, out)
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(())
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
        let Some(leader) = of_group(&mut self.leaders, *group, |l| l.deployment().group) else {
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
        let leader = of_group(&mut self.leaders, view.group, |l| l.deployment().group);
        if let (Some(epoch), Some(leader)) = (begun, leader) {
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
