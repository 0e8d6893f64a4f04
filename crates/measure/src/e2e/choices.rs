// SPDX-License-Identifier: Apache-2.0
//! What is measured: contenders, sequencers, reads, baselines and pinned nodes.

use client::Freshness;
use node::cluster_file::Protocol;
use peers::{Matching, Protocol as OfPeers};

use super::super::peers as compared;

/// The system that clients ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// A cluster that agrees by Paxos.
    Paxos,
    /// A cluster that agrees by NOPaxos.
    NoPaxos,
    /// A server without replication.
    Unreplicated,
    /// Replicas that agree by one of the protocols to compare with.
    Peers(OfPeers),
}

impl Contender {
    /// Returns all contenders.
    pub fn all() -> Vec<Contender> {
        let peers = compared::NAMES.iter().map(|(_, p)| Contender::Peers(*p));
        let others = [
            Contender::Paxos,
            Contender::NoPaxos,
            Contender::Unreplicated,
        ];
        others.into_iter().chain(peers).collect()
    }

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Paxos | Contender::NoPaxos => self.of_cluster_file().name(),
            Contender::Unreplicated => "unreplicated",
            Contender::Peers(protocol) => compared::name(protocol),
        }
    }

    /// Returns what stands in the cluster file; that of others only says where they are.
    pub(crate) fn of_cluster_file(self) -> Protocol {
        match self {
            Contender::NoPaxos => Protocol::NoPaxos,
            _ => Protocol::Paxos,
        }
    }

    /// Returns whether there are replicas that don't lead.
    pub fn has_followers(self) -> bool {
        matches!(self, Contender::NoPaxos | Contender::Peers(_))
    }

    /// Returns what a client waits for before an answer counts that isn't final by itself.
    pub(crate) fn counts(self, replicas: usize) -> Option<Box<client::Counts>> {
        if self != Contender::Peers(OfPeers::SpecPaxos) {
            return None;
        }
        let mut matching = Matching::of(replicas);
        Some(Box::new(move |packet| matching.counts(packet)))
    }
}

/// The kinds of sequencers of NOPaxos.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sequencer {
    /// A process at a socket of its host.
    Host,
    /// A program at the interface of its host.
    Xdp,
    /// A program in the switch.
    Switch,
}

impl Sequencer {
    /// All kinds of sequencers.
    pub const ALL: [Sequencer; 3] = [Sequencer::Host, Sequencer::Xdp, Sequencer::Switch];

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Sequencer::Host => "host",
            Sequencer::Xdp => "xdp",
            Sequencer::Switch => "switch",
        }
    }
}

/// How commands that only read are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// Through the log, as those that write.
    Log,
    /// Reads are answered without the log, by what a quorum of acceptors shows.
    Quorum,
    /// Reads are answered by one replica alone, which may be behind.
    Stale,
}

impl Reads {
    /// All ways to read.
    pub const ALL: [Reads; 3] = [Reads::Log, Reads::Quorum, Reads::Stale];

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Reads::Log => "log",
            Reads::Quorum => "quorum",
            Reads::Stale => "stale",
        }
    }

    /// Returns how a client asks without the log, if it does.
    pub(super) fn freshness(self) -> Option<Freshness> {
        match self {
            Reads::Log => None,
            Reads::Quorum => Some(Freshness::Latest),
            Reads::Stale => Some(Freshness::Stale),
        }
    }
}

/// The system to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// A server without replication, under the same load.
    Unreplicated,
    /// The stores alone, as many as there are replicas.
    Local,
}

/// Placement of the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinned {
    /// The scheduler chooses the CPUs.
    None,
    /// Everything runs on CPU 0.
    One,
    /// The client on CPU 1, everything else on CPU 0.
    Two,
    /// The clients on all CPUs in turn, everything else as the scheduler likes: a frame is handled
    /// where it is sent, so one CPU may get all of them otherwise.
    Spread,
}

impl Pinned {
    /// All ways to pin processes.
    pub const ALL: [Pinned; 4] = [Pinned::None, Pinned::One, Pinned::Two, Pinned::Spread];

    pub(super) fn node_cpu(self) -> fn(&str) -> Option<usize> {
        match self {
            Pinned::None | Pinned::Spread => |_| None,
            Pinned::One | Pinned::Two => |_| Some(0),
        }
    }

    pub(super) fn client_cpu(self) -> Option<usize> {
        match self {
            Pinned::None | Pinned::Spread => None,
            Pinned::One => Some(0),
            Pinned::Two => Some(1),
        }
    }

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Pinned::None => "none",
            Pinned::One => "one",
            Pinned::Two => "two",
            Pinned::Spread => "spread",
        }
    }
}
