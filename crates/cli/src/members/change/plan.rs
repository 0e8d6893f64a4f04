// SPDX-License-Identifier: Apache-2.0
//! Says what a change of the members would do.

use control::status::GroupStatus;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::{NodeDraft, Protocol, Role, is_unaffected};
use paxos::GroupId;
use serde_json::{Value, json};

/// The roles that commands change, with their names in what is printed.
const ROLES: [(Role, &str); 3] = [
    (Role::Leader, "leaders"),
    (Role::Acceptor, "acceptors"),
    (Role::Replica, "replicas"),
];

/// What a change would do.
pub(super) struct Plan<'a> {
    may_fail: Vec<MayFail>,
    after: &'a ClusterFile,
    begin_anew: Vec<&'a str>,
    start: Vec<&'a str>,
    leave: &'a [String],
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        before: &'a ClusterFile,
        after: &'a ClusterFile,
        groups: &[GroupStatus],
        (new, leave): (&'a [NodeDraft], &'a [String]),
    ) -> Plan<'a> {
        let stays = |name: &str| after.node(name).is_some_and(|node| !node.leaving);
        let affected = before.nodes.iter().filter(|node| {
            let is_told = !is_unaffected(node, before, after);
            is_told && stays(&node.name)
        });
        Plan {
            may_fail: may_fail(before, after, groups),
            after,
            begin_anew: affected.map(|node| node.name.as_str()).collect(),
            start: new.iter().map(|node| node.name.as_str()).collect(),
            leave,
        }
    }

    pub(super) fn print(&self, as_json: bool) {
        if as_json {
            println!("{}", self.to_json());
            return;
        }
        for (role, key) in ROLES {
            println!("{key} afterwards: {}", staying(self.after, role).join(", "));
        }
        for MayFail {
            group,
            what,
            before,
            after,
        } in &self.may_fail
        {
            let none = if *after == 0 { ": NONE MAY FAIL" } else { "" };
            println!("group {group}: {what} is {before} now, and {after} afterwards{none}");
        }
        println!("all nodes keep the change in their directories");
        println!(
            "one after the other, these begin anew in their processes, who leads and the \
             controller last: {}",
            self.begin_anew.join(", ")
        );
        if !self.start.is_empty() {
            println!("you start: {}", self.start.join(", "));
        }
        if !self.leave.is_empty() {
            println!(
                "these end by themselves, once no epoch counts on them: {}",
                self.leave.join(", ")
            );
        }
    }

    fn to_json(&self) -> Value {
        let counted = self.may_fail.iter().map(|r| {
            json!({
                "group": r.group, "number": r.what, "before": r.before, "after": r.after
            })
        });
        let mut shown = json!({
            "start": self.start,
            "begin_anew": self.begin_anew,
            "leave": self.leave,
            "may_fail": counted.collect::<Value>(),
        });
        for (role, key) in ROLES {
            shown[key] = json!(staying(self.after, role));
        }
        shown
    }
}

/// How many nodes of a group may fail, before a change and after it.
struct MayFail {
    group: GroupId,
    /// `f` for acceptors, `g` for replicas.
    what: &'static str,
    before: u8,
    after: u8,
}

/// Counts how many nodes may fail. Nodes that were added, and on which the last epoch doesn't count
/// yet, make no failure harmless; so nothing is lost without them. [T-MEMBERS]
fn may_fail(before: &ClusterFile, after: &ClusterFile, groups: &[GroupStatus]) -> Vec<MayFail> {
    let both = before.groups.iter().zip(&after.groups);
    let paxos = both.filter(|(_, new)| new.protocol == Protocol::Paxos);
    let counted = paxos.flat_map(|(old, new)| {
        let status = groups.iter().find(|status| status.group == new.id);
        let last = status.and_then(|status| status.epochs.last());
        let (f, g) = last.map_or((old.f, old.g), |last| (last.f, last.g));
        let of = |what, before, after| MayFail {
            group: new.id,
            what,
            before,
            after,
        };
        [of("f", old.f.min(f), new.f), of("g", old.g.min(g), new.g)]
    });
    counted.collect()
}

/// Refuses a change after which no acceptor, or no replica, may fail any more.
pub(super) fn refuse_the_last(
    before: &ClusterFile,
    after: &ClusterFile,
    groups: &[GroupStatus],
) -> Result<(), Error> {
    let is_last = |r: &MayFail| r.before > 0 && r.after == 0;
    match may_fail(before, after, groups).into_iter().find(is_last) {
        None => Ok(()),
        Some(MayFail {
            group,
            what,
            before,
            ..
        }) => Err(Error::new(format!(
            "group {group}: {what} would fall from {before} to 0, so no {} may fail any more: keep \
             three, or give --no-redundancy",
            if what == "f" { "acceptor" } else { "replica" }
        ))),
    }
}

fn staying(cluster: &ClusterFile, role: Role) -> Vec<&str> {
    let nodes = cluster.with_role(role).filter(|node| !node.leaving);
    nodes.map(|node| node.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{EpochRecord, EpochState};
    use node::cluster_file::{ApplicationKind, Draft, GroupDraft};
    use paxos::{Configuration, Member};

    fn cluster(replicas: usize) -> ClusterFile {
        let mut draft = Draft::new(7, "data", GroupDraft::new(0, ApplicationKind::Echo));
        let host = std::net::Ipv4Addr::LOCALHOST.into();
        let roles = [
            (Role::Controller, 1),
            (Role::Leader, 1),
            (Role::Acceptor, 3),
            (Role::Replica, replicas),
        ];
        draft.add_nodes(&roles, host);
        draft.check().unwrap()
    }

    /// Returns the status of the only group while its last epoch counts on so many replicas.
    fn status(replicas: usize) -> GroupStatus {
        let file = cluster(replicas);
        let member = |node| Member { node, nonce: 7 };
        let acceptors = file.acceptors().into_iter();
        let configuration = Configuration {
            epoch: 5,
            leader: member(2),
            acceptors: acceptors.map(|node| member(node.id)).collect(),
            f: 1,
            replicas: file.replicas(0).iter().map(|node| node.id).collect(),
            g: file.groups[0].g,
        };
        GroupStatus {
            group: 0,
            active: Some(5),
            epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
            leader: Some(2),
            members: vec![],
            behind: vec![],
            suspects: vec![],
            attempt: None,
            last_failover: None,
            refused_lanes: 0,
            warnings: vec![],
        }
    }

    /// Two replicas were to become three, and the third was never started. [T-MEMBERS]
    #[test]
    fn a_replica_that_no_epoch_counts_on_is_taken_back_without_a_flag() {
        let (three, two) = (cluster(3), cluster(2));
        assert!(refuse_the_last(&three, &two, &[status(2)]).is_ok());
        let why = refuse_the_last(&three, &two, &[status(3)]).unwrap_err();
        assert!(
            why.to_string().contains("g would fall from 1 to 0"),
            "{why}"
        );
        assert!(
            refuse_the_last(&three, &two, &[]).is_err(),
            "no epoch is known"
        );
        let shown = Plan::new(&three, &two, &[status(2)], (&[], &[])).to_json();
        let g = &shown["may_fail"][1];
        assert_eq!((&g["before"], &g["after"]), (&json!(0), &json!(0)));
    }
}
