//! What a replica gets from this program: the application that the cluster file names and, where
//! it has a redis address, a front end.

use std::sync::Arc;

use node::ClusterFile;
use node::Services;
use node::cluster_file::Node;

use crate::error::Error;
use crate::front_end;

/// The services of `node`; its front end, if any, is running.
pub fn of(cluster: &ClusterFile, node: &Node) -> Result<Services, Error> {
    let kind = node
        .group
        .and_then(|id| cluster.group(id))
        .map(|g| g.application);
    let mut services = Services::new(Arc::new(move |_, directory| match kind {
        Some(kind) => apps::open(kind.name(), directory),
        None => Err(apps::Error("this node serves no group".into())),
    }));
    if let Some(address) = node.redis {
        front_end::start(cluster, node, address, &mut services)?;
    }
    Ok(services)
}
