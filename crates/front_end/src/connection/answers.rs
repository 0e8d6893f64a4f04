// SPDX-License-Identifier: Apache-2.0
//! Takes the answers to the connection's commands, from the log and without it, and shows them to
//! the client.

use apps::kv::Reply;
use paxos::PartitionId;
use replica::Status;

use crate::answer::served::{self, Served};
use crate::answer::{self, Shape, lost};
use crate::connection::Connection;
use crate::connection::blocked::Blocked;
use crate::found_keys::{Found, Wanted};
use crate::log::lane::Logged;
use crate::metrics::Metrics;
use crate::pubsub::blanks::Filling;
use crate::pubsub::jobs::Job;
use crate::pubsub::survey::{Question, Survey};
use crate::resp::Writer;
use crate::shared::Shared;
use crate::state::watched_keys::Watched;
use crate::turns::LOOK_UP;

/// The answer if the replicated application is no key-value store.
const NO_STORE: &str = "ERR the replicated application is no key-value store";

impl Connection {
    /// Takes the answer to a command in flight, or to a part of one. If KEYS must now collect its
    /// keys, returns its number, its pattern, and a token that dies once the client no longer
    /// waits.
    pub fn on_answer(
        &mut self,
        (pid, number): (PartitionId, u64),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) -> Option<Wanted> {
        let logged = self.orders.answered((pid, number), status)?;
        self.take_answer((pid, logged), status, bytes, shared)
    }

    /// Takes the answer to the command in a name's session; with no status its outcome is unknown.
    pub fn on_named(&mut self, status: Option<Status>, bytes: &[u8], shared: &Shared) {
        if let Some(logged) = self.orders.named_answered() {
            let pid = logged.partitions.lowest();
            // The command isn't KEYS, which asks all partitions, so there is nothing to look for.
            let _ = self.take_answer((pid, logged), status, bytes, shared);
        }
    }

    fn take_answer(
        &mut self,
        (pid, logged): (PartitionId, Logged),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) -> Option<Wanted> {
        if logged.joined > 0 {
            self.on_joined(&logged, status, bytes, shared);
            return None;
        }
        let number = logged.number;
        let shape = self.slots.shape_of(number)?;
        if let Shape::Served(_) = shape {
            self.on_served((pid, logged), status, bytes, shared);
            return None;
        }
        let reply = Reply::parse(bytes);
        let gathers = match (status, &reply) {
            (Some(Status::Ok), Ok(reply)) => shape.gather(reply),
            _ => false,
        };
        if gathers && pid + 1 < shared.partitions {
            self.orders.ask_next_partition(pid + 1, logged);
            return None;
        }
        let shape = shape.clone();
        if let (Some(Status::Ok), Shape::Watch(keys), Ok(Reply::Array(versions))) =
            (status, &shape, &reply)
        {
            self.note_versions(keys, versions);
        }
        if let (true, Shape::Keys(pattern)) = (gathers, &shape) {
            let awaited = self.orders.begin_walk();
            return Some((number, pattern.clone(), awaited));
        }
        self.answer(number, shared, |writer| match (status, reply) {
            (Some(Status::Ok), Ok(reply)) => {
                answer::show(writer, &reply, &shape, (pid, shared.partitions));
            }
            (Some(Status::Ok), Err(_)) => {
                writer.error(NO_STORE);
            }
            (status, _) => lost::show(writer, status),
        });
        None
    }

    /// Takes the answer to commands that were joined: an array with the answer to each, or an error
    /// that answers all of them.
    fn on_joined(
        &mut self,
        logged: &Logged,
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) {
        let mut answers = served::each(bytes);
        for number in logged.numbers() {
            let answer = answers.next();
            self.answer(number, shared, |writer| match (status, answer) {
                (Some(Status::Ok), Some(answer)) => writer.out.extend_from_slice(answer),
                (Some(Status::Ok), None) => writer.error(NO_STORE),
                (status, _) => lost::show(writer, status),
            });
        }
    }

    /// Takes the answer to a command where Redis itself is replicated.
    fn on_served(
        &mut self,
        (pid, logged): (PartitionId, Logged),
        status: Option<Status>,
        bytes: &[u8],
        shared: &Shared,
    ) {
        let (number, is_ok) = (logged.number, status == Some(Status::Ok));
        let Some(Shape::Served(served)) = self.slots.shape_of(number) else {
            return;
        };
        if is_ok && served.gather(bytes) && pid + 1 < shared.partitions {
            return self.orders.ask_next_partition(pid + 1, logged);
        }
        let filling = match &mut *served {
            Served::Exec(blanks) if is_ok => {
                Filling::of(bytes, std::mem::take(blanks), shared.max_answer_bytes)
            }
            _ => None,
        };
        if let Some(filling) = filling {
            return self.begin_filling(number, filling, shared);
        }
        let served = served.clone();
        if served == Served::Tried {
            let answer = if is_ok { Ok(bytes) } else { Err(status) };
            return self.on_tried(answer, shared);
        }
        if let (true, Served::Watch(keys)) = (is_ok, &served) {
            shared.turn.spend(LOOK_UP * keys.len());
            served::versions(keys, bytes)
                .into_iter()
                .for_each(|of| self.client.watched.note(of));
        }
        let served = match served {
            Served::Published(question) if is_ok && !bytes.starts_with(b"-") => {
                return self.count_receivers(number, question, shared);
            }
            Served::Survey if is_ok && !bytes.starts_with(b"-") => {
                return self.begin_survey(shared);
            }
            other => other,
        };
        self.answer(number, shared, |writer| match (&served, is_ok) {
            (_, true) => served.show(writer.out, bytes, (pid, shared.partitions)),
            (_, false) => lost::show(writer, status),
        });
    }

    /// Begins to count the clients that get a message; PUBLISH is answered then.
    fn count_receivers(&self, number: u64, question: Question, shared: &Shared) {
        let count = Job::Count {
            asker: self.client.waiter(),
            number,
            survey: Box::new(Survey::of(question, shared.max_answer_bytes)),
        };
        // Only messages can be refused for lack of room, and this job isn't one.
        let _ = shared.jobs.borrow_mut().push(count);
    }

    /// Begins to fill in the counts within an answer to EXEC. Like PUBLISH's, they are made once
    /// the messages are delivered.
    fn begin_filling(&mut self, number: u64, filling: Filling, shared: &Shared) {
        shared.turn.copy(filling.len());
        self.slots.begin_filling(filling.len());
        let fill = Job::Fill {
            asker: self.client.waiter(),
            number,
            filling: Box::new(filling),
        };
        // Only messages can be refused for lack of room, and this job isn't one.
        let _ = shared.jobs.borrow_mut().push(fill);
    }

    /// Answers EXEC with all counts filled in.
    pub fn on_filled(&mut self, number: u64, filling: &Filling, shared: &Shared) {
        self.slots.end_filling(filling.len());
        self.answer(number, shared, |writer| filling.show(writer, &shared.turn));
    }

    /// Begins the count that PUBSUB asks for. It may take long if there are very many names, so no
    /// message waits for it.
    fn begin_survey(&mut self, shared: &Shared) {
        let asker = self.client.waiter();
        let Blocked::PubSub(pubsub) = &mut self.blocked else {
            return;
        };
        if let Some((number, question)) = pubsub.take_question() {
            shared.jobs.borrow_mut().push_aside(Job::Count {
                asker,
                number,
                survey: Box::new(Survey::of(question, shared.max_answer_bytes)),
            });
        }
    }

    /// Answers a command with the finished count.
    pub fn on_counted(&mut self, number: u64, survey: &Survey, shared: &Shared) {
        self.answer(number, shared, |writer| survey.show(writer, &shared.turn));
    }

    /// Watches these keys from now on; a key that was watched already keeps its earlier version.
    fn note_versions(&mut self, keys: &[Vec<u8>], versions: &[Reply<'_>]) {
        for (key, version) in keys.iter().zip(versions) {
            if let Reply::Int(version) = version {
                self.client.watched.note(Watched {
                    key: key.clone(),
                    version: *version as u64,
                    existed: true,
                });
            }
        }
    }

    /// Takes the answer to a read without the log. A read that got none goes through the log.
    pub fn on_read(&mut self, number: u64, answer: Option<&[u8]>, shared: &Shared) {
        let Some(bytes) = answer else {
            return self.orders.give_up_read(number, &shared.metrics);
        };
        let Some(logged) = self.orders.read_answered(number) else {
            return;
        };
        Metrics::add(&shared.metrics.reads);
        let Some(shape) = self.slots.shape_of(logged.number) else {
            return;
        };
        let shape = shape.clone();
        let place = (logged.partitions.lowest(), shared.partitions);
        if shape == Shape::Served(Served::Tried) {
            return self.on_tried(Ok(bytes), shared);
        }
        if let Shape::Served(served) = shape {
            self.answer(logged.number, shared, |writer| {
                served.show(writer.out, bytes, place);
            });
            return;
        }
        self.answer(logged.number, shared, |writer| match Reply::parse(bytes) {
            Ok(reply) => answer::show(writer, &reply, &shape, place),
            Err(_) => writer.error(NO_STORE),
        });
    }

    /// Answers KEYS with the keys found.
    pub fn walked(&mut self, number: u64, found: &Found, shared: &Shared) {
        self.answer(number, shared, |writer| match found {
            Ok(keys) => keys.write(writer),
            Err(why) => writer.error(format!("ERR {why}")),
        });
    }

    /// Answers the question about all clients.
    pub fn on_told(&mut self, number: u64, shared: &Shared, write: impl FnOnce(&mut Writer<'_>)) {
        self.answer(number, shared, write);
    }

    /// Writes a command's answer into its slot, unless nobody waits for it.
    pub(super) fn answer(
        &mut self,
        number: u64,
        shared: &Shared,
        write: impl FnOnce(&mut Writer<'_>),
    ) {
        if self.slots.answer(number, &shared.metrics, write) {
            self.orders.end(number);
            self.blocked.end(number);
        }
    }
}
