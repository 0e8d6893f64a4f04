// SPDX-License-Identifier: Apache-2.0
//! What controller, nodes, clients and the command line tell one another outside the data plane.
//!
//! Each travels in an [`Envelope`](crate::Envelope) (node `control` addresses). They may be lost,
//! repeated and reordered: each is idempotent and is sent again until its effect shows. Whether a
//! leader has been programmed or an acceptor enabled shows in its PROBE_ACK, so devices that answer
//! PROBE need no agent for that.

use crate::GivenUp;
use paxos::acceptor::Start;
use paxos::leader::Program;
use paxos::nopaxos::{self, Session, Started, view};
use paxos::{Configuration, Enable, Epoch, GroupId, Instance, Member, NodeId, PartitionId, Round};
use serde::{Deserialize, Serialize};

/// Where an epoch stands in the store. Moves forward only, and only while no later epoch exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum EpochState {
    /// The number is taken.
    Issued,
    /// Its candidate may be writing in its base round.
    Writing,
    /// It holds everything that earlier epochs may have chosen; its leader stamps.
    Active,
}

/// (node, boot nonce).
pub type MemberRecord = (NodeId, u64);

/// One epoch as stored and as told to the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch.
    pub epoch: Epoch,
    /// How far it got.
    pub state: EpochState,
    /// The stamping device.
    pub leader: MemberRecord,
    /// The acceptors, ascending.
    pub acceptors: Vec<MemberRecord>,
    /// Acceptors that may fail.
    pub f: u8,
    /// The replicas, ascending.
    pub replicas: Vec<NodeId>,
    /// Replicas that may fail without stopping TRIM.
    pub g: u8,
    /// Only of a session: who leads partition 0 first, a place in `acceptors`. `leader` is its sequencer, `acceptors`
    /// are its replicas as memories, `replicas` the same nodes, and g = f.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<u16>,
    /// Only of the last active session: the view of each partition by which it became so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<u32>,
    /// Only of a session in which an operator has accepted a loss: where the log of each partition begins. No session
    /// before it counts. [F-ANEW]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anew: Option<Vec<Instance>>,
    /// Hash of the configuration: FNV-1a, 64 bits, over `epoch` u32; `leader` u16, u64; `f` u8; the
    /// number of acceptors u8, each u16, u64; `g` u8; the number of replicas u8, each u16; of a session also `lead`
    /// u16, and `anew`, each u64; all of it big-endian. Whoever remembers only this still knows when an epoch is told otherwise.
    pub hash: u64,
}

impl EpochRecord {
    /// The record of an epoch with this configuration.
    pub fn new(configuration: &Configuration, state: EpochState) -> EpochRecord {
        EpochRecord::of(configuration, None, state)
    }

    /// The record of a session of a sequencer, or of another epoch if nobody leads first.
    pub fn of(configuration: &Configuration, lead: Option<u16>, state: EpochState) -> EpochRecord {
        EpochRecord {
            epoch: configuration.epoch,
            state,
            leader: member_record(&configuration.leader),
            acceptors: configuration.acceptors.iter().map(member_record).collect(),
            f: configuration.f,
            replicas: configuration.replicas.clone(),
            g: configuration.g,
            lead,
            by: Vec::new(),
            anew: None,
            hash: hash(configuration, lead, None),
        }
    }

    /// The record of a session in which a loss is accepted.
    pub fn begun_anew(self, at: Vec<Instance>) -> EpochRecord {
        EpochRecord {
            hash: hash(&self.configuration(), self.lead, Some(&at)),
            anew: Some(at),
            ..self
        }
    }

    /// Whether its hash is that of its configuration.
    pub fn is_whole(&self) -> bool {
        self.hash == hash(&self.configuration(), self.lead, self.anew.as_deref())
    }

    /// The session that it is in a partition, if it is one. Of a session before the last active one the store has
    /// forgotten by which view it became active: then none of its views is above that, and all ask the sessions before,
    /// too, which is never too few. [F-TOLD]
    pub fn session(&self, pid: PartitionId) -> Option<Session> {
        let configuration = self.configuration();
        let by = self.by.get(usize::from(pid)).copied().map(Round);
        Some(Session {
            number: self.epoch,
            sequencer: configuration.leader.node,
            nonce: configuration.leader.nonce,
            members: configuration.acceptors,
            f: configuration.f,
            lead: self.lead?,
            anew: self
                .anew
                .as_ref()
                .and_then(|anew| anew.get(usize::from(pid)).copied()),
            stage: match self.state {
                EpochState::Issued => nopaxos::Stage::Issued,
                EpochState::Writing => nopaxos::Stage::Writing,
                EpochState::Active => nopaxos::Stage::Active {
                    by: by.unwrap_or(view::last(self.epoch)),
                },
            },
        })
    }

    /// The configuration that this epoch fixes.
    pub fn configuration(&self) -> Configuration {
        Configuration {
            epoch: self.epoch,
            leader: member_of(&self.leader),
            acceptors: self.acceptors.iter().map(member_of).collect(),
            f: self.f,
            replicas: self.replicas.clone(),
            g: self.g,
        }
    }
}

fn member_record(member: &Member) -> MemberRecord {
    (member.node, member.nonce)
}

fn member_of(&(node, nonce): &MemberRecord) -> Member {
    Member { node, nonce }
}

fn hash(configuration: &Configuration, lead: Option<u16>, anew: Option<&[Instance]>) -> u64 {
    let mut bytes = configuration.epoch.to_be_bytes().to_vec();
    let member = |bytes: &mut Vec<u8>, member: &Member| {
        bytes.extend(member.node.to_be_bytes());
        bytes.extend(member.nonce.to_be_bytes());
    };
    member(&mut bytes, &configuration.leader);
    bytes.extend([configuration.f, configuration.acceptors.len() as u8]);
    let acceptors = configuration.acceptors.iter();
    acceptors.for_each(|acceptor| member(&mut bytes, acceptor));
    bytes.extend([configuration.g, configuration.replicas.len() as u8]);
    let replicas = configuration.replicas.iter();
    replicas.for_each(|replica| bytes.extend(replica.to_be_bytes()));
    bytes.extend(lead.map(u16::to_be_bytes).into_iter().flatten());
    let anew = anew.into_iter().flatten();
    bytes.extend(anew.flat_map(|at| at.to_be_bytes()));
    fnv(&bytes)
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What a node or a client needs to know of a group: its epochs, oldest first, at most
/// [`View::MAX_EPOCHS`] of them, always with the last active one and everything after it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct View {
    /// The group.
    pub group: GroupId,
    /// Grows with every change in the store. Tells which of two views is newer where their last epochs
    /// are the same ([`View::age`]).
    pub version: u64,
    /// The epochs.
    pub epochs: Vec<EpochRecord>,
    /// What the operator gave up last; with NOPaxos from *writing* on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
    /// E of each partition in the last active epoch, where its marker is; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<Vec<Instance>>,
}

impl View {
    /// How many epochs a view shows at most.
    pub const MAX_EPOCHS: usize = 32;

    /// Older than every view.
    pub fn nothing(group: GroupId) -> View {
        View {
            group,
            version: 0,
            epochs: Vec::new(),
            given_up: None,
            begins: None,
        }
    }

    /// Larger in a newer view. Epochs are issued once; versions count anew in a store that was replaced
    /// by an older copy. [E-NEWER]
    pub fn age(&self) -> (Epoch, Option<EpochState>, u64) {
        let last = self.epochs.last();
        let epoch = last.map_or(0, |e| e.epoch);
        (epoch, last.map(|e| e.state), self.version)
    }

    /// The epochs that may have votes. In one that was only issued there is nothing to count yet.
    /// [E-ONE]
    pub fn begun_epochs(&self) -> impl DoubleEndedIterator<Item = &EpochRecord> {
        let begun = |e: &&EpochRecord| e.state >= EpochState::Writing;
        self.epochs.iter().filter(begun)
    }

    /// Whether its epochs ascend, each as it was issued.
    pub fn is_sound(&self) -> bool {
        are_sound(&self.epochs)
    }

    /// Its sessions in a partition, for a replica there; none if an epoch of it isn't a session.
    pub fn sessions(&self, pid: PartitionId) -> Option<Vec<Session>> {
        self.epochs.iter().map(|e| e.session(pid)).collect()
    }

    /// The last epoch if it is active: the one in which recover and reads are allowed.
    pub fn active(&self) -> Option<&EpochRecord> {
        self.epochs.last().filter(|e| e.state == EpochState::Active)
    }

    /// The last epoch that became active, and where it begins in a partition.
    pub fn begins(&self, pid: PartitionId) -> Option<(Epoch, Instance)> {
        let mut newest_first = self.epochs.iter().rev();
        let active = newest_first.find(|e| e.state == EpochState::Active)?;
        let at = self.begins.as_ref()?.get(usize::from(pid))?;
        Some((active.epoch, *at))
    }

    /// The last epoch that may be writing: it has the promises of a quorum, so a leader of an
    /// earlier one can decide nothing more, and its clients should look for the next one. One that
    /// gets no further than issued stops nobody. [L-RETIRE]
    pub fn begun(&self) -> Option<Epoch> {
        self.begun_epochs().next_back().map(|e| e.epoch)
    }
}

/// Whether epochs ascend, each with the hash of its configuration.
pub(crate) fn are_sound(epochs: &[EpochRecord]) -> bool {
    let ascend = epochs.windows(2).all(|w| w[0].epoch < w[1].epoch);
    ascend && epochs.iter().all(EpochRecord::is_whole)
}

/// A [`Message::EarlierStartRequest`], read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlierStartRequest {
    /// The group.
    pub group: GroupId,
    /// Boot nonce of the memory meant.
    pub nonce: u64,
    /// The start meant.
    pub start: Start,
    /// The one asked for.
    pub earlier: Start,
}

impl EarlierStartRequest {
    /// What `node` answers.
    pub fn answer(&self, node: NodeId, known: bool) -> Message {
        Message::EarlierStart {
            group: self.group,
            node,
            nonce: self.nonce,
            start: self.start.number(),
            earlier: self.earlier.number(),
            known,
        }
    }
}

/// A control message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Controller → node, on change and periodically; any node → whoever asked.
    View(View),
    /// Anyone → controller or node: answer with the newest [`View`] you have.
    ViewRequest {
        /// The group.
        group: GroupId,
    },
    /// Controller → leader: stamp in the base round of `epoch`. Accepted once, only for a larger
    /// round, and only by the memory named.
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
    /// Controller → acceptor: be a member. Never erases; a repeated one changes nothing.
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
    /// Acceptor → controller. It stays true, however late it comes.
    EarlierStart {
        /// The group.
        group: GroupId,
        /// Who answers.
        node: NodeId,
        /// Of the request.
        nonce: u64,
        /// Of the request.
        start: u64,
        /// Of the request.
        earlier: u64,
        /// Whether the memory was at that start, as all newer ones than an old copy were.
        known: bool,
    },
    /// Controller → acceptor whose memory was read from disk: what this start of it shows was compared
    /// with what it had shown before; go on.
    ResumeAcceptor {
        /// The group.
        group: GroupId,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// The start meant ([`Start::number`]).
        start: u64,
    },
    /// Controller → acceptor whose memory was read from disk: it went backwards. Put it aside, and
    /// begin with an empty one.
    DiscardMemory {
        /// The group.
        group: GroupId,
        /// Boot nonce of the memory meant.
        nonce: u64,
        /// The start meant ([`Start::number`]).
        start: u64,
    },
    /// Repairing host → controller: a lane for this process start in `epoch`.
    LaneRequest {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// The node that asks.
        node: NodeId,
        /// Drawn at random at this process start: the same (epoch, nonce) gets the same lane.
        nonce: u64,
    },
    /// Controller → repairing host.
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
    /// Replica → controller: a number for its disk, at each start of its process.
    IncarnationRequest {
        /// The group.
        group: GroupId,
        /// The node that asks.
        node: NodeId,
        /// Drawn at random at this process start: the same one gets the same number.
        nonce: u64,
    },
    /// Controller → replica.
    Incarnation {
        /// The group.
        group: GroupId,
        /// The nonce of the request.
        nonce: u64,
        /// Larger than all that this replica's disks had before.
        incarnation: u64,
    },
    /// Controller → replica, after more than f memories were lost: execute nothing more, in any partition, until
    /// this epoch or a later one is active. Answered once all that was executed is durable. [G-STOP]
    StopExecution {
        /// The group.
        group: GroupId,
        /// The epoch, which was issued for this and stays without votes.
        epoch: Epoch,
    },
    /// Replica → controller: it executes nothing, and stands there.
    ExecutionStopped {
        /// The group.
        group: GroupId,
        /// Who answers.
        node: NodeId,
        /// Of this process, as in its PROBE_ACK.
        nonce: u64,
        /// Of the order.
        epoch: Epoch,
        /// The next instance of each partition.
        next: Vec<Instance>,
    },
    /// Leader of a view → controller: f+1 members have the log with which it began. Said again until the view of the
    /// store shows the session as active; it stays true, however late it comes. [F-REPORT]
    ViewStarted {
        /// The group.
        group: GroupId,
        /// Who says so: the view's leader.
        node: NodeId,
        /// Its boot nonce.
        nonce: u64,
        /// The partition.
        pid: PartitionId,
        /// The digest of the view's session ([`Session::digest`]).
        session: u64,
        /// The view.
        view: u32,
        /// Where its log ended when it began.
        end: Instance,
        /// Who has that log, the leader included.
        members: Vec<MemberRecord>,
    },
    /// Replica → controller: what it has contradicts the log of a session, which a later one may settle. Said again
    /// until a later session is there. [F-NEED]
    SessionWanted {
        /// The group.
        group: GroupId,
        /// Who says so.
        node: NodeId,
        /// Its boot nonce.
        nonce: u64,
        /// The session.
        epoch: Epoch,
    },
    /// Client or operator → controller: change the leader.
    Failover {
        /// The group.
        group: GroupId,
        /// The epoch whose leader is to go; another one in force makes this a no-op.
        epoch: Epoch,
        /// The node that is to lead, or the next one alive.
        to: Option<NodeId>,
        /// An operator's order is obeyed at once; a client's suspicion is checked by PROBE first.
        forced: bool,
        /// The operator's override when more than f acceptors lost their memory: go on from what
        /// the replicas executed, and lose what only the acceptors knew.
        accept_data_loss: bool,
    },
    /// Controller → the sender of a [`Message::Failover`] with `forced`: what came of it.
    FailoverReply {
        /// The group.
        group: GroupId,
        /// The new epoch, or why there is none.
        result: Result<Epoch, String>,
    },
    /// Command line → any node: a part of your status document.
    StatusRequest {
        /// Drawn at random by the asker. The node keeps the document under it for a while, so that all
        /// parts are of one document.
        id: u64,
        /// Which part, from 0.
        part: u32,
    },
    /// Node → command line: a part of a JSON document (schema in docs/operations.md).
    Status {
        /// The id of the request.
        id: u64,
        /// Which part: the last one where a later one was asked for.
        part: u32,
        /// How many there are.
        parts: u32,
        /// FNV-1a, 64 bits, over the whole document.
        sum: u64,
        /// The part, at most 16 KiB.
        json: String,
    },
    /// Command line → replica: where do you stand, and what is the digest of your contents there?
    DigestRequest {
        /// The group.
        group: GroupId,
    },
    /// Replica → command line: one (next instance, SHA-256 in hex) a partition.
    Digest {
        /// The group.
        group: GroupId,
        /// By partition.
        partitions: Vec<(Instance, String)>,
    },
    /// Command line → replica that waits in front of a command of which its program has died: it is to take no effect,
    /// though a silent replica may have executed it. Repeated until its effect shows. [X-VOID]
    Skip {
        /// The group.
        group: GroupId,
        /// The partition.
        pid: PartitionId,
        /// In which instance the command lies.
        instance: Instance,
    },
    /// Command line → any node: store what you have and end.
    Stop,
    /// Node → command line: stored; ending.
    Stopping {
        /// Who.
        node: NodeId,
    },
    /// Node → asker: say it again with this number, which shows that you get what is sent to your address.
    /// [E-CHALLENGE]
    Challenge {
        /// Drawn by the node for this address; it counts for a minute or two.
        number: u64,
    },
}

impl Message {
    /// What a [`Message::ProgramLeader`] tells a leader, and the group.
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

    /// What a replica tells of a view that it has begun as its leader ([`nopaxos::Replica::unreported`]).
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

    /// What a [`Message::ViewStarted`] says: partition, leader, and view.
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

    /// What a [`Message::EarlierStartRequest`] asks.
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

    /// Which start of which memory a [`Message::ResumeAcceptor`] lets go on, and the group.
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

    /// Which start of which memory a [`Message::DiscardMemory`] gives up, and the group.
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

    /// What a [`Message::EnableAcceptor`] tells an acceptor, and the group.
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
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_configuration_is_the_same_for_ever() {
        let member = |node, nonce| Member { node, nonce };
        let configuration = Configuration {
            epoch: 3,
            leader: member(1, 11),
            acceptors: vec![member(3, 13), member(4, 14), member(5, 15)],
            f: 1,
            replicas: vec![6, 7, 8],
            g: 1,
        };
        let record = EpochRecord::new(&configuration, EpochState::Issued);
        assert_eq!(record.hash, 0x784e_59c1_93ca_f5c7);
        assert_eq!(record.configuration(), configuration);
        assert!(record.is_whole());
        let mut others = vec![record.clone(); 8];
        others[0].epoch = 4;
        others[1].leader.1 = 12;
        others[2].acceptors[1].1 = 13;
        others[3].acceptors[2].0 = 6;
        others[4].f = 2;
        others[5].replicas.pop();
        others[6].g = 0;
        others[7].hash += 1;
        assert!(others.iter().all(|other| !other.is_whole()));
        let session = EpochRecord::of(&configuration, Some(2), EpochState::Issued);
        assert_eq!(session.hash, 0x30e8_79a3_8efe_d545);
        assert!(session.is_whole());
        let other = EpochRecord {
            lead: Some(1),
            ..session
        };
        assert!(!other.is_whole());
    }

    /// [F-TOLD]
    #[test]
    fn a_record_of_a_session_tells_each_partition_its_view() {
        let configuration = Configuration {
            epoch: 3,
            leader: member_of(&(90, 9)),
            acceptors: [(1, 11), (2, 12), (3, 13)].iter().map(member_of).collect(),
            f: 1,
            replicas: vec![1, 2, 3],
            g: 1,
        };
        let epoch = EpochRecord::new(&configuration, EpochState::Active);
        assert_eq!(epoch.session(0), None, "it has acceptors");
        let mut record = EpochRecord::of(&configuration, Some(2), EpochState::Active);
        let by = |record: &EpochRecord, pid| match record.session(pid).map(|s| s.stage) {
            Some(nopaxos::Stage::Active { by }) => by,
            other => panic!("{other:?}"),
        };
        assert_eq!(by(&record, 0), view::last(3), "it is forgotten");
        record.by = vec![view::first(3).0, view::first(3).0 + 1];
        assert_eq!(by(&record, 1), Round(view::first(3).0 + 1));
        let session = record.session(0).unwrap();
        assert_eq!(
            (session.number, session.sequencer, session.lead),
            (3, 90, 2)
        );
        assert_eq!(session.members, configuration.acceptors);
    }

    /// [F-REPORT]
    #[test]
    fn what_a_leader_reports_is_read_as_it_was_said() {
        let started = Started {
            session: 99,
            view: view::first(7),
            end: 12,
            members: vec![member_of(&(1, 11)), member_of(&(3, 13))],
        };
        let message = Message::view_started(4, member_of(&(1, 11)), 2, &started);
        assert_eq!(message.started(), Some((2, member_of(&(1, 11)), started)));
        assert_eq!(Message::Stop.started(), None);
    }
}
