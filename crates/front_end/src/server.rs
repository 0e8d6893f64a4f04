// SPDX-License-Identifier: Apache-2.0
//! The front end's thread: one loop over the listener, the clients' sockets, the replica's answers
//! and the data plane.

mod accept;
mod census;
mod clients;
mod clock_difference;
mod clock_reports;
mod handshakes;
mod held_answers;
mod herald;
mod jobs;
mod mail;
mod messages;
mod peer;
mod peers;
mod pump;
mod server_report;
mod sessions;
mod strangers;
mod stream;
mod to_log;
mod walker;

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use paxos::Time;
use paxos::proposer::ProposerSettings;

use crate::commands::acl;
use crate::dispatch;
use crate::log::names::Names;
use crate::log::reads::ReadQueue;
use crate::log::{Log, Plane};
use crate::mailbox::{Mail, Mailbox};
use crate::metrics::Metrics;
use crate::native::Native;
use crate::partitions::MAX_PARTITIONS;
use crate::pubsub::channels::Channels;
use crate::server::census::Census;
use crate::server::clock_reports::ClockReports;
use crate::server::handshakes::Handshakes;
use crate::server::held_answers::HeldAnswers;
use crate::server::herald::Herald;
use crate::server::peers::Peers;
use crate::server::strangers::Strangers;
use crate::server::to_log::Routes;
use crate::server::walker::Walker;
use crate::settings::{Neighbour, Reads, Settings};
use crate::shared::Shared;
use crate::state::pause::Pause;
use crate::turns::Turn;
use crate::waits::Waits;

const LISTENER: Token = Token(0);
const MAILBOX: Token = Token(1);
const PLANE: Token = Token(2);
const FIRST_CONNECTION: usize = 3;

const READ_BYTES: usize = 64 << 10;
/// The wait after an accept that failed for lack of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The front end asks who leads once a command has waited for its answer this many times as long as
/// until its first repetition.
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

struct Server<P> {
    poll: Poll,
    listener: Option<TcpListener>,
    accept_again: bool,
    tls: Option<tls::Server>,
    handshakes: Handshakes,
    strangers: Strangers,
    peers: Peers,
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
    /// The number of values that these connections share. If there are more connections, each has
    /// one value.
    shared_values: usize,
    held: HeldAnswers,
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
        let front_ends = settings.others.get().len() + 1;
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
            peers: Peers::default(),
            log,
            routes: Routes::new(settings.seed),
            names: Names::default(),
            reads: ReadQueue::new(partitions),
            census: Census::new(partitions),
            herald: Herald::default(),
            clock_reports,
            under_way: 0,
            shared_values: settings.max_open_values / 2,
            held: HeldAnswers::default(),
            mailbox,
            shared: Shared {
                partitions,
                order: settings.order,
                without_log: settings.reads == Reads::Quorum,
                ways: settings.native.as_ref().map_or(Vec::new(), dispatch::ways),
                users: acl::users(settings.access, settings.native.as_ref())?,
                native: settings.native,
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
                        if let Some(peer) = self.peers.get_mut(index) {
                            peer.note(event.is_readable(), event.is_read_closed());
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
            self.census.measure(&mut self.reads, &self.shared);
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
        let open = !self.routes.is_empty();
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

    /// Returns the number of connections, without the front end's own.
    fn clients(&self) -> usize {
        self.peers.len() - usize::from(self.herald.is_there())
    }

    /// Reports to the group what time most nodes have. Clients wait while the group has no time
    /// yet.
    fn report_clock(&mut self) {
        let (Some(native), Some(reports)) = (&self.shared.native, &mut self.clock_reports) else {
            return;
        };
        let metrics = &self.shared.metrics;
        metrics.servers.used.store(native.seen().memory(), Relaxed);
        let max = native.max_memory().unwrap_or(0);
        metrics.servers.max.store(max, Relaxed);
        if self.stop_at.is_none() {
            let routes = &mut self.routes;
            reports.report(&mut self.log, native, || routes.draw_nonce());
        }
        let wait = reports.waits_for_time(native);
        self.shared.pause.borrow_mut().wait_for_time(wait);
    }

    // ---- The end

    fn begin_shutdown(&mut self) {
        self.stop_at = Some(Instant::now() + self.shutdown_timeout);
        self.listener = None;
        self.accept_again = false;
        for index in 0..self.peers.places() {
            let Some(peer) = self.peers.get_mut(index) else {
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
        let all_gone = self.peers.is_empty() && self.log.outstanding() == 0;
        all_gone || Instant::now() >= stop_at
    }
}
