//! What a learner in a replica's host has to do: votes as [`paxos::Learner`] counts them, and besides
//! the DELIVER of trusted learners, each of which decides.

use std::collections::BTreeMap;

use paxos::learner::{Learned, SlotView};
use paxos::{
    Configuration, Deployment, Flags, Header, Instance, Learner, MsgType, Packet, PartitionId,
    Reason, Verdict,
};

use loader::frame;
use loader::run::action;

use crate::common::Loaded;
use crate::common::host::Host;
use crate::common::random::{PARTITIONS, SLOTS, TRUSTED};

/// Which slot: partition and place in its ring.
type At = (PartitionId, u64);

pub struct Model {
    deployment: Deployment,
    votes: Learner,
    /// Knows the same configurations and windows, and has no votes.
    empty: Learner,
    floors: [Option<Instance>; PARTITIONS as usize],
    /// The instance of each slot of `votes` in use.
    voted: BTreeMap<At, Instance>,
    /// Decisions taken over, where no vote for a later instance has come since.
    taken: BTreeMap<At, SlotView>,
}

impl Model {
    pub fn new(deployment: Deployment) -> Model {
        let learner = Learner::new(deployment, SLOTS as usize);
        Model {
            deployment,
            votes: learner.clone(),
            empty: learner,
            floors: [None; PARTITIONS as usize],
            voted: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    pub fn learn(&mut self, configuration: &Configuration) -> bool {
        self.empty.learn(configuration);
        self.votes.learn(configuration)
    }

    pub fn set_floor(&mut self, pid: PartitionId, inst: Instance) {
        self.empty.set_floor(pid, inst);
        self.votes.set_floor(pid, inst);
        let floor = &mut self.floors[usize::from(pid)];
        *floor = (*floor).max(Some(inst));
    }

    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotView> {
        let slot = self.current((pid, inst % SLOTS));
        slot.filter(|slot| slot.inst == inst)
    }

    /// Takes a packet: the verdict, and whether its value is decided.
    pub fn step(&mut self, packet: &Packet<'_>) -> (Verdict, bool) {
        let done = self.deployment.check(packet);
        let done = done.and_then(|()| match packet.header.msgtype {
            MsgType::Phase2b => self.vote(packet),
            MsgType::Deliver => self.deliver(&packet.header).map(|()| true),
            _ => Err(Reason::NotForRole),
        });
        match done {
            Ok(decided) => (Verdict::Changed, decided),
            Err(reason) => (Verdict::Dropped(reason), false),
        }
    }

    fn vote(&mut self, packet: &Packet<'_>) -> Result<bool, Reason> {
        let h = &packet.header;
        let at = (h.pid, h.inst % SLOTS);
        if let Some(taken) = self.taken.get(&at).filter(|taken| h.inst <= taken.inst) {
            result(self.empty.clone().vote(packet))?;
            return Err(match same_value(taken, h) {
                _ if h.inst < taken.inst || h.rnd < taken.rnd => Reason::Stale,
                true => Reason::Duplicate,
                false => Reason::Conflict,
            });
        }
        let decided = result(self.votes.vote(packet))?;
        self.taken.remove(&at);
        self.voted.insert(at, h.inst);
        Ok(decided)
    }

    fn deliver(&mut self, h: &Header) -> Result<(), Reason> {
        if !TRUSTED.contains(&h.swid) {
            return Err(Reason::UnknownSender);
        }
        if !h.rnd.is_valid() {
            return Err(Reason::BadRound);
        }
        if !self.votes.knows(h.rnd.epoch()) {
            return Err(Reason::UnknownEpoch);
        }
        match self.floors[usize::from(h.pid)] {
            Some(floor) if h.inst < floor => return Err(Reason::Stale),
            Some(floor) if h.inst - floor >= SLOTS => return Err(Reason::Window),
            _ => {}
        }
        let at = (h.pid, h.inst % SLOTS);
        match self.current(at) {
            Some(slot) if h.inst < slot.inst => return Err(Reason::Stale),
            Some(slot) if h.inst == slot.inst && slot.delivered => {
                return Err(match same_value(&slot, h) {
                    true => Reason::Duplicate,
                    false => Reason::Conflict,
                });
            }
            _ => {}
        }
        let slot = SlotView {
            inst: h.inst,
            rnd: h.rnd,
            votes: 0,
            client: h.client,
            request: h.request,
            noop: h.flags.has(Flags::NOOP),
            delivered: true,
        };
        self.taken.insert(at, slot);
        Ok(())
    }

    fn current(&self, at: At) -> Option<SlotView> {
        let voted = || self.votes.slot(at.0, *self.voted.get(&at)?);
        self.taken.get(&at).copied().or_else(voted)
    }
}

fn result(learned: Learned) -> Result<bool, Reason> {
    match learned {
        Learned::Decided => Ok(true),
        Learned::Counted => Ok(false),
        Learned::Dropped(reason) => Err(reason),
    }
}

fn same_value(slot: &SlotView, h: &Header) -> bool {
    (slot.client, slot.request, slot.noop) == (h.client, h.request, h.flags.has(Flags::NOOP))
}

/// One packet into both; what it led to in the kernel is compared.
pub fn step(
    model: &mut Model,
    host: &mut Host,
    xdp: &mut Loaded,
    datagram: &[u8],
) -> Result<Verdict, String> {
    let packet = Packet::parse(datagram);
    let (verdict, decided) = match &packet {
        Ok(packet) => model.step(packet),
        Err(reason) => (Verdict::Dropped(*reason), false),
    };
    // Others' messages have no verdict: they are passed on.
    let others = verdict == Verdict::Dropped(Reason::NotForRole);
    let good = packet.as_ref().ok();
    let good = good.filter(|packet| model.deployment.check(packet).is_ok());
    let sees = others || good.is_some_and(|p| host.sees(p.header.pid, verdict, decided));
    let expected = (
        if sees { action::PASS } else { action::DROP },
        (!others).then_some((verdict, decided)),
    );

    let frame = frame::build(datagram, xdp.runner.v6);
    let (action, out) = xdp.runner.frame(&frame)?;
    let as_it_came = out == frame;
    let found = (action, xdp.runner.counted(&xdp.object).ok());
    let differs = |why| format!("{datagram:02x?}: {why}");
    if found != expected || !as_it_came {
        let why = format!("leads to {found:?}, expected {expected:?}");
        return Err(differs(why));
    }
    host.hold(good.filter(|_| decided)).map_err(differs)?;
    Ok(verdict)
}
