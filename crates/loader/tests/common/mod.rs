// SPDX-License-Identifier: Apache-2.0
//! The XDP roles behind the script runner's trait, and what all tests here share.
#![allow(dead_code)]

pub mod cpu;
pub mod guard;
pub mod host;
pub mod mount;
pub mod random;
pub mod stopping;
pub mod switch;

use std::path::PathBuf;

use loader::frame;
use loader::layout::{
    AcceptorPartition, AcceptorSlot, Decision, GROUP_DELIVER, GROUP_PASS_OTHERS, Membership,
    SHORT_VALUE,
};
use loader::learner::{Windows, decision};
use loader::map_place::MapPlace;
use loader::object::{Object, Role, Sizes};
use loader::ring::Ring;
use loader::run::{Runner, action, test_device};
use loader::sys::{Mapped, Shared};
use loader::{
    acceptor::Acceptor, leader::Leader, learner::Learner, map_place, object, receiver::Receiver,
    run,
};
use paxos::learner::SlotView;
use paxos::{
    Configuration, Enable, Epoch, Flags, Header, Instance, Member, MsgType, NodeId, PartitionId,
    Reason, Round, To, Verdict,
};
use sim::script::{self, Device, Order, Setup, SlotState, State};

/// Returns the directory of the objects, or why the programs can't be tested here.
pub fn objects() -> Result<PathBuf, String> {
    let dir = object::directory()?;
    let sizes = Sizes::of(1, 1, 1);
    Object::load(&dir, Role::Forwarder, &sizes)?;
    Ok(dir)
}

/// Returns the directory of the objects, or prints why the suite is skipped. A kernel on which no
/// programs can be loaded is skipped, but errors of the verifier are never skipped, because they
/// are ours to mend.
pub fn objects_or_skip() -> Option<PathBuf> {
    match objects() {
        Ok(dir) => Some(dir),
        Err(why) => {
            let (_, of_verifier) = why.split_once("Verifier output:").unwrap_or_default();
            assert!(of_verifier.trim().is_empty(), "{why}");
            println!("SKIPPED: {}", why.lines().next().unwrap_or_default());
            None
        }
    }
}

/// Returns what an environment variable says, of a run longer than usual.
pub fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Returns what makes an acceptor a member from the first instance on.
pub fn first_enable(nonce: u64) -> Enable {
    let all = usize::from(random::PARTITIONS);
    Enable {
        epoch: 1,
        nonce,
        trim: vec![0; all],
        end: vec![0; all],
        replicas: vec![31, 32, 33],
        g: 1,
    }
}

/// Returns a configuration for learners with these acceptors, of which f may fail.
pub fn configuration(epoch: Epoch, acceptors: &[NodeId]) -> Configuration {
    let member = |node| Member { node, nonce: 1 };
    Configuration {
        epoch,
        leader: member(1),
        acceptors: acceptors.iter().copied().map(member).collect(),
        f: (acceptors.len() as u8 - 1) / 2,
        replicas: vec![1],
        g: 0,
    }
}

/// A loaded role, ready to run.
pub struct Loaded {
    pub object: Object,
    pub runner: Runner,
    pub role: Control,
    /// The CPU on which its programs run and count.
    pub cpu: usize,
    memory: Vec<Mapped<u64>>,
}

/// The control side of a role.
pub enum Control {
    Acceptor(Acceptor),
    Leader(Leader),
    Learner(Learner),
    Receiver(Receiver),
}

impl Loaded {
    pub fn new(dir: &std::path::Path, role: Role, place: MapPlace, nonce: u64) -> Loaded {
        Loaded::with_flags(dir, role, place, nonce, GROUP_DELIVER)
    }

    pub fn with_flags(
        dir: &std::path::Path,
        role: Role,
        place: MapPlace,
        nonce: u64,
        flags: u32,
    ) -> Loaded {
        let object = Object::load(dir, role, &sizes(&place)).expect("it loads");
        Loaded::of(object, place, nonce, flags)
    }

    fn of(mut object: Object, place: MapPlace, nonce: u64, flags: u32) -> Loaded {
        // Copies are counted per CPU, and this thread is the network.
        let cpu = cpu::stay();
        let role = object.role();
        let control = match role {
            Role::Acceptor => Control::Acceptor(Acceptor::new(&object, place, nonce).unwrap()),
            Role::Leader | Role::Sequencer => {
                Control::Leader(Leader::new(&object, place, nonce).unwrap())
            }
            Role::Learner => Control::Learner(Learner::new(&object, place, 0).unwrap()),
            Role::Receiver => Control::Receiver(Receiver::new(&object, place, 0).unwrap()),
            Role::Forwarder => unreachable!("no state"),
        };
        map_place::open(&mut object, &place, flags, &test_device(&place)).expect("it fits");
        let runner = Runner::new(&mut object, place.deployment.group).expect("it runs");
        let memory = control.maps().iter().map(|name| object.words(name));
        Loaded {
            memory: memory.map(|map| map.expect("a map")).collect(),
            object,
            runner,
            role: control,
            cpu,
        }
    }

    /// Gives the role one packet, and returns what it sends and its verdict.
    pub fn step(&mut self, datagram: &[u8]) -> run::Step {
        match self.runner.step(&self.object, datagram) {
            Ok(step) => step,
            Err(error) => panic!("{error}, after {datagram:02x?}"),
        }
    }

    /// Makes the acceptor's memory as it is on its first day.
    pub fn forget(&mut self, nonce: u64) {
        let place = *self.role.acceptor().place();
        clear::<Membership>(&self.object, "members");
        clear::<AcceptorPartition>(&self.object, "partitions");
        clear::<AcceptorSlot>(&self.object, "slots");
        let acceptor = Acceptor::new(&self.object, place, nonce).expect("it has room");
        self.role = Control::Acceptor(acceptor);
    }

    /// Returns every byte of the role's state.
    pub fn memory(&self) -> Vec<u64> {
        self.memory.iter().flat_map(Mapped::copy).collect()
    }
}

fn sizes(place: &MapPlace) -> Sizes {
    Sizes::of(1, place.deployment.partitions, place.slots as u32)
}

fn clear<T: Shared + Default>(object: &Object, map: &str) {
    let memory = object.memory::<T>(map).expect("a map");
    for at in 0..memory.len() {
        memory.set(at, T::default());
    }
}

impl Control {
    fn maps(&self) -> &'static [&'static str] {
        match self {
            Control::Acceptor(_) => &["members", "partitions", "slots", "long_values"],
            Control::Leader(_) => &["leaders", "partitions"],
            Control::Learner(_) => &["configurations", "partitions", "slots", "trusted"],
            Control::Receiver(_) => &["listening", "partitions", "slots"],
        }
    }

    pub fn acceptor(&self) -> &Acceptor {
        match self {
            Control::Acceptor(acceptor) => acceptor,
            _ => panic!("no acceptor"),
        }
    }

    pub fn leader(&self) -> &Leader {
        match self {
            Control::Leader(leader) => leader,
            _ => panic!("no leader"),
        }
    }

    pub fn learner(&self) -> &Learner {
        match self {
            Control::Learner(learner) => learner,
            _ => panic!("no learner"),
        }
    }

    pub fn receiver(&self) -> &Receiver {
        match self {
            Control::Receiver(receiver) => receiver,
            _ => panic!("no receiver"),
        }
    }

    /// Returns the windows of a learner or receiver in a host.
    pub fn windows(&self) -> &Windows {
        match self {
            Control::Receiver(receiver) => receiver.windows(),
            _ => self.learner().windows(),
        }
    }
}

/// A role in XDP as a script sees it.
pub struct XdpDevice {
    dir: PathBuf,
    pub loaded: Loaded,
    place: MapPlace,
    /// The rings of a learner or receiver in a host, one for each partition.
    rings: Vec<Ring>,
}

impl XdpDevice {
    pub fn build(
        dir: &std::path::Path,
        setup: &Setup,
        v6: bool,
    ) -> Result<Box<dyn Device>, String> {
        Ok(Box::new(XdpDevice::new(dir, setup, v6)?))
    }

    pub fn new(dir: &std::path::Path, setup: &Setup, v6: bool) -> Result<XdpDevice, String> {
        let (role, flags) = match setup.role {
            script::Role::Acceptor => (Role::Acceptor, GROUP_DELIVER),
            script::Role::Leader => (Role::Leader, GROUP_DELIVER),
            script::Role::Sequencer => (Role::Sequencer, GROUP_DELIVER),
            script::Role::Learner => (Role::Learner, GROUP_DELIVER),
            script::Role::HostLearner => (Role::Learner, GROUP_PASS_OTHERS),
            script::Role::Receiver => (Role::Receiver, GROUP_PASS_OTHERS),
        };
        let place = MapPlace::only(setup.deployment, setup.slots as u64);
        let object = Object::load(dir, role, &sizes(&place))?;
        let mut loaded = Loaded::of(object, place, setup.nonce, flags);
        loaded.runner.v6 = v6;
        let mut rings = Vec::new();
        if flags == GROUP_PASS_OTHERS {
            if role == Role::Learner {
                Learner::trust(&loaded.object, &setup.trusted)?;
            }
            for pid in 0..setup.deployment.partitions {
                rings.push(Ring::open(&loaded.object, pid.into())?);
            }
        }
        Ok(XdpDevice {
            dir: dir.to_owned(),
            loaded,
            place,
            rings,
        })
    }
}

impl XdpDevice {
    /// Gives a packet to a host's learner or receiver. Packets that aren't for it pass to the host,
    /// without a verdict.
    fn in_host(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let frame = frame::build(datagram, self.loaded.runner.v6);
        let (action, out) = self.loaded.runner.frame(&frame).expect("it runs");
        assert_eq!(out, frame, "what passes is as it came");
        let verdict = match self.loaded.runner.counted(&self.loaded.object) {
            Ok((verdict, _)) => verdict,
            Err(_) if action == action::PASS => Verdict::Dropped(Reason::NotForRole),
            Err(error) => panic!("{error}, after {datagram:02x?}"),
        };
        let deployment = self.place.deployment;
        let mut decided = Vec::new();
        for ring in &mut self.rings {
            while let Some(record) = ring.next(<[u8]>::to_vec) {
                let head = decision(&record).expect("a decision");
                let value = &record[size_of::<Decision>()..][..usize::from(head.len)];
                let header = Header {
                    cluster: deployment.cluster,
                    group: head.group,
                    pid: head.pid,
                    inst: head.inst,
                    rnd: Round(head.rnd),
                    client: head.client,
                    request: head.request,
                    flags: Flags(head.flags),
                    value_len: head.len,
                    ..Header::new(match self.loaded.role {
                        Control::Receiver(_) => MsgType::Ordered,
                        _ => MsgType::Deliver,
                    })
                };
                decided.push(script::handed_over(&deployment, &header, value));
            }
        }
        (decided, verdict)
    }
}

impl Device for XdpDevice {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        match self.rings.is_empty() {
            true => self.loaded.step(datagram),
            false => self.in_host(datagram),
        }
    }

    fn order(&mut self, order: &Order) -> Result<bool, String> {
        Ok(match (order, &self.loaded.role) {
            (Order::Keys(keyring), _) => {
                self.loaded.object.sign_with(keyring)?;
                true
            }
            (Order::Enable(enable), Control::Acceptor(acceptor)) => acceptor.enable(enable).is_ok(),
            // Another process finds the same maps: an acceptor's state isn't in loader memory.
            (Order::Reload, Control::Acceptor(acceptor)) => {
                let again = Acceptor::new(&self.loaded.object, *acceptor.place(), 0xdead)?;
                self.loaded.role = Control::Acceptor(again);
                true
            }
            (Order::Restart { salt }, Control::Acceptor(acceptor)) => {
                let slots = acceptor.place().slots as usize;
                let deployment = acceptor.place().deployment;
                let mut saved = paxos::Acceptor::load(deployment, slots, &acceptor.save())?;
                saved.restarted(*salt);
                let v6 = self.loaded.runner.v6;
                self.loaded = Loaded::new(&self.dir, Role::Acceptor, self.place, 1);
                self.loaded.runner.v6 = v6;
                self.loaded.role.acceptor().restore(&saved);
                true
            }
            (Order::Discard { nonce }, Control::Acceptor(acceptor)) => {
                acceptor.discard(*nonce).is_ok()
            }
            (Order::Resume { nonce, start }, Control::Acceptor(acceptor)) => {
                acceptor.resume(*nonce, *start).is_ok()
            }
            (
                Order::Asked {
                    nonce,
                    start,
                    earlier,
                },
                Control::Acceptor(acceptor),
            ) => acceptor.asked(*nonce, *start).is_ok() && acceptor.was_at(*earlier),
            (Order::Program(program), Control::Leader(leader)) => leader.program(program).is_ok(),
            (Order::Retire { epoch }, Control::Leader(leader)) => {
                leader.retire(*epoch);
                true
            }
            (Order::Configuration(configuration), Control::Learner(learner)) => {
                learner.learn(configuration)
            }
            (Order::Floor { pid, inst }, Control::Learner(learner)) => {
                learner.windows().set_floor(*pid, *inst);
                true
            }
            (
                &Order::Listen {
                    pid,
                    session,
                    sequencer,
                    slot,
                },
                Control::Receiver(receiver),
            ) => {
                receiver.listen(pid, session, sequencer, slot);
                true
            }
            (Order::Floor { pid, inst }, Control::Receiver(receiver)) => {
                receiver.windows().set_floor(*pid, *inst);
                true
            }
            _ => unreachable!("no order for this role"),
        })
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        match &self.loaded.role {
            Control::Acceptor(acceptor) => Some(State::Acceptor {
                epoch: acceptor.epoch(),
                floor: acceptor.floor(pid),
                trim: acceptor.trim(pid),
                end: acceptor.end(pid),
            }),
            Control::Leader(leader) => Some(State::Leader {
                rnd: leader.round(),
                next: leader.next(pid),
                trimmed: leader.trimmed(pid),
            }),
            Control::Learner(_) | Control::Receiver(_) => None,
        }
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        match &self.loaded.role {
            Control::Acceptor(acceptor) => {
                let (slot, value) = acceptor.slot(pid, inst)?;
                Some(SlotState::Acceptor {
                    rnd: Round(slot.rnd),
                    vrnd: Round(slot.vrnd),
                    flags: Flags(slot.flags),
                    client: slot.client,
                    request: slot.request,
                    value,
                })
            }
            Control::Leader(_) | Control::Receiver(_) => None,
            Control::Learner(learner) => {
                let slot = learner.slot(pid, inst)?;
                Some(SlotState::Learner(SlotView {
                    inst,
                    rnd: Round(slot.rnd),
                    votes: slot.votes,
                    client: slot.client,
                    request: slot.request,
                    noop: slot.noop != 0,
                    delivered: slot.delivered != 0,
                }))
            }
        }
    }

    fn fingerprint(&self) -> String {
        format!("{:?}", self.loaded.memory())
    }
}

const _: () = assert!(SHORT_VALUE == 88);
