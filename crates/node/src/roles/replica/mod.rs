//! A replica: one thread for the control plane, one worker thread a partition, and the server that
//! hands out checkpoints.
//!
//! A worker has its own socket (port + partition), its own learner, sessions and application, so
//! nothing is passed between I/O and execution: the thread that receives a vote executes the value
//! that it decides. On the XDP plane the learner is in the kernel (`kernel.rs`) and a ring takes the
//! place of the votes. The control thread passes views and lanes to the workers and asks for them.

mod fetcher;
mod kernel;
mod outbox;
mod partition;
mod reached;
mod waker;
mod worker_thread;
mod writer;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use control::{EpochState, Message, View, Views};
use paxos::{Epoch, PartitionId};
use replica::{Application, EpochView, LocalSession};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Group, Node};
use crate::control_socket::ControlSocket;
use crate::host::{Stop, is_due, wait};
use crate::plane::in_kernel;
use crate::{Error, random_nonce, status, transfer};
use kernel::KernelLearner;
pub(crate) use partition::Partition;
#[cfg(test)]
pub(crate) use reached::Reached;
use waker::{Waker, waker_pair};
#[cfg(test)]
pub(crate) use worker_thread::open_worker;
use worker_thread::{Job, WorkerHandle};

/// An answer for a session of the front end beside this replica.
pub struct LocalReply<'a> {
    /// Partition.
    pub pid: PartitionId,
    /// Session, or the nonce of an OPEN.
    pub client: u64,
    /// Request.
    pub request: u64,
    /// [`replica::Status`] as a number.
    pub status: u8,
    /// The application's answer.
    pub bytes: &'a [u8],
}

/// Opens the application of a partition in a directory of its own.
pub type OpenApplication =
    dyn Fn(PartitionId, &Path) -> Result<Box<dyn Application>, replica::Error> + Send + Sync;

/// What a replica needs from the program around it.
#[derive(Clone)]
pub struct Services {
    /// Opens the replicated program.
    pub open_application: Arc<OpenApplication>,
    /// Takes the answers for local sessions.
    pub on_local_reply: Arc<dyn Fn(LocalReply<'_>) + Send + Sync>,
    /// Told of all local sessions that a partition's state has, when that has been opened or
    /// replaced by another replica's.
    pub on_local_sessions: Arc<dyn Fn(PartitionId, Vec<LocalSession>) + Send + Sync>,
    /// Told of every new view.
    pub on_view: Arc<dyn Fn(&View) + Send + Sync>,
    /// Called when a stop is requested, while the workers still execute: now local sessions finish
    /// what they have in flight.
    pub before_stop: Arc<dyn Fn() + Send + Sync>,
    /// How many instances the workers have executed, by partition, for the front end's INFO.
    pub on_position: Arc<dyn Fn(PartitionId, u64) + Send + Sync>,
    /// What the front end has counted, by name, for the replica's status; nothing without one.
    pub front_end_counters: Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>,
}

impl Services {
    /// Only an application: no front end.
    pub fn new(open_application: Arc<OpenApplication>) -> Services {
        Services {
            open_application,
            on_local_reply: Arc::new(|_| {}),
            on_local_sessions: Arc::new(|_, _| {}),
            on_view: Arc::new(|_| {}),
            before_stop: Arc::new(|| {}),
            on_position: Arc::new(|_, _| {}),
            front_end_counters: Arc::new(Vec::new),
        }
    }
}

/// How often a view is asked for while there is none.
const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is asked for when there is one: the controller tells news by itself.
const REFRESH_VIEW_INTERVAL: Duration = Duration::from_secs(2);
const ASK_LANE_INTERVAL: Duration = Duration::from_millis(100);
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a replica until `stop` is requested: then it executes what it has, makes a checkpoint and
/// returns.
pub fn run(
    cluster: &ClusterFile,
    node: &Node,
    services: &Services,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    let group = node
        .group
        .and_then(|id| cluster.group(id))
        .ok_or_else(|| Error::new(format!("{} serves no group", node.name)))?;
    let nonce = random_nonce()?;
    let learner = in_kernel(cluster, node, || KernelLearner::open(cluster, node, group))?;
    // The workers go on for a while after the node is told to end.
    let stop_workers = Stop::new()?;
    let (wake_control, woken) = waker_pair()?;
    let (ask, asked) = mpsc::channel();
    let workers = (0..group.partitions)
        .map(|pid| {
            let link = worker_thread::Link {
                ask: ask.clone(),
                wake_control: wake_control.clone(),
            };
            let partition = Partition {
                cluster,
                node,
                group,
                pid,
                nonce,
            };
            let decisions = learner.as_ref().map(|l| l.worker(pid)).transpose()?;
            WorkerHandle::start(partition, services, decisions, link, &stop_workers)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let workers = Arc::new(workers);
    let sources = (0..workers.len()).map(|at| {
        let serve = workers.clone();
        transfer::Source {
            standing: workers[at].standing.clone(),
            ask: Box::new(move |answer| serve[at].give(Job::Snapshot(answer))),
        }
    });
    let _transfer = transfer::Server::start(
        node.control,
        cluster.deployment(node, group),
        sources.collect(),
    )
    .map_err(|e| Error::new(format!("can't listen on {} (TCP): {e}", node.control)))?;
    let socket = ControlSocket::bind(cluster, node)?;
    let control = ControlLoop {
        cluster,
        node,
        group,
        nonce,
        services,
        socket,
        workers: &workers,
        learner: learner.as_ref(),
        views: Views::default(),
        asked_view: None,
        lane: None,
        wanted_lane: None,
        asked_lane: None,
        incarnation: None,
        wants_incarnation: false,
        asked_incarnation: None,
        stop,
    };
    let result = control.run(&asked, &woken);
    (services.before_stop)();
    // A worker that failed ends the whole node, with its message.
    stop_workers.request();
    let mut results: Vec<Result<(), Error>> = workers.iter().map(WorkerHandle::join).collect();
    results.insert(0, result);
    results.into_iter().collect()
}

/// What a worker asks the control thread for.
enum Ask {
    /// A repair lane in this epoch.
    Lane(Epoch),
    /// A number for the disk.
    Incarnation,
    /// Votes of an epoch that is not known here have been seen.
    View,
    /// Repair rounds are used up.
    NewEpoch,
    /// The worker has ended with an error.
    Failed,
}

struct ControlLoop<'a> {
    cluster: &'a ClusterFile,
    node: &'a Node,
    group: &'a Group,
    nonce: u64,
    services: &'a Services,
    socket: ControlSocket,
    workers: &'a [WorkerHandle],
    learner: Option<&'a KernelLearner>,
    views: Views,
    asked_view: Option<Instant>,
    /// This process's lane; all its partitions share it, rounds being per partition and instance.
    lane: Option<(Epoch, u8)>,
    wanted_lane: Option<Epoch>,
    asked_lane: Option<Instant>,
    /// The number of this process's disk; all its partitions share it.
    incarnation: Option<u64>,
    wants_incarnation: bool,
    asked_incarnation: Option<Instant>,
    stop: &'a Arc<Stop>,
}

impl ControlLoop<'_> {
    fn run(mut self, asked: &mpsc::Receiver<Ask>, woken: &Waker) -> Result<(), Error> {
        while !self.stop.is_requested() {
            let timeout = self.ask();
            wait(
                &[self.socket.as_fd(), woken.as_fd(), self.stop.as_fd()],
                Some(timeout),
            )?;
            woken.drain();
            while let Ok(ask) = asked.try_recv() {
                self.take(ask);
            }
            while let Some((message, from)) = self.socket.receive() {
                self.on_message(message, from)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Lane(epoch) => match self.lane {
                Some((of, lane)) if of == epoch => self.give_all(|| Job::Lane { epoch, lane }),
                _ => self.wanted_lane = Some(epoch),
            },
            Ask::Incarnation => match self.incarnation {
                Some(number) => self.give_all(|| Job::Incarnation(number)),
                None => self.wants_incarnation = true,
            },
            Ask::View => self.asked_view = None,
            Ask::NewEpoch => self.ask_for_new_epoch(),
            Ask::Failed => self.stop.request(),
        }
    }

    /// Sends the questions that are due; returns how long to wait for the next one.
    fn ask(&mut self) -> Duration {
        let view_interval = match self.view().and_then(View::active) {
            None => ASK_VIEW_INTERVAL,
            Some(_) => REFRESH_VIEW_INTERVAL,
        };
        if is_due(self.asked_view, view_interval) {
            self.asked_view = Some(Instant::now());
            let group = self.group.id;
            self.send_to_controller(&Message::ViewRequest { group });
        }
        if self.wants_incarnation && is_due(self.asked_incarnation, ASK_LANE_INTERVAL) {
            self.asked_incarnation = Some(Instant::now());
            self.send_to_controller(&Message::IncarnationRequest {
                group: self.group.id,
                node: self.node.id,
                nonce: self.nonce,
            });
        }
        let Some(epoch) = self.wanted_lane else {
            return if self.wants_incarnation {
                ASK_LANE_INTERVAL
            } else {
                view_interval
            };
        };
        if is_due(self.asked_lane, ASK_LANE_INTERVAL) {
            self.asked_lane = Some(Instant::now());
            self.send_to_controller(&Message::LaneRequest {
                group: self.group.id,
                epoch,
                node: self.node.id,
                nonce: self.nonce,
            });
        }
        ASK_LANE_INTERVAL
    }

    /// Repair rounds are used up: only a new epoch goes on.
    fn ask_for_new_epoch(&self) {
        if let Some(active) = self.view().and_then(View::active) {
            self.send_to_controller(&Message::Failover {
                group: self.group.id,
                epoch: active.epoch,
                to: Some(active.leader.0),
                forced: true,
                accept_data_loss: false,
            });
        }
    }

    fn on_message(&mut self, message: Message, from: SocketAddr) -> Result<(), Error> {
        match message {
            Message::View(view) if view.group == self.group.id => self.on_view(&view)?,
            Message::ViewRequest { group } if group == self.group.id => {
                if let Some(view) = self.view() {
                    self.socket.send(from, &Message::View(view.clone()));
                }
            }
            Message::Lane {
                group,
                epoch,
                nonce,
                lane,
            } if group == self.group.id && nonce == self.nonce => {
                self.lane = Some((epoch, lane));
                if self.wanted_lane == Some(epoch) {
                    self.wanted_lane = None;
                }
                self.give_all(|| Job::Lane { epoch, lane });
            }
            Message::Incarnation {
                group,
                nonce,
                incarnation,
            } if group == self.group.id && nonce == self.nonce => {
                self.incarnation = Some(incarnation);
                self.wants_incarnation = false;
                self.give_all(|| Job::Incarnation(incarnation));
            }
            Message::StatusRequest { id, part } => {
                if !self.socket.has_status(id) {
                    self.socket.keep_status(id, &self.status());
                }
                self.socket.send_status(from, id, part);
            }
            Message::DigestRequest { group } if group == self.group.id => self.digest(from),
            Message::Stop => {
                self.socket
                    .send(from, &Message::Stopping { node: self.node.id });
                self.stop.request();
            }
            _ => {}
        }
        Ok(())
    }

    /// [E-ONE]
    fn on_view(&mut self, view: &View) -> Result<(), Error> {
        let offered = self.views.offer(view);
        if offered
            .map_err(|why| Error::new(why.to_string()))?
            .is_none()
        {
            return Ok(());
        }
        let epochs: Arc<[EpochView]> = view
            .begun_epochs()
            .map(|e| EpochView {
                configuration: e.configuration(),
                active: e.state == EpochState::Active,
            })
            .collect();
        if let Some(learner) = self.learner {
            learner.learn(epochs.iter().map(|e| &e.configuration));
        }
        let leader = view
            .active()
            .and_then(|e| self.cluster.node_by_id(e.leader.0))
            .map(|n| n.address);
        for (worker, pid) in self.workers.iter().zip(0..) {
            worker.give(Job::View {
                epochs: epochs.clone(),
                given_up: view.given_up.clone(),
                begins: view.begins(pid),
                leader,
            });
        }
        (self.services.on_view)(view);
        Ok(())
    }

    fn view(&self) -> Option<&View> {
        self.views.get(self.group.id)
    }

    fn status(&self) -> Value {
        let (answer, answers) = mpsc::channel();
        self.give_all(|| Job::Status(answer.clone()));
        drop(answer);
        let deadline = Instant::now() + STATUS_TIMEOUT;
        let mut partitions = Vec::new();
        while partitions.len() < self.workers.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match answers.recv_timeout(left) {
                Ok(status) => partitions.push(status),
                Err(_) => break,
            }
        }
        partitions.sort_by_key(|p: &Value| p["pid"].as_u64());
        let silent = self.workers.len() - partitions.len();
        let mut document = status::document(self.node);
        document["group"] = json!(self.group.id);
        document["application"] = json!(self.group.application.name());
        document["epoch"] = json!(self.view().and_then(View::active).map(|e| e.epoch));
        document["partitions"] = json!(partitions);
        document["plane"] = self
            .learner
            .map_or(json!({ "name": "udp" }), KernelLearner::status);
        document["busy_workers"] = json!(silent);
        document["control"] = self.socket.to_json();
        let front_end = (self.services.front_end_counters)();
        if !front_end.is_empty() {
            let front_end = front_end
                .into_iter()
                .map(|(name, n)| (name.to_owned(), json!(n)));
            document["front_end"] = front_end.collect();
        }
        let warning = status::conflict_warning(&document);
        document["warnings"] = warning.into_iter().collect();
        document
    }

    /// Collects the workers' digests without waiting for them; the last one sends the answer.
    fn digest(&self, from: SocketAddr) {
        let collected = Arc::new(Mutex::new(vec![None; self.workers.len()]));
        for (pid, worker) in self.workers.iter().enumerate() {
            let (collected, socket) = (collected.clone(), self.socket.sender());
            let group = self.group.id;
            worker.give(Job::Digest(Box::new(move |next, digest| {
                let mut collected = collected.lock().unwrap_or_else(|e| e.into_inner());
                collected[pid] = Some((next, digest));
                if let Some(partitions) = collected.iter().cloned().collect() {
                    socket.send(from, &Message::Digest { group, partitions });
                }
            })));
        }
    }

    fn give_all(&self, job: impl Fn() -> Job) {
        for worker in self.workers {
            worker.give(job());
        }
    }

    fn send_to_controller(&self, message: &Message) {
        self.socket.send(self.socket.peers().controller(), message);
    }
}

#[cfg(test)]
mod tests;
