// SPDX-License-Identifier: Apache-2.0
//! The types of messages.

use super::Flags;

/// The `msgtype` field. Types from 12 on belong to NOPaxos.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the table in the module's documentation says what each one does
pub enum MsgType {
    Request = 0,
    Phase1a = 1,
    Phase1b = 2,
    Phase2a = 3,
    Phase2b = 4,
    Deliver = 5,
    Reply = 6,
    Reject = 7,
    Query = 8,
    Trim = 9,
    Probe = 10,
    ProbeAck = 11,
    Ordered = 12,
    Ack = 13,
    GapRequest = 14,
    GapReply = 15,
    GapCommit = 16,
    GapCommitRep = 17,
    ViewChangeReq = 18,
    ViewChange = 19,
    StartView = 20,
    StartViewRep = 21,
    SyncPrepare = 22,
    SyncRep = 23,
    SyncCommit = 24,
    Read = 25,
}

impl MsgType {
    /// All types, in the order of their numbers.
    pub const ALL: [MsgType; 26] = [
        MsgType::Request,
        MsgType::Phase1a,
        MsgType::Phase1b,
        MsgType::Phase2a,
        MsgType::Phase2b,
        MsgType::Deliver,
        MsgType::Reply,
        MsgType::Reject,
        MsgType::Query,
        MsgType::Trim,
        MsgType::Probe,
        MsgType::ProbeAck,
        MsgType::Ordered,
        MsgType::Ack,
        MsgType::GapRequest,
        MsgType::GapReply,
        MsgType::GapCommit,
        MsgType::GapCommitRep,
        MsgType::ViewChangeReq,
        MsgType::ViewChange,
        MsgType::StartView,
        MsgType::StartViewRep,
        MsgType::SyncPrepare,
        MsgType::SyncRep,
        MsgType::SyncCommit,
        MsgType::Read,
    ];

    /// Returns the type with this number.
    pub const fn from_u8(n: u8) -> Option<MsgType> {
        if (n as usize) < Self::ALL.len() {
            Some(Self::ALL[n as usize])
        } else {
            None
        }
    }

    /// Returns the name in scripts, traces and `status`.
    pub const fn name(self) -> &'static str {
        match self {
            MsgType::Request => "REQUEST",
            MsgType::Phase1a => "PHASE1A",
            MsgType::Phase1b => "PHASE1B",
            MsgType::Phase2a => "PHASE2A",
            MsgType::Phase2b => "PHASE2B",
            MsgType::Deliver => "DELIVER",
            MsgType::Reply => "REPLY",
            MsgType::Reject => "REJECT",
            MsgType::Query => "QUERY",
            MsgType::Trim => "TRIM",
            MsgType::Probe => "PROBE",
            MsgType::ProbeAck => "PROBE_ACK",
            MsgType::Ordered => "ORDERED",
            MsgType::Ack => "ACK",
            MsgType::GapRequest => "GAP_REQUEST",
            MsgType::GapReply => "GAP_REPLY",
            MsgType::GapCommit => "GAP_COMMIT",
            MsgType::GapCommitRep => "GAP_COMMIT_REP",
            MsgType::ViewChangeReq => "VIEW_CHANGE_REQ",
            MsgType::ViewChange => "VIEW_CHANGE",
            MsgType::StartView => "START_VIEW",
            MsgType::StartViewRep => "START_VIEW_REP",
            MsgType::SyncPrepare => "SYNC_PREPARE",
            MsgType::SyncRep => "SYNC_REP",
            MsgType::SyncCommit => "SYNC_COMMIT",
            MsgType::Read => "READ",
        }
    }

    /// Returns the type with this name.
    pub fn from_name(name: &str) -> Option<MsgType> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Returns true if only nodes send messages of this type. Clients send only commands, whose
    /// sender field means nothing.
    #[inline]
    pub const fn is_of_nodes(self) -> bool {
        !matches!(self, MsgType::Request | MsgType::Read)
    }

    /// Returns the flags that a message of this type may carry besides the tag.
    pub const fn allowed_flags(self) -> Flags {
        match self {
            MsgType::Request | MsgType::Ordered => Flags(Flags::MULTI.0 | Flags::PACKED.0),
            MsgType::Phase1a | MsgType::Query => Flags::RANGE,
            MsgType::Phase1b => {
                Flags(Flags::RANGE.0 | Flags::NOOP.0 | Flags::MULTI.0 | Flags::PACKED.0)
            }
            MsgType::Phase2a | MsgType::Phase2b | MsgType::Deliver | MsgType::GapReply => {
                Flags(Flags::NOOP.0 | Flags::MULTI.0 | Flags::PACKED.0)
            }
            MsgType::Reply => Flags::PACKED,
            MsgType::Reject
            | MsgType::Trim
            | MsgType::Probe
            | MsgType::ProbeAck
            | MsgType::Ack
            | MsgType::GapRequest
            | MsgType::GapCommit
            | MsgType::GapCommitRep
            | MsgType::ViewChangeReq
            | MsgType::ViewChange
            | MsgType::StartView
            | MsgType::StartViewRep
            | MsgType::SyncPrepare
            | MsgType::SyncRep
            | MsgType::SyncCommit
            | MsgType::Read => Flags(0),
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < MsgType::ALL.len() {
        assert!(MsgType::ALL[i] as usize == i);
        i += 1;
    }
};
