// SPDX-License-Identifier: Apache-2.0
//! A client's connection to the replicated service: sessions, submitting, replies.

mod in_flight;
mod upkeep;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::{EpochState, Protocol, View};
use node::Senders;
use node::auth::{Keys, Signer};
use node::cluster_file::{ClusterFile, Group, Node};
use node::host::{Spinner, local_address};
use node::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use paxos::proposer::{Proposer, ProposerSettings, Refused};
use paxos::wire::value::MAX_VECTOR;
use paxos::{Deployment, Epoch, GroupId, Header, NodeId, Outbox, Packet, PartitionId, Time, To};
use replica::protocol::SessionOp;
use replica::slot;

use crate::completions::{Completion, Completions};
use crate::control::ControlClient;
use crate::error::Error;
use crate::final_answers::FinalAnswers;
use crate::home_replica::{Home, HomeOfSessions};
use crate::outcome::{Doubt, Outcome, Refusal};
use crate::reads::{Freshness, Reads};
use in_flight::{Large, Session};

/// The options of a client. The defaults fit most; change some with `..ClientOptions::default()`.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The group; `None` means the first one in the cluster file.
    pub group: Option<GroupId>,
    /// Requests take effect in the order of submission, so only one is sent at a time.
    pub ordered: bool,
    /// How many replies the replicas remember for each partition, which is also the number of
    /// requests that may be outstanding; at least 1.
    pub window: u16,
    /// How long to wait for an answer before the first retry, until answers have shown how long
    /// they take.
    pub retry_after: Duration,
    /// How many values may be in flight; further commands are packed into the next ones.
    pub max_open_values: usize,
    /// The replicas that answer. With NOPaxos the leader answers, whatever this says.
    pub home: Home,
    /// Several commands may share a value.
    pub packing: bool,
    /// How long to poll for an answer before the thread sleeps. This uses the CPU, but waking the
    /// thread takes longer than everything else when little is in flight.
    pub spin: Duration,
    /// How long opening waits for the service.
    pub open_timeout: Duration,
    /// Returns the partition of a key, given the number of partitions: by default the range of its
    /// hash slot, as in Redis Cluster. All clients and programs of a group need the same function.
    pub partition_of: fn(key: &[u8], partitions: u16) -> PartitionId,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            group: None,
            ordered: false,
            window: 512,
            retry_after: Duration::from_millis(50),
            max_open_values: 64,
            home: Home::One,
            packing: true,
            spin: Duration::ZERO,
            open_timeout: Duration::from_secs(10),
            partition_of: slot::partition_of,
        }
    }
}

/// A client of one group. It is for one thread; open one client in each thread.
pub struct Client {
    cluster: ClusterFile,
    group: GroupId,
    options: ClientOptions,
    start: Instant,
    plane: UdpPlane,
    senders: Senders,
    keys: Keys,
    /// The number of the client's key.
    key: u8,
    inbox: RecvBatch,
    outbox: LeaderOutbox,
    proposer: Proposer,
    counted: FinalAnswers,
    /// Reads without the log; `None` in a group with NOPaxos.
    reads: Option<Reads>,
    sessions: Vec<Session>,
    home: HomeOfSessions,
    completions: Completions,
    control: ControlClient,
    /// The time when a view was last asked for because the leader may have changed, and the time
    /// when it was asked for at all.
    asked_for_leader: Time,
    asked_for_view: Time,
    /// How often the leader was confirmed since the last answer.
    vain_confirmations: u32,
    /// The age of the newest view.
    view_age: (Epoch, Option<EpochState>, u64),
    spinner: Spinner,
    /// The socket may hold more packets than the last batch.
    more: bool,
    /// Decides whether an answer that isn't final by itself counts now.
    counts: Option<Box<Counts>>,
    /// The largest value in bytes.
    max_value: u16,
    /// The current part of a long command.
    part: Vec<u8>,
}

/// Judges an answer that isn't final by itself, and whose round is a view.
pub type Counts = dyn FnMut(&Packet<'_>) -> bool + Send;

/// The leader is asked for when a command had no answer for this many times the first waiting time.
const ASK_AFTER: Time = 16;
/// Sessions are moved after this many confirmations of the leader without any answer.
const CONFIRMATIONS_BEFORE_MOVE: u32 = 3;
/// How often the leader is asked for while there is none.
const ASK_INTERVAL: Time = 20_000_000;
/// How often a client asks that merely gets no answer. The controller remembers it for twice as
/// long. [E-ASKED]
const WATCH_INTERVAL: Time = 500_000_000;
const SECOND: Time = 1_000_000_000;
/// How long to wait for messages of the control plane.
const CONTROL_WAIT: Duration = Duration::from_millis(2);
const WAIT_STEP: Duration = Duration::from_millis(100);

impl Client {
    /// Finds the leader and opens a session in every partition; waits for the cluster to serve, for
    /// [`open_timeout`](ClientOptions::open_timeout) at each step.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if there is no leader, or no quorum behind it; [`Error::Configuration`]
    /// if the file has no such group; [`Error::System`] if there is no socket.
    pub fn open(cluster: &ClusterFile, options: ClientOptions) -> Result<Client, Error> {
        Client::open_where(cluster, options, None)
    }

    /// Opens a client like [`open`](Self::open), for a group whose answers count only if `counts`
    /// accepts them.
    ///
    /// # Errors
    /// As in [`open`](Self::open).
    pub fn open_where(
        cluster: &ClusterFile,
        options: ClientOptions,
        counts: Option<Box<Counts>>,
    ) -> Result<Client, Error> {
        let group = options.group.unwrap_or(cluster.groups[0].id);
        let deployment = deployment(cluster, group)?;
        let known = known_group(cluster, group)?;
        let (protocol, session_timeout) = (known.protocol, known.session_timeout_s * SECOND);
        let nonce = random_nonce()?;
        let controller = cluster.controller_node().control;
        let retry_after = options.retry_after.as_nanos() as Time;
        let replicas = cluster.replicas(group).into_iter();
        let staying = replicas.filter(|node| !node.leaving);
        let replicas = staying.map(|node| node.id).collect();
        let home = match protocol {
            Protocol::Paxos => options.home,
            // The leader answers, whichever replica that is.
            Protocol::NoPaxos => Home::All,
        };
        let home = HomeOfSessions::new(home, replicas, deployment.partitions, nonce, retry_after);
        let reads = (protocol == Protocol::Paxos).then(|| {
            let replicas = cluster.replicas(group).into_iter().cloned().collect();
            Reads::new(
                deployment,
                replicas,
                home.id(),
                [retry_after, session_timeout / 4],
            )
        });
        let proposer = Proposer::new(ProposerSettings {
            deployment,
            retry_after,
            ask_after: retry_after.saturating_mul(ASK_AFTER),
            nonce,
            max_open_values: options.max_open_values,
        });
        let keys = Keys::of_client(cluster)?;
        let keyring = keys.keyring();
        let mut client = Client {
            group,
            key: keyring.as_ref().map_or(0, |keyring| keyring.number()),
            keys,
            start: Instant::now(),
            plane: UdpPlane::bind(local_address(controller)?, PlaneOptions::default())?,
            senders: Senders::of(cluster).with(keyring.clone()),
            inbox: RecvBatch::new(),
            outbox: LeaderOutbox::new(Signer::new(keyring)),
            proposer: if options.packing {
                proposer
            } else {
                proposer.without_packing()
            },
            sessions: vec![Session::default(); usize::from(deployment.partitions)],
            counted: FinalAnswers::new(deployment, protocol),
            reads,
            home,
            completions: Completions::default(),
            control: ControlClient::new(cluster)?,
            asked_for_leader: 0,
            asked_for_view: 0,
            vain_confirmations: 0,
            view_age: View::nothing(group).age(),
            spinner: Spinner::new(options.spin),
            more: false,
            counts,
            max_value: deployment.max_value,
            part: Vec::new(),
            cluster: cluster.clone(),
            options,
        };
        client.await_leader()?;
        for pid in 0..deployment.partitions {
            client.open_session(pid)?;
        }
        Ok(client)
    }

    /// Submits a command to a partition and returns its request number. Nothing is sent before
    /// [`flush`](Self::flush) or [`poll`](Self::poll), so that commands share packets. A command
    /// that doesn't fit a value is sent in parts, up to
    /// [`MAX_COMMAND_LEN`](replica::parts::MAX_COMMAND_LEN) bytes; a session sends one such command
    /// at a time.
    ///
    /// # Errors
    /// If the command is too long, or if the window is full or another long command is being sent:
    /// poll for completions first.
    pub fn submit(&mut self, pid: PartitionId, command: &[u8]) -> Result<u64, Refusal> {
        self.submit_over(&[pid], command)
    }

    /// Submits a command to the partition of a key.
    ///
    /// # Errors
    /// As in [`submit`](Self::submit).
    pub fn submit_by_key(&mut self, key: &[u8], command: &[u8]) -> Result<u64, Refusal> {
        self.submit(self.partition_of(key), command)
    }

    /// Submits a command that takes effect in all of these partitions, or in none. It is a request
    /// of the session in the lowest one, which its completion names. For one partition this is the
    /// same as [`submit`](Self::submit); for more of them the program needs the three steps of
    /// [`Application::prepare`](replica::Application::prepare).
    ///
    /// # Errors
    /// As in [`submit`](Self::submit), and if there are no partitions, or too many.
    pub fn submit_over(&mut self, pids: &[PartitionId], command: &[u8]) -> Result<u64, Refusal> {
        let mut ascending;
        let pids = match pids {
            [_] => pids,
            _ => {
                ascending = pids.to_vec();
                ascending.sort_unstable();
                ascending.dedup();
                &ascending[..]
            }
        };
        let (Some(&lowest), Some(&highest)) = (pids.first(), pids.last()) else {
            return Err(Refusal::Partitions(0));
        };
        if highest >= self.partitions() {
            return Err(Refusal::NoPartition(highest));
        }
        if pids.len() > MAX_VECTOR {
            return Err(Refusal::Partitions(pids.len()));
        }
        if !self.can_submit(lowest) {
            return Err(Refusal::WindowFull);
        }
        let max_value = usize::from(self.max_value);
        let session = &mut self.sessions[usize::from(lowest)];
        let request = session.last_request + 1;
        if pids.len() == 1 && command.len() > max_value {
            return session.submit_large(command, max_value);
        }
        let submitted = match pids.len() {
            1 => self.proposer.submit(lowest, session.id, request, command),
            _ => self
                .proposer
                .submit_multi(pids, session.id, request, command),
        };
        submitted.map_err(|refused| match refused {
            Refused::TooLarge { max } => {
                let len = command.len();
                Refusal::TooLarge { len, max }
            }
            // These can't happen, since request numbers are never used twice.
            Refused::Invalid | Refused::Outstanding => Refusal::NoSession,
        })?;
        Ok(session.submitted())
    }

    /// Returns the partition of a key.
    pub fn partition_of(&self, key: &[u8]) -> PartitionId {
        (self.options.partition_of)(key, self.partitions())
    }

    /// Returns whether the session has room: its oldest unanswered request is no further behind
    /// than the replicas' window.
    pub fn can_submit(&self, pid: PartitionId) -> bool {
        let session = self.sessions.get(usize::from(pid));
        session.is_some_and(|session| match self.options.ordered {
            true => session.answered.is_empty() && session.reading == 0,
            false => session.answered.len() < usize::from(self.options.window),
        })
    }

    /// Submits a command that only reads and takes no place in the log, and returns the number of
    /// its completion. [`Freshness::Latest`] shows everything that any client was told before this
    /// call, and perhaps commands that are still in progress. An answer may have many packets.
    /// Nothing is sent before [`flush`](Self::flush) or [`poll`](Self::poll). In a group with
    /// NOPaxos the command goes through the log as with [`submit`](Self::submit). A command that
    /// the program doesn't know as a read is answered `unsupported`, and changes nothing.
    /// [B-CLIENT]
    ///
    /// # Errors
    /// If the command doesn't fit a value, or if too much is in progress
    /// ([`can_read`](Self::can_read)).
    pub fn read(
        &mut self,
        pid: PartitionId,
        command: &[u8],
        freshness: Freshness,
    ) -> Result<u64, Refusal> {
        if pid >= self.partitions() {
            return Err(Refusal::NoPartition(pid));
        }
        if !self.can_read(pid) {
            return Err(Refusal::WindowFull);
        }
        let now = self.now();
        let Some(reads) = &mut self.reads else {
            return self.submit(pid, command);
        };
        let (len, max) = (command.len(), usize::from(self.max_value));
        if len > max {
            return Err(Refusal::TooLarge { len, max });
        }
        let session = &mut self.sessions[usize::from(pid)];
        if session.id == 0 {
            return Err(Refusal::NoSession);
        }
        session.reading += 1;
        let number = reads.push((pid, session.id), command, freshness);
        if reads.must_keep_alive(now) {
            self.move_sessions(|_| true);
        }
        Ok(number)
    }

    /// Returns whether another read may be submitted: at most as many as the window may be in
    /// progress. In an ordered session nothing else may be in progress with a read.
    pub fn can_read(&self, pid: PartitionId) -> bool {
        let session = self.sessions.get(usize::from(pid));
        session.is_some_and(|session| match (&self.reads, self.options.ordered) {
            (None, _) | (_, true) => self.can_submit(pid),
            (Some(_), false) => session.reading < usize::from(self.options.window),
        })
    }

    /// Sends the submitted commands.
    pub fn flush(&mut self) {
        let now = self.now();
        self.submit_parts();
        self.proposer.flush(now, &mut self.outbox);
        self.send_reads(now);
        self.plane.send(&mut self.outbox.batch);
    }

    /// Returns the next completion, or `None` after `timeout`. Sends submitted commands, and
    /// repeats unanswered ones.
    ///
    /// # Errors
    /// [`Error::System`] if the socket fails.
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<Completion<'_>>, Error> {
        let deadline = Instant::now() + timeout;
        while self.completions.is_empty() && self.advance(deadline)? {}
        Ok(self.completions.pop())
    }

    /// Returns a completion that has already arrived.
    pub fn take_completion(&mut self) -> Option<Completion<'_>> {
        self.completions.pop()
    }

    /// Submits one command to a partition, from 0, and waits at most `timeout` for its answer.
    /// Answers to other commands stay for [`poll`](Self::poll).
    pub fn call(&mut self, pid: PartitionId, command: &[u8], timeout: Duration) -> Outcome {
        self.call_over(&[pid], command, timeout)
    }

    /// Calls a command like [`call`](Self::call) in the partition of a key.
    pub fn call_by_key(&mut self, key: &[u8], command: &[u8], timeout: Duration) -> Outcome {
        self.call(self.partition_of(key), command, timeout)
    }

    /// Calls a command like [`call`](Self::call) in all of these partitions, or in none;
    /// [`submit_over`](Self::submit_over) has the details.
    pub fn call_over(
        &mut self,
        pids: &[PartitionId],
        command: &[u8],
        timeout: Duration,
    ) -> Outcome {
        let request = match self.submit_over(pids, command) {
            Ok(request) => request,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let pid = pids.iter().copied().min().unwrap_or_default();
        self.await_answer(pid, request, timeout)
    }

    /// Submits one read of a partition, and waits for its answer as [`call`](Self::call) does;
    /// [`read`](Self::read) has the details.
    pub fn call_read(
        &mut self,
        pid: PartitionId,
        command: &[u8],
        freshness: Freshness,
        timeout: Duration,
    ) -> Outcome {
        match self.read(pid, command, freshness) {
            Ok(number) => self.await_answer(pid, number, timeout),
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    fn await_answer(&mut self, pid: PartitionId, request: u64, timeout: Duration) -> Outcome {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(completion) = self.completions.take(pid, request) {
                return completion.outcome().to_owned();
            }
            match self.advance(deadline) {
                Ok(true) => {}
                Ok(false) => return Outcome::Unknown(Doubt::NoAnswer),
                Err(e) => return Outcome::Unknown(Doubt::Failed(e.to_string())),
            }
        }
    }

    fn send_reads(&mut self, now: Time) {
        let LeaderOutbox { signer, batch, .. } = &mut self.outbox;
        if let Some(reads) = &mut self.reads {
            reads.send(now, |to, header, command| {
                signer.push_all(batch, &[to], header, command, keys::NODES);
            });
        }
    }

    /// Sends queued packets and takes arriving ones until `deadline`; returns false after that.
    fn advance(&mut self, deadline: Instant) -> Result<bool, Error> {
        self.counted.check()?;
        if let Some(keyring) = self.keys.newer() {
            self.outbox.signer.use_keys(keyring.clone());
            self.senders.use_keys(keyring);
        }
        self.flush();
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = self.more || self.wait(left)?;
        if ready {
            self.receive()?;
        }
        self.tick();
        Ok(ready || !left.is_zero())
    }

    /// Submits the parts of long commands that may be sent now.
    fn submit_parts(&mut self) {
        for (pid, session) in self.sessions.iter_mut().enumerate() {
            let Some(Large { command, sending }) = &mut session.large else {
                continue;
            };
            while let Some(number) = sending.next(command, &mut self.part) {
                let submitted =
                    self.proposer
                        .submit(pid as PartitionId, session.id, number, &self.part);
                debug_assert_eq!(submitted, Ok(()), "a number of its own, and it fits");
            }
        }
    }

    /// Returns the replica that answers the client's requests, or 0 if all do ([`Home`]).
    pub fn home(&self) -> NodeId {
        self.home.id()
    }

    /// Returns the number of requests that were submitted and not completed.
    pub fn outstanding(&self) -> usize {
        let all = self.sessions.iter();
        all.map(|s| s.outstanding + s.reading).sum()
    }

    /// Returns the number of the group's partitions.
    pub fn partitions(&self) -> u16 {
        self.sessions.len() as u16
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }
}

impl Drop for Client {
    /// Closes the sessions. If the packets are lost, the sessions expire.
    fn drop(&mut self) {
        for (pid, session) in self.sessions.iter().enumerate().filter(|(_, s)| s.id != 0) {
            let close = SessionOp::Close.to_bytes();
            let _ = self
                .proposer
                .submit(pid as PartitionId, session.id, 0, &close);
        }
        self.flush();
    }
}

/// Sends to the leader, the only node to which a client's proposer sends.
struct LeaderOutbox {
    leader: Option<SocketAddr>,
    signer: Signer,
    batch: SendBatch,
}

impl LeaderOutbox {
    fn new(signer: Signer) -> LeaderOutbox {
        LeaderOutbox {
            leader: None,
            signer,
            batch: SendBatch::new(),
        }
    }
}

impl Outbox for LeaderOutbox {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        debug_assert_eq!(to, To::Leader);
        self.signer.push_all(
            &mut self.batch,
            self.leader.as_slice(),
            header,
            value,
            keys::NODES,
        );
    }
}

/// Returns the group with this number.
pub fn known_group(cluster: &ClusterFile, id: GroupId) -> Result<&Group, Error> {
    let groups = cluster.groups.iter().map(|group| group.id.to_string());
    cluster.group(id).ok_or_else(|| {
        Error::configuration(
            format!("the cluster file has no group {id}"),
            format!("choose one of {}", groups.collect::<Vec<_>>().join(", ")),
        )
    })
}

/// Returns the deployment of a client, which has no node id.
pub(crate) fn deployment(cluster: &ClusterFile, group: GroupId) -> Result<Deployment, Error> {
    let group = known_group(cluster, group)?;
    Ok(Deployment {
        cluster: cluster.cluster,
        group: group.id,
        partitions: group.partitions,
        max_value: group.max_value,
        node: 0,
    })
}

/// Returns the nodes that can tell the view: the controller, and the replicas in case the
/// controller is down.
pub(crate) fn control_nodes(cluster: &ClusterFile, group: GroupId) -> Vec<&Node> {
    let controllers = cluster.controllers();
    controllers.chain(cluster.replicas(group)).collect()
}

/// Returns a random number other than 0.
pub(crate) fn random_nonce() -> Result<u64, Error> {
    let number = getrandom::u64().map_err(|e| Error::System(format!("no random numbers: {e}")))?;
    Ok(number.max(1))
}

#[cfg(test)]
mod tests;
