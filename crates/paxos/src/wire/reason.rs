// SPDX-License-Identifier: Apache-2.0
//! Why a packet was dropped or rejected.
//!
//! One list for the Rust roles and the XDP counters, and for P4 to come; `wirepaxos status` shows the
//! counts under these names. Numbers are on the wire in REJECT: append, never renumber.

/// A named reason. Those marked *answered* travel back in a REJECT; the others are only counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reason {
    /// Shorter than header and tag.
    Truncated = 1,
    /// `version` is not 1.
    BadVersion = 2,
    /// `msgtype` is not in the list.
    UnknownType = 3,
    /// Header, tag and value don't fill the datagram exactly.
    BadLength = 4,
    /// A flag that this type can't have.
    BadFlags = 5,
    /// Another cluster's packet.
    WrongCluster = 6,
    /// No such group here.
    UnknownGroup = 7,
    /// No such partition here.
    UnknownPartition = 8,
    /// Sender is no node that may send this.
    UnknownSender = 9,
    /// Larger than the configured maximum value.
    ValueTooLarge = 10,
    /// A structured value that isn't well-formed.
    BadValue = 11,
    /// No round, or one that this message can't have.
    BadRound = 12,
    /// Client or request is 0 where it may not be, or not 0 where it must.
    BadSession = 13,
    /// A message that this role doesn't take.
    NotForRole = 14,
    /// The acceptor isn't a member: its memory is new and not yet enabled by an epoch.
    Stranger = 15,
    /// *Answered:* the leader isn't programmed, or knows that a later epoch exists.
    NotLeader = 16,
    /// *Answered:* below the trim point, or the slot holds a later instance.
    Trimmed = 17,
    /// *Answered:* beyond the window.
    Window = 18,
    /// *Answered:* a higher round was promised.
    Preempted = 19,
    /// An equal round with another value: impossible if all rules hold. Raises an alarm.
    Conflict = 20,
    /// Of an older round or instance than what is known.
    Stale = 21,
    /// Already counted.
    Duplicate = 22,
    /// A round of an epoch whose configuration isn't known here.
    UnknownEpoch = 23,
    /// Answers a question that isn't open.
    Unexpected = 24,
    /// The UDP checksum is wrong.
    BadChecksum = 25,
    /// The slot was locked by another CPU.
    Busy = 26,
    /// No room left here; the sender tries again.
    Full = 27,
    /// The acceptor's memory was read from disk, and the controller hasn't compared it yet.
    Restarted = 28,
    /// In the name of a node, but not from its address.
    ForeignAddress = 29,
    /// Of another session of the sequencer than the one that is listened to.
    OldSession = 30,
    /// The replica is changing its view, or is no member of the session.
    NotNormal = 31,
    /// Of another view than the one that the replica is in.
    WrongView = 32,
    /// The replica's log has no room: it is waiting for a checkpoint.
    LogFull = 33,
    /// Without a tag, where one must be.
    Unsigned = 34,
    /// Signed with a key, or in a way, that isn't known here.
    UnknownKey = 35,
    /// The tag's `mac` isn't that of the header and the tag under the key it names.
    BadMac = 36,
    /// The tag's `digest` isn't that of the value.
    BadDigest = 37,
    /// Signed by a client, and only nodes send this.
    ForeignKey = 38,
    /// A REQUEST whose counter was there before, or is older than what is remembered.
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

    /// The reason with this number.
    pub fn from_u16(n: u16) -> Option<Reason> {
        Self::ALL.get((n as usize).checked_sub(1)?).copied()
    }

    /// The name in counters, scripts and `status`.
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

    /// The reason with this name.
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
    /// Counts one.
    pub fn count(&mut self, reason: Reason) {
        self.add(reason, 1);
    }

    /// Counts so many.
    pub fn add(&mut self, reason: Reason, n: u64) {
        self.0[reason as usize - 1] += n;
    }

    /// How many were counted under `reason`.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize - 1]
    }

    /// The reasons that were counted at least once, with their counts.
    pub fn nonzero(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .into_iter()
            .map(|r| (r, self.get(r)))
            .filter(|(_, n)| *n > 0)
    }
}
