//! A small seeded network of real acceptors with a candidate or two, and a record of what is chosen
//! that is kept from the votes on the wire alone.

use paxos::{
    Acceptor, Candidate, Configuration, Deployment, Effect, Enable, Epoch, Flags, HandOver, Header,
    Instance, Member, MsgType, NodeId, Outbox, Packet, Round, Time, To,
};
use std::collections::{BTreeMap, BTreeSet};

pub const PARTITIONS: u16 = 2;
pub const SLOTS: usize = 64;
pub const ACCEPTORS: [NodeId; 3] = [3, 4, 5];
pub const REPLICAS: [NodeId; 3] = [6, 7, 8];
const LEADER: Member = Member {
    node: 1,
    nonce: 100,
};
const MILLISECOND: Time = 1_000_000;

pub fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 77,
        group: 1,
        partitions: PARTITIONS,
        max_value: 64,
        node,
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// The identity of a value.
pub type Value = (u64, u64, bool, Vec<u8>);

pub fn value_of(header: &Header, value: &[u8]) -> Value {
    let noop = header.flags.has(Flags::NOOP);
    (header.client, header.request, noop, value.to_vec())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    Issued,
    Writing,
    Active,
}

pub struct Running {
    pub candidate: Candidate,
    pub enable: Option<(Vec<Instance>, Vec<Instance>)>,
}

#[derive(Clone, Copy)]
enum End {
    Acceptor(NodeId),
    Candidate(Epoch),
}

struct Flying {
    at: Time,
    to: End,
    from: End,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Out(Vec<(To, Vec<u8>)>);

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        assert_eq!(header.value_len as usize, value.len());
        self.0.push((to, header.datagram(value)));
    }
}

pub struct Net {
    pub random: Random,
    pub now: Time,
    /// Percent of packets lost, and as many duplicated.
    pub loss: u64,
    pub acceptors: BTreeMap<NodeId, Acceptor>,
    pub down: BTreeSet<NodeId>,
    pub epochs: Vec<(Configuration, State)>,
    pub candidates: BTreeMap<Epoch, Running>,
    pub handed: BTreeMap<Epoch, HandOver>,
    /// Who voted: (partition, instance, round) → nodes by value.
    votes: BTreeMap<(u16, Instance, Round), BTreeMap<Value, BTreeSet<NodeId>>>,
    pub chosen: BTreeMap<(u16, Instance), Value>,
    flying: Vec<Flying>,
    nonces: u64,
    requests: u64,
}

impl Net {
    pub fn new(seed: u64, loss: u64) -> Net {
        let mut net = Net {
            random: Random(seed),
            now: 0,
            loss,
            acceptors: BTreeMap::new(),
            down: BTreeSet::new(),
            epochs: Vec::new(),
            candidates: BTreeMap::new(),
            handed: BTreeMap::new(),
            votes: BTreeMap::new(),
            chosen: BTreeMap::new(),
            flying: Vec::new(),
            nonces: 0,
            requests: 0,
        };
        for node in ACCEPTORS {
            net.boot(node);
        }
        net
    }

    /// Starts an acceptor with an empty memory.
    pub fn boot(&mut self, node: NodeId) {
        self.nonces += 1;
        let acceptor = Acceptor::new(deployment(node), SLOTS, self.nonces);
        self.acceptors.insert(node, acceptor);
    }

    // ---- Epochs ----------------------------------------------------------------------------

    /// Issues an epoch with the acceptors' present memories, and starts its candidate.
    pub fn issue(&mut self) -> Epoch {
        let epoch = self.epochs.len() as Epoch + 1;
        let configuration = Configuration {
            epoch,
            leader: LEADER,
            acceptors: self
                .acceptors
                .iter()
                .map(|(&node, a)| Member {
                    node,
                    nonce: a.nonce(),
                })
                .collect(),
            f: 1,
            replicas: REPLICAS.to_vec(),
            g: 1,
        };
        let earlier = self.needed();
        self.epochs.push((configuration.clone(), State::Issued));
        let nonce = 1_000 + u64::from(epoch);
        let candidate = Candidate::new(deployment(1), configuration, earlier, nonce).unwrap();
        let running = Running {
            candidate,
            enable: None,
        };
        self.candidates.insert(epoch, running);
        epoch
    }

    pub fn needed(&self) -> Vec<Configuration> {
        let active = |(_, state): &(Configuration, State)| *state == State::Active;
        let from = self.epochs.iter().rposition(active).unwrap_or(0);
        let wrote = |(_, state): &&(Configuration, State)| *state >= State::Writing;
        self.epochs[from..]
            .iter()
            .filter(wrote)
            .map(|(c, _)| c.clone())
            .collect()
    }

    pub fn state(&self, epoch: Epoch) -> State {
        self.epochs[epoch as usize - 1].1
    }

    /// Fails once a later epoch exists.
    fn advance(&mut self, epoch: Epoch, to: State) -> bool {
        let last = self.epochs.len() as Epoch;
        if epoch == last {
            self.epochs[epoch as usize - 1].1 = to;
        }
        epoch == last
    }

    pub fn crash_candidate(&mut self, epoch: Epoch) {
        self.candidates.remove(&epoch);
    }

    fn drive(&mut self, epoch: Epoch) {
        let mut out = Out::default();
        let now = self.now;
        while let Some(effect) = self
            .candidates
            .get_mut(&epoch)
            .and_then(|r| r.candidate.poll())
        {
            match effect {
                Effect::MarkWriting => {
                    if !self.advance(epoch, State::Writing) {
                        self.candidates.remove(&epoch);
                    } else if let Some(running) = self.candidates.get_mut(&epoch) {
                        running.candidate.marked_writing(now, &mut out);
                    }
                }
                Effect::EnableFresh { trim, end } => {
                    if let Some(running) = self.candidates.get_mut(&epoch) {
                        running.enable = Some((trim, end));
                    }
                }
                Effect::MarkActive(_) => {
                    if !self.advance(epoch, State::Active) {
                        self.candidates.remove(&epoch);
                    } else if let Some(running) = self.candidates.get_mut(&epoch) {
                        running.candidate.marked_active();
                    }
                }
                Effect::HandOver(hand_over) => {
                    assert_eq!(self.state(epoch), State::Active);
                    self.handed.insert(epoch, hand_over);
                }
            }
        }
        self.dispatch(End::Candidate(epoch), out);
    }

    // ---- Time ------------------------------------------------------------------------------

    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += MILLISECOND;
            self.deliver_due();
            for epoch in self.candidates.keys().copied().collect::<Vec<_>>() {
                let mut out = Out::default();
                let now = self.now;
                let running = self.candidates.get_mut(&epoch).unwrap();
                if running
                    .candidate
                    .next_deadline()
                    .is_some_and(|at| now >= at)
                {
                    running.candidate.tick(now, &mut out);
                }
                self.dispatch(End::Candidate(epoch), out);
                self.enable_members(epoch);
                self.drive(epoch);
            }
        }
    }

    /// Until the epoch is active; says whether it came to that.
    pub fn run_until_active(&mut self, epoch: Epoch, milliseconds: u64) -> bool {
        for _ in 0..milliseconds {
            if self.handed.contains_key(&epoch) {
                return true;
            }
            self.run(1);
        }
        self.handed.contains_key(&epoch)
    }

    fn enable_members(&mut self, epoch: Epoch) {
        let Some(running) = self.candidates.get(&epoch) else {
            return;
        };
        let members = self.epochs[epoch as usize - 1].0.acceptors.clone();
        match running.enable.clone() {
            Some((trim, end)) => self.enable_all(epoch, &members, trim, end),
            None if self.epochs.iter().all(|e| e.1 < State::Active) => {
                // Nothing was ever active. Strangers that an unfinished first epoch named can't
                // promise otherwise, and have truly never voted.
                let zero = vec![0; usize::from(PARTITIONS)];
                let wrote =
                    |e: &&(Configuration, State)| e.1 == State::Writing && e.0.epoch < epoch;
                let named: Vec<Member> = self
                    .epochs
                    .iter()
                    .filter(wrote)
                    .flat_map(|e| e.0.acceptors.clone())
                    .filter(|m| members.contains(m))
                    .filter(|m| self.acceptors[&m.node].is_stranger())
                    .collect();
                self.enable_all(epoch, &named, zero.clone(), zero);
            }
            None => {}
        }
    }

    fn enable_all(
        &mut self,
        epoch: Epoch,
        members: &[Member],
        trim: Vec<Instance>,
        end: Vec<Instance>,
    ) {
        for member in members {
            if self.down.contains(&member.node) || self.random.percent(self.loss) {
                continue;
            }
            let enable = Enable {
                epoch,
                nonce: member.nonce,
                trim: trim.clone(),
                end: end.clone(),
                replicas: REPLICAS.to_vec(),
                g: 1,
            };
            let _ = self
                .acceptors
                .get_mut(&member.node)
                .unwrap()
                .enable(&enable);
        }
    }

    fn deliver_due(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|f| f.at <= now);
        self.flying = later;
        due.sort_by_key(|f| f.at);
        for flying in due {
            self.deliver(flying);
        }
    }

    fn deliver(&mut self, flying: Flying) {
        let packet = Packet::parse(&flying.bytes).unwrap();
        let mut out = Out::default();
        match flying.to {
            End::Acceptor(node) => {
                if self.down.contains(&node) {
                    return;
                }
                let _ = self
                    .acceptors
                    .get_mut(&node)
                    .unwrap()
                    .step(&packet, &mut out);
                for (to, bytes) in out.0 {
                    let answer = Packet::parse(&bytes).unwrap();
                    match to {
                        To::Learners => self.note_vote(node, &answer),
                        _ => self.fly(End::Acceptor(node), flying.from, bytes),
                    }
                }
            }
            End::Candidate(epoch) => {
                let now = self.now;
                if let Some(running) = self.candidates.get_mut(&epoch) {
                    let _ = running.candidate.step(now, &packet, &mut out);
                    self.dispatch(End::Candidate(epoch), out);
                    self.drive(epoch);
                }
            }
        }
    }

    fn dispatch(&mut self, from: End, out: Out) {
        for (to, bytes) in out.0 {
            match to {
                To::Node(node) => self.fly(from, End::Acceptor(node), bytes),
                other => panic!("a candidate sends to nodes, not {other:?}"),
            }
        }
    }

    fn fly(&mut self, from: End, to: End, bytes: Vec<u8>) {
        let copies = 1 + u64::from(self.random.percent(self.loss));
        for _ in 0..copies {
            if self.random.percent(self.loss) {
                continue;
            }
            // A few packets come very late.
            let late = self.loss > 0 && self.random.percent(2);
            let delay = self.random.below(if late { 2_000 } else { 3 });
            let at = self.now + delay * MILLISECOND;
            self.flying.push(Flying {
                at,
                to,
                from,
                bytes: bytes.clone(),
            });
        }
    }

    // ---- Values ----------------------------------------------------------------------------

    /// What the leader of an epoch stamps: PHASE2A to all, lossy.
    pub fn stamp(&mut self, epoch: Epoch, pid: u16, inst: Instance) {
        self.requests += 1;
        self.stamp_to(epoch, pid, inst, self.requests, &ACCEPTORS);
    }

    pub fn stamp_to(
        &mut self,
        epoch: Epoch,
        pid: u16,
        inst: Instance,
        request: u64,
        to: &[NodeId],
    ) {
        let value = request.to_be_bytes();
        let header = Header {
            group: 1,
            cluster: 77,
            pid,
            inst,
            rnd: Round::base(epoch),
            swid: LEADER.node,
            client: 9,
            request,
            value_len: value.len() as u16,
            ..Header::new(MsgType::Phase2a)
        };
        for &node in to {
            self.fly(
                End::Candidate(0),
                End::Acceptor(node),
                header.datagram(&value),
            );
        }
    }

    /// Two replicas' checkpoints cover everything below `inst`.
    pub fn checkpoint(&mut self, pid: u16, inst: Instance, to: &[NodeId]) {
        for replica in &REPLICAS[..2] {
            let header = Header {
                group: 1,
                cluster: 77,
                pid,
                inst,
                swid: *replica,
                client: 1,
                request: u64::MAX,
                ..Header::new(MsgType::Trim)
            };
            for &node in to {
                self.fly(End::Candidate(0), End::Acceptor(node), header.datagram(&[]));
            }
        }
    }

    /// Everything below is chosen.
    pub fn prefix(&self, pid: u16) -> Instance {
        (0..)
            .find(|&inst| !self.chosen.contains_key(&(pid, inst)))
            .unwrap()
    }

    fn note_vote(&mut self, node: NodeId, packet: &Packet<'_>) {
        let h = &packet.header;
        let Some((configuration, _)) = self.epochs.get(h.rnd.epoch() as usize - 1) else {
            panic!("a vote in an epoch that was never issued");
        };
        let quorum = configuration.quorum();
        let value = value_of(h, packet.value);
        let nodes = self
            .votes
            .entry((h.pid, h.inst, h.rnd))
            .or_default()
            .entry(value.clone())
            .or_default();
        nodes.insert(node);
        if nodes.len() >= quorum {
            let before = self
                .chosen
                .entry((h.pid, h.inst))
                .or_insert_with(|| value.clone());
            assert_eq!(*before, value, "two values for {} of {}", h.inst, h.pid);
        }
    }

    /// Whether every f+1 of the newest epoch's members would lead a later candidate to the chosen
    /// value, or show that it is trimmed.
    pub fn assert_chosen_is_held(&self) {
        for (&(pid, inst), value) in &self.chosen {
            for absent in ACCEPTORS {
                let quorum = ACCEPTORS.iter().filter(|&&n| n != absent);
                let quorum: Vec<&Acceptor> = quorum.map(|n| &self.acceptors[n]).collect();
                if quorum.iter().any(|a| a.trim(pid) > inst) {
                    continue;
                }
                let best = quorum
                    .iter()
                    .filter_map(|a| a.slot(pid, inst))
                    .filter(|s| !s.vrnd.is_none())
                    .max_by_key(|s| s.vrnd)
                    .unwrap_or_else(|| panic!("{inst} of {pid} is lost without {absent}"));
                let held = (
                    best.client,
                    best.request,
                    best.flags.has(Flags::NOOP),
                    best.value.to_vec(),
                );
                assert_eq!(held, *value, "{inst} of {pid} without {absent}");
            }
        }
    }
}
