// SPDX-License-Identifier: Apache-2.0
//! What a node's process does with the program of its role: it begins its memory, carries out the
//! controller's orders, and reads what is kept.
//!
//! What an order must be in itself is checked as the roles in Rust check it, by asking one. What
//! depends on the memory (its nonce, which epoch was there before) is checked by the switch, in the
//! packet that changes it.

use paxos::auth::{KEY_IDS, KeyId, KeyPair, Keyring, NODES};
use paxos::nopaxos::Sequencer;
use paxos::{
    Acceptor, Deployment, Enable, Epoch, Instance, Leader, NodeId, PartitionId, Program, Round,
    TrimReport,
};

use crate::Result;
use crate::order::{Op, Order, PLACES};

/// The switch's CPU port.
pub trait Port {
    /// Sends an order, again where nothing comes back; gives its answer and what lies behind that.
    /// So an order may be carried out twice.
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>)>;
}

/// A role of a switch, as its process has it.
#[derive(Clone, Debug)]
pub struct Role<P> {
    /// The port over which the process talks to the program.
    pub port: P,
    deployment: Deployment,
}

/// Which role stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Stamps {
    Leader,
    Sequencer,
}

impl<P: Port> Role<P> {
    /// The role that the switch has for a node.
    pub fn new(port: P, deployment: Deployment) -> Role<P> {
        Role { port, deployment }
    }

    /// Gives a memory without a name this one, and says which one it has then: another one if its
    /// process has died and come back, and the switch served on.
    pub fn begin(&mut self, nonce: u64) -> Result<u64> {
        let mut begin = self.order(Op::Begin, 0);
        begin.nonce = nonce;
        self.port.ask(&begin)?;
        Ok(self.look(0)?.nonce)
    }

    /// Returns which program the switch runs.
    pub fn about(&mut self) -> Result<About> {
        let about = self.order(Op::About, 0);
        let answer = self.done(&about)?;
        Ok(About {
            role: answer.at,
            slots: answer.a,
            partitions: answer.b,
            groups: answer.c,
            orders: answer.d,
            signs: answer.epoch as u8,
        })
    }

    /// Replaces the keys of a program that signs. New keys are added before one of them signs, and
    /// old ones are removed last, so that no packet is dropped that was signed before or elsewhere.
    pub fn use_keys(&mut self, keyring: &Keyring) -> Result<()> {
        let there = |at: &usize| keyring.pair(*at).is_some();
        for at in (0..KEY_IDS).filter(there) {
            self.set_key(at, keyring.pair(at))?;
        }
        let generation = KeyId {
            number: NODES,
            ..keyring.own()
        };
        let mut order = self.order(Op::Sign, 0);
        order.at = generation.emit().into();
        self.done(&order)?;
        for at in (0..KEY_IDS).filter(|at| !there(at)) {
            self.set_key(at, None)?;
        }
        Ok(())
    }

    fn set_key(&mut self, at: usize, pair: Option<&KeyPair>) -> Result<()> {
        let mut order = self.order(Op::Key, 0);
        order.at = at as u16;
        if let Some(pair) = pair {
            (order.a, order.b, order.c) = (words_of(&pair.mac), words_of(&pair.digest), 1);
        }
        self.done(&order).map(drop)
    }

    /// Returns what is kept about a partition.
    pub fn look(&mut self, pid: PartitionId) -> Result<Order> {
        let order = self.order(Op::Look, pid);
        self.done(&order)
    }

    /// Returns what is kept about an instance, and its value.
    pub fn slot(&mut self, pid: PartitionId, inst: Instance) -> Result<(Order, Vec<u8>)> {
        let mut order = self.order(Op::LookSlot, pid);
        order.a = inst;
        let (answer, value) = self.port.ask(&order)?;
        answer.done()?;
        Ok((answer, value))
    }

    /// Returns what the replica at a place has reported, and which one that is.
    pub fn report(&mut self, pid: PartitionId, place: usize) -> Result<(NodeId, TrimReport)> {
        let mut order = self.order(Op::LookReport, pid);
        order.at = place as u16;
        let answer = self.done(&order)?;
        let report = TrimReport {
            incarnation: answer.a,
            inst: answer.b,
        };
        Ok((answer.replicas[0], report))
    }

    /// Returns four counters from `first` on.
    pub fn counters(&mut self, first: u16) -> Result<[u64; 4]> {
        let mut order = self.order(Op::LookCounter, 0);
        order.at = first;
        let answer = self.done(&order)?;
        Ok([answer.a, answer.b, answer.c, answer.d])
    }

    /// Counts the memory of an acceptor in. Done again, it does no harm, so a process that dies on
    /// the way repeats it. [A-ENABLE]
    pub fn enable(&mut self, enable: &Enable) -> Result<()> {
        Acceptor::new(self.deployment, 1, enable.nonce.max(1)).enable(enable)?;
        for pid in 0..self.deployment.partitions {
            let at = usize::from(pid);
            let seats = seats(&self.look(pid)?.replicas, &enable.replicas)?;
            let mut order = self.order(Op::Enable, pid);
            order.nonce = enable.nonce;
            order.epoch = enable.epoch;
            order.a = enable.trim[at];
            order.b = enable.end[at];
            order.c = enable.g.into();
            order.replicas = seats;
            self.done(&order)?;
        }
        let mut member = self.order(Op::Member, 0);
        member.nonce = enable.nonce;
        member.epoch = enable.epoch;
        self.done(&member).map(drop)
    }

    /// Hands a round over to a leader or sequencer, once. [L-PROGRAM] [Q-PROGRAM]
    pub fn program(&mut self, program: &Program, stamps: Stamps) -> Result<()> {
        let nonce = program.nonce.max(1);
        match stamps {
            Stamps::Leader => Leader::new(self.deployment, nonce).program(program)?,
            Stamps::Sequencer => Sequencer::new(self.deployment, nonce).program(program)?,
        }
        let acceptors = seats(&[0; PLACES], &program.acceptors)?;
        let replicas = seats(&[0; PLACES], &program.replicas)?;
        for pid in 0..self.deployment.partitions {
            let at = usize::from(pid);
            let mut order = self.order(Op::Stage, pid);
            order.nonce = program.nonce;
            order.epoch = program.epoch;
            order.a = program.next[at];
            order.b = program.trimmed[at];
            order.c = program.g.into();
            order.replicas = replicas;
            self.done(&order)?;
        }
        let mut order = self.order(Op::Program, 0);
        order.nonce = program.nonce;
        order.epoch = program.epoch;
        order.a = program.window;
        order.b = u64::from(program.f) + 1;
        order.acceptors = acceptors;
        self.done(&order).map(drop)
    }

    /// Tells the leader that a later epoch may exist. [L-RETIRE]
    pub fn retire(&mut self, epoch: Epoch, nonce: u64) -> Result<()> {
        let mut order = self.order(Op::Retire, 0);
        order.nonce = nonce;
        order.epoch = epoch;
        self.done(&order).map(drop)
    }

    /// Begins the window of a learner's partition there; it never moves back. [D-WINDOW]
    pub fn set_floor(&mut self, pid: PartitionId, inst: Instance) -> Result<()> {
        let mut order = self.order(Op::Floor, pid);
        order.a = inst;
        self.done(&order).map(drop)
    }

    fn order(&self, op: Op, pid: PartitionId) -> Order {
        let mut order = Order::new(op, self.deployment.node, self.deployment.group);
        order.pid = pid;
        order
    }

    fn done(&mut self, order: &Order) -> Result<Order> {
        let (answer, _) = self.port.ask(order)?;
        answer.done()?;
        Ok(answer)
    }
}

/// Which program a switch runs, and how large its registers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About {
    /// The role's number in PROBE, or [`LEARNER`](crate::order::LEARNER).
    pub role: u16,
    /// The number of slots of all partitions together.
    pub slots: u64,
    /// The number of partitions of all groups together.
    pub partitions: u64,
    /// Groups.
    pub groups: u64,
    /// The version of its orders.
    pub orders: u64,
    /// How it signs packets, as a tag has it; 0 = not at all.
    pub signs: u8,
}

/// Returns the two words of a HalfSipHash's key, the first one in the lower half.
fn words_of(key: &[u8; 16]) -> u64 {
    let &[a, b, c, d, e, f, g, h, ..] = key;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Returns the round that a leader's partition shows: none if it has retired.
pub fn round_shown(look: &Order) -> Round {
    match look.d & 0xff {
        0 => look.round,
        _ => Round::NONE,
    }
}

/// Returns the places of `nodes`; a node that has one keeps it.
fn seats(before: &[NodeId; PLACES], nodes: &[NodeId]) -> Result<[NodeId; PLACES]> {
    if nodes.len() > PLACES {
        return Err(format!(
            "a switch has room for {PLACES} acceptors and {PLACES} replicas of a group; these are \
             {}",
            nodes.len()
        ));
    }
    let mut seats = before.map(|node| if nodes.contains(&node) { node } else { 0 });
    for node in nodes {
        if !seats.contains(node) {
            let free = seats.iter().position(|seat| *seat == 0);
            seats[free.expect("there are as many places as nodes")] = *node;
        }
    }
    Ok(seats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_on_keeps_its_place() {
        let first = seats(&[0; PLACES], &[31, 32, 33]).unwrap();
        assert_eq!(first, [31, 32, 33, 0, 0, 0, 0, 0]);
        let second = seats(&first, &[32, 33, 34]).unwrap();
        assert_eq!(second, [34, 32, 33, 0, 0, 0, 0, 0]);
        assert_eq!(seats(&second, &[34]).unwrap(), [34, 0, 0, 0, 0, 0, 0, 0]);
        let many: Vec<_> = (1..=9).collect();
        assert!(seats(&first, &many).is_err());
        let all = seats(&first, &[31, 34, 35, 36, 37, 38, 39, 40]).unwrap();
        assert_eq!(all, [31, 34, 35, 36, 37, 38, 39, 40]);
    }
}
