// SPDX-License-Identifier: Apache-2.0
//! A node's part in changes of the members: it keeps the list of all changes, and begins anew with
//! it when the controller says so. [E-CHANGES]

use control::{Levels, MembersMessage, Message};

use super::layout::{NodeIndex, node_id};
use super::protocol::Protocol;
use super::{Cluster, Kind};

impl<G: Protocol> Cluster<G> {
    /// Handles a message about the members.
    pub(super) fn members_message(
        &mut self,
        to: NodeIndex,
        from: NodeIndex,
        message: &MembersMessage,
    ) {
        if !self.is_up(to) {
            return;
        }
        match (message, self.kind(to)) {
            (_, Kind::Controller) => self.controller.note_kept(&self.world, message),
            (MembersMessage::Changes { changes }, _) => {
                self.world.members.offer(to, changes);
                if !self.world.members.names_itself(to) {
                    return self.end(to);
                }
                let answer = self.kept(to, changes.len());
                self.world.control(to, from, answer);
            }
            (MembersMessage::BeginAnew { kept }, _) => {
                let members = &self.world.members;
                let (uses, must) = (members.uses(to), *kept as usize);
                if uses < must && must <= members.kept(to).len() {
                    self.begin_anew(to);
                }
            }
            _ => {}
        }
    }

    fn kept(&self, node: NodeIndex, told: usize) -> Message {
        let kept = self.world.members.kept(node);
        let lost = if kept.len() > told { kept } else { &[] };
        Message::Members(MembersMessage::Kept {
            node: node_id(self.world.layout.names[usize::from(node)]),
            kept: kept.len() as u32,
            uses: self.world.members.uses(node) as u32,
            levels: Levels::default(),
            trouble: None,
            lost: lost.to_vec(),
        })
    }

    fn is_up(&self, node: NodeIndex) -> bool {
        match self.kind(node) {
            Kind::Controller => self.controller.is_up(),
            Kind::Leader(n) => self.leaders[n].is_up(),
            Kind::Acceptor(n) => self.acceptors[n].is_up(),
            Kind::Replica(n) => self.replicas[n].is_up(),
            Kind::Learner(n) => self.learners[n].is_up(),
            Kind::Sequencer(_) | Kind::Client(_) => false,
        }
    }

    /// Ends a process in good order.
    fn end(&mut self, node: NodeIndex) {
        let name = self.world.layout.names[usize::from(node)];
        self.world.note(|_| format!("ends     {name}"));
        match self.kind(node) {
            Kind::Acceptor(n) => self.stop_acceptor(n),
            Kind::Replica(n) => self.replicas[n].stop(&mut self.world),
            _ => self.crash(name, false),
        }
    }

    /// Ends a process in good order, and starts another one.
    fn begin_anew(&mut self, node: NodeIndex) {
        self.end(node);
        self.restart(self.world.layout.names[usize::from(node)]);
    }
}
