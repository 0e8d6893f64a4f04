// SPDX-License-Identifier: Apache-2.0
//! What a worker is told when it starts.

use crate::checkpoint::Rhythm;
use crate::parts::MAX_COMMAND_LEN;
use paxos::wire::MAX_VALUE_LEN;
use paxos::{
    Configuration, Deployment, Epoch, Header, Instance, MsgType, NodeId, PartitionId, Time,
};

const MILLISECOND: Time = 1_000_000;
const SECOND: Time = 1_000 * MILLISECOND;

/// How much a session table may hold. Part of the replicated rules: **all replicas of a deployment
/// must have the same limits**, or their tables drift apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Open sessions.
    pub sessions: usize,
    /// Windows of all sessions together.
    pub slots: usize,
    /// Bytes of a reply that is recorded in full and, where the session has an address, sent. A
    /// larger one is recorded as "executed, reply too large".
    pub reply: usize,
    /// Bytes of the last reply of an ordered session without an address (a connection of the front
    /// end). It isn't sent by datagram, and is recorded only until the session's next command.
    pub last_reply: usize,
    /// Bytes of all recorded replies together; what does not fit is recorded as too large.
    pub recorded: usize,
    /// Bytes of a command that comes in parts. [S-PARTS]
    pub command: usize,
    /// Bytes of all commands together of which some parts are there and others aren't. One that doesn't fit waits.
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

/// What a worker is told when it starts. [`Settings::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Group, cluster, and this node.
    pub deployment: Deployment,
    /// The partition that this worker executes.
    pub pid: PartitionId,
    /// Instances from the next one on for which votes and decided values are kept. What lies
    /// beyond is dropped and repaired later.
    pub buffer: usize,
    /// Learner nodes whose DELIVER is a decision; usually none.
    pub learners: Vec<NodeId>,
    /// What is missing is asked for as soon as something behind it has been decided for so long: packets may overtake
    /// each other.
    pub ask_after: Time,
    /// A gap behind which nothing is known to be decided is asked for when it is this old. Each replica waits a little
    /// longer than the one before it.
    pub repair_after: Time,
    /// Instances under repair at once.
    pub repair_limit: usize,
    /// Instances that a leader may have open: what one says that it has stamped is believed so far ahead.
    pub window: u64,
    /// A read without the log that has waited for so long goes through the log. [B-LIMIT]
    pub read_patience: Time,
    /// While no decision comes by itself, acceptors are asked this often whether there is one.
    pub poll_interval: Time,
    /// Instances between checkpoints; a quarter of the leader's window or less.
    pub checkpoint_every: u64,
    /// Where a checkpoint is younger than this the next one waits, as long as half the window is left when it is written.
    pub checkpoint_pause: Time,
    /// Time between checkpoints, if anything was executed.
    pub checkpoint_interval: Time,
    /// TRIM is sent again this often.
    pub trim_interval: Time,
    /// An idle session of this age is proposed for expiry.
    pub session_timeout: Time,
    /// Answers wait until what they show is stored, and each batch ends with a commit. Otherwise they leave
    /// when the batch is executed, and commits come as the next two say. [X-ANSWER]
    pub answers_wait: bool,
    /// Commands, or instances, after which a commit is due.
    pub commit_every: u64,
    /// How long what is executed may wait for its commit.
    pub commit_after: Time,
    /// Bounds of the session table.
    pub limits: Limits,
    /// Clients to which followers may acknowledge what the leader answers; where more wait at once they are a crowd.
    /// [N-CROWD]
    pub few: usize,
    /// Seed of the jitter of repairs.
    pub seed: u64,
}

impl Settings {
    /// The defaults.
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

    /// How often checkpoints are made.
    pub(crate) fn rhythm(&self) -> Rhythm {
        Rhythm {
            every: self.checkpoint_every,
            pause: self.checkpoint_pause,
            most: self.window / 2,
            interval: self.checkpoint_interval,
            trim_interval: self.trim_interval,
        }
    }

    /// A header of this partition's, from this node.
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

/// A replica's place among the replicas of its group: spreads in time what one of them does for all, and what
/// would stop all at once.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub index: usize,
    /// How many there are, with one for those that aren't among them.
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
}

/// What a worker needs to know of an epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EpochView {
    /// What the epoch fixes.
    pub configuration: Configuration,
    /// Whether it holds everything that earlier epochs may have chosen. Gaps may be repaired only
    /// in an active epoch, and only while it is the last one.
    pub active: bool,
}

/// What a worker needs from outside. Ask again after every batch and tick; a wish goes away when
/// it has been granted or is no longer needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// A repair lane in this epoch ([`Worker::set_lane`](crate::Worker::set_lane)).
    pub lane_for: Option<Epoch>,
    /// A number under which this process reports what its disk holds ([`Worker::set_incarnation`](crate::Worker::set_incarnation)).
    pub incarnation: bool,
    /// Another replica's checkpoint at this instance or a later one
    /// ([`Worker::restore`](crate::Worker::restore)). What comes next here has been trimmed; or one
    /// acceptor says so, the repair is stuck, and such a checkpoint would confirm it.
    pub checkpoint_at_least: Option<Instance>,
    /// A new epoch: repair rounds of this one are used up.
    pub new_epoch: bool,
    /// All epochs up to this one, which a packet mentioned and which isn't known here.
    pub view_with: Option<Epoch>,
}
