// SPDX-License-Identifier: Apache-2.0
//! Finds nodes whose key file is older than that of others.

use std::collections::BTreeMap;

use serde_json::Value;

/// Returns a line that names the nodes whose key file isn't the newest that any node has.
pub fn old_keys(answers: &BTreeMap<String, Value>) -> Option<String> {
    let known = answers
        .iter()
        .filter_map(|(name, document)| Some((name.as_str(), keys_of(document)?)));
    let known: Vec<_> = known.collect();
    let newest = known.iter().map(|(_, keys)| *keys).max()?;
    let old = known.iter().filter(|(_, keys)| *keys < newest);
    let old: Vec<_> = old.map(|(name, _)| *name).collect();
    (!old.is_empty()).then(|| {
        format!(
            "keys: {} has an older key file than others, which sign with generation {}: hand it \
             out there",
            old.join(", "),
            newest.0
        )
    })
}

/// Returns the generation that signs, the newest, and the oldest that is accepted: each step of a
/// rotation raises one of them. For a replica these are the generations of the partition that is
/// behind.
fn keys_of(document: &Value) -> Option<(u64, u64, u64)> {
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
            old_keys(&BTreeMap::from([
                leader,
                ("replica-1".to_string(), replica),
            ]))
        };
        assert_eq!(of(auth(&[2], 2), auth(&[2], 2)), None);
        assert_eq!(of(Value::Null, auth(&[2], 2)), None);
        for old in [auth(&[1], 1), auth(&[1, 2], 1), auth(&[1, 2], 2)] {
            let named = of(auth(&[2], 2), old).unwrap();
            assert!(named.starts_with("keys: replica-1 has an older"), "{named}");
        }
        let named = of(auth(&[1, 2], 1), auth(&[2], 2)).unwrap();
        assert!(named.starts_with("keys: leader-1 has"), "{named}");
    }
}
