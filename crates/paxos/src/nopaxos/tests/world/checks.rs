// SPDX-License-Identifier: Apache-2.0
//! The client, what must hold, and the end, where nothing is lost any more.

use super::*;

impl World {
    pub(super) fn answer(&mut self, message: &Message) {
        let h = &message.header;
        if h.msgtype == MsgType::Reply {
            let digest = u64::from_be_bytes(message.value[..].try_into().expect("a digest"));
            if let Ok(Some(_)) = self.client.reply(h, (h.rnd, h.inst, digest)) {
                self.final_answer(h.inst, digest);
            }
        } else {
            let _ = self.client.ack(h);
            self.acked.insert((h.rnd, h.swid), h.inst);
            if self.mutation == Some(Mutation::FollowersSuffice) {
                self.believe_followers(h);
            }
        }
        while let Some((_, inst, digest)) = self.client.next() {
            self.final_answer(inst, digest);
        }
    }

    fn believe_followers(&mut self, h: &Header) {
        let f = self.hosts.len() / 2;
        let reached = self
            .acked
            .iter()
            .filter(|((v, _), inst)| *v == h.rnd && **inst >= h.inst);
        if reached.count() <= f || h.inst == 0 {
            return;
        }
        let replica = &self.hosts[&h.swid].replica;
        if replica.view() == h.rnd && replica.floor() == 0 {
            let digest = digest_of(replica, h.inst);
            self.final_answer(h.inst - 1, digest);
        }
    }

    fn final_answer(&mut self, inst: Instance, digest: u64) {
        self.count("final");
        let first = *self.finals.entry(inst).or_insert(digest);
        if first != digest {
            self.violations
                .push(format!("two final answers for slot {inst}"));
        }
    }

    /// Checks a replica's log, whenever something has happened to it.
    pub(super) fn look_at(&mut self, node: NodeId) {
        let replica = &self.hosts[&node].replica;
        let normal_in = (replica.status() == Status::Normal).then(|| replica.view().0);
        let ends = (replica.floor(), replica.stable(), replica.next());
        let content = |inst| match replica.entry(inst) {
            Some(entry) => {
                Content::whole((entry.client, entry.request), entry.flags.0, entry.value)
            }
            None => Content::Request,
        };
        self.checker.shown(node, normal_in, ends, content);
        if self.mutation.is_none() && replica.in_conflict() {
            self.violations.push(format!("{node}: conflict"));
        }
    }

    pub fn is_violated(&self) -> bool {
        !self.violations.is_empty() || !self.checker.violations().is_empty()
    }

    pub fn first_violation(&self) -> Option<String> {
        let broken = self.checker.violations().first();
        let broken = broken.map(|v| format!("{}: {}", v.id, v.what));
        self.violations.first().cloned().or(broken)
    }

    /// Returns true if all replicas make progress once the network is good, and have the same log.
    pub fn settles(&mut self) -> bool {
        for round in 0..400 {
            let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
            for node in &nodes {
                self.tell_store(*node);
                self.tick(*node, 2_000_000);
            }
            let soup = std::mem::take(&mut self.soup);
            for message in soup {
                self.deliver(message);
            }
            nodes.iter().for_each(|node| self.end_batch(*node));
            if self.is_violated() {
                return false;
            }
            if self.is_settled() {
                return true;
            }
            if round % 8 == 0 {
                self.heal();
            }
        }
        false
    }

    /// Describes the state of all replicas, for messages.
    pub fn report(&self) -> String {
        let mut report = format!(
            "{:?}",
            self.store.iter().map(|s| s.stage).collect::<Vec<_>>()
        );
        for (node, host) in &self.hosts {
            let r = &host.replica;
            let place = (
                r.status(),
                r.view(),
                r.last_normal(),
                r.next(),
                r.stable(),
                r.floor(),
            );
            let last = self.store.last().expect("a session");
            let named = last.place(r.member()).is_some();
            report += &format!(
                "\n{node}: {place:?} short {:?} named {named} app {} durable {} next deadline {:?} \
                 now {}",
                r.wants_checkpoint(),
                host.app.len(),
                host.durable,
                r.next_deadline(),
                host.now
            );
        }
        report
    }

    /// Lets the controller go on with the session that it has begun, and name all memories that are
    /// there.
    fn heal(&mut self) {
        let names_all = !self.is_outdated();
        match self.store.last().expect("a session").stage {
            Stage::Active { .. } if names_all => {
                self.program();
                self.request();
            }
            _ if !names_all => self.issue(),
            _ => self.carry_on(MAX_REPORTS),
        }
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        nodes.iter().for_each(|node| self.checkpoint(*node));
    }

    fn is_settled(&self) -> bool {
        let last = self.store.last().expect("a session");
        let replicas = || self.hosts.values().map(|h| &h.replica);
        let (view, next) = replicas()
            .map(|r| (r.view(), r.next()))
            .max()
            .expect("replicas");
        let at_end = |r: &Replica| {
            let place = (r.status(), r.view(), r.next(), r.stable());
            place == (Status::Normal, view, next, next)
        };
        let is_active = matches!(last.stage, Stage::Active { .. });
        is_active && view.epoch() == last.number && replicas().all(at_end)
    }

    /// Checks that a durable replica that restarts is where it was. It hears again what others have
    /// told it. [N-STORED]
    pub fn check_restarts(&mut self) {
        for (node, host) in &self.hosts {
            let memory = |r: &Replica| {
                let entry = |inst| {
                    r.entry(inst)
                        .map(|e| (e.stamp, e.flags, e.client, e.request))
                };
                let log: Vec<_> = (r.floor()..r.next()).map(entry).collect();
                let views = (r.view(), r.last_normal(), r.status());
                let alarm = r.in_conflict();
                (
                    views,
                    r.floor(),
                    r.stable(),
                    log,
                    r.begun.clone(),
                    alarm,
                    r.sessions.clone(),
                )
            };
            let loaded = host.loaded().expect("its own");
            let (found, wanted) = (memory(&loaded), memory(&host.replica));
            if found != wanted {
                self.violations
                    .push(format!("{node} restarts as {found:?}, was {wanted:?}"));
            }
        }
    }

    /// Checks that every final answer was computed on the log that all have in the end.
    pub fn check_finals(&mut self) {
        let longest = self.hosts.values().max_by_key(|h| h.app.len());
        let app = &longest.expect("hosts").app;
        let wrong = self
            .finals
            .iter()
            .find(|(inst, digest)| app.get(**inst as usize) != Some(digest));
        if let Some((inst, _)) = wrong {
            self.violations
                .push(format!("the final answer of slot {inst} isn't of the log"));
        }
    }
}
