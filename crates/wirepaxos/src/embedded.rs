//! A whole cluster in this process: every node a thread. For tests and first use.

use std::sync::Arc;
use std::thread::JoinHandle;

use node::{ClusterFile, Stop};

use crate::error::Error;
use crate::services;

/// The running nodes; dropping it stops them in good order.
pub struct Embedded {
    nodes: Vec<(Arc<Stop>, JoinHandle<()>)>,
}

impl Embedded {
    /// Starts all nodes of the cluster file.
    pub fn start(cluster: &ClusterFile) -> Result<Embedded, Error> {
        let mut embedded = Embedded { nodes: Vec::new() };
        for node in &cluster.nodes {
            let services = services::of(cluster, node)?;
            let stop = Stop::new()?;
            let (stopping, cluster, name) = (stop.clone(), cluster.clone(), node.name.clone());
            let thread = std::thread::Builder::new()
                .name(node.name.clone())
                .spawn(move || {
                    if let Err(e) = node::run(&cluster, &name, Some(&services), &stopping) {
                        tracing::error!("{name}: {e}");
                    }
                })?;
            embedded.nodes.push((stop, thread));
        }
        Ok(embedded)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        for (stop, _) in &self.nodes {
            stop.request();
        }
        for (_, thread) in self.nodes.drain(..) {
            let _ = thread.join();
        }
    }
}
