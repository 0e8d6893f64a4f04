// SPDX-License-Identifier: Apache-2.0
//! The output of a replica's workers: packets, answers to clients, messages to one another.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use paxos::read::is_for_reads;
use paxos::wire::value::{PackedItem, append_packed};
use paxos::{Flags, Header, MsgType, Outbox, PartitionId, Time, To};
use replica::application::VOID;
use replica::{AnsweredReads, Basis, ReplyTo, SiblingMessage, Status};

use super::ReplicaHost;
use crate::cluster::layout::{Endpoint, NodeIndex, node_id};
use crate::cluster::mutation::{self, Mutation};
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{CLUSTER, Event, GROUP, Outgoing, Sender, World};
use crate::queue::MICROSECOND;

/// The longest time until a worker reads another one's message.
const MAX_MAIL: Time = 100 * MICROSECOND;

/// The largest number of replies in a packet.
const MAX_PACK: usize = 8;

/// A reply that leaves a worker.
struct Reply {
    to: ReplyTo,
    /// The basis of the answer; `None` if it is final.
    basis: Option<Basis>,
    client: u64,
    request: u64,
    bytes: Vec<u8>,
}

/// The output of a worker.
#[derive(Default)]
pub(super) struct Output {
    pub packets: Outgoing,
    replies: Vec<Reply>,
    acks: Vec<(ReplyTo, Header)>,
    mail: Vec<(PartitionId, SiblingMessage)>,
    /// The results of reads without the log.
    pub reads: Vec<(u64, Option<Vec<u8>>)>,
}

impl Outbox for Output {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.packets.send(to, header, value);
    }
}

impl replica::Output for Output {
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        let mut value = Vec::with_capacity(bytes.len() + 1);
        value.push(status);
        value.extend_from_slice(bytes);
        self.replies.push(Reply {
            to: *to,
            basis,
            client,
            request,
            bytes: value,
        });
    }

    fn ack(&mut self, to: &ReplyTo, header: &Header) {
        self.acks.push((*to, *header));
    }

    fn reads(&mut self, answered: &AnsweredReads) {
        let owned = |(number, answer): (u64, Option<&[u8]>)| (number, answer.map(<[u8]>::to_vec));
        self.reads.extend(answered.iter().map(owned));
    }

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.mail.push((to, message));
    }
}

/// Returns the address of a client's socket.
pub fn client_address(client: NodeIndex) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, client)), 7000)
}

fn client_at(to: &ReplyTo) -> Option<NodeIndex> {
    match to {
        ReplyTo::Address(SocketAddr::V4(address), _) => Some(address.ip().octets()[3]),
        _ => None,
    }
}

impl<G: Protocol> ReplicaHost<G> {
    pub(super) fn post(&mut self, world: &mut World, pid: usize, sender: Option<Endpoint>) {
        G::store(self, world, pid);
        let at = self.host.endpoint(pid as u8);
        let who = Sender::Proposer(self.host.process);
        let shard = &mut self.shards[pid];
        for (to, header, value) in self.out.packets.iter() {
            let mut header = *header;
            if header.msgtype == MsgType::Trim {
                mutation::overstate_trim(world, &mut header);
                shard.reported = shard.reported.max(header.inst);
                shard.number = shard.number.max(header.client);
                mutation::number_no_disks(world, &mut header);
                let (inst, durable) = (header.inst, shard.store.durable_position());
                let findings = &mut world.findings;
                world
                    .executions
                    .trim_sent(header.swid, header.pid, inst, durable, findings);
            }
            if header.msgtype == MsgType::Query && is_for_reads(&header) {
                shard.asked_for_reads = header.request;
            }
            world.watch(who, &header, value);
            world.send(at, sender, self.host.leader, to, &header, value);
        }
        self.out.packets.clear();
        self.post_mail(world, pid);
        self.post_replies(world, pid);
        self.post_acks(world, pid);
        self.take_reads(world, pid);
    }

    /// Delivers messages between workers, which are reliable and in order, and come when the other
    /// worker has time.
    fn post_mail(&mut self, world: &mut World, pid: usize) {
        let process = self.host.process;
        for (to, message) in self.out.mail.drain(..) {
            let at = self.host.endpoint(to as u8);
            let inbox = &mut self.shards[usize::from(to)].inbox;
            inbox.push_back((pid as PartitionId, message));
            let delay = world.rng.below(MAX_MAIL);
            world.queue.after(delay, Event::Mail { at, process });
        }
    }

    fn post_replies(&mut self, world: &mut World, pid: usize) {
        let replies = std::mem::take(&mut self.out.replies);
        let store = &self.shards[pid].store;
        let reached = match world.scenario.answers_wait {
            true => store.committed_position(),
            false => store.executed_position(),
        };
        for reply in &replies {
            // A command without effect has no place in the history; the client notes it.
            let counts = reply.bytes[0] == Status::Ok as u8 && reply.bytes[1..] != *VOID;
            if !world.is_ordered() && counts && reply.request > 0 {
                let id = world
                    .requests
                    .get(&(pid as u16, reply.client, reply.request));
                if let Some(&id) = id {
                    let (replica, findings) = (node_id(self.host.name), &mut world.findings);
                    world.executions.answers(replica, id, reached, findings);
                }
            }
        }
        let view = |reply: &Reply| reply.basis.map(|basis| basis.view);
        let one = |reply: &Reply| (reply.to, view(reply));
        // A command that came too early is answered again when it takes effect. [P-EARLY]
        let counts = |r: &&Reply| r.basis.is_some() && r.bytes[0] != Status::OutOfOrder as u8;
        for reply in replies.iter().filter(counts) {
            let of = (pid as u16, reply.client, reply.request);
            if let Some(command) = world.requests.get(&of) {
                world.promises.answers(*command, world.queue.now());
            }
        }
        for same in replies.chunk_by(|a, b| one(a) == one(b)) {
            let Some(client) = client_at(&same[0].to) else {
                continue;
            };
            for pack in same.chunks(MAX_PACK) {
                self.post_reply(world, pid, client, pack);
            }
        }
    }

    /// Sends how far this follower's log is filled.
    fn post_acks(&mut self, world: &mut World, pid: usize) {
        let at = self.host.endpoint(pid as u8);
        let acks = std::mem::take(&mut self.out.acks);
        if world.mutated(Mutation::CrowdNotMadeUp) && self.shards[pid].crowd.is_over() {
            return;
        }
        for (to, header) in acks {
            if let Some(client) = client_at(&to) {
                let to = Endpoint {
                    node: client,
                    pid: 0,
                };
                world.send(at, Some(to), None, To::Sender, &header, &[]);
            }
        }
    }

    fn post_reply(&self, world: &mut World, pid: usize, client: NodeIndex, pack: &[Reply]) {
        let mut header = Header {
            cluster: CLUSTER,
            group: GROUP,
            pid: pid as u16,
            swid: node_id(self.host.name),
            ..Header::new(MsgType::Reply)
        };
        // The last slot speaks for the others. [N-ANSWER]
        for basis in pack.iter().filter_map(|reply| reply.basis) {
            (header.rnd, header.inst) = (basis.view, basis.slot.max(header.inst));
        }
        let mut packed = Vec::new();
        let value = match pack {
            [one] => {
                (header.client, header.request) = (one.client, one.request);
                &one.bytes
            }
            _ => {
                header.flags = Flags::PACKED;
                for reply in pack {
                    let item = PackedItem {
                        client: reply.client,
                        request: reply.request,
                        bytes: &reply.bytes,
                    };
                    append_packed(&mut packed, &item);
                }
                &packed
            }
        };
        header.value_len = value.len() as u16;
        let at = self.host.endpoint(pid as u8);
        let to = Endpoint {
            node: client,
            pid: 0,
        };
        world.send(at, Some(to), None, To::Sender, &header, value);
    }
}
