// SPDX-License-Identifier: Apache-2.0
//! The envelope of every control message, and the rules of who may send which message.
//!
//! Addresses are reused, for example by the next cluster or by a node that replaces another one. So
//! an envelope names its cluster and the node that it is for, and messages that only the controller
//! may send count only from the controller's address. [E-VIEW]

use crate::{MembersMessage, Message};
use paxos::NodeId;
use serde::{Deserialize, Serialize};

/// The value of `to` for messages to a client or a command line.
pub const OUTSIDE: NodeId = 0;

/// A message with its addresses, as one JSON object in a datagram.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Envelope<M = Message> {
    /// The cluster's random number as 8 hex digits, as in the cluster file.
    #[serde(with = "hex")]
    pub cluster: u32,
    /// The node that sends the message; [`OUTSIDE`] for a sender that is no node. It counts only if
    /// the message is signed. [E-SIGNED]
    #[serde(default, skip_serializing_if = "is_outside")]
    pub from: NodeId,
    /// The node that the message is for; [`OUTSIDE`] for an asker that is no node.
    pub to: NodeId,
    /// The number of the last [`Message::Challenge`] that the sender got from that node; 0 if there
    /// is none. [E-CHALLENGE]
    #[serde(default, skip_serializing_if = "is_zero")]
    pub challenge: u64,
    /// The message itself.
    pub message: M,
}

/// The sender of a message, as far as its address tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// The controller of the cluster file.
    Controller,
    /// Another node of the cluster file.
    Node(NodeId),
    /// Another sender: a command line, another cluster, or, without keys, a client.
    Outside,
    /// A holder of a client's key. [E-SIGNED]
    Client,
}

/// The reason why a message is ignored. Each is counted under its name in `status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Turned {
    /// The bytes are no envelope with a message.
    Malformed,
    /// The message is of another cluster.
    WrongCluster,
    /// The message is for another node.
    Misdirected,
    /// The sender may not send this message.
    UnknownSender,
    /// The message has no signature.
    Unsigned,
    /// The signature doesn't match the key that it names.
    BadMac,
    /// The message is signed with a key that this node doesn't have, for example of another
    /// generation.
    OtherKey,
}

impl Turned {
    /// All reasons.
    pub const ALL: [Turned; 7] = [
        Turned::Malformed,
        Turned::WrongCluster,
        Turned::Misdirected,
        Turned::UnknownSender,
        Turned::Unsigned,
        Turned::BadMac,
        Turned::OtherKey,
    ];

    /// Returns the name in `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Turned::Malformed => "malformed",
            Turned::WrongCluster => "wrong_cluster",
            Turned::Misdirected => "misdirected",
            Turned::UnknownSender => "unknown_sender",
            Turned::Unsigned => "unsigned",
            Turned::BadMac => "bad_mac",
            Turned::OtherKey => "other_key",
        }
    }
}

impl Envelope {
    /// Returns whether the sender must prove that it receives packets at its address. This is so
    /// for senders that may be anywhere, and for messages of which an old or forged one would do
    /// harm. [E-CHALLENGE]
    pub fn needs_challenge(&self, sender: Sender) -> bool {
        let harmful = match &self.message {
            Message::Stop | Message::Skip { .. } | Message::DigestRequest { .. } => true,
            Message::Failover {
                accept_data_loss, ..
            } => *accept_data_loss,
            _ => false,
        };
        let anywhere = matches!(sender, Sender::Outside | Sender::Client);
        self.to != OUTSIDE && (harmful || anywhere)
    }

    /// Returns the message if it is for `node` ([`OUTSIDE`] stands for a client) of `cluster` and
    /// its sender may send it. [E-VIEW]
    pub fn open(self, cluster: u32, node: NodeId, sender: Sender) -> Result<Message, Turned> {
        if self.cluster != cluster {
            Err(Turned::WrongCluster)
        } else if self.to != node {
            Err(Turned::Misdirected)
        } else if !may_say(sender, &self.message, node) {
            Err(Turned::UnknownSender)
        } else if matches!(&self.message, Message::View(view) if !view.is_sound()) {
            Err(Turned::Malformed)
        } else {
            Ok(self.message)
        }
    }
}

fn may_say(sender: Sender, message: &Message, to: NodeId) -> bool {
    if sender == Sender::Client {
        return is_for_clients(message);
    }
    match message {
        // A client that looks for the leader may ask a replica while the controller is down.
        Message::View(_) if to == OUTSIDE => sender != Sender::Outside,
        Message::View(_)
        | Message::RecordRequest { .. }
        | Message::Lane { .. }
        | Message::Incarnation { .. }
        | Message::ProgramLeader { .. }
        | Message::EnableAcceptor { .. }
        | Message::EarlierStartRequest { .. }
        | Message::ResumeAcceptor { .. }
        | Message::DiscardMemory { .. }
        | Message::StopExecution { .. }
        | Message::Members(
            MembersMessage::Changes { .. }
            | MembersMessage::BeginAnew { .. }
            | MembersMessage::Reply { .. },
        )
        | Message::FailoverReply { .. }
        | Message::Register(_) => sender == Sender::Controller,
        // A node asks in its own name; a command line (`wirepaxos recover`) asks in the name of no
        // node.
        Message::LaneRequest { node, .. } => *node == OUTSIDE || sender == Sender::Node(*node),
        // A controller hears its own answer, too.
        Message::Members(MembersMessage::Kept { node, .. }) => {
            sender == Sender::Node(*node) || sender == Sender::Controller
        }
        Message::Record { node, .. }
        | Message::IncarnationRequest { node, .. }
        | Message::EarlierStart { node, .. }
        | Message::ExecutionStopped { node, .. }
        | Message::ViewStarted { node, .. }
        | Message::SessionWanted { node, .. } => sender == Sender::Node(*node),
        Message::Status { .. }
        | Message::Digest { .. }
        | Message::Stopping { .. }
        | Message::Challenge { .. } => sender != Sender::Outside,
        // Only members ask one another, so that nobody outside has many nodes answer.
        Message::ClockRequest { .. } | Message::Clock { .. } => {
            matches!(sender, Sender::Node(_) | Sender::Controller)
        }
        Message::ViewRequest { .. }
        | Message::Failover { .. }
        | Message::Members(MembersMessage::Order { .. } | MembersMessage::Check { .. })
        | Message::StatusRequest { .. }
        | Message::EventsRequest { .. }
        | Message::DigestRequest { .. }
        | Message::Skip { .. }
        | Message::Stop => true,
    }
}

/// Returns whether a client may send this message. Clients send commands over the data plane; here
/// they only ask who leads and how the nodes are.
pub fn is_for_clients(message: &Message) -> bool {
    match message {
        Message::ViewRequest { .. }
        | Message::StatusRequest { .. }
        | Message::EventsRequest { .. } => true,
        Message::Failover { forced, .. } => !forced,
        _ => false,
    }
}

fn is_outside(node: &NodeId) -> bool {
    *node == OUTSIDE
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(cluster: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{cluster:08x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = digits
            .then(|| u32::from_str_radix(&text, 16).ok())
            .flatten();
        number.ok_or_else(|| D::Error::custom("a cluster is 8 hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::View;

    fn open(message: Message, sender: Sender) -> Result<Message, Turned> {
        let envelope = Envelope {
            cluster: 7,
            from: 0,
            to: 5,
            challenge: 0,
            message,
        };
        envelope.open(7, 5, sender)
    }

    fn view() -> Message {
        Message::View(View::nothing(0))
    }

    /// Messages of another cluster and messages for another node are ignored. [E-VIEW]
    #[test]
    fn another_clusters_message_and_one_for_another_node_are_passed_over() {
        for (cluster, node, why) in [
            (8, 5, Turned::WrongCluster),
            (8, 6, Turned::WrongCluster),
            (7, 6, Turned::Misdirected),
            (7, OUTSIDE, Turned::Misdirected),
        ] {
            let envelope = Envelope {
                cluster: 7,
                from: 0,
                to: 5,
                challenge: 0,
                message: Message::Stop,
            };
            assert_eq!(envelope.open(cluster, node, Sender::Controller), Err(why));
        }
        assert_eq!(open(Message::Stop, Sender::Outside), Ok(Message::Stop));
    }

    /// Messages that only the controller may send count only from its address. [E-VIEW]
    #[test]
    fn what_only_the_controller_may_say_counts_from_its_address_alone() {
        let lane = Message::Lane {
            group: 0,
            epoch: 1,
            nonce: 2,
            lane: 3,
        };
        let program = Message::ProgramLeader {
            group: 0,
            epoch: 1,
            nonce: 2,
            next: vec![1],
            trimmed: vec![0],
            window: 8,
            acceptors: vec![3],
            f: 0,
            replicas: vec![4],
            g: 0,
        };
        let enable = Message::EnableAcceptor {
            group: 0,
            epoch: 1,
            nonce: 2,
            trim: vec![0],
            end: vec![0],
            replicas: vec![4],
            g: 0,
        };
        let stop = Message::StopExecution { group: 0, epoch: 1 };
        for message in [view(), lane, program, enable, stop] {
            for sender in [Sender::Outside, Sender::Node(5), Sender::Node(6)] {
                assert_eq!(open(message.clone(), sender), Err(Turned::UnknownSender));
            }
            assert!(open(message, Sender::Controller).is_ok());
        }
    }

    /// A replica can report only its own positions. [G-STOP]
    #[test]
    fn a_replica_shows_its_own_positions_alone() {
        let stopped = |node| Message::ExecutionStopped {
            group: 0,
            node,
            nonce: 2,
            start: 0,
            epoch: 3,
            next: vec![4],
        };
        assert!(open(stopped(6), Sender::Node(6)).is_ok());
        for sender in [Sender::Node(7), Sender::Outside, Sender::Controller] {
            assert_eq!(open(stopped(6), sender), Err(Turned::UnknownSender));
        }
    }

    /// A replica can report only its own views. [F-REPORT]
    #[test]
    fn a_replica_reports_its_own_views_alone() {
        let started = |node| Message::ViewStarted {
            group: 0,
            node,
            nonce: 2,
            pid: 0,
            session: 99,
            view: 3 << 12,
            end: 4,
            members: vec![(6, 2), (7, 2)],
        };
        let wanted = |node| Message::SessionWanted {
            group: 0,
            node,
            nonce: 2,
            epoch: 3,
        };
        for message in [started(6), wanted(6)] {
            assert!(open(message.clone(), Sender::Node(6)).is_ok());
            for sender in [Sender::Node(7), Sender::Outside, Sender::Controller] {
                assert_eq!(open(message.clone(), sender), Err(Turned::UnknownSender));
            }
        }
    }

    /// [E-VIEW]
    #[test]
    fn members_alone_ask_for_clocks_and_say_them() {
        let question = Message::ClockRequest { nonce: 1 };
        let answer = Message::Clock { nonce: 1, ms: 2 };
        for message in [question, answer] {
            for sender in [Sender::Outside, Sender::Client] {
                assert_eq!(open(message.clone(), sender), Err(Turned::UnknownSender));
            }
            for sender in [Sender::Node(6), Sender::Controller] {
                assert!(open(message.clone(), sender).is_ok());
            }
        }
    }

    /// A node draws lanes only in its own name. [E-LANE]
    #[test]
    fn a_node_draws_lanes_in_its_own_name() {
        let request = |node| Message::LaneRequest {
            group: 0,
            epoch: 1,
            node,
            nonce: 2,
        };
        assert!(open(request(6), Sender::Node(6)).is_ok());
        assert!(open(request(OUTSIDE), Sender::Outside).is_ok());
        for sender in [Sender::Node(7), Sender::Outside, Sender::Controller] {
            assert_eq!(open(request(6), sender), Err(Turned::UnknownSender));
        }
    }

    #[test]
    fn a_client_takes_a_view_from_nodes_of_the_file_only() {
        let to_client = || Envelope {
            cluster: 7,
            from: 0,
            to: OUTSIDE,
            challenge: 0,
            message: view(),
        };
        assert!(to_client().open(7, OUTSIDE, Sender::Node(6)).is_ok());
        let refused = to_client().open(7, OUTSIDE, Sender::Outside);
        assert_eq!(refused, Err(Turned::UnknownSender));
    }

    /// Senders that may be anywhere are challenged, and so are senders of harmful messages.
    /// [E-CHALLENGE]
    #[test]
    fn who_may_be_anywhere_is_challenged_and_who_does_harm() {
        let needs = |message, sender| {
            let envelope = Envelope {
                cluster: 7,
                from: 0,
                to: 5,
                challenge: 0,
                message,
            };
            envelope.needs_challenge(sender)
        };
        let failover = |accept_data_loss| Message::Failover {
            group: 0,
            epoch: 3,
            to: None,
            forced: true,
            accept_data_loss,
        };
        let question = || Message::StatusRequest { id: 1, part: 0 };
        for message in [question(), failover(false)] {
            assert!(needs(message.clone(), Sender::Outside));
            assert!(!needs(message, Sender::Node(6)));
        }
        let digest = Message::DigestRequest { group: 0 };
        for message in [Message::Stop, failover(true), digest] {
            for sender in [Sender::Outside, Sender::Node(6), Sender::Controller] {
                assert!(needs(message.clone(), sender));
            }
        }
        let answer = Envelope {
            cluster: 7,
            from: 0,
            to: OUTSIDE,
            challenge: 0,
            message: Message::Challenge { number: 9 },
        };
        assert!(!answer.needs_challenge(Sender::Node(6)));
        assert!(answer.clone().open(7, OUTSIDE, Sender::Outside).is_err());
        assert!(answer.open(7, OUTSIDE, Sender::Node(6)).is_ok());
    }

    /// A client's key allows only questions. [E-SIGNED]
    #[test]
    fn a_clients_key_is_good_for_questions_alone() {
        let failover = |forced| Message::Failover {
            group: 0,
            epoch: 3,
            to: None,
            forced,
            accept_data_loss: false,
        };
        let lane = Message::LaneRequest {
            group: 0,
            epoch: 1,
            node: OUTSIDE,
            nonce: 2,
        };
        let digest = Message::DigestRequest { group: 0 };
        let stopping = Message::Stopping { node: 6 };
        for message in [
            failover(true),
            lane,
            digest,
            stopping,
            Message::Stop,
            view(),
        ] {
            assert_eq!(open(message, Sender::Client), Err(Turned::UnknownSender));
        }
        let question = Message::StatusRequest { id: 1, part: 0 };
        let who_leads = Message::ViewRequest { group: 0 };
        for message in [question, who_leads, failover(false)] {
            assert!(open(message, Sender::Client).is_ok());
        }
    }

    /// Only the controller tells nodes the members' changes, and no client orders any.
    /// [E-CHANGES]
    #[test]
    fn who_says_what_about_members() {
        let changes = Vec::new();
        let known = 0;
        let told = [
            MembersMessage::Changes {
                changes: changes.clone(),
            },
            MembersMessage::BeginAnew { kept: 1 },
            MembersMessage::Reply {
                known,
                result: Ok(1),
            },
        ];
        for message in told.map(Message::Members) {
            for sender in [Sender::Node(5), Sender::Outside, Sender::Client] {
                let opened = open(message.clone(), sender);
                assert_eq!(opened, Err(Turned::UnknownSender));
            }
            assert_eq!(open(message.clone(), Sender::Controller), Ok(message));
        }
        let kept = Message::Members(MembersMessage::Kept {
            node: 5,
            kept: 1,
            uses: 0,
            levels: crate::Levels::default(),
            trouble: None,
            lost: vec![],
        });
        assert!(open(kept.clone(), Sender::Node(5)).is_ok());
        assert!(open(kept, Sender::Node(6)).is_err());
        let order = MembersMessage::Order {
            known,
            changes: changes.clone(),
        };
        for order in [order, MembersMessage::Check { known, changes }].map(Message::Members) {
            assert!(open(order.clone(), Sender::Client).is_err());
            assert!(
                open(order, Sender::Outside).is_ok(),
                "of whoever has the nodes' keys"
            );
        }
    }
}
