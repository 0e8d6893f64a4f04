// SPDX-License-Identifier: Apache-2.0
//! Hands out a replica's state.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant as Moment};

use paxos::{Deployment, Epoch, Instance, PartitionId};
use tracing::{Span, info, warn};

use super::askers::Askers;
use super::channel::Channel;
use super::connection_limit::ConnectionLimit;
use super::recent::{KeptRange, Recent};
use super::served_state::{Copies, InUse, Keeper, Logs, ServedState};
use super::wire::{Trust, Wire};
use super::{Answer, Ask, Patience, Question};
use crate::cluster_clock::wall_clock_ms;
use crate::host::Stop;
use crate::listen::Connections;
use crate::lock::lock;

/// How many states are held open at once. Each keeps data that its store would otherwise delete.
const MAX_HELD: usize = 2;
/// How long an asker may be silent between two questions of a connection, and how long an answer
/// may take to send.
const IDLE: Duration = Duration::from_secs(60);
/// How long a connection that named another cluster or group keeps its place without an answer. So
/// an address can try only a few of the 2^32 cluster numbers each second.
const AFTER_A_GUESS: Duration = Duration::from_secs(1);

/// The position of a partition's worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerPosition {
    /// The next instance, not counting values that it has executed before they were stable.
    pub next: Instance,
    /// Execution never goes back below this instance, even when an install begins.
    pub committed: Instance,
    /// The position that another replica's state must reach, if the worker needs one.
    pub needs: Option<Instance>,
    /// Acceptors have forgotten its next value, so it hands out no state.
    pub is_behind: bool,
    /// Another replica's state is being installed.
    pub is_installing: bool,
    /// The epoch up to which execution is stopped, once everything executed is durable.
    pub stopped: Option<Epoch>,
}

/// The workers of a replica, as the server sees them.
pub trait Workers: Send + Sync {
    /// Returns the position of each worker without asking the workers.
    fn stands(&self) -> Vec<WorkerPosition>;

    /// Returns what a partition has executed last, if that is kept for an archive.
    fn recent(&self, _: PartitionId) -> Option<Arc<Recent>> {
        None
    }

    /// Opens copies of all partitions' states. Each partition's later decided values go to its
    /// keeper.
    fn open(&self, keepers: Vec<Keeper>) -> Result<Copies, String>;
}

/// The settings of a server.
pub struct Settings {
    /// The group whose states are handed out.
    pub deployment: Deployment,
    /// The directory for values that are decided while a state is being fetched.
    pub directory: PathBuf,
    /// How many bytes of a state are sent per second.
    pub rate: u64,
    /// How many bytes of decided values are kept after a state.
    pub kept: u64,
    /// How the server recognizes the nodes that may have states.
    pub trust: Trust,
    /// The addresses whose connections are accepted.
    pub askers: Askers,
}

/// A server that runs until it is dropped.
pub struct Server {
    stop: Arc<Stop>,
    places: Arc<ConnectionLimit>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` for replicas that want the state.
    pub fn start(
        address: SocketAddr,
        settings: Settings,
        workers: Arc<dyn Workers>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let stop = Stop::new()?;
        let (stopping, span) = (stop.clone(), Span::current());
        let places = Arc::<ConnectionLimit>::default();
        let of_threads = places.clone();
        let source = Arc::new(Source {
            settings,
            workers,
            held: Arc::default(),
            patience: Patience::default(),
        });
        let thread = std::thread::Builder::new()
            .name("transfer".into())
            .spawn(move || {
                let _said_there = span.entered();
                accept_loop(listener, &source, &of_threads, &stopping);
            })?;
        Ok(Server {
            stop,
            places,
            thread: Some(thread),
        })
    }

    /// Returns how many connections were closed at once because there was no place for them.
    pub fn refused(&self) -> u64 {
        self.places.refused()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_loop(
    listener: TcpListener,
    source: &Arc<Source>,
    places: &Arc<ConnectionLimit>,
    stop: &Stop,
) {
    for stream in Connections::new(listener, "checkpoint transfer", stop) {
        let from = stream.peer_addr().ok();
        let Some(from) = from.map(|from| from.ip()) else {
            continue; // The peer is gone.
        };
        if !source.settings.askers.may_ask(from) {
            places.refuse();
            // Strangers could fill the log, so this is a debug message; `status` shows how many
            // were refused.
            tracing::debug!(%from, "no state for who isn't at a node's address, where nothing is \
                                    signed");
            continue;
        }
        let Some(place) = places.take(from) else {
            continue; // The connection is closed; the asker tries elsewhere, or later.
        };
        let (source, span) = (source.clone(), Span::current());
        // If no thread can be started, the connection is closed, too.
        let _ = std::thread::Builder::new()
            .name("transfer-send".into())
            .spawn(move || {
                let _said_there = span.entered();
                // If the connection breaks, the asker makes a new one.
                match source.serve(stream, from) {
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        warn!(from = ?from, "no state for who asked for one: {e}");
                    }
                    Err(e) => {
                        tracing::debug!(error = %e, "a connection for a checkpoint broke off")
                    }
                    Ok(()) => {}
                }
                drop(place);
            });
    }
    lock(&source.held).clear();
}

type Table = Mutex<BTreeMap<u64, Arc<ServedState>>>;

/// Who asks by one connection.
struct Asker {
    from: IpAddr,
    /// The states that were asked for, which are in use until the connection ends.
    uses: BTreeMap<u64, InUse>,
}

/// The state that is handed out, and its limits.
struct Source {
    settings: Settings,
    workers: Arc<dyn Workers>,
    held: Arc<Table>,
    patience: Patience,
}

impl Source {
    fn serve(&self, stream: TcpStream, from: IpAddr) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(self.patience.stream))?;
        // A new connection must ask soon.
        let until = Moment::now() + self.patience.answer;
        let mut wire = Wire::answer(&self.settings.trust, stream, until)?;
        let mut channel = Channel::source(&self.settings.trust.keys, &mut wire)?;
        let mut asker = Asker {
            from,
            uses: BTreeMap::new(),
        };
        loop {
            let ask = match channel.read_line(&mut wire) {
                Ok(ask) => ask,
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            };
            let is_guess = self.is_guess(&ask);
            let (answer, bytes) = self.answer(ask, &mut asker).unwrap_or_else(|why| {
                let none = Vec::new();
                (Answer::Refused(why), none)
            });
            channel.write_line(&mut wire, &answer)?;
            if let Answer::Part { .. } | Answer::Log { .. } | Answer::Decided { .. } = answer {
                channel.write_bytes(&mut wire, &bytes)?;
            }
            wire.flush()?;
            if is_guess {
                std::thread::sleep(AFTER_A_GUESS);
                return Ok(());
            }
            wire.wait_until(Moment::now() + IDLE);
        }
    }

    fn is_guess(&self, ask: &Ask) -> bool {
        let own = &self.settings.deployment;
        match ask {
            Ask::Willing(question) | Ask::Hold(question) | Ask::Decided { question, .. } => {
                question.is_strange(own)
            }
            _ => false,
        }
    }

    fn answer(&self, ask: Ask, asker: &mut Asker) -> Result<(Answer, Vec<u8>), String> {
        let plain = |answer| Ok((answer, Vec::new()));
        match ask {
            Ask::Willing(question) => plain(Answer::Willing(self.willing(&question)?)),
            Ask::Hold(question) => {
                self.willing(&question)?;
                let (state, held) = self.hold(asker.from)?;
                asker.uses.insert(state, held.used());
                if question.helped(&held.positions) == 0 {
                    lock(&self.held).remove(&state);
                    return Err(too_early(&held.positions));
                }
                let positions = held.positions.clone();
                plain(Answer::Held { state, positions })
            }
            Ask::Part { state, pid, number } => {
                let part = self.held(state, asker)?.part(pid, number);
                let (bytes, last) = part.map_err(|e| self.given_up(state, &e))?;
                let length = bytes.len() as u32;
                let crc = crc32fast::hash(&bytes);
                Ok((Answer::Part { length, crc, last }, bytes))
            }
            Ask::Log { state, pid, from } => {
                let held = self.held(state, asker)?;
                // The position is read before the log, so the log reaches at least about that far.
                let stands = self.workers.stands();
                let next = stands.get(usize::from(pid)).map_or(0, |s| s.next);
                let bytes = held.log(pid, from).map_err(|e| self.given_up(state, &e))?;
                let length = bytes.len() as u32;
                let crc = crc32fast::hash(&bytes);
                Ok((Answer::Log { length, crc, next }, bytes))
            }
            Ask::Stay { state } => self.held(state, asker).and_then(|_| plain(Answer::Staying)),
            Ask::Release { state } => {
                lock(&self.held).remove(&state);
                plain(Answer::Released)
            }
            Ask::Decided {
                question,
                pid,
                from,
            } => self.decided(&question, pid, from),
        }
    }

    /// Returns what a partition has executed from an instance on, if it is still kept.
    fn decided(
        &self,
        question: &Question,
        pid: PartitionId,
        from: Instance,
    ) -> Result<(Answer, Vec<u8>), String> {
        let own = &self.settings.deployment;
        if let Some(why) = question.invalid(own) {
            return Err(why);
        }
        let recent = self.workers.recent(pid);
        let recent = recent.ok_or("my cluster file doesn't say `archive = true`")?;
        match recent.records((own.group, pid), from, wall_clock_ms()) {
            Ok((records, next)) => {
                let length = records.len() as u32;
                let crc = crc32fast::hash(&records);
                Ok((Answer::Decided { length, crc, next }, records))
            }
            Err(KeptRange { first, end }) => Ok((Answer::Kept { first, end }, Vec::new())),
        }
    }

    /// Returns the replica's positions if its state would help the asker, without asking the
    /// workers.
    fn willing(&self, question: &Question) -> Result<Vec<Instance>, String> {
        if let Some(why) = question.invalid(&self.settings.deployment) {
            return Err(why);
        }
        let stands = self.workers.stands();
        if stands.iter().any(|s| s.is_installing) {
            return Err("installing a state myself".into());
        }
        // A partition that is itself behind helps nobody.
        let reaches = |s: &WorkerPosition| if s.is_behind { 0 } else { s.next };
        let positions: Vec<_> = stands.iter().map(reaches).collect();
        if question.helped(&positions) == 0 {
            let needed = stands.iter().zip(&question.needs);
            let mut needed = needed.filter(|(_, need)| need.is_some());
            if needed.all(|(stand, _)| stand.is_behind) {
                return Err("catching up myself".into());
            }
            return Err(too_early(&positions));
        }
        Ok(positions)
    }

    /// Opens a state, and keeps it open as long as somebody asks for it.
    fn hold(&self, from: IpAddr) -> Result<(u64, Arc<ServedState>), String> {
        let state = crate::random_nonce().map_err(|e| e.to_string())?;
        make_room(&self.held, from, self.settings.askers.most_held(MAX_HELD))?;
        let table = Arc::downgrade(&self.held);
        let opened = Moment::now();
        let look = move || is_wanted(&table, state, opened);
        let Settings {
            deployment,
            directory,
            rate,
            kept,
            ..
        } = &self.settings;
        let logs = Logs::start(directory, deployment.partitions, *kept, look);
        let (logs, keepers) = logs.map_err(|e| format!("can't keep what is decided: {e}"))?;
        let copies = self.workers.open(keepers)?;
        let held = Arc::new(ServedState::new(copies, logs, *rate, from));
        info!(positions = ?held.positions, "handing out my state");
        lock(&self.held).insert(state, held.clone());
        Ok((state, held))
    }

    fn held(&self, state: u64, asker: &mut Asker) -> Result<Arc<ServedState>, String> {
        let held = lock(&self.held).get(&state).cloned();
        let held = held.ok_or("that state isn't held open (any more)")?;
        held.renew();
        asker.uses.entry(state).or_insert_with(|| held.used());
        Ok(held)
    }

    /// Closes a state after an error, since the error would repeat. The asker needs another state.
    fn given_up(&self, state: u64, why: &io::Error) -> String {
        warn!(error = %why, "a state wasn't handed out whole");
        lock(&self.held).remove(&state);
        why.to_string()
    }
}

/// Makes room for one more state, of which an address may hold `most`. If there is none, this
/// closes a state whose asker is no longer connected: it was killed, or lost its disk.
fn make_room(table: &Table, from: IpAddr, most: usize) -> Result<(), String> {
    let mut table = lock(table);
    table.retain(|_, held| !held.is_stale());
    let of_one = table.values().filter(|held| held.by == from).count();
    if table.len() < MAX_HELD && of_one < most {
        return Ok(());
    }
    let is_in_the_way = |held: &ServedState| of_one < most || held.by == from;
    let left = table
        .iter()
        .filter(|(_, held)| !held.is_in_use() && is_in_the_way(held));
    let oldest = left.min_by_key(|(_, held)| held.asked_at());
    let oldest = oldest
        .map(|(&state, _)| state)
        .ok_or("handing out my state to others already, or to another node at this address")?;
    table.remove(&oldest);
    Ok(())
}

fn too_early(positions: &[Instance]) -> String {
    let positions: Vec<_> = positions.iter().map(u64::to_string).collect();
    format!("only at instance {} myself", positions.join(", "))
}

/// Returns whether a state is still being opened or open. Closes a state that nobody asks for.
fn is_wanted(table: &Weak<Table>, state: u64, opened: Moment) -> bool {
    let Some(table) = table.upgrade() else {
        return false;
    };
    let mut table = lock(&table);
    match table.get(&state) {
        None => opened.elapsed() < super::served_state::LEASE,
        Some(held) if held.is_stale() => {
            table.remove(&state);
            false
        }
        Some(_) => true,
    }
}
