// SPDX-License-Identifier: Apache-2.0
//! A connection's path into one partition: an ordered session of that partition's log.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Instant;

use apps::redis::join_call;
use paxos::PartitionId;
use paxos::wire::value::PACKED_ITEM_HEADER_LEN;
use replica::Status;
use replica::parts::{self, Progress, Sending};

use crate::partitions::Partitions;
use crate::state::named_command::Once;

/// The number of answers that a session keeps, and so the number of commands that may be in flight
/// in it.
pub const SESSION_WINDOW: u16 = 64;

/// A session in the log of a partition. Ids are unique within the partition only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LaneSession {
    None,
    /// The session was asked for with this nonce.
    Opening(u64),
    Open(u64),
}

/// A command that waits for the log or is in flight in it.
pub(crate) struct Logged {
    /// The command's number within the connection; its answer's slot has the same number.
    pub number: u64,
    /// How many commands of the client were joined into this one, which have the next numbers.
    pub joined: u64,
    /// True if further commands may be joined into it.
    pub joins: bool,
    /// The partitions in which the command takes effect. It goes to the session in the lowest of
    /// them.
    pub partitions: Partitions,
    /// True if nothing else may be in flight meanwhile: the command asks one partition after the
    /// other, or is in a name's session.
    pub alone: bool,
    /// True if the command may be answered without the log.
    pub reads: bool,
    /// True if the command arrived together with the one before it.
    pub follows: bool,
    /// The name's session and the number there, if the command goes to a name's session instead of
    /// the connection's.
    pub once: Option<Once>,
    pub bytes: Vec<u8>,
}

/// The most commands of a client that are joined into one of the log. Their answers are short, so
/// that all of them together are remembered as a single one is.
const MOST_JOINED: u64 = 15;

impl Logged {
    /// Returns a command that goes the usual way: in its turn, through the log.
    pub fn new(number: u64, partitions: Partitions, bytes: Vec<u8>) -> Logged {
        Logged {
            number,
            joined: 0,
            joins: false,
            partitions,
            alone: false,
            reads: false,
            follows: false,
            once: None,
            bytes,
        }
    }

    /// Joins the next command, if it arrived together with this one and goes the same way, and both
    /// have at most `most` bytes. So a pipeline takes one place in the log and in the session
    /// instead of one a command. Returns false if they stay apart.
    pub fn join(&mut self, next: &Logged, most: usize) -> bool {
        let go_together = self.joins && next.joins && next.follows;
        let are_neighbours = self.number + self.joined + 1 == next.number;
        let joins = go_together
            && are_neighbours
            && self.partitions == next.partitions
            && self.joined < MOST_JOINED
            && join_call(&mut self.bytes, &next.bytes, most);
        self.joined += u64::from(joins);
        joins
    }

    /// Returns the numbers of the client's commands that are in this one.
    pub fn numbers(&self) -> RangeInclusive<u64> {
        self.number..=self.number + self.joined
    }
}

/// The session of one partition, with the commands in flight in it.
///
/// The commands in flight never exceed one reply window. So however they are packed, lost, repeated
/// or reordered, the session executes each once and in order, and keeps every answer until all
/// answers before it are here. The front end limits the values in flight by the number of
/// connections. A command longer than a value is in flight alone and travels in parts. [S-PARTS]
pub(crate) struct Lane {
    pub pid: PartitionId,
    pub session: LaneSession,
    pub last_used: Instant,
    /// The number of the session's last request.
    last_request: u64,
    /// The bytes in flight, as if all had been packed into one value.
    value_bytes: usize,
    /// The bytes that aren't answered yet, with their headers.
    bytes: usize,
    /// The commands that are sent and not answered, each with its request number.
    in_flight: VecDeque<(u64, Logged)>,
    /// The parts of the command in flight, if it is longer than a value.
    parts: Option<Sending>,
    /// True if the replica has taken another replica's state while these commands were in flight,
    /// so that some may have been executed without an answer here.
    overtaken: bool,
}

impl Lane {
    /// Creates a lane without a session.
    pub fn new(pid: PartitionId) -> Lane {
        Lane {
            pid,
            session: LaneSession::None,
            last_used: Instant::now(),
            last_request: 0,
            value_bytes: 0,
            bytes: 0,
            in_flight: VecDeque::new(),
            parts: None,
            overtaken: false,
        }
    }

    /// Returns the commands that are sent and not answered.
    pub fn in_flight(&self) -> impl Iterator<Item = &Logged> {
        self.in_flight.iter().map(|(_, logged)| logged)
    }

    /// Returns the request numbers that the log still has to answer.
    pub fn numbers(&self) -> Vec<u64> {
        match &self.parts {
            Some(parts) => parts.open().collect(),
            None => self.in_flight.iter().map(|(request, _)| *request).collect(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns all partitions in which the commands in flight take effect.
    pub fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.in_flight
            .iter()
            .for_each(|(_, l)| all.add(l.partitions));
        all
    }

    /// Returns true if one more command of `len` bytes may be sent beside those in flight, which
    /// may take `values` values.
    pub fn has_room(&self, len: usize, max_value: usize, values: usize) -> bool {
        let Some((oldest, _)) = self.in_flight.front() else {
            return true;
        };
        let len = PACKED_ITEM_HEADER_LEN + len;
        let shares_value = self.value_bytes + len <= max_value;
        let has_value = values > 1
            && self.parts.is_none()
            && len <= max_value
            && self.bytes + len <= max_value * values;
        let in_window = self.last_request + 1 - oldest < u64::from(SESSION_WINDOW);
        in_window && (shares_value || has_value)
    }

    /// Puts a command in flight and passes it with its request number to `show`. If it is longer
    /// than a value, `show` isn't called; its parts come from [`next_part`](Self::next_part).
    pub fn send(&mut self, logged: Logged, max_value: usize, show: impl FnOnce(u64, &Logged)) {
        if self.is_idle() {
            self.value_bytes = 0;
            self.last_used = Instant::now();
        }
        let len = logged.bytes.len();
        self.value_bytes += PACKED_ITEM_HEADER_LEN + len;
        self.bytes += PACKED_ITEM_HEADER_LEN + len;
        self.last_request += 1;
        if len > max_value {
            self.parts = Some(Sending::new(self.last_request, len, max_value));
        } else {
            show(self.last_request, &logged);
        }
        self.in_flight.push_back((self.last_request, logged));
    }

    /// Returns the number of the next part that may be sent, and puts its bytes into `out`.
    pub fn next_part(&mut self, out: &mut Vec<u8>) -> Option<u64> {
        let (_, logged) = self.in_flight.front()?;
        self.parts.as_mut()?.next(&logged.bytes, out)
    }

    /// Returns the command that this answer completes, or nothing if it answers only one of its
    /// parts.
    pub fn answered(&mut self, number: u64, status: Option<Status>) -> Option<Logged> {
        let (request, part) = parts::split(number);
        if part.is_some() {
            let parts = self.parts.as_mut()?;
            if parts.answered(number, status == Some(Status::Ok)) != Progress::Answered {
                return None;
            }
            self.parts = None;
        }
        let at = self.in_flight.iter().position(|(r, _)| *r == request)?;
        let (_, logged) = self.in_flight.remove(at)?;
        self.bytes -= PACKED_ITEM_HEADER_LEN + logged.bytes.len();
        self.overtaken &= !self.in_flight.is_empty();
        Some(logged)
    }

    /// Notes that the replica has taken another replica's state of a partition. It may have skipped
    /// the commands in flight, and then nobody answers them here.
    pub fn overtake(&mut self, pid: PartitionId) {
        self.overtaken |= self.reach().meets(Partitions::one(pid));
    }

    /// Returns true if the answer "unknown session" proves that nothing in flight took effect or
    /// ever will. The replica beside this front end executes the first copy of a command before any
    /// other copy, and answers here. So if its first answer is this one, the session was already
    /// gone at the first copy, and ids are never used again. [S-ANEW]
    pub fn is_loss_certain(&self) -> bool {
        !self.overtaken
    }

    /// Forgets the session; returns the commands that were in flight in it.
    pub fn forget_session(&mut self) -> impl DoubleEndedIterator<Item = Logged> + use<> {
        self.session = LaneSession::None;
        self.last_request = 0;
        self.overtaken = false;
        self.parts = None;
        self.bytes = 0;
        let lost = std::mem::take(&mut self.in_flight);
        lost.into_iter().map(|(_, logged)| logged)
    }
}
