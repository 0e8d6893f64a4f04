// SPDX-License-Identifier: Apache-2.0
//! Recover: finds out the value of an instance, and puts a no-op there if it has none
//! (docs/protocol/recover.md). One [`Recover`] repairs the gaps of one partition.
//!
//! ```text
//!             +-------- preempted: wait, go on in a higher round --------+
//!             v                                                          |
//! recover -> Query -- f+1 answered, no agreement --> Promise -- f+1 --> Accept
//!             |                                                          |
//!             +-------------- f+1 equal votes, at any time --------------+--> Decided
//! ```
//!
//! Recover proposes only in an active epoch and with its members, because only there f+1 members
//! know everything that any earlier epoch may have chosen. A value that f+1 members have voted for
//! can be learned in any epoch. [R-ACTIVE]
//!
//! **A round is never used twice.** Rounds are per instance, so the attempts of one lane are
//! counted per instance. A repair may end early, when the learner was faster, and may be asked for
//! again; therefore the count is kept as long as the lane (see `Attempts`). A process that starts
//! draws a fresh lane, and a new epoch begins anew. [R-ROUND]
//!
//! **What an answer proves.** A PHASE2B says that its sender voted so. Nothing that happens later
//! makes that untrue, so it counts whenever it was sent and however often it arrives, and is judged
//! by the configuration of its round's epoch alone. A promise counts only for the round in which it
//! was asked for. A "no vote" proves nothing after it was sent: it only ends the waiting for the
//! question whose number it echoes, and decides nothing. "Trimmed" says that checkpoints cover the
//! instance; it ends a repair when f+1 members say it, since a single one may be wrong. Ignoring an
//! answer is like losing it: the repair goes on with the others.

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

/// How many configurations are kept to judge votes by: as many as a view shows.
const MAX_CONFIGURATIONS: usize = 32;

/// The settings of a recoverer.
#[derive(Clone, Copy, Debug, Hash)]
pub struct RecoverSettings {
    /// The deployment that the recoverer serves.
    pub deployment: Deployment,
    /// The partition.
    pub pid: PartitionId,
    /// How long the recoverer waits for answers at first.
    pub retry_after: Time,
    /// How long the recoverer only asks before it proposes, since the missing value may still come.
    pub propose_after: Time,
    /// The most instances that are repaired at the same time.
    pub max_open: usize,
    /// A random number, never 0, which tells this recoverer's questions from others' and seeds its
    /// jitter.
    pub nonce: u64,
}

/// The value to propose if nothing was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filler<'a> {
    /// A plain no-op.
    Noop,
    /// A command of the application's own choice.
    Command {
        /// The session.
        client: u64,
        /// The request number.
        request: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
}

/// The end of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// This value was chosen.
    Decided {
        /// A DELIVER header with the value's flags, client and request and the round of its votes.
        header: Header,
        /// The value.
        value: Vec<u8>,
    },
    /// f+1 acceptors have forgotten the instance, so checkpoints cover it.
    Trimmed {
        /// The instance.
        inst: Instance,
        /// The instance below which f+1 acceptors have forgotten everything.
        trim: Instance,
    },
}
/// A recoverer of one partition.
#[derive(Clone, Debug, Hash)]
pub struct Recover {
    settings: RecoverSettings,
    backoff: Backoff,
    /// The active epoch's configuration, or `None` while there is none; then nothing is sent.
    active: Option<Configuration>,
    attempts: Attempts,
    configurations: BTreeMap<Epoch, Configuration>,
    open: BTreeMap<Instance, Repair>,
    /// Nothing below this instance is repaired: it is trimmed, or executed here.
    forgotten: Instance,
    outcomes: VecDeque<Outcome>,
    last_question: u64,
    later_epoch: Option<Epoch>,
    /// No repair is due before this time.
    due: Time,
}

impl Recover {
    /// Returns a recoverer without an epoch, which takes requests and waits.
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

    /// Sets how long repairs that begin from now on only ask before they propose.
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

    /// Sets the last epoch and this process's lane in it, or `None` while no epoch is known; lanes
    /// are given in an active epoch only, and without one the recoverer only asks, which is safe in
    /// any epoch. A new epoch restarts all repairs, and an older one is ignored.
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

    /// Begins to repair `inst`, whose value [`poll`](Self::poll) returns later. Refused with `Full`
    /// while `max_open` instances are open, with `Trimmed` below what was forgotten, and with
    /// another reason if the filler can't be a value.
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

    /// Drops the repair of an instance that the learner has decided. Returns true if there was one.
    pub fn decided_elsewhere(&mut self, inst: Instance) -> bool {
        self.open.remove(&inst).is_some()
    }

    /// Forgets everything below `inst`, which was executed here and will never be asked for again.
    pub fn forget_below(&mut self, inst: Instance) {
        if inst > self.forgotten {
            self.forgotten = inst;
            self.open = self.open.split_off(&inst);
            self.attempts.forget_below(inst);
        }
    }

    /// Returns the next result.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Returns how many instances are under repair.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns true if some instance can't be repaired in this epoch, since its rounds are used up.
    /// Only a new epoch helps.
    pub fn needs_epoch(&self) -> bool {
        self.open.values().any(|repair| repair.exhausted)
    }

    /// Returns an epoch later than the active one that an acceptor mentioned. The caller should ask
    /// the control plane.
    pub fn later_epoch(&self) -> Option<Epoch> {
        self.later_epoch
    }

    /// Returns a trim point that fewer than f+1 members claim, above the lowest instance whose
    /// repair is stuck. The other members may be down, or lack the reports of replicas that are
    /// down. The repair goes on, and a checkpoint that reaches this trim point would confirm it.
    pub fn doubtful_trim(&self) -> Option<Instance> {
        self.open.values().find_map(Repair::doubtful_trim)
    }

    /// Returns when [`tick`](Self::tick) is due. The time may be early, but never late.
    pub fn next_deadline(&self) -> Option<Time> {
        (self.active.is_some() && !self.open.is_empty()).then_some(self.due)
    }

    /// Sends the questions and proposals that are due, and repeats those that lack answers.
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

    /// Takes PHASE1B, PHASE2B and REJECT, and returns what became of the packet. All other packets,
    /// and answers to no open question, are dropped.
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

    /// Moves an instance to its next phase if it can go there. Returns true if it did.
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
                // A later epoch's promise can't be outdone, so the repair waits for that epoch.
                // [R-RETREAT]
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
                // The value of the highest vote may have been chosen. If nobody voted, the filler
                // is proposed. [R-VALUE]
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

    /// Sends what the phase of an instance needs to the members that haven't answered, and sets
    /// when it is sent again.
    fn send(&mut self, now: Time, inst: Instance, out: &mut impl Outbox) {
        let Some(mut repair) = self.open.remove(&inst) else {
            return;
        };
        match &mut repair.phase {
            Phase::Query {
                answered, no_vote, ..
            } => {
                // All members have answered and the repair still can't go on, but the next answers
                // may tell more.
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
                // The votes go to the learners, so a QUERY asks for them. [R-CONFIRM]
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

    /// Sends to the members of the active configuration, one by one, since the data plane's list of
    /// acceptors may hold others.
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
