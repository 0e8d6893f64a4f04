// SPDX-License-Identifier: Apache-2.0
//! Finds out which nodes are alive, and with which memory. PROBE goes to every leader, acceptor and
//! replica through the data plane, and PROBE_ACK shows boot nonce, round, position and trim point.

use crate::status::PartitionStatus;
use paxos::acceptor::Start;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{
    Deployment, Header, Instance, MsgType, NodeId, Outbox, Packet, Reason, Round, Time, To,
};

/// The knowledge about one role of one node.
pub struct Watched {
    /// The node.
    pub node: NodeId,
    /// The role.
    pub role: Probe,
    /// The boot nonce of the memory that answered last.
    pub memory: Option<u64>,
    /// The start of that memory, if it is stored.
    pub start: Option<Start>,
    /// The memory was read from disk and may not continue yet.
    pub mute: bool,
    /// The memory went backwards, so it isn't relied on.
    pub lost: bool,
    /// Its machine answered a PROBE with ICMP port unreachable.
    pub refused: bool,
    /// The last answer of each partition.
    pub partitions: Vec<Option<PartitionStatus>>,
    /// The PROBE that each partition answered last ([`Suspicion::sequence`]); 0 if there is none.
    pub asked: Vec<u64>,
    missed: u32,
    answered: u64,
    /// The last two PROBEs whose answers showed that a position had moved; 0 if there is none.
    moved: [u64; 2],
    /// The last PROBE that was repeated to ask for the port alone.
    knocked: u64,
    /// The last PROBE that had been sent when this start of this memory was first seen.
    since: u64,
}

impl Watched {
    fn note(&mut self, header: &Header, sequence: u64, trim: Instance) {
        let pid = usize::from(header.pid);
        let known = self.partitions[pid];
        if known.is_some_and(|known| known.inst != header.inst) {
            self.moved = [self.moved[1], sequence];
        }
        self.asked[pid] = sequence;
        self.partitions[pid] = Some(PartitionStatus {
            round: header.rnd.0,
            inst: header.inst,
            trim,
        });
    }

    /// Returns whether any partition showed a round: then a leader is programmed, and an acceptor
    /// is no stranger.
    pub fn has_round(&self) -> bool {
        self.partitions.iter().flatten().any(|p| p.round != 0)
    }

    /// Returns the largest round shown.
    pub fn round(&self) -> Round {
        let rounds = self.partitions.iter().flatten().map(|p| p.round);
        Round(rounds.max().unwrap_or(0))
    }
}

/// Sends PROBEs and counts those that aren't answered. Counting instead of measuring time keeps a
/// controller that was itself delayed from suspecting all nodes. [E-SUSPECT]
pub struct Suspicion {
    deployment: Deployment,
    /// The role whose memories hold the votes.
    voters: Probe,
    nonce: u64,
    suspect_after: u32,
    interval: Time,
    next_probe: Time,
    next_knock: Time,
    sequence: u64,
    watched: Vec<Watched>,
}

/// The low bits of a PROBE's `request` hold the role, since its answer has no other place for it.
const ROLE_BITS: u32 = 3;
const _: () = assert!((Probe::Sequencer as u64) < 1 << ROLE_BITS);

impl Suspicion {
    /// Returns an instance that watches no node yet. `nonce` marks the questions of this process
    /// start; `voters` is the role whose memories may be stored.
    pub fn new(
        deployment: Deployment,
        voters: Probe,
        interval: Time,
        suspect_after: u32,
        nonce: u64,
    ) -> Self {
        Suspicion {
            deployment,
            voters,
            nonce,
            suspect_after,
            interval,
            next_probe: 0,
            next_knock: 0,
            sequence: 0,
            watched: Vec::new(),
        }
    }

    /// Watches `role` of `node` from now on.
    pub fn watch(&mut self, role: Probe, node: NodeId) {
        if self.get(role, node).is_none() {
            self.watched.push(Watched {
                node,
                role,
                memory: None,
                start: None,
                mute: false,
                lost: false,
                refused: false,
                partitions: vec![None; self.deployment.partitions as usize],
                asked: vec![0; self.deployment.partitions as usize],
                missed: 0,
                answered: self.sequence,
                moved: [0; 2],
                knocked: 0,
                since: 0,
            });
        }
    }

    /// Returns the knowledge about a role of a node.
    pub fn get(&self, role: Probe, node: NodeId) -> Option<&Watched> {
        self.position(role, node).map(|at| &self.watched[at])
    }

    fn position(&self, role: Probe, node: NodeId) -> Option<usize> {
        self.iter().position(|w| w.role == role && w.node == node)
    }

    /// Returns all roles that are watched.
    pub fn iter(&self) -> impl Iterator<Item = &Watched> {
        self.watched.iter()
    }

    /// Returns whether the node has answered lately.
    pub fn is_alive(&self, role: Probe, node: NodeId) -> bool {
        self.memory(role, node).is_some()
    }

    /// Returns the memory that answers, while the node is alive. A memory that is mute or has gone
    /// backwards isn't returned, since it isn't relied on.
    pub fn memory(&self, role: Probe, node: NodeId) -> Option<u64> {
        let watched = self.get(role, node)?;
        let counts = !self.is_suspect(watched) && !watched.mute && !watched.lost;
        watched.memory.filter(|_| counts)
    }

    /// Sets whether a voter's memory went backwards.
    pub fn set_lost(&mut self, node: NodeId, lost: bool) {
        let voters = self.voters;
        let is_meant = |w: &&mut Watched| w.role == voters && w.node == node;
        for watched in self.watched.iter_mut().filter(is_meant) {
            watched.lost = lost;
        }
    }

    /// Returns whether too many PROBEs in a row were unanswered.
    pub fn is_suspect(&self, watched: &Watched) -> bool {
        watched.missed >= self.suspect_after
    }

    /// Returns the number of the last PROBE; an answer to a later one was given after this moment.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns when [`probe`](Self::probe) is due.
    pub fn next_deadline(&self) -> Time {
        self.next_probe
    }

    /// Sends a PROBE to all nodes if it is time, and returns whether it was. Each PROBE goes to one
    /// partition, in turn.
    pub fn probe(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        if now < self.next_probe {
            return false;
        }
        self.next_probe = now + self.interval;
        let previous = self.sequence;
        self.sequence += 1;
        for watched in &mut self.watched {
            if watched.answered < previous {
                watched.missed = watched.missed.saturating_add(1);
            }
        }
        for watched in &self.watched {
            self.ask(watched, out);
        }
        true
    }

    fn ask(&self, watched: &Watched, out: &mut impl Outbox) {
        let value = watched.role.emit();
        let header = Header {
            group: self.deployment.group,
            pid: (self.sequence % u64::from(self.deployment.partitions)) as u16,
            swid: self.deployment.node,
            cluster: self.deployment.cluster,
            client: self.nonce,
            request: self.sequence << ROLE_BITS | watched.role as u64,
            value_len: value.len() as u16,
            ..Header::new(MsgType::Probe)
        };
        out.send(To::Node(watched.node), &header, &value);
    }

    /// Returns when [`knock`](Self::knock) is due at a role of a node: often while its position
    /// moves from PROBE to PROBE, so that the closed port of a dead process shows at once, and
    /// never otherwise. The clock ticks of an idle group don't count, as they come rarely.
    pub fn knock_deadline(&self, role: Probe, node: NodeId) -> Time {
        let lately = 2 * u64::from(self.deployment.partitions) + 1;
        let is_at_work = |w: &Watched| w.moved[0] != 0 && self.sequence <= w.moved[0] + lately;
        let watched = self.get(role, node);
        match watched.is_some_and(|w| is_at_work(w) && !self.is_suspect(w)) {
            true => self.next_knock,
            false => Time::MAX,
        }
    }

    /// Repeats the last PROBE to one role of a node; the next time comes after `interval`. Neither
    /// an answer nor silence counts here, only a [refusal](Self::refused). [E-EVIDENCE]
    pub fn knock(
        &mut self,
        now: Time,
        role: Probe,
        node: NodeId,
        interval: Time,
        out: &mut impl Outbox,
    ) {
        self.next_knock = now + interval;
        if let Some(at) = self.position(role, node) {
            self.watched[at].knocked = self.sequence;
            self.ask(&self.watched[at], out);
        }
    }

    /// Notes that nobody has the port to which a PROBE went. A node that has answered before is
    /// suspected until it answers another PROBE. [E-EVIDENCE]
    pub fn refused(&mut self, role: Probe, node: NodeId) {
        if let Some(at) = self.position(role, node) {
            let watched = &mut self.watched[at];
            if watched.memory.is_some() {
                (watched.missed, watched.refused) = (self.suspect_after, true);
            }
        }
    }

    /// Notes a PROBE_ACK, unless it is older than what is known or than the PROBEs that make a
    /// suspect. If it shows another memory or start, it counts only as the answer to a PROBE that
    /// was sent after the known one had been seen, since the network may deliver a PROBE late, to a
    /// later process. [E-SUSPECT]
    pub fn answer(&mut self, packet: &Packet<'_>) -> Result<Probe, Reason> {
        let header = &packet.header;
        let report = ProbeReport::parse(packet.value)?;
        if header.client != self.nonce {
            return Err(Reason::Unexpected);
        }
        let (sequence, role) = (
            header.request >> ROLE_BITS,
            header.request % (1 << ROLE_BITS),
        );
        let patience = u64::from(self.suspect_after);
        let (latest, voters) = (self.sequence, self.voters);
        if sequence > self.sequence || sequence + patience <= self.sequence {
            return Err(Reason::Stale);
        }
        let watched = self
            .watched
            .iter_mut()
            .find(|w| w.node == header.swid && w.role as u64 == role)
            .ok_or(Reason::UnknownSender)?;
        if sequence <= watched.answered {
            let is_knocks = sequence == watched.knocked;
            return is_knocks.then_some(watched.role).ok_or(Reason::Stale);
        }
        let (start, mute) = match (watched.role, report.start) {
            // A replica whose log is in memory can't start with an old one.
            (Probe::Replica, 0) => (None, false),
            (role, shown) if role == voters => {
                let (start, mute) = Start::from_shown(shown).ok_or(Reason::BadValue)?;
                (Some(start), mute)
            }
            _ => (None, false),
        };
        let same_memory = watched.memory == Some(report.nonce);
        let same = same_memory && watched.start == start;
        let count = |start: Option<Start>| start.map_or(0, Start::count);
        let later = same_memory && count(start) > count(watched.start);
        if !same && !later && watched.memory.is_some() && sequence <= watched.since {
            return Err(Reason::Stale);
        }
        watched.answered = sequence;
        (watched.missed, watched.refused) = (0, false);
        // A memory that was allowed to continue stays so.
        watched.mute = mute && (!same || watched.mute);
        if !same {
            watched.memory = Some(report.nonce);
            watched.start = start;
            watched.since = latest;
            watched.lost = false;
            watched.partitions.fill(None);
        }
        watched.note(header, sequence, report.trim);
        Ok(watched.role)
    }
}
