// SPDX-License-Identifier: Apache-2.0
//! Carries changes of the members out. All that it needs to know is in the stored list, in the
//! epochs, and in what nodes answer, so another controller goes on where one has ended.
//! [E-CHANGES]

mod in_force;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::members::in_force::{is_alive, is_close, without_its_memory};
use control::status::GroupStatus;
use control::{Levels, MemberChange, MembersMessage, Message};
use paxos::{Epoch, GroupId, NodeId};
use serde_json::{Value, json};

use self::in_force::{doesnt_answer, gives_up, leaving, still_needed, unsettled};
use crate::cluster_file::{ClusterFile, Errors, Node, Protocol, Role, check_order};
use crate::host::is_due;
use crate::level;

/// How often nodes are told the list while it is on its way, and later, when only nodes may lack
/// it that were down or have lost their disks.
const TELL_INTERVAL: Duration = Duration::from_millis(100);
const REMIND_INTERVAL: Duration = Duration::from_secs(5);
/// A node that hasn't answered for so long doesn't answer.
const SILENCE: Duration = Duration::from_secs(2);
/// Who begins anew first. Replicas know of a new one before that learns anything that is decided
/// ([X-VOID]). The acting controller is the last of all.
const ORDER: [Role; 6] = [
    Role::Replica,
    Role::Learner,
    Role::Sequencer,
    Role::Leader,
    Role::Acceptor,
    Role::Controller,
];

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// All changes are in force.
    Done,
    /// Nothing can be done until this is over.
    Wait(String),
    /// This node should begin anew.
    BeginAnew(NodeId),
    /// This leader should lead before the one that leads begins anew.
    HandOver {
        group: GroupId,
        epoch: Epoch,
        to: NodeId,
    },
    /// These changes come behind the others.
    Append(Vec<MemberChange>),
}

/// A node's last answer.
struct Heard {
    at: Instant,
    kept: usize,
    uses: usize,
    levels: Levels,
    trouble: Option<String>,
    lost: Vec<MemberChange>,
}

/// The part of the acting controller that changes the members.
pub(super) struct Membership {
    /// The cluster with which this controller works.
    cluster: ClusterFile,
    /// The cluster that the stored changes lead to.
    target: Result<ClusterFile, Errors>,
    changes: Vec<MemberChange>,
    me: NodeId,
    heard: BTreeMap<NodeId, Heard>,
    told: Option<Instant>,
    /// The last step, since this controller acts.
    step: Option<Step>,
}

impl Membership {
    pub fn new(cluster: &ClusterFile, me: &Node) -> Membership {
        Membership {
            cluster: cluster.clone(),
            target: Ok(cluster.clone()),
            changes: cluster.changes().to_vec(),
            me: me.id,
            heard: BTreeMap::new(),
            told: None,
            step: None,
        }
    }

    /// Takes a node's answer.
    pub fn note(&mut self, message: &MembersMessage) {
        if let MembersMessage::Kept {
            node,
            kept,
            uses,
            levels,
            trouble,
            lost,
        } = message
        {
            let heard = Heard {
                at: Instant::now(),
                kept: *kept as usize,
                uses: *uses as usize,
                levels: *levels,
                trouble: trouble.clone(),
                lost: lost.clone(),
            };
            self.heard.insert(*node, heard);
        }
    }

    /// Returns whether it is time for another [step](Self::step).
    pub fn is_due(&self) -> bool {
        let interval = match self.step {
            Some(Step::Done) if !self.heard.is_empty() => REMIND_INTERVAL,
            _ => TELL_INTERVAL,
        };
        is_due(self.told, interval)
    }

    /// Returns what is to be done next, given the stored changes. It also notes that all nodes are
    /// told the list now.
    pub fn step(&mut self, changes: &[MemberChange], groups: &[GroupStatus]) -> Step {
        self.told = Some(Instant::now());
        if self.changes != changes {
            self.changes = changes.to_vec();
            self.target = self.cluster.with_changes(changes);
        }
        let step = self.next(groups, &[]);
        self.step = Some(step.clone());
        step
    }

    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Returns whether the last step found that all changes are in force.
    pub fn is_done(&self) -> bool {
        matches!(self.step, None | Some(Step::Done))
    }

    /// Forgets what was true before this controller acted.
    pub fn begin(&mut self) {
        (self.step, self.told) = (None, None);
        self.heard.clear();
    }

    /// Returns the order to a node to begin anew, with its address.
    pub fn begin_anew(&self, node: NodeId) -> Option<(SocketAddr, Message)> {
        let kept = self.changes.len() as u32;
        let message = Message::Members(MembersMessage::BeginAnew { kept });
        let node = self.cluster.node_by_id(node)?;
        Some((node.control, message))
    }

    /// Notes that the list has become longer, and makes the next step due at once.
    pub fn begin_change(&mut self) {
        let step = Step::Wait("all nodes write the change down".to_owned());
        (self.step, self.told) = (Some(step), None);
    }

    /// Makes the next step due at once, with which all nodes are asked.
    pub fn ask_again(&mut self) {
        self.told = None;
    }

    /// Returns the list for each node, with the nodes that are told it. An empty one is told, too:
    /// whoever knows a longer one answers with that.
    pub fn news(&self) -> (Message, impl Iterator<Item = &Node>) {
        let changes = self.changes.clone();
        let message = Message::Members(MembersMessage::Changes { changes });
        (message, self.cluster.nodes.iter())
    }

    /// Returns why an order can't be accepted, if that is so.
    pub fn against(&self, order: &[MemberChange], groups: &[GroupStatus]) -> Option<String> {
        let target = match &self.target {
            Ok(target) => target,
            Err(why) => return Some(why.to_string()),
        };
        if self.heard.is_empty() {
            return Some("no node has answered this controller yet: try again in a second".into());
        }
        match &self.step {
            Some(Step::Done) => {}
            Some(Step::Wait(_)) if gives_up(order, groups) => {}
            Some(Step::Wait(_)) if self.next(groups, &leaving(order)) == Step::Done => {}
            Some(Step::Wait(what)) => {
                return Some(format!(
                    "another change is on its way: {what}. `wirepaxos members` shows when it is \
                     done; `members remove` and `replace` take new nodes that haven't joined back"
                ));
            }
            _ => return Some("another change is on its way: try again in a second".to_owned()),
        }
        if let Some(why) = self.against_level(order) {
            return Some(why);
        }
        check_order(target, order).err().map(|why| why.to_string())
    }

    /// Returns which nodes keep the cluster from a level, if one is ordered: each must have said
    /// just now that its program has it. [E-LEVEL]
    fn against_level(&self, order: &[MemberChange]) -> Option<String> {
        let level = order.iter().find_map(|change| match change {
            MemberChange::SetLevel { level } => Some(*level),
            _ => None,
        })?;
        let lacking = self.cluster.nodes.iter().filter_map(|node| {
            let heard = self.heard.get(&node.id);
            match heard.filter(|heard| heard.at.elapsed() <= SILENCE) {
                Some(heard) if heard.levels.have(level) => None,
                Some(heard) => Some(format!("{} has level {}", node.name, heard.levels)),
                None => Some(format!("{} hasn't answered for {SILENCE:?}", node.name)),
            }
        });
        let lacking: Vec<String> = lacking.collect();
        (!lacking.is_empty()).then(|| {
            format!(
                "not all programs are known to have format level {level}: {}; see `wirepaxos \
                 upgrade check`",
                lacking.join(", ")
            )
        })
    }

    /// Returns the part of the status document.
    pub fn to_json(&self) -> Value {
        let waits_for = match &self.step {
            None if !self.changes.is_empty() => "the controller has just begun to act".into(),
            None | Some(Step::Done) => Value::Null,
            Some(Step::Wait(why)) => why.clone().into(),
            Some(Step::BeginAnew(node)) => format!("{} begins anew", self.name(*node)).into(),
            Some(Step::HandOver { to, .. }) => format!("{} is to lead", self.name(*to)).into(),
            Some(Step::Append(_)) => "who has left is removed".into(),
        };
        json!({ "changes": self.changes, "waits_for": waits_for })
    }

    fn name(&self, node: NodeId) -> String {
        let known = self.cluster.node_by_id(node);
        known.map_or_else(|| format!("node {node}"), |node| node.name.clone())
    }

    /// Returns the next step, if nodes that don't answer needn't be waited for.
    fn next(&self, groups: &[GroupStatus], but: &[NodeId]) -> Step {
        if let Some(lost) = self.lost() {
            return Step::Append(lost);
        }
        if self.changes.is_empty() {
            return Step::Done;
        }
        let target = match &self.target {
            Ok(target) => target,
            Err(why) => return Step::Wait(why.to_string()),
        };
        let stays = |node: &&Node| {
            let known = target.node(&node.name).filter(|_| !but.contains(&node.id));
            known.is_some_and(|node| !node.leaving)
        };
        let staying: Vec<&Node> = self.cluster.nodes.iter().filter(stays).collect();
        if let Some(why) = staying.iter().find_map(|node| self.keeps_less(node)) {
            return Step::Wait(why);
        }
        if let Some(step) = self.renewal(&staying, target, groups) {
            return step;
        }
        let mut each = target.groups.iter();
        if let Some(why) = each.find_map(|group| unsettled(target, group, groups, but)) {
            return Step::Wait(why);
        }
        let leaves = |id| !staying.iter().any(|node| node.id == id);
        let led = groups.iter().find(|group| group.leader.is_some_and(leaves));
        if let Some(group) = led {
            let step = self.hand_over(group, &staying);
            return step.unwrap_or_else(|| Step::Wait("no other leader answers: start one".into()));
        }
        let mut paxos = target
            .groups
            .iter()
            .filter(|g| g.protocol == Protocol::Paxos);
        if let Some(why) = paxos.find_map(|group| still_needed(target, group, groups)) {
            return Step::Wait(why);
        }
        let removed = self.to_remove();
        match removed.is_empty() {
            true => Step::Done,
            false => Step::Append(removed),
        }
    }

    /// Returns the changes behind those of the store that this node or another one knows: the
    /// store was lost, or an older copy was put back.
    fn lost(&self) -> Option<Vec<MemberChange>> {
        let of_others = self.heard.values().map(|heard| heard.lost.as_slice());
        let of_others = of_others.filter(|changes| level::against(changes).is_none());
        let known = of_others.chain([self.cluster.changes()]);
        let longest = known.max_by_key(|changes| changes.len())?;
        let lost = longest.strip_prefix(self.changes.as_slice())?;
        (!lost.is_empty()).then(|| lost.to_vec())
    }

    /// Returns why a node hasn't the whole list on its disk.
    fn keeps_less(&self, node: &Node) -> Option<String> {
        let name = &node.name;
        let heard = self.heard.get(&node.id);
        match heard {
            Some(heard) if heard.kept >= self.changes.len() => None,
            Some(heard) if heard.at.elapsed() <= SILENCE => Some(match &heard.trouble {
                Some(why) => format!("{name}: {why}"),
                None => format!("{name} writes it down"),
            }),
            _ => Some(doesnt_answer(node)),
        }
    }

    fn uses_all(&self, node: NodeId) -> bool {
        self.heard
            .get(&node)
            .is_some_and(|heard| heard.uses >= self.changes.len())
    }

    /// Returns the replicas that leave and answer. A new one may need their states, which they hand
    /// to nobody whom they don't know.
    fn answering_leavers<'a>(&'a self, target: &ClusterFile) -> impl Iterator<Item = &'a Node> {
        let leaves = |node: &&Node| target.node(&node.name).is_some_and(|node| node.leaving);
        let answers = |node: &&Node| {
            let heard = self.heard.get(&node.id);
            heard.is_some_and(|heard| heard.at.elapsed() <= SILENCE && heard.trouble.is_none())
        };
        let replicas = self.cluster.with_role(Role::Replica);
        let replicas = replicas.filter(move |node| leaves(node) && answers(node));
        replicas.filter(|node| self.keeps_less(node).is_none())
    }

    /// Returns the next step until all nodes work with all changes.
    fn renewal(
        &self,
        staying: &[&Node],
        target: &ClusterFile,
        groups: &[GroupStatus],
    ) -> Option<Step> {
        let mut all = staying.to_vec();
        all.extend(self.answering_leavers(target));
        let lacking = |role: &Role| {
            let others = all.iter().filter(|n| n.role == *role && n.id != self.me);
            let leads = |node: &&&Node| groups.iter().any(|g| g.leader == Some(node.id));
            let (last, first): (Vec<&&Node>, Vec<&&Node>) = others.partition(leads);
            let mut lacking = first.into_iter().chain(last);
            lacking.find(|node| !self.uses_all(node.id))
        };
        let me = staying
            .iter()
            .find(|n| n.id == self.me && !self.uses_all(n.id));
        let behind = staying.iter().find(|node| {
            let lacks = node.role == Role::Replica && !self.uses_all(node.id);
            lacks && groups.iter().any(|group| self.is_behind(node, group))
        });
        let next = behind.or_else(|| ORDER.iter().find_map(lacking)).or(me)?;
        if let Some(why) = self.unready(next, (staying, &all), groups) {
            return Some(Step::Wait(why));
        }
        let next = next.id;
        let leads = groups.iter().find(|group| group.leader == Some(next));
        let step = leads.and_then(|group| self.hand_over(group, staying));
        Some(step.unwrap_or(Step::BeginAnew(next)))
    }

    /// Returns whether a replica must catch up.
    fn is_behind(&self, node: &Node, group: &GroupStatus) -> bool {
        let is_here = node.role == Role::Replica && node.group == Some(group.group);
        let window = self.cluster.group(group.group).map_or(0, |g| g.window);
        is_here && is_alive(group, node.id) && !is_close(group, node.id, window / 16)
    }

    /// Returns the step that makes another leader lead a group, if one is there that works with all
    /// changes.
    fn hand_over(&self, group: &GroupStatus, staying: &[&Node]) -> Option<Step> {
        let can = |node: &&&Node| {
            let leads = group.leader == Some(node.id);
            node.role == Role::Leader && !leads && self.uses_all(node.id)
        };
        let mut others = staying.iter().filter(can);
        let to = others.find(|node| is_alive(group, node.id))?.id;
        Some(Step::HandOver {
            group: group.group,
            epoch: group.active.unwrap_or(0),
            to,
        })
    }

    /// Returns why no node may begin anew now: an epoch is on its way, or a replica must catch up
    /// first.
    fn unready(
        &self,
        next: &Node,
        (staying, all): (&[&Node], &[&Node]),
        groups: &[GroupStatus],
    ) -> Option<String> {
        let heard = self.heard.get(&next.id)?;
        if let Some(why) = &heard.trouble {
            return Some(format!("{}: {why}", next.name));
        }
        if heard.at.elapsed() > SILENCE {
            return Some(doesnt_answer(next));
        }
        for group in groups {
            if group.active.is_none() || group.attempt.is_some() {
                return Some(format!("group {}: no epoch is in force", group.group));
            }
            if let Some(one) = staying.iter().find(|n| without_its_memory(group, n.id)) {
                return Some(format!("{} comes back", one.name));
            }
            // It may be behind because it doesn't know those who could help it.
            if self.is_behind(next, group) {
                continue;
            }
            let of_group = |n: &&&Node| n.role == Role::Replica && n.group == Some(group.group);
            let window = self.cluster.group(group.group).map_or(0, |g| g.window);
            let replicas = staying.iter().filter(of_group);
            let mut replicas = replicas.filter(|n| !self.is_news(n.id, all));
            if let Some(one) = replicas.find(|n| !is_close(group, n.id, window / 16)) {
                return Some(format!("{} catches up", one.name));
            }
        }
        None
    }

    /// Returns whether some node doesn't know a new one yet, which can't catch up without it.
    fn is_news(&self, new: NodeId, all: &[&Node]) -> bool {
        let heard = all.iter().filter_map(|node| self.heard.get(&node.id));
        let used = heard.map(|heard| heard.uses).min().unwrap_or(0);
        let mut unused = self.changes.iter().skip(used);
        unused.any(|c| matches!(c, MemberChange::Add { node, .. } if *node == new))
    }

    /// Returns the removal of the nodes that left by command. No epoch counts on them any more.
    fn to_remove(&self) -> Vec<MemberChange> {
        let is_removed = |id: NodeId| {
            let mut all = self.changes.iter();
            all.any(|c| matches!(c, MemberChange::Remove { node, .. } if *node == id))
        };
        let left = self.changes.iter().filter_map(|change| match change {
            MemberChange::Leave { name, node } if !is_removed(*node) => {
                let (name, node) = (name.clone(), *node);
                Some(MemberChange::Remove { name, node })
            }
            _ => None,
        });
        left.collect()
    }
}

#[cfg(test)]
mod tests;
