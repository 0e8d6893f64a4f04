// SPDX-License-Identifier: Apache-2.0
//! The reasons why a packet is dropped or rejected.
//!
//! One list serves the Rust roles, the XDP counters, and P4 later; `wirepaxos status` shows the
//! counts under these names. REJECT has the numbers on the wire, so append new ones and never
//! renumber.

/// A named reason. Reasons that are marked *answered* travel back in a REJECT; the others are only
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reason {
    /// The datagram is shorter than header and tag.
    Truncated = 1,
    /// `version` is not 1.
    BadVersion = 2,
    /// `msgtype` is not in the list of types.
    UnknownType = 3,
    /// Header, tag and value don't fill the datagram exactly.
    BadLength = 4,
    /// The packet has a flag that its type can't have.
    BadFlags = 5,
    /// The packet belongs to another cluster.
    WrongCluster = 6,
    /// This node has no such group.
    UnknownGroup = 7,
    /// This node has no such partition.
    UnknownPartition = 8,
    /// The sender is no node that may send this.
    UnknownSender = 9,
    /// The value is larger than the configured maximum.
    ValueTooLarge = 10,
    /// A structured value isn't well-formed.
    BadValue = 11,
    /// The message has no round, or one that it can't have.
    BadRound = 12,
    /// Client or request is 0 though it may not be, or not 0 though it must be.
    BadSession = 13,
    /// This role doesn't take such a message.
    NotForRole = 14,
    /// The acceptor isn't a member: its memory is new and not yet enabled by an epoch.
    Stranger = 15,
    /// *Answered:* the leader isn't programmed, or knows that a later epoch exists.
    NotLeader = 16,
    /// *Answered:* the instance lies below the trim point, or the slot holds a later one.
    Trimmed = 17,
    /// *Answered:* the instance lies beyond the window.
    Window = 18,
    /// *Answered:* a higher round was promised.
    Preempted = 19,
    /// Another value has an equal round, which is impossible if all rules hold. This raises an
    /// alarm.
    Conflict = 20,
    /// The round or the instance is older than the known one.
    Stale = 21,
    /// The packet was counted before.
    Duplicate = 22,
    /// The configuration of the round's epoch isn't known here.
    UnknownEpoch = 23,
    /// The packet answers a question that isn't open.
    Unexpected = 24,
    /// The UDP checksum is wrong.
    BadChecksum = 25,
    /// The slot was locked by another CPU.
    Busy = 26,
    /// There is no room here now, and the sender tries again.
    Full = 27,
    /// The acceptor's memory was read from disk, and the controller hasn't compared it yet.
    Restarted = 28,
    /// The packet names a node as its sender but doesn't come from that node's address.
    ForeignAddress = 29,
    /// The packet belongs to another session of the sequencer than the receiver listens to.
    OldSession = 30,
    /// The replica is changing its view, or is no member of the session.
    NotNormal = 31,
    /// The message belongs to another view than the replica's.
    WrongView = 32,
    /// The replica's log has no room, since it waits for a checkpoint.
    LogFull = 33,
    /// The packet has no tag although it must have one.
    Unsigned = 34,
    /// The packet is signed with a key, or in a way, that isn't known here.
    UnknownKey = 35,
    /// The tag's `mac` doesn't fit the header and the tag under the key that it names.
    BadMac = 36,
    /// The tag's `digest` doesn't fit the value.
    BadDigest = 37,
    /// A client has signed a packet that only nodes may send.
    ForeignKey = 38,
    /// The counter of a REQUEST was seen before, or is older than the remembered ones.
    Replayed = 39,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 39] = [
        Reason::Truncated,
        Reason::BadVersion,
        Reason::UnknownType,
        Reason::BadLength,
        Reason::BadFlags,
        Reason::WrongCluster,
        Reason::UnknownGroup,
        Reason::UnknownPartition,
        Reason::UnknownSender,
        Reason::ValueTooLarge,
        Reason::BadValue,
        Reason::BadRound,
        Reason::BadSession,
        Reason::NotForRole,
        Reason::Stranger,
        Reason::NotLeader,
        Reason::Trimmed,
        Reason::Window,
        Reason::Preempted,
        Reason::Conflict,
        Reason::Stale,
        Reason::Duplicate,
        Reason::UnknownEpoch,
        Reason::Unexpected,
        Reason::BadChecksum,
        Reason::Busy,
        Reason::Full,
        Reason::Restarted,
        Reason::ForeignAddress,
        Reason::OldSession,
        Reason::NotNormal,
        Reason::WrongView,
        Reason::LogFull,
        Reason::Unsigned,
        Reason::UnknownKey,
        Reason::BadMac,
        Reason::BadDigest,
        Reason::ForeignKey,
        Reason::Replayed,
    ];

    /// Returns the reason with this number.
    pub fn from_u16(n: u16) -> Option<Reason> {
        Self::ALL.get((n as usize).checked_sub(1)?).copied()
    }

    /// Returns the name in counters, scripts and `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Truncated => "truncated",
            Reason::BadVersion => "bad_version",
            Reason::UnknownType => "unknown_type",
            Reason::BadLength => "bad_length",
            Reason::BadFlags => "bad_flags",
            Reason::WrongCluster => "wrong_cluster",
            Reason::UnknownGroup => "unknown_group",
            Reason::UnknownPartition => "unknown_partition",
            Reason::UnknownSender => "unknown_sender",
            Reason::ValueTooLarge => "value_too_large",
            Reason::BadValue => "bad_value",
            Reason::BadRound => "bad_round",
            Reason::BadSession => "bad_session",
            Reason::NotForRole => "not_for_role",
            Reason::Stranger => "stranger",
            Reason::NotLeader => "not_leader",
            Reason::Trimmed => "trimmed",
            Reason::Window => "window",
            Reason::Preempted => "preempted",
            Reason::Conflict => "conflict",
            Reason::Stale => "stale",
            Reason::Duplicate => "duplicate",
            Reason::UnknownEpoch => "unknown_epoch",
            Reason::Unexpected => "unexpected",
            Reason::BadChecksum => "bad_checksum",
            Reason::Busy => "busy",
            Reason::Full => "full",
            Reason::Restarted => "restarted",
            Reason::ForeignAddress => "foreign_address",
            Reason::OldSession => "old_session",
            Reason::NotNormal => "not_normal",
            Reason::WrongView => "wrong_view",
            Reason::LogFull => "log_full",
            Reason::Unsigned => "unsigned",
            Reason::UnknownKey => "unknown_key",
            Reason::BadMac => "bad_mac",
            Reason::BadDigest => "bad_digest",
            Reason::ForeignKey => "foreign_key",
            Reason::Replayed => "replayed",
        }
    }

    /// Returns the reason with this name.
    pub fn from_name(name: &str) -> Option<Reason> {
        Self::ALL.into_iter().find(|r| r.name() == name)
    }
}

const _: () = {
    let mut i = 0;
    while i < Reason::ALL.len() {
        assert!(Reason::ALL[i] as usize == i + 1);
        i += 1;
    }
};

/// One counter for each reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonCounters([u64; Reason::ALL.len()]);

impl Default for ReasonCounters {
    fn default() -> Self {
        ReasonCounters([0; Reason::ALL.len()])
    }
}

impl ReasonCounters {
    /// Counts one packet.
    pub fn count(&mut self, reason: Reason) {
        self.add(reason, 1);
    }

    /// Counts `n` packets.
    pub fn add(&mut self, reason: Reason, n: u64) {
        self.0[reason as usize - 1] += n;
    }

    /// Returns how many packets were counted under `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize - 1]
    }

    /// Returns the reasons that were counted at least once, with their counts.
    pub fn nonzero(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .map(|r| (r, self.get(r)))
            .filter(|(_, n)| *n > 0)
    }
}
