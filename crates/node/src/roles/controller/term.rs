// SPDX-License-Identifier: Apache-2.0
//! The terms in which this controller acts, if several share a store. A thread keeps the store and
//! decides who acts; the main thread writes through it while a term lasts, and works as a
//! controller alone does. [E-ACTS]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::register::Ballot;
use control::{GroupState, Store, StoreError};
use paxos::{GroupId, NodeId, Time};

use crate::Error;
use crate::lock::lock;

/// The controller's main thread counts as working this long after its last turn; a change may hold
/// it up for half a second.
const WORKING: Duration = Duration::from_millis(1_500);
/// How long the main thread waits for the end of a change, which the thread itself ends sooner.
const ANSWER: Duration = Duration::from_secs(1);
/// The largest state that fits a datagram with everything around it.
const MAX_STATE: usize = 56 << 10;

/// The main thread's end.
pub(super) struct StoreThread {
    shared: Arc<Shared>,
    requests: Sender<Request>,
    bell: Arc<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// The other end, of the thread that keeps the store.
pub(super) struct ThreadEnd {
    shared: Arc<Shared>,
    waiting: Receiver<Request>,
    rung: UnixStream,
}

/// A term of this controller, and the states with which it began.
#[derive(Clone)]
pub(super) struct Term {
    pub name: Ballot,
    pub states: BTreeMap<GroupId, GroupState>,
}

/// The thread's report to the main thread.
#[derive(Clone, Default)]
pub(super) struct Standing {
    /// The controller that acts, as far as this one knows.
    pub acting: Option<NodeId>,
    /// Why its last term ended.
    pub ended: Option<String>,
    /// The other controllers that could act at once.
    pub fellows: Vec<NodeId>,
    pub warnings: Vec<String>,
}

struct Shared {
    started: Instant,
    worked_ms: AtomicU64,
    stops: AtomicBool,
    term: Mutex<Option<Term>>,
    standing: Mutex<Standing>,
}

pub(super) enum Request {
    Swap(Box<Swap>),
    /// The main thread can't go on with this term.
    Resign(Ballot),
    /// Another controller should act, one of the fellows.
    HandOn(NodeId),
}

/// A change of a group's state.
pub(super) struct Swap {
    pub term: Ballot,
    pub group: GroupId,
    pub expected: u64,
    pub state: GroupState,
    pub since: Instant,
    pub answer: SyncSender<Result<(), StoreError>>,
}

impl StoreThread {
    /// Starts the thread.
    pub fn start(
        name: &str,
        run: impl FnOnce(ThreadEnd) + Send + 'static,
    ) -> Result<StoreThread, Error> {
        let (requests, waiting) = channel();
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            started: Instant::now(),
            worked_ms: AtomicU64::new(0),
            stops: AtomicBool::new(false),
            term: Mutex::default(),
            standing: Mutex::default(),
        });
        let end = ThreadEnd {
            shared: Arc::clone(&shared),
            waiting,
            rung,
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(end))?;
        Ok(StoreThread {
            shared,
            requests,
            bell: Arc::new(bell),
            thread: Some(thread),
        })
    }

    /// Notes that the main thread works. Otherwise another controller takes over.
    pub fn works(&self) {
        let ms = self.shared.started.elapsed().as_millis() as u64;
        self.shared.worked_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the term, if this controller acts.
    pub fn term(&self) -> Option<Term> {
        lock(&self.shared.term).clone()
    }

    /// Returns the ballot that names the term.
    pub fn term_name(&self) -> Option<Ballot> {
        lock(&self.shared.term).as_ref().map(|term| term.name)
    }

    /// Returns whether the thread has ended, which it never does by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub fn standing(&self) -> Standing {
        lock(&self.shared.standing).clone()
    }

    /// Lets another controller act in the place of this one.
    pub fn hand_on(&self, to: NodeId) {
        // If the thread has ended, this process does, too.
        let _ = self.requests.send(Request::HandOn(to));
        ring(&self.bell);
    }

    /// Returns the store of a term.
    pub fn store(&self, term: Term) -> TermStore {
        TermStore {
            term,
            requests: self.requests.clone(),
            bell: Arc::clone(&self.bell),
            failed: None,
        }
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        ring(&self.bell);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ring(bell: &UnixStream) {
    // A full bell has rung already.
    let _ = (&mut &*bell).write(&[1]);
}

impl ThreadEnd {
    /// Returns the time since the thread was started.
    pub fn now(&self) -> Time {
        self.shared.started.elapsed().as_nanos() as Time
    }

    /// Returns whether the thread is to end.
    pub fn stops(&self) -> bool {
        self.shared.stops.load(Ordering::Relaxed)
    }

    /// Returns whether the main thread works.
    pub fn main_works(&self) -> bool {
        let worked = Duration::from_millis(self.shared.worked_ms.load(Ordering::Relaxed));
        self.shared.started.elapsed() < worked + WORKING
    }

    /// Returns what is readable when there is a request.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }

    pub fn hush(&self) {
        let mut rings = [0; 64];
        while matches!((&self.rung).read(&mut rings), Ok(n) if n == rings.len()) {}
    }

    pub fn next_request(&self) -> Option<Request> {
        self.waiting.try_recv().ok()
    }

    /// Lets this controller act.
    pub fn begin(&self, term: Term) {
        *lock(&self.shared.term) = Some(term);
    }

    /// Ends the term, for this reason.
    pub fn end(&self, why: String) {
        *lock(&self.shared.term) = None;
        lock(&self.shared.standing).ended = Some(why);
    }

    /// Tells the main thread who acts, who else could, and what operators should look at.
    pub fn show(&self, acting: Option<NodeId>, fellows: Vec<NodeId>, warnings: Vec<String>) {
        let mut standing = lock(&self.shared.standing);
        standing.acting = acting;
        standing.fellows = fellows;
        standing.warnings = warnings;
    }
}

/// What the thread keeps, as the store of a controller while it acts. After an error it stays
/// failed, and this controller stands by: whoever acts next loads what was stored. [E-ACTS]
pub(super) struct TermStore {
    term: Term,
    requests: Sender<Request>,
    bell: Arc<UnixStream>,
    failed: Option<StoreError>,
}

impl TermStore {
    fn write(&self, group: GroupId, expected: u64, state: &GroupState) -> Result<(), StoreError> {
        let failed = |why: &str| StoreError::Failed(why.to_owned());
        let (answer, answered) = sync_channel(1);
        let swap = Swap {
            term: self.term.name,
            group,
            expected,
            state: state.clone(),
            since: Instant::now(),
            answer,
        };
        let gone = |_| failed("the thread that keeps the shared store has ended");
        self.requests
            .send(Request::Swap(Box::new(swap)))
            .map_err(gone)?;
        ring(&self.bell);
        let answer = answered.recv_timeout(ANSWER);
        answer.unwrap_or_else(|_| Err(failed("the shared store doesn't answer in time")))
    }
}

impl Store for TermStore {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        match &self.failed {
            Some(why) => Err(why.clone()),
            None => Ok(self.term.states.get(&group).cloned().unwrap_or_default()),
        }
    }

    fn swap(
        &mut self,
        group: GroupId,
        expected: u64,
        state: &GroupState,
    ) -> Result<(), StoreError> {
        if self.load(group)?.version != expected {
            return Err(StoreError::Conflict);
        }
        fits(group, state)?;
        if let Err(why) = self.write(group, expected, state) {
            self.failed = Some(why.clone());
            // The thread may have ended; then this process does, too.
            let _ = self.requests.send(Request::Resign(self.term.name));
            ring(&self.bell);
            return Err(why);
        }
        self.term.states.insert(group, state.clone());
        Ok(())
    }
}

/// Returns an error if a state is too large for a message. It hurts no other group.
fn fits(group: GroupId, state: &GroupState) -> Result<(), StoreError> {
    let bytes = serde_json::to_vec(state).map_err(|e| StoreError::Failed(e.to_string()))?;
    if bytes.len() <= MAX_STATE {
        return Ok(());
    }
    Err(StoreError::Failed(format!(
        "group {group}: the state has {} bytes, and {MAX_STATE} fit a message between \
        controllers: remove acceptors and replicas that are leaving from the cluster file",
        bytes.len()
    )))
}
