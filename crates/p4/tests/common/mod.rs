// SPDX-License-Identifier: Apache-2.0
//! The P4 roles in BMv2 behind the script runner's trait: a switch for each `role` line, with the test around it.
//!
//! Port 0 leads to whoever sends, port 1 to the members of the role's group. No step waits for a time: behind each packet
//! two others are sent that the switch forwards to these ports, so what it sent before is there when they are.

#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use loader::frame;
use loader::run::{counter, verdict_of};
use measure::network::{Namespace, veth};
use p4::bmv2::{CPU_PORT, Switch, Tools};
use p4::packet_socket::PacketSocket;
use p4::role::{Port, Role, Stamps, round_shown};
use p4::{Op, Order};
use paxos::learner::SlotView;
use paxos::{Configuration, Flags, Instance, PartitionId, Round, To, Verdict};
use sim::script::{self, Device, Setup, Slot, State};

/// An answer that takes longer was lost.
const PATIENCE: Duration = Duration::from_secs(10);
const THRIFT_PORT: u16 = 9190;
const TO_SENDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 0);
const TO_MEMBERS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const ROLES: [&str; 4] = ["acceptor", "leader", "sequencer", "learner"];
/// As few as the scripts need: a switch's registers are made when it starts.
pub const SIZES: [(&str, u64); 3] = [("SLOTS", 64), ("PARTITIONS", 8), ("GROUPS", 2)];

/// The tools, or why they aren't there; says so where the suite is skipped.
pub fn tools_or_skip() -> Option<Tools> {
    Tools::find()
        .inspect_err(|why| println!("SKIPPED: P4: {why}"))
        .ok()
}

/// The directory of the programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/v1model")
}

/// A machine beside a switch, and the compiled programs.
pub struct Bench {
    tools: Tools,
    compiled: PathBuf,
    test: Namespace,
    switch: Namespace,
    socket: PacketSocket,
    /// By port.
    interfaces: BTreeMap<u16, u32>,
    /// One at a time: they share ports.
    running: RefCell<Option<Switch>>,
}

impl Bench {
    pub fn new(tools: Tools) -> Result<Rc<Bench>, String> {
        let compiled = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        for role in ROLES {
            let program = programs().join(format!("{role}.p4"));
            tools.compile(&program, &SIZES, &compiled.join(format!("{role}.json")))?;
        }
        let (test, switch) = (Namespace::new()?, Namespace::new()?);
        switch.ip(&["link set lo up".into()])?;
        let mut interfaces = BTreeMap::new();
        for port in [0, 1, CPU_PORT] {
            let (here, _) = veth((&test, &format!("t{port}")), (&switch, &format!("s{port}")))?;
            interfaces.insert(port, here.index);
        }
        let socket = test.inside(PacketSocket::open).map_err(|e| e.to_string())?;
        Ok(Rc::new(Bench {
            tools,
            compiled,
            test,
            switch,
            socket,
            interfaces,
            running: RefCell::new(None),
        }))
    }

    fn start(&self, role: &str) -> Result<(), String> {
        self.running.replace(None);
        let compiled = self.compiled.join(format!("{role}.json"));
        let names = [0, 1, CPU_PORT].map(|port| (port, format!("s{port}")));
        let ports: Vec<_> = names
            .iter()
            .map(|(port, name)| (*port, &name[..]))
            .collect();
        let started = self
            .switch
            .inside(|| self.tools.start(&compiled, &ports, THRIFT_PORT))?;
        self.running.replace(Some(started));
        Ok(())
    }

    fn tables(&self, lines: &[String]) -> Result<String, String> {
        let running = self.running.borrow();
        let switch = running.as_ref().ok_or("no switch runs")?;
        self.switch.inside(|| switch.tables(lines))
    }

    fn send(&self, port: u16, frame: &[u8]) {
        let sent = self
            .test
            .inside(|| self.socket.send(self.interfaces[&port], frame));
        assert!(sent, "the kernel didn't take a frame");
    }

    /// The next frame, and the port by which it left the switch.
    fn receive(&self) -> Result<(u16, Vec<u8>), String> {
        let begun = Instant::now();
        let mut buffer = [0; 2048];
        while begun.elapsed() < PATIENCE {
            match self.socket.receive(&mut buffer) {
                Ok(Some((interface, len))) => {
                    let by = self
                        .interfaces
                        .iter()
                        .find(|(_, index)| **index == interface);
                    let (port, _) = by.ok_or("a frame from elsewhere")?;
                    return Ok((*port, buffer[..len].to_vec()));
                }
                Ok(None) => self.socket.wait(Duration::from_millis(100)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the switch doesn't answer".into())
    }
}

/// The way to a switch's process.
struct CpuPort(Rc<Bench>);

impl Port for CpuPort {
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>), String> {
        self.0.send(CPU_PORT, &order.emit());
        loop {
            let (port, frame) = self.0.receive()?;
            if port != CPU_PORT {
                return Err(format!("unasked for, by port {port}: {frame:02x?}"));
            }
            if let Some((answer, behind)) = Order::parse(&frame) {
                return Ok((answer, behind.to_vec()));
            }
        }
    }
}

/// What a role made of a packet.
type Step = (Vec<(To, Vec<u8>)>, Verdict);

/// A role in a switch of its own as a script sees it.
pub struct P4Device {
    bench: Rc<Bench>,
    setup: Setup,
    role: RefCell<Role<CpuPort>>,
    counters: Vec<u64>,
    /// Learner: each epoch that it knows, by its entries in `voters`, and at last that in `known`.
    known: BTreeMap<u32, Vec<String>>,
    fences: u64,
    v6: bool,
}

impl P4Device {
    pub fn build(bench: &Rc<Bench>, setup: &Setup, v6: bool) -> Result<Box<dyn Device>, String> {
        let name = match setup.role {
            script::Role::Acceptor => "acceptor",
            script::Role::Leader => "leader",
            script::Role::Sequencer => "sequencer",
            script::Role::Learner => "learner",
            script::Role::HostLearner | script::Role::Receiver => {
                return Err("no switch is in a replica's host".into());
            }
        };
        bench.start(name)?;
        bench.tables(&tables(setup))?;
        let mut role = Role::new(CpuPort(bench.clone()), setup.deployment);
        if name != "learner" {
            role.begin(setup.nonce)?;
        }
        let mut device = P4Device {
            bench: bench.clone(),
            setup: setup.clone(),
            role: RefCell::new(role),
            counters: Vec::new(),
            known: BTreeMap::new(),
            fences: 0,
            v6,
        };
        device.counters = device.counters_now()?;
        Ok(Box::new(device))
    }

    fn counters_now(&self) -> Result<Vec<u64>, String> {
        let mut counters = Vec::new();
        for first in (0..=counter::UNSENT as u16).step_by(4) {
            counters.extend(self.role.borrow_mut().counters(first)?);
        }
        Ok(counters)
    }

    /// One packet in; all frames out, by port.
    fn frames(&mut self, datagram: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, String> {
        self.fences += 1;
        let mark = self.fences.to_be_bytes();
        self.bench.send(0, &frame::build(datagram, self.v6));
        for to in [TO_SENDER, TO_MEMBERS] {
            let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 9)), 9);
            let fence = frame::between(from, SocketAddr::new(to.into(), 9), &mark);
            self.bench.send(0, &fence);
        }
        let mut frames = Vec::new();
        let mut fences = 0;
        while fences < 2 {
            let (port, frame) = self.bench.receive()?;
            match frame::payload(&frame) {
                Some(payload) if payload == mark => fences += 1,
                _ => frames.push((port, frame)),
            }
        }
        Ok(frames)
    }

    fn step(&mut self, datagram: &[u8]) -> Result<Step, String> {
        let to_members = match self.setup.role {
            script::Role::Leader => To::Acceptors,
            script::Role::Sequencer => To::Replicas,
            _ => To::Learners,
        };
        let mut sent = Vec::new();
        for (port, frame) in self.frames(datagram)? {
            sent.push(match port {
                0 => (To::Sender, frame::datagram(&frame, self.v6, true)?.to_vec()),
                1 => (to_members, self.copy(&frame)?),
                _ => return Err(format!("to its process: {frame:02x?}")),
            });
        }
        let now = self.counters_now()?;
        let before = std::mem::replace(&mut self.counters, now);
        let mut verdict = None;
        for (which, (now, before)) in self.counters.iter().zip(before).enumerate() {
            match (now - before, which) {
                (0, _) | (_, counter::DECIDED) => {}
                (1, which) if verdict.is_none() => verdict = verdict_of(which),
                (n, which) => return Err(format!("counter {which} rose by {n}")),
            }
        }
        Ok((sent, verdict.ok_or("no verdict was counted")?))
    }

    /// The datagram of a copy for the member.
    fn copy(&self, copy: &[u8]) -> Result<Vec<u8>, String> {
        let right = frame::checksum_is_right(copy, self.v6)
            && (self.v6 || frame::ip_checksum_is_right(copy))
            && copy[..12] == [2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 2];
        match frame::payload(copy) {
            Some(datagram) if right && frame::head_len(self.v6) + datagram.len() == copy.len() => {
                Ok(datagram.to_vec())
            }
            _ => Err(format!("a bad copy: {copy:02x?}")),
        }
    }

    /// Tables of an epoch's acceptors: first these, then how many of them decide. [M-BANK]
    fn learn(&mut self, configuration: &Configuration) -> Result<bool, String> {
        let group = self.setup.deployment.group;
        let epoch = configuration.epoch;
        let mut rust = paxos::Learner::new(self.setup.deployment, 1);
        for known in self.known.keys() {
            rust.learn(&Configuration {
                epoch: *known,
                ..single(configuration)
            });
        }
        if !rust.learn(configuration) {
            return Ok(false);
        }
        let nodes: Vec<_> = configuration.acceptors.iter().map(|it| it.node).collect();
        let mut lines = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            let bit = 1 << place;
            lines.push(format!(
                "table_add ingress.role.voters ingress.role.votes_as {group} {epoch} {node} => {bit}"
            ));
        }
        let quorum = configuration.f + 1;
        lines.push(format!(
            "table_add ingress.role.known ingress.role.decided_by {group} {epoch} => {quorum}"
        ));
        let said = self.bench.tables(&lines)?;
        let handles = said.lines().filter_map(|it| it.split_once("handle "));
        let entries = handles.map(|(_, handle)| handle.to_owned()).collect();
        self.known.insert(epoch, entries);
        // The oldest is forgotten when there are too many: first that it is known.
        let oldest = self.known.keys().copied().find(|known| !rust.knows(*known));
        if let Some(entries) = oldest.and_then(|oldest| self.known.remove(&oldest)) {
            let mut lines = Vec::new();
            for (place, entry) in entries.iter().enumerate().rev() {
                let last = place + 1 == entries.len();
                let table = if last { "known" } else { "voters" };
                lines.push(format!("table_delete ingress.role.{table} {entry}"));
            }
            self.bench.tables(&lines)?;
        }
        Ok(true)
    }
}

/// The same epoch with one acceptor.
fn single(configuration: &Configuration) -> Configuration {
    Configuration {
        acceptors: vec![configuration.leader],
        f: 0,
        ..configuration.clone()
    }
}

/// What is in the tables of a role in a test.
fn tables(setup: &Setup) -> Vec<String> {
    let at = &setup.deployment;
    let enter = "ingress.role.enter";
    let own = format!("{} {} {} 1", at.node, at.cluster, frame::PORT);
    let slots = setup.slots;
    let mut lines = vec![
        format!("table_add {enter}.own4 {enter}.own 0&&&0 => {own} 1"),
        format!("table_add {enter}.own6 {enter}.own 0&&&0 => {own} 1"),
        format!(
            "table_add {enter}.own_order {enter}.own {} => {own}",
            at.node
        ),
        format!("table_set_default {enter}.nodes4 {enter}.at_home"),
        format!("table_set_default {enter}.nodes6 {enter}.at_home"),
        format!(
            "table_add {enter}.groups {enter}.of_group {} => {} {} 0 0 {slots} 0 16",
            at.group, at.partitions, at.max_value
        ),
    ];
    for (address, port) in [(TO_SENDER, 0), (TO_MEMBERS, 1)] {
        lines.push(format!(
            "table_add ingress.others.routes4 ingress.others.to_port {address}/32 => {port} 02:00:00:00:00:02 02:00:00:00:00:01"
        ));
    }
    let macs = "02:00:00:00:01:01 02:00:00:00:01:02";
    lines.push(format!(
        "table_add egress.members4 egress.to_member4 16 0 => {macs} 10.1.0.1 10.1.0.2 7000 7001 65535"
    ));
    lines.push(format!(
        "table_add egress.members6 egress.to_member6 16 0 => {macs} fd01::1 fd01::2 7000 7001 65535"
    ));
    // One copy for the member; for commands over several partitions as many.
    let mut handle = 0;
    for partitions in 1..=12 {
        let group = 15 + partitions;
        lines.push(format!("mc_mgrp_create {group}"));
        for partition in 0..partitions {
            lines.push(format!("mc_node_create {} 1", partition << 8));
            lines.push(format!("mc_node_associate {group} {handle}"));
            handle += 1;
        }
    }
    lines
}

impl Device for P4Device {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        match self.step(datagram) {
            Ok(step) => step,
            Err(error) => panic!("{error}, after {datagram:02x?}"),
        }
    }

    fn order(&mut self, order: &script::Order) -> Result<bool, String> {
        let nonce = self.setup.nonce;
        let role = self.role.get_mut();
        Ok(match order {
            script::Order::Enable(enable) => role.enable(enable).is_ok(),
            // Another process finds the same memory: it is named already.
            script::Order::Reload => role.begin(0xdead)? == nonce,
            script::Order::Program(program) => {
                let stamps = match self.setup.role {
                    script::Role::Sequencer => Stamps::Sequencer,
                    _ => Stamps::Leader,
                };
                role.program(program, stamps).is_ok()
            }
            script::Order::Retire { epoch } => role.retire(*epoch, nonce).is_ok(),
            script::Order::Configuration(configuration) => self.learn(configuration)?,
            script::Order::Floor { pid, inst } => role.set_floor(*pid, *inst).is_ok(),
            _ => return Err("a switch's memory isn't read from disk".into()),
        })
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        let look = self.role.borrow_mut().look(pid).expect("an answer");
        match self.setup.role {
            script::Role::Acceptor => Some(State::Acceptor {
                epoch: look.epoch,
                floor: look.round,
                trim: look.a,
                end: look.b,
            }),
            script::Role::Leader | script::Role::Sequencer => Some(State::Leader {
                rnd: round_shown(&look),
                next: look.a,
                trimmed: look.b,
            }),
            _ => None,
        }
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<Slot> {
        let mut role = self.role.borrow_mut();
        let (slot, value) = role.slot(pid, inst).expect("an answer");
        if slot.a != inst || slot.round.is_none() {
            return None;
        }
        if self.setup.role == script::Role::Learner {
            return Some(Slot::Learner(SlotView {
                inst,
                rnd: slot.round,
                votes: (slot.d >> 16) as u32,
                client: slot.b,
                request: slot.c,
                noop: slot.d >> 8 & 0xff != 0,
                delivered: slot.d & 0xff != 0,
            }));
        }
        let trim = role.look(pid).expect("an answer").a;
        (inst >= trim).then_some(Slot::Acceptor {
            rnd: slot.round,
            vrnd: Round(slot.epoch),
            flags: Flags((slot.d >> 16) as u16),
            client: slot.b,
            request: slot.c,
            value,
        })
    }

    fn fingerprint(&self) -> String {
        let mut role = self.role.borrow_mut();
        let mut seen = Vec::new();
        for pid in 0..self.setup.deployment.partitions {
            seen.push((role.look(pid).expect("an answer"), Vec::new()));
            if self.setup.role != script::Role::Learner {
                for place in 0..p4::order::PLACES {
                    seen.push((role.report(pid, place).expect("an answer"), Vec::new()));
                }
            }
            if matches!(
                self.setup.role,
                script::Role::Acceptor | script::Role::Learner
            ) {
                for slot in 0..self.setup.slots {
                    seen.push(role.slot(pid, slot as u64).expect("an answer"));
                }
            }
        }
        assert!(seen.iter().all(|(order, _)| Op::ALL.contains(&order.op)));
        format!("{seen:?}")
    }
}
