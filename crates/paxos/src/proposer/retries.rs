// SPDX-License-Identifier: Apache-2.0
//! Sends again what is not answered in time, or what a new leader lacks.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{CommandState, Key, Proposer, Value};
use crate::{Outbox, Time};

impl Proposer {
    /// Sends again the values that have waited too long, and sends what is queued.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        let mut due = std::mem::take(&mut self.due);
        while let Some(&Reverse((deadline, slot, number))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            if is_armed(&self.values, (deadline, slot, number)) {
                due.push((number, slot));
                // A second entry with the same value and time must not count again.
                self.values[slot as usize].deadline = Time::MAX;
            }
        }
        due.sort_unstable();
        due.retain(|(_, slot)| self.leaves_again(now, *slot));
        self.requeue(now, &mut due);
        self.due = due;
        self.flush(now, out);
    }

    /// Returns true if a value that is due is sent again now; otherwise it waits on. [P-WAIT]
    fn leaves_again(&mut self, now: Time, slot: u32) -> bool {
        let value = &self.values[slot as usize];
        let flight = &mut self.queues[usize::from(value.pid)].flight;
        if value.no_failure {
            return true;
        }
        if value.is_overtaken {
            flight.is_lost();
            return true;
        }
        let result = flight.times_out(now, self.settings.retry_after);
        if let Err(look_at) = result {
            self.arm(slot, look_at);
        }
        result.is_ok()
    }

    /// Notes that the known leader was named again. If it has refused something, as a leader does
    /// before it is programmed, everything is sent again. If it was silent, it may only be slow and
    /// have the commands in its queue: they wait on, and the leader is asked for again after
    /// another `ask_after`. [P-WAIT]
    pub fn leader_confirmed(&mut self, now: Time, out: &mut impl Outbox) {
        if self.is_refused {
            return self.leader_changed(now, out);
        }
        for command in &mut self.commands {
            command.since = command.since.map(|_| now);
        }
        self.needs_leader = false;
    }

    /// Sends everything outstanding to a new leader at once, and starts all waiting times from the
    /// beginning.
    pub fn leader_changed(&mut self, now: Time, out: &mut impl Outbox) {
        let mut due = std::mem::take(&mut self.due);
        let open = self.values.iter().enumerate().filter(|(_, v)| v.number > 0);
        due.extend(open.map(|(slot, value)| (value.number, slot as u32)));
        due.sort_unstable();
        self.requeue(now, &mut due);
        self.due = due;
        for command in &mut self.commands {
            (command.since, command.overtaken) = (None, 0);
        }
        for queue in &mut self.queues {
            queue.flight.begin_anew();
        }
        (self.needs_leader, self.is_refused) = (false, false);
        self.flush(now, out);
    }

    /// Takes values out of flight and puts their unanswered commands back in front of the queue, in
    /// the order in which they were submitted: a command of an ordered session that left before an
    /// older one would come too early. [P-AGAIN]
    fn requeue(&mut self, now: Time, due: &mut Vec<(u64, u32)>) {
        while let Some((_, slot)) = due.pop() {
            let commands = std::mem::take(&mut self.values[slot as usize].commands);
            let value = &self.values[slot as usize];
            let (no_failure, is_overtaken) = (value.no_failure, value.is_overtaken);
            let queue = &mut self.queues[usize::from(self.values[slot as usize].pid)];
            for &index in &commands {
                let command = &mut self.commands[index as usize];
                if command.state == CommandState::Sent(slot) {
                    command.state = CommandState::Queued;
                    let is_lost = is_overtaken && !no_failure;
                    command.overtaken = command.overtaken.saturating_add(is_lost.into());
                    command.since = command.since.filter(|_| !no_failure);
                    let sent_for = now.saturating_sub(command.since.unwrap_or(now));
                    self.needs_leader |= sent_for >= self.settings.ask_after;
                    queue.again.insert(command.age, index);
                    queue.add(command);
                }
            }
            self.values[slot as usize].commands = commands;
            self.close(slot);
        }
    }

    /// Returns when [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines
            .peek()
            .map(|Reverse((deadline, ..))| *deadline)
    }

    /// Sets when a value is sent again.
    pub(super) fn arm(&mut self, slot: u32, deadline: Time) {
        let value = &mut self.values[slot as usize];
        value.deadline = deadline;
        self.deadlines.push(Reverse((deadline, slot, value.number)));
        self.drop_void_deadlines();
        // Void entries behind a valid one must not pile up while values come and go.
        if self.deadlines.len() > 2 * self.values.len() + 64 {
            let values = &self.values;
            self.deadlines
                .retain(|Reverse(entry)| is_armed(values, *entry));
        }
    }

    /// Keeps a valid entry on top, so that [`next_deadline`](Self::next_deadline) is exact.
    pub(super) fn drop_void_deadlines(&mut self) {
        while let Some(&Reverse(entry)) = self.deadlines.peek() {
            if is_armed(&self.values, entry) {
                break;
            }
            self.deadlines.pop();
        }
    }
}

/// Returns the oldest held command of this command's session.
pub(super) fn oldest_held(held: &BTreeSet<Key>, (pid, client, _): Key) -> Option<Key> {
    let of_session = (pid, client, 0)..=(pid, client, u64::MAX);
    held.range(of_session).next().copied()
}

/// Returns true if (deadline, slot, number) is the deadline of an open value.
fn is_armed(values: &[Value], (deadline, slot, number): (Time, u32, u64)) -> bool {
    let value = &values[slot as usize];
    value.number == number && value.deadline == deadline
}
