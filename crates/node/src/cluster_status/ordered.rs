// SPDX-License-Identifier: Apache-2.0
//! Shows a group of NOPaxos as a whole, put together from its nodes' answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Group, Node, Protocol, Role};

/// Describes each group of NOPaxos, in the order of the cluster file. Facts that no node answered
/// are null, or missing from a list.
pub fn overview(cluster: &ClusterFile, answers: &BTreeMap<String, Value>) -> Vec<Value> {
    let groups = cluster.groups.iter();
    let ordered = groups.filter(|group| group.protocol == Protocol::NoPaxos);
    let look = |group| Look {
        cluster,
        answers,
        group,
    };
    ordered.map(|group| look(group).whole()).collect()
}

/// Describes a group in lines for people.
pub fn lines(overview: &Value) -> Vec<String> {
    let session = &overview["session"];
    let state = session["state"].as_str().unwrap_or("unknown");
    let sequencer = &overview["sequencer"];
    let stamps = match sequencer["session"].as_u64() {
        Some(session) => format!("stamps in session {session}, next {}", sequencer["next"]),
        None => "DOESN'T STAMP".to_owned(),
    };
    let session = match session["number"].as_u64() {
        Some(number) => format!("session {number} is {state}"),
        None => "no session is known".to_owned(),
    };
    let sequencer = match sequencer["node"].as_str() {
        Some(node) => format!("{node} ({}) {stamps}", name(&sequencer["plane"])),
        None => "no sequencer stamps".to_owned(),
    };
    let mut lines = vec![format!(
        "group {}: {session}; {sequencer}",
        overview["group"]
    )];
    lines.extend(entries(&overview["partitions"]).map(partition_line));
    lines
}

fn partition_line(partition: &Value) -> String {
    let lag = |replica: &Value| {
        let lag = format!("{} {}", name(&replica["name"]), replica["lag"]);
        match replica["status"].as_str() {
            Some("normal") => lag,
            status => format!("{lag} ({})", status.unwrap_or("?").to_uppercase()),
        }
    };
    let lags: Vec<String> = entries(&partition["replicas"]).map(lag).collect();
    format!(
        "  partition {}: view {}, led by {}; stable {}, {} gaps; lag: {}",
        partition["pid"],
        name(&partition["view"]),
        name(&partition["leader"]),
        partition["stable"],
        partition["gaps"],
        lags.join(", ")
    )
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn of_group(document: &Value, group: &Group) -> Value {
    let mut groups = entries(&document["groups"]);
    let found = groups.find(|g| g["group"].as_u64() == Some(group.id.into()));
    found.cloned().unwrap_or_default()
}

struct Look<'a> {
    cluster: &'a ClusterFile,
    answers: &'a BTreeMap<String, Value>,
    group: &'a Group,
}

impl Look<'_> {
    fn whole(&self) -> Value {
        let controllers = self.cluster.controllers();
        let answers = controllers.filter_map(|node| self.answers.get(&node.name));
        let controller = answers.max_by_key(|document| document["acts"] != false);
        let told = controller.map_or(Value::Null, |c| of_group(c, self.group));
        let session = entries(&told["epochs"]).last().cloned().unwrap_or_default();
        let partitions = (0..self.group.partitions).map(|pid| self.partition(pid));
        json!({
            "group": self.group.id,
            "protocol": self.group.protocol.name(),
            "session": { "number": session["epoch"], "state": session["state"] },
            "sequencer": self.sequencer(&session),
            "partitions": partitions.collect::<Value>(),
        })
    }

    /// Returns the sequencer of the last session, or, without a controller, one that stamps.
    fn sequencer(&self, session: &Value) -> Value {
        let of_session = session["leader"][0].as_u64();
        let stampers = self.cluster.with_role(Role::Sequencer);
        let shown = stampers.map(|node| {
            let answer = self.answers.get(&node.name);
            let own = answer.map_or(Value::Null, |a| of_group(a, self.group));
            let plane = answer.map(|a| a["plane"]["name"].clone());
            (node, plane, own)
        });
        let is_meant = |id: u16, own: &Value| match of_session {
            Some(node) => node == u64::from(id),
            None => own["leading"] == true,
        };
        let mut shown = shown.filter(|(node, _, own)| is_meant(node.id, own));
        let Some((node, plane, own)) = shown.next() else {
            return Value::Null;
        };
        let stamps = own["leading"] == true;
        let next = entries(&own["partitions"]).map(|p| p["next"].clone());
        json!({
            "node": node.name,
            "plane": plane,
            "session": stamps.then(|| own["epoch"].clone()),
            "next": next.collect::<Value>(),
        })
    }

    /// Describes a partition. Its view is the latest one in which a replica is normal, or, if none
    /// is normal, to which a replica is changing.
    fn partition(&self, pid: u16) -> Value {
        let nodes = self.cluster.replicas(self.group.id).into_iter();
        let of = |document: &Value| {
            let mut partitions = entries(&document["partitions"]);
            partitions
                .find(|p| p["pid"].as_u64() == Some(pid.into()))
                .cloned()
        };
        let answered = nodes.filter_map(|node| Some((node, of(self.answers.get(&node.name)?)?)));
        let answered: Vec<_> = answered.collect();
        let number = |p: &Value, field: &str| p["nopaxos"][field].as_u64().unwrap_or(0);
        let age = |p: &Value| {
            let view = (number(p, "session"), number(p, "leader_number"));
            (p["nopaxos"]["status"] == "normal", view)
        };
        let latest = answered.iter().map(|(_, p)| p).max_by_key(|p| age(p));
        let leads =
            |(_, p): &&(_, Value)| p["nopaxos"]["leads"] == true && Some(age(p)) == latest.map(age);
        let leader = answered.iter().find(leads);
        let stable = answered.iter().map(|(_, p)| number(p, "stable")).max();
        let replica = |(node, p): &(&Node, Value)| {
            json!({
                "name": node.name,
                "status": p["nopaxos"]["status"],
                "view": view(p),
                "filled": p["nopaxos"]["filled"],
                "stable": p["nopaxos"]["stable"],
                "gaps": p["nopaxos"]["gaps"],
                "next": p["next"],
                "lag": stable.unwrap_or(0).saturating_sub(p["next"].as_u64().unwrap_or(0)),
            })
        };
        json!({
            "pid": pid,
            "view": latest.map(view),
            "leader": leader.map(|(node, _)| node.name.clone()),
            "stable": stable,
            "gaps": leader.map(|(_, p)| p["nopaxos"]["gaps"].clone()),
            "replicas": answered.iter().map(replica).collect::<Value>(),
        })
    }
}

/// Returns a view as the session and the number of the leader.
fn view(partition: &Value) -> String {
    let of = &partition["nopaxos"];
    format!("{}.{}", of["session"], of["leader_number"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{ApplicationKind, Draft, GroupDraft};

    fn cluster() -> ClusterFile {
        let group = GroupDraft {
            protocol: Some(Protocol::NoPaxos),
            ..GroupDraft::new(0, ApplicationKind::Echo)
        };
        let mut draft = Draft::new(7, "data", group);
        let host = std::net::Ipv4Addr::LOCALHOST.into();
        let roles = [
            (Role::Controller, 1),
            (Role::Sequencer, 2),
            (Role::Replica, 3),
        ];
        draft.add_nodes(&roles, host);
        draft.check().unwrap()
    }

    fn replica(status: &str, number: u64, next: u64, leads: bool) -> Value {
        json!({ "role": "replica", "partitions": [{
            "pid": 0, "next": next,
            "nopaxos": { "status": status, "session": 3, "leader_number": number, "leads": leads,
                         "filled": next, "stable": next, "gaps": 2 },
        }]})
    }

    fn answers(cluster: &ClusterFile) -> BTreeMap<String, Value> {
        let id = cluster.node("sequencer-2").unwrap().id;
        let controller = json!({ "groups": [{ "group": 0, "epochs": [
            { "epoch": 2, "state": "active", "leader": [1, 1] },
            { "epoch": 3, "state": "active", "leader": [id, 1] },
        ]}]});
        let stamps = json!({
            "plane": { "name": "xdp" },
            "groups": [{
                "group": 0,
                "leading": true,
                "epoch": 3,
                "partitions": [{ "pid": 0, "next": 60 }],
            }],
        });
        let named = [
            (&cluster.controller_node().name[..], controller),
            ("sequencer-2", stamps),
            ("replica-1", replica("normal", 1, 50, false)),
            ("replica-2", replica("normal", 1, 57, true)),
            // It is silent, or changes to a view to which no other replica changes.
            ("replica-3", replica("changing", 2, 20, false)),
        ];
        let named = named.map(|(name, answer)| (name.to_owned(), answer));
        BTreeMap::from(named)
    }

    #[test]
    fn a_group_is_shown_as_a_whole() {
        let cluster = cluster();
        let mut answers = answers(&cluster);
        let shown = overview(&cluster, &answers);
        assert_eq!(
            lines(&shown[0]),
            [
                "group 0: session 3 is active; sequencer-2 (xdp) stamps in session 3, next [60]",
                "  partition 0: view 3.1, led by replica-2; stable 57, 2 gaps; lag: replica-1 7, \
                 replica-2 0, replica-3 37 (CHANGING)",
            ]
        );
        answers.remove("sequencer-2");
        answers.remove("replica-3");
        let shown = overview(&cluster, &answers);
        let lines = lines(&shown[0]);
        assert!(
            lines[0].ends_with("sequencer-2 (?) DOESN'T STAMP"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("lag: replica-1 7, replica-2 0"),
            "{lines:?}"
        );
    }

    #[test]
    fn what_nobody_answered_is_not_made_up() {
        let cluster = cluster();
        let shown = overview(&cluster, &BTreeMap::new());
        assert_eq!(shown[0]["session"]["number"], Value::Null);
        assert_eq!(shown[0]["sequencer"], Value::Null);
        assert_eq!(shown[0]["partitions"][0]["view"], Value::Null);
        let first = &lines(&shown[0])[0];
        assert_eq!(first, "group 0: no session is known; no sequencer stamps");
    }

    #[test]
    fn groups_of_paxos_have_none() {
        let text = include_str!("../../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(text, "examples/cluster.toml").unwrap();
        assert!(overview(&cluster, &BTreeMap::new()).is_empty());
    }
}
