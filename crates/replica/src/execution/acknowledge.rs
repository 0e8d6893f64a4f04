// SPDX-License-Identifier: Apache-2.0
//! Chooses the clients to which a NOPaxos follower tells how far its log is filled: those that wait
//! for an answer of the leader. [N-ACK]

use super::Execution;
use crate::agreement::{Decided, Log};
use crate::application::Application;
use crate::protocol::{ReplyAddress, SessionOp};
use crate::reply::{Output, ReplyTo};
use paxos::Flags;
use paxos::nopaxos::Ack;
use paxos::wire::value::{PackedItem, packed_items};

impl<A: Application> Execution<A> {
    /// Sends the acknowledgement once to each address that the values of the acknowledged slots
    /// name.
    pub(crate) fn acknowledge(&self, ack: &Ack, log: &impl Log, out: &mut impl Output) {
        let values = ack.slots.clone().filter_map(|slot| log.entry(slot));
        let mut waiting: Vec<ReplyTo> = values.filter_map(|v| self.waits_for(&v, log)).collect();
        waiting.sort_unstable();
        waiting.dedup();
        for to in &waiting {
            out.ack(to, &ack.header);
        }
    }

    /// Returns who waits for the answer to a value; the first item of a pack speaks for the whole
    /// pack. A copy of a command over several partitions is answered once it is stable, so nobody
    /// has to acknowledge it.
    fn waits_for(&self, value: &Decided<'_>, log: &impl Log) -> Option<ReplyTo> {
        if value.flags.has(Flags::NOOP) || value.flags.has(Flags::MULTI) {
            return None;
        }
        let first = command(value, 0)?;
        let address = address_in(&first).or_else(|| self.address_of(first.client, log))?;
        // Front ends don't count acknowledgements; they learn what is stable in another way.
        let client = address.address?;
        Some(ReplyTo::Address(client, address.key))
    }

    /// Returns where a session is answered: the address in the table or, if its OPEN isn't executed
    /// here yet, the address in that OPEN. A session's id is the place of its OPEN in the log.
    fn address_of(&self, session: u64, log: &impl Log) -> Option<ReplyAddress> {
        if let Some(known) = self.sessions.reply_to(session) {
            return Some(*known);
        }
        let opened = log.entry((session >> 16).checked_sub(1)?)?;
        address_in(&command(&opened, usize::from(session as u16))?)
    }
}

/// Returns the command at an index of a value.
fn command<'a>(value: &Decided<'a>, index: usize) -> Option<PackedItem<'a>> {
    if value.flags.has(Flags::PACKED) {
        return packed_items(value.value).nth(index)?.ok();
    }
    (index == 0).then_some(PackedItem {
        client: value.client,
        request: value.request,
        bytes: value.value,
    })
}

/// Returns the reply address that a session operation names, if it names one.
fn address_in(command: &PackedItem<'_>) -> Option<ReplyAddress> {
    match SessionOp::parse(command.bytes).filter(|_| command.request == 0)? {
        SessionOp::Open { reply_to, .. } | SessionOp::Move { reply_to } => Some(reply_to),
        SessionOp::Close
        | SessionOp::Expire { .. }
        | SessionOp::Died { .. }
        | SessionOp::Void { .. } => None,
    }
}
