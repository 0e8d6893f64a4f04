// SPDX-License-Identifier: Apache-2.0
//! Several controllers as their operator sees them.

use std::process::Command;

use serde_json::Value;

use super::{TestCluster, eventually};

/// Returns the status documents of the controllers that answer, by their names.
pub fn controllers(cluster: &TestCluster) -> Vec<(String, Value)> {
    let status = super::json(&cluster.run("status", &["--json"]));
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let named = nodes.into_iter().filter_map(|node| {
        let name = node["name"].as_str()?.to_owned();
        let answers = node["status"]["role"] == "controller";
        answers.then(|| (name, node["status"].clone()))
    });
    named.collect()
}

/// Waits until a controller acts that isn't one of these and has an active epoch, and returns its
/// name.
pub fn acting(cluster: &TestCluster, but: &[&str]) -> String {
    eventually("a controller acts", || {
        let mut all = controllers(cluster).into_iter();
        let acts =
            |document: &Value| document["acts"] == true && document["groups"][0]["active"].is_u64();
        let found = all.find(|(name, document)| acts(document) && !but.contains(&name.as_str()));
        found.map(|(name, _)| name)
    })
}

/// Waits until a leader leads, and returns its name.
pub fn leader(cluster: &TestCluster) -> String {
    eventually("a leader", || {
        let names = ["leader-1", "leader-2"];
        let leads = |name: &&&str| cluster.status(name)["groups"][0]["leading"] == true;
        names.iter().find(leads).map(|name| (*name).to_owned())
    })
}

/// Waits until a controller's warnings have these words.
pub fn warns(cluster: &TestCluster, name: &str, words: &str) {
    eventually(&format!("{name} warns: {words}"), || {
        let all = controllers(cluster);
        let (_, document) = all.iter().find(|(found, _)| found == name)?;
        document["warnings"]
            .to_string()
            .contains(words)
            .then_some(())
    });
}

/// Sends a signal to a node's process.
pub fn signal(cluster: &TestCluster, name: &str, signal: &str) {
    let pid = cluster.processes.pid(name).unwrap().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.unwrap().success());
}
