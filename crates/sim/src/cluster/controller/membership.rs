// SPDX-License-Identifier: Apache-2.0
//! Carries changes of the members out, as the acting controller's process does: all nodes write the
//! list down, begin anew one by one, and who has left is removed. The rules that decide this by a
//! group's status are those of `control`; the order of steps is that of a node. [E-CHANGES]

use std::collections::BTreeMap;

use control::members::in_force::{
    StillNeeded, in_force, is_alive, is_close, still_needed, without_its_memory,
};
use control::status::GroupStatus;
use control::{EpochRecord, MemberChange, MembersMessage, Message};
use paxos::{NodeId, Time};

use super::ControllerHost;
use crate::cluster::layout::node_id;
use crate::cluster::members::{Roster, is_acceptor, is_leader, is_replica};
use crate::cluster::world::World;
use crate::plan::Name;
use crate::queue::MILLISECOND;

/// How often nodes are told the list while it is on its way, and later.
const TELL_INTERVAL: Time = 20 * MILLISECOND;
const REMIND_INTERVAL: Time = 100 * MILLISECOND;
/// A node that hasn't answered for so long doesn't answer.
const SILENCE: Time = 200 * MILLISECOND;
/// How many instances a replica may lie behind the others while nodes begin anew.
const LAG: u64 = 2;

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Done,
    Wait(String),
    BeginAnew(Name),
    HandOver(NodeId),
    Append(Vec<MemberChange>),
}

/// A node's last answer.
struct Heard {
    at: Time,
    kept: usize,
    uses: usize,
    lost: Vec<MemberChange>,
}

/// What a controller's process knows of the changes.
#[derive(Default)]
pub(super) struct Membership {
    heard: BTreeMap<NodeId, Heard>,
    due: Time,
    step: Option<Step>,
}

/// What the next step depends on.
struct Now<'a> {
    now: Time,
    changes: &'a [MemberChange],
    /// The cluster with which the controller works.
    used: &'a Roster,
    /// The cluster to which the changes lead.
    target: &'a Roster,
    status: &'a GroupStatus,
}

impl ControllerHost {
    /// Returns whether all changes of the members are in force.
    pub fn has_changed_members(&self, world: &World) -> bool {
        !world.members.can_change() || self.membership.step == Some(Step::Done)
    }

    /// Returns what changes of the members wait for, and the controller's warnings.
    pub fn waits_for(&self, world: &World) -> String {
        let now = self.host.now(world);
        let groups = self.role.iter().flat_map(|role| role.status(now).groups);
        let warnings: Vec<String> = groups.flat_map(|group| group.warnings).collect();
        match world.members.can_change() {
            true => format!(", members: {:?}, {warnings:?}", self.membership.step),
            false => String::new(),
        }
    }

    /// Takes an operator's order to add nodes and to let others leave, unless another change is on
    /// its way or the order can't be carried out.
    pub fn order_members(&mut self, world: &mut World, add: &[Name], leave: &[Name]) {
        let Some(controller) = self.role.as_mut().filter(|_| !self.host.paused) else {
            return;
        };
        let known = controller.members().to_vec();
        let change = |name: Name| (name.to_string(), node_id(name));
        let added = add.iter().map(|name| {
            let (name, node) = change(*name);
            let record = String::new();
            MemberChange::Add { name, node, record }
        });
        let leaves = leave.iter().map(|name| {
            let (name, node) = change(*name);
            MemberChange::Leave { name, node }
        });
        let order: Vec<_> = added.chain(leaves).collect();
        let is_heard = !self.membership.heard.is_empty();
        let is_free = is_heard && self.membership.step == Some(Step::Done);
        let possible = is_possible(world, &known, &order, add, leave);
        let result = match is_free && possible {
            true => controller.change_members(known.len(), &order),
            false => Err(format!("{:?}", self.membership.step)),
        };
        world.note(|_| format!("members  {result:?}"));
        if result.is_ok() {
            world.members.stored(controller.members());
            self.membership.step = Some(Step::Wait("all nodes write it down".into()));
            self.membership.due = 0;
        }
        self.post(world, None);
        self.after(world);
    }

    /// Takes a node's answer about its list.
    pub fn note_kept(&mut self, world: &World, message: &MembersMessage) {
        let now = self.host.now(world);
        if let MembersMessage::Kept {
            node,
            kept,
            uses,
            lost,
            ..
        } = message
        {
            let heard = Heard {
                at: now,
                kept: *kept as usize,
                uses: *uses as usize,
                lost: lost.clone(),
            };
            self.membership.heard.insert(*node, heard);
        }
    }

    /// Tells all nodes the list, and takes the next step, when that is due.
    pub(super) fn step_members(&mut self, world: &mut World) {
        let now = self.host.now(world);
        let Some(controller) = self.role.as_ref() else {
            return;
        };
        if !world.members.can_change() || now < self.membership.due {
            return;
        }
        let changes = controller.members().to_vec();
        let status = controller.status(now).groups.remove(0);
        world.members.stored(&changes);
        world.members.offer(self.host.at, &changes);
        let used = world.members.used_by(self.host.at);
        let uses = world.members.uses(self.host.at);
        for name in used.staying.iter().chain(&used.leaving) {
            let to = world.layout.index(*name).filter(|to| *to != self.host.at);
            if let (Some(to), false) = (to, matches!(name, Name::Client(_))) {
                let changes = changes.clone();
                let list = Message::Members(MembersMessage::Changes { changes });
                world.control(self.host.at, to, list);
            }
        }
        let step = self.membership.next(
            &Now {
                now,
                changes: &changes,
                used: &used,
                target: &world.members.after(&changes),
                status: &status,
            },
            uses,
        );
        self.membership.due = now
            + match step {
                Step::Done => REMIND_INTERVAL,
                _ => TELL_INTERVAL,
            };
        if self.membership.step.as_ref() != Some(&step) {
            world.note(|_| format!("members  {step:?}"));
        }
        self.membership.step = Some(step.clone());
        self.take_step(world, changes.len(), step);
    }

    fn take_step(&mut self, world: &mut World, known: usize, step: Step) {
        match step {
            Step::Done | Step::Wait(_) => {}
            Step::BeginAnew(Name::Controller) => {
                self.stop();
                self.start(world);
            }
            Step::BeginAnew(name) => {
                let kept = known as u32;
                let order = Message::Members(MembersMessage::BeginAnew { kept });
                if let Some(to) = world.layout.index(name) {
                    world.control(self.host.at, to, order);
                }
            }
            Step::HandOver(to) => self.order_hand_over(world, to),
            Step::Append(changes) => {
                if let Some(controller) = &mut self.role {
                    let _ = controller.change_members(known, &changes);
                    world.members.stored(controller.members());
                }
            }
        }
    }
}

/// Returns whether an order leaves a cluster that works, with names that nobody had.
fn is_possible(
    world: &World,
    known: &[MemberChange],
    order: &[MemberChange],
    add: &[Name],
    leave: &[Name],
) -> bool {
    let before = world.members.after(known);
    let had = |name: &Name| {
        let used = |c: &MemberChange| c.node().is_some_and(|(_, id)| id == node_id(*name));
        before.staying.contains(name) || known.iter().any(used)
    };
    let after = world.members.after(&[known, order].concat());
    let (leaders, acceptors) = (after.ids(is_leader).len(), after.ids(is_acceptor).len());
    !add.iter().any(had)
        && add.iter().all(|name| world.layout.index(*name).is_some())
        && leave.iter().all(|name| before.staying.contains(name))
        && (leaders > 0 && acceptors % 2 == 1 && !after.ids(is_replica).is_empty())
}

impl Membership {
    /// Returns the next step. `uses` is how many changes the controller itself works with.
    fn next(&self, at: &Now<'_>, uses: usize) -> Step {
        let lost = self.heard.values().map(|heard| heard.lost.as_slice());
        let longest = lost.max_by_key(|lost| lost.len()).unwrap_or_default();
        if let Some(lost) = longest.strip_prefix(at.changes).filter(|l| !l.is_empty()) {
            return Step::Append(lost.to_vec());
        }
        if at.changes.is_empty() {
            return Step::Done;
        }
        let stays = |name: &&Name| at.target.staying.contains(name);
        let staying = at.used.staying.iter().filter(stays).copied();
        let staying: Vec<Name> = staying.filter(|n| !matches!(n, Name::Client(_))).collect();
        let nodes = staying.iter().filter(|name| **name != Name::Controller);
        if let Some(name) = nodes.into_iter().find(|name| !self.keeps_all(**name, at)) {
            return Step::Wait(format!("{name} keeps fewer"));
        }
        if let Some(step) = self.renewal(&staying, at, uses) {
            return step;
        }
        if let Some(why) = unsettled(at) {
            return Step::Wait(why);
        }
        let leads = |name: &Name| at.status.leader == Some(node_id(*name));
        if !staying.iter().any(leads) {
            let step = self.hand_over(&staying, at);
            return step.unwrap_or_else(|| Step::Wait("no other leader answers".into()));
        }
        let (leaving, replicas) = (at.target.leaving_replicas(), at.target.ids(is_replica));
        match still_needed(at.status, &leaving, &replicas, g(at.target)) {
            Some(StillNeeded::IsBehind(node)) => return Step::Wait(format!("{node} is behind")),
            Some(StillNeeded::HoldsAlone(node)) => return Step::Wait(format!("{node} is needed")),
            None => {}
        }
        let removed = at.target.leaving.iter().map(|name| {
            let (node, name) = (node_id(*name), name.to_string());
            MemberChange::Remove { name, node }
        });
        let removed: Vec<_> = removed.collect();
        match removed.is_empty() {
            true => Step::Done,
            false => Step::Append(removed),
        }
    }

    fn keeps_all(&self, name: Name, at: &Now<'_>) -> bool {
        let heard = self.heard.get(&node_id(name));
        heard.is_some_and(|heard| heard.kept >= at.changes.len())
    }

    fn uses_all(&self, name: Name, at: &Now<'_>) -> bool {
        let heard = self.heard.get(&node_id(name));
        heard.is_some_and(|heard| heard.uses >= at.changes.len())
    }

    /// Returns the next step until all nodes work with all changes. Who leads comes behind the
    /// others of its kind, and the controller is the last of all.
    fn renewal(&self, staying: &[Name], at: &Now<'_>, uses: usize) -> Option<Step> {
        let rank = |name: &Name| match name {
            Name::Replica(_) => 0,
            Name::Learner(_) => 1,
            Name::Leader(_) if at.status.leader == Some(node_id(*name)) => 3,
            Name::Leader(_) => 2,
            _ => 4,
        };
        let nodes = staying.iter().filter(|name| **name != Name::Controller);
        let leaving = self.answering_leavers(at);
        let lacking = nodes
            .chain(leaving)
            .filter(|name| !self.uses_all(**name, at));
        let next = lacking.min_by_key(|name| (!self.is_behind(**name, at), rank(name)));
        let next = next.copied();
        let me = (uses < at.changes.len()).then_some(Name::Controller);
        let next = next.or(me)?;
        if let Some(why) = self.unready(next, staying, at) {
            return Some(Step::Wait(why));
        }
        let leads = at.status.leader == Some(node_id(next));
        let step = leads.then(|| self.hand_over(staying, at)).flatten();
        Some(step.unwrap_or(Step::BeginAnew(next)))
    }

    /// Returns whether a replica must catch up.
    fn is_behind(&self, name: Name, at: &Now<'_>) -> bool {
        let node = node_id(name);
        let answers = is_replica(name) && is_alive(at.status, node);
        answers && !is_close(at.status, node, LAG)
    }

    /// Returns the replicas that leave and answer. A new one may need their states, which they hand
    /// to nobody whom they don't know.
    fn answering_leavers<'a>(&'a self, at: &'a Now<'_>) -> impl Iterator<Item = &'a Name> {
        let known = at.used.staying.iter().chain(&at.used.leaving);
        let leaving = known.filter(|name| at.target.leaving.contains(name));
        let replicas = leaving.filter(|name| is_replica(**name));
        replicas.filter(|name| {
            let heard = self.heard.get(&node_id(**name));
            let answers = heard.is_some_and(|h| at.now.saturating_sub(h.at) <= SILENCE);
            answers && self.keeps_all(**name, at)
        })
    }

    /// Returns the step that makes another leader lead, if one is there that works with all
    /// changes.
    fn hand_over(&self, staying: &[Name], at: &Now<'_>) -> Option<Step> {
        let can = |name: &&Name| {
            let leads = at.status.leader == Some(node_id(**name));
            is_leader(**name) && !leads && self.uses_all(**name, at)
        };
        let mut others = staying.iter().filter(can).map(|name| node_id(*name));
        others
            .find(|node| is_alive(at.status, *node))
            .map(Step::HandOver)
    }

    /// Returns why no node may begin anew now.
    fn unready(&self, next: Name, staying: &[Name], at: &Now<'_>) -> Option<String> {
        let heard = self.heard.get(&node_id(next));
        let is_silent = heard.is_none_or(|heard| at.now.saturating_sub(heard.at) > SILENCE);
        if is_silent && next != Name::Controller {
            return Some(format!("{next} doesn't answer"));
        }
        if at.status.active.is_none() || at.status.attempt.is_some() {
            return Some("no epoch is in force".into());
        }
        let lacks = |name: &&Name| without_its_memory(at.status, node_id(**name));
        if let Some(name) = staying.iter().find(lacks) {
            return Some(format!("{name} comes back"));
        }
        let all = staying.iter().chain(self.answering_leavers(at));
        let used = all.filter_map(|n| self.heard.get(&node_id(*n)));
        let used = used.map(|heard| heard.uses).min().unwrap_or(0);
        let is_news = |name: Name| {
            let mut unused = at.changes.iter().skip(used);
            let id = node_id(name);
            unused.any(|c| matches!(c, MemberChange::Add { node, .. } if *node == id))
        };
        let replicas = staying.iter().filter(|name| is_replica(**name));
        let mut replicas = replicas.filter(|name| !is_news(**name));
        // It may be behind because it doesn't know those who could help it.
        if self.is_behind(next, at) {
            return None;
        }
        let behind = replicas.find(|name| !is_close(at.status, node_id(**name), LAG));
        behind.map(|name| format!("{name} catches up"))
    }
}

fn g(target: &Roster) -> u8 {
    (target.ids(is_replica).len() as u8).saturating_sub(1) / 2
}

/// Returns why the epoch in force isn't as the changes have it.
fn unsettled(at: &Now<'_>) -> Option<String> {
    let Some(last) = in_force(at.status) else {
        return Some("an epoch is on its way".into());
    };
    let leaders = at.target.ids(is_leader);
    if let Some(leader) = leaders.iter().find(|node| !is_alive(at.status, **node)) {
        return Some(format!("leader {leader} doesn't answer"));
    }
    let EpochRecord {
        acceptors,
        replicas,
        ..
    } = last;
    let acceptors: Vec<NodeId> = acceptors.iter().map(|a| a.0).collect();
    let same = (acceptors, replicas.clone(), last.g)
        == (
            at.target.ids(is_acceptor),
            at.target.ids(is_replica),
            g(at.target),
        );
    (!same).then(|| format!("epoch {} has other members", last.epoch))
}
