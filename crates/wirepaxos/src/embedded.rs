// SPDX-License-Identifier: Apache-2.0
//! A whole cluster in this process, with a thread for each node, for tests and first use.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::{ClusterFile, Error, Program, Stop};

/// All nodes of a cluster, each as a thread of this process. Dropping it stops them in good order.
///
/// All nodes share the fate of this process, so this doesn't replace a real cluster. [The first
/// example](crate) shows its use.
pub struct Embedded {
    nodes: Vec<Running>,
}

struct Running {
    stop: Arc<Stop>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Embedded {
    /// Starts all nodes of the cluster file; its replicas execute `program`.
    /// [`Client::open`](crate::Client::open) waits until they serve.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no more threads. A node that can't start reports its
    /// error in the log at once, and again when the nodes are [stopped](Self::stop).
    pub fn start(cluster: &ClusterFile, program: &Program) -> Result<Embedded, Error> {
        let mut embedded = Embedded { nodes: Vec::new() };
        for node in &cluster.nodes {
            let services = program.services_of(cluster, &node.name)?;
            let stop = Stop::new()?;
            let (stopping, cluster) = (stop.clone(), cluster.clone());
            let name = node.name.clone();
            let thread = std::thread::Builder::new()
                .name(node.name.clone())
                .spawn(move || {
                    let result = node::run(&cluster, &name, services.as_ref(), &stopping);
                    if let Err(e) = &result {
                        tracing::error!("{name}: {e}");
                    }
                    Ok(result?)
                })?;
            embedded.nodes.push(Running { stop, thread });
        }
        Ok(embedded)
    }

    /// Stops all nodes in good order, so that a start with the same cluster file finds their state
    /// again.
    ///
    /// # Errors
    /// The first error that ended a node, now or earlier.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        for node in &self.nodes {
            node.stop.request();
        }
        let mut first = Ok(());
        for node in self.nodes.drain(..) {
            let panicked = |_| Err(Error::System("a node's thread panicked".to_owned()));
            first = first.and(node.thread.join().unwrap_or_else(panicked));
        }
        first
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // The log already has the error.
        let _ = self.end();
    }
}
