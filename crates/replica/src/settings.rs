// SPDX-License-Identifier: Apache-2.0
//! The settings with which a worker starts.

use crate::checkpoint::Rhythm;
use crate::parts::MAX_COMMAND_LEN;
use paxos::wire::MAX_VALUE_LEN;
use paxos::{
    Configuration, Deployment, Epoch, Header, Instance, MsgType, NodeId, PartitionId, Time,
};

const MILLISECOND: Time = 1_000_000;
const SECOND: Time = 1_000 * MILLISECOND;

/// The limits of a session table. They are part of the replicated rules: **all replicas of a
/// deployment must have the same limits**, or their tables drift apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most open sessions.
    pub sessions: usize,
    /// The largest sum of the windows of all sessions.
    pub slots: usize,
    /// The most bytes of a reply that is recorded in full and, where the session has an address,
    /// sent. A larger one is recorded as "executed, reply too large".
    pub reply: usize,
    /// The most bytes of the last reply of an ordered session without an address (a connection of
    /// the front end). It isn't sent by datagram, and is recorded only until the session's next
    /// command.
    pub last_reply: usize,
    /// The most bytes of all recorded replies together; a reply that doesn't fit is recorded as too
    /// large.
    pub recorded: usize,
    /// The most bytes of a command that comes in parts. [S-PARTS]
    pub command: usize,
    /// The most bytes of all commands together that have come in part only. A command that doesn't
    /// fit waits.
    pub unfinished: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions: 65_536,
            slots: 1 << 20,
            reply: MAX_VALUE_LEN - 1,
            last_reply: 64 << 10,
            recorded: 64 << 20,
            command: MAX_COMMAND_LEN,
            unfinished: 64 << 20,
        }
    }
}

/// The settings with which a worker starts. [`Settings::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Group, cluster, and this node.
    pub deployment: Deployment,
    /// The partition that this worker executes.
    pub pid: PartitionId,
    /// The number of instances from the next one on for which votes and decided values are kept.
    /// Packets beyond are dropped, and their values repaired later.
    pub buffer: usize,
    /// Learner nodes whose DELIVER counts as a decision; usually none.
    pub learners: Vec<NodeId>,
    /// How long a gap waits before it is asked for when a later instance has been decided. The wait
    /// is there because packets may overtake each other.
    pub ask_after: Time,
    /// How long a gap waits before it is asked for when nothing behind it is known to be decided.
    /// Each replica waits a little longer than the one before it.
    pub repair_after: Time,
    /// The most instances under repair at once.
    pub repair_limit: usize,
    /// The number of instances that a leader may have open. A leader's word about stamped instances
    /// is believed only so far ahead.
    pub window: u64,
    /// How long a read without the log waits before it goes through the log. [B-LIMIT]
    pub read_patience: Time,
    /// How often acceptors are asked for decisions while none comes by itself.
    pub poll_interval: Time,
    /// Instances between checkpoints; at most a quarter of the leader's window.
    pub checkpoint_every: u64,
    /// The next checkpoint waits until the last one is this old, as long as half the window will be
    /// left when it is written.
    pub checkpoint_pause: Time,
    /// Time between checkpoints, if anything was executed.
    pub checkpoint_interval: Time,
    /// How often TRIM is sent again.
    pub trim_interval: Time,
    /// The idle time after which a session is proposed for expiry.
    pub session_timeout: Time,
    /// Answers wait until the state that they show is stored, and each batch ends with a commit.
    /// Otherwise they are sent when the batch is executed, and `commit_every` and `commit_after`
    /// say when commits come. [X-ANSWER]
    pub answers_wait: bool,
    /// The number of commands, or of instances, after which a commit is due.
    pub commit_every: u64,
    /// How long executed commands may wait for their commit.
    pub commit_after: Time,
    /// Bounds of the session table.
    pub limits: Limits,
    /// The most clients at once to which followers acknowledge what the leader answers; more
    /// clients than this are a crowd. [N-CROWD]
    pub few: usize,
    /// The seed of the jitter of repairs.
    pub seed: u64,
}

impl Settings {
    /// Returns the default settings.
    pub fn new(deployment: Deployment, pid: PartitionId) -> Settings {
        Settings {
            deployment,
            pid,
            buffer: 8_192,
            learners: Vec::new(),
            ask_after: MILLISECOND / 20,
            repair_after: 10 * MILLISECOND,
            repair_limit: 64,
            window: 65_536,
            read_patience: 100 * MILLISECOND,
            poll_interval: SECOND,
            checkpoint_every: 16_384,
            checkpoint_pause: 0,
            checkpoint_interval: 30 * SECOND,
            trim_interval: SECOND,
            session_timeout: 600 * SECOND,
            answers_wait: false,
            commit_every: 256,
            commit_after: MILLISECOND,
            limits: Limits::default(),
            few: 7,
            seed: 0,
        }
    }

    /// Returns how often checkpoints are made.
    pub(crate) fn rhythm(&self) -> Rhythm {
        Rhythm {
            every: self.checkpoint_every,
            pause: self.checkpoint_pause,
            most: self.window / 2,
            interval: self.checkpoint_interval,
            trim_interval: self.trim_interval,
        }
    }

    /// Returns a header of this partition from this node.
    pub(crate) fn header(&self, msgtype: MsgType) -> Header {
        let deployment = &self.deployment;
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: self.pid,
            swid: deployment.node,
            ..Header::new(msgtype)
        }
    }
}

/// A replica's place among the replicas of its group. It spreads in time the work that one of them
/// does for all, and the work that would stop all of them at once.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub index: usize,
    /// The number of places: one for each replica, and one for nodes that aren't among them.
    pub of: usize,
}

impl Turn {
    pub fn of(node: NodeId, replicas: &[NodeId]) -> Turn {
        let index = replicas.iter().position(|replica| *replica == node);
        Turn {
            index: index.unwrap_or(replicas.len()),
            of: replicas.len() + 1,
        }
    }

    /// Returns whether the node is one of the replicas.
    pub fn is_counted(self) -> bool {
        self.index + 1 < self.of
    }
}

/// A worker's knowledge of an epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochView {
    /// The configuration that the epoch fixes.
    pub configuration: Configuration,
    /// The epoch holds everything that earlier epochs may have chosen. Gaps may be repaired only in
    /// an active epoch, and only while it is the last one.
    pub active: bool,
}

/// A worker's wishes to the node. Ask again after every batch and tick; a wish goes away when it
/// has been granted or is no longer needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// A repair lane in this epoch ([`Worker::set_lane`](crate::Worker::set_lane)).
    pub lane_for: Option<Epoch>,
    /// A number under which this process reports the contents of its disk
    /// ([`Worker::set_incarnation`](crate::Worker::set_incarnation)).
    pub incarnation: bool,
    /// Another replica's checkpoint at this instance or a later one
    /// ([`Worker::restore`](crate::Worker::restore)). The next instance here has been trimmed; or
    /// one acceptor says so, the repair is stuck, and such a checkpoint would confirm it.
    pub checkpoint_at_least: Option<Instance>,
    /// A new epoch, since the repair rounds of this one are used up.
    pub new_epoch: bool,
    /// All epochs up to this one, which a packet has mentioned and which isn't known here.
    pub view_with: Option<Epoch>,
}
