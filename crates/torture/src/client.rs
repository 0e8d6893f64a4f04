// SPDX-License-Identifier: Apache-2.0
//! Clients: connections to all front ends, a few commands at a time, everything on record.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use test_world::Rng;

use super::history::{Answer, Event, MEMBERS, Op};
use local_cluster::resp::{Connection, Reply, Server};

/// After a longer pause the client leaves what it sent open, and goes on elsewhere.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout at the end, when there are no faults any more.
const FINAL_TIMEOUT: Duration = Duration::from_secs(20);
const RECONNECT_AFTER: Duration = Duration::from_millis(150);
const MOST_AT_ONCE: u64 = 5;
/// Keys of a kind at any time.
const KEYS: u64 = 3;
/// The most commands on a key, and the most seconds, after which it is left alone: the more
/// commands have no answer, the longer the search for an order takes.
const COMMANDS_OF_A_KEY: u64 = 40;
const SECONDS_OF_A_KEY: u64 = 3;
/// Now and then a value fills half a packet.
const LONG_VALUE: usize = 500;

/// The state that all clients share.
pub struct Shared {
    start: Instant,
    stop: AtomicBool,
    /// Commands answered.
    pub answered: AtomicU64,
    /// Commands begun, by kind of key and number.
    begun: Vec<AtomicU64>,
}

impl Shared {
    /// Returns the nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns true if all clients must end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads all keys of a history at the end, through one front end.
    pub fn read_all(&self, server: Server, history: &[Event]) -> io::Result<Vec<Event>> {
        let reads: BTreeSet<(&String, bool)> = history
            .iter()
            .map(|event| (&event.key, event.op.members().is_some()))
            .collect();
        let reads: Vec<(&String, Op)> = reads
            .into_iter()
            .map(|(key, is_group)| (key, if is_group { Op::GetAll } else { Op::Get }))
            .collect();
        let mut connection = Connection::open(server, FINAL_TIMEOUT)?;
        let mut read = Vec::new();
        for some in reads.chunks(50) {
            let call = self.now();
            some.iter()
                .for_each(|(key, op)| push(&mut connection, key, op));
            connection.flush()?;
            for (key, op) in some {
                let answer = understand(op, connection.read()?);
                let answer = answer.map_err(io::Error::other)?;
                read.push(Event {
                    client: 0,
                    key: key.to_string(),
                    op: op.clone(),
                    call,
                    answer: Some((self.now(), answer)),
                });
            }
        }
        Ok(read)
    }
}

/// Running clients.
pub struct Load {
    /// The clients' progress.
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Event>>>,
}

impl Load {
    /// Starts `clients` clients, spread over `servers`, that send `rate` commands a second
    /// together.
    pub fn start(servers: &[Server], clients: u32, rate: f64, seed: u64) -> Load {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            begun: (0..KINDS.len() as u64 * KEYS)
                .map(|_| AtomicU64::new(0))
                .collect(),
        });
        let mut rng = Rng::new(seed);
        let threads = (1..=clients)
            .map(|number| {
                let client = Client {
                    author: Author::new(number, rng.fork(u64::from(number)), &shared),
                    servers: servers.to_vec(),
                    pause: Duration::from_secs_f64(f64::from(clients) / rate),
                };
                std::thread::spawn(move || client.run())
            })
            .collect();
        Load { shared, threads }
    }

    /// Ends them; returns what they saw.
    pub fn stop(self) -> Vec<Event> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let histories = self.threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.expect("a client doesn't panic")
        });
        histories.flatten().collect()
    }
}

struct Client {
    author: Author,
    servers: Vec<Server>,
    /// After each command.
    pause: Duration,
}

/// Draws what a client does, and writes down the results.
pub struct Author {
    number: u32,
    rng: Rng,
    sequence: u64,
    /// The state that all clients share.
    pub shared: Arc<Shared>,
    /// The commands and answers of this client.
    pub history: Vec<Event>,
}

/// Draws what is done to a key.
type Draw = fn(&mut Author) -> Op;

/// Kinds of keys, by what is done to them. The last one are several keys.
const KINDS: [(&str, Draw); 5] = [
    ("register", |c| match c.rng.below(10) {
        0..4 => Op::Get,
        4..9 => Op::Set(c.value()),
        _ => Op::Del,
    }),
    ("counter", |c| match c.rng.below(4) {
        0 => Op::Get,
        _ => Op::Incr,
    }),
    ("list", |c| match c.rng.below(4) {
        0 => Op::Get,
        _ => Op::Append(c.unique()),
    }),
    ("number", |c| match c.rng.below(8) {
        0..2 => Op::Get,
        2..5 => Op::Incr,
        5..7 => Op::Set(c.rng.below(1000).to_string()),
        _ => Op::Del,
    }),
    // Over several partitions, if there are some.
    ("group", |c| match c.rng.below(10) {
        0..4 => Op::GetAll,
        4..9 => Op::SetSome(c.members(), c.unique()),
        _ => Op::DelSome(c.members()),
    }),
];

impl Client {
    fn run(mut self) -> Vec<Event> {
        let mut server = self.author.number as usize;
        while !self.author.shared.is_stopped() {
            let at = self.servers[server % self.servers.len()];
            let ended = Connection::open(at, REPLY_TIMEOUT)
                .and_then(|mut connection| self.converse(&mut connection));
            if ended.is_err() {
                server += 1;
                sleep(RECONNECT_AFTER);
            }
        }
        self.author.history
    }

    fn converse(&mut self, connection: &mut Connection) -> io::Result<()> {
        // Sends one command at a time at first, so that few are lost to a front end that isn't
        // ready.
        let mut most = 1;
        while !self.author.shared.is_stopped() {
            let count = self.author.rng.between(1, most);
            let first = self.author.history.len();
            for _ in 0..count {
                let (key, op) = self.author.draw();
                push(connection, &key, &op);
                self.author.begin(key, op);
            }
            let ended = self.answers(connection, first);
            self.author.forget_idle(first);
            ended?;
            most = MOST_AT_ONCE;
            sleep(self.pause * count as u32);
        }
        Ok(())
    }

    fn answers(&mut self, connection: &mut Connection, first: usize) -> io::Result<()> {
        connection.flush()?;
        for at in first..self.author.history.len() {
            let reply = connection.read()?;
            // An error may come although the command took effect: it stays open.
            let answer =
                understand(&self.author.history[at].op, reply).map_err(io::Error::other)?;
            self.author.end(at, answer);
        }
        Ok(())
    }
}

impl Author {
    /// Creates the author of this number.
    pub fn new(number: u32, rng: Rng, shared: &Arc<Shared>) -> Author {
        Author {
            number,
            rng,
            sequence: 0,
            shared: shared.clone(),
            history: Vec::new(),
        }
    }

    /// Notes that a command is sent.
    pub fn begin(&mut self, key: String, op: Op) {
        self.history.push(Event {
            client: self.number,
            key,
            op,
            call: self.shared.now(),
            answer: None,
        });
    }

    /// Notes the answer to the command at this place of the history.
    pub fn end(&mut self, at: usize, answer: Answer) {
        self.history[at].answer = Some((self.shared.now(), answer));
        self.shared.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets the commands from this place on that had neither an answer nor an effect, because
    /// they prove nothing.
    pub fn forget_idle(&mut self, first: usize) {
        let sent = self.history.split_off(first);
        let telling = |event: &Event| event.answer.is_some() || event.op.writes();
        self.history.extend(sent.into_iter().filter(telling));
    }

    fn draw(&mut self) -> (String, Op) {
        self.draw_of(KINDS.len())
    }

    /// Draws a command on a single key.
    pub fn draw_single(&mut self) -> (String, Op) {
        self.draw_of(KINDS.len() - 1)
    }

    fn draw_of(&mut self, kinds: usize) -> (String, Op) {
        let kind = self.rng.below(kinds as u64);
        let number = self.rng.below(KEYS);
        let begun = &self.shared.begun[(kind * KEYS + number) as usize];
        let generation = begun.fetch_add(1, Ordering::Relaxed) / COMMANDS_OF_A_KEY;
        let time = self.shared.start.elapsed().as_secs() / SECONDS_OF_A_KEY;
        let (name, draw) = KINDS[kind as usize];
        let key = format!("{name}-{number}:{generation}.{time}");
        (key, draw(self))
    }

    fn unique(&mut self) -> String {
        self.sequence += 1;
        format!("{}.{};", self.number, self.sequence)
    }

    /// Returns some keys of a group, mostly several.
    fn members(&mut self) -> Vec<usize> {
        let left_out = self.rng.below(MEMBERS as u64 + 1) as usize;
        let alone = self.rng.chance(200_000);
        let chosen = |n: &usize| (*n == left_out) == alone || left_out == MEMBERS;
        (0..MEMBERS).filter(chosen).collect()
    }

    fn value(&mut self) -> String {
        let unique = self.unique();
        match self.rng.below(20) {
            0 => unique + &"x".repeat(LONG_VALUE),
            _ => unique,
        }
    }
}

fn push(connection: &mut Connection, key: &str, op: &Op) {
    let words = op.words(key);
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    connection.push(&words);
}

fn understand(op: &Op, reply: Reply) -> Result<Answer, String> {
    match (op, reply) {
        (Op::Set(_) | Op::SetSome(..), Reply::Simple(_)) => Ok(Answer::Done),
        (Op::Get, Reply::Bulk(text)) => Ok(contents(text).map_or(Answer::Nil, Answer::Text)),
        (Op::GetAll, Reply::Array(replies)) => texts(replies),
        (Op::Incr | Op::Append(_) | Op::Del | Op::DelSome(_), Reply::Int(n)) => {
            Ok(Answer::Number(n))
        }
        (Op::Incr, Reply::Error(e)) if e.contains("not an integer") => Ok(Answer::NotANumber),
        (op, reply) => Err(format!("{op:?} was answered {reply:?}")),
    }
}

fn contents(text: Option<Vec<u8>>) -> Option<String> {
    text.map(|text| String::from_utf8_lossy(&text).into_owned())
}

fn texts(replies: Vec<Reply>) -> Result<Answer, String> {
    let text = |reply| match reply {
        Reply::Bulk(text) => Ok(contents(text)),
        other => Err(format!("MGET was answered {other:?}")),
    };
    let texts: Vec<Option<String>> = replies.into_iter().map(text).collect::<Result<_, _>>()?;
    let texts = texts.try_into();
    texts
        .map(Answer::Texts)
        .map_err(|texts| format!("MGET was answered {texts:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_as_a_whole() {
        let bulk = |text: &str| Reply::Bulk(Some(text.as_bytes().to_vec()));
        let three = vec![bulk("a"), Reply::Bulk(None), bulk("b")];
        let texts = [Some("a".to_string()), None, Some("b".to_string())];
        let read = |replies| understand(&Op::GetAll, Reply::Array(replies));
        assert_eq!(read(three), Ok(Answer::Texts(texts)));
        assert!(read(vec![bulk("a")]).is_err());
        assert!(read(vec![bulk("a"), Reply::Int(1), bulk("b")]).is_err());
    }
}
