// SPDX-License-Identifier: Apache-2.0
//! What a replica gets that executes what the cluster file names: the application and, where it has
//! a redis address, a front end.

use std::sync::Arc;

use apps::Share;
use client::known_group;
use node::cluster_file::{ApplicationKind, Node};
use node::{ClusterFile, Services};

use crate::{Error, front_end};

/// The services of `node`; its front end, if any, is running.
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
    let mut services = Services::new(Arc::new(move |pid, directory| {
        apps::open_share(kind.name(), directory, Share { pid, partitions })
    }));
    if let Some(address) = node.redis {
        front_end::start(cluster, node, address, &mut services)?;
    }
    Ok(services)
}
