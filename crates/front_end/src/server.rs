// SPDX-License-Identifier: Apache-2.0
//! The front end's thread: one loop over the listener, the clients' sockets, the replica's answers and the data plane.

mod census;
mod clock_reports;
mod handshakes;
mod held_answers;
mod herald;
mod server_report;
mod strangers;
mod stream;
mod walker;

use std::cell::RefCell;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apps::redis::{Event, Message, put_call};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use paxos::proposer::ProposerSettings;
use paxos::{PartitionId, SplitMix, Time};
use replica::protocol::Effect;
use replica::{LocalSession, Status};
use tls::Failure;

use crate::connection::{Connection, Sink};
use crate::dispatch;
use crate::found_keys::{Found, Whose};
use crate::log::lane::{Logged, SESSION_WINDOW, Session};
use crate::log::names::{Names, Taken};
use crate::log::reads::ReadQueue;
use crate::log::{Log, Plane};
use crate::mailbox::{Answer, Mail, Mailbox};
use crate::metrics::Metrics;
use crate::native::Native;
use crate::partitions::MAX_PARTITIONS;
use crate::pubsub::channels::{self, Channels, Round};
use crate::pubsub::jobs::{Job, Jobs};
use crate::pubsub::survey;
use crate::server::census::Census;
use crate::server::clock_reports::ClockReports;
use crate::server::handshakes::Handshakes;
use crate::server::held_answers::{Held, Hold};
use crate::server::herald::{Confirmation, Herald};
use crate::server::strangers::Strangers;
use crate::server::stream::Stream;
use crate::server::walker::{Walk, Walker};
use crate::settings::{Neighbour, Reads, Settings};
use crate::shared::Shared;
use crate::state::ask::{Ask, Listed};
use crate::state::client::Client;
use crate::state::once::{self, Once};
use crate::state::pause::Pause;
use crate::state::waiter::Waiter;
use crate::turns::{LOOK_UP, Turn};
use crate::waits::{Act, Waits};

/// The most values that one connection may have in flight, so that a pipeline of small commands needs few round trips. A
/// single command beside it waits for them: for a fifth longer than with half as many.
const MOST_VALUES: usize = 16;
const LISTENER: Token = Token(0);
const MAILBOX: Token = Token(1);
const PLANE: Token = Token(2);
const FIRST_CONNECTION: usize = 3;

const READ_BYTES: usize = 64 << 10;
/// The most rounds of reading and writing that a connection gets in one turn.
const ROUNDS: usize = 16;
/// The wait after an accept that failed for lack of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The front end asks who leads once a command has waited for its answer this many times as long as until its first
/// repetition.
const ASK_AFTER: Time = 8;

const TOO_MANY_CLIENTS: &str = "ERR max number of clients reached";

/// A running front end. Dropping this handle leaves it running.
pub struct FrontEnd {
    mailbox: Mailbox,
    metrics: Arc<Metrics>,
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl FrontEnd {
    /// Returns the mailbox that takes answers and news for the front end.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Returns the counters of the front end's work.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more commands, finishes those in flight (within the settings' timeout), and ends.
    pub fn shut_down(self) {
        self.mailbox.shut_down();
        // A thread that panicked has already printed why.
        let _ = self.thread.join();
    }
}

/// Starts the front end in its own thread.
pub fn start(settings: Settings, plane: impl Plane) -> io::Result<FrontEnd> {
    let address = settings.listener.local_addr()?;
    let server = Server::new(settings, plane)?;
    let mailbox = server.mailbox.clone();
    let metrics = server.shared.metrics.clone();
    if let Some(native) = &server.shared.native {
        let mailbox = mailbox.clone();
        native
            .news()
            .tell(move |pid, event| mailbox.news(pid, event));
    }
    let thread = std::thread::Builder::new()
        .name("redis".to_owned())
        .spawn(move || server.run())?;
    Ok(FrontEnd {
        mailbox,
        metrics,
        address,
        thread,
    })
}

struct Peer {
    connection: Connection,
    /// `None` once the client is gone and only its commands in flight remain.
    stream: Option<Stream>,
    readable: bool,
    /// True if the client sends no more than what is in the socket.
    is_closing: bool,
    /// True if the server has counted this connection among those with commands in flight.
    is_under_way: bool,
    /// The end of the wait of answers that wait for further ones, to be sent together.
    hold: Hold,
    /// The wait of subscriptions' answers until the other front ends can know of them.
    confirmation: Confirmation,
    /// The bytes of memory that the server has counted for this connection.
    memory: usize,
}

/// The answer to a connection's question about all clients.
enum Told {
    Text(String),
    Number(i64),
    Ok,
    Error(&'static str),
}

/// The sessions, open or asked for, and the connections to which they belong.
struct Routes {
    /// The connection of each session, by partition and by the session's id or nonce; ids are unique within a partition only.
    connections: HashMap<(PartitionId, u64), usize>,
    nonces: SplitMix,
}

impl Routes {
    /// Draws the nonce for a session that a connection asks for.
    fn draw(&mut self, pid: PartitionId, connection: usize) -> u64 {
        let nonce = once::unnamed(self.nonces.draw());
        self.connections.insert((pid, nonce), connection);
        nonce
    }
}

struct Server<P> {
    poll: Poll,
    listener: Option<TcpListener>,
    accept_again: bool,
    tls: Option<tls::Server>,
    handshakes: Handshakes,
    strangers: Strangers,
    peers: Vec<Option<Box<Peer>>>,
    free: Vec<usize>,
    log: Log<P>,
    routes: Routes,
    names: Names,
    reads: ReadQueue,
    census: Census,
    herald: Herald,
    /// The reports of the clock, if Redis itself is replicated.
    clock_reports: Option<ClockReports>,
    /// The number of connections that have commands in flight.
    under_way: usize,
    /// The number of values that these connections share. If there are more connections, each has one value.
    shared_values: usize,
    held: Held,
    mailbox: Mailbox,
    shared: Shared,
    /// The bytes that all connections keep in memory.
    memory: usize,
    session_idle: Duration,
    next_idle_check: Instant,
    shutdown_timeout: Duration,
    stop_at: Option<Instant>,
    last_client: u64,
    read_buffer: Vec<u8>,
    /// Connections that have more to do than the turn had time for.
    again: Vec<usize>,
    /// The walker is dropped after the connections, so that it has no client left to walk for.
    walker: Walker,
}

impl<P: Plane> Server<P> {
    fn new(settings: Settings, plane: P) -> io::Result<Server<P>> {
        let partitions = settings.deployment.partitions;
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err(io::Error::other(format!(
                "the front end serves groups of 1 to {MAX_PARTITIONS} partitions, not {partitions}"
            )));
        }
        let poll = Poll::new()?;
        let this = Neighbour {
            node: settings.deployment.node,
            address: settings.listener.local_addr()?,
            tls: settings.tls.is_some(),
        };
        settings.listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(settings.listener);
        let log = Log::new(
            ProposerSettings {
                deployment: settings.deployment,
                retry_after: settings.retry_after,
                ask_after: settings.retry_after.saturating_mul(ASK_AFTER),
                nonce: settings.seed,
                max_open_values: settings.max_open_values,
            },
            plane,
        );
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        registry.register(&mut SourceFd(&log.plane_fd()), PLANE, Interest::READABLE)?;
        let mailbox = Mailbox::new(registry, MAILBOX)?;
        let walker = Walker::start(mailbox.clone(), partitions, settings.max_answer_bytes)?;
        let front_ends = settings.others.len() + 1;
        let clock_reports = settings.native.as_ref();
        let clock_reports = clock_reports
            .map(|native| ClockReports::new(native, front_ends, settings.deployment.max_value));
        let news = settings.native.as_ref().map(Native::news);
        let start = news.map_or(0, |_| settings.seed);
        let own = (settings.deployment.node, start);
        let news = news.cloned().unwrap_or_default();
        Ok(Server {
            poll,
            listener: Some(listener),
            accept_again: false,
            tls: settings.tls,
            handshakes: Handshakes::new(settings.max_handshakes, settings.handshake_timeout),
            strangers: Strangers::new(settings.authentication_timeout),
            peers: Vec::new(),
            free: Vec::new(),
            log,
            routes: Routes {
                connections: HashMap::new(),
                nonces: SplitMix::new(settings.seed),
            },
            names: Names::default(),
            reads: ReadQueue::new(partitions),
            census: Census::new(partitions),
            herald: Herald::default(),
            clock_reports,
            under_way: 0,
            shared_values: settings.max_open_values / 2,
            held: Held::default(),
            mailbox,
            shared: Shared {
                partitions,
                order: settings.order,
                without_log: settings.reads == Reads::Quorum,
                ways: settings.native.as_ref().map_or(Vec::new(), dispatch::ways),
                native: settings.native,
                password: settings.password,
                max_value: usize::from(settings.deployment.max_value),
                max_clients: settings.max_clients,
                max_output_bytes: settings.max_output_bytes,
                max_memory_bytes: settings.max_memory_bytes,
                max_answer_bytes: settings.max_answer_bytes,
                this,
                others: settings.others,
                describe: settings.describe,
                metrics: Arc::default(),
                keys: (0..partitions).map(|_| AtomicU64::new(u64::MAX)).collect(),
                started: Instant::now(),
                waits: RefCell::new(Waits::new(news.clone())),
                channels: RefCell::new(Channels::new(news, own)),
                jobs: RefCell::default(),
                turn: Turn::default(),
                pause: RefCell::new(Pause::default()),
            },
            memory: 0,
            session_idle: settings.session_idle,
            next_idle_check: Instant::now() + settings.session_idle / 4,
            shutdown_timeout: settings.shutdown_timeout,
            stop_at: None,
            last_client: 0,
            read_buffer: vec![0; READ_BYTES],
            again: Vec::new(),
            walker,
        })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut mail = Mail::default();
        // Clients may have connected already, and must wait, too, if the group has no time yet.
        self.shared.native.iter().for_each(Native::look_at_clock);
        self.report_clock();
        while !self.is_done() {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => panic!("the front end cannot wait for its sockets: {e}"),
            }
            self.handshakes.begin_turn();
            self.shared.native.iter().for_each(Native::look_at_clock);
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    MAILBOX => self.take_mail(&mut mail),
                    PLANE => self.log.receive(),
                    Token(token) => {
                        let index = token - FIRST_CONNECTION;
                        if let Some(Some(peer)) = self.peers.get_mut(index) {
                            peer.readable |= event.is_readable();
                            peer.is_closing |= event.is_read_closed();
                            self.pump(index);
                        }
                    }
                }
            }
            if self.accept_again {
                self.accept();
            }
            for index in std::mem::take(&mut self.again) {
                self.pump(index);
            }
            self.report_clock();
            self.do_jobs();
            let now = Instant::now();
            self.write_held(now);
            self.act_on_waits(now);
            self.go_on_after_pause();
            self.end_late_handshakes();
            self.end_late_strangers();
            self.release_idle_sessions();
            self.tell_others(now);
            self.reads.look(&self.mailbox);
            self.census.follow(&mut self.reads, &self.shared);
            self.reads.send(&self.mailbox);
            self.log.tick();
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let is_untidy = self.shared.channels.borrow_mut().audience().is_untidy();
        let has_jobs = !self.shared.jobs.borrow().is_empty();
        if !self.again.is_empty() || has_jobs || is_untidy || self.shared.waits.borrow().is_busy() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let retry = self
            .log
            .next_deadline()
            .map(|due| Duration::from_nanos(due.saturating_sub(self.log.now())));
        let accept = self.accept_again.then_some(ACCEPT_AGAIN);
        let open = !self.routes.connections.is_empty();
        let idle = open.then(|| self.next_idle_check.saturating_duration_since(now));
        let stop = self.stop_at.map(|at| at.saturating_duration_since(now));
        let connected = self.clients() > 0;
        let goes_on = self.stop_at.is_none();
        let herald = goes_on.then(|| self.herald.next_deadline(&self.shared));
        let herald = herald.flatten();
        let herald = herald.map(|at| at.saturating_duration_since(now));
        let census = connected.then(|| self.census.due_in(now));
        let handshake = self.handshakes.next_deadline();
        let handshake = handshake.map(|at| at.saturating_duration_since(now));
        let stranger = self.strangers.next_deadline();
        let stranger = stranger.map(|at| at.saturating_duration_since(now));
        let waits = self.shared.waits.borrow().next_deadline();
        let waits = waits.map(|at| at.saturating_duration_since(now));
        let pause = self.shared.pause.borrow().deadline();
        let pause = pause.map(|at| at.saturating_duration_since(now));
        let reports = self.clock_reports.as_ref();
        let reports = reports.filter(|_| self.stop_at.is_none());
        let report = reports.map(|r| r.due_in(now));
        let held = self.held.next_deadline();
        let held = held.map(|at| at.saturating_duration_since(now));
        let all = [
            retry, accept, idle, stop, census, handshake, stranger, waits, pause, held, herald,
            report,
        ];
        all.into_iter().flatten().min()
    }

    // ---- Connections

    /// Returns the number of connections, without the front end's own.
    fn clients(&self) -> usize {
        self.peers.len() - self.free.len() - usize::from(self.herald.is_there())
    }

    /// Returns a free place for one more connection.
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        })
    }

    fn accept(&mut self) {
        self.accept_again = false;
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, address)) => self.add(stream, address),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if is_of_the_client(&e) => {}
                Err(_) => {
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn add(&mut self, mut stream: TcpStream, address: SocketAddr) {
        let metrics = self.shared.metrics.clone();
        let is_full = self.clients() >= self.shared.max_clients;
        if is_full && !self.make_a_place() {
            Metrics::add(&metrics.connections_refused);
            if self.tls.is_none() {
                // Only the bytes that fit at once are sent: the front end waits for no client.
                let _ = stream.write(format!("-{TOO_MANY_CLIENTS}\r\n").as_bytes());
            }
            return;
        }
        let Ok(session) = self.tls.as_mut().map(tls::Server::session).transpose() else {
            return Metrics::add(&metrics.connections_refused);
        };
        if let Some(tls) = &self.tls {
            let trouble = tls.is_in_trouble().into();
            metrics.tls_trouble.store(trouble, Relaxed);
        }
        let index = self.place();
        let token = Token(FIRST_CONNECTION + index);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = stream
            .set_nodelay(true)
            .and_then(|()| self.poll.registry().register(&mut stream, token, interest));
        if registered.is_err() {
            self.free.push(index);
            return;
        }
        Metrics::add(&metrics.connections);
        Metrics::add(&metrics.connected);
        self.last_client += 1;
        let local_address = stream.local_addr().unwrap_or(address);
        let client = Client {
            authenticated: self.shared.password.is_none(),
            ..Client::new(self.last_client, index, address, local_address)
        };
        let stream = Stream::new(stream, session);
        self.peers[index] = Some(Box::new(Peer::new(client, Some(stream))));
        self.begin_handshake(index);
        self.meet(index);
        self.pump(index);
    }

    // ---- Strangers

    fn meet(&mut self, index: usize) {
        let peer = self.peers[index].as_ref().expect("a connection");
        if !peer.connection.client.authenticated {
            self.strangers.meet(peer.whose(index), Instant::now());
        }
    }

    fn is_stranger(&self, of: handshakes::Whose) -> bool {
        let peer = self.peers[of.index].as_ref();
        let client = peer.map(|peer| &peer.connection.client);
        client.is_some_and(|client| client.id == of.client && !client.authenticated)
    }

    /// Removes the client that has been connected longest without authenticating; returns false if there is none.
    fn make_a_place(&mut self) -> bool {
        while let Some(first) = self.strangers.first() {
            if self.is_stranger(first) {
                self.remove(first.index);
                return true;
            }
        }
        false
    }

    fn end_late_strangers(&mut self) {
        let now = Instant::now();
        while let Some(late) = self.strangers.late(now) {
            if self.is_stranger(late) {
                self.remove(late.index);
            }
        }
    }

    // ---- Handshakes

    /// Begins the handshake if the connection has one; the oldest one is given up if there are too many.
    fn begin_handshake(&mut self, index: usize) {
        let peer = self.peers[index].as_ref().expect("a connection");
        if !peer.is_handshaking() {
            return;
        }
        let (whose, now) = (peer.whose(index), Instant::now());
        if let Some(first) = self.handshakes.begin(whose, now) {
            self.give_up_handshake(first);
        }
    }

    /// Continues the handshake if this turn has time for it; returns true if it is done.
    fn shake_hands(&mut self, index: usize) -> bool {
        if !self.handshakes.have_time() {
            self.again.push(index);
            return false;
        }
        let begun = Instant::now();
        let peer = self.peers[index].as_mut().expect("a connection");
        let (whose, client) = (peer.whose(index), peer.connection.client.address);
        let done = peer.shake_hands(&mut self.read_buffer);
        let now = Instant::now();
        self.handshakes.spend(now - begun);
        let metrics = self.shared.metrics.clone();
        match done {
            Ok(false) => return false,
            Ok(true) => {
                Metrics::add(&metrics.tls_handshakes);
                self.handshakes.end(whose);
                return true;
            }
            Err(e) => match stream::failure(&e) {
                None => Metrics::add(&metrics.tls_unfinished),
                Some(failure) => {
                    Metrics::add(match failure {
                        Failure::Plain => &metrics.tls_missing,
                        Failure::Refused(_) => &metrics.tls_refused,
                    });
                    self.handshakes.say(client, &failure.to_string(), now);
                }
            },
        }
        self.remove(index);
        false
    }

    fn end_late_handshakes(&mut self) {
        let now = Instant::now();
        while let Some(late) = self.handshakes.late(now) {
            self.give_up_handshake(late);
        }
    }

    fn give_up_handshake(&mut self, of: handshakes::Whose) {
        let peer = self.peers[of.index].as_ref();
        if peer.is_some_and(|peer| peer.connection.client.id == of.client) {
            Metrics::add(&self.shared.metrics.tls_unfinished);
            self.remove(of.index);
        }
    }

    // ---- What connections do

    /// Lets a connection do what it can: read, execute, propose, write, end.
    fn pump(&mut self, index: usize) {
        self.shared.turn.begin();
        for _ in 0..ROUNDS {
            let Some(Some(peer)) = self.peers.get_mut(index) else {
                return;
            };
            if peer.is_handshaking() && !self.shake_hands(index) {
                return;
            }
            let peer = self.peers[index].as_mut().expect("still there");
            peer.connection.run(&self.shared);
            while !self.shared.turn.is_over() && self.tell_of_clients(index) {}
            self.propose(index);
            let keeps_answers = self.keeps_answers(index);
            let peer = self.peers[index].as_mut().expect("still there");
            let wrote = !keeps_answers && peer.write();
            if peer.connection.answer_bytes() > peer.connection.output_limit(&self.shared) {
                Metrics::add(&self.shared.metrics.output_limit_reached);
                peer.abandon();
            }
            let read = peer.read(&mut self.read_buffer);
            if peer.connection.waits_in_vain() {
                peer.abandon();
            }
            if peer.is_finished() {
                return self.remove(index);
            }
            self.count_memory(index);
            if self.shared.turn.is_over() {
                break;
            }
            if !wrote && !read {
                return;
            }
        }
        self.again.push(index);
    }

    /// Returns true if the connection's answers wait for further ones, to be sent together.
    fn keeps_answers(&mut self, index: usize) -> bool {
        let peer = self.peers[index].as_mut().expect("a connection");
        let of = &mut peer.confirmation;
        if self.stop_at.is_none() && self.herald.keeps(&peer.connection.client, of, &self.shared) {
            return true;
        }
        let (connection, client) = (&peer.connection, peer.connection.client.id);
        let has_room = connection.answer_bytes() <= connection.output_limit(&self.shared);
        if !connection.has_followers() || !has_room {
            peer.hold = Hold::default();
            return false;
        }
        let (whose, now) = (Waiter { index, client }, Instant::now());
        let bytes = connection.pending_output().len();
        self.held.keeps(&mut peer.hold, whose, now, bytes)
    }

    /// Writes the answers that have waited for others long enough.
    fn write_held(&mut self, now: Instant) {
        while let Some(waiter) = self.held.take_due(now) {
            if peer_of(&mut self.peers, waiter).is_some() {
                self.pump(waiter.index);
            }
        }
    }

    fn remove(&mut self, index: usize) {
        let Some(mut peer) = self.peers[index].take() else {
            return;
        };
        self.free.push(index);
        self.under_way -= usize::from(peer.is_under_way);
        self.memory -= peer.memory;
        match self.herald.ends(peer.connection.client.waiter()) {
            true => {
                let now = Instant::now();
                self.shared.channels.borrow_mut().audience().lost(now);
            }
            false => {
                self.shared.metrics.connected.fetch_sub(1, Relaxed);
            }
        }
        self.drop_lanes(index, &mut peer.connection);
        self.handshakes.end(peer.whose(index));
        if let Some(mut stream) = peer.stream {
            stream.close();
            // Closing the socket ends its registration as well.
            let _ = self.poll.registry().deregister(stream.socket());
        }
    }

    // ---- Questions about all clients

    /// Answers a connection's question about all clients and lets the connection continue; returns false if it has none.
    fn tell_of_clients(&mut self, index: usize) -> bool {
        let peer = self.peers[index].as_mut().expect("a connection");
        let Some((number, ask)) = peer.connection.take_ask() else {
            return false;
        };
        let itself = peer.connection.client.id;
        if ask != Ask::Info {
            self.shared.turn.spend(self.peers.len() * LOOK_UP);
        }
        let peer = self.peers[index].as_ref().expect("a connection");
        let answer = match ask {
            Ask::Info => Told::Text(format!("{}\n", peer.connection.describe())),
            Ask::List(listed) => {
                let list = self.list(&listed);
                self.shared.turn.copy(list.len());
                Told::Text(list)
            }
            Ask::Kill(kill) => {
                let killed = self.kill(itself, |client| kill.fits(client));
                match (kill.is_old, killed) {
                    (false, killed) => Told::Number(killed as i64),
                    (true, 0) => Told::Error("ERR No such client"),
                    (true, _) => Told::Ok,
                }
            }
        };
        let peer = self.peers[index].as_mut().expect("a connection");
        peer.connection
            .on_told(number, &self.shared, |writer| match answer {
                Told::Text(text) => writer.verbatim(&text),
                Told::Number(number) => writer.integer(number),
                Told::Ok => writer.status("OK"),
                Told::Error(why) => writer.error(why),
            });
        peer.connection.run(&self.shared);
        true
    }

    /// Returns a line for each of these clients. A connection in its handshake is no client yet.
    fn list(&self, listed: &Listed) -> String {
        let peers = self.peers.iter().flatten();
        let clients = peers.filter(|peer| peer.stream.is_some() && !peer.is_handshaking());
        let line = |connection: &Connection| format!("{}\n", connection.describe());
        let mut all: Vec<&Connection> = clients.map(|peer| &peer.connection).collect();
        all.sort_unstable_by_key(|connection| connection.client.id);
        match listed {
            Listed::All => all.into_iter().map(line).collect(),
            Listed::Of(of) => {
                let is_it = |connection: &&Connection| of.is_of(&connection.client);
                all.into_iter().filter(is_it).map(line).collect()
            }
            Listed::These(ids) => {
                let by_id = |id: &u64| {
                    let at = all.binary_search_by_key(id, |connection| connection.client.id);
                    at.ok().map(|at| line(all[at]))
                };
                ids.iter().filter_map(by_id).collect()
            }
        }
    }

    /// Ends the clients that fit and returns their number. If the client that asks is one of them, it still gets its answer.
    fn kill(&mut self, itself: u64, fits: impl Fn(&Client) -> bool) -> usize {
        let mut killed = 0;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let client = &peer.connection.client;
            if peer.stream.is_none() || !fits(client) {
                continue;
            }
            killed += 1;
            match client.id == itself {
                true => peer.connection.end(),
                false => {
                    peer.abandon();
                    self.again.push(index);
                }
            }
        }
        killed
    }

    /// Reports to the group what time most nodes have. Clients wait while the group has no time yet.
    fn report_clock(&mut self) {
        let (Some(native), Some(reports)) = (&self.shared.native, &mut self.clock_reports) else {
            return;
        };
        let metrics = &self.shared.metrics;
        metrics.servers_bytes.store(native.seen().memory(), Relaxed);
        let max = native.max_memory().unwrap_or(0);
        metrics.servers_max_bytes.store(max, Relaxed);
        if self.stop_at.is_none() {
            let nonces = &mut self.routes.nonces;
            reports.report(&mut self.log, native, || once::unnamed(nonces.draw()));
        }
        let wait = reports.waits_for_time(native);
        self.shared.pause.borrow_mut().wait_for_time(wait);
    }

    fn go_on_after_pause(&mut self) {
        let over = self.shared.pause.borrow_mut().take_over(Instant::now());
        for index in over {
            if let Some(Some(peer)) = self.peers.get_mut(index) {
                peer.connection.go_on();
                self.again.push(index);
            }
        }
    }

    // ---- Memory

    fn count_memory(&mut self, index: usize) {
        let Some(Some(peer)) = self.peers.get_mut(index) else {
            return;
        };
        let memory = peer.memory_now();
        self.memory = self.memory - peer.memory + memory;
        peer.memory = memory;
        if self.memory > self.shared.max_memory_bytes {
            self.evict();
        }
        let now = self.memory as u64;
        self.shared.metrics.memory_bytes.store(now, Relaxed);
    }

    /// Gives up those clients whose connections keep most memory, until there is room. Clients that haven't authenticated go
    /// first, clients that are to be kept go last.
    fn evict(&mut self) {
        self.shared.turn.spend(self.peers.len() * LOOK_UP);
        let peers = self.peers.iter().enumerate();
        let connected = peers.filter_map(|(index, peer)| {
            let peer = peer.as_ref().filter(|peer| peer.stream.is_some())?;
            let client = &peer.connection.client;
            Some((!client.authenticated, !client.is_kept, peer.memory, index))
        });
        let mut all: BinaryHeap<_> = connected.collect();
        while self.memory > self.shared.max_memory_bytes {
            let Some((.., index)) = all.pop() else { return };
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            Metrics::add(&self.shared.metrics.evicted);
            peer.abandon();
            self.memory -= peer.memory;
            peer.memory = peer.memory_now();
            self.memory += peer.memory;
            self.again.push(index);
        }
    }

    // ---- Sessions

    /// Sends the connection's commands that may be sent now, and opens the sessions that they need.
    ///
    /// The connections with commands in flight share half of the values that a partition may have open, and each gets
    /// at most [`MOST_VALUES`]. So a pipeline needs few round trips, and nobody waits behind many values of another
    /// connection.
    fn propose(&mut self, index: usize) {
        let peer = self.peers[index].as_mut().expect("a connection");
        let others = self.under_way - usize::from(peer.is_under_way);
        let values = (self.shared_values / (others + 1)).clamp(1, MOST_VALUES);
        let connection = &mut peer.connection;
        let mut sink = ToLog {
            log: &mut self.log,
            routes: &mut self.routes,
            names: &mut self.names,
            reads: &mut self.reads,
            index,
            client: connection.client.id,
            max_value: self.shared.max_value,
        };
        connection.propose(&self.shared, values, &mut sink);
        peer.is_under_way = connection.is_under_way();
        self.under_way = others + usize::from(peer.is_under_way);
    }

    fn take_mail(&mut self, mail: &mut Mail) {
        self.mailbox.take(mail);
        if mail.leader_changed {
            self.log.leader_changed();
        }
        for (pid, sessions) in &mail.sessions {
            self.take_sessions(*pid, sessions);
        }
        self.hear(mail);
        let now = self.log.now();
        for answer in mail.answers() {
            self.shared.turn.begin();
            self.on_answer(now, &answer);
        }
        for (number, answer) in mail.reads.iter() {
            self.on_read(number, answer);
        }
        for (whose, found) in &mail.walked {
            self.on_walked(*whose, found);
        }
        for (pid, event) in &mail.news {
            self.on_news(*pid, event);
        }
        if mail.shut_down {
            self.begin_shutdown();
        }
        mail.clear();
    }

    /// Takes an answer to a report of the clock; returns false if the answer belongs to something else.
    fn take_clock_report(
        &mut self,
        pid: PartitionId,
        client: u64,
        answer: (u64, Option<Status>, Option<u64>),
    ) -> bool {
        let (Some(native), Some(reports)) = (&self.shared.native, &mut self.clock_reports) else {
            return false;
        };
        let is_report = reports.owns(pid, client);
        if is_report {
            reports.take(&mut self.log, native, pid, answer);
            reports.show(native, &self.shared.metrics);
        }
        is_report
    }

    fn on_answer(&mut self, now: Time, answer: &Answer<'_>) {
        let status = Status::from_u8(answer.status);
        let Answer { pid, client, .. } = *answer;
        let awaited = self.log.answered(now, answer);
        let key = (pid, client, answer.request);
        let opened_id = opened(answer);
        let taken = self
            .names
            .take(&mut self.log, key, status, opened_id, awaited);
        if let Taken::Told(waiters, status) = taken {
            return self.tell(&waiters, status, answer.bytes);
        }
        let report = (answer.request, status, opened_id);
        if awaited && self.take_clock_report(pid, client, report) {
            return;
        }
        let route = self.routes.connections.get(&(pid, client));
        let Some(&index) = route.filter(|_| awaited) else {
            if let Some(id) = opened(answer) {
                self.close_unless_ours(pid, id, client);
            }
            return;
        };
        let peer = self.peers[index].as_mut().expect("routes end with it");
        let connection = &mut peer.connection;
        let lane = connection.lane(pid).expect("routes end with it");
        match (lane.session, status) {
            (Session::Opening(_), _) => {
                self.routes.connections.remove(&(pid, client));
                match opened(answer) {
                    Some(id) => {
                        lane.session = Session::Open(id);
                        self.routes.connections.insert((pid, id), index);
                    }
                    None => {
                        Metrics::add(&self.shared.metrics.connections_refused);
                        lane.session = Session::None;
                        self.give_up(index, TOO_MANY_CLIENTS);
                    }
                }
            }
            (_, Some(Status::UnknownSession)) => {
                Metrics::add(&self.shared.metrics.sessions_lost);
                self.lose_session(index, pid, client);
            }
            _ => {
                let request = (pid, answer.request);
                let wanted = connection.on_answer(request, status, answer.bytes, &self.shared);
                if let Some((number, pattern, awaited)) = wanted {
                    let client = connection.client.id;
                    self.walker.walk(Walk {
                        whose: Whose {
                            index,
                            client,
                            number,
                        },
                        pattern,
                        awaited,
                    });
                }
                if status.is_some_and(|status| status.effect(true) == Effect::Refused) {
                    self.leave_session(index, pid, client);
                }
            }
        }
        // Answers often come together, so the connection is noted once; it is served before the loop waits again.
        if self.again.last() != Some(&index) {
            self.again.push(index);
        }
    }

    /// Gives the answer to a command in a name's session to all connections that wait for it. [S-NAMED]
    fn tell(&mut self, waiters: &[Waiter], status: Option<Status>, bytes: &[u8]) {
        for waiter in waiters {
            if let Some(peer) = peer_of(&mut self.peers, *waiter) {
                peer.connection.on_named(status, bytes, &self.shared);
                self.again.push(waiter.index);
            }
        }
    }

    /// Takes the answer to a read without the log. Its connection may be gone, with another one in its place.
    fn on_read(&mut self, number: u64, answer: Option<&[u8]>) {
        let Some(index) = ReadQueue::index_of(number) else {
            return self.census.take(number, answer, &self.shared);
        };
        if let Some(Some(peer)) = self.peers.get_mut(index) {
            peer.connection.on_read(number, answer, &self.shared);
            if self.again.last() != Some(&index) {
                self.again.push(index);
            }
        }
    }

    // ---- News of Redis servers

    fn on_news(&mut self, pid: PartitionId, event: &Event) {
        match event {
            Event::Changed(key) => self.shared.waits.borrow_mut().changed(key),
            Event::AnyChanged => self.shared.waits.borrow_mut().any_changed(pid, false),
            Event::Message(message) if message.is_of_front_ends() => {}
            Event::Message(message) => self.deliver(message),
            Event::Leapt => {
                self.shared.waits.borrow_mut().any_changed(pid, true);
                self.end_subscribers();
            }
        }
    }

    fn deliver(&mut self, message: &Message) {
        let job = Job::Deliver {
            message: message.clone(),
            round: Round::default(),
        };
        self.push_message(job);
    }

    fn push_message(&mut self, job: Job) {
        let has_room = self.shared.jobs.borrow_mut().push(job);
        if !has_room {
            self.end_subscribers();
            self.shared.channels.borrow_mut().audience().leapt();
        }
    }

    // ---- Messages of front ends

    /// Queues the other front ends' messages before any answer is taken: a client that asks for counts relies on what was said
    /// before. [S-AUDIENCE]
    fn hear(&mut self, mail: &Mail) {
        for (pid, event) in &mail.news {
            match event {
                Event::Message(message) if message.is_of_front_ends() => {
                    let text = message.text.clone();
                    self.push_message(Job::Hear { text, at: 0 });
                }
                Event::Leapt if *pid == 0 => self.shared.channels.borrow_mut().audience().leapt(),
                _ => {}
            }
        }
    }

    /// Sends the message that is due to the other front ends, over the front end's own connection.
    fn tell_others(&mut self, now: Instant) {
        let confirmed = self.herald.take_confirmed(&self.shared, now);
        self.again.extend(confirmed);
        let (Some(native), None) = (&self.shared.native, self.stop_at) else {
            return;
        };
        self.shared.turn.begin();
        let mut channels = self.shared.channels.borrow_mut();
        let Some(text) = channels.say(now, &self.shared.turn) else {
            return;
        };
        drop(channels);
        let mut bytes = Vec::new();
        let message = survey::message(&text);
        put_call(&mut bytes, native.stamp(), false, &message);
        let own = self.own_place();
        let peer = peer_of(&mut self.peers, own).expect("it is told when it ends");
        peer.connection.say(bytes);
        self.pump(own.index);
    }

    /// Returns the place of the front end's own connection, which is made if there is none.
    fn own_place(&mut self) -> Waiter {
        if let Some(own) = self.herald.place() {
            return own;
        }
        let index = self.place();
        self.last_client += 1;
        let client = self.last_client;
        let here = self.shared.this.address;
        let own = Waiter { index, client };
        let client = Client::new(client, index, here, here);
        self.peers[index] = Some(Box::new(Peer::new(client, None)));
        self.herald.begin(own);
        own
    }

    // ---- Jobs

    /// Continues the jobs that belong to no connection's turn.
    fn do_jobs(&mut self) {
        self.shared.turn.begin();
        let mut channels = self.shared.channels.borrow_mut();
        channels.audience().forget_silent(Instant::now());
        channels.audience().tidy(&self.shared.turn);
        drop(channels);
        self.do_each(Jobs::pop, Jobs::put_back);
        self.do_each(Jobs::pop_aside, Jobs::put_aside);
    }

    fn do_each(&mut self, pop: fn(&mut Jobs) -> Option<Job>, put_back: fn(&mut Jobs, Job)) {
        self.shared.turn.begin();
        while !self.shared.turn.is_over() {
            let Some(job) = pop(&mut self.shared.jobs.borrow_mut()) else {
                return;
            };
            if let Some(job) = self.go_on_with(job) {
                put_back(&mut self.shared.jobs.borrow_mut(), job);
            }
        }
    }

    /// Continues one job; returns it if it isn't done.
    fn go_on_with(&mut self, mut job: Job) -> Option<Job> {
        let turn = &self.shared.turn;
        let is_done = match &mut job {
            Job::Deliver { message, round } => self.hand_out(message, round),
            Job::Hear { text, at } => {
                let mut channels = self.shared.channels.borrow_mut();
                channels.audience().hear(text, at, Instant::now(), turn)
            }
            Job::Count {
                asker,
                number,
                survey,
            } => {
                let peer = peer_of(&mut self.peers, *asker)?;
                let is_gone = peer.stream.is_none();
                let is_done = is_gone || survey.go_on(&self.shared.channels.borrow(), turn);
                if is_done {
                    peer.connection.on_counted(*number, survey, &self.shared);
                    self.again.push(asker.index);
                }
                is_done
            }
            Job::Fill {
                asker,
                number,
                filling,
            } => {
                let peer = peer_of(&mut self.peers, *asker)?;
                let is_gone = peer.stream.is_none();
                let is_done = is_gone || filling.go_on(&self.shared.channels.borrow(), turn);
                if is_done {
                    peer.connection.on_filled(*number, filling, &self.shared);
                    self.again.push(asker.index);
                }
                is_done
            }
            Job::Leave {
                client,
                subscriptions,
            } => {
                let mut channels = self.shared.channels.borrow_mut();
                channels.leave(subscriptions, *client, turn)
            }
        };
        (!is_done).then_some(job)
    }

    /// Hands a message out until the turn is over; returns true if everybody has got it.
    fn hand_out(&mut self, message: &Message, round: &mut Round) -> bool {
        let Server {
            peers,
            again,
            shared,
            ..
        } = self;
        let (channels, turn) = (shared.channels.borrow(), &shared.turn);
        let to = (message.channel.as_slice(), message.is_sharded);
        channels.go_on(round, to, turn, |mut found| {
            while !turn.is_over() {
                let Some(waiter) = found.next() else {
                    return true;
                };
                turn.spend(LOOK_UP);
                let Some(peer) = peer_of(peers, waiter).filter(|peer| peer.stream.is_some()) else {
                    continue;
                };
                let connection = &mut peer.connection;
                let resp3 = connection.client.resp3;
                let frame = channels::frame(found.kind, found.pattern, message, resp3);
                turn.copy(2 * frame.len());
                connection.push_message(frame);
                if connection.answer_bytes() > connection.output_limit(shared) {
                    Metrics::add(&shared.metrics.output_limit_reached);
                    peer.abandon();
                }
                if again.last() != Some(&waiter.index) {
                    again.push(waiter.index);
                }
            }
            false
        })
    }

    /// Ends the connections of all subscribers, because messages were missed. A broken connection tells them so, as with any
    /// other server.
    fn end_subscribers(&mut self) {
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if !peer.connection.client.subscriptions.is_empty() {
                peer.abandon();
                self.again.push(index);
            }
        }
    }

    /// Lets waiting clients try again, or ends their wait.
    fn act_on_waits(&mut self, now: Instant) {
        self.shared.turn.begin();
        let mut waits = self.shared.waits.borrow_mut();
        waits.go_on(now, &self.shared.turn);
        drop(waits);
        self.shared.turn.begin();
        while !self.shared.turn.is_over() {
            let act = self.shared.waits.borrow_mut().next_act();
            let Some((waiter, act)) = act else { return };
            self.shared.turn.spend(LOOK_UP);
            let peer = peer_of(&mut self.peers, waiter);
            let goes_on = match (peer, act) {
                (None, _) => false,
                (Some(peer), Act::Try(first)) => peer.connection.try_wait(&first, &self.shared),
                (Some(peer), Act::Answer(answer)) => {
                    peer.connection.wait_is_over(&answer, &self.shared);
                    true
                }
            };
            match goes_on {
                true => self.again.push(waiter.index),
                false => self.shared.waits.borrow_mut().leave(waiter.client),
            }
        }
    }

    /// Gives KEYS its answer. Its client may be gone, with another one in its place.
    fn on_walked(&mut self, whose: Whose, found: &Found) {
        let waiter = Waiter {
            index: whose.index,
            client: whose.client,
        };
        if let Some(peer) = peer_of(&mut self.peers, waiter) {
            peer.connection.walked(whose.number, found, &self.shared);
            self.again.push(whose.index);
        }
    }

    /// Handles that a session has expired. If it is certain that nothing in flight took effect, the commands go into another
    /// session and nobody notices; otherwise the connection ends. [S-ANEW]
    fn lose_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        let connection = &mut self.peers[index].as_mut().expect("a connection").connection;
        let Some(lane) = connection.lane(pid) else {
            return;
        };
        if !lane.is_loss_certain() {
            return self.give_up(index, "ERR not executed: the session is lost");
        }
        self.take_out_of_session(index, pid, id);
    }

    /// Leaves a session in which a command was refused: it executes none of the commands behind that one, so they go into
    /// another session. [S-ORDERED] [S-SAYS]
    fn leave_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        self.take_out_of_session(index, pid, id);
        self.log.close_session(pid, id);
    }

    /// Takes the commands in flight out of a session in which they take no effect; they wait for another one.
    fn take_out_of_session(&mut self, index: usize, pid: PartitionId, id: u64) {
        let connection = &mut self.peers[index].as_mut().expect("a connection").connection;
        let numbers = connection.lane(pid).map(|lane| lane.numbers());
        for number in numbers.unwrap_or_default() {
            self.log.forget(pid, id, number);
        }
        self.routes.connections.remove(&(pid, id));
        connection.lose_session(pid);
    }

    /// Ends a connection. Commands in flight may take effect, all others fail with this error.
    fn give_up(&mut self, index: usize, error: &str) {
        let mut peer = self.peers[index].take().expect("a connection");
        self.drop_lanes(index, &mut peer.connection);
        peer.connection.fail_all(error, &self.shared);
        peer.connection.end();
        self.peers[index] = Some(peer);
    }

    /// Closes all sessions of a connection, and waits for no answers to it any more.
    fn drop_lanes(&mut self, index: usize, connection: &mut Connection) {
        let client = connection.client.id;
        self.shared.waits.borrow_mut().leave(client);
        let subscriptions = std::mem::take(&mut connection.client.subscriptions);
        if !subscriptions.is_empty() {
            let leave = Job::Leave {
                client,
                subscriptions,
            };
            // This job is no message, so it always has room.
            let _ = self.shared.jobs.borrow_mut().push(leave);
        }
        if let Some(named) = connection.named() {
            let waiter = Waiter { index, client };
            self.names.leave(&mut self.log, waiter, named);
        }
        for lane in connection.lanes() {
            match lane.session {
                Session::Open(id) => {
                    for number in lane.numbers() {
                        self.log.forget(lane.pid, id, number);
                    }
                    self.routes.connections.remove(&(lane.pid, id));
                    self.log.close_session(lane.pid, id);
                }
                // The session is closed as soon as its id arrives.
                Session::Opening(nonce) => {
                    self.routes.connections.remove(&(lane.pid, nonce));
                }
                Session::None => {}
            }
        }
    }

    /// Notes that the replica has taken another replica's state of a partition, in which these sessions are open.
    fn take_sessions(&mut self, pid: PartitionId, sessions: &[LocalSession]) {
        for peer in self.peers.iter_mut().flatten() {
            peer.connection.lanes().for_each(|lane| lane.overtake(pid));
        }
        for session in sessions {
            self.close_unless_ours(pid, session.id, session.nonce);
        }
    }

    /// Closes a session that answers to this front end but belongs to none of its connections: an earlier process opened it, or
    /// a late copy of an OPEN. Commands in flight in it take effect before it is closed, once, or never; nobody waits to learn
    /// which. [S-CLOSE]
    fn close_unless_ours(&mut self, pid: PartitionId, id: u64, nonce: u64) {
        let reports = self.clock_reports.as_ref();
        let ours = |number| {
            self.routes.connections.contains_key(&(pid, number))
                || reports.is_some_and(|reports| reports.owns(pid, number))
        };
        if !ours(id) && !ours(nonce) {
            self.log.close_session(pid, id);
        }
    }

    /// Closes the sessions that connections haven't used for long, before the replicas let them expire. The next command opens
    /// another one.
    fn release_idle_sessions(&mut self) {
        if Instant::now() < self.next_idle_check {
            return;
        }
        self.next_idle_check = Instant::now() + self.session_idle / 4;
        self.names.release(&mut self.log, self.session_idle);
        for peer in self.peers.iter_mut().flatten() {
            for (pid, id) in peer.connection.take_unused(self.session_idle) {
                self.routes.connections.remove(&(pid, id));
                self.log.close_session(pid, id);
            }
        }
    }

    // ---- The end

    fn begin_shutdown(&mut self) {
        self.stop_at = Some(Instant::now() + self.shutdown_timeout);
        self.listener = None;
        self.accept_again = false;
        for index in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[index] else {
                continue;
            };
            match peer.is_handshaking() {
                true => self.remove(index),
                false => {
                    peer.connection.end();
                    self.pump(index);
                }
            }
        }
    }

    /// Returns true if a shutdown has nothing left to wait for, or has waited long enough.
    fn is_done(&self) -> bool {
        let Some(stop_at) = self.stop_at else {
            return false;
        };
        let all_gone = self.peers.len() == self.free.len() && self.log.outstanding() == 0;
        all_gone || Instant::now() >= stop_at
    }
}

/// A connection's way to the log.
struct ToLog<'a, P> {
    log: &'a mut Log<P>,
    routes: &'a mut Routes,
    names: &'a mut Names,
    reads: &'a mut ReadQueue,
    /// The connection's index.
    index: usize,
    client: u64,
    max_value: usize,
}

impl<P: Plane> Sink for ToLog<'_, P> {
    fn open(&mut self, pid: PartitionId) -> u64 {
        let nonce = self.routes.draw(pid, self.index);
        self.log.open_session(pid, nonce, SESSION_WINDOW);
        nonce
    }

    fn send(&mut self, session: u64, request: u64, logged: &Logged) {
        self.log.submit(session, request, logged);
    }

    fn send_part(&mut self, pid: PartitionId, session: u64, number: u64, part: &[u8]) {
        self.log.submit_part(pid, session, number, part);
    }

    fn send_once(&mut self, once: Once, logged: Logged) {
        let waiter = Waiter {
            index: self.index,
            client: self.client,
        };
        self.names
            .push(self.log, waiter, once, logged, self.max_value);
    }

    fn can_read(&self) -> bool {
        self.reads.is_open
    }

    fn read(&mut self, pid: PartitionId, command: &[u8], stale: bool) -> u64 {
        self.reads.push(self.index, pid, command, stale)
    }
}

impl Peer {
    fn new(client: Client, stream: Option<Stream>) -> Peer {
        Peer {
            connection: Connection::new(client),
            readable: stream.is_some(),
            stream,
            is_closing: false,
            is_under_way: false,
            hold: Hold::default(),
            confirmation: Confirmation::default(),
            memory: 0,
        }
    }

    fn whose(&self, index: usize) -> handshakes::Whose {
        let client = self.connection.client.id;
        handshakes::Whose { index, client }
    }

    fn is_handshaking(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_handshaking)
    }

    /// Continues the handshake with what has arrived; returns true if it is done.
    fn shake_hands(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let stream = self.stream.as_mut().expect("who is at it has one");
        while stream.is_handshaking() {
            wait_is_no_error(stream.flush())?;
            let take = |said: &[u8]| self.connection.feed(said);
            match stream.read(buffer, take) {
                Ok(0) if stream.is_handshaking() => return Err(ErrorKind::UnexpectedEof.into()),
                // The client has already sent all that it wants to send.
                Ok(0) => self.connection.end_input(),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Returns true if all is executed, answered and sent, and no more will come.
    fn is_finished(&self) -> bool {
        let flushed = self.stream.as_ref().is_none_or(Stream::is_flushed);
        self.connection.is_finished() && flushed
    }

    fn memory_now(&self) -> usize {
        self.connection.memory() + self.stream.as_ref().map_or(0, Stream::memory)
    }

    /// Writes as much as the socket takes; returns true if it wrote anything.
    fn write(&mut self) -> bool {
        let flushed = self.stream.as_mut().map(Stream::flush);
        if flushed.is_some_and(|flushed| wait_is_no_error(flushed).is_err()) {
            self.lose();
        }
        let mut wrote = false;
        while !self.connection.pending_output().is_empty() {
            let Some(stream) = &mut self.stream else {
                self.connection.discard_output();
                return wrote;
            };
            match stream.write(self.connection.pending_output()) {
                Ok(len) => {
                    self.connection.output_sent(len);
                    wrote = true;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return wrote,
                Err(_) => self.lose(),
            }
        }
        wrote
    }

    /// Reads once if the connection wants input; returns true if anything came.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        if !self.readable || !self.connection.wants_input() {
            return false;
        }
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let take = |said: &[u8]| self.connection.feed(said);
        match stream.read(buffer, take) {
            Ok(0) => {
                self.readable = false;
                self.connection.end_input();
                true
            }
            Ok(len) => {
                // After a short read the socket is empty, and a later event tells of more. If its end was told with this event,
                // no later one comes.
                self.readable = len == buffer.len() || self.is_closing;
                true
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => true,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                false
            }
            Err(_) => {
                self.lose();
                true
            }
        }
    }

    /// Notes that the client is gone: the commands that it sent are still executed, and their answers are dropped.
    fn lose(&mut self) {
        self.stream = None;
        self.connection.discard_output();
        self.connection.end_input();
    }

    /// Gives the client up, as it costs too much or is no longer wanted.
    fn abandon(&mut self) {
        self.stream = None;
        self.connection.abandon();
    }
}

/// Lets a flush that must wait count as a success, since the bytes leave later.
fn wait_is_no_error(flushed: io::Result<()>) -> io::Result<()> {
    match flushed {
        Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
        _ => Ok(()),
    }
}

/// Returns the connection of a waiter, unless it is gone and another one is in its place.
fn peer_of(peers: &mut [Option<Box<Peer>>], waiter: Waiter) -> Option<&mut Box<Peer>> {
    let peer = peers.get_mut(waiter.index).and_then(Option::as_mut);
    peer.filter(|peer| peer.connection.client.id == waiter.client)
}

/// Returns the session's id if this is the answer to an OPEN that succeeded.
fn opened(answer: &Answer<'_>) -> Option<u64> {
    let ok = answer.request == 0 && Status::from_u8(answer.status) == Some(Status::Ok);
    let id = <[u8; 8]>::try_from(answer.bytes).ok().filter(|_| ok)?;
    Some(u64::from_be_bytes(id))
}

/// Returns true if an accept failed only because that one client is gone.
fn is_of_the_client(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}
