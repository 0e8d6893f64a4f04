// SPDX-License-Identifier: Apache-2.0
//! Says what a change of the members would do.

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
    before: &'a ClusterFile,
    after: &'a ClusterFile,
    begin_anew: Vec<&'a str>,
    start: Vec<&'a str>,
    leave: &'a [String],
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        before: &'a ClusterFile,
        after: &'a ClusterFile,
        new: &'a [NodeDraft],
        leave: &'a [String],
    ) -> Plan<'a> {
        let stays = |name: &str| after.node(name).is_some_and(|node| !node.leaving);
        let affected = before.nodes.iter().filter(|node| {
            let is_told = !is_unaffected(node, before, after);
            is_told && stays(&node.name)
        });
        Plan {
            before,
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
        for Redundancy {
            group,
            what,
            before,
            after,
        } in redundancies(self.before, self.after)
        {
            let none = if after == 0 { ": NONE MAY FAIL" } else { "" };
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
        let counted = redundancies(self.before, self.after).map(|r| {
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
struct Redundancy {
    group: GroupId,
    /// `f` for acceptors, `g` for replicas.
    what: &'static str,
    before: u8,
    after: u8,
}

fn redundancies(before: &ClusterFile, after: &ClusterFile) -> impl Iterator<Item = Redundancy> {
    let both = before.groups.iter().zip(&after.groups);
    let paxos = both.filter(|(_, new)| new.protocol == Protocol::Paxos);
    paxos.flat_map(|(old, new)| {
        let of = |what, before, after| Redundancy {
            group: new.id,
            what,
            before,
            after,
        };
        [of("f", old.f, new.f), of("g", old.g, new.g)]
    })
}

/// Refuses a change after which no acceptor, or no replica, may fail any more.
pub(super) fn refuse_the_last(before: &ClusterFile, after: &ClusterFile) -> Result<(), Error> {
    let is_last = |r: &Redundancy| r.before > 0 && r.after == 0;
    match redundancies(before, after).find(is_last) {
        None => Ok(()),
        Some(Redundancy {
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
