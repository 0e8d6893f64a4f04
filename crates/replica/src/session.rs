// SPDX-License-Identifier: Apache-2.0
//! The session table: which requests have taken effect, and their replies.
//!
//! The table is replicated state: a function of the log alone, equal on all replicas at the same instance, and
//! committed together with the application's effects. Hence a command takes effect once, however often it is proposed,
//! in whatever packs, and whatever dies in between. [S-ONCE]
//!
//! | a request of an open session | unordered | ordered |
//! |---|---|---|
//! | recorded | its reply again | its reply again |
//! | not recorded, at most `max` | executed if above `max - window`, otherwise stale | stale |
//! | `max + 1` | executed | executed |
//! | larger | executed | out of order |
//!
//! The reply of request r lies in slot `r mod window`. If the slot of an unordered session's request within the window
//! holds another request, that one is older, so the slot alone tells whether a request has been executed. [S-ONCE]
//! [S-ORDERED]
//!
//! A session also keeps the parts of one command that isn't whole yet. [S-PARTS]

use crate::agreement::Answers;
use crate::application::{Application, Error, MOVE_AWAY};
use crate::changes::{Change, Changes, Commit, Journal};
use crate::identity::Identity;
use crate::outcome::{Executed, Outcome};
use crate::parts::{self, Part, Parts};
use crate::protocol::{CommandPlace, ReplyAddress, SessionOp, Status};
use crate::record::{
    Head, Page, Position, Recorded, Records, Stored, StoredPart, damaged, other_format,
};
use crate::reply::{Place, Replies, ReplyTo};
use crate::settings::Limits;
use crate::sibling::Copy;
use paxos::{Instance, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

/// The number of closed sessions that are remembered in order to tell their clients so.
const DEPARTED: usize = 1_024;
/// The number of slots whose replies are stored together.
const PAGE: usize = 32;
/// The bytes that stay allocated for the reply in hand.
const KEEP_SCRATCH: usize = 1 << 20;

/// The place in the log, and the local time, at which a command is executed.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub inst: Instance,
    /// The position of the command within its value.
    pub index: u16,
    pub now: Time,
}

impl At {
    pub fn place(self) -> CommandPlace {
        CommandPlace {
            inst: self.inst,
            index: self.index,
        }
    }

    /// Returns the id of a session that is opened here. It is unique, since no instance is executed twice.
    fn session_id(self) -> u64 {
        (self.inst + 1) << 16 | u64::from(self.index)
    }
}

struct Slot {
    /// The request whose reply lies here; 0 = empty.
    request: u64,
    status: Status,
    reply: Vec<u8>,
}

impl Slot {
    const EMPTY: Slot = Slot {
        request: 0,
        status: Status::Ok,
        reply: Vec::new(),
    };

    /// Copies a reply into the slot's memory, which is allocated anew if far too much of it was allocated.
    fn keep(&mut self, status: Status, reply: &[u8]) {
        self.status = status;
        if self.reply.capacity() > 64 + 4 * reply.len() {
            self.reply = Vec::new();
        }
        self.reply.clear();
        self.reply.extend_from_slice(reply);
    }

    fn recorded(&self) -> Recorded<'_> {
        Recorded {
            request: self.request,
            status: self.status,
            reply: &self.reply,
        }
    }
}

#[derive(Default)]
struct SlotPage {
    /// The slots; they grow up to [`PAGE`] as slots come into use.
    slots: Vec<Slot>,
    /// The page waits for the next fold.
    dirty: bool,
}

struct Session {
    head: Head,
    /// The pages; they grow as slots come into use.
    pages: Vec<SlotPage>,
    /// The parts of the one command that isn't whole yet.
    parts: Option<Parts>,
    /// The head waits for the next fold.
    dirty: bool,
    /// The stored table has records of the session.
    stored: bool,
    /// The local time at which the log last named the session. It isn't replicated.
    touched: Time,
}

/// A request of a session with its slot, which takes a division to find.
#[derive(Clone, Copy)]
struct Request {
    number: u64,
    page: usize,
    at: usize,
}

impl Session {
    /// Returns a request with its slot.
    fn request(&self, number: u64) -> Request {
        let slot = (number % u64::from(self.head.window)) as usize;
        Request {
            number,
            page: slot / PAGE,
            at: slot % PAGE,
        }
    }

    /// Returns the request's slot, if it was ever in use.
    fn slot(&self, of: Request) -> Option<&Slot> {
        self.pages.get(of.page)?.slots.get(of.at)
    }

    /// Returns the request's slot, and makes it if it was never in use.
    fn slot_mut(&mut self, of: Request) -> &mut Slot {
        if self.pages.len() <= of.page {
            self.pages.resize_with(of.page + 1, SlotPage::default);
        }
        let slots = &mut self.pages[of.page].slots;
        if slots.len() <= of.at {
            slots.resize_with(of.at + 1, || Slot::EMPTY);
        }
        &mut slots[of.at]
    }

    fn recorded_bytes(&self) -> usize {
        let slots = self.pages.iter().flat_map(|page| &page.slots);
        slots.map(|slot| slot.reply.len()).sum()
    }

    fn recorded(&self, request: Request) -> Option<&Slot> {
        let slot = self.slot(request);
        slot.filter(|slot| slot.request == request.number)
    }

    /// Decides what becomes of a request, by the table in the module's documentation. [S-ONCE] [S-ORDERED]
    fn judge(&self, request: Request) -> Judgement<'_> {
        let Head { ordered, max, .. } = self.head;
        if let Some(slot) = self.recorded(request) {
            return Judgement::Duplicate(slot);
        }
        let request = request.number;
        let in_window = request > max.saturating_sub(u64::from(self.head.window));
        if request <= max && (ordered || !in_window) {
            Judgement::Refuse(Status::StaleRequest)
        } else if ordered && request - max > 1 {
            Judgement::Refuse(Status::OutOfOrder)
        } else {
            Judgement::Execute
        }
    }

    /// Returns whether the session is answered by datagrams, whose size is bounded. Other sessions are answered by a
    /// front end, over connections.
    fn is_remote(&self) -> bool {
        self.head.reply_to.address.is_some()
    }

    /// Returns whether only the front end of another replica will ever hear the answers of the session, since the session
    /// ends with that front end's connections. This replica then passes commands that only read. [S-PASS]
    fn is_answered_elsewhere(&self, node: NodeId) -> bool {
        let to = &self.head.reply_to;
        to.address.is_none() && to.home != 0 && to.home != node
    }

    /// Returns whether the front end beside this replica repeats a request whose answer wasn't kept, because this
    /// replica took over the state of one that had passed it. Nothing behind the request was executed in the session,
    /// so it may be read again. [S-PASS]
    fn asks_again(&self, request: Request, node: NodeId) -> bool {
        let to = &self.head.reply_to;
        let is_unknown = |slot: &Slot| slot.status == Status::ReplyTooLarge;
        to.address.is_none()
            && to.home == node
            && request.number == self.head.max
            && self.recorded(request).is_some_and(is_unknown)
    }
}

/// The result of taking a command in parts that is due to take effect.
enum Taken {
    /// The whole command.
    Whole(Vec<u8>),
    /// The part is new and was kept.
    Kept,
    /// The part was kept before.
    Again,
    Refused(Status),
}

enum Judgement<'a> {
    Execute,
    Duplicate(&'a Slot),
    Refuse(Status),
}

/// The changes of the table that the next fold has to store.
#[derive(Default)]
struct Dirty {
    heads: Vec<u64>,
    pages: Vec<(u64, u16)>,
    /// Removed sessions that are in the stored table, with their numbers of pages.
    removed: Vec<(u64, u16)>,
    /// Parts of commands that were added or removed.
    parts: BTreeSet<(u64, u16)>,
    /// The parts that are in the stored table.
    stored_parts: BTreeSet<(u64, u16)>,
}

/// Totals and changes of all sessions together.
#[derive(Default)]
struct Book {
    limits: Limits,
    /// The bytes of all recorded replies together.
    recorded: usize,
    /// The full lengths of all commands that aren't whole yet, including the parts that are still missing.
    unfinished: usize,
    /// The changes for the next commit.
    changes: Changes,
    dirty: Dirty,
}

impl Book {
    /// Notes that the log named the session.
    fn touch(&mut self, id: u64, session: &mut Session, inst: Instance, now: Time) {
        session.head.last_inst = inst;
        session.touched = now;
        if !session.dirty {
            session.dirty = true;
            self.dirty.heads.push(id);
        }
    }

    /// Records that `request` has been executed, with its reply if there is room for it.
    fn record(&mut self, id: u64, session: &mut Session, at: At, request: Request, reply: &[u8]) {
        self.record_if(true, id, session, at, request, reply);
    }

    /// Records that `request` was passed. Its answer is known only where the session is answered. [S-PASS]
    fn record_pass(&mut self, id: u64, session: &mut Session, at: At, request: Request) {
        self.record_if(false, id, session, at, request, &[]);
    }

    fn record_if(
        &mut self,
        is_known: bool,
        id: u64,
        session: &mut Session,
        at: At,
        request: Request,
        reply: &[u8],
    ) {
        if session.head.ordered {
            self.shrink_last(id, session, at, request.number);
        }
        let largest = if session.head.ordered && !session.is_remote() {
            self.limits.last_reply.max(self.limits.reply)
        } else {
            self.limits.reply
        };
        let before = session.slot(request).map_or(0, |slot| slot.reply.len());
        let after = self.recorded - before + reply.len();
        let fits = reply.len() <= largest && after <= self.limits.recorded;
        let (status, reply) = if is_known && fits {
            (Status::Ok, reply)
        } else {
            (Status::ReplyTooLarge, &[][..])
        };
        self.keep(id, session, request, status, reply);
        self.changes
            .done(id, at.inst, request.number, status, reply);
    }

    /// Takes a part of a command that hasn't taken effect yet. The last part makes the command whole. [S-PARTS]
    fn take_part(
        &mut self,
        id: u64,
        session: &mut Session,
        request: u64,
        part: Part,
        bytes: &[u8],
    ) -> Taken {
        let Some((len, count, piece)) = parts::parse(part, bytes) else {
            return Taken::Refused(Status::Malformed);
        };
        if len as usize > self.limits.command {
            return Taken::Refused(Status::TooLarge);
        }
        let begun = session.parts.as_ref().filter(|p| p.request == request);
        if begun.is_some_and(|parts| parts.len != len) {
            return Taken::Refused(Status::Malformed);
        }
        match part {
            Part::Last => match begun {
                Some(parts) if parts.are_first(count) => {
                    let whole = parts.join(piece);
                    whole.map_or(Taken::Refused(Status::Malformed), Taken::Whole)
                }
                _ => Taken::Refused(Status::OutOfOrder),
            },
            Part::At(at) if begun.is_some_and(|parts| parts.has(at)) => Taken::Again,
            Part::At(at) => {
                let fits = begun.map_or(piece.len() <= len as usize, |p| p.takes(piece.len()));
                if !fits {
                    return Taken::Refused(Status::Malformed);
                }
                let part = StoredPart {
                    request,
                    len,
                    piece,
                };
                match self.has_room_for(session, &part) {
                    Ok(()) => {
                        self.keep_part(id, session, at, &part);
                        Taken::Kept
                    }
                    Err(status) => Taken::Refused(status),
                }
            }
        }
    }

    /// Returns whether a part may be kept. If there is room for a command's first part, there is room for the whole
    /// command, since commands that aren't whole could otherwise keep one another from becoming so. [S-PARTS]
    fn has_room_for(&self, session: &Session, part: &StoredPart<'_>) -> Result<(), Status> {
        let others = match &session.parts {
            Some(begun) if begun.request == part.request => return Ok(()),
            // A later command of the session is in parts already.
            Some(begun) if begun.request > part.request => return Err(Status::StaleRequest),
            Some(begun) => self.unfinished - begun.len as usize,
            None => self.unfinished,
        };
        match others + part.len as usize <= self.limits.unfinished {
            true => Ok(()),
            false => Err(Status::OutOfOrder),
        }
    }

    /// Keeps a part, and gives up the parts of an earlier command.
    fn keep_part(&mut self, id: u64, session: &mut Session, at: u16, part: &StoredPart<'_>) {
        if session
            .parts
            .as_ref()
            .is_some_and(|p| p.request != part.request)
        {
            self.drop_parts(id, session);
        }
        let unfinished = &mut self.unfinished;
        let parts = session.parts.get_or_insert_with(|| {
            *unfinished += part.len as usize;
            Parts::new(part.request, part.len)
        });
        parts.keep(at, part.piece);
        self.dirty.parts.insert((id, at));
    }

    fn drop_parts(&mut self, id: u64, session: &mut Session) {
        if let Some(parts) = session.parts.take() {
            self.unfinished -= parts.len as usize;
            let gone = parts.indices().map(|at| (id, at));
            self.dirty.parts.extend(gone);
        }
    }

    /// Answers a command that was just executed.
    fn answer(
        &self,
        session: &Session,
        to: ReplyTo,
        (client, request): (u64, u64),
        reply: &[u8],
        replies: &mut Replies,
    ) {
        let too_large = session.is_remote() && reply.len() > self.limits.reply;
        if too_large {
            replies.push(to, client, request, Status::ReplyTooLarge, &[]);
        } else {
            replies.push(to, client, request, Status::Ok, reply);
        }
    }

    /// Drops the recorded reply of an ordered session's last request if it is large, since only the last reply may be
    /// large. Other requests may have begun behind `request`, so the last one is at most `request - 1`.
    fn shrink_last(&mut self, id: u64, session: &mut Session, at: At, request: u64) {
        let last = session.request(session.head.max.min(request - 1));
        let too_long = |slot: &&Slot| slot.reply.len() > self.limits.reply;
        if session.recorded(last).filter(too_long).is_some() {
            let status = Status::ReplyTooLarge;
            self.keep(id, session, last, status, &[]);
            self.changes.done(id, at.inst, last.number, status, &[]);
        }
    }

    /// Puts a reply into its slot.
    fn keep(
        &mut self,
        id: u64,
        session: &mut Session,
        request: Request,
        status: Status,
        reply: &[u8],
    ) {
        session.head.max = session.head.max.max(request.number);
        let slot = session.slot_mut(request);
        self.recorded = self.recorded - slot.reply.len() + reply.len();
        slot.request = request.number;
        slot.keep(status, reply);
        let page = &mut session.pages[request.page];
        if !page.dirty {
            page.dirty = true;
            self.dirty.pages.push((id, request.page as u16));
        }
        // The command in parts has taken effect, or no longer can.
        let begun = session.parts.as_ref().map(|parts| parts.request);
        let is_over = |of| !matches!(session.judge(session.request(of)), Judgement::Execute);
        if begun.is_some_and(is_over) {
            self.drop_parts(id, session);
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
    /// The session's id.
    pub id: u64,
    /// The random number that named the attempt to open it.
    pub nonce: u64,
}

/// A command that was begun and isn't recorded yet.
struct Begun {
    at: At,
    client: u64,
    request: u64,
    /// The command was passed, so the application doesn't answer it.
    is_passed: bool,
}

/// Executes a command that the table lets take effect.
pub(crate) trait Executes {
    /// Executes a command, and appends the answer.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error>;

    /// Passes a command that only reads; returns false for any other. [S-PASS]
    fn pass(&mut self, _command: &[u8]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Executes a command again that was passed; returns false for a command that doesn't only read. [S-PASS]
    fn read_again(&mut self, _command: &[u8], _reply: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(false)
    }
}

/// An application, which executes commands of one partition.
pub(crate) struct Whole<'a, A>(pub &'a mut A);

impl<A: Application> Executes for Whole<'_, A> {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.0.execute(command, reply)
    }

    fn pass(&mut self, command: &[u8]) -> Result<bool, Error> {
        self.0.pass(command)
    }

    fn read_again(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<bool, Error> {
        self.0.read_again(command, reply)
    }
}

/// A function that gives the answer without executing the command, for commands whose outcome is decided elsewhere:
/// those over several partitions, and those that take no effect.
pub(crate) struct Found<F>(pub F);

impl<F: FnMut(&mut Vec<u8>) -> Result<(), Error>> Executes for Found<F> {
    fn execute(&mut self, _command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        (self.0)(reply)
    }
}

/// The session table.
pub(crate) struct Sessions {
    book: Book,
    /// This replica. It decides only whether this replica answers, never what is recorded.
    node: NodeId,
    open: BTreeMap<u64, Session>,
    by_nonce: BTreeMap<u64, u64>,
    /// The sum of the windows of all sessions.
    slots: usize,
    /// The sessions and slots that are answered at each address.
    of_address: BTreeMap<IpAddr, Share>,
    /// The reply addresses of sessions that were closed here since the start. They aren't replicated.
    departed: BTreeMap<u64, ReplyAddress>,
    /// The commands that were begun, in the order of the log.
    begun: VecDeque<Begun>,
    /// The number of commands in `begun` that were passed.
    passed: usize,
    /// A buffer for the reply in hand.
    scratch: Vec<u8>,
}

impl Sessions {
    /// Returns an empty table.
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
            of_address: BTreeMap::new(),
            departed: BTreeMap::new(),
            begun: VecDeque::new(),
            passed: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns where a session is answered, if it is open.
    pub fn reply_to(&self, id: u64) -> Option<&ReplyAddress> {
        self.open.get(&id).map(|session| &session.head.reply_to)
    }

    /// Returns how the client of an open session is reached, if that is by datagrams.
    pub fn remote(&self, id: u64) -> Option<ReplyTo> {
        let to = self.reply_to(id)?;
        to.address.map(|_| reach(to, self.node))
    }

    /// Returns the number of open sessions.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the sessions of the front end beside this replica: their home is here, and they have no address.
    pub fn local(&self) -> impl Iterator<Item = LocalSession> + '_ {
        let here = ReplyAddress {
            home: self.node,
            ..ReplyAddress::default()
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

    /// Begins a command if it is whole and takes effect now; its answer comes by [`Sessions::answered`], but it counts
    /// as executed at once. Any other command gives `None`: call [`Sessions::command`] for it once everything that was
    /// begun is answered. [X-GATHER]
    pub fn begin(
        &mut self,
        at: At,
        (client, request): (u64, u64),
        bytes: &[u8],
        app: &mut impl Application,
    ) -> Option<Result<(), Error>> {
        let session = self.open.get_mut(&client)?;
        let is_whole = parts::split(request).1.is_none();
        let slot = session.request(request);
        if !is_whole || !matches!(session.judge(slot), Judgement::Execute) {
            return None;
        }
        self.book.touch(client, session, at.inst, at.now);
        session.head.max = session.head.max.max(request);
        session.slot_mut(slot).request = request;
        let passed = match session.is_answered_elsewhere(self.node) {
            true => app.pass(bytes),
            false => Ok(false),
        };
        let begun = passed.and_then(|is_passed| {
            self.begun.push_back(Begun {
                at,
                client,
                request,
                is_passed,
            });
            self.passed += usize::from(is_passed);
            if is_passed {
                return Ok(());
            }
            app.begin(bytes)
        });
        Some(begun)
    }

    /// Returns the place of the command that was given to the application behind `before` other ones whose answers
    /// weren't taken.
    pub fn begun_at(&self, before: usize) -> Option<CommandPlace> {
        let mut given = self.begun.iter().filter(|begun| !begun.is_passed);
        given.nth(before).map(|begun| begun.at.place())
    }

    /// Returns how many commands were begun, or passed behind such commands, and aren't recorded.
    pub fn begun(&self) -> usize {
        self.begun.len()
    }

    /// Returns how many of the begun commands the application has to answer.
    pub fn awaited(&self) -> usize {
        self.begun.len() - self.passed
    }

    /// Records the commands that were passed, up to the next one that the application answers.
    pub fn record_passed(&mut self) {
        while self.begun.front().is_some_and(|begun| begun.is_passed) {
            let Some(begun) = self.begun.pop_front() else {
                return;
            };
            self.passed -= 1;
            let session = self.open.get_mut(&begun.client);
            let session = session.expect("nothing is closed while a command of it waits");
            let slot = session.request(begun.request);
            self.book.record_pass(begun.client, session, begun.at, slot);
        }
    }

    /// Records the application's answer to the first command that was begun, and sends it. It returns false if no
    /// command was begun. [X-GATHER]
    pub fn answered(&mut self, reply: &[u8], replies: &mut Replies) -> bool {
        let Some(Begun {
            at,
            client,
            request,
            ..
        }) = self.begun.pop_front()
        else {
            return false;
        };
        let session = self.open.get_mut(&client);
        let session = session.expect("nothing is closed while a command of it waits");
        replies.place = Place::Slot(at.inst);
        let slot = session.request(request);
        self.book.record(client, session, at, slot, reply);
        if let Some(to) = first(&session.head.reply_to, self.node, replies.answers) {
            self.book
                .answer(session, to, (client, request), reply, replies);
        }
        self.record_passed();
        true
    }

    /// Handles an application's command, or a part of one. The application executes the command if, and only if, it
    /// takes effect now.
    pub fn command(
        &mut self,
        at: At,
        (client, number): (u64, u64),
        bytes: &[u8],
        replies: &mut Replies,
        by: &mut impl Executes,
    ) -> Result<(), Error> {
        let Some(session) = self.open.get_mut(&client) else {
            self.answer_unknown(client, number, replies);
            return Ok(());
        };
        self.book.touch(client, session, at.inst, at.now);
        let to_again = again(&session.head.reply_to, self.node, replies.answers);
        let (request, part) = parts::split(number);
        let slot = session.request(request);
        if part.is_none() && session.asks_again(slot, self.node) {
            self.scratch.clear();
            if by.read_again(bytes, &mut self.scratch)? {
                let (reply, of) = (&self.scratch[..], (client, number));
                if let Some(to) = to_again {
                    self.book.answer(session, to, of, reply, replies);
                }
                self.book.changes.touched(client, at.inst);
                self.scratch.shrink_to(KEEP_SCRATCH);
                return Ok(());
            }
        }
        let (status, recorded) = match session.judge(slot) {
            // The recorded reply belongs to the last part.
            Judgement::Duplicate(slot) if !matches!(part, Some(Part::At(_))) => {
                (slot.status, &slot.reply[..])
            }
            Judgement::Duplicate(_) => (Status::StaleRequest, &[][..]),
            Judgement::Refuse(status) => (status, &[][..]),
            Judgement::Execute => {
                let joined;
                let command = match part {
                    None => bytes,
                    Some(part) => {
                        match self.book.take_part(client, session, request, part, bytes) {
                            Taken::Whole(command) => {
                                joined = command;
                                &joined[..]
                            }
                            other => {
                                self.answer_part(at, (client, number), bytes, &other, replies);
                                return Ok(());
                            }
                        }
                    }
                };
                if session.is_answered_elsewhere(self.node) && by.pass(command)? {
                    self.book.record_pass(client, session, at, slot);
                    return Ok(());
                }
                self.scratch.clear();
                by.execute(command, &mut self.scratch)?;
                let reply = &self.scratch[..];
                self.book.record(client, session, at, slot, reply);
                if let Some(to) = first(&session.head.reply_to, self.node, replies.answers) {
                    self.book
                        .answer(session, to, (client, number), reply, replies);
                }
                self.scratch.shrink_to(KEEP_SCRATCH);
                return Ok(());
            }
        };
        if let Some(to) = to_again {
            replies.push(to, client, number, status, recorded);
        }
        self.book.changes.touched(client, at.inst);
        Ok(())
    }

    /// Answers a part with which the command isn't whole yet, and notes it if it is new.
    fn answer_part(
        &mut self,
        at: At,
        (client, number): (u64, u64),
        bytes: &[u8],
        taken: &Taken,
        replies: &mut Replies,
    ) {
        let Some(session) = self.open.get(&client) else {
            return;
        };
        let is_new = matches!(taken, Taken::Kept);
        match parts::split(number) {
            (request, Some(part @ Part::At(index))) if is_new => {
                if let Some((len, _, piece)) = parts::parse(part, bytes) {
                    let part = StoredPart {
                        request,
                        len,
                        piece,
                    };
                    self.book.changes.part(client, at.inst, index, &part);
                }
            }
            _ => self.book.changes.touched(client, at.inst),
        }
        let status = match taken {
            Taken::Refused(status) => *status,
            _ => Status::Ok,
        };
        let who = if is_new { first } else { again };
        if let Some(to) = who(&session.head.reply_to, self.node, replies.answers) {
            replies.push(to, client, number, status, &[]);
        }
    }

    /// Records a command over several partitions that a sibling has passed, and answers it, whatever this partition's
    /// log held before, since that was given up. It counts as executed, so that a repetition isn't executed.
    /// [G-COMPLETE]
    pub fn complete(&mut self, at: At, executed: &Executed, replies: &mut Replies) {
        let (client, request) = (executed.client, executed.request);
        let Some(session) = self.open.get_mut(&client) else {
            return;
        };
        self.book.touch(client, session, at.inst, at.now);
        let slot = session.request(request);
        self.book.record(client, session, at, slot, &executed.reply);
        if let Some(to) = first(&session.head.reply_to, self.node, replies.answers) {
            self.book
                .answer(session, to, (client, request), &executed.reply, replies);
        }
    }

    /// Handles a session operation, which is a command with request number 0.
    pub fn operation(&mut self, at: At, client: u64, command: &[u8], replies: &mut Replies) {
        match SessionOp::parse(command) {
            None => self.answer(client, 0, Status::Malformed, replies),
            // These operations are about the log and belong to no session. [X-DIED] [X-VOID]
            Some(SessionOp::Died { .. } | SessionOp::Void { .. }) => {}
            Some(SessionOp::Open {
                ordered,
                window,
                reply_to,
            }) => self.open(at, client, ordered, window, reply_to, replies),
            Some(SessionOp::Close) => {
                self.answer(client, 0, Status::Ok, replies);
                self.close(client);
            }
            Some(SessionOp::Expire {
                last_request,
                last_inst,
            }) => {
                // A session that was used after the proposal stays open. [S-EXPIRE]
                let seen = self
                    .open
                    .get(&client)
                    .map(|s| (s.head.max, s.head.last_inst));
                if seen == Some((last_request, last_inst)) {
                    self.close(client);
                }
            }
            Some(SessionOp::Move { reply_to }) => {
                let mut status = Status::UnknownSession;
                if let Some(session) = self.open.get_mut(&client) {
                    move_to(&mut self.of_address, session, reply_to);
                    self.book.touch(client, session, at.inst, at.now);
                    self.book.changes.moved(client, at.inst, &reply_to);
                    status = Status::Ok;
                }
                // An unknown session is answered, too, at the address in the operation: a client whose session is long
                // gone can't hear of that in another way.
                if let Some(to) = again(&reply_to, self.node, replies.answers) {
                    replies.push(to, client, 0, status, &[]);
                }
            }
        }
    }

    /// Opens a session, or answers a repeated OPEN with the session that the first one opened. [S-OPEN]
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
            self.book.touch(id, session, at.inst, at.now);
            self.book.changes.touched(id, at.inst);
            if let Some(to) = again(&session.head.reply_to, self.node, replies.answers) {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
            return;
        }
        let full = self.is_full(window, &reply_to);
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
            self.book.changes.opened(id, &head);
            self.insert(id, head, at.now, false);
        }
        if let Some(to) = first(&reply_to, self.node, replies.answers) {
            if full {
                replies.push(to, nonce, 0, Status::TooManySessions, &[]);
            } else {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
        }
    }

    /// Returns whether there is no room for another session, or its address has used up its share. [S-SHARE]
    fn is_full(&self, window: u16, reply_to: &ReplyAddress) -> bool {
        let Limits {
            sessions, slots, ..
        } = self.book.limits;
        let all = Share {
            sessions: self.open.len(),
            slots: self.slots,
        };
        let own = share_of(reply_to).and_then(|ip| self.of_address.get(&ip));
        let own = own.copied().unwrap_or_default();
        let most_of = |all: usize| all - all / 4;
        !all.has_room(window, sessions, slots)
            || !own.has_room(window, most_of(sessions), most_of(slots))
    }

    fn insert(&mut self, id: u64, head: Head, now: Time, stored: bool) {
        if !stored {
            self.book.dirty.heads.push(id);
        }
        self.slots += usize::from(head.window);
        add(&mut self.of_address, &head);
        self.by_nonce.insert(head.nonce, id);
        self.open.entry(id).or_insert(Session {
            head,
            pages: Vec::new(),
            parts: None,
            dirty: !stored,
            stored,
            touched: now,
        });
    }

    fn close(&mut self, id: u64) {
        let Some(reply_to) = self.remove(id) else {
            return;
        };
        self.book.changes.closed(id);
        self.departed.insert(id, reply_to);
        if self.departed.len() > DEPARTED {
            self.departed.pop_first();
        }
    }

    /// Removes a session, and returns where it was answered.
    fn remove(&mut self, id: u64) -> Option<ReplyAddress> {
        let mut session = self.open.remove(&id)?;
        self.book.drop_parts(id, &mut session);
        self.by_nonce.remove(&session.head.nonce);
        self.slots -= usize::from(session.head.window);
        subtract(&mut self.of_address, &session.head);
        self.book.recorded -= session.recorded_bytes();
        if session.stored {
            let pages = session.pages.len() as u16;
            self.book.dirty.removed.push((id, pages));
        }
        Some(session.head.reply_to)
    }

    /// Answers a command that is neither executed nor recorded, even if its session is unknown.
    pub fn answer(&self, client: u64, request: u64, status: Status, replies: &mut Replies) {
        match self.open.get(&client) {
            Some(session) => {
                if let Some(to) = again(&session.head.reply_to, self.node, replies.answers) {
                    replies.push(to, client, request, status, &[]);
                }
            }
            None if status == Status::Ok => self.answer_unknown(client, request, replies),
            None => self.answer_stranger(client, request, status, replies),
        }
    }

    /// Tells the client that a command over several partitions takes no effect at the places of this copy. All replicas
    /// say so and name the round and instance of its place in the lowest partition, so that the client sends the
    /// command again only once. [V-DEAD]
    pub fn died(&self, copy: &Copy, replies: &mut Replies) {
        let session = self.open.get(&copy.client);
        if let Some(to) = session.and_then(|s| again(&s.head.reply_to, self.node, replies.answers))
        {
            let mut place = [0; 12];
            place[..4].copy_from_slice(&copy.round.0.to_be_bytes());
            place[4..].copy_from_slice(&copy.lowest().1.to_be_bytes());
            replies.push(to, copy.client, copy.request, Status::Dead, &place);
        }
    }

    fn answer_unknown(&self, client: u64, request: u64, replies: &mut Replies) {
        self.answer_stranger(client, request, Status::UnknownSession, replies);
    }

    /// Answers a command of an unknown session: at its last address if it was closed here, and otherwise at the front
    /// end beside this replica, which may own the id and ignores foreign ones. A client that hears nothing sends MOVE.
    fn answer_stranger(&self, client: u64, request: u64, status: Status, replies: &mut Replies) {
        let to = match self.departed.get(&client) {
            Some(reply_to) => again(reply_to, self.node, replies.answers),
            None => Some(ReplyTo::Local),
        };
        if let Some(to) = to {
            replies.push(to, client, request, status, &[]);
        }
    }

    /// Returns up to `limit` sessions that the log hasn't named for `timeout`, as proposals for expiry.
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

    // ---- Stored records

    /// Returns the changes since the last commit.
    pub fn changes(&self) -> &Changes {
        &self.book.changes
    }

    /// Forgets the changes, which a commit has stored.
    pub fn committed(&mut self) {
        self.book.changes.clear();
    }

    /// Appends the changes of the stored table since the last fold.
    pub fn fold(&mut self, records: &mut Records) {
        let Dirty {
            heads,
            pages,
            removed,
            parts,
            stored_parts,
        } = &mut self.book.dirty;
        for id in heads.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                session.dirty = false;
                session.stored = true;
                records.put_session(id, &session.head);
            }
        }
        for (id, index) in pages.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                let page = &mut session.pages[usize::from(index)];
                page.dirty = false;
                let used = page.slots.iter().filter(|slot| slot.request != 0);
                records.put_replies(id, index, used.map(Slot::recorded));
            }
        }
        for (id, pages) in removed.drain(..) {
            records.delete_session(id);
            for index in 0..pages {
                records.delete_replies(id, index);
            }
        }
        for (id, at) in std::mem::take(parts) {
            let begun = self.open.get(&id).and_then(|s| s.parts.as_ref());
            match begun.and_then(|parts| Some((parts, parts.piece(at)?))) {
                Some((begun, piece)) => {
                    stored_parts.insert((id, at));
                    let part = StoredPart {
                        request: begun.request,
                        len: begun.len,
                        piece,
                    };
                    records.put_part(id, at, &part);
                }
                None if stored_parts.remove(&(id, at)) => records.delete_part(id, at),
                None => {}
            }
        }
    }

    /// Loads a stored session.
    fn load(&mut self, id: u64, head: Head, now: Time) {
        self.insert(id, head, now, true);
    }

    /// Loads stored replies; returns `None` if they can't belong to their session.
    fn load_replies(&mut self, id: u64, index: u16, mut page: Page<'_>) -> Option<()> {
        let session = self.open.get_mut(&id)?;
        while let Some(recorded) = page.next_reply() {
            let Recorded {
                request,
                status,
                reply,
            } = recorded;
            let place = session.request(request);
            if place.page != usize::from(index) || request == 0 {
                return None;
            }
            let slot = session.slot_mut(place);
            slot.request = request;
            slot.keep(status, reply);
            self.book.recorded += reply.len();
        }
        page.is_empty().then_some(())
    }

    /// Loads a stored part of a command; returns `None` if it can't belong to its session.
    fn load_part(&mut self, id: u64, at: u16, part: &StoredPart<'_>) -> Option<()> {
        let session = self.open.get_mut(&id)?;
        let begun = session.parts.as_ref();
        if begun.is_some_and(|p| (p.request, p.len) != (part.request, part.len)) {
            return None;
        }
        self.book.keep_part(id, session, at, part);
        self.book.dirty.parts.remove(&(id, at));
        self.book.dirty.stored_parts.insert((id, at));
        Some(())
    }

    /// Makes again a change that a commit has stored; returns `None` if it doesn't fit this table.
    fn redo(&mut self, id: u64, change: Change<'_>, now: Time) -> Option<()> {
        if let Change::Opened(head) = change {
            if self.open.contains_key(&id) {
                return None;
            }
            self.insert(id, head, now, false);
        }
        if change == Change::Closed {
            return self.remove(id).map(|_| ());
        }
        let session = self.open.get_mut(&id)?;
        let inst = match change {
            Change::Opened(head) => head.last_inst,
            Change::Touched(inst) => inst,
            Change::Moved(inst, to) => {
                move_to(&mut self.of_address, session, to);
                inst
            }
            Change::Done {
                inst,
                request,
                status,
                reply,
            } => {
                let slot = session.request(request);
                self.book.keep(id, session, slot, status, reply);
                inst
            }
            Change::Part(inst, at, part) => {
                self.book.keep_part(id, session, at, &part);
                inst
            }
            Change::Closed => return None,
        };
        self.book.touch(id, session, inst, now);
        Some(())
    }
}

/// The number of sessions, and of slots in their windows, that share an address.
#[derive(Clone, Copy, Default)]
struct Share {
    sessions: usize,
    slots: usize,
}

impl Share {
    fn has_room(self, window: u16, sessions: usize, slots: usize) -> bool {
        self.sessions < sessions && self.slots + usize::from(window) <= slots
    }
}

/// Returns the address to whose share a session counts: the one where it is answered. Sessions of names, which are
/// answered at all replicas, have one share together. [S-SHARE] [S-NAMED]
fn share_of(to: &ReplyAddress) -> Option<IpAddr> {
    let of_names = (to.home == 0).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    to.address.map(|address| address.ip()).or(of_names)
}

fn add(of_address: &mut BTreeMap<IpAddr, Share>, head: &Head) {
    let Some(ip) = share_of(&head.reply_to) else {
        return;
    };
    let share = of_address.entry(ip).or_default();
    share.sessions += 1;
    share.slots += usize::from(head.window);
}

fn subtract(of_address: &mut BTreeMap<IpAddr, Share>, head: &Head) {
    let Some(ip) = share_of(&head.reply_to) else {
        return;
    };
    if let Some(share) = of_address.get_mut(&ip) {
        share.sessions -= 1;
        share.slots -= usize::from(head.window);
        if share.sessions == 0 {
            of_address.remove(&ip);
        }
    }
}

fn move_to(of_address: &mut BTreeMap<IpAddr, Share>, session: &mut Session, to: ReplyAddress) {
    subtract(of_address, &session.head);
    session.head.reply_to = to;
    add(of_address, &session.head);
}

/// Returns who hears a first answer from this replica. Only the session's home gives it, or, with a leader, the leader
/// and the front end's own replica. [S-HOME] [N-RETRY]
fn first(to: &ReplyAddress, node: NodeId, answers: Answers) -> Option<ReplyTo> {
    let reached = reach(to, node);
    let answered_here = match answers {
        Answers::AtHome => to.home == 0 || to.home == node,
        Answers::Here(_) => true,
        Answers::Elsewhere => reached == ReplyTo::Local,
    };
    answered_here.then_some(reached)
}

/// Returns who hears the answer to a repetition, or a refusal. All replicas send it to a client's address, since the
/// home replica may be gone; a front end hears it only from its own replica and from the leader. [S-HOME]
fn again(to: &ReplyAddress, node: NodeId, answers: Answers) -> Option<ReplyTo> {
    match to.address {
        Some(address) => Some(ReplyTo::Address(address, to.key)),
        None => first(to, node, answers),
    }
}

/// Returns how a session is reached from this replica.
fn reach(to: &ReplyAddress, node: NodeId) -> ReplyTo {
    match to.address {
        Some(address) => ReplyTo::Address(address, to.key),
        None if to.home == 0 || to.home == node => ReplyTo::Local,
        None => ReplyTo::Node(to.home),
    }
}

/// The state that the stored records describe.
pub(crate) struct Loaded {
    pub position: Position,
    /// The number of this replica's disk; `None` if it has none yet.
    pub incarnation: Option<u64>,
    pub sessions: Sessions,
    pub journal: Journal,
    /// Outcomes of commands over several partitions, with this partition's place.
    pub outcomes: Vec<(Instance, Outcome)>,
    /// Commands that took no effect.
    pub voided: BTreeSet<CommandPlace>,
}

/// A stored part of a session's command.
struct LoadedPart {
    session: u64,
    at: u16,
    request: u64,
    len: u32,
    piece: Vec<u8>,
}

/// Collects the stored records.
pub(crate) struct Loader {
    node: NodeId,
    identity: Option<Identity>,
    /// Any record is stored.
    any: bool,
    position: Position,
    incarnation: Option<u64>,
    sessions: Sessions,
    now: Time,
    /// Records may come in any order: replies before their session, and commits before the position that they follow.
    replies: Vec<(u64, u16, Vec<u8>)>,
    parts: Vec<LoadedPart>,
    commits: BTreeMap<u16, Vec<u8>>,
    outcomes: Vec<(Instance, Outcome)>,
    voided: BTreeSet<CommandPlace>,
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
            parts: Vec::new(),
            commits: BTreeMap::new(),
            outcomes: Vec::new(),
            voided: BTreeSet::new(),
        }
    }

    pub fn visit(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.any = true;
        match Stored::parse(key, value)? {
            Stored::Identity(identity) => self.identity = Some(identity),
            Stored::Position(position) => self.position = position,
            // In a copy of another replica's state this is that replica's number, and this disk has none yet.
            Stored::Incarnation(node, incarnation) => {
                self.incarnation = Some(incarnation).filter(|_| node == self.node);
            }
            Stored::Session(id, head) => self.sessions.load(id, head, self.now),
            Stored::Replies(id, index, page) => {
                self.replies.push((id, index, page.bytes().to_vec()));
            }
            Stored::Commit(place, value) => {
                self.commits.insert(place, value.to_vec());
            }
            Stored::Outcome(inst, outcome) => self.outcomes.push((inst, outcome)),
            Stored::Voided(place) => {
                self.voided.insert(place);
            }
            Stored::Part(id, at, part) => {
                let StoredPart {
                    request,
                    len,
                    piece,
                } = part;
                self.parts.push(LoadedPart {
                    session: id,
                    at,
                    request,
                    len,
                    piece: piece.to_vec(),
                });
            }
        }
        Ok(())
    }

    /// Returns the state in the records, if they belong to `own` or nothing is stored.
    pub fn finish(mut self, own: Identity) -> Result<Loaded, Error> {
        match self.identity {
            Some(stored) if stored != own => return Err(foreign(stored, own)),
            None if self.any => return Err(other_format(None)),
            _ => {}
        }
        for (id, index, page) in &self.replies {
            let loaded = self.sessions.load_replies(*id, *index, Page::new(page));
            loaded.ok_or_else(|| {
                damaged(&format!("stored replies of session {id:#x} are damaged"))
            })?;
        }
        for loaded in &self.parts {
            let part = StoredPart {
                request: loaded.request,
                len: loaded.len,
                piece: &loaded.piece,
            };
            let id = loaded.session;
            let fits = self.sessions.load_part(id, loaded.at, &part);
            fits.ok_or_else(|| damaged(&format!("stored parts of session {id:#x} are damaged")))?;
        }
        let mut journal = Journal::default();
        for (place, value) in std::mem::take(&mut self.commits) {
            self.replay(place, &value, &mut journal)
                .ok_or_else(|| damaged(&format!("the stored commit {place} is damaged")))?;
        }
        Ok(Loaded {
            position: self.position,
            incarnation: self.incarnation,
            sessions: self.sessions,
            journal,
            outcomes: self.outcomes,
            voided: self.voided,
        })
    }

    /// Makes the changes of a commit again, unless the table already has them. It returns `None` if the commit doesn't
    /// follow on the position before it.
    fn replay(&mut self, place: u16, value: &[u8], journal: &mut Journal) -> Option<()> {
        let mut commit = Commit::parse(value)?;
        if commit.to.next <= self.position.next {
            return Some(());
        }
        if commit.from != self.position.next || !journal.is_next(place) {
            return None;
        }
        while let Some(change) = commit.next_change() {
            let (id, change) = change.ok()?;
            self.sessions.redo(id, change, self.now)?;
        }
        self.position = commit.to;
        journal.found(place, value.len());
        Some(())
    }
}

fn foreign(stored: Identity, own: Identity) -> Error {
    Error(format!(
        "what is stored there belongs to {stored}, and this node serves {own}: correct the cluster \
         file, or `data` in it; or {MOVE_AWAY}"
    ))
}
