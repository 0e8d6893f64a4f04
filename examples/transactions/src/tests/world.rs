// SPDX-License-Identifier: Apache-2.0
//! A simulated world: clients that append to lists and read them, shards of two replicas each, and
//! between them a network that loses, repeats and delays. Everything follows from the seed.

use std::collections::BTreeMap;

use wirepaxos::StateMachine;

use super::random::Random;
use crate::checker::check;
use crate::coordinator::{Abort, Coordinator, Event};
use crate::history::{ClientOutcome, Entry, Operation};
use crate::patience::Patience;
use crate::rule::Rule;
use crate::shard::{Limits, Shard};
use crate::wire::Transaction;

const SHARDS: u16 = 3;
const CLIENTS: usize = 5;
const KEYS: usize = 4;
/// Attempts before the world comes to rest.
const ATTEMPTS: usize = 160;
/// Appends to a list before another key takes its place.
const LIST: usize = 40;
/// No message takes longer, in microseconds.
const LATEST: u64 = 20_000;
/// No run takes so much simulated time.
const TOO_LATE: u64 = 100_000_000;
const LIMITS: Limits = Limits {
    clients: 64,
    bytes: 1 << 20,
};

/// How bad the world is. Each number says one in how many; 0 is never.
#[derive(Clone, Copy)]
pub struct Plan {
    pub lost: u64,
    pub repeated: u64,
    pub late: u64,
    pub dies: u64,
    pub restored: u64,
    pub limits: Limits,
}

impl Plan {
    pub const BAD: Plan = Plan {
        lost: 20,
        repeated: 15,
        late: 10,
        dies: 60,
        restored: 40,
        limits: LIMITS,
    };
    /// Shards remember hardly more clients than there are, so many are dropped.
    pub const CROWDED: Plan = Plan {
        limits: Limits {
            clients: 6,
            ..LIMITS
        },
        ..Plan::BAD
    };
    const AT_REST: Plan = Plan {
        lost: 0,
        repeated: 0,
        late: 0,
        dies: 0,
        restored: 0,
        limits: LIMITS,
    };
}

enum Happening {
    Command {
        client: Address,
        tag: u64,
        shard: u16,
        bytes: Vec<u8>,
    },
    Reply {
        client: Address,
        tag: u64,
        bytes: Vec<u8>,
    },
    /// The client has waited long enough for this answer.
    Timeout(Address, u64),
    Wake(Address),
}

/// A client, and which of those that died in its place it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Address {
    at: usize,
    life: u64,
}

struct Client {
    address: Address,
    coordinator: Coordinator,
    patience: Patience,
    /// The transaction that runs: when it began, and what it does.
    running: Option<(u64, Vec<Operation>)>,
    /// True from the moment at which others may see its writes.
    commits: bool,
    /// The transaction that is to be finished next.
    in_the_way: Option<Transaction>,
}

pub struct World {
    random: Random,
    plan: Plan,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    replicas: Vec<[Shard; 2]>,
    clients: Vec<Client>,
    history: Vec<Entry>,
    /// The current keys, and how often each was appended to.
    keys: Vec<(u64, usize)>,
    next_key: u64,
    next_number: u64,
    broken: Option<Rule>,
    /// The transactions that are left to do one by one at the end, by the first client.
    last: Vec<Vec<Operation>>,
    /// When the last late message has arrived; `None` before the world comes to rest.
    at_rest_from: Option<u64>,
}

impl World {
    pub fn new(seed: u64, plan: Plan, broken: Option<Rule>) -> World {
        let shard = || Shard {
            broken,
            ..Shard::new(plan.limits)
        };
        let mut world = World {
            random: Random(seed),
            plan,
            now: 0,
            queue: BTreeMap::new(),
            queued: 0,
            replicas: (0..SHARDS).map(|_| [shard(), shard()]).collect(),
            clients: Vec::new(),
            history: Vec::new(),
            keys: (0..KEYS as u64).map(|key| (key, 0)).collect(),
            next_key: KEYS as u64,
            next_number: 0,
            broken,
            last: Vec::new(),
            at_rest_from: None,
        };
        for at in 0..CLIENTS {
            let client = world.client(Address { at, life: 0 });
            world.wake_later(client.address);
            world.clients.push(client);
        }
        world
    }

    fn client(&self, address: Address) -> Client {
        let mut coordinator = Coordinator::new(SHARDS);
        coordinator.broken = self.broken;
        Client {
            address,
            coordinator,
            patience: Patience::new(3_000),
            running: None,
            commits: false,
            in_the_way: None,
        }
    }

    /// Runs it to its end, and checks what clients have seen.
    pub fn run(mut self) -> Vec<Entry> {
        while self.history.len() < ATTEMPTS {
            self.step();
        }
        self.come_to_rest();
        while !self.last.is_empty() || !self.clients.iter().all(|c| c.coordinator.is_free()) {
            self.step();
        }
        for shard in &self.replicas {
            assert_eq!(shard[0].prepared(), 0, "locks are left");
            assert!(shard[0].known_clients() as u64 <= self.plan.limits.clients);
        }
        let found = check(&self.history);
        assert_eq!(found, [], "{:#?}", self.shown(&found));
        self.history
    }

    fn shown(&self, found: &[crate::checker::Anomaly]) -> Vec<Vec<&Entry>> {
        let of = |at: &Vec<usize>| at.iter().map(|at| &self.history[*at]).collect();
        found.iter().map(|a| of(&a.transactions)).collect()
    }

    /// From now on nothing is lost and nobody dies. The first client reads and writes every key,
    /// and so meets every lock that the dead have left.
    fn come_to_rest(&mut self) {
        self.at_rest_from = Some(self.now + LATEST);
        self.plan = Plan {
            limits: self.plan.limits,
            ..Plan::AT_REST
        };
        self.last = (0..self.next_key)
            .map(|key| {
                self.next_number += 1;
                let append = Operation::Append(key, self.next_number);
                vec![append, Operation::Read(key, Vec::new())]
            })
            .collect();
    }

    fn step(&mut self) {
        let ((now, _), happening) = self.queue.pop_first().expect("somebody waits");
        assert!(now < TOO_LATE, "it never comes to an end");
        self.now = now;
        let client = match happening {
            Happening::Command {
                client,
                tag,
                shard,
                bytes,
            } => return self.execute(client, tag, shard, &bytes),
            Happening::Reply { client, tag, bytes } => {
                if self.is_alive(client) {
                    let event = self.clients[client.at].coordinator.answer(tag, &bytes);
                    self.go_on(client.at, event);
                }
                client
            }
            Happening::Timeout(client, tag) => {
                if self.is_alive(client) {
                    self.clients[client.at].coordinator.lost(tag);
                    self.send(client.at);
                }
                client
            }
            Happening::Wake(client) => {
                if self.is_alive(client) {
                    self.begin(client.at);
                }
                client
            }
        };
        if self.is_alive(client) && self.random.one_in(self.plan.dies) {
            self.die(client.at);
        }
    }

    fn is_alive(&self, client: Address) -> bool {
        self.clients[client.at].address == client
    }

    // ---- Shards and network

    /// Executes a command on both replicas of a shard, of which one may start from a snapshot of
    /// the other one meanwhile.
    fn execute(&mut self, client: Address, tag: u64, shard: u16, command: &[u8]) {
        let restored = self.random.one_in(self.plan.restored);
        let forgets_locks = self.broken == Some(Rule::RestoresLocks);
        let replicas = &mut self.replicas[usize::from(shard)];
        let mut answers = [Vec::new(), Vec::new()];
        replicas[0].execute(command, &mut answers[0]);
        replicas[1].execute(command, &mut answers[1]);
        assert_eq!(answers[0], answers[1], "replicas differ");
        if restored {
            let saved = [0, 1].map(|at| {
                let mut bytes = Vec::new();
                replicas[at].save(&mut bytes).expect("memory");
                bytes
            });
            assert_eq!(saved[0], saved[1], "replicas differ");
            replicas.swap(0, 1);
            replicas[0] = Shard::load(&mut &saved[0][..]).expect("what was saved");
            replicas[0].broken = self.broken;
            if forgets_locks {
                replicas
                    .iter_mut()
                    .for_each(|shard| shard.locks = Default::default());
            }
        }
        let reply = Happening::Reply {
            client,
            tag,
            bytes: answers[0].clone(),
        };
        let again = Happening::Reply {
            client,
            tag,
            bytes: answers[0].clone(),
        };
        self.carry(reply, again);
    }

    fn carry(&mut self, message: Happening, again: Happening) {
        if !self.random.one_in(self.plan.lost) {
            let delay = self.delay();
            self.put(delay, message);
        }
        if self.random.one_in(self.plan.repeated) {
            let delay = self.delay();
            self.put(delay, again);
        }
    }

    fn delay(&mut self) -> u64 {
        match self.random.one_in(self.plan.late) {
            true => self.random.below(LATEST),
            false => 20 + self.random.below(400),
        }
    }

    fn put(&mut self, delay: u64, happening: Happening) {
        self.queued += 1;
        self.queue
            .insert((self.now + delay, self.queued), happening);
    }

    fn send(&mut self, at: usize) {
        let client = self.clients[at].address;
        for out in self.clients[at].coordinator.take_outgoing() {
            let message = || Happening::Command {
                client,
                tag: out.tag,
                shard: out.shard,
                bytes: out.command.clone(),
            };
            self.carry(message(), message());
            let patience = 3_000 + self.random.below(3_000);
            self.put(patience, Happening::Timeout(client, out.tag));
        }
    }

    // ---- Clients

    fn wake_later(&mut self, client: Address) {
        let pause = 10 + self.random.below(500);
        self.put(pause, Happening::Wake(client));
    }

    fn begin(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if !client.coordinator.is_free() || client.running.is_some() {
            return;
        }
        if let Some(other) = client.in_the_way.take() {
            client.coordinator.resolve(&other);
            return self.send(at);
        }
        let address = client.address;
        let operations = match self.at_rest_from {
            None => self.draw(),
            Some(from) if at == 0 && self.now < from => {
                return self.put(from - self.now, Happening::Wake(address));
            }
            Some(_) if at == 0 && !self.last.is_empty() => self.last[0].clone(),
            Some(_) => return,
        };
        let now = self.now;
        let client = &mut self.clients[at];
        client.coordinator.begin();
        let keys: Vec<[u8; 8]> = operations.iter().map(key_of).collect();
        client.running = Some((now, operations));
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let event = client.coordinator.read(&keys);
        self.go_on(at, event);
    }

    fn draw(&mut self) -> Vec<Operation> {
        let count = 1 + self.random.below(4);
        let only_reads = self.random.one_in(3);
        let draw = |_| {
            let place = self.random.below(KEYS as u64) as usize;
            if self.keys[place].1 >= LIST {
                self.keys[place] = (self.next_key, 0);
                self.next_key += 1;
            }
            let (key, appended) = &mut self.keys[place];
            if only_reads || self.random.one_in(2) {
                return Operation::Read(*key, Vec::new());
            }
            *appended += 1;
            self.next_number += 1;
            Operation::Append(*key, self.next_number)
        };
        (0..count).map(draw).collect()
    }

    fn go_on(&mut self, at: usize, event: Option<Event>) {
        let mut event = event;
        while let Some(happened) = event.take() {
            match happened {
                Event::Read => event = self.commit(at),
                Event::Committed => self.tell(at, ClientOutcome::Committed),
                Event::InDoubt => self.tell(at, ClientOutcome::Nothing),
                Event::Aborted(why) => {
                    self.tell(at, ClientOutcome::Aborted);
                    self.give_way(at, why);
                }
                Event::Resolved => {}
            }
        }
        self.send(at);
        let client = &self.clients[at];
        if client.coordinator.is_free() && client.running.is_none() {
            self.wake_later(client.address);
        }
    }

    fn commit(&mut self, at: usize) -> Option<Event> {
        let client = &mut self.clients[at];
        let (_, operations) = client.running.as_mut()?;
        for operation in operations {
            let key = key_of(operation);
            let list = client.coordinator.value(&key).unwrap_or_default();
            match operation {
                Operation::Read(_, seen) => *seen = numbers(list),
                Operation::Append(_, number) => {
                    let longer = [list, &number.to_be_bytes()].concat();
                    client.coordinator.write(&key, &longer);
                }
            }
        }
        client.commits = true;
        client.coordinator.commit()
    }

    fn tell(&mut self, at: usize, told: ClientOutcome) {
        let client = &mut self.clients[at];
        client.commits = false;
        let Some((begin, operations)) = client.running.take() else {
            return;
        };
        let is_last = at == 0 && self.at_rest_from.is_some_and(|from| begin >= from);
        if told == ClientOutcome::Committed && is_last && !self.last.is_empty() {
            self.last.remove(0);
        }
        self.history.push(Entry {
            begin,
            end: self.now,
            told,
            operations,
        });
    }

    fn give_way(&mut self, at: usize, why: Abort) {
        if let Abort::Locked(other) | Abort::Full(other) = why {
            let client = &mut self.clients[at];
            if client.patience.ends_with(&other, self.now) {
                client.in_the_way = Some(other);
            }
        }
    }

    /// A client dies, and another one, who knows nothing, takes its place.
    fn die(&mut self, at: usize) {
        if self.clients[at].commits {
            self.tell(at, ClientOutcome::Nothing);
        }
        let life = self.clients[at].address.life + 1;
        self.clients[at] = self.client(Address { at, life });
        self.wake_later(Address { at, life });
    }
}

fn key_of(operation: &Operation) -> [u8; 8] {
    let (Operation::Append(key, _) | Operation::Read(key, _)) = operation;
    key.to_be_bytes()
}

fn numbers(list: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    list.chunks(8).map(number).collect()
}
