// SPDX-License-Identifier: Apache-2.0
//! What is told of one epoch or session.

use paxos::nopaxos::{Session, view};
use paxos::{Configuration, Epoch, Instance, Member, NodeId, PartitionId, Round, nopaxos};
use serde::{Deserialize, Serialize};

/// The state of an epoch in the store. It moves only forward, and only while no later epoch exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum EpochState {
    /// The number is taken.
    Issued,
    /// The epoch's candidate may be writing in its base round.
    Writing,
    /// The epoch has everything that earlier epochs may have chosen; its leader stamps.
    Active,
}

/// A member as (node, boot nonce).
pub type MemberRecord = (NodeId, u64);

/// One epoch as it is stored and told to the nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The epoch.
    pub epoch: Epoch,
    /// The state of the epoch.
    pub state: EpochState,
    /// The stamping device.
    pub leader: MemberRecord,
    /// The acceptors, ascending.
    pub acceptors: Vec<MemberRecord>,
    /// How many acceptors may fail.
    pub f: u8,
    /// The replicas in ascending order.
    pub replicas: Vec<NodeId>,
    /// How many replicas may fail without stopping TRIM.
    pub g: u8,
    /// In a session only: the index in `acceptors` of the replica that leads partition 0 first.
    /// `leader` is the session's sequencer, `acceptors` are its replicas as memories, `replicas`
    /// are the same nodes, and g = f.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<u16>,
    /// In the last active session only: the view of each partition with which the session became
    /// active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<u32>,
    /// In a session in which an operator has accepted a loss only: where the log of each partition
    /// begins. No earlier session counts. [F-ANEW]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anew: Option<Vec<Instance>>,
    /// Hash of the configuration: FNV-1a, 64 bits, over `epoch` u32; `leader` u16, u64; `f` u8; the
    /// number of acceptors u8, each u16, u64; `g` u8; the number of replicas u8, each u16; for a
    /// session also `lead` u16, and `anew`, each u64; all big-endian. A node that remembers only
    /// this hash still notices when an epoch is told with another configuration.
    pub hash: u64,
}

impl EpochRecord {
    /// Returns the record of an epoch with this configuration.
    pub fn new(configuration: &Configuration, state: EpochState) -> EpochRecord {
        EpochRecord::of(configuration, None, state)
    }

    /// Returns the record of a sequencer's session, or of another epoch if `lead` is `None`.
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

    /// Returns the record of a session in which a loss is accepted.
    pub fn begun_anew(self, at: Vec<Instance>) -> EpochRecord {
        EpochRecord {
            hash: hash(&self.configuration(), self.lead, Some(&at)),
            anew: Some(at),
            ..self
        }
    }

    /// Returns whether the hash matches the configuration.
    pub fn is_whole(&self) -> bool {
        self.hash == hash(&self.configuration(), self.lead, self.anew.as_deref())
    }

    /// Returns the record as a session in a partition, if it is one. For a session before the last
    /// active one the store has forgotten the view by which it became active. Then none of its
    /// views is above that one, and replicas ask earlier sessions, too, which never are too few.
    /// [F-TOLD]
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

    /// Returns the configuration that this epoch fixes.
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

pub(super) fn member_record(member: &Member) -> MemberRecord {
    (member.node, member.nonce)
}

pub(super) fn member_of(&(node, nonce): &MemberRecord) -> Member {
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

/// Returns the FNV-1a hash with 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
