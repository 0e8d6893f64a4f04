// SPDX-License-Identifier: Apache-2.0
//! Finds nodes whose key file is older than that of others.

use std::collections::BTreeMap;

use keys::KeyFile;
use serde_json::Value;

use crate::cluster_file::ClusterFile;

/// The generation that signs, the newest, and the oldest that is accepted: each step of a rotation
/// raises one of them.
type Keys = (u64, u64, u64);

/// Returns the keys of this machine's own file, if it is a nodes' file. After a step of a rotation
/// it is newer than that of every node.
pub fn own_keys(cluster: &ClusterFile) -> Option<Keys> {
    let file = KeyFile::load_nodes(&cluster.keys, cluster.cluster).ok()?;
    let oldest = file.generations().next()?;
    let newest = file.generations().last()?;
    Some((file.signs().into(), newest.into(), oldest.into()))
}

/// Returns a line that names the nodes whose key file isn't the newest that this machine or any
/// node has.
pub fn old_keys(answers: &BTreeMap<String, Value>, own: Option<Keys>) -> Option<String> {
    let known = answers
        .iter()
        .filter_map(|(name, document)| Some((name.as_str(), keys_of(document)?)));
    let known: Vec<_> = known.collect();
    let newest = known.iter().map(|(_, keys)| *keys).chain(own).max()?;
    let old = known.iter().filter(|(_, keys)| *keys < newest);
    let old: Vec<_> = old.map(|(name, _)| *name).collect();
    (!old.is_empty()).then(|| {
        format!(
            "keys: {} has an older key file than the newest, which signs with generation {}: hand \
             that out there, and wait",
            old.join(", "),
            newest.0
        )
    })
}

/// Returns a node's keys; for a replica those of the partition that is behind.
fn keys_of(document: &Value) -> Option<Keys> {
    let of = |auth: &Value| {
        let generations = auth["generations"].as_array()?;
        let at = |value: Option<&Value>| value.and_then(Value::as_u64);
        let (oldest, newest) = (at(generations.first())?, at(generations.last())?);
        Some((auth["signs"].as_u64()?, newest, oldest))
    };
    let partitions = document["partitions"].as_array().into_iter().flatten();
    let partitions = partitions.filter_map(|p| of(&p["auth"]));
    of(&document["auth"]).or(partitions.min())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_with_older_key_files_are_named() {
        let auth =
            |generations: &[u64], signs| json!({ "generations": generations, "signs": signs });
        let of = |leader: Value, partition: Value| {
            let leader = ("leader-1".to_string(), json!({ "auth": leader }));
            let replica =
                json!({ "partitions": [{ "auth": auth(&[2], 2) }, { "auth": partition }] });
            let answers = [leader, ("replica-1".to_string(), replica)];
            old_keys(&BTreeMap::from(answers), Some((2, 2, 2)))
        };
        assert_eq!(of(auth(&[2], 2), auth(&[2], 2)), None);
        assert_eq!(of(Value::Null, auth(&[2], 2)), None);
        for old in [auth(&[1], 1), auth(&[1, 2], 1), auth(&[1, 2], 2)] {
            let named = of(auth(&[2], 2), old).unwrap();
            assert!(named.starts_with("keys: replica-1 has an older"), "{named}");
        }
        let named = of(auth(&[1, 2], 1), auth(&[2], 2)).unwrap();
        assert!(named.starts_with("keys: leader-1 has"), "{named}");
        let named = of(auth(&[1, 2], 1), auth(&[1, 2], 1)).unwrap();
        assert!(
            named.starts_with("keys: leader-1, replica-1 has"),
            "{named}"
        );
    }
}
