// SPDX-License-Identifier: Apache-2.0
//! The thread that helps a replica that fell behind: it fetches another replica's state of all
//! partitions, installs it, and has the workers execute what was decided meanwhile. The workers
//! continue until the install itself, which is short, since by then the whole state is in new
//! stores beside those in use.
//!
//! | in the node's directory | |
//! |---|---|
//! | `incoming/` | the state on its way, and until the install has ended |
//! | `install` | from before the first partition is replaced until all of them have got there |
//!
//! [X-CATCHUP] [X-INSTALL]

mod keep_alive;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paxos::{Deployment, Instance, PartitionId};
use replica::storage::{CheckpointFile, Storage, sync_directory_of};
use replica::{Install, MOVE_AWAY};
use serde_json::{Value, json};
use tracing::{Span, info, warn};

use super::handing_out::Whole;
use super::orders::Order;
use super::worker_thread::{Job, WorkerHandle};
use crate::Error;
use crate::lock::lock;
use crate::transfer::client::{Failed, Interrupt, Peer, Search};
use crate::transfer::incoming::{self, Head, Incoming};
use crate::transfer::wire::Trust;
use crate::transfer::{Patience, Question, copy};
use keep_alive::{Interruptible, KeepAlive};

/// The pause before the thread asks again, at first and at most.
const ASK_INTERVAL: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How often the source is asked to keep a state open while this side is busy.
const STAY_INTERVAL: Duration = Duration::from_secs(10);
/// A worker this close to its source no longer needs it, unless acceptors have forgotten its next
/// value, since it buffers this many values itself.
const NEAR: u64 = 1_024;
/// How often a worker that has executed everything asks for more.
const LOG_INTERVAL: Duration = Duration::from_millis(5);
/// How many bytes of the log wait here while a worker waits for another one; one more part may have
/// come.
const MAX_LOG: usize = 4 << 20;

/// The note that an install was begun.
pub struct Note {
    file: CheckpointFile,
    path: PathBuf,
    deployment: Deployment,
}

impl Note {
    /// Returns the note in the node's directory.
    pub fn new(directory: &std::path::Path, deployment: Deployment) -> Note {
        let path = directory.join("install");
        Note {
            file: CheckpointFile::new(&path),
            path,
            deployment,
        }
    }

    /// Returns the install that was begun and hasn't ended. [X-INSTALL]
    pub fn read(&mut self) -> Result<Option<Install>, Error> {
        let mut read = || match self.file.load()? {
            None => Ok(None),
            Some(note) => Install::parse(&note, &self.deployment).map(Some),
        };
        read().map_err(|e: replica::Error| {
            let path = self.path.display();
            Error::store(format!(
                "{path}: {e}; so the partitions may not belong together: {MOVE_AWAY}"
            ))
        })
    }

    pub fn write(&mut self, install: &Install) -> io::Result<()> {
        self.file.replace(&install.emit(&self.deployment))
    }

    fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        sync_directory_of(&self.path)
    }
}

/// The handle of the thread, which ends when this is dropped.
pub struct CatchUp {
    thread: Option<JoinHandle<()>>,
    interrupt: Arc<Interrupt>,
    shown: Arc<Mutex<Value>>,
}

/// The things that the thread needs.
pub struct Needs {
    pub deployment: Deployment,
    /// The node's directory.
    pub directory: PathBuf,
    /// The addresses where the other replicas hand out their states.
    pub peers: Vec<SocketAddr>,
    pub trust: Trust,
    pub workers: Arc<Vec<WorkerHandle>>,
    /// Held during an install, so that no copies of the partitions are opened meanwhile.
    pub whole: Whole,
    /// Receives a message from a worker that needs a state.
    pub told: Receiver<()>,
    /// An install that an earlier process had begun.
    pub begun: Option<Install>,
}

impl CatchUp {
    pub fn start(needs: Needs) -> Result<CatchUp, Error> {
        copy::clear(&needs.directory).map_err(|e| {
            let directory = needs.directory.display();
            Error::store(format!("{directory}: {e}"))
        })?;
        let interrupt = Arc::new(Interrupt::default());
        let shown = Arc::new(Mutex::new(Value::Null));
        let thread = Thread {
            note: Note::new(&needs.directory, needs.deployment),
            incoming: needs.directory.join("incoming"),
            needs,
            interrupt: interrupt.clone(),
            shown: shown.clone(),
            said: String::new(),
            pause: ASK_INTERVAL,
        };
        let span = Span::current();
        let thread = std::thread::Builder::new()
            .name("catch-up".into())
            .spawn(move || {
                let _said_there = span.entered();
                thread.run();
            })?;
        Ok(CatchUp {
            thread: Some(thread),
            interrupt,
            shown,
        })
    }

    /// Returns the status, or null while there is nothing to do.
    pub fn status(&self) -> Value {
        lock(&self.shown).clone()
    }
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        self.interrupt.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The reason why an attempt failed.
enum Missed {
    /// The node ends.
    Stopping,
    /// The attempt may be repeated.
    Why(String),
}

impl From<io::Error> for Missed {
    fn from(e: io::Error) -> Missed {
        Missed::Why(e.to_string())
    }
}

impl From<Failed> for Missed {
    fn from(e: Failed) -> Missed {
        Missed::Why(e.to_string())
    }
}

struct Thread {
    needs: Needs,
    note: Note,
    incoming: PathBuf,
    interrupt: Arc<Interrupt>,
    shown: Arc<Mutex<Value>>,
    /// The last error, which is logged once.
    said: String,
    /// The pause before the next attempt.
    pause: Duration,
}

/// The progress of a partition in the values that were decided after the state.
#[derive(Default)]
struct Following {
    /// How many bytes were asked for so far; `log` has those that weren't executed yet.
    asked: u64,
    log: Vec<u8>,
    /// The source's position when it was last asked.
    source: Option<Instance>,
    /// The source has no more.
    ended: bool,
}

impl Thread {
    fn run(mut self) {
        loop {
            if self.needs.begun.is_none() && self.wanted().iter().all(Option::is_none) {
                *lock(&self.shown) = Value::Null;
                if self.needs.told.recv().is_err() {
                    return;
                }
            }
            match self.once() {
                Ok(()) => {
                    self.said.clear();
                    self.pause = ASK_INTERVAL;
                }
                Err(Missed::Stopping) => return,
                Err(Missed::Why(why)) => self.say(why),
            }
            let told = self.needs.told.recv_timeout(self.pause);
            if told == Err(RecvTimeoutError::Disconnected) || self.interrupt.check().is_err() {
                return;
            }
        }
    }

    fn say(&mut self, why: String) {
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        if why != self.said {
            warn!(why, "no other replica's state yet");
            self.said = why;
        }
    }

    fn wanted(&self) -> Vec<Option<Instance>> {
        let workers = self.needs.workers.iter();
        workers.map(|w| w.position.get().needs).collect()
    }

    /// Fetches a state and installs it, or completes the install that an earlier process had begun.
    fn once(&mut self) -> Result<(), Missed> {
        if let Some(begun) = self.needs.begun.clone() {
            if begun
                .positions()
                .iter()
                .zip(0..)
                .all(|(at, pid)| self.committed(pid) >= *at)
            {
                return self.put_in_place(&begun, &[]);
            }
        }
        // A state that has partly come is continued as long as its source has it open.
        let left = Incoming::open(&self.incoming)?;
        if let Some(left) = left.filter(|left| self.fits(&left.head.positions)) {
            match self.go_on(left) {
                Ok(()) => return Ok(()),
                Err(Missed::Stopping) => return Err(Missed::Stopping),
                Err(Missed::Why(why)) => warn!(why, "what has come of a state is of no use"),
            }
        }
        incoming::remove(&self.incoming)?;
        let (mut peer, head) = self.find()?;
        let incoming = Incoming::begin(&self.incoming, head)?;
        let state = incoming.head.state;
        let done = self.take(&mut peer, incoming);
        if done.is_ok() {
            peer.release(state);
        }
        done
    }

    /// Returns whether a state at these positions can replace the one whose install was begun, if
    /// one was.
    fn fits(&self, positions: &[Instance]) -> bool {
        let stands = Install::new(positions.to_vec());
        let begun = self.needs.begun.as_ref();
        positions.len() == self.needs.workers.len()
            && begun.is_none_or(|begun| begun.can_become(&stands))
    }

    fn go_on(&mut self, left: Incoming) -> Result<(), Missed> {
        let mut peer = self.peer(left.head.from);
        let state = left.head.state;
        self.take(&mut peer, left)?;
        peer.release(state);
        Ok(())
    }

    fn peer(&self, address: SocketAddr) -> Peer {
        Peer::new(
            address,
            Patience::default(),
            self.interrupt.clone(),
            self.needs.trust.clone(),
        )
    }

    /// Returns a replica that can help, with its state open.
    fn find(&self) -> Result<(Peer, Head), Missed> {
        let needs = match &self.needs.begun {
            Some(begun) => begun.positions().iter().copied().map(Some).collect(),
            None => self.wanted(),
        };
        let question = Question::new(&self.needs.deployment, needs);
        let (peers, patience) = (&self.needs.peers, Patience::default());
        let mut search = Search::begin(
            peers,
            &question,
            patience,
            &self.interrupt,
            &self.needs.trust,
        )?;
        while let Some(mut peer) = search.next() {
            let from = peer.address;
            let failed = match peer.hold(&question) {
                Err(e) => e,
                Ok((state, positions)) if self.fits(&positions) => {
                    let head = Head {
                        from,
                        state,
                        positions,
                    };
                    return Ok((peer, head));
                }
                Ok((state, _)) => {
                    peer.release(state);
                    Failed::Refused("behind what was begun to install".into())
                }
            };
            search.failed(from, &failed);
        }
        self.interrupt.check()?;
        Err(Missed::Why(search.why()))
    }

    /// Fetches the missing parts of a state, installs it, and follows its source.
    fn take(&mut self, peer: &mut Peer, mut incoming: Incoming) -> Result<(), Missed> {
        let Head { from, state, .. } = incoming.head;
        let begun = Instant::now();
        info!(%from, positions = ?incoming.head.positions, "fetching another replica's state");
        for pid in self.in_order(&incoming) {
            while !incoming.is_whole(pid) && self.is_ahead(&incoming, pid) {
                self.show("fetching", from, &incoming);
                let (bytes, last) = peer.part(state, pid, incoming.wants(pid))?;
                incoming.add(pid, &bytes, last)?;
            }
        }
        self.show("installing", from, &incoming);
        incoming.sync()?;
        let kept_alive = KeepAlive::begin(self.peer(from), state)?;
        self.install(&incoming)?;
        drop(kept_alive);
        let head = incoming.head;
        incoming::remove(&self.incoming)?;
        info!(%from, positions = ?head.positions, "another replica's state is in place");
        self.replay_log(peer, &head)?;
        let seconds = begun.elapsed().as_secs_f32();
        info!(seconds, "has caught up");
        Ok(())
    }

    /// Returns the partitions in order. Those that need the state come first, since the others may
    /// get there without it meanwhile.
    fn in_order(&self, incoming: &Incoming) -> Vec<PartitionId> {
        let mut pids: Vec<_> = (0..incoming.head.positions.len() as u16).collect();
        let wanted = self.wanted();
        pids.sort_by_key(|pid| wanted[usize::from(*pid)].is_none());
        pids
    }

    fn is_ahead(&self, incoming: &Incoming, pid: PartitionId) -> bool {
        let at = usize::from(pid);
        incoming.head.positions[at] > self.committed(pid)
    }

    /// Returns the position that a partition keeps when an install begins. A smaller position would
    /// let an install skip a state that it must put in place.
    fn committed(&self, pid: PartitionId) -> Instance {
        self.needs.workers[usize::from(pid)]
            .position
            .get()
            .committed
    }

    /// Installs a state that is here and durable.
    fn install(&mut self, incoming: &Incoming) -> Result<(), Missed> {
        let mut read = Vec::new();
        for pid in self.pids() {
            if self.is_ahead(incoming, pid) {
                self.read(incoming, pid)?;
                read.push(pid);
            }
        }
        self.put_in_place(&Install::new(incoming.head.positions.clone()), &read)
    }

    fn pids(&self) -> Vec<PartitionId> {
        (0..self.needs.workers.len() as u16).collect()
    }

    /// Replaces the partitions whose new stores were read, except for those that have got further.
    /// [X-INSTALL]
    fn put_in_place(&mut self, install: &Install, read: &[PartitionId]) -> Result<(), Missed> {
        let whole = self.needs.whole.clone();
        let _whole = lock(&whole);
        let all = self.pids();
        if self.needs.begun.is_none() && self.is_execution_stopped() {
            return Err(Missed::Why("execution is stopped".into()));
        }
        let stopped = self.ask_all(&all, |_, answer| Order::BeginInstall(answer))?;
        let puts = |pid: &u16| install.puts(*pid, stopped[usize::from(*pid)]);
        let (put, kept): (Vec<_>, Vec<_>) = all.iter().copied().partition(puts);
        debug_assert!(put.iter().all(|pid| read.contains(pid)), "none goes back");
        self.ask_all(&kept, |_, answer| Order::MakeDurable(answer))?;
        if let Err(e) = self.note.write(install) {
            // Nothing has changed. But if another install was noted before, execution stays
            // stopped.
            if self.needs.begun.is_none() {
                self.go_on_executing();
            }
            return Err(e.into());
        }
        self.needs.begun = Some(install.clone());
        let end = |pid, answer| Order::EndRestore(install.positions()[usize::from(pid)], answer);
        for result in self.ask_all(&put, end)? {
            result.map_err(Missed::Why)?;
        }
        // This notes how far the partitions have reached before the note of this install is
        // removed. [T-REACHED]
        self.ask_all(&put, |_, answer| Order::MakeDurable(answer))?;
        // All partitions do this before the first one continues.
        self.ask_all(&all, |_, answer| Order::MeetAnew(answer))?;
        self.note.remove()?;
        self.needs.begun = None;
        self.go_on_executing();
        Ok(())
    }

    /// Returns whether execution is stopped; others may have been told this replica's positions.
    /// [G-STOP]
    fn is_execution_stopped(&self) -> bool {
        let mut workers = self.needs.workers.iter();
        workers.any(|worker| worker.position.get().stopped.is_some())
    }

    fn go_on_executing(&self) {
        for worker in self.needs.workers.iter() {
            worker.give(Job::Order(Order::EndInstall));
        }
    }

    /// Reads a partition's state into a new store.
    fn read(&self, incoming: &Incoming, pid: PartitionId) -> Result<(), Missed> {
        let position = incoming.head.positions[usize::from(pid)];
        let begin = |_, answer| Order::BeginRestore(position, answer);
        let begun = self.ask_all(&[pid], begin)?.pop().expect("one was asked");
        let restore = begun.map_err(Missed::Why)?;
        let mut state = Interruptible {
            from: incoming.read(pid)?,
            interrupt: &self.interrupt,
        };
        restore(&mut state).map_err(|e| Missed::Why(e.to_string()))
    }

    /// Has the workers execute what the source has decided after its state, until none needs more.
    /// They take turns, since one may have to wait for another one, even for one that was near its
    /// source before. [X-LOG]
    fn replay_log(&self, peer: &mut Peer, head: &Head) -> Result<(), Missed> {
        let mut all: Vec<_> = head
            .positions
            .iter()
            .map(|_| Following::default())
            .collect();
        loop {
            let (mut lacks, mut any) = (false, false);
            for (one, pid) in all.iter_mut().zip(0..) {
                if !self.lacks(pid, one) {
                    continue;
                }
                lacks = true;
                any |= !one.ended && self.follow_one(peer, head, pid, one)?;
                if self.needs_another(pid, one) {
                    return Ok(());
                }
            }
            if !lacks {
                return Ok(());
            }
            self.show_log(head, all.iter().map(|one| one.asked).sum());
            self.interrupt.check().map_err(|_| Missed::Stopping)?;
            if !any {
                std::thread::sleep(LOG_INTERVAL);
            }
        }
    }

    /// Returns whether a worker is far from its source, or can't get its next value anywhere else.
    fn lacks(&self, pid: PartitionId, one: &Following) -> bool {
        let stand = self.needs.workers[usize::from(pid)].position.get();
        let is_far = one.source.is_none_or(|source| stand.next + NEAR < source);
        stand.needs.is_some() || is_far && !one.ended
    }

    /// Returns whether only another state helps this worker. The others may wait for it, so then
    /// none of them is followed any longer.
    fn needs_another(&self, pid: PartitionId, one: &Following) -> bool {
        let needs = self.needs.workers[usize::from(pid)].position.get().needs;
        needs.is_some_and(|at| one.ended || one.source.is_some_and(|source| source < at))
    }

    /// Fetches and executes the next part of one partition's log, and returns whether anything was
    /// taken. If there is no more, the partition continues without it, and asks for a state again
    /// if that doesn't suffice. [X-LOG]
    fn follow_one(
        &self,
        peer: &mut Peer,
        head: &Head,
        pid: PartitionId,
        one: &mut Following,
    ) -> Result<bool, Missed> {
        let (bytes, source) = match peer.log(head.state, pid, one.asked) {
            Ok(answered) => answered,
            Err(e) => {
                info!(pid, "there is no more behind the state: {e}");
                one.ended = true;
                return Ok(false);
            }
        };
        one.source = Some(source);
        if one.log.len() < MAX_LOG {
            one.asked += bytes.len() as u64;
            one.log.extend_from_slice(&bytes);
        }
        let replay = |_, answer| Order::Replay(one.log.clone(), answer);
        let replayed = self.ask_all(&[pid], replay)?.pop();
        match replayed.expect("one was asked") {
            Ok(taken) => {
                one.log.drain(..taken);
                Ok(taken > 0)
            }
            Err(e) => {
                info!(pid, "what is behind the state ends: {e}");
                one.ended = true;
                Ok(false)
            }
        }
    }

    /// Gives an order to all these workers at once, and waits for all answers.
    fn ask_all<T>(
        &self,
        pids: &[PartitionId],
        order: impl Fn(PartitionId, Sender<T>) -> Order,
    ) -> Result<Vec<T>, Missed> {
        let mut asked = Vec::new();
        for &pid in pids {
            let (answer, answers) = mpsc::channel();
            self.needs.workers[usize::from(pid)].give(Job::Order(order(pid, answer)));
            asked.push(answers);
        }
        let answers = asked.iter().map(|a| a.recv().map_err(|_| Missed::Stopping));
        answers.collect()
    }

    fn show(&self, doing: &str, from: SocketAddr, incoming: &Incoming) {
        let parts = (0..incoming.head.positions.len() as u16).map(|pid| incoming.wants(pid));
        let mib: u64 = parts.sum();
        *lock(&self.shown) =
            json!({ "doing": doing, "from": from.to_string(), "fetched_mib": mib });
    }

    fn show_log(&self, head: &Head, bytes: u64) {
        *lock(&self.shown) = json!({
            "doing": "following",
            "from": head.from.to_string(),
            "log_bytes": bytes,
        });
    }
}
