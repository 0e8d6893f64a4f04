// SPDX-License-Identifier: Apache-2.0
//! Runs the nodes of a process: one, or several at DPDK ports, which share a thread.

use std::sync::{Arc, mpsc};

use tracing::{Span, error_span, info};

use crate::backup::refuse_unfinished;
use crate::cluster_file::{ClusterFile, Node, Plane, Role};
use crate::host::{Stop, pin_to_cpu};
use crate::level::check_what_is_kept;
use crate::plane::Ports;
use crate::roles::rotation::{Door, Rotation};
use crate::roles::{acceptor, controller, leader, learner, replica};
use crate::{Error, Services, http, status};

/// Plays the roles of several nodes in the calling thread until `stop` is requested. All of them
/// must be at DPDK ports, which they may share. One node may be stopped alone, but if one fails,
/// all end; a replica needs services.
pub fn run(
    cluster: &ClusterFile,
    nodes: &[(&str, Option<&Services>)],
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    let members = nodes.iter().map(|(name, services)| {
        let node = cluster.named(name)?;
        // A field `name` would hide the name of the span in JSON.
        let span = error_span!("node", node = name);
        Ok(Member {
            node,
            services: *services,
            span,
        })
    });
    let members = members.collect::<Result<Vec<_>, Error>>()?;
    may_start(cluster, &members)?;
    for member in &members {
        member.span.in_scope(|| say_start(cluster, member.node));
    }
    let servers = members.iter().filter_map(|member| {
        let address = member.node.metrics?;
        Some(http::Server::start(address, cluster, member.node))
    });
    let _servers = servers.collect::<Result<Vec<_>, Error>>()?;
    let ports = Ports::default();
    std::thread::scope(|scope| {
        let mut rotation = Rotation::new(stop, &ports);
        // The threads of these nodes don't stay where the loop runs.
        let (executing, others): (Vec<_>, Vec<_>) =
            members.iter().partition(|m| m.executes_at_a_port());
        let started = executing.iter().copied().map(|member: &Member<'_>| {
            let door = rotation.door();
            let (go, may_go) = mpsc::channel();
            let run = move || match may_go.recv() {
                Ok(()) => member
                    .span
                    .in_scope(|| member.execute(cluster, stop, Some(door))),
                // The node isn't started at all.
                Err(mpsc::RecvError) => Ok(()),
            };
            (go, scope.spawn(run))
        });
        let (go, threads): (Vec<_>, Vec<_>) = started.collect();
        let begun = begin(cluster, &executing, &others, &mut rotation);
        match begun {
            Ok(()) => go.iter().for_each(|go| {
                let _ = go.send(());
            }),
            // The nodes that have begun end in good order.
            Err(_) if members.len() > 1 => stop.request(),
            Err(_) => {}
        }
        drop(go);
        let ran = rotation.run();
        let panicked = |_| Err(Error::new("a thread of a replica panicked"));
        let ended = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(panicked));
        let ended: Vec<_> = ended.collect();
        let result: Result<(), Error> = [begun, ran].into_iter().chain(ended).collect();
        if result.is_ok() {
            members
                .iter()
                .for_each(|member| member.span.in_scope(|| info!("stopped in good order")));
        }
        result
    })
}

/// Logs what starts, and where.
fn say_start(cluster: &ClusterFile, node: &Node) {
    info!(
        version = status::VERSION,
        commit = status::COMMIT,
        cluster = format_args!("{:08x}", cluster.cluster),
        role = node.role.name(),
        address = %node.address,
        control = %node.control,
        plane = node.plane.name(),
        "starting"
    );
}

/// Opens the ports of the nodes that execute, and starts the others. A node that is at no port has
/// ended when this returns.
fn begin<'a>(
    cluster: &ClusterFile,
    executing: &[&'a Member<'a>],
    others: &[&'a Member<'a>],
    rotation: &mut Rotation<'a>,
) -> Result<(), Error> {
    let mut all = executing.iter().chain(others);
    if let Some((name, cpu)) = all.find_map(|m| Some((&m.node.name, m.node.cpu?))) {
        pin_to_cpu(cpu)
            .map_err(|e| Error::new(format!("{name}: can't stay on CPU {cpu} (`cpu`): {e}")))?;
    }
    for member in executing {
        // DPDK knows the thread that starts it, and serves that thread better than others.
        member.span.in_scope(|| rotation.ports.open(member.node))?;
    }
    let mut others = others.iter();
    others.try_for_each(|member| member.span.in_scope(|| member.start(cluster, rotation)))
}

struct Member<'a> {
    node: &'a Node,
    services: Option<&'a Services>,
    span: Span,
}

impl<'a> Member<'a> {
    fn executes_at_a_port(&self) -> bool {
        self.node.role == Role::Replica && self.node.plane == Plane::Dpdk
    }

    fn start(&self, cluster: &ClusterFile, rotation: &mut Rotation<'a>) -> Result<(), Error> {
        match self.node.role {
            Role::Controller => controller::run(cluster, self.node, rotation),
            Role::Leader | Role::Sequencer => leader::run(cluster, self.node, rotation),
            Role::Acceptor => acceptor::run(cluster, self.node, rotation),
            Role::Learner => learner::run(cluster, self.node, rotation),
            Role::Replica => self.execute(cluster, rotation.stop, None),
        }
    }

    fn execute(
        &self,
        cluster: &ClusterFile,
        stop: &Arc<Stop>,
        door: Option<Door<'_>>,
    ) -> Result<(), Error> {
        let none = || {
            Error::configuration(
                format!(
                    "{} is a replica and has nothing to replicate",
                    self.node.name
                ),
                "give it an application",
            )
        };
        let services = self.services.ok_or_else(none)?;
        let shares = door.is_some();
        let result = replica::run(cluster, self.node, services, stop, door);
        if shares && result.is_err() {
            // If one node fails, all end.
            stop.request();
        }
        result
    }
}

/// Returns an error if these nodes can't share a process, or if this program must not touch what
/// one of them keeps.
fn may_start(cluster: &ClusterFile, members: &[Member<'_>]) -> Result<(), Error> {
    fit(members)?;
    refuse_unfinished(cluster)?;
    let mut members = members.iter();
    members.try_for_each(|member| check_what_is_kept(cluster, member.node))
}

/// Returns an error if these nodes can't share a process.
fn fit(members: &[Member<'_>]) -> Result<(), Error> {
    let [first, others @ ..] = members else {
        return Err(Error::configuration("no node is named", "name one"));
    };
    let alone = "run each as a process of its own";
    for (at, other) in others.iter().enumerate() {
        if members[..=at].iter().any(|m| m.node.id == other.node.id) {
            let problem = format!("{} is named twice", other.node.name);
            return Err(Error::configuration(problem, "name each node once"));
        }
        for node in [first.node, other.node] {
            if node.plane != Plane::Dpdk {
                let (name, plane) = (&node.name, node.plane.name());
                let problem = format!(
                    "{name} is on plane {plane}, and only nodes at ports of DPDK share a process"
                );
                return Err(Error::configuration(problem, alone));
            }
        }
        if first.node.cpu != other.node.cpu {
            let (a, b) = (&first.node.name, &other.node.name);
            let problem = format!(
                "{a} and {b} are to share a process, which stays on one CPU, and differ in `cpu`"
            );
            return Err(Error::configuration(problem, "give both the same, or none"));
        }
    }
    Ok(())
}
