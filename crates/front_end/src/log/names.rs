// SPDX-License-Identifier: Apache-2.0
//! Commands that take effect once although their client sends them again, perhaps over another
//! connection and to another replica, after the first one broke.
//!
//! The client names itself and the command by sending `CLIENT SETNAME once:TOKEN:NUMBER` before it.
//! A token has its own session in each partition that it uses, which belongs to no connection: its
//! nonce follows from the token, so every front end that asks for it gets the same session, and
//! every replica answers there. [S-NAMED]

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use paxos::PartitionId;
use replica::Status;
use replica::parts::{self, Part, Progress, Sending};

use crate::log::lane::Logged;
use crate::log::{Log, Plane};
use crate::state::named_command::{Once, is_named};
use crate::state::waiter::Waiter;

/// The number of answers that a name's session keeps in each partition; a command that is sent
/// again may lag this far behind.
pub(crate) const NAMED_WINDOW: u16 = 16;

/// The names that have commands here, or had them lately.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<(PartitionId, u64), Named>,
    /// The nonce of each name, by partition and session.
    sessions: HashMap<(PartitionId, u64), u64>,
}

struct Named {
    /// The session's id, or nothing while it is asked for.
    session: Option<u64>,
    last_used: Instant,
    /// The commands without an answer, by number.
    open: BTreeMap<u64, Open>,
}

struct Open {
    logged: Logged,
    parts: Option<Sending>,
    /// True if the command was executed before, or can't be executed any more; its last part was
    /// sent to ask which.
    asks_record: bool,
    waiters: BTreeSet<Waiter>,
}

/// The result of taking an answer.
pub(crate) enum Taken {
    /// The answer belongs to no name.
    NotNamed,
    /// These connections get the answer, with this status.
    Told(Vec<Waiter>, Option<Status>),
}

impl Names {
    /// Takes a connection's command. If the same command is in flight already, it isn't sent again,
    /// and both connections get its answer.
    pub fn push<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        waiter: Waiter,
        once: Once,
        logged: Logged,
        max_value: usize,
    ) {
        let pid = logged.partitions.lowest();
        let named = self.known.entry((pid, once.nonce)).or_insert_with(|| {
            log.open_named(pid, once.nonce, NAMED_WINDOW);
            Named {
                session: None,
                last_used: Instant::now(),
                open: BTreeMap::new(),
            }
        });
        named.last_used = Instant::now();
        if let Some(open) = named.open.get_mut(&once.number) {
            open.waiters.insert(waiter);
            return;
        }
        let len = logged.bytes.len();
        let in_parts = len > max_value;
        let mut open = Open {
            parts: in_parts.then(|| Sending::new(once.number, len, max_value)),
            logged,
            asks_record: false,
            waiters: BTreeSet::from([waiter]),
        };
        if let Some(session) = named.session {
            open.send(log, pid, session, once.number);
        }
        named.open.insert(once.number, open);
    }

    /// Takes an answer of the log; `awaited` is true for the first answer to a command.
    pub fn take<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        (pid, client, number): (PartitionId, u64, u64),
        status: Option<Status>,
        opened: Option<u64>,
        awaited: bool,
    ) -> Taken {
        if number == 0 && is_named(client) {
            return match self.known.contains_key(&(pid, client)) && awaited {
                true => self.opened(log, (pid, client), status, opened),
                false => Taken::Told(Vec::new(), None),
            };
        }
        let Some(nonce) = self.sessions.get(&(pid, client)).copied() else {
            return Taken::NotNamed;
        };
        let nobody = Taken::Told(Vec::new(), None);
        if !awaited {
            return nobody;
        }
        // The session has expired. Its commands may have taken effect, also through another front
        // end.
        if status == Some(Status::UnknownSession) {
            return Taken::Told(self.forget(log, pid, nonce), None);
        }
        let Some(named) = self.known.get_mut(&(pid, nonce)) else {
            return nobody;
        };
        let (request, part) = parts::split(number);
        let Some(open) = named.open.get_mut(&request) else {
            return nobody;
        };
        if matches!(part, Some(Part::At(_))) && status == Some(Status::StaleRequest) {
            open.ask_for_record(log, pid, client, request);
            return nobody;
        }
        if part.is_some() && !open.asks_record {
            let parts = open.parts.as_mut();
            let answered = parts.map(|parts| parts.answered(number, status == Some(Status::Ok)));
            if answered != Some(Progress::Answered) {
                open.send(log, pid, client, request);
                return nobody;
            }
        }
        let asked_record = open.asks_record;
        let told = named.open.remove(&request);
        let waiters = told.into_iter().flat_map(|open| open.waiters).collect();
        // The command is so old that its outcome is no longer known.
        let says = |s: &Status| match asked_record {
            true => matches!(s, Status::Ok | Status::ReplyTooLarge),
            false => *s != Status::StaleRequest,
        };
        Taken::Told(waiters, status.filter(says))
    }

    fn opened<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        (pid, nonce): (PartitionId, u64),
        status: Option<Status>,
        opened: Option<u64>,
    ) -> Taken {
        let Some(named) = self.known.get_mut(&(pid, nonce)) else {
            return Taken::Told(Vec::new(), None);
        };
        let Some(session) = opened else {
            return Taken::Told(self.forget(log, pid, nonce), status);
        };
        named.session = Some(session);
        for (number, open) in &mut named.open {
            open.send(log, pid, session, *number);
        }
        self.sessions.insert((pid, session), nonce);
        Taken::Told(Vec::new(), None)
    }

    /// Forgets a name's session, because it is gone or isn't needed now; returns the connections
    /// that wait for its answers.
    fn forget<P: Plane>(&mut self, log: &mut Log<P>, pid: PartitionId, nonce: u64) -> Vec<Waiter> {
        let Some(named) = self.known.remove(&(pid, nonce)) else {
            return Vec::new();
        };
        if let Some(session) = named.session {
            self.sessions.remove(&(pid, session));
            let open = named.open.iter();
            open.for_each(|(number, open)| open.forget(log, pid, session, *number));
        }
        let open = named.open.into_values();
        open.flat_map(|open| open.waiters).collect()
    }

    /// Notes that a connection waits no longer for its command. If no other connection waits for
    /// it, it isn't sent again.
    pub fn leave<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        waiter: Waiter,
        (pid, once): (PartitionId, Once),
    ) {
        let Some(named) = self.known.get_mut(&(pid, once.nonce)) else {
            return;
        };
        let Entry::Occupied(mut open) = named.open.entry(once.number) else {
            return;
        };
        open.get_mut().waiters.remove(&waiter);
        if open.get().waiters.is_empty() {
            let open = open.remove();
            if let Some(session) = named.session {
                open.forget(log, pid, session, once.number);
            }
        }
    }

    /// Forgets the names that weren't used within the time `idle`. Their sessions stay open; the
    /// next use asks for them again.
    pub fn release<P: Plane>(&mut self, log: &mut Log<P>, idle: Duration) {
        let unused = |named: &Named| named.open.is_empty() && named.last_used.elapsed() >= idle;
        let all = self.known.iter();
        let gone: Vec<_> = all
            .filter(|(_, n)| unused(n))
            .map(|(key, _)| *key)
            .collect();
        for (pid, nonce) in gone {
            self.forget(log, pid, nonce);
        }
    }
}

impl Open {
    /// Submits the command, or those of its parts that may leave now.
    fn send<P: Plane>(&mut self, log: &mut Log<P>, pid: PartitionId, session: u64, number: u64) {
        let Some(parts) = &mut self.parts else {
            return log.submit(session, number, &self.logged);
        };
        let mut part = Vec::new();
        while let Some(number) = parts.next(&self.logged.bytes, &mut part) {
            log.submit_part(pid, session, number, &part);
        }
    }

    /// Asks for the recorded answer of a command in parts. It is recorded under the last part's
    /// number, whatever that part holds now.
    fn ask_for_record<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        pid: PartitionId,
        session: u64,
        number: u64,
    ) {
        self.forget(log, pid, session, number);
        self.parts = None;
        self.asks_record = true;
        let last = parts::number(number, Part::Last);
        log.submit_part(pid, session, last, b"?");
    }

    /// Stops sending the command.
    fn forget<P: Plane>(&self, log: &mut Log<P>, pid: PartitionId, session: u64, number: u64) {
        match &self.parts {
            None if self.asks_record => {
                log.forget(pid, session, parts::number(number, Part::Last));
            }
            None => {
                log.forget(pid, session, number);
            }
            Some(parts) => parts.open().for_each(|number| {
                log.forget(pid, session, number);
            }),
        }
    }
}
