// SPDX-License-Identifier: Apache-2.0
//! A connection's way into one partition: an ordered session of that partition's log.

use std::collections::VecDeque;
use std::time::Instant;

use paxos::PartitionId;
use paxos::wire::value::PACKED_ITEM_HEADER_LEN;
use replica::Status;
use replica::parts::{self, Progress, Sending};

use crate::connection::SESSION_WINDOW;
use crate::names::Once;
use crate::partitions::Partitions;

/// A session in the log of a partition. Ids are unique within the partition only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Session {
    None,
    /// It was asked for under this nonce.
    Opening(u64),
    Open(u64),
}

/// A command on its way into the log.
pub(crate) struct Logged {
    /// Counts the connection's commands: the slot of the answer.
    pub number: u64,
    /// Where it takes effect. The session is the one in the lowest of them.
    pub partitions: Partitions,
    /// Whether it is put to one partition after the other: nothing else is under way meanwhile.
    pub alone: bool,
    /// Whether it may be answered without the log.
    pub reads: bool,
    /// Whether it came together with the command before it.
    pub follows: bool,
    /// Whose session it goes to, if that isn't the connection's.
    pub once: Option<Once>,
    pub bytes: Vec<u8>,
}

/// See the module. What is in flight never exceeds one reply window: however it is packed, lost, repeated or reordered on its
/// way, the session executes it in order and once, and has every answer on record until all before it are here. How many values it
/// may have, the front end says by how many connections there are. A command that is longer than a value is in flight alone, and
/// travels in parts. [S-PARTS]
pub(crate) struct Lane {
    pub pid: PartitionId,
    pub session: Session,
    pub last_used: Instant,
    /// The session's last request.
    last_request: u64,
    /// Bytes of the value in flight, as if it were packed.
    value_bytes: usize,
    /// The same of what isn't answered yet.
    bytes: usize,
    /// What is sent and not answered, each with its request.
    in_flight: VecDeque<(u64, Logged)>,
    /// The parts of what is in flight, where that is longer than a value.
    parts: Option<Sending>,
    /// The replica has taken another one's state while this was in flight: some of it may have been
    /// executed without an answer here.
    overtaken: bool,
}

impl Lane {
    /// Without a session yet.
    pub fn new(pid: PartitionId) -> Lane {
        Lane {
            pid,
            session: Session::None,
            last_used: Instant::now(),
            last_request: 0,
            value_bytes: 0,
            bytes: 0,
            in_flight: VecDeque::new(),
            parts: None,
            overtaken: false,
        }
    }

    /// What is sent and not answered.
    pub fn in_flight(&self) -> impl Iterator<Item = &Logged> {
        self.in_flight.iter().map(|(_, logged)| logged)
    }

    /// The numbers under which the log is to answer.
    pub fn numbers(&self) -> Vec<u64> {
        match &self.parts {
            Some(parts) => parts.open().collect(),
            None => self.in_flight.iter().map(|(request, _)| *request).collect(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// All partitions in which what is in flight takes effect.
    pub fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.in_flight
            .iter()
            .for_each(|(_, l)| all.add(l.partitions));
        all
    }

    /// Returns whether one more command of `len` bytes may be sent beside what is in flight, which may be `values` values.
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

    /// Takes a command in flight, and shows it with its request, unless it is longer than a value: then
    /// [`next_part`](Self::next_part) is to be sent.
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

    /// The number of the next part that may leave; its bytes are put into `out`.
    pub fn next_part(&mut self, out: &mut Vec<u8>) -> Option<u64> {
        let (_, logged) = self.in_flight.front()?;
        self.parts.as_mut()?.next(&logged.bytes, out)
    }

    /// The command that is answered; none if it was only one of its parts.
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

    /// The replica has taken another one's state of a partition: what it executes there next may come
    /// after what is in flight, and nobody says so here.
    pub fn overtake(&mut self, pid: PartitionId) {
        self.overtaken |= self.reach().meets(Partitions::one(pid));
    }

    /// Whether the answer that there is no such session leaves nothing open: nothing in flight took
    /// effect, and nothing will. The replica beside this front end executes the first copy of a
    /// command before any other one, and answers here. So if its first answer is this one, there was no
    /// session at the first copy, and ids are never used again. [S-ANEW]
    pub fn is_loss_certain(&self) -> bool {
        !self.overtaken
    }

    /// The session is gone; returns what was in flight in it.
    pub fn forget_session(&mut self) -> impl DoubleEndedIterator<Item = Logged> + use<> {
        self.session = Session::None;
        self.last_request = 0;
        self.overtaken = false;
        self.parts = None;
        self.bytes = 0;
        let lost = std::mem::take(&mut self.in_flight);
        lost.into_iter().map(|(_, logged)| logged)
    }
}
