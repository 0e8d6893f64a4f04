// SPDX-License-Identifier: Apache-2.0
//! The server on which a group has agreed. It is part of the replicated state and moves with the log alone.
//!
//! Each front end says through the log which server its replica has, before it sends anything else. The first one that
//! speaks decides. Another server becomes the group's once every replica of the group has said last that it has that one.
//!
//! | bytes | |
//! |---|---|
//! | server | length u32, [fingerprint](super::fingerprint); length 0 = none is agreed on yet |
//! | reports | count u8, then of each replica, ascending: node u16, digest of its fingerprint |

use std::collections::BTreeMap;

use super::command::MAX_MEMBERS;
use super::fingerprint::Fingerprint;

const DIGEST_LEN: usize = 32;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Agreed {
    /// The agreed server, from the first report on.
    pub server: Option<Fingerprint>,
    /// The digest of what each replica of the group has said last.
    reports: BTreeMap<u16, [u8; DIGEST_LEN]>,
}

impl Agreed {
    /// Takes a report of a replica of the group that `members` names; returns true if the agreed server is another one
    /// now.
    pub fn report(&mut self, node: u16, members: &[u16], server: Fingerprint) -> bool {
        let digest = server.digest();
        self.reports.retain(|node, _| members.contains(node));
        if members.contains(&node) {
            self.reports.insert(node, digest);
        }
        let says_so = |member| self.reports.get(member) == Some(&digest);
        let is_first = self.server.is_none();
        let steps = is_first || !members.is_empty() && members.iter().all(says_so);
        let changes = steps && self.server.as_ref() != Some(&server);
        if changes {
            self.server = Some(server);
        }
        changes
    }

    /// Appends it as a snapshot stores it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let server = self.server.as_ref().map(Fingerprint::to_bytes);
        let server = server.unwrap_or_default();
        out.extend_from_slice(&(server.len() as u32).to_be_bytes());
        out.extend_from_slice(&server);
        out.push(self.reports.len() as u8);
        for (node, digest) in &self.reports {
            out.extend_from_slice(&node.to_be_bytes());
            out.extend_from_slice(digest);
        }
    }

    /// Reads it from a snapshot, and returns it with the bytes behind it. Returns `None` if it is damaged.
    pub fn parse(bytes: &[u8]) -> Option<(Agreed, &[u8])> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (server, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        let server = match server.is_empty() {
            true => None,
            false => Some(Fingerprint::parse(server).ok()?),
        };
        let (count, rest) = rest.split_first()?;
        let (all, rest) = rest.split_at_checked(usize::from(*count) * (2 + DIGEST_LEN))?;
        let mut reports = BTreeMap::new();
        for report in all.chunks(2 + DIGEST_LEN) {
            let (node, digest) = report.split_first_chunk()?;
            reports.insert(u16::from_be_bytes(*node), digest.try_into().ok()?);
        }
        let is_sound = reports.len() == usize::from(*count) && reports.len() <= MAX_MEMBERS;
        is_sound.then_some((Agreed { server, reports }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::tests::server;
    use super::*;

    const ALL: [u16; 3] = [1, 2, 3];

    #[test]
    fn the_first_report_decides_and_all_together_step_on() {
        let (old, new) = (
            server("7.0.15", &[("get", 2)]),
            server("7.2.4", &[("get", 2)]),
        );
        let mut agreed = Agreed::default();
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
    fn who_has_left_the_group_has_no_say() {
        let (old, new) = (server("7.0.15", &[]), server("7.2.4", &[]));
        let mut agreed = Agreed::default();
        agreed.report(1, &ALL, old.clone());
        agreed.report(2, &ALL, new.clone());
        agreed.report(3, &ALL, new.clone());
        // Node 4 takes the place of node 1, and isn't counted before it has spoken.
        assert!(!agreed.report(2, &[2, 3, 4], new.clone()));
        assert!(!agreed.report(9, &[2, 3, 4], new.clone()));
        assert!(agreed.report(4, &[2, 3, 4], new));
        assert_eq!(agreed.reports.len(), 3);
    }

    #[test]
    fn a_snapshot_has_everything() {
        let mut agreed = Agreed::default();
        for _ in 0..2 {
            let mut bytes = Vec::new();
            agreed.emit(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(Agreed::parse(&bytes[..end]), None);
            }
            bytes.push(7);
            assert_eq!(Agreed::parse(&bytes), Some((agreed.clone(), &[7][..])));
            agreed.report(1, &ALL, server("7.0.15", &[("get", 2)]));
            agreed.report(2, &ALL, server("7.2.4", &[]));
        }
    }
}
