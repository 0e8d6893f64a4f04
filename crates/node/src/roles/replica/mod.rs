// SPDX-License-Identifier: Apache-2.0
//! A replica: one thread for the control plane, worker threads for the partitions, the server that
//! hands out checkpoints, and the thread that makes copies of the state.
//!
//! A worker has its own socket (port + partition), learner, sessions and application, so nothing is
//! passed between I/O and execution: the thread that receives a vote executes the value that the
//! vote decides. On the XDP plane the learner is in the kernel (`kernel.rs`) and a ring replaces
//! the votes. On the DPDK plane one thread runs all workers, besides other nodes of the process
//! (`../rotation.rs`). A durable replica, with NOPaxos, has a log for each partition (`logged.rs`),
//! and a file that identifies its memory (`memory.rs`). The control thread (`control_thread.rs`)
//! asks for views and lanes and passes them to the workers.

mod catch_up;
mod checkpoint_mark;
mod clock_questions;
mod control_thread;
mod copies;
mod crew;
mod digests;
mod handing_out;
mod kernel;
mod logged;
mod mailbox;
mod memory;
mod node_protocol;
mod orders;
mod outbox;
mod partition;
mod promises;
mod relaying;
mod shared_position;
mod waker;
mod worker_plane;
mod worker_thread;
mod writer;

use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Arc, mpsc};

use control::View;
use paxos::PartitionId;
use replica::application::OpenReader;
use replica::storage::private_directory;
use replica::{AnsweredReads, Application, AskedReads, LocalSession, NoPaxos, Paxos};
use serde_json::Value;

use self::catch_up::CatchUp;
pub(crate) use self::catch_up::Note;
#[cfg(test)]
pub(crate) use self::checkpoint_mark::CheckpointMark;
use self::checkpoint_mark::check_all_are_there;
use self::clock_questions::ClockQuestions;
use self::control_thread::{Numbers, ReplicaControl};
use self::copies::Copies;
use self::crew::{Crew, Working};
use self::digests::Digests;
use self::handing_out::{HandingOut, readers, reads};
use self::kernel::KernelLearner;
use self::mailbox::{Mailbox, mailbox};
use self::memory::Memory;
pub(crate) use self::memory::forget_log;
use self::node_protocol::NodeProtocol;
pub(crate) use self::partition::Partition;
use self::relaying::Relaying;
use self::waker::waker_pair;
use self::worker_plane::{WorkerIo, WorkerPlane};
use self::worker_thread::WorkerHandle;
#[cfg(test)]
pub(crate) use self::worker_thread::open_worker;
use super::control_loop::ControlLoop;
use super::rotation::Door;
use crate::cluster_clock::ClusterClock;
use crate::cluster_file::{ClusterFile, Group, Node, Plane, Protocol};
use crate::host::Stop;
use crate::listen::cannot_listen;
use crate::plane::{Relay, in_kernel, refuse_deafness};
use crate::store::Lock;
use crate::transfer::wire::Trust;
use crate::{Error, random_nonce, transfer};

/// An answer for a session of the front end beside this replica.
pub struct LocalReply<'a> {
    /// The partition.
    pub pid: PartitionId,
    /// The session, or the nonce of an OPEN.
    pub client: u64,
    /// The request.
    pub request: u64,
    /// The [`replica::Status`] as a number.
    pub status: u8,
    /// The application's answer.
    pub bytes: &'a [u8],
}

/// Passes reads without the log to the worker of a partition.
pub type AskReads = Arc<dyn Fn(PartitionId, AskedReads) + Send + Sync>;

/// Opens the application of a partition in its own directory.
pub type OpenApplication =
    dyn Fn(PartitionId, &Path) -> Result<Box<dyn Application>, replica::Error> + Send + Sync;

/// The functions that the surrounding program gives a replica.
#[derive(Clone)]
pub struct Services {
    /// Opens the replicated program.
    pub open_application: Arc<OpenApplication>,
    /// Receives the answers for local sessions.
    pub on_local_reply: Arc<dyn Fn(LocalReply<'_>) + Send + Sync>,
    /// Receives the results of reads without the log.
    pub on_answered_reads: Arc<dyn Fn(&AnsweredReads) + Send + Sync>,
    /// Called after a batch of answers or results.
    pub on_batch_end: Arc<dyn Fn() + Send + Sync>,
    /// Receives all local sessions of a partition's state, when that has been opened or replaced by
    /// another replica's.
    pub on_local_sessions: Arc<dyn Fn(PartitionId, Vec<LocalSession>) + Send + Sync>,
    /// Receives every new view.
    pub on_view: Arc<dyn Fn(&View) + Send + Sync>,
    /// Called when a stop is requested, while the workers still execute, so that local sessions can
    /// finish their requests.
    pub before_stop: Arc<dyn Fn() + Send + Sync>,
    /// Receives how many instances the worker of each partition has executed, for the front end's
    /// INFO.
    pub on_position: Arc<dyn Fn(PartitionId, u64) + Send + Sync>,
    /// Receives a function that opens readers of the partitions' states, once they are open.
    pub on_readers: Arc<dyn Fn(OpenReader) + Send + Sync>,
    /// Receives a function that reads without the log, if that is possible.
    pub on_reads: Arc<dyn Fn(AskReads) + Send + Sync>,
    /// Returns the front end's counters by name for the replica's status; empty without a front
    /// end.
    pub front_end_counters: Arc<dyn Fn() -> Vec<(&'static str, Value)> + Send + Sync>,
    /// Returns the warnings of the front end and the application for the replica's status.
    pub front_end_warnings: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// The time that most nodes have, if the front end needs it.
    pub clock: Option<Arc<ClusterClock>>,
    /// The front end's connection to the leader through the replica's port, if it has one.
    pub relay: Option<Relay>,
}

impl Services {
    /// Returns services with an application and no front end.
    pub fn new(open_application: Arc<OpenApplication>) -> Services {
        Services {
            open_application,
            on_local_reply: Arc::new(|_| {}),
            on_answered_reads: Arc::new(|_| {}),
            on_batch_end: Arc::new(|| {}),
            on_local_sessions: Arc::new(|_, _| {}),
            on_view: Arc::new(|_| {}),
            before_stop: Arc::new(|| {}),
            on_position: Arc::new(|_, _| {}),
            on_readers: Arc::new(|_| {}),
            on_reads: Arc::new(|_| {}),
            front_end_counters: Arc::new(Vec::new),
            front_end_warnings: Arc::new(Vec::new),
            clock: None,
            relay: None,
        }
    }
}

/// Runs a replica until `stop` is requested; then it executes what it has, makes a checkpoint and
/// returns.
pub fn run_alone(
    cluster: &ClusterFile,
    node: &Node,
    services: &Services,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    run(cluster, node, services, stop, None)
}

/// Runs a replica like [`run_alone`]. If its workers are at DPDK ports, they enter a rotation by a
/// door.
pub(crate) fn run(
    cluster: &ClusterFile,
    node: &Node,
    services: &Services,
    stop: &Arc<Stop>,
    door: Option<Door<'_>>,
) -> Result<(), Error> {
    let group = node
        .group
        .and_then(|id| cluster.group(id))
        .ok_or_else(|| Error::new(format!("{} serves no group", node.name)))?;
    match group.protocol {
        Protocol::Paxos => {
            let open = || KernelLearner::open(cluster, node, group);
            let learner = in_kernel(cluster, node, open)?;
            serve::<Paxos>(cluster, node, group, learner, services, stop, door)
        }
        Protocol::NoPaxos => {
            refuse_deafness(cluster, node)?;
            serve::<NoPaxos>(cluster, node, group, None, services, stop, door)
        }
    }
}

fn serve<G: NodeProtocol>(
    cluster: &ClusterFile,
    node: &Node,
    group: &Group,
    learner: Option<KernelLearner>,
    services: &Services,
    stop: &Arc<Stop>,
    door: Option<Door<'_>>,
) -> Result<(), Error> {
    // The workers continue for a while after the node is told to end.
    let stop_workers = Stop::new()?;
    let (wake_control, woken) = waker_pair()?;
    let (ask, asked) = mpsc::channel();
    let threads = worker_threads(node, group);
    let wakers = (0..threads)
        .map(|_| waker_pair())
        .collect::<Result<Vec<_>, _>>()?;
    let mailboxes = (0..group.partitions).map(|pid| {
        let (wake, _) = &wakers[usize::from(pid % threads)];
        mailbox(wake.clone())
    });
    let (mailboxes, inboxes): (Vec<_>, Vec<_>) = mailboxes.unzip();
    let mailboxes: Arc<[Mailbox]> = mailboxes.into();
    let (is_behind, told) = mpsc::channel();
    let deployment = cluster.deployment(node, group);
    let directory = cluster.node_dir(node);
    private_directory(&directory)
        .map_err(|e| Error::store(format!("can't make {}: {e}", directory.display())))?;
    let _in_use = lock_directory(&directory, node)?;
    let mut memory = Memory::open(cluster, node, group)?;
    let process = random_nonce()?;
    let nonce = memory.as_ref().map_or(process, Memory::nonce);
    let begun = Note::new(&directory, deployment).read()?;
    let partitions = (0..group.partitions).map(|pid| cluster.partition_dir(node, pid));
    check_all_are_there(&partitions.collect::<Vec<_>>())
        .map_err(|e| Error::store(format!("{}: {e}", node.name)))?;
    let (workers, served) = (0..group.partitions)
        .zip(inboxes)
        .map(|(pid, inbox)| {
            let link = worker_thread::Link {
                ask: ask.clone(),
                wake_control: wake_control.clone(),
                is_behind: is_behind.clone(),
            };
            let partition = Partition {
                cluster,
                node,
                group,
                pid,
                nonce,
                memory: memory.as_ref(),
                installing: begun.is_some(),
            };
            let io = WorkerIo {
                decisions: learner.as_ref().map(|l| l.worker(pid)).transpose()?,
                plane: WorkerPlane::open(partition, door.as_ref().map(|door| door.ports))?,
            };
            let mail = worker_thread::Mail {
                inbox,
                mailboxes: mailboxes.clone(),
            };
            WorkerHandle::open::<G>(partition, services, io, link, mail)
        })
        .collect::<Result<(Vec<_>, Vec<_>), _>>()?;
    if let Some(memory) = &mut memory {
        memory.begins()?;
    }
    let workers = Arc::new(workers);
    let mut crews: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (pid, worker) in served.into_iter().enumerate() {
        crews[pid % usize::from(threads)].push(worker);
    }
    let crews = wakers
        .into_iter()
        .zip(crews)
        .enumerate()
        .map(|(at, ((_, woken), crew))| {
            let cpus = &node.worker_cpus;
            let cpu = cpus.get(at % cpus.len().max(1)).copied();
            let crew = Crew::new(crew, woken, stop_workers.clone(), node.spin)?;
            match &door {
                Some(door) => crew.enter(door),
                None => crew.start(format!("worker-{at}"), cpu),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    if let (Some(door), Some(relay)) = (&door, &services.relay) {
        Relaying::enter(cluster, node, group, door, relay, &stop_workers)?;
    }
    // Only the workers keep this sender, so the channel ends with them.
    drop(is_behind);
    let trust = Trust::of_node(cluster)?;
    let settings = transfer::server::Settings {
        deployment,
        directory: directory.clone(),
        rate: group.catch_up_mib_per_s << 20,
        kept: group.catch_up_kept_mib << 20,
        trust: trust.clone(),
        askers: transfer::askers::Askers::of(cluster),
    };
    (services.on_readers)(readers(workers.clone()));
    if G::RULES.bounds_reads {
        (services.on_reads)(reads(workers.clone()));
    }
    let whole = Arc::default();
    let handing_out = Arc::new(HandingOut {
        workers: workers.clone(),
        whole: Arc::clone(&whole),
    });
    let transfer = transfer::server::Server::start(node.control, settings, handing_out.clone())
        .map_err(|e| Error::new(cannot_listen(node.control, "TCP", "control", &e)))?;
    let replicas = cluster.replicas(group.id);
    let others = replicas.iter().filter(|n| n.id != node.id);
    let catch_up = CatchUp::start(catch_up::Needs {
        deployment,
        directory,
        peers: others.map(|n| n.control).collect(),
        trust,
        workers: workers.clone(),
        whole,
        told,
        begun,
    })?;
    let copies = Copies::start(cluster, node, group, handing_out)?;
    let mut control = ControlLoop::open(cluster, node, stop)?;
    let mut role = ReplicaControl {
        cluster,
        node,
        group,
        nonce,
        process,
        memory,
        may_go_on: false,
        services,
        sender: control.sender(),
        workers: &workers,
        learner: learner.as_ref(),
        ports: door.as_ref().map(|door| door.ports),
        catch_up: &catch_up,
        copies: copies.as_ref(),
        transfer: &transfer,
        digests: Digests::default(),
        clocks: services
            .clock
            .clone()
            .map(|shown| ClockQuestions::new(cluster, node, group, shown)),
        asked,
        woken,
        stop,
        numbers: Numbers::default(),
    };
    let result = control.run(&mut role).and_then(|()| control.end());
    (services.before_stop)();
    // A worker that failed ends the whole node, with its message.
    stop_workers.request();
    let mut results: Vec<Result<(), Error>> = crews.into_iter().map(Working::join).collect();
    results.insert(0, result);
    results.into_iter().collect()
}

/// Locks a replica's directory against other processes: another one of the same name, and `copy
/// put`. The lock is beside the directory, so that it also holds for a directory that replaces it.
pub(crate) fn lock_directory(directory: &Path, node: &Node) -> Result<Lock, Error> {
    let path = directory.with_extension("lock");
    Lock::take(&path).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => Error::new(format!(
            "{} is locked: {} runs, or `copy put` is at work there. Stop the one, or wait for the \
             other",
            path.display(),
            node.name
        )),
        _ => Error::store(format!("{}: {e}", path.display())),
    })
}

/// Returns how many threads execute. More threads than CPUs would only wake one another, and a DPDK
/// port is polled by one thread.
fn worker_threads(node: &Node, group: &Group) -> u16 {
    if node.plane == Plane::Dpdk {
        return 1;
    }
    let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get) as u16;
    node.workers.unwrap_or_else(cpus).clamp(1, group.partitions)
}

#[cfg(test)]
mod tests;
