// SPDX-License-Identifier: Apache-2.0
//! The session table: which requests have taken effect, and their replies.
//!
//! The table is replicated state: a function of the log alone, equal on all replicas at the same
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
//! The reply of request r lies in slot `r mod window`. If the slot of an unordered session's
//! request within the window holds another request, that one is older, so the slot alone tells
//! whether a request has been executed. [S-ONCE] [S-ORDERED]
//!
//! A session also keeps the parts of one command that isn't whole yet. [S-PARTS]

mod begun_commands;
mod executor;
mod lifetime;
mod loader;
mod recording;
mod reply_route;
mod share;
mod table_records;
mod unfinished;
mod window;

pub(crate) use self::executor::{Found, Whole};
pub(crate) use self::loader::{Loaded, Loader};

use self::begun_commands::Begun;
use self::executor::Executes;
use self::lifetime::Expiry;
use self::recording::Book;
use self::reply_route::{again, first, reach};
use self::share::Share;
use self::unfinished::Taken;
use self::window::{Judgement, SessionWindow};
use crate::application::Error;
use crate::outcome::Executed;
use crate::parts::{self, Part};
use crate::protocol::{CommandPlace, ReplyAddress, Status};
use crate::record::StoredPart;
use crate::reply::{Replies, ReplyTo};
use crate::settings::Limits;
use crate::sibling::Copy;
use paxos::{Instance, NodeId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

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

    /// Returns the id of a session that is opened here. It is unique, since no instance is executed
    /// twice.
    fn session_id(self) -> u64 {
        (self.inst + 1) << 16 | u64::from(self.index)
    }
}

/// A session of the front end beside this replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalSession {
    /// The session's id.
    pub id: u64,
    /// The random number that named the attempt to open it.
    pub nonce: u64,
}

/// The session table.
pub(crate) struct Sessions {
    book: Book,
    /// This replica. It decides only whether this replica answers, never what is recorded.
    node: NodeId,
    open: BTreeMap<u64, SessionWindow>,
    by_nonce: BTreeMap<u64, u64>,
    /// The sum of the windows of all sessions.
    slots: usize,
    /// The sessions and slots that are answered at each address.
    of_address: BTreeMap<IpAddr, Share>,
    /// The reply addresses of sessions that were closed here since the start. They aren't
    /// replicated.
    departed: BTreeMap<u64, ReplyAddress>,
    /// The commands that were begun, in the order of the log.
    begun: VecDeque<Begun>,
    /// The number of commands in `begun` that were passed.
    passed: usize,
    /// When idle sessions are looked for. It isn't replicated.
    expiry: Expiry,
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
            expiry: Expiry::default(),
            scratch: Vec::new(),
        }
    }

    /// Begins with the stored table, and looks for idle sessions from `now` on.
    pub fn begin_at(mut self, now: Time, timeout: Time) -> Sessions {
        self.expiry = Expiry::new(now, timeout);
        self
    }

    /// Goes on with another table.
    pub fn replace(&mut self, table: Sessions) {
        let expiry = self.expiry;
        *self = Sessions { expiry, ..table };
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

    /// Returns the sessions of the front end beside this replica: their home is here, and they have
    /// no address.
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

    /// Handles an application's command, or a part of one. The application executes the command if,
    /// and only if, it takes effect now.
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

    /// Records a command over several partitions that a sibling has passed, and answers it,
    /// whatever this partition's log held before, since that was given up. It counts as executed,
    /// so that a repetition isn't executed. [G-COMPLETE]
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

    /// Tells the client that a command over several partitions takes no effect at the places of
    /// this copy. All replicas say so and name the round and instance of its place in the lowest
    /// partition, so that the client sends the command again only once. [V-DEAD]
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

    /// Answers a command of an unknown session: at its last address if it was closed here, and
    /// otherwise at the front end beside this replica, which may own the id and ignores foreign
    /// ones. A client that hears nothing sends MOVE.
    fn answer_stranger(&self, client: u64, request: u64, status: Status, replies: &mut Replies) {
        let to = match self.departed.get(&client) {
            Some(reply_to) => again(reply_to, self.node, replies.answers),
            None => Some(ReplyTo::Local),
        };
        if let Some(to) = to {
            replies.push(to, client, request, status, &[]);
        }
    }
}
