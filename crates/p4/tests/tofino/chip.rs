// SPDX-License-Identifier: Apache-2.0
//! A program for Tofino in BMv2, with the test in the places of its process and of the network.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loader::frame;
use p4::Order;
use p4::bmv2::CPU_PORT;
use p4::order::Op;
use p4::role::Port;
use paxos::{Deployment, Epoch, NodeId, PartitionId};
use sim::script::Role;

use crate::common::{self, Bench, CpuPort, copy_all, name};
use crate::random::{PARTITIONS, SLOTS};

/// The largest value that the programs take, in bytes.
pub const MAX_VALUE: u16 = 32;

const TO_SENDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 0);
const TO_MEMBERS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const TO_PROCESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// The frames that leave, each with its port: 0 leads to the sender, 1 to members.
pub type Frames = Vec<(u16, Vec<u8>)>;

/// The program of a role, with [`PARTITIONS`] partitions of [`SLOTS`] slots.
pub struct Chip {
    bench: Rc<Bench>,
    cpu: CpuPort,
    role: Role,
    at: Deployment,
    /// The name of its memory.
    nonce: u64,
    number: u16,
    fences: u64,
}

impl Chip {
    /// Creates a chip with some lines of the programs changed, or returns `None` if there is no
    /// switch.
    pub fn new(role: Role, at: Deployment, changes: &[(&str, &str, &str)]) -> Option<Chip> {
        let tools = common::tools_or_skip()?;
        let sources = common::scratch();
        copy_all(&programs().join(".."), &sources);
        for (file, line, other) in changes {
            let path = sources.join("tna").join(file);
            let text = fs::read_to_string(&path).expect("it was copied");
            fs::write(&path, text.replace(line, other)).expect("it can be written");
        }
        let small = common::scratch();
        let program = name(role);
        let bits = SLOTS.trailing_zeros();
        let source = format!(
            "#define ON_BMV2\n#undef SLOTS\n#undef PARTITIONS\n#define PARTITIONS \
             {PARTITIONS}\n#define SLOT_BITS {bits}\n\
             #define CPU_PORT {CPU_PORT}\n#include \"{}\"\n",
            sources.join("tna").join(format!("{program}.p4")).display()
        );
        fs::write(small.join(format!("{program}.p4")), source).expect("it can be written");
        let bench = Bench::new(tools, &small, &[program]);
        let bench = bench.expect("it compiles, and root makes namespaces");
        Some(Chip {
            cpu: CpuPort(bench.clone()),
            bench,
            role,
            at,
            nonce: 0,
            number: 0,
            fences: 0,
        })
    }

    /// Restarts the role's memory under this name.
    pub fn restart(&mut self, nonce: u64) -> Result<(), String> {
        self.nonce = nonce;
        self.bench.start(name(self.role))?;
        self.bench.tables(&self.lines())?;
        if self.role == Role::Learner {
            return Ok(());
        }
        let mut begin = self.order(Op::Begin, 0);
        self.done(&begin)?;
        begin.nonce += 1;
        match self.done(&begin) {
            Ok(_) => Err("a memory has got another name".into()),
            Err(_) => Ok(()),
        }
    }

    /// Sends a frame into the chip; returns the frames that leave before any that follow it, one
    /// for each port.
    pub fn frames(&mut self, frame: &[u8]) -> Result<Frames, String> {
        self.bench.send(0, frame);
        self.fences += 1;
        let mark = self.fences.to_be_bytes();
        for to in [TO_SENDER, TO_MEMBERS, TO_PROCESS] {
            let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 9)), 9);
            let fence = frame::between(from, SocketAddr::new(to.into(), 9), &mark);
            self.bench.send(0, &fence);
        }
        let (mut out, mut fences) = (Vec::new(), 0);
        while fences < 3 {
            let (port, frame) = self.bench.receive()?;
            match frame::payload(&frame) {
                Some(payload) if payload == mark => fences += 1,
                _ => out.push((port, frame)),
            }
        }
        Ok(out)
    }

    /// Returns an order about a partition of its memory.
    pub fn order(&mut self, op: Op, pid: PartitionId) -> Order {
        let mut order = Order::new(op, self.at.node, self.at.group);
        self.number = self.number.wrapping_add(1);
        order.number = self.number;
        order.at = pid;
        order.nonce = self.nonce;
        order
    }

    /// Returns what comes back.
    pub fn ask(&mut self, order: &Order) -> Result<Order, String> {
        Ok(self.cpu.ask(order)?.0)
    }

    /// Carries out an order and returns its answer, or an error if it was refused.
    pub fn done(&mut self, order: &Order) -> Result<Order, String> {
        let answer = self.ask(order)?;
        answer.done()?;
        Ok(answer)
    }

    /// Tells a learner of an epoch's acceptors, `quorum` of which decide. Its number here is that
    /// of the epoch.
    pub fn learn(&mut self, epoch: Epoch, acceptors: &[NodeId], quorum: u32) -> Result<(), String> {
        let sets = (0u32..1 << acceptors.len()).filter(|set| set.count_ones() == quorum);
        let mut lines: Vec<_> = sets
            .map(|set| {
                format!(
                    "table_add ingress.quorums ingress.is_quorum {epoch} {set}&&&{set} => {set}"
                )
            })
            .collect();
        for (place, node) in acceptors.iter().enumerate() {
            let group = self.at.group;
            let bit = 1 << place;
            lines.push(format!(
                "table_add ingress.voters ingress.votes_as {group} {epoch} {node} => {epoch} {bit}"
            ));
        }
        self.bench.tables(&lines).map(drop)
    }

    /// Returns how many packets were counted under each verdict.
    pub fn counters(&self) -> Result<Vec<u64>, String> {
        let lines: Vec<_> = (0..128)
            .map(|at| format!("counter_read ingress.counters {at}"))
            .collect();
        let said = self.bench.tables(&lines)?;
        let packets = |line: &str| {
            let (_, told) = line.split_once("]= (")?;
            let (_, packets) = told.split_once("bytes, ")?;
            packets.split_once(' ')?.0.parse().ok()
        };
        let counters: Vec<u64> = said.lines().filter_map(packets).collect();
        match counters.len() == lines.len() {
            true => Ok(counters),
            false => Err(format!("not all counters: {said}")),
        }
    }

    /// Returns the tables of a role: it is at the address of tests, anybody speaks for anybody, and
    /// its group has one member.
    fn lines(&self) -> Vec<String> {
        let enter = "ingress.enter";
        let port = frame::PORT;
        let Deployment {
            node,
            cluster,
            group,
            partitions,
            ..
        } = self.at;
        let mut lines = vec![
            format!("table_add {enter}.own4 {enter}.own 10.0.0.1 {port} => {node}"),
            format!("table_set_default {enter}.nodes4 {enter}.at_home"),
            "mc_mgrp_create 1".into(),
            "mc_node_create 0 1".into(),
            "mc_node_associate 1 0".into(),
            "set_queue_depth 4096".into(),
        ];
        if matches!(self.role, Role::Leader | Role::Sequencer) {
            lines.push("table_add ingress.askers4 ingress.may_ask 0.0.0.0/0 =>".into());
        }
        for pid in 0..u64::from(partitions) {
            let first = pid * SLOTS;
            lines.push(format!(
                "table_add {enter}.partitions {enter}.lies_at {cluster} {group} {pid} => {pid} \
                 {first} 1"
            ));
            lines.push(format!(
                "table_add egress.members4 egress.to_member4 0 {pid} => 02:00:00:00:01:01 \
                 02:00:00:00:01:02 10.1.0.1 10.1.0.2 7000 7001"
            ));
            if self.role == Role::Acceptor {
                // Registers of BMv2 begin with 0.
                lines.push(format!("register_write ingress.floors {pid} {}", u32::MAX));
            }
        }
        for (address, port) in [(TO_SENDER, 0), (TO_MEMBERS, 1), (TO_PROCESS, CPU_PORT)] {
            lines.push(format!(
                "table_add ingress.others.routes4 ingress.others.to_port {address} => {port} \
                 02:00:00:00:00:02 02:00:00:00:00:01"
            ));
        }
        lines
    }
}

/// Returns the directory of the programs for Tofino.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/tna")
}
