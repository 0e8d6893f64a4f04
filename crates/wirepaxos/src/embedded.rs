// SPDX-License-Identifier: Apache-2.0
//! A whole cluster in this process, with a thread for each node, for tests and first use.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use node::Services;
use node::cluster_file::{Node, Role};

use crate::{ClusterFile, Error, Program, Stop};

/// How often a start that waits looks whether a node has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

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
            embedded.run(cluster, node, services, Stop::new()?)?;
        }
        Ok(embedded)
    }

    /// Starts all nodes of the cluster file but its replicas, for a program that [runs](crate::run)
    /// the replicas itself, and returns once the nodes listen.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no more threads, and the error of a node that can't
    /// start. Then none of them runs.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use wirepaxos::cluster_file::{ApplicationKind, Draft};
    /// use wirepaxos::{Client, ClientOptions, Embedded, Program, Stop};
    ///
    /// # struct Echo;
    /// # impl wirepaxos::StateMachine for Echo {
    /// #     fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
    /// #         reply.extend_from_slice(command)
    /// #     }
    /// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
    /// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Echo) }
    /// # }
    /// # fn main() -> Result<(), wirepaxos::Error> {
    /// # let name = format!("wirepaxos-doc-others-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// let cluster = Draft::on_loopback(&directory, ApplicationKind::Own)?.check()?;
    /// let others = Embedded::start_others(&cluster)?;
    /// let (stop, file) = (Stop::new()?, cluster.clone());
    /// let requested = stop.clone();
    /// let replica = std::thread::spawn(move || {
    ///     wirepaxos::run(&file, "replica-1", &Program::in_memory(|| Echo), &requested)
    /// });
    /// let mut client = Client::open(&cluster, ClientOptions::default())?;
    /// assert_eq!(client.call(0, b"hello", Duration::from_secs(10)).answer()?, b"hello");
    /// stop.request();
    /// replica.join().unwrap()?;
    /// others.stop()?;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_others(cluster: &ClusterFile) -> Result<Embedded, Error> {
        let mut embedded = Embedded { nodes: Vec::new() };
        let (tell, told) = mpsc::channel();
        for node in cluster.nodes.iter().filter(|n| n.role != Role::Replica) {
            let (stop, tell) = (Stop::new()?, tell.clone());
            stop.on_ready(1, move || {
                let _ = tell.send(());
            });
            embedded.run(cluster, node, None, stop)?;
        }
        if embedded.are_ready(&told) {
            return Ok(embedded);
        }
        embedded.stop()?;
        Err(Error::System("a node was told to stop".to_owned()))
    }

    fn run(
        &mut self,
        cluster: &ClusterFile,
        node: &Node,
        services: Option<Services>,
        stop: Arc<Stop>,
    ) -> Result<(), Error> {
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
        self.nodes.push(Running { stop, thread });
        Ok(())
    }

    /// Waits until each node has told that it is ready. Returns false if one has ended instead.
    fn are_ready(&self, told: &Receiver<()>) -> bool {
        let mut missing = self.nodes.len();
        while missing > 0 {
            if told.recv_timeout(LOOK_INTERVAL).is_ok() {
                missing -= 1;
            } else if self.nodes.iter().any(|node| node.thread.is_finished()) {
                return false;
            }
        }
        true
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
