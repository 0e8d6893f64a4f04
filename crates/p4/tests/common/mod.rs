// SPDX-License-Identifier: Apache-2.0
//! The P4 roles in BMv2 behind the script runner's trait: a switch for each `role` line, with the
//! test around it.
//!
//! Port 0 leads to whoever sends, port 1 to the members of the role's group. No step waits for a
//! time: behind each packet two others are sent that the switch forwards to these ports, so what it
//! sent before is there when they are.

#![allow(dead_code)]

mod role_state;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use loader::frame;
use loader::run::{counter, verdict_of};
use measure::network::{Namespace, veth};
use p4::Order;
use p4::bmv2::{CPU_PORT, Switch, Tools};
use p4::packet_socket::PacketSocket;
use p4::programs::Build;
use p4::role::{Port, Role, Stamps};
use p4::tables::{self, Configurations, Copy, RegisterPlace};
use paxos::{Configuration, Instance, PartitionId, To, Verdict};
use sim::script::{self, Device, Setup, SlotState, State};

/// Frames that a switch is sent at once, each with two others: its port has room for some thirty.
const AHEAD: usize = 6;
/// Frames that a switch is sent at once where nobody looks what each leads to: two bursts, each
/// with another frame, fit its port.
const BURST: usize = 12;
/// An answer that takes longer was lost.
const PATIENCE: Duration = Duration::from_secs(10);
const THRIFT_PORT: u16 = 9190;
const TO_SENDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 0);
const TO_MEMBERS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const ROLES: [&str; 4] = ["acceptor", "leader", "sequencer", "learner"];
/// Roles of combinations, by the program and by their names there. Each control is among them: a
/// run of its scripts is long.
pub const IN_COMBINATIONS: [(&str, script::Role, &str); 5] = [
    ("leader_acceptor", script::Role::Leader, "leader"),
    ("leader_acceptor", script::Role::Acceptor, "first"),
    ("two_acceptors", script::Role::Acceptor, "second"),
    ("agreement", script::Role::Acceptor, "third"),
    ("agreement", script::Role::Learner, "last"),
];

/// Returns the tools, or prints why the suite is skipped without them.
pub fn tools_or_skip() -> Option<Tools> {
    Tools::find()
        .inspect_err(|why| println!("SKIPPED: P4: {why}"))
        .ok()
}

/// Returns the program of a role.
pub fn name(role: script::Role) -> &'static str {
    match role {
        script::Role::Acceptor => "acceptor",
        script::Role::Leader => "leader",
        script::Role::Sequencer => "sequencer",
        _ => "learner",
    }
}

/// Copies programs, to change one line of them.
pub fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory of the test");
    for entry in std::fs::read_dir(from).expect("a directory of the tree") {
        let path = entry.expect("an entry").path();
        let to = to.join(path.file_name().expect("it has a name"));
        match path.is_dir() {
            true => copy_all(&path, &to),
            false => {
                std::fs::copy(&path, &to).expect("a file of the tree");
            }
        }
    }
}

/// Returns the directory of the programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/v1model")
}

/// Returns a new directory.
pub fn scratch() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = format!("p4-{}-{number}", std::process::id());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
    std::fs::create_dir_all(&dir).expect("cargo's directory for tests can be written");
    dir
}

/// A machine beside a switch, and the compiled programs.
pub struct Bench {
    tools: Tools,
    compiled: PathBuf,
    test: Namespace,
    switch: Namespace,
    socket: PacketSocket,
    /// The interface of each port.
    interfaces: BTreeMap<u16, u32>,
    /// The running switch. Only one runs at a time, because all share the ports.
    running: RefCell<Option<Switch>>,
}

impl Bench {
    /// Creates a bench with the programs of these roles from a directory.
    pub fn new(tools: Tools, programs: &Path, roles: &[&str]) -> Result<Rc<Bench>, String> {
        Bench::made(tools, programs, roles, Build::SMALL)
    }

    /// Creates a bench whose programs are compiled with the sizes `build`.
    pub fn made(
        tools: Tools,
        programs: &Path,
        roles: &[&str],
        build: Build,
    ) -> Result<Rc<Bench>, String> {
        let compiled = scratch();
        for role in roles {
            let program = programs.join(format!("{role}.p4"));
            let out = compiled.join(format!("{role}.json"));
            tools.compile(&program, &build.defines(), &out)?;
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

    /// Starts a switch with a program, in the place of the one that runs.
    pub fn start(&self, program: &str) -> Result<(), String> {
        self.running.replace(None);
        let compiled = self.compiled.join(format!("{program}.json"));
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

    /// Runs commands of the switch's command line.
    pub fn tables(&self, lines: &[String]) -> Result<String, String> {
        let running = self.running.borrow();
        let switch = running.as_ref().ok_or("no switch runs")?;
        self.switch.inside(|| switch.tables.run(lines))
    }

    /// Sends a frame into the switch.
    pub fn send(&self, port: u16, frame: &[u8]) {
        let sent = self
            .test
            .inside(|| self.socket.send(self.interfaces[&port], frame));
        assert!(sent, "the kernel didn't take a frame");
    }

    /// Returns the next frame, and the port by which it left the switch.
    pub fn receive(&self) -> Result<(u16, Vec<u8>), String> {
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

impl Drop for Bench {
    fn drop(&mut self) {
        self.running.replace(None);
        let _ = std::fs::remove_dir_all(&self.compiled);
    }
}

/// The way to a switch's process.
pub struct CpuPort(pub Rc<Bench>);

impl Port for CpuPort {
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>), String> {
        self.0.send(CPU_PORT, &order.emit());
        loop {
            let (port, frame) = self.0.receive()?;
            if port != CPU_PORT {
                return Err(format!("unasked for, by port {port}: {frame:02x?}"));
            }
            match Order::parse_answer(&frame) {
                Some((answer, behind)) if answer.answers(order) => {
                    return Ok((answer, behind.to_vec()));
                }
                _ if frame.starts_with(&order.emit()) => return Err("no role takes it".into()),
                // The switch has passed this packet on.
                _ => {}
            }
        }
    }
}

/// Frames, each with the port by which it left.
pub type Frames = Vec<(u16, Vec<u8>)>;

/// The packets that a role sent.
pub type Sent = Vec<(To, Vec<u8>)>;

/// How often each verdict was counted.
pub type Verdicts = Vec<(Verdict, u64)>;

/// A role in a switch of its own as a script sees it.
pub struct P4Device {
    bench: Rc<Bench>,
    setup: Setup,
    role: RefCell<Role<CpuPort>>,
    /// The role's name in a combination.
    name: &'static str,
    counters: Vec<u64>,
    /// Learner: what it counts by.
    known: Configurations,
    fences: u64,
    /// The packets that the switch has passed to its process.
    pub to_process: Vec<Vec<u8>>,
    v6: bool,
}

impl P4Device {
    /// Builds a device whose role has a program of its own.
    pub fn build(bench: &Rc<Bench>, setup: &Setup, v6: bool) -> Result<P4Device, String> {
        let program = match setup.role {
            script::Role::Acceptor => "acceptor",
            script::Role::Leader => "leader",
            script::Role::Sequencer => "sequencer",
            script::Role::Learner => "learner",
            script::Role::HostLearner | script::Role::Receiver => {
                return Err("no switch is in a replica's host".into());
            }
        };
        P4Device::named(bench, setup, v6, program, "role")
    }

    /// Returns the role of this name in a program.
    pub fn named(
        bench: &Rc<Bench>,
        setup: &Setup,
        v6: bool,
        program: &str,
        name: &'static str,
    ) -> Result<P4Device, String> {
        bench.start(program)?;
        bench.tables(&tables::of_role(name, &lines(setup)))?;
        tables::make_multicast(&place(setup), 1, 1, |lines| bench.tables(lines))?;
        let mut role = Role::new(CpuPort(bench.clone()), setup.deployment);
        if setup.role != script::Role::Learner {
            role.begin(setup.nonce)?;
        }
        let mut device = P4Device {
            bench: bench.clone(),
            setup: setup.clone(),
            role: RefCell::new(role),
            name,
            counters: Vec::new(),
            known: Configurations::of(setup.deployment),
            fences: 0,
            to_process: Vec::new(),
            v6,
        };
        device.counters = device.counters_now()?;
        Ok(device)
    }

    fn counters_now(&self) -> Result<Vec<u64>, String> {
        let mut counters = Vec::new();
        for first in (0..=counter::UNSENT as u16).step_by(4) {
            counters.extend(self.role.borrow_mut().counters(first)?);
        }
        Ok(counters)
    }

    /// Returns what a counter stands at.
    pub fn counter(&self, which: usize) -> u64 {
        let four = self.role.borrow_mut().counters(which as u16 / 4 * 4);
        four.expect("an answer")[which % 4]
    }

    /// Frames in, one after the other; what came out for each, by port. Those to the switch's
    /// process are put aside.
    pub fn frames(&mut self, ins: &[Vec<u8>]) -> Result<Vec<Frames>, String> {
        let first = self.fences;
        let mut waiting = ins.iter();
        for frame in waiting.by_ref().take(AHEAD) {
            self.send(frame);
        }
        let mut outs = vec![Vec::new(); ins.len()];
        // How many fences came by each port.
        let mut passed = [0, 0];
        while passed != [ins.len(); 2] {
            let received = self.bench.receive();
            let (port, frame) =
                received.map_err(|e| format!("{e}: {passed:?} of {}", ins.len()))?;
            let Some(count) = passed.get_mut(usize::from(port)) else {
                self.to_process.push(frame);
                continue;
            };
            let mark = (first + *count as u64 + 1).to_be_bytes();
            match (frame::payload(&frame), outs.get_mut(*count)) {
                (Some(payload), _) if payload == mark => {
                    *count += 1;
                    if let Some(frame) = (port == 1).then(|| waiting.next()).flatten() {
                        self.send(frame);
                    }
                }
                (_, Some(out)) => out.push((port, frame)),
                (_, None) => return Err(format!("behind the last fence: {frame:02x?}")),
            }
        }
        Ok(outs)
    }

    /// Frames in, as fast as the switch takes them; whatever they lead to is left aside. It can't
    /// lose many without losing fences, too.
    pub fn run(&mut self, frames: impl Iterator<Item = Vec<u8>>) -> Result<(), String> {
        let mut frames = frames.peekable();
        let mut sent = self.fences;
        // The last fence that came by each port.
        let mut passed = [sent; 2];
        while frames.peek().is_some() || passed != [sent; 2] {
            let oldest = passed[0].min(passed[1]);
            if sent - oldest < 2 && frames.peek().is_some() {
                for frame in frames.by_ref().take(BURST) {
                    self.bench.send(0, &frame);
                }
                self.send_fences();
                sent = self.fences;
                continue;
            }
            let (port, frame) = self.bench.receive()?;
            let Some(passed) = passed.get_mut(usize::from(port)) else {
                continue;
            };
            if frame::payload(&frame) == Some(&(*passed + 1).to_be_bytes()) {
                *passed += 1;
            }
        }
        Ok(())
    }

    /// Sends a frame, and two more behind it: what the switch sent for the first one has come when
    /// theirs has.
    fn send(&mut self, frame: &[u8]) {
        self.bench.send(0, frame);
        self.send_fences();
    }

    fn send_fences(&mut self) {
        self.fences += 1;
        for to in [TO_SENDER, TO_MEMBERS] {
            let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 9)), 9);
            let to = SocketAddr::new(to.into(), 9);
            let fence = frame::between(from, to, &self.fences.to_be_bytes());
            self.bench.send(0, &fence);
        }
    }

    /// Datagrams in, each in an IPv6 frame or not; what was sent for each, and how often each
    /// verdict was counted.
    pub fn batch(&mut self, ins: &[(Vec<u8>, bool)]) -> Result<(Vec<Sent>, Verdicts), String> {
        let frames = ins.iter().map(|(datagram, v6)| frame::build(datagram, *v6));
        let outs = self.frames(&frames.collect::<Vec<_>>())?;
        let sent = outs
            .iter()
            .zip(ins)
            .map(|(out, (_, v6))| self.sent(out, *v6));
        let sent = sent.collect::<Result<_, _>>()?;
        Ok((sent, self.verdicts()?))
    }

    fn step(&mut self, datagram: &[u8]) -> Result<(Sent, Verdict), String> {
        let (mut sent, verdicts) = self.batch(&[(datagram.to_vec(), self.v6)])?;
        match (sent.pop(), &verdicts[..]) {
            (Some(sent), [(verdict, 1)]) => Ok((sent, *verdict)),
            _ => Err(format!("verdicts: {verdicts:?}")),
        }
    }

    /// Returns what was counted since this was asked last.
    fn verdicts(&mut self) -> Result<Verdicts, String> {
        let now = self.counters_now()?;
        let before = std::mem::replace(&mut self.counters, now);
        let rose = self.counters.iter().zip(before).enumerate();
        let rose = rose.map(|(which, (now, before))| (verdict_of(which), now - before));
        Ok(rose
            .filter_map(|(verdict, n)| Some((verdict?, n)))
            .filter(|(_, n)| *n > 0)
            .collect())
    }

    /// Returns what a role sent, out of its frames.
    fn sent(&self, frames: &[(u16, Vec<u8>)], v6: bool) -> Result<Sent, String> {
        let to_members = match self.setup.role {
            script::Role::Leader => To::Acceptors,
            script::Role::Sequencer => To::Replicas,
            _ => To::Learners,
        };
        let sent = frames.iter().map(|(port, frame)| match port {
            0 => Ok((To::Sender, frame::datagram(frame, v6, true)?.to_vec())),
            _ => Ok((to_members, copy(frame, v6)?)),
        });
        sent.collect()
    }

    fn learn(&mut self, configuration: &Configuration) -> Result<bool, String> {
        let learned = self.known.learn(configuration);
        if learned {
            let lines = [tables::clear_configurations(), self.known.lines()].concat();
            self.bench.tables(&tables::of_role(self.name, &lines))?;
        }
        Ok(learned)
    }
}

/// Returns the datagram of a copy for the member.
fn copy(copy: &[u8], v6: bool) -> Result<Vec<u8>, String> {
    let right = frame::checksum_is_right(copy, v6)
        && (v6 || frame::ip_checksum_is_right(copy))
        && copy[..12] == [2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 2];
    match frame::payload(copy) {
        Some(datagram) if right && frame::head_len(v6) + datagram.len() == copy.len() => {
            Ok(datagram.to_vec())
        }
        _ => Err(format!("a bad copy: {copy:02x?}")),
    }
}

/// Returns what is in the tables of a role in a test: it is at all addresses, and anybody speaks
/// for anybody.
fn lines(setup: &Setup) -> Vec<String> {
    let at = &setup.deployment;
    let enter = "ingress.role.enter";
    let own = format!("{} {} {} 1", at.node, at.cluster, frame::PORT);
    let mut lines = vec![
        format!("table_add {enter}.own4 {enter}.own 0&&&0 => {own} 1"),
        format!("table_add {enter}.own6 {enter}.own 0&&&0 => {own} 1"),
        tables::own_order(at.node, at.cluster, frame::PORT),
        format!("table_set_default {enter}.nodes4 {enter}.at_home"),
        format!("table_set_default {enter}.nodes6 {enter}.at_home"),
        tables::group(&place(setup)),
        "set_queue_depth 4096".into(),
    ];
    lines.extend(tables::any_asker());
    for (address, port) in [(TO_SENDER, 0), (TO_MEMBERS, 1)] {
        lines.push(format!(
            "table_add ingress.others.routes4 ingress.others.to_port {address}/32 => {port} \
             02:00:00:00:00:02 02:00:00:00:00:01"
        ));
    }
    for addresses in [
        ["10.1.0.1:7000", "10.1.0.2:7001"],
        ["[fd01::1]:7000", "[fd01::2]:7001"],
    ] {
        let [to, from] = addresses.map(|address| address.parse().expect("an address"));
        let copy = Copy {
            number: 0,
            to,
            from,
            mac_to: [2, 0, 0, 0, 1, 1],
            mac_from: [2, 0, 0, 0, 1, 2],
            port_per_partition: true,
        };
        lines.push(tables::copy(&place(setup), &copy));
    }
    lines
}

fn place(setup: &Setup) -> RegisterPlace {
    RegisterPlace {
        deployment: setup.deployment,
        slots: setup.slots as u64,
        index: 0,
        first_partition: 0,
        first_slot: 0,
    }
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
            // Another process finds the same memory, which has its name already.
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
            script::Order::Keys(keyring) => {
                role.use_keys(keyring)?;
                true
            }
            _ => return Err("a switch's memory isn't read from disk".into()),
        })
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        role_state::state(&mut self.role.borrow_mut(), self.setup.role, pid)
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        role_state::slot(&mut self.role.borrow_mut(), self.setup.role, pid, inst)
    }

    fn fingerprint(&self) -> String {
        role_state::fingerprint(&mut self.role.borrow_mut(), &self.setup)
    }
}

/// Returns a number that the environment may set.
pub fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}
