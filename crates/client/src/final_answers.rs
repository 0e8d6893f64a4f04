// SPDX-License-Identifier: Apache-2.0
//! Decides which answers are final. With Paxos all answers are. With NOPaxos the leader of a view
//! answers before its followers have shown that they have the command, and the client counts them.
//! [K-QUORUM]

use control::{Protocol, View};
use paxos::nopaxos::Quorum;
use paxos::{Deployment, Epoch, Header, MsgType, Packet, PartitionId, Reason};

use crate::error::Error;

/// Counts the answers and acknowledgements of the replicas until an answer is final.
pub(crate) struct FinalAnswers {
    deployment: Deployment,
    /// One quorum for each partition; empty if every answer is final.
    quorums: Vec<Quorum<Answer>>,
    /// The newest session that an answer has named.
    mentioned: Epoch,
    /// A session that was told with two configurations.
    contradiction: Option<Epoch>,
}

/// A REPLY that waits for acknowledgements.
type Answer = (Header, Vec<u8>);

impl FinalAnswers {
    /// Returns the state of a client that has not seen a view yet.
    pub fn new(deployment: Deployment, protocol: Protocol) -> FinalAnswers {
        let partitions: std::ops::Range<PartitionId> = match protocol {
            Protocol::Paxos => 0..0,
            Protocol::NoPaxos => 0..deployment.partitions,
        };
        FinalAnswers {
            deployment,
            quorums: partitions.map(Quorum::new).collect(),
            mentioned: 0,
            contradiction: None,
        }
    }

    /// Learns the sessions of a view.
    pub fn learn(&mut self, view: &View) {
        for quorum in &mut self.quorums {
            // A quorum uses only parts of a session that are the same in all partitions.
            for session in view.sessions(0).unwrap_or_default() {
                if quorum.learn(&session).is_err() {
                    self.contradiction = Some(session.number);
                }
            }
        }
    }

    /// Returns whether an answer named a session that the client doesn't know.
    pub fn needs_view(&self) -> bool {
        let newest = self.quorums.first().map_or(0, Quorum::newest);
        self.mentioned > newest
    }

    /// Returns an error if a session has two lists of members, since then answers can't be counted.
    /// [E-ONE]
    pub fn check(&self) -> Result<(), Error> {
        let Some(session) = self.contradiction else {
            return Ok(());
        };
        Err(Error::System(format!(
            "session {session} was told with two configurations: there are two controllers, or the \
             controller's store was replaced by an old copy. This client can't tell which answers \
             are final: find out with wirepaxos status, and open another client"
        )))
    }

    /// Takes a packet, and hands on those that are final now: the packet itself, or answers that
    /// have waited.
    pub fn take(&mut self, packet: &Packet<'_>, mut hand_on: impl FnMut(&Packet<'_>)) {
        let h = &packet.header;
        let is_counted = matches!(h.msgtype, MsgType::Reply | MsgType::Ack) && !h.rnd.is_none();
        if self.quorums.is_empty() || !is_counted {
            return hand_on(packet);
        }
        if self.deployment.check(packet).is_err() {
            return;
        }
        let quorum = &mut self.quorums[usize::from(h.pid)];
        if h.msgtype == MsgType::Reply && quorum.is_final(h) {
            return hand_on(packet);
        }
        let counted = match h.msgtype {
            MsgType::Ack => quorum.ack(h),
            _ => quorum.reply(h, (*h, packet.value.to_vec())).map(drop),
        };
        if counted == Err(Reason::UnknownEpoch) {
            self.mentioned = self.mentioned.max(h.rnd.epoch());
        }
        while let Some((header, value)) = quorum.next() {
            hand_on(&Packet {
                header,
                tag: None,
                value: &value,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{EpochRecord, EpochState};
    use paxos::nopaxos::view;
    use paxos::{Configuration, Member, NodeId, Round};

    const DEPLOYMENT: Deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 2,
        max_value: 64,
        node: 0,
    };

    fn record(epoch: Epoch, nonce: u64) -> EpochRecord {
        let member = |node| Member { node, nonce };
        let configuration = Configuration {
            epoch,
            leader: member(9),
            acceptors: [31, 32, 33].map(member).to_vec(),
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        };
        EpochRecord::of(&configuration, Some(0), EpochState::Active)
    }

    fn told(epochs: &[EpochRecord]) -> View {
        View {
            epochs: epochs.to_vec(),
            ..View::nothing(1)
        }
    }

    fn header(msgtype: MsgType, rnd: Round, from: NodeId, inst: u64) -> Header {
        Header {
            cluster: DEPLOYMENT.cluster,
            group: DEPLOYMENT.group,
            pid: 1,
            rnd,
            swid: from,
            inst,
            ..Header::new(msgtype)
        }
    }

    /// Returns the numbers of the requests that are handed on.
    fn takes(counted: &mut FinalAnswers, header: &Header) -> Vec<u64> {
        let mut handed_on = Vec::new();
        let packet = Packet {
            header: *header,
            tag: None,
            value: b"",
        };
        counted.take(&packet, |packet| handed_on.push(packet.header.request));
        handed_on
    }

    fn answer(rnd: Round, from: NodeId, inst: u64, request: u64) -> Header {
        Header {
            client: 7,
            request,
            ..header(MsgType::Reply, rnd, from, inst)
        }
    }

    /// An answer waits for a follower that has its slot. [K-QUORUM]
    #[test]
    fn an_answer_waits_for_a_follower_that_has_its_slot() {
        let mut counted = FinalAnswers::new(DEPLOYMENT, Protocol::NoPaxos);
        let session = record(1, 5);
        let view = view::first(1);
        // The first leader of partition 1 is the second member.
        let answers = |inst, request| answer(view, 32, inst, request);
        assert!(takes(&mut counted, &answers(0, 1)).is_empty());
        assert!(counted.needs_view(), "it was never told of the session");
        counted.learn(&told(std::slice::from_ref(&session)));
        assert!(!counted.needs_view());
        assert!(takes(&mut counted, &answers(0, 1)).is_empty());
        assert!(takes(&mut counted, &answers(1, 2)).is_empty());
        let shown = session.session(0).map(|s| s.shown());
        let ack = |inst| Header {
            vrnd: shown.unwrap_or_default(),
            ..header(MsgType::Ack, view, 33, inst)
        };
        assert_eq!(takes(&mut counted, &ack(1)), [1]);
        assert!(takes(&mut counted, &answers(2, 3)).is_empty());
        assert_eq!(takes(&mut counted, &ack(3)), [2, 3]);
        // An answer that was acknowledged before it came needn't wait, unless another replica gives
        // it.
        assert!(takes(&mut counted, &ack(5)).is_empty());
        assert!(takes(&mut counted, &answer(view, 33, 4, 6)).is_empty());
        assert_eq!(takes(&mut counted, &answers(4, 7)), [7]);
        assert!(takes(&mut counted, &answers(5, 8)).is_empty());
        // An answer for a stable slot names no view.
        assert_eq!(takes(&mut counted, &answer(Round::NONE, 31, 0, 4)), [4]);
        let elsewhere = Header {
            pid: 2,
            ..answers(0, 5)
        };
        assert!(takes(&mut counted, &elsewhere).is_empty());
    }

    #[test]
    fn answers_of_paxos_are_final() {
        let mut counted = FinalAnswers::new(DEPLOYMENT, Protocol::Paxos);
        let answer = answer(view::first(1), 31, 0, 1);
        assert_eq!(takes(&mut counted, &answer), [1]);
        counted.learn(&told(&[record(1, 5), record(1, 6)]));
        assert!(!counted.needs_view() && counted.check().is_ok());
    }

    /// A session with two lists of members ends the count. [E-ONE]
    #[test]
    fn a_session_with_two_lists_of_members_ends_the_count() {
        let mut counted = FinalAnswers::new(DEPLOYMENT, Protocol::NoPaxos);
        counted.learn(&told(&[record(1, 5)]));
        assert!(counted.check().is_ok());
        counted.learn(&told(&[record(1, 6), record(2, 6)]));
        let said = counted.check().unwrap_err().to_string();
        assert!(said.contains("session 1 was told with two"), "{said}");
    }
}
