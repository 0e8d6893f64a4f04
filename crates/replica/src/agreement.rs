// SPDX-License-Identifier: Apache-2.0
//! The interface between the agreement protocol, which orders the commands, and execution.
//!
//! An [`Agreement`] takes packets and keeps a [`Log`]; execution reads the log at its own pace.
//! Everything that depends on the protocol (votes, gaps, repairs, who is asked) is behind these two
//! traits. The rest of a replica is in front of them: the application, sessions, commands over
//! several partitions, commits, checkpoints, copies.
//!
//! | protocol | `ready` | `stable` |
//! |---|---|---|
//! | [`Paxos`] | the first instance that isn't decided here | the same |
//! | [`NoPaxos`] | see below | the end of what all later views have |
//!
//! With NOPaxos `ready` is the first open gap or the end of the log at the leader, and elsewhere
//! `stable`.

mod nopaxos;
mod paxos;
mod poll;

pub use self::nopaxos::NoPaxos;
pub use self::paxos::Paxos;

use crate::settings::{Settings, Wanted};
use ::paxos::nopaxos::Ack;
use ::paxos::{
    Bound, Epoch, Flags, Instance, NodeId, Outbox, Packet, ReadBounds, Reason, Round, Time, To,
    Verdict,
};
use std::ops::Range;

/// A value at its place in the log.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The instance where the value lies.
    pub inst: Instance,
    /// The flags of the packet that brought the value.
    pub flags: Flags,
    /// The session that sent the command; it means nothing for a pack.
    pub client: u64,
    /// The number of the command in its session.
    pub request: u64,
    /// The value.
    pub value: &'a [u8],
}

impl Decided<'_> {
    /// Returns whether this is a copy of a command over several partitions.
    pub(crate) fn is_copy(&self) -> bool {
        self.flags.has(Flags::MULTI) && !self.flags.has(Flags::NOOP)
    }
}

/// The log of one partition.
pub trait Log {
    /// Returns the value at an instance that isn't executed yet; `None` if the value isn't here.
    fn entry(&self, inst: Instance) -> Option<Decided<'_>>;

    /// Returns the instance below which everything may be executed, by an application that can take
    /// it back.
    fn ready(&self) -> Instance;

    /// Returns the instance below which the log never changes. It is at most [`Log::ready`].
    fn stable(&self) -> Instance;

    /// Returns who answers commands that are executed now.
    fn answers(&self) -> Answers {
        Answers::AtHome
    }

    /// Returns the instance below which answers wait until they are stable, whoever waits for them.
    /// [N-CROWD]
    fn held_below(&self) -> Instance {
        0
    }
}

/// The replica that answers a command that takes effect. All replicas answer repetitions of stable
/// commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// The home replica of the command's session answers.
    AtHome,
    /// This replica answers, since it leads this view.
    Here(Round),
    /// Another replica leads and answers; this one answers only its own front end.
    Elsewhere,
}

/// The part of a PROBE_ACK that shows a replica's memory. [N-RESTART]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownMemory {
    /// The number of this memory's start, and if the replica is mute; 0 if the memory isn't stored.
    pub start: u64,
    /// For a mute replica, the instance up to which it knows the log to be stable, executed or not.
    pub stable: Option<Instance>,
}

/// The change that a packet has brought to the log.
#[derive(Debug)]
pub enum News<'p> {
    /// The log hasn't changed.
    Nothing,
    /// The log may have grown or changed.
    Kept,
    /// A stable value for the next instance to execute. It isn't in the log, so that a value that
    /// comes in its turn is never copied; it is executed at once, or [kept](Agreement::keep).
    InHand(Decided<'p>),
}

/// The result of handling a packet.
#[derive(Debug)]
pub struct Stepped<'p> {
    /// The verdict that every role gives on a packet.
    pub verdict: Verdict,
    /// The news for execution.
    pub news: News<'p>,
}

impl Stepped<'_> {
    /// Returns a result without news.
    pub fn only(verdict: Verdict) -> Self {
        Stepped {
            verdict,
            news: News::Nothing,
        }
    }

    /// Returns the result for a packet that was dropped.
    pub fn dropped(reason: Reason) -> Self {
        Stepped::only(Verdict::Dropped(reason))
    }
}

/// A rare event outside the log that the agreement has to know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Another replica's state was taken over, whose next instance is this one.
    Restored(Instance),
    /// A checkpoint of everything below this instance is on disk.
    Durable(Instance),
    /// These instances hold nothing, and never will. [G-LEAP]
    GivenUp(Range<Instance>),
    /// The last active epoch begins at this instance.
    Begins(Instance),
    /// Another partition has met a command that was stamped with this place here, in this round,
    /// so that a gap at that place is repaired soon. [V-GAP]
    Stamped(Round, Instance),
    /// The node has drawn the repair lane in this epoch that was [wanted](Agreement::wanted).
    Lane(Time, Epoch, u8),
}

/// The state of an agreement that others are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgreementStatus {
    /// The instance below which nothing can be fetched from anywhere. A replica that stands there
    /// needs another replica's state.
    pub floor: Instance,
    /// The number of values that wait for their turn.
    pub waiting: usize,
    /// The number of values that the agreement had to ask for.
    pub repaired: u64,
    /// A kernel program of this node should hand over all votes.
    pub wants_votes: bool,
    /// The epoch that was told last, if this replica has another configuration of it on disk.
    /// [E-ONE]
    pub contradiction: Option<Epoch>,
    /// The round that a PROBE_ACK shows in place of the last marker's: the view in which this
    /// replica takes part, or the session to which it goes. [E-NEWEST]
    pub shown: Option<Round>,
    /// The replica's own memory, if it has one, which a PROBE_ACK shows in place of the number of
    /// the disk.
    pub memory: Option<ShownMemory>,
}

/// The rules by which a protocol differs from others for execution.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Each epoch begins with a marker in the log.
    pub has_markers: bool,
    /// Commands over several partitions are executed, since dead ones can be told from those that
    /// still come.
    pub spans: bool,
    /// Reads without a place in the log wait for a bound: [`Agreement::bounded_reads`] has them.
    pub bounds_reads: bool,
    /// The receivers of TRIM, which says which instances are in this replica's durable checkpoint.
    pub trim_to: &'static [To],
}

/// An agreement protocol, which keeps the log of one partition as a role of its own. Only
/// [`step`](Self::step), [`deliver`](Self::deliver), [`keep`](Self::keep) and
/// [`Event::GivenUp`] change the log.
pub trait Agreement: Log + Sized {
    /// The description of an epoch that the control plane sends.
    type EpochView;
    /// The protocol's rules.
    const RULES: Rules;

    /// Opens the agreement at the position of execution. `nonce` is this process's.
    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Self;

    // ---- Packets

    /// Takes one packet of this partition, which has passed
    /// [`Deployment::check`](::paxos::Deployment::check).
    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p>;

    /// Takes a packet that a kernel program of this node hands over, whatever its sender; no other
    /// sender can reach this function. The packet has passed the same check as in
    /// [`step`](Self::step).
    fn deliver<'p>(&mut self, _now: Time, _packet: &Packet<'p>) -> Stepped<'p> {
        Stepped::dropped(Reason::NotForRole)
    }

    // ---- News from execution and from the node

    /// Keeps a stable value that has come to its turn and can't be executed yet.
    fn keep(&mut self, value: &Decided<'_>);

    /// Notes that execution stands at `next`, which is lower than before if it had run ahead and
    /// went back.
    fn executed(&mut self, next: Instance);

    /// Does the work that had to wait until execution has followed the log.
    fn go_on(&mut self, _now: Time, _out: &mut impl Outbox) {}

    /// Takes a rare event.
    fn on_event(&mut self, event: Event);

    /// Takes the epochs, oldest first, and the last epoch whose marker was executed; a view older
    /// than the last one is ignored. It returns whether the last epoch is another one, or has
    /// become active.
    fn configure(&mut self, now: Time, epochs: &[Self::EpochView], marker: Epoch) -> bool;

    // ---- Time

    /// Ends a batch of packets, and returns whether the log may have changed. `waits`: execution
    /// waits until more of the log is stable.
    fn end_batch(&mut self, now: Time, waits: bool, out: &mut impl Outbox) -> bool;

    /// Does what is due by time, and returns whether the log may have changed.
    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool;

    /// Returns when [`tick`](Self::tick) is next due.
    fn next_deadline(&self) -> Option<Time>;

    // ---- Questions

    /// Returns the last epoch.
    fn epoch(&self) -> Option<Epoch>;

    /// Returns the replicas of the last epoch, in ascending order.
    fn replicas(&self) -> Vec<NodeId>;

    /// Returns what the agreement needs from outside.
    fn wanted(&self) -> Wanted;

    /// Returns what others are told.
    fn status(&self) -> AgreementStatus;

    // ---- Parts that only some protocols have

    /// Returns the part of a protocol whose log may still change beyond [`Log::stable`].
    fn speculative(&mut self) -> Option<&mut impl Speculative> {
        None::<&mut Nothing>
    }

    /// Returns the part of a protocol in which reads need no place in the log.
    fn bounded_reads(&mut self) -> Option<&mut impl BoundedReads> {
        None::<&mut Nothing>
    }
}

/// A protocol whose log may still change where it isn't stable, so that execution runs ahead and
/// may have to go back.
pub trait Speculative {
    /// Takes the lowest instance whose entry changed after it may have been executed ahead of
    /// [`Log::stable`]; execution must roll back to it.
    fn take_rewind(&mut self) -> Option<Instance>;

    /// Returns whether clients wait for this replica's acknowledgements of its log, and not for
    /// what it executes. [N-ACK]
    fn acknowledges(&self) -> bool {
        false
    }

    /// Takes the acknowledgement that tells clients how far the log is filled here, if one is due.
    fn take_ack(&mut self) -> Option<Ack> {
        None
    }

    /// Tells the agreement whether many clients wait for this replica at the same time, and up to
    /// which instance other replicas wait for the log to become stable. [N-CROWD]
    fn set_crowded(&mut self, _is_crowded: bool, _others_wait_below: Instance) {}
}

/// Reads that have no place in the log. They wait until everything is executed that may have been
/// decided when they came.
pub trait BoundedReads {
    /// Notes that such a read has come, and returns the number of the question whose answer it
    /// waits for.
    fn want_bound(&mut self) -> u64;

    /// Takes the answer to a question: how far execution must have got for its reads.
    fn take_bound(&mut self) -> Option<Bound>;
}

impl BoundedReads for ReadBounds {
    fn want_bound(&mut self) -> u64 {
        self.want()
    }

    fn take_bound(&mut self) -> Option<Bound> {
        ReadBounds::take_bound(self)
    }
}

/// The part that a protocol doesn't have.
enum Nothing {}

impl Speculative for Nothing {
    fn take_rewind(&mut self) -> Option<Instance> {
        match *self {}
    }
}

impl BoundedReads for Nothing {
    fn want_bound(&mut self) -> u64 {
        match *self {}
    }

    fn take_bound(&mut self) -> Option<Bound> {
        match *self {}
    }
}
