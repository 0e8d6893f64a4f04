// SPDX-License-Identifier: Apache-2.0
//! Gathers commands into values, and sends these.

use super::retries::oldest_held;
use super::{CommandState, Proposer, Value};
use crate::wire::value::{PACKED_ITEM_HEADER_LEN, PackedItem, append_packed};
use crate::{Deployment, Flags, Header, MsgType, Outbox, PartitionId, Time, To};

impl Proposer {
    /// Sends one value of queued commands, of at least `share` bytes if that many are queued.
    /// Returns false if no command is queued.
    pub(super) fn send_value(
        &mut self,
        pid: usize,
        share: usize,
        now: Time,
        out: &mut impl Outbox,
    ) -> bool {
        let slot = self.free_values.pop().unwrap_or_else(|| {
            self.values.push(Value::default());
            (self.values.len() - 1) as u32
        });
        self.gather(pid, slot, share);
        let Some(&first) = self.values[slot as usize].commands.first() else {
            self.free_values.push(slot);
            return false;
        };
        self.last_number += 1;
        let value = &mut self.values[slot as usize];
        value.pid = pid as PartitionId;
        value.number = self.last_number;
        value.open = value.commands.len();
        value.packed = value.open > 1;
        value.sent_at = now;
        (value.no_failure, value.is_overtaken) = (false, false);
        (value.overtaken, value.overtakes, value.is_sampled) = (0, value.number, false);
        self.queues[pid].open_values += 1;

        let header = request_header(&self.settings.deployment, pid as PartitionId);
        let mut bytes = 0;
        self.scratch.clear();
        for &command in &value.commands {
            let command = &mut self.commands[command as usize];
            command.state = CommandState::Sent(slot);
            command.since.get_or_insert(now);
            command.is_copy = std::mem::replace(&mut command.was_sent, true);
            value.overtaken = value.overtaken.max(command.overtaken);
            match command.overtaken {
                0 => command.first = value.number,
                // The answer may be to that earlier value. If it were taken for this one's, all
                // values between them would count as lost.
                _ => value.overtakes = value.overtakes.min(command.first),
            }
            bytes += PACKED_ITEM_HEADER_LEN + command.bytes.len();
            if value.packed {
                let item = PackedItem {
                    client: command.client,
                    request: command.request,
                    bytes: &command.bytes,
                };
                append_packed(&mut self.scratch, &item);
            }
        }
        if value.packed {
            self.packs.insert(value.number, slot);
            let header = Header {
                flags: Flags::PACKED,
                client: self.settings.nonce,
                request: value.number,
                value_len: self.scratch.len() as u16,
                ..header
            };
            out.send(To::Leader, &header, &self.scratch);
        } else {
            let command = &self.commands[first as usize];
            let header = Header {
                flags: if command.multi {
                    Flags::MULTI
                } else {
                    Flags::NONE
                },
                client: command.client,
                request: command.request,
                value_len: command.bytes.len() as u16,
                ..header
            };
            out.send(To::Leader, &header, &command.bytes);
        }
        if !self.commands[first as usize].multi && self.is_small(bytes) {
            let number = self.last_number;
            self.queues[pid].small.push(number);
        }
        let values = &self.values;
        let flight = &mut self.queues[pid].flight;
        flight.sent(self.last_number, slot, |number, slot| {
            values[slot as usize].number == number
        });
        let patience = flight.patience(self.settings.retry_after);
        let delay = self.backoff.delay(patience, 0);
        self.arm(slot, now.saturating_add(delay));
        true
    }

    /// Moves commands that go together from the front of the queue into a value: one
    /// multi-partition command, or others up to `share`, as far as they fit. Frees commands that
    /// were answered while they waited.
    fn gather(&mut self, pid: usize, slot: u32, share: usize) {
        let max = usize::from(self.settings.deployment.max_value);
        let queue = &mut self.queues[pid];
        let gathered = &mut self.values[slot as usize].commands;
        let mut packed_len = 0;
        while let Some(next) = queue.first() {
            let command = &mut self.commands[next as usize];
            if command.state == CommandState::Answered {
                command.state = CommandState::Free;
                self.free_commands.push(next);
                queue.pop();
                continue;
            }
            let key = (command.pid, command.client, command.request);
            if oldest_held(&self.held, key).is_some_and(|held| held < key) {
                (command.state, command.since) = (CommandState::Held, None);
                self.held.insert(key);
                queue.take(command);
                queue.pop();
                continue;
            }
            let has_share = packed_len >= share;
            packed_len += PACKED_ITEM_HEADER_LEN + command.bytes.len();
            let full = has_share || packed_len > max || !self.packing;
            if !gathered.is_empty() && (command.multi || full) {
                break;
            }
            gathered.push(next);
            queue.take(command);
            queue.pop();
            if command.multi {
                break;
            }
        }
    }
}

fn request_header(deployment: &Deployment, pid: PartitionId) -> Header {
    Header {
        cluster: deployment.cluster,
        group: deployment.group,
        pid,
        swid: deployment.node,
        ..Header::new(MsgType::Request)
    }
}
