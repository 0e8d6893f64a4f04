// SPDX-License-Identifier: Apache-2.0
//! Reads without a slot in a NOPaxos group: all replicas are asked, the leader answers, and f others say that they are
//! in its view. [N-READ]

use paxos::nopaxos::Quorum;
use paxos::{Header, MsgType, Packet, To, Verdict};
use replica::Status;

use super::ClientHost;
use crate::application::Look;
use crate::check::READS;
use crate::cluster::mutation::Mutation;
use crate::cluster::world::{CLUSTER, GROUP, World};

/// A read without an answer that counts.
pub(super) struct Asked {
    /// The number of the read in the world.
    number: usize,
    /// Counts the packets that name this read, and nothing else.
    quorum: Quorum<Look>,
}

impl ClientHost {
    /// Asks all replicas once. A read whose packets are lost, or that comes before there is a session, stays without an
    /// answer.
    pub fn read(&mut self, world: &mut World, number: usize, (pid, key): (u8, u8)) {
        let session = self.sessions.get(usize::from(pid)).and_then(|s| s.id);
        let told = self.told.get(usize::from(pid));
        let (Some(client), Some(told), true) = (session, told, self.is_up()) else {
            return;
        };
        let mut quorum = Quorum::new(pid.into());
        for session in told {
            let mut session = session.clone();
            if world.mutated(Mutation::ReadsUnechoed) {
                session.f = 0;
            }
            quorum.learn(&session).expect("there is one controller");
        }
        let request = READS + number as u64;
        self.reads.insert(request, Asked { number, quorum });
        let value = Look::at(key.into());
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            pid: pid.into(),
            client,
            request,
            value_len: value.len() as u16,
            ..Header::new(MsgType::Read)
        };
        let at = self.host.endpoint(0);
        world.send(at, None, None, To::Replicas, &header, &value);
    }

    /// Counts an answer to a read, or an ACK that names one.
    pub(super) fn count_read(&mut self, world: &mut World, packet: &Packet<'_>) -> Verdict {
        let h = &packet.header;
        let Some(asked) = self.reads.get_mut(&h.request) else {
            return Verdict::Answered;
        };
        let counted = match (h.msgtype, packet.value.split_first()) {
            (MsgType::Ack, _) => asked.quorum.ack(h),
            (_, Some((status, answer))) if *status == Status::Ok as u8 => {
                let look = Look::parse(answer).expect("the application says both");
                asked.quorum.reply(h, look).map(drop)
            }
            // The read's session has expired.
            _ => Ok(()),
        };
        if let Some(look) = asked.quorum.next() {
            let number = asked.number;
            self.reads.remove(&h.request);
            let read = &mut world.reads[number];
            read.shown.push((h.pid, look));
            read.answer = Some(world.queue.now());
            world.answered_reads.push(number);
        }
        counted.map_or_else(Verdict::Dropped, |()| Verdict::Changed)
    }
}
