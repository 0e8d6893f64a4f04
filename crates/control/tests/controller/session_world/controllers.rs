// SPDX-License-Identifier: Apache-2.0
//! The controllers of the world, and what they say.

use super::*;

impl World {
    pub fn say(&mut self, from: Peer, message: Message) {
        let now = self.now;
        for n in 0..self.controllers.len() {
            self.give(n, |controller, out| {
                controller.message(now, from, &message, out)
            });
        }
    }

    pub fn failover(&mut self, to: Option<NodeId>, accept_data_loss: bool) {
        for n in 0..self.controllers.len() {
            self.order(n, to, accept_data_loss);
        }
    }

    /// Gives an operator's order to one of the controllers.
    pub fn order(&mut self, n: usize, to: Option<NodeId>, accept_data_loss: bool) {
        let message = Message::Failover {
            group: GROUP,
            epoch: self.state().last_epoch(),
            to,
            forced: true,
            accept_data_loss,
        };
        let now = self.now;
        self.give(n, |controller, out| {
            controller.message(now, OPERATOR, &message, out)
        });
    }

    /// Makes a client ask the controller who leads.
    pub fn ask_for_view(&mut self) {
        let (now, question) = (self.now, Message::ViewRequest { group: GROUP });
        self.give(0, |controller, out| {
            controller.message(now, OPERATOR, &question, out);
        });
    }

    pub(super) fn give<R>(
        &mut self,
        n: usize,
        input: impl FnOnce(&mut Controller<Shared>, &mut Out) -> R,
    ) {
        let mut out = Out::default();
        let Some(controller) = self.controllers.get_mut(n) else {
            return;
        };
        input(controller, &mut out);
        self.note_sessions();
        if let Some(left) = &mut self.kill_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    // Killed after it stored, before anything left.
                    self.kill_after = None;
                    self.controllers.clear();
                    return;
                }
            }
        }
        for (to, message) in out.messages {
            self.send(Sending::Control(to, message));
        }
        self.send_all(CONTROLLER, CONTROLLER, out.sent);
    }

    /// Puts back a store in which the loss wasn't final yet.
    pub fn put_before_loss(&mut self, state: GroupState) {
        self.shared.put(state);
        (self.anew, self.seen) = (0, 0);
        self.checkers = (0..PARTITIONS).map(Committed::new).collect();
        self.note_sessions();
    }

    /// Tells the checkers of new sessions, before any replica can be in one.
    fn note_sessions(&mut self) {
        let stores = [Some(self.shared.clone()), self.rival.clone()];
        for mut store in stores.into_iter().flatten() {
            let state = store.load(GROUP).unwrap();
            self.note_sessions_of(&state);
        }
    }

    fn note_sessions_of(&mut self, state: &GroupState) {
        let is_final = |e: &&EpochRecord| e.anew.is_some() && e.state != EpochState::Issued;
        let anew = state.epochs.iter().rfind(is_final).map_or(0, |e| e.epoch);
        if anew > self.anew {
            // Everything that was committed before is given up.
            self.anew = anew;
            self.seen = anew - 1;
            self.checkers = (0..PARTITIONS).map(Committed::new).collect();
        }
        let seen = self.seen;
        for record in state.epochs.iter().filter(|e| e.epoch > seen) {
            self.seen = record.epoch;
            let lead = usize::from(record.lead.expect("a session"));
            for checker in &mut self.checkers {
                checker.session(record.epoch, &record.acceptors, record.f.into(), lead);
            }
        }
        if let (Some(record), Some(handed)) = (state.last_active(), &state.handed) {
            let begins = self
                .begins
                .entry(record.epoch)
                .or_insert(handed.next.clone());
            assert_eq!(*begins, handed.next, "a session begins once");
        }
    }

    pub(super) fn control(&mut self, to: Peer, message: Message) {
        let Peer::Node(node) = to else {
            self.told.push(message);
            return;
        };
        if self.down.contains(&node) {
            return;
        }
        if let Some(sequencer) = self.sequencers.get_mut(&node) {
            if let Message::View(view) = &message {
                view.begun()
                    .into_iter()
                    .for_each(|epoch| sequencer.retire(epoch));
            } else if let Some((_, program)) = message.program() {
                if sequencer.program(&program).is_ok() {
                    self.programs.push((node, program.epoch));
                }
            }
        } else if let (Some(host), Message::View(view)) = (self.replicas.get_mut(&node), &message) {
            if !matches!(host.views.offer(view), Ok(Some(_))) {
                return;
            }
            for (pid, replica) in (0..).zip(&mut host.partitions) {
                let sessions = view.sessions(pid).expect("sessions alone");
                replica.configure(&sessions).expect("the store's own");
            }
            host.go_on_behind(view);
        } else if let Message::StopExecution { epoch, .. } = message {
            self.stop_execution(node, epoch);
        } else if self.replicas.contains_key(&node) {
            self.restarted(node, &message);
        }
    }

    /// Handles the controller's messages about a start of a replica's memory. [N-RESTART]
    fn restarted(&mut self, node: NodeId, message: &Message) {
        let now = self.now;
        let host = self.replicas.get_mut(&node).unwrap();
        let this = (host.nonce, host.partitions[0].start());
        if let Some(request) = message.earlier_start_request() {
            if this == (request.nonce, Some(request.start)) {
                host.told.add(request.start);
                let answer = request.answer(node, host.told.has(request.earlier));
                self.send(Sending::ToController(node, answer));
            }
        } else if let Some((_, nonce, start)) = message.resume() {
            let mut out = Sent::default();
            for replica in &mut host.partitions {
                let _ = replica.resume(now, nonce, start, &mut out);
            }
            self.send_all(node, node, out);
        } else if let Some((_, nonce, start)) = message.discard() {
            if this == (nonce, Some(start)) && host.partitions[0].is_mute() {
                self.discarded.push(node);
                self.boot_replica(node);
                let host = self.replicas.get_mut(&node).unwrap();
                host.partitions
                    .iter_mut()
                    .for_each(|p| p.keep(Start::FIRST));
            }
        }
    }

    /// Stops a replica's execution. Everything stable is on disk before it answers where it stands.
    /// [G-STOP]
    fn stop_execution(&mut self, node: NodeId, epoch: Epoch) {
        if self.replicas.get(&node).is_none_or(|host| host.never_stops) {
            return;
        }
        if self.replicas[&node].stopped == 0 {
            self.checkpoint(node);
        }
        let host = self.replicas.get_mut(&node).unwrap();
        host.stopped = host.stopped.max(epoch);
        let answer = Message::ExecutionStopped {
            group: GROUP,
            node,
            nonce: host.nonce,
            start: host.partitions[0].start().map_or(0, Start::number),
            epoch,
            next: host.on_disk.clone(),
        };
        self.send(Sending::ToController(node, answer));
    }
}
