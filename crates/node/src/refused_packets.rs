// SPDX-License-Identifier: Apache-2.0
//! Says in the log whose packets are refused for their key, cluster or version. A peer that is
//! configured otherwise, or a stranger, sends many, so each reason and sender is said once a
//! minute, with the number in between.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::cluster_file::{ClusterFile, Node};

/// The shortest time between two lines of one reason and sender.
const INTERVAL: Duration = Duration::from_secs(60);
/// The number of reasons and senders that are told apart; all others share one line.
const MAX_SENDERS: usize = 32;

/// The refused packets of one socket.
pub(crate) struct RefusedPackets {
    /// The addresses of the other members.
    members: Vec<(SocketAddr, String)>,
    senders: BTreeMap<(&'static str, Sender), Count>,
    others: Option<Count>,
}

/// Members are told apart by their whole address, and all others by their machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Sender {
    /// The index of a member.
    Member(usize),
    Other(IpAddr),
}

struct Count {
    said: Instant,
    /// The time of the last packet.
    last: Instant,
    /// Packets since then that no line has named yet.
    more: u64,
}

/// A line about refused packets.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    packets: u64,
    /// The sender is one of many that aren't told apart.
    is_of_many: bool,
}

impl RefusedPackets {
    /// Returns the counts of a socket that has received nothing yet. `address` returns where the
    /// packets of a member come from.
    pub fn new(cluster: &ClusterFile, address: impl Fn(&Node) -> SocketAddr) -> RefusedPackets {
        let nodes = cluster.nodes.iter();
        RefusedPackets {
            members: nodes.map(|n| (address(n), n.name.clone())).collect(),
            senders: BTreeMap::new(),
            others: None,
        }
    }

    /// Notes a refused packet, and logs it unless a line of the last minute says so.
    pub fn note(&mut self, reason: &'static str, from: SocketAddr) {
        let sender = self.sender(from);
        if let Some(line) = self.line(reason, sender, Instant::now()) {
            let Line {
                packets,
                is_of_many,
            } = line;
            let others = if is_of_many { " and others" } else { "" };
            warn!(
                reason,
                packets,
                "packets from {}{others} are refused: {}",
                self.shown(sender),
                meaning(reason)
            );
        }
    }

    /// Returns a warning for each reason and member of which packets were refused within the last
    /// minute.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings_at(Instant::now())
    }

    fn warnings_at(&self, now: Instant) -> Vec<String> {
        let is_recent = |count: &Count| now.saturating_duration_since(count.last) < INTERVAL;
        let of_members = self
            .senders
            .iter()
            .filter(|((_, sender), count)| matches!(sender, Sender::Member(_)) && is_recent(count));
        let warning = |((reason, sender), _): (&(&str, Sender), _)| {
            let (from, meaning) = (self.shown(*sender), meaning(reason));
            format!("packets from {from} are refused ({reason}): {meaning}")
        };
        of_members.map(warning).collect()
    }

    fn sender(&self, from: SocketAddr) -> Sender {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let member = self
            .members
            .iter()
            .position(|(address, _)| *address == from);
        member.map_or(Sender::Other(from.ip()), Sender::Member)
    }

    fn shown(&self, sender: Sender) -> String {
        match sender {
            Sender::Member(at) => {
                let (address, name) = &self.members[at];
                format!("{name} ({})", address.ip())
            }
            Sender::Other(from) => from.to_string(),
        }
    }

    fn line(&mut self, reason: &'static str, from: Sender, now: Instant) -> Option<Line> {
        let is_known = self.senders.contains_key(&(reason, from));
        let is_member = matches!(from, Sender::Member(_));
        let is_of_many = !is_known && !is_member && self.senders.len() >= MAX_SENDERS;
        let new = || Count {
            said: now,
            last: now,
            more: 0,
        };
        let (count, is_first) = match is_of_many {
            true => {
                let is_first = self.others.is_none();
                (self.others.get_or_insert_with(new), is_first)
            }
            false => (
                self.senders.entry((reason, from)).or_insert_with(new),
                !is_known,
            ),
        };
        count.more += 1;
        count.last = now;
        if !is_first && now.saturating_duration_since(count.said) < INTERVAL {
            return None;
        }
        count.said = now;
        let packets = std::mem::take(&mut count.more);
        Some(Line {
            packets,
            is_of_many,
        })
    }
}

/// Returns what an operator should look at for a reason.
fn meaning(reason: &str) -> &'static str {
    match reason {
        "wrong_cluster" => "they are of another cluster; one of the two has an old cluster file",
        "bad_version" => "they are of another version of WirePaxos",
        "unsigned" => "they aren't signed; `auth` differs in the sender's cluster file",
        "bad_mac" | "bad_digest" | "unknown_key" | "other_key" => {
            "they are signed with another key; hand out this cluster's key file there"
        }
        "foreign_key" => "a client has signed what only nodes may send",
        _ => "their sender isn't at the address that the cluster file gives it; the files differ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterFile {
        let text = include_str!("../../../testdata/cluster.toml");
        crate::cluster_file::parse(text, "cluster.toml").unwrap()
    }

    fn refused() -> RefusedPackets {
        RefusedPackets::new(&cluster(), |node| node.control)
    }

    #[test]
    fn a_member_whose_packets_are_refused_is_a_warning_for_a_minute() {
        let mut refused = refused();
        let begun = Instant::now();
        let of_member = cluster().node("replica-2").unwrap().control;
        let stranger = SocketAddr::new(of_member.ip(), 1);
        for from in [of_member, stranger] {
            let sender = refused.sender(from);
            refused.line("bad_mac", sender, begun);
        }
        let warnings = refused.warnings_at(begun + INTERVAL / 2);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].starts_with("packets from replica-2 ("),
            "{warnings:?}"
        );
        assert!(
            warnings[0].contains("hand out this cluster's key file"),
            "{warnings:?}"
        );
        assert_eq!(refused.warnings_at(begun + INTERVAL), [""; 0]);
    }

    #[test]
    fn each_reason_and_sender_is_said_once_a_minute_with_the_number_in_between() {
        let mut refused = refused();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let [one, other] = [1, 2].map(|last| Sender::Other([10, 9, 0, last].into()));
        let line = |packets| {
            Some(Line {
                packets,
                is_of_many: false,
            })
        };
        assert_eq!(refused.line("bad_mac", one, at(0)), line(1));
        for second in 1..=59 {
            assert_eq!(refused.line("bad_mac", one, at(second)), None);
        }
        assert_eq!(refused.line("bad_mac", other, at(2)), line(1));
        assert_eq!(refused.line("wrong_cluster", one, at(2)), line(1));
        assert_eq!(refused.line("bad_mac", one, at(60)), line(60));
        assert_eq!(refused.line("bad_mac", one, at(61)), None);
    }

    #[test]
    fn many_senders_share_a_line() {
        let mut refused = refused();
        let begun = Instant::now();
        let flood = (0..=255).map(|last| Sender::Other([10, 9, 0, last].into()));
        let lines = flood.filter_map(|from| refused.line("bad_mac", from, begun));
        let lines: Vec<Line> = lines.collect();
        assert_eq!(lines.len(), MAX_SENDERS + 1);
        assert!(lines[MAX_SENDERS].is_of_many);
        let later = refused.line(
            "bad_mac",
            Sender::Other([10, 9, 1, 1].into()),
            begun + INTERVAL,
        );
        let packets = 256 - MAX_SENDERS as u64;
        assert_eq!(
            later,
            Some(Line {
                packets,
                is_of_many: true
            })
        );
    }
}
