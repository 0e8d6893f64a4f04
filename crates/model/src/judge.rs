// SPDX-License-Identifier: Apache-2.0
//! What must hold in every state.
//!
//! | property | invariant |
//! |---|---|
//! | no instance has quorums of equal votes, by its rounds' members, for two values | INV-1 |
//! | what a learner or a repair delivers has such a quorum | INV-1 |
//! | what a memory showed as vote or promise it still knows, or has trimmed | INV-2 |
//! | proposals and votes of one instance and round carry one value | INV-3 |
//! | nobody trims beyond what g+1 replicas said they cover | INV-6 |
//! | a packet that is dropped or rejected changes nothing ([`crate::cluster`]) | INV-8 |
//!
//! They are judged by the messages on the wire, which is what any learner could see, and by the
//! acceptors' memories.

use std::collections::{BTreeMap, HashMap};

use paxos::wire::value::Rejection;
use paxos::{Acceptor, Flags, Header, Instance, MsgType, NodeId, Reason, Round};

use crate::bounds::Bounds;
use crate::network::{Message, MessageId, Payload, Sent, Value};

/// The votes for one value in one round of an instance.
#[derive(Debug)]
struct Ballot {
    inst: Instance,
    value: Value,
    /// The size of a quorum. In an epoch without a configuration nobody's votes count.
    quorum: usize,
    votes: Vec<(NodeId, MessageId)>,
}

/// Everything that messages say, by instance.
#[derive(Default)]
pub struct Judge {
    ballots: Vec<Ballot>,
    by_value: HashMap<(Instance, Round, Value), usize>,
    /// Ballots of an instance.
    by_inst: BTreeMap<Instance, Vec<usize>>,
    /// The ballot of each message that is a vote.
    ballot_of: HashMap<MessageId, usize>,
    /// Proposals and votes of one instance and round.
    rounds: HashMap<(Instance, Round), Vec<(MessageId, Value)>>,
    round_of: HashMap<MessageId, (Instance, Round, Value)>,
    delivered: HashMap<MessageId, (Instance, Value)>,
    /// The replicas' reports to acceptors and leaders.
    trims: Vec<(NodeId, Instance, MessageId)>,
    /// The votes and promises that a memory showed, by its boot nonce.
    shown: HashMap<u64, Vec<(MessageId, Claim)>>,
    remembered: HashMap<(u32, MessageId), bool>,
    seen: BTreeMap<&'static str, u64>,
}

/// A vote or a promise that was shown.
#[derive(Clone, Debug)]
struct Claim {
    inst: Instance,
    promised: Round,
    voted: Option<(Round, Value)>,
    range: bool,
}

impl Judge {
    /// Notes what a message says, the first time it is sent in any state.
    pub fn note(&mut self, bounds: &Bounds, id: MessageId, message: &Message) {
        match &message.payload {
            Payload::Packet { header, value } => {
                self.note_packet(bounds, id, message, header, value)
            }
            Payload::Delivered { inst, value } => {
                self.delivered.insert(id, (*inst, value.clone()));
            }
            Payload::Program(p) if p.epoch > 1 => self.see("later epochs handed over"),
            _ => {}
        }
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Returns how many different messages of interesting kinds were sent.
    pub fn seen(&self) -> Vec<(&'static str, u64)> {
        self.seen.iter().map(|(what, n)| (*what, *n)).collect()
    }

    fn note_packet(
        &mut self,
        bounds: &Bounds,
        id: MessageId,
        message: &Message,
        h: &Header,
        bytes: &[u8],
    ) {
        let value = Value::of(h, bytes);
        if matches!(h.msgtype, MsgType::Phase2a | MsgType::Phase2b) {
            let round = self.rounds.entry((h.inst, h.rnd)).or_default();
            round.push((id, value.clone()));
            self.round_of.insert(id, (h.inst, h.rnd, value.clone()));
        }
        match h.msgtype {
            MsgType::Phase2b => {
                self.note_vote(bounds, id, h, value.clone());
                self.note_kinds(bounds, message, h);
            }
            MsgType::Trim if h.rnd.is_none() => self.trims.push((h.swid, h.inst, id)),
            MsgType::Reject => {
                if let Ok(rejection) = Rejection::parse(bytes) {
                    self.see(match rejection.reason {
                        Reason::Preempted => "rejected as preempted",
                        Reason::Trimmed => "rejected as trimmed",
                        Reason::Window => "rejected by the window",
                        _ => "rejected otherwise",
                    });
                }
            }
            _ => {}
        }
        if let Some(shown) = shown(h, value) {
            let of_memory = self.shown.entry(message.memory).or_default();
            of_memory.push((id, shown));
        }
    }

    fn note_kinds(&mut self, bounds: &Bounds, message: &Message, h: &Header) {
        if !h.rnd.is_base() {
            self.see("votes in repair rounds");
        }
        if h.rnd.epoch() > 1 {
            self.see("votes in later epochs");
        }
        if h.inst >= bounds.slots {
            self.see("votes in slots used again");
        }
        if message.memory & 0xf > 1 {
            self.see("votes of re-joined memories");
        }
    }

    fn note_vote(&mut self, bounds: &Bounds, id: MessageId, h: &Header, value: Value) {
        let configuration = bounds.configuration(h.rnd.epoch());
        let member = |c: &paxos::Configuration| c.acceptor(h.swid).is_some();
        let Some(configuration) = configuration.filter(member) else {
            return;
        };
        let fresh = self.ballots.len();
        let key = (h.inst, h.rnd, value.clone());
        let at = *self.by_value.entry(key).or_insert(fresh);
        if at == fresh {
            self.ballots.push(Ballot {
                inst: h.inst,
                value,
                quorum: configuration.quorum(),
                votes: Vec::new(),
            });
            self.by_inst.entry(h.inst).or_default().push(at);
        }
        self.ballots[at].votes.push((h.swid, id));
        self.ballot_of.insert(id, at);
    }

    // ---- Properties

    /// Returns what a message that has just been sent breaks.
    pub fn flaw_of_message(&mut self, id: MessageId, sent: &Sent) -> Option<String> {
        self.two_values(id, sent)
            .or_else(|| self.two_decisions(id, sent))
            .or_else(|| self.wrong_delivery(id, sent))
    }

    /// Returns an error if a round has two values for an instance (INV-3).
    fn two_values(&self, id: MessageId, sent: &Sent) -> Option<String> {
        let (inst, round, value) = self.round_of.get(&id)?;
        let others = self.rounds.get(&(*inst, *round))?;
        let other = others
            .iter()
            .find(|(other, theirs)| theirs != value && contains(sent, *other))?;
        Some(format!(
            "INV-3: round {round} of instance {inst} has two values: {value:?} and {:?}",
            other.1
        ))
    }

    /// Returns an error if two values are decided for an instance (INV-1).
    fn two_decisions(&mut self, id: MessageId, sent: &Sent) -> Option<String> {
        let at = *self.ballot_of.get(&id)?;
        if !self.is_decided(at, sent) {
            return None;
        }
        let ballot = &self.ballots[at];
        let same_inst = &self.by_inst[&ballot.inst];
        let other = same_inst.iter().find(|&&other| {
            self.ballots[other].value != ballot.value && self.is_decided(other, sent)
        });
        let flaw = other.map(|&other| {
            format!(
                "INV-1: instance {} is decided with {:?} and {:?}",
                ballot.inst, self.ballots[other].value, ballot.value
            )
        });
        self.see("decisions");
        flaw
    }

    fn is_decided(&self, at: usize, sent: &Sent) -> bool {
        let ballot = &self.ballots[at];
        let there = ballot.votes.iter().filter(|(_, id)| contains(sent, *id));
        // Two packets of one acceptor (an old memory's and a new one's) are one vote.
        let voters = there.fold(0u64, |voters, (node, _)| voters | 1 << (node & 63));
        voters.count_ones() as usize >= ballot.quorum
    }

    /// Returns an error if a learner or a repairing host delivers a value without a quorum (INV-1).
    fn wrong_delivery(&self, id: MessageId, sent: &Sent) -> Option<String> {
        let (inst, value) = self.delivered.get(&id)?;
        let decided = self
            .by_inst
            .get(inst)
            .into_iter()
            .flatten()
            .any(|&at| self.ballots[at].value == *value && self.is_decided(at, sent));
        (!decided).then(|| format!("INV-1: {value:?} is delivered at {inst} but isn't decided"))
    }

    /// Returns whether all below `inst` is decided; for replicas that store checkpoints.
    pub fn all_decided_below(&self, inst: Instance, sent: &Sent) -> bool {
        (0..inst).all(|below| {
            let ballots = self.by_inst.get(&below).into_iter().flatten();
            ballots.into_iter().any(|&at| self.is_decided(at, sent))
        })
    }

    /// Returns an error if `acceptor`, whose state has the number `actor`, no longer knows what it
    /// showed (INV-2).
    pub fn flaw_of_memory(
        &mut self,
        actor: u32,
        acceptor: &Acceptor,
        sent: &Sent,
    ) -> Option<String> {
        let of_memory = self.shown.get(&acceptor.nonce())?;
        for (id, shown) in of_memory {
            if !contains(sent, *id) {
                continue;
            }
            let known = self.remembered.entry((actor, *id));
            if !*known.or_insert_with(|| remembers(acceptor, shown)) {
                return Some(format!(
                    "INV-2: acceptor {} has forgotten {shown:?}",
                    acceptor.deployment().node
                ));
            }
        }
        None
    }

    /// Returns an error if `trim` is above what g+1 replicas have said that they cover (INV-6).
    pub fn flaw_of_trim(&self, bounds: &Bounds, trim: Instance, sent: &Sent) -> Option<String> {
        if trim == 0 {
            return None;
        }
        let report = |replica: NodeId| {
            let reports = self.trims.iter().filter(|(of, _, _)| *of == replica);
            let there = reports.filter(|(_, _, id)| contains(sent, *id));
            there.map(|(_, inst, _)| *inst).max().unwrap_or(0)
        };
        let mut covered: Vec<Instance> = bounds.replicas.iter().map(|&r| report(r)).collect();
        covered.sort_unstable_by(|a, b| b.cmp(a));
        let covered = covered[usize::from(bounds.g)];
        (trim > covered)
            .then(|| format!("INV-6: trimmed to {trim}, but g+1 replicas only cover {covered}"))
    }
}

fn contains(sent: &Sent, id: MessageId) -> bool {
    sent.binary_search(&id).is_ok()
}

/// Returns what an acceptor's answer shows.
fn shown(h: &Header, value: Value) -> Option<Claim> {
    let range = h.flags.has(Flags::RANGE);
    let voted = (!h.vrnd.is_none()).then_some((h.vrnd, value));
    // Voting is promising; so is a PHASE1B with a round. An old vote in answer to a QUERY is none.
    let promised = match h.msgtype {
        MsgType::Phase1b => h.rnd,
        MsgType::Phase2b => h.vrnd,
        _ => return None,
    };
    Some(Claim {
        inst: h.inst,
        promised,
        voted,
        range,
    })
}

fn remembers(acceptor: &Acceptor, shown: &Claim) -> bool {
    if shown.range {
        return acceptor.floor(0) >= shown.promised;
    }
    if shown.inst < acceptor.trim(0) {
        return true;
    }
    let slot = acceptor.slot(0, shown.inst);
    let promised = slot.map_or(Round::NONE, |slot| slot.rnd);
    if promised.max(acceptor.floor(0)) < shown.promised {
        return false;
    }
    let Some((round, value)) = &shown.voted else {
        return true;
    };
    slot.is_some_and(|slot| {
        let same = (slot.client, slot.request, slot.flags, slot.value)
            == (value.client, value.request, value.flags, &value.bytes[..]);
        slot.vrnd > *round || slot.vrnd == *round && same
    })
}
