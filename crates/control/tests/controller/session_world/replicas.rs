// SPDX-License-Identifier: Apache-2.0
//! The replicas of the world, and the packets between its nodes.

use super::*;

impl World {
    pub(super) fn tick_replica(&mut self, node: NodeId) {
        for pid in 0..usize::from(PARTITIONS) {
            let mut out = Sent::default();
            let host = self.replicas.get_mut(&node).unwrap();
            host.partitions[pid].tick(self.now, &mut out);
            self.send_all(node, node, out);
            self.fetch_state(node, pid);
            self.answer_clients(node, pid);
            self.look_at(node, pid);
        }
    }

    pub(super) fn report_views(&mut self) {
        let mut reports = Vec::new();
        for (node, host) in self.replicas.iter().filter(|(n, _)| !self.down.contains(n)) {
            for (pid, replica) in (0..).zip(&host.partitions) {
                if let Some(started) = replica.unreported() {
                    let message = Message::view_started(GROUP, replica.member(), pid, &started);
                    reports.push((*node, message));
                }
            }
        }
        for (node, message) in reports {
            self.reports.push((node, message.clone()));
            if !self.mute_reports {
                self.send(Sending::ToController(node, message));
            }
        }
    }

    /// Executes what is stable in a replica and stores it, so that the log can forget it.
    pub fn checkpoint(&mut self, node: NodeId) {
        for pid in 0..usize::from(PARTITIONS) {
            let mut out = Sent::default();
            let host = self.replicas.get_mut(&node).unwrap();
            let stable = host.partitions[pid].stable();
            host.on_disk[pid] = host.on_disk[pid].max(stable);
            host.partitions[pid].checkpointed(self.now, stable, &mut out);
            self.send_all(node, node, out);
            self.trim(node, pid);
        }
    }

    pub(super) fn trim(&mut self, node: NodeId, pid: usize) {
        let header = Header {
            group: GROUP,
            cluster: CLUSTER,
            pid: pid as u16,
            swid: node,
            inst: self.replicas[&node].on_disk[pid],
            client: 1,
            request: self.state().last_epoch().into(),
            ..Header::new(MsgType::Trim)
        };
        let nodes: Vec<NodeId> = self.sequencers.keys().copied().collect();
        for to in nodes {
            self.send(Sending::Packet {
                from: node,
                to,
                bytes: header.datagram(&[]),
            });
        }
    }

    fn fetch_state(&mut self, node: NodeId, pid: usize) {
        let host = &self.replicas[&node];
        // A replica that didn't stand where it could go on takes the state of one that did.
        // [G-BEHIND]
        let behind = Some(host.partitions[pid].stable()).filter(|at| {
            at.saturating_sub(host.on_disk[pid]) >= control::LEAP / 2 && host.stopped == 0
        });
        let Some(wanted) = host.partitions[pid].wants_checkpoint().or(behind) else {
            return;
        };
        let disks = self.replicas.values().map(|host| host.on_disk[pid]);
        let Some(found) = disks.max().filter(|at| *at >= wanted) else {
            return;
        };
        let mut out = Sent::default();
        let host = self.replicas.get_mut(&node).unwrap();
        host.on_disk[pid] = found;
        host.partitions[pid].restored(self.now, found, &mut out);
        self.send_all(node, node, out);
    }

    /// Sends a leader's REPLY for what may be executed, or a follower's ACK.
    fn answer_clients(&mut self, node: NodeId, pid: usize) {
        let host = self.replicas.get_mut(&node).unwrap();
        let replica = &mut host.partitions[pid];
        let mut sent = Vec::new();
        sent.extend(replica.take_ack().map(|ack| ack.header));
        let _ = replica.take_rewind();
        let (view, answered) = host.answered[pid];
        if replica.leads() {
            let from = match view == replica.view() {
                true => answered,
                false => replica.floor(),
            };
            for inst in from.max(replica.floor())..replica.ready() {
                let entry = replica.entry(inst).expect("it is ready");
                if !entry.is_noop() {
                    sent.push(Header {
                        group: GROUP,
                        cluster: CLUSTER,
                        pid: pid as u16,
                        swid: node,
                        inst,
                        rnd: replica.view(),
                        client: entry.client,
                        request: entry.request,
                        ..Header::new(MsgType::Reply)
                    });
                }
            }
            host.answered[pid] = (replica.view(), replica.ready());
        }
        for header in sent {
            self.checkers[pid].sent(&header.datagram(&[]));
        }
    }

    fn look_at(&mut self, node: NodeId, pid: usize) {
        let replica = &self.replicas[&node].partitions[pid];
        let normal_in = (replica.status() == Status::Normal).then(|| replica.view().0);
        let content = |inst| match replica.entry(inst) {
            Some(entry) => {
                Content::whole((entry.client, entry.request), entry.flags.0, entry.value)
            }
            None => panic!("slot {inst} isn't filled"),
        };
        let ends = (replica.floor(), replica.stable(), replica.next());
        self.checkers[pid].shown(node, normal_in, ends, content);
    }

    /// Sends a command for each partition to all sequencers that stamp.
    pub fn request(&mut self) {
        self.requests += 1;
        for pid in 0..PARTITIONS {
            let header = Header {
                group: GROUP,
                cluster: CLUSTER,
                pid,
                client: 7,
                request: self.requests,
                value_len: 1,
                ..Header::new(MsgType::Request)
            };
            let nodes: Vec<NodeId> = self.sequencers.keys().copied().collect();
            for node in nodes {
                self.packet(CLIENT, node, &header.datagram(&[1]));
            }
        }
    }

    pub(super) fn packet(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a packet");
        if self.down.contains(&to) {
            return;
        }
        let mut out = Sent::default();
        if to == CONTROLLER {
            let now = self.now;
            for n in 0..self.controllers.len() {
                self.give(n, |controller, out| {
                    let _ = controller.packet(now, &packet, out);
                });
            }
        } else if let Some(sequencer) = self.sequencers.get_mut(&to) {
            let _ = sequencer.step(&packet, &mut out);
            let ordered = out.0.iter().map(|(_, header, _)| *header);
            let ordered: Vec<Header> = ordered.filter(|h| h.msgtype == MsgType::Ordered).collect();
            ordered.iter().for_each(|h| self.check_stamp(h));
        } else if self.replicas.contains_key(&to) {
            self.step_replica(to, &packet, &mut out);
        }
        self.send_all(to, from, out);
    }

    /// Checks that nothing is stamped before the session is active in the store, or below its
    /// beginning. [F-ACTIVE]
    fn check_stamp(&self, h: &Header) {
        let begins = self.begins.get(&h.rnd.epoch());
        let first = begins.map(|begins| begins[usize::from(h.pid)]);
        assert!(
            first.is_some_and(|first| h.inst >= first),
            "slot {} of session {}, which begins at {first:?}",
            h.inst,
            h.rnd.epoch()
        );
    }

    fn step_replica(&mut self, node: NodeId, packet: &Packet<'_>, out: &mut Sent) {
        let h = packet.header;
        let pid = usize::from(h.pid);
        let host = self.replicas.get_mut(&node).unwrap();
        if h.msgtype == MsgType::Probe {
            if Probe::parse(packet.value) == Ok(Probe::Replica) {
                out.0.push(host.shown(node, pid, &h, self.shows));
            }
            return;
        }
        let replica = &mut host.partitions[pid];
        let verdict = replica.step(self.now, packet, out);
        if verdict == Verdict::Dropped(Reason::Window) && h.msgtype == MsgType::Ordered {
            (replica.next()..h.inst).for_each(|slot| replica.dropped(self.now, slot));
        }
    }
}
