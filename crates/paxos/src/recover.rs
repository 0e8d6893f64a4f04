// SPDX-License-Identifier: Apache-2.0
//! Recover: finds out what an instance holds, and puts a no-op there if it holds nothing
//! (docs/protocol/recover.md). One value repairs the gaps of one partition.
//!
//! ```text
//!             +-------- preempted: wait, go on in a higher round --------+
//!             v                                                          |
//! recover -> Query -- f+1 answered, no agreement --> Promise -- f+1 --> Accept
//!             |                                                          |
//!             +-------------- f+1 equal votes, at any time --------------+--> Decided
//! ```
//!
//! Proposes only in an active epoch and with its members: only there f+1 members know all that any
//! epoch before may have chosen. What f+1 members have voted can be learned in any epoch.
//! [R-ACTIVE]
//!
//! **A round is never used twice.** Rounds are per instance, so the attempts of one lane are
//! counted per instance. A count must outlive the repair (which ends early when the learner was
//! faster, and may be asked for again), so it is kept for as long as the lane: see `Attempts`. A
//! process that starts draws a fresh lane, a new epoch begins anew. [R-ROUND]
//!
//! **What an answer proves.** A PHASE2B says that its sender voted so, whenever it was sent and
//! however often it arrives; nothing that happens later makes it untrue. It is therefore judged by
//! the configuration of its round's epoch alone. A promise counts for the very round in which it
//! was asked for. A "no vote" proves nothing after it was sent: it only ends the waiting for the
//! question whose number it echoes, and decides nothing. "Trimmed" says that checkpoints cover the
//! instance; it ends a repair when f+1 members say it, since a single one may be wrong. Ignoring it
//! is like losing it: the repair goes on with the others.

use std::collections::{BTreeMap, VecDeque};

use crate::backoff::Backoff;
use crate::{
    Configuration, Deployment, Epoch, Header, Instance, MsgType, Outbox, Packet, PartitionId,
    Reason, Round, Time, To, Verdict,
};

mod answers;
mod attempts;
mod repair;

use attempts::Attempts;
use repair::{Candidate, Members, Phase, Repair, voters};

/// Configurations kept to judge votes by; as many as a view shows.
const MAX_CONFIGURATIONS: usize = 32;

/// How a recoverer behaves.
#[derive(Clone, Copy, Debug, Hash)]
pub struct RecoverSettings {
    /// The deployment that it serves.
    pub deployment: Deployment,
    /// The partition.
    pub pid: PartitionId,
    /// How long answers are waited for at first.
    pub retry_after: Time,
    /// How long it only asks: what is on its way may still come.
    pub propose_after: Time,
    /// Instances repaired at the same time, at most.
    pub max_open: usize,
    /// Random, never 0: tells this recoverer's questions from others' and seeds its jitter.
    pub nonce: u64,
}

/// What to put where nothing was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filler<'a> {
    /// A plain no-op.
    Noop,
    /// A command of the application's own choice.
    Command {
        /// Its session.
        client: u64,
        /// Its request number.
        request: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
}

/// How a repair ended.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// This was chosen.
    Decided {
        /// A DELIVER header with the value's flags, client and request and the round of its votes.
        header: Header,
        /// The value.
        value: Vec<u8>,
    },
    /// f+1 acceptors have forgotten the instance: it is covered by checkpoints.
    Trimmed {
        /// The instance.
        inst: Instance,
        /// Everything below is forgotten by f+1.
        trim: Instance,
    },
}
/// See the module.
#[derive(Clone, Debug, Hash)]
pub struct Recover {
    settings: RecoverSettings,
    backoff: Backoff,
    /// The active epoch's configuration; `None` while there is none: then nothing is sent.
    active: Option<Configuration>,
    attempts: Attempts,
    configurations: BTreeMap<Epoch, Configuration>,
    open: BTreeMap<Instance, Repair>,
    /// Nothing below is repaired: it is trimmed, or executed here.
    forgotten: Instance,
    outcomes: VecDeque<Outcome>,
    last_question: u64,
    later_epoch: Option<Epoch>,
    /// No repair is due earlier.
    due: Time,
}

impl Recover {
    /// A recoverer without an epoch: it takes requests and waits.
    pub fn new(settings: RecoverSettings) -> Recover {
        Recover {
            settings,
            backoff: Backoff::new(settings.nonce),
            active: None,
            attempts: Attempts::new(0, None),
            configurations: BTreeMap::new(),
            open: BTreeMap::new(),
            forgotten: 0,
            outcomes: VecDeque::new(),
            last_question: 0,
            later_epoch: None,
            due: Time::MAX,
        }
    }

    /// How long repairs that begin from now on only ask.
    pub fn set_propose_after(&mut self, time: Time) {
        self.settings.propose_after = time;
    }

    /// Remembers a configuration to judge votes of its epoch by. An epoch has one configuration for
    /// ever, so a known one is not replaced.
    pub fn learn(&mut self, configuration: &Configuration) {
        if configuration.invalid().is_some() {
            return;
        }
        self.configurations
            .entry(configuration.epoch)
            .or_insert_with(|| configuration.clone());
        while self.configurations.len() > MAX_CONFIGURATIONS {
            self.configurations.pop_first();
        }
    }

    /// The last epoch and this process's lane in it; `None` while no epoch is known. Lanes are given
    /// in an active epoch only. Without a lane it only asks, which is safe in any epoch. An older
    /// epoch than one seen before is ignored. In a new epoch everything begins anew.
    pub fn set_epoch(&mut self, now: Time, active: Option<(&Configuration, Option<u8>)>) {
        let Some((configuration, lane)) = active else {
            self.active = None;
            return;
        };
        let epoch = configuration.epoch;
        if epoch < self.attempts.epoch || configuration.invalid().is_some() {
            return;
        }
        self.learn(configuration);
        if epoch == self.attempts.epoch {
            self.attempts.change_lane(lane);
            if self.active.is_some() {
                return;
            }
        } else {
            self.attempts = Attempts::new(epoch, lane);
        }
        self.later_epoch = self.later_epoch.filter(|later| *later > epoch);
        self.active = Some(configuration.clone());
        for repair in self.open.values_mut() {
            let filler = std::mem::take(&mut repair.filler);
            *repair = Repair::new(filler, now.saturating_add(self.settings.propose_after));
            repair.ask(
                now,
                self.settings.retry_after,
                configuration.acceptors.len(),
            );
        }
        self.due = now;
    }

    /// Begins to repair `inst`. What it will hold comes out of [`poll`](Self::poll). Refused
    /// (`Full`) while `max_open` instances are open, (`Trimmed`) below what was forgotten, and when
    /// the filler can't be a value.
    pub fn recover(&mut self, now: Time, inst: Instance, filler: Filler<'_>) -> Result<(), Reason> {
        let filler = Candidate::filling(filler, self.settings.deployment.max_value)?;
        if inst < self.forgotten {
            return Err(Reason::Trimmed);
        }
        if self.open.contains_key(&inst) {
            return Ok(());
        }
        if self.open.len() >= self.settings.max_open {
            return Err(Reason::Full);
        }
        let members = self.active.as_ref().map_or(0, |c| c.acceptors.len());
        let mut repair = Repair::new(filler, now.saturating_add(self.settings.propose_after));
        repair.ask(now, self.settings.retry_after, members);
        self.open.insert(inst, repair);
        self.due = self.due.min(now);
        Ok(())
    }

    /// The learner has the decision already: drops the repair; says whether there was one.
    pub fn decided_elsewhere(&mut self, inst: Instance) -> bool {
        self.open.remove(&inst).is_some()
    }

    /// Everything below `inst` was executed here and will never be asked for again.
    pub fn forget_below(&mut self, inst: Instance) {
        if inst > self.forgotten {
            self.forgotten = inst;
            self.open = self.open.split_off(&inst);
            self.attempts.forget_below(inst);
        }
    }

    /// The next result.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Instances under repair.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// An instance can't be repaired in this epoch: its rounds are used up. Only a new epoch helps.
    pub fn needs_epoch(&self) -> bool {
        self.open.values().any(|repair| repair.exhausted)
    }

    /// An epoch later than the active one that an acceptor mentioned: ask the control plane.
    pub fn later_epoch(&self) -> Option<Epoch> {
        self.later_epoch
    }

    /// A trim point that fewer than f+1 members claim, above the lowest instance whose repair is stuck.
    /// The other members may be down, or they lack the reports of replicas that are down. Repair goes
    /// on; a checkpoint that reaches this trim point would confirm it.
    pub fn doubtful_trim(&self) -> Option<Instance> {
        self.open.values().find_map(Repair::doubtful_trim)
    }

    /// When [`tick`](Self::tick) is due. May be early, never late.
    pub fn next_deadline(&self) -> Option<Time> {
        (self.active.is_some() && !self.open.is_empty()).then_some(self.due)
    }

    /// Sends what is due: questions, proposals, and both again where answers are missing.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        if self.active.is_none() || now < self.due {
            return;
        }
        let due: Vec<Instance> = self
            .open
            .iter()
            .filter(|(_, repair)| repair.resend_at <= now)
            .map(|(inst, _)| *inst)
            .collect();
        for inst in due {
            self.advance(now, inst);
            self.send(now, inst, out);
        }
        let deadlines = self.open.values().map(|repair| repair.resend_at);
        self.due = deadlines.min().unwrap_or(Time::MAX);
    }

    /// Takes PHASE1B, PHASE2B and REJECT; everything else, and what answers no open question, is
    /// dropped.
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        let (inst, member) = match self.check(packet) {
            Ok(found) => found,
            Err(reason) => return Verdict::Dropped(reason),
        };
        let result = match packet.header.msgtype {
            MsgType::Phase1b if packet.header.rnd.is_none() => {
                self.on_no_vote(inst, member, packet)
            }
            MsgType::Phase1b => self.on_promise(inst, member, packet),
            MsgType::Phase2b => self.on_vote(inst, member, packet),
            _ => self.on_reject(now, inst, member, packet),
        };
        match result {
            Ok(()) => {
                if self.advance(now, inst) || self.is_due(now, inst) {
                    self.send(now, inst, out);
                }
                Verdict::Changed
            }
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    fn is_due(&self, now: Time, inst: Instance) -> bool {
        self.open
            .get(&inst)
            .is_some_and(|repair| repair.resend_at <= now)
    }

    /// Moves an instance to its next phase if it can go there; true if it did.
    fn advance(&mut self, now: Time, inst: Instance) -> bool {
        let (Some(active), Some(repair)) = (&self.active, self.open.get_mut(&inst)) else {
            return false;
        };
        let quorum = active.quorum() as u32;
        let next = match &mut repair.phase {
            Phase::Query {
                answered,
                no_vote,
                patience,
            } => {
                let hopeless = no_vote.count_ones() >= quorum && repair.preemptions == 0;
                let waited = answered.count_ones() >= quorum && *patience <= now;
                // A later epoch's promise can't be outdone: its epoch is to be awaited. [R-RETREAT]
                let epoch_over = repair.preempted_by.epoch() > self.attempts.epoch;
                let only_asks = now < repair.propose_from || self.attempts.lane.is_none();
                if !(hopeless || waited) || only_asks || epoch_over {
                    return false;
                }
                let Some(round) = self.attempts.take(inst, repair.preempted_by) else {
                    repair.exhausted = true;
                    return false;
                };
                Phase::Promise {
                    round,
                    promised: 0,
                    best: None,
                }
            }
            Phase::Promise {
                round,
                promised,
                best,
            } => {
                if promised.count_ones() < quorum {
                    return false;
                }
                // What may have been chosen; if nothing was, the no-op. [R-VALUE]
                let chosen = best.take().map(|vote| vote.candidate);
                Phase::Accept {
                    round: *round,
                    candidate: chosen.unwrap_or_else(|| repair.filler.clone()),
                }
            }
            Phase::Accept { .. } => return false,
        };
        repair.phase = next;
        repair.tries = 0;
        true
    }

    /// Sends what the phase of an instance needs to whoever hasn't answered, and sets when it is
    /// sent again.
    fn send(&mut self, now: Time, inst: Instance, out: &mut impl Outbox) {
        let Some(mut repair) = self.open.remove(&inst) else {
            return;
        };
        match &mut repair.phase {
            Phase::Query {
                answered, no_vote, ..
            } => {
                // All have answered and yet it can't go on: the next answers may tell more.
                if answered.count_ones() as usize == repair.votes.len() {
                    (*answered, *no_vote) = (0, 0);
                    repair.question = 0;
                }
                if repair.question == 0 {
                    self.last_question += 1;
                    repair.question = self.last_question;
                }
                self.send_query(inst, repair.question, *answered, out);
            }
            Phase::Promise {
                round, promised, ..
            } => {
                let header = Header {
                    rnd: *round,
                    ..self.header(MsgType::Phase1a, inst)
                };
                self.send_to_all_but(*promised, &header, &[], out);
            }
            Phase::Accept { round, candidate } => {
                // [R-CONFIRM]
                let voted = voters(&repair.votes, *round);
                let header = self.value_header(MsgType::Phase2a, inst, *round, candidate);
                self.send_to_all_but(voted, &header, &candidate.bytes, out);
                self.last_question += 1;
                repair.question = self.last_question;
                self.send_query(inst, repair.question, voted, out);
            }
        }
        let delay = self.backoff.delay(self.settings.retry_after, repair.tries);
        repair.tries += 1;
        repair.resend_at = now.saturating_add(delay);
        if let Phase::Query { patience, .. } = &repair.phase {
            let later = [*patience, repair.propose_from];
            let later = later.into_iter().filter(|at| *at > now);
            repair.resend_at = later.fold(repair.resend_at, Time::min);
        }
        self.due = self.due.min(repair.resend_at);
        self.open.insert(inst, repair);
    }

    fn send_query(&self, inst: Instance, question: u64, but: Members, out: &mut impl Outbox) {
        let header = Header {
            client: self.settings.nonce,
            request: question,
            ..self.header(MsgType::Query, inst)
        };
        self.send_to_all_but(but, &header, &[], out);
    }

    /// To the members of the active configuration, one by one: the data plane's list of acceptors
    /// may hold others.
    fn send_to_all_but(&self, but: Members, header: &Header, value: &[u8], out: &mut impl Outbox) {
        let members = self.active.iter().flat_map(|c| &c.acceptors);
        for (index, member) in members.enumerate() {
            if but >> index & 1 == 0 {
                out.send(To::Node(member.node), header, value);
            }
        }
    }

    fn header(&self, msgtype: MsgType, inst: Instance) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: self.settings.pid,
            swid: deployment.node,
            inst,
            ..Header::new(msgtype)
        }
    }

    fn value_header(
        &self,
        msgtype: MsgType,
        inst: Instance,
        round: Round,
        candidate: &Candidate,
    ) -> Header {
        Header {
            rnd: round,
            client: candidate.client,
            request: candidate.request,
            flags: candidate.flags,
            value_len: candidate.bytes.len() as u16,
            ..self.header(msgtype, inst)
        }
    }
}
