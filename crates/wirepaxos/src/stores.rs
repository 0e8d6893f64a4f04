// SPDX-License-Identifier: Apache-2.0
//! The services of a replica that executes the application in the cluster file: that application
//! and, if the node has a redis address, a front end.

use std::sync::Arc;

use ::front_end::{Member, Native};
use apps::redis::{Alarm, News, Seen};
use apps::{Redis, Share};
use client::known_group;
use node::cluster_file::{ApplicationKind, Group, Node};
use node::{ClusterClock, ClusterFile, Services};

use crate::{Error, front_end, machine_memory};

/// Returns the services of `node`. Its front end, if it has one, is running afterwards.
pub fn services(cluster: &ClusterFile, node: &Node) -> Result<Services, Error> {
    let group = known_group(cluster, node.group.unwrap_or_default())?;
    let kind = group.application;
    if kind == ApplicationKind::Own {
        return Err(Error::configuration(
            format!(
                "group {} executes a program of its own (`application = \"own\"`)",
                group.id
            ),
            "start its replicas by that program, or choose another application",
        ));
    }
    let partitions = group.partitions;
    if kind == ApplicationKind::Redis {
        return redis_servers(cluster, node, group);
    }
    let max_answer = (group.max_answer_mib << 20) as usize;
    let mut services = Services::new(Arc::new(move |pid, directory| {
        let share = Share { pid, partitions };
        apps::open_share(kind.name(), directory, share, max_answer)
    }));
    if let Some(address) = node.redis {
        front_end::start(cluster, node, address, None, &mut services)?;
    }
    Ok(services)
}

/// Returns the services of a replica of Redis itself. The front end gets the servers' list of
/// commands, and sees their clocks and processes.
fn redis_servers(cluster: &ClusterFile, node: &Node, group: &Group) -> Result<Services, Error> {
    let seen = Seen::new(group.partitions);
    let (shown, told) = (seen.clone(), News::default());
    let news = told.clone();
    let max_answer = (group.max_answer_mib << 20) as usize;
    let mut services = Services::new(Arc::new(move |pid, directory| {
        Ok(Box::new(Redis::open_with(
            directory,
            pid,
            shown.clone(),
            told.clone(),
            max_answer,
        )?))
    }));
    if let Some(address) = node.redis {
        let found = apps::redis::catalogue().map_err(|e| Error::System(e.0))?;
        let replicas = cluster.replicas(group.id);
        let mut all: Vec<_> = replicas.iter().map(|replica| replica.id).collect();
        all.sort_unstable();
        let member = Member { node: node.id, all };
        let clock = Arc::new(ClusterClock::default());
        services.clock = Some(clock.clone());
        let time = Box::new(move || clock.ms());
        let native = Native::new(found, seen.clone(), news, member, time);
        let native = native.with_max_memory(max_memory(group));
        front_end::start(cluster, node, address, Some(native), &mut services)?;
    }
    let others = services.front_end_warnings.clone();
    let cluster = cluster.clone();
    services.front_end_warnings = Arc::new(move || {
        let mut warnings = others();
        warnings.extend(seen.remarks());
        warnings.extend(seen.alarms().iter().map(|alarm| text_of(&cluster, alarm)));
        warnings
    });
    Ok(services)
}

/// Says to an operator that another replica has other contents.
fn text_of(cluster: &ClusterFile, alarm: &Alarm) -> String {
    let Alarm { pid, node, key } = alarm;
    let other = cluster.node_by_id(*node);
    let other = other.map_or_else(|| format!("node {node}"), |node| node.name.clone());
    format!(
        "ALARM: partition {pid}: this replica and {other} have different contents, for example in \
         the key \"{}\": find the one that is wrong with `wirepaxos status --digest`, and let it \
         fetch another replica's state",
        key.escape_ascii()
    )
}

/// Returns how many bytes of memory the Redis servers may have. The default leaves half of the
/// memory to snapshots, which copy what changes meanwhile, to scripts, and to the rest of the
/// machine.
fn max_memory(group: &Group) -> Option<u64> {
    match group.max_memory_mib {
        Some(0) => None,
        Some(mib) => Some(mib << 20),
        None => machine_memory::bytes().map(|all| all / 2),
    }
}
