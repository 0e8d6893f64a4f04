// SPDX-License-Identifier: Apache-2.0
//! Orders and their answers, as frames between a switch and its process (`order_t` in
//! `programs/p4/shared/orders.p4`).

use paxos::{Epoch, GroupId, NodeId, PartitionId, Reason, Round};

/// The Ethernet type of frames with an order.
pub const ETHERTYPE: u16 = 0x88b5;
/// Places for acceptors, and for replicas.
pub const PLACES: usize = 8;
/// The flag that marks an answer in `op` (`ORDER_ANSWER`).
pub const ANSWER: u8 = 0x80;
/// The version of the orders (`ORDERS_VERSION`).
pub const VERSION: u64 = 1;
/// The number of the learner's role (`ROLE_LEARNER`); the other roles have the numbers of PROBE.
pub const LEARNER: u16 = 16;

const ETHERNET: usize = 14;
const FIXED: usize = 60;
/// Bytes of a frame with an order. Behind them lies what was asked for, a slot's value.
pub const FRAME_LEN: usize = ETHERNET + FIXED + 2 * 2 * PLACES;

/// The orders and questions (`ORDER_...` in `programs/p4/shared/orders.p4`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// A memory without a name gets one, its boot nonce.
    Begin = 1,
    /// Shows a partition.
    Look = 2,
    /// Shows the slot of an instance.
    LookSlot = 3,
    /// Shows a replica's report, by place.
    LookReport = 4,
    /// Shows four counters, from `at` on.
    LookCounter = 5,
    /// Acceptor: an epoch counts on a partition of this memory.
    Enable = 6,
    /// Acceptor: it does so on all of them.
    Member = 7,
    /// Leader: a partition of a round that isn't in force yet.
    Stage = 8,
    /// Leader: that round is in force.
    Program = 9,
    /// Leader: a later epoch may exist.
    Retire = 10,
    /// A learner's window of a partition begins at this instance.
    Floor = 11,
    /// Which program it is, and how large; also before any group is known.
    About = 12,
    /// A program that signs gets a key, or loses it.
    Key = 13,
    /// A program that signs uses the keys of this generation.
    Sign = 14,
    /// Leader of Tofino: the window reaches further.
    Open = 15,
    /// Of an FPGA's role, which has no tables: a setting, by `at`.
    Set = 16,
}

impl Op {
    /// All orders.
    pub const ALL: [Op; 16] = [
        Op::Begin,
        Op::Look,
        Op::LookSlot,
        Op::LookReport,
        Op::LookCounter,
        Op::Enable,
        Op::Member,
        Op::Stage,
        Op::Program,
        Op::Retire,
        Op::Floor,
        Op::About,
        Op::Key,
        Op::Sign,
        Op::Open,
        Op::Set,
    ];
}

/// An order, or the answer to one. What a field means to which order is told in
/// `programs/p4/README.md`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Order {
    pub op: Op,
    /// The result in an answer: 0 = done, otherwise the number of a reason.
    pub result: u8,
    pub node: NodeId,
    pub group: GroupId,
    pub pid: PartitionId,
    pub at: u16,
    /// A number that the asker draws; the answer has the same.
    pub number: u16,
    pub epoch: Epoch,
    pub round: Round,
    pub nonce: u64,
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
    pub acceptors: [NodeId; PLACES],
    pub replicas: [NodeId; PLACES],
}

impl Order {
    /// Creates an order in which everything else is 0.
    pub fn new(op: Op, node: NodeId, group: GroupId) -> Order {
        Order {
            op,
            result: 0,
            node,
            group,
            pid: 0,
            at: 0,
            number: 0,
            epoch: 0,
            round: Round::NONE,
            nonce: 0,
            a: 0,
            b: 0,
            c: 0,
            d: 0,
            acceptors: [0; PLACES],
            replicas: [0; PLACES],
        }
    }

    /// Returns the frame.
    pub fn emit(&self) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET - 2];
        frame.extend(ETHERTYPE.to_be_bytes());
        frame.extend([self.op as u8, self.result]);
        for half in [self.node, self.group, self.pid, self.at, self.number] {
            frame.extend(half.to_be_bytes());
        }
        for word in [self.epoch, self.round.0] {
            frame.extend(word.to_be_bytes());
        }
        for number in [self.nonce, self.a, self.b, self.c, self.d] {
            frame.extend(number.to_be_bytes());
        }
        for node in self.acceptors.iter().chain(&self.replicas) {
            frame.extend(node.to_be_bytes());
        }
        debug_assert_eq!(frame.len(), FRAME_LEN);
        frame
    }

    /// Reads an answer, and what lies behind it. `None` = it is none: an order that no role takes
    /// comes back as it was.
    pub fn parse_answer(frame: &[u8]) -> Option<(Order, &[u8])> {
        let (head, behind) = frame.split_at_checked(FRAME_LEN)?;
        if head[ETHERNET - 2..ETHERNET] != ETHERTYPE.to_be_bytes() {
            return None;
        }
        let mut fields = Reader(&head[ETHERNET..]);
        let [op, result] = fields.take();
        let order = Order {
            op: Op::ALL
                .into_iter()
                .find(|known| *known as u8 | ANSWER == op)?,
            result,
            node: u16::from_be_bytes(fields.take()),
            group: u16::from_be_bytes(fields.take()),
            pid: u16::from_be_bytes(fields.take()),
            at: u16::from_be_bytes(fields.take()),
            number: u16::from_be_bytes(fields.take()),
            epoch: u32::from_be_bytes(fields.take()),
            round: Round(u32::from_be_bytes(fields.take())),
            nonce: u64::from_be_bytes(fields.take()),
            a: u64::from_be_bytes(fields.take()),
            b: u64::from_be_bytes(fields.take()),
            c: u64::from_be_bytes(fields.take()),
            d: u64::from_be_bytes(fields.take()),
            acceptors: std::array::from_fn(|_| u16::from_be_bytes(fields.take())),
            replicas: std::array::from_fn(|_| u16::from_be_bytes(fields.take())),
        };
        Some((order, behind))
    }

    /// Returns whether this answers that order.
    pub fn answers(&self, order: &Order) -> bool {
        (self.op, self.number) == (order.op, order.number)
    }

    /// Returns whether an answer says that it is done; otherwise why not.
    pub fn done(&self) -> Result<(), String> {
        match (self.result, Reason::from_u16(self.result.into())) {
            (0, _) => Ok(()),
            (_, Some(reason)) => Err(format!("the switch refuses: {}", reason.name())),
            (number, None) => Err(format!(
                "the switch refuses for an unknown reason, {number}"
            )),
        }
    }
}

/// The rest of a frame whose length is known.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("the frame is that long");
        self.0 = rest;
        *taken
    }
}
