// SPDX-License-Identifier: Apache-2.0
//! The control thread of a replica: it asks the controller for views, lanes and incarnations, and
//! passes them to the workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use control::{EpochRecord, Message, View};
use paxos::{Epoch, Instance, NodeId};
use serde_json::{Value, json};

use super::Services;
use super::catch_up::CatchUp;
use super::clock_questions::ClockQuestions;
use super::copies::Copies;
use super::digests::Digests;
use super::kernel::KernelLearner;
use super::memory::Memory;
use super::waker::Waker;
use super::worker_thread::{Job, WorkerHandle};
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node, Protocol};
use crate::control_socket::ControlSender;
use crate::host::{Stop, is_due};
use crate::plane::Ports;
use crate::roles::control_loop::{ControlLoop, Controlled};
use crate::transfer::server::{Server, WorkerPosition};

/// How often a view is asked for while no epoch is active.
const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(200);
/// How often a view is asked for while an epoch is active, since the controller sends news without
/// being asked.
const REFRESH_VIEW_INTERVAL: Duration = Duration::from_secs(2);
const ASK_NUMBER_INTERVAL: Duration = Duration::from_millis(100);
/// How often waiting requests for digests are checked.
const DIGEST_INTERVAL: Duration = Duration::from_millis(20);
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

/// A worker's request to the control thread.
pub enum Ask {
    /// Asks for a repair lane in this epoch.
    Lane(Epoch),
    /// Asks for a number for the disk.
    Incarnation,
    /// Votes of an unknown epoch have been seen.
    View,
    /// Only a new epoch helps: repair rounds or the leaders of a session's views are used up, or
    /// this replica's state contradicts the others' log.
    NewEpoch,
    /// An epoch was told with another configuration than is stored here.
    Contradiction(Epoch),
    /// Sends this message to the controller.
    Report(Message),
    /// The worker has ended with an error.
    Failed,
}

/// The control thread's part of a replica.
pub struct ReplicaControl<'a> {
    pub cluster: &'a ClusterFile,
    pub node: &'a Node,
    pub group: &'a Group,
    /// The nonce of this start of the replica, or of its memory.
    pub nonce: u64,
    /// Identifies this process, whatever memory it has, so that its disk gets a new number at each
    /// start. [T-DISK]
    pub process: u64,
    /// The memory of a durable replica.
    pub memory: Option<Memory>,
    /// This start of the memory may continue.
    pub may_go_on: bool,
    pub services: &'a Services,
    pub sender: ControlSender,
    pub workers: &'a [WorkerHandle],
    pub learner: Option<&'a KernelLearner>,
    /// The ports of its workers on the DPDK plane.
    pub ports: Option<&'a Ports>,
    pub catch_up: &'a CatchUp,
    pub copies: Option<&'a Copies>,
    pub transfer: &'a Server,
    pub digests: Digests,
    pub clocks: Option<ClockQuestions>,
    pub asked: mpsc::Receiver<Ask>,
    pub woken: Waker,
    pub stop: &'a Stop,
    pub numbers: Numbers,
}

/// The numbers that the controller has given, and those that are still asked for.
#[derive(Default)]
pub struct Numbers {
    /// The active epoch and its leader.
    active: Option<(Epoch, NodeId)>,
    /// The lane of this process. All its partitions share it, since rounds are per partition and
    /// instance.
    lane: Option<(Epoch, u8)>,
    wanted_lane: Option<Epoch>,
    asked_lane: Option<Instant>,
    /// The number of this process's disk, which all its partitions share.
    incarnation: Option<u64>,
    wants_incarnation: bool,
    asked_incarnation: Option<Instant>,
}

impl Controlled for ReplicaControl<'_> {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.woken.as_fd())
    }

    /// Handles the requests of the workers.
    fn take(&mut self, control: &mut ControlLoop<'_>) -> Result<bool, Error> {
        let mut rung = true;
        loop {
            self.woken.wake_up(rung);
            while let Ok(ask) = self.asked.try_recv() {
                self.grant(ask, control);
            }
            if self.woken.fall_asleep() {
                return Ok(true);
            }
            rung = false;
        }
    }

    /// Sends the questions that are due.
    fn settle(&mut self, control: &mut ControlLoop<'_>) -> Result<Option<Duration>, Error> {
        let view_interval = match self.numbers.active {
            None => ASK_VIEW_INTERVAL,
            Some(_) => REFRESH_VIEW_INTERVAL,
        };
        control.ask_for_view_after(view_interval, self.group.id);
        if let Some(learner) = self.learner {
            learner.follow_keys();
        }
        let asking = self.ask_for_numbers();
        self.begin_digests();
        let decides = self.numbers.active.is_some();
        let sender = &self.sender;
        let clocks = self.clocks.as_mut();
        let ask_clocks = clocks.map(|clocks| clocks.settle(sender, decides));
        let rest = if self.digests.is_wanted() {
            DIGEST_INTERVAL
        } else if asking {
            ASK_NUMBER_INTERVAL
        } else {
            view_interval
        };
        Ok(ask_clocks.into_iter().chain([rest]).min())
    }

    fn message(&mut self, message: &Message, from: SocketAddr) -> Result<(), Error> {
        let numbers = &mut self.numbers;
        match *message {
            Message::Lane {
                group,
                epoch,
                nonce,
                lane,
            } if group == self.group.id && nonce == self.nonce => {
                numbers.lane = Some((epoch, lane));
                if numbers.wanted_lane == Some(epoch) {
                    numbers.wanted_lane = None;
                }
                self.give_all(|| Job::Lane { epoch, lane });
            }
            Message::Incarnation {
                group,
                nonce,
                incarnation,
            } if group == self.group.id && nonce == self.process => {
                numbers.incarnation = Some(incarnation);
                numbers.wants_incarnation = false;
                self.give_all(|| Job::Incarnation(incarnation));
            }
            Message::ResumeAcceptor { group, .. } if group == self.group.id => {
                if let Some((_, nonce, start)) = message.resume() {
                    let memory = self.memory.as_ref();
                    let is_meant = memory.is_some_and(|m| (m.nonce(), m.start()) == (nonce, start));
                    self.may_go_on |= is_meant;
                    self.give_all(|| Job::LetGoOn { nonce, start });
                }
            }
            Message::DiscardMemory { group, .. } if group == self.group.id => {
                let meant = message.discard().map(|(_, nonce, start)| (nonce, start));
                let memory = self.memory.as_ref();
                let memory = memory.filter(|m| meant == Some((m.nonce(), m.start())));
                // A memory that was allowed to continue has been compared since, and is whole.
                if let Some(memory) = memory.filter(|_| !self.may_go_on) {
                    return Err(memory.discard());
                }
            }
            Message::StopExecution { group, epoch } if group == self.group.id => {
                self.stop_execution(epoch);
            }
            Message::Clock { nonce, ms } => {
                if let Some(clocks) = &mut self.clocks {
                    clocks.take(&self.sender, from, nonce, ms);
                }
            }
            Message::DigestRequest { group } if group == self.group.id => self.digests.ask(from),
            Message::Skip {
                group,
                pid,
                instance,
            } if group == self.group.id => {
                if let Some(worker) = self.workers.get(usize::from(pid)) {
                    worker.give(Job::Skip(instance));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers whether the memory was at an earlier start. [A-TOLD]
    fn answer(&mut self, question: &Message) -> Result<Option<Message>, Error> {
        let request = question.earlier_start_request();
        let request = request.filter(|request| request.group == self.group.id);
        let (Some(request), Some(memory)) = (request, &mut self.memory) else {
            return Ok(None);
        };
        let was_there = memory.asked(request.nonce, request.start, request.earlier)?;
        Ok(was_there.map(|known| request.answer(self.node.id, known)))
    }

    fn view(&mut self, view: &View) {
        let active = view.active();
        self.numbers.active = active.map(|e| (e.epoch, e.leader.0));
        if let Some(learner) = self.learner {
            let configurations: Vec<_> = view
                .begun_epochs()
                .map(EpochRecord::configuration)
                .collect();
            learner.learn(configurations.iter());
        }
        let leader = active
            .and_then(|e| self.cluster.node_by_id(e.leader.0))
            .map(|n| n.address);
        let told = Arc::new(view.clone());
        self.give_all(|| Job::View {
            view: told.clone(),
            leader,
        });
        (self.services.on_view)(view);
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let partitions = self.partitions();
        document["group"] = self.group.id.into();
        document["application"] = self.group.application.name().into();
        document["epoch"] = json!(self.numbers.active.map(|(epoch, _)| epoch));
        document["busy_workers"] = (self.workers.len() - partitions.len()).into();
        document["partitions"] = partitions.into();
        document["catch_up"] = self.catch_up.status();
        document["refused_digests"] = self.digests.refused().into();
        document["refused_connections"] = self.transfer.refused().into();
        if let Some(copies) = self.copies {
            document["copies"] = copies.status(warnings);
        }
        document["plane"] = match (self.learner, self.ports) {
            (Some(learner), _) => learner.status(),
            (None, Some(ports)) => ports.status(self.node, warnings),
            (None, None) => json!({ "name": "udp" }),
        };
        let clocks = self.clocks.iter();
        warnings.extend(clocks.flat_map(|clocks| clocks.warnings(self.cluster)));
        warnings.extend((self.services.front_end_warnings)());
        let front_end = (self.services.front_end_counters)();
        if !front_end.is_empty() {
            let counters = front_end.into_iter();
            document["front_end"] = counters
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
        }
    }
}

impl ReplicaControl<'_> {
    fn grant(&mut self, ask: Ask, control: &mut ControlLoop<'_>) {
        match ask {
            Ask::Lane(epoch) => self.wants_lane(epoch),
            Ask::Incarnation => self.wants_incarnation(),
            // Workers limit how often they ask.
            Ask::View => control.ask_for_view_after(Duration::ZERO, self.group.id),
            Ask::NewEpoch => self.ask_for_new_epoch(),
            Ask::Contradiction(epoch) => {
                // If the contradiction is with another epoch, the replica may go on once it is
                // started again.
                self.ask_for_new_epoch();
                control.refuse(self.contradiction(epoch));
            }
            Ask::Report(message) => self.sender.send_to_controller(&message),
            Ask::Failed => self.stop.request(),
        }
    }

    fn wants_lane(&mut self, epoch: Epoch) {
        match self.numbers.lane {
            Some((of, lane)) if of == epoch => self.give_all(|| Job::Lane { epoch, lane }),
            _ => self.numbers.wanted_lane = Some(epoch),
        }
    }

    fn wants_incarnation(&mut self) {
        match self.numbers.incarnation {
            Some(number) => self.give_all(|| Job::Incarnation(number)),
            None => self.numbers.wants_incarnation = true,
        }
    }

    /// Asks for the numbers that are wanted and due, and returns whether any are wanted.
    fn ask_for_numbers(&mut self) -> bool {
        let (group, node, nonce) = (self.group.id, self.node.id, self.nonce);
        let numbers = &mut self.numbers;
        if numbers.wants_incarnation && is_due(numbers.asked_incarnation, ASK_NUMBER_INTERVAL) {
            numbers.asked_incarnation = Some(Instant::now());
            let nonce = self.process;
            let request = Message::IncarnationRequest { group, node, nonce };
            self.sender.send_to_controller(&request);
        }
        if let Some(epoch) = numbers.wanted_lane {
            if is_due(numbers.asked_lane, ASK_NUMBER_INTERVAL) {
                numbers.asked_lane = Some(Instant::now());
                self.sender.send_to_controller(&Message::LaneRequest {
                    group,
                    epoch,
                    node,
                    nonce,
                });
            }
        }
        numbers.wants_incarnation || numbers.wanted_lane.is_some()
    }

    /// Stops execution in all partitions. The order is repeated until all have stopped, and is then
    /// answered with their positions. [G-STOP]
    fn stop_execution(&self, epoch: Epoch) {
        self.give_all(|| Job::StopExecution(epoch));
        let stands = self.workers.iter().map(|worker| worker.position.get());
        if let Some(next) = where_stopped(stands, epoch) {
            self.sender.send_to_controller(&Message::ExecutionStopped {
                group: self.group.id,
                node: self.node.id,
                nonce: self.nonce,
                start: self.memory.as_ref().map_or(0, |m| m.start().number()),
                epoch,
                next,
            });
        }
    }

    fn contradiction(&self, epoch: Epoch) -> String {
        format!(
            "group {}: session {epoch} was told with another sequencer or other members than {} \
             has on disk: two controllers act, or their store was replaced by an old copy. Stop \
             every controller that isn't in this cluster file, or whose epochs are older (`epochs` \
             of `wirepaxos status`), and then start this node again: it goes on in the next \
             session, which it has asked for",
            self.group.id, self.node.name
        )
    }

    fn ask_for_new_epoch(&self) {
        let Some((epoch, leader)) = self.numbers.active else {
            return;
        };
        let group = self.group.id;
        self.sender.send_to_controller(&match self.group.protocol {
            Protocol::Paxos => Message::Failover {
                group,
                epoch,
                to: Some(leader),
                forced: true,
                accept_data_loss: false,
            },
            Protocol::NoPaxos => Message::SessionWanted {
                group,
                node: self.node.id,
                nonce: self.nonce,
                epoch,
            },
        });
    }

    /// Returns the status of each partition whose worker answers in time.
    fn partitions(&self) -> Vec<Value> {
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
        partitions
    }

    /// Has the workers make digests if somebody waits for them, without waiting; the last worker
    /// sends the answers.
    fn begin_digests(&mut self) {
        let round = self.digests.begin(self.workers.len(), Instant::now());
        let Some(round) = round else { return };
        for (pid, worker) in self.workers.iter().enumerate() {
            let (round, sender) = (round.clone(), self.sender.clone());
            let group = self.group.id;
            worker.give(Job::Digest(Box::new(move |next, digest| {
                let found = round.found(pid, (next, digest), Instant::now());
                let Some((askers, partitions)) = found else {
                    return;
                };
                let answer = Message::Digest { group, partitions };
                askers.iter().for_each(|to| sender.send(*to, &answer));
            })));
        }
    }

    fn give_all(&self, job: impl Fn() -> Job) {
        for worker in self.workers {
            worker.give(job());
        }
    }
}

/// Returns the positions of all partitions if all have stopped until this epoch, or a later one, is
/// active. A later one counts, since a controller with an older store may issue a number again.
fn where_stopped(
    stands: impl Iterator<Item = WorkerPosition>,
    epoch: Epoch,
) -> Option<Vec<Instance>> {
    let has_stopped = |stand: &WorkerPosition| stand.stopped.is_some_and(|until| until >= epoch);
    let stopped = stands.map(|stand| has_stopped(&stand).then_some(stand.next));
    stopped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that has stopped for a later epoch answers the order, too. [G-STOP]
    #[test]
    fn an_order_is_answered_by_who_has_stopped_for_a_later_one() {
        let stand = |next, stopped| WorkerPosition {
            next,
            stopped,
            ..WorkerPosition::default()
        };
        let answer = |stopped: [Option<Epoch>; 2]| {
            let stands = [stand(7, stopped[0]), stand(9, stopped[1])];
            where_stopped(stands.into_iter(), 5)
        };
        for until in [5, 6, 900] {
            assert_eq!(answer([Some(5), Some(until)]), Some(vec![7, 9]));
        }
        assert_eq!(answer([Some(5), Some(4)]), None, "that one may be active");
        assert_eq!(answer([Some(5), None]), None);
    }
}
