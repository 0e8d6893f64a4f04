// SPDX-License-Identifier: Apache-2.0
//! Commands of the connection that may have hundreds of thousands of names, and are therefore
//! executed in turns. Commands behind such a one wait for its end.

use crate::pubsub::channels::Channels;
use crate::pubsub::name_list::NameList;
use crate::resp::Writer;
use crate::state::client::Client;
use crate::state::subscriptions::NameKind;
use crate::turns::{LOOK_UP, Turn};

/// A command that has begun.
pub(crate) enum Task {
    /// Subscribes to these names, or unsubscribes from them.
    Named {
        command: &'static str,
        kind: NameKind,
        subscribes: bool,
        names: NameList,
    },
    /// Unsubscribes from all names of a kind.
    UnsubscribeAll {
        command: &'static str,
        kind: NameKind,
        /// True if a confirmation was written already.
        said: bool,
    },
    /// Removes all subscriptions, which is the last part of RESET.
    Reset,
}

impl Task {
    /// Continues the command, and appends its answer. Returns true if it is done, and false if the
    /// turn was over first.
    pub fn go_on(
        &mut self,
        client: &mut Client,
        channels: &mut Channels,
        turn: &Turn,
        out: &mut Vec<u8>,
    ) -> bool {
        while !turn.is_over() {
            turn.spend(LOOK_UP);
            if !self.step(client, channels, turn, out) {
                return true;
            }
        }
        false
    }

    /// Executes the next part of the command; returns false if that was the last one.
    fn step(
        &mut self,
        client: &mut Client,
        channels: &mut Channels,
        turn: &Turn,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            Task::Named {
                command,
                kind,
                subscribes,
                names,
            } => {
                let Some(name) = names.take() else {
                    return false;
                };
                turn.copy(2 * name.len());
                match subscribes {
                    true => channels.add(*kind, name, client),
                    false => channels.remove(*kind, name, client),
                }
                confirm(client, out, command, *kind, Some(name));
                true
            }
            Task::UnsubscribeAll {
                command,
                kind,
                said,
            } => {
                let name = channels.remove_first(*kind, client);
                if name.is_some() || !*said {
                    confirm(client, out, command, *kind, name.as_deref());
                }
                *said = true;
                name.is_some()
            }
            Task::Reset => {
                let kinds = [NameKind::Channel, NameKind::Pattern, NameKind::Shard];
                let mut kinds = kinds.into_iter();
                let is_left = kinds.any(|kind| channels.remove_first(kind, client).is_some());
                if !is_left {
                    let resp3 = client.resp3;
                    Writer { out, resp3 }.status("RESET");
                }
                is_left
            }
        }
    }

    /// Returns the bytes of memory that the task takes.
    pub fn memory(&self) -> usize {
        match self {
            Task::Named { names, .. } => names.memory(),
            Task::UnsubscribeAll { .. } | Task::Reset => 0,
        }
    }
}

/// Writes the confirmation that a client has subscribed or unsubscribed, with the number of its
/// remaining subscriptions.
fn confirm(
    client: &Client,
    out: &mut Vec<u8>,
    command: &str,
    kind: NameKind,
    channel: Option<&[u8]>,
) {
    let count = client.subscriptions.counted_with(kind);
    let mut writer = Writer {
        out,
        resp3: client.resp3,
    };
    writer.push(&[command.as_bytes()]);
    match channel {
        Some(channel) => writer.bulk(channel),
        None => writer.null(),
    }
    writer.integer(count as i64);
}
