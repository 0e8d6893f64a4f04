// SPDX-License-Identifier: Apache-2.0
//! Learns, while the leader still serves, which votes a later candidate may skip, so that the
//! candidate itself has only the newest instances to read.
//!
//! It asks the members that continue by QUERY, which changes nothing at them. An instance for which
//! f+1 of them show a vote of one round is chosen, and stays held by them as long as they keep
//! their memories; their promises will show that. [C-SKIP]

use std::collections::BTreeMap;

use super::ASK_TRIM;
use crate::wire::value::RangeReport;
use crate::{
    Deployment, Epoch, Flags, Header, Instance, Member, MsgType, Outbox, Packet, PartitionId,
    Reason, Round, Time, To, Verdict,
};

/// The interval at which [`ReadAhead::tick`] wants to be called. How far votes reach is asked anew
/// each time.
const TICK: Time = 2_000_000;
/// The most instances of a partition that are asked about at once. It is small, since the members
/// have the leader's requests to vote on meanwhile.
const OPEN_MAX: usize = 64;
/// How long an instance waits for answers before it is asked about again, and how often.
const RETRY: Time = 10_000_000;
const TRIES: u32 = 3;

/// A member that continues in the next epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Continuing {
    /// The node and its memory.
    pub member: Member,
    /// An epoch that named this memory. A vote of an earlier round may be one of the memory that
    /// the node had before, on a packet that came late, so it doesn't count.
    pub since: Epoch,
}

/// An instance that was asked about.
#[derive(Clone, Default)]
struct OpenInstance {
    /// The members that answered, as a mask.
    answered: u64,
    /// The members that showed the vote of the highest round.
    holders: u64,
    round: Round,
    /// The client, the request, and whether it is a no-op.
    value: (u64, u64, bool),
    due: Time,
    tries: u32,
}

#[derive(Clone, Default)]
struct Partition {
    trim: Instance,
    end: Instance,
    /// The members that have said how far votes reach.
    reported: u64,
    next: Instance,
    /// `next` at the last tick, once enough members had reported.
    asked_below: Option<Instance>,
    open: BTreeMap<Instance, OpenInstance>,
    /// The members that hold what is chosen in an instance.
    held: BTreeMap<Instance, u64>,
}

/// Reads votes before the next epoch is issued.
#[derive(Clone)]
pub struct ReadAhead {
    deployment: Deployment,
    members: Vec<Continuing>,
    quorum: usize,
    nonce: u64,
    partitions: Vec<Partition>,
    ticked: Time,
}

impl ReadAhead {
    /// Returns one that asks these members, whose nodes differ. `quorum` is f+1 with the largest f
    /// of the configurations concerned, and `nonce` marks the questions. If fewer members than that
    /// continue, nothing can be skipped, and it returns `None`.
    pub fn new(
        deployment: Deployment,
        members: Vec<Continuing>,
        quorum: usize,
        nonce: u64,
    ) -> Option<ReadAhead> {
        let enough = (quorum..=super::MAX_PEERS).contains(&members.len());
        enough.then(|| ReadAhead {
            partitions: vec![Partition::default(); usize::from(deployment.partitions)],
            deployment,
            members,
            quorum,
            nonce,
            ticked: 0,
        })
    }

    /// Returns the members that are asked.
    pub fn members(&self) -> &[Continuing] {
        &self.members
    }

    /// Returns whether f+1 members have answered.
    pub fn has_heard(&self) -> bool {
        let has_heard = |p: &Partition| p.reported.count_ones() as usize >= self.quorum;
        self.partitions.iter().all(has_heard)
    }

    /// Returns whether everything is read but what has been stamped just now.
    pub fn is_close(&self) -> bool {
        let is_close = |p: &Partition| p.next >= p.end && p.is_answered();
        self.partitions.iter().all(is_close)
    }

    /// Returns when it wants the next [`tick`](Self::tick).
    pub fn next_deadline(&self) -> Time {
        self.ticked + TICK
    }

    /// Sends the questions that are due, for the first time or again.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        self.ticked = now;
        for pid in 0..self.deployment.partitions {
            let question = Header {
                flags: Flags::RANGE,
                request: ASK_TRIM,
                ..self.question(pid, 0)
            };
            for continuing in &self.members {
                out.send(To::Node(continuing.member.node), &question, &[]);
            }
            self.ask_again(pid, now, out);
            let partition = &mut self.partitions[usize::from(pid)];
            if partition.reported.count_ones() as usize >= self.quorum {
                partition.asked_below = Some(partition.next);
            }
            self.ask(pid, now, out);
        }
    }

    /// Takes one packet, and returns what became of it.
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        match self.handle(packet) {
            Ok(()) => {
                self.ask(packet.header.pid, now, out);
                Verdict::Changed
            }
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    /// Returns each instance that is chosen, with the members that hold what is, as a mask over
    /// [`members`](Self::members).
    pub(super) fn held(&self, pid: PartitionId) -> impl Iterator<Item = (Instance, u64)> + '_ {
        let held = self.partitions[usize::from(pid)].held.iter();
        held.map(|(&inst, &holders)| (inst, holders))
    }

    fn handle(&mut self, packet: &Packet<'_>) -> Result<(), Reason> {
        self.deployment.check(packet)?;
        let header = &packet.header;
        let is_it = |c: &Continuing| c.member.node == header.swid;
        let at = self.members.iter().position(is_it);
        let at = at.ok_or(Reason::UnknownSender)?;
        match header.msgtype {
            MsgType::Phase2b => self.vote(at, header),
            MsgType::Phase1b if header.client != self.nonce => Err(Reason::Unexpected),
            MsgType::Phase1b if header.flags.has(Flags::RANGE) => self.report(at, packet),
            MsgType::Phase1b => self.no_vote(at, header),
            _ => Err(Reason::NotForRole),
        }
    }

    /// Takes an answer that says how far a member's votes reach.
    fn report(&mut self, at: usize, packet: &Packet<'_>) -> Result<(), Reason> {
        let report = RangeReport::parse(packet.value)?;
        if report.nonce != self.members[at].member.nonce {
            return Err(Reason::UnknownSender);
        }
        let partition = &mut self.partitions[usize::from(packet.header.pid)];
        partition.reported |= 1 << at;
        partition.end = partition.end.max(report.end);
        if report.trim > partition.trim {
            partition.forget_below(report.trim);
        }
        Ok(())
    }

    /// Takes a member's vote. A member never votes twice in one round of an instance, so the answer
    /// stays true however late it comes.
    fn vote(&mut self, at: usize, header: &Header) -> Result<(), Reason> {
        if header.vrnd.epoch() < self.members[at].since {
            return self.no_vote(at, header);
        }
        let partition = &mut self.partitions[usize::from(header.pid)];
        let asked = partition.open.get_mut(&header.inst).ok_or(Reason::Stale)?;
        let noop = header.flags.has(Flags::NOOP);
        let value = (header.client, header.request, noop);
        if header.vrnd > asked.round {
            (asked.round, asked.value, asked.holders) = (header.vrnd, value, 0);
        }
        if (header.vrnd, value) == (asked.round, asked.value) {
            asked.holders |= 1 << at;
        }
        asked.answered |= 1 << at;
        self.finish(header.pid, header.inst);
        Ok(())
    }

    fn no_vote(&mut self, at: usize, header: &Header) -> Result<(), Reason> {
        let partition = &mut self.partitions[usize::from(header.pid)];
        let asked = partition.open.get_mut(&header.inst).ok_or(Reason::Stale)?;
        asked.answered |= 1 << at;
        self.finish(header.pid, header.inst);
        Ok(())
    }

    /// Closes an instance once f+1 hold what is chosen there, or once all have answered.
    fn finish(&mut self, pid: PartitionId, inst: Instance) {
        let partition = &mut self.partitions[usize::from(pid)];
        let Some(asked) = partition.open.get(&inst) else {
            return;
        };
        let is_chosen = asked.holders.count_ones() as usize >= self.quorum;
        let all = asked.answered.count_ones() as usize == self.members.len();
        if is_chosen {
            partition.held.insert(inst, asked.holders);
        }
        if is_chosen || all {
            partition.open.remove(&inst);
        }
    }

    fn ask(&mut self, pid: PartitionId, now: Time, out: &mut impl Outbox) {
        let question = self.question(pid, 0);
        let partition = &mut self.partitions[usize::from(pid)];
        while partition.open.len() < OPEN_MAX && partition.next < partition.end {
            let inst = partition.next;
            partition.next += 1;
            let asked = OpenInstance {
                due: now + RETRY,
                ..OpenInstance::default()
            };
            partition.open.insert(inst, asked);
            for continuing in &self.members {
                let question = Header { inst, ..question };
                out.send(To::Node(continuing.member.node), &question, &[]);
            }
        }
    }

    /// Asks those again who haven't answered. After some tries the instance is left to the
    /// candidate.
    fn ask_again(&mut self, pid: PartitionId, now: Time, out: &mut impl Outbox) {
        let question = self.question(pid, 0);
        let partition = &mut self.partitions[usize::from(pid)];
        partition.open.retain(|_, a| now < a.due || a.tries < TRIES);
        let late = partition.open.iter_mut().filter(|(_, a)| now >= a.due);
        for (&inst, asked) in late {
            (asked.due, asked.tries) = (now + RETRY, asked.tries + 1);
            for (at, continuing) in self.members.iter().enumerate() {
                if asked.answered & 1 << at == 0 {
                    let question = Header { inst, ..question };
                    out.send(To::Node(continuing.member.node), &question, &[]);
                }
            }
        }
    }

    fn question(&self, pid: PartitionId, inst: Instance) -> Header {
        Header {
            group: self.deployment.group,
            pid,
            inst,
            swid: self.deployment.node,
            cluster: self.deployment.cluster,
            client: self.nonce,
            ..Header::new(MsgType::Query)
        }
    }
}

impl Partition {
    /// Returns whether all is answered that was asked before the last tick.
    fn is_answered(&self) -> bool {
        let first = self.open.keys().next();
        let below = |below| first.is_none_or(|&open| open >= below);
        self.asked_below.is_some_and(below)
    }

    fn forget_below(&mut self, trim: Instance) {
        self.trim = trim;
        self.next = self.next.max(trim);
        self.end = self.end.max(trim);
        self.open = self.open.split_off(&trim);
        self.held = self.held.split_off(&trim);
    }
}
