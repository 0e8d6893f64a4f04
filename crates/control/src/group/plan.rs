// SPDX-License-Identifier: Apache-2.0
//! Decides when a new epoch is needed, and who is in it.
//!
//! At the very first start *all* configured acceptors must have answered, since a configuration
//! names each one's boot nonce. Later an acceptor that is down stays a member under its old nonce
//! and triggers nothing; one that answers from another memory joins by a new epoch.

mod first;

use super::GroupControl;
use super::loss::{Loss, torn};
use super::report::role_name;
use crate::attempt::{Attempt, Change};
use crate::message::MemberRecord;
use crate::status::PartitionStatus;
use crate::suspicion::Watched;
use crate::{
    ControlOutbox, EpochRecord, EpochState, GivenUp, GroupState, Protocol, Refused, Store,
};
use paxos::nopaxos::SessionChange;
use paxos::round::MAX_EPOCH;
use paxos::wire::value::Probe;
use paxos::{Configuration, Epoch, Member, NodeId, PartitionId, Time};

/// How long a leader may need to take its round, as a multiple of an attempt's patience.
pub(super) const PROGRAM_PATIENCE: Time = 5;
/// How long replicas may need to stop, as a multiple of an attempt's patience.
const STOP_PATIENCE: Time = 10;

/// The reason why a new epoch is needed, and which leader it may keep.
pub(super) struct Need {
    reason: String,
    /// The leader in force can go on until the epoch begins.
    pub is_planned: bool,
    /// The leader that should stay if it can.
    keep: Option<NodeId>,
    /// The leader that should go if another one is alive.
    avoid: Option<NodeId>,
}

/// How long the leader in force has been waited for.
#[derive(Default)]
pub(super) struct Patience {
    /// The time since when it has been asked in vain to take its round.
    pub ordered: Option<Time>,
    /// The time since when it has stamped below the trim points of acceptors.
    below_trim: Option<Time>,
}

impl Need {
    fn planned(self) -> Need {
        Need {
            is_planned: true,
            ..self
        }
    }
}

impl GroupControl {
    /// Issues an epoch if one is needed, possible, and allowed by the pace.
    pub(super) fn plan(&mut self, now: Time, store: &mut impl Store, out: &mut impl ControlOutbox) {
        if self.resume_session(now, store, out) {
            return;
        }
        let Some(need) = self.need(now) else {
            self.blocked = None;
            self.needed_since = None;
            self.ahead = None;
            return;
        };
        let since = *self.needed_since.get_or_insert(now);
        if self.doubtful {
            self.ahead = None;
            self.answer_trouble(out);
            return;
        }
        if !self.pace.allows(now) {
            self.ahead = None;
            return;
        }
        let (configuration, loss) = match self.next_epoch(now, &need) {
            Ok(next) => next,
            Err(why) => {
                // The next probes show what has just been started, enabled or emptied. After that
                // those who asked are told the reason; the need itself stays and is checked again.
                let patience = self.timing.probe_interval * Time::from(self.timing.suspect_after);
                let (since, patience) = match &self.stopping {
                    Some(stopping) => (stopping.since, self.timing.attempt_timeout * STOP_PATIENCE),
                    None => (self.order.map_or(since, |order| order.since), patience),
                };
                if now.saturating_sub(since) >= patience {
                    self.refuse_waiting(&why, out);
                }
                self.ahead = None;
                self.blocked = Some(why);
                return;
            }
        };
        self.blocked = None;
        let given_up = match loss {
            Loss::None if self.reads_ahead(now, &need, &configuration, out) => return,
            Loss::None => None,
            Loss::Unknown => return self.begin_to_stop(now, &configuration, store, out),
            Loss::Known(given_up) => Some(given_up),
        };
        self.issue(now, since, need.reason, configuration, given_up, store, out);
    }

    /// Takes the number of a new epoch for good, with the instances that it gives up. If there is
    /// none, those who asked are told the reason.
    pub(super) fn take_epoch(
        &mut self,
        now: Time,
        configuration: &Configuration,
        given_up: Option<&GivenUp>,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) -> Option<Epoch> {
        let mut state = self.state.clone();
        let epoch = match self.take_number(&mut state, configuration, given_up) {
            Ok(epoch) => epoch,
            Err(why) => {
                self.refuse_waiting(&why.to_string(), out);
                self.blocked = Some(why.to_string());
                return None;
            }
        };
        self.pace.issued(now);
        if self.save(state, store).is_err() {
            self.pace.failed(now);
            self.answer_trouble(out);
            return None;
        }
        self.issued = epoch;
        Some(epoch)
    }

    #[allow(clippy::too_many_arguments)] // It has one caller, right above.
    fn issue(
        &mut self,
        now: Time,
        since: Time,
        mut reason: String,
        configuration: Configuration,
        given_up: Option<GivenUp>,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        let earlier = self.state.needed();
        let Some(epoch) = self.take_epoch(now, &configuration, given_up.as_ref(), store, out)
        else {
            return;
        };
        let lost = given_up.as_ref().filter(|_| self.backup().is_none());
        if let Some(GivenUp { from, to, .. }) = lost {
            reason = format!(
                "DATA LOSS ACCEPTED BY THE OPERATOR; given up from {from:?}, going on at {to:?}"
            );
            self.loss = Some(format!("epoch {epoch}: {reason}"));
        }
        self.order = None;
        self.stopping = None;
        self.torn = false;
        match self.change_to(earlier, given_up.as_ref()) {
            Ok(change) => self.begin(change, reason, since, now, store, out),
            Err(why) => {
                self.pace.failed(now);
                self.blocked = Some(why.to_string());
            }
        }
    }

    fn take_number(
        &self,
        state: &mut GroupState,
        configuration: &Configuration,
        given_up: Option<&GivenUp>,
    ) -> Result<Epoch, Refused> {
        let lead = || self.next_lead(configuration);
        match (self.settings.protocol, given_up) {
            (Protocol::Paxos, None) => state.issue(configuration),
            (Protocol::Paxos, Some(given_up)) => {
                let epoch = state.issue(configuration)?;
                state.accepted = Some(given_up.clone());
                Ok(epoch)
            }
            (Protocol::NoPaxos, None) => state.issue_session(configuration, lead()),
            (Protocol::NoPaxos, Some(given_up)) => {
                state.issue_session_anew(configuration, lead(), given_up)
            }
        }
    }

    /// Returns the procedure that carries on the epoch that was just issued.
    fn change_to(
        &mut self,
        earlier: Vec<Configuration>,
        given_up: Option<&GivenUp>,
    ) -> Result<Change, &'static str> {
        let record = self.state.epochs.last().ok_or("nothing was issued")?;
        if let Some(session) = record.session(0) {
            let change = SessionChange::resume(session, self.settings.partitions)?;
            return Ok(Change::Session(change));
        }
        let configuration = record.configuration();
        let start = given_up.map(|given_up| given_up.to.as_slice());
        let candidate = self.candidate(configuration, earlier, start)?;
        Ok(Change::Candidate(Box::new(candidate)))
    }

    pub(super) fn begin(
        &mut self,
        change: Change,
        reason: String,
        since: Time,
        now: Time,
        store: &mut impl Store,
        out: &mut impl ControlOutbox,
    ) {
        self.attempt = Some(Attempt::new(change, reason, since, now));
        self.send_views(out);
        if let Some(candidate) = self.candidate_mut() {
            candidate.tick(now, out);
        }
        self.drive(now, store, out);
    }

    // ---- Is an epoch needed? ---------------------------------------------------------------

    /// Returns why a new epoch is needed, if it is. [E-NEED]
    fn need(&mut self, now: Time) -> Option<Need> {
        let need = |reason: String, keep, avoid| {
            Some(Need {
                reason,
                is_planned: false,
                keep,
                avoid,
            })
        };
        let last = self.state.epochs.last().cloned();
        let Some(last) = last else {
            return need("first start".into(), None, None);
        };
        let leader = last.leader.0;
        if let Some(order) = &self.order {
            let ordered = need("ordered by the operator".into(), order.to, Some(leader));
            return ordered.map(Need::planned);
        }
        if last.state != EpochState::Active {
            let reason = format!("epoch {} was left unfinished", last.epoch);
            return need(reason, Some(leader), None);
        }
        if let Some(reason) = self.leader_trouble(&last) {
            return need(reason, None, None);
        }
        if self.is_refusing(now, &last) {
            let role = role_name(self.settings.stamper());
            let reason = format!("{role} {leader} doesn't take its round");
            return need(reason, None, Some(leader));
        }
        if self.stamps_below_trim(now, &last) {
            let reason = format!("leader {leader} stamps below what acceptors have trimmed");
            return need(reason, Some(leader), None);
        }
        if let Some(reason) = self.replica_trouble(&last) {
            return need(reason, Some(leader), None);
        }
        if self.used_up == last.epoch {
            let reason = match self.issued == last.epoch {
                true => "the repair lanes are used up".into(),
                false => format!(
                    "a repair lane or incarnation is asked for, and those of epoch {} were an \
                     earlier process's to give",
                    last.epoch
                ),
            };
            return need(reason, Some(leader), None);
        }
        let wanted = self.change_wanted(&last);
        self.changed = wanted.is_some().then(|| self.changed.unwrap_or(now));
        let due = self.changed? + self.timing.rejoin_delay;
        match wanted {
            Some(reason) if now >= due => need(reason, Some(leader), None).map(Need::planned),
            _ => None,
        }
    }

    /// Returns whether the leader answers but hasn't shown its round for long. It may have been
    /// made to retire, and it takes a round only once.
    fn is_refusing(&mut self, now: Time, last: &EpochRecord) -> bool {
        let taken = self.programmed == last.epoch;
        let alive = self
            .suspicion
            .is_alive(self.settings.stamper(), last.leader.0);
        self.patience.ordered = (alive && !taken).then(|| self.patience.ordered.unwrap_or(now));
        let patience = self.timing.attempt_timeout * PROGRAM_PATIENCE;
        self.patience
            .ordered
            .is_some_and(|since| now - since > patience)
    }

    /// Returns whether the leader has stamped below the trim point of f+1 acceptors for as long as
    /// suspicion takes. No acceptor votes there, so nothing is decided; this happens if acceptors
    /// and replicas were restored and the store of epochs is older.
    fn stamps_below_trim(&mut self, now: Time, last: &EpochRecord) -> bool {
        let is_below = self.programmed == last.epoch
            && (0..self.settings.partitions).any(|pid| self.is_below_trim(pid, last));
        self.patience.below_trim = is_below.then(|| self.patience.below_trim.unwrap_or(now));
        let patience = self.timing.probe_interval * Time::from(self.timing.suspect_after);
        self.patience
            .below_trim
            .is_some_and(|since| now - since > patience)
    }

    fn is_below_trim(&self, pid: PartitionId, last: &EpochRecord) -> bool {
        let leader = self.suspicion.get(Probe::Leader, last.leader.0);
        let Some(at) = leader.and_then(|leader| leader.partitions[usize::from(pid)]) else {
            return false;
        };
        let above = self
            .shown(Probe::Acceptor, pid)
            .filter(|acceptor| acceptor.trim > at.inst);
        above.count() > usize::from(last.f)
    }

    /// Returns what the next epoch would change in the configuration in force, besides the leader.
    fn change_wanted(&self, last: &EpochRecord) -> Option<String> {
        let (voters, f) = self.next_voters(last);
        let role = role_name(self.settings.voters().0);
        if voters != last.acceptors {
            let joins = |a: &&MemberRecord| !last.acceptors.contains(a);
            let joining: Vec<String> = voters
                .iter()
                .filter(joins)
                .map(|a| a.0.to_string())
                .collect();
            return Some(match joining.is_empty() {
                true => format!("{role}s were taken out of the cluster file"),
                false => format!("{role} {} joins with an empty memory", joining.join(", ")),
            });
        }
        let (replicas, g) = self.next_replicas(&voters, f);
        let same = (f, &replicas, g) == (last.f, &last.replicas, last.g);
        (!same).then(|| "the cluster file names other replicas, f or g".into())
    }

    /// Returns the acceptors (with NOPaxos the replicas) of the next epoch, and f. These are the
    /// configured nodes, in the memory that answers now, or as they were if they don't answer;
    /// while a new one in the cluster file has never answered, the set and f stay unchanged.
    pub(super) fn next_voters(&self, last: &EpochRecord) -> (Vec<MemberRecord>, u8) {
        let (role, nodes) = self.settings.voters();
        let known = |&node: &NodeId| {
            let recorded = || last.acceptors.iter().find(|a| a.0 == node).map(|a| a.1);
            let nonce = self.suspicion.memory(role, node).or_else(recorded);
            nonce.map(|nonce| (node, nonce))
        };
        let configured: Option<Vec<_>> = nodes.iter().map(known).collect();
        match configured {
            Some(configured) => (configured, self.settings.f),
            None => {
                let nodes = last.acceptors.iter().map(|a| a.0);
                (nodes.filter_map(|node| known(&node)).collect(), last.f)
            }
        }
    }

    // ---- Who is in it? ---------------------------------------------------------------------

    /// Returns the configuration of the next epoch, and the instances that it gives up if data loss
    /// was accepted.
    fn next_epoch(&self, now: Time, need: &Need) -> Result<(Configuration, Loss), String> {
        if let Some(why) = &self.stale {
            return Err(why.clone());
        }
        self.protocol_is_the_same()?;
        if self.state.last_epoch() >= MAX_EPOCH {
            return Err(Refused::EpochsExhausted.to_string());
        }
        let (voters, f) = match self.state.epochs.last() {
            Some(last) => self.next_voters(last),
            None => {
                let voters = self.first_voters()?;
                self.replicas_remember_nothing()?;
                (voters, self.settings.f)
            }
        };
        let leader = self.pick_leader(need)?;
        let (replicas, g) = self.next_replicas(&voters, f);
        let member = |(node, nonce)| Member { node, nonce };
        let configuration = Configuration {
            epoch: self.state.last_epoch() + 1,
            leader: member(leader),
            acceptors: voters.into_iter().map(member).collect(),
            f,
            replicas,
            g,
        };
        if let Some(why) = configuration.invalid() {
            return Err(format!("the cluster file is wrong: {why}"));
        }
        self.has_quorum(&configuration)?;
        if let Some(given_up) = self.gap_behind_backup()? {
            return Ok((configuration, Loss::Known(given_up)));
        }
        let accept_data_loss = self.order.is_some_and(|o| o.accept_data_loss);
        let goes_nowhere = self.torn || self.is_stranded(now);
        let room = self.has_room(&configuration, accept_data_loss);
        let loss = match self.needed_quorums().and(room) {
            Ok(()) if self.torn && !accept_data_loss => return Err(torn()),
            Ok(()) if !(accept_data_loss && goes_nowhere) => Loss::None,
            Err(why) if !accept_data_loss => return Err(why),
            _ => self.what_is_lost(now)?,
        };
        Ok((configuration, loss))
    }

    /// Returns an error if a node shows a round that this store never issued (for a replica, the
    /// round of the last marker that it has executed). Then the store is an old copy, and must not
    /// issue the numbers in between a second time. [E-NEWEST]
    pub(super) fn store_is_newest(&self) -> Result<(), String> {
        let mut all = self.suspicion.iter();
        let Some(newer) = all.find(|w| self.state.lacks(w.round().epoch())) else {
            return Ok(());
        };
        let (node, epoch) = (newer.node, newer.round().epoch());
        let last = self.state.last_epoch();
        let remedy = match self.settings.protocol {
            Protocol::Paxos => {
                "Stop all controllers, and make the store anew from what the nodes know: \
                 `wirepaxos controller rebuild`. If all acceptors are empty, too, restore a \
                 backup into a new cluster"
            }
            Protocol::NoPaxos => {
                "Stop this controller, and restore the newest copy of its epochs.json"
            }
        };
        Err(match epoch > last {
            true => format!(
                "node {node} has seen epoch {epoch}, but the controller's store ends at epoch \
                 {last}: it is an old copy or a new one. {remedy}"
            ),
            false => format!(
                "node {node} has seen epoch {epoch}, which was left out when the controller's \
                 store was made anew: another controller works, or that node was silent. Stop any \
                 other controller and this one, and run `wirepaxos controller rebuild` again"
            ),
        })
    }

    /// Returns the first live leader in order of preference, and waits for one that hasn't been
    /// asked long enough.
    fn pick_leader(&self, need: &Need) -> Result<MemberRecord, String> {
        let role = self.settings.stamper();
        let name = role_name(role);
        let memory = |node: NodeId| {
            let nonce = self.suspicion.memory(role, node);
            nonce.map(|nonce| (node, nonce))
        };
        let configured = |node: &NodeId| self.settings.leaders.contains(node);
        if let Some(kept) = need.keep.filter(configured).and_then(memory) {
            return Ok(kept);
        }
        let mut spare = None;
        for &node in &self.settings.leaders {
            let watched = self.suspicion.get(role, node);
            let starting = |w: &Watched| w.memory.is_none() && !self.suspicion.is_suspect(w);
            match memory(node) {
                Some(leader) if need.avoid == Some(node) => spare = Some(leader),
                Some(leader) => return Ok(leader),
                None if watched.is_some_and(starting) => {
                    return Err(format!("waiting for {name} {node} to answer"));
                }
                None => {}
            }
        }
        spare.ok_or_else(|| format!("no {name} answers: start one"))
    }

    /// Returns an error unless f+1 members of every configuration that must promise can do so.
    /// [G-ORDER]
    pub(super) fn needed_quorums(&self) -> Result<(), String> {
        if self.settings.protocol == Protocol::NoPaxos {
            // In this case no replica has anything to tell.
            return match self.state.has_stamped_nothing() {
                true => Ok(()),
                false => self.needed_logs(),
            };
        }
        for configuration in self.state.needed() {
            // Members of an unfinished epoch are enabled by the next one.
            let unfinished = self.is_unfinished(&configuration);
            let able = |node: NodeId, nonce: u64| {
                let watched = self.suspicion.get(Probe::Acceptor, node);
                self.suspicion.memory(Probe::Acceptor, node) == Some(nonce)
                    && !self.is_disbelieved(node, nonce)
                    && watched.is_some_and(|w| unfinished || w.has_round())
            };
            let lacking = lacking(&configuration, able);
            if configuration.acceptors.len() - lacking.len() < configuration.quorum() {
                return Err(format!(
                    "more than f = {} acceptors of epoch {} are lost: node {}. Start them again; \
                     if their memory is gone for good, `wirepaxos failover --accept-data-loss` \
                     goes on from what the replicas executed",
                    configuration.f,
                    configuration.epoch,
                    listed(&lacking)
                ));
            }
        }
        Ok(())
    }

    /// Returns an error unless f+1 members of the new configuration can vote once they are enabled.
    pub(super) fn has_quorum(&self, configuration: &Configuration) -> Result<(), String> {
        let (role, _) = self.settings.voters();
        let able = |node: NodeId, nonce: u64| {
            self.suspicion.memory(role, node) == Some(nonce) && !self.is_disbelieved(node, nonce)
        };
        let lacking = lacking(configuration, able);
        if configuration.acceptors.len() - lacking.len() >= configuration.quorum() {
            return Ok(());
        }
        Err(format!(
            "more than f = {} {}s don't answer: node {}. Start them again",
            configuration.f,
            role_name(role),
            listed(&lacking)
        ))
    }

    pub(super) fn shown(
        &self,
        role: Probe,
        pid: PartitionId,
    ) -> impl Iterator<Item = &PartitionStatus> {
        self.suspicion
            .iter()
            .filter(move |w| w.role == role && !self.suspicion.is_suspect(w))
            .filter_map(move |w| w.partitions[usize::from(pid)].as_ref())
    }
}

pub(super) fn lacking(
    configuration: &Configuration,
    able: impl Fn(NodeId, u64) -> bool,
) -> Vec<NodeId> {
    let acceptors = configuration.acceptors.iter();
    acceptors
        .filter(|a| !able(a.node, a.nonce))
        .map(|a| a.node)
        .collect()
}

pub(crate) fn listed(nodes: &[NodeId]) -> String {
    let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    nodes.join(", ")
}
