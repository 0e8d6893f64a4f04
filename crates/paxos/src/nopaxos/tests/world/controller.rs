// SPDX-License-Identifier: Apache-2.0
//! The controller of the world, and its store.

use super::*;

impl World {
    pub(super) fn issue(&mut self) {
        let number = self.store.len() as Epoch + 1;
        let members: Vec<Member> = self.hosts.values().map(|h| h.replica.member()).collect();
        let f = (members.len() / 2) as u8;
        let lead = self.rng.below(members.len() as u64) as u16;
        let named: Vec<_> = members.iter().map(|m| (m.node, m.nonce)).collect();
        self.checker
            .session(number, &named, f as usize, lead as usize);
        self.nonces += 1;
        let node = SEQUENCER + number as NodeId;
        self.nonces_of_sequencers.push(self.nonces);
        self.sequencers
            .insert(number, Sequencer::new(deployment(node), self.nonces));
        self.change = None;
        let session = Session {
            number,
            sequencer: node,
            nonce: self.nonces,
            members,
            f,
            lead,
            stage: Stage::Issued,
            anew: None,
        };
        self.store.push(session);
    }

    /// Makes the newest session's sequencer forget its program, or its boot nonce.
    pub(super) fn reboot_sequencer(&mut self) {
        let number = self.store.len() as Epoch;
        if number < MAX_SESSIONS {
            self.nonces += 1;
            let node = SEQUENCER + number as NodeId;
            self.sequencers
                .insert(number, Sequencer::new(deployment(node), self.nonces));
        }
    }

    /// Lets the controller hear this many reports, and do what it can.
    pub(super) fn control(&mut self, reports: usize) {
        let last = self.store.len() - 1;
        if let Stage::Active { .. } = self.store[last].stage {
            self.program();
            if self.store.len() < MAX_SESSIONS as usize
                && (self.is_outdated() || self.rng.once_in(10))
            {
                self.issue();
            }
            return;
        }
        if self.mutation == Some(Mutation::ProgrammedEarly)
            && self.store[last].stage == Stage::Writing
        {
            self.program();
        }
        self.carry_on(reports);
        if self.store[last].stage == Stage::Writing
            && self.rng.once_in(24)
            && self.store.len() < MAX_SESSIONS as usize
        {
            self.issue();
        }
    }

    /// Returns true if a member or the sequencer has lost its memory since the session was issued.
    pub(super) fn is_outdated(&self) -> bool {
        let last = self.store.last().expect("a session");
        let is_stale = |h: &Host| last.place(h.replica.member()).is_none();
        let nonce = self.sequencers[&last.number].nonce();
        self.hosts.values().any(is_stale) || Some(&nonce) != self.nonces_of_sequencers.last()
    }

    /// Goes on with the session that isn't active yet. The controller may die at any moment, and
    /// then has only the store.
    pub(super) fn carry_on(&mut self, reports: usize) {
        let last = self.store.len() - 1;
        if self.rng.once_in(10) {
            self.change = None;
        }
        let stored = self.store[last].clone();
        let resumed = || SessionChange::resume(stored, 1).expect("the store's own");
        let mut change = self.change.take().unwrap_or_else(resumed);
        for _ in 0..reports.min(self.reports.len()) {
            let at = self.rng.below(self.reports.len() as u64) as usize;
            let (from, started) = self.reports[at].clone();
            if change.view_started(0, from, &started) == Err(crate::Reason::Conflict) {
                self.violations
                    .push(format!("{started:?} ends elsewhere, too"));
            }
        }
        while let Some(effect) = change.poll() {
            if self.rng.once_in(8) {
                self.count("controller killed");
                return;
            }
            match effect {
                Effect::MarkWriting => {
                    self.store[last].stage = Stage::Writing;
                    self.client.learn(&self.store[last]).unwrap();
                    change.marked_writing();
                }
                Effect::MarkActive(begins) => {
                    self.store[last].stage = Stage::Active { by: begins.by[0] };
                    self.begins.insert(change.number(), begins.next[0]);
                    self.count("active");
                    change.marked_active();
                }
                Effect::HandOver => return self.program(),
            }
        }
        self.change = Some(change);
    }

    /// Tells the last session's sequencer its program from the store, again and again.
    pub(super) fn program(&mut self) {
        let last = self.store.last().expect("a session");
        let nodes: Vec<NodeId> = last.members.iter().map(|m| m.node).collect();
        let next = self.begins.get(&last.number).copied().unwrap_or(0);
        let program = Program {
            epoch: last.number,
            nonce: *self.nonces_of_sequencers.last().expect("one each"),
            next: vec![next],
            trimmed: vec![next.min(self.on_disk_at(last))],
            window: SLOTS as u64 - 8,
            acceptors: nodes.clone(),
            f: last.f,
            replicas: nodes,
            g: last.f,
        };
        let sequencer = self.sequencers.get_mut(&last.number).expect("one each");
        // The sequencer obeys once, and only in the memory named.
        let _ = sequencer.program(&program);
    }

    /// Returns the slot that f+1 members have on disk.
    fn on_disk_at(&self, session: &Session) -> Instance {
        let hosts = session.members.iter().map(|m| &self.hosts[&m.node]);
        let mut on_disk: Vec<usize> = hosts.map(|h| h.durable).collect();
        on_disk.sort_unstable_by(|a, b| b.cmp(a));
        on_disk[usize::from(session.f)] as Instance
    }

    /// Reports a view that has begun to the controller.
    pub(super) fn report_view(&mut self, node: NodeId) {
        let replica = &self.hosts[&node].replica;
        let started = match (self.mutation, replica.begun.as_ref()) {
            (Some(Mutation::ActiveEarly), Some(begun)) if replica.leads() => Some(Started {
                session: self.store[replica.view().epoch() as usize - 1].digest(),
                view: replica.view(),
                end: begun.end(),
                members: self.store[replica.view().epoch() as usize - 1]
                    .members
                    .clone(),
            }),
            _ => replica.unreported(),
        };
        if let Some(started) = started {
            self.reports.push((replica.member(), started));
            if self.reports.len() > MAX_REPORTS {
                let at = self.rng.below(MAX_REPORTS as u64) as usize;
                self.reports.swap_remove(at);
            }
        }
    }

    pub fn tell_store(&mut self, node: NodeId) {
        let mut told = self.store.clone();
        let last = told.len() - 1;
        if self.mutation == Some(Mutation::NewMembersOnly) {
            told[..last]
                .iter_mut()
                .for_each(|s| s.stage = Stage::Issued);
        }
        let host = self.hosts.get_mut(&node).expect("a host");
        host.replica.configure(&told).expect("the store's own");
        host.store();
    }
}
