// SPDX-License-Identifier: Apache-2.0
//! The state of a connection's client: what it has told of itself and chosen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::state::named_command::Once;
use crate::state::silence::Silence;
use crate::state::subscriptions::{NameKind, Subscriptions};
use crate::state::transaction::Transaction;
use crate::state::waiter::Waiter;
use crate::state::watched_keys::WatchList;
use crate::users::User;

const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
/// The longest name of a client or of its library, in bytes. There is a limit because CLIENT LIST
/// shows the names of all clients.
const MAX_NAME: usize = 1_024;

/// The client's state, which commands such as HELLO and CLIENT change.
pub(crate) struct Client {
    pub id: u64,
    /// The connection's index.
    pub index: usize,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since: Instant,
    /// When the client last sent something.
    pub heard: Instant,
    /// Who the client is, once it has authenticated.
    pub user: Option<Arc<User>>,
    pub resp3: bool,
    /// True after READONLY: this client's reads may see whatever this replica has executed.
    pub reads_stale: bool,
    /// The commands queued since MULTI, until EXEC, DISCARD or RESET.
    pub transaction: Option<Transaction>,
    /// The keys that WATCH watches.
    pub watched: WatchList,
    pub subscriptions: Subscriptions,
    /// The number of subscription changes that the other front ends must know before this client is
    /// answered.
    pub changes: u64,
    pub name: Vec<u8>,
    /// The name's session and number for the next command, if the client's name gives them.
    pub once: Option<Once>,
    pub library_name: Vec<u8>,
    pub library_version: Vec<u8>,
    pub last_command: LastCommand,
    pub silence: Silence,
    /// True after CLIENT NO-EVICT ON: when memory is short, other clients are disconnected before
    /// this one.
    pub is_kept: bool,
}

/// The name of the latest command, as CLIENT LIST shows it.
#[derive(Clone, Copy, Default)]
pub(crate) struct LastCommand {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl LastCommand {
    const LEN: usize = 32;
    /// Commands whose first argument is part of the name.
    const FAMILIES: [&str; 9] = [
        "client", "cluster", "command", "config", "object", "xinfo", "xgroup", "script", "function",
    ];

    /// Notes the latest command by its name and, if it has subcommands, its first argument.
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

/// The parts of CLIENT INFO that only the connection knows.
#[derive(Clone, Copy)]
pub(crate) struct Details {
    pub is_blocked: bool,
    pub ends: bool,
    /// Bytes of requests in `input`, of answers in `output`, and of everything in `memory`.
    pub input: usize,
    pub output: usize,
    pub memory: usize,
}

/// Returns an error if a name for a client or its library is too long.
pub(crate) fn may_be_called(name: &[u8]) -> Result<(), String> {
    match name.len() <= MAX_NAME {
        true => Ok(()),
        false => Err(format!(
            "ERR a name of {} bytes: the front end takes {MAX_NAME} at most, which no setting \
             changes; take a shorter one",
            name.len()
        )),
    }
}

impl Client {
    /// Creates a client that has just connected.
    pub fn new(id: u64, index: usize, address: SocketAddr, local_address: SocketAddr) -> Client {
        Client {
            id,
            index,
            address,
            local_address,
            since: Instant::now(),
            heard: Instant::now(),
            user: None,
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

    pub fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }

    /// Returns the name of the client's user, which is empty before it has authenticated.
    pub fn user_name(&self) -> &[u8] {
        self.user.as_ref().map_or(b"", |user| user.name())
    }

    /// Takes a name, which may give the next command a number; returns why if the name is wrong.
    pub fn take_name(&mut self, name: &[u8]) -> Result<(), String> {
        may_be_called(name)?;
        if !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
            return Err(BAD_NAME.to_owned());
        }
        self.once = Once::parse(name)?;
        self.name = name.to_vec();
        Ok(())
    }

    /// Returns the bytes of memory that the client takes, roughly.
    pub fn memory(&self) -> usize {
        let names = self.name.len() + self.library_name.len() + self.library_version.len();
        let queued = self.transaction.as_ref().map_or(0, Transaction::memory);
        names + queued + self.subscriptions.memory() + self.watched.memory()
    }

    /// Returns the place and id of the connection, for those who will tell it something.
    pub fn waiter(&self) -> Waiter {
        Waiter {
            index: self.index,
            client: self.id,
        }
    }

    /// Returns true if the client has subscribed and speaks RESP2. It may send little then, as
    /// messages look like answers there.
    pub fn is_only_listening(&self) -> bool {
        !self.resp3 && !self.subscriptions.is_empty()
    }

    /// Returns the line of CLIENT INFO, in Redis's order. Values that don't exist here are 0.
    pub fn describe(&self, details: &Details) -> String {
        let (queued, queued_bytes) = match &self.transaction {
            Some(transaction) => (transaction.len() as i64, transaction.bytes()),
            None => (-1, 0),
        };
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db=0 sub={} psub={} \
             ssub={} multi={queued} qbuf={} qbuf-free=0 argv-mem=0 multi-mem={queued_bytes} rbs=0 \
             rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={} user={} redir=-1 resp={} \
             lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            String::from_utf8_lossy(&self.name),
            self.since.elapsed().as_secs(),
            self.heard.elapsed().as_secs(),
            self.flags(details),
            self.subscriptions.len(NameKind::Channel),
            self.subscriptions.len(NameKind::Pattern),
            self.subscriptions.len(NameKind::Shard),
            details.input,
            details.output,
            details.memory,
            self.last_command.shown(),
            self.user_name().escape_ascii(),
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
