// SPDX-License-Identifier: Apache-2.0
//! Draws the faults of a plan.

use ::lab::{Shape, Topology};
use lab::topology::{Role, TRUNK};
use node::cluster_file::Protocol;
use test_world::Rng;

use super::{CALM_MS, Damage, Fault, Step};

pub(super) struct Drawing {
    pub(super) shape: Shape,
    pub(super) protocol: Protocol,
    nodes: Vec<(Role, String)>,
    rng: Rng,
}

/// A kind of fault: how often it is drawn, its name, and the function that draws it. The function
/// returns faults, each some milliseconds after the first.
type FaultKind = (u64, &'static str, fn(&mut Drawing) -> Vec<(u64, Fault)>);

pub(super) const OF_PAXOS: &[FaultKind] = &[
    (10, "kill", |d| alone(d.kill(false))),
    (6, "machine dies", |d| alone(d.kill(true))),
    (5, "stop", |d| alone(d.stop())),
    (5, "both leaders", |d| alone(d.kill_all(Role::Leader))),
    (4, "all replicas", |d| alone(d.kill_all(Role::Replica))),
    (5, "f+1 acceptors", |d| alone(d.kill_voters())),
    (3, "everything at once", |d| alone(d.everything())),
    (9, "pause", |d| alone(d.pause())),
    (7, "isolation", |d| alone(d.isolate())),
    (4, "link down", |d| alone(d.link_down())),
    (7, "partition", Drawing::cut),
    (9, "bad links", |d| alone(d.weather())),
    (4, "failover by hand", |_| alone(Fault::Failover)),
    (4, "another majority", Drawing::another_majority),
    (4, "behind a replica", Drawing::behind_a_replica),
    (4, "wiped replica", |d| alone(d.wipe(Role::Replica))),
    (3, "wiped acceptor", |d| alone(d.wipe(Role::Acceptor))),
    (4, "full disk", |d| alone(d.full_disk())),
    (5, "flipped bit", |d| alone(d.damage(Damage::Flip))),
    (3, "truncated file", |d| alone(d.damage(Damage::Truncate))),
    (2, "removed file", |d| alone(d.damage(Damage::Remove))),
    (5, "old copy", |d| alone(d.damage(Damage::OldCopy))),
    (3, "foreign directory", |d| alone(d.damage(Damage::Foreign))),
];

pub(super) const OF_NOPAXOS: &[FaultKind] = &[
    (16, "kill", |d| alone(d.kill(false))),
    (8, "machine dies", |d| alone(d.kill(true))),
    (5, "stop", |d| alone(d.stop())),
    (6, "both sequencers", |d| alone(d.kill_all(Role::Sequencer))),
    (5, "f+1 replicas", |d| d.if_durable(Drawing::kill_voters)),
    (4, "everything at once", |d| {
        d.if_durable(Drawing::everything)
    }),
    (9, "pause", |d| alone(d.pause())),
    (5, "paused sequencer", |d| alone(d.pause_sequencer())),
    (6, "sequencer cut off", Drawing::cut_sequencer_off),
    (6, "slow sequencer", Drawing::slow_sequencer),
    (7, "isolation", |d| alone(d.isolate())),
    (4, "link down", |d| alone(d.link_down())),
    (7, "partition", Drawing::cut),
    (7, "replica alone", Drawing::replica_alone),
    (9, "bad links", |d| alone(d.weather())),
    (5, "failover by hand", |_| alone(Fault::Failover)),
    (5, "another majority", Drawing::another_majority),
    (5, "behind a replica", Drawing::behind_a_replica),
    (4, "wiped replica", |d| alone(d.wipe(Role::Replica))),
    (2, "full disk", |d| alone(d.full_disk())),
    (5, "flipped bit", |d| alone(d.damage(Damage::Flip))),
    (3, "truncated file", |d| alone(d.damage(Damage::Truncate))),
    (2, "removed file", |d| alone(d.damage(Damage::Remove))),
    (5, "old copy", |d| alone(d.damage(Damage::OldCopy))),
    (3, "foreign directory", |d| alone(d.damage(Damage::Foreign))),
];

fn kinds(protocol: Protocol) -> &'static [FaultKind] {
    match protocol {
        Protocol::Paxos => OF_PAXOS,
        Protocol::NoPaxos => OF_NOPAXOS,
    }
}

fn alone(fault: Fault) -> Vec<(u64, Fault)> {
    vec![(0, fault)]
}

impl Drawing {
    pub(super) fn new(shape: &Shape, protocol: Protocol, rng: Rng) -> Drawing {
        let hosts = shape.hosts().into_iter();
        let nodes = hosts.filter(|h| h.role.is_node());
        Drawing {
            shape: shape.clone(),
            protocol,
            nodes: nodes.map(|h| (h.role, h.name)).collect(),
            rng,
        }
    }

    /// Draws kills of one process after the other, of those that agree and execute. Each comes back
    /// soon, often while the one before it is still starting.
    pub(super) fn kills(&mut self, count: u32) -> (Vec<Step>, u64) {
        let victims = [Role::Leader, Role::Sequencer, Role::Acceptor, Role::Replica];
        let victims = self.of_roles(&victims);
        let mut at_ms = CALM_MS;
        let mut kill = |_| {
            at_ms += self.rng.between(100, 1200);
            let fault = Fault::Kill {
                nodes: vec![self.rng.pick(&victims).clone()],
                machine: false,
                for_ms: self.rng.between(50, 800),
            };
            let kind = "kill";
            Step { at_ms, kind, fault }
        };
        let steps = (0..count).map(&mut kill).collect();
        (steps, at_ms + CALM_MS)
    }

    pub(super) fn steps(&mut self, end_ms: u64) -> Vec<Step> {
        let kinds = kinds(self.protocol);
        let total: u64 = kinds.iter().map(|kind| kind.0).sum();
        let mut steps = Vec::new();
        let mut at_ms = CALM_MS.min(end_ms / 4);
        while at_ms + CALM_MS.min(end_ms / 4) < end_ms {
            let mut left = self.rng.below(total);
            let chosen = kinds.iter().find(|kind| {
                let found = left < kind.0;
                left = left.saturating_sub(kind.0);
                found
            });
            let (_, kind, make) = chosen.expect("left is below the total");
            for (after_ms, fault) in make(self) {
                at_ms += after_ms;
                steps.push(Step { at_ms, kind, fault });
            }
            at_ms += self.rng.between(300, 4500);
        }
        steps
    }

    fn of_roles(&self, roles: &[Role]) -> Vec<String> {
        let nodes = self.nodes.iter().filter(|(role, _)| roles.contains(role));
        nodes.map(|(_, name)| name.clone()).collect()
    }

    fn any(&mut self) -> String {
        self.rng.pick(&self.nodes).1.clone()
    }

    /// Returns who puts commands in order.
    fn stampers(&self) -> Role {
        match self.protocol {
            Protocol::Paxos => Role::Leader,
            Protocol::NoPaxos => Role::Sequencer,
        }
    }

    /// Returns the role of which a majority decides.
    fn voters(&self) -> Role {
        match self.protocol {
            Protocol::Paxos => Role::Acceptor,
            Protocol::NoPaxos => Role::Replica,
        }
    }

    fn one_of(&mut self, role: Role) -> String {
        let names = self.of_roles(&[role]);
        self.rng.pick(&names).clone()
    }

    /// Draws how long a fault lasts, mostly a short time.
    pub(super) fn for_ms(&mut self, longest: u64) -> u64 {
        let most = match self.rng.below(4) {
            0 => longest,
            _ => longest / 4,
        };
        self.rng.between(100, most.max(101))
    }

    fn kill(&mut self, machine: bool) -> Fault {
        Fault::Kill {
            nodes: vec![self.any()],
            machine,
            for_ms: self.for_ms(6000),
        }
    }

    fn stop(&mut self) -> Fault {
        Fault::Stop {
            nodes: vec![self.any()],
            hang_up: self.rng.chance(300_000),
            for_ms: self.for_ms(6000),
        }
    }

    fn kill_all(&mut self, role: Role) -> Fault {
        Fault::Kill {
            nodes: self.of_roles(&[role]),
            machine: true,
            for_ms: self.for_ms(4000),
        }
    }

    fn kill_voters(&mut self) -> Fault {
        let nodes = self.majority();
        let for_ms = self.for_ms(4000);
        self.machines_die(nodes, for_ms)
    }

    /// Draws at least f+1 voters.
    fn majority(&mut self) -> Vec<String> {
        let mut nodes = self.of_roles(&[self.voters()]);
        if self.rng.chance(500_000) {
            let spared = self.rng.below(nodes.len() as u64) as usize;
            nodes.remove(spared);
        }
        nodes
    }

    /// Draws a fault of a node whose log is on disk. A log in memory goes with its process, however
    /// that ends, so no two of those may end at once.
    fn if_durable(&mut self, fault: fn(&mut Drawing) -> Fault) -> Vec<(u64, Fault)> {
        match self.shape.durable {
            true => alone(fault(self)),
            false => Vec::new(),
        }
    }

    fn everything(&mut self) -> Fault {
        let nodes = self.nodes.iter().map(|(_, name)| name.clone()).collect();
        let for_ms = self.for_ms(3000);
        self.machines_die(nodes, for_ms)
    }

    /// Returns the fault in which these machines die at once, a majority of the acceptors among
    /// them. What volatile acceptors remember is only kept by a stop in good order, so they are
    /// stopped instead.
    fn machines_die(&self, nodes: Vec<String>, for_ms: u64) -> Fault {
        match self.shape.durable {
            true => Fault::Kill {
                nodes,
                machine: true,
                for_ms,
            },
            false => Fault::Stop {
                nodes,
                hang_up: false,
                for_ms,
            },
        }
    }

    fn pause(&mut self) -> Fault {
        let mut nodes = vec![self.any()];
        if self.rng.chance(250_000) {
            nodes.push(self.any());
            nodes.sort();
            nodes.dedup();
        }
        Fault::Pause {
            nodes,
            for_ms: self.for_ms(10_000),
        }
    }

    fn pause_sequencer(&mut self) -> Fault {
        Fault::Pause {
            nodes: vec![self.one_of(Role::Sequencer)],
            for_ms: self.rng.between(200, 8000),
        }
    }

    /// Cuts the sequencer off; it goes on stamping for whoever still reaches it, or believes that
    /// it does.
    fn cut_sequencer_off(&mut self) -> Vec<(u64, Fault)> {
        let links = vec![self.one_of(Role::Sequencer)];
        let for_ms = self.rng.between(100, 8000);
        match self.shape.in_switch {
            true => Vec::new(),
            false => alone(Fault::Isolate { links, for_ms }),
        }
    }

    /// Slows the sequencer down, so that what it has stamped may arrive when another one stamps.
    fn slow_sequencer(&mut self) -> Vec<(u64, Fault)> {
        let link = self.one_of(Role::Sequencer);
        let delay_ms = *self.rng.pick(&[1, 10, 100, 500]) + self.rng.below(10);
        let for_ms = self.rng.between(200, 8000);
        match self.shape.in_switch {
            true => Vec::new(),
            false => alone(Fault::Slow {
                link,
                delay_ms,
                for_ms,
            }),
        }
    }

    /// Lets one replica alone hear the sequencers. If it leads, it is ahead of all others, and soon
    /// deposed.
    fn replica_alone(&mut self) -> Vec<(u64, Fault)> {
        let mut others = self.of_roles(&[Role::Replica]);
        let one = self.rng.below(others.len() as u64) as usize;
        let mut from = self.of_roles(&[Role::Sequencer]);
        from.push(others.remove(one));
        let for_ms = self.rng.between(50, 3000);
        match self.reaches_by_stacks() {
            true => alone(Fault::Cut {
                from,
                to: others,
                both_ways: true,
                for_ms,
            }),
            false => Vec::new(),
        }
    }

    /// Returns whether all are behind stacks of hosts of their own.
    fn reaches_by_stacks(&self) -> bool {
        self.shape.plane == "udp" && !self.shape.in_switch
    }

    pub(super) fn links(&self) -> Vec<String> {
        let links = self.shape.links().into_iter().map(|link| link.name);
        links.filter(|name| !name.starts_with("client")).collect()
    }

    fn isolate(&mut self) -> Fault {
        let all = self.links();
        let two_switches = self.shape.topology == Topology::TwoSwitches;
        let mut links = vec![self.rng.pick(&all).clone()];
        match self.rng.below(4) {
            0 if two_switches => links = vec![TRUNK.to_string()],
            1 => links.push(self.rng.pick(&all).clone()),
            _ => {}
        }
        links.sort();
        links.dedup();
        Fault::Isolate {
            links,
            for_ms: self.for_ms(10_000),
        }
    }

    fn link_down(&mut self) -> Fault {
        let all = self.links();
        Fault::LinkDown {
            link: self.rng.pick(&all).clone(),
            for_ms: self.for_ms(8000),
        }
    }

    fn cut(&mut self) -> Vec<(u64, Fault)> {
        if !self.reaches_by_stacks() {
            return Vec::new();
        }
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for (_, name) in &self.nodes {
            match self.rng.below(3) {
                0 => from.push(name.clone()),
                1 => to.push(name.clone()),
                // Reaches both sides.
                _ => {}
            }
        }
        let both_ways = self.rng.chance(600_000);
        let for_ms = self.for_ms(10_000);
        match from.is_empty() || to.is_empty() {
            true => Vec::new(),
            false => alone(Fault::Cut {
                from,
                to,
                both_ways,
                for_ms,
            }),
        }
    }

    /// Cuts off all voters but one for a while, and then that one, while the leader or the
    /// sequencer changes: what was decided without a majority is lost.
    fn another_majority(&mut self) -> Vec<(u64, Fault)> {
        let mut others = self.of_roles(&[self.voters()]);
        if self.shape.in_switch && self.protocol == Protocol::Paxos {
            return Vec::new();
        }
        let chosen = self.rng.below(others.len() as u64) as usize;
        let one = others.remove(chosen);
        let for_ms = self.rng.between(300, 2000);
        let isolate = |links, for_ms| Fault::Isolate { links, for_ms };
        vec![
            (0, isolate(others, for_ms)),
            (for_ms, isolate(vec![one], 3000)),
            (0, Fault::Failover),
        ]
    }

    /// Cuts a replica off while the leader or the sequencer changes, so that it has to learn later
    /// what was decided before and after.
    fn behind_a_replica(&mut self) -> Vec<(u64, Fault)> {
        let links = vec![self.one_of(Role::Replica)];
        let for_ms = self.rng.between(200, 3000);
        let cut_off = Fault::Isolate { links, for_ms };
        let leaders = self.kill_all(self.stampers());
        vec![(0, cut_off), (for_ms / 2, leaders)]
    }

    fn weather(&mut self) -> Fault {
        let most = *self.rng.pick(&[10, 50, 150]);
        let mut rate = || match self.rng.chance(600_000) {
            true => self.rng.between(1, most) as u32,
            false => 0,
        };
        let (loss, duplicate, reorder, corrupt) = (rate().max(1), rate(), rate(), rate() / 4);
        Fault::Weather {
            loss,
            duplicate,
            reorder,
            corrupt,
            for_ms: self.for_ms(20_000),
        }
    }

    fn wipe(&mut self, role: Role) -> Fault {
        Fault::Wipe {
            node: self.one_of(role),
            for_ms: self.for_ms(6000),
        }
    }

    /// Fills the disk of a node that writes all the time.
    fn full_disk(&mut self) -> Fault {
        let mut roles = vec![Role::Replica, Role::Controller];
        if self.shape.durable {
            roles.push(Role::Acceptor);
        }
        let names = self.of_roles(&roles);
        Fault::FullDisk {
            node: self.rng.pick(&names).clone(),
            for_ms: self.for_ms(10_000),
        }
    }

    pub(super) fn damage(&mut self, damage: Damage) -> Fault {
        let names = self.of_roles(&[Role::Replica, Role::Controller, Role::Acceptor]);
        Fault::Damage {
            node: self.rng.pick(&names).clone(),
            damage,
            salt: self.rng.next(),
        }
    }
}
