// SPDX-License-Identifier: Apache-2.0
//! The simulated network and disks, the nemesis, and the check.

use control::GroupState;
use control::register::{Ballot, Event, Found, Record, Register, RegisterMessage, Said};
use paxos::{GroupId, NodeId, SplitMix, Time};
use std::collections::BTreeMap;

const MS: Time = 1_000_000;
const GROUPS: [GroupId; 2] = [0, 1];
/// How long the faults last, and how long the controllers may need afterwards.
const FAULTS: Time = 12_000 * MS;
const CALM: Time = 8_000 * MS;
/// How long an attempt to act may take.
const ATTEMPT: Time = 401 * MS;

/// A deliberate mistake, which the check must find.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    EmptyVotes,
    AnswersUnsaved,
}

#[derive(Clone, Copy)]
pub struct Plan {
    pub members: NodeId,
    /// The first controller has a state of its own when the others join.
    pub begins_alone: bool,
    pub fault: Option<Fault>,
}

struct Node {
    id: NodeId,
    /// What a restart finds; what a process that answers unsaved hasn't stored is missing.
    disk: Option<Record>,
    was_written: bool,
    /// The origin of its last record.
    origin: u64,
    register: Option<Register>,
    paused_until: Time,
    term: Option<(Ballot, BTreeMap<GroupId, GroupState>)>,
    /// The change that is open: group, state.
    swapping: Option<(GroupId, GroupState)>,
    next_swap: Time,
}

pub struct World {
    plan: Plan,
    random: SplitMix,
    now: Time,
    nodes: Vec<Node>,
    flying: BTreeMap<(Time, u64), (NodeId, NodeId, RegisterMessage)>,
    sent: u64,
    cut: Vec<(NodeId, NodeId)>,
    calm: bool,
    next_fault: Time,
    /// The parent of each change, by its own number.
    parents: BTreeMap<u64, u64>,
    /// The last change of each group that is known to be stored.
    tips: BTreeMap<GroupId, u64>,
    /// When it became known.
    known: Vec<(Time, GroupId, u64)>,
    drawn: u64,
    acked: u64,
    violation: Option<String>,
}

impl World {
    pub fn new(seed: u64, plan: Plan) -> World {
        let random = SplitMix::new(seed ^ 0x5eed);
        let mut world = World {
            plan,
            random,
            now: 0,
            nodes: Vec::new(),
            flying: BTreeMap::new(),
            sent: 0,
            cut: Vec::new(),
            calm: false,
            next_fault: 0,
            parents: BTreeMap::new(),
            tips: BTreeMap::new(),
            known: Vec::new(),
            drawn: 0,
            acked: 0,
            violation: None,
        };
        for id in 1..=plan.members {
            let alone = plan.begins_alone && id == 1;
            world.nodes.push(Node {
                id,
                disk: alone.then(|| Record::alone(id, [])),
                was_written: alone,
                origin: 0,
                register: None,
                paused_until: 0,
                term: None,
                swapping: None,
                next_swap: 0,
            });
        }
        (0..world.nodes.len()).for_each(|at| world.start(at));
        world
    }

    /// Runs faults, then calm, and checks all of it.
    pub fn run(seed: u64, plan: Plan) -> Result<(), String> {
        let mut world = World::new(seed, plan);
        while world.now < FAULTS && world.violation.is_none() {
            world.step();
        }
        world.calm();
        (0..world.nodes.len()).for_each(|at| world.start(at));
        let (acked, end) = (world.acked, world.now + CALM);
        while world.now < end && world.violation.is_none() && world.acked < acked + 5 {
            world.step();
        }
        match world.violation {
            Some(why) => Err(why),
            None if world.acked < acked + 5 => {
                let warnings: Vec<_> = (0..world.nodes.len()).map(|n| world.warnings(n)).collect();
                Err(format!("nobody acts in the end: {warnings:?}"))
            }
            None => Ok(()),
        }
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        self.calm = true;
        self.cut.clear();
        for node in &mut self.nodes {
            node.paused_until = 0;
        }
    }

    pub fn acked(&self) -> u64 {
        self.acked
    }

    pub fn warnings(&self, at: usize) -> Vec<String> {
        let register = self.nodes[at].register.as_ref();
        register.map_or_else(Vec::new, |r| r.warnings(self.now))
    }

    pub fn acting(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.term.is_some())
    }

    pub fn acting_but(&self, other: usize) -> Option<usize> {
        (0..self.nodes.len()).find(|at| *at != other && self.nodes[*at].term.is_some())
    }

    pub fn pause(&mut self, at: usize, ms: Time) {
        self.nodes[at].paused_until = self.now + ms * MS;
    }

    /// Lets one controller act in the place of the acting one.
    pub fn hand_on(&mut self, at: usize, to: usize) {
        let (now, to) = (self.now, self.nodes[to].id);
        if let Some(register) = &mut self.nodes[at].register {
            register.hand_on(now, to);
        }
        self.settle(at);
    }

    pub fn pass(&mut self, ms: Time) {
        let end = self.now + ms * MS;
        while self.now < end {
            self.step();
        }
    }

    pub fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let end = self.now + 20_000 * MS;
        while !is_so(self) {
            assert!(self.now < end, "not within 20 s: {what}");
            self.step();
        }
    }

    /// A restart with an empty disk.
    pub fn wipe(&mut self, at: usize) {
        self.put(at, None);
    }

    /// A restart with the store of a controller that was alone.
    pub fn put_alone(&mut self, at: usize) {
        let id = self.nodes[at].id;
        self.put(at, Some(Record::alone(id, [])));
    }

    /// A restart with this record.
    pub fn put(&mut self, at: usize, disk: Option<Record>) {
        self.crash(at);
        self.nodes[at].disk = disk;
        self.start(at);
    }

    /// A restart of all with new directories, in which nothing counts that was acknowledged before.
    pub fn begin_anew(&mut self) {
        (self.tips, self.known) = Default::default();
        self.flying.clear();
        for at in 0..self.nodes.len() {
            self.crash(at);
            (self.nodes[at].disk, self.nodes[at].was_written) = (None, false);
        }
        (0..self.nodes.len()).for_each(|at| self.start(at));
    }

    pub fn disk(&self, at: usize) -> Option<Record> {
        self.nodes[at].disk.clone()
    }

    /// Returns what broke a rule, if anything did.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Returns the next hello of a controller to each other one.
    pub fn next_hellos(&mut self, at: usize) -> Vec<(NodeId, NodeId, RegisterMessage)> {
        let (id, others) = (self.nodes[at].id, self.nodes.len() - 1);
        loop {
            let flying = self.flying.values();
            let is_hello = |m: &RegisterMessage| matches!(m.said, Said::Hello(_));
            let hellos = flying.filter(|(from, _, m)| *from == id && is_hello(m));
            let hellos: Vec<_> = hellos.cloned().collect();
            if hellos.len() >= others {
                return hellos;
            }
            self.step();
        }
    }

    /// Somebody sends what a controller has said once more.
    pub fn say_again(&mut self, said: &[(NodeId, NodeId, RegisterMessage)]) {
        for (from, to, message) in said.iter().cloned() {
            self.send(from, to, message);
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.draw() % limit
    }

    fn start(&mut self, at: usize) {
        if self.nodes[at].register.is_some() {
            return;
        }
        let nonce = self.random.draw().max(1);
        let members: Vec<NodeId> = (1..=self.plan.members).collect();
        let node = &mut self.nodes[at];
        let found = match node.disk.clone() {
            Some(record) => Found::Record(record),
            None if node.was_written && self.plan.fault == Some(Fault::EmptyVotes) => {
                Found::Record(Record {
                    members: members.clone(),
                    origin: node.origin,
                    ..Record::alone(node.id, [])
                })
            }
            None => Found::Nothing {
                lost: node.was_written,
            },
        };
        node.register = Some(Register::new(node.id, members, found, nonce, self.now));
    }

    pub fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.register = None;
        node.term = None;
        node.swapping = None;
        node.paused_until = 0;
    }

    fn step(&mut self) {
        self.now += MS;
        if !self.calm && self.now >= self.next_fault {
            self.next_fault = self.now + (50 + self.below(700)) * MS;
            self.fault();
        }
        self.deliver();
        for at in 0..self.nodes.len() {
            if self.now < self.nodes[at].paused_until {
                continue;
            }
            let now = self.now;
            if let Some(register) = &mut self.nodes[at].register {
                if now >= register.next_deadline() {
                    register.tick(now);
                }
            }
            self.maybe_swap(at);
            self.settle(at);
        }
    }

    fn deliver(&mut self) {
        while let Some((&(at, n), _)) = self.flying.first_key_value() {
            if at > self.now {
                return;
            }
            let Some((from, to, message)) = self.flying.remove(&(at, n)) else {
                return;
            };
            let at = usize::from(to) - 1;
            if self.now < self.nodes[at].paused_until {
                // A hanging process finds its messages later.
                let later = self.nodes[at].paused_until;
                self.flying.insert((later, n), (from, to, message));
                continue;
            }
            if let Some(register) = &mut self.nodes[at].register {
                register.message(self.now, from, message);
                self.settle(at);
            }
        }
    }

    /// Stores and sends what a process has left to do.
    fn settle(&mut self, at: usize) {
        let unsaved = self.plan.fault == Some(Fault::AnswersUnsaved) && self.below(8) == 0;
        let full = !self.calm && self.below(200) == 0;
        loop {
            let node = &mut self.nodes[at];
            let (id, now) = (node.id, self.now);
            let Some(register) = &mut node.register else {
                return;
            };
            if register.is_unsaved() && full {
                register.drop_messages();
            } else if register.is_unsaved() {
                if !unsaved {
                    node.disk = register.record().cloned();
                    node.was_written = true;
                    node.origin = node.disk.as_ref().map_or(0, |record| record.origin);
                }
                register.saved();
            }
            let Some((to, message)) = register.poll_message() else {
                break;
            };
            if to == id {
                register.message(now, id, message);
            } else {
                self.send(id, to, message);
            }
        }
        while let Some(event) = self.nodes[at]
            .register
            .as_mut()
            .and_then(Register::poll_event)
        {
            self.take(at, event);
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: RegisterMessage) {
        let lost = if self.calm { 0 } else { 10 };
        if self.below(100) < lost || self.cut.contains(&(from, to)) {
            return;
        }
        let copies = 1 + u64::from(self.below(20) == 0);
        for _ in 0..copies {
            let late = !self.calm && self.below(30) == 0;
            let ms = self.below(if late { 2_500 } else { 15 });
            self.sent += 1;
            let at = (self.now + (1 + ms) * MS, self.sent);
            self.flying.insert(at, (from, to, message.clone()));
        }
    }

    fn maybe_swap(&mut self, at: usize) {
        if self.now < self.nodes[at].next_swap || self.nodes[at].swapping.is_some() {
            return;
        }
        let (wait, group) = (self.below(60), GROUPS[self.below(2) as usize]);
        self.drawn += 1;
        let number = self.drawn;
        let node = &mut self.nodes[at];
        node.next_swap = self.now + wait * MS;
        let (Some(register), Some((term, states))) = (&mut node.register, &node.term) else {
            return;
        };
        let before = states.get(&group).cloned().unwrap_or_default();
        let state = GroupState {
            version: before.version + 1,
            lanes: vec![number],
            ..GroupState::default()
        };
        self.parents.insert(number, number_of(&before));
        node.swapping = Some((group, state.clone()));
        register.swap(self.now, *term, group, before.version, state);
    }

    fn take(&mut self, at: usize, event: Event) {
        match event {
            Event::Acts(ballot, states) => {
                for group in GROUPS {
                    self.is_read(group, states.get(&group).map_or(0, number_of));
                }
                self.nodes[at].term = Some((ballot, states));
            }
            Event::Ended(_) => {
                self.nodes[at].term = None;
                self.nodes[at].swapping = None;
            }
            Event::Swapped(result) => {
                let Some((group, state)) = self.nodes[at].swapping.take() else {
                    return;
                };
                if result.is_ok() {
                    self.acked += 1;
                    // Another controller may have written since, after this change.
                    if !self.is_before_tip(group, number_of(&state)) {
                        self.is_stored(group, number_of(&state));
                    }
                    if let Some((_, states)) = &mut self.nodes[at].term {
                        states.insert(group, state);
                    }
                }
            }
        }
    }

    /// Checks that a change continues the chain.
    fn is_stored(&mut self, group: GroupId, number: u64) {
        let tip = self.tips.get(&group).copied().unwrap_or(0);
        let mut earlier = number;
        while earlier != tip {
            let Some(parent) = self.parents.get(&earlier) else {
                let why = format!("group {group}: change {number} isn't in a chain with {tip}");
                self.violation.get_or_insert(why);
                return;
            };
            earlier = *parent;
        }
        self.tips.insert(group, number);
        self.known.push((self.now, group, number));
    }

    /// Checks that a change which is read was the last one at some time since the attempt to read
    /// it began.
    fn is_read(&mut self, group: GroupId, number: u64) {
        if !self.is_before_tip(group, number) {
            return self.is_stored(group, number);
        }
        let then = self.now.saturating_sub(ATTEMPT);
        let known = self.known.iter().rev();
        let mut before = known.filter(|(at, of, _)| *at <= then && *of == group);
        if before.next().is_some_and(|(.., last)| number < *last) {
            let why = format!(
                "group {group}: change {number} is read, and later ones of the chain aren't"
            );
            self.violation.get_or_insert(why);
        }
    }

    /// Returns whether the last change that is known to be stored comes after this one.
    fn is_before_tip(&self, group: GroupId, number: u64) -> bool {
        let mut earlier = self.tips.get(&group).copied().unwrap_or(0);
        while earlier > number {
            earlier = self.parents.get(&earlier).copied().unwrap_or(0);
        }
        earlier == number
    }

    /// Returns whether another disk may get lost: only with a majority that remembers, so that
    /// somebody can fill it.
    fn may_wipe(&self) -> bool {
        let votes = |n: &&Node| {
            n.disk
                .as_ref()
                .is_some_and(|r| !r.is_founding && !r.is_alone())
        };
        let voting = self.nodes.iter().filter(votes).count();
        voting == self.nodes.len()
    }

    fn fault(&mut self) {
        let at = self.below(self.nodes.len() as u64) as usize;
        let id = self.nodes[at].id;
        match self.below(12) {
            0..=1 => self.crash(at),
            2..=4 => (0..self.nodes.len()).for_each(|at| self.start(at)),
            5 => {
                self.crash(at);
                self.start(at);
            }
            6 => {
                let ms = 100 + self.below(2_500);
                self.pause(at, ms);
            }
            7 if self.may_wipe() => self.wipe(at),
            8 => {
                let others = (1..=self.plan.members).filter(|other| *other != id);
                self.cut = others
                    .flat_map(|other| [(id, other), (other, id)])
                    .collect();
            }
            9 => {
                let other = 1 + self.below(u64::from(self.plan.members)) as NodeId;
                self.cut = vec![(id, other)];
            }
            10 => {
                let to = self.below(self.nodes.len() as u64) as usize;
                self.hand_on(at, to);
            }
            _ => self.cut.clear(),
        }
    }
}

fn number_of(state: &GroupState) -> u64 {
    state.lanes.first().copied().unwrap_or(0)
}
