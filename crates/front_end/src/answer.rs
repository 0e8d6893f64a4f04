// SPDX-License-Identifier: Apache-2.0
//! How the store's answers are shown to clients.

use apps::kv::{Refusal, Reply};
use paxos::PartitionId;

use crate::cursors::{Cursors, Position};
use crate::resp::Writer;

/// How the store's answer is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// As it is.
    Plain,
    /// SCAN from this cursor on: where to go on becomes the next one.
    Scan(u64),
    /// KEYS: only the array of keys, those of all partitions together.
    Keys(Collected),
    /// The sum of what the partitions answer, one after the other; so much so far.
    Sum(i64),
    /// TYPE: a number that says whether the key exists.
    Type,
}

/// Keys of some partitions, as they will be shown.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Collected {
    count: usize,
    bytes: Vec<u8>,
}

impl Shape {
    /// Takes one partition's share of an answer that is put together from those of all partitions.
    /// Returns false for any other answer: it is complete as it is.
    pub fn gather(&mut self, reply: &Reply<'_>) -> bool {
        match (self, reply) {
            (Shape::Sum(sum), Reply::Int(n)) => *sum += n,
            (Shape::Keys(all), Reply::Array(parts)) if parts.len() == 2 => all.add(&parts[1]),
            _ => return false,
        }
        true
    }

    /// Writes what was gathered.
    pub fn write_gathered(&self, writer: &mut Writer<'_>) {
        match self {
            Shape::Sum(sum) => writer.integer(*sum),
            Shape::Keys(all) => {
                writer.array(all.count);
                writer.out.extend_from_slice(&all.bytes);
            }
            _ => unreachable!("only these are gathered"),
        }
    }
}

impl Collected {
    fn add(&mut self, keys: &Reply<'_>) {
        let Reply::Array(keys) = keys else { return };
        // A string is the same in both versions of the protocol.
        let mut writer = Writer {
            out: &mut self.bytes,
            resp3: false,
        };
        keys.iter().for_each(|key| write(&mut writer, key));
        self.count += keys.len();
    }
}

/// Writes an answer that is complete as it is; it came from this partition.
pub(crate) fn show(
    writer: &mut Writer<'_>,
    reply: &Reply<'_>,
    shape: &Shape,
    pid: PartitionId,
    cursors: &mut Cursors,
) {
    match (shape, reply) {
        (Shape::Type, Reply::Int(n)) => writer.status(if *n == 0 { "none" } else { "string" }),
        (Shape::Scan(before), Reply::Array(parts)) if parts.len() == 2 => {
            let after = match parts[0] {
                Reply::Bulk(key) => Some(key.to_vec()),
                _ => None,
            };
            let cursor = cursors.number(*before, Position { pid, after });
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
