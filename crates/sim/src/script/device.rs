//! What a script drives: one role of one implementation.

use paxos::acceptor::Start;
use paxos::learner::SlotView;
use paxos::{
    Acceptor, Configuration, Deployment, Enable, Header, HostLearner, Instance, Leader, Learned,
    Learner, Member, MsgType, NodeId, Outbox, Packet, PartitionId, Program, To, Verdict,
};

use super::fields::Fields;
use super::{packet, value};

/// A role as a script's `role` line describes it.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `acceptor`, `leader`, `learner` or `host_learner`.
    pub role: String,
    /// Where it stands.
    pub deployment: Deployment,
    /// Slots of one partition (acceptor, learner).
    pub slots: usize,
    /// Boot nonce (acceptor, leader).
    pub nonce: u64,
    /// Whose DELIVER is a decision (host_learner).
    pub trusted: Vec<NodeId>,
}

/// One role of one implementation.
pub trait Device {
    /// Takes a datagram; returns the datagrams that it sends, and the verdict. What a learner in a host
    /// hands to its worker counts as a DELIVER to its own node ([`decision`]).
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict);

    /// Does what a line such as `enable` or `program` says; false = refused. On a device these are
    /// writes to its maps or registers.
    fn configure(&mut self, word: &str, fields: &Fields<'_>) -> Result<bool, String>;

    /// The fields of a `state` line, after `pid`.
    fn state(&self, pid: PartitionId) -> Result<String, String>;

    /// The fields of a `slot` line, after `pid` and `inst`; `None` = nothing is remembered.
    fn slot(&self, pid: PartitionId, inst: Instance) -> Result<Option<String>, String>;

    /// Something that differs as soon as the state differs.
    fn fingerprint(&self) -> String;
}

impl Setup {
    /// Reads a `role` line.
    pub(super) fn parse(text: &str) -> Result<Setup, String> {
        let (role, rest) = super::keyword(text);
        let mut fields = Fields::parse(rest)?;
        let setup = Setup {
            role: role.into(),
            deployment: Deployment {
                cluster: fields.u32("cluster", 0xc1)?,
                group: fields.u16("group", 1)?,
                partitions: fields.u16("partitions", 1)?,
                max_value: fields.u16("max_value", 64)?,
                node: fields.u16("node", 1)?,
            },
            slots: fields.u16("slots", 8)?.into(),
            nonce: fields.u64("nonce", 0xa1)?,
            trusted: fields.nodes("trusted")?,
        };
        fields.finish()?;
        Ok(setup)
    }
}

/// What the learner of a host at `deployment` hands to its worker, as a datagram to its own node.
pub fn decision(deployment: &Deployment, of: &Header, value: &[u8]) -> (To, Vec<u8>) {
    let header = Header {
        msgtype: MsgType::Deliver,
        swid: deployment.node,
        vrnd: of.rnd,
        flags: of.flags.of_value(),
        ..*of
    };
    (To::Node(deployment.node), header.datagram(value))
}

/// The roles of the `paxos` crate.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum RustDevice {
    Acceptor(Acceptor),
    Leader(Leader),
    Learner(Learner),
    HostLearner(HostLearner),
}

impl RustDevice {
    /// Sets one up; fits [`super::run`].
    pub fn build(setup: &Setup) -> Result<Box<dyn Device>, String> {
        let device = match setup.role.as_str() {
            "acceptor" => {
                RustDevice::Acceptor(Acceptor::new(setup.deployment, setup.slots, setup.nonce))
            }
            "leader" => RustDevice::Leader(Leader::new(setup.deployment, setup.nonce)),
            "learner" => RustDevice::Learner(Learner::new(setup.deployment, setup.slots)),
            "host_learner" => {
                let learner = HostLearner::new(setup.deployment, setup.slots, &setup.trusted);
                RustDevice::HostLearner(learner)
            }
            role => return Err(format!("no such role: {role}")),
        };
        Ok(Box::new(device))
    }

    fn partitions(&self) -> u16 {
        match self {
            RustDevice::Acceptor(acceptor) => acceptor.deployment().partitions,
            RustDevice::Leader(leader) => leader.deployment().partitions,
            RustDevice::Learner(learner) => learner.deployment().partitions,
            RustDevice::HostLearner(learner) => learner.deployment().partitions,
        }
    }

    fn known_partition(&self, pid: PartitionId) -> Result<(), String> {
        if pid < self.partitions() {
            Ok(())
        } else {
            Err(format!("there is no partition {pid}"))
        }
    }
}

/// Keeps what a role sends, as datagrams.
#[derive(Default)]
struct Datagrams(Vec<(To, Vec<u8>)>);

impl Outbox for Datagrams {
    fn send(&mut self, to: To, header: &paxos::Header, value: &[u8]) {
        assert_eq!(header.value_len as usize, value.len());
        self.0.push((to, header.datagram(value)));
    }
}

impl Device for RustDevice {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(reason) => return (Vec::new(), Verdict::Dropped(reason)),
        };
        let mut out = Datagrams::default();
        let verdict = match self {
            RustDevice::Acceptor(acceptor) => acceptor.step(&packet, &mut out),
            RustDevice::Leader(leader) => leader.step(&packet, &mut out),
            RustDevice::Learner(learner) => learner.step(&packet, &mut out),
            RustDevice::HostLearner(learner) => match learner.step(&packet) {
                Learned::Decided => {
                    let decision = decision(learner.deployment(), &packet.header, packet.value);
                    out.0.push(decision);
                    Verdict::Changed
                }
                Learned::Counted => Verdict::Changed,
                Learned::Dropped(reason) => Verdict::Dropped(reason),
            },
        };
        (out.0, verdict)
    }

    fn configure(&mut self, word: &str, fields: &Fields<'_>) -> Result<bool, String> {
        let partitions = self.partitions().into();
        let mut fields = fields.clone();
        let accepted = match (word, &mut *self) {
            ("enable", RustDevice::Acceptor(acceptor)) => {
                let enable = parse_enable(&mut fields, acceptor.nonce(), partitions)?;
                acceptor.enable(&enable).is_ok()
            }
            ("reload", RustDevice::Acceptor(acceptor)) => {
                let mut saved = Vec::new();
                acceptor.save(&mut saved);
                let slots = acceptor.slots() as usize;
                if acceptor.is_mute() {
                    return Err("a memory is saved as one that isn't mute".into());
                }
                *acceptor = Acceptor::load(*acceptor.deployment(), slots, &saved)?;
                true
            }
            ("restart", RustDevice::Acceptor(acceptor)) => {
                let mut saved = Vec::new();
                acceptor.save(&mut saved);
                let slots = acceptor.slots() as usize;
                *acceptor = Acceptor::load(*acceptor.deployment(), slots, &saved)?;
                acceptor.restarted(fields.u32("salt", 0)?);
                true
            }
            ("asked", RustDevice::Acceptor(acceptor)) => {
                let (nonce, start) = parse_resume(&mut fields, acceptor.nonce())?;
                let earlier = parse_earlier(&mut fields)?;
                acceptor.asked(nonce, start).is_ok() && acceptor.was_at(earlier)
            }
            ("resume", RustDevice::Acceptor(acceptor)) => {
                let (nonce, start) = parse_resume(&mut fields, acceptor.nonce())?;
                acceptor.resume(nonce, start).is_ok()
            }
            ("discard", RustDevice::Acceptor(acceptor)) => {
                let nonce = fields.u64("nonce", 0)?;
                let slots = acceptor.slots() as usize;
                let is_mute = acceptor.is_mute();
                if is_mute {
                    *acceptor = Acceptor::new(*acceptor.deployment(), slots, nonce);
                }
                is_mute
            }
            ("program", RustDevice::Leader(leader)) => {
                let program = parse_program(&mut fields, leader.nonce(), partitions)?;
                leader.program(&program).is_ok()
            }
            ("retire", RustDevice::Leader(leader)) => {
                leader.retire(fields.u32("epoch", 0)?);
                true
            }
            ("configuration", RustDevice::Learner(learner)) => {
                learner.learn(&parse_configuration(&mut fields)?)
            }
            ("floor", RustDevice::Learner(learner)) => {
                let pid = fields.u16("pid", 0)?;
                if pid as usize >= partitions {
                    return Err(format!("there is no partition {pid}"));
                }
                learner.set_floor(pid, fields.u64("inst", 0)?);
                true
            }
            ("configuration", RustDevice::HostLearner(learner)) => {
                learner.learn(&parse_configuration(&mut fields)?)
            }
            ("floor", RustDevice::HostLearner(learner)) => {
                let pid = fields.u16("pid", 0)?;
                if pid as usize >= partitions {
                    return Err(format!("there is no partition {pid}"));
                }
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
        match self {
            RustDevice::Acceptor(acceptor) => Ok(format!(
                "epoch={} floor={} trim={} end={}",
                acceptor.epoch(),
                acceptor.floor(pid),
                acceptor.trim(pid),
                acceptor.end(pid)
            )),
            RustDevice::Leader(leader) => Ok(format!(
                "rnd={} next={} trimmed={}",
                leader.round(),
                leader.next(pid),
                leader.trimmed(pid)
            )),
            RustDevice::Learner(_) | RustDevice::HostLearner(_) => {
                Err("a learner has slots only".into())
            }
        }
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Result<Option<String>, String> {
        self.known_partition(pid)?;
        match self {
            RustDevice::Acceptor(acceptor) => Ok(acceptor.slot(pid, inst).map(|slot| {
                format!(
                    "rnd={} vrnd={} flags={} client={} request={} value={}",
                    slot.rnd,
                    slot.vrnd,
                    packet::print_flags(slot.flags),
                    slot.client,
                    slot.request,
                    value::print(paxos::MsgType::Phase2b, slot.flags, slot.value)
                )
            })),
            RustDevice::Learner(learner) => Ok(learner.slot(pid, inst).map(print_votes)),
            RustDevice::HostLearner(learner) => Ok(learner.slot(pid, inst).map(print_votes)),
            RustDevice::Leader(_) => Err("a leader has no slots".into()),
        }
    }

    fn fingerprint(&self) -> String {
        match self {
            RustDevice::Acceptor(acceptor) => acceptor.state_hash().to_string(),
            other => format!("{other:?}"),
        }
    }
}

fn print_votes(slot: SlotView) -> String {
    format!(
        "rnd={} votes={:#b} noop={} client={} request={} delivered={}",
        slot.rnd, slot.votes, slot.noop, slot.client, slot.request, slot.delivered
    )
}

/// What an `enable` line says to an acceptor of this boot nonce.
///
/// # Errors
/// If a field can't be read; so it is with the next two.
pub fn parse_enable(
    fields: &mut Fields<'_>,
    nonce: u64,
    partitions: usize,
) -> Result<Enable, String> {
    Ok(Enable {
        epoch: fields.u32("epoch", 0)?,
        nonce: fields.u64("nonce", nonce)?,
        trim: fields.list("trim", partitions)?,
        end: fields.list("end", partitions)?,
        replicas: fields.nodes("replicas")?,
        g: fields.u8("g", 0)?,
    })
}

/// Which start of which memory a `resume` line lets go on, at an acceptor of this boot nonce.
pub fn parse_resume(fields: &mut Fields<'_>, nonce: u64) -> Result<(u64, Start), String> {
    let nonce = fields.u64("nonce", nonce)?;
    let start = Start::from_number(fields.u64("start", 0)?);
    Ok((nonce, start.ok_or("there is no such start")?))
}

/// The start of which an `asked` line wants to know whether the memory was at it.
pub fn parse_earlier(fields: &mut Fields<'_>) -> Result<Start, String> {
    let earlier = Start::from_number(fields.u64("earlier", 0)?);
    earlier.ok_or_else(|| "there is no such start".to_owned())
}

/// What a `program` line says to a leader of this boot nonce.
pub fn parse_program(
    fields: &mut Fields<'_>,
    nonce: u64,
    partitions: usize,
) -> Result<Program, String> {
    Ok(Program {
        epoch: fields.u32("epoch", 0)?,
        nonce: fields.u64("nonce", nonce)?,
        next: fields.list("next", partitions)?,
        trimmed: fields.list("trimmed", partitions)?,
        window: fields.u64("window", 8)?,
        acceptors: fields.nodes("acceptors")?,
        f: fields.u8("f", 0)?,
        replicas: fields.nodes("replicas")?,
        g: fields.u8("g", 0)?,
    })
}

/// What a `configuration` line says to a learner, which needs the epoch, the acceptors and f; the rest is
/// made up.
pub fn parse_configuration(fields: &mut Fields<'_>) -> Result<Configuration, String> {
    let member = |node| Member { node, nonce: 1 };
    Ok(Configuration {
        epoch: fields.u32("epoch", 0)?,
        leader: member(1),
        acceptors: fields.nodes("acceptors")?.into_iter().map(member).collect(),
        f: fields.u8("f", 0)?,
        replicas: vec![1],
        g: 0,
    })
}
