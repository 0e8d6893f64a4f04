// SPDX-License-Identifier: Apache-2.0
//! Something that happened to a cluster, as the controller saw it: for its log, and for `wirepaxos
//! events`.

use paxos::{Epoch, GroupId};
use serde::{Deserialize, Serialize};

/// The longest text that is kept, in letters.
const MAX_TEXT: usize = 500;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    /// The number of the event, which rises.
    pub n: u64,
    /// When it was noted, in milliseconds since 1970, by the controller's clock.
    pub at_ms: u64,
    /// What happened, in one word for programs.
    pub kind: String,
    /// It needs a look.
    pub is_warning: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// What happened, in words for people.
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The node that it is about; of an epoch its leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// The address of the operator whose order it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Event {
    /// Returns an event that goes its way.
    pub fn new(kind: &str, text: String) -> Event {
        Event {
            kind: kind.to_owned(),
            text: short(text),
            ..Event::default()
        }
    }

    /// Returns an event that needs a look.
    pub fn warning(kind: &str, text: String) -> Event {
        Event {
            is_warning: true,
            ..Event::new(kind, text)
        }
    }

    pub fn group(self, group: GroupId) -> Event {
        let group = Some(group);
        Event { group, ..self }
    }

    pub fn epoch(self, epoch: Epoch) -> Event {
        let epoch = Some(epoch);
        Event { epoch, ..self }
    }

    pub fn node(self, node: impl Into<Option<String>>) -> Event {
        let node = node.into();
        Event { node, ..self }
    }

    pub fn because(self, reason: String) -> Event {
        let reason = Some(short(reason));
        Event { reason, ..self }
    }

    pub fn took(self, us: u64) -> Event {
        let duration_us = Some(us);
        Event {
            duration_us,
            ..self
        }
    }

    pub fn by(self, by: String) -> Event {
        let by = Some(by);
        Event { by, ..self }
    }
}

fn short(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}
