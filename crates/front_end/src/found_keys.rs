// SPDX-License-Identifier: Apache-2.0
//! The keys that KEYS has found, and the command that waits for them.

use std::sync::{Arc, Weak};

use crate::resp::Writer;
use crate::state::waiter::Waiter;

/// The command that gets the keys, and its connection.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    /// The connection.
    pub waiter: Waiter,
    /// The command's number.
    pub number: u64,
}

/// The keys as they will be shown, or why there are none.
pub(crate) type Found = Result<Keys, String>;

#[derive(Default)]
pub(crate) struct Keys {
    count: usize,
    bytes: Vec<u8>,
}

impl Keys {
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.array(self.count);
        writer.out.extend_from_slice(&self.bytes);
    }

    /// Returns the bytes of the keys, as they will be shown.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn add(&mut self, key: &[u8]) {
        // A string is the same in both versions of the protocol.
        let mut writer = Writer {
            out: &mut self.bytes,
            resp3: false,
        };
        writer.bulk(key);
        self.count += 1;
    }
}

/// The owner of a walk's token: the walk continues as long as this lives.
#[derive(Default)]
pub(crate) struct Awaited(Arc<()>);

impl Awaited {
    pub fn token(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}

/// A KEYS whose keys are to be collected: the command's number, its pattern, and a token that dies
/// once nobody waits any more.
pub(crate) type Wanted = (u64, Option<Vec<u8>>, Weak<()>);
