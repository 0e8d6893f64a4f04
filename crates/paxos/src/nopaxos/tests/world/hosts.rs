// SPDX-License-Identifier: Apache-2.0
//! The hosts of the world.

use super::*;

impl Host {
    pub(super) fn new(member: Member, app: Vec<u64>) -> Host {
        let mut replica = Replica::new(hasty(member), app.len() as u64);
        replica.keep(START);
        let mut head = Vec::new();
        replica.save_stored_head(&mut head);
        Host {
            replica,
            receiver: Receiver::new(ReceiverSettings {
                deployment: deployment(member.node),
                pid: 0,
                slots: SLOTS,
                reorder_wait: 0,
            }),
            listens_to: 0,
            durable: app.len(),
            held: Vec::new(),
            now: 0,
            stored: vec![Stored::Head(head)],
            app,
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        let replica = &self.replica;
        replica.status() == Status::Normal && replica.view().epoch() == self.listens_to
    }

    /// Makes the receiver follow the replica: to its view's session, and back if a new view's log
    /// is shorter.
    pub(super) fn listen(&mut self) {
        if self.replica.status() != Status::Normal {
            return;
        }
        let (session, next) = (self.replica.view().epoch(), self.replica.next());
        if session != self.listens_to || self.receiver.position() > next {
            let sequencer = SEQUENCER + session as NodeId;
            self.receiver.terminate(session);
            self.receiver.listen(session, sequencer, next);
            self.listens_to = session;
        }
        // The log has got these slots from elsewhere.
        while self.receiver.position() < next {
            match self.receiver.next(self.now) {
                Some(Delivery::Message(_)) => {}
                Some(Delivery::Dropped(_)) => self.receiver.skip(),
                _ => self
                    .receiver
                    .listen(session, SEQUENCER + session as NodeId, next),
            }
        }
    }

    /// Returns the next slot of the replica's log, if it has come.
    pub(super) fn delivered(&mut self) -> Option<Message> {
        self.listen();
        if !self.is_listening() {
            return None;
        }
        let session = self.listens_to;
        let Some(Delivery::Message(m)) = self.receiver.next(self.now) else {
            return None;
        };
        let sequencer = SEQUENCER + session as NodeId;
        let header = Header {
            flags: m.flags,
            client: m.client,
            swid: sequencer,
            ..ordered(session, m.slot, m.request)
        };
        Some(Message {
            from: sequencer,
            to: self.replica.member().node,
            header,
            value: m.value.to_vec(),
        })
    }

    /// Stores the changes.
    pub(super) fn store(&mut self) {
        let Some(unstored) = self.replica.unstored() else {
            return;
        };
        for inst in &unstored.slots {
            let mut entry = Vec::new();
            self.replica.save_entry(*inst, &mut entry);
            self.stored.push(Stored::Entry(entry));
        }
        let mut bytes = Vec::new();
        let saved = unstored.save(&self.replica, &mut bytes);
        self.stored.push(Stored::Commit(saved, bytes));
        self.replica.has_stored(unstored);
    }

    /// Returns the replica on the disk.
    pub(super) fn loaded(&self) -> Result<Replica, &'static str> {
        let member = self.replica.member();
        let mut loaded = Loaded::new(deployment(member.node), 0, SLOTS);
        for stored in &self.stored {
            let read = match stored {
                Stored::Head(bytes) => loaded.head(bytes),
                Stored::Entry(bytes) => loaded.entry(bytes).map(drop),
                Stored::Commit(saved, bytes) => loaded.commit(*saved, bytes),
            };
            read.expect("its own");
        }
        let replica = loaded.into_replica(hasty(member), START)?;
        Ok(replica.expect("it is there"))
    }

    pub(super) fn restart(&mut self) -> Result<(), &'static str> {
        self.replica = self.loaded()?;
        self.listens_to = 0;
        self.held.clear();
        self.app.truncate(self.durable);
        let position = self.app.len() as u64;
        if position > self.replica.stable() {
            let mut nobody = Sent::default();
            self.replica.restored(self.now, position, &mut nobody);
        }
        Ok(())
    }
}

impl World {
    /// Loses a memory, with everything but the application's state on disk, as long as enough
    /// memories are left of each session that a view may need.
    pub(super) fn crash(&mut self, node: NodeId) {
        let last_active = self
            .store
            .iter()
            .rposition(|s| matches!(s.stage, Stage::Active { .. }));
        let needed = &self.store[last_active.unwrap_or(0)..];
        let survive = |s: &Session| {
            let alive = s
                .members
                .iter()
                .filter(|m| m.node != node && self.hosts[&m.node].replica.member() == **m);
            alive.count() > s.f as usize
        };
        if !needed.iter().all(survive) || self.store.len() == MAX_SESSIONS as usize {
            return;
        }
        let host = &self.hosts[&node];
        let mut nonce = host.replica.member().nonce;
        let mut app = host.app.clone();
        app.truncate(host.durable);
        if self.mutation == Some(Mutation::Forgets) {
            app.clear();
        } else {
            self.nonces += 1;
            nonce = self.nonces;
        }
        let now = host.now;
        self.count("crash");
        let mut host = Host::new(Member { node, nonce }, app);
        host.now = now;
        self.hosts.insert(node, host);
    }

    /// Ends the process or fails the power, so that the memory is what is on disk. [N-RESTART]
    pub(super) fn restart(&mut self, node: NodeId) {
        self.count("restart");
        let host = self.hosts.get_mut(&node).expect("a host");
        if let Err(why) = host.restart() {
            // A deliberate mistake may have stored a state that no replica can have.
            if self.mutation.is_none() {
                self.violations
                    .push(format!("{node} refuses its log: {why}"));
            }
            return;
        }
        let mut out = Sent::default();
        let nonce = host.replica.member().nonce;
        let resumed = host.replica.resume(host.now, nonce, START, &mut out);
        assert_eq!(resumed, Ok(true));
        host.store();
        self.route(node, None, out);
        self.look_at(node);
    }

    /// Stops and starts the whole cluster.
    pub(super) fn restart_all(&mut self) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.restart(node));
    }

    /// Stores the application's state up to some slot below `stable`, and lets the log forget some
    /// of it.
    pub(super) fn checkpoint(&mut self, node: NodeId) {
        let lazy = self.rng.percent(50);
        // The application takes back what it must before anything is stored.
        self.execute(node);
        let host = self.hosts.get_mut(&node).expect("a host");
        let stable = host.replica.stable().min(host.app.len() as u64);
        host.durable = host.durable.max(stable as usize);
        if !lazy {
            let inst = host.durable as u64;
            let mut out = Sent::default();
            host.replica.checkpointed(host.now, inst, &mut out);
            host.store();
            self.route(node, None, out);
            self.trim(node, inst);
        }
    }

    /// Tells the sequencers the slot that is on disk.
    fn trim(&mut self, node: NodeId, inst: Instance) {
        let header = Header {
            cluster: CLUSTER,
            group: 1,
            swid: node,
            inst,
            client: self.hosts[&node].replica.member().nonce,
            request: self.store.len() as u64,
            ..Header::new(MsgType::Trim)
        };
        for session in 1..=self.store.len() as NodeId {
            let message = Message {
                from: node,
                to: SEQUENCER + session,
                header,
                value: Vec::new(),
            };
            // The TRIM is repeated until it arrives; some of them are late.
            match self.rng.percent(70) {
                true => self.at_sequencer(&message),
                false => self.send(message),
            }
        }
    }

    /// Executes and acknowledges after a batch.
    pub(super) fn end_batch(&mut self, node: NodeId) {
        self.execute(node);
        let host = self.hosts.get_mut(&node).expect("a host");
        if self.rng.percent(10) {
            host.replica.set_crowded(self.rng.percent(50), 0);
        }
        if let Some(ack) = host.replica.take_ack() {
            self.checker.sent(&ack.header.datagram(&[]));
            self.send(Message {
                from: node,
                to: CLIENT,
                header: ack.header,
                value: Vec::new(),
            });
        }
    }

    fn execute(&mut self, node: NodeId) {
        let no_rollback = self.mutation == Some(Mutation::NoRollback);
        let host = self.hosts.get_mut(&node).expect("a host");
        if let Some(rewind) = host.replica.take_rewind() {
            if (rewind as usize) < host.durable {
                let what = format!("{node} takes back slot {rewind}, which is on disk");
                self.violations.push(what);
                return;
            }
            if !no_rollback && (rewind as usize) < host.app.len() {
                host.app.truncate(rewind as usize);
                host.held.retain(|(h, _)| h.inst < rewind);
                *self.counts.entry("rollback").or_default() += 1;
            }
        }
        let (leads, ready) = (host.replica.leads(), host.replica.ready());
        let mut replies = Vec::new();
        while (host.app.len() as u64) < ready {
            let inst = host.app.len() as u64;
            let Some(entry) = host.replica.entry(inst) else {
                break;
            };
            host.app.push(executed(host.app.last(), &entry));
            if leads && !entry.is_noop() {
                let header = Header {
                    inst,
                    client: entry.client,
                    request: entry.request,
                    ..host.replica.header(MsgType::Reply, host.replica.view())
                };
                replies.push((header, host.app[inst as usize]));
            }
        }
        if leads {
            self.check_answers(node, ready);
        }
        for (header, answer) in self.hold(node, replies) {
            self.checker.sent(&header.datagram(&answer.to_be_bytes()));
            self.send(Message {
                from: node,
                to: CLIENT,
                header,
                value: answer.to_be_bytes().to_vec(),
            });
        }
    }

    /// Keeps the answers to a crowd until they are final. Returns those that leave, which name no
    /// view then. [N-CROWD]
    fn hold(&mut self, node: NodeId, replies: Vec<(Header, u64)>) -> Vec<(Header, u64)> {
        let is_early = self.mutation == Some(Mutation::CrowdAnsweredEarly);
        let host = self.hosts.get_mut(&node).expect("a host");
        let held_below = host.replica.held_below();
        let stable = match is_early {
            true => Instance::MAX,
            false => host.replica.stable(),
        };
        let is_of_crowd = |(h, _): &(Header, u64)| h.inst < held_below;
        let (of_crowd, mut leave): (Vec<_>, Vec<_>) = replies.into_iter().partition(is_of_crowd);
        host.held.extend(of_crowd);
        let is_final = |(h, _): &(Header, u64)| h.inst < stable;
        let held = std::mem::take(&mut host.held).into_iter();
        let (finals, held): (Vec<_>, Vec<_>) = held.partition(is_final);
        host.held = held;
        *self.counts.entry("held").or_default() += finals.len() as u64;
        let rnd = Round::NONE;
        leave.extend(
            finals
                .into_iter()
                .map(|(h, answer)| (Header { rnd, ..h }, answer)),
        );
        leave
    }

    /// Checks that a leader's answers were computed on its log.
    fn check_answers(&mut self, node: NodeId, ready: Instance) {
        let host = &self.hosts[&node];
        let floor = host.replica.floor();
        for inst in floor..ready.min(host.app.len() as u64) {
            let before = (inst > 0).then(|| &host.app[inst as usize - 1]);
            let entry = host.replica.entry(inst).expect("it is filled");
            if host.app[inst as usize] != executed(before, &entry) {
                let what =
                    format!("{node} has executed something else than slot {inst} of its log");
                self.violations.push(what);
                return;
            }
        }
    }

    pub fn tick(&mut self, node: NodeId, pause: Time) {
        let host = self.hosts.get_mut(&node).expect("a host");
        host.now += pause;
        let mut out = Sent::default();
        host.replica.tick(host.now, &mut out);
        // Time changes nothing that must survive. [N-TIME]
        let unstored = host.replica.unstored();
        if let Some(unstored) = unstored.filter(|_| self.mutation.is_none()) {
            self.violations
                .push(format!("time alone has changed {node}: {unstored:?}"));
        }
        self.route(node, None, out);
        self.fetch_state(node);
        self.end_batch(node);
        self.report_view(node);
        self.look_at(node);
    }

    /// Lets a replica that is too far behind take another one's durable state.
    fn fetch_state(&mut self, node: NodeId) {
        if let Some(wanted) = self.hosts[&node].replica.wants_checkpoint() {
            self.take_state(node, wanted, "state fetched");
        }
    }

    /// Lets a replica take another one's state, as if another partition of its node needed it. A
    /// leader that has slept over a later view is preferred.
    pub(super) fn take_state_unasked(&mut self, node: NodeId) {
        let latest = self.hosts.values().map(|h| h.replica.last_normal()).max();
        let sleeps = |h: &&Host| h.replica.leads() && Some(h.replica.view()) < latest;
        let sleeper = self.hosts.values().find(sleeps);
        let sleeper = sleeper.map(|h| h.replica.member().node);
        if sleeper.is_none() && !self.rng.once_in(4) {
            return;
        }
        let node = sleeper.unwrap_or(node);
        let furthest = self.hosts.values().max_by_key(|h| h.replica.stable());
        if let Some(source) = furthest.map(|h| h.replica.member().node) {
            self.checkpoint(source);
        }
        let wanted = self.hosts[&node].replica.stable() + 1;
        self.take_state(node, wanted, "state taken");
    }

    /// Lets a replica take another one's durable state that reaches to `wanted` at least, if there
    /// is one.
    fn take_state(&mut self, node: NodeId, wanted: Instance, how: &'static str) {
        let source = self.hosts.values().find(|h| h.durable as u64 >= wanted);
        let Some(state) = source.map(|h| h.app[..h.durable].to_vec()) else {
            return;
        };
        self.count(how);
        let host = self.hosts.get_mut(&node).expect("a host");
        let inst = state.len() as u64;
        host.durable = state.len();
        host.app = state;
        host.held.clear();
        let mut out = Sent::default();
        let before = host.replica.clone();
        host.replica.restored(host.now, inst, &mut out);
        if let Some(mutation) = self.mutation {
            mutation.after_restored(&mut host.replica, before, &mut out);
        }
        host.store();
        self.route(node, None, out);
    }
}
