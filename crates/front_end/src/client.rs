// SPDX-License-Identifier: Apache-2.0
//! What a connection's client has told of itself.

use std::net::SocketAddr;
use std::time::Instant;

use crate::channels::{Kind, Subscriptions};
use crate::names::{Once, Waiter};
use crate::transaction::Transaction;

/// A key that is watched.
pub(crate) struct Watched {
    pub key: Vec<u8>,
    pub version: u64,
    /// Whether there was such a key. Stores tell it by the version.
    pub existed: bool,
}

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// State that commands such as HELLO and CLIENT change.
pub(crate) struct Client {
    pub id: u64,
    /// The connection's place.
    pub index: usize,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since: Instant,
    pub authenticated: bool,
    pub resp3: bool,
    /// After READONLY: reads are content with what this replica has executed.
    pub reads_stale: bool,
    /// After MULTI, until EXEC, DISCARD or RESET.
    pub transaction: Option<Transaction>,
    /// Keys that are watched.
    pub watched: Vec<Watched>,
    pub subscriptions: Subscriptions,
    pub name: Vec<u8>,
    /// What the name says of the next command.
    pub once: Option<Once>,
    pub library_name: Vec<u8>,
    pub library_version: Vec<u8>,
    pub last_command: &'static str,
}

impl Client {
    /// Takes a name, which may say whose command comes next; or says what is wrong with it.
    pub fn take_name(&mut self, name: &[u8]) -> Result<(), &'static str> {
        if !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
            return Err(BAD_NAME);
        }
        self.once = Once::parse(name)?;
        self.name = name.to_vec();
        Ok(())
    }

    /// The connection, for those who tell it something.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            index: self.index,
            client: self.id,
        }
    }

    /// Whether all that it gets are messages, so that it may send little: in RESP2 they look like answers.
    pub fn is_only_listening(&self) -> bool {
        !self.resp3 && !self.subscriptions.is_empty()
    }

    fn subscribed(&self, kind: Kind) -> usize {
        let all = self.subscriptions.iter();
        all.filter(|(of, _)| *of == kind).count()
    }

    /// The line of CLIENT INFO.
    pub fn describe(&self) -> String {
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle=0 flags={} db=0 sub={} psub={} ssub={} \
             multi=-1 cmd={} user=default lib-name={} lib-ver={} resp={}",
            self.id,
            self.address,
            self.local_address,
            String::from_utf8_lossy(&self.name),
            self.since.elapsed().as_secs(),
            if self.subscriptions.is_empty() {
                'N'
            } else {
                'P'
            },
            self.subscribed(Kind::Channel),
            self.subscribed(Kind::Pattern),
            self.subscribed(Kind::Shard),
            self.last_command,
            String::from_utf8_lossy(&self.library_name),
            String::from_utf8_lossy(&self.library_version),
            if self.resp3 { 3 } else { 2 },
        )
    }
}
