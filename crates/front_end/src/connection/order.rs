// SPDX-License-Identifier: Apache-2.0
//! A connection's commands for the log in the client's order, and which of them may be sent when:
//! the [`Order`] tells which may be in flight at once.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use paxos::PartitionId;
use paxos::wire::value::PACKED_ITEM_HEADER_LEN;
use replica::Status;

use crate::found_keys::Awaited;
use crate::log::lane::{Lane, LaneSession, Logged};
use crate::log::reads::Reading;
use crate::metrics::Metrics;
use crate::partitions::Partitions;
use crate::settings::Order;
use crate::shared::Shared;
use crate::state::named_command::Once;

/// The way from a connection to the log.
pub(crate) trait Sink {
    /// Asks for a session in a partition; returns the nonce with which it is asked for.
    fn open(&mut self, pid: PartitionId) -> u64;

    /// Sends a command in the session of its lowest partition.
    fn send(&mut self, session: u64, request: u64, logged: &Logged);

    /// Sends a part of a command in the session of a partition.
    fn send_part(&mut self, pid: PartitionId, session: u64, number: u64, part: &[u8]);

    /// Sends a command that takes effect once, however often and from wherever it is sent.
    /// [S-NAMED]
    fn send_once(&mut self, once: Once, logged: Logged);

    /// Returns true if reads without the log are possible now.
    fn can_read(&self) -> bool;

    /// Sends a command that is answered without the log; returns the number of the read.
    fn read(&mut self, pid: PartitionId, command: &[u8], stale: bool) -> u64;
}

/// The commands that wait for the log, and those in flight in it.
#[derive(Default)]
pub(crate) struct Orders {
    /// The lanes of the partitions that are in use, one each.
    lanes: Vec<Lane>,
    /// The reads without the log that aren't answered yet.
    reading: Reading,
    /// The commands that aren't sent yet, in the client's order.
    waiting: VecDeque<Logged>,
    /// The bytes of the commands that wait and that are in flight.
    bytes: usize,
    /// The number of the last command.
    number: u64,
    /// The command beside which no other may be in flight: it asks one partition after the other,
    /// or is in a name's session.
    alone: Option<u64>,
    /// The command in a name's session, without its bytes, and how many bytes it has.
    named: Option<(Logged, usize)>,
    /// The KEYS that waits for the keys to be collected, after all partitions have answered.
    walk: Option<Awaited>,
    /// True until a command of the latest input waits for the log.
    is_new: bool,
}

impl Orders {
    /// Returns the number of the next command.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Notes that input has arrived.
    pub fn note_input(&mut self) {
        self.is_new = true;
    }

    /// Returns true if the next command arrived together with one that is here already.
    pub fn follows(&mut self) -> bool {
        !std::mem::take(&mut self.is_new)
    }

    /// Adds a command, behind all others; it is joined with the one before it if it can be, and if
    /// both take at most half a value, so that values can be filled.
    pub fn push(&mut self, logged: Logged, shared: &Shared) {
        if let Some(last) = self.waiting.back_mut() {
            let (before, most) = (last.bytes.len(), shared.max_value / 2);
            if last.join(&logged, most.saturating_sub(PACKED_ITEM_HEADER_LEN)) {
                self.bytes += last.bytes.len() - before;
                return;
            }
        }
        self.bytes += logged.bytes.len();
        self.waiting.push_back(logged);
    }

    /// Puts the same question to another partition, before all commands that wait.
    pub fn ask_next_partition(&mut self, pid: PartitionId, logged: Logged) {
        self.bytes += logged.bytes.len();
        self.waiting.push_front(Logged {
            partitions: Partitions::one(pid),
            ..logged
        });
    }

    /// Returns the bytes of the commands that wait and that are in flight.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the next command that waits arrived together with the one before it, whose
    /// answer can then wait for its own.
    pub fn has_followers(&self) -> bool {
        self.waiting.front().is_some_and(|next| next.follows)
    }

    /// Sends the commands that may be sent now, and asks for the sessions that they need. Each lane
    /// may have `values` values in flight. `stale` is true if reads may be answered with what this
    /// replica has executed.
    pub fn propose(&mut self, shared: &Shared, values: usize, stale: bool, sink: &mut impl Sink) {
        self.propose_waiting(shared, values, stale, sink);
        let mut part = Vec::new();
        for lane in &mut self.lanes {
            let LaneSession::Open(session) = lane.session else {
                continue;
            };
            while let Some(number) = lane.next_part(&mut part) {
                sink.send_part(lane.pid, session, number, &part);
            }
        }
    }

    fn propose_waiting(
        &mut self,
        shared: &Shared,
        values: usize,
        stale: bool,
        sink: &mut impl Sink,
    ) {
        let mut flight = self.flight();
        let mut at = 0;
        while let Some(next) = self.waiting.get(at) {
            if !self.goes(next, at, &flight) {
                return;
            }
            if next.alone {
                self.alone = Some(next.number);
            }
            if next.once.is_some() {
                return self.send_once(at, shared, sink);
            }
            let wanted = next.partitions;
            let without_log = flight.lets_read(shared.order, wanted);
            if without_log && next.reads && shared.without_log && sink.can_read() {
                let logged = self.waiting.remove(at).expect("just seen");
                let number = sink.read(wanted.lowest(), &logged.bytes, stale);
                self.reading.push(number, logged);
                flight.reading.add(wanted);
                continue;
            }
            let in_order = flight.lets_send(shared.order, wanted, values);
            let len = next.bytes.len();
            let lane = lane_of(&mut self.lanes, wanted.lowest());
            let session = match lane.session {
                LaneSession::None => {
                    lane.session = LaneSession::Opening(sink.open(lane.pid));
                    None
                }
                LaneSession::Opening(_) => None,
                LaneSession::Open(id) => Some(id),
            };
            match session.filter(|_| in_order && lane.has_room(len, shared.max_value, values)) {
                Some(session) => {
                    let logged = self.waiting.remove(at).expect("just seen");
                    if logged.reads {
                        Metrics::add(&shared.metrics.logged);
                    }
                    flight.note_sent(wanted);
                    lane.send(logged, shared.max_value, |request, logged| {
                        sink.send(session, request, logged)
                    });
                }
                None if shared.order == Order::Connection => return,
                None => {
                    flight.blocked.add(wanted);
                    at += 1;
                    if flight.blocked == Partitions::first(shared.partitions) {
                        return;
                    }
                }
            }
        }
    }

    fn flight(&self) -> Flight {
        Flight {
            busy: self.reach(),
            spanning: self.spanning(),
            reading: self.reading.reach(),
            sent: Partitions::default(),
            blocked: Partitions::default(),
        }
    }

    /// Returns true unless a command must wait because it, or one before it, goes alone. A command
    /// that goes alone waits for all commands before it, and all behind it wait for it.
    fn goes(&self, next: &Logged, at: usize, flight: &Flight) -> bool {
        match self.alone {
            Some(number) => next.number == number,
            None => {
                let is_first = at == 0 && flight.busy.is_empty() && flight.sent.is_empty();
                !next.alone || is_first && flight.reading.is_empty()
            }
        }
    }

    /// Sends a command in a name's session. No other command is in flight meanwhile. [S-NAMED]
    fn send_once(&mut self, at: usize, shared: &Shared, sink: &mut impl Sink) {
        let logged = self.waiting.remove(at).expect("just seen");
        let Some(once) = logged.once else { return };
        Metrics::add(&shared.metrics.logged);
        let kept = Logged {
            bytes: Vec::new(),
            ..logged
        };
        self.named = Some((kept, logged.bytes.len()));
        sink.send_once(once, logged);
    }

    /// Returns the partition and number of the command in a name's session, if there is one.
    pub fn named(&self) -> Option<(PartitionId, Once)> {
        let (logged, _) = self.named.as_ref()?;
        logged.once.map(|once| (logged.partitions.lowest(), once))
    }

    /// Returns all partitions in which the commands in flight take effect.
    fn reach(&self) -> Partitions {
        let mut all = Partitions::default();
        self.lanes.iter().for_each(|lane| all.add(lane.reach()));
        all
    }

    /// Returns all partitions in which commands over several partitions that are in flight take
    /// effect.
    fn spanning(&self) -> Partitions {
        let mut all = Partitions::default();
        let in_flight = self.lanes.iter().flat_map(Lane::in_flight);
        in_flight
            .filter(|logged| logged.partitions.len() > 1)
            .for_each(|logged| all.add(logged.partitions));
        all
    }

    /// Returns true if any command is in flight.
    pub fn is_under_way(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.is_idle())
    }

    /// Returns the lane of a partition, if there is one.
    pub fn lane(&mut self, pid: PartitionId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.pid == pid)
    }

    /// Returns all lanes.
    pub fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut()
    }

    pub fn is_idle(&self) -> bool {
        let waits = !self.waiting.is_empty() || !self.reading.is_empty() || self.named.is_some();
        !waits && self.lanes.iter().all(Lane::is_idle)
    }

    /// Removes the lanes that have nothing to do and weren't used within the time `idle`; returns
    /// their sessions.
    pub fn take_unused(&mut self, idle: Duration) -> Vec<(PartitionId, u64)> {
        let mut sessions = Vec::new();
        if self.waiting.is_empty() {
            self.lanes.retain(|lane| match lane.session {
                LaneSession::Open(id) if lane.is_idle() && lane.last_used.elapsed() >= idle => {
                    sessions.push((lane.pid, id));
                    false
                }
                _ => true,
            });
        }
        sessions
    }

    /// Forgets the session of a partition. None of the commands in flight in it took effect, so
    /// they all wait for another session.
    pub fn lose_session(&mut self, pid: PartitionId) {
        if let Some(lane) = self.lane(pid) {
            let lost = lane.forget_session();
            lost.into_iter()
                .rev()
                .for_each(|logged| self.waiting.push_front(logged));
        }
    }

    /// Returns the numbers of the commands in flight.
    pub fn in_flight(&self) -> Vec<u64> {
        let of_lanes = self.lanes.iter().flat_map(Lane::in_flight);
        let named = self.named.iter().map(|(logged, _)| logged);
        of_lanes.chain(named).flat_map(Logged::numbers).collect()
    }

    /// Returns the command that this answer completes, or nothing if it answers only one of its
    /// parts.
    pub fn answered(
        &mut self,
        (pid, number): (PartitionId, u64),
        status: Option<Status>,
    ) -> Option<Logged> {
        let logged = self.lane(pid)?.answered(number, status)?;
        self.bytes -= logged.bytes.len();
        Some(logged)
    }

    /// Takes the command in a name's session, as it is answered.
    pub fn named_answered(&mut self) -> Option<Logged> {
        let (logged, len) = self.named.take()?;
        self.bytes -= len;
        Some(logged)
    }

    /// Takes the command of a read that is answered.
    pub fn read_answered(&mut self, number: u64) -> Option<Logged> {
        let logged = self.reading.answered(number)?;
        self.bytes -= logged.bytes.len();
        Some(logged)
    }

    /// Sends a read that got no answer through the log, before all commands that wait.
    pub fn give_up_read(&mut self, number: u64, metrics: &Metrics) {
        for logged in self.reading.given_up(number).into_iter().rev() {
            Metrics::add(&metrics.reads_given_up);
            Metrics::add(&metrics.logged);
            self.waiting.push_front(logged);
        }
    }

    /// Notes that keys are collected for the command that is alone; returns a token that dies once
    /// nobody waits for them.
    pub fn begin_walk(&mut self) -> Weak<()> {
        self.walk.insert(Awaited::default()).token()
    }

    /// Notes that a command is answered, so that others may follow it if it was alone.
    pub fn end(&mut self, number: u64) {
        if self.alone == Some(number) {
            self.alone = None;
            self.walk = None;
        }
    }

    /// Forgets all commands and sessions.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.alone = None;
        self.named = None;
        self.walk = None;
        self.lanes.clear();
        self.reading.clear();
        self.bytes = 0;
    }

    /// Forgets the commands that aren't in flight.
    pub fn abandon(&mut self) {
        self.alone = None;
        self.walk = None;
        let waiting = self.waiting.drain(..).map(|logged| logged.bytes.len());
        self.bytes -= waiting.sum::<usize>();
        self.bytes -= self.reading.clear();
    }
}

/// The partitions in which commands are on their way, while further ones are sent.
struct Flight {
    /// Commands are in flight already in these.
    busy: Partitions,
    /// A command over several partitions is in flight in these.
    spanning: Partitions,
    /// A read without the log is unanswered in these; writes there wait. [B-ALONE]
    reading: Partitions,
    /// Commands were sent to these just now, which may share a value.
    sent: Partitions,
    /// A command can't be sent to these yet, so that later ones there wait, too.
    blocked: Partitions,
}

impl Flight {
    /// Returns true if a read may go without the log: only other reads are unanswered before it
    /// there. [B-ALONE]
    fn lets_read(&self, order: Order, wanted: Partitions) -> bool {
        match order {
            Order::Connection => {
                let is_quiet = self.busy.is_empty() && self.sent.is_empty();
                is_quiet && (self.reading.is_empty() || self.reading == wanted)
            }
            Order::Key => {
                let before = [self.busy, self.sent, self.blocked];
                !before.iter().any(|partitions| wanted.meets(*partitions))
            }
        }
    }

    /// Returns true if a command keeps its order when it is sent now. Each partition may have
    /// `values` values in flight.
    fn lets_send(&self, order: Order, wanted: Partitions, values: usize) -> bool {
        let is_single = wanted.len() == 1;
        // A session keeps the order of its commands in flight, so a command of one partition may
        // follow others there. [S-ORDERED]
        let may_join = values > 1 && is_single;
        match order {
            Order::Connection => {
                let joins = may_join && self.busy == wanted;
                (self.busy.is_empty() || joins)
                    && self.reading.is_empty()
                    && (self.sent.is_empty() || is_single && self.sent == wanted)
            }
            Order::Key => {
                let joins = may_join && !wanted.meets(self.spanning);
                (joins || !wanted.meets(self.busy))
                    && !wanted.meets(self.reading)
                    && !wanted.meets(self.blocked)
                    && (is_single || !wanted.meets(self.sent))
            }
        }
    }

    fn note_sent(&mut self, wanted: Partitions) {
        self.sent.add(wanted);
        if wanted.len() > 1 {
            self.busy.add(wanted);
            self.spanning.add(wanted);
        }
    }
}

/// Returns the lane of a partition, which is made at its first use.
fn lane_of(lanes: &mut Vec<Lane>, pid: PartitionId) -> &mut Lane {
    let at = lanes.iter().position(|lane| lane.pid == pid);
    let at = at.unwrap_or_else(|| {
        lanes.push(Lane::new(pid));
        lanes.len() - 1
    });
    &mut lanes[at]
}
