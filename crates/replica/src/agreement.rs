// SPDX-License-Identifier: Apache-2.0
//! What orders the commands, as execution sees it.
//!
//! An [`Agreement`] takes packets and keeps a [`Log`]; execution reads the log in its own time. What depends on
//! the protocol (votes, gaps, repairs, who is asked) is behind these two, and everything else of a replica is in
//! front of them: the application, sessions, commands over several partitions, commits, checkpoints, copies.
//!
//! | protocol | `ready` | `stable` |
//! |---|---|---|
//! | [`Paxos`] | the first instance that isn't decided here | the same |
//! | [`NoPaxos`] | of the leader: the end of its log, or its first gap that isn't agreed; of others: `stable` | what is in every later view's log |

mod nopaxos;
mod paxos;
mod poll;

pub use self::nopaxos::NoPaxos;
pub use self::paxos::Paxos;

use crate::settings::{Settings, Wanted};
use ::paxos::nopaxos::Ack;
use ::paxos::{
    Bound, Epoch, Flags, Header, Instance, NodeId, Outbox, Packet, Reason, Round, Time, To, Verdict,
};
use std::ops::Range;

/// A value at its place in the log.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// Its place.
    pub inst: Instance,
    /// Those of its packet.
    pub flags: Flags,
    /// The session that it is of, unless it is packed.
    pub client: u64,
    /// The number of the command there.
    pub request: u64,
    /// The value.
    pub value: &'a [u8],
}

impl Decided<'_> {
    /// Whether it is a copy of a command over several partitions.
    pub(crate) fn is_copy(&self) -> bool {
        self.flags.has(Flags::MULTI) && !self.flags.has(Flags::NOOP)
    }
}

/// The log of one partition.
pub trait Log {
    /// What lies at an instance from where execution stands on; `None` if it isn't here.
    fn entry(&self, inst: Instance) -> Option<Decided<'_>>;

    /// Everything below may be executed, by an application that can take it back.
    fn ready(&self) -> Instance;

    /// Everything below stays as it is. At most [`Log::ready`].
    fn stable(&self) -> Instance;

    /// Who answers what is executed now.
    fn answers(&self) -> Answers {
        Answers::AtHome
    }

    /// What is executed below is answered once it is stable, whoever waits for it. [N-CROWD]
    fn held_below(&self) -> Instance {
        0
    }
}

/// Who answers a command that takes effect. Repetitions of stable ones are answered by all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// The home of its session.
    AtHome,
    /// This replica, which leads this view.
    Here(Round),
    /// Another replica, which leads. This one answers only its own front end.
    Elsewhere,
}

/// What a PROBE_ACK shows of a replica's memory. [N-RESTART]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownMemory {
    /// Which start of it, and whether it is mute; 0 if it isn't stored.
    pub start: u64,
    /// Of a mute one: what it knows to be stable, executed or not.
    pub stable: Option<Instance>,
}

/// What a replica does about a READ.
#[derive(Clone, Copy, Debug)]
pub enum Reading {
    /// It leads this view: it executes the command and answers.
    Answer(Round),
    /// It follows: it shows how far its log is filled, by this ACK.
    Echo(Header),
}

/// What a packet has brought.
#[derive(Debug)]
pub enum News<'p> {
    /// Nothing for the log.
    Nothing,
    /// The log may have got longer, or may have changed.
    Kept,
    /// A stable value for the instance where execution stands. It isn't in the log, so that one that comes in its
    /// turn is never copied. It is executed at once, or [kept](Agreement::keep).
    InHand(Decided<'p>),
}

/// What came of a packet.
#[derive(Debug)]
pub struct Stepped<'p> {
    /// As of every role.
    pub verdict: Verdict,
    /// For execution.
    pub news: News<'p>,
}

impl Stepped<'_> {
    /// Without news.
    pub fn only(verdict: Verdict) -> Self {
        Stepped {
            verdict,
            news: News::Nothing,
        }
    }

    /// It wasn't taken.
    pub fn dropped(reason: Reason) -> Self {
        Stepped::only(Verdict::Dropped(reason))
    }
}

/// An agreement protocol: a role of its own that keeps the log of one partition. Only
/// [`step`](Self::step), [`deliver`](Self::deliver), [`keep`](Self::keep) and [`give_up`](Self::give_up) change
/// the log.
pub trait Agreement: Log + Sized {
    /// What the control plane tells of an epoch.
    type EpochView;
    /// Whether each epoch begins with a marker in the log.
    const HAS_MARKERS: bool;
    /// Whether commands over several partitions are executed: dead ones can be told from those that still come.
    const SPANS: bool = true;
    /// Whether there are reads without the log.
    const BOUNDS_READS: bool = false;
    /// Who is told what this replica's disk holds.
    const TRIM_TO: &'static [To];

    /// Begins where execution stands. `nonce` is this process's.
    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Self;

    /// Takes one packet of this partition, which has passed [`Deployment::check`](::paxos::Deployment::check).
    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p>;

    /// Takes what a program in the kernel of this very node hands over, whoever it says it is from. Nobody
    /// else can reach this way. It has passed the same check.
    fn deliver<'p>(&mut self, now: Time, packet: &Packet<'p>) -> Stepped<'p>;

    /// Whether that program is to hand over all votes.
    fn wants_votes(&self) -> bool;

    /// Keeps a stable value that has come to its turn and can't be executed yet.
    fn keep(&mut self, value: &Decided<'_>);

    /// Execution has got to `next`; or it went back there, after it had run ahead.
    fn executed(&mut self, next: Instance);

    /// Execution has followed what a packet has brought: does what had to wait for that.
    fn go_on(&mut self, now: Time, out: &mut impl Outbox);

    /// A batch of packets ends. `waits`: execution waits until more of the log is stable. Says whether the log may
    /// have changed.
    fn end_batch(&mut self, now: Time, waits: bool, out: &mut impl Outbox) -> bool;

    /// Does what is due by time. Says whether the log may have changed.
    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool;

    /// When [`tick`](Self::tick) is next due.
    fn next_deadline(&self) -> Option<Time>;

    /// Tells the epochs, oldest first, and the last one whose marker was executed. An older view than one before
    /// is ignored. Says whether there is another last epoch than before, or the last one has become active.
    fn configure(&mut self, now: Time, epochs: &[Self::EpochView], marker: Epoch) -> bool;

    /// The last epoch.
    fn epoch(&self) -> Option<Epoch>;

    /// Its replicas, in ascending order.
    fn replicas(&self) -> Vec<NodeId>;

    /// Gives a repair lane in `epoch`, which was [wanted](Self::wanted).
    fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8);

    /// The last active epoch begins at this instance.
    fn begins(&mut self, at: Instance);

    /// Another partition has met a command that was stamped with this place here, in this round. [V-GAP]
    fn begun_by(&mut self, round: Round, place: Instance);

    /// These instances hold nothing, and never will. [G-LEAP]
    fn give_up(&mut self, instances: Range<Instance>);

    /// Another replica's state has taken the place of this one's, which stands at `next` now.
    fn restored(&mut self, next: Instance);

    /// A checkpoint of everything below `durable` is on disk.
    fn checkpointed(&mut self, _durable: Instance) {}

    /// What it needs from outside.
    fn wanted(&self) -> Wanted;

    /// What lies below is gone from wherever it could come: who stands there needs another replica's state.
    fn floor(&self) -> Instance;

    /// The first instance that isn't what it was, once if execution may have run ahead of [`Log::stable`] and
    /// the log has changed there.
    fn take_rewind(&mut self) -> Option<Instance> {
        None
    }

    /// Whether clients wait for what this replica says of its log, and not for what it executes. [N-ACK]
    fn acknowledges(&self) -> bool {
        false
    }

    /// Tells whether many clients at once wait for answers of this replica, and up to where other replicas wait for what
    /// is stable. [N-CROWD]
    fn set_crowded(&mut self, _is_crowded: bool, _others_wait_below: Instance) {}

    /// What clients are to be told of how far the log is filled here, once.
    fn take_ack(&mut self) -> Option<Ack> {
        None
    }

    /// What is to be done about a READ.
    fn read(&self) -> Result<Reading, Reason> {
        Err(Reason::NotForRole)
    }

    /// The front end beside this replica wants to read without the log. Returns the number of the question that
    /// this waits for.
    fn want_bound(&mut self) -> u64 {
        0
    }

    /// How far execution must have got for the reads of a question, once.
    fn take_bound(&mut self) -> Option<Bound> {
        None
    }

    /// What a PROBE_ACK shows in place of the last marker's round: the view in which this replica takes part, or the
    /// session to which it goes. [E-NEWEST]
    fn shown(&self) -> Option<Round> {
        None
    }

    /// What a PROBE_ACK shows of a memory that is this replica's own, in place of the number of its disk.
    fn memory(&self) -> Option<ShownMemory> {
        None
    }

    /// How many values wait for their turn.
    fn waiting(&self) -> usize;

    /// How many it had to ask for.
    fn repaired(&self) -> u64;
}
