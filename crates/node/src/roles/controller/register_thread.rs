// SPDX-License-Identifier: Apache-2.0
//! The thread that keeps one controller's part of the register: it answers the other controllers
//! whatever the controller itself is doing, so that two which both believe to act never wait for
//! one another.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::register::{Ballot, Event, Register, RegisterMessage};
use control::{GroupState, Message, Store, StoreError};
use paxos::{GroupId, NodeId, Time};
use std::collections::BTreeMap;
use tracing::warn;

use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::host::wait;
use crate::lock::lock;
use crate::store::RegisterFile;
use crate::{Error, listen, random_nonce};

/// The controller's main thread counts as working this long after its last turn; a change may hold
/// it up for half a second.
const WORKING: Duration = Duration::from_millis(1_500);
/// How long the main thread waits for the end of a change, which the register itself ends sooner.
const ANSWER: Duration = Duration::from_secs(1);
/// The largest state that fits a datagram with everything around it.
const MAX_STATE: usize = 56 << 10;
/// How many datagrams are handled before the record is stored.
const BATCH: usize = 64;

/// The main thread's end.
pub(super) struct RegisterThread {
    shared: Arc<Shared>,
    requests: Sender<Request>,
    bell: Arc<UnixStream>,
    thread: Option<JoinHandle<()>>,
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
    /// The other controllers that could act.
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

enum Request {
    Swap(Box<Swap>),
    /// The main thread can't go on with this term.
    Resign(Ballot),
    /// Another controller should act.
    HandOn(NodeId),
}

/// A change of a group's state.
struct Swap {
    term: Ballot,
    group: GroupId,
    expected: u64,
    state: GroupState,
    answer: SyncSender<Result<(), StoreError>>,
}

impl RegisterThread {
    /// Opens the record and the socket, and starts the thread.
    pub fn start(cluster: &ClusterFile, node: &Node) -> Result<RegisterThread, Error> {
        let mut members: Vec<NodeId> = cluster.controllers().map(|n| n.id).collect();
        members.sort_unstable();
        let path = cluster.node_dir(node).join("epochs.json");
        let (file, found) = RegisterFile::open(&path, cluster.cluster, node.id, &members)
            .map_err(|e| Error::store(e.to_string()))?;
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
        let own = node
            .peer
            .ok_or_else(|| Error::new("the controller has no `peer` address"))?;
        let ways = cluster
            .controllers()
            .filter_map(|n| Some((n.id, n.peer?, n.control)));
        let mut keeper = Keeper {
            me: node.id,
            register: Register::new(node.id, members, found, random_nonce()?, 0),
            file,
            socket: listen::udp(own, "peer")?,
            peers: ControlPeers::new(cluster, node.id),
            ways: ways.collect(),
            shared: Arc::clone(&shared),
            waiting,
            rung,
            answers: VecDeque::new(),
            trouble: None,
        };
        let thread = std::thread::Builder::new()
            .name("register".to_owned())
            .spawn(move || keeper.run())?;
        Ok(RegisterThread {
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

impl Drop for RegisterThread {
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

/// The register as the store of a controller while it acts. After an error it stays failed, and
/// this controller stands by: whoever acts next loads what was stored. [E-ACTS]
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
            answer,
        };
        let gone = |_| failed("the thread that speaks with the other controllers has ended");
        self.requests
            .send(Request::Swap(Box::new(swap)))
            .map_err(gone)?;
        ring(&self.bell);
        let answer = answered.recv_timeout(ANSWER);
        answer.unwrap_or_else(|_| Err(failed("the other controllers' answers don't come in time")))
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

/// The thread's state.
struct Keeper {
    me: NodeId,
    register: Register,
    file: RegisterFile,
    socket: UdpSocket,
    peers: ControlPeers,
    /// The id, the `peer` address and the `control` address of each controller.
    ways: Vec<(NodeId, SocketAddr, SocketAddr)>,
    shared: Arc<Shared>,
    waiting: Receiver<Request>,
    rung: UnixStream,
    answers: VecDeque<SyncSender<Result<(), StoreError>>>,
    /// Why the record can't be stored.
    trouble: Option<String>,
}

impl Keeper {
    fn run(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        while !self.shared.stops.load(Ordering::Relaxed) {
            let due = self.register.next_deadline().saturating_sub(self.now());
            let fds = [self.socket.as_fd(), self.rung.as_fd()];
            // An error of poll would come again at once, and the deadlines go on in any case.
            if wait(&fds, Some(Duration::from_nanos(due))).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let worked = Duration::from_millis(self.shared.worked_ms.load(Ordering::Relaxed));
            let works = self.shared.started.elapsed() < worked + WORKING;
            self.register.set_alive(works);
            self.receive(&mut buffer);
            self.take_requests();
            let now = self.now();
            let is_due = now >= self.register.next_deadline();
            if is_due {
                self.register.tick(now);
            }
            self.settle();
            if is_due {
                self.show();
            }
        }
    }

    /// Tells the main thread about the other controllers.
    fn show(&self) {
        let now = self.now();
        let mut standing = lock(&self.shared.standing);
        standing.acting = self.register.acting(now);
        standing.fellows = self.register.fellows(now);
        standing.warnings = self.register.warnings(now);
        standing.warnings.extend(self.trouble.clone());
    }

    fn now(&self) -> Time {
        self.shared.started.elapsed().as_nanos() as Time
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        for _ in 0..BATCH {
            let (n, from) = match self.socket.recv_from(buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // ICMP says that another controller is down.
                Err(_) => continue,
            };
            let Some((node, _, control)) = self.ways.iter().find(|(_, peer, _)| *peer == from)
            else {
                continue;
            };
            // The message is opened as if it came from the `control` address, which keys and rules
            // know. [E-VIEW] [E-SIGNED]
            if let Ok(Message::Register(message)) = self.peers.open(&buffer[..n], *control) {
                let node = *node;
                self.register.message(self.now(), node, *message);
            }
        }
    }

    fn take_requests(&mut self) {
        let mut rings = [0; 64];
        while matches!((&self.rung).read(&mut rings), Ok(n) if n == rings.len()) {}
        while let Ok(request) = self.waiting.try_recv() {
            let now = self.now();
            match request {
                Request::Swap(swap) => {
                    self.answers.push_back(swap.answer);
                    self.register
                        .swap(now, swap.term, swap.group, swap.expected, swap.state);
                }
                Request::Resign(term) => {
                    let why = "a change wasn't stored in time";
                    self.register.resign(now, term, why);
                }
                Request::HandOn(to) => self.register.hand_on(now, to),
            }
        }
    }

    /// Stores what has changed, then lets the messages leave. [E-BALLOT]
    fn settle(&mut self) {
        loop {
            if self.register.is_unsaved() && !self.save() {
                self.register.drop_messages();
                break;
            }
            let Some((to, message)) = self.register.poll_message() else {
                break;
            };
            match to == self.me {
                true => self.register.message(self.now(), to, message),
                false => self.send(to, message),
            }
        }
        while let Some(event) = self.register.poll_event() {
            self.tell(event);
        }
    }

    fn save(&mut self) -> bool {
        let Some(record) = self.register.record() else {
            return false;
        };
        match self.file.save(record) {
            Ok(()) => {
                self.register.saved();
                self.trouble = None;
                true
            }
            Err(why) => {
                let why = why.to_string();
                if self.trouble.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.trouble = Some(why);
                false
            }
        }
    }

    fn send(&self, to: NodeId, message: RegisterMessage) {
        let Some((_, peer, control)) = self.ways.iter().find(|(id, ..)| *id == to) else {
            return;
        };
        // A lost message is repeated.
        if let Ok(bytes) = self
            .peers
            .seal(*control, &Message::Register(Box::new(message)))
        {
            let _ = self.socket.send_to(&bytes, peer);
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Acts(name, states) => {
                *lock(&self.shared.term) = Some(Term { name, states });
            }
            Event::Ended(why) => {
                *lock(&self.shared.term) = None;
                lock(&self.shared.standing).ended = Some(why);
            }
            Event::Swapped(result) => {
                if let Some(answer) = self.answers.pop_front() {
                    // The main thread may have given up.
                    let _ = answer.send(result);
                }
            }
        }
    }
}
