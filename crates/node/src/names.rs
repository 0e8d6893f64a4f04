// SPDX-License-Identifier: Apache-2.0
//! Puts nodes' names in the place of their numbers. The control plane is told only numbers, and an
//! operator knows only names.

use std::collections::BTreeMap;

use paxos::NodeId;

use crate::cluster_file::{ClusterFile, Role};

/// The names of a cluster's nodes.
#[derive(Clone, Debug)]
pub(crate) struct Names(BTreeMap<NodeId, (Role, String)>);

impl Names {
    pub fn new(cluster: &ClusterFile) -> Names {
        let nodes = cluster.nodes.iter();
        let named = nodes.map(|node| (node.id, (node.role, node.name.clone())));
        Names(named.collect())
    }

    /// Returns a node's name, or words with its number if the cluster file doesn't name it.
    pub fn of(&self, id: NodeId) -> String {
        match self.0.get(&id) {
            Some((_, name)) => name.clone(),
            None => format!("node {id}"),
        }
    }

    /// Returns a text in which `leader 2`, `node 4, 5` and `replicas [7, 8]` are the names of these
    /// nodes. Numbers of unknown nodes, and of nodes with another role, stay.
    pub fn put_into(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic()) {
            let (before, from) = rest.split_at(at);
            out.push_str(before);
            let is_of_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
            let end = from.find(|c| !is_of_word(c)).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            match self.mentioned(word, after) {
                Some((names, after)) => {
                    out.push_str(&names);
                    rest = after;
                }
                None => {
                    out.push_str(word);
                    rest = after;
                }
            }
        }
        out + rest
    }

    /// Returns the names of the nodes whose numbers follow a word, and the text behind them.
    fn mentioned<'a>(&self, word: &str, after: &'a str) -> Option<(String, &'a str)> {
        let word = word.to_ascii_lowercase();
        let word = word.strip_suffix('s').unwrap_or(&word);
        let after = after.strip_prefix(' ')?;
        let (is_list, mut rest) = match after.strip_prefix('[') {
            Some(list) => (true, list),
            None => (false, after),
        };
        let mut names = Vec::new();
        loop {
            let end = rest.find(|c: char| !c.is_ascii_digit());
            let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
            let (role, name) = self.0.get(&number.parse().ok()?)?;
            if word != "node" && word != role.name() {
                return None;
            }
            names.push(name.as_str());
            let next = after.strip_prefix(", ");
            match next.filter(|next| next.starts_with(|c: char| c.is_ascii_digit())) {
                Some(next) => rest = next,
                None => {
                    rest = after;
                    break;
                }
            }
        }
        if is_list {
            rest = rest.strip_prefix(']')?;
        }
        Some((names.join(", "), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_become_names() {
        let text = include_str!("../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(text, "cluster.toml").unwrap();
        let names = Names::new(&cluster);
        let id = |name: &str| cluster.node(name).unwrap().id;
        let (leader, one, two) = (id("leader-1"), id("replica-1"), id("replica-2"));
        let texts = [
            (
                format!("leader {leader} doesn't answer"),
                "leader-1 doesn't answer",
            ),
            (
                format!("node {one}, {two}. Start them"),
                "replica-1, replica-2. Start them",
            ),
            (
                format!("replicas [{one}, {two}] aren't whole"),
                "replica-1, replica-2 aren't whole",
            ),
            (
                format!("REPLICA {one} HAS EXECUTED, partition 0"),
                "replica-1 HAS EXECUTED, partition 0",
            ),
            (format!("ends with node {two}"), "ends with replica-2"),
        ];
        for (text, expected) in texts {
            assert_eq!(names.put_into(&text), expected);
        }
        for same in [
            format!("acceptor {leader} is of another role"),
            format!("replicas [{one}, 999] are partly unknown"),
            "more than f = 1 acceptors don't answer: node 999".to_owned(),
            "epoch 11 is active, leader-1 leads; größer, node".to_owned(),
            String::new(),
        ] {
            assert_eq!(names.put_into(&same), same);
        }
        assert_eq!(names.of(999), "node 999");
    }
}
