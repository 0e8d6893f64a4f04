// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos members drain`: hands over what leads on a machine, so that this can be stopped for
//! maintenance without a failover.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::Args;
use control::status::GroupStatus;
use node::ClusterFile;
use node::cluster_file::{Group, Node, Role};
use serde_json::{Value, json};

use super::{LOOK_EVERY, Overview};
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// A controller that has just begun to act has heard nobody yet, and needs no longer than this.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// Options of `wirepaxos members drain`.
#[derive(Args)]
pub struct Options {
    /// The machine, by its address or by the name of a node on it
    #[arg(value_name = "MACHINE")]
    machine: String,
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A leader that was handed over.
struct HandedOver<'a> {
    group: &'a Group,
    from: &'a Node,
    to: &'a Node,
    epoch: u32,
}

/// Hands over what leads on the machine, and says what else would stop with it.
///
/// # Errors
/// If the cluster wouldn't go on without the machine. What could be handed over has been.
pub fn run(options: &Options) -> Result<(), Error> {
    let file = options.cluster.load()?;
    let before = Overview::ask_patiently(&file, &options.cluster.file)?;
    let cluster = file.with_changes(&before.changes)?;
    let machine = Machine::named(&cluster, &options.machine)?;
    let mut done = Vec::new();
    let mut troubles = Vec::new();
    for status in before.status()?.groups {
        match machine.hand_over(&status)? {
            Ok(handed_over) => done.extend(handed_over),
            Err(why) => troubles.push(why),
        }
    }
    let until = Instant::now() + HEARD_WITHIN;
    let too_few = loop {
        let after = Overview::ask_patiently(&file, &options.cluster.file)?.status()?;
        // A node that has just died is one that the controller doesn't suspect yet.
        let answers: BTreeSet<String> = admin::ask_all(&cluster)?.into_keys().collect();
        let too_few = |status| machine.too_few_without(status, &answers);
        let too_few: Vec<String> = after.groups.iter().flat_map(too_few).collect();
        if too_few.is_empty() || Instant::now() >= until {
            break too_few;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    troubles.extend(too_few);
    match options.json {
        true => println!("{}", machine.to_json(&done, &troubles)),
        false => machine.print(&done),
    }
    match troubles.is_empty() {
        true => Ok(()),
        false => Err(Error::new(format!(
            "don't stop {} yet: {}",
            machine.address,
            troubles.join("; ")
        ))),
    }
}

/// A machine of the cluster, and the nodes on it.
struct Machine<'a> {
    cluster: &'a ClusterFile,
    address: IpAddr,
    nodes: Vec<&'a Node>,
}

impl<'a> Machine<'a> {
    fn named(cluster: &'a ClusterFile, name: &str) -> Result<Machine<'a>, Error> {
        let of_node = cluster.node(name).map(|node| node.address.ip());
        let address = of_node.or_else(|| name.parse().ok());
        let is_on = |node: &&Node| Some(node.address.ip()) == address;
        let nodes: Vec<&Node> = cluster.nodes.iter().filter(is_on).collect();
        match address.filter(|_| !nodes.is_empty()) {
            Some(address) => Ok(Machine {
                cluster,
                address,
                nodes,
            }),
            None => Err(Error::new(format!(
                "no node of the cluster is on {name}: give a machine's address or a node's name"
            ))),
        }
    }

    fn has(&self, id: u16) -> bool {
        self.nodes.iter().any(|node| node.id == id)
    }

    /// Makes a node elsewhere lead a group, if one of this machine leads it. Returns why none can.
    fn hand_over(
        &self,
        status: &GroupStatus,
    ) -> Result<Result<Option<HandedOver<'a>>, String>, Error> {
        let cluster = self.cluster;
        let Some(group) = cluster.group(status.group) else {
            return Ok(Ok(None));
        };
        let led = status.leader.and_then(|id| cluster.node_by_id(id));
        let Some(from) = led.filter(|node| self.has(node.id)) else {
            return Ok(Ok(None));
        };
        let is_alive = |node: &&Node| status.members.iter().any(|m| m.node == node.id && m.alive);
        let others = cluster.stampers(group).into_iter();
        let mut others = others.filter(|node| !self.has(node.id) && !node.leaving);
        let Some(to) = others.find(is_alive) else {
            return Ok(Err(format!(
                "{} leads group {}, and no other {} answers elsewhere: start one",
                from.name,
                group.id,
                from.role.name()
            )));
        };
        let epoch = admin::change_leader(cluster, Some(group.id), Some(to.id), false)?;
        Ok(Ok(Some(HandedOver {
            group,
            from,
            to,
            epoch,
        })))
    }

    /// Returns why a group wouldn't go on without this machine, where the nodes of `answers` have
    /// just answered.
    fn too_few_without(&self, status: &GroupStatus, answers: &BTreeSet<String>) -> Vec<String> {
        let Some(last) = status.epochs.last().filter(|_| status.active.is_some()) else {
            return vec![format!("group {} has no epoch in force", status.group)];
        };
        let voters: Vec<u16> = last.acceptors.iter().map(|(id, _)| *id).collect();
        let parts = [
            ("memories that vote", &voters, last.f),
            ("replicas", &last.replicas, last.g),
        ];
        let lacking = parts.into_iter().filter_map(|(what, nodes, may_fail)| {
            let remains = |id: &u16| {
                let shows = |role: &str| matches!(role, "acceptor" | "replica");
                let is_it = |m: &&control::status::MemberStatus| m.node == *id && shows(&m.role);
                let found = status.members.iter().find(is_it);
                let node = self.cluster.node_by_id(*id);
                !self.has(*id)
                    && found.is_some_and(|m| m.alive && !m.mute)
                    && node.is_some_and(|node| answers.contains(&node.name))
            };
            let concerned = nodes.iter().any(|id| self.has(*id));
            let remaining = nodes.iter().filter(|id| remains(id)).count();
            let needed = usize::from(may_fail) + 1;
            (concerned && remaining < needed).then(|| {
                format!(
                    "group {} needs {needed} {what}, and only {remaining} elsewhere answer",
                    status.group
                )
            })
        });
        lacking.collect()
    }

    /// Returns the nodes that go on here until they are stopped.
    fn left(&self) -> Vec<&'a str> {
        let nodes = self.nodes.iter().filter(|node| !node.leaving);
        nodes.map(|node| node.name.as_str()).collect()
    }

    fn only_controller(&self) -> Option<&'a Node> {
        let mut all = self.cluster.with_role(Role::Controller);
        all.next()
            .filter(|one| self.has(one.id) && all.next().is_none())
    }

    fn to_json(&self, done: &[HandedOver<'_>], troubles: &[String]) -> Value {
        let handed_over = done.iter().map(|h| {
            json!({
                "group": h.group.id,
                "from": h.from.name,
                "to": h.to.name,
                "epoch": h.epoch,
            })
        });
        json!({
            "machine": self.address.to_string(),
            "handed_over": handed_over.collect::<Value>(),
            "left": self.left(),
            "only_controller": self.only_controller().map(|node| &node.name),
            "may_stop": troubles.is_empty(),
            "troubles": troubles,
        })
    }

    fn print(&self, done: &[HandedOver<'_>]) {
        for h in done {
            println!(
                "group {}: {} leads in epoch {}, in the place of {}",
                h.group.id, h.to.name, h.epoch, h.from.name
            );
        }
        println!("left on {}: {}", self.address, self.left().join(", "));
        if let Some(only) = self.only_controller() {
            println!(
                "{} is the only controller: nothing fails over without it",
                only.name
            );
        }
    }
}
