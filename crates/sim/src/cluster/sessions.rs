// SPDX-License-Identifier: Apache-2.0
//! The sessions of a NOPaxos group. This code replaces the controller: it opens a session, waits until f+1 members have
//! begun a view of it in each partition, and only then hands it to its sequencer. It has no process that could die, and
//! reaches all nodes that aren't cut off from the controller.

use paxos::nopaxos::{Session, Stage};
use paxos::{Configuration, Epoch, Instance, Member, NodeId, PartitionId, Program, Round, Time};
use replica::NoPaxos;

use super::Cluster;
use super::layout::{NodeIndex, node_id};
use super::mutation::{self, Mutation};
use super::replica::ReplicaHost;
use super::world::Event;
use crate::observe::Observed;
use crate::queue::MILLISECOND;

/// The controller's index, whose place it takes.
const CONTROLLER: NodeIndex = 0;
/// How often it checks what to do.
pub const LOOK: Time = 2 * MILLISECOND;
/// The shortest time between two sessions.
const PACE: Time = 30 * MILLISECOND;

/// One session.
struct Record {
    session: Session,
    /// For each partition the view that f+1 members have begun, and the end of its log.
    begun: Vec<Option<(Round, Instance)>>,
}

impl Record {
    fn is_active(&self) -> bool {
        self.begun.iter().all(Option::is_some)
    }

    /// Returns the session as it is told in a partition.
    fn told(&self, pid: PartitionId) -> Session {
        let begun = self.begun[usize::from(pid)].filter(|_| self.is_active());
        Session {
            stage: begun.map_or(Stage::Writing, |(by, _)| Stage::Active { by }),
            ..self.session.clone()
        }
    }

    fn has(&self, member: Member) -> bool {
        self.session.place(member).is_some()
    }
}

/// All sessions.
#[derive(Default)]
pub struct Sessions {
    records: Vec<Record>,
    opened_at: Time,
    /// An operator has ordered another session.
    ordered: bool,
    /// The replica that leads first, if it isn't drawn.
    first: Option<NodeId>,
    /// The numbers that were drawn for disks.
    numbers: u64,
}

impl Sessions {
    /// Returns whether the last session is active.
    pub fn in_force(&self) -> bool {
        self.records.last().is_some_and(Record::is_active)
    }

    /// Returns the number of the last session.
    pub fn last(&self) -> Epoch {
        self.records.len() as Epoch
    }

    /// Returns the last session as it was issued.
    pub fn last_session(&self) -> Option<&Session> {
        Some(&self.records.last()?.session)
    }

    /// Orders another session, as an operator does.
    pub fn order(&mut self) {
        self.ordered = true;
    }

    /// Makes this replica lead first from now on.
    pub fn lead_first(&mut self, replica: NodeId) {
        self.first = Some(replica);
    }

    fn told(&self, pid: PartitionId) -> Vec<Session> {
        self.records.iter().map(|record| record.told(pid)).collect()
    }

    /// Returns the sessions for a mutation, which don't show which earlier ones were active.
    fn told_without_earlier(&self, pid: PartitionId) -> Vec<Session> {
        let mut told = self.told(pid);
        if let (Some((_, earlier)), false) = (told.split_last_mut(), self.in_force()) {
            earlier.iter_mut().for_each(|s| s.stage = Stage::Writing);
        }
        told
    }

    /// Returns the last active session, and where each partition began.
    fn active(&self) -> Option<(Epoch, Vec<Instance>)> {
        let active = self
            .records
            .iter()
            .rev()
            .find(|record| record.is_active())?;
        let ends = active.begun.iter().flatten().map(|(_, end)| *end);
        Some((active.session.number, ends.collect()))
    }

    /// Returns the sessions of which a view may need f+1 members.
    fn needed(&self) -> &[Record] {
        let active = self.records.iter().rposition(Record::is_active);
        &self.records[active.unwrap_or(0)..]
    }
}

impl Cluster<NoPaxos> {
    /// Does what is due for the sessions.
    pub(super) fn control_sessions(&mut self) {
        if self.needs_session() {
            self.open_session();
        }
        self.note_begun();
        self.hand_over();
        self.tell_sessions();
        self.check_replicas();
        self.world.queue.after(LOOK, Event::Sessions);
    }

    fn reaches_node(&self, node: NodeIndex) -> bool {
        !self.host(node).paused && self.can_talk(0, node)
    }

    /// Returns the sequencers that could stamp.
    fn able(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.sequencers.len();
        all.filter(|n| {
            self.sequencers[*n].is_up() && self.reaches_node(self.sequencers[*n].host.at)
        })
    }

    /// Returns whether a new session is needed, because the sequencer or a member has changed.
    fn needs_session(&self) -> bool {
        let Some(last) = self.sessions.records.last() else {
            return self.replicas.iter().all(ReplicaHost::is_up) && self.able().next().is_some();
        };
        let stamps = |n: usize| {
            let sequencer = &self.sequencers[n];
            (node_id(sequencer.host.name), sequencer.nonce())
                == (last.session.sequencer, last.session.nonce)
        };
        let is_new = |r: &ReplicaHost<NoPaxos>| {
            r.is_up() && self.reaches_node(r.host.at) && !last.has(r.member())
        };
        let may = self.world.queue.now() >= self.sessions.opened_at + PACE;
        let loses = !self.able().any(stamps) && self.able().next().is_some();
        may && (self.sessions.ordered || loses || self.replicas.iter().any(is_new))
    }

    fn open_session(&mut self) {
        let able: Vec<usize> = self.able().collect();
        if able.is_empty() {
            return;
        }
        let sequencer = &self.sequencers[*self.world.rng.pick(&able)];
        let (node, nonce) = (node_id(sequencer.host.name), sequencer.nonce());
        let members: Vec<Member> = self.replicas.iter().map(ReplicaHost::member).collect();
        let drawn = self.world.rng.below(members.len() as u64) as u16;
        let is_first = |m: &Member| Some(m.node) == self.sessions.first;
        let lead = members.iter().position(is_first);
        let session = Session {
            number: self.sessions.last() + 1,
            sequencer: node,
            nonce,
            f: (members.len() / 2) as u8,
            lead: lead.map_or(drawn, |place| place as u16),
            members,
            stage: Stage::Writing,
            anew: None,
        };
        self.world.note(|_| format!("session  {session:?}"));
        self.world.ordered.session(&session);
        self.show_session(&session);
        self.sessions.opened_at = self.world.queue.now();
        self.sessions.ordered = false;
        let begun = vec![None; self.world.pids().count()];
        self.sessions.records.push(Record { session, begun });
    }

    /// Shows a session to the checkers in the form of a controller's store.
    fn show_session(&mut self, session: &Session) {
        let nodes: Vec<NodeId> = session.members.iter().map(|m| m.node).collect();
        let configuration = Configuration {
            epoch: session.number,
            leader: Member {
                node: session.sequencer,
                nonce: session.nonce,
            },
            acceptors: session.members.clone(),
            f: session.f,
            replicas: nodes,
            g: session.f,
        };
        for event in [
            Observed::Issued(&configuration),
            Observed::Session(session.number, session.lead),
            Observed::Writing(session.number),
        ] {
            self.world.observe(CONTROLLER, event);
        }
    }

    fn note_begun(&mut self) {
        let Some(last) = self.sessions.records.last() else {
            return;
        };
        if last.is_active() {
            return;
        }
        let number = last.session.number;
        let mut begun = last.begun.clone();
        for replica in &self.replicas {
            if !self.reaches_node(replica.host.at) {
                continue;
            }
            for (pid, begun) in begun.iter_mut().enumerate() {
                let started = replica.started(pid).map(|s| (s.view, s.end));
                let by_one = self.world.mutated(Mutation::ActiveByOne);
                let started = started.or(replica.leads(pid).filter(|_| by_one));
                *begun = begun.or(started.filter(|(view, _)| view.epoch() == number));
            }
        }
        if begun.iter().all(Option::is_some) {
            let ends = begun.iter().flatten().map(|(_, end)| *end).collect();
            self.world.ordered.begins(number, ends);
            self.world.observe(CONTROLLER, Observed::Active(number));
        }
        if let Some(last) = self.sessions.records.last_mut() {
            last.begun = begun;
        }
    }

    /// Hands the last session to its sequencer once it is active, and tells the other nodes.
    fn hand_over(&mut self) {
        let Some(last) = self.sessions.records.last() else {
            return;
        };
        let number = last.session.number;
        let trimmed = |pid: usize| {
            let mut held: Vec<Instance> = self.replicas.iter().map(|r| r.holds(pid)).collect();
            held.sort_unstable_by(|a, b| b.cmp(a));
            held[usize::from(last.session.f)]
        };
        let nodes: Vec<NodeId> = last.session.members.iter().map(|m| m.node).collect();
        let early = self.world.mutated(Mutation::ProgrammedEarly);
        let end = |pid: usize| last.begun[pid].map_or_else(|| trimmed(pid), |(_, end)| end);
        let program = (last.is_active() || early).then(|| Program {
            epoch: number,
            nonce: last.session.nonce,
            next: (0..last.begun.len()).map(end).collect(),
            trimmed: (0..last.begun.len()).map(trimmed).collect(),
            window: self.world.scenario.window.into(),
            acceptors: nodes.clone(),
            f: last.session.f,
            replicas: nodes,
            g: last.session.f,
        });
        let node = last.session.sequencer;
        for n in 0..self.sequencers.len() {
            if !self.reaches_node(self.sequencers[n].host.at) {
                continue;
            }
            let sequencer = &mut self.sequencers[n];
            sequencer.retire(&mut self.world, number);
            if node_id(sequencer.host.name) == node && sequencer.round() != Round::base(number) {
                if let Some(program) = &program {
                    sequencer.program(&mut self.world, program);
                }
            }
        }
    }

    fn tell_sessions(&mut self) {
        let sequencer = self.sessions.records.last().filter(|last| last.is_active());
        let sequencer = sequencer.and_then(|last| self.world.layout.of_id(last.session.sequencer));
        let not_asked = self.world.mutated(Mutation::OldMembersNotAsked);
        let told = |pid| match not_asked {
            true => self.sessions.told_without_earlier(pid),
            false => self.sessions.told(pid),
        };
        let told: Vec<Vec<Session>> = self.world.pids().map(told).collect();
        let active = mutation::ordered::told_as_begun(&self.world, self.sessions.active());
        for n in 0..self.replicas.len() {
            if self.reaches_node(self.replicas[n].host.at) {
                self.sessions.numbers += 1;
                let number = u64::from(self.sessions.last()) << 32 | self.sessions.numbers;
                let replica = &mut self.replicas[n];
                replica.told_sessions(&mut self.world, &told, active.as_ref(), sequencer, number);
            }
        }
        let mut to_clients = told.clone();
        if self.world.mutated(Mutation::LeaderSuffices) {
            to_clients.iter_mut().flatten().for_each(|s| s.f = 0);
        }
        for n in 0..self.clients.len() {
            if self.reaches_node(self.clients[n].host.at) {
                self.clients[n].told_sessions(&mut self.world, &to_clients, sequencer);
            }
        }
    }

    /// Shows the checkers the replicas' logs and disks.
    fn check_replicas(&mut self) {
        for n in 0..self.replicas.len() {
            self.replicas[n].show_logs(&mut self.world);
        }
    }

    /// Returns whether enough members of each session that a view may need are left without this replica's memory.
    pub(super) fn may_lose_memory(&self, replica: usize) -> bool {
        let others = self.replicas.iter().enumerate();
        let others: Vec<Member> = others
            .filter(|(n, r)| *n != replica && r.is_up())
            .map(|(_, r)| r.member())
            .collect();
        let survives = |record: &Record| {
            let left = others.iter().filter(|member| record.has(**member));
            left.count() > usize::from(record.session.f)
        };
        self.sessions.needed().iter().all(survives)
    }
}
