// SPDX-License-Identifier: Apache-2.0
//! How a cluster begins.

use paxos::{Acceptor, Enable, HostLearner, Leader, Program, Recover, RecoverSettings};

use super::Paxos;
use crate::actor::{Actor, Control, Outputs, Repairer};
use crate::bounds::{leader_nonce, memory_nonce};
use crate::mutation::Mutation;
use crate::network::{ActorId, Message, Payload, mask};

impl Paxos {
    pub(super) fn begin(&self) -> Vec<Actor> {
        let b = self.bounds.clone();
        let repairer_nonce = |place: ActorId| 0x4e00 + u64::from(place);
        let mut actors = Vec::new();
        for place in b.acceptor_places() {
            let nonce = memory_nonce(place, 1);
            let mut acceptor = Acceptor::new(b.deployment(place), b.slots as usize, nonce);
            if !b.unborn {
                acceptor.enable(&self.first_enable(nonce)).expect("bounds");
            }
            actors.push(Actor::Acceptor(acceptor));
        }
        for place in b.leader_places() {
            let leader = place - b.acceptors;
            let mut role = Leader::new(b.deployment(place), leader_nonce(leader, 1));
            if leader == 0 && !b.unborn {
                role.program(&self.first_program()).expect("bounds");
            }
            actors.push(Actor::Leader(role));
        }
        let nonces = b.repairer_places().map(repairer_nonce).collect();
        let mut control = Control::new(b.deployment(b.control_place()), nonces, b.window);
        control.missing_promises = u8::from(self.mutation == Some(Mutation::PromisesOfF));
        if !b.unborn {
            self.activate_first(&mut control);
        }
        let lanes: Vec<u8> = (1..=b.repairers).collect();
        actors.push(Actor::Control(control));
        let configurations: Vec<_> = (1..).map_while(|epoch| b.configuration(epoch)).collect();
        for (place, lane) in b.repairer_places().zip(lanes) {
            let role = Recover::new(RecoverSettings {
                deployment: b.deployment(place),
                pid: 0,
                // Small, so that waiting times have no jitter that would tell states apart.
                retry_after: 1,
                propose_after: 0,
                max_open: 4,
                nonce: repairer_nonce(place),
            });
            let mut repairer = Repairer::new(role, configurations.clone());
            if !b.unborn {
                let shared = self.mutation == Some(Mutation::SharedLane);
                let lane = if shared { 1 } else { lane };
                repairer.active(1, lane, &mut Outputs::default());
            }
            actors.push(Actor::Repairer(repairer));
        }
        for place in b.learner_places() {
            let mut learner = HostLearner::new(b.deployment(place), b.slots as usize, &[]);
            configurations.iter().for_each(|c| {
                learner.learn(c);
            });
            actors.push(Actor::Learner(learner));
        }
        actors
    }

    pub(super) fn first_enable(&self, nonce: u64) -> Enable {
        let one_is_enough = self.mutation == Some(Mutation::TrimByOne);
        Enable {
            epoch: 1,
            nonce,
            trim: vec![0],
            end: vec![0],
            replicas: self.bounds.replicas.clone(),
            g: if one_is_enough { 0 } else { self.bounds.g },
        }
    }

    fn first_program(&self) -> Program {
        let first = self.bounds.configuration(1).expect("the first epoch");
        Program {
            epoch: 1,
            nonce: leader_nonce(0, 1),
            next: vec![0],
            trimmed: vec![0],
            window: self.bounds.window,
            acceptors: first.acceptors.iter().map(|a| a.node).collect(),
            f: first.f,
            replicas: self.bounds.replicas.clone(),
            g: self.bounds.g,
        }
    }

    fn activate_first(&self, control: &mut Control) {
        let configuration = self.bounds.configuration(1).expect("the first epoch");
        let handed = control::state::Handed {
            next: vec![0],
            trim: vec![0],
            end: vec![0],
        };
        let store = &mut control.store;
        store.issue(&configuration).expect("a fresh store");
        store.mark_writing(1).expect("just issued");
        store.mark_active(1, handed).expect("just marked writing");
        control.draw_first_lanes();
    }

    pub(super) fn requests(&self) -> Vec<Message> {
        let leaders = mask(self.bounds.leader_places());
        let request = |client| Message::request(client, self.bounds.control_place(), leaders);
        let mut requests: Vec<Message> = (1..=self.bounds.clients).map(request).collect();
        if !self.bounds.unborn && self.mutation == Some(Mutation::LeaderStampsAgain) {
            requests.push(Message {
                payload: Payload::Program(self.first_program()),
                from: self.bounds.control_place(),
                to: 1 << self.bounds.leader_places().start,
                memory: 0,
            });
        }
        requests
    }
}
