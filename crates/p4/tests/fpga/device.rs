// SPDX-License-Identifier: Apache-2.0
//! A role of `programs/fpga/` behind the script runner's trait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use loader::frame;
use loader::run::{counter, verdict_of};
use p4::Order;
use p4::role::{Port, Role, Stamps};
use paxos::{Configuration, Epoch, Instance, Learner, PartitionId, To, Verdict};
use sim::script::{self, Device, Setup, SlotState, State};

use crate::model::{Cycles, Model, Stream, compile};
use crate::role_state;
use crate::settings;

/// The addresses of members and their switch.
pub const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
const MEMBER_V4: [&str; 2] = ["10.1.0.1:7000", "10.1.0.2:7001"];
const MEMBER_V6: [&str; 2] = ["[fd01::1]:7000", "[fd01::2]:7001"];

/// The packets that a role sent.
pub type Sent = Vec<(To, Vec<u8>)>;
/// How often each verdict was counted.
pub type Verdicts = Vec<(Verdict, u64)>;

/// A simulated role as a script sees it.
pub struct FpgaDevice {
    pub model: Rc<RefCell<Model>>,
    pub setup: Setup,
    role: RefCell<Role<Rc<RefCell<Model>>>>,
    counters: Vec<u64>,
    known: BTreeMap<Epoch, Configuration>,
    /// Frames are IPv6's.
    v6: bool,
}

/// Returns the name of a role's module.
pub fn name(role: script::Role) -> Result<&'static str, String> {
    match role {
        script::Role::Acceptor => Ok("acceptor"),
        script::Role::Leader => Ok("leader"),
        script::Role::Sequencer => Ok("sequencer"),
        script::Role::Learner => Ok("learner"),
        _ => Err("no FPGA is in a replica's host".into()),
    }
}

/// Starts the model of a role.
pub fn start(role: script::Role) -> Result<Rc<RefCell<Model>>, String> {
    Ok(Rc::new(RefCell::new(Model::start(&compile(name(role)?)))))
}

impl FpgaDevice {
    /// Empties a model's memory, and makes it the role of a script.
    pub fn new(model: &Rc<RefCell<Model>>, setup: &Setup, v6: bool) -> Result<FpgaDevice, String> {
        let at = &setup.deployment;
        model.borrow_mut().reset();
        let (_, own_v4) = frame::addresses(false);
        let (_, own_v6) = frame::addresses(true);
        let [to, from] = address(if v6 { MEMBER_V6 } else { MEMBER_V4 });
        let slots = setup.slots.max(1) as u64;
        for order in [
            settings::identity(at, frame::PORT, slots, true),
            settings::own(at, 0, own_v4.ip()),
            settings::own(at, 1, own_v6.ip()),
            settings::member(at, 0, to, from, MACS),
        ] {
            model.borrow_mut().ask(&order)?.0.done()?;
        }
        let mut role = Role::new(model.clone(), setup.deployment);
        if setup.role != script::Role::Learner {
            role.begin(setup.nonce)?;
        }
        let mut device = FpgaDevice {
            model: model.clone(),
            setup: setup.clone(),
            role: RefCell::new(role),
            counters: Vec::new(),
            known: BTreeMap::new(),
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

    /// Returns what was counted since this was asked last.
    pub fn verdicts(&mut self) -> Result<Verdicts, String> {
        let now = self.counters_now()?;
        let before = std::mem::replace(&mut self.counters, now);
        let rose = self.counters.iter().zip(before).enumerate();
        let rose = rose.map(|(which, (now, before))| (verdict_of(which), now - before));
        let verdicts = rose.filter_map(|(verdict, n)| Some((verdict?, n)));
        Ok(verdicts.filter(|(_, n)| *n > 0).collect())
    }

    /// Gives an order that is none of a role's process.
    pub fn ask(&self, order: &Order) -> Result<Order, String> {
        let (answer, _) = self.model.borrow_mut().ask(order)?;
        Ok(answer)
    }

    /// Frames in, one right behind the other; all that came out of them.
    pub fn frames(&mut self, ins: &[Vec<u8>]) -> Result<(Vec<Vec<u8>>, Cycles), String> {
        let mut model = self.model.borrow_mut();
        for frame in ins {
            model.send(Stream::Network, frame);
        }
        let (outs, cycles) = model.run();
        let to_network = |(stream, frame)| match stream {
            Stream::Network => Ok(frame),
            Stream::Process => Err(format!("unasked for, to the process: {frame:02x?}")),
        };
        let outs: Result<_, _> = outs.into_iter().map(to_network).collect();
        Ok((outs?, cycles))
    }

    /// Datagrams in, each in an IPv6 frame or not, one right behind the other; what was sent, and
    /// how often each verdict was counted.
    pub fn batch(&mut self, ins: &[(Vec<u8>, bool)]) -> Result<(Sent, Verdicts), String> {
        let frames: Vec<_> = ins
            .iter()
            .map(|(datagram, v6)| frame::build(datagram, *v6))
            .collect();
        let (outs, _) = self.frames(&frames)?;
        let sent: Result<_, _> = outs.iter().map(|out| self.sent(out)).collect();
        Ok((sent?, self.verdicts()?))
    }

    /// Returns what a frame says, and to whom, if all of it is right.
    pub fn sent(&self, out: &[u8]) -> Result<(To, Vec<u8>), String> {
        let v6 = out.get(12..14) == Some(&[0x86, 0xdd]);
        if out.len() < 12 || out[..12] != MACS.concat() {
            return Ok((To::Sender, frame::datagram(out, v6, true)?.to_vec()));
        }
        let to_members = match self.setup.role {
            script::Role::Leader => To::Acceptors,
            script::Role::Sequencer => To::Replicas,
            _ => To::Learners,
        };
        Ok((to_members, copy(out, v6)?))
    }

    fn learn(&mut self, configuration: &Configuration) -> Result<bool, String> {
        let mut rust = Learner::new(self.setup.deployment, 1);
        for known in self.known.values() {
            rust.learn(known);
        }
        if !rust.learn(configuration) {
            return Ok(false);
        }
        self.known
            .insert(configuration.epoch, configuration.clone());
        self.known.retain(|epoch, _| rust.knows(*epoch));
        for place in 0..settings::CONFIGURATIONS {
            let known = self.known.values().nth(place.into());
            let order = settings::configuration(&self.setup.deployment, place, known);
            self.ask(&order)?.done()?;
        }
        Ok(true)
    }

    fn step(&mut self, datagram: &[u8]) -> Result<(Sent, Verdict), String> {
        let (sent, verdicts) = self.batch(&[(datagram.to_vec(), self.v6)])?;
        match verdicts[..] {
            [(verdict, 1)] => Ok((sent, verdict)),
            _ => Err(format!("verdicts: {verdicts:?}")),
        }
    }
}

fn address(pair: [&str; 2]) -> [SocketAddr; 2] {
    pair.map(|address| address.parse().expect("an address"))
}

/// Returns the datagram of a copy for the member, if addresses, lengths and checksums are right.
fn copy(copy: &[u8], v6: bool) -> Result<Vec<u8>, String> {
    let sums = frame::checksum_is_right(copy, v6) && (v6 || frame::ip_checksum_is_right(copy));
    let whole = frame::payload(copy).filter(|it| frame::head_len(v6) + it.len() == copy.len());
    match whole {
        Some(datagram) if sums && at_member(copy, v6, datagram) => Ok(datagram.to_vec()),
        _ => Err(format!("a bad copy: {copy:02x?}")),
    }
}

/// Returns whether a copy goes to the member's address, at the port of its partition.
fn at_member(copy: &[u8], v6: bool, datagram: &[u8]) -> bool {
    let [to, from] = address(if v6 { MEMBER_V6 } else { MEMBER_V4 });
    let pid = u16::from_be_bytes([datagram[6], datagram[7]]);
    let to = SocketAddr::new(to.ip(), to.port() + pid);
    let careful = frame::between(from, to, datagram);
    let addresses = if v6 { 22..58 } else { 26..38 };
    copy.get(addresses.clone()) == careful.get(addresses)
}

impl Device for FpgaDevice {
    fn packet(&mut self, datagram: &[u8]) -> (Sent, Verdict) {
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
            _ => return Err("an FPGA's role has no disk, and signs nothing".into()),
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
