// SPDX-License-Identifier: Apache-2.0
//! Says in the log whose packets are refused for their key, cluster or version. A peer that is configured otherwise, or a
//! stranger, sends many, so each reason and sender is said once a minute, with the number in between.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tracing::warn;

/// The shortest time between two lines of one reason and sender.
const INTERVAL: Duration = Duration::from_secs(60);
/// The number of reasons and senders that are told apart; all others share one line.
const MAX_SENDERS: usize = 32;

/// The refused packets of one socket.
#[derive(Default)]
pub(crate) struct Refused {
    senders: BTreeMap<(&'static str, IpAddr), Count>,
    others: Option<Count>,
}

struct Count {
    said: Instant,
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

impl Refused {
    /// Notes a refused packet, and logs it unless a line of the last minute says so.
    pub fn note(&mut self, reason: &'static str, from: IpAddr) {
        if let Some(line) = self.line(reason, from, Instant::now()) {
            let Line {
                packets,
                is_of_many,
            } = line;
            let others = if is_of_many { " and others" } else { "" };
            warn!(
                reason,
                packets,
                "packets from {from}{others} are refused: {}",
                meaning(reason)
            );
        }
    }

    fn line(&mut self, reason: &'static str, from: IpAddr, now: Instant) -> Option<Line> {
        let is_known = self.senders.contains_key(&(reason, from));
        let is_of_many = !is_known && self.senders.len() >= MAX_SENDERS;
        let new = || Count { said: now, more: 0 };
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

    #[test]
    fn each_reason_and_sender_is_said_once_a_minute_with_the_number_in_between() {
        let mut refused = Refused::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
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
        let mut refused = Refused::default();
        let begun = Instant::now();
        let flood = (0..=255).map(|last| IpAddr::from([10, 0, 0, last]));
        let lines = flood.filter_map(|from| refused.line("bad_mac", from, begun));
        let lines: Vec<Line> = lines.collect();
        assert_eq!(lines.len(), MAX_SENDERS + 1);
        assert!(lines[MAX_SENDERS].is_of_many);
        let later = refused.line("bad_mac", [10, 0, 1, 1].into(), begun + INTERVAL);
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
