// SPDX-License-Identifier: Apache-2.0
//! A crowd: clients of the library, each at an address of its own, that now and then all have a
//! command in flight at once. Front ends are never so many that a leader of NOPaxos answers them as
//! a crowd. [N-CROWD]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use apps::kv::{self, Command, Refusal, SetFlags};
use client::{Client, ClientOptions, Outcome};
use node::ClusterFile;
use serde_json::Value;
use test_world::Rng;
use wirepaxos::admin;

use super::client::{Author, REPLY_TIMEOUT, Shared};
use super::history::{Answer, Event, Op};
use super::wholeness::Documents;

/// All clients of the crowd begin at the same time, once in this interval.
const WAVE_EVERY: Duration = Duration::from_secs(1);
/// The number of commands that each client sends then, one after the other.
const COMMANDS_OF_A_WAVE: usize = 10;
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// How often replicas are asked how many crowds they have seen.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A crowd that runs.
pub struct Crowd {
    members: Vec<JoinHandle<Vec<Event>>>,
    looks: Option<JoinHandle<Seen>>,
}

impl Crowd {
    /// Starts `members` clients, with numbers from `first` on. They end with all others.
    pub fn start(
        cluster: &ClusterFile,
        members: u32,
        first: u32,
        seed: u64,
        shared: &Arc<Shared>,
    ) -> Crowd {
        let mut rng = Rng::new(seed);
        let member = |n| {
            let number = first + n;
            let member = Member {
                author: Author::new(number, rng.fork(u64::from(number)), shared),
                cluster: cluster.clone(),
            };
            std::thread::spawn(move || member.run())
        };
        let looks = (members > 0).then(|| {
            let (cluster, shared) = (cluster.clone(), shared.clone());
            std::thread::spawn(move || look(&cluster, &shared))
        });
        Crowd {
            members: (0..members).map(member).collect(),
            looks,
        }
    }

    /// Ends the clients; returns what they saw, and how often leaders have answered a crowd.
    pub fn stop(self) -> (Vec<Event>, u64) {
        let histories = self.members.into_iter().map(|member| {
            let joined = member.join();
            joined.expect("a member doesn't panic")
        });
        let history = histories.flatten().collect();
        let crowds = self.looks.map(|looks| {
            let joined = looks.join();
            joined.expect("who looks doesn't panic").crowds
        });
        (history, crowds.unwrap_or_default())
    }
}

struct Member {
    author: Author,
    cluster: ClusterFile,
}

impl Member {
    fn run(mut self) -> Vec<Event> {
        let options = ClientOptions {
            open_timeout: OPEN_TIMEOUT,
            ..ClientOptions::default()
        };
        while !self.author.shared.is_stopped() {
            self.await_wave();
            if let Ok(mut client) = Client::open(&self.cluster, options.clone()) {
                self.converse(&mut client);
            }
        }
        self.author.history
    }

    fn await_wave(&self) {
        let wave = WAVE_EVERY.as_nanos() as u64;
        sleep(Duration::from_nanos(wave - self.author.shared.now() % wave));
    }

    /// Sends commands as long as the connection works.
    fn converse(&mut self, client: &mut Client) {
        loop {
            self.await_wave();
            for _ in 0..COMMANDS_OF_A_WAVE {
                if self.author.shared.is_stopped() || !self.command(client) {
                    return;
                }
            }
        }
    }

    /// Returns whether it was answered. What wasn't stays open: the client tries on as long as it
    /// is there.
    fn command(&mut self, client: &mut Client) -> bool {
        let (key, op) = self.author.draw_single();
        let bytes = encoded(&key, &op);
        let at = self.author.history.len();
        self.author.begin(key.clone(), op.clone());
        let outcome = client.call_by_key(key.as_bytes(), &bytes, REPLY_TIMEOUT);
        let answer = match &outcome {
            Outcome::Executed(Some(bytes)) => understand(&op, bytes),
            _ => None,
        };
        let is_answered = answer.is_some();
        if let Some(answer) = answer {
            self.author.end(at, answer);
        }
        self.author.forget_idle(at);
        is_answered
    }
}

/// Returns what a front end makes of such a command.
fn encoded(key: &str, op: &Op) -> Vec<u8> {
    let key = key.as_bytes();
    let command = match op {
        Op::Get => Command::Get { key },
        Op::Set(value) => Command::Set {
            flags: SetFlags::default(),
            key,
            value: value.as_bytes(),
        },
        Op::Incr => Command::IncrBy { key, delta: 1 },
        Op::Append(value) => Command::Append {
            key,
            value: value.as_bytes(),
        },
        Op::Del => Command::Del { keys: vec![key] },
        Op::SetSome(..) | Op::GetAll | Op::DelSome(_) => unreachable!("of a single key"),
    };
    let mut bytes = Vec::new();
    command
        .encode(&mut bytes)
        .expect("keys and values are short");
    bytes
}

fn understand(op: &Op, bytes: &[u8]) -> Option<Answer> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match (op, kv::Reply::parse(bytes).ok()?) {
        (Op::Set(_), kv::Reply::Ok) => Some(Answer::Done),
        (Op::Get, kv::Reply::Nil) => Some(Answer::Nil),
        (Op::Get, kv::Reply::Bulk(bytes)) => Some(Answer::Text(text(bytes))),
        (Op::Incr | Op::Append(_) | Op::Del, kv::Reply::Int(n)) => Some(Answer::Number(n)),
        (Op::Incr, kv::Reply::Error(Refusal::NotAnInteger)) => Some(Answer::NotANumber),
        _ => None,
    }
}

/// Counts until all ends. What a replica has seen since the last look goes with its process.
fn look(cluster: &ClusterFile, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    loop {
        let is_last = shared.is_stopped();
        seen.add(&admin::ask_all(cluster).unwrap_or_default());
        if is_last {
            return seen;
        }
        sleep(LOOK_EVERY);
    }
}

/// How often leaders have answered a crowd.
#[derive(Default)]
struct Seen {
    crowds: u64,
    /// The last position that each replica reported, by partition.
    last: BTreeMap<(String, usize), u64>,
}

impl Seen {
    fn add(&mut self, documents: &Documents) {
        for (name, document) in documents {
            let partitions = document["partitions"].as_array();
            for (pid, partition) in partitions.into_iter().flatten().enumerate() {
                self.add_of((name.clone(), pid), &partition["nopaxos"]["crowds"]);
            }
        }
    }

    fn add_of(&mut self, of: (String, usize), crowds: &Value) {
        let Some(crowds) = crowds.as_u64() else {
            return;
        };
        let last = self.last.insert(of, crowds).unwrap_or_default();
        // Less than before: it counts from its start on.
        self.crowds += if crowds < last { crowds } else { crowds - last };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn crowds_are_counted_over_restarts() {
        let mut seen = Seen::default();
        for (crowds, sum) in [(2, 2), (5, 5), (1, 6), (1, 6)] {
            let partitions = json!([{ "nopaxos": { "crowds": crowds } }, {}]);
            let document = json!({ "partitions": partitions });
            let controller = ("controller".to_string(), json!({}));
            seen.add(&[controller, ("replica-1".to_string(), document)].into());
            assert_eq!(seen.crowds, sum);
        }
    }

    #[test]
    fn an_answer_is_what_a_front_end_makes_of_it() {
        let said = |op: &Op, reply: kv::Reply<'_>| {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            understand(op, &bytes)
        };
        let text = Answer::Text("a".to_string());
        assert_eq!(said(&Op::Get, kv::Reply::Bulk(b"a")), Some(text));
        assert_eq!(said(&Op::Get, kv::Reply::Nil), Some(Answer::Nil));
        assert_eq!(said(&Op::Del, kv::Reply::Int(1)), Some(Answer::Number(1)));
        let refused = kv::Reply::Error(Refusal::NotAnInteger);
        assert_eq!(said(&Op::Incr, refused), Some(Answer::NotANumber));
        let refused = kv::Reply::Error(Refusal::ReplyTooLarge);
        assert_eq!(said(&Op::Incr, refused), None);
        assert_eq!(understand(&Op::Get, &[]), None);
    }
}
