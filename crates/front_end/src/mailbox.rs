// SPDX-License-Identifier: Apache-2.0
//! Brings the replica's answers and news to the front end's thread.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use apps::redis::Event;
use mio::{Registry, Token, Waker};
use paxos::PartitionId;
use replica::application::OpenReader;
use replica::{AnsweredReads, AskedReads, LocalSession};

use crate::found_keys::{Asker, Found};

/// The answers and news that wait for the front end.
#[derive(Default)]
pub(crate) struct Mail {
    replies: Vec<Header>,
    bytes: Vec<u8>,
    /// All sessions of a partition that answer to this front end.
    pub sessions: Vec<(PartitionId, Vec<LocalSession>)>,
    /// The answers to reads without the log.
    pub reads: AnsweredReads,
    /// The keys that walks have found.
    pub walked: Vec<(Asker, Found)>,
    /// Events that Redis servers have reported.
    pub news: Vec<(PartitionId, Event)>,
    pub leader_changed: bool,
    pub shut_down: bool,
    /// True if the front end was already woken for this mail.
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
    /// The session's partition; ids are unique within it only.
    pub pid: PartitionId,
    pub client: u64,
    pub request: u64,
    pub status: u8,
    pub bytes: &'a [u8],
}

impl Mail {
    /// The bytes of memory that are kept for the next mail.
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

/// Hands answers and news to the front end. It is cheap to clone, works from any thread and never
/// blocks for long, because the front end only swaps the mail.
#[derive(Clone)]
pub struct Mailbox(Arc<Shared>);

struct Shared {
    mail: Mutex<Mail>,
    waker: Waker,
    open_reader: OnceLock<OpenReader>,
    ask_reads: OnceLock<AskReads>,
}

/// Passes reads that needn't go through the log to the worker of a partition.
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

    /// Takes the replica's answer to a session that has no address. The front end gets it at the
    /// next [`deliver`](Self::deliver). Pass all of [`replica::Output::reply`]'s answers with
    /// [`replica::ReplyTo::Local`]; the front end ignores answers to other front ends' sessions.
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

    /// Takes the answers to reads that didn't go through the log; the front end gets them at the
    /// next [`deliver`](Self::deliver). A read without an answer is sent through the log. A
    /// partition's answers come in the order of the reads, except that reads without an answer may
    /// come out of order.
    pub fn answered_reads(&self, answered: &AnsweredReads) {
        self.leave(|mail| mail.reads.append(answered));
    }

    /// Sets the function that asks for reads without the log, once the replica's workers run. Until
    /// then all reads go through the log.
    pub fn reads(&self, ask: AskReads) {
        // A front end has only one replica beside it.
        let _ = self.0.ask_reads.set(ask);
    }

    pub(crate) fn ask_reads(&self) -> Option<&AskReads> {
        self.0.ask_reads.get()
    }

    /// Reports the sessions of a partition that answer to this front end, after the replica has
    /// opened its state or taken another replica's. The front end closes the sessions that belong
    /// to no connection.
    pub fn local_sessions(&self, pid: PartitionId, sessions: Vec<LocalSession>) {
        self.post(|mail| mail.sessions.push((pid, sessions)));
    }

    /// Sets the function that opens readers of the partitions' states, which KEYS needs.
    pub fn readers(&self, open: OpenReader) {
        // A front end has only one replica beside it.
        let _ = self.0.open_reader.set(open);
    }

    pub(crate) fn open_reader(&self) -> Option<&OpenReader> {
        self.0.open_reader.get()
    }

    pub(crate) fn walked(&self, asker: Asker, found: Found) {
        self.post(|mail| mail.walked.push((asker, found)));
    }

    /// Reports an event of a Redis server.
    pub(crate) fn news(&self, pid: PartitionId, event: Event) {
        self.post(|mail| mail.news.push((pid, event)));
    }

    /// Tells that [`Plane::send`](crate::Plane::send) reaches another leader from now on, or that
    /// the old one was confirmed. Then all outstanding commands are sent again at once.
    pub fn leader_changed(&self) {
        self.post(|mail| mail.leader_changed = true);
    }

    pub(crate) fn shut_down(&self) {
        self.post(|mail| mail.shut_down = true);
    }

    /// Wakes the front end for the answers that were left here. Call it once for a whole batch,
    /// since each wake costs a system call and would show the answers one by one.
    pub fn deliver(&self) {
        let mut mail = self.mail();
        // Only the first one that leaves mail wakes the front end, which then finds the others'
        // mail, too.
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

    /// Takes the waiting mail in exchange for `empty`.
    pub(crate) fn take(&self, empty: &mut Mail) {
        std::mem::swap(&mut *self.mail(), empty);
    }
}
