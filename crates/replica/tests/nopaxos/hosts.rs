// SPDX-License-Identifier: Apache-2.0
//! Packets between the nodes of the cluster, and what its hosts do with them.

use super::*;

impl<K: Persistent> Cluster<K> {
    // ---- Packets

    pub(super) fn deliver(&mut self, arrival: &Arrival) {
        let packet = arrival.packet();
        match arrival.to {
            CLIENT => self.on_client_packet(&packet),
            SEQUENCER => {
                let mut out = Sent::default();
                let _ = self.sequencer.step(&packet, &mut out);
                self.send(SEQUENCER, arrival.from, out);
            }
            node => {
                let index = REPLICAS.iter().position(|n| *n == node);
                if let Some(index) = index {
                    let _ = self.step(index, arrival.from, &packet);
                }
            }
        }
    }

    pub(super) fn step(
        &mut self,
        index: usize,
        from: NodeId,
        packet: &Packet<'_>,
    ) -> Option<Verdict> {
        let now = self.now();
        let host = &mut self.hosts[index];
        let worker = host.worker.as_mut()?;
        let (mut out, before) = (Out::default(), worker.next());
        let verdict = worker.step(now, packet, &mut out);
        assert!(out.replies.is_empty() && out.acks.is_empty());
        self.rewinds += u64::from(worker.next() < before);
        self.forward(index, from, out);
        self.look_at(index);
        Some(verdict)
    }

    pub(super) fn send(&mut self, from: NodeId, asker: NodeId, out: Sent) {
        for (_, header, value) in &out.0 {
            let prepares = header.msgtype == MsgType::SyncPrepare;
            self.crowds += u64::from(prepares && !header.vrnd.is_none());
            self.judge(&header.datagram(value));
        }
        self.world.send(from, asker, out);
    }

    pub(super) fn forward(&mut self, index: usize, asker: NodeId, out: Out) {
        let node = self.hosts[index].node;
        self.look_at(index);
        for reply in &out.replies {
            self.check_final(reply);
            let ReplyTo::Address(..) = reply.to else {
                self.locals.push(reply.clone());
                continue;
            };
            let basis = reply.basis;
            let (rnd, inst) = basis.map_or((Round::NONE, 0), |basis| (basis.view, basis.slot));
            self.speculative += u64::from(basis.is_some());
            let header = Header {
                client: reply.client,
                request: reply.request,
                rnd,
                inst,
                swid: node,
                cluster: CLUSTER,
                group: GROUP,
                ..Header::new(MsgType::Reply)
            };
            let value = [&[reply.status as u8][..], &reply.bytes].concat();
            let datagram = header.datagram(&value);
            if self.names_its_slot(index, reply) {
                self.judge(&datagram);
            }
            self.world.carry(node, CLIENT, &datagram);
        }
        for (to, header) in &out.acks {
            let ReplyTo::Address(..) = to else {
                continue;
            };
            let datagram = header.datagram(&[]);
            self.judge(&datagram);
            self.world.carry(node, CLIENT, &datagram);
        }
        self.send(node, asker, Sent(out.sent));
    }

    /// Checks that a final answer is stable. [K-STABLE]
    pub(super) fn check_final(&self, reply: &Reply) {
        let of = (reply.client, reply.request);
        let is_final = reply.basis.is_none();
        // In the model a replica answers only its own front end.
        let is_stable = || self.history.iter().any(|value| (value.1, value.2) == of);
        assert!(
            !is_final || self.expected.contains_key(&of) || is_stable(),
            "{of:?} is answered for good, and isn't stable"
        );
    }

    /// Returns whether an answer is to the value of its slot, and not to a part of one.
    pub(super) fn names_its_slot(&self, index: usize, reply: &Reply) -> bool {
        let worker = self.hosts[index].worker.as_ref();
        let slot = worker.zip(reply.basis);
        let value = slot.and_then(|(worker, basis)| worker.agreement().entry(basis.slot));
        value.is_some_and(|v| !v.flags.has(Flags::PACKED))
    }

    /// Looks at a replica's log after anything that may have changed it, and at the instances that
    /// have become stable since.
    pub(super) fn look_at(&mut self, index: usize) {
        let host = &self.hosts[index];
        let Some(worker) = &host.worker else {
            return;
        };
        let role = worker.agreement().replica();
        let normal_in = (role.status() == Doing::Normal).then(|| role.view().0);
        let content = |inst| match role.entry(inst) {
            Some(entry) if entry.is_noop() => Content::Noop,
            Some(entry) => Content::Known(entry.client, entry.request),
            None => Content::Request,
        };
        let ends = (role.floor(), role.stable(), role.next());
        if role.view().epoch() >= self.anew {
            self.checker.shown(host.node, normal_in, ends, content);
        }
        assert_eq!(self.checker.violations(), []);
        assert!(!role.in_conflict());
        while (self.history.len() as Instance) < role.stable() {
            let slot = self.history.len() as Instance;
            let value = match self.given_up.contains(&slot) {
                true => (Flags::NOOP, 0, 0, Vec::new()),
                false => {
                    let value = worker.agreement().entry(slot).expect("somebody has it");
                    (value.flags, value.client, value.request, value.value.into())
                }
            };
            for reply in self.model.log(&value) {
                let of = (reply.client, reply.request);
                let first = self.expected.entry(of);
                first.or_insert((reply.status, reply.bytes));
            }
            self.history.push(value);
        }
        let executed = worker.next();
        assert!(executed <= role.next().max(role.stable()));
    }

    // ---- Hosts

    pub(super) fn attend(&mut self, index: usize) {
        let now = self.now();
        let ends_batch = self.scripted || self.world.rng.percent(50);
        let host = &mut self.hosts[index];
        let Some(worker) = &mut host.worker else {
            if now >= host.restart_at {
                self.boot(index);
            }
            return;
        };
        let (mut out, before) = (Out::default(), worker.next());
        if worker.next_deadline().is_some_and(|due| due <= now) {
            worker.tick(now, &mut out).unwrap();
            let next = worker.next_deadline();
            assert!(next.is_none_or(|due| due > now), "it would spin");
        }
        if ends_batch {
            worker.finish_batch(now, &mut out).unwrap();
        }
        self.rewinds += u64::from(worker.next() < before);
        host.writing = worker.take_checkpoint().or(host.writing.take());
        if self.scripted || self.world.rng.percent(20) {
            if let Some(write) = host.writing.take() {
                worker.end_checkpoint(now, write()).unwrap();
            }
        }
        let wanted = worker.wanted();
        assert!(!wanted.new_epoch);
        if wanted.incarnation {
            self.nonces += 1;
            worker.set_incarnation(self.nonces).unwrap();
        }
        self.forward(index, CLIENT, out);
        self.look_at(index);
        if wanted.checkpoint_at_least.is_some() {
            self.catch_up(index);
        }
    }

    pub(super) fn catch_up(&mut self, index: usize) {
        let from = (index + 1 + self.world.rng.below(2) as usize) % 3;
        let Some(worker) = &mut self.hosts[from].worker else {
            return;
        };
        let (position, mut snapshot) = worker.snapshot().unwrap();
        assert!(position <= self.history.len() as Instance);
        let mut bytes = Vec::new();
        snapshot.write_to(&mut bytes).unwrap();
        let now = self.now();
        let host = &mut self.hosts[index];
        let worker = host.worker.as_mut().unwrap();
        if let Some(write) = host.writing.take() {
            worker.end_checkpoint(now, write()).unwrap();
        }
        let before = worker.next();
        worker.restore(now, position, &mut &bytes[..]).unwrap();
        self.restored += u64::from(worker.next() > before);
        self.look_at(index);
    }
}
