// SPDX-License-Identifier: Apache-2.0
//! What a connection's client has told of itself.

use std::net::SocketAddr;
use std::time::Instant;

use crate::channels::Kind;
use crate::clients::Silence;
use crate::names::{Once, Waiter};
use crate::subscriptions::Subscriptions;
use crate::transaction::Transaction;
use crate::watched::WatchList;

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// State that commands such as HELLO and CLIENT change.
pub(crate) struct Client {
    pub id: u64,
    /// The connection's place.
    pub index: usize,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since: Instant,
    /// When it said something last.
    pub heard: Instant,
    pub authenticated: bool,
    pub resp3: bool,
    /// After READONLY: reads are content with what this replica has executed.
    pub reads_stale: bool,
    /// After MULTI, until EXEC, DISCARD or RESET.
    pub transaction: Option<Transaction>,
    /// Keys that are watched.
    pub watched: WatchList,
    pub subscriptions: Subscriptions,
    /// The changes of subscriptions that the others are to know before this client is answered.
    pub changes: u64,
    pub name: Vec<u8>,
    /// What the name says of the next command.
    pub once: Option<Once>,
    pub library_name: Vec<u8>,
    pub library_version: Vec<u8>,
    pub last_command: LastCommand,
    pub silence: Silence,
    /// Where memory is short, others go first.
    pub is_kept: bool,
}

/// The name of the command that came last, as CLIENT LIST shows it.
#[derive(Clone, Copy, Default)]
pub(crate) struct LastCommand {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl LastCommand {
    const LEN: usize = 32;
    /// Commands whose first argument is a part of the name.
    const FAMILIES: [&str; 9] = [
        "client", "cluster", "command", "config", "object", "xinfo", "xgroup", "script", "function",
    ];

    /// The command of this name, with its arguments.
    pub fn be(&mut self, name: &str, args: &[&[u8]]) {
        self.len = 0;
        self.push(name.as_bytes());
        let sub = args.get(1).filter(|_| Self::FAMILIES.contains(&name));
        if let Some(sub) = sub {
            self.push(b"|");
            self.push(sub);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.len..];
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        room[..len].make_ascii_lowercase();
        self.len += len;
    }

    fn shown(&self) -> String {
        match &self.bytes[..self.len] {
            b"" | b"null" => "NULL".to_owned(),
            name => name.escape_ascii().to_string(),
        }
    }
}

/// What CLIENT INFO shows, and a client doesn't know of itself.
#[derive(Clone, Copy)]
pub(crate) struct Details {
    pub is_blocked: bool,
    pub ends: bool,
    /// Bytes: of requests, of answers, and of everything.
    pub input: usize,
    pub output: usize,
    pub memory: usize,
}

impl Client {
    /// One that has just connected.
    pub fn new(id: u64, index: usize, address: SocketAddr, local_address: SocketAddr) -> Client {
        Client {
            id,
            index,
            address,
            local_address,
            since: Instant::now(),
            heard: Instant::now(),
            authenticated: false,
            resp3: false,
            reads_stale: false,
            transaction: None,
            watched: WatchList::default(),
            subscriptions: Subscriptions::default(),
            changes: 0,
            name: Vec::new(),
            once: None,
            library_name: Vec::new(),
            library_version: Vec::new(),
            last_command: LastCommand::default(),
            silence: Silence::default(),
            is_kept: false,
        }
    }

    /// Takes a name, which may say whose command comes next; or says what is wrong with it.
    pub fn take_name(&mut self, name: &[u8]) -> Result<(), &'static str> {
        if !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
            return Err(BAD_NAME);
        }
        self.once = Once::parse(name)?;
        self.name = name.to_vec();
        Ok(())
    }

    /// Returns the bytes of memory that it takes, roughly.
    pub fn memory(&self) -> usize {
        let names = self.name.len() + self.library_name.len() + self.library_version.len();
        let queued = self.transaction.as_ref().map_or(0, Transaction::memory);
        names + queued + self.subscriptions.memory() + self.watched.memory()
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

    /// The line of CLIENT INFO, in Redis's order. What has no counterpart here is 0.
    pub fn describe(&self, details: &Details) -> String {
        let (queued, queued_bytes) = match &self.transaction {
            Some(transaction) => (transaction.len() as i64, transaction.bytes()),
            None => (-1, 0),
        };
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db=0 sub={} psub={} ssub={} multi={queued} \
             qbuf={} qbuf-free=0 argv-mem=0 multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} \
             events=r cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            String::from_utf8_lossy(&self.name),
            self.since.elapsed().as_secs(),
            self.heard.elapsed().as_secs(),
            self.flags(details),
            self.subscriptions.len(Kind::Channel),
            self.subscriptions.len(Kind::Pattern),
            self.subscriptions.len(Kind::Shard),
            details.input,
            details.output,
            details.memory,
            self.last_command.shown(),
            if self.resp3 { 3 } else { 2 },
            String::from_utf8_lossy(&self.library_name),
            String::from_utf8_lossy(&self.library_version),
        )
    }

    fn flags(&self, details: &Details) -> String {
        let all = [
            (!self.subscriptions.is_empty(), 'P'),
            (self.transaction.is_some(), 'x'),
            (details.is_blocked, 'b'),
            (details.ends, 'c'),
            (self.reads_stale, 'r'),
            (self.is_kept, 'e'),
        ];
        let set: String = all
            .iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, flag)| flag)
            .collect();
        match set.is_empty() {
            true => "N".to_owned(),
            false => set,
        }
    }
}
