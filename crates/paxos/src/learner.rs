// SPDX-License-Identifier: Apache-2.0
//! The learner: counts votes (Algorithm 3 of both papers; docs/protocol/learner.md).
//!
//! A vote counts once, and only if an acceptor of the configuration of its round's epoch sent it.
//! f+1 equal votes of that configuration decide; the value is that of the last vote counted.
//! [D-QUORUM]
//!
//! A learner node in the network ([`Learner`]) sends DELIVER for each decision. It has no window: a
//! newer instance displaces an older one in its slot, and replicas repair what is lost that way.
//!
//! A learner in a replica's host ([`HostLearner`]) hands decisions to the replica. Its window moves
//! along with [`HostLearner::set_floor`], so that no vote from far ahead displaces one that is
//! still needed. It also takes a DELIVER of a learner node that it trusts as a decision. It checks
//! a DELIVER in this order:
//!
//! | a DELIVER where | verdict |
//! |---|---|
//! | the sender isn't a learner node of the cluster file | `unknown_sender` |
//! | the round is none | `bad_round` |
//! | the configuration of its epoch isn't known | `unknown_epoch` |
//! | the instance lies outside of the window | `stale`, `window` |
//! | the instance is decided, with this value | `duplicate` |
//! | ... with another value | `conflict`: an alarm |
//! | otherwise | it is decided, whatever votes were counted before |
//!
//! A learner doesn't look into values. A value that f+1 acceptors voted for is decided, even if it
//! is a pack or a vector that isn't well-formed: dropping it here would leave a gap that nothing
//! can fill. Whoever executes the value checks it. [D-OPAQUE]

use crate::answer::{self, Refusal};
use crate::configuration::MAX_ACCEPTORS;
use crate::ring::Ring;
use crate::{
    Configuration, Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet,
    PartitionId, Reason, Round, To, Verdict,
};

// ---- Types

/// The learner's result for a vote or for a DELIVER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Learned {
    /// The value in hand is decided: the vote completed a quorum. This is said once for each
    /// instance in a slot.
    Decided,
    /// The vote was counted, and there is no quorum yet.
    Counted,
    /// The packet was dropped and not counted.
    Dropped(Reason),
}

/// The contents of a slot, for status, scripts and checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotView {
    /// The instance.
    pub inst: Instance,
    /// The round of the votes counted.
    pub rnd: Round,
    /// The acceptors whose votes were counted: bit i is the i-th acceptor of that round's
    /// configuration.
    pub votes: u32,
    /// The session of the value voted for.
    pub client: u64,
    /// The request number of that value.
    pub request: u64,
    /// True if the votes are for a no-op.
    pub noop: bool,
    /// True if a quorum was seen, in this round or an earlier one.
    pub delivered: bool,
}

// ---- State

/// How many configurations are kept, the newest ones. Votes of older epochs no longer come, since
/// acceptors promised later ones long ago.
const MAX_KNOWN: usize = 16;

/// A learner of one group and all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Learner {
    deployment: Deployment,
    /// The known configurations, in ascending order of epoch.
    known: Vec<Known>,
    /// For each partition, the start of its window, or `None` if it has no window.
    floors: Vec<Option<Instance>>,
    ring: Ring,
    slots: Vec<Slot>,
}

/// A learner in a replica's host, of one group and all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct HostLearner {
    learner: Learner,
    /// The learner nodes whose DELIVER is a decision.
    trusted: Vec<NodeId>,
}

/// The part of a configuration that counting needs.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
struct Known {
    epoch: Epoch,
    quorum: u32,
    acceptors: Vec<NodeId>,
}

/// A slot of zeros is unused: it has no round, so it holds no votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
struct Slot {
    inst: Instance,
    client: u64,
    request: u64,
    rnd: Round,
    votes: u32,
    noop: bool,
    delivered: bool,
}

const _: () = assert!(MAX_ACCEPTORS <= u32::BITS as usize);

impl Learner {
    /// Returns a learner with `slots` slots a partition that knows no configuration yet.
    ///
    /// # Panics
    /// If `slots` is 0.
    pub fn new(deployment: Deployment, slots: usize) -> Learner {
        let all_slots = slots
            .checked_mul(deployment.partitions as usize)
            .expect("slots fit the memory");
        Learner {
            deployment,
            known: Vec::new(),
            floors: vec![None; deployment.partitions as usize],
            ring: Ring::new(slots),
            slots: vec![Slot::default(); all_slots],
        }
    }

    /// Notes an epoch's configuration, and returns true if it is new. An epoch has one
    /// configuration for ever, so a known one is never replaced; if there are too many, the oldest
    /// is forgotten.
    pub fn learn(&mut self, configuration: &Configuration) -> bool {
        let at = self
            .known
            .partition_point(|k| k.epoch < configuration.epoch);
        let known_already = self
            .known
            .get(at)
            .is_some_and(|k| k.epoch == configuration.epoch);
        let too_old = at == 0 && self.known.len() == MAX_KNOWN;
        if configuration.invalid().is_some() || known_already || too_old {
            return false;
        }
        let known = Known {
            epoch: configuration.epoch,
            quorum: configuration.quorum() as u32,
            acceptors: configuration.acceptors.iter().map(|a| a.node).collect(),
        };
        self.known.insert(at, known);
        if self.known.len() > MAX_KNOWN {
            self.known.remove(0);
        }
        true
    }

    /// Starts the window of a partition at `inst`: votes below are stale, and votes at `inst +
    /// slots` or beyond have no slot yet. The window never moves back.
    pub fn set_floor(&mut self, pid: PartitionId, inst: Instance) {
        let floor = &mut self.floors[pid as usize];
        *floor = (*floor).max(Some(inst));
    }

    /// Returns the deployment that this learner serves.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// Returns the number of slots of one partition.
    pub fn slots(&self) -> u64 {
        self.ring.slots()
    }

    /// Returns true if the configuration of this epoch is known.
    pub fn knows(&self, epoch: Epoch) -> bool {
        self.known_of(epoch).is_some()
    }

    /// Returns the epochs whose configurations are known, newest first.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.known.iter().rev().map(|known| known.epoch)
    }

    /// Returns the slot of an instance, or `None` if nothing was counted for it or a newer instance
    /// displaced it.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotView> {
        let slot = &self.slots[self.ring.index(pid, inst)];
        (slot.inst == inst && !slot.rnd.is_none()).then_some(SlotView {
            inst,
            rnd: slot.rnd,
            votes: slot.votes,
            client: slot.client,
            request: slot.request,
            noop: slot.noop,
            delivered: slot.delivered,
        })
    }
}

impl HostLearner {
    /// Returns a learner with `slots` slots a partition that knows no configuration yet, and takes
    /// DELIVER only of `trusted`.
    ///
    /// # Panics
    /// If `slots` is 0.
    pub fn new(deployment: Deployment, slots: usize, trusted: &[NodeId]) -> HostLearner {
        HostLearner {
            learner: Learner::new(deployment, slots),
            trusted: trusted.to_vec(),
        }
    }

    /// Notes an epoch's configuration, as [`Learner::learn`] does.
    pub fn learn(&mut self, configuration: &Configuration) -> bool {
        self.learner.learn(configuration)
    }

    /// Starts the window of a partition, as [`Learner::set_floor`] does.
    pub fn set_floor(&mut self, pid: PartitionId, inst: Instance) {
        self.learner.set_floor(pid, inst);
    }

    /// Returns the deployment that this learner serves.
    pub fn deployment(&self) -> &Deployment {
        self.learner.deployment()
    }

    /// Returns the slot of an instance, as [`Learner::slot`] does.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotView> {
        self.learner.slot(pid, inst)
    }
}

// ---- Handlers, named and ordered as in programs/xdp/learner.bpf.c

impl Learner {
    /// Takes one packet, and sends one DELIVER for each decision.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        let result = self.handle(packet);
        if result == Ok(true) {
            self.send_decision(packet, out);
        }
        let verdict = result.map(|_| Verdict::Changed).map_err(Refusal::Drop);
        answer::conclude(&self.deployment, packet, verdict, out)
    }

    #[inline]
    fn handle(&mut self, packet: &Packet<'_>) -> Result<bool, Reason> {
        self.deployment.check(packet)?;
        match packet.header.msgtype {
            MsgType::Phase2b => self.phase2b(&packet.header),
            _ => Err(Reason::NotForRole),
        }
    }

    /// Counts a vote, and returns true if it completed a quorum.
    #[inline]
    fn phase2b(&mut self, h: &Header) -> Result<bool, Reason> {
        if !h.rnd.is_valid() || h.rnd != h.vrnd {
            return Err(Reason::BadRound);
        }
        // Only acceptors of the configuration of the round's epoch vote. [D-VOTE]
        let known = self.known_of(h.rnd.epoch()).ok_or(Reason::UnknownEpoch)?;
        let voter = known.voter(h.swid).ok_or(Reason::UnknownSender)?;
        let quorum = known.quorum;
        self.within_window(h)?;
        self.count_vote(h, voter, quorum)
    }

    /// Notes the vote in its slot, and returns true if it completed a quorum.
    #[inline]
    fn count_vote(&mut self, h: &Header, voter: u32, quorum: u32) -> Result<bool, Reason> {
        let index = self.ring.index(h.pid, h.inst);
        let slot = &mut self.slots[index];
        // An older instance never displaces a newer one. [D-SLOT]
        if h.inst < slot.inst {
            return Err(Reason::Stale);
        }
        if h.inst > slot.inst || slot.rnd.is_none() {
            *slot = Slot::unvoted(h);
        } else if h.rnd < slot.rnd {
            return Err(Reason::Stale);
        } else if (h.rnd == slot.rnd || slot.delivered) && !slot.same_value(h) {
            // One round has one value, and so has every round after a decision. [D-CONFLICT]
            return Err(Reason::Conflict);
        } else if slot.delivered || h.rnd == slot.rnd && slot.votes & voter != 0 {
            return Err(Reason::Duplicate);
        } else if h.rnd > slot.rnd {
            // Votes of a newer round are counted afresh. [D-ROUND]
            *slot = Slot::unvoted(h);
        }
        // f+1 equal votes decide. [D-QUORUM]
        slot.votes |= voter;
        slot.delivered = slot.votes.count_ones() >= quorum;
        Ok(slot.delivered)
    }
}

impl HostLearner {
    /// Takes one packet, and returns whether its value is decided.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>) -> Learned {
        match self.learner.deployment.check(packet) {
            Ok(()) => self.step_checked(packet),
            Err(reason) => Learned::Dropped(reason),
        }
    }

    /// Takes one packet, as [`HostLearner::step`] does, that has passed [`Deployment::check`] of
    /// this learner's deployment.
    #[inline]
    pub fn step_checked(&mut self, packet: &Packet<'_>) -> Learned {
        debug_assert_eq!(self.learner.deployment.check(packet), Ok(()));
        self.handle(packet).into()
    }

    /// Takes a DELIVER of another learner of this very host as a decision, whatever sender it
    /// names, since nobody else can speak for that learner. The packet has passed
    /// [`Deployment::check`].
    #[inline]
    pub fn take_checked(&mut self, packet: &Packet<'_>) -> Learned {
        debug_assert_eq!(self.learner.deployment.check(packet), Ok(()));
        self.decision(&packet.header).into()
    }

    #[inline]
    fn handle(&mut self, packet: &Packet<'_>) -> Result<bool, Reason> {
        match packet.header.msgtype {
            MsgType::Phase2b => self.learner.phase2b(&packet.header),
            MsgType::Deliver => self.deliver(&packet.header),
            _ => Err(Reason::NotForRole),
        }
    }

    /// Takes a decision from a learner node elsewhere, if this learner trusts the node. [D-DELIVER]
    fn deliver(&mut self, h: &Header) -> Result<bool, Reason> {
        if !self.is_trusted(h.swid) {
            return Err(Reason::UnknownSender);
        }
        self.decision(h)
    }

    fn decision(&mut self, h: &Header) -> Result<bool, Reason> {
        if !h.rnd.is_valid() {
            return Err(Reason::BadRound);
        }
        if !self.learner.knows(h.rnd.epoch()) {
            return Err(Reason::UnknownEpoch);
        }
        self.learner.within_window(h)?;
        self.learner.take_decision(h)?;
        Ok(true)
    }
}

impl Learner {
    /// Marks the slot as decided with this value, whatever votes it holds.
    fn take_decision(&mut self, h: &Header) -> Result<(), Reason> {
        let index = self.ring.index(h.pid, h.inst);
        let slot = &mut self.slots[index];
        // An older instance never displaces a newer one. [D-SLOT]
        if h.inst < slot.inst {
            return Err(Reason::Stale);
        }
        if h.inst == slot.inst && slot.delivered {
            // Another value after a decision is impossible if all rules hold. [D-CONFLICT]
            return Err(match slot.same_value(h) {
                true => Reason::Duplicate,
                false => Reason::Conflict,
            });
        }
        *slot = Slot {
            delivered: true,
            ..Slot::unvoted(h)
        };
        Ok(())
    }
}

// ---- Helpers

impl HostLearner {
    fn is_trusted(&self, node: NodeId) -> bool {
        self.trusted.contains(&node)
    }
}

impl Learner {
    /// Refuses an instance outside the window, if the partition has one. [D-WINDOW]
    #[inline]
    fn within_window(&self, h: &Header) -> Result<(), Reason> {
        match self.floors[h.pid as usize] {
            Some(floor) if h.inst < floor => Err(Reason::Stale),
            Some(floor) if h.inst - floor >= self.ring.slots() => Err(Reason::Window),
            _ => Ok(()),
        }
    }

    /// Returns the configuration of an epoch. It searches the newest first, since nearly every vote
    /// is of the newest epoch.
    #[inline]
    fn known_of(&self, epoch: Epoch) -> Option<&Known> {
        self.known.iter().rev().find(|known| known.epoch == epoch)
    }

    fn send_decision(&self, packet: &Packet<'_>, out: &mut impl Outbox) {
        let h = &packet.header;
        let decision = Header {
            inst: h.inst,
            rnd: h.rnd,
            vrnd: h.vrnd,
            flags: h.flags.of_value(),
            client: h.client,
            request: h.request,
            value_len: h.value_len,
            ..answer::header(&self.deployment, MsgType::Deliver, h)
        };
        out.send(To::Learners, &decision, packet.value);
    }
}

impl From<Result<bool, Reason>> for Learned {
    fn from(result: Result<bool, Reason>) -> Learned {
        match result {
            Ok(true) => Learned::Decided,
            Ok(false) => Learned::Counted,
            Err(reason) => Learned::Dropped(reason),
        }
    }
}

impl Known {
    /// Returns the bit of an acceptor, or `None` if it isn't in this configuration.
    #[inline]
    fn voter(&self, node: NodeId) -> Option<u32> {
        let index = self.acceptors.iter().position(|a| *a == node)?;
        Some(1 << index)
    }
}

impl Slot {
    #[inline]
    fn unvoted(h: &Header) -> Slot {
        Slot {
            inst: h.inst,
            client: h.client,
            request: h.request,
            rnd: h.rnd,
            votes: 0,
            noop: h.flags.has(Flags::NOOP),
            delivered: false,
        }
    }

    #[inline]
    fn same_value(&self, h: &Header) -> bool {
        self.client == h.client
            && self.request == h.request
            && self.noop == h.flags.has(Flags::NOOP)
    }
}
