// SPDX-License-Identifier: Apache-2.0
//! Values of the world: stamped, put into memories, and trimmed.

use super::*;

impl World {
    /// Sends the leader's PHASE2A of an instance to all acceptors that are up.
    pub fn stamp(&mut self, epoch: Epoch, pid: u16, inst: Instance) {
        for node in ACCEPTORS {
            self.stamp_at(node, epoch, pid, inst, inst + 1);
        }
    }

    /// Lets one of them vote, if it is up.
    pub fn stamp_at(&mut self, node: NodeId, epoch: Epoch, pid: u16, inst: Instance, request: u64) {
        let header = Header {
            group: GROUP,
            cluster: cluster::CLUSTER,
            pid,
            inst,
            rnd: Round::base(epoch),
            client: 1,
            request,
            ..Header::new(MsgType::Phase2a)
        };
        if !self.net.down.contains(&node) {
            self.put_in(node, header);
        }
    }

    /// Gives a packet without a value to an acceptor, past the network.
    fn put_in(&mut self, node: NodeId, header: Header) {
        let packet = Packet {
            header,
            tag: None,
            value: &[],
        };
        let acceptor = self.net.acceptors.get_mut(&node).unwrap();
        let _ = acceptor.step(&packet, &mut Sent::default());
    }

    /// Lets two replicas report to one acceptor that their checkpoints cover everything below
    /// `inst`.
    pub fn trim_at(&mut self, node: NodeId, epoch: Epoch, pid: u16, inst: Instance) {
        for replica in &REPLICAS[..2] {
            let header = Header {
                group: GROUP,
                cluster: cluster::CLUSTER,
                pid,
                inst,
                swid: *replica,
                client: 1,
                request: epoch.into(),
                ..Header::new(MsgType::Trim)
            };
            self.put_in(node, header);
        }
    }

    /// Returns how many acceptors hold the value that [`stamp`](Self::stamp) gave an instance.
    pub fn holding(&self, pid: u16, inst: Instance) -> usize {
        let holds = |a: &&Acceptor| {
            a.slot(pid, inst)
                .is_some_and(|s| s.client == 1 && s.request == inst + 1)
        };
        self.net.acceptors.values().filter(holds).count()
    }
}
