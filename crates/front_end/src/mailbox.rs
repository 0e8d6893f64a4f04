// SPDX-License-Identifier: Apache-2.0
//! How the replica's workers reach the front end's thread.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use apps::redis::Event;
use mio::{Registry, Token, Waker};
use paxos::PartitionId;
use replica::application::OpenReader;
use replica::{AnsweredReads, AskedReads, LocalSession};

use crate::walk::{Found, Whose};

/// What waits for the front end.
#[derive(Default)]
pub(crate) struct Mail {
    replies: Vec<Header>,
    bytes: Vec<u8>,
    /// All sessions of a partition that answer to this front end.
    pub sessions: Vec<(PartitionId, Vec<LocalSession>)>,
    /// What came of reads without the log.
    pub reads: AnsweredReads,
    /// What walks have found.
    pub walked: Vec<(Whose, Found)>,
    /// What Redis servers have done.
    pub news: Vec<(PartitionId, Event)>,
    pub leader_changed: bool,
    pub shut_down: bool,
    /// Whether the front end was woken for what is here.
    was_woken: bool,
}

struct Header {
    pid: PartitionId,
    client: u64,
    request: u64,
    status: u8,
    bytes: Range<usize>,
}

/// An answer of the replica.
pub(crate) struct Answer<'a> {
    /// Session ids are unique within a partition only.
    pub pid: PartitionId,
    pub client: u64,
    pub request: u64,
    pub status: u8,
    pub bytes: &'a [u8],
}

impl Mail {
    /// Memory that is kept for the next ones.
    const KEEP_BYTES: usize = 1 << 20;

    pub fn answers(&self) -> impl Iterator<Item = Answer<'_>> {
        self.replies.iter().map(|header| Answer {
            pid: header.pid,
            client: header.client,
            request: header.request,
            status: header.status,
            bytes: &self.bytes[header.bytes.clone()],
        })
    }

    fn is_empty(&self) -> bool {
        let quiet = !self.leader_changed && !self.shut_down;
        let answers = self.replies.is_empty() && self.reads.is_empty() && self.walked.is_empty();
        answers && self.sessions.is_empty() && self.news.is_empty() && quiet
    }

    pub fn clear(&mut self) {
        self.replies.clear();
        self.reads.clear();
        self.bytes.clear();
        self.bytes.shrink_to(Self::KEEP_BYTES);
        self.sessions = Vec::new();
        self.walked = Vec::new();
        self.news = Vec::new();
        self.leader_changed = false;
        self.shut_down = false;
        self.was_woken = false;
    }
}

/// Hands answers and news to the front end; cheap to clone, for any thread. Never blocks for long:
/// the front end only swaps what waits.
#[derive(Clone)]
pub struct Mailbox(Arc<Shared>);

struct Shared {
    mail: Mutex<Mail>,
    waker: Waker,
    open_reader: OnceLock<OpenReader>,
    ask_reads: OnceLock<AskReads>,
}

/// Hands reads without the log to the worker of a partition.
type AskReads = Arc<dyn Fn(PartitionId, AskedReads) + Send + Sync>;

impl Mailbox {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Mailbox> {
        Ok(Mailbox(Arc::new(Shared {
            mail: Mutex::default(),
            waker: Waker::new(registry, token)?,
            open_reader: OnceLock::new(),
            ask_reads: OnceLock::new(),
        })))
    }

    /// The replica's answer to a session without an address: all of
    /// [`replica::Output::reply`]'s with [`replica::ReplyTo::Local`] belong here. Those that aren't
    /// the front end's are ignored. It waits for [`deliver`](Self::deliver).
    pub fn reply(&self, pid: PartitionId, client: u64, request: u64, status: u8, bytes: &[u8]) {
        self.leave(|mail| {
            let start = mail.bytes.len();
            mail.bytes.extend_from_slice(bytes);
            mail.replies.push(Header {
                pid,
                client,
                request,
                status,
                bytes: start..mail.bytes.len(),
            });
        });
    }

    /// What came of reads without the log; without an answer one goes through the log. Those of a partition come in the
    /// order in which they were asked for, but for some without an answer. It waits for [`deliver`](Self::deliver).
    pub fn answered_reads(&self, answered: &AnsweredReads) {
        self.leave(|mail| mail.reads.append(answered));
    }

    /// How reads without the log are asked for, once the replica's workers are there. Before, and without it, all reads
    /// go through the log.
    pub fn reads(&self, ask: AskReads) {
        // There is one replica beside a front end.
        let _ = self.0.ask_reads.set(ask);
    }

    pub(crate) fn ask_reads(&self) -> Option<&AskReads> {
        self.0.ask_reads.get()
    }

    /// The sessions of a partition whose home is this front end's replica, when it has opened its state
    /// or taken another one's: those that no connection has are closed.
    pub fn local_sessions(&self, pid: PartitionId, sessions: Vec<LocalSession>) {
        self.post(|mail| mail.sessions.push((pid, sessions)));
    }

    /// How the states of the replica's partitions are read, once they are open: KEYS needs it.
    pub fn readers(&self, open: OpenReader) {
        // There is one replica beside a front end.
        let _ = self.0.open_reader.set(open);
    }

    pub(crate) fn open_reader(&self) -> Option<&OpenReader> {
        self.0.open_reader.get()
    }

    pub(crate) fn walked(&self, whose: Whose, found: Found) {
        self.post(|mail| mail.walked.push((whose, found)));
    }

    /// What Redis servers have done.
    pub(crate) fn news(&self, pid: PartitionId, event: Event) {
        self.post(|mail| mail.news.push((pid, event)));
    }

    /// [`Plane::send`](crate::Plane::send) reaches another leader from now on, or the old one was
    /// confirmed: what is outstanding is sent again at once.
    pub fn leader_changed(&self) {
        self.post(|mail| mail.leader_changed = true);
    }

    pub(crate) fn shut_down(&self) {
        self.post(|mail| mail.shut_down = true);
    }

    /// Wakes the front end for the answers that were left here: once for all of a batch, as each time costs a system
    /// call, and it would find them one by one.
    pub fn deliver(&self) {
        let mut mail = self.mail();
        // Who is the first to find something wakes the front end, which then finds the others' mail, too.
        let wakes = !mail.is_empty() && !std::mem::replace(&mut mail.was_woken, true);
        drop(mail);
        if wakes {
            self.0.waker.wake().expect("the waker's descriptor is open");
        }
    }

    fn leave(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail());
    }

    fn post(&self, change: impl FnOnce(&mut Mail)) {
        self.leave(change);
        self.deliver();
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.0.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what waits in exchange for `empty`.
    pub(crate) fn take(&self, empty: &mut Mail) {
        std::mem::swap(&mut *self.mail(), empty);
    }
}
