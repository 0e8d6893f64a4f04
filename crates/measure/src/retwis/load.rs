// SPDX-License-Identifier: Apache-2.0
//! One thread's load on the shards: lanes, each with one transaction after the other.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use local_cluster::Error;
use local_cluster::latency::Latencies;
use transactions::coordinator::{Abort, Coordinator, Event, Outgoing};
use transactions::patience::Patience;
use transactions::store::{Clusters, Reply, Shards};
use transactions::wire::Transaction;

use super::workload::{Plan, VALUE_BYTES};

const POLL: Duration = Duration::from_millis(100);
/// A load without any reply for this time has failed.
const STALL: Duration = Duration::from_secs(10);
/// How long a lane waits before it tries a transaction again, at most.
const PAUSE_US: u64 = 500;
/// How long a transaction may be in the way before somebody else finishes it.
const PATIENCE_US: u64 = 100_000;

/// The results of a load.
#[derive(Default)]
pub(super) struct Ran {
    pub latencies: Latencies,
    /// Attempts that were aborted.
    pub aborted: u64,
}

impl Ran {
    pub fn add(&mut self, other: &Ran) {
        self.latencies.add(&other.latencies);
        self.aborted += other.aborted;
    }
}

/// A client that runs many transactions at a time.
pub(super) struct Load {
    shards: Clusters,
    lanes: Vec<Lane>,
    /// Lanes without anything under way, and when each begins its next attempt.
    waiting: BTreeSet<(Instant, usize)>,
    /// Commands that don't fit the sessions' windows yet.
    unsent: VecDeque<(usize, Outgoing)>,
    /// The lane and tag of each command without an answer.
    asked: HashMap<(u16, u64), (usize, u64)>,
    opened: Instant,
    ran: Ran,
}

struct Lane {
    coordinator: Coordinator,
    patience: Patience,
    /// The transaction, and when its first attempt began.
    task: Option<(Instant, Plan)>,
    in_the_way: Option<Transaction>,
    attempts: u64,
}

impl Load {
    pub fn new(shards: Clusters, lanes: usize) -> Load {
        let count = shards.count();
        let lane = |_| Lane {
            coordinator: Coordinator::new(count),
            patience: Patience::new(PATIENCE_US),
            task: None,
            in_the_way: None,
            attempts: 0,
        };
        Load {
            shards,
            lanes: (0..lanes).map(lane).collect(),
            waiting: BTreeSet::new(),
            unsent: VecDeque::new(),
            asked: HashMap::new(),
            opened: Instant::now(),
            ran: Ran::default(),
        }
    }

    /// Runs transactions until there are no more.
    pub fn run(&mut self, mut plans: impl FnMut() -> Option<Plan>) -> Result<Ran, Error> {
        let now = Instant::now();
        self.waiting = (0..self.lanes.len()).map(|lane| (now, lane)).collect();
        let mut last_reply = now;
        loop {
            self.wake(&mut plans);
            self.submit()?;
            let busy = !self.asked.is_empty() || !self.unsent.is_empty();
            if !busy && self.waiting.is_empty() {
                break;
            }
            let Some(first) = self.poll()? else {
                if busy && last_reply.elapsed() > STALL {
                    let s = STALL.as_secs();
                    return Err(Error::new(format!("a client had no reply for {s} s")));
                }
                continue;
            };
            last_reply = Instant::now();
            let mut reply = Some(first);
            while let Some(each) = reply {
                self.take(each)?;
                reply = self.shards.take().map_err(failed)?;
            }
        }
        Ok(std::mem::take(&mut self.ran))
    }

    fn poll(&mut self) -> Result<Option<Reply>, Error> {
        let next = self.waiting.first();
        let next = next.map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let timeout = next.map_or(POLL, |next| next.min(POLL));
        self.shards.poll(timeout).map_err(failed)
    }

    /// Begins the attempts whose time has come.
    fn wake(&mut self, plans: &mut impl FnMut() -> Option<Plan>) {
        let now = Instant::now();
        while self.waiting.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, lane)) = self.waiting.pop_first() {
                self.begin(now, lane, plans);
            }
        }
    }

    fn begin(&mut self, now: Instant, at: usize, plans: &mut impl FnMut() -> Option<Plan>) {
        let lane = &mut self.lanes[at];
        if let Some(other) = lane.in_the_way.take() {
            lane.coordinator.resolve(&other);
            return self.queue(at);
        }
        if lane.task.is_none() {
            lane.task = plans().map(|plan| (now, plan));
        }
        let Some((_, plan)) = &lane.task else { return };
        lane.attempts += 1;
        lane.coordinator.begin();
        let keys: Vec<&[u8]> = plan.reads.iter().map(Vec::as_slice).collect();
        let event = lane.coordinator.read(&keys);
        self.go_on(at, event);
    }

    fn take(&mut self, reply: Reply) -> Result<(), Error> {
        let Some((at, tag)) = self.asked.remove(&(reply.shard, reply.request)) else {
            return Ok(());
        };
        let bytes = reply
            .answer
            .ok_or_else(|| Error::new("an answer is lost"))?;
        let event = self.lanes[at].coordinator.answer(tag, &bytes);
        if let Some(Event::Aborted(Abort::NoRoom | Abort::TooLarge) | Event::InDoubt) = event {
            return Err(Error::new(format!("a transaction has failed: {event:?}")));
        }
        self.go_on(at, event);
        Ok(())
    }

    fn go_on(&mut self, at: usize, event: Option<Event>) {
        let lane = &mut self.lanes[at];
        let mut event = event;
        let mut pause = 0;
        while let Some(happened) = event.take() {
            match happened {
                Event::Read => event = lane.commit(),
                Event::Committed => {
                    if let Some((begun, _)) = lane.task.take() {
                        self.ran.latencies.record(begun.elapsed());
                    }
                }
                Event::Aborted(why) => {
                    self.ran.aborted += 1;
                    pause = lane.give_way(why, self.opened.elapsed().as_micros() as u64);
                }
                Event::InDoubt | Event::Resolved => {}
            }
        }
        self.queue(at);
        let free = self.lanes[at].coordinator.is_free();
        if free {
            let time = Instant::now() + Duration::from_micros(pause);
            self.waiting.insert((time, at));
        }
    }

    fn queue(&mut self, at: usize) {
        let outgoing = self.lanes[at].coordinator.take_outgoing();
        self.unsent
            .extend(outgoing.into_iter().map(|out| (at, out)));
    }

    fn submit(&mut self) -> Result<(), Error> {
        for _ in 0..self.unsent.len() {
            let Some((at, out)) = self.unsent.pop_front() else {
                break;
            };
            if !self.shards.can_submit(out.shard) {
                self.unsent.push_back((at, out));
                continue;
            }
            let submitted = self.shards.submit(out.shard, &out.command);
            let request = submitted.map_err(failed)?;
            self.asked.insert((out.shard, request), (at, out.tag));
        }
        Ok(())
    }
}

impl Lane {
    fn commit(&mut self) -> Option<Event> {
        let (_, plan) = self.task.as_ref()?;
        for key in &plan.writes {
            let first = self.attempts.to_be_bytes();
            let mut value = [0; VALUE_BYTES];
            value[..first.len()].copy_from_slice(&first);
            self.coordinator.write(key, &value);
        }
        self.coordinator.commit()
    }

    /// Returns how many microseconds the lane waits before its next attempt.
    fn give_way(&mut self, why: Abort, now_us: u64) -> u64 {
        if let Abort::Locked(other) | Abort::Full(other) = why {
            if self.patience.ends_with(&other, now_us) {
                self.in_the_way = Some(other);
                return 0;
            }
            return paxos::mix(now_us ^ self.attempts << 32) % PAUSE_US;
        }
        0
    }
}

fn failed(error: transactions::store::Error) -> Error {
    Error::new(error.to_string())
}
