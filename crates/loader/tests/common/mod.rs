//! The XDP roles behind the script runner's trait, and what all tests here share.
#![allow(dead_code)]

pub mod host;
pub mod mount;
pub mod random;
pub mod switch;

use std::path::PathBuf;

use loader::frame;
use loader::layout::{
    AcceptorPartition, AcceptorSlot, Decision, GROUP_DELIVER, GROUP_PASS_OTHERS, Membership,
    SHORT_VALUE,
};
use loader::learner::decision;
use loader::object::{Object, Role, Sizes};
use loader::place::Place;
use loader::ring::Ring;
use loader::run::{Runner, action, test_device};
use loader::sys::{Mapped, Shared};
use loader::{acceptor::Acceptor, leader::Leader, learner::Learner, object, place, run};
use paxos::{
    Configuration, Enable, Epoch, Flags, Header, Instance, Member, MsgType, NodeId, PartitionId,
    Reason, Round, To, Verdict,
};
use sim::script::device::{
    self, parse_configuration, parse_earlier, parse_enable, parse_program, parse_resume,
};
use sim::script::fields::Fields;
use sim::script::{Device, Setup, packet, value};

/// The directory of the objects, or why the programs can't be tested here.
pub fn objects() -> Result<PathBuf, String> {
    let dir = object::directory()?;
    let sizes = Sizes::of(1, 1, 1);
    Object::load(&dir, Role::Forwarder, &sizes)?;
    Ok(dir)
}

/// The same; says so where the suite is skipped. A kernel that may not load programs says nothing of
/// them: if its verifier says what is wrong with one, that is ours to mend.
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

/// What an environment variable says, of a run longer than usual.
pub fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// What makes an acceptor a member from the first instance on.
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

/// What learners learn: these acceptors, and f of them may fail.
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
    memory: Vec<Mapped<u64>>,
}

/// The control side of a role.
pub enum Control {
    Acceptor(Acceptor),
    Leader(Leader),
    Learner(Learner),
}

impl Loaded {
    pub fn new(dir: &std::path::Path, role: Role, place: Place, nonce: u64) -> Loaded {
        Loaded::with_flags(dir, role, place, nonce, GROUP_DELIVER)
    }

    pub fn with_flags(
        dir: &std::path::Path,
        role: Role,
        place: Place,
        nonce: u64,
        flags: u32,
    ) -> Loaded {
        // Copies are counted per CPU, and this thread is the network.
        loader::sys::pin_to_cpu(0).expect("the first CPU is there");
        let partitions = place.deployment.partitions;
        let sizes = Sizes::of(1, partitions, place.slots as u32);
        let mut object = Object::load(dir, role, &sizes).expect("it loads");
        let control = match role {
            Role::Acceptor => Control::Acceptor(Acceptor::new(&object, place, nonce).unwrap()),
            Role::Leader => Control::Leader(Leader::new(&object, place, nonce).unwrap()),
            Role::Learner => Control::Learner(Learner::new(&object, place, 0).unwrap()),
            Role::Forwarder => unreachable!("no state"),
        };
        place::open(&mut object, &place, flags, &test_device(&place)).expect("it fits");
        let runner = Runner::new(&mut object, place.deployment.group).expect("it runs");
        let memory = control.maps().iter().map(|name| object.words(name));
        Loaded {
            memory: memory.map(|map| map.expect("a map")).collect(),
            object,
            runner,
            role: control,
        }
    }

    /// One packet in.
    pub fn step(&mut self, datagram: &[u8]) -> run::Step {
        match self.runner.step(&self.object, datagram) {
            Ok(step) => step,
            Err(error) => panic!("{error}, after {datagram:02x?}"),
        }
    }

    /// Back to an acceptor's first day.
    pub fn forget(&mut self, nonce: u64) {
        let place = *self.role.acceptor().place();
        clear::<Membership>(&self.object, "members");
        clear::<AcceptorPartition>(&self.object, "partitions");
        clear::<AcceptorSlot>(&self.object, "slots");
        let acceptor = Acceptor::new(&self.object, place, nonce).expect("it has room");
        self.role = Control::Acceptor(acceptor);
    }

    /// Every byte of state.
    pub fn memory(&self) -> Vec<u64> {
        self.memory.iter().flat_map(Mapped::copy).collect()
    }
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
}

/// A role in XDP as a script sees it.
pub struct XdpDevice {
    dir: PathBuf,
    loaded: Loaded,
    place: Place,
    /// Of a learner in a host, partition by partition.
    rings: Vec<Ring>,
}

impl XdpDevice {
    pub fn build(
        dir: &std::path::Path,
        setup: &Setup,
        v6: bool,
    ) -> Result<Box<dyn Device>, String> {
        let (name, flags) = match setup.role.as_str() {
            "host_learner" => ("learner", GROUP_PASS_OTHERS),
            role => (role, GROUP_DELIVER),
        };
        let role = Role::ALL.into_iter().find(|role| role.name() == name);
        let role = role.ok_or_else(|| format!("no such role: {}", setup.role))?;
        let place = Place::only(setup.deployment, setup.slots as u64);
        let mut loaded = Loaded::with_flags(dir, role, place, setup.nonce, flags);
        loaded.runner.v6 = v6;
        let mut rings = Vec::new();
        if flags == GROUP_PASS_OTHERS {
            Learner::trust(&loaded.object, &setup.trusted)?;
            for pid in 0..setup.deployment.partitions {
                rings.push(Ring::open(&loaded.object, pid.into())?);
            }
        }
        Ok(Box::new(XdpDevice {
            dir: dir.to_owned(),
            loaded,
            place,
            rings,
        }))
    }

    fn known_partition(&self, pid: PartitionId) -> Result<(), String> {
        if pid < self.place.deployment.partitions {
            Ok(())
        } else {
            Err(format!("there is no partition {pid}"))
        }
    }
}

impl XdpDevice {
    /// A host's learner: what is no vote and no decision passes to the host, without a verdict.
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
                    ..Header::new(MsgType::Deliver)
                };
                decided.push(device::decision(&deployment, &header, value));
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

    fn configure(&mut self, word: &str, fields: &Fields<'_>) -> Result<bool, String> {
        let partitions = self.place.deployment.partitions.into();
        let mut fields = fields.clone();
        let accepted = match (word, &self.loaded.role) {
            ("enable", Control::Acceptor(acceptor)) => {
                let enable = parse_enable(&mut fields, acceptor.nonce(), partitions)?;
                acceptor.enable(&enable).is_ok()
            }
            // Another process finds the same maps: nothing of an acceptor is in the loader's memory.
            ("reload", Control::Acceptor(acceptor)) => {
                let again = Acceptor::new(&self.loaded.object, *acceptor.place(), 0xdead)?;
                self.loaded.role = Control::Acceptor(again);
                true
            }
            ("restart", Control::Acceptor(acceptor)) => {
                let slots = acceptor.place().slots as usize;
                let deployment = acceptor.place().deployment;
                let mut saved = paxos::Acceptor::load(deployment, slots, &acceptor.save())?;
                saved.restarted(fields.u32("salt", 0)?);
                let v6 = self.loaded.runner.v6;
                self.loaded = Loaded::new(&self.dir, Role::Acceptor, self.place, 1);
                self.loaded.runner.v6 = v6;
                self.loaded.role.acceptor().restore(&saved);
                true
            }
            ("discard", Control::Acceptor(acceptor)) => {
                acceptor.discard(fields.u64("nonce", 0)?).is_ok()
            }
            ("asked", Control::Acceptor(acceptor)) => {
                let (nonce, start) = parse_resume(&mut fields, acceptor.nonce())?;
                let earlier = parse_earlier(&mut fields)?;
                acceptor.asked(nonce, start).is_ok() && acceptor.was_at(earlier)
            }
            ("resume", Control::Acceptor(acceptor)) => {
                let (nonce, start) = parse_resume(&mut fields, acceptor.nonce())?;
                acceptor.resume(nonce, start).is_ok()
            }
            ("program", Control::Leader(leader)) => {
                let program = parse_program(&mut fields, leader.nonce(), partitions)?;
                leader.program(&program).is_ok()
            }
            ("retire", Control::Leader(leader)) => {
                leader.retire(fields.u32("epoch", 0)?);
                true
            }
            ("configuration", Control::Learner(learner)) => {
                learner.learn(&parse_configuration(&mut fields)?)
            }
            ("floor", Control::Learner(learner)) => {
                let pid = fields.u16("pid", 0)?;
                self.known_partition(pid)?;
                learner.set_floor(pid, fields.u64("inst", 0)?);
                true
            }
            _ => return Err(format!("this role knows no {word}")),
        };
        fields.finish()?;
        Ok(accepted)
    }

    fn state(&self, pid: PartitionId) -> Result<String, String> {
        self.known_partition(pid)?;
        match &self.loaded.role {
            Control::Acceptor(acceptor) => Ok(format!(
                "epoch={} floor={} trim={} end={}",
                acceptor.epoch(),
                acceptor.floor(pid),
                acceptor.trim(pid),
                acceptor.end(pid)
            )),
            Control::Leader(leader) => Ok(format!(
                "rnd={} next={} trimmed={}",
                leader.round(),
                leader.next(pid),
                leader.trimmed(pid)
            )),
            Control::Learner(_) => Err("a learner has slots only".into()),
        }
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Result<Option<String>, String> {
        self.known_partition(pid)?;
        match &self.loaded.role {
            Control::Acceptor(acceptor) => Ok(acceptor.slot(pid, inst).map(|(slot, bytes)| {
                let flags = paxos::Flags(slot.flags);
                format!(
                    "rnd={} vrnd={} flags={} client={} request={} value={}",
                    Round(slot.rnd),
                    Round(slot.vrnd),
                    packet::print_flags(flags),
                    slot.client,
                    slot.request,
                    value::print(paxos::MsgType::Phase2b, flags, &bytes)
                )
            })),
            Control::Learner(learner) => Ok(learner.slot(pid, inst).map(|slot| {
                format!(
                    "rnd={} votes={:#b} noop={} client={} request={} delivered={}",
                    Round(slot.rnd),
                    slot.votes,
                    slot.noop != 0,
                    slot.client,
                    slot.request,
                    slot.delivered != 0
                )
            })),
            Control::Leader(_) => Err("a leader has no slots".into()),
        }
    }

    fn fingerprint(&self) -> String {
        format!("{:?}", self.loaded.memory())
    }
}

const _: () = assert!(SHORT_VALUE == 88);
