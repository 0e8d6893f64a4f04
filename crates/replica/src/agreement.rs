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
//! | [`Paxos`] | the first instance that isn't decided here | the first instance that isn't decided here |
//! | [`NoPaxos`] | leader: the first open gap or end of its log; others: `stable` | the end of what all later views have |

mod nopaxos;
mod paxos;
mod poll;

pub use self::nopaxos::NoPaxos;
pub use self::paxos::Paxos;

use crate::settings::{Settings, Wanted};
use ::paxos::nopaxos::Ack;
use ::paxos::{
    Bound, Epoch, Flags, Instance, NodeId, Outbox, Packet, Reason, Round, Time, To, Verdict,
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

/// An agreement protocol, which keeps the log of one partition as a role of its own. Only
/// [`step`](Self::step), [`deliver`](Self::deliver), [`keep`](Self::keep) and
/// [`give_up`](Self::give_up) change the log.
pub trait Agreement: Log + Sized {
    /// The description of an epoch that the control plane sends.
    type EpochView;
    /// Each epoch begins with a marker in the log.
    const HAS_MARKERS: bool;
    /// Commands over several partitions are executed, since dead ones can be told from those that
    /// still come.
    const SPANS: bool = true;
    /// Reads without a place in the log wait for a bound, as Paxos has it.
    const BOUNDS_READS: bool = false;
    /// The receivers of TRIM, which says which instances are in this replica's durable checkpoint.
    const TRIM_TO: &'static [To];

    /// Opens the agreement at the position of execution. `nonce` is this process's.
    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Self;

    /// Takes one packet of this partition, which has passed
    /// [`Deployment::check`](::paxos::Deployment::check).
    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p>;

    /// Takes a packet that a kernel program of this node hands over, whatever its sender; no other
    /// sender can reach this function. The packet has passed the same check as in
    /// [`step`](Self::step).
    fn deliver<'p>(&mut self, now: Time, packet: &Packet<'p>) -> Stepped<'p>;

    /// Returns whether that program should hand over all votes.
    fn wants_votes(&self) -> bool;

    /// Keeps a stable value that has come to its turn and can't be executed yet.
    fn keep(&mut self, value: &Decided<'_>);

    /// Notes that execution stands at `next`, which is lower than before if it had run ahead and
    /// went back.
    fn executed(&mut self, next: Instance);

    /// Does the work that had to wait until execution has followed the log.
    fn go_on(&mut self, now: Time, out: &mut impl Outbox);

    /// Ends a batch of packets, and returns whether the log may have changed. `waits`: execution
    /// waits until more of the log is stable.
    fn end_batch(&mut self, now: Time, waits: bool, out: &mut impl Outbox) -> bool;

    /// Does what is due by time, and returns whether the log may have changed.
    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool;

    /// Returns when [`tick`](Self::tick) is next due.
    fn next_deadline(&self) -> Option<Time>;

    /// Takes the epochs, oldest first, and the last epoch whose marker was executed; a view older
    /// than the last one is ignored. It returns whether the last epoch is another one, or has
    /// become active.
    fn configure(&mut self, now: Time, epochs: &[Self::EpochView], marker: Epoch) -> bool;

    /// Returns the epoch that was told last, if this replica has another configuration of it on
    /// disk. [E-ONE]
    fn contradiction(&self) -> Option<Epoch> {
        None
    }

    /// Returns the last epoch.
    fn epoch(&self) -> Option<Epoch>;

    /// Returns the replicas of the last epoch, in ascending order.
    fn replicas(&self) -> Vec<NodeId>;

    /// Sets the repair lane in `epoch` that was [wanted](Self::wanted).
    fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8);

    /// Notes that the last active epoch begins at this instance.
    fn begins(&mut self, at: Instance);

    /// Notes that another partition has met a command that was stamped with this place here, in
    /// this round, so that a gap at that place is repaired soon. [V-GAP]
    fn begun_by(&mut self, round: Round, place: Instance);

    /// Notes that these instances hold nothing, and never will. [G-LEAP]
    fn give_up(&mut self, instances: Range<Instance>);

    /// Notes that another replica's state was taken over, whose next instance is `next`.
    fn restored(&mut self, next: Instance);

    /// Notes that a checkpoint of everything below `durable` is on disk.
    fn checkpointed(&mut self, _durable: Instance) {}

    /// Returns what the agreement needs from outside.
    fn wanted(&self) -> Wanted;

    /// Returns the instance below which nothing can be fetched from anywhere. A replica that stands
    /// there needs another replica's state.
    fn floor(&self) -> Instance;

    /// Takes the lowest instance whose entry changed after it may have been executed ahead of
    /// [`Log::stable`]; execution must roll back to it.
    fn take_rewind(&mut self) -> Option<Instance> {
        None
    }

    /// Returns whether clients wait for this replica's acknowledgements of its log, and not for
    /// what it executes. [N-ACK]
    fn acknowledges(&self) -> bool {
        false
    }

    /// Tells the agreement whether many clients wait for this replica at the same time, and up to
    /// which instance other replicas wait for the log to become stable. [N-CROWD]
    fn set_crowded(&mut self, _is_crowded: bool, _others_wait_below: Instance) {}

    /// Takes the acknowledgement that tells clients how far the log is filled here, if one is due.
    fn take_ack(&mut self) -> Option<Ack> {
        None
    }

    /// Notes that a read without a place in the log has come, and returns the number of the
    /// question whose answer it waits for.
    fn want_bound(&mut self) -> u64 {
        0
    }

    /// Takes the answer to a question: how far execution must have got for its reads.
    fn take_bound(&mut self) -> Option<Bound> {
        None
    }

    /// Returns the round that a PROBE_ACK shows in place of the last marker's: the view in which
    /// this replica takes part, or the session to which it goes. [E-NEWEST]
    fn shown(&self) -> Option<Round> {
        None
    }

    /// Returns the replica's own memory, if it has one, which a PROBE_ACK shows in place of the
    /// number of the disk.
    fn memory(&self) -> Option<ShownMemory> {
        None
    }

    /// Returns how many values wait for their turn.
    fn waiting(&self) -> usize;

    /// Returns how many values it had to ask for.
    fn repaired(&self) -> u64;
}
