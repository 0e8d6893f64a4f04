// SPDX-License-Identifier: Apache-2.0
//! The messages of controller, nodes, clients and command lines outside the data plane.
//!
//! Each message travels in an [`Envelope`](crate::Envelope) between `control` addresses. Messages
//! may be lost, repeated and reordered: each is idempotent, and is repeated until its effect shows.
//! PROBE_ACK shows whether a leader was programmed or an acceptor enabled, so devices that answer
//! PROBE need no agent for that.

mod earlier_start;
mod epoch_record;

use crate::GivenUp;
pub use earlier_start::EarlierStartRequest;
pub(crate) use epoch_record::fnv;
pub use epoch_record::{EpochRecord, EpochState, MemberRecord};
use epoch_record::{member_of, member_record};
use paxos::acceptor::Start;
use paxos::leader::Program;
use paxos::nopaxos::{Session, Started};
use paxos::{Enable, Epoch, GroupId, Instance, Member, NodeId, PartitionId, Round};
use serde::{Deserialize, Serialize};

/// The part of a group's state that nodes and clients need: its epochs, oldest first, at most
/// [`View::MAX_EPOCHS`] of them, always including the last active one and, as far as they fit, all
/// later ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct View {
    /// The group.
    pub group: GroupId,
    /// Grows with every change in the store. It tells which of two views is newer if their last
    /// epochs are the same ([`View::age`]).
    pub version: u64,
    /// The epochs.
    pub epochs: Vec<EpochRecord>,
    /// The instances that the operator gave up last; with NOPaxos as soon as the session is
    /// *writing*.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
    /// E of each partition in the last active epoch, which is the position of its marker; `None`
    /// before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Vec<Instance>>,
}

impl View {
    /// The largest number of epochs in a view.
    pub const MAX_EPOCHS: usize = 32;

    /// Returns a view that is older than every other one.
    pub fn nothing(group: GroupId) -> View {
        View {
            group,
            version: 0,
            epochs: Vec::new(),
            given_up: None,
            begins: None,
        }
    }

    /// Returns a value that is larger in a newer view. Epochs are issued once, but versions start
    /// again in a store that was replaced by an older copy. [E-NEWER]
    pub fn age(&self) -> (Epoch, Option<EpochState>, u64) {
        let last = self.epochs.last();
        let epoch = last.map_or(0, |e| e.epoch);
        (epoch, last.map(|e| e.state), self.version)
    }

    /// Returns the epochs that may have votes, which leaves out those that were only issued.
    /// [E-ONE]
    pub fn begun_epochs(&self) -> impl DoubleEndedIterator<Item = &EpochRecord> {
        let begun = |e: &&EpochRecord| e.state >= EpochState::Writing;
        self.epochs.iter().filter(begun)
    }

    /// Returns whether the epochs ascend and each has the hash of its configuration.
    pub fn is_sound(&self) -> bool {
        are_sound(&self.epochs)
    }

    /// Returns the sessions in a partition, for a replica there, or `None` if an epoch isn't a
    /// session.
    pub fn sessions(&self, pid: PartitionId) -> Option<Vec<Session>> {
        self.epochs.iter().map(|e| e.session(pid)).collect()
    }

    /// Returns the last epoch if it is active. Recovery and reads are allowed in it only.
    pub fn active(&self) -> Option<&EpochRecord> {
        self.epochs.last().filter(|e| e.state == EpochState::Active)
    }

    /// Returns the last epoch that became active, and where it begins in a partition.
    pub fn begins(&self, pid: PartitionId) -> Option<(Epoch, Instance)> {
        let mut newest_first = self.epochs.iter().rev();
        let active = newest_first.find(|e| e.state == EpochState::Active)?;
        let at = self.begins.as_ref()?.get(usize::from(pid))?;
        Some((active.epoch, *at))
    }

    /// Returns the last epoch that may be writing. It has the promises of a quorum, so a leader of
    /// an earlier epoch can decide nothing more and its clients should look for the next leader; an
    /// epoch that was only issued stops no leader. [L-RETIRE]
    pub fn begun(&self) -> Option<Epoch> {
        self.begun_epochs().next_back().map(|e| e.epoch)
    }
}

/// Returns whether the epochs ascend, each with the hash of its configuration.
pub(crate) fn are_sound(epochs: &[EpochRecord]) -> bool {
    let ascend = epochs.windows(2).all(|w| w[0].epoch < w[1].epoch);
    ascend && epochs.iter().all(EpochRecord::is_whole)
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Controller → node, on change and periodically; any node → asker.
    View(View),
    /// Anyone → controller or node: answer with the newest [`View`] that you have.
    ViewRequest {
        /// The group.
        group: GroupId,
    },
    /// Controller whose store is made anew → node: which view is the newest that you ever had?
    /// [E-REBUILD]
    RecordRequest {
        /// The group.
        group: GroupId,
    },
    /// Node → controller: this one.
    Record {
        /// The node that answers.
        node: NodeId,
        /// The view, of which acceptors and replicas keep a copy on their disks.
        view: View,
    },
    /// Controller → leader: stamp in the base round of `epoch`. It is accepted once, only for a
    /// larger round, and only by the memory that it names.
    ProgramLeader {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// Boot nonce of the leader meant.
        nonce: u64,
        /// Next instance of each partition.
        next: Vec<Instance>,
        /// Trim point of each partition.
        trimmed: Vec<Instance>,
        /// Instances that may be open at once, at most the acceptors' slots.
        window: u64,
        /// The acceptors, ascending.
        acceptors: Vec<NodeId>,
        /// f: f+1 of them that have promised a later epoch retire the leader.
        f: u8,
        /// The replicas whose TRIM counts, ascending.
        replicas: Vec<NodeId>,
        /// g: TRIM needs g+1 of them.
        g: u8,
    },
    /// Controller → acceptor: be a member. This never erases anything, and a repeated one changes
    /// nothing.
    EnableAcceptor {
        /// The group.
        group: GroupId,
        /// The epoch; its base round becomes the floor.
        epoch: Epoch,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// Trim point of each partition.
        trim: Vec<Instance>,
        /// `end` of each partition.
        end: Vec<Instance>,
        /// The replicas whose TRIM counts, ascending.
        replicas: Vec<NodeId>,
        /// g: TRIM needs g+1 of them.
        g: u8,
    },
    /// Controller → acceptor whose memory was read from disk: were you at this earlier start?
    EarlierStartRequest {
        /// The group.
        group: GroupId,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// The start meant ([`Start::number`]).
        start: u64,
        /// The last start of this memory that the controller knows of.
        earlier: u64,
    },
    /// Acceptor → controller: the answer, which stays true however late it comes.
    EarlierStart {
        /// The group.
        group: GroupId,
        /// The acceptor that answers.
        node: NodeId,
        /// The nonce of the request.
        nonce: u64,
        /// The start of the request.
        start: u64,
        /// The earlier start of the request.
        earlier: u64,
        /// True if the memory was at that start; an old copy wasn't at a newer one.
        known: bool,
    },
    /// Controller → acceptor whose memory was read from disk: it was compared with what it had
    /// shown; continue.
    ResumeAcceptor {
        /// The group.
        group: GroupId,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// The start meant ([`Start::number`]).
        start: u64,
    },
    /// Controller → acceptor whose memory was read from disk: it went backwards. Set it aside, and
    /// begin with an empty one.
    DiscardMemory {
        /// The group.
        group: GroupId,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// The start meant ([`Start::number`]).
        start: u64,
    },
    /// Repairing host → controller: give this process start a lane in `epoch`.
    LaneRequest {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// The node that asks.
        node: NodeId,
        /// Drawn at random at this process start. The same (epoch, nonce) always gets the same
        /// lane.
        nonce: u64,
    },
    /// Controller → repairing host: the lane.
    Lane {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// The nonce of the request.
        nonce: u64,
        /// The lane.
        lane: u8,
    },
    /// Replica → controller: give my disk a number, at each start of the process.
    IncarnationRequest {
        /// The group.
        group: GroupId,
        /// The node that asks.
        node: NodeId,
        /// Drawn at random at this process start. The same nonce always gets the same number.
        nonce: u64,
    },
    /// Controller → replica: the number.
    Incarnation {
        /// The group.
        group: GroupId,
        /// The nonce of the request.
        nonce: u64,
        /// A number that is larger than those of all earlier disks of this replica.
        incarnation: u64,
    },
    /// Controller → replica, after more than f memories were lost: stop execution in all partitions
    /// until this epoch or a later one is active. The replica answers once everything executed is
    /// durable. [G-STOP]
    StopExecution {
        /// The group.
        group: GroupId,
        /// The epoch, which was issued only for this order and gets no votes.
        epoch: Epoch,
    },
    /// Replica → controller: execution is stopped at these positions.
    ExecutionStopped {
        /// The group.
        group: GroupId,
        /// The replica that answers.
        node: NodeId,
        /// The boot nonce of this process, as in its PROBE_ACK.
        nonce: u64,
        /// The start of this process's memory; 0 if the memory isn't stored.
        #[serde(default)]
        start: u64,
        /// The epoch of the order.
        epoch: Epoch,
        /// The next instance of each partition.
        next: Vec<Instance>,
    },
    /// Leader of a view → controller: f+1 members have the log with which the view began. It is
    /// repeated until a view of the store shows the session as active, and stays true however late
    /// it comes. [F-REPORT]
    ViewStarted {
        /// The group.
        group: GroupId,
        /// The node that reports, which is the view's leader.
        node: NodeId,
        /// The boot nonce.
        nonce: u64,
        /// The partition.
        pid: PartitionId,
        /// The digest of the view's session ([`Session::digest`]).
        session: u64,
        /// The view.
        view: u32,
        /// The end of its log when the view began.
        end: Instance,
        /// The members that have that log, including the leader.
        members: Vec<MemberRecord>,
    },
    /// Replica → controller: my state contradicts the log of a session, which a later session may
    /// settle. It is repeated until a later session exists. [F-NEED]
    SessionWanted {
        /// The group.
        group: GroupId,
        /// The node that reports.
        node: NodeId,
        /// The boot nonce.
        nonce: u64,
        /// The session.
        epoch: Epoch,
    },
    /// Client or operator → controller: change the leader.
    Failover {
        /// The group.
        group: GroupId,
        /// The epoch whose leader must go; if another epoch is in force, nothing is done.
        epoch: Epoch,
        /// The node that must lead; `None` means the next one that is alive.
        to: Option<NodeId>,
        /// True for an operator's order, which is obeyed at once; a client's suspicion is checked
        /// by PROBE first.
        forced: bool,
        /// The operator's override when more than f acceptors have lost their memory: continue from
        /// what the replicas executed, and lose what only the acceptors knew.
        accept_data_loss: bool,
    },
    /// Controller → sender of a [`Message::Failover`] with `forced`: the result.
    FailoverReply {
        /// The group.
        group: GroupId,
        /// The new epoch, or why there is none.
        result: Result<Epoch, String>,
    },
    /// Command line → any node: send a part of your status document.
    StatusRequest {
        /// Drawn at random by the asker. All parts under one id are of one document.
        id: u64,
        /// The number of the part, from 0.
        part: u32,
    },
    /// Command line → controller: send a part of the document with the last events. It is answered
    /// like [`Message::StatusRequest`].
    EventsRequest {
        /// Drawn at random by the asker.
        id: u64,
        /// The number of the part, from 0.
        part: u32,
        /// Only events with larger numbers than this are asked for.
        after: u64,
        /// The largest number of events; the controller may send fewer.
        limit: u32,
    },
    /// Node → command line: a part of a JSON document (schema in docs/operations.md).
    Status {
        /// The id of the request.
        id: u64,
        /// The number of the part; the last one if a later one was asked for.
        part: u32,
        /// The number of parts.
        parts: u32,
        /// FNV-1a, 64 bits, over the whole document.
        sum: u64,
        /// The part, at most 16 KiB.
        json: String,
    },
    /// Command line → replica: send your positions, and the digest of your contents there.
    DigestRequest {
        /// The group.
        group: GroupId,
    },
    /// Replica → command line: the next instance and the SHA-256 in hex of each partition.
    Digest {
        /// The group.
        group: GroupId,
        /// The entries of the partitions in order.
        partitions: Vec<(Instance, String)>,
    },
    /// Command line → replica that waits before a command on which its program has crashed: treat
    /// the command as having no effect, although a silent replica may have executed it. It is
    /// repeated until its effect shows. [X-VOID]
    Skip {
        /// The group.
        group: GroupId,
        /// The partition.
        pid: PartitionId,
        /// The instance of the command.
        instance: Instance,
    },
    /// Replica → any node: what does your wall clock show?
    ClockRequest {
        /// Drawn at random for this question.
        nonce: u64,
    },
    /// Node → the replica that asked.
    Clock {
        /// The number of the question.
        nonce: u64,
        /// The wall clock, in milliseconds since 1970.
        ms: u64,
    },
    /// About changes of the members by command.
    Members(crate::MembersMessage),
    /// Controller → controller: votes on what they store together. [E-BALLOT]
    Register(Box<crate::register::RegisterMessage>),
    /// Command line → any node: store your state and end.
    Stop,
    /// Node → command line: the state is stored, and the process ends.
    Stopping {
        /// The node that ends.
        node: NodeId,
    },
    /// Node → asker: repeat your message with this number, which proves that you receive packets at
    /// your address. [E-CHALLENGE]
    Challenge {
        /// Drawn by the node for this address; it is valid for a minute or two.
        number: u64,
    },
}

impl Message {
    /// Returns the contents of a [`Message::ProgramLeader`], with the group.
    pub fn program(&self) -> Option<(GroupId, Program)> {
        let Message::ProgramLeader {
            group,
            epoch,
            nonce,
            next,
            trimmed,
            window,
            acceptors,
            f,
            replicas,
            g,
        } = self
        else {
            return None;
        };
        let program = Program {
            epoch: *epoch,
            nonce: *nonce,
            next: next.clone(),
            trimmed: trimmed.clone(),
            window: *window,
            acceptors: acceptors.clone(),
            f: *f,
            replicas: replicas.clone(),
            g: *g,
        };
        Some((*group, program))
    }

    /// Returns the report of a replica that has begun a view as its leader
    /// ([`unreported`](paxos::nopaxos::Replica::unreported)).
    pub fn view_started(
        group: GroupId,
        from: Member,
        pid: PartitionId,
        started: &Started,
    ) -> Message {
        Message::ViewStarted {
            group,
            node: from.node,
            nonce: from.nonce,
            pid,
            session: started.session,
            view: started.view.0,
            end: started.end,
            members: started.members.iter().map(member_record).collect(),
        }
    }

    /// Returns the contents of a [`Message::ViewStarted`]: partition, leader, and view.
    pub fn started(&self) -> Option<(PartitionId, Member, Started)> {
        let Message::ViewStarted {
            node,
            nonce,
            pid,
            session,
            view,
            end,
            members,
            ..
        } = self
        else {
            return None;
        };
        let started = Started {
            session: *session,
            view: Round(*view),
            end: *end,
            members: members.iter().map(member_of).collect(),
        };
        Some((*pid, member_of(&(*node, *nonce)), started))
    }

    /// Returns the contents of a [`Message::EarlierStartRequest`].
    pub fn earlier_start_request(&self) -> Option<EarlierStartRequest> {
        match *self {
            Message::EarlierStartRequest {
                group,
                nonce,
                start,
                earlier,
            } => Some(EarlierStartRequest {
                group,
                nonce,
                start: Start::from_number(start)?,
                earlier: Start::from_number(earlier)?,
            }),
            _ => None,
        }
    }

    /// Returns the contents of a [`Message::ResumeAcceptor`]: the group, and the memory and start
    /// that may continue.
    pub fn resume(&self) -> Option<(GroupId, u64, Start)> {
        match *self {
            Message::ResumeAcceptor {
                group,
                nonce,
                start,
            } => Some((group, nonce, Start::from_number(start)?)),
            _ => None,
        }
    }

    /// Returns the contents of a [`Message::DiscardMemory`]: the group, and the memory and start to
    /// discard.
    pub fn discard(&self) -> Option<(GroupId, u64, Start)> {
        match *self {
            Message::DiscardMemory {
                group,
                nonce,
                start,
            } => Some((group, nonce, Start::from_number(start)?)),
            _ => None,
        }
    }

    /// Returns the contents of a [`Message::EnableAcceptor`], with the group.
    pub fn enable(&self) -> Option<(GroupId, Enable)> {
        let Message::EnableAcceptor {
            group,
            epoch,
            nonce,
            trim,
            end,
            replicas,
            g,
        } = self
        else {
            return None;
        };
        let enable = Enable {
            epoch: *epoch,
            nonce: *nonce,
            trim: trim.clone(),
            end: end.clone(),
            replicas: replicas.clone(),
            g: *g,
        };
        Some((*group, enable))
    }
}

#[cfg(test)]
mod tests;
