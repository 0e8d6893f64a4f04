// SPDX-License-Identifier: Apache-2.0
//! The session table: which requests have taken effect, and what was answered.
//!
//! It is replicated state: a function of the log alone, equal on all replicas at the same
//! instance, and committed together with the application's effects. Hence a command takes effect
//! once, however often it is proposed, in whatever packs, and whatever dies in between. [S-ONCE]
//!
//! | a request of an open session | unordered | ordered |
//! |---|---|---|
//! | recorded | its reply again | its reply again |
//! | not recorded, at most `max` | executed if above `max - window`, otherwise stale | stale |
//! | `max + 1` | executed | executed |
//! | larger | executed | out of order |
//!
//! The reply of request r lies in slot `r mod window`. In an unordered session a slot that holds
//! another request than one within the window holds an older one, so the slot alone tells whether
//! a request has been executed. [S-ONCE] [S-ORDERED]

use crate::application::{Error, MOVE_AWAY};
use crate::identity::Identity;
use crate::protocol::{ReplyAddress, SessionOp, Status};
use crate::record::{Head, Position, Records, Stored, other_format};
use crate::reply::{Replies, ReplyTo};
use crate::settings::Limits;
use paxos::{Instance, NodeId, Time};
use std::collections::BTreeMap;

/// How many sessions that are gone are remembered, in order to tell their clients so.
const DEPARTED: usize = 1_024;
/// Bytes that stay allocated for the reply in hand.
const KEEP_SCRATCH: usize = 1 << 20;

/// Where in the log, and when by the local clock, a command is executed.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub inst: Instance,
    /// Position of the command within its value.
    pub index: u16,
    pub now: Time,
}

impl At {
    /// The id of a session that is opened here: unique, since no instance is executed twice.
    fn session_id(self) -> u64 {
        (self.inst + 1) << 16 | u64::from(self.index)
    }
}

struct Slot {
    /// 0 = empty.
    request: u64,
    status: Status,
    dirty: bool,
    reply: Vec<u8>,
}

impl Slot {
    const EMPTY: Slot = Slot {
        request: 0,
        status: Status::Ok,
        dirty: false,
        reply: Vec::new(),
    };

    /// Copies a reply into memory that is used again, unless far too much of it was allocated.
    fn keep(&mut self, status: Status, reply: &[u8]) {
        self.status = status;
        if self.reply.capacity() > 64 + 4 * reply.len() {
            self.reply = Vec::new();
        }
        self.reply.clear();
        self.reply.extend_from_slice(reply);
    }
}

struct Session {
    head: Head,
    /// Grows up to the window as slots come into use.
    slots: Vec<Slot>,
    /// Whether the head waits for the next commit.
    dirty: bool,
    /// When it was last named, by the local clock. Not replicated.
    touched: Time,
}

impl Session {
    fn slot_of(&self, request: u64) -> usize {
        (request % u64::from(self.head.window)) as usize
    }

    fn recorded(&self, request: u64) -> Option<&Slot> {
        self.slots
            .get(self.slot_of(request))
            .filter(|slot| slot.request == request)
    }

    /// [S-ONCE] [S-ORDERED]
    fn judge(&self, request: u64) -> Judgement<'_> {
        let Head { ordered, max, .. } = self.head;
        if let Some(slot) = self.recorded(request) {
            return Judgement::Duplicate(slot);
        }
        let in_window = request > max.saturating_sub(u64::from(self.head.window));
        if request <= max && (ordered || !in_window) {
            Judgement::Refuse(Status::StaleRequest)
        } else if ordered && request - max > 1 {
            Judgement::Refuse(Status::OutOfOrder)
        } else {
            Judgement::Execute
        }
    }

    /// Whether it is answered by datagrams, whose size is bounded. Others are answered by the front
    /// end of this process.
    fn is_remote(&self) -> bool {
        self.head.reply_to.address.is_some()
    }
}

enum Judgement<'a> {
    Execute,
    Duplicate(&'a Slot),
    Refuse(Status),
}

/// What the next commit has to store.
#[derive(Default)]
struct Dirty {
    heads: Vec<u64>,
    slots: Vec<(u64, u16)>,
    /// Removed sessions, with the number of slots that may be stored.
    removed: Vec<(u64, u16)>,
}

/// What is counted and noted across sessions.
#[derive(Default)]
struct Book {
    limits: Limits,
    /// Bytes of all recorded replies together.
    recorded: usize,
    dirty: Dirty,
}

impl Book {
    /// Notes that the log named the session.
    fn touch(&mut self, id: u64, session: &mut Session, at: At) {
        session.head.last_inst = at.inst;
        session.touched = at.now;
        if !session.dirty {
            session.dirty = true;
            self.dirty.heads.push(id);
        }
    }

    /// Records that `request` has been executed, and its reply where there is room for it.
    fn record(&mut self, id: u64, session: &mut Session, request: u64, reply: &[u8]) {
        if session.head.ordered {
            self.shrink_last(id, session);
        }
        session.head.max = session.head.max.max(request);
        let largest = if session.head.ordered && !session.is_remote() {
            self.limits.last_reply.max(self.limits.reply)
        } else {
            self.limits.reply
        };
        let index = session.slot_of(request);
        if session.slots.len() <= index {
            session.slots.resize_with(index + 1, || Slot::EMPTY);
        }
        let slot = &mut session.slots[index];
        self.recorded -= slot.reply.len();
        let fits = reply.len() <= largest && self.recorded + reply.len() <= self.limits.recorded;
        slot.request = request;
        if fits {
            slot.keep(Status::Ok, reply);
            self.recorded += reply.len();
        } else {
            slot.keep(Status::ReplyTooLarge, &[]);
        }
        self.mark_slot(id, index, slot);
    }

    /// Only the last reply of an ordered session may be large.
    fn shrink_last(&mut self, id: u64, session: &mut Session) {
        let index = session.slot_of(session.head.max);
        let too_long = |slot: &&mut Slot| slot.reply.len() > self.limits.reply;
        if let Some(slot) = session.slots.get_mut(index).filter(too_long) {
            self.recorded -= slot.reply.len();
            slot.keep(Status::ReplyTooLarge, &[]);
            self.mark_slot(id, index, slot);
        }
    }

    fn mark_slot(&mut self, id: u64, index: usize, slot: &mut Slot) {
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.slots.push((id, index as u16));
        }
    }
}

/// An idle session that may be proposed for expiry.
pub(crate) struct Idle {
    pub session: u64,
    pub op: SessionOp,
}

/// A session of the front end beside this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalSession {
    /// Its id.
    pub id: u64,
    /// The number that named the attempt to open it.
    pub nonce: u64,
}

/// The table.
pub(crate) struct Sessions {
    book: Book,
    /// This replica: decides only whether it answers, never what is recorded.
    node: NodeId,
    open: BTreeMap<u64, Session>,
    by_nonce: BTreeMap<u64, u64>,
    /// Windows of all sessions together.
    slots: usize,
    /// Who is to hear of sessions that were closed here since the start. Not replicated.
    departed: BTreeMap<u64, ReplyAddress>,
    /// The reply in hand.
    scratch: Vec<u8>,
}

impl Sessions {
    /// An empty table.
    pub fn new(node: NodeId, limits: Limits) -> Sessions {
        Sessions {
            book: Book {
                limits,
                ..Book::default()
            },
            node,
            open: BTreeMap::new(),
            by_nonce: BTreeMap::new(),
            slots: 0,
            departed: BTreeMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Sessions open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Those that are answered here and have no address.
    pub fn local(&self) -> impl Iterator<Item = LocalSession> + '_ {
        let here = ReplyAddress {
            home: self.node,
            address: None,
        };
        let of_front_end = self
            .open
            .iter()
            .filter(move |(_, s)| s.head.reply_to == here);
        of_front_end.map(|(&id, s)| LocalSession {
            id,
            nonce: s.head.nonce,
        })
    }

    /// Handles an application's command: `run` is called if, and only if, it takes effect now.
    pub fn command(
        &mut self,
        at: At,
        client: u64,
        request: u64,
        replies: &mut Replies,
        run: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(session) = self.open.get_mut(&client) else {
            self.answer_unknown(client, request, replies);
            return Ok(());
        };
        self.book.touch(client, session, at);
        match session.judge(request) {
            Judgement::Duplicate(slot) => {
                if let Some(to) = again(&session.head.reply_to, self.node) {
                    replies.push(to, client, request, slot.status, &slot.reply);
                }
            }
            Judgement::Refuse(status) => {
                if let Some(to) = again(&session.head.reply_to, self.node) {
                    replies.push(to, client, request, status, &[]);
                }
            }
            Judgement::Execute => {
                self.scratch.clear();
                run(&mut self.scratch)?;
                let reply = &self.scratch[..];
                self.book.record(client, session, request, reply);
                if let Some(to) = first(&session.head.reply_to, self.node) {
                    let too_large = session.is_remote() && reply.len() > self.book.limits.reply;
                    if too_large {
                        replies.push(to, client, request, Status::ReplyTooLarge, &[]);
                    } else {
                        replies.push(to, client, request, Status::Ok, reply);
                    }
                }
                self.scratch.shrink_to(KEEP_SCRATCH);
            }
        }
        Ok(())
    }

    /// Handles a session operation: a command with request number 0.
    pub fn operation(&mut self, at: At, client: u64, command: &[u8], replies: &mut Replies) {
        match SessionOp::parse(command) {
            None => self.answer(client, 0, Status::Malformed, replies),
            Some(SessionOp::Open {
                ordered,
                window,
                reply_to,
            }) => self.open(at, client, ordered, window, reply_to, replies),
            Some(SessionOp::Close) => {
                self.answer(client, 0, Status::Ok, replies);
                self.remove(client);
            }
            Some(SessionOp::Expire {
                last_request,
                last_inst,
            }) => {
                // [S-EXPIRE]
                let seen = self
                    .open
                    .get(&client)
                    .map(|s| (s.head.max, s.head.last_inst));
                if seen == Some((last_request, last_inst)) {
                    self.remove(client);
                }
            }
            Some(SessionOp::Move { reply_to }) => {
                let mut status = Status::UnknownSession;
                if let Some(session) = self.open.get_mut(&client) {
                    session.head.reply_to = reply_to;
                    self.book.touch(client, session, at);
                    status = Status::Ok;
                }
                // An unknown session is answered, too, where the operation says: a client whose
                // session is long gone has no other way to hear of it.
                if let Some(to) = again(&reply_to, self.node) {
                    replies.push(to, client, 0, status, &[]);
                }
            }
        }
    }

    /// [S-OPEN]
    fn open(
        &mut self,
        at: At,
        nonce: u64,
        ordered: bool,
        window: u16,
        reply_to: ReplyAddress,
        replies: &mut Replies,
    ) {
        if let Some(&id) = self.by_nonce.get(&nonce) {
            let session = self.open.get_mut(&id).expect("the index follows the table");
            self.book.touch(id, session, at);
            if let Some(to) = again(&session.head.reply_to, self.node) {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
            return;
        }
        let full = self.open.len() >= self.book.limits.sessions
            || self.slots + usize::from(window) > self.book.limits.slots;
        let id = at.session_id();
        if !full {
            let head = Head {
                nonce,
                ordered,
                window,
                reply_to,
                max: 0,
                last_inst: at.inst,
            };
            let session = insert(&mut self.open, &mut self.by_nonce, id, head);
            self.slots += usize::from(window);
            self.book.touch(id, session, at);
        }
        if let Some(to) = first(&reply_to, self.node) {
            if full {
                replies.push(to, nonce, 0, Status::TooManySessions, &[]);
            } else {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
        }
    }

    fn remove(&mut self, id: u64) {
        let Some(session) = self.open.remove(&id) else {
            return;
        };
        self.by_nonce.remove(&session.head.nonce);
        self.slots -= usize::from(session.head.window);
        self.book.recorded -= session.slots.iter().map(|s| s.reply.len()).sum::<usize>();
        self.book
            .dirty
            .removed
            .push((id, session.slots.len() as u16));
        self.departed.insert(id, session.head.reply_to);
        if self.departed.len() > DEPARTED {
            self.departed.pop_first();
        }
    }

    /// Answers a command that is not executed and not recorded, whoever sent it.
    pub fn answer(&self, client: u64, request: u64, status: Status, replies: &mut Replies) {
        match self.open.get(&client) {
            Some(session) => {
                if let Some(to) = again(&session.head.reply_to, self.node) {
                    replies.push(to, client, request, status, &[]);
                }
            }
            None if status == Status::Ok => self.answer_unknown(client, request, replies),
            None => self.answer_stranger(client, request, status, replies),
        }
    }

    fn answer_unknown(&self, client: u64, request: u64, replies: &mut Replies) {
        self.answer_stranger(client, request, Status::UnknownSession, replies);
    }

    /// A session that is gone may have left its address. Any other id may belong to the front end
    /// beside this replica, which ignores what isn't its own. A client that hears nothing sends
    /// MOVE.
    fn answer_stranger(&self, client: u64, request: u64, status: Status, replies: &mut Replies) {
        let to = match self.departed.get(&client) {
            Some(reply_to) => again(reply_to, self.node),
            None => Some(ReplyTo::Local),
        };
        if let Some(to) = to {
            replies.push(to, client, request, status, &[]);
        }
    }

    /// Sessions that nobody has named for `timeout`, at most `limit`, as proposals for expiry.
    pub fn idle(&self, now: Time, timeout: Time, limit: usize) -> impl Iterator<Item = Idle> + '_ {
        let old = move |s: &Session| now.saturating_sub(s.touched) >= timeout;
        self.open
            .iter()
            .filter(move |(_, s)| old(s))
            .take(limit)
            .map(|(&session, s)| Idle {
                session,
                op: SessionOp::Expire {
                    last_request: s.head.max,
                    last_inst: s.head.last_inst,
                },
            })
    }

    /// Puts a stored session back.
    fn load(&mut self, id: u64, head: Head, now: Time) {
        self.slots += usize::from(head.window);
        insert(&mut self.open, &mut self.by_nonce, id, head).touched = now;
    }

    /// Appends what changed since the last call.
    pub fn save_changes(&mut self, records: &mut Records) {
        for id in self.book.dirty.heads.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                session.dirty = false;
                records.put_session(id, &session.head);
            }
        }
        for (id, index) in self.book.dirty.slots.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                let slot = &mut session.slots[usize::from(index)];
                slot.dirty = false;
                records.put_reply(id, index, slot.request, slot.status, &slot.reply);
            }
        }
        for (id, slots) in self.book.dirty.removed.drain(..) {
            records.delete_session(id);
            for index in 0..slots {
                records.delete_reply(id, index);
            }
        }
    }
}

fn insert<'a>(
    open: &'a mut BTreeMap<u64, Session>,
    by_nonce: &mut BTreeMap<u64, u64>,
    id: u64,
    head: Head,
) -> &'a mut Session {
    by_nonce.insert(head.nonce, id);
    open.entry(id).or_insert(Session {
        head,
        slots: Vec::new(),
        dirty: false,
        touched: 0,
    })
}

/// Who hears the first answer from this replica: only the home replica gives it. [S-HOME]
fn first(to: &ReplyAddress, node: NodeId) -> Option<ReplyTo> {
    let at_home = to.home == 0 || to.home == node;
    at_home.then_some(to.address.map_or(ReplyTo::Local, ReplyTo::Address))
}

/// Who hears an answer to a repetition, or a refusal: all replicas give it, since the home replica
/// may be gone. A front end hears only its own replica. [S-HOME]
fn again(to: &ReplyAddress, node: NodeId) -> Option<ReplyTo> {
    match to.address {
        Some(address) => Some(ReplyTo::Address(address)),
        None => first(to, node),
    }
}

/// What the stored records say.
pub(crate) struct Loaded {
    pub position: Position,
    /// Of this replica's disk; `None` if it has none yet.
    pub incarnation: Option<u64>,
    pub sessions: Sessions,
}

/// Gathers them.
pub(crate) struct Loader {
    node: NodeId,
    identity: Option<Identity>,
    /// Whether anything is stored.
    any: bool,
    position: Position,
    incarnation: Option<u64>,
    sessions: Sessions,
    now: Time,
    /// Replies may be shown before their session.
    replies: Vec<(u64, u16, u64, Status, Vec<u8>)>,
}

impl Loader {
    pub fn new(node: NodeId, limits: Limits, now: Time) -> Loader {
        Loader {
            node,
            identity: None,
            any: false,
            position: Position::default(),
            incarnation: None,
            sessions: Sessions::new(node, limits),
            now,
            replies: Vec::new(),
        }
    }

    pub fn visit(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.any = true;
        match Stored::parse(key, value)? {
            Stored::Identity(identity) => self.identity = Some(identity),
            Stored::Position(position) => self.position = position,
            // It is another replica's number if this is a copy of that one's state. Then this disk
            // has none yet.
            Stored::Incarnation(node, incarnation) => {
                self.incarnation = Some(incarnation).filter(|_| node == self.node);
            }
            Stored::Session(id, head) => self.sessions.load(id, head, self.now),
            Stored::Reply {
                session,
                slot,
                request,
                status,
                bytes,
            } => self
                .replies
                .push((session, slot, request, status, bytes.to_vec())),
        }
        Ok(())
    }

    /// What the records say, if they are `own` or nothing is stored.
    pub fn finish(mut self, own: Identity) -> Result<Loaded, Error> {
        match self.identity {
            Some(stored) if stored != own => return Err(foreign(stored, own)),
            None if self.any => return Err(other_format(None)),
            _ => {}
        }
        for (id, index, request, status, reply) in self.replies {
            let session = self
                .sessions
                .open
                .get_mut(&id)
                .filter(|s| index < s.head.window)
                .ok_or_else(|| Error(format!("a stored reply has no session {id:#x}")))?;
            let index = usize::from(index);
            if session.slots.len() <= index {
                session.slots.resize_with(index + 1, || Slot::EMPTY);
            }
            self.sessions.book.recorded += reply.len();
            session.slots[index] = Slot {
                request,
                status,
                dirty: false,
                reply,
            };
        }
        Ok(Loaded {
            position: self.position,
            incarnation: self.incarnation,
            sessions: self.sessions,
        })
    }
}

fn foreign(stored: Identity, own: Identity) -> Error {
    Error(format!(
        "what is stored there belongs to {stored}, and this node serves {own}: correct the cluster \
         file, or `data` in it; or {MOVE_AWAY}"
    ))
}
