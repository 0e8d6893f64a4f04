// SPDX-License-Identifier: Apache-2.0
//! How the store's answers are shown to clients.

use apps::kv::{Refusal, Reply};
use paxos::PartitionId;

use crate::cursor::Cursor;
use crate::native::Served;
use crate::resp::Writer;

/// How the store's answer is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// As it is.
    Plain,
    /// SCAN: where to go on becomes the next cursor.
    Scan,
    /// KEYS that match a pattern: what the partitions answer, one after the other, only says that the replica
    /// has come as far. Then a [walk](crate::walk) begins.
    Keys(Option<Vec<u8>>),
    /// The sum of what the partitions answer, one after the other; so much so far.
    Sum(i64),
    /// TYPE: a number that says whether the key exists.
    Type,
    /// WATCH of these keys: their versions.
    Watch(Vec<Vec<u8>>),
    /// EXEC: what its commands answer.
    Exec(Vec<Item>),
    /// What a Redis server has answered.
    Served(Served),
}

/// One command's share of the answer to EXEC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    /// It needed no log.
    Answered(Vec<u8>),
    /// The next one of the log's answers.
    Logged(Shape),
}

impl Shape {
    /// Whether it is put together from the answers of all partitions, one after the other.
    pub fn is_of_all(&self) -> bool {
        matches!(
            self,
            Shape::Sum(_) | Shape::Keys(_) | Shape::Served(Served::All(..))
        )
    }

    /// Takes one partition's share of an answer that is put together from those of all partitions.
    /// Returns false for any other answer: it is complete as it is.
    pub fn gather(&mut self, reply: &Reply<'_>) -> bool {
        match (self, reply) {
            (Shape::Sum(sum), Reply::Int(n)) => *sum += n,
            (Shape::Keys(_), Reply::Int(_)) => {}
            _ => return false,
        }
        true
    }
}

/// Writes an answer that is complete; it, or its last part, came from this partition of so many.
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
