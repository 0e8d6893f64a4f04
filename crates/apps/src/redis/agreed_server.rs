// SPDX-License-Identifier: Apache-2.0
//! The server on which a group has agreed. It is part of the replicated state and moves with the
//! log alone.
//!
//! Each front end says through the log which server its replica has, and which replicas its group
//! has, before it sends anything else. The first one that speaks decides. Another server becomes
//! the group's once every replica of the group has said last that it has that one. One replica
//! alone, with a wrong cluster file or in another's name, can't take the others out of the group: a
//! replica is out once most of those that it names don't name it.
//!
//! | bytes | |
//! |---|---|
//! | server | length u32, [fingerprint](super::fingerprint); length 0 = none is agreed on yet |
//! | reports | count u8, then each replica's report, ascending |
//! | report | node u16, digest of its fingerprint, count u8 of members u16 |

use std::collections::BTreeMap;

use super::command::MAX_MEMBERS;
use super::fingerprint::Fingerprint;

const DIGEST_LEN: usize = 32;

/// What a replica has said last.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Report {
    /// The digest of its server's fingerprint.
    digest: [u8; DIGEST_LEN],
    /// The replicas of its group, itself among them.
    members: Vec<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct AgreedServer {
    /// The agreed server, from the first report on.
    pub server: Option<Fingerprint>,
    /// At most [`MAX_MEMBERS`] reports, by node.
    reports: BTreeMap<u16, Report>,
}

impl AgreedServer {
    /// Takes the report of a replica whose group is `members`; returns true if the agreed server is
    /// another one now. A replica that doesn't name itself isn't counted.
    pub fn report(&mut self, node: u16, members: &[u16], server: Fingerprint) -> bool {
        let digest = server.digest();
        if members.contains(&node) {
            let report = Report {
                digest,
                members: members.to_vec(),
            };
            self.reports.insert(node, report);
            self.drop_those_that_left(members);
        }
        let steps = self.server.is_none() || self.all_have(digest);
        let changes = steps && self.server.as_ref() != Some(&server);
        if changes {
            self.server = Some(server);
        }
        changes
    }

    /// Drops replicas of which most of those that they name say that they aren't in the group, if
    /// the last report, which names `members`, says so, too. A new replica may speak before the
    /// others know of it.
    fn drop_those_that_left(&mut self, members: &[u16]) {
        let has_left = |node: &u16, report: &Report| {
            let named = report.members.iter().filter(|member| *member != node);
            let heard: Vec<&Report> = named.filter_map(|n| self.reports.get(n)).collect();
            let against = heard.iter().filter(|other| !other.members.contains(node));
            !members.contains(node) && 2 * against.count() > heard.len()
        };
        let reports = self.reports.iter();
        let left = reports.filter(|(node, report)| has_left(node, report));
        let mut left: Vec<u16> = left.map(|(node, _)| *node).collect();
        if self.reports.len() > MAX_MEMBERS {
            left.extend(self.reports.keys().filter(|node| !self.counts(**node)));
        }
        self.reports.retain(|node, _| !left.contains(node));
        while self.reports.len() > MAX_MEMBERS {
            self.reports.pop_last();
        }
    }

    /// Returns true if a replica is alone, or another one names it.
    fn counts(&self, node: u16) -> bool {
        let mut others = self.reports.iter().filter(|(other, _)| **other != node);
        self.reports.len() == 1 || others.any(|(_, report)| report.members.contains(&node))
    }

    /// Returns true if all replicas that those which count name have said last that they have this
    /// server.
    fn all_have(&self, digest: [u8; DIGEST_LEN]) -> bool {
        let counted = self.reports.iter().filter(|(node, _)| self.counts(**node));
        let mut group = counted.flat_map(|(_, report)| &report.members).peekable();
        let has_it = |member| {
            self.reports
                .get(member)
                .is_some_and(|said| said.digest == digest)
        };
        group.peek().is_some() && group.all(has_it)
    }

    /// Appends it as a snapshot stores it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let server = self.server.as_ref().map(Fingerprint::to_bytes);
        let server = server.unwrap_or_default();
        out.extend_from_slice(&(server.len() as u32).to_be_bytes());
        out.extend_from_slice(&server);
        out.push(self.reports.len() as u8);
        for (node, report) in &self.reports {
            out.extend_from_slice(&node.to_be_bytes());
            out.extend_from_slice(&report.digest);
            out.push(report.members.len() as u8);
            let members = report.members.iter();
            members.for_each(|member| out.extend_from_slice(&member.to_be_bytes()));
        }
    }

    /// Reads it from a snapshot, and returns it with the bytes behind it. Returns `None` if it is
    /// damaged.
    pub fn parse(bytes: &[u8]) -> Option<(AgreedServer, &[u8])> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (server, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        let server = match server.is_empty() {
            true => None,
            false => Some(Fingerprint::parse(server).ok()?),
        };
        let (count, mut rest) = rest.split_first()?;
        let mut reports = BTreeMap::new();
        for _ in 0..*count {
            let (node, report, behind) = Report::parse(rest)?;
            reports.insert(node, report);
            rest = behind;
        }
        let is_sound = reports.len() == usize::from(*count) && reports.len() <= MAX_MEMBERS;
        is_sound.then_some((AgreedServer { server, reports }, rest))
    }
}

impl Report {
    /// Reads a report with its node, and returns them with the bytes behind them.
    fn parse(bytes: &[u8]) -> Option<(u16, Report, &[u8])> {
        let (node, rest) = bytes.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let (members, rest) = rest.split_at_checked(2 * usize::from(*count))?;
        let members = members
            .chunks(2)
            .map(|member| u16::from_be_bytes([member[0], member[1]]));
        let (digest, members) = (*digest, members.collect());
        Some((u16::from_be_bytes(*node), Report { digest, members }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::tests::server;
    use super::*;

    const ALL: [u16; 3] = [1, 2, 3];

    /// Takes a report of each replica.
    fn agreed_on(agreed: &mut AgreedServer, group: &[u16], server: &Fingerprint) {
        for node in group {
            agreed.report(*node, group, server.clone());
        }
    }

    #[test]
    fn the_first_report_decides_and_all_together_step_on() {
        let (old, new) = (
            server("7.0.15", &[("get", 2)]),
            server("7.2.4", &[("get", 2)]),
        );
        let mut agreed = AgreedServer::default();
        assert!(agreed.report(1, &ALL, old.clone()));
        assert!(!agreed.report(2, &ALL, old.clone()));
        assert!(!agreed.report(3, &ALL, old.clone()));
        assert!(!agreed.report(1, &ALL, new.clone()));
        assert!(!agreed.report(2, &ALL, new.clone()));
        // A replica that goes back to the old one, and then on again.
        assert!(!agreed.report(1, &ALL, old.clone()));
        assert!(!agreed.report(3, &ALL, new.clone()));
        assert_eq!(agreed.server, Some(old));
        assert!(agreed.report(1, &ALL, new.clone()));
        assert_eq!(agreed.server, Some(new.clone()));
        assert!(!agreed.report(1, &ALL, new));
    }

    #[test]
    fn nobody_alone_takes_others_out_of_the_group() {
        let (old, new) = (server("7.0.15", &[]), server("none", &[]));
        let agreed = || {
            let mut agreed = AgreedServer::default();
            agreed_on(&mut agreed, &ALL, &old);
            agreed
        };
        // A replica whose cluster file names it alone, and somebody who isn't in the group at all.
        for (node, members) in [(1, &[1][..]), (9, &[9]), (9, &[1, 2, 3, 9])] {
            let mut agreed = agreed();
            assert!(
                !agreed.report(node, members, new.clone()),
                "{node} {members:?}"
            );
            assert!(!agreed.report(node, members, new.clone()));
            // The group can still step on.
            for node in 1..=3 {
                assert_eq!(agreed.report(node, &ALL, new.clone()), node == 3);
            }
        }
    }

    #[test]
    fn strangers_fill_no_memory_and_take_nobodys_place() {
        let (old, new) = (server("7.0.15", &[]), server("7.2.4", &[]));
        let mut agreed = AgreedServer::default();
        agreed_on(&mut agreed, &ALL, &old);
        for node in 4..1_000 {
            assert!(!agreed.report(node, &[node], new.clone()));
            assert!(agreed.reports.len() <= MAX_MEMBERS);
        }
        for node in 1..=3 {
            assert_eq!(agreed.report(node, &ALL, new.clone()), node == 3);
        }
    }

    #[test]
    fn a_new_replica_may_speak_before_the_others_know_of_it() {
        let (old, new) = (server("7.0.15", &[]), server("7.2.4", &[]));
        let mut agreed = AgreedServer::default();
        agreed_on(&mut agreed, &ALL, &old);
        for node in [4, 2, 3] {
            assert_eq!(agreed.report(node, &[2, 3, 4], new.clone()), node == 3);
        }
    }

    #[test]
    fn a_group_that_shrinks_waits_for_those_that_stay() {
        let (old, new) = (server("7.0.15", &[]), server("7.2.4", &[]));
        let mut agreed = AgreedServer::default();
        agreed_on(&mut agreed, &[1, 2, 3, 4, 5], &old);
        for node in 1..=3 {
            assert_eq!(agreed.report(node, &ALL, new.clone()), node == 3);
        }
        assert_eq!(agreed.reports.len(), 3);
    }

    #[test]
    fn who_has_left_the_group_has_no_say() {
        let (old, new) = (server("7.0.15", &[]), server("7.2.4", &[]));
        let mut agreed = AgreedServer::default();
        agreed.report(1, &ALL, old.clone());
        agreed.report(2, &ALL, new.clone());
        agreed.report(3, &ALL, new.clone());
        // Node 4 takes the place of node 1, and isn't counted before it has spoken.
        assert!(!agreed.report(2, &[2, 3, 4], new.clone()));
        assert!(!agreed.report(3, &[2, 3, 4], new.clone()));
        assert!(!agreed.report(9, &[2, 3, 4], new.clone()));
        assert!(agreed.report(4, &[2, 3, 4], new));
        assert_eq!(agreed.reports.len(), 3);
    }

    #[test]
    fn a_snapshot_has_everything() {
        let mut agreed = AgreedServer::default();
        for _ in 0..2 {
            let mut bytes = Vec::new();
            agreed.emit(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(AgreedServer::parse(&bytes[..end]), None);
            }
            bytes.push(7);
            assert_eq!(
                AgreedServer::parse(&bytes),
                Some((agreed.clone(), &[7][..]))
            );
            agreed.report(1, &ALL, server("7.0.15", &[("get", 2)]));
            agreed.report(2, &ALL, server("7.2.4", &[]));
        }
    }
}
