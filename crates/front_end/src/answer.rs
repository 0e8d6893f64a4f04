// SPDX-License-Identifier: Apache-2.0
//! Shows the store's answers to clients.

pub(crate) mod lost;
pub(crate) mod served;

use apps::kv::{Refusal, Reply};
use paxos::PartitionId;

use crate::answer::served::Served;
use crate::cursor::Cursor;
use crate::resp::Writer;

/// How the store's answer to a command is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// The answer is shown as it is.
    Plain,
    /// The answer to SCAN, in which the place to continue becomes the next cursor.
    Scan,
    /// The answer to KEYS with this pattern. The partitions' answers, one after the other, only
    /// show that the replica has executed everything before; then a walk collects the keys.
    Keys(Option<Vec<u8>>),
    /// The answer is the sum of the partitions' answers, which are asked for one after the other.
    /// Holds the sum so far.
    Sum(i64),
    /// The answer to TYPE, made from a number that tells whether the key exists.
    Type,
    /// The answer to WATCH of these keys, which has their versions.
    Watch(Vec<Vec<u8>>),
    /// The answer to EXEC, made of its commands' answers.
    Exec(Vec<Item>),
    /// The answer of a Redis server.
    Served(Served),
}

/// One command's part of the answer to EXEC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    /// The command needed no log; this is its answer.
    Answered(Vec<u8>),
    /// The next one of the log's answers belongs to the command.
    Logged(Shape),
}

impl Shape {
    /// Returns true if the answer is put together from the answers of all partitions, asked one
    /// after the other.
    pub fn is_of_all(&self) -> bool {
        matches!(
            self,
            Shape::Sum(_) | Shape::Keys(_) | Shape::Served(Served::All(..))
        )
    }

    /// Takes one partition's part of an answer that is put together from all partitions. Returns
    /// false for any other answer, which is complete as it is.
    pub fn gather(&mut self, reply: &Reply<'_>) -> bool {
        match (self, reply) {
            (Shape::Sum(sum), Reply::Int(n)) => *sum += n,
            (Shape::Keys(_), Reply::Int(_)) => {}
            _ => return false,
        }
        true
    }
}

/// Writes a complete answer. Partition `pid` of `partitions` gave it, or its last part.
pub(crate) fn show(
    writer: &mut Writer<'_>,
    reply: &Reply<'_>,
    shape: &Shape,
    (pid, partitions): (PartitionId, u16),
) {
    match (shape, reply) {
        (Shape::Sum(sum), Reply::Int(_)) => writer.integer(*sum),
        (Shape::Watch(_), Reply::Array(_)) => writer.status("OK"),
        (Shape::Exec(_), Reply::Nil) => writer.null_array(),
        (Shape::Exec(items), Reply::Array(replies)) => {
            writer.array(items.len());
            let mut replies = replies.iter();
            for item in items {
                match item {
                    Item::Answered(bytes) => writer.out.extend_from_slice(bytes),
                    Item::Logged(shape) => match replies.next() {
                        Some(reply) => show(writer, reply, shape, (pid, partitions)),
                        None => writer.null(),
                    },
                }
            }
        }
        (Shape::Type, Reply::Int(n)) => writer.status(if *n == 0 { "none" } else { "string" }),
        (Shape::Scan, Reply::Array(parts)) if parts.len() == 2 => {
            let more_from = match parts[0] {
                Reply::Int(place) => Some(place as u64),
                _ => None,
            };
            let cursor = Cursor::next_number(pid, more_from, partitions);
            writer.array(2);
            writer.bulk(cursor.to_string().as_bytes());
            write(writer, &parts[1]);
        }
        _ => write(writer, reply),
    }
}

fn write(writer: &mut Writer<'_>, reply: &Reply<'_>) {
    match reply {
        Reply::Nil => writer.null(),
        Reply::Ok => writer.status("OK"),
        Reply::Int(n) => writer.integer(*n),
        Reply::Bulk(bytes) => writer.bulk(bytes),
        Reply::Array(items) => {
            writer.array(items.len());
            items.iter().for_each(|item| write(writer, item));
        }
        Reply::Error(Refusal::StringTooLong) => {
            writer.error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
        }
        Reply::Error(refusal) => writer.error(format!("ERR {refusal}")),
    }
}
