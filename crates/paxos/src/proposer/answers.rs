// SPDX-License-Identifier: Apache-2.0
//! Takes replies and rejections.

use super::retries::oldest_held;
use super::{
    CommandState, FOLLOWERS, Key, Proposer, STATUS_DEAD, STATUS_OUT_OF_ORDER, WINDOW_WAIT_DIVISOR,
    dead_place,
};
use crate::wire::value::{Rejection, packed_is_valid, packed_items};
use crate::{Header, Packet, PartitionId, Reason, Time, Verdict};

impl Proposer {
    /// Forgets a command that is answered. Returns true the first time.
    pub fn answered(&mut self, now: Time, pid: PartitionId, client: u64, request: u64) -> bool {
        if let Some(command) = self.index.get(&(pid, client, request)) {
            let command = &self.commands[*command as usize];
            if let CommandState::Sent(slot) = command.state {
                self.learn_from_answer(now, slot, command.is_copy);
            }
        }
        self.reply(pid, client, request)
    }

    /// Holds a command (partition, client, request) that took no effect because an earlier one of
    /// its ordered session didn't, until the earlier one is answered. Returns false if the command
    /// isn't in flight or the earlier one isn't outstanding, since a late answer may be to an
    /// earlier copy. [P-EARLY]
    pub fn came_too_early(&mut self, now: Time, key: (PartitionId, u64, u64)) -> bool {
        let (pid, client, request) = key;
        let Some(&index) = self.index.get(&key) else {
            return false;
        };
        let before = (pid, client, request.wrapping_sub(1));
        let command = &self.commands[index as usize];
        let CommandState::Sent(slot) = command.state else {
            return false;
        };
        if !self.index.contains_key(&before) {
            return false;
        }
        self.learn_from_answer(now, slot, command.is_copy);
        self.held.insert(key);
        let command = &mut self.commands[index as usize];
        // The leader lives, and has passed the command on.
        (command.state, command.since, command.overtaken) = (CommandState::Held, None, 0);
        self.leave_value(slot);
        true
    }

    /// Queues the oldest held commands of a session, since something in it was answered. Only two
    /// leave for each answer, so that little is sent in vain if something is lost again. [P-EARLY]
    fn release_followers(&mut self, key: Key) {
        for _ in 0..FOLLOWERS {
            let Some(next) = oldest_held(&self.held, key) else {
                return;
            };
            self.held.remove(&next);
            let index = self.index[&next];
            let command = &mut self.commands[index as usize];
            command.state = CommandState::Queued;
            let queue = &mut self.queues[usize::from(next.0)];
            queue.again.insert(command.age, index);
            queue.add(command);
        }
    }

    /// Learns from the answer to a command in this value how long answers take, and which earlier
    /// values were lost. [P-OVERTAKEN]
    fn learn_from_answer(&mut self, now: Time, slot: u32, is_copy: bool) {
        let first = self.settings.retry_after;
        let value = &mut self.values[slot as usize];
        // The other commands in this value are answered at the same time.
        let is_first = value.open == value.commands.len();
        if !is_first && (is_copy || value.is_sampled) {
            return;
        }
        value.is_sampled |= !is_copy;
        let (pid, overtakes) = (usize::from(value.pid), value.overtakes);
        let waited = now.saturating_sub(value.sent_at);
        let is_overtaken = value.is_overtaken;
        let flight = &mut self.queues[pid].flight;
        if !flight.answered(waited, first, is_copy, is_overtaken) {
            return;
        }
        while let Some((earlier, slot)) = self.queues[pid].flight.overtaken_by(overtakes) {
            let value = &mut self.values[slot as usize];
            if value.number != earlier {
                continue;
            }
            value.is_overtaken = true;
            let flight = &self.queues[pid].flight;
            let again_at = flight.leaves_again_at(now, value.sent_at, value.overtaken, first);
            // The new deadline may also be later than the old one: other values are answered, so
            // time alone says little.
            if !value.no_failure || again_at < value.deadline {
                self.arm(slot, again_at);
            }
        }
    }

    /// Forgets a command for whose answer its caller no longer waits. Returns true the first time.
    pub fn reply(&mut self, pid: PartitionId, client: u64, request: u64) -> bool {
        let Some(slot) = self.index.remove(&(pid, client, request)) else {
            return false;
        };
        let command = &mut self.commands[slot as usize];
        let queue = &mut self.queues[usize::from(pid)];
        match command.state {
            CommandState::Queued => {
                command.state = CommandState::Answered;
                queue.take(command);
            }
            CommandState::Sent(value) => {
                command.state = CommandState::Free;
                self.free_commands.push(slot);
                self.leave_value(value);
            }
            CommandState::Held => {
                command.state = CommandState::Free;
                self.free_commands.push(slot);
                self.held.remove(&(pid, client, request));
                return true;
            }
            CommandState::Free | CommandState::Answered => {
                unreachable!("the index holds what is outstanding")
            }
        }
        if !self.held.is_empty() {
            self.release_followers((pid, client, request));
        }
        true
    }

    /// Notes that one of a value's commands is answered or held, and closes the value after its
    /// last one.
    fn leave_value(&mut self, slot: u32) {
        let value = &mut self.values[slot as usize];
        let queue = &mut self.queues[usize::from(value.pid)];
        queue.small.retain(|small| *small > value.number);
        value.open -= 1;
        if value.open == 0 {
            self.close(slot);
        }
    }

    /// Frees a value's slot.
    pub(super) fn close(&mut self, slot: u32) {
        let value = &mut self.values[slot as usize];
        if value.packed {
            self.packs.remove(&value.number);
        }
        let queue = &mut self.queues[usize::from(value.pid)];
        queue.open_values -= 1;
        queue.small.retain(|small| *small != value.number);
        value.number = 0;
        value.commands.clear();
        self.free_values.push(slot);
        self.drop_void_deadlines();
    }

    pub(super) fn on_reply(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> Verdict {
        let h = &packet.header;
        if packet.value.is_empty() {
            return Verdict::Dropped(Reason::BadValue);
        }
        if self.answer(now, (h.pid, h.client, h.request), packet.value, completed) {
            Verdict::Changed
        } else {
            Verdict::Dropped(Reason::Unexpected)
        }
    }

    pub(super) fn on_packed_reply(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> Verdict {
        let items = || packed_items(packet.value).filter_map(Result::ok);
        if !packed_is_valid(packet.value) || items().any(|item| item.bytes.is_empty()) {
            return Verdict::Dropped(Reason::BadValue);
        }
        let mut any = false;
        for item in items() {
            let pid = packet.header.pid;
            any |= self.answer(now, (pid, item.client, item.request), item.bytes, completed);
        }
        if any {
            Verdict::Changed
        } else {
            Verdict::Dropped(Reason::Unexpected)
        }
    }

    /// Takes one answer, and returns true if it changed anything.
    fn answer(
        &mut self,
        now: Time,
        (pid, client, request): Key,
        answer: &[u8],
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> bool {
        // An out-of-order answer may belong to an earlier copy of a command that was sent again and
        // executed since, so it must not end the command. [P-AGAIN]
        match answer[0] {
            STATUS_OUT_OF_ORDER => return self.came_too_early(now, (pid, client, request)),
            STATUS_DEAD => return self.vector_died(now, (pid, client, request), &answer[1..]),
            _ => {}
        }
        let ends = self.answered(now, pid, client, request);
        if ends {
            completed(client, request, answer);
        }
        ends
    }

    /// Sends a command (partition, client, request) again at the next [`tick`](Self::tick) if its
    /// vector is dead, once for each vector. `place` follows the status in the answer. Returns true
    /// if the command is sent again. [V-DEAD]
    pub fn vector_died(&mut self, now: Time, key: (PartitionId, u64, u64), place: &[u8]) -> bool {
        let (Some(place), Some(&index)) = (dead_place(place), self.index.get(&key)) else {
            return false;
        };
        let command = &mut self.commands[index as usize];
        let CommandState::Sent(slot) = command.state else {
            return false;
        };
        if !command.multi || place <= command.dead {
            return false;
        }
        command.dead = place;
        self.values[slot as usize].no_failure = true;
        self.arm(slot, now);
        true
    }

    pub(super) fn on_reject(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        let rejection = match Rejection::parse(packet.value) {
            Ok(rejection) => rejection,
            Err(reason) => return Verdict::Dropped(reason),
        };
        let Some(slot) = self.rejected_value(&packet.header) else {
            return Verdict::Dropped(Reason::Unexpected);
        };
        match rejection.reason {
            Reason::NotLeader => {
                (self.needs_leader, self.is_refused) = (true, true);
                Verdict::Changed
            }
            Reason::Window => {
                self.values[slot as usize].no_failure = true;
                let wait = self.settings.retry_after / WINDOW_WAIT_DIVISOR;
                let soon = now.saturating_add(self.backoff.delay(wait, 0));
                if soon < self.values[slot as usize].deadline {
                    self.arm(slot, soon);
                }
                Verdict::Changed
            }
            _ => Verdict::Dropped(Reason::Unexpected),
        }
    }

    /// Returns the open value that a REJECT names: a packed one by its number, another by its
    /// command.
    fn rejected_value(&self, header: &Header) -> Option<u32> {
        if header.client == self.settings.nonce {
            let of_partition = |slot: &&u32| self.values[**slot as usize].pid == header.pid;
            if let Some(&slot) = self.packs.get(&header.request).filter(of_partition) {
                return Some(slot);
            }
        }
        let command = *self
            .index
            .get(&(header.pid, header.client, header.request))?;
        match self.commands[command as usize].state {
            CommandState::Sent(slot) => Some(slot),
            _ => None,
        }
    }
}
