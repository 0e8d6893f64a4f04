// SPDX-License-Identifier: Apache-2.0
//! What happens in a run, as a list that can be printed, read back and cut down.
//!
//! A plan is the shape of the cluster (a [`Scenario`]) and what is done to it and when. Everything
//! else in a run, the fate of each packet included, follows from the scenario's seed.
//!
//! ```text
//! scenario seed=7 acceptors=3 replicas=3 slots=32 durable=0 loss=10000
//! 0.010000 submit client-1 0 3 incr
//! 0.100000 crash leader-1
//! 0.400000 restart leader-1
//! 0.500000 isolate acceptor-2 both
//! ```

mod text;

use paxos::{Instance, MsgType, Time};

use crate::application::Span;
use crate::linearizability::Op;
use crate::network::Rates;
pub use text::{parse_seconds, seconds};

/// The shape of a cluster, and how bad its network and machines are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// The seed of everything that the plan doesn't say.
    pub seed: u64,
    /// The number of leaders, of which the first one leads at the beginning.
    pub leaders: u8,
    /// The number of acceptors: 2f+1.
    pub acceptors: u8,
    /// The number of replicas: 2g+1.
    pub replicas: u8,
    /// The number of learner nodes; without any, votes go to the replicas.
    pub learners: u8,
    /// The number of sequencers. With any, the group uses NOPaxos, and there are no leaders,
    /// acceptors and learners.
    pub sequencers: u8,
    /// The number of clients. Those with an even number use ordered sessions.
    pub clients: u8,
    /// The number of partitions.
    pub partitions: u8,
    /// The number of an acceptor's slots for each partition.
    pub slots: u16,
    /// How many instances a leader may have open.
    pub window: u16,
    /// Acceptors keep a log on disk.
    pub durable: bool,
    /// The number of instances between checkpoints.
    pub checkpoint_every: u16,
    /// How many replies a session records.
    pub session_window: u16,
    /// How many values an ordered session may have in flight. [S-ORDERED]
    pub ordered_values: u8,
    /// The largest deviation of a clock, in parts per million.
    pub drift: u32,
    /// How many packets a worker takes at most before it answers.
    pub batch: u8,
    /// A worker's answers wait until they are stored.
    pub answers_wait: bool,
    /// The settings of NOPaxos replicas.
    pub ordered: OrderedSettings,
    /// The nodes that may become members later.
    pub spares: Spares,
    /// The network's rates.
    pub rates: Rates,
}

/// The settings that only NOPaxos replicas heed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedSettings {
    /// How many clients a leader answers at once as if nobody else waited. [N-CROWD]
    pub few: u8,
    /// How many commands an application executes at most before what it has executed is stable.
    /// [N-COMMIT]
    pub ahead: u8,
}

/// How many nodes are there besides the first members, so that they may be added. They have the
/// numbers behind theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spares {
    /// The number of leaders.
    pub leaders: u8,
    /// The number of acceptors.
    pub acceptors: u8,
    /// The number of replicas.
    pub replicas: u8,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            seed: 0,
            leaders: 2,
            acceptors: 3,
            replicas: 3,
            learners: 0,
            sequencers: 0,
            clients: 2,
            partitions: 1,
            slots: 32,
            window: 24,
            durable: false,
            checkpoint_every: 8,
            session_window: 16,
            ordered_values: 1,
            drift: 0,
            batch: 1,
            answers_wait: false,
            ordered: OrderedSettings {
                few: 7,
                ahead: u8::MAX,
            },
            spares: Spares::default(),
            rates: Rates::PERFECT,
        }
    }
}

/// A node by its kind and its number, from 1. There is one controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Name {
    Controller,
    Leader(u8),
    Acceptor(u8),
    Replica(u8),
    Learner(u8),
    Sequencer(u8),
    Client(u8),
}

/// The packets of an isolated node that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Direction {
    In,
    Out,
    Both,
}

/// The packets to catch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Catch {
    /// The sender; `None` means any.
    pub from: Option<Name>,
    /// The receiver; `None` means any.
    pub to: Option<Name>,
    /// The type of the packets.
    pub msgtype: MsgType,
    /// The partition; `None` means any.
    pub pid: Option<u8>,
}

/// One action of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// A client submits a command.
    Submit {
        /// Number of the client.
        client: u8,
        /// The partition.
        pid: u8,
        /// The key.
        key: u8,
        /// The operation.
        op: Op,
        /// Extra bytes.
        padding: u16,
    },
    /// A client submits a command over several partitions.
    Span {
        /// Number of the client.
        client: u8,
        /// The partitions, ascending, with a key in each.
        keys: Vec<(u8, u8)>,
        /// The operation.
        span: Span,
    },
    /// All contents of a replica are read from its state; a client asks the logs first.
    Walk {
        /// Number of the client.
        client: u8,
        /// Number of the replica.
        replica: u8,
    },
    /// A client reads a key at a replica without the log, and then sends a command.
    Read {
        /// Number of the client.
        client: u8,
        /// Number of the replica.
        replica: u8,
        /// The partition.
        pid: u8,
        /// The key.
        key: u8,
    },
    /// The process dies, and a volatile memory is lost.
    Crash(Name),
    /// The machine loses its power, and unsynced data is lost, too.
    PowerOff(Name),
    /// The disk is replaced by an empty one.
    Wipe(Name),
    /// A new process starts.
    Restart(Name),
    /// The process hangs: it receives and sends nothing, but keeps its memory.
    Pause(Name),
    /// A hanging process continues.
    Resume(Name),
    /// Cuts a node off from all others.
    Isolate(Name, Direction),
    /// Cuts one direction of one link.
    Cut(Name, Name),
    /// Keeps packets of one type from one node to another, until they are released.
    Hold(Catch),
    /// Keeps a copy of packets of one type, and lets the packets pass.
    Copy(Catch),
    /// Ends all holding and copying; the kept packets arrive in random order.
    Release,
    /// Mends all links.
    Heal,
    /// The network gets better or worse.
    Network(Rates),
    /// A disk is full.
    DiskFull(Name),
    /// A disk has room again.
    DiskFree(Name),
    /// A replica's process will be killed in the middle of a step, at this call of its application.
    KillIn(Name, u8),
    /// A replica's program dies from now on of each command for this key of this partition.
    Poison(Name, u8, u8),
    /// An hour passes, in which all machines sleep; then the packets that were an hour late arrive.
    Hour,
    /// Every node is stopped in good order.
    Stop,
    /// Every node is started.
    Start,
    /// A second controller, on a copy of the store, asks for the promises of the last epoch.
    Rival,
    /// An operator orders a change of leader, or another session.
    Failover,
    /// An operator orders that this leader leads.
    HandOver(Name),
    /// An operator orders that these nodes are added, and that these leave.
    Members(Vec<Name>, Vec<Name>),
    /// New sessions have this replica lead first from now on.
    Lead(Name),
    /// An acceptor's disk is copied.
    CopyDisk(Name),
    /// The copy is put back in place of the disk, and the process is killed.
    PutBack(Name),
    /// An acceptor's disk lies about syncs from now on, until the next power failure.
    Lie(Name),
    /// A bit flips in the stored data of a durable acceptor.
    Rot(Name),
    /// An operator gives up a damaged log.
    ForgetLog(Name),
    /// An acceptor tells replicas from now on that it has voted further than it has.
    Exaggerate(Name),
    /// Somebody forges an ICMP message, which says to the controller that this node's port is
    /// closed.
    Refuse(Name),
    /// An acceptor loses its memory, a replica its disk, or a NOPaxos replica its log, even if more
    /// than f or g have lost theirs; the controller dies, and its store becomes empty.
    Forget(Name),
    /// An acceptor's range promises and PROBE_ACKs say from now on that it has trimmed to the first
    /// number and voted up to the second; a NOPaxos replica's PROBE_ACKs show the first as its
    /// checkpoint, and the second as the number of its leader.
    Claim(Name, Instance, Instance),
    /// An operator orders a change of leader and accepts the loss of what only acceptors knew.
    AcceptLoss,
    /// The controller's store is copied.
    BackUp,
    /// The controller dies, and its store is replaced by the copy.
    Restore,
    /// The controller dies, and an operator makes its store anew from what the nodes show; with
    /// NOPaxos the newest store is put back.
    Rebuild,
    /// The forgotten controller of an old cluster with one acceptor, at the same addresses, tells
    /// all nodes its epochs.
    OldCluster,
}

impl Scenario {
    /// Returns whether members may change.
    pub fn has_spares(&self) -> bool {
        self.spares != Spares::default()
    }

    /// Returns whether machines say that a dead process's port is closed, as in one of four
    /// scenarios; in the others only its silence shows.
    pub fn refuses(&self) -> bool {
        self.seed % 4 == 2
    }
}

/// The part of a run that is decided in advance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The cluster.
    pub scenario: Scenario,
    /// The actions, by time.
    pub actions: Vec<(Time, Action)>,
}

impl Plan {
    /// Returns whether nothing goes wrong: the network loses nothing, only clients act, and each
    /// log has room for twice as many commands.
    pub fn is_calm(&self) -> bool {
        let is_load = |action: &Action| {
            matches!(
                action,
                Action::Submit { .. } | Action::Span { .. } | Action::Read { .. }
            )
        };
        self.scenario.rates == Rates::PERFECT
            && usize::from(self.scenario.slots) >= 2 * self.actions.len()
            && self.actions.iter().all(|(_, action)| is_load(action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_printing() {
        let text = "scenario seed=7 acceptors=5 durable=1 loss=10000 hour=3\n\
                    0.010000 submit client-1 0 3 incr\n\
                    0.010001 submit client-2 1 4 cas 5 6 padding=70\n\
                    0.020000 span client-1 0/3 2/4 fold 7\n\
                    0.020001 span client-2 1/0 2/4 read\n\
                    0.030000 walk client-1 replica-3\n\
                    0.040000 read client-1 replica-3 1 4\n\
                    0.050000 lead replica-2\n\
                    0.100000 crash leader-1\n\
                    0.200000 isolate acceptor-2 out\n\
                    0.300000 cut controller replica-3\n\
                    1.000000 network loss=1 duplicate=2 slow=3 late=4 hour=5 corrupt=6\n\
                    1.500000 kill-in replica-1 3\n\
                    1.600000 hold acceptor-1 any PHASE2B\n\
                    1.700000 copy any leader-1 REQUEST\n\
                    1.750000 hold any replica-2 ORDERED 1\n\
                    1.800000 release\n\
                    1.830000 copy-disk acceptor-1\n\
                    1.840000 put-back acceptor-1\n\
                    1.843000 lie acceptor-1\n\
                    1.845000 rot acceptor-1\n\
                    1.847000 forget-log acceptor-1\n\
                    1.850000 forget acceptor-1\n\
                    1.855000 hand-over leader-2\n\
                    1.856000 members +acceptor-4 +acceptor-5\n\
                    1.857000 members +replica-4 -replica-1\n\
                    1.860000 exaggerate acceptor-1\n\
                    1.870000 claim acceptor-1 3 5\n\
                    1.900000 accept-loss\n\
                    1.950000 old-cluster\n\
                    1.960000 back-up\n\
                    1.970000 restore\n\
                    1.980000 rebuild\n\
                    2.000000 hour\n";
        let plan = Plan::parse(text).unwrap();
        assert_eq!(plan.to_string(), text);
        assert_eq!(plan.scenario.acceptors, 5);
        assert_eq!(plan.actions[0].0, 10_000_000);
    }

    #[test]
    fn what_can_not_be_read_is_named() {
        for (text, why) in [
            ("scenario colour=1", "no 'colour'"),
            ("scenario acceptors=4", "odd"),
            ("x heal", "no time"),
            ("1.0 explode", "explode"),
            ("1.0 crash gardener-1", "gardener-1"),
            ("\n1.0 submit leader-1 0 0 get", "line 2"),
            ("1.0 span client-1 1/0 1/1 read", "ascending"),
        ] {
            let error = Plan::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
