// SPDX-License-Identifier: Apache-2.0
//! Compares what nodes run with: the cluster file, and the build of the program.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster_file::ClusterFile;

/// Returns a warning for each way in which nodes differ, with its remedy.
pub fn differences(cluster: &ClusterFile, answers: &BTreeMap<String, Value>) -> Vec<String> {
    let files = other_files(&cluster.fingerprint.to_string(), answers);
    files.into_iter().chain(other_builds(answers)).collect()
}

/// Returns the version of a node's program, with the beginning of its commit where the build has
/// one.
pub fn build(document: &Value) -> String {
    let version = document["version"].as_str().unwrap_or("?");
    match document["commit"].as_str() {
        Some(commit) => format!("{version}+{}", commit.get(..7).unwrap_or(commit)),
        None => version.to_owned(),
    }
}

fn other_files(own: &str, answers: &BTreeMap<String, Value>) -> Option<String> {
    let file = |document: &Value| document["cluster_file"].as_str().unwrap_or("?").to_owned();
    let other: Vec<(&str, String)> = answers
        .iter()
        .map(|(name, document)| (name.as_str(), file(document)))
        .filter(|(_, file)| file != own)
        .collect();
    let first = &other.first()?.1;
    let names: Vec<&str> = other.iter().map(|(name, _)| *name).collect();
    let are_one = names.len() == answers.len() && other.iter().all(|(_, file)| file == first);
    Some(match are_one {
        true => format!(
            "all nodes run with another cluster file ({first}) than this one ({own}): take theirs \
             (changes of members by command: `wirepaxos members --write`), or hand this one out \
             and restart the nodes one by one"
        ),
        false => format!(
            "{}: another cluster file than this one ({own}): copy this one there, and restart the \
             node",
            names.join(", ")
        ),
    })
}

/// Returns a warning that names the nodes whose build isn't that of most nodes.
fn other_builds(answers: &BTreeMap<String, Value>) -> Option<String> {
    let mut builds = BTreeMap::<String, Vec<&str>>::new();
    for (name, document) in answers {
        builds.entry(build(document)).or_default().push(name);
    }
    let most = builds
        .iter()
        .max_by_key(|(_, names)| names.len())?
        .0
        .clone();
    let others = builds.iter().filter(|(build, _)| **build != most);
    let others = others.map(|(build, names)| format!("{} ({build})", names.join(", ")));
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        format!(
            "{}: another version than {most}, which most nodes run: install one version \
             everywhere, and restart these",
            others.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answers(field: &str, values: &[&str]) -> BTreeMap<String, Value> {
        let names = ["acceptor-1", "leader-1", "leader-2"];
        let documents = values.iter().map(|value| {
            let mut document = json!({ "version": "1.0.0", "cluster_file": "aaaaaaaa" });
            document[field] = json!(value);
            document
        });
        names
            .iter()
            .map(ToString::to_string)
            .zip(documents)
            .collect()
    }

    #[test]
    fn nodes_with_another_file_are_named_or_this_file_is() {
        let other = |values: &[&str]| other_files("aaaaaaaa", &answers("cluster_file", values));
        assert_eq!(other(&["aaaaaaaa"; 3]), None);
        let one = other(&["aaaaaaaa", "aaaaaaaa", "b"]).unwrap();
        assert!(one.starts_with("leader-2: another cluster file"), "{one}");
        let all = other(&["b"; 3]).unwrap();
        assert!(
            all.starts_with("all nodes run with another cluster file (b)"),
            "{all}"
        );
        let various = other(&["b", "c", "c"]).unwrap();
        assert!(
            various.starts_with("acceptor-1, leader-1, leader-2: another"),
            "{various}"
        );
        assert_eq!(other_files("a", &BTreeMap::new()), None);
    }

    #[test]
    fn nodes_of_another_build_are_named() {
        assert_eq!(other_builds(&answers("version", &["1.0.0"; 3])), None);
        let old = other_builds(&answers("version", &["1.0.0", "0.9.0", "1.0.0"])).unwrap();
        assert!(
            old.starts_with("leader-1 (0.9.0): another version than 1.0.0"),
            "{old}"
        );
        let commits = answers("commit", &["0123456789", "0123456789", "abcdefghij"]);
        let other = other_builds(&commits).unwrap();
        let expected = "leader-2 (1.0.0+abcdefg): another version than 1.0.0+0123456";
        assert!(other.starts_with(expected), "{other}");
        assert_eq!(other_builds(&BTreeMap::new()), None);
    }
}
