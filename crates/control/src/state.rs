// SPDX-License-Identifier: Apache-2.0
//! The stored state of a group, and the only changes that are allowed.

pub use crate::given_up::{GivenUp, LEAP};
use crate::level::{self, Level};
use crate::members;
use crate::memory::MemoryRecord;
use crate::message::are_sound;
use crate::{EpochRecord, EpochState, MemberChange, View};
use paxos::nopaxos::session_change::Begins;
use paxos::round::{MAX_EPOCH, MAX_LANE};
use paxos::{Configuration, Epoch, GroupId, HandOver, Instance, NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many epochs before the active one are kept, for votes that are still on their way.
const OLDER_EPOCHS: usize = 4;

/// How many sessions may follow the last active one, since replicas must be told of all of them.
const MAX_UNFINISHED: usize = View::MAX_EPOCHS - 1;

/// The stored state of a group. Every change is one of the methods here, made on a copy that then
/// replaces the stored state by compare-and-swap ([`crate::Store::swap`]).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupState {
    /// Grows by one with every change.
    pub version: u64,
    /// The epochs, oldest first. They include at least the last active one, every later one that is
    /// marked writing, and the last one.
    pub epochs: Vec<EpochRecord>,
    /// The repair lanes of the last epoch, in the order of their numbers from 1, each as the nonce
    /// of the process start that drew it.
    pub lanes: Vec<u64>,
    /// The disk of each replica, as its last process found it.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The values that the last active epoch hands over.
    pub handed: Option<Handed>,
    /// The instances that the operator gives up in an epoch that was issued since the last active
    /// one; with NOPaxos in the last one, until it is *writing*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<GivenUp>,
    /// The instances that were given up last: an epoch that continues after them has become active,
    /// or a session *writing*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
    /// The records of what acceptors' memories have shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<MemoryRecord>,
    /// The numbers that were left out when this state was made anew, until an epoch has become
    /// active since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// Where the partitions of the backup stand from which the cluster was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Vec<Instance>>,
    /// All changes of the cluster's members by command, of which the first group's state keeps the
    /// list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberChange>,
}

/// Epoch numbers that the lost store may have issued, so that they are never issued again. If a
/// node shows one after all, another controller works, or the node was silent when the state was
/// made anew. [E-REBUILD]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    /// The first number, behind the last that any node has shown.
    pub first: Epoch,
    /// The last number.
    pub last: Epoch,
}

/// How many numbers are left out when a state is made anew. A lost store had few epochs that no
/// node of a quorum has heard of, as each needs that quorum's promises, and they come at one a
/// second at most.
const MARGIN: Epoch = 1024;

/// A replica's disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// The replica.
    pub node: NodeId,
    /// The nonce of the process start that drew the number.
    pub nonce: u64,
    /// The number.
    pub incarnation: u64,
}

/// The values that an active epoch hands over. A restarted controller can repeat the orders with
/// them, since the orders are accepted once and name the memory meant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Handed {
    /// The next instance of the leader in each partition.
    pub next: Vec<Instance>,
    /// T of each partition, as told to leader and acceptors.
    pub trim: Vec<Instance>,
    /// E of each partition, as told to the acceptors.
    pub end: Vec<Instance>,
}

impl From<HandOver> for Handed {
    fn from(hand_over: HandOver) -> Handed {
        Handed {
            end: hand_over.next.iter().map(|next| next - 1).collect(),
            next: hand_over.next,
            trim: hand_over.trimmed,
        }
    }
}

/// The reason why a change isn't allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A later epoch exists.
    Superseded,
    /// An epoch moves from issued to writing to active, one step at a time.
    OutOfOrder,
    /// The last epoch number has been used, and numbers never wrap.
    EpochsExhausted,
    /// All lanes of the epoch are drawn, so only a new epoch helps.
    LanesExhausted,
    /// Lanes are drawn only in the active epoch.
    NotActive,
    /// A view has no room for another session that isn't active.
    TooManyUnfinished,
    /// The list of changes of the members has no room for more.
    TooManyChanges,
    /// A change of the members is of a later version.
    UnknownChange,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Superseded => "a later epoch exists",
            Refused::OutOfOrder => "the epoch isn't in the state before",
            Refused::EpochsExhausted => {
                "all epochs are used up: copy the data into a new cluster with a new cluster number"
            }
            Refused::LanesExhausted => "all repair lanes of the epoch are drawn",
            Refused::NotActive => "the epoch isn't the active one",
            Refused::TooManyUnfinished => {
                "too many sessions were left unfinished: the last one goes on until it is active. \
                 Start its replicas"
            }
            Refused::TooManyChanges => "the list of the members' changes is full",
            Refused::UnknownChange => {
                "a change of the members is of a later version: start that version"
            }
        })
    }
}

/// Returns the epochs whose members' memories the next epoch relies on. The epochs must ascend.
pub fn needed_epochs(epochs: &[EpochRecord]) -> impl Iterator<Item = &EpochRecord> {
    let active = epochs.iter().rfind(|e| e.state == EpochState::Active);
    let first = active.map_or(0, |e| e.epoch).max(last_begun_anew(epochs));
    let is_needed = move |e: &&EpochRecord| e.epoch >= first && e.state != EpochState::Issued;
    epochs.iter().filter(is_needed)
}

fn last_begun_anew(epochs: &[EpochRecord]) -> Epoch {
    let is_anew = |e: &&EpochRecord| e.anew.is_some() && e.state != EpochState::Issued;
    epochs.iter().rfind(is_anew).map_or(0, |e| e.epoch)
}

impl GroupState {
    /// Returns the state with which a cluster begins that is made from a backup.
    pub fn begun_from_backup(positions: Vec<Instance>, level: Level) -> GroupState {
        let is_first = level == level::FIRST;
        let set = (!is_first).then_some(MemberChange::SetLevel { level });
        GroupState {
            version: 1,
            restored: Some(positions),
            members: set.into_iter().collect(),
            ..GroupState::default()
        }
    }

    /// Returns whether the epochs ascend, each as it was issued.
    pub fn is_sound(&self) -> bool {
        are_sound(&self.epochs)
    }

    /// Returns the last epoch issued, or 0 before the first.
    pub fn last_epoch(&self) -> Epoch {
        self.epochs.last().map_or(0, |e| e.epoch)
    }

    /// Returns the last epoch that became active, even if later ones were issued.
    pub fn last_active(&self) -> Option<&EpochRecord> {
        let active = |e: &&EpochRecord| e.state == EpochState::Active;
        self.epochs.iter().rev().find(active)
    }

    /// Returns the epoch in force, which is the last one if it is active.
    pub fn in_force(&self) -> Option<&EpochRecord> {
        self.epochs.last().filter(|e| e.state == EpochState::Active)
    }

    /// Returns the configurations whose promises a new epoch needs: the last active one and every
    /// later one that is marked writing. [C-PROMISE] [C-FENCE]
    pub fn needed(&self) -> Vec<Configuration> {
        let needed = needed_epochs(&self.epochs);
        needed.map(EpochRecord::configuration).collect()
    }

    /// Returns the last session in which a loss was accepted for good, or 0. [F-ANEW]
    fn begun_anew(&self) -> Epoch {
        last_begun_anew(&self.epochs)
    }

    /// Returns whether a node that shows this epoch knows more than this state does. [E-NEWEST]
    pub fn lacks(&self, epoch: Epoch) -> bool {
        let is_left_out = |left: LeftOut| (left.first..=left.last).contains(&epoch);
        epoch > self.last_epoch() || self.left_out.is_some_and(is_left_out)
    }

    /// Returns the state that continues from what nodes know, when the store is lost or older:
    /// `view` has all epochs that may have written, and `seen` is the last that any node has shown.
    /// Its last epoch was only issued, so the next one reads the votes of all others. [E-REBUILD]
    pub fn made_anew(
        view: &View,
        seen: Epoch,
        found: &GroupState,
        memories: Vec<MemoryRecord>,
    ) -> Result<GroupState, Refused> {
        let mut epochs = view.epochs.clone();
        epochs.retain(|e| e.state != EpochState::Issued);
        let last = epochs.last().ok_or(Refused::NotActive)?;
        let issued = Configuration {
            epoch: seen + MARGIN,
            ..last.configuration()
        };
        if issued.epoch >= MAX_EPOCH {
            return Err(Refused::EpochsExhausted);
        }
        epochs.push(EpochRecord::of(&issued, last.lead, EpochState::Issued));
        Ok(GroupState {
            version: view.version.max(found.version) + 1,
            epochs,
            disks: found.disks.clone(),
            given_up: view.given_up.clone(),
            memories,
            members: found.members.clone(),
            left_out: Some(LeftOut {
                first: seen + 1,
                last: issued.epoch,
            }),
            ..GroupState::default()
        })
    }

    /// Returns whether nothing that counts was stamped in any session, since none was active from
    /// the beginning or since a loss was accepted.
    pub fn has_stamped_nothing(&self) -> bool {
        let active = self.last_active().map_or(0, |e| e.epoch);
        active == 0 || active < self.begun_anew()
    }

    /// Returns the view for the nodes: the last active epoch and all later ones, and older ones if
    /// there is room.
    pub fn view(&self, group: GroupId) -> View {
        let mut epochs = self.epochs.clone();
        if epochs.len() > View::MAX_EPOCHS {
            let active = self.last_active().map_or(0, |e| e.epoch);
            let excess = epochs.len() - View::MAX_EPOCHS;
            // The active epoch must stay; of the later ones the newest matter most.
            let at = epochs.iter().position(|e| e.epoch == active);
            let active = at.map(|at| epochs.remove(at));
            epochs.drain(..excess);
            epochs.splice(0..0, active);
        }
        View {
            group,
            version: self.version,
            epochs,
            given_up: self.given_up.clone(),
            begins: self.handed.as_ref().map(|handed| handed.end.clone()),
        }
    }

    /// Adds an epoch with the next number that isn't active yet, and stops all earlier ones from
    /// moving on. [E-ISSUE]
    pub fn issue(&mut self, configuration: &Configuration) -> Result<Epoch, Refused> {
        // An epoch that never wrote can't have chosen anything, so its configuration isn't needed.
        self.add(configuration, None, |e| e.state != EpochState::Issued)
    }

    /// Adds a sequencer's session like [`issue`](Self::issue). Sessions that never wrote are kept,
    /// too, since replicas conclude nothing from sessions with a gap between them. [F-TOLD]
    pub fn issue_session(
        &mut self,
        configuration: &Configuration,
        lead: u16,
    ) -> Result<Epoch, Refused> {
        if self.is_full() {
            return Err(Refused::TooManyUnfinished);
        }
        let epoch = self.add(configuration, Some(lead), |_| true)?;
        self.accepted = None;
        Ok(epoch)
    }

    /// Adds a session in which these instances are given up once it is *writing*. [F-ANEW]
    pub fn issue_session_anew(
        &mut self,
        configuration: &Configuration,
        lead: u16,
        given_up: &GivenUp,
    ) -> Result<Epoch, Refused> {
        let epoch = self.issue_session(configuration, lead)?;
        self.accepted = Some(given_up.clone());
        let issued = self.epochs.pop();
        self.epochs
            .extend(issued.map(|issued| issued.begun_anew(given_up.to.clone())));
        Ok(epoch)
    }

    /// Returns whether no more sessions fit after the last active one.
    pub fn is_full(&self) -> bool {
        let mut newest_first = self.epochs.iter().rev();
        let active = newest_first.position(|e| e.state == EpochState::Active);
        active.unwrap_or(self.epochs.len()) >= MAX_UNFINISHED
    }

    fn add(
        &mut self,
        configuration: &Configuration,
        lead: Option<u16>,
        is_kept: impl Fn(&EpochRecord) -> bool,
    ) -> Result<Epoch, Refused> {
        if self.last_epoch() >= MAX_EPOCH {
            return Err(Refused::EpochsExhausted);
        }
        let configuration = Configuration {
            epoch: self.last_epoch() + 1,
            ..configuration.clone()
        };
        self.epochs.retain(is_kept);
        let record = EpochRecord::of(&configuration, lead, EpochState::Issued);
        self.epochs.push(record);
        self.lanes.clear();
        self.version += 1;
        Ok(self.last_epoch())
    }

    /// Moves an epoch from issued to writing. A loss that was accepted in a session is final from
    /// then on, since replicas are told of it. [F-ANEW]
    pub fn mark_writing(&mut self, epoch: Epoch) -> Result<(), Refused> {
        self.advance(epoch, EpochState::Issued, EpochState::Writing)?;
        if self.epochs.last().is_some_and(|last| last.anew.is_some()) {
            self.given_up = self.accepted.take();
        }
        Ok(())
    }

    /// Moves an epoch from writing to active.
    pub fn mark_active(&mut self, epoch: Epoch, handed: Handed) -> Result<(), Refused> {
        self.advance(epoch, EpochState::Writing, EpochState::Active)?;
        self.give_up(&handed.trim);
        self.handed = Some(handed);
        self.left_out = None;
        let older = self.epochs.len() - 1;
        self.epochs.drain(..older.saturating_sub(OLDER_EPOCHS));
        Ok(())
    }

    /// Moves a session from writing to active, and stores in the same write where each partition
    /// begins and by which view. `trim` is the part of each partition that f+1 members have on
    /// disk. [F-ACTIVE]
    pub fn mark_session_active(
        &mut self,
        epoch: Epoch,
        begins: Begins,
        trim: Vec<Instance>,
    ) -> Result<(), Refused> {
        let handed = Handed {
            end: begins.next.clone(),
            next: begins.next,
            trim,
        };
        self.mark_active(epoch, handed)?;
        // Older sessions lose their views, since a view must fit a datagram.
        self.epochs.iter_mut().for_each(|e| e.by.clear());
        if let Some(last) = self.epochs.last_mut() {
            last.by = begins.by.iter().map(|view| view.0).collect();
        }
        Ok(())
    }

    /// Makes an accepted loss final if T has leapt in all partitions: what lies below T is gone in
    /// this epoch and all later ones. Otherwise nothing of that epoch is left, and nothing was
    /// given up. [G-TOLD]
    fn give_up(&mut self, trim: &[Instance]) {
        let Some(accepted) = self.accepted.take() else {
            return;
        };
        if accepted.leaps(trim).all(|leaps| leaps) {
            self.given_up = Some(GivenUp {
                from: accepted.from,
                to: trim.to_vec(),
            });
        }
    }

    /// Returns whether an epoch with this T would give up instances in some partitions only. This
    /// happens if an epoch with an accepted loss has reached only some acceptors. [G-WHOLE]
    pub fn leaps_in_a_part(&self, trim: &[Instance]) -> bool {
        let Some(accepted) = &self.accepted else {
            return false;
        };
        accepted.leaps(trim).any(|leaps| leaps) && !accepted.leaps(trim).all(|leaps| leaps)
    }

    /// Appends changes of the cluster's members to the first `known` ones.
    ///
    /// # Errors
    /// If others came before, or if the list would become too long.
    pub fn append_members(
        &mut self,
        known: usize,
        changes: &[MemberChange],
    ) -> Result<(), Refused> {
        if self.members.len() != known {
            return Err(Refused::OutOfOrder);
        }
        let all: Vec<_> = self.members.iter().chain(changes).cloned().collect();
        if !members::fit(&all) {
            return Err(Refused::TooManyChanges);
        }
        if all.contains(&MemberChange::Unknown) {
            return Err(Refused::UnknownChange);
        }
        self.version += u64::from(!changes.is_empty());
        self.members = all;
        Ok(())
    }

    /// Moves the last epoch from one state to the next. [E-ISSUE]
    fn advance(&mut self, epoch: Epoch, from: EpochState, to: EpochState) -> Result<(), Refused> {
        match self.epochs.last_mut() {
            Some(last) if last.epoch == epoch && last.state == from => last.state = to,
            Some(last) if last.epoch > epoch => return Err(Refused::Superseded),
            _ => return Err(Refused::OutOfOrder),
        }
        self.version += 1;
        Ok(())
    }

    /// Returns the repair lane of the process start with this nonce, and the same lane when it asks
    /// again. [E-LANE]
    pub fn draw_lane(&mut self, epoch: Epoch, nonce: u64) -> Result<u8, Refused> {
        if self.in_force().is_none_or(|e| e.epoch != epoch) {
            return Err(Refused::NotActive);
        }
        let drawn = match self.lanes.iter().position(|&n| n == nonce) {
            Some(at) => at,
            None if self.lanes.len() >= MAX_LANE as usize => return Err(Refused::LanesExhausted),
            None => {
                self.lanes.push(nonce);
                self.version += 1;
                self.lanes.len() - 1
            }
        };
        Ok(drawn as u8 + 1)
    }

    /// Returns the number of the disk that a replica's process with this nonce has found. It is
    /// larger than all earlier ones, and begins with the epoch, so that a store that lacks the last
    /// numbers can't draw them again once it has issued an epoch; before that the controller gives
    /// out none. [T-DISK]
    pub fn draw_incarnation(&mut self, node: NodeId, nonce: u64) -> Result<u64, Refused> {
        let epoch = self.in_force().ok_or(Refused::NotActive)?.epoch;
        let known = self.disks.iter().position(|d| d.node == node);
        let same = known.map(|at| self.disks[at]);
        if let Some(disk) = same.filter(|disk| disk.nonce == nonce) {
            return Ok(disk.incarnation);
        }
        let last = self.disks.iter().map(|d| d.incarnation).max();
        let drawn = Disk {
            node,
            nonce,
            incarnation: last.unwrap_or(0).max(u64::from(epoch) << 32) + 1,
        };
        match known {
            Some(at) => self.disks[at] = drawn,
            None => self.disks.push(drawn),
        }
        self.version += 1;
        Ok(drawn.incarnation)
    }
}

#[cfg(test)]
mod tests;
