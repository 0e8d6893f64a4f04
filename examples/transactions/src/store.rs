// SPDX-License-Identifier: Apache-2.0
//! Transactions over running clusters, one after the other.
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn main() -> Result<(), transactions::store::Error> {
//! use transactions::store::{Clusters, Store};
//! use wirepaxos::{Client, ClientOptions, ClusterFile};
//!
//! let cluster = ClusterFile::load("cluster.toml".as_ref()).map_err(wirepaxos::Error::from)?;
//! let client = Client::open(&cluster, ClientOptions::default())?;
//! let mut store = Store::new(Clusters::of(vec![client]), Duration::from_secs(10));
//! store.transact(|transaction| {
//!     let fruit = transaction.get(b"fruit")?;
//!     transaction.put(b"copy of fruit", &fruit.unwrap_or_default());
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use wirepaxos::{Client, Completion, Outcome, Refusal};

use crate::coordinator::{Abort, Coordinator, Event};
use crate::patience::Patience;

/// Replicated shards. Whatever carries commands to them implements this.
pub trait Shards {
    /// Returns the number of shards.
    fn count(&self) -> u16;

    /// Returns whether a command can be submitted to a shard now, or has to wait for replies.
    fn can_submit(&self, shard: u16) -> bool;

    /// Submits a command to a shard, and returns a number that is unique at this shard. It is sent
    /// at the next [`poll`](Self::poll).
    ///
    /// # Errors
    /// If the command can't be submitted, now or ever.
    fn submit(&mut self, shard: u16, command: &[u8]) -> Result<u64, Error>;

    /// Returns the next reply, or `None` after `timeout`.
    ///
    /// # Errors
    /// If no replies can come any more.
    fn poll(&mut self, timeout: Duration) -> Result<Option<Reply>, Error>;

    /// Returns a reply that has come with the last one.
    ///
    /// # Errors
    /// If a command was refused.
    fn take(&mut self) -> Result<Option<Reply>, Error>;
}

/// What has become of a command.
pub struct Reply {
    /// The shard.
    pub shard: u16,
    /// The number that [`Shards::submit`] returned.
    pub request: u64,
    /// The answer; `None` if the command was carried out or not, and nobody knows.
    pub answer: Option<Vec<u8>>,
}

/// The reason why a transaction isn't committed.
#[derive(Debug)]
pub enum Error {
    /// The cluster can't be reached, or has refused a command.
    Cluster(wirepaxos::Error),
    /// The time was over. The transaction may yet take effect.
    TimedOut,
    /// The transaction took effect or not, and nobody knows any more.
    InDoubt,
    /// The transaction took no effect, and won't if it is tried again.
    Refused(&'static str),
}

impl From<wirepaxos::Error> for Error {
    fn from(error: wirepaxos::Error) -> Error {
        Error::Cluster(error)
    }
}

impl From<Refusal> for Error {
    fn from(why: Refusal) -> Error {
        Error::Cluster(why.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Cluster(error) => error.fmt(f),
            Error::TimedOut => f.write_str(
                "no answer in time; the transaction may yet take effect: look before trying again",
            ),
            Error::InDoubt => f.write_str(
                "a shard has dropped this client for others; the transaction took effect or not: \
                 look before trying again",
            ),
            Error::Refused(why) => write!(f, "the transaction took no effect: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// Shards that are the partitions of one or more clusters of WirePaxos.
pub struct Clusters {
    clients: Vec<Client>,
    /// The client, and its partition, of each shard.
    places: Vec<(usize, u16)>,
    /// The client that is polled first.
    turn: usize,
}

/// How long one of several clusters is waited for before it is the next one's turn.
const TURN: Duration = Duration::from_micros(50);

impl Clusters {
    /// Makes shards of the partitions to which these clients have sessions, in this order.
    pub fn of(clients: Vec<Client>) -> Clusters {
        let counts = clients.iter().map(Client::partitions).enumerate();
        let places = counts.flat_map(|(at, count)| (0..count).map(move |pid| (at, pid)));
        Clusters {
            places: places.collect(),
            clients,
            turn: 0,
        }
    }

    fn poll_next(&mut self, timeout: Duration) -> Result<Option<Reply>, Error> {
        match self.clients[self.turn].poll(timeout)? {
            Some(done) => reply(&self.places, self.turn, done),
            None => Ok(None),
        }
    }
}

fn reply(places: &[(usize, u16)], at: usize, done: Completion<'_>) -> Result<Option<Reply>, Error> {
    let (place, request) = ((at, done.pid), done.request);
    let answer = match done.outcome() {
        Outcome::Executed(answer) => answer.map(<[u8]>::to_vec),
        Outcome::Refused(why) => return Err(why.into()),
        Outcome::Unknown(_) => None,
    };
    let shard = places.iter().position(|each| *each == place);
    Ok(shard.map(|shard| Reply {
        shard: shard as u16,
        request,
        answer,
    }))
}

impl Shards for Clusters {
    fn count(&self) -> u16 {
        self.places.len() as u16
    }

    fn can_submit(&self, shard: u16) -> bool {
        let (at, pid) = self.places[usize::from(shard)];
        self.clients[at].can_submit(pid)
    }

    fn submit(&mut self, shard: u16, command: &[u8]) -> Result<u64, Error> {
        let (at, pid) = self.places[usize::from(shard)];
        Ok(self.clients[at].submit(pid, command)?)
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<Reply>, Error> {
        if self.clients.len() == 1 {
            return self.poll_next(timeout);
        }
        let begun = Instant::now();
        loop {
            for _ in 0..self.clients.len() {
                self.turn = (self.turn + 1) % self.clients.len();
                if let Some(reply) = self.poll_next(Duration::ZERO)? {
                    return Ok(Some(reply));
                }
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(reply) = self.poll_next(left.min(TURN))? {
                return Ok(Some(reply));
            }
        }
    }

    fn take(&mut self) -> Result<Option<Reply>, Error> {
        match self.clients[self.turn].take_completion() {
            Some(done) => reply(&self.places, self.turn, done),
            None => Ok(None),
        }
    }
}

/// How long somebody else's transaction may be in the way.
const PATIENCE_US: u64 = 100_000;
/// How long a transaction waits at most before it is tried again.
const PAUSE_US: u64 = 2_000;

/// A store in which one transaction runs at a time.
pub struct Store<S> {
    shards: S,
    coordinator: Coordinator,
    /// The tags of submitted commands.
    tags: BTreeMap<(u16, u64), u64>,
    patience: Patience,
    timeout: Duration,
    opened: Instant,
    /// When the transaction began.
    begun: Instant,
    attempts: u64,
}

/// A transaction that runs.
pub struct Running<'a, S>(&'a mut Store<S>);

/// The reason why the body of a transaction ends early.
pub enum Stop {
    /// The attempt was in vain; another one follows.
    Aborted(Abort),
    /// Something failed.
    Failed(Error),
}

impl<S: Shards> Running<'_, S> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the body has to end now.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.get_all(&[key])?;
        Ok(self.0.coordinator.value(key).map(<[u8]>::to_vec))
    }

    /// Reads several keys at once, which [`get`](Self::get) then returns without waiting.
    ///
    /// # Errors
    /// If the body has to end now.
    pub fn get_all(&mut self, keys: &[&[u8]]) -> Result<(), Stop> {
        let event = self.0.coordinator.read(keys);
        match self.0.outcome(event).map_err(Stop::Failed)? {
            Event::Aborted(why) => Err(Stop::Aborted(why)),
            _ => Ok(()),
        }
    }

    /// Writes a value, which others see after the commit.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.coordinator.write(key, value);
    }
}

impl<S: Shards> Store<S> {
    /// Returns a store over these shards. Each transaction may take `timeout`.
    pub fn new(shards: S, timeout: Duration) -> Store<S> {
        Store {
            coordinator: Coordinator::new(shards.count()),
            shards,
            tags: BTreeMap::new(),
            patience: Patience::new(PATIENCE_US),
            timeout,
            opened: Instant::now(),
            begun: Instant::now(),
            attempts: 0,
        }
    }

    /// Runs a transaction: calls `body`, and commits; and again, until no other transaction has
    /// interfered.
    ///
    /// # Errors
    /// If the transaction isn't committed, or if that isn't known.
    pub fn transact<T>(
        &mut self,
        mut body: impl FnMut(&mut Running<'_, S>) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        self.begun = Instant::now();
        loop {
            self.become_free()?;
            self.coordinator.begin();
            let why = match body(&mut Running(self)) {
                Ok(result) => {
                    let event = self.coordinator.commit();
                    match self.outcome(event)? {
                        Event::Aborted(why) => why,
                        Event::InDoubt => return Err(Error::InDoubt),
                        _ => return Ok(result),
                    }
                }
                Err(Stop::Aborted(why)) => why,
                Err(Stop::Failed(error)) => return Err(error),
            };
            self.give_way(why)?;
        }
    }

    /// Waits until the last transaction is finished in all shards.
    ///
    /// # Errors
    /// If that isn't so within the time of one transaction.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.begun = Instant::now();
        self.become_free()
    }

    /// Does what is to be done before another attempt.
    fn give_way(&mut self, why: Abort) -> Result<(), Error> {
        self.attempts += 1;
        match why {
            Abort::TooLarge => Err(Error::Refused(
                "a key, a value or all together are too large",
            )),
            Abort::NoRoom => Err(Error::Refused("a shard is full")),
            Abort::Changed | Abort::Cancelled => Ok(()),
            Abort::Locked(other) | Abort::Full(other) => {
                self.become_free()?;
                let now_us = self.opened.elapsed().as_micros() as u64;
                if self.patience.ends_with(&other, now_us) {
                    self.coordinator.resolve(&other);
                    return self.become_free();
                }
                let pause = (self.attempts * 7919) % PAUSE_US;
                self.pump(Duration::from_micros(pause)).map(drop)
            }
        }
    }

    /// Returns the event that a call has, which may come at once.
    fn outcome(&mut self, at_once: Option<Event>) -> Result<Event, Error> {
        let mut event = at_once;
        loop {
            if let Some(event) = event {
                return Ok(event);
            }
            event = self.pump_until_timeout()?;
        }
    }

    fn become_free(&mut self) -> Result<(), Error> {
        while !self.coordinator.is_free() {
            self.pump_until_timeout()?;
        }
        Ok(())
    }

    fn pump_until_timeout(&mut self) -> Result<Option<Event>, Error> {
        let left = self.timeout.saturating_sub(self.begun.elapsed());
        if left.is_zero() {
            return Err(Error::TimedOut);
        }
        self.pump(left)
    }

    /// Sends what is to be sent, and takes one reply.
    fn pump(&mut self, timeout: Duration) -> Result<Option<Event>, Error> {
        for out in self.coordinator.take_outgoing() {
            let request = self.shards.submit(out.shard, &out.command)?;
            self.tags.insert((out.shard, request), out.tag);
        }
        let Some(reply) = self.shards.poll(timeout)? else {
            return Ok(None);
        };
        let Some(tag) = self.tags.remove(&(reply.shard, reply.request)) else {
            return Ok(None);
        };
        match reply.answer {
            Some(bytes) => Ok(self.coordinator.answer(tag, &bytes)),
            None => {
                self.coordinator.lost(tag);
                Ok(None)
            }
        }
    }
}
