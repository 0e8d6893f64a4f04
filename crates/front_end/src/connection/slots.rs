// SPDX-License-Identifier: Apache-2.0
//! The answers to a client, in the order of its commands. A slot keeps the place of each answer
//! that is still to come.

use std::collections::VecDeque;
use std::time::Instant;

use crate::answer::Shape;
use crate::metrics::Metrics;
use crate::resp::Writer;

/// Output that was sent is dropped in portions of this size.
const COMPACT_BYTES: usize = 64 << 10;

enum AnswerSlot {
    Ready(Vec<u8>),
    Waiting(Pending),
}

/// A command whose answer is still to come.
pub(crate) struct Pending {
    /// The command's number.
    pub number: u64,
    pub shape: Shape,
    pub resp3: bool,
    /// True if the client gets the answer.
    pub is_shown: bool,
    /// When the command came, if its answer is timed.
    pub since: Option<Instant>,
}

/// The answers that the client hasn't got yet.
#[derive(Default)]
pub(crate) struct Slots {
    slots: VecDeque<AnswerSlot>,
    /// The bytes of the answers in `slots`.
    slot_bytes: usize,
    /// The bytes of the answers to EXEC in which counts are being filled in.
    filling_bytes: usize,
    output: Vec<u8>,
    sent: usize,
}

impl Slots {
    /// Returns how many answers wait or are still to come.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if no answer waits or is still to come.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the bytes of answers that the client hasn't got yet.
    pub fn bytes(&self) -> usize {
        self.slot_bytes + self.filling_bytes + self.pending_output().len()
    }

    /// Returns the bytes that the answers keep in memory.
    pub fn memory(&self) -> usize {
        // An answer that is being filled in exists twice for a moment, because the counts are
        // filled into a copy.
        self.slot_bytes + 2 * self.filling_bytes + self.output.len()
    }

    /// Keeps the place of an answer that is still to come.
    pub fn wait_for(&mut self, pending: Pending) {
        self.slots.push_back(AnswerSlot::Waiting(pending));
    }

    /// Returns how the answer to a command is shown, if it is still to come.
    pub fn shape_of(&mut self, number: u64) -> Option<&mut Shape> {
        self.slots.iter_mut().find_map(|slot| match slot {
            AnswerSlot::Waiting(pending) if pending.number == number => Some(&mut pending.shape),
            _ => None,
        })
    }

    /// Returns where the answer to the next command is written: straight to the output if no answer
    /// is due before it, and otherwise into `kept`, which must then be [pushed](Self::push).
    pub fn place<'a>(&'a mut self, kept: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        match self.slots.is_empty() {
            true => &mut self.output,
            false => kept,
        }
    }

    /// Adds an answer behind all others.
    pub fn push(&mut self, answer: Vec<u8>) {
        if answer.is_empty() {
            return;
        }
        if self.slots.is_empty() {
            return self.output.extend_from_slice(&answer);
        }
        self.slot_bytes += answer.len();
        // Messages may be very many, and each answer searches the slots; so ready answers share one
        // slot.
        match self.slots.back_mut() {
            Some(AnswerSlot::Ready(last)) => last.extend_from_slice(&answer),
            _ => self.slots.push_back(AnswerSlot::Ready(answer)),
        }
    }

    /// Adds bytes before all answers that wait.
    pub fn push_first(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Writes a command's answer into its slot; returns false if nobody waits for it.
    pub fn answer(
        &mut self,
        number: u64,
        metrics: &Metrics,
        write: impl FnOnce(&mut Writer<'_>),
    ) -> bool {
        let is_it =
            |slot: &AnswerSlot| matches!(slot, AnswerSlot::Waiting(of) if of.number == number);
        let Some(index) = self.slots.iter().position(is_it) else {
            return false;
        };
        let AnswerSlot::Waiting(Pending {
            resp3,
            is_shown,
            since,
            ..
        }) = self.slots[index]
        else {
            unreachable!("it waits");
        };
        if let Some(since) = since {
            metrics.answer_times.note(since.elapsed());
        }
        let mut kept = Vec::new();
        let out = match index {
            0 => &mut self.output,
            _ => &mut kept,
        };
        let start = out.len();
        write(&mut Writer { out, resp3 });
        if out.get(start) == Some(&b'-') {
            Metrics::add(&metrics.errors);
        }
        if !is_shown {
            out.truncate(start);
        }
        self.slot_bytes += kept.len();
        self.slots[index] = AnswerSlot::Ready(kept);
        self.release();
        true
    }

    /// Answers all commands that aren't answered yet with errors.
    pub fn fail_all<'a>(&mut self, error_of: impl Fn(u64) -> &'a str, metrics: &Metrics) {
        for slot in &mut self.slots {
            if let AnswerSlot::Waiting(pending) = slot {
                let mut out = Vec::new();
                let mut writer = Writer {
                    out: &mut out,
                    resp3: pending.resp3,
                };
                writer.error(error_of(pending.number));
                Metrics::add(&metrics.errors);
                if !pending.is_shown {
                    out.clear();
                }
                self.slot_bytes += out.len();
                *slot = AnswerSlot::Ready(out);
            }
        }
        self.release();
    }

    /// Forgets all answers but those that are still to come to commands in flight.
    pub fn abandon(&mut self, in_flight: &[u64]) {
        self.slots.retain(
            |slot| matches!(slot, AnswerSlot::Waiting(of) if in_flight.contains(&of.number)),
        );
        self.slot_bytes = 0;
        self.discard_output();
    }

    /// Counts the bytes of an answer in which counts are being filled in.
    pub fn begin_filling(&mut self, bytes: usize) {
        self.filling_bytes += bytes;
    }

    /// Counts them no longer.
    pub fn end_filling(&mut self, bytes: usize) {
        self.filling_bytes -= bytes;
    }

    /// Moves the answers at the front to the output.
    fn release(&mut self) {
        while let Some(AnswerSlot::Ready(bytes)) = self.slots.front() {
            self.output.extend_from_slice(bytes);
            self.slot_bytes -= bytes.len();
            self.slots.pop_front();
        }
    }

    /// Returns the answers that can be sent.
    pub fn pending_output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Notes that so many bytes of the output are sent.
    pub fn output_sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.output.len() {
            self.discard_output();
        } else if self.sent >= COMPACT_BYTES.max(self.output.len() / 2) {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Forgets the output.
    pub fn discard_output(&mut self) {
        self.output.clear();
        self.output.shrink_to(COMPACT_BYTES);
        self.sent = 0;
    }
}
